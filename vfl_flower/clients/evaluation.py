"""Metrics that a party with labels reports: a few numbers, none about a single row."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict, cast

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen

from vfl_flower.numerics import evaluation
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.contract import Reals, Whole
from vfl_flower.protocol.settings import Count, NotNegative
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

Share = Annotated[float, Ge(0), Le(1)]

MAX_CLASSES = 100
"""Maximum number of classes of the labels."""

Columns = Annotated[int, Ge(1), Le(MAX_CLASSES)]
"""C, the number of functions that the label holders learn: one function for each class,
or a single function."""

RowNumbers = Annotated[Array, Whole("m", below="n_rows"), MinLen(1)]
"""Row numbers: at least one; repeats are allowed."""

FEW_BINS = MaxLen(evaluation.MOST_BINS)
OfBins = Annotated[Array, Reals("bins"), FEW_BINS]


class Measures(TypedDict, total=False):
    """Metrics that a party reports for held-out rows; see ``docs/simulate.md``."""

    test_rows: Count
    test_error: Share
    test_error_se: Share
    test_base_error: Share
    test_auc: Share
    test_auc_se: Share
    test_log_loss: NotNegative
    test_log_loss_se: NotNegative
    test_brier: Share
    test_brier_se: Share
    test_true_positives: Count
    test_false_positives: Count
    test_false_negatives: Count
    test_true_negatives: Count
    test_loss: NotNegative
    test_loss_se: NotNegative
    test_r2: Annotated[float, Le(1)]
    test_mae: NotNegative
    test_mae_se: NotNegative
    curve_rows: Annotated[Array, Whole("bins", LEAST_ROWS), FEW_BINS]
    curve_positives: Annotated[Array, Whole("bins")]
    curve_score: OfBins
    curve_predicted: OfBins
    curve_true: OfBins
    curve_true_sd: OfBins
    curve_confusion: Annotated[Array, Whole("classes classes"), FEW_BINS]


class Predicted(TypedDict):
    """Reply of a step whose predictions stay at the party."""

    done: bool


CURVE = "curve_"
"""Prefix of the names of metrics that are reported for bins of rows."""

NAMES = tuple(name for name in Measures.__annotations__ if not name.startswith(CURVE))
"""The names of the metrics over all rows."""


def metrics_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Extract the metrics over all rows from the reply of a step."""
    return {name: reply[name] for name in NAMES if name in reply}


