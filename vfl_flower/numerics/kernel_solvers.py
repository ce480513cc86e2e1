r"""Kernel machines on random features given as angles: losses and exact solvers.

All solvers minimise, for each column y of the labels and for a strength :math:`\lambda`
that the columns share,

.. math:: \frac1n \sum_i L(f(x_i), y_i) + \frac\lambda2 |w|^2, \qquad
          f(x) = z(x)^T w + b, \qquad z = \phi / \sqrt M

(equation 1 of [1] with M random features for the kernel: :math:`z(x)^T z(x') \approx
K(x, x')`, so :math:`|w|` replaces :math:`\|f\|_{\mathcal H}`). The intercept b is free.
The n x M features are never in memory all at once. They are computed from the angles
block by block, once for the principal axes of the centred features,

.. math:: U = (Z - 1 \mu^T) V, \quad U^T U = \mathrm{diag}(s), \quad w = V a,

and then once or twice per iteration. On these axes, the square loss is solved for all
:math:`\lambda` at once. For the other losses, :math:`h s / n + \lambda` replaces the
Hessian, where h is the mean curvature of the loss.

[1] B. Gu, Z. Dang, X. Li and H. Huang, "Federated doubly stochastic kernel learning
for vertically partitioned data", KDD 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from vfl_flower.numerics.random_features import features
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

LossName = Literal["logistic", "smooth_hinge", "square"]
"""Names of the losses in `LOSSES`."""

BLOCK_BYTES = 2**22
"""Size of a block of features, small enough for a processor's cache."""

GRID = 10.0 ** np.arange(-10, 3.25, 0.5)
"""Strengths tried with the square loss: 1e-10 to 1e3 in steps of half a decade."""

PATH = 10.0 ** np.arange(0, -10.5, -1)
"""Strengths tried with the other losses, in this order: 1 to 1e-10."""

CV_TOL, CV_ITER = 3e-2, 30
"""`tol` and `max_iter` of fits that only rank strengths; see `fit`."""

Score = tuple[float, float]
"""Selection criterion and tie-breaker on the rows left out; smaller is better."""


@dataclass(frozen=True)
class Loss:
    """A loss from Table 1 of [1], for scores u and labels y of the same shape."""

    value: Callable[[Array, Array], Array]
    derivative: Callable[[Array, Array], Array]
    second: Callable[[Array, Array], Array]
    """L(u, y), L'(u, y) and L''(u, y), with derivatives in u, elementwise."""
    slope: float
    """M, the bound on |L'|; infinite for the square loss."""
    curvature: float
    """The bound on L''."""


def sigmoid(z: Array) -> Array:
    """Return 1 / (1 + exp(-z)) without overflow, accurate for small and large z."""
    tail = np.exp(-np.abs(z))
    return np.asarray(np.where(z < 0, tail, 1.0) / (1 + tail))


def _clipped(u: Array, y: Array) -> Array:
    return np.asarray(np.clip(1 - y * u, 0, 1))


def _hinge_value(u: Array, y: Array) -> Array:
    c = _clipped(u, y)
    return np.asarray(c * (1 - y * u) - c**2 / 2)


LOSSES = {
    "square": Loss(
        value=lambda u, y: (u - y) ** 2,
        derivative=lambda u, y: 2 * (u - y),
        second=lambda u, y: np.full_like(u, 2.0),
        slope=math.inf,
        curvature=2.0,
    ),
    "logistic": Loss(
        value=lambda u, y: np.logaddexp(0, -y * u),
        derivative=lambda u, y: -y * sigmoid(-y * u),
        second=lambda u, y: sigmoid(u) * sigmoid(-u),
        slope=1.0,
        curvature=0.25,
    ),
    "smooth_hinge": Loss(
        value=_hinge_value,
        derivative=lambda u, y: -y * _clipped(u, y),
        second=lambda u, y: ((y * u >= 0) & (y * u < 1)).astype(float),
        slope=1.0,
        curvature=1.0,
    ),
}
"""The losses of Table 1 of [1]."""


@shapes_only
@dataclass(frozen=True, eq=False)
class Fit:
    r"""The result of `fit`: :math:`f(x) = z(x)^T w + b`, :math:`z = \phi / \sqrt M`."""

    coef: Array
    intercept: Array
    """w, (M, C), and b, (C,), in the unit of y."""
    regularization: float
    """lambda, given or chosen."""
    cv_score: float | None = None
    """The score on left-out rows by which `regularization` was chosen: the share of
    misclassified rows, or the mean squared error divided by the labels' variance."""
    converged: bool = True
    path: tuple[tuple[float, float], ...] = ()
    """Each strength that was tried, with its score."""
    left_out: Array | None = None
    """f of each row from a fit without that row, (n, C): by folds or by `leave_out`."""
    turn: Array | None = None
    """With `earlier`: the factor that multiplies `earlier` in f, of shape (C,)."""


