"""A party's guards: the checks before and after each step.

:func:`vfl_flower.party.answering.answer` parses the request. The lists at the end,
:data:`BEFORE` and :data:`AFTER`, give the order of the guards, and each guard's
docstring gives its reason. If a guard raises PartyError, the request is refused and its
entries in the journal are rolled back.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import RecordDict

from vfl_flower.party import identity
from vfl_flower.party.columns import arrange
from vfl_flower.party.journal import Journal
from vfl_flower.party.memory import Memory
from vfl_flower.party.parts import load_part, write_predictions
from vfl_flower.party.party import Party, PartyError
from vfl_flower.party.row_order import save_order
from vfl_flower.party.sums import PartySums
from vfl_flower.protocol.contract import flatten, structure
from vfl_flower.protocol.frame import Frame
from vfl_flower.protocol.messages import bytes_of_arrays, digest_of_values, to_records
from vfl_flower.protocol.steps import Step
from vfl_flower.shapes import shapes_only

log = logging.getLogger("vfl_flower")

Use = frozenset[tuple[str, str]]
"""Strategies and tasks, by their names."""


@shapes_only
@dataclass
class Call:
    """One request for a step, with the results of the guards so far."""

    step: Step[..., Any]
    values: dict[str, Any]
    digests: Mapping[str, bytes]
    frame: Frame
    party: Party
    memory: Memory
    journal: Journal | None
    allow_plain: bool
    asked_by: Use
    """The strategies and tasks that use the step."""

    keys: tuple[bytes, list[bytes]] = (b"", [])
    """The party's private key, and all public keys."""
    uses: Use = frozenset()
    """The strategies and tasks that use all steps of the session so far."""
    sums: PartySums = field(init=False)
    arguments: dict[str, Any] = field(default_factory=dict)
    again: bool = False
    """Whether the party has answered the request before."""
    reply: dict[str, Any] = field(default_factory=dict)
    content: RecordDict = field(default_factory=RecordDict)
    sent: bytes = b""
    """The digest of the reply."""
    frame_of_reply: dict[str, Any] = field(default_factory=dict)
    announced: Party = field(init=False)
    """The party as it was before the run assigned it a place."""
    part: dict[str, Any] = field(init=False)
    """The local model before the step."""

    def __post_init__(self) -> None:
        """Store a copy of the party as it was announced."""
        self.announced = copy.copy(self.party)

    @property
    def common(self) -> bytes:
        """The digest of the inputs of a step that returns sums; b"" for other steps."""
        return self.sums.common if self.frame.sums else b""

    def run(self) -> None:
        """Run the guards before the step, the step, and the guards after the step."""
        for guard in BEFORE:
            guard(self)
        self.part = self.party.part
        self.reply = flatten(self.step(self.party, **self.arguments))
        for guard in AFTER:
            guard(self)


# -- before the step -------------------------------------------------------------------


def recall_state(call: Call) -> None:
    """Load the session state from the journal, if the memory's state differs.

    The memory may be lost, or may be an older copy in which masks appear unused. The
    journal is up to date: it was written before the last reply left.
    """
    if call.journal is not None:
        call.journal.recall(call.memory, call.frame.state_key)


def enter_round(call: Call) -> None:
    """Check that a request is the next one in the session, and restore the party.

    All later guards read the party's place, its keys and the states of its steps, which
    are restored here.
    """
    call.keys = call.memory.enter(call.frame, call.party)


def check_strategy(call: Call) -> None:
    """Refuse a step unless the party takes part in a strategy and task that use it.

    All steps of a session must belong to one strategy: a mixture of steps could reveal
    values that each strategy hides.
    """
    consent, before = call.party.consent, call.memory.uses
    call.uses = call.asked_by
    if consent is None:
        return
    if before is not None and consent.peers is not None:
        call.uses = call.asked_by & before
        if not call.uses and call.asked_by | before:
            raise PartyError(
                f"{call.step.action} must belong to the same strategy and task as the "
                "earlier steps of this session"
            )
    if not any(consent.takes_part(*use) for use in call.uses or {("", "")}):
        raise PartyError(
            "this party's consent permits no combination of strategy and task that "
            f"uses {call.step.action}"
        )


