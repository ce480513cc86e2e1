"""A party's side of linear regression from a Gram matrix of all parties' columns.

As in the other solvers (:mod:`vfl_flower.clients.coresets.linear`), party j has A_j =
V (X_j - mean) on the rows of the coreset, where V = diag(sqrt(w / n)). The party opens
an orthonormal basis U_j of its columns, A_j = U_j R_j, under the masks of
:mod:`vfl_flower.clients.products`. The label holder gets R_j and the means, which
reveal no more than the Gram matrix of A_j that it opens. The label holder solves the
system and sends the coefficients of all parties to the server.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Annotated, NamedTuple, TypedDict

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients import products
from vfl_flower.clients.coresets import sampling
from vfl_flower.clients.coresets.linear import Strength
from vfl_flower.clients.coresets.prediction import RowClip
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.leverage import leverage_factor
from vfl_flower.numerics.linear import Penalty, constant_noise
from vfl_flower.numerics.linear_gram import (
    bounded_columns,
    canonical_basis,
    sigma_min_of_moments,
    solve_moments,
)
from vfl_flower.numerics.row_clip import clipped, row_clip, sums
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import Reals
from vfl_flower.protocol.settings import Fraction, Natural, NotNegative
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation.products.roles import NORM, Roles
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("linear_gram")

LARGEST = 1e100
"""Maximum absolute value of a mean or norm, so that no product overflows."""

PART_NUMBERS = 2**25
"""Approximate number of values from which a party determines its row clipping."""


@stored_as("vfl_flower.clients.linear_gram.LinearState")
class LinearState:
    """The label holder's state: values computed from its labels."""

    y_mean: float
    """The weighted mean of the labels, or 0."""
    y_size: float
    """The Euclidean norm of the labels in the Gram matrix."""
    constant: bool
    """Whether zeros replace the labels."""


@shapes_only
class GramColumns(NamedTuple):
    """The columns and labels of rows in the form used for the Gram matrix."""

    A: Array
    """The columns, of shape (m, d), with zeros for columns that are left out."""
    labels: Array | None
    """t, shape (m,); None if a rule forbids its use or another party has the labels."""
    mean: Array
    """Weighted means of the columns, of shape (d,)."""
    y_mean: float
    """Weighted mean of the labels, or 0."""
    clip: Array
    """Clipping of the rows; see :func:`~vfl_flower.numerics.row_clip.row_clip`."""
    left_out: int
    """Number of columns that are left out."""


class Columns(products.Hidden):
    """Reply of :func:`columns`."""

    units: products.Secrets


class Solved(TypedDict):
    """Reply of :func:`solve`: coefficients of all columns in party order, and totals.

    ``loss`` is the loss on the coreset, and ``left_out`` is the number of columns that
    the parties have left out of the model. ``constant`` is true if the label holder
    left its labels unused. The model is then the mean of all the label holder's labels,
    regardless of the requested rows, and the loss is the variance of these labels.
    """

    coefficients: Annotated[Array, Reals("d")]
    intercept: Annotated[float, Ge(-1e150), Le(1e150)]
    loss: NotNegative
    sigma_min: Annotated[float, Ge(0), Le(1)]
    left_out: Annotated[int, Ge(0)]
    constant: bool


def _rows(
    party: Party, test_fraction: float, coreset: sampling.WeightedRows | None
) -> tuple[Array, Array | None]:
    """Return the rows of the Gram matrix, each once, and their weights."""
    if coreset is None:
        train = sampling.training_rows(party, test_fraction)
        return np.arange(party.n_rows) if train is None else train, None
    rows, places = np.unique(sampling.numbers_of(coreset.rows), return_inverse=True)
    weights = np.asarray(coreset.weights, dtype=np.float64)
    return rows, np.bincount(places, weights=weights)


