"""Regression on a coreset: settings, iterative solvers and errors on held-out rows.

The server keeps the residual r on the rows of the coreset; each iteration is one round
trip in which the server sends r and receives sums over parties. See
``clients/coresets/linear.py`` for the notation, and ``numerics/linear.py`` for the
objective.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.coresets import linear as party
from vfl_flower.clients.coresets import prediction
from vfl_flower.clients.coresets.sampling import Size
from vfl_flower.clients.evaluation import metrics_of
from vfl_flower.numerics.linear import Penalty, momentum
from vfl_flower.protocol.settings import (
    Fraction,
    Natural,
    NotNegative,
    check_unused,
    settings,
)
from vfl_flower.protocol.steps import Sum, each, opened
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.coresets.sampling import Coreset, CoresetStrategy
from vfl_flower.strategies.products import COMPUTING, ComputingParties
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")


@settings
class LinearStrategy(ComputingParties, CoresetStrategy):
    """Settings, iterative solvers and held-out errors of :class:`CoresetVRLR`."""

    size: Size | Literal["auto"] = "auto"
    regularizer: Literal["none", "ridge", "lasso", "elasticnet"] = "none"
    """Penalty R in ``sum_S w (x theta + b - y)^2 / n + R/n``."""
    alpha: Annotated[float, Ge(0), Le(1e50)] = 0.0
    """Strength of R: ``alpha |theta|^2`` for ridge, ``alpha |theta|_1`` for lasso."""
    l1_ratio: Annotated[float, Ge(0), Le(1)] = 0.5
    """Share of the l1 norm in the elastic net, ``alpha * (l1_ratio |theta|_1 +
    (1-l1_ratio) |theta|^2)``."""
    solver: Literal["gram", "central", "cg", "saga"] = "gram"
    """"gram": fit the model from sums of products that two parties compute for the
    label holder; for each row, only the score leaves a party. "central": the server
    pools the coreset. "cg" and "saga": the server sees the residual of each row."""
    fit_intercept: bool = True
    """Fit the intercept b."""
    max_iter: Natural = 200
    """Maximum number of iterations of cg (one round trip each), or of passes of saga
    over the coreset."""
    tol: NotNegative = 1e-6
    """Tolerance of cg and saga, in standard deviations of the labels."""
    batch_size: Natural = 32
    """Number of rows per round trip of saga."""
    test_fraction: Fraction = 0.0
    """Share of rows to hold out; this adds two round trips. The label holder learns the
    predictions for these rows, and the server learns the errors."""
    allow_two_parties: bool = False
    """Allow two parties to use cg and saga, whose residuals reveal to each party the
    other's contribution to the predictions. Also allow predictions and evaluations
    (even in training), which reveal this contribution to the label holder."""

    labelled = numeric = True

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.regularizer != "none" and self.alpha == 0:
            raise ValueError(
                f"alpha must be above 0 for {self.regularizer}, got {self.alpha}"
            )
        if self.regularizer == "none" and self.alpha != 0:
            raise ValueError(f"alpha must be 0 without a regularizer, got {self.alpha}")
        if self.solver != "gram":
            check_unused(self, COMPUTING, f"solver {self.solver!r}")

    @property
    def evaluates(self) -> bool:
        """Whether the label holder receives predictions and reports their errors."""
        return self.test_fraction > 0 or self.evaluate == "full"

    def held_out_errors(
        self, parties: Parties, theta: list[Array], intercept: float, unit: float
    ) -> dict[str, Any]:
        """Return the model's errors, which the label holder computes during training.

        The `unit`, the size of the residuals, sets the resolution of the predictions.
        """
        test, train = self._tests(parties), self.evaluate == "full"
        if not test and not train:
            return {}
        holder, unit = parties.label_holder, min(max(unit, 1e-50), 1e50)
        high, low = (
            Sum(bound, to=holder) for bound in (prediction.HIGH, prediction.LOW)
        )
        sealed = parties.ask(
            prediction.held_out.summing(high=high, low=low),
            coefficients=each([theta_j / unit for theta_j in theta]),
            intercept=intercept / unit,
            test_fraction=self.test_fraction,
            test=test,
            train=train,
        ).sealed
        reply = parties.ask_one(
            holder,
            prediction.errors,
            high=opened(sealed["high"]),
            low=opened(sealed["low"]),
            unit=unit,
            test_fraction=self.test_fraction,
            test=test,
            train=train,
        )
        full = {k: v for k, v in reply.items() if k == "full_train_loss"}
        return metrics_of(reply) | full

    def _tests(self, parties: Parties) -> bool:
        """Return whether to evaluate the model on held-out rows; warn if not."""
        rows, reason = self.n_test(parties), ""
        if rows < LEAST_ROWS:
            reason = f"it needs at least {LEAST_ROWS} held-out rows, got {rows}"
        elif len(parties) == 2 and not self.allow_two_parties:
            reason = (
                "the label holder would learn the other party's contribution to each "
                "prediction; to accept that, set allow_two_parties (in a run config, "
                "allow-two-parties=true)"
            )
        if rows and reason:
            log.warning("there is no test_loss: %s", reason)
        return bool(rows) and not reason

    def solve(
        self, parties: Parties, run: Run, coreset: Coreset, penalty: Penalty
    ) -> tuple[list[Array], float, float, dict[str, Any]]:
        """Solve a weighted least squares problem while the rows stay at the parties.

        "cg" takes accelerated proximal steps if the penalty has an l1 term; "saga"
        follows Defazio et al. (2014). `tol` bounds the gradient (cg), the step
        (proximal) or the mean change of the residuals (saga), relative to the standard
        deviation of y (without an intercept: to the root mean square of y).

        Return the coefficients of each party and the intercept, in the unit of y; the
        standard deviation of y on the rows, rounded up to a power of two; and metrics.
        The metric ``converged`` is 1.0 or 0.0. With saga, 1.0 means that the residuals
        have settled; if the columns lack full rank, an l1 penalty can still change the
        coefficients.
        """
        method: party.Method = "saga"
        if self.solver == "cg":
            method = "proximal" if penalty.l1 else "cg"
        replies = parties.ask(
            party.start.summing(residual=party.BOUND, norms=party.WIDE_BOUND),
            method=method,
            n=self.n_train(parties),
            l2=penalty.l2,
            intercept=self.fit_intercept,
            test_fraction=self.test_fraction,
            coreset=coreset.weighted,
        )
        holder = parties.label_holder
        if (scale := replies[holder].get("scale")) is None:
            raise replies.failure(holder, "its reply lacks 'scale', the labels' scale")
        m = len(coreset.weights)
        m_residual, m_norms = (0, m) if method == "saga" else (m, 0)
        residual, norms = replies.sums["residual"], replies.sums["norms"]
        if len(residual) != m_residual or len(norms) != m_norms or (norms < 0).any():
            rule = f"{m_residual} residuals and {m_norms} squares"
            raise parties.faulty_sum(party.start, rule)
        l1 = penalty.l1 / scale
        if method == "cg":
            iterations, metrics = self._conjugate_gradients(parties, run, residual)
        elif method == "proximal":
            iterations, metrics = self._proximal(parties, run, residual, l1)
        else:
            iterations, metrics = self._saga(parties, run, norms, l1)
        last = parties.ask_exactly(party.coefficients.summing(shift=2.0**20))
        blocks = [scale * block for block in last.each("coefficients")]
        intercept = float(scale * last.sums["shift"][0])
        return blocks, intercept, scale, metrics | {"iterations": iterations}

    def _conjugate_gradients(
        self, parties: Parties, run: Run, r: Array
    ) -> tuple[int, dict[str, float]]:
        """Minimise |r|^2 + penalty by conjugate gradients, a round trip per iteration.

        The parties send the product A s, where s is the gradient. The server then
        computes A p, for the direction p = s + beta p_old, and the energy of the
        penalty, without another request.
        """
        q: Array = np.zeros_like(r)
        penalty = 0.0
        step_size = shrink = gamma_old = 0.0
        diagonal: list[float] = []
        off_diagonal: list[float] = []
        converged = False
        for _ in range(self.max_iter):
            sums = parties.secure_sum(
                party.cg.summing(direction=party.BOUND, energies=party.BOUND),
                residual=r,
                step_size=step_size,
                shrink=shrink,
            )
            gamma, energy, cross = sums["energies"].tolist()
            run.trace("remaining", max(gamma, 0.0) ** 0.5)
            if converged := gamma <= self.tol**2:
                break
            beta = gamma / gamma_old if gamma_old else 0.0
            q = sums["direction"] + beta * q
            penalty = energy + 2 * beta * cross + beta**2 * penalty
            curvature = float(q @ q) + penalty
            if curvature <= 0:  # the directions of the parties cancel, up to rounding
                break
            alpha = gamma / curvature
            # The Lanczos matrix of the iteration: its smallest eigenvalue equals the
            # smallest eigenvalue of the whitened normal matrix on the Krylov space of
            # the right-hand side.
            diagonal.append(1 / alpha + (beta / step_size if step_size else 0.0))
            if step_size:
                off_diagonal.append(beta**0.5 / step_size)
            r = r - alpha * q
            step_size, shrink, gamma_old = alpha, beta, gamma
        metrics = {"converged": float(converged)}
        if diagonal:
            # eigvalsh reads only the lower triangle.
            lanczos = np.diag(diagonal) + np.diag(off_diagonal, -1)
            smallest = np.linalg.eigvalsh(lanczos)[0]
            metrics["sigma_min_x"] = float(np.sqrt(max(smallest, 0.0)))
        return len(diagonal), metrics

    def _proximal(
        self, parties: Parties, run: Run, r: Array, l1: float
    ) -> tuple[int, dict[str, float]]:
        """Take accelerated proximal gradient steps, with one metric for each block.

        See Beck and Teboulle (2009). The momentum restarts when it points uphill
        (O'Donoghue and Candes 2015).
        """
        t = 1.0
        for iteration in range(1, self.max_iter + 1):
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
            if change <= self.tol**2:
                return iteration, {"converged": 1.0}
            t = 1.0 if uphill > 0 else t_next
        return self.max_iter, {"converged": 0.0}

    def _saga(
        self, parties: Parties, run: Run, norms: Array, l1: float
    ) -> tuple[int, dict[str, float]]:
        """Run SAGA (Defazio et al. 2014).

        The step size for a batch follows Gazagnadou et al. (2019).
        """
        m, rng = len(norms), run.rng("saga")
        b = min(self.batch_size, m)
        # Smoothness of a row, of all rows (the trace), and of a batch without repeats.
        of_row, of_all = 2 * m * float(norms.max()), 2 * float(norms.sum())
        smoothness = of_row
        if m > 1:
            of_batch = (m * (b - 1) * of_all + (m - b) * of_row) / (b * (m - 1))
            smoothness = min(of_row, of_batch)
        step_size = 1 / (3 * smoothness) if smoothness else 0.0
        table, change = np.zeros(m), np.zeros(0)
        trips = 0
        for sweep in range(1, self.max_iter + 1):
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
            change_of_all, text = moved**0.5, "saga: pass %d of at most %d, change %.3g"
            log.info(text, sweep, self.max_iter, change_of_all)
            run.trace("remaining", change_of_all)
            if moved <= self.tol**2:
                return trips, {"converged": 1.0}
        return trips, {"converged": 0.0}
