"""Answer messages to a party, including ``hello``; errors contain no data values.

:func:`answer` checks the digest, loads the party, opens its journal and parses the
frame. The guards in :data:`vfl_flower.party.guards.BEFORE` then check every step except
the first.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Len
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from vfl_flower.party.columns import Declared, declared
from vfl_flower.party.consent import Consent
from vfl_flower.party.guards import Call, Use
from vfl_flower.party.identity import credential_of
from vfl_flower.party.journal import Journal, journal_of, note_refusal
from vfl_flower.party.memory import Memory
from vfl_flower.party.parts import check_folder
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol import messages
from vfl_flower.protocol.contract import ContractError, fields_of, flatten, structure
from vfl_flower.protocol.frame import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Frame,
    Greeting,
    StateKey,
)
from vfl_flower.protocol.names import Name, Text
from vfl_flower.protocol.steps import Step
from vfl_flower.protocol.terms import Kind, Terms
from vfl_flower.version import __version__

log = logging.getLogger("vfl_flower")

Load = Callable[[Context], Party]


class Hello(Declared):
    """Reply to ``hello``: the only facts that the server receives without asking."""

    name: Name
    index: Annotated[int, Ge(-1)]
    n_parties: Annotated[int, Ge(0)]
    n_rows: Annotated[int, Ge(1)]
    n_columns: Annotated[int, Ge(1)]
    n_labels: Annotated[int, Ge(0)]
    ids_digest: Text
    version: Text
    public_key: Annotated[bytes, Len(KEY_BYTES, KEY_BYTES)]
    lacks: list[Text]
    lets: NotRequired[list[Kind]]
    identity: NotRequired[Annotated[bytes, Len(KEY_BYTES, KEY_BYTES)]]
    signature: NotRequired[Annotated[bytes, Len(SIGNATURE_BYTES, SIGNATURE_BYTES)]]
    state_key: NotRequired[StateKey]
    keeps: NotRequired[bool]


def _hello(
    party: Party,
    partition: Literal["vertical", "horizontal", "either"] = "vertical",
    terms: Terms | None = None,
) -> Hello:
    """Describe this party; :func:`answer` adds its signed key for the run."""
    lacks = []
    if terms is not None and party.consent is not None:
        lacks = party.consent.lacks(terms)
    if lacks:
        log.error("this party's consent must also have: %s", "; ".join(lacks))
    if partition == "vertical" and party.gaps:
        raise PartyError("if columns are split, parties must fill their missing values")
    reply: Hello = {
        "name": party.name or "",
        "index": -1 if party.index is None else party.index,
        "n_parties": party.n_parties,
        "n_rows": party.n_rows,
        "n_columns": party.X.shape[1],
        "n_labels": party.n_labels,
        "ids_digest": "" if partition == "either" else party.ids_digest or "",
        **declared(party, partition == "horizontal"),  # type: ignore[typeddict-item]
        "version": __version__,
        "public_key": bytes(KEY_BYTES),
        "lacks": lacks,
    }
    if party.state_dir is not None:
        reply["keeps"] = True
    if terms is not None and terms.wants:
        reply["lets"] = [kind for kind in terms.wants if party.lets(kind)]
    return reply


hello = Step(_hello, "hello")
"""The first step of every run."""


def serve(
    app: ClientApp,
    load: Load,
    steps: Iterable[Step[..., Any]],
    *,
    uses: Mapping[str, Use],
    allow_plain: bool = False,
) -> None:
    """Add steps to a ClientApp, as ``train.<action>``; see ``vfl_flower.register``.

    `uses` maps each step's action to the strategies and tasks that use the step.
    """
    for step in [hello, *steps]:
        asked_by = uses.get(step.action, frozenset())
        app.train(step.action)(
            partial(answer, step, load=load, allow_plain=allow_plain, asked_by=asked_by)
        )


def answer(
    step: Step[..., Any],
    message: Message,
    context: Context,
    load: Load,
    allow_plain: bool,
    asked_by: Use = frozenset(),
) -> Message:
    """Run one step for one message; return the reply, or an error without values."""
    start = time.perf_counter()
    name, state_dir = map(context.node_config.get, ("party-name", "state-dir"))
    folder = Path(str(state_dir)) if state_dir else None  # loading may fail, too
    try:
        values, packed, digests = messages.unpack_whole(message.content)
        message.content.clear()  # its arrays are in `values`: tens of MB
        memory = Memory(context.state)
        party = _loaded(load, context, allow_plain)
        name = party.name or name
        about: dict[str, Any] = {}
        with _journal(party, context, allow_plain) as journal:
            if journal is not None:
                folder = party.state_dir
                journal.check_refusals(party.consent)
            if step is hello:
                content = _greeted(values, packed, party, memory, journal)
                sent = messages.digest_of_values(content)
            else:
                # Requests of two steps may have the same content.
                packed["digest"] += step.action.encode()
                call = Call(
                    step=step,
                    values=values,
                    digests=digests,
                    frame=Frame.parse(packed),
                    party=party,
                    memory=memory,
                    journal=journal,
                    allow_plain=allow_plain,
                    asked_by=asked_by,
                )
                call.run()
                content, sent, about = call.content, call.sent, call.frame_of_reply
        about["seconds"] = time.perf_counter() - start
        messages.address(content, about, sent)
        return Message(messages.bundle(content), reply_to=message)
    except messages.CorruptMessage as error:
        code, reason = messages.DAMAGED, str(error)
    except PartyError as error:
        log.error("refused %s: %s", step.action, error)
        code, reason = messages.REFUSED, str(error)
    except ContractError as error:
        log.error("refused %s: %s", step.action, error)
        code, reason = messages.MALFORMED, f"the request is malformed: {error}"
    except Exception:
        log.exception("step %s failed", step.action)
        code = messages.FAILED
        reason = "the step failed unexpectedly: see the party's log"
    if folder is not None and code != messages.DAMAGED:
        with suppress(PartyError):  # on an error, all messages are refused
            check_folder(folder)
            note_refusal(folder)
    if step is hello and name and repr(name) not in reason:
        reason = f"party {name!r}: {reason}"  # the server does not know it yet
    return Message(Error(code, reason), reply_to=message)


def _greeted(
    values: dict[str, Any],
    packed: dict[str, Any],
    party: Party,
    memory: Memory,
    journal: Journal | None,
) -> RecordDict:
    """Start or resume a session; return the reply of ``hello`` with the party's key."""
    greeting = Greeting(**structure(fields_of(Greeting), packed, {}))
    arguments = structure(hello.contract.request, values, party.sizes)
    reply = flatten(hello(party, **arguments))
    locked = b""
    if journal is not None:
        locked = journal.greet(greeting.session, memory, greeting.goes_on)
    reply["public_key"] = locked or memory.open(greeting.session)
    if journal is not None:
        if not locked:
            journal.keep(memory)
            reply["state_key"] = memory.state_key
        signed = credential_of(party, greeting.session, reply["public_key"])
        reply["identity"], reply["signature"] = signed.identity, signed.signature
    return messages.to_records(reply)


def _journal(
    party: Party, context: Context, allow_plain: bool
) -> AbstractContextManager[Journal | None]:
    """Return the party's journal; None without ``state-dir``, or in a one-process run.

    A run in one process needs no journal, since the memory stays in that process.
    """
    if party.state_dir is None or allow_plain:
        return nullcontext()
    check_folder(party.state_dir)
    return journal_of(party.state_dir, context.run_id)


def _loaded(load: Load, context: Context, allow_plain: bool) -> Party:
    """Return a copy of the party, with the strict default consent if it has none."""
    party = load(context)
    if not isinstance(party, Party):
        raise PartyError(f"load must return a Party, got {type(party).__name__}")
    party = copy.copy(party)
    party.shared, party.releases = {}, None
    if party.consent is None and not allow_plain:
        party.consent = Consent()
    pins = party.consent is not None and party.consent.peers is not None
    if pins and party.state_dir is None:
        raise PartyError(
            "state-dir must be set, so that this party can record the requests that it "
            "has answered and the rows that it has released"
        )
    place = context.node_config.get("partition-id")
    if party.index is None and isinstance(place, int):
        party.index = place
    return party
