"""The state that a party keeps from one message of a run to the next."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from vfl_flower.app.flwr_internals.serialisation import (
    decode,
    records_from_bytes,
    records_to_bytes,
)
from vfl_flower.party.consent import pack_rows, unpack_rows
from vfl_flower.party.parts import ModelPart, save_part
from vfl_flower.party.party import Party, PartyError
from vfl_flower.party.vault import new_state_key
from vfl_flower.protocol.frame import KEY_BYTES, Frame
from vfl_flower.protocol.messages import to_records
from vfl_flower.protocol.steps import Step
from vfl_flower.secure_aggregation.keys import new_private_key, public_key
from vfl_flower.typing import Array

SHARED = "shared."
"""Session key prefix, before a kind, for the rows that :meth:`Party.share` counted."""

ARRAYS = "arrays."
"""Name prefix, in the packed state, of a record that represents a record of arrays."""

AT_REST = "at_rest"
"""Name of the record with the key that encrypts the state on disk."""

INPUTS = "inputs."
"""Session key prefix, before a round and an action, for the digest of the inputs of a
step that seals bytes for other parties."""

MOST_AWAITED = 16
"""Maximum number of round trips between sealing bytes and opening them."""

DONE = "done."
"""Session key prefix, before an action, for the digest of the inputs of a step that is
answered only once."""


class Memory:
    """A party's state in ``Context.state`` from one message of a run to the next.

    It contains the run's private key and the public keys of all parties; the last
    round, with the digests of its request and its reply; the rows that were shared; and
    the states of the steps before and after that round. A repeated request is answered
    from the state before its round, so it gets the same reply. An earlier round, or a
    different request with the same round number, is refused: its mask has been used.

    `state` is ``Context.state``, changed in place.
    """

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    @property
    def _records(self) -> Mapping[str, Any]:
        return self.state  # whose type does not state the types of its records

    @property
    def _session(self) -> Any:
        return self._records.get("session")

    def forget(self) -> None:
        """Discard the state of the run."""
        self.state.clear()

    @property
    def place(self) -> tuple[int, int]:
        """Session and last round; -1 and 0 before the first session."""
        known = self._session
        return (known["session"], known["round"]) if known else (-1, 0)

    @property
    def state_key(self) -> bytes:
        """Key of the session state on disk; b"" before the first session."""
        known = self._records.get(AT_REST)
        return bytes(known["key"]) if known else b""

    @property
    def public_key(self) -> bytes:
        """The party's public key in the session."""
        return public_key(self._session["private_key"])

    def pack(self) -> tuple[bytes, dict[bytes, bytes]]:
        """Return the state for the disk, without its key, and its arrays by SHA-256.

        The digest of an array that a round does not change stays the same, so the array
        is stored only once.
        """
        packed: dict[str, Any] = {}
        arrays: dict[bytes, bytes] = {}
        for name, record in self._records.items():
            if name == AT_REST:
                continue
            if not isinstance(record, ArrayRecord):
                packed[name] = record
                continue
            about: dict[str, Any] = {}
            for key, array in record.items():
                digest = hashlib.sha256(array.data).digest()
                arrays[digest] = array.data
                shape = " ".join(map(str, array.shape))
                about[key] = [array.dtype, shape, array.stype, digest.hex()]
            packed[f"{ARRAYS}{name}"] = ConfigRecord(about)
        return records_to_bytes(RecordDict(packed)), arrays

    def restore(
        self, content: bytes, array_of: Callable[[bytes], bytes], state_key: bytes
    ) -> None:
        """Load a state from :meth:`pack`; `array_of` returns arrays by digest."""
        self.forget()
        self.state[AT_REST] = ConfigRecord({"key": state_key})
        records: Any = records_from_bytes(content)
        for name, record in records.items():
            if not name.startswith(ARRAYS):
                self.state[name] = record
                continue
            arrays = ArrayRecord()
            for key, (dtype, sizes, stype, digest) in record.items():
                shape, data = map(int, sizes.split()), array_of(bytes.fromhex(digest))
                arrays[key] = FlowerArray(dtype, tuple(shape), stype, data)
            self.state[name.removeprefix(ARRAYS)] = arrays

    @property
    def run(self) -> str:
        """Id of the run and of the model that it trains; "" before the first run."""
        return f"{self._session['session']:016x}" if self._session else ""

    def open(self, session: int) -> bytes:
        """Start a session; return its public key, the same key if called repeatedly."""
        if self.place[0] != session:
            private = new_private_key()
            self.forget()
            self.state[AT_REST] = ConfigRecord({"key": new_state_key()})
            self.state["session"] = ConfigRecord(
                {
                    "session": session,
                    "private_key": private,
                    "run_secret": secrets.token_bytes(32),
                    "round": 0,
                    "digest": b"",
                }
            )
        return self.public_key

    def enter(self, frame: Frame, party: Party) -> tuple[bytes, list[bytes]]:
        """Check the round and restore the party; return the private and public keys.

        The party gets its place in the run, its state and its local model. Raises
        PartyError if the message does not belong to the party's run and next round, or
        if the party's rows have changed since the first round.
        """
        known = self._session
        if known is None or known["session"] != frame.session:
            raise PartyError("this party was restarted and has lost the run's state")
        # Stored only in `leave`: a run that the party refuses leaves no keys behind.
        peers = bytes(known.get("peers", frame.peers or b""))
        if not peers:
            raise PartyError("this party received hello twice and lost the run's keys")
        if frame.peers not in (None, peers):
            raise PartyError("the parties' public keys changed during the run")
        if len(peers) != KEY_BYTES * frame.parties:
            raise PartyError(
                f"the run has {len(peers) // KEY_BYTES} parties, but the message "
                f"states {frame.parties}"
            )
        again = frame.round == known["round"]
        if frame.round < known["round"] or (again and frame.digest != known["digest"]):
            raise PartyError(
                f"round {frame.round} is over: the last round was {known['round']}"
            )
        if not again and frame.previous != known["round"]:
            raise PartyError(
                f"round {frame.round} does not follow round {known['round']}: this "
                "party has lost the state of a round"
            )
        for name, value in _fixed(frame, party).items():
            if known.get(name, value) != value:
                raise PartyError(f"the {name} changed during the run")
        for name, wanted in frame.sums.items():
            if not again and wanted.sum <= known.get(f"sum.{name}", 0):
                raise PartyError(f"sum {wanted.sum} of {name} would reuse old masks")
        party.index, party.n_parties = frame.index, frame.parties
        party.session = frame.session
        party.keys_digest = hashlib.sha256(peers).digest()
        party.seed = frame.seed
        party.private_draws = frame.private_draws
        party.run_secret = known["run_secret"]
        party.shared = self._shared(party)
        # A repeated step does not see the local model that it stored the first time.
        fresh = again and known.get("part_round") == frame.round
        party.part = {} if fresh else self.part
        party.resume(self._kept("before" if again else "after"))
        start = range(0, len(peers), KEY_BYTES)
        return known["private_key"], [peers[k : k + KEY_BYTES] for k in start]

    def credentials(self, frame: Frame) -> bytes | None:
        """Return the parties' signed credentials, from the first message."""
        signed: bytes | None = self._session.get("credentials", frame.credentials)
        return signed

    def lacks_signatures(self, frame: Frame) -> bool:
        """Return whether a message after the first must carry the keys' signatures."""
        known = self._session
        later = "peers" in known and frame.round != known["round"]
        return later and "signed" not in known

    def keep_signed(self) -> None:
        """Record that all parties have signed the list of their keys."""
        self._session["signed"] = True

    def columns(self, frame: Frame) -> list[str] | None:
        """Return the order of columns from the first message.

        Raises PartyError if a later message has a different order.
        """
        known = self._session
        if "peers" not in known:
            return frame.columns
        order: list[str] | None = known.get("columns")
        if frame.columns is not None and frame.columns != order:
            raise PartyError("the order of the columns changed during the run")
        return order

    def _shared(self, party: Party) -> dict[str, Array]:
        """Return the rows counted in the run so far, by kind."""
        return {
            key.removeprefix(SHARED): unpack_rows(bits, party.n_rows)
            for key, bits in self._session.items()
            if key.startswith(SHARED)
        }

    def inputs(self, action: str, round: int) -> bytes | None:
        """Return the digest of the common inputs of a step that seals bytes, if any."""
        digest: bytes | None = self._session.get(f"{INPUTS}{round} {action}")
        return digest

    def keep_inputs(self, action: str, round: int, digest: bytes) -> None:
        """Store the digest of a step's inputs, and delete digests that are too old."""
        session = self._session
        session[f"{INPUTS}{round} {action}"] = digest
        for key in [key for key in session if key.startswith(INPUTS)]:
            if int(key.removeprefix(INPUTS).split()[0]) < round - MOST_AWAITED:
                del session[key]

    def repeats(self, frame: Frame, step: Step[..., Any], inputs: bytes) -> bool:
        """Return whether the party has answered this message before.

        `inputs` is the digest of the inputs of a step that returns sums; b"" for other
        steps. Raises PartyError if the step may be answered only once in a session and
        has been answered before. The server may request the same sums with wider
        bounds, but only in the next message.
        """
        known, key = self._session, DONE + step.action
        if frame.round == known["round"]:
            return True
        if not step.once or key not in known:
            return False
        if inputs and known["last"] == step.action and known[key] == inputs:
            return True
        raise PartyError(f"{step.action} may be requested only once in a session")

    def leave(
        self,
        frame: Frame,
        party: Party,
        step: Step[..., Any],
        inputs: bytes,
        reply: bytes,
    ) -> None:
        """Store the states of the party's steps, and record the round as done.

        `inputs` is as in :meth:`repeats`, and `reply` is the digest of the reply.
        Raises PartyError if a repeated request gets a different reply: under the same
        masks, the two replies would reveal their difference.
        """
        session = self._session
        if "peers" not in session:
            session.update(peers=frame.peers, **_fixed(frame, party))
            if frame.columns is not None:
                session["columns"] = frame.columns
            if frame.credentials is not None:
                session["credentials"] = frame.credentials
        again = frame.round == session["round"]
        if again and reply != session["reply"]:
            raise PartyError(
                f"the reply to round {frame.round} differs from the earlier reply: the "
                "party's data have changed during the run"
            )
        content = to_records(party.remembered())
        for kind in ("arrays", "settings"):
            # Only now: if a round fails in its step, the server may repeat it, or the
            # round before it.
            if not again and f"after.{kind}" in self.state:
                self.state[f"before.{kind}"] = self.state[f"after.{kind}"]
            self.state[f"after.{kind}"] = content[kind]
        session.update({f"sum.{n}": wanted.sum for n, wanted in frame.sums.items()})
        session.update(round=frame.round, digest=frame.digest, reply=reply)
        session["last"] = step.action
        if step.once:
            session[DONE + step.action] = inputs
        before = self._shared(party)  # a step can add rows, but not remove any
        for kind, rows in party.shared.items():
            session[SHARED + kind] = pack_rows(rows | before.get(kind, rows))

    @property
    def uses(self) -> frozenset[tuple[str, str]] | None:
        """Strategies and tasks that use all steps so far; None before any step."""
        if not self._session or (names := self._session.get("uses")) is None:
            return None
        pairs = (name.rpartition(" ") for name in names)
        return frozenset((strategy, task) for strategy, _, task in pairs)

    def keep_uses(self, uses: frozenset[tuple[str, str]]) -> None:
        """Store the strategies and tasks that use all steps so far."""
        self._session["uses"] = sorted(map(" ".join, uses))

    def keep_part(self, party: Party, algorithm: str) -> None:
        """Store ``party.part`` here and in the party's ``state-dir``."""
        content = to_records(party.part)
        self._session["part_round"] = self._session["round"]
        self.state["part.arrays"] = content["arrays"]
        self.state["part.settings"] = content["settings"]
        if party.state_dir is not None:
            arrays = {k: v for k, v in party.part.items() if isinstance(v, np.ndarray)}
            settings = {k: v for k, v in party.part.items() if k not in arrays}
            settings["encoding"] = party.encoding
            part = ModelPart(self.run, algorithm, settings, arrays)
            save_part(party.state_dir, part)

    @property
    def part(self) -> dict[str, Any]:
        """The local model that the run has trained, or an empty dict."""
        return self._kept("part")

    def remembered(self, name: str) -> Array | None:
        """Return the last array that the steps stored under a name, if any."""
        stored = self._kept("after")
        key = next((k for k in reversed(stored) if k.partition("/")[2] == name), "")
        return stored[key] if isinstance(stored.get(key), np.ndarray) else None

    def _kept(self, name: str) -> dict[str, Any]:
        """Return the values that were packed into two records of the state."""
        unpacked = dict(self._records.get(f"{name}.settings") or {})
        for key, array in (self._records.get(f"{name}.arrays") or {}).items():
            unpacked[key] = decode(array)
        return unpacked


def _fixed(frame: Frame, party: Party) -> dict[str, Any]:
    """Return the values that must not change during a run, such as the data."""
    data = f"{party.n_rows} rows, {party.X.shape[1]} columns, {party.ids_digest}"
    seed = [frame.seed, int(frame.private_draws)]
    return {"seed": seed, "model": frame.model or "", "data": data}
