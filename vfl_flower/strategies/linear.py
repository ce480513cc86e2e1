"""The server's side of the linear solvers whose rows never leave a party.

The server keeps the residual r on the rows of the coreset; each iteration is one round
trip in which r goes out and sums over parties come back. See ``clients/linear.py`` for
the notation and ``numerics/linear.py`` for the objective.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from vfl_flower.numerics.linear import Penalty, momentum
from vfl_flower.strategies.parties import Parties
from vfl_flower.typing import Array, Values

log = logging.getLogger("vfl_flower")

# |t| = 1 and the objective never grows, so no entry that conjugate gradients send is
# larger than 1; the other solvers have no such bound and are watched for clipping.
_CG_BOUND, _LOOSE_BOUND = 2.0, 2.0**12


@dataclass(frozen=True)
class Problem:
    """A weighted least squares problem whose rows are at the parties.

    Attributes
    ----------
    rows : Array or None, shape (m,)
        Numbers of the rows; None: all training rows.
    weights : Array or None, shape (m,)
        Their weights; None: 1 each.
    n : int
        Number of rows that the weights stand for.
    penalty : Penalty
        Of the mean squared error.
    fit_intercept : bool
        Whether b is free, or 0.
    test_fraction : float
        Share of the rows that is not training rows.
    """

    rows: Array | None
    weights: Array | None
    n: int
    penalty: Penalty
    fit_intercept: bool
    test_fraction: float

    def settings(self) -> dict[str, Array | float | int | bool]:
        """Return what ``linear_start`` takes."""
        settings: dict[str, Array | float | int | bool] = {
            "n": self.n,
            "l2": self.penalty.l2,
            "intercept": self.fit_intercept,
            "test_fraction": self.test_fraction,
        }
        if self.rows is not None and self.weights is not None:
            settings |= {"rows": self.rows, "weights": self.weights}
        return settings


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    Attributes
    ----------
    coefficients : list of Array, shape (d_j,)
        Of each party, in the unit of y.
    intercept : float
        In the unit of y.
    iterations : int
        Round trips of the solver, without start and end.
    scale : float
        Standard deviation of y on the rows; without an intercept its root mean square.
    metrics : dict
        More to report.
    """

    coefficients: list[Array]
    intercept: float
    iterations: int
    scale: float
    metrics: dict[str, float] = field(default_factory=dict)


def solve(
    parties: Parties,
    problem: Problem,
    solver: str,
    *,
    max_iter: int,
    tol: float,
    batch_size: int,
    rng: np.random.Generator,
) -> Solution:
    """Solve with the rows at the parties.

    Parameters
    ----------
    parties : Parties
        One of them holds the labels.
    problem : Problem
        What to minimise.
    solver : {"cg", "saga"}
        ``"cg"``: conjugate gradients, or accelerated proximal steps where the penalty
        has an l1 part; ``"saga"``: Defazio et al. (2014), the paper's baseline.
    max_iter : int
        Iterations of cg; passes over the rows of saga.
    tol : float
        Stop when the gradient (cg), the step (proximal) or the mean change of the
        residuals (saga) is below it, relative to the standard deviation of y (without
        an intercept: its root mean square).
    batch_size : int
        Rows a round trip of saga; 1 is the paper's.
    rng : Generator
        Draws of saga.

    Returns
    -------
    Solution
        With ``metrics["converged"]`` 1.0 or 0.0. For saga it says that the residuals
        have settled: where columns lack rank, an l1 penalty may still move the
        coefficients.
    """
    method = "saga" if solver == "saga" else "proximal" if problem.penalty.l1 else "cg"
    replies = parties.ask(
        "linear_start",
        sums={"residual": 2.0, "norms": _LOOSE_BOUND},
        method=method,
        **problem.settings(),
    )
    scale = replies[parties.label_holder]["scale"]
    residual, norms = replies.sums["residual"], replies.sums["norms"]
    l1 = problem.penalty.l1 / scale
    if method == "cg":
        iterations, metrics = _conjugate_gradients(parties, residual, max_iter, tol)
    elif method == "proximal":
        iterations, metrics = _proximal(parties, residual, l1, max_iter, tol)
    else:
        iterations, metrics = _saga(parties, norms, l1, max_iter, tol, batch_size, rng)
    if not metrics["converged"]:
        log.warning("%s stopped after %d iterations before tol", solver, iterations)
    replies = parties.ask_exactly("linear_coefficients", {"shift": 2.0**20})
    blocks = [scale * block for block in replies.each("coefficients")]
    intercept = float(scale * replies.sums["shift"][0])
    return Solution(blocks, intercept, iterations, scale, metrics)


