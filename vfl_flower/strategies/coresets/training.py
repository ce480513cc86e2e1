"""Coresets for vertical regression and k-means.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.coresets import gram, linear, prediction
from vfl_flower.clients.coresets import sampling as party
from vfl_flower.clients.products import ROWS_PER_COLUMN, deal, multiply
from vfl_flower.models.base import Model
from vfl_flower.models.coresets import KMeansModel, LinearModel
from vfl_flower.numerics.coresets import importance_estimate, sigma_min, tau
from vfl_flower.numerics.kmeans import assign, distdim, weighted_kmeans
from vfl_flower.numerics.linear import Penalty, center, mean_squared_error, solve_pooled
from vfl_flower.party.memory import Memory
from vfl_flower.protocol.settings import Natural, settings
from vfl_flower.protocol.steps import Steps, each
from vfl_flower.protocol.terms import LEAST_ROWS, Kind, Terms, in_order
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies import products
from vfl_flower.strategies.coresets import sampling
from vfl_flower.strategies.coresets.linear import LinearStrategy
from vfl_flower.strategies.coresets.metrics import CLUSTERS, REGRESSION
from vfl_flower.strategies.coresets.prediction import keep_parts
from vfl_flower.strategies.evaluation import record_model
from vfl_flower.typing import Array


def _estimate(name: str, losses: Array, weights: Array, n: int) -> dict[str, float]:
    mean, error = importance_estimate(losses, weights, n)
    return {name: mean, f"{name}_error": error}


@settings
class CoresetVRLR(LinearStrategy):
    """Linear regression on a coreset by distributed importance sampling.

    Algorithms 1 and 2 of [1]: row i is drawn with a probability proportional to the sum
    of its leverage scores over the parties, and has a weight inversely proportional to
    this sum.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digest of ids, key        all of it
    totals         G_j = sum_i g_ij; rows drawn with      each G_j, the row numbers
                   probability g_ij / G_j
    scores         g_ij for i in S, masked                only sum_j g_ij
    .. with rows   its columns of S, its labels           all of them (``central``)
    .. each step   A_j s_j, masked                        only sums (``cg``, ``saga``)
    coefficients   theta_j (``cg``, ``saga``)             the model
    columns        a basis of A_j under masks, for the    nothing (``gram``)
                   two computing parties
    multiply       a share of the sums of products, for   nothing
                   the label holder
    solve          the label holder alone: theta, loss    the model (``gram``)
    held_out       X_j theta_j of held-out rows, masked:  nothing
                   only the label holder can unmask f(x)
    errors         the label holder alone: the errors     the errors
    =============  =====================================  ==========================

    Notes
    -----
    The class differs from [1] in four ways: 1. With an intercept, all parties centre
    their columns, and the label holder's basis includes the column of ones. 2. In fused
    rounds, each party draws m rows before it knows a_j, and the server takes the first
    a_j of them. 3. Scores are summed under masks. 4. There are also the solvers ``cg``
    and ``gram``.

    With ``solver="gram"``, no row leaves a party in the clear, nor does any sum of
    columns or labels for a single row. The label holder learns the means and the sums
    of products of all columns on the coreset, and the server learns the model. A dealer
    that colludes with one of the two computing parties can recover the columns.

    The result has the metrics ``train_loss`` (weighted mean squared error on the
    coreset), ``objective``, ``weight_sum`` and ``sigma_min`` (the sigma of Assumption
    4.1 on the coreset, labels included). The nearer ``sigma_min`` is to 1, the less the
    parties' columns overlap; near 0, the coreset has no guarantee. If requested, there
    are also ``test_loss`` and ``test_r2`` (R^2) on held-out rows, ``full_train_loss``
    and ``check_loss``.

    The solvers ``cg`` and ``saga`` report ``converged`` and ``iterations``; ``cg`` also
    reports ``sigma_min_x``, an estimate of ``sigma_min`` that is computed without the
    labels. ``gram`` reports ``left_out``, the number of columns that the parties have
    left out because these columns identify single rows. Before leaving columns out,
    the parties add up rare columns and move outlying rows towards the mean. With
    ``full`` sampling, there is no ``sigma_min``.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> X = np.random.default_rng(0).normal(size=(1000, 4))
    >>> parties = [Party(X[:, :2]), Party(X[:, 2:], y=X @ [1.0, 2.0, 3.0, 4.0] + 5)]
    >>> model = simulate(CoresetVRLR(size=100), parties, seed=0).model
    >>> [coef.round(6).tolist() for coef in model.coef_], round(model.intercept_, 6)
    ([[1.0, 2.0], [3.0, 4.0]], 5.0)
    """

    model_class = LinearModel
    question = "How well does a linear model of all parties' columns predict {label}?"
    explained = REGRESSION
    evaluation_steps = (prediction.held_out, prediction.errors)
    steps: ClassVar[Steps] = (
        *sampling.CoresetStrategy.steps,
        *(linear.start, linear.cg, linear.proximal, linear.saga, linear.coefficients),
        *(deal, gram.columns, multiply, gram.solve),
        *evaluation_steps,
        prediction.keep,
    )

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return Algorithms 1 and 2 of [1] as published, except for `settings`.

        This is C-CENTRAL with ridge regression (Section 6) and the smallest coreset
        about which [1] draws a conclusion; Table 1 has sizes from 1000 to 6000. In [1],
        `alpha` is 2 for the lasso and 3 for the elastic net (Appendix A.2), and SAGA
        uses one row per round trip.
        """
        published: dict[str, Any] = {"size": 2000, "rounds": "paper", "batch_size": 1}
        published |= {"regularizer": "ridge", "alpha": 0.1, "l1_ratio": 2 / 3}
        published |= {"solver": "central", "fit_intercept": False}
        return cls(**published | settings)

    @property
    def terms(self) -> Terms:
        """Add coefficients unless rows are pooled, and the kinds for an evaluation."""
        kinds, less = {*super().terms.needs}, ""
        if self.solver == "gram" and self.sampling != "coreset":
            kinds = set()  # no value of a row leaves a party
        if not self.pools:
            kinds.add("coefficients")
        if self.solver == "gram" or self.evaluates:
            kinds.add("moments")
        if self.evaluates:
            kinds.add("predictions")
        if self.pools:
            instead = self.replace(solver="gram", check_size=0).terms.needs
            less = "With solver='gram', the run requests no rows, but instead "
            less += ", ".join(instead)
        computing = self.computing if self.solver == "gram" else None
        return Terms(in_order(kinds), less=less, computing=computing)

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return warnings about early stops, omitted columns and a useless model."""
        sentences = []
        if count := metrics.get("left_out"):
            sentences.append(
                f"columns left out of the model: {count}. In each of them, too few "
                "rows differ from the most frequent value, one row stands out, or a "
                "number exceeds 1e100; each party's log names them"
            )
        if not metrics.get("converged", 1.0):
            sentences.append(
                f"{self.solver} stopped after {metrics['iterations']} iterations, "
                f"before it reached tol {self.tol:g}: raise max-iter or tol"
            )
        return sentences + super().shortfalls(metrics)

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add each party's row clipping, if all parties are in this process."""
        assert isinstance(model, LinearModel)
        clips = {f"clip_{j}": m.remembered("clip") for j, m in enumerate(memories)}
        model.clips = {k: v for k, v in clips.items() if v is not None and len(v)}

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Draw the coreset, train on it, and evaluate the model."""
        widths = [party.n_columns for party in parties]
        holder, n = parties.label_holder, self.n_train(parties)
        if self.solver in ("cg", "saga"):
            parties.refuse_two(f"solver {self.solver!r}", self.allow_two_parties)
        if self.evaluate == "full":
            parties.refuse_two("evaluate 'full'", self.allow_two_parties)
        if self.solver == "gram":
            self._check_size(parties, n)
        run.record(0, LinearModel([np.zeros(d) for d in widths]).to_record())
        penalty = Penalty.named(self.regularizer, self.alpha, self.l1_ratio)
        # A leverage score is at most 1, so a score of Algorithm 2 is at most 1 + 1 / n.
        scoring = sampling.Scoring(bound=2.0, intercept=self.fit_intercept)
        coreset = self.draw(parties, run, scoring)
        w = coreset.weights
        metrics: dict[str, Any] = {"weight_sum": float(w.sum())}
        if coreset.X is not None and coreset.y is not None:
            X, y = np.hstack(coreset.X), coreset.y
            theta, intercept = solve_pooled(X, y, w, n, penalty, self.fit_intercept)
            theta_j = np.split(theta, np.cumsum(widths)[:-1])
            if (check := coreset.check) and check.X is not None:
                assert check.y is not None
                losses = (np.hstack(check.X) @ theta + intercept - check.y) ** 2
                metrics |= _estimate("check_loss", losses, check.weights, n)
            metrics["train_loss"] = mean_squared_error(X @ theta + intercept - y, w, n)
            if self.sampling != "full":
                blocks = self._basis_blocks(coreset.X, y, w, holder)
                metrics["sigma_min"] = sigma_min(blocks, w)
        elif self.solver == "gram":
            theta_j, intercept, solved = self._solve_gram(parties, coreset, penalty)
            metrics |= solved
        else:
            solution = self.solve(parties, run, coreset, penalty)
            theta_j, intercept, unit, solved = solution
            metrics |= solved
        if "train_loss" in metrics:
            value = penalty.value(np.concatenate(theta_j))
            metrics["objective"] = metrics["train_loss"] + value
            unit = math.sqrt(metrics["train_loss"]) or 1.0
        metrics |= self.held_out_errors(parties, theta_j, intercept, unit)
        rows = [theta[None] for theta in theta_j]
        model_id = keep_parts(parties, "linear", rows, intercept, holder)
        return record_model(run, LinearModel(theta_j, intercept, model_id), metrics)

    def _check_size(self, parties: Parties, n: int) -> None:
        """Raise, before any row is drawn, if there are too few rows for the columns."""
        least = self.fewest_rows(sum(info.n_columns for info in parties))
        size = n if self.sampling == "full" else min(self.sample_size(parties, n), n)
        if size < least:
            held = ", ".join(f"{info.name} {info.n_columns}" for info in parties)
            advice = (
                f"set size to at least {least}"
                if n >= least
                else "leave out columns or use more rows"
            )
            raise FederationError(
                f"with solver 'gram', size must be at least {least} ({ROWS_PER_COLUMN} "
                f"for each column: {held}, and the labels), got {size} of {n} training "
                f"rows: a Gram matrix of fewer rows reveals rows; {advice}"
            )

    def fewest_rows(self, columns: int) -> int:
        """Return the minimum number of rows to train on.

        With ``gram``, a Gram matrix of fewer rows may not be opened.
        """
        columns += 1  # the labels
        per_column = ROWS_PER_COLUMN * columns if self.solver == "gram" else 0
        return max(LEAST_ROWS, per_column)

    def _solve_gram(
        self, parties: Parties, coreset: sampling.Coreset, penalty: Penalty
    ) -> tuple[list[Array], float, dict[str, Any]]:
        """Have the label holder solve the regression; return the model and metrics."""
        n, holder = self.n_train(parties), parties.label_holder
        owners = [info.n_columns + (j == holder) for j, info in enumerate(parties)]
        drawn = n if coreset.rows is None else len(np.unique(coreset.rows))
        roles = self.roles(parties, owners, drawn)
        hidden = parties.ask(
            gram.columns,
            roles=roles,
            counted=sum(owners),
            n=n,
            intercept=self.fit_intercept,
            test_fraction=self.test_fraction,
            coreset=coreset.weighted,
            **products.deal(parties, roles),
        )
        share = products.multiply(parties, roles, hidden)
        solved = parties.ask_one(
            holder,
            gram.solve,
            units=products.secret(hidden, "units")[holder],
            share=share,
            l1=penalty.l1,
            l2=penalty.l2,
        )
        widths = [info.n_columns for info in parties]
        theta = solved["coefficients"]
        if len(theta) != sum(widths):
            reason = f"its reply must have {sum(widths)} coefficients"
            raise parties.failure(holder, gram.solve, reason)
        metrics: dict[str, Any] = {"train_loss": solved["loss"]}
        if coreset.rows is not None:
            metrics["sigma_min"] = solved["sigma_min"]
        metrics["left_out"] = solved["left_out"]
        products.warn_of_constant(solved["constant"])
        split = np.split(np.asarray(theta, dtype=np.float64), np.cumsum(widths)[:-1])
        return split, solved["intercept"], metrics

    def _basis_blocks(
        self, X: list[Array], y: Array, w: Array, holder: int
    ) -> list[Array]:
        """Return the blocks whose bases the parties computed in step ``totals``."""
        if not self.fit_intercept:
            return [*X[:holder], np.column_stack([X[holder], y]), *X[holder + 1 :]]
        blocks = [center(block, w) for block in X]
        blocks[holder] = np.column_stack([blocks[holder], np.ones(len(y)), y])
        return blocks


@settings
class CoresetVKMC(sampling.CoresetStrategy):
    """k-means on a coreset by distributed importance sampling.

    Algorithms 1 and 3 of [1]: each party clusters its own columns, and the score of a
    row measures how much the row can matter in any clustering.

    ==============  =====================================  ==========================
    round trip      party j sends                          the server learns
    ==============  =====================================  ==========================
    hello           name, sizes, digest of ids, key        all of it
    totals          G_j = sum_i g_ij; rows drawn with      each G_j, the row numbers
                    probability g_ij / G_j
    scores          g_ij for i in S, masked                only sum_j g_ij
    .. with rows    its columns of S                       all of them (``central``)
    local_clusters  its k centres, a cluster for each i    all of it (``distdim``)
    distances       |x_i - c|^2 on its columns, masked     only sums
    ==============  =====================================  ==========================

    Notes
    -----
    The result has the metrics ``cost`` (per row of the coreset) and ``weight_sum``. If
    requested, it also has ``full_cost`` and ``check_cost``, both per row. If rows are
    pooled, it also has ``explained`` (1 - cost / cost with one cluster), the numbers of
    rows that the ``smallest_cluster`` and the ``largest_cluster`` represent, and an
    estimate of ``tau`` (Assumption 5.1). Labels are neither needed nor used.
    If the columns have different units, standardise them first (``standardize=true``
    in the node config).

    With ``evaluate="full"``, the server learns the distance of each row from each
    centre, which reveals much about the row. With more centres than columns, the server
    could compute the rows, so such a run is refused. ``check_size`` reveals no more
    than ``central``.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> X = np.repeat(np.eye(3), 100, axis=0)
    >>> parties = [Party(X[:, :1]), Party(X[:, 1:])]
    >>> result = simulate(CoresetVKMC(n_clusters=3, size=50), parties, seed=0)
    >>> len(set(result.model.predict([X[:, :1], X[:, 1:]])))
    3
    """

    n_clusters: Natural = 10
    """Number of clusters, k."""
    solver: Literal["central", "distdim"] = "central"
    """"central": weighted k-means++ on rows pooled at the server. "distdim": the
    algorithm of Ding et al. (2016)."""
    local_clustering: Literal["lloyd", "seeding"] = "lloyd"
    """"lloyd": k-means++ and Lloyd's iteration on a party's columns; "seeding":
    k-means++ alone, two to five times cheaper."""
    approximation: party.Approximation = 2.0
    """alpha of Algorithm 3: the maximum cost of a local clustering, as a multiple of
    the optimal cost."""
    n_init: Natural = 10
    """Number of starts of the server's k-means."""

    model_class = KMeansModel
    question = "Which rows belong together?"
    explained = CLUSTERS
    steps: ClassVar[Steps] = (
        *sampling.CoresetStrategy.steps,
        party.local_clusters,
        party.distances,
        prediction.keep,
    )
    evaluation_steps = (party.distances,)

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        size = self.n_clusters if self.size == "auto" else self.size
        if self.sampling != "full" and self.n_clusters > size:
            raise ValueError(
                f"n_clusters must be at most size = {self.size}, got {self.n_clusters}"
            )

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return Algorithms 1 and 3 of [1] as published, except for `settings`.

        This is C-KMEANS++ with k = 10 (Section 6), and with the same `size` as the
        regression. alpha and the number of starts are taken from the code of [1].
        Standardise the columns, as [1] does.
        """
        published: dict[str, Any] = {"size": 2000, "rounds": "paper", "n_init": 10}
        published |= {"n_clusters": 10, "solver": "central", "approximation": 2.0}
        return cls(**published | {"local_clustering": "lloyd"} | settings)

    @property
    def terms(self) -> Terms:
        """Rows, since local clusters nearly reveal them."""
        kinds: set[Kind] = {*super().terms.needs, "rows"}
        if self.sampling != "coreset":
            kinds -= {"row-sums"}
        return Terms(in_order(kinds))

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Draw the coreset, cluster it, and evaluate the clusters."""
        k, widths = self.n_clusters, [party.n_columns for party in parties]
        n = self.n_train(parties)
        if k > n:
            raise FederationError(
                f"n_clusters must be at most {n}, the number of training rows, got {k}"
            )
        if self.evaluate == "full" and k > sum(widths):
            raise FederationError(
                "evaluate='full' shows the server the distance of each row from each "
                f"centre, so n_clusters must be at most {sum(widths)}, the number of "
                f"columns, got {k}: use check_size"
            )
        run.record(0, KMeansModel([np.zeros((k, d)) for d in widths]).to_record())
        clustering = party.Clustering(k, self.local_clustering, self.approximation)
        scoring = sampling.Scoring(4 * self.approximation, clustering=clustering)
        coreset = self.draw(parties, run, scoring)
        w, rng, sizes = coreset.weights, run.rng("cluster"), np.zeros(0)
        metrics: dict[str, Any] = {"weight_sum": float(w.sum())}
        if coreset.X is not None:
            X = np.hstack(coreset.X)
            C, cost = weighted_kmeans(X, k, w, rng, self.n_init)
            metrics["cost"] = cost / n
            if (total_cost := float(w @ (center(X, w) ** 2).sum(axis=1))) > 0:
                metrics["explained"] = 1 - cost / total_cost
            sizes = np.bincount(assign(X, C)[0], w, k).astype(np.float64)
            metrics |= {"smallest_cluster": sizes.min(), "largest_cluster": sizes.max()}
            if (check := coreset.check) and check.X is not None:
                losses = assign(np.hstack(check.X), C)[1]
                metrics |= _estimate("check_cost", losses, check.weights, n)
            if self.sampling != "full" and len(w) > 1:
                metrics["tau"] = tau(coreset.X, run.rng("tau"))
        else:
            replies = parties.ask(
                party.local_clusters,
                n_clusters=k,
                local_clustering=self.local_clustering,
                test_fraction=self.test_fraction,
                coreset=coreset.weighted,
            )
            labels = np.column_stack(_local_labels(replies, len(w)))
            centers = [np.asarray(C_j, np.float64) for C_j in replies.each("centers")]
            C = distdim(labels, centers, w, k, rng, self.n_init)
        C_j = np.split(C, np.cumsum(widths)[:-1], axis=1)
        if self.evaluate == "full":
            metrics["full_cost"] = self._full_cost(parties, C_j, n)
        model_id = keep_parts(parties, "k-means", C_j, 0.0, 0)
        return record_model(run, KMeansModel(C_j, model_id, sizes), metrics)

    def _full_cost(self, parties: Parties, C_j: list[Array], n: int) -> float:
        """Return the mean squared distance of training rows to the nearest centres."""
        spread = sum(float(C.var(axis=0).sum()) for C in C_j)
        block, total = max(1, sampling.MESSAGE_NUMBERS // self.n_clusters), 0.0
        for start in range(0, n, block):
            replies = parties.ask_exactly(
                party.distances.summing(distances=2.0**20 * (spread or 1.0)),
                centers=each(C_j),
                test_fraction=self.test_fraction,
                start=start,
                stop=min(start + block, n),
            )
            total += float(replies.sums["distances"].min(axis=1).sum())
        return total / n


def _local_labels(replies: Replies[party.LocalClusters], m: int) -> list[Array]:
    """Return each party's clusters of m rows; raise if a cluster has no centre."""
    for j, reply in enumerate(replies):
        if len(reply["labels"]) != m:
            raise replies.failure(j, f"its reply must have the clusters of {m} rows")
        if reply["labels"].max() >= len(reply["centers"]):
            raise replies.failure(j, "its reply lacks the centre of a cluster")
    return [labels.astype(np.int64) for labels in replies.each("labels")]
