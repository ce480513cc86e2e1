"""The party's side on Flower: every client step on one ClientApp.

What stands between a message and a step's plain function is here and nowhere else:
the damage check, the order of rounds, the party's memory, masks, and errors that
leave the party without its values.
"""

from __future__ import annotations

import copy
import importlib
import logging
import pkgutil
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from vfl_flower import __version__, clients
from vfl_flower.clients.base import STEPS, Party, PartyError, Step, digest_ids
from vfl_flower.config import PartySource, party_source
from vfl_flower.data import drop_cache, load_party, read_ids
from vfl_flower.data.files import who_of
from vfl_flower.messages import CorruptMessage, digest, pack, unpack
from vfl_flower.model_parts import (
    ModelPart,
    check_folder,
    load_part,
    save_part,
    write_predictions,
)
from vfl_flower.secure_aggregation import new_private_key, public_key
from vfl_flower.sums import PartySums
from vfl_flower.typing import Values

log = logging.getLogger("vfl_flower")

Load = Callable[[Context], Party]
Frame = Mapping[str, Any]

HELLO = "hello"
"""The first action of every run."""

REFUSED = 1001
"""Error code: the party refuses, with its reason."""
FAILED = 1002
"""Error code: the step raised; the stack is in the party's own log."""
DAMAGED = 1003
"""Error code: the message arrived damaged and may be sent again."""


def make_client_app(load: Load, *, allow_plain: bool = False) -> ClientApp:
    """Return a ClientApp that answers every step of the package.

    Parameters
    ----------
    load : callable
        Returns the party's data for a Flower context.
    allow_plain : bool
        Answer a server that asks for sums without masks, or for a protocol that does
        not protect the party. Only for tests and comparisons.
    """
    app = ClientApp()
    register(app, load, allow_plain=allow_plain)
    return app


def register(app: ClientApp, load: Load, *, allow_plain: bool = False) -> None:
    """Add every step of the package to an existing ClientApp, as ``train.<action>``.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        The app.
    load : callable
        Returns the party's data for a Flower context. It is called for each message,
        so it should be quick: keep what takes long, or map a file into memory. A party
        without an index gets the ``partition-id`` of its node; without one either,
        parties are ordered by their names.
    allow_plain : bool
        See :func:`make_client_app`.
    """
    for module in pkgutil.iter_modules(clients.__path__):
        importlib.import_module(f"{clients.__name__}.{module.name}")

    def serve(step: Step) -> None:
        @app.train(step.action)
        def answer_step(message: Message, context: Context) -> Message:
            return answer(step, message, context, load, allow_plain)

    for step in [Step(HELLO, hello), *STEPS.values()]:
        serve(step)


def answer(
    step: Step, message: Message, context: Context, load: Load, allow_plain: bool
) -> Message:
    """Run one step for one message, or say why not without a value of the data."""
    start = time.perf_counter()
    try:
        values, frame = unpack(message.content)
        message.content.clear()  # its arrays are in `values`: tens of MB
        frame["digest"] += step.action.encode()  # what was asked, and of which step
        memory = Memory(context.state)
        party = _loaded(load, context)
        if step.action == HELLO:
            reply = dict(hello(party, **values)) | {
                "public_key": memory.open(frame["session"])
            }
            clipped = 0
        else:
            keys = memory.enter(frame, party)
            if frame["masking"] == "plain" and not allow_plain:
                raise PartyError("this party sends its addends only under masks")
            party.allow_plain = allow_plain
            if "model" in frame:
                recall(party, step, frame)
            part = party.part
            sums = PartySums(keys, frame, allow_plain)
            sums.open(step, values)
            reply = dict(step.function(party, **values))
            clipped = sums.hide(step, reply)
            memory.leave(frame, party, digest(pack(reply)))
            if party.part is not part:
                memory.keep_part(party, step)
            if party.predictions is not None:
                keep_predictions(party, frame)
        seconds = time.perf_counter() - start
        content = pack(reply, {"seconds": seconds, "clipped": clipped})
        return Message(content, reply_to=message)
    except CorruptMessage as error:
        code, reason = DAMAGED, str(error)
    except PartyError as error:
        log.error("refused %s: %s", step.action, error)
        code, reason = REFUSED, str(error)
    except Exception as error:
        log.exception("step %s failed", step.action)
        code = FAILED
        reason = f"{type(error).__name__}; the stack is in the party's own log"
    return Message(Error(code, reason), reply_to=message)


