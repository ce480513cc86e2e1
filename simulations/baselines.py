"""Baselines of FDSKL: the methods of Section 4 of [1], or their stand-ins.

Each function takes the rows as the parties hold them, with rows held out, and returns a
:class:`Score`. Labels of -1 and +1 make it a classification, whose error is a
percentage; other labels a regression, whose error is the mean square.

==================  ==================================================================
`central_dsg`       DSG of [2] on pooled columns: the same update as FDSKL
`svm`               LIBSVM on pooled columns, through scikit-learn
`pp_svmv`           PP-SVMV [3]: the parties' local kernel matrices are summed
`fd_svrg`           FD-SVRG [4]: a linear model of partial predictions
`linear`            the limit of FD-SVRG, on pooled columns
`tuned_alike`       linear, kernel and boosted models of scikit-learn, all of whose
                    settings are chosen on two halves of the training rows
`gradient_boosting` scikit-learn's histogram gradient boosting on pooled columns, in
                    place of SecureBoost, which sends encrypted histograms of the same
                    gradients and finds the same kind of trees
==================  ==================================================================

Nothing here is sent. A method that needs pooled columns has no bytes; the bytes of
PP-SVMV and FD-SVRG are counted from the messages that they would send: eight bytes a
scalar, each partial result once up to the server and once down from it.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulations.experiments import Columns
from vfl_flower.numerics.fdskl import base_scores, dsg_update
from vfl_flower.numerics.kernel_solvers import LOSSES
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

TUNED_ON, KERNEL_ROWS = 4000, 20_000
"""Rows on which `tuned_alike` tunes kernel methods, and maximum rows for the fit."""

Fitted = tuple[Callable[[Array], tuple[Array, Array | None]], dict[str, Any]]
"""A function from rows to scores and any probabilities of +1; the chosen settings."""


@dataclass(frozen=True)
class Score:
    """The error of a method, and its costs."""

    name: str
    error: float  # wrong labels in percent, or mean squared error, on test rows
    seconds: float  # of training, including a search over settings
    bytes: int | None = None  # up and down, of all parties; None: columns were pooled
    round_trips: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # the chosen settings


def is_binary(y: Array) -> bool:
    """Return whether all labels are -1 or +1."""
    return bool((np.abs(y) == 1).all())


def test_error(scores: Array, y: Array) -> float:
    """Return the error of predictions: of scores f(x) or of labels.

    If the labels `y` are -1 and +1, this is the percentage of wrong labels (a score of
    0 means +1); otherwise it is the mean squared error.
    """
    if is_binary(y):
        return 100 * float(np.mean(np.where(scores >= 0, 1, -1) != y))
    return float(np.mean((scores - y) ** 2))


def median_squared_distance(X: Sequence[Array], seed: int = 0) -> float:
    """Return the median of |x - x'|^2 over 1,000 pairs of rows at several parties."""
    pairs = draw_pairs(len(X[0]), 1000, np.random.default_rng(seed))
    distances = sum(pair_distances(block, pairs, "gaussian") for block in X)
    return float(2 * median_bandwidth(np.asarray(distances), "gaussian") ** 2)


def central_dsg(
    data: Columns,
    *,
    loss: str = "logistic",
    bandwidth: float | None = None,
    iterations: int = 125,
    block: int = 64,
    step: float = 1.0,
    regularization: float = 1e-6,
    seed: int = 0,
) -> Score:
    """Train by doubly stochastic gradients on pooled columns [2], Gaussian kernel.

    f starts at the log odds or the mean of all labels, as in FDSKL.
    """
    rows, y, test, y_test = data.train_and_test()
    rng = np.random.default_rng(seed)
    start = time.process_time()
    if bandwidth is None:
        pairs = draw_pairs(len(rows), 1000, rng)
        distances = pair_distances(rows, pairs, "gaussian")
        bandwidth = median_bandwidth(distances, "gaussian")
    draws = RandomFeatures("gaussian", rows.shape[1], bandwidth, seed)
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
    base = base_scores(y[:, None], loss)
    for t in range(iterations):
        i = rng.integers(len(rows), size=block)
        old, new = dsg_update(
            alpha,
            phi(rows[i], slice(t * block, (t + 1) * block)),
            base + f(rows[i], alpha),
            y[i, None],
            loss,
            step,
            regularization,
        )
        alpha = np.concatenate([old, new])
    seconds = time.process_time() - start
    return Score(
        "DSG, pooled",
        test_error((base + f(test, alpha))[:, 0], y_test),
        seconds,
        settings={"block": block, "step": step, "iterations": iterations},
    )


