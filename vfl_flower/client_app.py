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
from vfl_flower.clients.base import STEPS, Party, PartyError, Step
from vfl_flower.config import party_source
from vfl_flower.data import load_party
from vfl_flower.messages import CorruptMessage, pack, unpack
from vfl_flower.secure_aggregation import (
    PairwiseMasks,
    group,
    masked,
    new_private_key,
    public_key,
)
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
        Answer a server that asks for sums without masks. Only for tests and
        comparisons: with it a party shows its addends.
    """
    app = ClientApp()
    register(app, load, allow_plain=allow_plain)
    return app


def register(app: ClientApp, load: Load, *, allow_plain: bool = False) -> None:
    """Add every step of the package to an existing ClientApp, as ``train.<action>``."""
    for module in pkgutil.iter_modules(clients.__path__):
        importlib.import_module(f"{clients.__name__}.{module.name}")

    def serve(step: Step) -> None:
        @app.train(step.action)
        def answer_step(message: Message, context: Context) -> Message:
            return answer(step, message, context, load, allow_plain)

    for step in [Step(HELLO, hello, ()), *STEPS.values()]:
        serve(step)


def answer(
    step: Step, message: Message, context: Context, load: Load, allow_plain: bool
) -> Message:
    """Run one step for one message, or say why not without a value of the data."""
    start = time.perf_counter()
    try:
        values, frame = unpack(message.content)
        frame["digest"] += step.action.encode()  # what was asked, and of which step
        memory = Memory(context.state)
        party = copy.copy(load(context))
        if step.action == HELLO:
            reply = dict(hello(party)) | {"public_key": memory.open(frame["session"])}
            clipped = 0
        else:
            masks = memory.enter(frame, party)
            if frame["masking"] == "plain" and not allow_plain:
                raise PartyError("this party sends its addends only under masks")
            reply = dict(step.function(party, **values))
            clipped = hide(step, reply, frame, masks)
            memory.leave(frame, party)
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


def hello(party: Party) -> Values:
    """Say who this party is: the only facts that reach the server unasked."""
    return {
        "name": party.name or "",
        "index": -1 if party.index is None else party.index,
        "n_parties": party.n_parties,
        "n_rows": party.n_rows,
        "n_columns": party.X.shape[1],
        "has_labels": party.y is not None,
        "ids_digest": party.ids_digest or "",
        "version": __version__,
    }


def hide(step: Step, reply: dict[str, Any], frame: Frame, masks: PairwiseMasks) -> int:
    """Mask in place what `step` declares as a sum; return the number of clippings."""
    clipped = 0
    for name in step.sums:
        bound = frame.get(f"bound.{name}")
        if bound is None:
            raise PartyError(
                f"{step.action} sends {name!r} only into a sum, and the "
                "server asked for none"
            )
        ring = group(str(frame["masking"]), float(bound), int(frame["parties"]))
        reply[name], count = masked(
            np.asarray(reply[name]), ring, masks, step.action, name, int(frame["round"])
        )
        clipped += count
    return clipped


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
                    "secret": secrets.randbits(62),
                    "round": 0,
                    "digest": b"",
                }
            )
        return public_key(self._session["private_key"])

    def enter(self, frame: Frame, party: Party) -> PairwiseMasks:
        """Check the round, give the party its memory and return the run's masks."""
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
        party.secret = known["secret"] if frame.get("private_draws") else 0
        again = frame["round"] == known["round"]
        if frame["round"] < known["round"] or (
            again and frame["digest"] != known["digest"]
        ):
            raise PartyError(
                f"round {frame['round']} is over, the last one was {known['round']}"
            )
        if frame["round"] > known["round"] + 1:
            raise PartyError(
                f"round {frame['round']} does not follow round {known['round']}: this "
                "party has lost the state of a round"
            )
        kept, state = ("before" if again else "after"), self._records
        party.state = dict(state.get(f"{kept}.settings") or {})
        for name, array in (state.get(f"{kept}.arrays") or {}).items():
            party.state[name] = array.numpy()
        peers = bytes(known["peers"])
        keys = [peers[start : start + 32] for start in range(0, len(peers), 32)]
        return PairwiseMasks(
            known["private_key"], keys, party.index, int(frame["session"])
        )

    def leave(self, frame: Frame, party: Party) -> None:
        """Keep what the step left in ``party.state``, and that the round is done."""
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
        self._session.update({"round": frame["round"], "digest": frame["digest"]})


def load_from_context(context: Context) -> Party:
    """Load the party that node config (or, in a simulation, run config) describes."""
    try:
        source = party_source(context.node_config, context.run_config)
    except ValueError as error:
        raise PartyError(str(error)) from None
    party = load_party(source)
    party.n_parties = source.count or 0
    party.share_rows = source.share_rows
    return party


app = make_client_app(load_from_context)
