"""Predictions for new rows by a ridge model whose local models are at the parties."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import ClassVar, Literal

from flwr.app import ArrayRecord

from vfl_flower.clients.evaluation import Measures
from vfl_flower.clients.ridge import dealing, scores
from vfl_flower.clients.ridge.state import AngleBits
from vfl_flower.models.ridge import RidgeModel
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.products.dealing import NEW_ROWS
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.later import RowPrediction, check_places
from vfl_flower.strategies.products import ComputingParties, passed_on
from vfl_flower.strategies.ridge.scoring import Dealing, row_roles, score_rows


@settings
class RidgePrediction(ComputingParties, RowPrediction):
    """Predictions for new rows by a ridge model whose local models stay at the parties.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, key                       all of it
    part           position, sizes, label holder,         all of it
                   kernel, bandwidth
    rows           angles and its own columns, masked,    nothing
                   for the two computing parties; the
                   label holder: its weights, masked
    products       the second party: a share of the       nothing
                   scores
    scores         the label holder alone: metrics, if    the metrics
                   it is asked for them
    =============  =====================================  ==========================

    The label holder of training writes the predictions to a file in its ``state-dir``.
    No random draws are made, so a seed is refused.

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
    ...     model = vf.simulate(vf.SecureRidge(features="linear"), [a, b]).model
    ...     vf.simulate(RidgePrediction(model.id), [a, b]).metrics["rows"]
    600
    """

    _: KW_ONLY
    bits: Literal[16, 32] = 16
    """Bits per angle; see :class:`~vfl_flower.strategies.SecureRidge`."""

    model_class = RidgeModel
    steps: ClassVar[Steps] = (
        *(dealing.part, dealing.deal),
        *(scores.rows, scores.products, scores.scores),
    )

    @property
    def terms(self) -> Terms:
        """Products with the weights."""
        return replace(super().terms, needs=("moments",), computing=self.computing)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Check the local models, then have the label holder reconstruct the scores."""
        dealt_by, second = self.places(parties)
        described = parties.ask(dealing.part, dealt_by=dealt_by, second=second)
        first = described[0]
        common = ("parties", "holder", "n_features", "kernel", "bandwidth")
        check_places(parties, described, common)
        holder, M = first["holder"], first["n_features"]
        if holder >= len(parties) or not described[holder]["outputs"]:
            reason = "its local model must name a label holder with coefficients"
            raise parties.failure(0, dealing.part, reason)
        roles = self.roles(
            *(parties, [], 0, holder), joint=M, fraction=NEW_ROWS.fraction
        )
        reply = self._scored(parties, roles, described)
        widths = [info.n_columns for info in parties]
        model = RidgeModel(
            *(self.model_id, first["kernel"], first["bandwidth"], M, widths), kept=True
        )
        return self.finish(parties, run, holder, reply, model)

    def _scored(
        self, parties: Parties, roles: Roles, described: Replies[dealing.RidgePartInfo]
    ) -> Measures:
        """Return the label holder's report on all rows, processed in blocks."""
        local, outputs = described.each("local"), described[roles.first]["outputs"]
        curves = self.evaluates and parties.let("curves", roles.first)
        bits: AngleBits = self.bits
        reply: Measures = {}
        blocks = dealing.row_blocks(parties.n_rows, sum(local) + roles.joint)
        for turn, block in enumerate(blocks):
            of_rows = row_roles(roles, local, len(block), turn)
            if "first_rows" in described.secrets and not turn:
                early = {"first_rows": passed_on(described, "first_rows")}
                dealt = Dealing(bits, outputs, b"", {}, early)
            else:
                dealt = Dealing.of(parties, bits, outputs, of_rows=of_rows)
            last = turn == len(blocks) - 1
            how = {"evaluate": self.evaluates, "last": last, "curves": curves and last}
            reply = score_rows(parties, of_rows, block, dealt, **how)
        return reply


@settings
class RidgeEvaluation(RidgePrediction):
    """Errors of a ridge model on new rows; the local models stay at the parties.

    The messages are the same as in :class:`RidgePrediction`. The label holder needs the
    labels of at least 20 new rows, and writes no predictions. It reports the error of
    the predictions to the server, with the other metrics that training reports for
    held-out rows. If it consents, it also reports the curves, once per session.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(600, 2))
    >>> with TemporaryDirectory() as folder:
    ...     a = vf.Party(X[:, :1], state_dir=f"{folder}/a")
    ...     b = vf.Party(X[:, 1:], y=X.sum(axis=1) > 0, state_dir=f"{folder}/b")
    ...     model = vf.simulate(vf.SecureRidge(features="linear"), [a, b]).model
    ...     vf.simulate(RidgeEvaluation(model.id), [a, b]).metrics["test_error"] < 0.1
    True
    """

    task = "evaluate"
    question = "How well does the model predict {label} of new rows?"
    evaluates = True