def curves_of(reply: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Extract the metrics for bins of rows, if any, from the reply of a step."""
    return {
        name.removeprefix(CURVE): reply[name].tolist()
        for name in Measures.__annotations__
        if name.startswith(CURVE) and name in reply
    }


def texts_of(party: Party, labels: Array) -> dict[str, Array]:
    """Return a column of the strings that labels encode, or {} for numeric labels."""
    classes = (party.encoding or {}).get("classes")
    return {"class": np.array(classes)[labels.astype(int)]} if classes else {}


def check_numbers(party: Party) -> None:
    """Raise ``PartyError`` if a party's labels are categories, not numbers."""
    if party.y is not None and "classes" in (party.encoding or {}):
        raise PartyError(
            "labels must be numbers for a regression, but this party's labels are "
            "categories: write them as numbers"
        )


def classes_of(party: Party, target: Target) -> Array:
    """Return the labels of the classes, in the order of the columns of f."""
    if target == "continuous":
        check_numbers(party)
    if party.y is None or target == "continuous":
        return np.zeros(0)
    classes = np.unique(party.y[~np.isnan(party.y)])
    count = len(classes)
    if target == "binary" and count != 2:
        hint = ""
        if count > 2:
            hint = ": set target to 'multiclass'"
        if count > MAX_CLASSES:
            hint = ": set target to 'continuous'"
        raise PartyError(
            "the number of distinct labels must be 2 for target 'binary', got "
            f"{count}{hint}"
        )
    if target == "multiclass" and not 2 <= count <= MAX_CLASSES:
        raise PartyError(
            f"the number of distinct labels must be from 2 to {MAX_CLASSES} for target "
            f"'multiclass', got {count}"
        )
    return classes


def columns_of(target: Target, classes: Array) -> int:
    """Return C, the number of functions that the label holders learn."""
    return len(classes) if target == "multiclass" else 1


def signs_of(y: Array, target: Target, classes: Array) -> Array:
    """Return labels as the losses require them, (n, C): -1 and +1, or real numbers."""
    if target == "continuous":
        return y[:, None]
    columns = classes[1:] if target == "binary" else classes
    return np.where(y[:, None] == columns, 1.0, -1.0)


def check_columns(party: Party, width: int, trained: list[str]) -> None:
    """Raise ``PartyError`` unless rows have the training columns in the same order."""
    now = list(party.columns or ())
    if width != party.rows.shape[1] or (trained and now and trained != now):
        lacking = [name for name in trained if now and name not in now]
        raise PartyError(
            f"new rows must have the {width} training columns in the same order, got "
            f"{party.rows.shape[1]}" + (f", without {lacking[0]!r}" if lacking else "")
        )


def least_rows(party: Party) -> int:
    """Return the minimum number of rows, in total and per class, behind a metric.

    The minimum is 20; in one process, it is half of the labelled rows if that is less.
    """
    half = party.n_labels // 2 if party.row_sets is None else LEAST_ROWS
    return min(LEAST_ROWS, half)


def hides_each(party: Party, rows: Array) -> bool:
    """Return whether a mean over these labelled rows hides each of them.

    Raises PartyError if a row occurs twice, because a row that occurred often enough
    would determine the mean.
    """
    if len(np.unique(rows)) < len(rows):
        raise PartyError("a model must be evaluated on each row only once")
    return len(rows) >= max(1, least_rows(party))


def judged(party: Party, rows: Array, evaluated: bool) -> tuple[Array, Array]:
    """Return which `rows` have labels here, and these labels (empty if too few).

    Raises PartyError if the party has already `evaluated` predictions, or if it holds
    no labels.
    """
    if party.y is None:
        raise PartyError("this party holds no labels")
    if evaluated:
        raise PartyError(
            "this party reports the errors of its predictions only once in a session"
        )
    y = np.asarray(party.y[rows.astype(np.intp)], dtype=np.float64)
    known = ~np.isnan(y)
    if not hides_each(party, rows[known]):
        log.warning("the mean error is not reported: it would not hide so few labels")
        return known, y[:0]
    return known, y[known]


def measures_of(
    party: Party,
    y: Array,
    predicted: Array,
    target: Target,
    classes: Array,
    scores: Array | None = None,
    probability: Array | None = None,
    curves: bool = False,
) -> Measures:
    """Return the metrics of the predictions for rows whose labels the party knows.

    Metrics of two classes are reported only if each class has at least
    :func:`least_rows` rows, and the base rate only if at least that many rows are
    outside the most frequent class: a metric over a few rows reveals each of these
    rows.

    If there are two classes, `scores` rank the rows, and the second class is positive.
    `probability` is the predicted probability of each row's true class. Both arrays
    have shape (n,). Raises PartyError if the mean squared error is not finite.
    """
    bins: dict[str, Array] = {}
    if target == "continuous":
        numbers = evaluation.regression(y, predicted)
        if not np.isfinite(numbers["loss"] + numbers["loss_se"]):
            raise PartyError(
                "the mean squared error is not finite: choose smaller steps"
            )
        if curves:
            bins = evaluation.regression_curve(y, predicted, LEAST_ROWS)
    else:
        numbers = evaluation.wrong(y, predicted)
        counts = np.unique(y, return_counts=True)[1]
        least = max(2, least_rows(party))
        if len(y) - counts.max() >= least:
            numbers["base_error"] = evaluation.base_error(counts)
        if probability is not None:
            numbers |= evaluation.log_loss(probability)
        two = target == "binary" and len(counts) == 2 and counts.min() >= least
        if two and scores is not None:
            positive = y == classes[1]
            if probability is not None:
                probability = np.where(positive, probability, 1 - probability)
            numbers |= evaluation.two_classes(
                positive, predicted == classes[1], scores, probability
            )
            if curves:
                bins = evaluation.two_class_curve(
                    positive, scores, probability, LEAST_ROWS
                )
        if curves and target == "multiclass":
            bins = evaluation.confusion(y, predicted, classes, LEAST_ROWS)
    named: dict[str, Any] = {f"test_{name}": number for name, number in numbers.items()}
    named |= {f"{CURVE}{name}": of_bins for name, of_bins in bins.items()}
    return cast(Measures, {"test_rows": len(y), **named})
