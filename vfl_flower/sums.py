"""A party's side of secure sums: what it hides, and what only it can open."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from vfl_flower.clients.base import PartyError, Step
from vfl_flower.secure_aggregation import Group, PairwiseMasks, Relay, group, masked
from vfl_flower.typing import Array

SEALED = "sealed."
"""Prefix of the frame's settings that say how to open a value of the message."""


class PartySums:
    """The sums of one message, at one party.

    The server names each sum that it wants in the frame: ``group.NAME`` and
    ``bound.NAME``, and where it goes: nowhere else, so that masks cancel at the server;
    ``to.NAME``, a party, whose pad stays on the sum; or ``relay.NAME``, a party, to
    which this one sends its part encrypted, with what others have sent to this one
    under the same name. ``sum.NAME`` numbers the sums of a name, upwards.

    Parameters
    ----------
    keys : tuple
        Private key, public keys of all, place of the party, and number of the run.
    frame : mapping
        Settings of the frame.
    allow_plain : bool
        Whether the party sends its addends also without a mask.
    """

    def __init__(
        self,
        keys: tuple[bytes, list[bytes], int, int],
        frame: Mapping[str, Any],
        allow_plain: bool,
    ) -> None:
        self._keys, self.index, self.parties = keys, keys[2], len(keys[1])
        self.frame, self.allow_plain = frame, allow_plain
        self._received: dict[str, Array] = {}

    @cached_property
    def masks(self) -> PairwiseMasks:
        """The party's masks in this run."""
        return PairwiseMasks(*self._keys)

    @cached_property
    def relay(self) -> Relay:
        """The party's way to send to another one what the server cannot read."""
        return Relay(*self._keys)

    def open(self, step: Step, values: dict[str, Any]) -> None:
        """Put the sums that are sealed for this party in the place of what hides them.

        One under the name of a sum that travels on is a part of that sum: it is added
        in :meth:`hide` and not shown to the step.

        Raises
        ------
        PartyError
            What another party sent was altered on its way, or is of another step; or a
            secret came in the clear.
        """
        for name in step.secrets:
            if name in values:
                raise PartyError(f"{name!r} must come from a party, encrypted")
        for key in [key for key in self.frame if key.startswith(SEALED)]:
            name = key.removeprefix(SEALED)
            for seal in self.frame[key]:
                if _stem(str(seal).split()[2]) != _stem(name):
                    raise PartyError(f"a sum of another name was given as {name!r}")
            total, own = None, None
            for place, seal in enumerate(self.frame[key]):
                if str(seal).startswith("secret "):
                    values[name] = self._unsealed(values.pop(f"{name}.{place}"), seal)
                    continue
                own, part = self._open(values.pop(f"{name}.{place}"), str(seal))
                total = part if total is None else _added(own, name, total, part)
            if own is None or total is None:
                continue
            if f"relay.{name}" in self.frame:
                self._received[name] = total
            else:
                values[name] = own.decode(total)

    def _open(self, array: Array, seal: str) -> tuple[Group, Array]:
        kind, action, name, number, of_group, bound, _ = seal.split()
        own = group(of_group, float.fromhex(bound), self.parties)
        if kind == "pad":
            pad = self.masks.pad(own, array.size, action, name, int(number))
            return own, own.subtract(array.ravel(), pad, out=pad)
        return own, np.frombuffer(self._unsealed(array, seal), dtype=own.dtype)

    def _unsealed(self, array: Array, seal: str) -> bytes:
        _, action, name, number, *_, sender = seal.split()
        try:
            return self.relay.open(
                int(sender), array.tobytes(), action, name, int(number)
            )
        except ValueError as error:  # its sentence names step and sender, no more
            raise PartyError(str(error)) from None

    def hide(self, step: Step, reply: dict[str, Any]) -> int:
        """Hide in place what `step` sends only into sums.

        Returns
        -------
        int
            How many values were clipped to the bound of their sum.

        Raises
        ------
        PartyError
            The server did not ask for the sum, or not so that it stays hidden.
        """
        clipped = 0
        for name in [name for name in reply if step.hides(name)]:
            own = self._group(step, name)
            to, next_one = (self.frame.get(f"{way}.{name}") for way in ("to", "relay"))
            if step.seals(name) and to is None and next_one is None:
                raise PartyError(
                    f"{step.action} sends {name!r} only into a sum for a party, and "
                    "the server asked for it itself"
                )
            for receiver in (to, next_one):
                if receiver is not None and not 0 <= receiver < self.masks.parties:
                    raise PartyError(
                        f"the sum {name!r} must be for one of the {self.masks.parties} "
                        f"parties, got {receiver}"
                    )
            number = self.frame[f"sum.{name}"]
            # Masks that cancel only where all were told of the same receiver.
            goal = name if to is None else f"{name} to {to}"
            # One user of a run without masks has nobody to share any with.
            bare = not own.protects and self.parties == 1
            masks = None if bare else self.masks
            hidden, count = masked(
                np.asarray(reply[name]), own, masks, step.action, goal, number
            )
            clipped += count
            if to == self.index:
                pad = self.masks.pad(own, hidden.size, step.action, name, number)
                hidden = own.add(hidden.ravel(), pad, out=pad).reshape(hidden.shape)
            if next_one is not None:
                hidden = self._relayed(step, name, own, hidden.ravel(), int(next_one))
            reply[name] = hidden
        for name in [name for name in step.secrets if name in reply]:
            self._seal_for_all(step, name, reply)
        return clipped

    def _seal_for_all(self, step: Step, name: str, reply: dict[str, Any]) -> None:
        """Put encrypted bytes, one for each other party, in the place of a secret."""
        secret = reply.pop(name)
        for j in range(self.parties):
            if j != self.index:
                number = self.frame["round"]
                data = self.relay.seal(j, secret, step.action, name, number)
                reply[f"{name}.{j}"] = np.frombuffer(data, dtype=np.uint8)

    def _group(self, step: Step, name: str) -> Group:
        bound = self.frame.get(f"bound.{name}")
        if bound is None:
            raise PartyError(
                f"{step.action} sends {name!r} only into a sum, and the "
                "server asked for none"
            )
        own = group(
            str(self.frame[f"group.{name}"]), float(bound), int(self.frame["parties"])
        )
        if not own.protects and not self.allow_plain:
            raise PartyError("this party sends its addends only under masks")
        return own

    def _relayed(
        self, step: Step, name: str, own: Group, hidden: Array, receiver: int
    ) -> Array:
        """Return the sum so far, encrypted for the next party on its way."""
        if name in self._received:
            hidden = _added(own, name, hidden, self._received[name])
        number = self.frame["round"]
        data = self.relay.seal(receiver, hidden.tobytes(), step.action, name, number)
        return np.frombuffer(data, dtype=own.dtype)


def _stem(name: str) -> str:
    """Return ``angles`` for ``angles_2``: the number says whose, or which block."""
    return name.rstrip("0123456789").removesuffix("_")


def _added(own: Group, name: str, a: Array, b: Array) -> Array:
    if a.shape != b.shape:  # one element would be added to each of many
        raise PartyError(
            f"the parts of {name!r} must have one size, got {a.size} and {b.size}"
        )
    return own.add(a, b)
