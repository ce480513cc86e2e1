"""The party's end of the wire: what stands between a message and a step.

Only this module has the damage check, the contract of the step, the order of rounds,
the party's memory, masks, and errors that leave the party without its values.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from annotated_types import Ge, Len
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from vfl_flower.protocol.columns import (
    NO_COLUMNS,
    Declared,
    arrange,
    declared,
)
from vfl_flower.protocol.consent import Consent, Kind, Terms
from vfl_flower.protocol.contract import (
    ContractError,
    Sizes,
    fields_of,
    flatten,
    structure,
)
from vfl_flower.protocol.frame import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Frame,
    Greeting,
    StateKey,
)
from vfl_flower.protocol.identity import (
    check_list,
    check_run,
    credential_of,
    parse_credentials,
    sign_list,
)
from vfl_flower.protocol.journal import Journal, journal_of, note_refusal
from vfl_flower.protocol.memory import Memory
from vfl_flower.protocol.messages import (
    DAMAGED,
    FAILED,
    MALFORMED,
    REFUSED,
    CorruptMessage,
    address,
    bundle,
    bytes_of_arrays,
    digest_of_values,
    to_records,
    unpack_whole,
)
from vfl_flower.protocol.names import Name, Text
from vfl_flower.protocol.parts import check_folder, load_part, write_predictions
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.steps import Step
from vfl_flower.protocol.sums import PartySums
from vfl_flower.version import __version__

log = logging.getLogger("vfl_flower")

Load = Callable[[Context], Party]

Use = frozenset[tuple[str, str]]
"""Strategies and tasks, by their names."""

Uses = Mapping[str, Use]
"""Those that ask for a step, by its action."""


class Hello(Declared):
    """Reply of ``hello``: the only facts that reach the server unasked."""

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
    """Say who this party is; :func:`answer` adds its key of the run, signed."""
    lacks = []
    if terms is not None and party.consent is not None:
        lacks = party.consent.lacks(terms)
    if lacks:
        log.error("the consent of this party lacks: %s", "; ".join(lacks))
    if partition == "vertical" and party.gaps:
        raise PartyError("a missing value must be filled where parties hold columns")
    told = declared(party) if partition == "horizontal" else NO_COLUMNS
    reply: Hello = {
        "name": party.name or "",
        "index": -1 if party.index is None else party.index,
        "n_parties": party.n_parties,
        "n_rows": party.n_rows,
        "n_columns": party.X.shape[1],
        "n_labels": party.n_labels,
        "ids_digest": "" if partition == "either" else party.ids_digest or "",
        **told,  # type: ignore[typeddict-item]  # it has no optional key
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
    uses: Uses,
    allow_plain: bool = False,
) -> None:
    """Add steps to a ClientApp, as ``train.<action>``; see ``vfl_flower.register``.

    `uses` has the strategies and tasks that ask for each step, by its action.
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
    """Run one step for one message, or say why not, without a value of the data."""
    start = time.perf_counter()
    name, folder = context.node_config.get("party-name"), None
    try:
        values, packed, digests = unpack_whole(message.content)
        message.content.clear()  # its arrays are in `values`: tens of MB
        memory = Memory(context.state)
        party = _loaded(load, context, allow_plain)
        name = party.name or name
        told: dict[str, Any] = {}
        with _journal(party, context, allow_plain) as journal:
            if journal is not None:
                folder = party.state_dir
                journal.check_refusals(party)
            if step is hello:
                greeting = Greeting(**structure(fields_of(Greeting), packed, {}))
                reply = flatten(step(party, **_arguments(step, values, party)))
                locked = b""
                if journal is not None:
                    locked = journal.greet(greeting.session, memory, greeting.goes_on)
                reply["public_key"] = locked or memory.open(greeting.session)
                if journal is not None:
                    if not locked:
                        journal.keep(memory)
                        reply["state_key"] = memory.state_key
                    signed = credential_of(party, greeting.session, reply["public_key"])
                    reply["identity"] = signed.identity
                    reply["signature"] = signed.signature
                content = to_records(reply)
                sent = digest_of_values(content)
            else:
                # Requests of two steps may have the same content.
                packed["digest"] += step.action.encode()
                frame = Frame.parse(packed)
                content, sent, told = _run(
                    *(step, values, digests, frame, party, memory, journal),
                    *(allow_plain, asked_by),
                )
        told["seconds"] = time.perf_counter() - start
        address(content, told, sent)
        return Message(bundle(content), reply_to=message)
    except CorruptMessage as error:
        code, reason = DAMAGED, str(error)
    except PartyError as error:
        log.error("refused %s: %s", step.action, error)
        code, reason = REFUSED, str(error)
    except ContractError as error:
        log.error("refused %s: %s", step.action, error)
        code, reason = MALFORMED, f"the request is malformed: {error}"
    except Exception:
        log.exception("step %s failed", step.action)
        code = FAILED
        reason = "the step failed unexpectedly, and the reason is in the party's log"
    if folder is not None and code != DAMAGED:
        with suppress(PartyError):  # then it refuses all messages
            note_refusal(folder)
    if step is hello and name and repr(name) not in reason:
        reason = f"party {name!r}: {reason}"  # the server does not know it yet
    return Message(Error(code, reason), reply_to=message)


