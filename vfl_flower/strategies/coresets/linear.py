"""The server's side of the linear solvers whose rows never leave a party.

The server keeps the residual r on the rows of the coreset; each iteration is one round
trip in which r goes out and sums over parties come back. The notation is that of
``clients/coresets/linear.py``, and the objective that of ``numerics/linear.py``.
"""

from __future__ import annotations

import logging

import numpy as np

from vfl_flower.clients.coresets import linear as party
from vfl_flower.clients.coresets.sampling import WeightedRows
from vfl_flower.numerics.linear import Penalty, momentum
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")


def solve(
    parties: Parties,
    solver: str,
    coreset: WeightedRows | None,
    *,
    n: int,
    penalty: Penalty,
    fit_intercept: bool,
    test_fraction: float,
    max_iter: int,
    tol: float,
    batch_size: int,
    run: Run,
) -> tuple[list[Array], float, float, dict[str, float]]:
    """Solve a weighted least squares problem with the rows at the parties.

    "cg" takes accelerated proximal steps where the penalty has an l1 part; "saga" is
    that of Defazio et al. (2014). `coreset` are rows and weights; None: all training
    rows, with weight 1. `n` is the number of rows that the weights stand for.
    `max_iter` counts iterations of cg, or passes over the rows of saga, whose round
    trips take `batch_size` rows each; 1 is the paper's. `tol` bounds the gradient (cg),
    the step (proximal) or the mean change of the residuals (saga), relative to the
    standard deviation of y (without an intercept: its root mean square).

    Return the coefficients of each party and the intercept, in the unit of y; that
    deviation on the rows, rounded up to a power of two; and metrics. Of these
    ``converged`` is 1.0 or 0.0, and with saga says that the residuals have settled: if
    columns lack rank, an l1 penalty may still move the coefficients.
    """
    method: party.Method = "saga"
    if solver == "cg":
        method = "proximal" if penalty.l1 else "cg"
    replies = parties.ask(
        party.start.summing(residual=party.BOUND, norms=party.WIDE_BOUND),
        method=method,
        n=n,
        l2=penalty.l2,
        intercept=fit_intercept,
        test_fraction=test_fraction,
        coreset=coreset,
    )
    holder = parties.label_holder
    if (scale := replies[holder].get("scale")) is None:
        raise replies.failure(holder, "its reply lacks 'scale', that of the labels")
    m = n if coreset is None else len(coreset.rows)
    m_residual, m_norms = (0, m) if method == "saga" else (m, 0)
    residual, norms = replies.sums["residual"], replies.sums["norms"]
    if len(residual) != m_residual or len(norms) != m_norms or (norms < 0).any():
        rule = f"{m_residual} residuals and {m_norms} squares"
        raise parties.faulty_sum(party.start, rule)
    l1 = penalty.l1 / scale
    if method == "cg":
        iterations, metrics = _conjugate_gradients(
            parties, run, residual, max_iter, tol
        )
    elif method == "proximal":
        iterations, metrics = _proximal(parties, run, residual, l1, max_iter, tol)
    else:
        iterations, metrics = _saga(parties, run, norms, l1, max_iter, tol, batch_size)
    last = parties.ask_exactly(party.coefficients.summing(shift=2.0**20))
    blocks = [scale * block for block in last.each("coefficients")]
    intercept = float(scale * last.sums["shift"][0])
    return blocks, intercept, scale, metrics | {"iterations": iterations}