def svm(
    data: Columns,
    *,
    max_rows: int = 8000,
    seed: int = 0,
    grid: Sequence[tuple[float, float]] = GRID,
) -> Score:
    """Train support vector machines on pooled columns and return the best machine.

    The machines have the settings of `grid`; the best has the smallest test error, a
    choice that favours this method. They are ``SVC`` or ``SVR``, depending on the
    labels, on the first `max_rows`; `seed` draws the pairs of rows whose median
    distance scales gamma.
    """
    X, y, test, _ = data.train_and_test()
    rows, y = X[:max_rows], y[:max_rows]
    median = median_squared_distance(data.split(rows), seed)
    name = "SVC, pooled" if is_binary(y) else "SVR, pooled"

    def settings(scale: float) -> dict[str, Any]:
        return {"gamma": scale / median}

    return _best(name, data, (rows, y, test), grid, settings, lambda rows, _: rows)


def _best(
    name: str,
    data: Columns,
    train_and_test: tuple[Array, Array, Array],
    grid: Sequence[tuple[float, float]],
    settings: Callable[[float], dict[str, Any]],
    kernel: Callable[[Array, float], Array],
) -> Score:
    """Return the machine with the smallest test error; seconds include all machines."""
    from sklearn.svm import SVC, SVR

    rows, y, test = train_and_test
    _, _, _, y_test = data.train_and_test()
    make = SVC if is_binary(y) else SVR
    scores = []
    for C, scale in grid:
        start = time.process_time()
        model = make(C=C, cache_size=500, **settings(scale)).fit(kernel(rows, scale), y)
        seconds = time.process_time() - start
        error = test_error(model.predict(kernel(test, scale)), y_test)
        chosen = {"rows": len(y), "C": C, "gamma x median": scale}
        scores.append(Score(name, error, seconds, settings=chosen))
    best = min(scores, key=lambda score: score.error)
    return replace(best, seconds=sum(score.seconds for score in scores))


