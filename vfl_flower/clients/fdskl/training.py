"""Solving for a label holder's coefficients, exactly or by Algorithm 1."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.evaluation import Columns, signs_of
from vfl_flower.clients.fdskl import state
from vfl_flower.clients.fdskl.angle_sums import addends, angles_of, summed_angles
from vfl_flower.numerics import fdskl
from vfl_flower.numerics.kernel_bandwidth import best_multiple
from vfl_flower.numerics.kernel_model import Target, linear_scores, owned
from vfl_flower.numerics.kernel_solvers import LOSSES, LossName
from vfl_flower.numerics.kernel_solvers import fit as fit_angles
from vfl_flower.numerics.random_features import features, taken
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.contract import OWN, SEALED, Reals, Whole
from vfl_flower.protocol.settings import Count, Fraction, Natural, NotNegative, Positive
from vfl_flower.protocol.steps import reveals, step_of, sums_over
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("fdskl")


def _labels(party: Party, rows: Array) -> Array:
    """Return the labels of rows, of shape (n,); refuse rows without labels."""
    if party.y is None:
        raise PartyError("this party holds no labels")
    y = np.asarray(party.y[rows.astype(np.intp)], dtype=np.float64)
    if np.isnan(y).any():
        raise PartyError("this party must have a label for each requested row")
    return y


# -- the exact solution ---------------------------------------------------------------


def _weights(problem: state.Problem, Y: Array) -> Array | None:
    """Return n / (K n_c) for rows of class c with n_c rows; None without balancing."""
    if not problem.balanced:
        return None
    label = (Y[:, 0] > 0).astype(int) if Y.shape[1] == 1 else Y.argmax(axis=1)
    counts = np.bincount(label)
    return np.asarray(len(Y) / (np.count_nonzero(counts) * counts[label]))


def _problem_labels(
    party: Party, training: state.Training, problem: state.Problem
) -> Array:
    """Return the labels of a problem in the form that the losses need, shape (n, C)."""
    setup, rows = training.setup, problem.rows
    y = _labels(party, rows)
    _check_loss(problem.loss, setup.target)
    if problem.balanced and setup.target == "continuous":
        raise PartyError("balanced must be false for target 'continuous'")
    if setup.target == "multiclass":  # a rare class can be missing from these rows
        training.classes = np.unique(np.asarray(party.y)[rows.astype(np.intp)])
    return signs_of(y, setup.target, training.classes)


def _check_loss(loss: LossName, target: Target) -> None:
    if loss != "square" and target == "continuous":
        raise PartyError("loss must be 'square' for target 'continuous'")


class FittedKernel(TypedDict):
    """Reply of :func:`fit`; only the label holder sends more than `kept`."""

    kept: bool
    columns: NotRequired[Columns]
    multiple: NotRequired[Natural]
    regularization: NotRequired[Positive]
    converged: NotRequired[Annotated[float, Ge(0), Le(1)]]
    cv_score: NotRequired[NotNegative]


@step
@sums_over("request")
@reveals("angles", "problem")
def fit(
    party: Party,
    problem: state.Problem | None = None,
    angles: state.Summed = None,
    offsets: state.Opened | None = None,
) -> FittedKernel:
    """Solve for the label holder's coefficients; other parties store their features.

    angles: the summed angles of the rows, in consecutive numbered blocks.
    offsets: phases to subtract from the angles, shape (M,).
    """
    training = state.training_of(party)
    if party.part:
        raise PartyError("this run already has its model")
    setup = training.setup
    if problem is None:
        return {"kept": state.keep_part(party, training)}
    rows = problem.rows
    party.sum_over(rows)
    party.share(rows.astype(np.intp), "angles")
    Y = _problem_labels(party, training, problem)
    summed = summed_angles(_joined(angles or {}), offsets, rows)
    M = np.count_nonzero(
        owned(state.part_of(party, training), setup.n_features, party.index or 0)
    )
    if not M or summed.shape[1] != M:
        raise PartyError(
            f"angles must cover the {M} features of the label holder, got "
            f"{summed.shape[1]} features"
        )
    reply = FittedKernel(kept=False)
    if setup.chooses:
        training.multiple = best_multiple(summed, Y, party.rng("bandwidth"))
        summed = taken(summed, training.multiple)
        reply["multiple"] = training.multiple
    reply["columns"] = Y.shape[1]
    if (Y[:1] == Y).all(axis=0).any():
        # The server chooses the rows, and a refusal would reveal that their labels are
        # equal. So the run ends with the constant model.
        log.warning("all training labels are equal: the model is constant")
        coef, intercept, loss = np.zeros((M, Y.shape[1])), Y[0], None
        reply["converged"] = 0.0
        reply["regularization"] = problem.regularization or 1.0
    else:
        solution = fit_angles(
            summed,
            Y,
            problem.loss,
            problem.regularization or None,
            party.rng("cross-validation"),
            classes=setup.target != "continuous",
            weights=_weights(problem, Y),
            folds=min(5, len(rows)),
        )
        coef = solution.coef / np.sqrt(setup.n_features)
        intercept, loss = solution.intercept, problem.loss
        reply["converged"] = float(solution.converged)
        reply["regularization"] = solution.regularization
        if solution.cv_score is not None:
            reply["cv_score"] = solution.cv_score
    reply["kept"] = state.keep_part(party, training, coef, intercept, loss)
    return reply


def _joined(blocks: Mapping[int, Array]) -> Array:
    """Join numbered blocks of angles in the order of their numbers."""
    if len({block.dtype for block in blocks.values()}) != 1:
        raise PartyError("angles must be one or more blocks of a single type")
    return np.concatenate([blocks[number].ravel() for number in sorted(blocks)])


# -- doubly stochastic gradients (Algorithm 1) ----------------------------------------


class Picked(TypedDict, total=False):
    """Reply of :func:`start`, which is empty unless the party is a label holder."""

    rows: Annotated[Array, Whole("instances", below="n_rows")]
    columns: Columns
    scale: state.Scale


class Iterated(TypedDict, total=False):
    """Reply of :func:`iterate`."""

    scores: Annotated[Array, Reals("size columns"), SEALED]
    angles: Annotated[dict[int, Array], Reals("m *"), SEALED]
    kept: bool


@step
@sums_over("none", "the step draws rows, and reports the number of classes")
@reveals("angles")
def start(
    party: Party,
    test_fraction: Fraction,
    setup: state.Setup,
    rule: state.Rule,
    instances: Count = 0,
) -> Picked:
    """Line 2 of Algorithm 1 for all iterations at once: pick instances, in epochs."""
    if (rule.step or 0.0) * rule.regularization > 1:
        raise PartyError(
            "step times regularization must be at most 1 (Theorem 4), got "
            f"{rule.step} and {rule.regularization}"
        )
    _check_loss(rule.loss, setup.target)
    training = state.begin(party, setup)
    training.rule = rule
    if party.y is None:
        return {}
    known = ~np.isnan(party.y)
    known[split_rows(party.n_rows, test_fraction, party.seed)[1]] = False
    rows, several = np.flatnonzero(known), len(setup.holders) > 1
    if not len(rows):
        raise PartyError("this party has no label for any training row")
    largest = 1.0
    if several and setup.target == "continuous":
        largest = np.abs(party.y[rows]).max()
    if largest > 2.0**800:  # the bound on sums of scores is 2^16 times as large
        raise PartyError("labels must be between -2^800 and 2^800")
    training.scale = 2.0 ** math.ceil(math.log2(max(largest, 1e-100)))
    Y = signs_of(party.y[rows], setup.target, training.classes)
    training.intercept = fdskl.base_scores(Y, rule.loss) / len(setup.holders)
    rng = party.rng("instances")
    epochs = [rng.permutation(rows) for _ in range(math.ceil(instances / len(rows)))]
    return {
        "rows": np.concatenate([rows[:0], *epochs])[:instances].astype(np.uint32),
        "columns": Y.shape[1],
        "scale": training.scale,
    }


@step
@sums_over("none", "each number describes a single row")
@reveals("angles", "request")
@reveals("predictions", "size")
def iterate(
    party: Party,
    columns: Columns,
    size: Count,
    learn: bool = False,
    scores: state.Opened | None = None,
    at: Annotated[state.SummedRows, OWN] | None = None,
    request: state.AngleRequest | None = None,
    keep: bool = False,
) -> Iterated:
    """Lines 5 to 10 of Algorithm 1, for up to three iterations that overlap.

    In this order, the party takes the step of the iteration whose scores have arrived
    (lines 9 and 10); computes its contributions to the scores of the next iteration's
    instances (lines 6 and 7); and computes the angles of the iteration after that (line
    5). A sole label holder computes all scores itself, and takes the step immediately.

    columns, size: C, and the number of instances to send contributions for, or 0.
    scores: summed scores of this party's instances in the last message, shape (B C,).
    """
    training = state.training_of(party)
    rule = training.rule
    if rule is None:
        raise PartyError("instances must be picked before the iterations")
    reply: Iterated = {}
    alone = at is not None and not size
    if learn and training.alpha is not None and not alone:
        if scores is not None:
            _learn(party, training, rule, scores)
        elif rule.step:
            training.alpha = (1 - rule.step * rule.regularization) * training.alpha
    partial = None
    if at is not None:
        partial = _scores_of(party, training, at)
    if size:
        reply["scores"] = addends(party, at, partial, size, columns)
    elif partial is not None:
        _learn(party, training, rule, partial)
    if request is not None:
        reply["angles"] = angles_of(party, request)["angles"]
    if keep:
        coef, intercept = training.alpha, training.intercept
        if coef is not None:
            best = int(np.nan_to_num(training.losses, nan=np.inf).argmin())
            coef = np.split(coef, len(training.losses), axis=1)[best]
        reply["kept"] = state.keep_part(party, training, coef, intercept, rule.loss)
    return reply


def _scores_of(party: Party, training: state.Training, at: state.SummedRows) -> Array:
    """Return this party's contributions to the instances' scores, of shape (B, K C)."""
    summed = summed_angles(at.angles, at.offsets, at.rows)
    party.afford("at", *summed.shape)
    alpha, block = training.alpha, training.setup.block
    if alpha is None:
        raise PartyError("this party holds no coefficients")
    count = len(alpha)
    if summed.shape[1] not in (count, count + block):
        raise PartyError(
            f"angles must cover the {count} features of the label holder, or {block} "
            f"more, got {summed.shape[1]} features"
        )
    if summed.shape[1] > count:  # its own round: the new features belong to this party
        training.waiting = summed
        training.labels = signs_of(
            _labels(party, at.rows), training.setup.target, training.classes
        )
    repeats = alpha.shape[1] // len(training.intercept)
    intercept = np.tile(training.intercept, repeats)
    return np.asarray(linear_scores(summed[:, :count], alpha) + intercept)


def _learn(
    party: Party, training: state.Training, rule: state.Rule, scores: Array
) -> None:
    """Lines 9 and 10: the step of the iteration whose scores are known."""
    angles, y, alpha = training.waiting, training.labels, training.alpha
    if angles is None or y is None or alpha is None:
        raise PartyError("scores must be for instances of this party's own round")
    K, setup = alpha.shape[1] // y.shape[1], training.setup
    if scores.size != K * y.size:
        raise PartyError(f"scores must hold {K * y.size} numbers, got {scores.size}")
    scores, count = scores.reshape(len(y), -1), len(alpha)
    new = np.ascontiguousarray(angles[:, count:])
    if rule.step is None:
        old, coef, shift = fdskl.implicit_step(
            new,
            scores,
            linear_scores(angles[:, :count], alpha),
            y,
            rule.loss,
            rule.regularization or None,
            party.rng(f"cross-validation {count}"),
            setup.target != "continuous",
        )
        alpha, training.intercept = old * alpha, training.intercept + shift
    else:
        phi = features(new)
        if not count:
            factors = fdskl.CANDIDATES if len(setup.holders) == 1 else (1.0,)
            sizes = fdskl.step_sizes(phi, rule.loss, factors)
            training.steps = np.array([rule.step]) if rule.step else sizes
            K = len(training.steps)
            alpha, scores = np.tile(alpha, K), np.tile(scores, K)
            training.losses = np.zeros(K)
        targets, steps = np.tile(y, K), np.repeat(training.steps, y.shape[1])
        if 2 * count >= setup.n_features:
            losses = LOSSES[rule.loss].value(scores, targets).mean(axis=0)
            training.losses += losses.reshape(K, -1).mean(axis=1)
        alpha, coef = fdskl.dsg_update(
            alpha, phi, scores, targets, rule.loss, steps, rule.regularization
        )
    training.alpha = np.concatenate([alpha, coef])
    training.waiting = training.labels = None
