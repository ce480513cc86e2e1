"""A party's side of the linear solvers; rows never leave the party.

Party j has A_j = V X_j on the rows of the coreset, where V = diag(sqrt(w / n)), and the
label holder has t = V y / s, with a scale s for which ``|t|`` is at most 1. With an
intercept, the weighted means are subtracted from X_j and y, so that no column resembles
the column of ones. The optimal intercept is then 0, and the intercept for the original
columns is a sum over the parties, computed from the means. The server knows the
residuals r = t - sum_j A_j theta_j and sends them to all parties. Coefficients stay at
the parties until :func:`coefficients` is requested.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Annotated, Literal, NotRequired, TypedDict, TypeVar

import numpy as np
from annotated_types import Ge, Le, MinLen

from vfl_flower.clients.coresets import sampling
from vfl_flower.numerics import linear
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import IN_SUM, Leaves, Reals, Whole
from vfl_flower.protocol.settings import Fraction, Natural, NotNegative
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.typing import Array

T = TypeVar("T")
step = step_of("linear")

Method = Literal["cg", "proximal", "saga"]
Residual = Annotated[Array, Reals("m")]
Strength = Annotated[float, Ge(0), Le(1e100)]
"""Strength of a penalty, limited so that its square does not overflow."""

BOUND, WIDE_BOUND = 2.0, 2.0**12
"""Bounds of sums in units of the label scale, in which |t| <= 1. The objective never
grows, so with conjugate gradients no entry above 1 is sent. The other solvers have no
such bound; a warning is issued if their entries are clipped."""
WITHIN, WITHIN_WIDE = Leaves("sum", least=BOUND), Leaves("sum", least=WIDE_BOUND)


@stored_as("vfl_flower.clients.linear.LinearState")
class LinearState:
    """A party's state in a linear solver, with the party's block of the solution."""

    n: int
    """Number of rows that the weights represent."""
    l2: float
    """Strength of the penalty |theta|^2."""
    test_fraction: float
    """Fraction of the rows held out."""
    rows: Array | None = None
    """Rows of the coreset, of shape (m,); None means all training rows."""
    root: Array | None = None
    """Sqrt(w / n), of shape (m,); None means that all weights are 1."""
    mean: Array | None = None
    """With an intercept, the weighted means of the columns, of shape (d,)."""
    used: Array | None = None
    """With an intercept, 0 for constant columns and 1 for all others, of shape (d,)."""
    y_mean: float = 0.0
    """At the label holder: the weighted mean of the labels."""
    scale: float = 1.0
    """At the label holder: the scale s of the labels."""
    F: Array | None = None
    """Matrix F that whitens the party's normal matrix, of shape (d, r)."""
    phi: Array | None = None
    """For conjugate gradients: the solution in the coordinates of F, of shape (r,)."""
    p: Array | None = None
    """For conjugate gradients: the direction, of shape (r,)."""
    s: Array | None = None
    """For conjugate gradients: the gradient, of shape (r,)."""
    R: Array | None = None
    """For proximal steps: the metric of the block, of shape (r, d)."""
    x: Array | None = None
    """The solution, of shape (d,)."""
    v: Array | None = None
    """The point at which the next proximal step is taken, of shape (d,)."""
    D: Array | None = None
    """For SAGA: scale of the columns, of shape (d,)."""
    average: Array | None = None
    """For SAGA: mean gradient, of shape (d,)."""
    batch: Array | None = None
    """For SAGA: rows of the last batch."""


class Start(TypedDict):
    """Reply of :func:`start`."""

    residual: Annotated[Array, Reals("*"), WITHIN]
    norms: Annotated[Array, Reals("*"), WITHIN_WIDE]
    scale: NotRequired[Annotated[float, Ge(1e-50), Le(1e50)]]


class Direction(TypedDict):
    """Reply of :func:`cg`."""

    direction: Annotated[Array, Reals("m"), WITHIN]
    energies: Annotated[Array, Reals("3"), WITHIN]


