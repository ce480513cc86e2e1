"""Metrics that several algorithms report, and base classes of their strategies."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models.base import Model, PartedModel
from vfl_flower.numerics import evaluation
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.memory import Memory
from vfl_flower.protocol.settings import settings
from vfl_flower.server.metrics import CONVERGED, Metric
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolStrategy, Run
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

TEST_ROWS = Metric(
    "Rows held out",
    "Rows that were not used for training, and on which the model is evaluated.",
    kind="count",
)

EXPLAINED = Metric(
    "Spread explained",
    "How much of the spread of the rows lies between clusters rather than within them. "
    "0 % is no better than a single cluster; more clusters always explain more.",
    "higher",
    "share",
)

SMALLEST = Metric(
    "Smallest cluster",
    "Rows in the smallest cluster, estimated if the clusters come from a sample.",
    kind="count",
)

LARGEST = Metric(
    "Largest cluster",
    "Rows in the largest cluster, estimated if the clusters come from a sample.",
    kind="count",
)

PREDICTED_ROWS = Metric(
    "Rows", "Rows that were used; in a prediction, the predicted rows.", kind="count"
)

MEASURES: dict[str, Metric] = {
    "test_rows": TEST_ROWS,
    "test_error": Metric(
        "Wrong classes, rows held out",
        "Share of the held-out rows for which the model predicts a wrong class.",
        "lower",
        "share",
    ),
    "test_base_error": Metric(
        "Wrong classes without a model",
        "Share of the same rows whose class would be wrong if the most frequent class "
        "were predicted for each row. A useful model is wrong far less often.",
        kind="share",
    ),
    "test_auc": Metric(
        "Ranking (area under the ROC curve)",
        "How often the model gives a row of the second, positive class a higher score "
        "than a row of the first class. 50 % is guessing; 100 % is perfect.",
        "higher",
        "share",
    ),
    "test_log_loss": Metric(
        "Log loss",
        "How surprised the model is by the true classes: the mean of -log p, where p "
        "is the predicted probability of the true class. 0 is perfect; guessing "
        "between two classes gives log 2 = 0.69.",
        "lower",
    ),
    "test_brier": Metric(
        "Brier score",
        "Mean squared difference between the probability and the outcome (0 or 1). 0 "
        "is perfect; 0.25 is the score of predicting 50 % for each row.",
        "lower",
    ),
    "test_true_positives": Metric(
        "Positives found",
        "Rows of the positive class that the model predicts as positive.",
        "higher",
        "count",
    ),
    "test_false_positives": Metric(
        "False alarms",
        "Rows of the other class that the model predicts as positive.",
        "lower",
        "count",
    ),
    "test_false_negatives": Metric(
        "Positives missed",
        "Rows of the positive class that the model predicts as negative.",
        "lower",
        "count",
    ),
    "test_true_negatives": Metric(
        "Negatives recognised",
        "Rows of the other class that the model predicts as negative.",
        "higher",
        "count",
    ),
    "test_loss": Metric(
        "Mean squared error, rows held out",
        "The mean of (prediction - truth)² on rows that the model was not trained on. "
        "Its square root is a typical error, in the unit of the label.",
        "lower",
    ),
    "test_r2": Metric(
        "Variance explained, rows held out",
        "R²: how much of the variation of the label the model predicts. 100 % is "
        "perfect; 0 % is no better than predicting the mean label for every row.",
        "higher",
        "share",
    ),
    "test_mae": Metric(
        "Mean absolute error, rows held out",
        "Mean distance of a prediction from the truth, in the unit of the label.",
        "lower",
    ),
}
"""Metrics of a model, reported by a party with labels."""

OF_NEW_ROWS: dict[str, Metric] = {**MEASURES, "rows": PREDICTED_ROWS}
"""Metrics of a prediction or an evaluation on new rows."""

KERNEL: dict[str, Metric] = {
    **MEASURES,
    "cv_score": Metric(
        "Loss in cross-validation",
        "The mean loss on training rows that a fit left out; it is used to choose the "
        "strength of the smoothing. It has the unit of the loss, so compare it only "
        "between models with the same loss.",
        "lower",
    ),
    "rows": Metric("Training rows", "Rows that the model learned from.", kind="count"),
    "features": Metric(
        "Random features",
        "How many random features the model computes from all columns together: more "
        "features can follow finer patterns, but take more bytes to send.",
        kind="count",
    ),
    "local_columns": Metric(
        "Columns computed by parties",
        "Features that each party computed from its own columns alone.",
        kind="count",
    ),
    "bandwidth": Metric(
        "Bandwidth",
        "How near two rows must be for the model to treat them alike: a small "
        "bandwidth follows fine patterns; a large bandwidth gives a smooth model.",
    ),
    "regularization": Metric(
        "Smoothing",
        "How strongly a simple model is preferred: a larger number means smoother "
        "predictions.",
    ),
    "converged": CONVERGED,
}
"""Metrics of a kernel model."""


def left_out(purpose: str, used: int, available: int, limit: str) -> list[str]:
    """Return a warning if some of the available rows are not used."""
    count = available - used
    return [f"{count:,} of {available:,} rows {purpose} are left out: {limit}"] * (
        count > 0
    )


def record_model(
    run: Run, model: Model, metrics: dict[str, Any], iteration: int = 1
) -> ArrayRecord:
    """Record a model with its metrics, and return its arrays."""
    record = model.to_record()
    run.record(iteration, record, metrics)
    return record


@settings
class JudgedStrategy(ProtocolStrategy):
    """A strategy that warns if its model is no better than using no model."""

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return warnings about a model that is no better than no model."""
        return evaluation.shortfalls(metrics)


@settings
class PartedStrategy(JudgedStrategy):
    """A strategy that learns a :class:`PartedModel` from labels."""

    labelled = True
    explained = KERNEL

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add the local models to the model if all parties are in this process."""
        assert isinstance(model, PartedModel)
        model.complete([m.part for m in memories if m.run == model.id])

    def untrained(
        self, parties: Parties, run: Run, kernel: str, bandwidth: float, features: int
    ) -> PartedModel:
        """Return the model without local models, and record it."""
        assert issubclass(self.model_class, PartedModel)
        model_id, widths = parties.session_id, [p.n_columns for p in parties]
        model = self.model_class(model_id, kernel, bandwidth, features, widths)
        run.record(0, model.to_record())
        log.info("model %s", model_id)
        return model

    def split(
        self, parties: Parties, run: Run, test_fraction: float
    ) -> tuple[Array, Array]:
        """Return training and held-out rows; warn if no row is held out."""
        n = parties.n_rows
        train, test = split_rows(n, test_fraction, run.seed)
        if test_fraction and not len(test):
            text = "no row is held out: test_fraction is %g, and there are only %d rows"
            log.warning(text, test_fraction, n)
        return np.arange(n) if train is None else train, test
