"""A party's side of federated doubly stochastic kernel learning (Algorithms 1 to 3).

Between messages a party keeps the seed of its features; a label holder keeps with it,
in the doubly stochastic form, its coefficients and the features of one block. Its part
of the model is all that stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party, PartyError, step
from vfl_flower.numerics.fdskl import dsg_update
from vfl_flower.numerics.kernel_model import (
    answers,
    linear_scores,
    own_features,
    owned,
    partial_angles,
)
from vfl_flower.numerics.kernel_solvers import fit as fit_angles
from vfl_flower.numerics.random_features import (
    draw_pairs,
    features,
    median_bandwidth,
    pair_distances,
)
from vfl_flower.numerics.split import split_rows
from vfl_flower.secure_aggregation import PLACES, join_limbs, split_limbs
from vfl_flower.typing import Array, Values

MAX_CLASSES = 100
"""More different labels than these are no classes."""


# -- the label holder's labels --------------------------------------------------------


def _classes(party: Party, target: str) -> Array:
    """Return the labels of the classes, in the order of the columns of f."""
    if party.y is None or target == "continuous":
        return np.zeros(0)
    found = np.unique(party.y[~np.isnan(party.y)])
    if target == "binary" and len(found) != 2:
        hint = ": set target to 'multiclass' or 'continuous'" if len(found) > 2 else ""
        raise PartyError(
            "labels must have two values for target 'binary', this party's have "
            f"{len(found)}{hint}"
        )
    if target == "multiclass" and not 2 <= len(found) <= MAX_CLASSES:
        raise PartyError(
            f"labels must have from 2 to {MAX_CLASSES} values for target 'multiclass', "
            f"this party's have {len(found)}"
        )
    return found


def _signs(party: Party, target: str, classes: Array, rows: Array) -> Array:
    """Return the labels of rows, shape (n, C): -1 and +1 a class, or real."""
    assert party.y is not None
    y = np.asarray(party.y[rows], dtype=np.float64)
    if target == "continuous":
        return y[:, None]
    columns = classes[1:] if target == "binary" else classes
    return np.where(y[:, None] == columns, 1.0, -1.0)


# -- bandwidth ------------------------------------------------------------------------


PAIRS = 1000
"""Pairs of rows whose median distance gives the bandwidth."""


@step("fdskl_distances", sealed=("distances",))
def distances(
    party: Party, kernel: str, target: str, holder: int, rows: Array | None = None
) -> Values:
    """Return limbs of this party's part of the distances of pairs of rows.

    `holder` gets their sum; `rows` are those to train on, None: all.
    """
    _classes(party, target)  # refuses before anything is sent
    rows = np.arange(party.n_rows) if rows is None else rows.astype(np.intp)
    rng = np.random.default_rng([party.seed, PAIRS])  # the same pairs at all parties
    pairs = rows[draw_pairs(len(rows), PAIRS, rng)]
    if party.index != holder:
        party.share(pairs)
    try:
        return {"distances": split_limbs(pair_distances(party.X, pairs, kernel))}
    except ValueError:
        raise PartyError(
            "distances of rows must be below 2^120: standardise the columns, or give a "
            "bandwidth"
        ) from None


@step("fdskl_bandwidth")
def bandwidth(party: Party, kernel: str, distances: Array) -> Values:
    """Return the bandwidth that the median of the summed distances gives."""
    found = join_limbs(distances.reshape(len(PLACES), -1))
    if len(found) != PAIRS:  # the median of one would be that one
        raise PartyError(f"distances must be {PAIRS}, got {len(found)}")
    resolution = party.n_parties * PLACES[-1]
    try:
        return {"bandwidth": median_bandwidth(found, kernel, resolution)}
    except ValueError as error:
        raise PartyError(str(error)) from None


# -- angles (Algorithm 3) -------------------------------------------------------------


_CODES = ([0.0, 1.0], [-1.0, 1.0])


def _begin(party: Party, setup: dict[str, Any]) -> None:
    """Draw the seed of the party's features, and check its labels, once a run."""
    if party.part or "seed" in party.state:
        return
    if "shared_seed" in setup and not party.allow_plain:
        raise PartyError(
            "this party draws features of its own: with a seed that all know, the "
            "label holder can compute differences between its rows"
        )
    classes = _classes(party, str(setup["target"]))
    several = party.y is not None and len(setup["holders"]) > 1
    if several and setup["target"] == "binary" and list(classes) not in _CODES:
        raise PartyError(
            "labels must be 0 and 1, or -1 and 1, where several parties hold labels, "
            "so that they mean the same at all"
        )
    seed = party.rng("features").bytes(16).hex()
    party.state |= {**setup, "n_columns": party.X.shape[1], "seed": seed}
    party.state["n_parties"] = party.n_parties
    if "widths" in party.state:
        widths = party.state.pop("widths")
        party.state |= {"first_column": sum(widths[: party.index])}
        party.state |= {"all_columns": sum(widths)}
    if party.y is not None:
        C = len(classes) if setup["target"] == "multiclass" else 1
        party.state |= {"classes": classes, "alpha": np.zeros((0, C))}