@step
@sums_over("request")
@once
@reveals("coefficients")
@reveals("moments", times="counted")
def columns(
    party: Party,
    roles: Roles,
    counted: Natural,
    n: Natural,
    intercept: bool,
    test_fraction: Fraction,
    coreset: sampling.WeightedRows | None = None,
    dealt: products.FromServer | None = None,
    delivered: products.Secrets | None = None,
) -> Columns:
    """Open the party's columns under masks, and send their units to the label holder.

    `counted` is the number of columns of the Gram matrix, as counted for consent. The
    weights add up to `n`.
    """
    sampling.check_labels(party)
    width = party.rows.shape[1] + (party.index == roles.first)
    products.check_roles(party, roles, width, turn=0)
    rows, weights = _rows(party, test_fraction, coreset)
    if counted != roles.columns or roles.rows != len(rows):
        raise PartyError(
            f"counted must be {roles.columns}, got {counted}, and rows must be "
            f"{len(rows)}, got {roles.rows}"
        )
    products.check_rows(party, weights, len(rows), roles.columns)
    party.sum_over(rows, weights)
    w = np.ones(len(rows)) if weights is None else weights
    A, t, mean, y_mean, clip, left_out = _gram_columns(party, rows, w, n, intercept)
    part, R = canonical_basis(A, leverage_factor(RowBlocks(A)))
    mean[~A.any(axis=0)] = 0.0
    del A
    constant = party.y is not None and t is None
    y_size = 0.0 if t is None else float(np.linalg.norm(t))
    if party.y is not None:
        unit = np.zeros(len(rows)) if t is None else t / (y_size or 1.0)
        part = np.column_stack([part, unit])
    part *= NORM
    if constant:
        products.withhold(
            party,
            f"at least {LEAST_ROWS} labels must differ from the most frequent label, "
            f"and no label may be an outlier or above {LARGEST:g}: otherwise, the Gram "
            "matrix would reveal all columns of a single row",
        )
        y_mean = _mean_of_all(party) * intercept
    sent = np.concatenate([mean, R.ravel(), [left_out]])
    state = products.ProductState(roles, products.dealt_to(dealt, delivered, roles))
    party.forget(sampling.CoresetState)
    party.remember(state)
    party.remember(RowClip(clip))
    party.remember(LinearState(y_mean, y_size, constant))
    units = {roles.first: sent.astype("<f8").view(np.uint8)}
    return {**products.hide(party, state, [part]), "units": units}


