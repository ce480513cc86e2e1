"""Estimators for doubly stochastic kernel learning over split columns."""

from __future__ import annotations

from typing import Any

from sklearn.utils.metaestimators import available_if

from vfl_flower.sklearn.base import Classifier, Regressor, estimates
from vfl_flower.strategies.fdskl.training import FDSKLDirect
from vfl_flower.typing import Array

ONE_PROCESS = {"allow_two_parties": True}
"""In one process, two parties hide nothing from each other anyway."""


def _has_probabilities(estimator: KernelClassifier) -> bool:
    """Return whether the estimator's settings turn scores into probabilities."""
    if estimator.loss == "logistic":
        return True
    raise AttributeError(
        f"loss must be 'logistic' for probabilities, got {estimator.loss!r}"
    )


@estimates(FDSKLDirect, ONE_PROCESS, target=...)
class KernelClassifier(Classifier):
    """Kernel classifier for columns that are split over parties.

    Runs :class:`~vfl_flower.strategies.FDSKLDirect` in this process, with the
    target that suits y.

    Parameters
    ----------
    columns_per_party, label_party, random_state
        As in :class:`~vfl_flower.sklearn.base.Labelled`.

    Attributes
    ----------
    classes_, columns_per_party_, result_, ledger_
        As in :class:`~vfl_flower.sklearn.base.Classifier`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> y = np.where((X**2).sum(axis=1) > 2.4, "outside", "inside")
    >>> model = KernelClassifier(columns_per_party=3, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.95, model.predict([[0.0, 0.0, 0.0]]).tolist()
    (True, ['inside'])
    """

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return the class probabilities of rows, in an array of shape (n, K)."""
        return super().predict_proba(X)


@estimates(
    FDSKLDirect, ONE_PROCESS, target="continuous", loss="square", class_weight="none"
)
class KernelRegressor(Regressor):
    """Kernel regression for columns that are split over parties.

    Runs :class:`~vfl_flower.strategies.FDSKLDirect` in this process, with the
    square loss.

    Parameters
    ----------
    columns_per_party, label_party, random_state
        As in :class:`~vfl_flower.sklearn.base.Labelled`.

    Attributes
    ----------
    columns_per_party_, result_, ledger_
        As in :class:`~vfl_flower.sklearn.base.SplitColumns`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(-2, 2, size=(500, 2))
    >>> y = np.sin(X[:, 0] * X[:, 1])
    >>> bool(KernelRegressor(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """
