r"""Logistic regression with a ridge penalty on weighted rows.

The objective, with signs s_i = -1 or +1 of the two classes and the intercept b free, is

.. math:: \frac1n \sum_{i \in S} w_i \log(1 + e^{-s_i (x_i^T \theta + b)})
          + \alpha \|\theta\|_2^2
"""

from __future__ import annotations

import numpy as np

from vfl_flower.typing import Array

MOST_ITERATIONS = 1000


def solve_logistic(
    X: Array,
    positive: Array,
    weights: Array,
    n: int,
    alpha: float,
    fit_intercept: bool,
) -> tuple[Array, float, bool]:
    """Minimise the objective with scikit-learn, by Newton's method.

    Parameters
    ----------
    X : Array, shape (m, d)
        Rows of the coreset.
    positive : Array of bool, shape (m,)
        Which are of the second class; both classes have a row.
    weights : Array, shape (m,)
        w, sum about n.
    n : int
        Number of rows that the weights stand for.
    alpha : float
        Strength of the penalty, above 0; scikit-learn's C is 1 / (2 alpha n).
    fit_intercept : bool
        Whether b is free; if not, it is 0.

    Returns
    -------
    theta : Array, shape (d,)
        Coefficients, in the log of the odds per unit of the column.
    intercept : float
        b.
    converged : bool
        Whether the gradient is below its tolerance.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(
        C=1 / (2 * alpha * n),
        solver="newton-cholesky",
        fit_intercept=fit_intercept,
        max_iter=MOST_ITERATIONS,
        tol=1e-8,
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X, positive, sample_weight=weights)
    converged = not any(issubclass(w.category, ConvergenceWarning) for w in told)
    intercept = float(model.intercept_[0]) if fit_intercept else 0.0
    return model.coef_[0], intercept, converged


def log_losses(log_odds: Array, positive: Array) -> Array:
    """Return -log of the probability that a model gives the class of each row.

    Parameters
    ----------
    log_odds : Array, shape (m,)
        x theta + b.
    positive : Array of bool, shape (m,)
        Which rows are of the second class.

    Examples
    --------
    >>> np.exp(-log_losses(np.log([3.0, 3.0]), np.array([True, False]))).round(12)
    array([0.75, 0.25])
    """
    return np.logaddexp(0, np.where(positive, -log_odds, log_odds))
