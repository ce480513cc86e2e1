"""A party's contribution to the predictions for new rows (Algorithm 2)."""

from __future__ import annotations

import math
from typing import Annotated, NotRequired, TypedDict, cast

import numpy as np
from annotated_types import Ge, Le, MinLen

from vfl_flower.clients import evaluation
from vfl_flower.clients.fdskl import state as fdskl
from vfl_flower.clients.fdskl.angle_sums import addends, angles_of, summed_angles
from vfl_flower.numerics import kernel_model
from vfl_flower.numerics.kernel_solvers import sigmoid
from vfl_flower.numerics.random_features import Kernel, taken
from vfl_flower.party.party import Party, PartyError, Predictions
from vfl_flower.protocol.contract import OWN, SEALED, Reals
from vfl_flower.protocol.settings import Count, Natural, Positive
from vfl_flower.protocol.steps import reveals, step_of, sums_over
from vfl_flower.typing import Array

step = step_of("fdskl")


class KernelPartInfo(TypedDict):
    """Reply of :func:`part`."""

    index: Count
    n_features: fdskl.Features
    holders: Annotated[list[Count], MinLen(1)]
    columns: Annotated[int, Ge(0), Le(evaluation.MAX_CLASSES)]
    scale: fdskl.Scale
    kernel: Kernel
    bandwidth: Positive
    parties: Natural
    kept: list[Count]
    multiple: NotRequired[Natural]


class KernelAnswer(evaluation.Measures):
    """Reply of :func:`answer`."""

    scores: NotRequired[Annotated[Array, Reals("size columns"), SEALED]]
    angles: NotRequired[Annotated[dict[int, Array], Reals("m *"), SEALED]]


@step
@sums_over("none")
def part(party: Party) -> KernelPartInfo:
    """Check the new rows against the party's local model, and describe the model."""
    model_part = fdskl.loaded_part(party)
    columns = list(model_part["columns"])
    evaluation.check_columns(party, model_part["n_columns"], columns)
    if not party.remembered():
        party.remember(fdskl.FDSKLState())
    reply: KernelPartInfo = {
        "index": model_part["index"],
        "n_features": model_part["n_features"],
        "holders": list(model_part["holders"]),
        "columns": len(model_part["intercept"]) if "coef" in model_part else 0,
        "scale": model_part.get("scale", 1.0),
        "kernel": model_part["kernel"],
        "bandwidth": model_part["bandwidth"],
        "parties": model_part["n_parties"],
        "kept": list(model_part.get("kept", ())),
    }
    if "multiple" in model_part:
        reply["multiple"] = model_part["multiple"]
    return reply


@step
@sums_over("request")
@reveals("angles", "request")
@reveals("angles", "evaluate")
@reveals("predictions", "size")
@reveals("curves", "curves", optional=True)
def answer(
    party: Party,
    columns: evaluation.Columns,
    size: Count,
    done: Annotated[fdskl.ScoredRows, OWN] | None = None,
    at: Annotated[fdskl.SummedRows, OWN] | None = None,
    request: fdskl.AngleRequest | None = None,
    evaluate: bool = False,
    last: bool = False,
    curves: Annotated[bool, OWN] = False,
) -> KernelAnswer:
    """Run Algorithm 2 for blocks of rows, with up to three blocks in progress.

    In this order, the party computes its contributions to the scores of one block
    (`at`); the answers for the previous block, whose scores have arrived (`done`); and
    the angles of the next block (`request`). A sole label holder computes all scores
    itself.

    columns, size: as for :func:`~vfl_flower.clients.fdskl.training.iterate`.
    evaluate: at the end, report the metrics of the answers for rows whose labels this
        party knows; otherwise, store the answers as predictions.
    last: whether the party that reconstructs the scores now has all answers.
    curves: together with the last evaluated answers, report means over bins of rows.
    """
    state, model_part = party.recall(fdskl.FDSKLState), fdskl.loaded_part(party)
    reply, partial = KernelAnswer(), None
    if at is not None:
        coef, intercept = _coefficients(model_part)
        party.afford("at", len(at.rows), len(coef))
        summed = summed_angles(at.angles, at.offsets, at.rows)
        summed = taken(summed, model_part.get("multiple", 1))
        if summed.shape[1] != len(coef):
            raise PartyError(
                f"angles must cover the {len(coef)} features of the label holder, got "
                f"{summed.shape[1]} features"
            )
        partial = kernel_model.linear_scores(summed, coef) + intercept
    if size:
        reply["scores"] = addends(party, at, partial, size, columns)
    elif at is not None and partial is not None:
        done = fdskl.ScoredRows(at.rows, partial)
    if done is not None:
        _answer(state, model_part, done, party.y if evaluate else None)
    if request is not None:
        reply["angles"] = angles_of(party, request)["angles"]
    if last and len(state.rows):
        if evaluate:
            reply |= _errors(party, model_part, state, curves)
        else:
            real = model_part["target"] == "continuous"
            more = {} if real else evaluation.texts_of(party, state.answers)
            party.predictions = Predictions(state.answers, state.rows, more=more)
    return reply


def _coefficients(model_part: kernel_model.KernelPart) -> tuple[Array, Array]:
    """Return the coefficients and the intercept of a label holder."""
    if "coef" not in model_part:
        raise PartyError("this party holds no coefficients")
    return model_part["coef"], model_part["intercept"]


def _answer(
    state: fdskl.FDSKLState,
    model_part: kernel_model.KernelPart,
    done: fdskl.ScoredRows,
    y: Array | None,
) -> None:
    """Turn summed scores of rows into predictions and, with labels, confidences."""
    rows, scores = done.rows, done.scores
    shape = len(rows), len(_coefficients(model_part)[1])
    if scores.size != math.prod(shape):
        raise PartyError(
            f"scores must hold {math.prod(shape)} numbers, got {scores.size}"
        )
    scores, classes = scores.reshape(shape), model_part["classes"]
    new_answers = kernel_model.answers(scores, model_part["target"], classes)
    state.answers = np.concatenate([state.answers, new_answers])
    state.rows = np.concatenate([state.rows, rows]).astype(np.uint32)
    if y is not None and model_part["target"] != "continuous":
        sure = scores[:, 0]
        if shape[1] > 1:
            right = y[rows.astype(np.intp), None] == classes
            sure = (kernel_model.probabilities(scores) * right).sum(axis=1)
        state.sure = np.concatenate([state.sure, sure])


def _errors(
    party: Party,
    model_part: kernel_model.KernelPart,
    state: fdskl.FDSKLState,
    curves: bool,
) -> KernelAnswer:
    """Return the metrics of the predictions for rows whose labels this party knows."""
    known, y = evaluation.judged(party, state.rows, state.evaluated)
    state.evaluated = True
    if not len(y):
        return {"test_rows": 0}
    party.sum_over(state.rows[known])
    party.share(state.rows[known].astype(np.intp), "angles")
    target, classes = model_part["target"], model_part["classes"]
    scores = probability = None
    if target == "binary":
        scores = state.sure[known]
        probability = sigmoid(np.where(y == classes[1], scores, -scores))
    elif target == "multiclass":
        probability = state.sure[known]
    if model_part.get("loss") != "logistic":
        probability = None
    measures = evaluation.measures_of(
        party, y, state.answers[known], target, classes, scores, probability, curves
    )
    return cast(KernelAnswer, measures)
