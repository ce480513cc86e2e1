"""Estimator for kernel k-means over split rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClusterMixin

from vfl_flower.numerics.kmeans import assign
from vfl_flower.party.party import Party
from vfl_flower.sklearn.base import SplitRows, estimates
from vfl_flower.strategies.kernel_kmeans.training import FKKMeans


@estimates(FKKMeans)
class KernelKMeans(ClusterMixin, SplitRows):
    """Kernel k-means for rows that are split over parties.

    Runs :class:`~vfl_flower.strategies.FKKMeans` in this process.

    Parameters
    ----------
    rows_per_party, random_state
        As in :class:`~vfl_flower.sklearn.base.SplitRows`.

    Attributes
    ----------
    labels_ : Array of int, shape (n,)
        Cluster of each row passed to ``fit``.
    cluster_centers_ : Array, shape (k, s)
        Centres in the space of the embedding.
    inertia_ : float
        Sum of the squared distances from the embedded rows to their centres.
    n_iter_ : int
        Iterations used to compute the subspace.
    rows_per_party_, result_, ledger_
        As in :class:`~vfl_flower.sklearn.base.SplitRows`.

    Examples
    --------
    A ring inside a ring:

    >>> angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 300)
    >>> radius = np.repeat([1, 4], 150)
    >>> X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    >>> model = KernelKMeans(n_clusters=2, n_components=3, gamma=0.2, random_state=0)
    >>> labels = model.fit_predict(X)
    >>> sorted((int(labels[:150].sum()), int(labels[150:].sum())))
    [0, 150]
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to X; y is not used.

        X is an array of shape (n, d) or a list with one block per party.
        """
        X = self._split(X)
        parties = [Party(X[rows]) for rows in self.rows_per_party_]
        result = self._run(self._made(), parties)
        self.labels_ = np.empty(len(X), dtype=np.int64)
        for rows, labels in zip(self.rows_per_party_, self._model.labels_, strict=True):
            self.labels_[rows] = labels
        self.cluster_centers_ = self._model.cluster_centers_
        self.inertia_ = self._model.inertia_
        self.n_iter_ = int(result.metrics["iterations"])
        return self

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the sum of squared distances from embedded rows to centres."""
        embedded = self._model.transform(self._rows(X))
        return -float(assign(embedded, self.cluster_centers_)[1].sum())