def _angles(
    party: Party, rows: Array, stop: int, bits: int, send: Sequence[str] = ()
) -> Values:
    """Return the angles of features 0 .. stop - 1 for each holder of coefficients.

    With shared features there are also the phases that the second tree adds up (line 7
    of Algorithm 3), ``offsets_l``; `send` says which arrays to give.
    """
    model = party.part or party.state
    if model["holders"] != [party.index]:  # else they leave it to no one
        party.share(rows)
    rows = rows.astype(np.intp)
    found: dict[str, Any] = {}
    wanted = [name for name in send if name.startswith("angles")]
    if wanted or not send:
        angles = partial_angles(model, party.X, stop, bits, rows)
    for holder in model["holders"]:
        mine = owned(model, stop, holder) if len(model["holders"]) > 1 else slice(None)
        if not send or f"angles_{holder}" in send:
            found[f"angles_{holder}"] = angles[:, mine]
        if f"offsets_{holder}" in send:
            found[f"offsets_{holder}"] = own_features(model).weights(0, stop)[1][mine]
    return found


@step("fdskl_angles", sealed=("angles_*", "offsets_*"))
def angles(
    party: Party,
    rows: Array,
    stop: int,
    bits: int,
    send: Sequence[str] = (),
    **setup: Any,
) -> Values:
    """Lines 2 and 3 of Algorithm 3: omega_l^T x_l + b_l of rows and features."""
    _begin(party, setup)
    return _angles(party, rows, stop, bits, send)


@step("fdskl_test_angles", sealed=("angles_*", "offsets_*"))
def held_out_angles(
    party: Party, rows: Array, stop: int, bits: int, send: Sequence[str] = ()
) -> Values:
    """Give the same for rows that are not trained on."""
    return _angles(party, rows, stop, bits, send)


def _summed(angles: Array, offsets: Array | None, rows: Array) -> Array:
    """Return the summed angles of rows, shape (n, M_l), without removed phases."""
    angles = angles.reshape(len(rows), -1)
    if angles.dtype.kind == "f":
        angles = (angles if offsets is None else angles - offsets) % 1.0
    return angles


def _phi(angles: Array, offsets: Array | None, rows: Array) -> Array:
    """Return the features of rows from their summed angles, shape (n, M_l)."""
    return features(_summed(angles, offsets, rows))


# -- the exact solution ---------------------------------------------------------------


@step("fdskl_fit")
def fit(
    party: Party,
    loss: str = "",
    regularization: float = 0.0,
    rows: Array | None = None,
    offsets: Array | None = None,
    **blocks: Array,
) -> Values:
    """Solve for the coefficients at the label holder; the others keep their features.

    `blocks` are the angles of consecutive rows; a `regularization` of 0 is chosen by
    cross-validation.
    """
    model = party.state
    kept = {"kept": party.state_dir is not None}
    if rows is None:
        party.part = _part(party)
        return kept
    M = int(model["n_features"])
    names = sorted(blocks, key=lambda name: int(name.rpartition("_")[2]))
    summed = np.concatenate([blocks.pop(name) for name in names])
    summed = _summed(summed, offsets, rows)
    if model["target"] == "multiclass":  # a rare class may have no row among these
        model["classes"] = np.unique(np.asarray(party.y)[rows.astype(np.intp)])
    Y = _signs(party, model["target"], model["classes"], rows)
    if (np.ptp(Y, axis=0) == 0).any():
        real = model["target"] == "continuous"
        rule = "labels must differ" if real else "each class must have a label"
        raise PartyError(f"{rule} among the {len(rows)} rows to train on")
    rng, folds = party.rng("cross-validation"), min(5, len(rows))
    found = fit_angles(
        summed,
        Y,
        loss,
        regularization or None,
        rng,
        classes=model["target"] != "continuous",
        folds=folds,
    )
    party.part = _part(party, found.coef / np.sqrt(M), found.intercept)
    score = {} if found.cv_score is None else {"cv_score": found.cv_score}
    return {
        **kept,
        "columns": Y.shape[1],
        "regularization": found.regularization,
        "converged": float(found.converged),
        **score,
    }


