"""Estimators for ridge regression on columns that are not pooled."""

from __future__ import annotations

from vfl_flower.sklearn.base import Classifier, Regressor, estimates
from vfl_flower.strategies.ridge.training import SecureRidge


@estimates(SecureRidge, target=...)
class SecureRidgeClassifier(Classifier):
    """Ridge classifier for columns that are split over parties.

    Runs :class:`~vfl_flower.strategies.SecureRidge` in this process,
    with the target that suits y.

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
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> y = np.where((X**2).sum(axis=1) > 2.4, "outside", "inside")
    >>> model = SecureRidgeClassifier(joint_features=64, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.95, model.predict([[0.0, 0.0, 0.0]]).tolist()
    (True, ['inside'])
    """


@estimates(SecureRidge, target="continuous", class_weight="none")
class SecureRidgeRegressor(Regressor):
    """Ridge regression for columns that are split over parties.

    Runs :class:`~vfl_flower.strategies.SecureRidge` in this process.

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
    >>> X = np.random.default_rng(0).uniform(-2, 2, size=(2000, 2))
    >>> y = np.sin(X[:, 0] * X[:, 1])
    >>> model = SecureRidgeRegressor(joint_features=64, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """
