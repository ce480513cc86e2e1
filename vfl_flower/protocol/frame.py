"""The frame: what every message of a run tells a party besides the step's own values.

Both sides use these classes: the server packs a :class:`Frame` into each request, and a
party parses it, so that what is malformed is refused with a sentence before any step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len

from vfl_flower.protocol.contract import ContractError, fields_of, structure
from vfl_flower.protocol.seals import Seal
from vfl_flower.protocol.settings import Count, Natural
from vfl_flower.protocol.vault import STATE_KEY_BYTES
from vfl_flower.shapes import shapes_only

Place = Annotated[int, Ge(0), Le(2**20)]

StateKey = Annotated[bytes, Len(STATE_KEY_BYTES, STATE_KEY_BYTES)]

KEY_BYTES = 32
"""Bytes of a public key."""

SIGNATURE_BYTES = 64
"""Bytes of a signature."""

MOST_CLIPPED = 2.0**40
"""Bound of a party's count of clipped values, which leaves it in a sum."""

DIGEST_BYTES = 32
"""Bytes of a digest of what one party is told."""


@dataclass(frozen=True)
class SumRequest:
    """How the server wants one sum.

    Attributes
    ----------
    sum : int
        Number of the sum: above that of any earlier sum of this name.
    bound : float
        Bound of an addend.
    group : str
        Where to add.
    to : int or None
        The party whose pad stays on the sum.
    relay : int or None
        The party to which this one sends its part, encrypted.
    """

    sum: Natural
    bound: float
    group: str
    to: Place | None = None
    relay: Place | None = None


@shapes_only
@dataclass(frozen=True)
class Greeting:
    """What the first message of a run tells a party.

    Attributes
    ----------
    session : int
        Number of the run.
    digest : bytes
        Digest of the message.
    goes_on : bool
        Whether the server goes on with the session, and has what the party then said.
    """

    session: Count
    digest: bytes
    goes_on: bool = False


@shapes_only
@dataclass(frozen=True)
class RunFrame:
    """What a later message tells a party of its run.

    Attributes
    ----------
    session : int
        Number of the run.
    seed : int
        Seed of the run.
    private_draws : bool
        Whether the party adds a secret of its own to its streams.
    masking : {"ring", "plain"}
        How sums are hidden.
    round, previous : int
        Number of this round trip, and of the last one in which the party was asked.
    parties, index : int
        Number of parties, and the party's place.
    peers : bytes or None
        Public keys of all parties; in the first message.
    credentials : bytes or None
        What the parties have signed, beside the keys, where they have identities.
    signed : bytes or None
        Signatures of all parties below the list of their keys; in the second message.
    model : str or None
        Number of the model that the run is about.
    columns : list of str or None
        Digests of the names of the columns in the order that all parties take, where
        one of them has another order; in the first message.
    blocks : bytes or None
        For each party the digest of the inputs that differ between parties.
    salt : bytes or None
        Of the digest of this party's inputs.
    state_key : bytes or None
        What opens the state that the party has on its disk.
    digest : bytes
        Digest of the message, and of the step that was asked.
    """

    session: Count
    seed: Count
    private_draws: bool
    masking: Literal["ring", "plain"]
    round: Natural
    previous: Count
    parties: Annotated[int, Ge(1), Le(2**20)]
    index: Place
    peers: bytes | None = None
    credentials: bytes | None = None
    signed: bytes | None = None
    model: str | None = None
    columns: list[str] | None = None
    blocks: bytes | None = None
    salt: bytes | None = None
    state_key: StateKey | None = None
    digest: bytes = b""


@shapes_only
@dataclass(frozen=True)
class Frame(RunFrame):
    """What a message tells a party of its run and of hidden values.

    Attributes
    ----------
    sums : dict of str to SumRequest
        What the server wants of values of the reply, by their names.
    sealed : dict of str to list of Seal
        How to open values of the request, by their names; at least one seal each.
    """

    sums: dict[str, SumRequest] = field(default_factory=dict)
    sealed: dict[str, list[Seal]] = field(default_factory=dict)

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
        """Return the frame that the settings of a message stand for.

        Raises
        ------
        ContractError
            They stand for none.
        """
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
            sums={name: _sum_request(name, request) for name, request in sums.items()},
            sealed=sealed,
        )
        if (place := max(_places(frame))) >= frame.parties:
            raise ContractError(
                f"the place of a party must be below {frame.parties}, got {place}"
            )
        if frame.peers is not None and len(frame.peers) != KEY_BYTES * frame.parties:
            raise ContractError("'peers' must hold a public key of each party")
        return frame


def _sum_request(name: str, request: Mapping[str, Any]) -> SumRequest:
    try:
        return SumRequest(**structure(fields_of(SumRequest), request, {}))
    except ContractError as error:
        raise ContractError(f"the sum {name[:60]!r}: {error}") from None


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
    receivers = [place for s in frame.sums.values() for place in (s.to, s.relay)]
    senders = [seal.sender for seals in frame.sealed.values() for seal in seals]
    known = [place for place in receivers if place is not None]
    return [frame.index, *senders, *known]
