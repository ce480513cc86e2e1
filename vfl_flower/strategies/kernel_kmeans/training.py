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
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Ge, Le
from flwr.app import ArrayRecord

from vfl_flower.clients.kernel_kmeans import clustering as party_clustering
from vfl_flower.clients.kernel_kmeans import training as party
from vfl_flower.models.base import Model
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.numerics import evaluation
from vfl_flower.numerics.kernel_embedding import Kernel
from vfl_flower.numerics.kernel_kmeans import (
    Subspace,
    above_rounding,
    eigenpairs,
    first_features,
)
from vfl_flower.numerics.lanczos import lanczos
from vfl_flower.numerics.summed_kmeans import LEAST_ROWS
from vfl_flower.party.memory import Memory
from vfl_flower.protocol.settings import (
    Natural,
    NotNegative,
    Positive,
    check_unused,
    settings,
)
from vfl_flower.protocol.steps import Steps, each
from vfl_flower.protocol.terms import Terms
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolStrategy, Run
from vfl_flower.strategies.kernel_kmeans.clustering import (
    LARGEST_SQUARE,
    by_coreset,
    by_sums,
    largest,
)
from vfl_flower.strategies.kernel_kmeans.metrics import KERNEL_CLUSTERS
from vfl_flower.strategies.kernel_kmeans.setup import Start, begin, decomposed
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_ROWS_WITHOUT_CEM = 2**24
"""Most rows of all parties without the communication mechanism: the server then holds
vectors of that length."""

MOVING = 1.0
"""How far the subspace moves in the last iteration from which on a run warns of it. On
six sets, with 2 to 40 iterations, the inertia was 6 % above that of 160 iterations
where it moved so far, and 3 % where it moved less, as in 22 of 24 runs with 20."""


