"""Estimators of kernel learning over split columns."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from vfl_flower.sklearn.base import Labelled, Scored, estimates
from vfl_flower.strategies.fdskl import FDSKL
from vfl_flower.typing import Array


def _has_probabilities(estimator: KernelClassifier) -> bool:
    """Return whether scores become probabilities with the estimator's settings."""
    if estimator.solver == "moments" or estimator.loss == "logistic":
        return True
    raise AttributeError(
        f"loss must be 'logistic' for probabilities with solver {estimator.solver!r}, "
        f"got {estimator.loss!r}"
    )


@estimates(FDSKL, target=...)
class KernelClassifier(Scored, ClassifierMixin, Labelled):
    """Kernel classifier whose columns are split over parties.

    Runs :class:`~vfl_flower.strategies.fdskl.FDSKL` in this process, with the target
    that y has.

    Parameters
    ----------
    columns_per_party, label_party, random_state
        As of :class:`~vfl_flower.sklearn.base.Labelled`.

    Attributes
    ----------
    classes_ : Array, shape (K,)
        The labels of the classes.
    columns_per_party_ : list of Array of int
        Numbers of the columns of each party.
    result_ : ProtocolResult
        Result of the run.
    ledger_ : Ledger
        Round trips, messages and bytes of the run.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> y = np.where((X**2).sum(axis=1) > 2.4, "outside", "inside")
    >>> model = KernelClassifier(columns_per_party=3, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.95, model.predict([[0.0, 0.0, 0.0]]).tolist()
    (True, ['inside'])
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model to X, shape (n, d) or a block a party, and y, shape (n,)."""
        blocks, y = self._split(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y must have at least two classes, got one class")
        target = "binary" if len(self.classes_) == 2 else "multiclass"
        self._run(self._made(target=target), self._parties(blocks, codes))
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the scores f(x) of rows, shape (n,) of two classes, else (n, K)."""
        scores = np.asarray(self._model.decision_function(self._blocks(X)))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """Return the labels of rows, shape (n,)."""
        codes = super().predict(X)
        return np.asarray(self.classes_[codes.astype(np.int64)])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the classes of rows, shape (n, K)."""
        return np.asarray(self._model.predict_proba(self._blocks(X)))


@estimates(FDSKL, target="continuous", loss="square", class_weight="none")
class KernelRegressor(Scored, RegressorMixin, Labelled):
    """Kernel regression whose columns are split over parties.

    Runs :class:`~vfl_flower.strategies.fdskl.FDSKL` in this process, with the square
    loss.

    Parameters
    ----------
    columns_per_party, label_party, random_state
        As of :class:`~vfl_flower.sklearn.base.Labelled`.

    Attributes
    ----------
    columns_per_party_, result_, ledger_
        As of :class:`KernelClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).uniform(-2, 2, size=(2000, 2))
    >>> y = np.sin(X[:, 0] * X[:, 1])
    >>> bool(KernelRegressor(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model to X, shape (n, d) or a block a party, and y, shape (n,)."""
        blocks, y = self._split(X, y, y_numeric=True, ensure_min_samples=2)
        self._run(self._made(), self._parties(blocks, y))
        return self