def _part(
    party: Party, coef: Array | None = None, intercept: Array | None = None
) -> dict[str, Any]:
    """Return the party's part of the model; see ``numerics/kernel_model.py``."""
    gone = ("classes", "alpha", "phi", "labels", "target", "shared")
    part = {name: value for name, value in party.state.items() if name not in gone}
    part["index"], part["columns"] = party.index, list(party.columns or ())
    if coef is not None and intercept is not None:
        part |= {"coef": coef, "intercept": intercept}
        part |= {"target": party.state["target"], "classes": party.state["classes"]}
    return part


# -- doubly stochastic gradients (Algorithm 1) ----------------------------------------


@step("fdskl_start")
def start(party: Party, iterations: int, test_fraction: float, **setup: Any) -> Values:
    """Line 2 of Algorithm 1, ahead for all iterations: pick local instances."""
    _begin(party, setup)
    if party.y is None:
        return {}
    known = ~np.isnan(party.y)
    known[split_rows(party.n_rows, test_fraction, party.seed)[1]] = False
    if not known.any():
        raise PartyError("this party knows no label of a row that is not held out")
    target, shape = party.state["target"], (iterations, int(party.state["block"]))
    rows = party.rng("instances").choice(np.flatnonzero(known), size=shape)
    several = target == "continuous" and len(party.state["holders"]) > 1
    largest = np.abs(party.y[known]).max() if several else 1.0
    if largest > 2.0**800:  # the bound of the sum of scores is 2^16 times as large
        raise PartyError("labels must be below 2^800 in size, for the sum of scores")
    party.state["scale"] = 2.0 ** math.ceil(math.log2(max(largest, 1e-100)))
    return {
        "rows": rows.astype(np.uint32),
        "columns": party.state["alpha"].shape[1],
        "scale": party.state["scale"],
    }


@step("fdskl_iterate", sealed=("angles_*", "scores"))
def iterate(
    party: Party,
    columns: int,
    size: int,
    loss: str,
    regularization: float,
    update: float = 0.0,
    scores: Array | None = None,
    at: Array | None = None,
    angles: Array | None = None,
    offsets: Array | None = None,
    keep: bool = False,
    **request: Any,
) -> Values:
    """Lines 6 to 10 of Algorithm 1, of up to three iterations that overlap.

    In this order: the step of the iteration whose scores have come (`update` is its
    size; lines 9 and 10); this party's part of the scores of `size` instances of the
    next (`at`, with their `angles` for a holder of coefficients; lines 6 and 7); and
    the angles of the one after it (`request`; line 5). The only holder has all of the
    scores itself, and takes the step at once: `size` is then 0.
    """
    state = party.state
    reply: dict[str, Any] = {}
    alone = at is not None and not size
    if update and "alpha" in state and not alone:
        if scores is None:
            state["alpha"] = (1 - update * regularization) * state["alpha"]
        else:
            _learn(state, scores, loss, update, regularization)
    if at is not None and angles is not None:
        phi, count = _phi(angles, offsets, at), len(state["alpha"])
        partial = phi[:, :count] @ state["alpha"]
        if phi.shape[1] > count:  # this holder's turn: the new features are its own
            y = _signs(party, state["target"], state["classes"], at)
            state |= {"phi": phi[:, count:], "labels": y}
        if alone:
            _learn(state, partial, loss, update, regularization)
        else:
            reply["scores"] = partial
    elif size:
        reply["scores"] = np.zeros((size, columns))
    if request:
        reply |= _angles(party, **request)
    if keep:
        alpha = state.get("alpha")
        zero = None if alpha is None else np.zeros(alpha.shape[1])
        party.part = _part(party, alpha, zero)
        reply["kept"] = party.state_dir is not None
    return reply


