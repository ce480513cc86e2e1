"""Removal of a model whose local models are stored at the parties."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from flwr.app import ArrayRecord

from vfl_flower.clients import removal as party
from vfl_flower.models.base import RemovedModel
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps
from vfl_flower.server.metrics import Metric
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.evaluation import record_model
from vfl_flower.strategies.later import ModelTask
from vfl_flower.strategies.mufc.state import ServerState
from vfl_flower.strategies.mufc.training import StateFolder

log = logging.getLogger("vfl_flower")


@settings
class Removal(ModelTask):
    """Remove a model's data at the parties: local models, states and predictions.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, key                       all of it
    find           whether it has data of the model       all of it
    remove         whether data of the model are left     all of it
    =============  =====================================  ==========================

    The parties' rows and columns need not be the same as in training. If a party has no
    data of the model, it reports this, and the run can be repeated, for instance when
    more parties are connected. The answers recorded in a party's journal remain.

    Raises
    ------
    PartyFailed
        A file at a party has the name of the local model but is not a local model, or
        the file cannot be removed.

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
    ...     vf.simulate(Removal(model.id), [a, b]).metrics["removed"]
    2
    """

    task = "remove"
    question = "Have all parties removed the model?"
    explained: ClassVar[Mapping[str, Metric]] = {
        "parties": Metric("Parties", "Parties that were asked.", kind="count"),
        "removed": Metric(
            "Parties that had the model",
            "Parties that stored data of the model, and removed them.",
            kind="count",
        ),
    }
    model_class = RemovedModel
    partition = "either"
    steps: ClassVar[Steps] = (party.find, party.remove)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Ask which parties have the model, then have all parties remove it."""
        removed = parties.ask(party.find, model=self.model_id).each("found")
        gone = parties.ask(party.remove, model=self.model_id)
        for j, info in enumerate(parties):
            if gone[j]["left"]:
                raise parties.failure(j, party.remove, "data of the model remain")
            what = "was removed" if removed[j] else "was not stored"
            log.info("%s: model %s %s", info.name, self.model_id, what)
        self.remove_at_server()
        counts = {"parties": len(parties), "removed": sum(removed)}
        return record_model(run, RemovedModel(self.model_id), counts)

    def remove_at_server(self) -> None:
        """Remove the data of the model that the server stores."""


@settings
class MUFCRemoval(Removal):
    """Remove a clustering that can forget rows, together with the server's state.

    The record of forgotten rows is removed too: the history and the tags of ids. See
    :class:`Removal`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.MUFC(n_clusters=2, server_state=home), parties).model
    ...     task = MUFCRemoval(model.id, server_state=home)
    ...     vf.simulate(task, parties).metrics["removed"]
    3
    """

    server_state: StateFolder = dataclasses.field(default="", kw_only=True)
    """Folder in which training stored the server's state."""

    def remove_at_server(self) -> None:
        """Remove the server's state."""
        if self.server_state:
            state = ServerState(Path(self.server_state), self.model_id)
            if state.exists:
                state.remove()
                log.info("the server: the state of model %s is removed", self.model_id)
