"""What FDSKL is compared with: the methods of Section 4 of [1], or their stand-ins.

Each function takes the columns of each party, since that is what a method has to cope
with, and returns a :class:`Score`. Labels of -1 and +1 make it a classification, whose
error is a percentage; other labels a regression, whose error is the mean square.

==================  ==================================================================
`central_dsg`       DSG of [2] on pooled columns: the same update as FDSKL
`svc`, `svr`        LIBSVM on pooled columns, through scikit-learn
`pp_svmv`           PP-SVMV [3]: the parties' local kernel matrices are summed
`fd_svrg`           FD-SVRG [4]: a linear model of partial predictions
`linear`            what FD-SVRG converges to, on pooled columns
`gradient_boosting` scikit-learn's histogram gradient boosting on pooled columns, in the
                    place of SecureBoost, which sends encrypted histograms of the same
                    gradients and finds the same kind of trees
==================  ==================================================================

Nothing here is sent. A method that needs pooled columns has no bytes; those of PP-SVMV
and FD-SVRG are counted from what they would send: eight bytes a scalar, each partial
result once up to the server and once down from it.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
[2] B. Dai et al., "Scalable Kernel Methods via Doubly Stochastic Gradients", NIPS 2014.
[3] H. Yu, J. Vaidya, X. Jiang, "Privacy-Preserving SVM Classification on Vertically
    Partitioned Data", PAKDD 2006.
[4] G.-D. Zhang et al., "Feature-Distributed SVRG for High-Dimensional Linear
    Classification", arXiv:1802.03604, 2018.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vfl_flower.numerics.fdskl import LOSSES, dsg_update, step_sizes
from vfl_flower.numerics.random_features import (
    RandomFeatures,
    draw_pairs,
    median_bandwidth,
    pair_distances,
)
from vfl_flower.typing import Array

SCALAR = 8
"""Bytes of a scalar."""

GRID = [(C, scale) for C in (1.0, 10.0) for scale in (1.0, 4.0)]
"""C, and gamma times the median squared distance of two rows, of the SVMs."""

BLOCK = 1024
"""Features that are evaluated together."""


@dataclass(frozen=True)
class Score:
    """How well a method did, and what it cost.

    Attributes
    ----------
    name : str
        The method.
    error : float
        Of the test rows: wrong labels in percent, or mean squared error.
    seconds : float
        Of training, a search over settings included.
    bytes : int or None
        Of training, up and down, of all parties; None: the columns were pooled.
    round_trips : int or None
        Of training.
    settings : dict
        What was chosen, for the table.
    """

    name: str
    error: float
    seconds: float
    bytes: int | None = None
    round_trips: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def is_binary(y: Array) -> bool:
    """Return whether labels are -1 and +1 alone."""
    return bool((np.abs(y) == 1).all())


def test_error(scores: Array, y: Array) -> float:
    """Return the error of predictions.

    Parameters
    ----------
    scores : Array, shape (n,)
        f(x), or labels.
    y : Array, shape (n,)
        Labels: -1 and +1, or any real numbers.

    Returns
    -------
    float
        Wrong labels in percent (a score of 0 is +1), or mean squared error.
    """
    if is_binary(y):
        return 100 * float(np.mean(np.where(scores >= 0, 1, -1) != y))
    return float(np.mean((scores - y) ** 2))


def median_squared_distance(X: Sequence[Array], seed: int = 0) -> float:
    """Return the median of |x - x'|^2 over 1,000 pairs of rows.

    Parameters
    ----------
    X : sequence of Array, shape (n, d_j)
        Columns of each party.
    seed : int
        Of the pairs.
    """
    pairs = draw_pairs(len(X[0]), 1000, np.random.default_rng(seed))
    distances = sum(pair_distances(block, pairs, "gaussian") for block in X)
    return float(2 * median_bandwidth(np.asarray(distances), "gaussian") ** 2)


def central_dsg(
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    *,
    loss: str = "logistic",
    kernel: str = "gaussian",
    bandwidth: float | None = None,
    iterations: int = 125,
    block: int = 64,
    step: float = 1.0,
    schedule: str = "constant",
    regularization: float = 1e-6,
    seed: int = 0,
) -> Score:
    """Train by doubly stochastic gradients on pooled columns [2].

    Parameters
    ----------
    X, X_test : sequence of Array, shapes (n, d_j) and (n', d_j)
        Columns of each party: training and test rows.
    y, y_test : Array, shapes (n,) and (n',)
        Their labels.
    loss, kernel : str
        As those of ``FDSKL``.
    bandwidth : float, optional
        s of the kernel; default: by the median heuristic.
    iterations, block : int
        T, and the rows and features of each iteration; `block` = 1 is [2].
    step, schedule : float, str
        gamma, and how it goes on: "constant" as in [1], or "diminishing".
    regularization : float
        lambda.
    seed : int
        Of the rows and features.

    Returns
    -------
    Score
        Without bytes: the columns were pooled.
    """
    rows, test = np.hstack(X), np.hstack(X_test)
    rng = np.random.default_rng(seed)
    start = time.perf_counter()
    if bandwidth is None:
        pairs = draw_pairs(len(rows), 1000, rng)
        bandwidth = median_bandwidth(pair_distances(rows, pairs, kernel), kernel)
    draws = RandomFeatures(kernel, rows.shape[1], bandwidth, seed)
    omega, b = draws.weights(0, iterations * block)

    def phi(rows: Array, features: slice) -> Array:
        angle = rows @ omega[features].T + 2 * np.pi * b[features]
        return np.asarray(np.sqrt(2) * np.cos(angle))

    def f(rows: Array, alpha: Array) -> Array:
        total = np.zeros((len(rows), 1))
        for low in range(0, len(alpha), BLOCK):
            part = slice(low, min(low + BLOCK, len(alpha)))
            total += phi(rows, part) @ alpha[part]
        return total

    alpha = np.zeros((0, 1))
    step_size = step_sizes(step, schedule)
    for t in range(iterations):
        i = rng.integers(len(rows), size=block)
        old, new = dsg_update(
            alpha,
            phi(rows[i], slice(t * block, (t + 1) * block)),
            f(rows[i], alpha),
            y[i, None],
            loss,
            step_size(t + 1),
            regularization,
        )
        alpha = np.concatenate([old, new])
    seconds = time.perf_counter() - start
    return Score(
        "DSG, pooled",
        test_error(f(test, alpha)[:, 0], y_test),
        seconds,
        settings={"block": block, "step": step, "iterations": iterations},
    )


def svc(
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    *,
    max_rows: int = 8000,
    seed: int = 0,
) -> Score:
    """Train support vector machines on pooled columns and return the best of four.

    The four are those of `GRID`; the best is that of the least test error, which is in
    its favour.

    Parameters
    ----------
    X, X_test, y, y_test
        As :func:`central_dsg`; the labels are -1 and +1.
    max_rows : int
        So many training rows at most, the first ones.
    seed : int
        Of the pairs of rows whose median distance scales gamma.
    """
    from sklearn.svm import SVC

    return _pooled_svm("SVC, pooled", SVC, X, y, X_test, y_test, max_rows, seed)


def svr(
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    *,
    max_rows: int = 8000,
    seed: int = 0,
) -> Score:
    """Train support vector regressions; otherwise as :func:`svc`, on any labels."""
    from sklearn.svm import SVR

    return _pooled_svm("SVR, pooled", SVR, X, y, X_test, y_test, max_rows, seed)


def _pooled_svm(
    name: str,
    make: Callable[..., Any],
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    max_rows: int,
    seed: int,
) -> Score:
    X, y = [block[:max_rows] for block in X], y[:max_rows]
    rows, test = np.hstack(X), np.hstack(X_test)
    median = median_squared_distance(X, seed)

    def fits() -> Iterator[Score]:
        for C, scale in GRID:
            start = time.perf_counter()
            model = make(C=C, gamma=scale / median, cache_size=500).fit(rows, y)
            seconds = time.perf_counter() - start
            error = test_error(model.predict(test), y_test)
            settings = {"rows": len(y), "C": C, "gamma x median": scale}
            yield Score(name, error, seconds, settings=settings)

    return _best(fits())


def _best(fits: Iterator[Score]) -> Score:
    """Return the fit of the least error, with the seconds of all."""
    found = list(fits)
    best = min(found, key=lambda score: score.error)
    return replace(best, seconds=sum(score.seconds for score in found))


def pp_svmv(
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    *,
    kernel: str = "gaussian",
    grid: Sequence[tuple[float, float]] = GRID,
    memory_limit: int = 2_000_000_000,
    seed: int = 0,
) -> Score:
    """Train on the sum of the parties' local kernel matrices (PP-SVMV [3]).

    Party j computes X_j X_j^T, the sum of which is the Gram matrix X X^T of all columns
    (Section 3 of [3]); for the Gaussian kernel its squared distances, which add up in
    the same way. The sum goes along the ring of parties, the first of which adds a
    random matrix and takes it off at the end.

    Parameters
    ----------
    X, X_test, y, y_test
        As :func:`central_dsg`. Labels of -1 and +1: ``SVC``; other ones: ``SVR``.
    kernel : {"gaussian", "linear"}
        What the matrices are of.
    grid : sequence of (float, float)
        C and gamma times the median squared distance, of which the best is taken; one
        sum of matrices serves all. The linear kernel has no gamma.
    memory_limit : int
        Bytes that the kernel matrix of the n training rows may take.
    seed : int
        Of the pairs of rows whose median distance scales gamma.

    Returns
    -------
    Score
        Bytes and round trips are counted: each of the T parties sends the upper
        triangle with the diagonal, n (n + 1) / 2 scalars, up to the server and the
        server down to the next; T + 1 round trips. Predictions, another n scalars a
        party and test row, are left out.

    Raises
    ------
    ValueError
        The matrix takes more than `memory_limit`, or the kernel is unknown.
    """
    from sklearn.svm import SVC, SVR

    n, T = len(y), len(X)
    if kernel not in ("gaussian", "linear"):
        raise ValueError(f"kernel must be gaussian or linear, got {kernel!r}")
    if SCALAR * n * n > memory_limit:
        raise ValueError(
            f"the kernel matrix of {n:,} rows must fit in memory_limit = "
            f"{memory_limit:,} bytes, got 8 n^2 = {SCALAR * n * n:,} bytes"
        )
    local = _squared_distances if kernel == "gaussian" else np.inner
    start = time.perf_counter()
    total = sum(local(block, block) for block in X)
    summed = time.perf_counter() - start
    of_test = sum(local(new, block) for new, block in zip(X_test, X, strict=True))
    if kernel == "linear":
        grid = [(C, 0.0) for C in dict.fromkeys(C for C, _ in grid)]
    median = median_squared_distance(X, seed) if kernel == "gaussian" else 1.0
    make = SVC if is_binary(y) else SVR

    def fits() -> Iterator[Score]:
        for C, scale in grid:
            start = time.perf_counter()
            K = np.exp(-scale / median * total) if scale else total
            model = make(kernel="precomputed", C=C, cache_size=500).fit(K, y)
            seconds = time.perf_counter() - start
            K_test = np.exp(-scale / median * of_test) if scale else of_test
            error = test_error(model.predict(K_test), y_test)
            settings = {"rows": n, "C": C}
            settings |= {"gamma x median": scale} if scale else {}
            yield Score("PP-SVMV", error, seconds, settings=settings)

    best = _best(fits())
    return replace(
        best,
        seconds=best.seconds + summed,
        bytes=2 * T * SCALAR * (n * (n + 1) // 2),
        round_trips=T + 1,
    )


def _squared_distances(A: Array, B: Array) -> Array:
    """Return |a - b|^2 of all pairs of rows."""
    D = -2 * (A @ B.T)
    D += (A**2).sum(axis=1)[:, None]
    D += (B**2).sum(axis=1)
    return np.asarray(np.maximum(D, 0, out=D))


def linear(
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    *,
    regularization: float = 1e-4,
) -> Score:
    """Train a linear model on pooled columns: what FD-SVRG converges to.

    Parameters
    ----------
    X, X_test, y, y_test
        As :func:`central_dsg`. Labels of -1 and +1: logistic regression; other ones:
        ridge regression.
    regularization : float
        lambda of mean L(f(x), y) + lambda |w|^2 / 2; the intercept is free.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    n = len(y)
    model = (
        LogisticRegression(C=1 / (n * regularization), max_iter=1000)
        if is_binary(y)
        else Ridge(alpha=n * regularization / 2)
    )
    start = time.perf_counter()
    model.fit(np.hstack(X), y)
    seconds = time.perf_counter() - start
    error = test_error(model.predict(np.hstack(X_test)), y_test)
    return Score("linear, pooled", error, seconds)


def fd_svrg(
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    *,
    epochs: int = 20,
    batch: int = 100,
    step: float | None = None,
    regularization: float = 1e-4,
    seed: int = 0,
) -> Score:
    """Train a linear model on sums of the parties' partial predictions (FD-SVRG [4]).

    Each party keeps its w_j. An epoch begins with the full gradient at w~, from the
    summed predictions of all rows; then come n / b inner steps of a mini-batch B each,

        w_j -= step (sum_{i in B} (L'_i(w) - L'_i(w~)) x_ij / b + g~_j + lambda w_j),

    where g~_j is the full gradient of the losses at w~. The label holder's columns have
    a 1 besides, whose weight has no penalty.

    Parameters
    ----------
    X, X_test, y, y_test
        As :func:`central_dsg`; the last party holds the labels. Labels of -1 and +1:
        logistic loss; other ones: square loss.
    epochs, batch : int
        Epochs, and rows b of a mini-batch.
    step : float, optional
        Default: 1 / (2 c mean |x|^2), c the largest second derivative of the loss.
    regularization : float
        As :func:`linear`.
    seed : int
        Of the mini-batches.

    Returns
    -------
    Score
        Bytes and round trips are counted: each of the T parties sends a scalar for
        each row of each sum, and gets one; a round trip for each sum and one more,
        which takes the last sum down.
    """
    loss = LOSSES["logistic" if is_binary(y) else "square"]
    rng = np.random.default_rng(seed)
    n = len(y)
    blocks = [*X[:-1], np.column_stack([X[-1], np.ones(n)])]
    penalty = [np.full(block.shape[1], regularization) for block in blocks]
    penalty[-1][-1] = 0.0
    start = time.perf_counter()
    if step is None:
        size = sum(float((block**2).sum()) for block in blocks) / n
        step = 1 / (2 * loss.curvature * size)
    w = [np.zeros(block.shape[1]) for block in blocks]
    inner = -(-n // batch)
    scalars = round_trips = 0

    def predictions(rows: slice | Array) -> Array:
        nonlocal scalars, round_trips
        parts = [block[rows] @ w_j for block, w_j in zip(blocks, w, strict=True)]
        scalars += 2 * sum(map(len, parts))  # each up, and the sum down to each
        round_trips += 1
        return np.asarray(np.sum(parts, axis=0))

    for _ in range(epochs):
        slopes = loss.derivative(predictions(slice(None)), y)
        full = [block.T @ slopes / n for block in blocks]
        for _ in range(inner):
            i = rng.integers(n, size=batch)
            change = (loss.derivative(predictions(i), y[i]) - slopes[i]) / batch
            w = [
                w_j - step * (block[i].T @ change + g + lam * w_j)
                for w_j, block, g, lam in zip(w, blocks, full, penalty, strict=True)
            ]
    seconds = time.perf_counter() - start
    tests = [*X_test[:-1], np.column_stack([X_test[-1], np.ones(len(y_test))])]
    f = np.sum([block @ w_j for block, w_j in zip(tests, w, strict=True)], axis=0)
    return Score(
        "FD-SVRG",
        test_error(f, y_test),
        seconds,
        SCALAR * scalars,
        round_trips + 1,
        {"epochs": epochs, "batch": batch, "step": step},
    )


def gradient_boosting(
    X: Sequence[Array],
    y: Array,
    X_test: Sequence[Array],
    y_test: Array,
    *,
    seed: int = 0,
) -> Score:
    """Train scikit-learn's histogram gradient boosting, in SecureBoost's place.

    Parameters
    ----------
    X, X_test, y, y_test
        As :func:`central_dsg`. Labels of -1 and +1: classifier; other ones: regressor.
    seed : int
        Of the rows that decide when to stop.

    Returns
    -------
    Score
        Without bytes: the columns were pooled. The settings are scikit-learn's own.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    make = (
        HistGradientBoostingClassifier
        if is_binary(y)
        else HistGradientBoostingRegressor
    )
    start = time.perf_counter()
    model = make(random_state=seed).fit(np.hstack(X), y)
    seconds = time.perf_counter() - start
    error = test_error(model.predict(np.hstack(X_test)), y_test)
    return Score("gradient boosting, pooled", error, seconds)
