"""Base classes of the tasks that use a trained model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from flwr.app import ArrayRecord

from vfl_flower.clients.evaluation import curves_of, metrics_of
from vfl_flower.models.base import Model
from vfl_flower.party.parts import check_model
from vfl_flower.protocol.settings import check_unused, settings
from vfl_flower.protocol.terms import Terms
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import ProtocolStrategy, Run
from vfl_flower.strategies.evaluation import OF_NEW_ROWS, JudgedStrategy, record_model

log = logging.getLogger("vfl_flower")


@settings
class ModelTask(ProtocolStrategy):
    """A task that uses a trained model."""

    model_id: str
    """The id of the model, printed by the run that trained it: ``result.model.id``."""

    draws: ClassVar[bool] = False
    """Whether the task makes random draws, and therefore accepts a seed."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        check_model(self.model_id)
        if not self.draws:
            check_unused(self, ["seed"], f"the deterministic task {self.task!r}")


@settings
class LaterTask(ModelTask):
    """A task for which the parties load their local models."""

    @property
    def works_with(self) -> str:
        """Id of the model whose local models the parties load."""
        return self.model_id


@settings
class RowPrediction(LaterTask, JudgedStrategy):
    """Predictions that only one party receives; see the subclasses."""

    task = "predict"
    question = "What does the model predict for new rows?"
    explained = OF_NEW_ROWS
    evaluates: ClassVar[bool] = False
    """Whether the predictions are evaluated instead of being stored."""

    @property
    def terms(self) -> Terms:
        """Curves, for an evaluation."""
        return Terms(wants=("curves",) if self.evaluates else ())

    def finish(
        self,
        parties: Parties,
        run: Run,
        receiver: int,
        reply: Mapping[str, Any],
        model: Model,
    ) -> ArrayRecord:
        """Record the model with the metrics of the last reply, and return its arrays.

        The location of the predictions is logged.
        """
        rows = parties.n_rows
        metrics: dict[str, Any] = {"rows": rows}
        if self.evaluates:
            run.curves = curves_of(reply)
            metrics |= metrics_of(reply)
        else:
            log.info(
                "%d predictions are stored at %r, in the file predictions-%s-%016x.csv "
                "of its state-dir",
                *(rows, parties[receiver].name, self.model_id, parties.session),
            )
        return record_model(run, model, metrics)


def log_clusters(parties: Parties, model: str) -> None:
    """Log where the clusters of each party's new rows are stored."""
    log.info(
        "the clusters are in predictions-%s-%016x.csv in each party's state-dir",
        *(model, parties.session),
    )


def check_places(
    parties: Parties, replies: Replies[Any], common: Sequence[str]
) -> None:
    """Raise unless all training parties keep their index and agree on `common`."""
    first = replies[0]
    for j, reply in enumerate(replies):
        if reply["index"] != j:
            raise FederationError(
                f"{parties[j].name!r} must have the same index as in training, "
                f"{reply['index']}, got {j}: set partition-id"
            )
    for name in common:
        for j, value in enumerate(replies.each(name)):
            if value != first[name]:
                reason = f"its model must have the same {name} as {parties[0].name!r}"
                raise replies.failure(j, reason)
    if first["parties"] != len(parties):
        raise FederationError(
            f"all {first['parties']} parties of the training run must take part, and "
            f"no others; this run has {len(parties)} parties"
        )
