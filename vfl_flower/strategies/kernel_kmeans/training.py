"""Federated kernel k-means.

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
[2] M.-F. Balcan, S. Ehrlich and Y. Liang, "Distributed k-means and k-median clustering
    on general topologies", NIPS 2013.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.kernel_kmeans import clustering
from vfl_flower.clients.kernel_kmeans import training as party
from vfl_flower.models.base import Model
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.numerics import distributed_kmeans, evaluation
from vfl_flower.numerics.kernel_kmeans import (
    Subspace,
    above_rounding,
    eigenpairs,
    first_features,
)
from vfl_flower.numerics.lanczos import lanczos
from vfl_flower.numerics.summed_kmeans import (
    Pass,
    Request,
    chosen_kmeans,
    summed_kmeans,
)
from vfl_flower.party.memory import Memory
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps, each
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.evaluation import record_model
from vfl_flower.strategies.kernel_kmeans import setup
from vfl_flower.strategies.kernel_kmeans.metrics import KERNEL_CLUSTERS
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

Embedding = tuple[Array | None, Array | None]
"""R of the last iteration or, without the communication mechanism, H."""

LARGEST_SQUARE = 2.0
"""Largest square of a random feature, sqrt(2) cos(omega^T x + b)."""

MOVING = 1.0
"""A run warns if the subspace moves at least this far in the last iteration.

