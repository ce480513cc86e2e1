"""One-shot federated clusterings that MUFC is compared with, in the same framework.

Both ask for the parties' steps of :class:`~vfl_flower.strategies.MUFC` with complete
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

from collections.abc import Sequence
from typing import Any

import numpy as np
import pydantic

from vfl_flower.clients.mufc_state import Privacy, TrainingSettings
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign, lloyd
from vfl_flower.numerics.mufc import server_centroids
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.replies import Replies
from vfl_flower.protocol.settings import Natural, settings
from vfl_flower.protocol.strategy import Run
from vfl_flower.strategies.mufc import ClusterTraining, Gamma, decoded, in_the_clear
from vfl_flower.typing import Array


def kfed_centroids(centroids: Sequence[Array], k: int) -> Array:
    """Cluster local centroids as K-FED does (Algorithm 2 of [2]).

    The centres are the centroids of the first party that has some; the centroid
    farthest from all centres is added until there are k. One step of Lloyd's iteration
    follows.

    Parameters
    ----------
    centroids : sequence of Array, shapes (k', d)
        C^(l) of each party.
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
    first = next(local for local in centroids if len(local))
    centers = np.unique(first, axis=0)[:k]
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

    The tree has two levels, with the parties as its leaves.

    Parameters
    ----------
    points : Array, shape (m, d)
        The centroids of all parties, exact or the middles of their bins.
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


def _without_counts(centers: Array) -> tuple[Array, Array, Array]:
    none = np.zeros((0, centers.shape[1]), dtype=np.int64)
    return none, none[:, 0], centers


@settings
class KFED(ClusterTraining):
    """K-FED [2]: exact local means in the clear, each of weight 1.

    Differs from [2] in: 1. parties start Lloyd's iteration at a k-means++ seeding of
    their rows and not of a projection of them, whose far rows are left out.
    """

    def agree(self, parties: Parties) -> TrainingSettings:
        """Return what server and parties agree on."""
        return self.settled(parties, "auto", "uniform", "full", "none")

    def cluster(
        self,
        parties: Parties,
        run: Run,
        replies: Replies[Any],
        agreed: TrainingSettings,
        key: bytes,
    ) -> tuple[Array, Array, Array]:
        """Return no bins, no counts, and the centres."""
        centroids, _ = in_the_clear(replies, agreed)
        return _without_counts(kfed_centroids(centroids, agreed.n_clusters))


@settings
class DCKMeans(ClusterTraining):
    """DC-k-means [3] with the parties as leaves, each local mean of weight 1."""

    privacy: Privacy = "none"
    """Exact means in the clear, or their bins by a secure sum: the means are quantised
    and those of two parties in one bin count once."""
    gamma: Gamma = pydantic.Field(default="auto", kw_only=True)
    """Quantisation step of privacy "scma"."""
    n_init: Natural = pydantic.Field(default=10, kw_only=True)
    """Starts of k-means at the server."""

    def agree(self, parties: Parties) -> TrainingSettings:
        """Return what server and parties agree on."""
        return self.settled(
            parties, self.gamma, "weighted", "full", self.privacy, n_init=self.n_init
        )

    def cluster(
        self,
        parties: Parties,
        run: Run,
        replies: Replies[Any],
        agreed: TrainingSettings,
        key: bytes,
    ) -> tuple[Array, Array, Array]:
        """Return no bins, no counts, and the centres."""
        if agreed.privacy == "none":
            points = np.concatenate(in_the_clear(replies, agreed)[0])
        else:
            bins, _ = decoded(parties, replies, agreed, key)
            points = agreed.quantizer.centers(bins)
        rng = run.rng("k-means")
        return _without_counts(
            dckm_centroids(points, agreed.n_clusters, rng, agreed.n_init)
        )