@settings
class FKKMeans(ProtocolStrategy):
    """Kernel k-means by random features and stochastic proximal gradients.

    The parties hold different rows of the same columns; [1] calls them users:

    =============  =====================================  ==========================
    round trip     party m sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digests of column names,  all of it
                   key
    begin          sums of its columns and of squares,    the sums over parties
                   and counts of missing values if any
                   party has some, masked; the first
                   party a seed for all others,
                   encrypted
    gram           W_t[m]^T W_t[m], masked                the sum over parties
    (T times)
    embed          the sum of its embedding, masked       the sum over parties
    lloyd          for all starts: inertia and cluster    the sums over parties
    (L times)      sizes, and sums of random halves of
                   the clusters of 20 rows or more,
                   masked
    assign         inertia and cluster sizes, masked;     the sums over parties
                   whether it keeps its part
    =============  =====================================  ==========================

    Lanczos asks for products with W_t[m]^T W_t[m] instead, in a round trip each. With
    ``clustering="coreset"``, the form of [1], two steps take the place of embed and
    lloyd:

    =============  =====================================  ==========================
    local          the cost of its own centres            all of it
    sample         points of its embedding, weights       all of it
    =============  =====================================  ==========================

    Notes
    -----
    Differs from [1] in: 1. one message per iteration (``"gram"``), which carries the
    eigenvectors of the one before; 2. sums over parties under masks; 3. the seed of the
    features is a secret of the parties; 4. the first iteration and `threshold`; 5. the
    early stop; 6. k-means on sums (``numerics/summed_kmeans.py``), and the coreset
    (``numerics/distributed_kmeans.py``); 7. a map for new rows.

    Who knows the seed of the run knows the features. With ``masking="plain"`` one party
    is enough.

    Examples
    --------
    A ring inside a ring:

    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 600)
    >>> radius = np.repeat([1, 4], 300)
    >>> X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    >>> parties = [Party(X[m::3]) for m in range(3)]
    >>> strategy = FKKMeans(n_clusters=2, n_components=3, gamma=0.2)
    >>> labels = simulate(strategy, parties, seed=0).model.predict(X)
    >>> both = np.bincount(labels[:300]).argmax(), np.bincount(labels[300:]).argmax()
    >>> int((labels == np.repeat(both, 300)).sum()), bool(both[0] != both[1])
    (600, True)
    """

    n_clusters: Natural = 10
    """k. Some clusters stay empty if there are fewer distinct rows."""
    n_components: Annotated[int, Ge(1), Le(party.MOST_COMPONENTS)] = 20
    """s, the number of eigenvectors of the kernel matrix on which k-means runs; at
    least n_clusters."""
    n_features: party.Features = 50
    """D, the number of random features of an iteration."""
    iterations: Natural = 20
    """T, the largest number of iterations."""
    kernel: Kernel = "gaussian"
    """"gaussian": exp(-gamma |x - x'|_2^2); "laplacian": exp(-gamma |x - x'|_1)."""
    gamma: Positive | Literal["auto"] = "auto"
    """gamma of the kernel. "auto": from sums over the parties; for the Gaussian kernel
    the paper's value, N^2 / (2 sum_ij |x_i - x_j|^2)."""
    eigensolver: Literal["gram", "lanczos"] = "gram"
    """"gram": the upper triangle of the Gram matrix in one message per iteration;
    "lanczos": as in the paper, a message for each product with a vector."""

    _: KW_ONLY
    threshold: Positive | Literal["auto", "paper"] = "auto"
    """lambda: smaller eigenvalues of the kernel matrix K are not learned. "paper": the
    (k + 2)-th eigenvalue of the first iteration; "auto": an estimate of the (s + 1)-th
    of K."""
    subspace_tol: NotNegative = 0.01
    """The iterations end where the subspace turns by less: the sine of its largest
    angle, over the root of the step. 0: all iterations run. Noisy data rarely get there
    before the last one."""
    clustering: Literal["sums", "coreset"] = "sums"
    """k-means on the eigenvectors. "sums": by sums over the parties; no row of them
    leaves its party. "coreset": as in the paper, at the server, on rows that the
    parties send in the clear."""
    passes: Natural = 20
    """Largest number of passes of k-means over the rows, with clustering "sums"; each
    is a round trip for all starts."""
    choose_clusters: bool = False
    """Let the server choose k from 2 to n_clusters by a silhouette of the rows, with
    clustering "sums"; each k has n_init starts."""
    coreset_size: Natural = 1000
    """Points that all parties together send for clustering "coreset", besides their
    centres. A party whose share is its number of rows or more sends all of its rows."""
    standardize: bool = False
    """Scale each column to mean 0 and standard deviation 1 over the rows of all
    parties."""
    cem: bool = True
    """The paper's communication mechanism. false: Lanczos on all N rows as in section
    4.1 of the paper; in one process only, for comparison."""
    n_init: Natural = 30
    """Starts of k-means, of which the best is kept."""
    allow_two_parties: bool = False
    """Train with two parties, although each can then compute sums of the other from the
    eigenvectors."""

    model_class = KernelKMeansModel
    question = "Which clusters are in the rows?"
    explained = KERNEL_CLUSTERS
    partition = "horizontal"
    fills = True
    steps: ClassVar[Steps] = (
        *(party.begin, party.gram, party.product, party.project, party.expand),
        *(party_clustering.embed, party_clustering.lloyd, party_clustering.local),
        *(party_clustering.sample, party_clustering.assign),
    )

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where settings do not fit together."""
        super().__post_init__()
        if self.n_components < self.n_clusters:
            raise ValueError(
                f"n_components must be at least n_clusters = {self.n_clusters}, got "
                f"{self.n_components}"
            )
        if self.threshold == "paper" and self.n_features < self.n_clusters + 2:
            raise ValueError(
                f"n_features must be at least n_clusters + 2 = {self.n_clusters + 2} "
                f"with threshold 'paper', got {self.n_features}"
            )
        unused = {"sums": ["coreset_size"], "coreset": ["passes", "choose_clusters"]}
        check_unused(self, unused[self.clustering], f"clustering {self.clustering!r}")
        if self.choose_clusters and self.n_clusters < 2:
            raise ValueError(
                "n_clusters must be at least 2 with choose_clusters, which tries each "
                f"number from 2 to n_clusters, got {self.n_clusters}"
            )
        tried = self.n_clusters * (self.n_clusters - 1 if self.choose_clusters else 1)
        if self._sums and self.n_init * tried > party_clustering.MOST_CENTERS:
            raise ValueError(
                f"n_init must be at most {party_clustering.MOST_CENTERS // tried} with "
                f"{self.n_clusters} clusters, got {self.n_init}"
            )
        if not self.cem and (self.eigensolver, self.masking) != ("lanczos", "plain"):
            raise ValueError(
                "cem can be false only with eigensolver 'lanczos' and masking 'plain', "
                f"got {self.eigensolver!r} and {self.masking!r}"
            )

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return Algorithm 1 of [1], with CEM, as published, but for `settings`.

        Section 6.1 has lambda and gamma, Appendix G the coreset (4000 for Covtype and
        Smartphone) and T from 10 to 50, here 20. k, s and D differ by data set there;
        they are the class's defaults, and so are the starts, which [1] does not state.
        """
        published: dict[str, Any] = {"eigensolver": "lanczos", "threshold": "paper"}
        published |= {"iterations": 20, "subspace_tol": 0.0, "clustering": "coreset"}
        return cls(**published | {"coreset_size": 1000, "gamma": "auto"} | settings)

    @property
    def terms(self) -> Terms:
        """Row sums, and of a coreset embedded rows."""
        if self._sums:
            return Terms(("row-sums",))
        less = "With clustering='sums' it needs row-sums alone"
        return Terms(("embedded-rows", "row-sums"), less=less)

    @property
    def _sums(self) -> bool:
        """Whether k-means runs on sums over the parties."""
        return self.clustering == "sums"

    @property
    def least_parties(self) -> int:
        """Without masks one party is enough."""
        return 1 if self.masking == "plain" else 2

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Algorithm 1, lines 1 to 20."""
        self._check_sizes(parties)
        if self.seed is not None:  # a warning, since none of the defaults gives one
            what = "can compute the rows of the sample"
            if self._sums:
                what = "knows the features, and by which coins rows are in sums"
            log.warning("the run has a seed: who knows it %s", what)
        log.info("model %016x", parties.session)
        if len(parties) > 1:
            parties.refuse_two("FKKMeans", self.allow_two_parties)
        D, s = self.n_features, self.n_components
        D_1 = first_features(D, s) if self.threshold == "auto" else D
        space = Subspace(D, D_1, s, self.n_clusters, self.threshold)
        start = begin(
            parties,
            kernel=self.kernel,
            gamma=self.gamma,
            standardize=self.standardize,
            D=D,
            D_1=D_1,
        )
        gamma = start.setup.gamma
        run.record(0, self._model(parties, space, gamma).to_record())
        if self.cem:
            self._with_cem(parties, run, space, start)
            R, H = space.embedding, None
        else:
            rows = self._without_cem(parties, run, space, start)
            R, H = None, each(split_rows(parties, rows))
        # Lines 16 to 19.
        if self._sums:
            centers, sum_h, more = by_sums(
                *(parties, run, space, R, H),
                n_clusters=self.n_clusters,
                n_init=self.n_init,
                passes=self.passes,
                choose=self.choose_clusters,
            )
        else:
            centers, sum_h, more = by_coreset(
                *(parties, run, space, R, H),
                n_clusters=self.n_clusters,
                n_init=self.n_init,
                size=self.coreset_size,
            )
        # Line 20.
        model = self._model(parties, space, gamma)
        model.cluster_centers_ = centers
        sizes = self._assign(parties, model)
        # The squares of all rows of H add up to its eigenvalues.
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
        record = model.to_record()
        run.record(space.t + 1, record, metrics)
        if self.subspace_tol and space.moved < MOVING:  # else it is a warning
            for sentence in self._still_moves(metrics):
                log.info("%s", sentence)
        return record

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return whether the clusters are better than one, and the subspace settles."""
        sentences = evaluation.shortfalls(metrics)
        sentences += evaluation.most_chosen(metrics, self.n_clusters)
        if float(metrics["moved"]) >= MOVING:
            sentences += self._still_moves(metrics)
        return sentences

    def _still_moves(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return the sentence that the subspace is not at rest, if it is not."""
        moved = float(metrics["moved"])
        if not self.cem or moved < self.subspace_tol:
            return []
        return [
            f"the subspace still moved by {moved:.2g} in the last of "
            f"{metrics['iterations']} iterations, and subspace-tol is "
            f"{self.subspace_tol:g}: raise iterations, and compare the inertia"
        ]

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Give the model the parts of all parties that took part in its run."""
        assert isinstance(model, KernelKMeansModel)
        parts = [memory.part for memory in memories if memory.run == model.id]
        model.parts = parts if parts and all(parts) else None

    def _check_sizes(self, parties: Parties) -> None:
        """Raise ``FederationError`` where the parties do not fit the settings."""
        N = parties.n_rows
        if self.n_clusters > N:
            raise FederationError(
                f"n_clusters must be at most the {N} rows of all parties, got "
                f"{self.n_clusters}"
            )
        if self._sums and N < LEAST_ROWS:
            raise FederationError(
                f"clustering 'sums' needs at least {LEAST_ROWS} rows of all parties, "
                f"got {N}"
            )
        if self.clustering == "coreset" and self.coreset_size < len(parties):
            raise FederationError(
                f"coreset_size must be at least the number of parties, {len(parties)}, "
                f"got {self.coreset_size}"
            )
        if not self.cem and N > MOST_ROWS_WITHOUT_CEM:
            raise FederationError(
                f"cem must be true for more than {MOST_ROWS_WITHOUT_CEM} rows, got {N}"
            )

    def _ends(self, space: Subspace) -> bool:
        return space.t >= self.iterations or space.still(self.subspace_tol)

    def _record(
        self, run: Run, parties: Parties, space: Subspace, gamma: float, products: int
    ) -> None:
        """Keep the metrics of an iteration; raise where no subspace is left."""
        if not len(space.values):
            names = ", ".join(repr(info.name) for info in parties)
            raise FederationError(
                f"the kernel matrix that {names} have sent has no eigenvalue above 0: "
                "one of these parties is faulty"
            )
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
            parties.session_id,
            self.kernel,
            gamma,
            parties[0].n_columns,
            space.eigenvalues,
            np.zeros((0, 0)),
            math.nan,
        )

    # -- iterations and clusters -------------------------------------------------------

    def _with_cem(
        self, parties: Parties, run: Run, space: Subspace, start: Start
    ) -> None:
        """Lines 6 to 15."""
        while not self._ends(space):
            bound = space.next_eta * LARGEST_SQUARE * parties.n_rows + space.mass
            products = 1
            if self.eigensolver == "gram":
                self._by_gram(parties, space, bound, start)
            else:
                products = self._by_products(parties, run, space, bound, start)
            self._record(run, parties, space, start.setup.gamma, products)

    def _by_gram(
        self, parties: Parties, space: Subspace, bound: float, start: Start
    ) -> None:
        """Line 10 in one message."""
        size = space.next_size
        triangle = parties.ask_exactly(
            party.gram.summing(gram=bound), t=space.t + 1, **start.brought(space)
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
        with decomposed(parties, party.gram):
            space.step(*eigenpairs(G, *space.wanted), float(G.trace()))

    def _by_products(
        self, parties: Parties, run: Run, space: Subspace, bound: float, start: Start
    ) -> int:
        """Line 10 by Lanczos, one message per product; return how many."""

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
        if not space.t and self.threshold == "auto":
            wanted["trace"] = bound
        sums = parties.ask_exactly(
            party.product.summing(**wanted),
            vectors=c_1[:, None],
            t=space.t + 1,
            trace_wanted="trace" in wanted,
            **start.brought(space),
        ).sums
        if "trace" in wanted:
            trace = float(sums["trace"][0])
            if trace < 0:
                raise parties.faulty_sum(party.product, "the trace of a Gram matrix")
        known, (cut, least) = column(sums["product"]), space.wanted
        with decomposed(parties, party.product):
            pairs = lanczos(multiply, vector, cut, known, rng=rng, at_least=least)
            space.step(pairs.values, pairs.vectors, trace)
        return pairs.steps

    def _without_cem(
        self, parties: Parties, run: Run, space: Subspace, start: Start
    ) -> Array:
        """Section 4.1 for all t; return H.

        R_t = (1 - eta_t) Z_t + eta_t A_t A_t^T / D, of all N rows. The server holds the
        eigenvectors of Z_t; a product is two round trips, of D floats from each party
        and of N floats from all.
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
                # At most |a_i| |A^T c|, and these are at most sqrt(2 D), sqrt(2 D N).
                if largest(products) > 2.01 * D * math.sqrt(N):
                    reason = "its products are larger than features allow"
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
            with decomposed(parties, party.expand):
                pairs = lanczos(multiply, vector, cut, known, rng=rng, at_least=least)
                # v_i = W_t^T u_i / sqrt(lambda_i), of which `movement` needs only the
                # rows that belong to B_t. The trace of A A^T / D is N in the mean.
                count = above_rounding(pairs.values, N)
                values, U = pairs.values[:count], pairs.vectors[:, :count]
                V_B = math.sqrt(1 - space.next_eta) * (B.T @ U)
                space.step(values, V_B / np.sqrt(values), float(N))
            self._record(run, parties, space, start.setup.gamma, pairs.steps)
            U = U[:, : len(space.values)]  # the step takes more for rounding
            B = U[:, : space.rank] * np.sqrt(space.lengths)
        return np.asarray(U[:, : space.s] * np.sqrt(space.eigenvalues))

    def _assign(self, parties: Parties, model: KernelKMeansModel) -> Array:
        """Line 20: add to the model what the labels give; return its cluster sizes."""
        N = parties.n_rows
        wanted = {"inertia": 4.0 * LARGEST_SQUARE * N, "sizes": float(N)}
        replies = parties.ask_exactly(
            party_clustering.assign.summing(**wanted), centers=model.cluster_centers_
        )
        sums = replies.sums
        inertia, sizes = float(sums["inertia"][0]), np.rint(sums["sizes"])
        if inertia < 0 or sizes.min() < 0 or sizes.sum() != N:
            raise parties.faulty_sum(party_clustering.assign, f"clusters of {N} rows")
        model.inertia_ = inertia
        model.kept = all(replies.each("kept"))
        model.sizes_ = np.asarray(sizes, dtype=np.float64)
        return model.sizes_


def split_rows(parties: Parties, rows: Array) -> list[Array]:
    """Split an array over all rows into the parts of the parties."""
    ends = np.cumsum([info.n_rows for info in parties])
    return np.split(rows, ends[:-1])
