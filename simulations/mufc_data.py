"""The data of the MUFC experiments: rows that parties hold, read or generated.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulations.experiments import load_npz
from vfl_flower import Party
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign, weighted_kmeans
from vfl_flower.typing import Array

LOWER = -0.5
"""Lower bound of the cube into which all data are scaled."""

PARTIES = 100


@dataclass(frozen=True)
class SplitRows:
    """A data set that is split over parties by rows.

    Attributes
    ----------
    name, note : str
        Title, and how the data were made.
    rows : list of Array, shapes (n^(l), d)
        Rows of each party, in the box.
    k : int
        K.
    best : float
        phi_c*, the lowest cost of pooled k-means.
    n_init : int
        Starts of k-means, pooled and at the server.
    published : dict
        Loss ratio of each method that [1] prints; none for a stand-in.
    seeds : int
        Largest number of seeds.
    """

    name: str
    note: str
    rows: list[Array]
    k: int
    best: float
    n_init: int = 10
    published: Mapping[str, float] | None = None
    seeds: int = 1000

    @property
    def n(self) -> int:
        """Rows of all parties."""
        return sum(map(len, self.rows))

    @property
    def d(self) -> int:
        """Columns."""
        return int(self.rows[0].shape[1])

    def parties(self, folder: Path | None = None) -> list[Party]:
        """Return the parties, with ids and with state folders in `folder`."""
        return [
            Party(
                X,
                ids=np.arange(len(X)),
                name=f"party-{m}",
                state_dir=folder and folder / f"party-{m}",
            )
            for m, X in enumerate(self.rows)
        ]


def split_clusters(
    labels: Array, n_parties: int, k_prime: int, rng: np.random.Generator
) -> list[Array]:
    """Split rows so that a party has few clusters, as [1] does (Appendix M.1).

    Each party but the last has about n / L rows: random numbers of rows from `k_prime`
    random clusters that still have some. The last party takes the rest.

    Parameters
    ----------
    labels : Array of int, shape (n,)
        Cluster of each row.
    n_parties : int
        L.
    k_prime : int
        K', at most the number of clusters.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    list of Array of int
        Row numbers of each party; each has at least one.

    Raises
    ------
    ValueError
        There are fewer than two rows for each party.
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
    """Estimate phi_c*: the lowest cost of several pooled runs of k-means++.

    Parameters
    ----------
    X : Array, shape (n, d)
        The rows of all parties.
    k : int
        K.
    rng : numpy.random.Generator
        Source of the starts.
    n_init : int
        Number of starts.

    Returns
    -------
    float
        sum_i min_l |x_i - c_l|^2, in the unit of the rows squared.
    """
    return weighted_kmeans(X, k, np.ones(len(X)), rng, n_init)[1]


def pooled(
    name: str,
    note: str,
    X: Array,
    k: int,
    *,
    n_parties: int = PARTIES,
    k_prime: int = 0,
    n_init: int = 10,
    starts: int = 0,
    **more: Any,
) -> SplitRows:
    """Scale rows into the box, and split them by the clusters of pooled k-means.

    Parameters
    ----------
    name, note, k, n_init, **more
        As for :class:`SplitRows`.
    X : Array, shape (n, d)
        Rows; they are divided by twice their largest absolute value.
    n_parties : int
        L.
    k_prime : int
        K'; 0: sqrt(K), rounded.
    starts : int
        Starts of the pooled k-means; 0: `n_init`.
    """
    X = X / (2 * np.abs(X).max())
    rng = np.random.default_rng(0)
    centers, best = weighted_kmeans(X, k, np.ones(len(X)), rng, starts or n_init)
    labels = np.concatenate([assign(block, centers)[0] for block in RowBlocks(X)])
    k_prime = k_prime or round(math.sqrt(k))
    parts = split_clusters(labels, n_parties, k_prime, rng)
    note += f"; {n_parties} parties with K' = {k_prime} clusters each"
    return SplitRows(name, note, [X[rows] for rows in parts], k, best, n_init, **more)