class ProximalStep(TypedDict):
    """Reply of :func:`proximal`."""

    residual: Annotated[Array, Reals("m"), WITHIN_WIDE]
    energies: Annotated[Array, Reals("2"), WITHIN_WIDE]


class BatchResidual(TypedDict):
    """Reply of :func:`saga`."""

    residual: Annotated[Array, Reals("b"), WITHIN_WIDE]


class Coefficients(TypedDict):
    """Reply of :func:`coefficients`."""

    coefficients: Annotated[Array, Reals("n_columns")]
    shift: Annotated[Array, Reals("1"), IN_SUM]


class Block:
    """A_j of one party, read block by block."""

    def __init__(self, party: Party, state: LinearState) -> None:
        self.rows = state.rows
        if self.rows is None:
            self.rows = sampling.training_rows(party, state.test_fraction)
        self.blocks = RowBlocks(party.rows, rows=self.rows)
        m, d = self.shape = self.blocks.shape
        self.root = _given(state.root, np.full(m, 1 / np.sqrt(state.n)))
        self.mean = _given(state.mean, np.zeros(d))
        self.used = _given(state.used, np.ones(d))  # 0: a constant column

    def map_reduce(
        self, f: Callable[[slice, Array], T], add: Callable[[T, T], T], zero: T
    ) -> T:
        """Return a total over blocks of rows of A; see :meth:`Rows.map_reduce`."""
        root, mean, used = self.root, self.mean, self.used

        def scaled(part: slice, block: Array) -> T:
            return f(part, root[part, None] * (block - mean) * used)

        return self.blocks.map_reduce(scaled, add, zero)

    def per_row(self, f: Callable[[Array], Array]) -> Array:
        """Return the values of `f` for the rows of A, of shape (m,)."""
        parts: list[Array] = []
        return np.concatenate(self.map_reduce(lambda _, A: [f(A)], operator.add, parts))

    def dot(self, theta: Array) -> Array:
        """Return A theta, of shape (m,)."""
        return self.per_row(lambda A: A @ theta)

    def dot_transposed(self, residual: Array) -> Array:
        """Return A^T r, of shape (d,)."""
        return self.map_reduce(lambda part, A: residual[part] @ A, np.add, np.zeros(1))

    def gram(self) -> Array:
        """Return A^T A, of shape (d, d)."""
        return self.map_reduce(lambda _, A: A.T @ A, np.add, np.zeros((1, 1)))

    def take(self, positions: Array) -> Array:
        """Return some rows of A, of shape (b, d)."""
        rows = (self.blocks.take(positions) - self.mean) * self.used
        return np.asarray(self.root[positions, None] * rows)

    def center(self) -> None:
        """Centre the columns; set constant columns, now rounding noise, to zero."""
        mass = self.root @ self.root
        self.mean = self.dot_transposed(self.root) / mass
        spread = np.sqrt(np.diag(self.gram()) / mass)
        noise = linear.constant_noise(self.mean, self.shape[0])
        self.used = (spread > noise).astype(np.float64)


def _given(array: Array | None, default: Array) -> Array:
    return default if array is None else array


def _needed(array: Array | None) -> Array:
    """Return the state of an earlier step of the same method."""
    if array is None:
        raise PartyError(
            "this step needs the state from an earlier step of the same method, but "
            "the earlier step was not requested"
        )
    return array