def fit(
    angles: Array,
    Y: Array,
    loss: str,
    regularization: float | None,
    rng: np.random.Generator,
    *,
    classes: bool | None = None,
    weights: Array | None = None,
    offset: Array | None = None,
    earlier: Array | None = None,
    folds: int = 5,
    leave_out: bool = False,
    tol: float = 1e-3,
    max_iter: int = 1000,
) -> Fit:
    r"""Minimise the objective above; choose :math:`\lambda` if it is not given.

    `angles`, (n, M), are summed over the parties. `Y`, (n, C), is one column of -1 and
    +1; or one column per class (one-vs-rest), with one +1 in each row; or, for the
    square loss, any real columns. Each column must have two different values. `classes`
    is true if `Y` holds classes; by default, it is true if all values are -1 or +1.

    Without a `regularization`, :math:`\lambda` is chosen: for the square loss from
    `GRID` by exact leave-one-out, and for the other losses from `PATH` by
    cross-validation with folds drawn by `rng`. For classes, the best strength has the
    smallest share of misclassified rows, with ties broken by the mean loss; for real
    labels, it has the smallest squared error. Leave-one-out keeps the factor n of the
    penalty :math:`n \lambda |w|^2 / 2` of the summed loss, as scikit-learn's
    ``RidgeCV`` does. The search along `PATH` ends after two strengths in a row that
    improve neither the errors nor the loss on the rows left out, or after one such
    strength whose fits also fail to reach the optimum in `CV_ITER` steps.

    `weights`, (n,), above 0, determine how much each row counts, both in the mean loss
    and in the criterion by which the strength is chosen. `offset`, (n, C), in the unit
    of y, is added to f. With `weights` or `offset`, the square loss has no
    leave-one-out, and is solved like the other losses. `earlier`, (n, C), is a term of
    `offset`; its factor in f is also fitted, with only the penalty of `LARGEST_TURN`.
    For the square loss without `weights` and `offset`, `leave_out` also returns f of
    each row from a fit without that row.

    The iteration ends when, for each column, :math:`g^T B^{-1} g` is at most `tol`
    squared times the objective. Here g is the gradient, and B would be the Hessian if
    the curvature of the loss were the same in each row; :math:`g^T B^{-1} g` is about
    twice the gap to the optimum. There are at most `max_iter` steps, each with two
    passes over the features. If `max_iter` or `tol` is too small, `converged` is false.
    """
    if classes is None:
        classes = bool((np.abs(Y) == 1).all())
    center, scale = np.zeros(Y.shape[1]), np.ones(Y.shape[1])
    if not classes:
        center = Y.mean(axis=0)
        scale = np.abs(Y - center).max(axis=0)  # so that no square leaves the range
        scale *= ((Y - center) / scale).std(axis=0)
    Y = (Y - center) / scale
    free = [np.ones((1, Y.shape[1]))]
    if earlier is not None:
        spread = earlier.std(axis=0)
        spread[spread == 0] = 1.0
        free.insert(0, (earlier - earlier.mean(axis=0)) / spread)
    axes = _Axes(angles)
    if loss == "square" and weights is None and offset is None:
        X, lam, path = _ridge(axes, Y, regularization, classes)
        converged = True
        left_out = _left_out(axes, Y, X, lam) if leave_out else None
    else:
        start, path, left_out = None, {}, None
        shift = np.zeros((1, Y.shape[1]))
        if offset is not None:
            shift = (offset - center) / scale
        task = _Task(axes, Y, LOSSES[loss], shift, free)
        if regularization is None:
            start, path, left_out = _cross_validate(task, classes, folds, rng, weights)
        lam = regularization or min(path, key=path.__getitem__)
        rows = np.ones(len(Y)) if weights is None else weights
        mean = (rows / rows.sum())[:, None]
        X, _, converged = _minimise(task, mean, lam, start, tol, max_iter)
    coef, turn = axes.coefficients(X[: len(axes.s)]), None
    intercept = (X[-1] - axes.mean @ coef) * scale
    if offset is None:
        intercept += center
    if earlier is not None:
        turn = X[-2] * scale / spread
        intercept -= turn * earlier.mean(axis=0)
    return Fit(
        coef=coef * scale,
        intercept=intercept,
        regularization=lam,
        cv_score=path[lam][0] if path else None,
        converged=converged,
        path=tuple((tried, score) for tried, (score, _) in path.items()),
        left_out=None if left_out is None else left_out * scale + center,
        turn=turn,
    )