def _journal(
    party: Party, context: Context, allow_plain: bool
) -> AbstractContextManager[Journal | None]:
    """Return the journal of a party, which one without a ``state-dir`` lacks.

    Nor does a party of a run in one process need one: its memory is in that process.
    """
    if party.state_dir is None or allow_plain:
        return nullcontext()
    check_folder(party.state_dir)
    return journal_of(party.state_dir, context.run_id)


def _run(
    step: Step[..., Any],
    values: dict[str, Any],
    digests: Mapping[str, bytes],
    frame: Frame,
    party: Party,
    memory: Memory,
    journal: Journal | None,
    allow_plain: bool,
    asked_by: Use,
) -> tuple[RecordDict, bytes, dict[str, Any]]:
    """Run a step of the protocol; return its reply, the reply's digest and its frame.

    The frame holds the masked count of clipped values and the signature of the list of
    keys, where there are any.
    """
    announced = copy.copy(party)  # before the run gives it a place
    if journal is not None:
        journal.check(frame)
        journal.recall(memory, frame.state_key)
    private_key, public_keys = memory.enter(frame, party)
    uses = _check_strategy(step, party, memory, asked_by)
    if journal is not None:
        journal.enter(party)
    if party.consent is not None:
        check_run(frame, announced, private_key, party.consent, journal)
    listed, keys = memory.credentials(frame), b"".join(public_keys)
    pinned = party.consent is not None and party.consent.peers is not None
    if pinned and step.contract.reply and memory.lacks_signatures(frame):
        check_list(frame.signed or b"", frame.session, keys, listed or b"")
        memory.keep_signed()
    told: dict[str, Any] = {}
    if listed is not None:
        party.names = [c.name for c in parse_credentials(listed, keys)]
        if frame.peers is not None and journal is not None:
            told["signed"] = sign_list(party, frame.session, keys, listed)
    if frame.masking == "plain" and not allow_plain:
        raise PartyError("this party sends its addends only under masks")
    party.allow_plain = allow_plain
    frame = replace(frame, columns=memory.columns(frame))
    if frame.columns is not None:
        arrange(party, frame.columns)
    if frame.model is not None:
        recall_part(party, step, frame.model)
    part = party.part
    sums = PartySums(private_key, public_keys, frame, allow_plain)
    party.agree = sums.agree
    sums.open(step, values, digests, memory.inputs)
    arguments = _arguments(step, values, party)
    summed = sums.common if frame.sums else b""
    again = memory.repeats(frame, step, summed)
    for revealed in step.reveals:
        if revealed.applies(arguments):
            once = int(revealed.counted)
            times = arguments[revealed.times] if revealed.times else once
            try:
                party.reveal(revealed.kind, again, times)
            except PartyError as error:
                if not (revealed.optional and party.lets(revealed.kind)):
                    raise
                log.warning("%s continues without %s: %s", step, revealed.kind, error)
                arguments[revealed.when] = False
    if step.rows == "session":
        party.sum_over()
    reply = flatten(step(party, **arguments))
    if (clipped := sums.hide(step, reply, _sizes(party))) is not None:
        told["clipped"] = clipped
    content = to_records(reply)
    sent = digest_of_values(content)
    if journal is not None:
        journal.leave(frame, party, sent, bytes_of_arrays(content))
    memory.leave(frame, party, step, summed, sent)
    if step.contract.seals:
        memory.keep_inputs(step.action, frame.round, sums.common)
    memory.keep_uses(uses)
    if party.part is not part:
        memory.keep_part(party, step.parts_of)
    if journal is not None:
        journal.keep(memory)
    keep_predictions(party, memory.run, frame.model)
    return content, sent, told


