"""Federated clusters that can forget: the tasks on a model after training.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pydantic
from flwr.app import ArrayRecord

from vfl_flower.clients.mufc import forgetting
from vfl_flower.clients.mufc import training as party
from vfl_flower.models.mufc import MUFCModel
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps
from vfl_flower.protocol.terms import Terms
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.evaluation import record_model
from vfl_flower.strategies.later import ModelTask, log_clusters
from vfl_flower.strategies.mufc import training
from vfl_flower.strategies.mufc.state import GlobalClusters, ServerState

log = logging.getLogger("vfl_flower")

NOTHING = {
    "added": "no party has asked to add rows that the model lacks",
    "removed": "no party has asked to forget rows that were not forgotten before",
}
"""Messages of a run that adds or forgets no row, by the metric that counts rows."""


@settings
class StateTask(ModelTask, training.MUFCTask):
    """Base class of the tasks that use the server's state of a trained model."""

    server_state: training.StateFolder = dataclasses.field(default="", kw_only=True)
    """Folder in which training stored the server's state."""

    resumable = False  # the state decides
    draws = True
    lazy_counts = False  # a setting of `MUFCUnlearn` only

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if not self.server_state:
            raise ValueError(
                "server_state must be the folder in which training stored the server's "
                "state, got none"
            )

    @property
    def state(self) -> ServerState:
        """The server's state of the model."""
        return ServerState(Path(self.server_state or ""), self.model_id)

    @property
    def columns(self) -> Sequence[str]:
        """The order of the columns in training."""
        return self.state.load().settings.columns or ()

    def check(self) -> None:
        """Raise, before any message, if the server has no state of the model."""
        super().check()
        self.state.load()

    def known(self, now: GlobalClusters) -> MUFCModel:
        """Return the version of the model that the server stores."""
        model = training.version_of(
            self.model_id, now.version, now.centers, now.settings, True
        )
        model.sizes_, model.inertia_ = now.sizes, now.inertia
        return model

    def report(
        self, parties: Parties, run: Run, now: GlobalClusters, metrics: dict[str, Any]
    ) -> ArrayRecord:
        """Record the server's unchanged version, with metrics."""
        about = {"version": now.version, "clients": len(parties)}
        return record_model(run, self.known(now), about | metrics)

    def renew(
        self,
        parties: Parties,
        run: Run,
        replies: Replies[Any],
        before: GlobalClusters,
        key: bytes,
    ) -> ArrayRecord:
        """Save and commit the next version, from the parties' new counts."""
        state, agreed, leaving = self.state, before.settings, self.leaving
        adds = self.task == "add"
        with training.naming_parties(parties):
            warn_of_copies(replies)
            bins, counts, centers = self.cluster(parties, run, replies, agreed, key)
            rows, n_rows = int(before.counts.sum()), int(counts.sum())
            change = n_rows - rows if adds else rows - n_rows
            if change < 0:
                raise FederationError(
                    f"the number of rows must be at {'least' if adds else 'most'} "
                    f"{rows}, the number in the previous version, got {n_rows}: a "
                    "message was altered"
                )
        centers = agreed.box.restore(centers)
        behind = replies.sums["totals"][1]
        changed = not np.array_equal(bins, before.bins)
        if not self.lazy_counts:
            changed |= not np.array_equal(counts, before.counts)
        if agreed.privacy == "none":
            changed = bool(change or leaving)
        if not changed:  # line 4 of Algorithm 4: C_s is unchanged
            centers = before.centers
        metric = "added" if adds else "removed"
        if not change and not set(leaving) & set(before.parties):
            log.warning(NOTHING[metric])
            model = self.known(before)
            nothing = {metric: 0, "changed": 0} | training.counted_bins(before.counts)
            # Commit again if a killed run has left parties without their clusters or
            # the server without their sizes, or if a forgotten party may not know it.
            if (
                behind
                or not len(before.sizes)
                or set(leaving) & {info.name for info in parties}
            ):
                return self.commit(
                    *(parties, run, model, agreed, rows, state, before.run), **nothing
                )
            counted = {"rows": rows, **nothing, **training.worth(model, agreed)}
            return self.report(parties, run, before, counted)
        version, run_id = before.version + 1, parties.session_id
        stay = [name for name in before.parties if name not in leaving]
        state.save(
            *(version, bins, counts, centers, stay, self.task),
            named=leaving,
            run=run_id,
        )
        model = training.version_of(self.model_id, version, centers, agreed, True)
        changes: dict[str, Any] = {metric: change, "changed": int(changed)}
        changes |= training.counted_bins(counts)
        return self.commit(parties, run, model, agreed, n_rows, state, **changes)


