"""One-shot federated clusterings that MUFC is compared with, on the same frame.

Both take the clients' step of :class:`~vfl_flower.strategies.MUFC` with complete
training, and differ at the server: it gives each centroid the weight 1, however many
rows it stands for. They keep no state, so they cannot forget.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
[2] D. K. Dennis, T. Li and V. Smith, "Heterogeneity for the win: one-shot federated
    clustering", ICML 2021.
[3] A. Ginart, M. Guan, G. Valiant and J. Zou, "Making AI forget you: data deletion in
    machine learning", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign, lloyd
from vfl_flower.numerics.mufc import Quantizer, server_centroids
from vfl_flower.strategies.base import Run
from vfl_flower.strategies.mufc import MUFC, Bounds
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Replies
from vfl_flower.typing import Array


def kfed_centroids(centroids: Sequence[Array], k: int) -> Array:
    """Cluster local centroids as K-FED does (Algorithm 2 of [2]).

    It begins with the centroids of the first client and adds the one farthest from all
    it has until there are k; then comes one step of Lloyd's iteration.

    Parameters
    ----------
    centroids : sequence of Array, shapes (k', d)
        C^(l) of each client.
    k : int
        K.

    Returns
    -------
    Array, shape (K', d)
        C_s; K' < K where fewer centroids are distinct.

    Examples
    --------
    >>> kfed_centroids([np.array([[0.0]]), np.array([[1.0], [9.0]])], 2)
    array([[0.5],
           [9. ]])
    """
    points = np.concatenate(centroids)
    centers = np.unique(next(own for own in centroids if len(own)), axis=0)[:k]
    while len(centers) < k:
        distances = assign(points, centers)[1]
        if not distances.any():
            break
        centers = np.vstack([centers, points[distances.argmax()]])
    return lloyd(RowBlocks(points), centers, max_iter=1)


def dckm_centroids(
    points: Array, k: int, rng: np.random.Generator, n_init: int = 10
) -> Array:
    """Cluster local centroids as the root of DC-k-means does (Algorithm 4 of [3]).

    The tree has two levels: clients are the leaves.

    Parameters
    ----------
    points : Array, shape (m, d)
        The centroids of all clients, exact or the middles of their bins.
    k : int
        K.
    rng : numpy.random.Generator
        Source of the starts.
    n_init : int
        Number of starts.

    Returns
    -------
    Array, shape (K', d)
        C_s; K' < K where fewer centroids are distinct.
    """
    return server_centroids(points, np.ones(len(points)), k, rng, n_init)


class _OneShot(MUFC):
    """MUFC's clients, with complete training and without state."""

    def _counted(
        self,
        parties: Parties,
        run: Run,
        replies: Replies,
        settings: Mapping[str, Any],
        key: bytes,
    ) -> tuple[Array, Array, Array]:
        centers = self._centers(parties, run, replies, settings, key)
        none = np.zeros((0, parties[0].n_columns), dtype=np.int64)
        return none, none[:, 0], centers

    def _centers(
        self,
        parties: Parties,
        run: Run,
        replies: Replies,
        settings: Mapping[str, Any],
        key: bytes,
    ) -> Array:
        raise NotImplementedError


class KFED(_OneShot):
    """K-FED [2]: exact local means in the clear, each of weight 1.

    Differs from [2] in: 1. clients start Lloyd's iteration at a k-means++ seeding of
    their rows and not of a projection of them, whose far rows are left out.

    Parameters
    ----------
    n_clusters : int
        K, global clusters.
    local_clusters : int
        K', centroids of a client at most; 0: K, as in [1].
    box, masking, n_parties, seed
        As of :class:`~vfl_flower.strategies.MUFC`.
    """

    def __init__(
        self,
        n_clusters: int = 4,
        *,
        local_clusters: int = 0,
        box: Bounds = "-0.5,0.5",
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            client_training="full",
            privacy="none",
            local_clusters=local_clusters,
            box=box,
            masking=masking,
            n_parties=n_parties,
            seed=seed,
        )

    def _centers(
        self,
        parties: Parties,
        run: Run,
        replies: Replies,
        settings: Mapping[str, Any],
        key: bytes,
    ) -> Array:
        return kfed_centroids(replies.each("centroids"), self.n_clusters)


class DCKMeans(_OneShot):
    """DC-k-means [3] with the clients as leaves, each local mean of weight 1.

    Parameters
    ----------
    n_clusters, local_clusters
        As of :class:`KFED`.
    privacy : {"none", "scma"}
        Exact means in the clear, or their bins by a secure sum: the means are quantised
        and those of two clients in one bin count once.
    gamma : float or "auto"
        Quantisation step of ``privacy="scma"``.
    n_init : int
        Starts of k-means at the server.
    box, masking, n_parties, seed
        As of :class:`~vfl_flower.strategies.MUFC`.
    """

    def __init__(
        self,
        n_clusters: int = 4,
        privacy: str = "none",
        *,
        gamma: float | str = "auto",
        local_clusters: int = 0,
        box: Bounds = "-0.5,0.5",
        n_init: int = 10,
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            gamma,
            "weighted",
            "full",
            privacy,
            local_clusters=local_clusters,
            box=box,
            n_init=n_init,
            masking=masking,
            n_parties=n_parties,
            seed=seed,
        )

    def _centers(
        self,
        parties: Parties,
        run: Run,
        replies: Replies,
        settings: Mapping[str, Any],
        key: bytes,
    ) -> Array:
        if self.privacy == "none":
            points = np.concatenate(replies.each("centroids"))
        else:
            bins, _, _ = MUFC._counted(self, parties, run, replies, settings, key)
            points = Quantizer(settings["gamma"]).centers(bins)
        return dckm_centroids(points, self.n_clusters, run.rng("k-means"), self.n_init)
