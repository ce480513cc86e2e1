r"""Ridge regression from the Gram matrices of two halves of the rows, and nothing else.

The rows are split in two halves. Of each half k only the sums of products are known,

.. math:: G_k = [\Phi_k, Y_k, 1]^T [\Phi_k, Y_k, 1],

with M features, K targets and a column of ones. The features come in blocks, and block
b has a penalty :math:`d_b` of its own, so its kernel has the weight :math:`1 / d_b`:

.. math:: W = (S + n D)^{-1} C, \qquad S = \Phi_c^T \Phi_c, \quad C = \Phi_c^T Y_c,

about the means of the rows of the fit. The penalties are those with the smallest mean
squared error of a fit on each half, judged on the other,

.. math:: L(d) = \tfrac12 \sum_k \frac1{n_{1-k}} \| Y_{1-k} - \Phi_{1-k} W_k - a_k\|^2,

which is a quadratic form in :math:`G_{1-k}`. Its gradient needs one more solve with the
same factor: with :math:`P = (S + n D)^{-1} \partial L / \partial W`,
:math:`\partial L / \partial \log d_b = - n d_b \sum_{j \in b} P_j \cdot W_j`. So a
search over any number of blocks takes two factorisations a step.

Classes are columns of -1 and +1, one for two classes and one a class for more. Least
squares estimate the probability of a class by (1 + f) / 2, so scores become
probabilities by the line that fits the targets of the other half best; its values below
`TAIL` of what the class has without the features shrink towards 0 and stay positive.
Noise, and weights of classes, need log odds: by linear discriminant analysis of the
scores of the other half, whose class means and common covariance follow from the same
sums. Weights of classes are other prior probabilities: the Gram matrix of rows with
weights would need the weights, and so the classes, at all parties; and where the
classes have one covariance, only the intercept changes, since the coefficients point
along
:math:`(S_w + n D)^{-1} (\mu_+ - \mu_-)` whatever the weights are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

__all__ = ["Block", "GramFit", "Target", "fit_grams", "probabilities"]

Target = Literal["continuous", "classes"]
"""Real targets, or -1 and +1."""

STARTS = 10.0 ** np.arange(-6.0, 2.0)
"""Penalties, in the variance of a whole block, of which the best one starts: first one
for all blocks, then block by block."""

STEPS = 12
"""Most steps of a search over the penalties of the blocks."""

PASSES, GAIN = 4, 1e-4
"""Most searches, each from where the one before ended, and the share of the error that
each must gain. Where one of them alone ends, the last digits of the Gram matrices may
decide."""

THIN = 768
"""Number of features beyond which the search begins with about so many of them. The
kernel of a block is the same with fewer of its random features, and so is its weight;
`POLISH` steps with all of them follow."""

POLISH = 5
"""See `THIN`."""

LEAST_WITHIN = 0.05
"""Smallest variance of scores within classes, in that of all scores, under noise."""

TAIL = 0.2
"""Share of p_c (1 - R^2) below which a probability of class c is no longer linear: the
features do not explain as much. Mean log loss on eight data sets, in that of logistic
regression: 0.98 for 0.05 and 0.4, 0.97 for 0.1 and 0.2, 1.07 by log odds."""

LARGEST = 1e3
"""Largest penalty in the variance of a whole block: nothing of it is left."""


class Block(NamedTuple):
    """Consecutive features with one penalty.

    Attributes
    ----------
    name : str
        For people.
    start, stop : int
        Its features.
    """

    name: str
    start: int
    stop: int


@shapes_only
@dataclass(frozen=True)
class GramFit:
    """A ridge regression, and what sums tell of it.

    Attributes
    ----------
    weights : Array, shape (M, K)
        W, in units of the targets.
    intercept : Array, shape (K,)
        In units of the targets.
    alpha : float
        The smallest penalty of a block.
    block_weights : Array, shape (blocks,)
        sqrt(alpha / d_b), in (0, 1].
    error : Array, shape (K,)
        Mean squared error of each target, of fits on a half judged on the other.
    error_se : Array, shape (K,)
        Its standard error: the larger one of half the difference of the two halves and
        ``error sqrt(2 / n)``, that of normal residuals. Fourth powers of residuals are
        no sums of products; with heavy tails the true one is larger.
    variance : Array, shape (K,)
        Of the targets: the error of their mean.
    slope : Array, shape (K, K), or None
        Of classes: ``scores @ slope + offset`` are probabilities up to `tail`; without
        a tail log odds for one target, and for more, up to a constant a row, logarithms
        of the probabilities.
    offset : Array, shape (K,), or None
        See there.
    tail : Array, shape (classes,), or None
        Probabilities below which those of a class shrink.
    """

    weights: Array
    intercept: Array
    alpha: float
    block_weights: Array
    error: Array
    error_se: Array
    variance: Array
    slope: Array | None = None
    offset: Array | None = None
    tail: Array | None = None

    def scores(self, features: Array) -> Array:
        """Return f of rows of features, shape (rows, K)."""
        scores: Array = features @ self.weights + self.intercept
        return scores

    def probabilities(self, scores: Array) -> Array:
        """Return the probability of each class; of one target, that of +1.

        Parameters
        ----------
        scores : Array, shape (rows, K)
            f.

        Returns
        -------
        Array, shape (rows, K)
            Rows of several targets sum to 1.

        Raises
        ------
        ValueError
            The targets are real numbers.
        """
        if self.slope is None or self.offset is None:
            raise ValueError("probabilities must be of classes, and targets are real")
        return probabilities(scores, self.slope, self.offset, self.tail)


def probabilities(
    scores: Array, slope: Array, offset: Array, tail: Array | None = None
) -> Array:
    """Return the probability of each class, shape (rows, K); of one target, that of +1.

    Parameters
    ----------
    scores : Array, shape (rows, K)
        f.
    slope, offset, tail : Array, shape (K, K), (K,) and (classes,)
        Those of :class:`GramFit`.

    Notes
    -----
    Below its tail t, a share x becomes ``t^2 / (2 t - x)``: continuous, with the slope
    1 at t, increasing and positive.
    """
    logits = scores @ slope + offset
    if tail is not None:
        one = logits.shape[1] == 1
        shares = np.hstack([1 - logits, logits]) if one else logits
        small = tail**2 / (2 * tail - np.minimum(shares, tail))
        shares = np.maximum(shares, small)
        return np.asarray((shares / shares.sum(axis=1, keepdims=True))[:, one:])
    if logits.shape[1] == 1:
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * logits))
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


@shapes_only
@dataclass(frozen=True)
class _Half:
    """Sums of products about the means of n rows: of features and targets.

    Attributes
    ----------
    S : Array, shape (M, M)
        Of features.
    C : Array, shape (M, K)
        Of features and targets.
    T : Array, shape (K, K)
        Of targets.
    mean, y_mean : Array, shape (M,) and (K,)
        The means.
    n : float
        Number of rows.
    """

    S: Array
    C: Array
    T: Array
    mean: Array
    y_mean: Array
    n: float


def _about_means(gram: Array, M: int) -> _Half:
    n = float(gram[-1, -1])
    mean = gram[:-1, -1] / n
    sums = gram[:-1, :-1] - np.outer(n * mean, mean)
    sums = np.asarray(0.5 * (sums + sums.T))
    return _Half(sums[:M, :M], sums[:M, M:], sums[M:, M:], mean[:M], mean[M:], n)


def _without_negative(half: _Half) -> _Half:
    """Return the half with the nearest sums of features that a half can have."""
    values, vectors = np.linalg.eigh(half.S)
    return replace(half, S=(vectors * np.maximum(values, 0.0)) @ vectors.T)


def _together(first: _Half, second: _Half) -> _Half:
    """Return the sums over both halves, about the means of all rows."""
    n = first.n + second.n
    share = first.n * second.n / n
    step, y_step = first.mean - second.mean, first.y_mean - second.y_mean
    return _Half(
        first.S + second.S + np.outer(share * step, step),
        first.C + second.C + np.outer(share * step, y_step),
        first.T + second.T + np.outer(share * y_step, y_step),
        (first.n * first.mean + second.n * second.mean) / n,
        (first.n * first.y_mean + second.n * second.y_mean) / n,
        n,
    )


def fit_grams(
    halves: Sequence[Array],
    blocks: Sequence[Block],
    kind: Target,
    *,
    class_weights: Array | None = None,
    noise: float = 1e-6,
    deviation: float = 0.0,
    target_deviation: float | None = None,
) -> GramFit:
    r"""Choose the penalties by the halves, and fit on all rows.

    Parameters
    ----------
    halves : two Arrays, shape (M + K + 1, M + K + 1)
        Sums of products of M features, K targets and a column of ones.
    blocks : sequence of Block
        Of the M features, in order and without gaps.
    kind : {"continuous", "classes"}
        Of classes the targets are -1 and +1: one for two classes, else one a class.
    class_weights : Array, shape (classes,), optional
        How much a row of each class counts, for the offset: for one target first -1,
        then +1. Default: all alike.
    noise : float
        Errors of G, relative to the lengths of the two columns. No penalty is below
        ``10 noise sqrt(M)`` of the largest mean square of a feature of its block, ten
        times what such errors can make of a direction without variance.
    deviation : float
        Standard deviation of independent noise in the entries of G that have features;
        0: there is none. With noise the sums of features are replaced by the nearest
        ones without negative eigenvalues, and no penalty is below a quarter of the
        largest eigenvalue of such noise, ``2 deviation sqrt(M)``. Ridges of about that
        size are those of O. Sheffet ("Old Techniques in Differentially Private Linear
        Regression", ALT 2019) and Y.-X. Wang ("Revisiting differentially private linear
        regression", UAI 2018); here the other half chooses them. Scores of classes are
        then log odds, and `slope` and `offset` change nothing.
    target_deviation : float, optional
        That of the entries of features with targets; default: the same. Noise of both
        makes the error of a half on the other one uncertain, by a deviation of
        ``(sqrt(2) deviation |w|^2 + 2 target_deviation |w|) / n`` at most, which is
        added to it: or the least error would be one that noise makes small.

    Returns
    -------
    GramFit
        The model of all rows.

    Raises
    ------
    ValueError
        The halves, blocks or class weights do not fit, a sum is not finite, a half has
        fewer than two rows, or no penalty gives a fit.

    Notes
    -----
    About 20 Cholesky factorisations of order M, and of order `THIN` up to 16 for each
    block and 64 more; if M is smaller, of order M up to four times as many.
    Memory is that of five matrices of order M beside `halves`.
    """
    M = _check(halves, blocks, kind)
    first, second = (_about_means(np.asarray(gram, np.float64), M) for gram in halves)
    if deviation:
        first, second = _without_negative(first), _without_negative(second)
    squares = np.add(*(np.diag(gram)[:M] for gram in halves)) / (first.n + second.n)
    largest = [squares[b.start : b.stop].max(initial=0.0) for b in blocks]
    sizes = [block.stop - block.start for block in blocks]
    block = np.repeat(np.arange(len(sizes)), sizes)
    least = deviation * np.sqrt(M) / (first.n + second.n)
    floors = np.maximum(10 * noise * np.sqrt(M) * np.array(largest), least)
    spread = deviation, deviation if target_deviation is None else target_deviation
    search = _Search(first, second, block, least, spread)
    levels = [*STARTS, LARGEST] if deviation else STARTS
    starts = [np.full(len(sizes), np.log(start)) for start in levels]
    if M > THIN:
        thin = _thinned(sizes, THIN)
        parts = _part(first, thin), _part(second, thin)
        few = _Search(*parts, block[thin], least, spread)
        logs = few.best(starts, STEPS, floors)
        logs = search.best([logs], POLISH, floors)
    else:  # noise makes runs differ by far more
        logs = search.best(starts, STEPS, floors, 1 if deviation else PASSES)
    penalties = np.exp(logs) * search.units
    each = penalties[block]
    models = [
        (_solve(half, each)[0], half, other)
        for half, other in ((first, second), (second, first))
    ]
    errors = np.array([_errors(*m) + _uncertain(m[0], spread) / m[2].n for m in models])
    whole = _together(first, second)
    # Noise of both halves together is less of their rows by sqrt(2).
    W, _ = _solve(whole, each / np.sqrt(2) if deviation else each)
    error = errors.mean(axis=0)
    difference = np.abs(errors[0] - errors[1]) / 2
    alpha = float(penalties.min(initial=LARGEST))
    fit = GramFit(
        weights=W,
        intercept=whole.y_mean - whole.mean @ W,
        alpha=alpha,
        block_weights=np.sqrt(alpha / penalties),
        error=error,
        error_se=np.maximum(difference, error * np.sqrt(2 / whole.n)),
        variance=np.diag(whole.T) / whole.n,
    )
    if kind == "continuous":
        return fit
    if not (whole.n * (1 - np.abs(whole.y_mean)) / 2 >= 1).all():
        raise ValueError("targets must be -1 and +1, and have rows of each class")
    if not deviation and class_weights is None:
        slope, offset, tail = _linear(models, error)
        return replace(fit, slope=slope, offset=offset, tail=tail)
    least = LEAST_WITHIN if deviation else 0.0
    slope, offset = _calibrated(models, class_weights, least)
    if deviation:  # large penalties move the border: take the scores for log odds
        fit = replace(fit, weights=W @ slope, intercept=fit.intercept @ slope + offset)
        slope, offset = np.eye(len(offset)), np.zeros(len(offset))
    return GramFit(**{**vars(fit), "slope": slope, "offset": offset})


def _check(halves: Sequence[Array], blocks: Sequence[Block], kind: Target) -> int:
    """Return M."""
    M = blocks[-1].stop if blocks else 0
    starts = [0, *(block.stop for block in blocks[:-1])]
    if any(
        block.start != start or block.stop < start
        for block, start in zip(blocks, starts, strict=False)
    ):
        raise ValueError("blocks must follow each other without gaps from feature 0")
    if len(halves) != 2:
        raise ValueError(f"halves must be 2 Gram matrices, got {len(halves)}")
    size = len(halves[0])
    if any(gram.shape != (size, size) for gram in halves) or size < M + 2:
        raise ValueError(
            f"halves must be square, of {M} features, targets and ones, got shapes "
            f"{' and '.join(str(gram.shape) for gram in halves)}"
        )
    if not all(np.isfinite(gram).all() for gram in halves):
        raise ValueError("halves must be of finite sums")
    if min(gram[-1, -1] for gram in halves) < 2:
        raise ValueError("halves must be of at least 2 rows each")
    K = size - M - 1
    if kind == "classes" and K == 2:
        raise ValueError("two classes must be one target of -1 and +1, got 2 targets")
    return M


class _Search:
    """The error of the other half, as a function of the penalties of the blocks.

    Parameters
    ----------
    first, second : _Half
        The halves.
    block : Array of int, shape (M,)
        The block of each feature.
    least : float
        Smallest unit of a penalty: noise can leave nothing of a whole block.
    spread : tuple of two floats
        Deviations of noise of features, and of features with targets.
    """

    def __init__(
        self,
        first: _Half,
        second: _Half,
        block: Array,
        least: float = 0.0,
        spread: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.block, self.count = block, int(block.max(initial=-1)) + 1
        self._pairs, self._spread = ((first, second), (second, first)), spread
        n = first.n + second.n
        variances = (np.diag(first.S) + np.diag(second.S)) / n
        total = np.bincount(block, weights=variances, minlength=self.count)
        self.units = np.maximum(np.where(total > 0, total, 1.0), least)
        targets = (np.diag(first.T) + np.diag(second.T)) / n
        self._scales = np.where(targets > 0, targets, 1.0) * len(targets)

    def __call__(self, logs: Array) -> tuple[float, Array]:
        """Return L, relative to the variance of the targets, and its gradient.

        Parameters
        ----------
        logs : Array, shape (blocks,)
            log d_b, in units of the variance of a whole block.
        """
        penalties = (np.exp(logs) * self.units)[self.block]
        total, gradient = 0.0, np.zeros(self.count)
        for half, other in self._pairs:
            try:
                W, factor = _solve(half, penalties)
            except np.linalg.LinAlgError:
                return LARGEST, np.zeros(self.count)
            shift = (half.mean - other.mean) @ W - (half.y_mean - other.y_mean)
            errors = _errors(W, half, other)
            errors += _uncertain(W, self._spread) / other.n
            if (errors < 0).any():  # of noise that large weights make larger
                return LARGEST, np.zeros(self.count)
            total += float((errors / self._scales).sum()) / 2
            slopes = (other.S @ W - other.C) / other.n
            slopes += np.outer(half.mean - other.mean, shift)
            of_features, of_targets = self._spread
            lengths = np.maximum(np.linalg.norm(W, axis=0), 1e-300)
            slopes += W * (np.sqrt(2) * of_features + of_targets / lengths) / other.n
            P = _solved(factor, slopes / self._scales)
            products = half.n * penalties * (P * W).sum(axis=1)
            gradient -= np.bincount(self.block, products, minlength=self.count)
        return total, gradient

    def best(
        self, starts: Sequence[Array], steps: int, floors: Array, passes: int = 1
    ) -> Array:
        """Return the best logs that are found in some steps from the best start.

        Parameters
        ----------
        starts : sequence of Array, shape (blocks,)
            As in :meth:`__call__`.
        steps : int
            Most steps of L-BFGS.
        floors : Array, shape (blocks,)
            Smallest penalties.
        passes : int
            Most searches, block by block and then by these steps.
        """
        from scipy.optimize import minimize

        if not self.count:
            return np.zeros(0)
        highs = np.full(self.count, np.log(LARGEST))
        lows = np.log(np.maximum(floors, 1e-12 * self.units) / self.units)
        lows = np.minimum(lows, highs)
        starts = [np.clip(start, lows, highs) for start in starts]
        losses = [self(start)[0] for start in starts]
        least, start = min(losses), starts[int(np.argmin(losses))]
        if least >= LARGEST:
            raise ValueError("halves must be Gram matrices: none of the fits is one")
        for _ in range(passes):
            before = least
            # A block of which little or all is left has no slope.
            for place in range(self.count if len(starts) > 1 else 0):
                tried = [start.copy() for _ in STARTS]
                for logs, level in zip(tried, STARTS, strict=True):
                    logs[place] = np.clip(np.log(level), lows[place], highs[place])
                losses = [self(logs)[0] for logs in tried]
                if min(losses) < least:
                    least, start = min(losses), tried[int(np.argmin(losses))]
            found = minimize(
                self,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=np.column_stack([lows, highs]),
                options={"maxiter": steps, "maxfun": 2 * steps, "gtol": 1e-7},
            )
            if found.fun < least:
                least, start = float(found.fun), np.asarray(found.x)
            if least > (1 - GAIN) * before:
                break
        return start


def _thinned(sizes: Sequence[int], most: int) -> Array:
    """Return about `most` features: all of small blocks, some of the others."""
    limit, left = 0.0, float(most)
    for rank, size in enumerate(sorted(sizes)):
        limit = left / (len(sizes) - rank)
        if size > limit:
            break
        left -= size
    else:
        limit = max(sizes)
    parts, start = [], 0
    for size in sizes:
        count = min(size, max(1, int(limit)))
        parts.append(start + np.arange(count) * size // max(count, 1))
        start += size
    return np.concatenate(parts)


def _part(half: _Half, kept: Array) -> _Half:
    S = half.S[np.ix_(kept, kept)]
    return _Half(S, half.C[kept], half.T, half.mean[kept], half.y_mean, half.n)


Factor = tuple[Array, bool]
Judged = tuple[Array, _Half, _Half]
"""W, the half that it was fitted on, and the other one."""


def _solve(half: _Half, penalties: Array) -> tuple[Array, Factor]:
    """Return W, and the factor of S + n D; a LinAlgError if there is none."""
    from scipy.linalg import cho_factor

    A = half.S.copy()
    A[np.diag_indices_from(A)] += half.n * penalties
    factor: Factor = cho_factor(A, lower=True, overwrite_a=True, check_finite=False)
    return _solved(factor, half.C), factor


def _solved(factor: Factor, right: Array) -> Array:
    from scipy.linalg import cho_solve

    return np.asarray(cho_solve(factor, right, check_finite=False))


def _errors(W: Array, half: _Half, other: _Half) -> Array:
    """Return the mean squared errors of a fit on a half, judged on the other."""
    shift = (half.mean - other.mean) @ W - (half.y_mean - other.y_mean)
    squares = np.einsum("jk,jk->k", W, other.S @ W - 2 * other.C) + np.diag(other.T)
    return np.asarray(squares / other.n + shift**2)


def _uncertain(W: Array, spread: tuple[float, float]) -> Array:
    """Return the deviation of n times an error of another half, by its noise."""
    lengths = np.linalg.norm(W, axis=0)
    return np.asarray(lengths * (np.sqrt(2) * spread[0] * lengths + 2 * spread[1]))


def _judged(models: Sequence[Judged]) -> list[tuple[float, Array, Array, Array, Array]]:
    """Return n, the means of f and y, and sums f^T y and f^T f of each other half."""
    sums = []
    for W, half, other in models:
        n, y_mean = other.n, other.y_mean
        f_mean = (other.mean - half.mean) @ W + half.y_mean
        with_y = W.T @ other.C + n * np.outer(f_mean, y_mean)
        squares = W.T @ other.S @ W + n * np.outer(f_mean, f_mean)
        sums.append((n, f_mean, y_mean, with_y, squares))
    return sums


def _linear(models: Sequence[Judged], error: Array) -> tuple[Array, Array, Array]:
    """Return slope, offset and tail of probabilities, by the scores of the other half.

    The line ``y = a + b f`` of each target alone, with 0 <= b <= 1.
    """
    parts = _judged(models)
    n = sum(part[0] for part in parts)
    f_mean = np.sum([part[0] * part[1] for part in parts], axis=0) / n
    y_mean = np.sum([part[0] * part[2] for part in parts], axis=0) / n
    with_y = np.diag(parts[0][3] + parts[1][3]) / n
    squares = np.diag(parts[0][4] + parts[1][4]) / n
    variance = np.maximum(squares - f_mean**2, 1e-300)
    b = np.clip((with_y - f_mean * y_mean) / variance, 0.0, 1.0)
    prior = (1 + y_mean) / 2
    unexplained = np.clip(error / np.maximum(1 - y_mean**2, 1e-300), 0.0, 1.0)
    if len(prior) == 1:
        prior = np.append(1 - prior, prior)
    tail = np.maximum(TAIL * prior * unexplained, 1e-9)
    return np.diag(b / 2), (1 + y_mean - b * f_mean) / 2, tail


def _calibrated(
    models: Sequence[Judged], class_weights: Array | None, least: float
) -> tuple[Array, Array]:
    """Return slope and offset of log odds, by the scores of the other half.

    With class means mu_c and the common covariance V of the scores, the log of the
    probability of c is, up to a constant,
    ``f V^-1 mu_c - mu_c V^-1 mu_c / 2 + log p_c``.
    """
    sums, K = [], len(models[0][1].y_mean)
    for n, f_mean, y_mean, with_y, squares in _judged(models):
        if K == 1:
            y_mean, with_y = np.append(-y_mean, y_mean), np.hstack([-with_y, with_y])
        of_class = 0.5 * (n * f_mean + with_y.T)
        sums.append((0.5 * n * (1 + y_mean), of_class, squares))
    counts, of_class, squares = (sum(part) for part in zip(*sums, strict=True))
    n = counts.sum()
    mu = of_class / counts[:, None]
    mean = counts @ mu / n
    within = (squares - (mu.T * counts) @ mu) / n
    spread = float(np.trace(squares / n - np.outer(mean, mean)))
    ridge = 1e-6 * spread * np.eye(K)
    within = 0.5 * (within + within.T) + ridge
    if least:  # noise can make any of it negative
        values, vectors = np.linalg.eigh(within)
        within = (vectors * np.maximum(values, least * abs(spread))) @ vectors.T
    slope = np.linalg.pinv(within, hermitian=True) @ mu.T
    prior = counts / n
    if class_weights is not None:
        if np.shape(class_weights) != prior.shape or not np.min(class_weights) > 0:
            raise ValueError(
                f"class_weights must be {len(prior)} positive numbers, one a class, "
                f"got {len(np.ravel(class_weights))}"
            )
        prior = prior * class_weights
    offset = np.log(prior) - 0.5 * np.einsum("ck,kc->c", mu, slope)
    if K == 1:
        return slope[:, 1:] - slope[:, :1], offset[1:] - offset[:1]
    return slope, offset