def load_releases(call: Call) -> None:
    """Load the journal's record of the rows that have ever left the party.

    The rows are added to the memory's record of the session, which must be loaded
    first.
    """
    if call.journal is not None:
        call.journal.enter(call.party)


def check_peers(call: Call) -> None:
    """Refuse the keys of parties with which this party does not consent to run.

    A server that invents a party would learn the values meant for that party. The
    party's own credential is built from the party as it was before the run assigned it
    a place.
    """
    consent, (private_key, _) = call.party.consent, call.keys
    if consent is not None:
        identity.check_run(
            call.frame, call.announced, private_key, consent, call.journal
        )


def check_signatures(call: Call) -> None:
    """Refuse a second request until all parties have signed the same list of keys.

    Otherwise, a server could send each party different keys. A step with an empty reply
    is exempt: it reveals nothing.
    """
    frame, memory, consent = call.frame, call.memory, call.party.consent
    pinned = consent is not None and consent.peers is not None
    if pinned and call.step.contract.reply and memory.lacks_signatures(frame):
        listed, keys = memory.credentials(frame), b"".join(call.keys[1])
        identity.check_list(frame.signed or b"", frame.session, keys, listed or b"")
        memory.keep_signed()


def sign_keys(call: Call) -> None:
    """Read the parties' names, and sign the list of their keys if it is new.

    The party signs only a list that :func:`check_peers` has accepted.
    """
    frame, keys = call.frame, b"".join(call.keys[1])
    if (listed := call.memory.credentials(frame)) is None:
        return
    call.party.names = [c.name for c in identity.parse_credentials(listed, keys)]
    if frame.peers is not None and call.journal is not None:
        signed = identity.sign_list(call.party, frame.session, keys, listed)
        call.frame_of_reply["signed"] = signed


def refuse_plain(call: Call) -> None:
    """Refuse to send unmasked sums, except in a run in one process."""
    if call.frame.masking == "plain" and not call.allow_plain:
        raise PartyError("this party sends only masked addends")
    call.party.allow_plain = call.allow_plain


def arrange_columns(call: Call) -> None:
    """Put the columns in the order of the run, which only the first request states."""
    call.frame = replace(call.frame, columns=call.memory.columns(call.frame))
    if call.frame.columns is not None:
        arrange(call.party, call.frame.columns)


def recall_part(call: Call) -> None:
    """Load the local model that the request names, for the step."""
    party, model = call.party, call.frame.model
    if model is not None:
        if party.state_dir is None:
            raise PartyError(
                "this party has no local model, since its state-dir is not set"
            )
        part = load_part(party.state_dir, model, call.step.algorithm)
        settings = dict(part.settings)
        if settings.pop("encoding", None) != party.encoding:
            raise PartyError(
                "new rows must be encoded like the training rows: set task and "
                "model-id in the run config, or load the rows with the model's encoding"
            )
        party.part = {**settings, **part.arrays}


def open_inputs(call: Call) -> None:
    """Decrypt values that other parties sealed for this party, if the inputs agree.

    The digests of the inputs are computed from the values as received.
    """
    call.sums = PartySums(*call.keys, call.frame, call.allow_plain)
    call.party.agree = call.sums.agree
    call.sums.open(call.step, call.values, call.digests, call.memory.inputs)


def check_arguments(call: Call) -> None:
    """Refuse values that break the step's contract, once all values are decrypted."""
    request = call.step.contract.request
    call.arguments = structure(request, call.values, call.party.sizes)


def check_repetition(call: Call) -> None:
    """Refuse to answer a once-only step again, unless the request is the same.

    This guard precedes the counting of released values, so that a repeated request is
    not counted again.
    """
    call.again = call.memory.repeats(call.frame, call.step, call.common)


def check_kinds(call: Call) -> None:
    """Refuse a kind that the consent does not name, or continue without this kind.

    Kinds that describe no single row are counted here. Rows are counted in
    ``Party.share``, when the step knows which rows it reveals.
    """
    for revealed in call.step.reveals:
        if revealed.applies(call.arguments):
            once = int(revealed.counted)
            times = call.arguments[revealed.times] if revealed.times else once
            try:
                call.party.reveal(revealed.kind, call.again, times)
            except PartyError as error:
                if not (revealed.optional and call.party.lets(revealed.kind)):
                    raise
                log.warning(
                    "%s continues without %s: %s", call.step, revealed.kind, error
                )
                call.arguments[revealed.when] = False