def _learn(
    state: dict[str, Any],
    scores: Array,
    loss: str,
    update: float,
    regularization: float,
) -> None:
    """Lines 9 and 10: the step of the iteration whose scores are known."""
    phi, y = state.pop("phi"), state.pop("labels")
    scores = scores.reshape(len(y), -1)
    old, new = dsg_update(state["alpha"], phi, scores, y, loss, update, regularization)
    state["alpha"] = np.concatenate([old, new])


# -- prediction -----------------------------------------------------------------------


@step("fdskl_part")
def part(party: Party) -> Values:
    """Say which part of the model this party has, after a look at its new rows."""
    own = party.part
    trained, now = list(own["columns"]), list(party.columns or ())
    if own["n_columns"] != party.X.shape[1] or (trained and now and trained != now):
        lacking = [name for name in trained if now and name not in now]
        raise PartyError(
            f"new rows must have the {own['n_columns']} columns of training, in their "
            f"order, got {party.X.shape[1]}"
            + (f" without {lacking[0]!r}" if lacking else "")
        )
    return {
        "index": own["index"],
        "n_features": own["n_features"],
        "holders": list(own["holders"]),
        "columns": len(own["intercept"]) if "coef" in own else 0,
        "scale": own.get("scale", 1.0),
        "kernel": own["kernel"],
        "bandwidth": own["bandwidth"],
        "parties": own["n_parties"],
        "kept": list(own.get("kept", ())),
    }


@step("fdskl_answer", sealed=("angles_*", "scores"))
def answer(
    party: Party,
    columns: int,
    size: int,
    scores: Array | None = None,
    done: Array | None = None,
    at: Array | None = None,
    angles: Array | None = None,
    offsets: Array | None = None,
    evaluate: bool = False,
    last: bool = False,
    **request: Any,
) -> Values:
    """Algorithm 2 for rows by blocks, of up to three blocks that overlap.

    In this order: this party's part of the scores of the rows `at`; take the `scores`
    of the rows `done`; the angles of the rows after them (`request`). The only holder
    has all of the scores of the rows `at` itself: `size` is then 0. At the `last` one
    the receiver of the scores has all answers; where they `evaluate`, it tells their
    mean error on the rows whose labels it knows.
    """
    own, state = party.part, party.state
    reply: dict[str, Any] = {}
    if at is not None and angles is not None:
        summed = _summed(angles, offsets, at)
        partial = linear_scores(summed, own["coef"]) + own["intercept"]
        if size:
            reply["scores"] = partial
        else:
            scores, done = partial, at
    elif size:
        reply["scores"] = np.zeros((size, columns))
    if scores is not None and done is not None:
        found = answers(scores.reshape(-1, columns), own["target"], own["classes"])
        before = state.get("answers", np.zeros(0)), state.get("rows", np.zeros(0))
        state["answers"] = np.concatenate([before[0], found])
        if evaluate:
            state["rows"] = np.concatenate([before[1], done]).astype(np.uint32)
    if request:
        reply |= _angles(party, **request)
    if last and "answers" in state:
        if evaluate:
            reply |= _errors(party, state["rows"].astype(np.intp), state["answers"])
        else:
            party.predictions = state["answers"]
    return reply


def _errors(party: Party, rows: Array, found: Array) -> dict[str, float]:
    """Return the error on the rows whose labels this party knows."""
    assert party.y is not None
    y = np.asarray(party.y[rows], dtype=np.float64)
    known = ~np.isnan(y)
    y, found = y[known], found[known]
    if not len(y):
        return {"test_rows": 0}
    if party.part["target"] == "continuous":
        return {"test_loss": float(np.mean((found - y) ** 2)), "test_rows": len(y)}
    return {"test_error": float(np.mean(found != y)), "test_rows": len(y)}