@settings
class ForgettingTask(StateTask):
    """A task that forgets rows or parties."""

    steps: ClassVar[Steps] = (forgetting.forget, party.commit)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Run Algorithms 3 and 4 for a version without some rows or some parties."""
        state, leaving = self.state, self.leaving
        before = state.load()
        names = [info.name for info in parties]
        # A party that was forgotten before may not have been informed yet.
        past = {
            name
            for entry in state.log()
            if entry["kind"] == "forget-client"
            for name in entry["parties"]
        }
        _check_parties(names, before.parties, leaving, past)
        if len(set(before.parties) - set(leaving)) < self.least_parties:
            raise FederationError(
                f"at least {self.least_parties} parties must remain, so that a sum "
                "hides each of them: remove the model instead"
            )
        kind: forgetting.ForgetKind = "forget-client" if leaving else "unlearn"
        agreed, key = before.settings, training.new_key(parties, before.settings)
        replies = parties.ask(
            forgetting.forget.summing(**training.sums_of(agreed)),
            model=self.model_id,
            version=before.version,
            before=before.run,
            run=parties.session_id,
            key=key,
            leaving=[j for j, name in enumerate(names) if name in leaving],
            kind=kind,
            settings=agreed,
        )
        return self.renew(parties, run, replies, before, key)


@settings
class MUFCUnlearn(ForgettingTask):
    """Forget rows of a trained model at the request of their parties.

    =============  =====================================  ==========================
    round trip     party l sends                          the server learns
    =============  =====================================  ==========================
    hello          as in training                         all of it
    forget         as in training; number of rows,        the sums over parties: of
                   whether its file of clusters is        counts after the removal,
                   missing, how many forgotten rows its   so the rows removed, and
                   data hold, and how many requested ids  of the other numbers
                   its other models hold, masked
    commit         as in training                         the sums over parties
    =============  =====================================  ==========================

    The ids are in ``forget.txt`` in each party's ``state-dir``, which nobody else sees;
    :func:`~vfl_flower.request_changes` writes them there. Messages have the same form
    and size whether a party keeps all its rows, loses some rows or loses a centroid.
    The server knows the counts before and after the run, and so their difference:
    forget at least 20 rows in one run.

    Raises
    ------
    ValueError
        From `start`, before any message: the folder has no state of that model, or
        `lazy_counts` has no effect.
    FederationError
        The parties that take part are not the parties of the model.
    PartyFailed
        An id does not belong to a training row, or the data lack training rows that
        were not forgotten. In these cases nothing is changed.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.MUFC(n_clusters=2, server_state=home), parties).model
    ...     vf.request_changes(parties[0], forget=[4, 7])
    ...     task = MUFCUnlearn(model.id, server_state=home)
    ...     vf.simulate(task, parties).metrics["removed"]
    2
    """

    lazy_counts: bool = dataclasses.field(default=False, kw_only=True)
    """Keep the centres if counts change but the set of bins does not; not available
    with privacy "none"."""

    task = "unlearn"
    question = "Which rows belong together, without the forgotten rows?"

    def check(self) -> None:
        """Raise, before any message, if the settings do not fit the model."""
        super().check()
        if self.lazy_counts and self.state.load().settings.privacy == "none":
            raise ValueError("lazy_counts has no effect with privacy='none', got True")


@settings
class MUFCForgetClient(ForgettingTask):
    """Forget whole parties of a trained model, whether they are connected or not.

    A connected party (a "client" in [1]) removes its own state if ``leave.txt`` in its
    ``state-dir`` names the model (:func:`~vfl_flower.request_changes`). If the party is
    not connected, the counts of the other parties suffice, and the consent of each
    of these parties must name the absent party under ``changed-parties``. The other
    parties' requests to forget or add rows wait for another run.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.MUFC(n_clusters=2, server_state=home), parties).model
    ...     vf.request_changes(parties[0], leave=[model.id])
    ...     task = MUFCForgetClient(model.id, server_state=home, clients="a")
    ...     vf.simulate(task, parties).metrics["removed"]
    50
    """

    clients: str | pydantic.SkipValidation[Sequence[str]] = ""
    """Names of the parties to forget, "clinic-a,clinic-b"; at least two other parties
    must remain."""

    task = "forget-client"
    question = "Which rows belong together, without the rows of a party that leaves?"

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if not self.leaving:
            raise ValueError("clients must name the parties to forget, got none")

    @property
    def leaving(self) -> list[str]:
        """Names of the parties to forget."""
        return parse_names(self.clients)


@settings
class MUFCAdd(StateTask):
    """Add rows to a trained model at the request of their parties.

    =============  =====================================  ==========================
    round trip     party l sends                          the server learns
    =============  =====================================  ==========================
    hello          as in training                         all of it
    add            as in training; number of rows,        the sums over parties: of
                   whether its file of clusters is        counts with the new rows,
                   missing, and how many forgotten rows   so the rows added, and of
                   its data hold, masked                  the other numbers
    commit         as in training                         the sums over parties
    =============  =====================================  ==========================

    The ids are in ``add.txt`` in each party's ``state-dir``, which nobody else sees;
    :func:`~vfl_flower.request_changes` writes them there. A row whose id was forgotten
    is not added again. The result has the same distribution as training on the old and
    new rows with the settings of the model: its box, quantisation step and numbers of
    clusters. To include the rows of a new party, train again.

    Raises
    ------
    FederationError
        The parties that take part are not the parties of the model.
    PartyFailed
        A new row is outside the box, an id belongs to no row of the data or occurs
        twice, or the data lack training rows that were not forgotten. In these cases
        nothing is changed.

    Notes
    -----
    [1] describes only removals. For additions, each centroid of a party is retained
    with the probability that training on the old and new rows would have drawn the
    centroid from the old rows: see :func:`vfl_flower.numerics.mufc.initialise`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.MUFC(n_clusters=2, server_state=home), parties).model
    ...     a = {"name": "a", "state_dir": f"{home}/a"}
    ...     parties[0] = vf.Party([*data["X"], [0.2]], ids=range(51), **a)
    ...     vf.request_changes(parties[0], add=[50])
    ...     task = MUFCAdd(model.id, server_state=home)
    ...     vf.simulate(task, parties).metrics["added"]
    1
    """

    task = "add"
    question = "Which rows belong together, with the new rows?"
    steps: ClassVar[Steps] = (forgetting.add, party.commit)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Run Algorithms 3 and 4 with added rows instead of removed rows."""
        before = self.state.load()
        _check_parties([info.name for info in parties], before.parties)
        key = training.new_key(parties, before.settings)
        replies = parties.ask(
            forgetting.add.summing(**training.sums_of(before.settings)),
            model=self.model_id,
            version=before.version,
            before=before.run,
            run=parties.session_id,
            key=key,
        )
        return self.renew(parties, run, replies, before, key)