def _loaded(load: Load, context: Context) -> Party:
    """Return a copy of the party, at the place that its node has if it says none."""
    party = load(context)
    if not isinstance(party, Party):
        raise PartyError(f"load must return a Party, got {type(party).__name__}")
    party = copy.copy(party)
    place = context.node_config.get("partition-id")
    if party.index is None and isinstance(place, int):
        party.index = place
    return party


def hello(party: Party, partition: str = "vertical") -> Values:
    """Say who this party is: the only facts that reach the server unasked."""
    names = party.columns if partition == "horizontal" else None
    return {
        "columns_digest": digest_ids(np.array(names)) if names else "",
        "name": party.name or "",
        "index": -1 if party.index is None else party.index,
        "n_parties": party.n_parties,
        "n_rows": party.n_rows,
        "n_columns": party.X.shape[1],
        "n_labels": party.n_labels,
        "ids_digest": party.ids_digest or "",
        "version": __version__,
    }


def recall(party: Party, step: Step, frame: Frame) -> None:
    """Load the party's part of the model that a message is about."""
    if party.state_dir is None:
        raise PartyError("this party has no state-dir, so it keeps no part of a model")
    part = load_part(party.state_dir, str(frame["model"]), _algorithm(step))
    settings = dict(part.settings)
    if settings.pop("encoding") != party.encoding:
        raise PartyError(
            "new rows must be encoded as those of training: set task to 'predict' and "
            "model in the run config, or load them with the encoding of the part"
        )
    party.part = {**settings, **part.arrays}


def keep_predictions(party: Party, frame: Frame) -> None:
    """Write the party's predictions to a CSV file in its ``state-dir``."""
    if party.predictions is None or party.state_dir is None:
        return
    session = f"{frame['session']:016x}"
    model = frame.get("model", party.model or session)  # or of this run
    name = f"{model}-{session}" if "model" in frame else model
    ids = party.row_ids() if party.row_ids else party.ids
    if party.predicted is not None:
        rows = party.predicted.tolist()
        ids = rows if ids is None else [ids[row] for row in rows]
    write_predictions(
        party.state_dir / f"predictions-{name}.csv",
        ids,
        party.predictions,
        f"the predictions of model {model}",
    )


def _algorithm(step: Step) -> str:
    return step.function.__module__.rpartition(".")[2]


class Memory:
    """What a party keeps in ``Context.state`` from one message of a run to the next.

    The run's private key and the public keys of all; the last round and the digest of
    what it asked; what the steps remember, before and after that round. A round that
    is asked again is answered from the state before it, so it gets the same reply. A
    round that went before, or another question under the same number, is refused:
    its mask has been used.

    Parameters
    ----------
    state : RecordDict
        ``Context.state``, changed in place.
    """

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    @property
    def _records(self) -> Mapping[str, Any]:
        return self.state

    @property
    def _session(self) -> Any:
        return self._records.get("session")

    def open(self, session: int) -> bytes:
        """Begin a session and return the public key; the same one when asked again."""
        known = self._session
        if known is None or known["session"] != session:
            private = new_private_key()
            for name in list(self.state):
                del self.state[name]
            self.state["session"] = ConfigRecord(
                {
                    "session": session,
                    "private_key": private,
                    "secret": secrets.token_bytes(16),
                    "round": 0,
                    "digest": b"",
                }
            )
        return public_key(self._session["private_key"])

    def enter(self, frame: Frame, party: Party) -> tuple[bytes, list[bytes], int, int]:
        """Check the round, give the party its memory and return the run's keys."""
        known = self._session
        if known is None or known["session"] != frame["session"]:
            raise PartyError("this party was restarted and has lost the run's state")
        if "peers" in frame:
            known.setdefault("peers", frame["peers"])
        if "peers" not in known:
            raise PartyError("this party was greeted twice and has lost the run's keys")
        if frame.get("peers", known["peers"]) != known["peers"]:
            raise PartyError("the parties' public keys changed during the run")
        party.index, party.n_parties = int(frame["index"]), int(frame["parties"])
        party.seed = int(frame["seed"])
        private = bool(frame.get("private_draws"))
        party.secret = int.from_bytes(known["secret"]) if private else 0
        again = frame["round"] == known["round"]
        # A step that is asked again does not see the part that it has left.
        fresh = again and known.get("part_round") == frame["round"]
        party.part = {} if fresh else kept_part(self.state)
        if frame["round"] < known["round"] or (
            again and frame["digest"] != known["digest"]
        ):
            raise PartyError(
                f"round {frame['round']} is over, the last one was {known['round']}"
            )
        if not again and frame["previous"] != known["round"]:
            raise PartyError(
                f"round {frame['round']} does not follow round {known['round']}: this "
                "party has lost the state of a round"
            )
        for name in _sums(frame):
            if not again and frame[name] <= known.get(name, 0):
                raise PartyError(f"the masks of {name} {frame[name]} have been used")
        party.state = _kept(self.state, "before" if again else "after")
        peers = bytes(known["peers"])
        keys = [peers[start : start + 32] for start in range(0, len(peers), 32)]
        return known["private_key"], keys, party.index, int(frame["session"])

    def leave(self, frame: Frame, party: Party, reply: bytes) -> None:
        """Keep what the step left in ``party.state``, and that the round is done.

        Raises
        ------
        PartyError
            The round was asked again and its reply is another one: under the same
            masks the two would show their difference.
        """
        again = frame["round"] == self._session["round"]
        if again and reply != self._session["reply"]:
            raise PartyError(
                f"round {frame['round']} has another reply than before: the party's "
                "data have changed during the run"
            )
        content = pack(party.state)
        for kind in ("arrays", "settings"):
            # Only now, since a round that failed in its step may be asked again, and
            # so may the one before it.
            if (
                frame["round"] != self._session["round"]
                and f"after.{kind}" in self.state
            ):
                self.state[f"before.{kind}"] = self.state[f"after.{kind}"]
            self.state[f"after.{kind}"] = content[kind]
        names = ["round", "digest", *_sums(frame)]
        self._session.update({name: frame[name] for name in names})
        self._session["reply"] = reply

    def keep_part(self, party: Party, step: Step) -> None:
        """Keep ``party.part``, here and in the party's ``state-dir``."""
        content = pack(party.part)
        self._session["part_round"] = self._session["round"]
        self.state["part.arrays"] = content["arrays"]
        self.state["part.settings"] = content["settings"]
        if party.state_dir is not None:
            arrays = {k: v for k, v in party.part.items() if isinstance(v, np.ndarray)}
            settings = {k: v for k, v in party.part.items() if k not in arrays}
            settings["encoding"] = party.encoding
            model = f"{self._session['session']:016x}"
            part = ModelPart(model, _algorithm(step), settings, arrays)
            save_part(party.state_dir, part)