def _conjugate_gradients(
    parties: Parties, run: Run, r: Array, max_iter: int, tol: float
) -> tuple[int, dict[str, float]]:
    """Minimise |r|^2 + penalty by conjugate gradients, one round trip per iteration.

    The parties send A s for the gradient s; A p for the direction p = s + beta p_old
    follows without asking, and so does the energy of the penalty.
    """
    q: Array = np.zeros_like(r)
    penalty = 0.0
    step_size = shrink = gamma_old = 0.0
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    converged = False
    for _ in range(max_iter):
        sums = parties.secure_sum(
            party.cg.summing(direction=party.BOUND, energies=party.BOUND),
            residual=r,
            step_size=step_size,
            shrink=shrink,
        )
        gamma, energy, cross = sums["energies"].tolist()
        run.trace("remaining", max(gamma, 0.0) ** 0.5)
        if converged := gamma <= tol**2:
            break
        beta = gamma / gamma_old if gamma_old else 0.0
        q = sums["direction"] + beta * q
        penalty = energy + 2 * beta * cross + beta**2 * penalty
        curvature = float(q @ q) + penalty
        if curvature <= 0:  # the directions of the parties cancel, up to rounding
            break
        alpha = gamma / curvature
        # The Lanczos matrix of the iteration: its smallest eigenvalue is that of the
        # whitened normal matrix on the Krylov space of the right-hand side.
        diagonal.append(1 / alpha + (beta / step_size if step_size else 0.0))
        if step_size:
            off_diagonal.append(beta**0.5 / step_size)
        r = r - alpha * q
        step_size, shrink, gamma_old = alpha, beta, gamma
    metrics = {"converged": float(converged)}
    if diagonal:
        # eigvalsh reads the lower triangle alone.
        lanczos = np.diag(diagonal) + np.diag(off_diagonal, -1)
        smallest = np.linalg.eigvalsh(lanczos)[0]
        metrics["sigma_min_x"] = float(np.sqrt(max(smallest, 0.0)))
    return len(diagonal), metrics


def _proximal(
    parties: Parties, run: Run, r: Array, l1: float, max_iter: int, tol: float
) -> tuple[int, dict[str, float]]:
    """Accelerated proximal gradients (Beck and Teboulle 2009) in the blocks' metric.

    The momentum starts again where it points uphill (O'Donoghue and Candes 2015).
    """
    t = 1.0
    for iteration in range(1, max_iter + 1):
        t_next = momentum(t)
        sums = parties.secure_sum(
            party.proximal.summing(
                residual=party.WIDE_BOUND, energies=party.WIDE_BOUND
            ),
            residual=r,
            l1=l1,
            momentum=(t - 1) / t_next,
        )
        r, (uphill, change) = sums["residual"], sums["energies"]
        run.trace("remaining", max(change, 0.0) ** 0.5)
        if change <= tol**2:
            return iteration, {"converged": 1.0}
        t = 1.0 if uphill > 0 else t_next
    return max_iter, {"converged": 0.0}


def _saga(
    parties: Parties,
    run: Run,
    norms: Array,
    l1: float,
    max_iter: int,
    tol: float,
    batch_size: int,
) -> tuple[int, dict[str, float]]:
    """SAGA (Defazio et al. 2014); the step of a batch as Gazagnadou et al. (2019)."""
    m, rng = len(norms), run.rng("saga")
    b = min(batch_size, m)
    # Smoothness of one row, of all rows (the trace), and of a batch without repeats.
    of_row, of_all = 2 * m * float(norms.max()), 2 * float(norms.sum())
    smoothness = of_row
    if m > 1:
        of_batch = (m * (b - 1) * of_all + (m - b) * of_row) / (b * (m - 1))
        smoothness = min(of_row, of_batch)
    step_size = 1 / (3 * smoothness) if smoothness else 0.0
    table, change = np.zeros(m), np.zeros(0)
    trips = 0
    for sweep in range(1, max_iter + 1):
        moved = 0.0
        for _ in range(-(-m // b)):
            batch = rng.choice(m, size=b, replace=False).astype(np.uint32)
            sums = parties.secure_sum(
                party.saga.summing(residual=party.WIDE_BOUND),
                batch=batch,
                change=change,
                step_size=step_size,
                l1=l1,
            )
            change = sums["residual"] - table[batch]
            table[batch] = sums["residual"]
            moved += float(change @ change)
            trips += 1
        log.info(
            "saga: pass %d of at most %d, change %.3g", sweep, max_iter, moved**0.5
        )
        run.trace("remaining", moved**0.5)
        if moved <= tol**2:
            return trips, {"converged": 1.0}
    return trips, {"converged": 0.0}
