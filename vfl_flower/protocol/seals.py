"""Seals: the facts that a party needs to open a value that the server cannot read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

SealKind = Literal["pad", "relay", "secret"]


@dataclass(frozen=True)
class Seal:
    """The facts about a hidden value with which its recipient can open it."""

    kind: SealKind
    """``"pad"``: a sum at the server, which still carries the recipient's own pad.
    ``"relay"``: a partial sum, which `sender` has encrypted for the recipient.
    ``"secret"``: bytes, which `sender` has encrypted for the recipient."""
    action: str  # the step that made it
    name: str  # its name in the step's reply
    round: int  # the round trip of that step
    sender: int = 0  # the place of the party; 0 for a pad
    group: str = "-"  # the group of the sum; "-" for a secret
    bound: float | None = None  # of an addend; None for a secret

    def pack(self) -> str:
        """Return the seal as text for a message."""
        bound = "-" if self.bound is None else float(self.bound).hex()
        made = self.kind, self.action, self.name, self.round
        return " ".join(map(str, (*made, self.group, bound, self.sender)))

    @classmethod
    def parse(cls, text: object) -> Seal:
        """Return the seal that a string represents, or raise ValueError."""
        words = text.split() if isinstance(text, str) else []
        try:
            kind, action, name, number, group, bound, sender = words
            places = int(number), int(sender)
            limit = None if bound == "-" else float.fromhex(bound)
            seal = cls(cast(SealKind, kind), action, name, *places, group, limit)
        except (ValueError, OverflowError):
            raise ValueError("a seal is malformed") from None
        fits = kind in get_args(SealKind) and seal.round >= 0 and seal.sender >= 0
        bounded = seal.bound is not None and math.isfinite(seal.bound)
        if not fits or bounded != (kind != "secret"):
            raise ValueError("a seal is malformed")
        return seal

    def is_of(self, name: str) -> bool:
        """Return whether the seal matches a name, as `angles` matches `x.angles_2`."""
        return stem(self.name) == stem(name.rpartition(".")[2])


@shapes_only
@dataclass(frozen=True)
class Sealed:
    """A value that the server passes on and cannot open."""

    to: int  # the party that can open it
    parts: tuple[Array, ...]  # once opened, they add up to the value
    seals: tuple[Seal, ...]  # the facts that the party needs to open each part

    def __add__(self, other: Sealed) -> Sealed:
        """Return the sum of two values for the same party."""
        return Sealed(self.to, self.parts + other.parts, self.seals + other.seals)


def stem(name: str) -> str:
    """Return ``angles`` for ``angles_2``."""
    return name.rstrip("0123456789").removesuffix("_")


def split(
    values: Mapping[str, Any], receiver: int
) -> tuple[dict[str, Any], dict[str, list[Seal]]]:
    """Return a message's values, and the seals by which its recipient opens them."""
    content: dict[str, Any] = {}
    seals: dict[str, list[Seal]] = {}
    for name, value in values.items():
        if not isinstance(value, Sealed):
            content[name] = value
            continue
        if value.to != receiver:
            raise ValueError(f"{name} is for party {value.to}, not party {receiver}")
        seals[name] = list(value.seals)
        content |= {f"{name}.{k}": part for k, part in enumerate(value.parts)}
    return content, seals
