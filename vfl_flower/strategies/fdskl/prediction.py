"""Predictions for new rows by the parties' local models."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.fdskl import angle_sums, prediction
from vfl_flower.models.fdskl import KernelModel
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps
from vfl_flower.protocol.terms import Terms
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.fdskl.angles import AngleStrategy
from vfl_flower.strategies.later import RowPrediction, check_places

_COMMON = ("parties", "n_features", "holders", "kernel", "bandwidth", "kept")
"""Values that must be equal in all local models of one model."""


@settings
class FDSKLPrediction(AngleStrategy, RowPrediction):
    """Predictions for new rows by local models, which stay at the parties.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, key                       all of it
    part           position, kernel, bandwidth, sizes,    all of it
                   label holders, scale of labels
    answer         angles; with several label holders,    nothing
                   each of them also its contribution to
                   the scores; masked
    =============  =====================================  ==========================

    The first label holder of training, in party order, writes the predictions to a file
    in its ``state-dir``. No random draws are made, so a seed is refused.

    Raises
    ------
    FederationError
        A party does not take part, or its index differs from its index in training.
    PartyFailed
        A party has no local model, its local model does not match the other local
        models, or its columns differ from the training columns.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(600, 2))
    >>> with TemporaryDirectory() as folder:
    ...     a = vf.Party(X[:, :1], state_dir=f"{folder}/a")
    ...     b = vf.Party(X[:, 1:], y=X.sum(axis=1) > 0, state_dir=f"{folder}/b")
    ...     training = vf.FDSKLDirect(features=64, allow_two_parties=True)
    ...     model = vf.simulate(training, [a, b]).model
    ...     task = FDSKLPrediction(model.id, allow_two_parties=True)
    ...     vf.simulate(task, [a, b]).metrics["rows"]
    600
    """

    model_class = KernelModel
    steps: ClassVar[Steps] = (
        prediction.part,
        prediction.answer,
        angle_sums.held_out_angles,
    )

    @property
    def terms(self) -> Terms:
        """Angles."""
        return replace(super().terms, needs=("angles",))

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Check the local models, then predict all rows in blocks."""
        parties.refuse_two("FDSKL", self.allow_two_parties)
        replies = parties.ask(prediction.part)
        self._check_parts(parties, replies)
        first = replies[0]
        holders, M = first["holders"], first["n_features"]
        rows = np.arange(parties.n_rows, dtype=np.uint32)
        columns = replies[holders[0]]["columns"]
        curves = self.evaluates and parties.let("curves", holders[0])
        scale = max(replies[j]["scale"] for j in holders)
        angles = self.angles(parties, holders, first["kept"], scale)
        reply = angles.answers(
            *(rows, M, columns, self.block_bytes, self.evaluates, curves)
        )
        model = KernelModel(
            self.model_id,
            first["kernel"],
            first["bandwidth"] / replies[holders[0]].get("multiple", 1),
            M,
            [info.n_columns for info in parties],
            kept=True,
        )
        return self.finish(parties, run, holders[0], reply, model)

    def _check_parts(
        self, parties: Parties, replies: Replies[prediction.KernelPartInfo]
    ) -> None:
        """Raise unless these are all the local models of one model, in party order."""
        check_places(parties, replies, _COMMON)
        first = replies[0]
        holders, phase_parties = first["holders"], first["kept"]
        everyone = set(range(len(parties)))
        if len(set(holders) & everyone) < len(holders):
            reason = "its local model must name distinct label holders of the run"
            raise parties.failure(0, prediction.part, reason)
        if len(phase_parties) not in (0, len(holders)) or any(
            k == j or k not in everyone
            for k, j in zip(phase_parties, holders, strict=False)
        ):
            reason = "its local model must name another party for each label holder"
            raise parties.failure(0, prediction.part, reason)
        columns = replies[holders[0]]["columns"]
        for j in holders:
            if not columns or replies[j]["columns"] != columns:
                reason = "its local model must have a label holder's coefficients"
                raise parties.failure(j, prediction.part, reason)
        if bool(phase_parties) != (self.angle_masking == "paper"):
            trained = "paper" if phase_parties else "circle"
            raise FederationError(
                f"angle_masking must be {trained!r}, as in training, got "
                f"{self.angle_masking!r}"
            )


@settings
class FDSKLEvaluation(FDSKLPrediction):
    """Errors of a model on new rows; the local models stay at the parties.

    The messages are the same as in :class:`FDSKLPrediction`. The first label holder of
    training needs the labels of at least 20 new rows, and writes no predictions. It
    reports the error of the predictions to the server, with the other metrics that
    training reports for held-out rows. If it consents, it also reports the curves, once
    per session.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(600, 2))
    >>> with TemporaryDirectory() as folder:
    ...     a = vf.Party(X[:, :1], state_dir=f"{folder}/a")
    ...     b = vf.Party(X[:, 1:], y=X.sum(axis=1) > 0, state_dir=f"{folder}/b")
    ...     training = vf.FDSKLDirect(features=64, allow_two_parties=True)
    ...     model = vf.simulate(training, [a, b]).model
    ...     task = FDSKLEvaluation(model.id, allow_two_parties=True)
    ...     vf.simulate(task, [a, b]).metrics["test_error"] < 0.1
    True
    """

    task = "evaluate"
    question = "How well does the model predict {label} of new rows?"
    evaluates = True
