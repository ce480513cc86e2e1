"""Estimators for the coreset strategies: linear regression and k-means."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClusterMixin, RegressorMixin

from vfl_flower.numerics.kmeans import assign
from vfl_flower.party.party import Party
from vfl_flower.sklearn.base import Labelled, Scored, SplitColumns, estimates
from vfl_flower.strategies.coresets.training import CoresetVKMC, CoresetVRLR
from vfl_flower.typing import Array


@estimates(CoresetVRLR)
class CoresetRegressor(Scored, RegressorMixin, Labelled):
    """Linear regression on a coreset, for columns that are split over parties.

    Runs :class:`~vfl_flower.strategies.CoresetVRLR` in this process.

    Parameters
    ----------
    columns_per_party, label_party, random_state
        As in :class:`~vfl_flower.sklearn.base.Labelled`.

    Attributes
    ----------
    coef_ : Array, shape (d,)
        Coefficients of the columns of X, in the unit of y per unit of the column.
    intercept_ : float
        Prediction at the origin, in the unit of y.
    n_iter_ : int
        Iterations of the solver; 1 if the solver does not iterate.
    columns_per_party_, result_, ledger_
        As in :class:`~vfl_flower.sklearn.base.SplitColumns`.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(1000, 4))
    >>> y = X @ [1.0, 2.0, 3.0, 4.0] + 5
    >>> model = CoresetRegressor(columns_per_party=2, size=100, random_state=0)
    >>> model.fit(X, y).coef_.round(6).tolist(), model.ledger_.round_trips
    ([1.0, 2.0, 3.0, 4.0], 6)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model to X and y.

        X is an array of shape (n, d) or a list with one block per party; y is an array
        of shape (n,).
        """
        blocks, y = self._split(X, y, y_numeric=True)
        result = self._run(self._made(), self._parties(blocks, y))
        self.coef_ = self._joined(self._model.coef_)
        self.intercept_ = self._model.intercept_
        self.n_iter_ = int(result.metrics.get("iterations", 1))
        return self


@estimates(CoresetVKMC)
class CoresetKMeans(ClusterMixin, SplitColumns):
    """k-means on a coreset, for columns that are split over parties.

    Runs :class:`~vfl_flower.strategies.CoresetVKMC` in this process.

    Parameters
    ----------
    columns_per_party, random_state
        As in :class:`~vfl_flower.sklearn.base.SplitColumns`.

    Attributes
    ----------
    cluster_centers_ : Array, shape (k, d)
        Centres, in the unit of the columns of X.
    labels_ : Array of int, shape (n,)
        Index of the centre nearest to each row passed to ``fit``.
    inertia_ : float
        Sum of the squared distances from these rows to their nearest centres.
    columns_per_party_, result_, ledger_
        As in :class:`~vfl_flower.sklearn.base.SplitColumns`.

    Examples
    --------
    >>> X = np.repeat(np.eye(3), 100, axis=0)
    >>> model = CoresetKMeans(n_clusters=3, size=50, random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [100, 100, 100]
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to X; y is not used.

        X is an array of shape (n, d) or a list with one block per party.
        """
        blocks, _ = self._split(X)
        self._run(self._made(), [Party(block) for block in blocks])
        self.cluster_centers_ = self._joined(self._model.cluster_centers_)
        self.labels_, distances = self._assigned(blocks)
        self.inertia_ = float(distances.sum())
        return self

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the sum of squared distances from rows to nearest centres."""
        return -float(self._assigned(self._blocks(X))[1].sum())

    def _assigned(self, blocks: list[Array]) -> tuple[Array, Array]:
        """Return the nearest centre of each row, and the squared distance to it."""
        return assign(np.hstack(blocks), np.hstack(self._model.cluster_centers_))
