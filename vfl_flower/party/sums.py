"""A party's side of secure sums: masking its addends and opening sealed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vfl_flower.protocol.common import common_digest
from vfl_flower.protocol.contract import NEXT, PRIVATE, Sizes, leaves_of
from vfl_flower.protocol.errors import PartyError, refusing
from vfl_flower.protocol.frame import MOST_CLIPPED, Frame, SumRequest
from vfl_flower.protocol.seals import Seal
from vfl_flower.protocol.steps import Step
from vfl_flower.secure_aggregation.groups import Group, group
from vfl_flower.secure_aggregation.masks import masked
from vfl_flower.secure_aggregation.relay import Relay
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

CLIPPED = "the number of clipped values"
"""Context of the mask that hides the number of clipped values; not an array's name."""


@shapes_only
@dataclass(eq=False)
class PartySums:
    """The sums of one message, at one party.

    By default, an addend is sent to the server, where the masks cancel. With ``to``,
    the sum is for one party, which alone can remove the pad. With ``relay``, an addend
    is sent, encrypted, to the next party, after this party has added the addends that
    it received under the same name.
    """

    private_key: bytes
    public_keys: Sequence[bytes]
    frame: Frame
    allow_plain: bool
    common: bytes = b""
    """The digest of the inputs common to all parties; b"" if no value that the step
    sends depends on it."""
    received: dict[str, Array] = field(default_factory=dict)

    @cached_property
    def relay(self) -> Relay:
        """The party's masks, and its encryption of messages to other parties."""
        keys, frame = (self.private_key, self.public_keys), self.frame
        with refusing("the parties' public keys are not valid: "):
            return Relay(*keys, frame.index, frame.session)

    def agree(self, party: int) -> bytes:
        """Return the secret shared with another party; see :meth:`Relay.agree`."""
        return self.relay.agree(party)

    def open(
        self,
        step: Step[..., Any],
        values: dict[str, Any],
        digests: Mapping[str, bytes],
        inputs: Callable[[str, int], bytes | None],
    ) -> None:
        """Open the values sealed for this party, and add them to `values`.

        A partial sum to be relayed is added in :meth:`hide` and not shown to the step.
        `digests` contains the digests of the arrays as received, and `inputs` returns
        the digest of the inputs of an earlier step, if this party ran that step too.
        Raises PartyError if a value was altered in transit, belongs to a different
        step, or came in the clear although it must be encrypted, or vice versa.
        """
        request = step.contract.request
        if self.frame.sums or step.contract.seals:
            keys = list(self.public_keys)
            self.common = common_digest(request, values, digests, self.frame, keys)
        for name in values:
            if leaves_of(request, name) is not None:
                raise PartyError(f"{name!r} must come, encrypted, from a party")
        for name, seals in self.frame.sealed.items():
            if not all(seal.is_of(name) for seal in seals):
                raise PartyError(f"the seal of {name!r} is for a different value")
            parts = [_part(values, f"{name}.{place}") for place in range(len(seals))]
            wanted, leaves = self.frame.sums.get(name), leaves_of(request, name)
            if wanted is not None and wanted.relay is not None:
                self.received[name] = self._total(name, parts, seals)[1]
            elif leaves is None:
                raise PartyError(f"{step.action} accepts no {name!r} from a party")
            elif seals[0].kind == "secret":
                if len(seals) > 1:
                    raise PartyError(f"the secret {name!r} must come from one party")
                if leaves == NEXT:
                    self._check_ring(name, seals[0])
                digest = inputs(seals[0].action, seals[0].round)
                values[name] = self._unsealed(parts[0], seals[0], digest or b"")
                if leaves == PRIVATE:
                    if seals[0].sender != _number(name):
                        raise PartyError(f"{name!r} must come from the party it names")
                    values[name] = np.frombuffer(values[name], dtype=np.uint8)
            else:
                adding, total = self._total(name, parts, seals)
                with refusing(f"{name!r} cannot be decoded: "):
                    values[name] = adding.decode(total)

    def _check_ring(self, name: str, seal: Seal) -> None:
        """Raise PartyError unless a secret came from the previous party and round."""
        before = (self.frame.index - 1) % self.frame.parties
        if (seal.sender, seal.round) != (before, self.frame.round - 1):
            raise PartyError(
                f"{name!r} must come from the party at position {before}, in the "
                "previous round trip"
            )

    def _total(
        self, name: str, parts: Sequence[Array], seals: Sequence[Seal]
    ) -> tuple[Group, Array]:
        """Return the group and the total of the parts of one sum."""
        adding, total = self._open(parts[0], seals[0])
        for part, seal in zip(parts[1:], seals[1:], strict=True):
            part_group, elements = self._open(part, seal)
            if part_group.label != adding.label:
                raise PartyError(f"the parts of {name!r} must belong to the same sum")
            total = _added(adding, name, total, elements)
        return adding, total

    def _open(self, array: Array, seal: Seal) -> tuple[Group, Array]:
        adding = self._adding(seal.group, seal.bound or 0.0)
        if seal.kind == "pad":
            if array.dtype != adding.dtype:
                raise PartyError(f"{seal.name!r} must hold {adding.dtype} elements")
            pad = self.relay.pad(adding, array.size, seal.action, seal.name, seal.round)
            return adding, adding.subtract(array.ravel(), pad, out=pad)
        content = self._unsealed(array, seal)
        if len(content) % adding.dtype.itemsize:
            raise PartyError(f"{seal.name!r} must hold {adding.dtype} elements")
        return adding, np.frombuffer(content, dtype=adding.dtype)

    def _unsealed(self, array: Array, seal: Seal, inputs: bytes | None = None) -> bytes:
        name = seal.name if inputs is None else f"{seal.name} {inputs.hex()}"
        place, data = (seal.action, name, seal.round), array.tobytes()
        try:
            return self.relay.open(seal.sender, data, *place)
        except ValueError as error:  # its text names only step and sender
            asked = "" if inputs is None else ", or the parties' requests differed"
            raise PartyError(f"{error}{asked}") from None

    def _sealed(self, step: Step[..., Any], to: int, name: str, data: bytes) -> Array:
        """Encrypt bytes for a party that runs this step with the same inputs.

        Every party runs a step that encrypts, so each party can compute the digest.
        """
        bound = f"{name} {self.common.hex()}"
        data = self.relay.seal(to, data, step.action, bound, self.frame.round)
        return np.frombuffer(data, dtype=np.uint8)

    def hide(
        self, step: Step[..., Any], reply: dict[str, Any], sizes: Sizes
    ) -> bytes | None:
        """Mask or encrypt in place the values that `step` sends only in sums.

        `sizes` are the sizes of the party's data. If there are sums, returns the masked
        number of values that were clipped to their bounds. If the server knew this
        number for a single party, it could find the party's values by requesting one
        bound after another. Raises PartyError if the server did not request a sum, or
        requested a sum without protection.
        """
        clipped, counts = 0, False
        for name in list(reply):
            leaves = leaves_of(step.contract.reply, name)
            if leaves is None:
                continue
            if leaves.how == "secret":
                secret = reply.pop(name)
                for j in range(self.frame.parties):
                    if j != self.frame.index:
                        reply[f"{name}.{j}"] = self._sealed(step, j, name, secret)
                continue
            if leaves in (NEXT, PRIVATE):
                following = (self.frame.index + 1) % self.frame.parties
                to = following if leaves == NEXT else _number(name)
                reply[name] = self._sealed(step, to, name, bytes(reply[name]))
                continue
            wanted = self.frame.sums.get(name)
            if wanted is None:
                raise PartyError(
                    f"{step.action} sends {name!r} only as part of a sum, but the "
                    "server did not request a sum"
                )
            for_server = wanted.to is None and wanted.relay is None
            if leaves.how == "sealed" and for_server:
                raise PartyError(
                    f"{step.action} sends {name!r} only as part of a sum for a party, "
                    "but the server requested the sum for itself"
                )
            if leaves.named and (
                wanted.relay is not None or wanted.to != _number(name)
            ):
                raise PartyError(f"the sum of {name!r} must be for the party it names")
            least = leaves.least
            least = sizes[least] if isinstance(least, str) else least
            # With many different bounds, the counts of clipped values reveal addends.
            if math.frexp(wanted.bound)[0] != 0.5 or wanted.bound < least:
                raise PartyError(
                    f"the bound of the sum of {name!r} must be a power of two and at "
                    f"least {least:g}, got {wanted.bound:g}"
                )
            reply[name], count = self._hidden(step, name, wanted, reply[name])
            if wanted.relay is None:
                clipped, counts = clipped + count, True
            elif count:
                raise PartyError(
                    f"the sum of {name!r} is relayed from party to party, so {name!r} "
                    "must be within the bound of the sum"
                )
        return self._count(step, clipped) if counts else None

    def _count(self, step: Step[..., Any], clipped: int) -> bytes:
        """Return the number of clipped values as a masked addend."""
        adding = group("ring", MOST_CLIPPED, self.frame.parties)
        masks = self.relay if self.frame.parties > 1 else None
        place = f"{step.action} {self.common.hex()}", CLIPPED, self.frame.round
        hidden, _ = masked(np.array([float(clipped)]), adding, masks, *place)
        return hidden.tobytes()

    def _hidden(
        self, step: Step[..., Any], name: str, wanted: SumRequest, addend: Any
    ) -> tuple[Array, int]:
        adding = self._adding(wanted.group, wanted.bound)
        # The masks cancel only if all parties got the same request and recipient.
        asked = f"{step.action} {self.common.hex()}"
        goal = name if wanted.to is None else f"{name} to {wanted.to}"
        # A single party, in a run without masks, has nobody to share masks with.
        alone = not adding.protects and self.frame.parties == 1
        masks = None if alone else self.relay
        place, values = (asked, goal, wanted.sum), np.asarray(addend)
        with refusing(f"{name!r} cannot be summed: "):
            hidden, clipped = masked(values, adding, masks, *place)
        if wanted.to == self.frame.index:
            pad = self.relay.pad(adding, hidden.size, step.action, name, wanted.sum)
            hidden = adding.add(hidden.ravel(), pad, out=pad).reshape(hidden.shape)
        if wanted.relay is not None:
            hidden = hidden.ravel()
            if name in self.received:
                hidden = _added(adding, name, hidden, self.received[name])
            data, to = hidden.tobytes(), wanted.relay
            data = self.relay.seal(to, data, step.action, name, self.frame.round)
            hidden = np.frombuffer(data, dtype=adding.dtype)
        return hidden, clipped

    def _adding(self, name: str, bound: float) -> Group:
        """Return the group of a sum, if it is valid and protects this party."""
        with refusing():
            adding = group(name, bound, self.frame.parties)
        if not adding.protects and not self.allow_plain:
            raise PartyError("this party sends only masked addends")
        return adding


def _number(name: str) -> int:
    """Return 2 for ``openings_2``: the number of its recipient or sender."""
    return int(name.rpartition("_")[2])


def _part(values: dict[str, Any], name: str) -> Array:
    part = values.pop(name, None)
    if not isinstance(part, np.ndarray):
        raise PartyError(f"the message has a seal for {name!r}, but no value")
    return part


def _added(adding: Group, name: str, a: Array, b: Array) -> Array:
    if a.shape != b.shape or a.dtype != b.dtype:  # or NumPy would broadcast
        raise PartyError(
            f"the parts of {name!r} must have equal sizes, got {a.size} and {b.size}"
        )
    return adding.add(a, b)