@settings
class ReadingTask(StateTask):
    """A task that does not change the model."""

    draws = False

    @property
    def terms(self) -> Terms:
        """No kinds, because only counts of rows leave a party."""
        return Terms()


@settings
class MUFCStatus(ReadingTask):
    """Report how much of a model was forgotten; bring parties up to date after a crash.

    The centres, sizes and objective are read from the server's stored state.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.MUFC(n_clusters=2, server_state=home), parties).model
    ...     task = MUFCStatus(model.id, server_state=home)
    ...     vf.simulate(task, parties).metrics["rows"]
    150
    """

    task = "status"
    question = "What has the model forgotten, and what must it still forget?"
    steps: ClassVar[Steps] = (forgetting.status,)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Ask all parties in one round trip."""
        now = self.state.load()
        names = [info.name for info in parties]
        _check_parties(names, now.parties)
        replies = parties.ask(
            forgetting.status, model=self.model_id, version=now.version, before=now.run
        )
        for name, reply in zip(names, replies, strict=True):
            log.info("%s: %s", name, ", ".join(f"{v} {k}" for k, v in reply.items()))
        counted = ("rows", "removed", "added", "pending", "requests")
        sums = {name: sum(replies.each(name)) for name in counted}
        return self.report(parties, run, now, sums)


@settings
class MUFCPrediction(ReadingTask):
    """Assignment of new rows to clusters; the rows stay at their parties.

    =============  =====================================  ==========================
    round trip     party l sends                          the server learns
    =============  =====================================  ==========================
    hello          as in training                         all of it
    predict        nothing                                nothing
    =============  =====================================  ==========================

    Each row is assigned to the nearest centre, as in the model's ``predict``. Each
    party writes the clusters of its rows to ``predictions-<model>-<run>.csv`` in its
    ``state-dir``. Forgotten rows are ignored. Parties of the model may be absent.

    Raises
    ------
    FederationError
        A party is not one of the model's parties.
    PartyFailed
        A party has no state of this model, or its columns differ from the training
        columns.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.MUFC(n_clusters=2, server_state=home), parties).model
    ...     task = MUFCPrediction(model.id, server_state=home)
    ...     vf.simulate(task, parties).metrics["rows"]
    150
    """

    task = "predict"
    question = "Which cluster does each new row belong to?"
    steps: ClassVar[Steps] = (party.predict,)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Ask all parties in one round trip."""
        now = self.state.load()
        names = [info.name for info in parties]
        _check_parties(names, [name for name in now.parties if name in names])
        d = now.centers.shape[1]
        if parties[0].n_columns != d:
            raise FederationError(
                f"the data must have the {d} training columns, got "
                f"{parties[0].n_columns}"
            )
        return self.report(parties, run, now, self.ask(parties, now))

    def ask(self, parties: Parties, now: GlobalClusters) -> dict[str, float]:
        """Have the parties assign their rows to clusters; return metrics."""
        parties.ask(
            party.predict,
            model=self.model_id,
            version=now.version,
            before=now.run,
            centers=now.centers,
        )
        log_clusters(parties, self.model_id)
        return {"rows": parties.n_rows}