def _kept(state: RecordDict, name: str) -> dict[str, Any]:
    """Return what was packed into two records of a state."""
    records: Mapping[str, Any] = state
    found = dict(records.get(f"{name}.settings") or {})
    for key, array in (records.get(f"{name}.arrays") or {}).items():
        found[key] = array.numpy()
    return found


def kept_part(state: RecordDict) -> dict[str, Any]:
    """Return the part of the model that the run of this state has trained, or none."""
    return _kept(state, "part")


def labels_of(state: RecordDict) -> np.ndarray | None:
    """Return the labels of its rows that a party remembers in the run, if any."""
    return _kept(state, "after").get("labels")


def run_of(state: RecordDict) -> str:
    """Return the number of the run of this state, or of the model that it trains."""
    records: Mapping[str, Any] = state
    return f"{records['session']['session']:016x}" if "session" in state else ""


def _sums(frame: Frame) -> list[str]:
    return [key for key in frame if key.startswith("sum.")]


def load_from_context(context: Context) -> Party:
    """Load the party that node config (or, in a simulation, run config) describes."""
    try:
        source = party_source(context.node_config, context.run_config)
    except ValueError as error:
        name = context.node_config.get("party-name")
        raise PartyError(f"party {name!r}: {error}" if name else str(error)) from None
    party = load_party(source, encoding=_encoding(source, context.run_config))
    party.state_dir = source.state_dir
    party.row_ids = lambda: read_ids(source)
    party.drop_cache = lambda: drop_cache(source)
    party.n_parties = source.count or 0
    party.share_rows = source.share_rows
    return party


def _encoding(source: PartySource, run_config: Mapping[str, Any]) -> Any:
    """Look at the ``state-dir``; return how new rows, if they are, must be encoded."""
    try:
        if source.state_dir is not None:
            check_folder(source.state_dir)
        if run_config.get("task") != "predict":
            return None
        if source.state_dir is None:
            raise PartyError("it has no state-dir, so it keeps no part of a model")
        part = load_part(source.state_dir, str(run_config.get("model", "")))
    except PartyError as error:  # in the greeting the server has no name for it yet
        raise PartyError(f"{who_of(source)}: {error}") from None
    return part.settings["encoding"]


app = make_client_app(load_from_context)
