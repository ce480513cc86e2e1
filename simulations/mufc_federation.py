"""Data of the MUFC experiments, and the methods' numerics without messages.

A run of 100 parties in one process takes seconds, nearly all for keys and messages.
:class:`Numerics` calls the same numerics without keys and messages. With the same seed
it gives exactly the centres of a run, as a test checks for both forms of MUFC.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
[2] D. K. Dennis, T. Li and V. Smith, "Heterogeneity for the win: one-shot federated
    clustering", ICML 2021.
[3] A. Ginart, M. Guan, G. Valiant and J. Zou, "Making AI forget you: data deletion in
    machine learning", NeurIPS 2019.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from simulations.experiments import load_npz
from vfl_flower import Party
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign, lloyd, weighted_kmeans
from vfl_flower.numerics.mufc import (
    Box,
    Quantizer,
    contributions,
    induced_labels,
    local_clusters,
    local_labels,
    merge_small,
    seed_centroids,
    server_centroids,
    server_points,
    surviving,
)
from vfl_flower.server.strategy import Run
from vfl_flower.typing import Array

# --- Data ---------------------------------------------------------------------------

CUBE = Box(np.array(-0.5), np.array(0.5))
"""The box of all data sets."""

PARTIES = 100

STAND_INS: dict[str, tuple[str, tuple[int, ...], int, int]] = {
    "tcga": ("TCGA", (735, 503, 390, 276), 57, 10),
    "postures": ("Postures", (19772, 17340, 15141, 12225, 10497), 15, PARTIES),
}
"""Sets of [1] that we do not have: title, sizes of the clusters, columns, parties."""


@dataclass(frozen=True)
class SplitRows:
    """A data set that is split over parties by rows.

    `rows` has the rows of each party, (n^(l), d), in the box; `k` is K, and `best` is
    phi_c*, the lowest cost of pooled k-means. `published` has the loss ratios that [1]
    prints, and `others`, (n', d), are rows that take no part. `spread` returns the same
    rows with K' of the clusters at each party.
    """

    name: str
    rows: list[Array]
    k: int
    best: float
    published: Mapping[str, float] | None = None
    others: Array | None = None
    spread: Callable[[int], SplitRows] | None = None

    @property
    def n(self) -> int:
        """Number of rows of all parties."""
        return sum(map(len, self.rows))

    @property
    def d(self) -> int:
        """Number of columns."""
        return int(self.rows[0].shape[1])


def split_clusters(
    labels: Array, n_parties: int, k_prime: int, rng: np.random.Generator
) -> list[Array]:
    """Split rows so that a party has few clusters, as [1] does (Appendix M.1).

    Each party but the last has about n / L rows: random numbers of rows from K' random
    clusters that still have rows. The last party gets the rest. Raises ValueError for
    fewer than two rows per party.
    """
    if len(labels) < 2 * n_parties:
        raise ValueError(f"{n_parties} parties need two rows each, got {len(labels)}")
    size = len(labels) // n_parties
    unassigned = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    split = []
    for _ in range(n_parties - 1):
        rows_of_party: list[Array] = []
        clusters = [c for c, rows in enumerate(unassigned) if len(rows)]
        missing = size
        for c in rng.permutation(clusters)[:k_prime]:
            count = int(rng.integers(max(1, size // k_prime), size + 1))
            count = min(count, missing)
            rows_of_party.append(unassigned[c][:count])
            unassigned[c] = unassigned[c][count:]
            missing -= len(rows_of_party[-1])
        split.append(np.concatenate(rows_of_party))
    return [*split, np.concatenate(unassigned)]


def best_cost(X: Array, k: int, rng: np.random.Generator, n_init: int = 10) -> float:
    """Estimate phi_c*: the lowest cost of several pooled runs of k-means++."""
    return weighted_kmeans(X, k, np.ones(len(X)), rng, n_init)[1]


def pooled(
    name: str,
    X: Array,
    k: int,
    *,
    n_parties: int = PARTIES,
    k_prime: int = 0,
    starts: int = 10,
    published: Mapping[str, float] | None = None,
    spread: Callable[[int], SplitRows] | None = None,
) -> SplitRows:
    """Scale rows into the box, and split them by the clusters of pooled k-means.

    The rows are divided by twice their largest absolute value; K' is sqrt(K), rounded,
    if `k_prime` is 0.
    """
    X = X / (2 * np.abs(X).max())
    rng = np.random.default_rng(0)
    centers, best = weighted_kmeans(X, k, np.ones(len(X)), rng, starts)
    labels = np.concatenate([assign(block, centers)[0] for block in RowBlocks(X)])
    parts = split_clusters(labels, n_parties, k_prime or round(math.sqrt(k)), rng)
    rows = [X[part] for part in parts]
    return SplitRows(name, rows, k, best, published, spread=spread)


def mixture(sizes: Sequence[int], d: int, rng: np.random.Generator) -> Array:
    """Draw spherical clusters of variance 0.5 about uniform points of [0, 1]^d."""
    centers = np.repeat(rng.random((len(sizes), d)), sizes, axis=0)
    return centers + rng.normal(0, math.sqrt(0.5), centers.shape)


def _printed(*ratios: float) -> dict[str, float]:
    return dict(zip(("MUFC", "MUFC, complete", "K-FED", "DC-KM"), ratios, strict=True))


def _authors_file(folder: Path | None) -> tuple[Array, Array, Array]:
    """Return celltype's rows in float32 and float64, in the box, and their parties."""
    X, _ = load_npz(folder, "celltype")
    assert folder is not None
    with np.load(folder / "celltype.npz", allow_pickle=False) as file:
        return X - 0.5, file.get("X64", X) - 0.5, file["group"]


def celltype(folder: Path | None, quick: bool) -> SplitRows:
    """Return the data of the authors' file, with their split."""
    _, X, group = _authors_file(folder)
    best = best_cost(X, 4, np.random.default_rng(0), 20)
    rows = [X[group == g] for g in np.unique(group)]
    return SplitRows("celltype", rows, 4, best, _printed(1.14, 1.03, 1.72, 1.46))


def gaussian(folder: Path | None, quick: bool, k_prime: int = 3) -> SplitRows:
    """Return ten clusters of 3,000 rows in ten columns, made as in [1]."""
    X = mixture([100 if quick else 3000] * 10, 10, np.random.default_rng(0))
    return pooled(
        "gaussian",
        X,
        10,
        n_parties=10 if quick else PARTIES,
        k_prime=k_prime,
        published=_printed(1.25, 1.02, 1.25, 1.02),
        spread=partial(gaussian, folder, quick),
    )


def covtype(folder: Path | None, quick: bool) -> SplitRows:
    """Return the subset of covtype in [1], without its constant columns."""
    X, _ = load_npz(folder, "covtype15k")
    X = X[:: 10 if quick else 1, np.ptp(X, axis=0) > 0]
    return pooled("covtype15k", X, 7, published=_printed(1.03, 1.02, 1.60, 1.03))


def stand_in(name: str, folder: Path | None, quick: bool) -> SplitRows:
    """Return clusters as in `gaussian`, with n, d, K and sizes of another set."""
    title, sizes, d, n_parties = STAND_INS[name]
    drawn = [max(10, size // 20) for size in sizes] if quick else sizes
    X = mixture(drawn, d, np.random.default_rng(1))
    title = f"{title} (generated)"
    return pooled(title, X, len(sizes), n_parties=n_parties, starts=30)


def apart(
    name: str, X: Array, k: int, n_parties: int = 4, group: Array | None = None
) -> SplitRows:
    """Take a quarter of the rows out, at most 20,000, and split the rest at random.

    `group`, (n,), has the parties of the rows if these are not random.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(len(X))
    others, stay = np.split(order, [min(len(X) // 4, 20_000)])
    if group is None:
        parts = np.array_split(stay, n_parties)
    else:
        parts = [stay[group[stay] == g] for g in np.unique(group)]
    rows, best = [X[part] for part in parts], best_cost(X[stay], k, rng)
    return SplitRows(name, rows, k, best, others=X[others])


def by_range(X: Array, common: bool = False) -> Array:
    """Scale columns into the cube, each by its range or all by a common range."""
    low, high = X.min(axis=0), X.max(axis=0)
    if common:
        low, high = low.min(), high.max()
    scaled = (X - low) / np.where(high > low, high - low, 1) - 0.5
    return np.asarray(np.clip(scaled, -0.5, 0.5))


def candidates(name: str, folder: Path | None, quick: bool) -> SplitRows:
    """Return a set of which a quarter of the rows takes no part."""
    if name == "digits":
        return apart(name, load_digits().data / 16 - 0.5, 10)
    if name == "postures":
        X = mixture(STAND_INS[name][1], 15, np.random.default_rng(1))
        return apart("postures (generated)", X / (2 * np.abs(X).max()), 5)
    if name == "small":
        rng = np.random.default_rng(0)
        middles = rng.uniform(-0.35, 0.35, size=(4, 3))[rng.integers(4, size=1600)]
        X = middles + rng.uniform(-0.08, 0.08, size=(1600, 3))
        return apart("small parties (generated)", X, 4, n_parties=20)
    if name.startswith("celltype"):
        X, _, group = _authors_file(folder)
        if name == "celltype":
            return apart(name, X, 4)
        return apart("celltype, 100 parties", X, 4, group=group)
    X, _ = load_npz(folder, name)
    wide = name == "covtype15k"
    return apart(name, by_range(X, common=wide), 7 if wide else 5)


# --- Other methods ------------------------------------------------------------------


def kfed_centroids(centroids: Sequence[Array], k: int) -> Array:
    """Cluster the local centroids, (k', d) each, as K-FED does (Algorithm 2 of [2]).

    The first centres are the centroids of the first party that has any; then the
    centroid farthest from all centres is added until there are k centres. One step of
    Lloyd's iteration follows. There are fewer than k centres if fewer centroids are
    distinct.
    """
    points = np.concatenate(centroids)
    first = next(local for local in centroids if len(local))
    centers = np.unique(first, axis=0)[:k]
    while len(centers) < k:
        distances = assign(points, centers)[1]
        if not distances.any():
            break
        centers = np.vstack([centers, points[distances.argmax()]])
    return lloyd(RowBlocks(points), centers, max_iter=1)


def dckm_centroids(points: Array, k: int, rng: np.random.Generator) -> Array:
    """Cluster all local centroids as the root of DC-k-means does (Algorithm 4 of [3]).

    The tree has two levels, with the parties as its leaves; each centroid has weight 1.
    """
    return server_centroids(points, np.ones(len(points)), k, rng, 10)


# --- The numerics without messages --------------------------------------------------

METHODS = {
    "MUFC": ("init", "uniform"),
    "MUFC, weighted bins": ("init", "weighted"),
    "MUFC, complete": ("full", "uniform"),
    "K-FED": ("full", "k-fed"),
    "DC-KM": ("full", "dc-km"),
}
"""How a party trains, and what the server clusters."""


class Numerics:
    """The computations of a run's parties and server, with the draws of a seed.

    `gamma` is the quantisation step (default: 1 / sqrt(n)), `local_clusters` is K', the
    maximum number of centroids of a party (0: K), and `min_rows` is the minimum number
    of rows of a local cluster that is counted. After training `centers` are C_s, (K,
    d). For each party, `stay` says which rows were not removed, (n^(l),), `drawn` has
    the rows of its centroids in the order drawn, and `sizes` has the clusters' numbers
    of rows, (k',); `centroids`, (k'', d), and `counts`, (k'',), are its contribution to
    the sum.
    """

    def __init__(
        self,
        data: SplitRows,
        method: str = "MUFC",
        seed: int = 0,
        *,
        gamma: float | None = None,
        local_clusters: int = 0,
        min_rows: int = 1,
    ) -> None:
        training, self._server = METHODS[method]
        self._full, self._oneshot = training == "full", "-" in self._server
        self.data, self._seed = data, seed
        self._local, self._least = local_clusters or data.k, min_rows
        self.quantizer = Quantizer(gamma or 1 / math.sqrt(data.n))
        self._parties = [Party(X, index=m) for m, X in enumerate(data.rows)]
        for party in self._parties:
            party.seed = seed
        self.stay = [np.ones(len(X), dtype=bool) for X in data.rows]
        nobody = np.zeros(0, dtype=np.int64)
        self.drawn, self.sizes = [nobody] * len(data.rows), [nobody] * len(data.rows)
        self.counts = [nobody] * len(data.rows)
        self.centroids = [np.zeros((0, data.d))] * len(data.rows)
        self._changes = 0
        self._costs: dict[int, Array] = {}

    def train(self) -> tuple[float, float]:
        """Train on the rows that stay; return seconds of the slowest party and server.

        Parties work at the same time, so only the slowest party counts.
        """
        slowest = 0.0
        for m in range(len(self.stay)):
            start = time.process_time()
            self._draw(m, "centroids")
            slowest = max(slowest, time.process_time() - start)
        return slowest, self.cluster()

    def remove(
        self, m: int, rows: Array, lazy: bool = True, server: bool = True
    ) -> tuple[float, float, bool]:
        """Remove rows of party m (Algorithms 3 and 4); a baseline retrains the party.

        With `lazy` C_s stays the same if no centroid is removed, as in [1]; otherwise
        the counts are sent again and the server clusters again. `server=False` leaves
        C_s unchanged. Returns seconds of party and server, and whether a centroid was
        redrawn.
        """
        start = time.process_time()
        self.stay[m][rows] = False
        drawn = self.drawn[m]
        prefix = drawn[:0] if self._oneshot else surviving(drawn, rows)
        redrawn = len(prefix) < len(drawn)
        if again := redrawn or self._full:
            self._changes += 1
        if redrawn:
            self._draw(m, f"redraw {self._changes}", prefix)
        else:
            X = self.data.rows[m]
            removed = local_labels(X[rows], X[drawn])
            self.sizes[m] = self.sizes[m] - np.bincount(removed, minlength=len(drawn))
            self._count(m)
        seconds = time.process_time() - start
        waits = self.cluster() if server and (again or not lazy) else 0.0
        if m in self._costs:
            self._costs[m][rows] = 0
        return seconds, waits, redrawn

    def add(self, m: int, rows: Array) -> tuple[float, float, bool]:
        """Add rows of party m that took no part so far; return as `remove` does."""
        start, before = time.process_time(), self.drawn[m]
        new = np.zeros(len(self.stay[m]), dtype=bool)
        new[rows] = True
        self.stay[m] = self.stay[m] | new
        self._changes += 1
        self._draw(m, f"add {self._changes}", before, new)
        slowest = time.process_time() - start
        for other in range(len(self.stay)) if self._full else ():
            start = time.process_time()  # a party computes its means in each run
            self._count(other)
            slowest = max(slowest, time.process_time() - start)
        return slowest, self.cluster(), not np.array_equal(before, self.drawn[m])

    def loss(self) -> tuple[float, float]:
        """Return the objective with induced clusters, and with the nearest centres."""
        parties = range(len(self.stay))
        nearest = (
            np.concatenate([assign(b, self.centers)[1] for b in self._blocks(m)[0]])
            for m in parties
            if self.stay[m].any()
        )
        return (
            sum(float(self.costs(m).sum()) for m in parties),
            sum(float(costs.sum()) for costs in nearest),
        )

    def costs(self, m: int) -> Array:
        """Return each row's contribution to phi_f at a party, 0 for removed rows."""
        if m not in self._costs:
            blocks, places = self._blocks(m)
            labels = induced_labels(
                *local_clusters(blocks, places, self._full, self._least), self.centers
            )
            self._costs[m] = np.zeros(len(self.stay[m]))
            self._costs[m][self.stay[m]] = contributions(blocks, self.centers, labels)
        return self._costs[m]

    def worst(self, count: int) -> tuple[int, Array]:
        """Return the party with the costliest row, and its `count` costliest rows."""
        m = max(range(len(self.stay)), key=lambda m: float(self.costs(m).max()))
        rows = np.argsort(-self.costs(m), kind="stable")[:count]
        return m, rows[self.stay[m][rows]]

    def ratio(self) -> float:
        """Return the induced over the best pooled objective, of the rows that stay."""
        pairs = zip(self.data.rows, self.stay, strict=True)
        rows = np.concatenate([X[stay] for X, stay in pairs])
        return self.loss()[0] / best_cost(rows, self.data.k, np.random.default_rng(0))

    def summed(self) -> tuple[Array, Array]:
        """Return the bins and counts that the server learns."""
        return self.quantizer.count(
            np.concatenate(self.centroids), np.concatenate(self.counts)
        )

    def cluster(self) -> float:
        """Set C_s; return the seconds taken."""
        start = time.process_time()
        k, rng = self.data.k, Run(self._seed).rng("k-means")
        if self._server == "k-fed":
            self.centers = kfed_centroids(self.centroids, k)
        elif self._server == "dc-km":
            self.centers = dckm_centroids(np.concatenate(self.centroids), k, rng)
        else:
            bins, q = self.summed()
            points = server_points(self.quantizer, bins, q, rng, self._server)
            self.centers = server_centroids(*points, k, rng, 10)
        self._costs.clear()
        return time.process_time() - start

    def _draw(
        self,
        m: int,
        stream: str,
        prefix: Array | None = None,
        added: Array | None = None,
    ) -> None:
        """Draw the centroids of a party after the prefix of centroids that stay."""
        X, rng = self.data.rows[m], self._parties[m].rng(stream)
        self.drawn[m], self.sizes[m] = seed_centroids(
            X, CUBE, self._local, rng, self.stay[m], prefix, added
        )
        self._count(m)

    def _count(self, m: int) -> None:
        """Set the contribution of a party to the sum."""
        if self._full:
            blocks, places = self._blocks(m)
            self.centroids[m], labels = local_clusters(
                blocks, places, True, self._least
            )
            self.counts[m] = np.bincount(labels, minlength=len(self.centroids[m]))
        else:
            drawn = self.data.rows[m][self.drawn[m]]
            remain, self.counts[m], _ = merge_small(drawn, self.sizes[m], self._least)
            self.centroids[m] = drawn[remain]

    def _blocks(self, m: int) -> tuple[RowBlocks, Array]:
        """Return a party's remaining rows, and the places of centroids among them."""
        rows = np.flatnonzero(self.stay[m])
        blocks = RowBlocks(self.data.rows[m], rows=rows)
        return blocks, np.searchsorted(rows, self.drawn[m])
