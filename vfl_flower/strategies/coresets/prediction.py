"""Predictions for new rows by a linear model or centres learned on a coreset."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import ClassVar

from flwr.app import ArrayRecord

from vfl_flower.clients.coresets import prediction as party
from vfl_flower.models.base import UsedModel
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps, Sum, each, opened
from vfl_flower.protocol.terms import Kind, Terms
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.later import RowPrediction, check_places
from vfl_flower.typing import Array

_COMMON = ("kind", "outputs", "receiver", "parties")
"""Values that must be equal in all local models of one model."""

_BOUND = 2.0**24
"""First guess of the largest contribution; see :meth:`Parties.ask_exactly`."""


def keep_parts(
    parties: Parties,
    kind: party.Additive,
    weights: list[Array],
    intercept: float,
    receiver: int,
) -> str:
    """Store the blocks at all parties, or at none; return the model's id or ""."""
    if not all(info.keeps for info in parties):
        return ""
    parties.ask(
        party.keep,
        kind=kind,
        weights=each(weights),
        intercept=intercept,
        receiver=receiver,
    )
    return parties.session_id


@settings
class CoresetPrediction(RowPrediction):
    """Predictions for new rows by a model whose blocks the parties store.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, key                       all of it
    part           position, kind and size of the model   all of it
    addends        its contribution to the prediction     nothing: only the label
                   of each row, masked                    holder can unmask it
    answer         the label holder alone: nothing        nothing
    =============  =====================================  ==========================

    The label holder of training (for k-means, the first party) writes the predictions
    to a file in its ``state-dir``. It learns f(x) for each row, or the distance of the
    row to each centre; with two parties it thereby learns the other party's
    contribution.

    Raises
    ------
    FederationError
        A party does not take part, or its index differs from its index in training.
    PartyFailed
        A party has no local model with this id, its local model does not match the
        other local models, or its columns differ from the training columns.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(600, 2))
    >>> with TemporaryDirectory() as folder:
    ...     a = vf.Party(X[:, :1], state_dir=f"{folder}/a")
    ...     b = vf.Party(X[:, 1:], y=X @ [1.0, 2.0], state_dir=f"{folder}/b")
    ...     model = vf.simulate(vf.CoresetVRLR(size=100), [a, b]).model
    ...     task = CoresetPrediction(model.id, allow_two_parties=True)
    ...     vf.simulate(task, [a, b]).metrics["rows"]
    600
    """

    _: KW_ONLY
    allow_two_parties: bool = False
    """Allow two parties, although the party that receives the predictions learns the
    other party's contribution."""

    model_class = UsedModel
    steps: ClassVar[Steps] = (party.part, party.addends, party.answer)

    @property
    def terms(self) -> Terms:
        """Predictions; an evaluation adds moments, which many models' errors reveal."""
        needs: tuple[Kind, ...] = ("predictions", "moments")
        return replace(super().terms, needs=needs if self.evaluates else needs[:1])

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Check the local models, then predict all rows in blocks."""
        parties.refuse_two(f"task {self.task!r}", self.allow_two_parties)
        replies = parties.ask(party.part)
        check_places(parties, replies, _COMMON)
        first = replies[0]
        if first["receiver"] >= len(parties):
            raise replies.failure(0, "its local model must name a party of the run")
        n, receiver = parties.n_rows, first["receiver"]
        curves = (
            self.evaluates
            and first["kind"] == "linear"
            and parties.let("curves", *range(len(parties)))
        )
        block, reply = party.block_rows(first["outputs"]), party.BlockAnswer()
        for start in range(0, n, block):
            stop = min(start + block, n)
            sealed = parties.ask_exactly(
                party.addends.summing(sums=Sum(_BOUND, to=receiver)),
                start=start,
                stop=stop,
                curves=curves,
            ).sealed["sums"]
            reply = parties.ask_one(
                receiver,
                party.answer,
                sums=opened(sealed),
                evaluate=self.evaluates and stop == n,
                last=stop == n,
                curves=curves and stop == n,
            )
        return self.finish(parties, run, receiver, reply, UsedModel(self.model_id))


@settings
class CoresetEvaluation(CoresetPrediction):
    """Errors that a model makes on new rows; the parties store the model's blocks.

    The messages are the same as in :class:`CoresetPrediction`, but the label holder
    writes no predictions. It reports the errors of the predictions to the server, with
    standard errors, and also the curves if all parties consent.

    A regression reports the mean squared error, the mean absolute error and R^2 on the
    rows with labels; k-means reports ``test_loss``, the mean squared distance to the
    nearest centre. See :class:`CoresetPrediction`.

    Notes
    -----
    Curves reveal means over bins of predictions. Since the server sends the model, the
    predictions can equal a column of any party, so all parties must consent.

    A malicious server can send the parties a different model before each evaluation.
    The errors of many models reveal the labels and rows, so the label holder counts
    each evaluation as ``moments`` against the limit in its consent file. Parties answer
    only for whole blocks of rows, so nobody can ask for the error of a single row.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(600, 2))
    >>> with TemporaryDirectory() as folder:
    ...     a = vf.Party(X[:, :1], state_dir=f"{folder}/a")
    ...     b = vf.Party(X[:, 1:], y=X @ [1.0, 2.0], state_dir=f"{folder}/b")
    ...     model = vf.simulate(vf.CoresetVRLR(size=100), [a, b]).model
    ...     task = CoresetEvaluation(model.id, allow_two_parties=True)
    ...     vf.simulate(task, [a, b]).metrics["test_r2"] > 0.99
    True
    """

    task = "evaluate"
    question = "How well does the model fit new rows?"
    evaluates = True