def check_rows(call: Call) -> None:
    """Refuse rows if only a few of them differ from the rows of an earlier sum.

    The difference of two sums over such rows would reveal single rows.
    """
    if call.step.rows == "session":
        call.party.sum_over()


# -- after the step --------------------------------------------------------------------


def hide_sums(call: Call) -> None:
    """Mask or encrypt the values that must not leave unprotected."""
    clipped = call.sums.hide(call.step, call.reply, call.party.sizes)
    if clipped is not None:
        call.frame_of_reply["clipped"] = clipped


def pack_reply(call: Call) -> None:
    """Create the message, whose digest and size the journal records."""
    call.content = to_records(call.reply)
    call.sent = digest_of_values(call.content)


def note_reply(call: Call) -> None:
    """Record the reply in the journal; refuse a reply beyond the consent's limits.

    The journal acts twice: here, where it can refuse the reply before the memory stores
    the round, and in :func:`keep_state`.
    """
    if call.journal is not None:
        size = bytes_of_arrays(call.content)
        call.journal.leave(call.frame, call.party, call.sent, size)


def leave_round(call: Call) -> None:
    """Store the states of the steps; refuse a different reply to the same round."""
    call.memory.leave(call.frame, call.party, call.step, call.common, call.sent)


def keep_inputs(call: Call) -> None:
    """Store the digest of the inputs of a step that encrypts for other parties.

    The other parties decrypt the values of the step only if their inputs were the same.
    """
    if call.step.contract.seals:
        action, number = call.step.action, call.frame.round
        call.memory.keep_inputs(action, number, call.sums.common)


def keep_uses(call: Call) -> None:
    """Store the strategies to which the session can belong; see `check_strategy`."""
    call.memory.keep_uses(call.uses)


def keep_part(call: Call) -> None:
    """Store a new local model, with the round that :func:`leave_round` has set."""
    if call.party.part is not call.part:
        call.memory.keep_part(call.party, call.step.algorithm)


def keep_state(call: Call) -> None:
    """Write the memory to the journal, after all guards that change the memory."""
    if call.journal is not None:
        call.journal.keep(call.memory)


def keep_order(call: Call) -> None:
    """Write a new row order, once the journal has recorded its row set."""
    if call.party.new_order is not None and call.party.state_dir is not None:
        save_order(call.party.state_dir, *call.party.new_order)


def keep_predictions(call: Call) -> None:
    """Write the party's predictions to a CSV file in its ``state-dir``."""
    party, model, run = call.party, call.frame.model, call.memory.run
    predictions = party.predictions
    if predictions is None or party.state_dir is None:
        return
    model_id = model or predictions.model or run
    ids, rows = party.read_ids(), predictions.rows
    head = "row" if ids is None else "id"
    if rows is not None and not np.array_equal(rows, np.arange(party.n_rows)):
        ids = rows.tolist() if ids is None else [ids[row] for row in rows.tolist()]
    write_predictions(
        party.state_dir / f"predictions-{model_id}{f'-{run}' if model else ''}.csv",
        ids,
        predictions.values,
        f"the predictions of model {model_id}",
        more=predictions.more,
        head=head,
    )


# -- the order of the guards -----------------------------------------------------------

Guard = Callable[[Call], None]

BEFORE: tuple[Guard, ...] = (
    recall_state,
    enter_round,
    check_strategy,
    load_releases,
    check_peers,
    check_signatures,
    sign_keys,
    refuse_plain,
    arrange_columns,
    recall_part,
    open_inputs,
    check_arguments,
    check_repetition,
    check_kinds,
    check_rows,
)
"""The guards between a request and its step, in order."""

AFTER: tuple[Guard, ...] = (
    hide_sums,
    pack_reply,
    note_reply,
    leave_round,
    keep_inputs,
    keep_uses,
    keep_part,
    keep_state,
    keep_order,
    keep_predictions,
)
"""The guards between a step and its reply, in order."""