def mixture(sizes: Sequence[int], d: int, rng: np.random.Generator) -> Array:
    """Draw spherical clusters of variance 0.5 about uniform points of [0, 1]^d.

    Parameters
    ----------
    sizes : sequence of int
        Rows of each cluster.
    d : int
        Columns.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    Array, shape (n, d)
        The rows, cluster by cluster.
    """
    centers = np.repeat(rng.random((len(sizes), d)), sizes, axis=0)
    return centers + rng.normal(0, math.sqrt(0.5), centers.shape)


def _printed(*ratios: float) -> dict[str, float]:
    return dict(zip(("MUFC", "MUFC, complete", "K-FED", "DC-KM"), ratios, strict=True))


def celltype(folder: Path | None, quick: bool) -> SplitRows:
    """Return the authors' own file, with their split."""
    X, _ = load_npz(folder, "celltype")
    assert folder is not None
    with np.load(folder / "celltype.npz", allow_pickle=False) as file:
        X = file.get("X64", X) + LOWER
        group = file["group"]
    best = best_cost(X, 4, np.random.default_rng(0), 20)
    rows = [X[group == g] for g in np.unique(group)]
    note = f"the authors' file with its {len(rows)} parties"
    return SplitRows(
        "celltype", note, rows, 4, best, published=_printed(1.14, 1.03, 1.72, 1.46)
    )


def gaussian(folder: Path | None, quick: bool, k_prime: int = 3) -> SplitRows:
    """Return ten clusters of 3,000 rows in ten columns, made as in [1]."""
    X = mixture([100 if quick else 3000] * 10, 10, np.random.default_rng(0))
    note = "generated as in the paper: ten centres uniform in the cube, variance 0.5"
    published = _printed(1.25, 1.02, 1.25, 1.02)
    return pooled("gaussian", note, X, 10, k_prime=k_prime, published=published)


def covtype(folder: Path | None, quick: bool) -> SplitRows:
    """Return the subset of covtype that [1] takes, without its constant columns."""
    X, _ = load_npz(folder, "covtype15k")
    X = X[:, np.ptp(X, axis=0) > 0]
    X = X[::10] if quick else X
    published = _printed(1.03, 1.02, 1.60, 1.03)
    note = "raw columns over their common largest value"
    return pooled("covtype15k", note, X, 7, published=published)


def mnist(folder: Path | None, quick: bool, k: int = 10) -> SplitRows:
    """Return as many rows of MNIST as [1] has of FEMNIST."""
    X, _ = load_npz(folder, "mnist")
    X = X[: 1000 if quick else 36_725]
    note = "in the place of FEMNIST, which has 62 classes and a split of its own"
    return pooled(f"mnist, K = {k}", note, X, k, n_init=3, seeds=3)


def _stand_in(
    name: str, sizes: Sequence[int], d: int, n_parties: int
) -> Callable[[Path | None, bool], SplitRows]:
    def load(folder: Path | None, quick: bool) -> SplitRows:
        drawn = [max(10, size // 20) for size in sizes] if quick else sizes
        X = mixture(drawn, d, np.random.default_rng(1))
        note = (
            f"GENERATED, not {name}: clusters like those of gaussian, with n, d, K and "
            f"the sizes of {name}"
        )
        return pooled(
            f"{name} (generated)",
            note,
            X,
            len(sizes),
            n_parties=n_parties,
            starts=30,
            seeds=5,
        )

    return load


DATASETS: dict[str, Callable[[Path | None, bool], SplitRows]] = {
    "celltype": celltype,
    "gaussian": gaussian,
    "covtype15k": covtype,
    "tmi": _stand_in("TMI", (934, 125, 46, 21), 984, 10),
    "tcga": _stand_in("TCGA", (735, 503, 390, 276), 57, 10),
    "postures": _stand_in("Postures", (19772, 17340, 15141, 12225, 10497), 15, PARTIES),
    "mnist": mnist,
    "mnist62": lambda folder, quick: mnist(folder, quick, 62),
}