def _conjugate_gradients(
    parties: Parties, r: Array, max_iter: int, tol: float
) -> tuple[int, dict[str, float]]:
    """Minimise |r|^2 + penalty by conjugate gradients, one round trip an iteration.

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
            "linear_cg",
            {"direction": _CG_BOUND, "energies": _CG_BOUND},
            residual=r,
            step_size=step_size,
            shrink=shrink,
        )
        gamma, energy, cross = sums["energies"].tolist()
        if converged := gamma <= tol**2:
            break
        beta = gamma / gamma_old if gamma_old else 0.0
        q = sums["direction"] + beta * q
        penalty = energy + 2 * beta * cross + beta**2 * penalty
        alpha = gamma / (float(q @ q) + penalty)
        # The Lanczos matrix of the same iteration: its smallest eigenvalue is that of
        # the whitened normal matrix, seen from the right-hand side.
        diagonal.append(1 / alpha + (beta / step_size if step_size else 0.0))
        if step_size:
            off_diagonal.append(beta**0.5 / step_size)
        r = r - alpha * q
        step_size, shrink, gamma_old = alpha, beta, gamma
    metrics = {"converged": float(converged)}
    if diagonal:
        lanczos = (
            np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
        )
        smallest = np.linalg.eigvalsh(lanczos)[0]
        metrics["sigma_min_x"] = float(np.sqrt(max(smallest, 0.0)))
    return len(diagonal), metrics


def _proximal(
    parties: Parties, r: Array, l1: float, max_iter: int, tol: float
) -> tuple[int, dict[str, float]]:
    """Accelerated proximal gradients (Beck and Teboulle 2009) in the blocks' metric.

    The momentum starts again where it points uphill (O'Donoghue and Candes 2015).
    """
    t = 1.0
    for iteration in range(1, max_iter + 1):
        t_next = momentum(t)
        sums = parties.secure_sum(
            "linear_proximal",
            {"residual": _LOOSE_BOUND, "energies": _LOOSE_BOUND},
            residual=r,
            l1=l1,
            momentum=(t - 1) / t_next,
        )
        r, (uphill, change) = sums["residual"], sums["energies"]
        if change <= tol**2:
            return iteration, {"converged": 1.0}
        t = 1.0 if uphill > 0 else t_next
    return max_iter, {"converged": 0.0}


def _saga(
    parties: Parties,
    norms: Array,
    l1: float,
    max_iter: int,
    tol: float,
    batch_size: int,
    rng: np.random.Generator,
) -> tuple[int, dict[str, float]]:
    """SAGA (Defazio et al. 2014); the step of a batch as Gazagnadou et al. (2019)."""
    m = len(norms)
    b = min(batch_size, m)
    # Smoothness of one row, of all rows (trace), and of a batch drawn without return.
    one, all_rows = 2 * m * float(norms.max()), 2 * float(norms.sum())
    smoothness = one
    if m > 1:
        smoothness = min(one, (m * (b - 1) * all_rows + (m - b) * one) / (b * (m - 1)))
    step_size = 1 / (3 * smoothness) if smoothness else 0.0
    table, change = np.zeros(m), np.zeros(0)
    trips = 0
    for sweep in range(1, max_iter + 1):
        moved = 0.0
        for _ in range(-(-m // b)):
            batch = rng.choice(m, size=b, replace=False).astype(np.uint32)
            sums = parties.secure_sum(
                "linear_saga",
                {"residual": _LOOSE_BOUND},
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
        if moved <= tol**2:
            return trips, {"converged": 1.0}
    return trips, {"converged": 0.0}


def mean_squared_residual(
    parties: Parties,
    solution: tuple[list[Array], float],
    n_rows: int,
    *,
    test: bool,
    test_fraction: float,
    scale: float,
    block_rows: int = 2**20,
) -> float:
    """Return the mean squared error over all test (or training) rows.

    The server learns the residual of each row, and nothing of any party's own part.

    Parameters
    ----------
    parties : Parties
        One of them holds the labels.
    solution : (list of Array, float)
        Coefficients of each party, and the intercept.
    n_rows : int
        Number of these rows.
    test, test_fraction : bool, float
        Which rows.
    scale : float
        Size of a usual label; it sets the resolution.
    block_rows : int
        Rows a round trip.
    """
    coefficients, intercept = solution
    each: list[Values] = [{"coefficients": block} for block in coefficients]
    total = 0.0
    for start in range(0, n_rows, block_rows):
        replies = parties.ask_exactly(
            "linear_residuals",
            {"residual": 2.0**20 * scale},
            each,
            intercept=intercept,
            test=test,
            test_fraction=test_fraction,
            start=start,
            stop=min(start + block_rows, n_rows),
        )
        residual = replies.sums["residual"]
        total += float(residual @ residual)
    return total / n_rows