class _Axes:
    r"""Principal axes of the centred features, :math:`U = (Z - 1 \mu^T) V`.

    With fewer rows than features (the dual), U itself is stored, computed from the
    eigenvectors of :math:`U U^T`; otherwise V is stored, and U is computed in blocks of
    rows.
    """

    def __init__(self, angles: Array) -> None:
        from scipy.linalg import eigh
        from scipy.linalg.blas import dsyrk

        self.n, M = angles.shape
        self._angles, self._dual = angles, self.n < M
        self.mean = np.zeros(M)
        for _, Z in _blocks(angles, M):
            self.mean += Z.sum(axis=0) / self.n
        gram = np.zeros((min(self.n, M),) * 2, order="F")
        for _, Z in self._columns() if self._dual else self._rows():
            gram = dsyrk(1.0, Z.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
        s, V = eigh(gram, lower=True, overwrite_a=True, driver="evd")
        # Ascending. A direction without spread, in which only rounding errors remain,
        # is not an axis.
        noise = len(s) * np.finfo(np.float64).eps * s[-1]
        first = int(np.searchsorted(s, noise, side="right"))
        self.s, self._V = s[first:], V[:, first:]
        if self._dual:
            self._V *= np.sqrt(self.s)

    def _rows(self) -> Iterator[tuple[slice, Array]]:
        """Yield the centred features in blocks of rows."""
        for rows, Z in _blocks(self._angles, len(self.mean)):
            Z -= self.mean
            yield rows, Z

    def _columns(self) -> Iterator[tuple[slice, Array]]:
        """Yield the centred features, transposed, in blocks of features."""
        for columns, Z in _blocks(self._angles.T, len(self.mean)):
            Z -= self.mean[columns, None]
            yield columns, Z

    def rows(self) -> Iterator[tuple[slice, Array]]:
        """Yield U in blocks of rows."""
        step = max(1, BLOCK_BYTES // (8 * len(self.s) + 1))
        if self._dual:
            for start in range(0, self.n, step):
                yield slice(start, start + step), self._V[start : start + step]
        else:
            for rows, Z in self._rows():
                yield rows, Z @ self._V

    def forward(self, A: Array) -> Array:
        """Return U A, of shape (n, K)."""
        if self._dual:
            return np.asarray(self._V @ A)
        W, scores = self._V @ A, np.empty((self.n, A.shape[1]))
        for rows, Z in self._rows():
            scores[rows] = Z @ W
        return scores

    def backward(self, R: Array) -> Array:
        """Return U^T R, of shape (r, K)."""
        if self._dual:
            return np.asarray(self._V.T @ R)
        total = np.zeros((len(self.mean), R.shape[1]))
        for rows, Z in self._rows():
            total += Z.T @ R[rows]
        return np.asarray(self._V.T @ total)

    def coefficients(self, A: Array) -> Array:
        """Return w = V A, of shape (M, K)."""
        if not self._dual:
            return np.asarray(self._V @ A)
        dual = self._V @ (A / self.s[:, None])
        w = np.empty((len(self.mean), A.shape[1]))
        for columns, Z in self._columns():
            w[columns] = Z @ dual
        return w


def _blocks(angles: Array, M: int) -> Iterator[tuple[slice, Array]]:
    """Yield z = phi / sqrt(M) for blocks of rows, in one writable buffer."""
    step = max(1, BLOCK_BYTES // (8 * angles.shape[1]))
    buffer = np.empty((min(step, len(angles)), angles.shape[1]))
    for start in range(0, len(angles), step):
        rows = slice(start, min(start + step, len(angles)))
        Z = features(angles[rows], out=buffer[: rows.stop - start])
        Z /= math.sqrt(M)
        yield rows, Z


def _wrong(scores: Array, Y: Array) -> Array:
    """Return which rows are misclassified; the last axis of `scores` is the columns."""
    if Y.shape[-1] == 1:  # a score of 0 means class -1, as in `answers`
        return np.asarray(((scores > 0) != (Y > 0))[..., 0])
    return np.asarray(scores.argmax(axis=-1) != Y.argmax(axis=-1))


def _ridge(
    axes: _Axes, Y: Array, regularization: float | None, classes: bool
) -> tuple[Array, float, dict[float, Score]]:
    r"""Minimise the square loss: :math:`a = (S + n \lambda / 2)^{-1} U^T y`.

    The leave-one-out residuals are :math:`r_i / (1 - h_i)` with
    :math:`h_i = 1/n + \sum_k u_{ik}^2 / (s_k + n \lambda / 2)`. Returns a, with the
    intercept as its last row, (r + 1, C); :math:`\lambda`; and, unless `regularization`
    is given, the score of each strength in `GRID`.
    """
    n, b = axes.n, Y.mean(axis=0)
    target = axes.backward(Y - b)
    path: dict[float, Score] = {}
    if regularization is None:
        inverse = 1 / (axes.s[:, None] + n / 2 * GRID)
        A = (inverse[:, :, None] * target[:, None, :]).reshape(len(target), -1)
        squares, errors = np.zeros((2, len(GRID)))
        for rows, U in axes.rows():
            known = Y[rows, None, :]
            fitted = (U @ A).reshape(len(U), len(GRID), -1) + b
            residuals = (known - fitted) / (1 - 1 / n - U**2 @ inverse)[:, :, None]
            squares += (residuals**2).mean(axis=2).sum(axis=0) / n
            if classes:
                errors += _wrong(known - residuals, known).sum(axis=0) / n
        for lam, error, square in zip(GRID, errors, squares, strict=True):
            score = (float(error), float(square))
            path[float(lam)] = score if classes else score[::-1]
    lam = regularization or min(path, key=path.__getitem__)
    return np.vstack([target / (axes.s + n / 2 * lam)[:, None], b]), lam, path


def _left_out(axes: _Axes, Y: Array, X: Array, lam: float) -> Array:
    """Return each row's ridge prediction without that row, (n, C); see `_ridge`."""
    n, inverse = axes.n, 1 / (axes.s + axes.n / 2 * lam)
    without = np.empty_like(Y)
    for rows, U in axes.rows():
        residuals = Y[rows] - U @ X[:-1] - X[-1]
        without[rows] = Y[rows] - residuals / (1 - 1 / n - U**2 @ inverse)[:, None]
    return without


@shapes_only
class _Task(NamedTuple):
    """The labels y and the known terms of f = U a + b + ..; see `_minimise`."""

    axes: _Axes
    Y: Array
    """Shape (n, K)."""
    loss: Loss
    offset: Array
    """Term added to f, of shape (n, K) or (1, K)."""
    free: Sequence[Array]
    """Columns, (n, K) or (1, K), whose multiples are added to f; the last is ones."""


def _cross_validate(
    task: _Task,
    classes: bool,
    folds: int,
    rng: np.random.Generator,
    weights: Array | None,
) -> tuple[Array, dict[float, Score], Array]:
    """Try the strengths in `PATH`, starting each fit from the previous solution.

    All folds and classes are columns of one problem. Returns the mean solution of the
    folds at the best strength, (r + k, C), the score of each strength tried, and, at
    the best strength, f of the rows left out, (n, C).
    """
    axes, Y, loss, offset, free = task
    n, C = Y.shape
    order = rng.permutation(n)
    label = Y.argmax(axis=1) if C > 1 else Y[:, 0]
    fold = np.empty(n, dtype=np.int64)
    fold[order[np.argsort(label[order], kind="stable")]] = np.arange(n) % folds
    trained = fold[:, None] != np.arange(folds)
    if weights is not None:
        trained = weights[:, None] * trained
    W = np.repeat(trained / trained.sum(axis=0), C, axis=1)
    Ys, offsets, *columns = (np.tile(x, folds) for x in (Y, offset, *free))
    all_folds = _Task(axes, Ys, loss, offsets, columns)
    X: Array | None = None
    path: dict[float, Score] = {}
    idle, least = 0, (math.inf, math.inf)
    for lam in PATH.tolist():
        X, F, reached = _minimise(all_folds, W, lam, X, CV_TOL, CV_ITER)
        left_out = F.reshape(n, folds, C)[np.arange(n), fold]
        wrong, losses = _wrong(left_out, Y), loss.value(left_out, Y)
        score = float(wrong.mean()), float(losses.mean())
        if weights is not None:
            part = weights / weights.sum()
            score = float(part @ wrong), float(part @ losses.mean(axis=1))
        if not classes:
            score = score[::-1]
        if not path or score < min(path.values()):
            start, best = X.reshape(-1, folds, C).mean(axis=1), left_out
        path[lam] = score
        idle = 0 if score[0] < least[0] or score[1] < least[1] else idle + 1
        least = min(least[0], score[0]), min(least[1], score[1])
        if idle == 2 or (idle and not reached):
            break
    return start, path, best


LARGEST_TURN = 10.0
"""Standard deviation of a Gaussian prior on the effect of `earlier` on a score. Without
this prior, the loss has no optimum if `earlier` separates the classes."""


def _minimise(
    task: _Task, W: Array, lam: float, start: Array | None, tol: float, max_iter: int
) -> tuple[Array, Array, bool]:
    r"""Minimise the weighted loss plus the penalty in each column.

    The objective of column k is
    :math:`\sum_i W_{ik} L(f_{ik}, y_{ik}) + \lambda |a_k|^2 / 2`.
    L-BFGS runs on all columns at once, with each objective divided by its initial
    value. The variable is scaled by the square root of B (see `fit`). L-BFGS restarts
    whenever the mean curvature of the loss has changed by a factor of 4, because the
    curvature approaches 0 as the loss does.

    f = U a + b + `offset`, (n, K). x, (r + k, K), stacks a and the coefficients of the
    k columns in `free`; its last row is b; `start` is the initial x, 0 by default. `W`,
    (n, K) or (n, 1), are weights of the rows, which add up to 1. The last column in
    `free` is ones, without a penalty. The other columns in `free` have a mean square of
    1 or are zeros, and their multiples have the penalty of `LARGEST_TURN`. Returns x,
    f, and whether all columns have reached the optimum.
    """
    from scipy.optimize import minimize

    axes, Y, loss, offset, free = task
    r, k = len(axes.s), len(free)
    penalty = np.full((r + k, 1), float(lam))
    penalty[r:] = 1 / (axes.n * LARGEST_TURN**2)
    penalty[-1] = 0
    spread = np.append(axes.s / axes.n, np.ones(k))[:, None]
    X = np.zeros((len(spread), Y.shape[1])) if start is None else start

    def evaluate(X: Array) -> tuple[Array, Array, Array, Array]:
        """Return the objectives, their gradients, f and the diagonals of B."""
        F = axes.forward(X[:r])
        for x, column in zip(X[r:], free, strict=True):
            F += x * column
        F += offset
        R = W * loss.derivative(F, Y)
        slopes = [(R * column).sum(axis=0) for column in free]
        G = np.vstack([axes.backward(R), *slopes]) + penalty * X
        value = (W * loss.value(F, Y)).sum(axis=0) + (penalty * X**2).sum(axis=0) / 2
        curvature = (W * loss.second(F, Y)).sum(axis=0)
        # At least the curvature of one row: a hinge loss can have no curvature in any
        # row.
        B = np.maximum(curvature, loss.curvature / axes.n) * spread + penalty
        return value, G, F, B

    now, calls = evaluate(X), 0
    origin, (unit, _, _, B) = X, now

    def close() -> bool:
        value, G, _, B = now
        return bool(((G**2 / B).sum(axis=0) <= tol**2 * value).all())

    def scaled(z: Array) -> tuple[float, Array]:
        nonlocal X, now, calls
        root = np.sqrt(B / unit)
        if z.any():  # 0 is the origin, whose value is known
            X = origin + z.reshape(X.shape) / root
            now, calls = evaluate(X), calls + 1
        return float((now[0] / unit).sum()), (now[1] / unit / root).ravel()

    def stop(intermediate_result: object) -> None:
        changed = np.abs(np.log(now[3][-1] / B[-1])).max() > math.log(4)
        if changed or calls >= max_iter or close():
            raise StopIteration

    while not close() and calls < max_iter:
        origin, (unit, _, _, B) = X, now
        result = minimize(
            scaled,
            np.zeros(X.size),
            jac=True,
            method="L-BFGS-B",
            callback=stop,
            options={"ftol": 0, "gtol": 0, "maxiter": max_iter, "maxfun": max_iter},
        )
        best = origin + result.x.reshape(X.shape) / np.sqrt(B / unit)
        if (best != X).any():  # a line search failed, and X is the last point it tried
            X, now = best, evaluate(best)
        if not result.nit:  # every possible descent is below the rounding error
            break
    return X, now[2], close()
