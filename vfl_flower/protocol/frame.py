"""The frame: the settings of every message of a run besides the step's own values.

Both sides use these classes: the server packs a :class:`Frame` into each request, and a
party parses it. So the party refuses a malformed frame, with a one-sentence error,
before it runs any step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len

from vfl_flower.protocol.contract import ContractError, fields_of, restore, structure
from vfl_flower.protocol.seals import Seal
from vfl_flower.protocol.settings import Count, Natural
from vfl_flower.shapes import shapes_only

Place = Annotated[int, Ge(0), Le(2**20)]

STATE_KEY_BYTES = 32  # bytes of the key of a session's state

StateKey = Annotated[bytes, Len(STATE_KEY_BYTES, STATE_KEY_BYTES)]

KEY_BYTES, SIGNATURE_BYTES = 32, 64  # bytes of a public key and of a signature

MOST_CLIPPED = 2.0**40
"""Bound on a party's number of clipped values, which leaves the party in a sum."""

DIGEST_BYTES = 32  # bytes of a digest of one party's inputs


@dataclass(frozen=True)
class SumRequest:
    """One sum that the server requests."""

    sum: Natural  # its number, above all earlier numbers for this name
    bound: float  # on an addend
    group: str  # the group in which to add
    to: Place | None = None  # the party whose pad stays on the sum
    relay: Place | None = None
    """The party to which this party sends its partial sum, encrypted."""


@shapes_only
@dataclass(frozen=True)
class Greeting:
    """Information for a party in the first message of a run."""

    session: Count  # the number of the run
    digest: bytes  # of the message
    goes_on: bool = False  # whether the server resumes, and has the first reply


@shapes_only
@dataclass(frozen=True)
class RunFrame:
    """Information for a party about its run in each later message."""

    session: Count  # the number of the run
    seed: Count  # of the run
    private_draws: bool  # whether the party adds a secret of its own to its streams
    masking: Literal["ring", "plain"]
    round: Natural  # the number of this round trip
    previous: Count  # the number of the party's last round trip
    parties: Annotated[int, Ge(1), Le(2**20)]  # number of parties
    index: Place  # the party's place among them
    peers: bytes | None = None  # public keys of all parties; in the first message
    credentials: bytes | None = None  # signed by parties, with the keys
    signed: bytes | None = None
    """All parties' signatures on the list of their keys; in the second message."""
    model: str | None = None  # id of the model, if the run uses one
    columns: list[str] | None = None
    """Digests of the column names in the common order of all parties; sent in the first
    message if the order of a party differs."""
    blocks: bytes | None = None
    """For each party, the digest of the inputs that differ between parties."""
    salt: bytes | None = None  # of the digest of this party's inputs
    state_key: StateKey | None = None  # of the state on the party's disk
    digest: bytes = b""  # of the message and of the requested step


@shapes_only
@dataclass(frozen=True)
class Frame(RunFrame):
    """The frame of a message of a run, with requested sums and hidden values."""

    sums: dict[str, SumRequest] = field(default_factory=dict)
    """The sums that the server requests, by the names of the values in the reply."""
    sealed: dict[str, list[Seal]] = field(default_factory=dict)
    """Seals that open values of the request, by name; at least one for each value."""

    def pack(self) -> dict[str, Any]:
        """Return the frame as settings of a message."""
        names = (f.name for f in dataclasses.fields(RunFrame) if f.name != "digest")
        packed = {name: getattr(self, name) for name in names}
        for name, wanted in self.sums.items():
            for key, value in dataclasses.asdict(wanted).items():
                packed[f"{key}.{name}"] = value
        for name, seals in self.sealed.items():
            packed[f"sealed.{name}"] = [seal.pack() for seal in seals]
        return {name: value for name, value in packed.items() if value is not None}

    @classmethod
    def parse(cls, packed: Mapping[str, Any]) -> Frame:
        """Return the frame in a message's settings, or raise ContractError."""
        plain: dict[str, Any] = {}
        sums: dict[str, dict[str, Any]] = {}
        sealed: dict[str, list[Seal]] = {}
        for key, value in packed.items():
            kind, dot, name = key.partition(".")
            if not dot:
                plain[key] = value
            elif kind == "sealed":
                sealed[name] = _seals(name, value)
            else:
                sums.setdefault(name, {})[kind] = value
        frame = cls(
            **structure(fields_of(RunFrame), plain, {}),
            sums={
                name: restore(SumRequest, request, {}, f"the sum {name[:60]!r}: ")
                for name, request in sums.items()
            },
            sealed=sealed,
        )
        if (place := max(_places(frame))) >= frame.parties:
            raise ContractError(
                f"a party's position must be below {frame.parties}, got {place}"
            )
        if frame.peers is not None and len(frame.peers) != KEY_BYTES * frame.parties:
            raise ContractError("'peers' must hold each party's public key")
        return frame


def _seals(name: str, texts: Any) -> list[Seal]:
    try:
        seals = [Seal.parse(text) for text in texts]
    except (ValueError, TypeError):
        seals = []
    if not seals:
        raise ContractError(f"the seals of {name[:60]!r} cannot be read")
    return seals


def _places(frame: Frame) -> list[int]:
    """Return the places of parties that a frame names."""
    places = [place for s in frame.sums.values() for place in (s.to, s.relay)]
    places += [seal.sender for seals in frame.sealed.values() for seal in seals]
    return [frame.index, *(place for place in places if place is not None)]