def _arguments(
    step: Step[..., Any], values: dict[str, Any], party: Party
) -> dict[str, Any]:
    """Return the arguments of a step, checked against its contract and the data."""
    return structure(step.contract.request, values, _sizes(party))


def _sizes(party: Party) -> Sizes:
    """Return the sizes of a party that a contract may name."""
    n_rows, n_columns = party.X.shape
    return {"n_rows": n_rows, "n_columns": n_columns, "n_parties": party.n_parties}


def _check_strategy(
    step: Step[..., Any], party: Party, memory: Memory, asked_by: Use
) -> Use:
    """Return which strategies and tasks ask for all steps of the session so far.

    Raises PartyError if none does, or if the party takes part in none of them.
    """
    consent = party.consent
    if consent is None:
        return asked_by
    before, uses = memory.uses, asked_by
    if before is not None and consent.peers is not None:
        uses = asked_by & before
        if not uses and asked_by | before:
            raise PartyError(
                f"{step.action} is of another strategy or task than the steps before "
                "it in this session"
            )
    if not any(consent.takes_part(*use) for use in uses or {("", "")}):
        raise PartyError(
            f"this party's consent has no strategy and task that ask for {step.action}"
        )
    return uses


def _loaded(load: Load, context: Context, allow_plain: bool) -> Party:
    """Return a copy of the party, whose rules are strict where it has none."""
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
            "state-dir must be set: there the party notes what it has answered and "
            "which rows have left it"
        )
    place = context.node_config.get("partition-id")
    if party.index is None and isinstance(place, int):
        party.index = place
    return party


def recall_part(party: Party, step: Step[..., Any], model: str) -> None:
    """Load the party's part of the model that a message names."""
    if party.state_dir is None:
        raise PartyError("this party has no state-dir, so it keeps no part of a model")
    part = load_part(party.state_dir, model, step.parts_of)
    settings = dict(part.settings)
    if settings.pop("encoding", None) != party.encoding:
        raise PartyError(
            "new rows must be encoded as those of training: set task and "
            "model in the run config, or load them with the encoding of the part"
        )
    party.part = {**settings, **part.arrays}


def keep_predictions(party: Party, run: str, model: str | None) -> None:
    """Write the party's predictions to a CSV file in its ``state-dir``."""
    predictions = party.predictions
    if predictions is None or party.state_dir is None:
        return
    number = model or predictions.model or run
    ids, rows = party.read_ids(), predictions.rows
    if rows is not None and not np.array_equal(rows, np.arange(party.n_rows)):
        ids = rows.tolist() if ids is None else [ids[row] for row in rows.tolist()]
    write_predictions(
        party.state_dir / f"predictions-{number}{f'-{run}' if model else ''}.csv",
        ids,
        predictions.values,
        f"the predictions of model {number}",
        more=predictions.more,
    )
