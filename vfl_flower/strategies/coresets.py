"""Coresets for vertical regression and k-means.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models import KMeansModel, LinearModel
from vfl_flower.numerics.coresets import (
    importance_estimate,
    sigma_min,
    tau,
)
from vfl_flower.numerics.kmeans import assign, distdim, weighted_kmeans
from vfl_flower.numerics.linear import (
    REGULARIZERS,
    Penalty,
    center,
    mean_squared_error,
    solve_pooled,
)
from vfl_flower.strategies.base import (
    Run,
    check_at_least,
    check_choice,
    check_flags,
    check_whole,
)
from vfl_flower.strategies.exchange import FederationError
from vfl_flower.strategies.linear import Problem, mean_squared_residual, solve
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.sampling import MESSAGE_NUMBERS, CoresetStrategy
from vfl_flower.typing import Array


def _estimate(name: str, losses: Array, weights: Array, n: int) -> dict[str, float]:
    mean, error = importance_estimate(losses, weights, n)
    return {name: mean, f"{name}_error": error}


class CoresetVRLR(CoresetStrategy):
    """Linear regression on a coreset by distributed importance sampling.

    Algorithms 1 and 2 of [1]: row i is drawn with probability proportional to the sum
    over parties of its leverage scores, and weighted by the inverse.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digest of ids, key        all of it
    totals         G_j = sum_i g_ij; rows drawn with      each G_j, the rows' numbers
                   probability g_ij / G_j
    scores         g_ij for i in S, masked                only sum_j g_ij
    .. with rows   its columns of S, its labels           all of them (``central``)
    .. each step   A_j s_j, masked                        only sums (``cg``, ``saga``)
    coefficients   theta_j (``cg``, ``saga``)             the model
    =============  =====================================  ==========================

    Parameters
    ----------
    size : int
        m, the number of rows in the coreset, repeats counted.
    regularizer : {"none", "ridge", "lasso", "elasticnet"}
        Penalty R. The objective is ``sum_S w (x theta + b - y)^2 / n + R / n``.
    alpha : float
        Strength of R / n: ``alpha |theta|^2`` for ridge (0.1 is the paper's),
        ``alpha |theta|_1`` for lasso (2 is the paper's).
    l1_ratio : float
        Elastic net: share of the l1 part, ``alpha * l1_ratio * |theta|_1 +
        alpha * (1 - l1_ratio) * |theta|^2`` (3 and 2/3 are the paper's).
    sampling : {"coreset", "uniform", "full"}
        The paper's coreset, uniform rows without replacement, or all rows.
    solver : {"central", "cg", "saga"}
        ``"central"``: the rows of the coreset are pooled at the server. In the others
        no row leaves a party, and labels only within residuals: conjugate gradients
        (proximal steps with an l1 part) on secure sums, one round trip a step; or SAGA,
        the paper's baseline.
    protocol : {"fused", "paper"}
        Three round trips in all with ``central``, or Algorithm 1's rounds one by one;
        the same seed gives the same coreset.
    fit_intercept : bool
        Fit b. Its column of ones counts in the label holder's scores.
    max_iter : int
        Iterations of cg; passes over the coreset of saga.
    tol : float
        Where cg and saga stop; see :func:`vfl_flower.strategies.linear.solve`.
    batch_size : int
        Rows a round trip of saga; 1 is the paper's.
    test_fraction : float
        Share of the rows held out; their mean squared error is computed by a secure
        sum in one more round trip a million rows.
    evaluate : {"coreset", "full"}
        Report the training loss on the coreset, which costs nothing, or also on all
        training rows, by secure sums.
    check_size : int
        With ``central``: so many rows more, drawn apart in the same messages, estimate
        the loss on all training rows: ``check_loss`` and its standard error.
    allow_two_parties : bool
        Let ``cg`` and ``saga`` run between two parties, where the residuals that both
        receive show each the other's part of the predictions.
    masking, n_parties, seed
        See :class:`~vfl_flower.strategies.base.ProtocolStrategy`.

    Notes
    -----
    Differs from [1] in: 1. the intercept: the columns of all parties are taken about
    their mean, and the label holder's basis has the ones; 2. the fused rounds, in
    which each party draws m rows before it knows a_j and the server takes the first
    a_j; 3. scores are summed under masks; 4. the solver ``cg``.

    The metrics of the result: ``train_loss`` (mean squared error weighted on the
    coreset), ``objective``, ``weight_sum``, ``sigma_min`` (Assumption 4.1 on the
    coreset, labels included: the nearer to 1, the less the columns of parties overlap;
    near 0 the coreset has no guarantee), and where asked ``test_loss`` and
    ``full_train_loss``. The other solvers give ``converged``, ``iterations`` and, for
    cg, ``sigma_min_x``: an estimate of the same without the labels.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulations import simulate
    >>> X = np.random.default_rng(0).normal(size=(1000, 4))
    >>> parties = [Party(X[:, :2]), Party(X[:, 2:], y=X @ [1.0, 2.0, 3.0, 4.0] + 5)]
    >>> model = simulate(CoresetVRLR(size=100), parties, seed=0).model
    >>> [coef.round(6).tolist() for coef in model.coef_], round(model.intercept_, 6)
    ([[1.0, 2.0], [3.0, 4.0]], 5.0)
    """

    model_class = LinearModel
    labelled = True
    evaluation_actions = ("linear_residuals",)

    def __init__(
        self,
        size: int = 2000,
        regularizer: str = "none",
        alpha: float = 0.0,
        l1_ratio: float = 0.5,
        sampling: str = "coreset",
        solver: str = "central",
        protocol: str = "fused",
        fit_intercept: bool = True,
        max_iter: int = 200,
        tol: float = 1e-6,
        batch_size: int = 32,
        test_fraction: float = 0.0,
        evaluate: str = "coreset",
        check_size: int = 0,
        allow_two_parties: bool = False,
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            size=size,
            sampling=sampling,
            solver=solver,
            protocol=protocol,
            check_size=check_size,
            test_fraction=test_fraction,
            evaluate=evaluate,
            masking=masking,
            n_parties=n_parties,
            seed=seed,
        )
        check_choice("regularizer", regularizer, REGULARIZERS)
        check_choice("solver", solver, ("central", "cg", "saga"))
        check_at_least("alpha", alpha, 0)
        check_whole("max_iter", max_iter, 1)
        check_at_least("tol", tol, 0)
        check_whole("batch_size", batch_size, 1)
        if not 0 <= l1_ratio <= 1:
            raise ValueError(f"l1_ratio must be in [0, 1], got {l1_ratio}")
        if regularizer != "none" and alpha == 0:
            raise ValueError(f"alpha must be above 0 for {regularizer}, got {alpha}")
        if regularizer == "none" and alpha != 0:
            raise ValueError(f"alpha must be 0 without a regularizer, got {alpha}")
        self.regularizer, self.alpha, self.l1_ratio = regularizer, alpha, l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter, self.tol, self.batch_size = max_iter, tol, batch_size
        self.allow_two_parties = allow_two_parties
        check_flags(self, "fit_intercept", "allow_two_parties")

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Draw the coreset, solve on it, evaluate."""
        widths = [party.n_columns for party in parties]
        holder, n = parties.label_holder, self.n_train(parties)
        if self.solver != "central":
            parties.refuse_two(f"solver {self.solver!r}", self.allow_two_parties)
        run.record(0, LinearModel([np.zeros(d) for d in widths]).to_record())
        penalty = Penalty.named(self.regularizer, self.alpha, self.l1_ratio)
        # A leverage score is at most 1: Algorithm 2 gives at most 1 + 1 / n.
        coreset = self.draw(
            parties,
            run,
            bound=2.0,
            pool=self.solver == "central",
            request={"task": "regression", "intercept": self.fit_intercept},
        )
        w = coreset.weights
        metrics: dict[str, Any] = {"weight_sum": float(w.sum())}
        if coreset.X is not None and coreset.y is not None:
            X, y = np.hstack(coreset.X), coreset.y
            theta, intercept = solve_pooled(X, y, w, n, penalty, self.fit_intercept)
            theta_j = np.split(theta, np.cumsum(widths)[:-1])
            scale = float(np.sqrt((w @ y**2) / n))
            if (check := coreset.check) and check.X is not None:
                assert check.y is not None
                losses = (np.hstack(check.X) @ theta + intercept - check.y) ** 2
                metrics |= _estimate("check_loss", losses, check.weights, n)
            metrics["train_loss"] = mean_squared_error(X @ theta + intercept - y, w, n)
            if self.sampling != "full":
                blocks = self._basis_blocks(coreset.X, y, w, holder)
                metrics["sigma_min"] = sigma_min(blocks, w)
        else:
            solution = solve(
                parties,
                Problem(
                    coreset.rows,
                    None if coreset.rows is None else w,
                    n,
                    penalty,
                    self.fit_intercept,
                    self.test_fraction,
                ),
                self.solver,
                max_iter=self.max_iter,
                tol=self.tol,
                batch_size=self.batch_size,
                rng=run.rng("saga"),
            )
            theta_j, intercept = solution.coefficients, solution.intercept
            scale = solution.scale
            metrics |= solution.metrics | {"iterations": solution.iterations}
        if "train_loss" in metrics:
            value = penalty.value(np.concatenate(theta_j))
            metrics["objective"] = metrics["train_loss"] + value
        wanted = [("test_loss", True, self.n_test(parties))]
        wanted += [("full_train_loss", False, n)] if self.evaluate == "full" else []
        for name, test, rows in wanted:
            if rows:
                metrics[name] = mean_squared_residual(
                    parties,
                    (theta_j, intercept),
                    rows,
                    test=test,
                    test_fraction=self.test_fraction,
                    scale=scale or 1.0,
                )
        arrays = LinearModel(theta_j, intercept).to_record()
        run.record(1, arrays, metrics)
        return arrays

    def _basis_blocks(
        self, X: list[Array], y: Array, w: Array, holder: int
    ) -> list[Array]:
        """Return what the parties took their bases of, as in ``coresets_totals``."""
        if not self.fit_intercept:
            return [*X[:holder], np.column_stack([X[holder], y]), *X[holder + 1 :]]
        blocks = [center(block, w) for block in X]
        blocks[holder] = np.column_stack([blocks[holder], np.ones(len(y)), y])
        return blocks


class CoresetVKMC(CoresetStrategy):
    """k-means on a coreset by distributed importance sampling.

    Algorithms 1 and 3 of [1]: each party clusters its own columns, and a row's score
    says how much it may count in any clustering.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digest of ids, key        all of it
    totals         G_j = sum_i g_ij; rows drawn with      each G_j, the rows' numbers
                   probability g_ij / G_j
    scores         g_ij for i in S, masked                only sum_j g_ij
    .. with rows   its columns of S                       all of them (``central``)
    distdim        its k centres, a cluster for each i    all of it (``distdim``)
    distances      |x_i - c|^2 on its columns, masked     only sums
    =============  =====================================  ==========================

    Parameters
    ----------
    n_clusters : int
        k.
    size : int
        m, the number of rows in the coreset, repeats counted.
    sampling : {"coreset", "uniform", "full"}
        The paper's coreset, uniform rows without replacement, or all rows.
    solver : {"central", "distdim"}
        ``"central"``: weighted k-means++ on rows pooled at the server.
        ``"distdim"``: Ding et al. (2016), local centres and assignments only.
    local_clustering : {"lloyd", "seeding"}
        How a party clusters its columns: k-means++ and Lloyd's iteration, or the
        seeding alone, which is two to five times cheaper.
    approximation : float
        alpha of Algorithm 3: how far the local clustering may be above the optimum;
        2 in the published code.
    n_init : int
        Starts of the server's k-means.
    protocol, check_size, masking, n_parties, seed
        As for :class:`CoresetVRLR`; ``check_size`` gives ``check_cost``.
    evaluate : {"coreset", "full"}
        ``"full"``: also the cost on all rows, ``full_cost``, by secure sums of
        distances. The server then knows how far each row is from each centre, which
        says much of the row: refused with more centres than columns, where the server
        could compute the rows. ``check_size`` shows it no more than ``central`` does.

    Notes
    -----
    The metrics of the result, all per row: ``cost`` (on the coreset), ``weight_sum``,
    ``tau`` (Assumption 5.1, an estimate on pooled rows), and where asked
    ``full_cost``. Labels are not needed and not used. Standardise columns of
    different units first (``standardize=true`` in the node config).

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulations import simulate
    >>> X = np.repeat(np.eye(3), 100, axis=0)
    >>> parties = [Party(X[:, :1]), Party(X[:, 1:])]
    >>> result = simulate(CoresetVKMC(n_clusters=3, size=50), parties, seed=0)
    >>> len(set(result.model.predict([X[:, :1], X[:, 1:]])))
    3
    """

    model_class = KMeansModel
    labelled = False
    evaluation_actions = ("coresets_distances",)

    def __init__(
        self,
        n_clusters: int = 10,
        size: int = 2000,
        sampling: str = "coreset",
        solver: str = "central",
        protocol: str = "fused",
        local_clustering: str = "lloyd",
        approximation: float = 2.0,
        n_init: int = 10,
        evaluate: str = "coreset",
        check_size: int = 0,
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            size=size,
            sampling=sampling,
            solver=solver,
            protocol=protocol,
            check_size=check_size,
            test_fraction=0.0,
            evaluate=evaluate,
            masking=masking,
            n_parties=n_parties,
            seed=seed,
        )
        check_whole("n_clusters", n_clusters, 1)
        check_choice("solver", solver, ("central", "distdim"))
        check_choice("local_clustering", local_clustering, ("lloyd", "seeding"))
        check_at_least("approximation", approximation, 1)
        check_whole("n_init", n_init, 1)
        if sampling != "full" and n_clusters > size:
            raise ValueError(
                f"n_clusters must be at most size, got {n_clusters} for {size} rows"
            )
        self.n_clusters, self.n_init = n_clusters, n_init
        self.local_clustering, self.approximation = local_clustering, approximation

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Draw the coreset, cluster it, evaluate."""
        k, widths = self.n_clusters, [party.n_columns for party in parties]
        n = self.n_train(parties)
        if k > n:
            raise FederationError(
                f"n_clusters must be at most the number of training rows, got {k} for "
                f"{n} rows"
            )
        if self.evaluate == "full" and k > sum(widths):
            raise FederationError(
                "evaluate='full' shows the server the distance of each row to each "
                "centre, so n_clusters must be at most the number of columns, got "
                f"{k} for {sum(widths)}: use check_size"
            )
        run.record(0, KMeansModel([np.zeros((k, d)) for d in widths]).to_record())
        pool = self.solver == "central"
        coreset = self.draw(
            parties,
            run,
            bound=4 * self.approximation,
            pool=pool,
            request={
                "task": "k-means",
                "n_clusters": k,
                "local_clustering": self.local_clustering,
                "alpha": self.approximation,
            },
        )
        w, rng = coreset.weights, run.rng("cluster")
        metrics: dict[str, Any] = {"weight_sum": float(w.sum())}
        if coreset.X is not None:
            C, cost = weighted_kmeans(np.hstack(coreset.X), k, w, rng, self.n_init)
            metrics["cost"] = cost / n
            if (check := coreset.check) and check.X is not None:
                losses = assign(np.hstack(check.X), C)[1]
                metrics |= _estimate("check_cost", losses, check.weights, n)
            if self.sampling != "full" and self.size > 1:
                metrics["tau"] = tau(coreset.X, run.rng("tau"))
        else:
            chosen: dict[str, Any] = {}
            if coreset.rows is not None:
                chosen = {"rows": coreset.rows, "weights": w}
            replies = parties.ask(
                "coresets_distdim",
                n_clusters=k,
                local_clustering=self.local_clustering,
                test_fraction=self.test_fraction,
                **chosen,
            )
            labels = np.column_stack(replies.each("labels"))
            C = distdim(labels, replies.each("centers"), w, k, rng, self.n_init)
        C_j = np.split(C, np.cumsum(widths)[:-1], axis=1)
        if self.evaluate == "full":
            metrics["full_cost"] = self._full_cost(parties, C_j, n)
        arrays = KMeansModel(C_j).to_record()
        run.record(1, arrays, metrics)
        return arrays

    def _full_cost(self, parties: Parties, C_j: list[Array], n: int) -> float:
        """Return the mean squared distance of all training rows to their centre."""
        spread = sum(float(C.var(axis=0).sum()) for C in C_j)
        block, total = max(1, MESSAGE_NUMBERS // self.n_clusters), 0.0
        for start in range(0, n, block):
            replies = parties.ask_exactly(
                "coresets_distances",
                {"distances": 2.0**20 * (spread or 1.0)},
                [{"centers": C} for C in C_j],
                test_fraction=self.test_fraction,
                start=start,
                stop=min(start + block, n),
            )
            total += float(replies.sums["distances"].min(axis=1).sum())
        return total / n
