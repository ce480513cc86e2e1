"""Estimator for k-means over split rows; its model can forget rows."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import ClusterMixin

from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import Box
from vfl_flower.party.party import Party
from vfl_flower.party.row_requests import FORGET, request_changes
from vfl_flower.rows import number_array
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.sklearn.base import SplitRows, estimates
from vfl_flower.strategies.mufc.tasks import MUFCUnlearn
from vfl_flower.strategies.mufc.training import MUFC
from vfl_flower.typing import Array


def digest_of(X: Array) -> str:
    """Return the SHA-256 of a matrix."""
    return hashlib.sha256(np.ascontiguousarray(X).tobytes()).hexdigest()


@estimates(MUFC, server_state=...)
class ForgettingKMeans(ClusterMixin, SplitRows):
    """k-means on rows that are split over parties; the model can forget rows.

    Runs :class:`~vfl_flower.strategies.MUFC` in this process.

    Parameters
    ----------
    rows_per_party, random_state
        As in :class:`~vfl_flower.sklearn.base.SplitRows`.
    state_folder : str, Path or None
        Folder with subfolders in which the server and each party store the data that
        they need to forget rows; None: the model cannot forget rows.

    Attributes
    ----------
    cluster_centers_ : Array, shape (k, d)
        Centres, in the unit of the columns of X.
    labels_ : Array of int, shape (n,)
        Cluster of each row passed to ``fit``, namely the cluster of its local centroid;
        -1 for forgotten rows.
    forgotten_ : Array of int, shape (m,)
        Numbers of the forgotten rows.
    inertia_ : float
        Sum of the squared distances from the remaining rows to the centres of their
        clusters, in units of the box's side squared.
    rows_per_party_, result_, ledger_
        As in :class:`~vfl_flower.sklearn.base.SplitRows`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)) / 40 + rng.choice([-0.3, 0.3], size=(300, 1))
    >>> with TemporaryDirectory() as folder:
    ...     model = ForgettingKMeans(n_clusters=2, state_folder=folder, random_state=0)
    ...     labels = model.fit(X).forget(X, [0, 7]).labels_
    >>> labels[[0, 7]].tolist(), int((labels < 0).sum())
    ([-1, -1], 2)
    """

    state_folder: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to X; y is not used.

        X is an array of shape (n, d) or a list with one block per party.
        """
        X, self.forgotten_ = self._split(X), np.zeros(0, dtype=np.int64)
        strategy = self._made(server_state=self._server_state)
        return self._cluster(strategy, X, self.forgotten_)

    def forget(self, X: Any, rows: Any) -> Self:
        """Change the model as if it had never contained some rows.

        Parameters
        ----------
        X : Array, shape (n, d), or a list of blocks
            All rows passed to ``fit``; rows forgotten earlier are not read.
        rows : Array of int, shape (m,)
            Numbers of the rows to forget, counted from 0, each only once. Neither a
            mask nor labels of a reordered index are allowed.

        Raises
        ------
        ValueError
            `state_folder` is missing, X does not have the rows passed to ``fit``, or a
            row is not in the model. In these cases nothing is changed.
        """
        index, numbers = getattr(X, "index", None), number_array(rows, "rows")
        X = self._rows(X)
        some = rows if isinstance(rows, list | tuple) else ()
        mixed = any(isinstance(row, bool | np.bool_) for row in some)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or mixed:
            raise ValueError(
                "rows must be a non-empty list of row numbers, not a mask, got values "
                f"of type {numbers.dtype} and shape {numbers.shape}"
            )
        labels = hasattr(rows, "to_numpy") and hasattr(index, "to_numpy")
        if labels and np.asarray(index).tolist() != list(range(len(X))):
            raise ValueError(
                "rows must be positions (from 0), because X does not have the default "
                "index: pass np.flatnonzero(mask)"
            )
        rows, counts = np.unique(numbers.astype(np.int64), return_counts=True)
        if counts.max(initial=1) > 1:
            number, count = rows[counts > 1][0], counts.max()
            raise ValueError(
                f"rows must be distinct row numbers, not a mask, but {number} occurs "
                f"{count} times"
            )
        if self.state_folder is None:
            raise ValueError("state_folder must be set for fit and forget, got None")
        remaining = np.setdiff1d(np.arange(len(self.labels_)), self.forgotten_)
        if not np.isin(rows, remaining).all():
            raise ValueError("rows must be numbers of rows that are still in the model")
        if len(X) != len(self.labels_) or self._digest != digest_of(X[remaining]):
            raise ValueError(
                f"X must have the {len(self.labels_)} rows passed to fit, unchanged "
                f"and in the same order, got {len(X)} rows"
            )
        task = MUFCUnlearn(
            self._model.id, server_state=self._server_state, masking=self.masking
        )
        return self._cluster(task, X, rows)

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the sum of squared distances from rows to nearest centres.

        The unit is the box's side squared, as for `inertia_`.
        """
        rows, model = self._rows(X), self._model
        box = Box(model.lower, model.upper)
        distances = assign(box.scale(rows), box.scale(model.cluster_centers_))[1]
        return -float(distances.sum())

    def _cluster(self, strategy: ProtocolStrategy, X: Array, rows: Array) -> Self:
        """Run training, or a task that forgets `rows`, on the rows not yet forgotten.

        A row's number serves as its id.
        """
        folder = None if self.state_folder is None else Path(self.state_folder)
        held = [np.setdiff1d(ids, self.forgotten_) for ids in self.rows_per_party_]
        names = [f"party-{j}" for j in range(len(held))]
        parties = [
            Party(X[ids], ids=ids, name=name, state_dir=folder and folder / name)
            for name, ids in zip(names, held, strict=True)
        ]
        try:
            for party, ids in zip(parties, held, strict=True):
                if (requests := np.intersect1d(rows, ids)).size:
                    request_changes(party, forget=requests)
            self._run(strategy, parties)
        finally:  # no request of a failed run remains
            for party in parties:
                if party.state_dir is not None:
                    (party.state_dir / FORGET).unlink(missing_ok=True)
        self.forgotten_ = np.union1d(self.forgotten_, rows)
        self.labels_ = np.full(len(X), -1)
        for ids, labels in zip(held, self._model.labels_ or [], strict=True):
            self.labels_[np.setdiff1d(ids, rows)] = labels
        self._digest = digest_of(np.delete(X, self.forgotten_, axis=0))
        self.cluster_centers_ = self._model.cluster_centers_
        self.inertia_ = self._model.inertia_
        return self

    @property
    def _server_state(self) -> Path | None:
        return None if self.state_folder is None else Path(self.state_folder, "server")