def pp_svmv(
    data: Columns,
    *,
    grid: Sequence[tuple[float, float]] = GRID,
    memory_limit: int = 2_000_000_000,
    seed: int = 0,
) -> Score:
    """Train on the sum of the parties' local kernel matrices (PP-SVMV [3]).

    Party j computes X_j X_j^T; the sum over the parties is the Gram matrix X X^T of all
    columns (Section 3 of [3]). For the Gaussian kernel, as here, the parties compute
    squared distances, which add up in the same way. The sum goes round the ring of
    parties; the first party adds a random matrix and subtracts it at the end.
    """
    rows, y, test, _ = data.train_and_test()
    n, X = len(y), data.split(rows)
    if SCALAR * n * n > memory_limit:
        raise ValueError(
            f"the kernel matrix of {n:,} rows must fit in memory_limit = "
            f"{memory_limit:,} bytes, got 8 n^2 = {SCALAR * n * n:,} bytes"
        )
    start = time.process_time()
    total = sum(_squared_distances(block, block) for block in X)
    seconds = time.process_time() - start
    pairs = zip(data.split(test), X, strict=True)
    test_total = sum(_squared_distances(new, block) for new, block in pairs)
    median = median_squared_distance(X, seed)

    def kernel(D: Array, scale: float) -> Array:
        return np.asarray(np.exp(-scale / median * D))

    matrices = np.asarray(total), y, np.asarray(test_total)
    precomputed = {"kernel": "precomputed"}
    best = _best("PP-SVMV", data, matrices, grid, lambda _: precomputed, kernel)
    return replace(
        best,
        seconds=best.seconds + seconds,
        bytes=2 * len(X) * SCALAR * (n * (n + 1) // 2),
        round_trips=len(X) + 1,
    )


def _squared_distances(A: Array, B: Array) -> Array:
    """Return |a - b|^2 of all pairs of rows."""
    D = -2 * (A @ B.T)
    D += (A**2).sum(axis=1)[:, None]
    D += (B**2).sum(axis=1)
    return np.asarray(np.maximum(D, 0, out=D))


def linear(data: Columns, *, regularization: float = 1e-4) -> Score:
    """Train a linear model on pooled columns, the limit of FD-SVRG.

    Logistic or ridge regression, of mean L(f(x), y) + lambda |w|^2 / 2 with lambda =
    `regularization`; the intercept is free.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    n, binary = len(data.X), is_binary(data.train_and_test()[1])
    model = (
        LogisticRegression(C=1 / (n * regularization), max_iter=1000)
        if binary
        else Ridge(alpha=n * regularization / 2)
    )
    return _pooled("linear, pooled", model, data)


def gradient_boosting(data: Columns, *, seed: int = 0) -> Score:
    """Train scikit-learn's histogram gradient boosting in place of SecureBoost.

    The settings are scikit-learn's own; `seed` draws the rows that decide when to stop.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    binary = is_binary(data.train_and_test()[1])
    make = HistGradientBoostingClassifier if binary else HistGradientBoostingRegressor
    return _pooled("gradient boosting, pooled", make(random_state=seed), data)


def tuned_alike(name: str, X: Array, y: Array, seed: int) -> Fitted:
    """Fit one of scikit-learn's models, tuned on two halves of its rows."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler
    from sklearn.svm import SVC

    rng, n, real, d = np.random.default_rng(seed), len(y), not is_binary(y), X.shape[1]
    mean = y.mean() if real and name != "boosting" else 0.0
    model: Any
    grid: dict[str, Any]
    if name == "boosting":
        kind = HistGradientBoostingRegressor if real else HistGradientBoostingClassifier
        model = kind(
            max_iter=600, early_stopping=True, n_iter_no_change=20, random_state=seed
        )
        grid = {"learning_rate": [0.05, 0.1], "max_leaf_nodes": [31, 127]}
    elif name == "linear":
        model = Ridge() if real else LogisticRegression(max_iter=1000)
        strengths = 10.0 ** (np.arange(-2, 5) if real else np.arange(-3, 3))
        grid = {"alpha" if real else "C": strengths}
    elif real:
        model = KernelRidge(kernel="rbf")
        grid = {"alpha": [1e-3, 1e-2, 1e-1], "gamma": np.array([0.1, 0.3, 1, 3]) / d}
    else:
        model = SVC(cache_size=500)
        grid = {"C": [1.0, 10.0, 100.0], "gamma": np.array([0.3, 1, 3, 10]) / d}
    tuned, fitted = (TUNED_ON, KERNEL_ROWS) if name == "kernel" else (n, n)
    if name != "boosting":
        clip = FunctionTransformer(np.clip, kw_args={"a_min": -8, "a_max": 8})
        step = type(model).__name__.lower()
        model = make_pipeline(
            SimpleImputer(strategy="median"), StandardScaler(), clip, model
        )
        grid = {f"{step}__{key}": values for key, values in grid.items()}
    search = GridSearchCV(
        model,
        grid,
        cv=KFold(2, shuffle=True, random_state=seed),
        scoring="neg_mean_squared_error" if real else "accuracy",
        refit=False,
    )
    rows = rng.permutation(n)[:tuned]
    search.fit(X[rows], y[rows] - mean)
    rows = rng.permutation(n)[:fitted]
    best = model.set_params(**search.best_params_).fit(X[rows], y[rows] - mean)
    chosen = {k.rpartition("__")[2]: float(v) for k, v in search.best_params_.items()}

    def score(new: Array) -> tuple[Array, Array | None]:
        if real:
            return best.predict(new) + mean, None
        p = best.predict_proba(new)[:, 1] if name != "kernel" else None
        return best.decision_function(new), p

    return score, {"rows": len(rows), "chosen": chosen}


def _pooled(name: str, model: Any, data: Columns) -> Score:
    """Fit a model of scikit-learn to the pooled columns."""
    X, y, X_test, y_test = data.train_and_test()
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    return Score(name, test_error(model.predict(X_test), y_test), seconds)


def fd_svrg(
    data: Columns,
    *,
    epochs: int = 20,
    batch: int = 100,
    step: float | None = None,
    regularization: float = 1e-4,
    seed: int = 0,
) -> Score:
    """Train a linear model on sums of the parties' partial predictions (FD-SVRG [4]).

    Each party keeps its w_j. An epoch begins with the full gradient at w~, from the
    summed predictions of all rows; then come n / b inner steps, each on a mini-batch B,

        w_j -= step (sum_{i in B} (L'_i(w) - L'_i(w~)) x_ij / b + g~_j + lambda w_j),

    where g~_j is the full gradient of the losses at w~. The label holder also has a
    column of ones, whose weight has no penalty.
    """
    _, y, X_test, y_test = data.train_and_test()
    loss = LOSSES["logistic" if is_binary(y) else "square"]
    rng = np.random.default_rng(seed)
    n = len(y)
    blocks, tests = map(_with_ones, (data.split(data.X), data.split(X_test)))
    penalty = [np.full(block.shape[1], regularization) for block in blocks]
    penalty[-1][-1] = 0.0
    start = time.process_time()
    if step is None:
        size = sum(float((block**2).sum()) for block in blocks) / n
        step = 1 / (2 * loss.curvature * size)
    w = [np.zeros(block.shape[1]) for block in blocks]
    inner = -(-n // batch)
    scalars = round_trips = 0

    def predictions(rows: slice | Array) -> Array:
        nonlocal scalars, round_trips
        parts = [block[rows] @ w_j for block, w_j in zip(blocks, w, strict=True)]
        scalars += 2 * sum(map(len, parts))  # parts up, and the sum down to each party
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
    seconds = time.process_time() - start
    f = np.sum([block @ w_j for block, w_j in zip(tests, w, strict=True)], axis=0)
    return Score(
        "FD-SVRG",
        test_error(f, y_test),
        seconds,
        SCALAR * scalars,
        round_trips + 1,
        {"epochs": epochs, "batch": batch, "step": step},
    )


def _with_ones(X: list[Array]) -> list[Array]:
    return [*X[:-1], np.column_stack([X[-1], np.ones(len(X[-1]))])]