def _check_finite(*arrays: Array) -> None:
    """Raise ``PartyError`` for numbers on which NumPy or scikit-learn would fail."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise PartyError(
            "the step overflows: numbers in the request, or in this party's columns, "
            "are too large"
        )


def _labels(party: Party, state: LinearState, block: Block) -> Array:
    """Return t at the label holder and zeros elsewhere, of shape (m,)."""
    if party.y is None:
        return np.zeros(block.shape[0])
    y = party.y if block.rows is None else party.y[block.rows]
    return np.asarray(block.root * (y - state.y_mean) / state.scale)


@step
@sums_over("request")
@once
@reveals("row-sums")
def start(
    party: Party,
    method: Method,
    n: Natural,
    l2: Strength,
    intercept: bool,
    test_fraction: Fraction,
    coreset: sampling.WeightedRows | None = None,
) -> Start:
    """Store the rows and weights; send the first residual or, for SAGA, |a_i|^2."""
    sampling.check_labels(party)
    state = LinearState(n, l2, test_fraction)
    if coreset is not None:
        party.afford("rows", len(coreset.rows), party.rows.shape[1])
        weights = np.asarray(coreset.weights, dtype=np.float64)
        state.rows, state.root = sampling.numbers_of(coreset.rows), np.sqrt(weights / n)
    block = Block(party, state)
    party.sum_over(block.rows, None if coreset is None else coreset.weights)
    rows = np.arange(party.n_rows) if block.rows is None else block.rows
    party.share(rows, "row-sums")
    if intercept:
        block.center()
        state.mean, state.used = block.mean, block.used
    m, d = block.shape
    reply: Start = {"norms": np.zeros(0), "residual": np.zeros(0)}
    if party.y is not None:
        if intercept:
            t = _labels(party, state, block)
            state.y_mean = float(block.root @ t / (block.root @ block.root))
        # A power of two: otherwise the server could choose weights for which the length
        # reveals labels.
        length = float(np.linalg.norm(_labels(party, state, block)))
        state.scale = 2.0 ** math.ceil(math.log2(length)) if length else 1.0
        reply["scale"] = state.scale
    residual, gram = _labels(party, state, block), block.gram()
    _check_finite(gram, residual)
    # The label holder starts from its own solution, so that the server's first residual
    # is not the labels themselves; all other parties start from zero.
    l2_of_block = l2 if method == "cg" else 0.0
    F = linear.whiten(gram, np.full(d, l2_of_block))
    phi = F.T @ block.dot_transposed(residual)
    x = F @ phi
    if method == "cg":
        state.F, state.phi, state.p = F, phi, np.zeros(len(phi))
    elif method == "proximal":
        state.F, state.R, state.x, state.v = F, F.T @ gram, x, x
    else:
        D = np.sqrt(np.diag(gram) + l2)
        D[D == 0] = 1.0
        norms = block.per_row(lambda A: ((A / D) ** 2).sum(axis=1))
        reply["norms"] = norms + l2 / (D**2).min() / m
        state.D, state.x, state.average = D, D * x, np.zeros(d)
    party.forget(sampling.CoresetState)
    party.remember(state)
    if method != "saga":  # SAGA gets its residuals batch by batch
        reply["residual"] = residual - block.dot(x)
    return reply


@step
@sums_over("earlier")
@reveals("row-sums")
def cg(
    party: Party, residual: Residual, step_size: NotNegative, shrink: NotNegative
) -> Direction:
    """Take the previous conjugate gradient step, then send the next direction.

    In the coordinates phi_j, with theta_j = F_j phi_j, the party's normal matrix is the
    identity, and s_j = F_j^T (A_j^T r - l2 theta_j). The server needs A_j F_j s_j,
    |s_j|^2 and the energy of the penalty.
    """
    state = party.recall(LinearState)
    block = _block(party, state, residual)
    F, phi, p = _needed(state.F), _needed(state.phi), _needed(state.p)
    if state.s is not None:
        p = state.s + shrink * p
        phi = phi + step_size * p
    l2 = state.l2
    s = F.T @ (block.dot_transposed(residual) - l2 * (F @ phi))
    Fs, Fp = F @ s, F @ p
    state.phi, state.p, state.s = phi, p, s
    energies = [s @ s, l2 * Fs @ Fs, l2 * Fs @ Fp]
    return {"direction": block.dot(Fs), "energies": np.array(energies)}


def _block(party: Party, state: LinearState, residual: Array) -> Block:
    """Return the block; raise PartyError unless the residual fits its rows."""
    block = Block(party, state)
    if len(residual) != block.shape[0]:
        raise PartyError(
            f"residual must have a number for each of the {block.shape[0]} rows of "
            f"the coreset, got {len(residual)}"
        )
    return block


@step
@sums_over("earlier")
@reveals("row-sums")
def proximal(
    party: Party,
    residual: Residual,
    l1: Annotated[float, Ge(1e-100), Le(1e100)],
    momentum: Annotated[float, Ge(0), Le(1)],
) -> ProximalStep:
    """Take one accelerated proximal step in the metric of the party's own block.

    The step is exact within the block, and minimises an upper bound across blocks. So
    the speed depends on the overlap between the columns of different parties, not on
    the scale of the columns.
    """
    state = party.recall(LinearState)
    block = _block(party, state, residual)
    F, R, x, v = (_needed(a) for a in (state.F, state.R, state.x, state.v))
    target = R @ v + F.T @ block.dot_transposed(residual) / party.n_parties
    _check_finite(target @ target)
    penalty = linear.Penalty(l1, state.l2)
    new = linear.proximal_block(R, target, party.n_parties, penalty)
    change = R @ (new - x)
    energies = [R @ (v - new) @ change, change @ change]
    v = new + momentum * (new - x)
    state.x, state.v = new, v
    reply = _labels(party, state, block) - block.dot(v)
    return {"residual": reply, "energies": np.array(energies)}


@step
@sums_over("earlier")
@reveals("row-sums")
def saga(
    party: Party,
    batch: Annotated[Array, Whole("b"), MinLen(1)],
    change: Annotated[Array, Reals("c")],
    step_size: NotNegative,
    l1: Strength,
) -> BatchResidual:
    """Apply SAGA's step for the last batch, then predict the rows of the next batch.

    Columns are scaled by D, where D_l^2 = |A_j e_l|^2 + l2. The gradient of row i is
    2 m r_i a_i; the server stores the table of r_i and sends the changes of r_i.
    """
    state = party.recall(LinearState)
    party.afford("batch", len(batch), party.rows.shape[1])
    block = Block(party, state)
    m, _ = block.shape
    batch = sampling.numbers_of(batch)
    if batch.max() >= m:
        raise PartyError(f"batch must hold integers below {m}, the coreset's size")
    x, D, average = _needed(state.x), _needed(state.D), _needed(state.average)
    if len(change):
        last = _needed(state.batch)
        if len(change) != len(last):
            raise PartyError(
                f"change must have a number for each of the {len(last)} rows of the "
                f"last batch, got {len(change)}"
            )
        gradient = change @ (block.take(last) / D)
        mean = 2 * m / len(change) * gradient + average
        x = x - step_size * (mean + 2 * state.l2 / D**2 * x)
        x = linear.soft_threshold(x, step_size * l1 / D)
        state.average = average + 2 * gradient
    state.x, state.batch = x, batch
    residual = block.take(batch) @ (x / D) - _labels(party, state, block)[batch]
    return {"residual": residual}


@step
@sums_over("earlier")
@once
@reveals("coefficients")
def coefficients(party: Party) -> Coefficients:
    """Send theta_j and y's mean minus mean_j theta_j, in units of the label scale."""
    state = party.recall(LinearState)
    if state.phi is not None:
        theta = _needed(state.F) @ state.phi
    else:
        theta = _needed(state.x) / _given(state.D, np.ones(1))
    theta = np.asarray(theta * _given(state.used, np.ones(1)))
    mean = _given(state.mean, np.zeros(len(theta)))
    shift = state.y_mean / state.scale - float(mean @ theta)
    return {"coefficients": theta, "shift": np.array([shift])}
