"""Federated kernel k-means.

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
[2] M.-F. Balcan, S. Ehrlich and Y. Liang, "Distributed k-means and k-median clustering
    on general topologies", NIPS 2013.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models import KernelKMeansModel
from vfl_flower.numerics.distributed_kmeans import (
    combine,
    first_of_equals,
    split_budget,
)
from vfl_flower.numerics.kernel_embedding import KERNELS, default_gamma
from vfl_flower.numerics.kernel_kmeans import (
    Subspace,
    above_rounding,
    eigenpairs,
    first_features,
    stack,
    variances,
)
from vfl_flower.numerics.kmeans import assign, weighted_kmeans
from vfl_flower.numerics.lanczos import block_lanczos, lanczos
from vfl_flower.numerics.random_features import features
from vfl_flower.secure_aggregation import LIMB, join_limbs
from vfl_flower.strategies.base import (
    ProtocolStrategy,
    Run,
    check_at_least,
    check_bits,
    check_choice,
    check_flags,
    check_positive,
    check_unchanged,
    check_whole,
)
from vfl_flower.strategies.exchange import FederationError
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Sum
from vfl_flower.typing import Array, Values

log = logging.getLogger("vfl_flower")

EIGENSOLVERS = ("gram", "lanczos", "block-lanczos")
PARTITIONS = ("horizontal", "vertical")
MOST_DEGREE = 1000
"""Of the polynomial kernel: a feature is a product of as many random numbers."""


class FKKMeans(ProtocolStrategy):
    """Kernel k-means by random features and stochastic proximal gradients.

    With split rows (``partition="horizontal"``):

    =============  =====================================  ==========================
    round trip     user m sends                           the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digest of column names,   all of it
                   key
    begin          sums of its columns and of squares,    the sums over users
                   masked; the first user a
                   seed for all others, encrypted
    gram           W_t[m]^T W_t[m], masked                the sum over users
    (T times)
    local          the cost of its own centres            all of it
    sample         points of its embedding, weights       all of it
    assign         inertia and cluster sizes, masked;     the sums over users
                   whether it keeps its part
    =============  =====================================  ==========================

    Lanczos asks for products with W_t[m]^T W_t[m] in its place, in a round trip each.

    With split columns (``"vertical"``):

    =============  =====================================  ==========================
    spread         the spread of its columns, masked      the sum over parties
    angles         its part of the angles of all rows,    the angles: the features of
                   masked                                 each row, and its labels
    labels         whether it keeps them                  all of it
    =============  =====================================  ==========================

    Parameters
    ----------
    n_clusters : int
        k. Some clusters are empty where there are fewer distinct rows.
    n_components : int
        s, eigenvectors of the kernel matrix that k-means runs on; at least k.
    n_features : int
        D, random features of an iteration.
    iterations : int
        T, at most.
    kernel : {"gaussian", "laplacian", "polynomial"}
        ``exp(-gamma |x - x'|_2^2)``, ``exp(-gamma |x - x'|_1)`` or
        ``(gamma x^T x' + offset)^degree``.
    gamma : float or "auto"
        ``"auto"``: N^2 / (2 sum_ij |x_i - x_j|^2) as in [1], from sums over users; see
        :func:`~vfl_flower.numerics.kernel_embedding.default_gamma`.
    eigensolver : {"gram", "lanczos", "block-lanczos"}
        ``"gram"``: the upper triangle of the Gram matrix in one message an iteration.
        ``"lanczos"``: that of [1], a message for each product with a vector;
        ``"block-lanczos"``: with `block_size` vectors.
    partition : {"horizontal", "vertical"}
        What parties hold: other rows of the same columns, or other columns of the same
        rows.
    threshold : float, "auto" or "paper"
        lambda, under which eigenvalues are not learned, in the unit of those of K.
        ``"paper"``: the (k + 2)-th eigenvalue of the first iteration [1]; ``"auto"``:
        an estimate of the (s + 1)-th of K, from a first iteration of 4 (s + 5) features
        at least.
    subspace_tol : float
        Ends the iterations when the subspace turns by less: the sine of the largest
        angle over the root of the step, about twice its distance from that of K. 0:
        never. Data with noise rarely get there before `iterations`; a kernel matrix of
        rank s or less never does, since its subspace does not turn.
    coreset_size : int
        Points that all users send together for k-means, besides their centres; all
        rows where they are no more.
    degree, offset : int, float
        Of the polynomial kernel.
    standardize : bool
        Scale each column to mean 0 and deviation 1 over the rows of all users, from
        the sums. With split columns each party does it: ``standardize`` of its data.
    cem : bool
        False: without the communication mechanism, Lanczos on the N rows as in section
        4.1 of [1]; in one process only, for comparison.
    block_size : int
        Vectors of ``"block-lanczos"``.
    n_init : int
        Starts of k-means at the server.
    bits, block_bytes : int
        Of an angle, and bytes of angles that a party sends in one round trip; of
        ``"vertical"``.
    allow_missing : bool
        Begin again without a user that fails or is silent for the time-out; the result
        says so. The server then has sums with and without it, so their difference. By
        default the run fails.
    allow_two_parties : bool
        Train with two users, of whom each can compute sums of the other from the
        eigenvectors.
    masking, n_parties, seed
        See :class:`~vfl_flower.strategies.base.ProtocolStrategy`. With ``"plain"``, in
        one process, one user is enough. Who knows the seed knows the features: with
        split columns the server then has all columns of all parties.

    Notes
    -----
    Differs from [1] in: 1. one message an iteration (``"gram"``), which carries the
    eigenvectors of the one before; 2. sums over users under masks; 3. the features'
    seed is a secret of the users; 4. the first iteration and `threshold`; 5. the early
    stop; 6. the coreset: see ``numerics/distributed_kmeans.py``; 7. a map for new rows.

    Examples
    --------
    Four groups of rows, of which opposite ones are alike for this kernel:

    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulations import simulate
    >>> rng = np.random.default_rng(0)
    >>> lines = np.repeat([[1, 1], [1, -1]], 300, axis=0)
    >>> X = rng.choice([-1, 1], (600, 1)) * lines + rng.normal(size=(600, 2)) / 5
    >>> users = [Party(X[m::3]) for m in range(3)]
    >>> strategy = FKKMeans(2, 2, kernel="polynomial", degree=2, offset=0.0)
    >>> labels = simulate(strategy, users, seed=0).model.predict(X)
    >>> both = np.bincount(labels[:300]).argmax(), np.bincount(labels[300:]).argmax()
    >>> int((labels == np.repeat(both, 300)).sum()), bool(both[0] != both[1])
    (600, True)
    """

    model_class = KernelKMeansModel

    def __init__(
        self,
        n_clusters: int = 10,
        n_components: int = 20,
        n_features: int = 50,
        iterations: int = 20,
        kernel: str = "gaussian",
        gamma: float | str = "auto",
        eigensolver: str = "gram",
        *,
        partition: str = "horizontal",
        threshold: float | str = "auto",
        subspace_tol: float = 0.01,
        coreset_size: int = 1000,
        degree: int = 3,
        offset: float = 1.0,
        standardize: bool = False,
        cem: bool = True,
        block_size: int = 8,
        n_init: int = 30,
        bits: int = 16,
        block_bytes: int = 16_000_000,
        allow_missing: bool = False,
        allow_two_parties: bool = False,
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        self.partition = partition
        check_choice("partition", partition, PARTITIONS)
        super().__init__(masking=masking, n_parties=n_parties, seed=seed)
        check_choice("kernel", kernel, KERNELS)
        check_choice("eigensolver", eigensolver, EIGENSOLVERS)
        check_positive("gamma", gamma, "auto")
        if not (isinstance(threshold, str) and threshold == "paper"):
            check_positive("threshold", threshold, "auto")
        check_at_least("subspace_tol", subspace_tol, 0)
        check_at_least("offset", offset, 0)
        for name, value, least in (
            ("n_clusters", n_clusters, 1),
            ("n_components", n_components, 1),
            ("n_features", n_features, 1),
            ("iterations", iterations, 1),
            ("coreset_size", coreset_size, 1),
            ("degree", degree, 1),
            ("block_size", block_size, 1),
            ("n_init", n_init, 1),
            ("block_bytes", block_bytes, 1),
        ):
            check_whole(name, value, least)
        if degree > MOST_DEGREE:
            raise ValueError(f"degree must be at most {MOST_DEGREE}, got {degree}")
        if n_components < n_clusters:
            raise ValueError(
                f"n_components must be at least n_clusters = {n_clusters}, got "
                f"{n_components}"
            )
        if threshold == "paper" and n_features < n_clusters + 2:
            raise ValueError(
                f"n_features must be at least n_clusters + 2 = {n_clusters + 2} with "
                f"threshold 'paper', got {n_features}"
            )
        check_bits(bits)
        self.n_clusters, self.n_components = n_clusters, n_components
        self.n_features, self.iterations = n_features, iterations
        self.kernel, self.gamma, self.eigensolver = kernel, gamma, eigensolver
        self.threshold, self.subspace_tol = threshold, subspace_tol
        self.coreset_size, self.degree, self.offset = coreset_size, degree, offset
        self.standardize, self.cem, self.block_size = standardize, cem, block_size
        self.n_init, self.bits, self.block_bytes = n_init, bits, block_bytes
        self.allow_missing, self.allow_two_parties = allow_missing, allow_two_parties
        check_flags(self, "standardize", "cem", "allow_missing", "allow_two_parties")
        polynomial = {"degree": degree, "offset": offset}
        angles = {"bits": bits, "block_bytes": block_bytes}
        rows = {
            "eigensolver": eigensolver,
            "coreset_size": coreset_size,
            "cem": cem,
            "standardize": standardize,
            "allow_two_parties": allow_two_parties,
            "allow_missing": allow_missing,
        }
        if kernel != "polynomial":
            check_unchanged(FKKMeans, polynomial, f"kernel {kernel!r}")
        if eigensolver != "block-lanczos":
            block = {"block_size": block_size}
            check_unchanged(FKKMeans, block, f"eigensolver {eigensolver!r}")
        if partition == "horizontal":
            check_unchanged(FKKMeans, angles, "partition 'horizontal'")
        else:
            check_unchanged(FKKMeans, rows, "partition 'vertical'")
            if kernel == "polynomial":
                raise ValueError(
                    "kernel must be 'gaussian' or 'laplacian' with partition "
                    "'vertical', whose parties send angles, got 'polynomial'"
                )
        if not cem and (eigensolver != "lanczos" or masking != "plain"):
            raise ValueError(
                "cem can be false only with eigensolver 'lanczos' and masking 'plain', "
                f"got {eigensolver!r} and {masking!r}"
            )
        if not cem and kernel == "polynomial":
            raise ValueError("kernel must not be 'polynomial' with cem false")

    @property
    def least_parties(self) -> int:
        """Without masks one user is enough."""
        return 1 if self.masking == "plain" else 2

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Algorithm 1, lines 1 to 20."""
        if self.n_clusters > parties.n_rows:
            raise FederationError(
                f"n_clusters must be at most the {parties.n_rows} rows of all parties, "
                f"got {self.n_clusters}"
            )
        horizontal = self.partition == "horizontal"
        if horizontal and self.coreset_size < len(parties):
            raise FederationError(
                f"coreset_size must be at least the number of users, {len(parties)}, "
                f"got {self.coreset_size}"
            )
        if self.seed is not None:
            whose = "the sample" if horizontal else "all parties"
            log.warning(
                "the run has a seed: who knows it can compute the rows of %s", whose
            )
        log.info("model %016x", parties.session)
        if horizontal and len(parties) > 1:
            parties.refuse_two("FKKMeans", self.allow_two_parties)
        train = self._horizontal if horizontal else self._vertical
        return train(parties, run)

    def _subspace(self) -> Subspace:
        D, s, k = self.n_features, self.n_components, self.n_clusters
        D_1 = first_features(D, s) if self.threshold == "auto" else D
        return Subspace(D, D_1, s, k, self.threshold)

    def _ends(self, space: Subspace) -> bool:
        return space.t == self.iterations or space.still(self.subspace_tol)

    def _record(
        self,
        run: Run,
        parties: Parties,
        space: Subspace,
        gamma: float,
        products: int = 1,
    ) -> None:
        if not space.rank and len(space.values):
            raise FederationError(
                "threshold must be below the largest eigenvalue of the kernel matrix, "
                f"about {space.values[0]:g}, got {space.threshold:g}"
            )
        metrics = {"rank": space.rank, "products": products, "moved": space.moved}
        model = self._model(parties, run, space, gamma)
        run.record(space.t, model.to_record(), metrics)

    def _model(
        self, parties: Parties, run: Run, space: Subspace, gamma: float
    ) -> KernelKMeansModel:
        """Return the model as far as it is known."""
        columns = [party.n_columns for party in parties]
        return KernelKMeansModel(
            f"{parties.session:016x}",
            self.kernel,
            gamma,
            columns[0] if self.partition == "horizontal" else sum(columns),
            space.eigenvalues,
            np.zeros((0, 0)),
            math.nan,
            missing=run.missing,
        )

    def _finish(
        self,
        run: Run,
        model: KernelKMeansModel,
        space: Subspace,
        sizes: Array,
    ) -> ArrayRecord:
        record = model.to_record()
        metrics = {
            "inertia": model.inertia_,
            "iterations": space.t,
            "rank": space.rank,
            "moved": space.moved,
            "threshold": space.threshold,
            "gamma": model.gamma,
            "smallest_cluster": int(sizes.min()),
            "largest_cluster": int(sizes.max()),
        }
        if run.missing:
            metrics["missing"] = len(run.missing)
        run.record(space.t + 1, record, metrics)
        return record

    # -- split rows ------------------------------------------------------------------

    def _horizontal(self, parties: Parties, run: Run) -> ArrayRecord:
        setup, scale, each = self._begin(parties)
        space = self._subspace()
        setup |= {"D": space.D, "D_1": space.D_1}
        run.record(0, self._model(parties, run, space, setup["gamma"]).to_record())
        if self.cem:
            while not self._ends(space):
                self._iterate(parties, run, space, setup, scale, each)
            values: dict[str, Any] = {"R": space.embedding}
            each = [{} for _ in parties]
        else:
            H = self._without_cem(parties, run, space, setup, each)
            values = {}
            each = [{"H": own} for own in split_parts(parties, H)]
        costs = parties.ask_each(
            "kernel_kmeans_local", each, n_clusters=self.n_clusters, **values
        ).each("cost")
        shares = split_budget(np.array(costs), self.coreset_size)
        samples = parties.ask_each(
            "kernel_kmeans_sample", [{"count": int(share)} for share in shares]
        )
        points, weights = (
            np.concatenate(samples.each(n)) for n in ("points", "weights")
        )
        centers = combine(
            points, weights, self.n_clusters, run.rng("k-means"), self.n_init
        )
        found = parties.ask_exactly(
            "kernel_kmeans_assign",
            {"inertia": 4.0 * scale * parties.n_rows, "sizes": float(parties.n_rows)},
            centers=centers,
        )
        model = self._model(parties, run, space, float(setup["gamma"]))
        model.cluster_centers_ = centers
        model.inertia_ = float(found.sums["inertia"][0])
        model.kept = all(found.each("kept"))
        return self._finish(run, model, space, np.rint(found.sums["sizes"]))

    def _begin(
        self, parties: Parties
    ) -> tuple[dict[str, Any], float, list[dict[str, Any]]]:
        """Return the setup, the size of a squared feature, and each user's seed."""
        N, polynomial = parties.n_rows, self.kernel == "polynomial"
        auto = self.gamma == "auto"
        by_column = self.standardize or (auto and self.kernel == "laplacian")
        means = by_column or (auto and not polynomial)
        total = "total" if means or polynomial else ""
        wanted = {"means": means, "squares": "column" if by_column else total}
        reply, sum_x, squares = _sums(parties, wanted)
        shift, scaling = np.zeros(parties[0].n_columns), dict[str, Array]()
        if means:
            lost = (variances(N, sum_x, squares) == 0) & (squares > 0)
            if lost.any():  # constant, or far from 0 for their spread
                shift = np.where(lost, sum_x / N, 0.0)
                reply, sum_x, squares = _sums(parties, wanted, shift=shift)
        if self.standardize:
            deviation = np.sqrt(variances(N, sum_x, squares, shift))
            if left_out := np.flatnonzero(deviation == 0).tolist():
                log.warning(
                    "columns %s, counted from 0, take no part: they are constant, or "
                    "vary too little for their distance from 0",
                    ", ".join(map(str, left_out[:20])),
                )
            factor = 1 / np.where(deviation > 0, deviation, math.inf)
            scaling = {"shift": shift + sum_x / N, "scale": factor}
            sum_x, squares, shift = 0.0 * sum_x, N * (deviation > 0), 0.0 * shift
        gamma = self.gamma
        if auto:
            try:
                gamma = default_gamma(self.kernel, N, sum_x, squares, shift)
            except ValueError as error:
                raise FederationError(str(error)) from None
            _check_spread(float(squares.sum()))
        setup: dict[str, Any] = {
            "kernel": self.kernel,
            "gamma": float(gamma),
            "degree": self.degree,
            "offset": float(self.offset),
            **scaling,
        }
        # A squared cosine feature is at most 2; of products the mean is known.
        scale = 2.0
        if polynomial:
            mean = self.offset + setup["gamma"] * float(squares.sum() / N)
            scale = 16 * _mean_power(mean, self.degree)
        seeds = parties.passed_on(0, "kernel_kmeans_begin", "seed", reply)
        return setup, scale, seeds

    def _iterate(
        self,
        parties: Parties,
        run: Run,
        space: Subspace,
        setup: dict[str, Any],
        scale: float,
        each: list[dict[str, Any]],
    ) -> None:
        """Lines 6 to 15 for one t."""
        first = space.t == 0
        values: Values = {"t": space.t + 1, **(setup if first else {"R": space.R})}
        seeds = each if first else None
        diagonal = space.next_eta * scale * parties.n_rows + space.mass
        if self.eigensolver == "gram":
            triangle = parties.ask_exactly(
                "kernel_kmeans_gram", {"gram": diagonal}, seeds, **values
            ).sums["gram"]
            size = space.next_size
            G = np.zeros((size, size))
            G[np.triu_indices(size)] = triangle
            G += np.triu(G, 1).T
            space.step(*eigenpairs(G, *space.wanted), G.trace())
            self._record(run, parties, space, setup["gamma"])
            return
        asked: Values | None = values
        trace = math.nan
        traced = first and self.threshold == "auto"

        def multiply(C: Array) -> Array:
            nonlocal asked, trace
            sums = {"product": diagonal}
            if asked and traced:
                sums["trace"] = diagonal
            found = parties.ask_exactly(
                "kernel_kmeans_product",
                sums,
                seeds if asked else None,
                vectors=C,
                **(asked or {}),
                **({"trace_wanted": True} if asked and traced else {}),
            ).sums
            if asked and traced:
                trace = float(found["trace"][0])
            asked = None
            return found["product"]

        width = 1 if self.eigensolver == "lanczos" else self.block_size
        size = space.next_size
        rng = run.rng(f"lanczos {space.t + 1}")
        start = rng.standard_normal((size, min(width, size)))
        cut, least = space.wanted
        found = block_lanczos(multiply, start, cut, rng=rng, at_least=least)
        space.step(found.values, found.vectors, trace)
        self._record(run, parties, space, setup["gamma"], found.steps)

    def _without_cem(
        self,
        parties: Parties,
        run: Run,
        space: Subspace,
        setup: dict[str, Any],
        each: list[dict[str, Any]],
    ) -> Array:
        """Section 4.1 for all t; return H."""
        N = parties.n_rows
        B, rows = np.zeros((N, 0)), _RowLanczos(parties, each, setup)
        while not self._ends(space):
            rng = run.rng(f"lanczos {space.t + 1}")
            cut, least = space.wanted
            found = lanczos(
                partial(rows.product, space, B),
                rng.standard_normal(N),
                cut,
                rng=rng,
                at_least=least,
            )
            # W_t^T u_i / sqrt(lambda_i) are the v_i: here are those of B_t, and what
            # `movement` needs no more of. The trace of A A^T / D is N in the mean.
            count = above_rounding(found.values, N)
            values, U = found.values[:count], found.vectors[:, :count]
            V_B = math.sqrt(1 - space.next_eta) * (B.T @ U)
            space.step(values, V_B / np.sqrt(values), float(N))
            self._record(run, parties, space, setup["gamma"], found.steps)
            U = U[:, : len(space.values)]  # the step takes more for rounding
            B = U[:, : space.rank] * np.sqrt(space.lengths)
        return np.asarray(U[:, : space.s] * np.sqrt(space.eigenvalues))

    # -- split columns ---------------------------------------------------------------

    def _vertical(self, parties: Parties, run: Run) -> ArrayRecord:
        gamma = self.gamma if self.gamma != "auto" else self._spread(parties)
        space = self._subspace()
        run.record(0, self._model(parties, run, space, float(gamma)).to_record())
        angles = _AngleColumns(self, parties, float(gamma))
        last = space.D_1 + (self.iterations - 1) * space.D
        B = np.zeros((parties.n_rows, 0))
        while True:
            A = features(angles.take(space.next_size - space.rank, last))
            W = stack(A, B, space.next_eta)
            G = W.T @ W
            space.step(*eigenpairs(G, *space.wanted), G.trace())
            self._record(run, parties, space, float(gamma))
            if self._ends(space):
                break
            B = W @ space.R
        H = W @ space.embedding
        ones = np.ones(len(H))
        centers, inertia = weighted_kmeans(
            H, self.n_clusters, ones, run.rng("k-means"), self.n_init
        )
        centers = first_of_equals(centers)
        labels = assign(H, centers)[0].astype(np.int32)
        kept = parties.ask("kernel_kmeans_labels", labels=labels).each("kept")
        model = self._model(parties, run, space, float(gamma))
        model.cluster_centers_, model.inertia_ = centers, inertia
        model.kept = all(kept)
        sizes = np.bincount(labels, minlength=self.n_clusters)
        return self._finish(run, model, space, sizes)

    def _spread(self, parties: Parties) -> float:
        limbs = parties.secure_sum(
            "kernel_kmeans_spread", {"spread": LIMB}, kernel=self.kernel
        )
        spread = float(join_limbs(limbs["spread"])[0])
        if spread <= 0:
            raise FederationError("gamma 'auto' needs a column that varies")
        _check_spread(spread)
        if self.kernel == "gaussian":
            return float(1 / (4 * spread))
        return float(math.sqrt(math.pi) / (2 * spread))


def _sums(
    parties: Parties, wanted: dict[str, Any], **shift: Array
) -> tuple[dict[str, Any], Array, Array]:
    """Return the first user's reply, and the sums of columns and squares or zeros."""
    names = {"sum_x": wanted["means"], "sum_squares": wanted["squares"]}
    asked = {name: LIMB for name, used in names.items() if used}
    found = parties.ask("kernel_kmeans_begin", sums=asked, **wanted, **shift)
    sum_x, sum_squares = (
        join_limbs(found.sums[name]) if name in asked else np.zeros(1) for name in names
    )
    return found[0], sum_x, sum_squares


def _mean_power(mean: float, degree: int) -> float:
    """Return mean^degree, the size of the polynomial kernel, where float64 has it."""
    exponent = degree * math.log10(mean) if mean > 0 else -math.inf
    if not -200 < exponent < 200:
        size = f"10^{exponent:.4g}" if mean > 0 else "0"
        raise FederationError(
            "the polynomial kernel must be between 1e-200 and 1e200 in the mean, got "
            f"{size}: choose another gamma, degree or offset"
        )
    return float(mean**degree)


def _check_spread(total: float) -> None:
    """Raise where sums, which are cut off at 2^-80, have lost their digits."""
    if total < 2.0**-50:
        raise FederationError(
            "gamma 'auto' needs columns whose squares add up to 1e-15 at least: scale "
            "the columns"
        )


class _RowLanczos:
    """Products with R_t of all N rows, for Lanczos without the mechanism.

    R_t = (1 - eta_t) Z_t + eta_t A_t A_t^T / D (section 4.1 of [1]). The server holds
    the eigenvectors of Z_t; a product is two round trips, of D floats from each user
    and of N floats from all.
    """

    def __init__(
        self, parties: Parties, seeds: list[dict[str, Any]], setup: dict[str, Any]
    ) -> None:
        self.parties, self.seeds, self.setup = parties, seeds, setup

    def product(self, space: Subspace, B: Array, c: Array) -> Array:
        """Return R_{t+1} c; `B` is B_{t+1}."""
        each = [{"c": part} for part in split_parts(self.parties, c)]
        if self.seeds:
            each = [own | seed for own, seed in zip(each, self.seeds, strict=True)]
        g = self.parties.secure_sum(
            "kernel_kmeans_project",
            {"projected": 2.0 * math.sqrt(self.parties.n_rows)},
            each,
            t=space.t + 1,
            **self.setup,
        )["projected"]
        self.seeds, self.setup = [], {}
        rows = self.parties.ask("kernel_kmeans_expand", g=g).each("rows")
        D = space.D if space.t else space.D_1
        eta = space.next_eta
        kept = (1 - eta) * (B @ (B.T @ c))
        return np.asarray(kept + eta / D * np.concatenate(rows))


def split_parts(parties: Parties, rows: Array) -> list[Array]:
    """Cut what is known of all rows into the parts of the users."""
    ends = np.cumsum([party.n_rows for party in parties])
    return np.split(rows, ends[:-1])


class _AngleColumns:
    """Angles of all rows, feature by feature, in as few messages as hold them."""

    def __init__(self, strategy: FKKMeans, parties: Parties, gamma: float) -> None:
        plain = strategy.masking == "plain"
        bits = 64 if plain else strategy.bits
        self.parties = parties
        self.sum = Sum(2.0**60, "plain") if plain else Sum(1.0, f"circle{bits}")
        self.settings = {"kernel": strategy.kernel, "gamma": gamma, "bits": bits}
        self.size = max(1, strategy.block_bytes * 8 // (bits * parties.n_rows))
        self.asked, dtype = 0, np.dtype(f"u{bits // 8}" if bits < 64 else "f8")
        self.found = np.zeros((parties.n_rows, 0), dtype)

    def take(self, count: int, last: int) -> Array:
        """Return the angles of the next features; of `last` the run will ask at all."""
        while self.found.shape[1] < count:
            stop = min(self.asked + self.size, last)
            more = self.parties.ask(
                "kernel_kmeans_angles",
                sums={"angles": self.sum},
                start=self.asked,
                stop=stop,
                **self.settings,
            ).sums["angles"]
            self.asked, self.found = stop, np.hstack([self.found, more])
        found, self.found = self.found[:, :count], self.found[:, count:]
        return found