@settings
class MUFCEvaluation(MUFCPrediction):
    """Evaluation of clusters by the mean squared distance of new rows to centres.

    =============  =====================================  ==========================
    round trip     party l sends                          the server learns
    =============  =====================================  ==========================
    hello          as in training                         all of it
    evaluate       number and cost of its rows, masked    the sums over the parties
    =============  =====================================  ==========================

    In ``test_loss``, each side of the box has length 1. Each party needs at least 20
    rows that the model has not forgotten, and writes nothing. See
    :class:`MUFCPrediction`.

    Notes
    -----
    A malicious server can choose the centres, and can use the costs for many centres
    to single out rows. Therefore the costs count as ``row-sums``, once per session.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.MUFC(n_clusters=2, server_state=home), parties).model
    ...     task = MUFCEvaluation(model.id, server_state=home)
    ...     vf.simulate(task, parties).metrics["test_loss"] < 0.3
    True
    """

    task = "evaluate"
    question = "How well do the clusters fit new rows?"
    steps: ClassVar[Steps] = (party.evaluate,)

    @property
    def terms(self) -> Terms:
        """The cost, which reveals single rows if the server chooses the centres."""
        return Terms(("row-sums",))

    def ask(self, parties: Parties, now: GlobalClusters) -> dict[str, float]:
        """Return the sums over the parties, as metrics."""
        bound = 4.0 * len(now.centers[0]) * parties.n_rows
        totals = parties.ask_exactly(
            party.evaluate.summing(totals=bound),
            model=self.model_id,
            version=now.version,
            before=now.run,
            centers=now.centers,
        ).sums["totals"]
        rows, cost = round(float(totals[0])), float(totals[1])
        with training.naming_parties(parties):
            if not (0 < rows <= parties.n_rows and 0 <= cost < math.inf):
                raise FederationError(
                    "the sums of the parties' row counts and costs are not valid "
                    "numbers: a message was altered"
                )
        return {"test_rows": rows, "test_loss": cost / rows}


def warn_of_copies(replies: Replies[Any]) -> None:
    """Warn of forgotten rows in data files or, after `forget` only, in other models."""
    in_file, *in_models = replies.sums["totals"][2:].tolist()
    if not all(0 <= count <= party.MOST_ROWS for count in (in_file, *in_models)):
        raise FederationError(
            "the sums of the parties' counts of forgotten rows are not between 0 and "
            "2^40: a message was altered"
        )
    if in_file:
        log.warning(
            "%d forgotten rows are still in the parties' files: remove them; each "
            "party's own log says how many are in its file",
            in_file,
        )
    if any(in_models):
        log.warning(
            "%d of the ids are still in other models of the parties: forget them there "
            "too, or remove these models; each party's own log says how many are in "
            "its models",
            *in_models,
        )


def parse_names(clients: str | Sequence[str]) -> list[str]:
    """Return the names of parties; raise ValueError if an item is not a name."""
    listed = clients.split(",") if isinstance(clients, str) else clients
    if not isinstance(listed, Iterable) or not all(
        isinstance(name, str) for name in listed
    ):
        raise ValueError(f"clients must be names of parties, got {clients!r}")
    return [name.strip() for name in listed if name.strip()]


def _check_parties(
    present: Sequence[str],
    parties: Sequence[str],
    leaving: Sequence[str] = (),
    past: Iterable[str] = (),
) -> None:
    """Raise unless the model's parties take part; parties in `leaving` need not."""
    for name in set(leaving) - set(past) - set(parties):
        raise FederationError(
            f"{name!r} must be one of the {len(parties)} parties of the model"
        )
    missing = [name for name in parties if name not in present and name not in leaving]
    extra = [name for name in present if name not in parties and name not in leaving]
    if missing or extra:
        wrong = "missing" if missing else "not one of them"
        raise FederationError(
            f"the {len(parties)} parties of the model, and no others, must take part, "
            f"but {(missing + extra)[0]!r} is {wrong}"
        )