On six data sets, with 2 to 40 iterations, the inertia of such runs was 6 % above the
inertia after 160 iterations. The inertia of runs with less movement was 3 % above it.
In 22 of the 24 runs with 20 iterations, the subspace moved less.
"""


@settings
class FKKMeans(setup.KernelClustering):
    """Kernel k-means with random features and stochastic proximal gradients.

    The parties hold different rows of the same columns; [1] calls the parties users.

    =============  =====================================  ==========================
    round trip     party m sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digests of column names,  all of it
                   key
    begin          sums of its columns and of squares,    the sums over parties
                   and counts of missing values if any
                   party has some, masked; the first
                   party: a seed for all other parties,
                   encrypted
    gram           W_t[m]^T W_t[m], masked                the sum over parties
    (T times)
    embed          the sum of its embedding, masked       the sum over parties
    lloyd          for all starts: inertia and cluster    the sums over parties
    (L times)      sizes, and sums of random halves of
                   the clusters of 20 rows or more,
                   masked
    assign         inertia and cluster sizes, masked;     the sums over parties
                   whether it keeps its local model
    =============  =====================================  ==========================

    With ``eigensolver="lanczos"``, the server requests products with W_t[m]^T W_t[m]
    instead, each in one round trip. With ``clustering="coreset"``, as in [1], two steps
    replace embed and lloyd:

    =============  =====================================  ==========================
    local          the cost of its own centres            all of it
    sample         points of its embedding, weights       all of it
    =============  =====================================  ==========================

    Notes
    -----
    The class differs from [1] in seven ways: 1. one message per iteration (``"gram"``),
    which carries the eigenvectors of the previous iteration; 2. sums over the parties
    under masks; 3. the seed of the features, which is a secret of the parties; 4. the
    first iteration and `threshold`; 5. the early stop (`subspace_tol` bounds the sine
    of the largest angle by which an iteration rotates the subspace, divided by the root
    of the step); 6. k-means on sums (``numerics/summed_kmeans.py``), and the coreset
    (``numerics/distributed_kmeans.py``); 7. a map for new rows.

    Whoever knows the seed of the run knows the features. With ``masking="plain"``, one
    party is enough.

    Examples
    --------
    A ring inside a ring:

    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 300)
    >>> radius = np.repeat([1, 4], 150)
    >>> X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    >>> parties = [Party(X[m::3]) for m in range(3)]
    >>> strategy = FKKMeans(n_clusters=2, n_components=3, gamma=0.2)
    >>> labels = simulate(strategy, parties, seed=0).model.predict(X)
    >>> sorted((int(labels[:150].sum()), int(labels[150:].sum())))
    [0, 150]
    """

    model_class = KernelKMeansModel
    question = "Which rows belong together?"
    explained = KERNEL_CLUSTERS
    steps: ClassVar[Steps] = (
        *(party.begin, party.gram, party.product, party.project, party.expand),
        *(clustering.embed, clustering.lloyd, clustering.local),
        *(clustering.sample, clustering.assign),
    )

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return Algorithm 1 of [1], with CEM, as published, except for `settings`.

        lambda and gamma follow Section 6.1. Appendix G gives the size of the coreset
        (4000 for Covtype and Smartphone) and T from 10 to 50; T is 20 here. In [1], k,
        s and D differ by data set, and the number of starts is not stated; here, all
        four have the class's default values.
        """
        published: dict[str, Any] = {"eigensolver": "lanczos", "threshold": "paper"}
        published |= {"iterations": 20, "subspace_tol": 0.0, "clustering": "coreset"}
        return cls(**published | {"coreset_size": 1000, "gamma": "auto"} | settings)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Run Algorithm 1, lines 1 to 20."""
        self.check_sizes(parties)
        if self.seed is not None:  # a warning, since no default sets a seed
            what = "can compute the rows of the sample"
            if self._sums:
                what = "knows the features, and which rows are in each sum"
            log.warning("the run has a seed: whoever knows it %s", what)
        log.info("model %016x", parties.session)
        if len(parties) > 1:
            parties.refuse_two("FKKMeans", self.allow_two_parties)
        D, s = self.n_features, self.n_components
        D_1 = first_features(D, s) if self.threshold == "auto" else D
        space = Subspace(D, D_1, s, self.n_clusters, self.threshold)
        start = self.begin(parties, space)
        gamma = start.setup.gamma
        run.record(0, self._model(parties, space, gamma).to_record())
        if self.cem:
            self._with_cem(parties, run, space, start)
            R, H = space.embedding, None
        else:
            rows = self._without_cem(parties, run, space, start)
            R, H = None, each(split_rows(parties, rows))
        # Lines 16 to 19.
        cluster = self._by_sums if self._sums else self._by_coreset
        centers, sum_h, more = cluster(parties, run, space, (R, H))
        # Line 20.
        model = self._model(parties, space, gamma)
        model.cluster_centers_ = centers
        sizes = self._assign(parties, model)
        # The squares in all rows of H add up to the sum of its eigenvalues.
        total_cost = space.eigenvalues.sum() - sum_h @ sum_h / sizes.sum()
        if total_cost > 0:
            more = {"explained": float(1 - model.inertia_ / total_cost)} | more
        metrics: dict[str, Any] = {
            "inertia": model.inertia_,
            "iterations": space.t,
            "rank": space.rank,
            "moved": space.moved,
            "threshold": space.threshold,
            "gamma": model.gamma,
            "smallest_cluster": int(sizes.min()),
            "largest_cluster": int(sizes.max()),
        } | more
        record = record_model(run, model, metrics, space.t + 1)
        if self.subspace_tol and space.moved < MOVING:  # else it is a warning
            for sentence in self._still_moves(metrics):
                log.info("%s", sentence)
        return record

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Warn if one cluster would be as good, or if the subspace still moves."""
        sentences = super().shortfalls(metrics)
        sentences += evaluation.most_chosen(metrics, self.n_clusters)
        if float(metrics["moved"]) >= MOVING:
            sentences += self._still_moves(metrics)
        return sentences

    def _still_moves(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return a warning if the subspace still moves."""
        moved = float(metrics["moved"])
        if not self.cem or moved < self.subspace_tol:
            return []
        return [
            f"the subspace still moved by {moved:.2g} in the last of "
            f"{metrics['iterations']} iterations, but subspace-tol is "
            f"{self.subspace_tol:g}: raise iterations, and compare the inertia"
        ]

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add the local models of all parties that took part in the model's run."""
        assert isinstance(model, KernelKMeansModel)
        parts = [memory.part for memory in memories if memory.run == model.id]
        model.parts = parts if parts and all(parts) else None

    def _ends(self, space: Subspace) -> bool:
        return space.t >= self.iterations or space.still(self.subspace_tol)

    def _record(
        self, run: Run, parties: Parties, space: Subspace, gamma: float, products: int
    ) -> None:
        """Record the metrics of an iteration; raise if no subspace is left."""
        if not space.rank:
            raise FederationError(
                "threshold must be below the largest eigenvalue of the kernel matrix, "
                f"about {space.values[0]:g}, got {space.threshold:g}"
            )
        metrics = {"rank": space.rank, "products": products, "moved": space.moved}
        run.trace("moved", space.moved)
        model = self._model(parties, space, gamma)
        run.record(space.t, model.to_record(), metrics)

    def _model(
        self, parties: Parties, space: Subspace, gamma: float
    ) -> KernelKMeansModel:
        """Return the model so far."""
        return KernelKMeansModel(
            id=parties.session_id,
            kernel=self.kernel,
            gamma=gamma,
            n_columns=parties[0].n_columns,
            eigenvalues_=space.eigenvalues,
            cluster_centers_=np.zeros((0, 0)),
            inertia_=math.nan,
        )

    # -- iterations and clusters -------------------------------------------------------

    def _with_cem(
        self, parties: Parties, run: Run, space: Subspace, start: setup.FirstMessage
    ) -> None:
        """Run lines 6 to 15 of Algorithm 1."""
        while not self._ends(space):
            bound = space.next_eta * LARGEST_SQUARE * parties.n_rows + space.mass
            products = 1
            if self.eigensolver == "gram":
                self._by_gram(parties, space, bound, start)
            else:
                products = self._by_products(parties, run, space, bound, start)
            self._record(run, parties, space, start.setup.gamma, products)

    def _by_gram(
        self, parties: Parties, space: Subspace, bound: float, start: setup.FirstMessage
    ) -> None:
        """Run line 10 in one message."""
        size = space.next_size
        first = not space.t
        triangle = parties.ask_exactly(
            party.gram.summing(gram=bound),
            t=space.t + 1,
            R=None if first else space.R,
            setup=start.setup if first else None,
            seed=start.seed if first else None,
        ).sums["gram"]
        if len(triangle) != size * (size + 1) // 2:
            rule = f"the upper triangle of a matrix of {size} rows"
            raise parties.faulty_sum(party.gram, rule)
        G = np.zeros((size, size))
        G[np.triu_indices(size)] = triangle
        G += np.triu(G, 1).T
        diagonal = G.diagonal()
        if (diagonal < 0).any() or diagonal.sum() > 2 * bound:
            raise parties.faulty_sum(party.gram, "a Gram matrix of the features")
        with setup.decomposed(parties, party.gram, space):
            space.step(*eigenpairs(G, *space.wanted), float(G.trace()))

    def _by_products(
        self,
        parties: Parties,
        run: Run,
        space: Subspace,
        bound: float,
        start: setup.FirstMessage,
    ) -> int:
        """Run line 10 by Lanczos, one message per product; return the message count."""

        def column(product: Array) -> Array:
            if np.abs(product).max() > 2 * bound:
                rule = "a product with a Gram matrix of the features"
                raise parties.faulty_sum(party.product, rule)
            return product[:, 0]

        def multiply(c: Array) -> Array:
            question = party.product.summing(product=bound)
            sums = parties.ask_exactly(question, vectors=c[:, None]).sums
            return column(sums["product"])

        rng = run.rng(f"lanczos {space.t + 1}")
        vector = rng.standard_normal(space.next_size)
        c_1 = vector / np.linalg.norm(vector)
        trace, wanted = math.nan, {"product": bound}
        first = not space.t
        if first and self.threshold == "auto":
            wanted["trace"] = bound
        sums = parties.ask_exactly(
            party.product.summing(**wanted),
            vectors=c_1[:, None],
            t=space.t + 1,
            trace_wanted="trace" in wanted,
            R=None if first else space.R,
            setup=start.setup if first else None,
            seed=start.seed if first else None,
        ).sums
        if "trace" in wanted:
            trace = float(sums["trace"][0])
            if trace < 0:
                raise parties.faulty_sum(party.product, "the trace of a Gram matrix")
        known, (cut, least) = column(sums["product"]), space.wanted
        with setup.decomposed(parties, party.product, space):
            pairs = lanczos(multiply, vector, cut, known, rng=rng, at_least=least)
            space.step(pairs.values, pairs.vectors, trace)
        return pairs.steps

    def _without_cem(
        self, parties: Parties, run: Run, space: Subspace, start: setup.FirstMessage
    ) -> Array:
        """Run Section 4.1 for all t; return H.

        R_t = (1 - eta_t) Z_t + eta_t A_t A_t^T / D, for all N rows. The server holds
        the eigenvectors of Z_t. A product takes two round trips: each party sends D
        floats in the first, and all parties together send N floats in the second.
        """
        N = parties.n_rows
        B = np.zeros((N, 0))

        def multiply(c: Array, begins: bool = False) -> Array:
            D, bound = space.D if space.t else space.D_1, 2.0 * math.sqrt(N)
            g = parties.secure_sum(
                party.project.summing(projected=bound),
                c=each(split_rows(parties, c)),
                t=space.t + 1,
                setup=start.setup if begins else None,
                seed=start.seed if begins else None,
            )["projected"]
            if len(g) != D:
                raise parties.faulty_sum(party.project, f"products with {D} features")
            replies = parties.ask(party.expand, g=g)
            rows = replies.each("rows")
            for j, products in enumerate(rows):
                # At most |a_i| |A^T c|, at most sqrt(2 D) times sqrt(2 D N).
                if _largest(products) > 2.01 * D * math.sqrt(N):
                    reason = "its products are too large for the features"
                    raise replies.failure(j, reason)
            eta = space.next_eta
            before = (1 - eta) * (B @ (B.T @ c))
            return np.asarray(before + eta / D * np.concatenate(rows))

        while not self._ends(space):
            rng = run.rng(f"lanczos {space.t + 1}")
            vector = rng.standard_normal(N)
            cut, least = space.wanted
            c_1 = vector / np.linalg.norm(vector)
            known = multiply(c_1, begins=not space.t)
            with setup.decomposed(parties, party.expand, space):
                pairs = lanczos(multiply, vector, cut, known, rng=rng, at_least=least)
                # v_i = W_t^T u_i / sqrt(lambda_i), of which `movement` needs only the
                # rows that belong to B_t. The trace of A A^T / D is N on average.
                count = above_rounding(pairs.values, N)
                values, U = pairs.values[:count], pairs.vectors[:, :count]
                V_B = math.sqrt(1 - space.next_eta) * (B.T @ U)
                space.step(values, V_B / np.sqrt(values), float(N))
            self._record(run, parties, space, start.setup.gamma, pairs.steps)
            U = U[:, : len(space.values)]  # `step` drops further rounding errors
            B = U[:, : space.rank] * np.sqrt(space.lengths)
        return np.asarray(U[:, : space.s] * np.sqrt(space.eigenvalues))

    def _by_sums(
        self, parties: Parties, run: Run, space: Subspace, embedding: Embedding
    ) -> tuple[Array, Array, dict[str, Any]]:
        """Run lines 16 to 19; return the centres, the sum of H's rows, and metrics."""
        N, values, (R, H) = parties.n_rows, space.eigenvalues, embedding
        s, mass = len(values), float(values.sum())
        # The squares in all rows of H add up to the sum of its eigenvalues.
        bound = 2 * math.sqrt(N * mass) + 10 * math.sqrt(mass)
        replies = parties.ask_exactly(clustering.embed.summing(sum_h=bound), R=R, H=H)
        sum_h = replies.sums["sum_h"]
        if len(sum_h) != s:
            raise parties.faulty_sum(clustering.embed, f"{s} sums of the embedding")

        def ask(request: Request) -> Pass:
            wanted = {"inertia": 4.0 * LARGEST_SQUARE * N, "sizes": float(N)}
            if request.last is not None:
                wanted |= {"counts": float(N), "sums": bound}
            if request.used is not None:
                wanted["silhouettes"] = 2.0 * N
            sums = parties.ask_exactly(
                clustering.lloyd.summing(**wanted),
                centers=request.centers,
                last=request.last,
                sizes=request.sizes,
                used=request.used,
            ).sums
            rows = np.rint(sums["sizes"])
            if rows.min() < 0 or (rows.sum(axis=1) != N).any():
                raise parties.faulty_sum(clustering.lloyd, f"clusters of {N} rows")
            run.trace("inertia", float(sums["inertia"].min()))
            return Pass(**sums)

        mean = sum_h / N
        cluster = chosen_kmeans if self.choose_clusters else summed_kmeans
        clusters = cluster(
            ask,
            self.n_clusters,
            mean,
            np.diag(values) / N - np.outer(mean, mean),
            run.rng("k-means"),
            self.n_init,
            self.passes,
        )
        metrics = {"passes": clusters.passes, "small_share": clusters.small}
        if self.choose_clusters:
            metrics["clusters"] = len(clusters.centers)
        return distributed_kmeans.first_of_equals(clusters.centers), sum_h, metrics

    def _by_coreset(
        self, parties: Parties, run: Run, space: Subspace, embedding: Embedding
    ) -> tuple[Array, Array, dict[str, Any]]:
        """Run lines 16 to 19 as in [1]; the points estimate the sum of H's rows."""
        # Lines 16 and 17.
        k, (R, H) = self.n_clusters, embedding
        replies = parties.ask(clustering.local, n_clusters=k, R=R, H=H)
        # Lines 18 and 19.
        costs = np.array(replies.each("cost"))
        shares = distributed_kmeans.split_budget(costs, self.coreset_size)
        points, weights = _sample(parties, space, shares, k)
        rng = run.rng("k-means")
        centers = distributed_kmeans.combine(points, weights, k, rng, self.n_init)
        return centers, weights @ points, {}

    def _assign(self, parties: Parties, model: KernelKMeansModel) -> Array:
        """Run line 20: complete the model from the labels; return cluster sizes."""
        N = parties.n_rows
        wanted = {"inertia": 4.0 * LARGEST_SQUARE * N, "sizes": float(N)}
        replies = parties.ask_exactly(
            clustering.assign.summing(**wanted), centers=model.cluster_centers_
        )
        sums = replies.sums
        inertia, sizes = float(sums["inertia"][0]), np.rint(sums["sizes"])
        if inertia < 0 or sizes.min() < 0 or sizes.sum() != N:
            raise parties.faulty_sum(clustering.assign, f"clusters of {N} rows")
        model.inertia_ = inertia
        model.kept = all(replies.each("kept"))
        model.sizes_ = np.asarray(sizes, dtype=np.float64)
        return model.sizes_


def split_rows(parties: Parties, rows: Array) -> list[Array]:
    """Split an array over all rows into one array for each party."""
    ends = np.cumsum([info.n_rows for info in parties])
    return np.split(rows, ends[:-1])


def _sample(
    parties: Parties, space: Subspace, shares: Array, n_clusters: int
) -> tuple[Array, Array]:
    """Run line 19: return points of the embedding of all parties, and weights."""
    counts = [int(share) for share in shares]
    replies = parties.ask(clustering.sample, count=each(counts))
    width, mass = len(space.eigenvalues), float(space.eigenvalues.sum())
    for j, (info, reply) in enumerate(zip(parties, replies, strict=True)):
        points, weights, n = reply["points"], reply["weights"], info.n_rows
        most = n if counts[j] >= n else counts[j] + min(n, n_clusters)
        if points.shape[1] != width or len(points) > most:
            rule = f"at most {most} points of {width} numbers"
        # The squares in all rows of H add up to the sum of its eigenvalues. No weight
        # is above 2 n_m in absolute value, and the weights add up to n_m.
        elif _largest(points) > 4 * math.sqrt(mass):
            rule = "points no larger than the embedding allows"
        elif not weights.max() > 0 or _largest(weights) > 3 * n:
            rule = f"weights that are possible for {n} rows"
        else:
            continue
        raise replies.failure(j, f"its reply must have {rule}")
    points = np.concatenate(replies.each("points"))
    return points, np.concatenate(replies.each("weights"))


def _largest(values: Array) -> float:
    """Return the largest absolute value, for any type of number."""
    with np.errstate(over="ignore"):
        return float(np.abs(values.astype(np.float64)).max())