def _gram_columns(
    party: Party, rows: Array, w: Array, n: int, intercept: bool
) -> GramColumns:
    """Return the columns and labels of rows whose weights w add up to n."""
    X_all, root = party.rows, np.sqrt(w / n)
    d = X_all.shape[1]
    X = np.asarray(X_all.take(rows), dtype=np.float64)
    y = None if party.y is None else party.y[rows].astype(np.float64)
    mean, y_mean, suitable = np.zeros(d), 0.0, True
    # The clipping depends only on the party's rows, not on the requested rows and
    # weights. So sums over two sets of rows differ only by the rows that are in only
    # one set, not by the clipping.
    every = np.arange(0, party.n_rows, max(1, party.n_rows * d // PART_NUMBERS))
    clip = row_clip(X_all.take(every), intercept, LEAST_ROWS, products.MOST_LEVERAGE)
    Z, X = sums(clip, X), clipped(clip, X)
    # The server chooses rows and weights, so a refusal would reveal values. Instead,
    # columns that overflow or single out a row are left out.
    with np.errstate(over="ignore", invalid="ignore"):
        if intercept:
            mean = w @ X / w.sum()
            y_mean = 0.0 if y is None else float(w @ y / w.sum())
        A = np.subtract(X, mean)
        A *= root[:, None]
        spread = np.sqrt(np.einsum("ij,ij->j", A, A) / (root @ root))
        A[:, spread <= constant_noise(mean, len(rows)) * intercept] = 0.0
        large = ~(np.maximum(np.abs(mean), np.linalg.norm(A, axis=0)) <= LARGEST)
        A[:, large] = 0.0
        t = None if y is None else root * (y - y_mean)
        if t is not None and not np.hypot(y_mean, np.linalg.norm(t)) <= LARGEST:
            suitable, t = False, np.zeros(len(t))
    # Z, not X: rows moved in X differ from the most frequent value, but must not count.
    stays, fit = _bounded(Z, A, y, t)
    T = clip[2 : 2 + d] if len(clip) else np.eye(d)
    left_out = (T != 0) @ (large | (A.any(axis=0) & ~stays)) | ~T.any(axis=1)
    if len(clip) or left_out.any():
        names = np.array(party.columns or range(d), dtype=str)
        added = names[T.any(axis=1) & (np.diag(T) == 0)].tolist()
        log.warning(
            "columns of this party in which few rows differ, added to other columns: "
            "%s; columns left out of the model: %s; outlying rows moved: %d",
            *(added, names[left_out].tolist(), (X != Z).any(axis=1).sum()),
        )
    A[:, ~stays] = 0.0
    labels = t if suitable and fit else None
    return GramColumns(A, labels, mean, y_mean, clip, int(left_out.sum()))


def _bounded(
    X: Array, A: Array, y: Array | None, t: Array | None
) -> tuple[Array, bool]:
    """Return whether each column, and whether the labels, single out no row."""
    rules = LEAST_ROWS, products.MOST_LEVERAGE
    if y is not None and t is not None and bounded_columns([y], t[:, None], *rules)[0]:
        with_labels = np.column_stack([A, t])
        return bounded_columns([*X.T, y], with_labels, *rules, fixed=1)[:-1], True
    return bounded_columns(X.T, A, *rules), t is None or not t.any()


def _mean_of_all(party: Party) -> float:
    """Return the mean of all labels of the label holder, clipped to `LARGEST`."""
    assert party.y is not None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(party.y, dtype=np.float64).mean()
    return float(np.clip(np.nan_to_num(mean), -LARGEST, LARGEST))


@step
@sums_over("earlier")
@once
@reveals("coefficients", counted=False)
def solve(
    party: Party,
    units: products.Secrets,
    share: products.Secrets,
    l1: Strength,
    l2: Strength,
) -> Solved:
    """Open the Gram matrix and solve the system, at the label holder.

    Each party's consent to reveal its coefficients was checked in :func:`columns`.
    """
    from scipy.linalg import block_diag

    product, state = party.recall(products.ProductState), party.recall(LinearState)
    roles, scale = product.roles, state.y_size or 1.0
    widths = [d - (owner == roles.first) for owner, d in enumerate(roles.owners)]
    sent = [_units(units, owner, d) for owner, d in enumerate(widths)]
    mean = np.concatenate([unit[0] for unit in sent])
    starts = np.cumsum([0, *widths])
    # The labels are the last column of the first party; here they become the last
    # column overall.
    label = int(sum(roles.owners[: roles.first + 1])) - 1
    order = [place for place in range(roles.columns) if place != label] + [label]
    R = block_diag(*(unit[1] for unit in sent))
    gram = products.opened(party, product, share)[np.ix_(order, order)] / NORM**2
    theta, error = solve_moments(gram, R, Penalty(l1 / scale, l2))
    theta, loss = scale * theta, scale**2 * error
    if state.constant:
        theta, loss = np.zeros(len(mean)), _variance(party, state.y_mean)
    blocks = [np.arange(a, b) for a, b in pairwise(starts)]
    blocks[roles.first] = np.append(blocks[roles.first], len(mean))
    return {
        "coefficients": theta,
        "intercept": state.y_mean - float(mean @ theta),
        "loss": loss,
        "sigma_min": sigma_min_of_moments(gram, blocks),
        "left_out": sum(unit[2] for unit in sent),
        "constant": state.constant,
    }


def _variance(party: Party, mean: float) -> float:
    """Return the mean squared error of the constant model on all labels."""
    assert party.y is not None
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.square(np.asarray(party.y, dtype=np.float64) - mean).mean()
    return float(np.minimum(np.nan_to_num(error), LARGEST))


def _units(units: dict[int, Array], owner: int, d: int) -> tuple[Array, Array, int]:
    """Return a party's means and R, and the number of columns that it left out."""
    data = units.get(owner, np.zeros(0, np.uint8)).tobytes()
    if len(data) != 8 * (d + d * d + 1):
        raise PartyError(f"units must match the columns of party {owner} (from 0)")
    sent = np.frombuffer(data, "<f8")
    if not np.abs(sent).max(initial=0.0) <= LARGEST:
        raise PartyError(f"the absolute values in units must be at most {LARGEST:g}")
    mean, R, count = np.split(sent, [d, d + d * d])
    if not 0 <= count[0] <= d:
        raise PartyError("units must hold the number of columns left out of the model")
    return mean, R.reshape(d, d), int(count[0])
