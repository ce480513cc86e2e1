"""Groups in which masked values are added: encode, add, decode.

A secure sum needs a finite group, because only in a finite group does a uniform mask
hide a value perfectly. Each group defines how values become elements, how elements are
added, and how a stream of random bytes becomes uniform elements. Masking needs nothing
else from a group.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from vfl_flower.numerics.prime_field import PrimeField
from vfl_flower.typing import Array

Take = Callable[[int], bytes]
"""The next ``n`` bytes of a random stream."""


class Group(ABC):
    """A commutative group, whose zero is the number 0 of `dtype`.

    Elements are added as NumPy adds them: unsigned integers wrap around.
    """

    protects: ClassVar[bool] = True
    """Whether a mask hides a value; false only for `Plain`."""

    parties: int
    """Maximum number of encodings whose sum `decode` can decode, at least 1."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the group, as an argument of `group`."""

    @property
    def label(self) -> str:
        """Name and every setting that changes `encode`; bound into each mask's key."""
        return f"{self.name} {self.parties}"

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Data type of an element, in memory and in messages."""

    @abstractmethod
    def encode(self, values: Array) -> tuple[Array, int]:
        """Return elements of the same shape, and how many values were clipped.

        The elements may be the array of `values` itself: do not change them in place.
        Raises ValueError if a value is NaN, infinite or of a wrong type.
        """

    def decode(self, total: Array) -> Array:
        """Decode the sum of up to `parties` encodings; the shape is unchanged."""
        return np.asarray(total, dtype=self.dtype)

    def add(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return ``a + b`` in the group, elementwise; `out`, if given, may be `a`."""
        return np.add(a, b, out=out)

    def subtract(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return ``a - b`` in the group, elementwise, with `out` as in `add`."""
        return np.subtract(a, b, out=out)

    def random(self, take: Take, count: int) -> Array:
        """Return `count` uniform elements from the stream; they may be read-only.

        The stream is read in order and only as far as needed, so that drawing ``m``
        elements and then ``n`` elements gives the same result as drawing ``m + n``
        elements at once.
        """
        return np.frombuffer(take(self.dtype.itemsize * count), dtype=self.dtype)


def clipped_to(bound: float, values: Array) -> tuple[Array, int]:
    """Clip to ``[-bound, bound]`` in a new float64 array, and count clipped values.

    Raises ValueError if a value is NaN or infinite.
    """
    exact = np.asarray(values, dtype=np.float64)
    if not np.isfinite(exact).all():
        raise ValueError("values must be finite, got NaN or infinity")
    clipped = int(np.count_nonzero(np.abs(exact) > bound))
    return np.clip(exact, -bound, bound, out=np.empty_like(exact)), clipped


@dataclass(frozen=True)
class _Bounded(Group):
    """A group of real numbers with bounded absolute values."""

    name: ClassVar[str]

    bound: float
    """Maximum absolute value, from 1e-250 to 1e250; larger values are clipped."""
    parties: int

    def __post_init__(self) -> None:
        """Check the bound, which the server chooses."""
        if not 1e-250 <= self.bound <= 1e250:
            raise ValueError(
                f"bound must be between 1e-250 and 1e250, got {self.bound}"
            )
        object.__setattr__(self, "bound", float(self.bound))

    @property
    def label(self) -> str:
        """Name, exact bound and number of parties."""
        return f"{self.name} {self.bound.hex()} {self.parties}"


@dataclass(frozen=True)
class Ring(_Bounded):
    """The integers modulo 2^64, for real values in fixed point.

    A value v becomes the integer nearest to ``scale * v``, modulo 2^64. No sum of
    `parties` such integers reaches 2^63 in absolute value, so the sum of the encodings
    is exact. The result of `decode` differs from the sum of the clipped values by at
    most ``parties / (2 * scale)``, plus the rounding of the result to float64.

    >>> ring = Ring(bound=10.0, parties=2)
    >>> a, _ = ring.encode(np.array([1.25, -3.0]))
    >>> b, clipped = ring.encode(np.array([0.5, 11.0]))
    >>> ring.decode(ring.add(a, b)), clipped
    (array([1.75, 7.  ]), 1)
    """

    name: ClassVar[str] = "ring"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<u8")

    scale: float = field(init=False)
    """The largest power of two with ``parties * ceil(bound * scale) < 2^63``."""

    def __post_init__(self) -> None:
        """Check the settings and find the scale, in exact integers."""
        super().__post_init__()
        # bound = numerator / 2^d, and parties * numerator has k bits:
        # parties * bound * 2^e < 2^(k - d + e) <= 2^63 for e = 63 + d - k.
        numerator, denominator = self.bound.as_integer_ratio()
        bits = (self.parties * numerator).bit_length()
        exponent = 62 + denominator.bit_length() - bits
        # Rounding to integers matters only for more than 1024 parties.
        if self.parties * math.ceil(math.ldexp(self.bound, exponent)) >= 2**63:
            exponent -= 1
        object.__setattr__(self, "scale", math.ldexp(1.0, exponent))

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return elements, uint64, and how many values were clipped."""
        exact, clipped = clipped_to(self.bound, values)
        exact *= self.scale
        np.rint(exact, out=exact)
        return exact.astype("<i8").view(self.dtype), clipped

    def decode(self, total: Array) -> Array:
        """Return the float64 values of a sum of elements, uint64, any shape."""
        signed = np.asarray(total, dtype=self.dtype).view("<i8")
        return np.asarray(signed / self.scale, dtype=np.float64)


@dataclass(frozen=True)
class Circle(Group):
    """The circle R / Z: angles as fractions of a full turn, in `bits` bits.

    A value v becomes the integer nearest to ``2^bits * v``, modulo 2^bits: whole turns
    are discarded, and no value is ever clipped. Integers of `bits` bits wrap around, so
    the sum of any number of elements is exact modulo a full turn. The sum of T elements
    differs from the sum of their values by at most ``T / 2^(bits + 1)`` turns. `decode`
    returns a sum unchanged, in units of ``2^-bits``.
    """

    bits: int
    """Width of an element, 8, 16 or 32; a full turn is ``2^bits`` units."""
    parties: int

    @property
    def name(self) -> str:
        """``"circle8"``, ``"circle16"`` or ``"circle32"``."""
        return f"circle{self.bits}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Unsigned integers of `bits` bits, little endian."""
        return np.dtype(f"<u{self.bits // 8}")

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return elements in units of ``2^-bits`` turns, and 0, as nothing is clipped.

        `values` are finite floats in turns, or an array of elements of exactly `dtype`,
        which is returned without a copy. Raises ValueError for other values.
        """
        values = np.asarray(values)
        if values.dtype == self.dtype:
            return values, 0
        if values.dtype.kind != "f":
            # Integers would be whole turns, so elements of a different width would
            # silently become 0.
            raise ValueError(
                f"values must be floats (fractions of a turn) or {self.dtype} "
                f"elements, got {values.dtype}"
            )
        if not np.isfinite(values).all():
            raise ValueError("values must be finite, got NaN or infinity")
        exact = values.astype(np.float64)
        exact -= np.rint(exact)  # exact; in [-1/2, 1/2]
        exact *= 2.0**self.bits
        return np.rint(exact, out=exact).astype("<i8").astype(self.dtype), 0


@dataclass(frozen=True)
class Plain(_Bounded):
    """Unencoded real numbers, for tests and comparison: nothing is hidden.

    Values are checked and clipped as in `Ring`.
    """

    name: ClassVar[str] = "plain"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<f8")
    protects: ClassVar[bool] = False

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return the clipped float64 values and how many were clipped."""
        return clipped_to(self.bound, values)

    def random(self, take: Take, count: int) -> Array:
        """Return `count` zeros."""
        return np.zeros(count, dtype=self.dtype)


@dataclass(frozen=True)
class Field(PrimeField, Group):
    """The integers modulo a prime p; values are the elements, uint64 below p."""

    name: ClassVar[str] = "field"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<u8")

    parties: int = field(kw_only=True)

    @property
    def label(self) -> str:
        """Name, prime and number of parties."""
        return f"{self.name} {self.p} {self.parties}"

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return the elements without a copy, and 0, since nothing is clipped."""
        return self.decode(values), 0

    def decode(self, total: Array) -> Array:
        """Return the elements; raise ValueError unless all are uint64 below p."""
        total = np.asarray(total)
        if total.dtype != self.dtype:
            raise ValueError(f"values must be uint64 elements, got {total.dtype}")
        if np.any(total >= self.p):
            raise ValueError(
                f"values must be elements below p = {self.p}, got a larger value"
            )
        return total

    def random(self, take: Take, count: int) -> Array:
        """Return `count` uniform elements, by rejection.

        Each element is read from eight bytes, little endian, using only as many of the
        lowest bits as p has bits. Values of p or more are discarded, and the next eight
        bytes are read instead.
        """
        mask = np.uint64(2 ** self.p.bit_length() - 1)
        elements = np.zeros(0, dtype=self.dtype)
        while len(elements) < count:
            # Read one word per missing element, so that no excess word is read.
            words = take(8 * (count - len(elements)))
            drawn = np.frombuffer(words, dtype=self.dtype) & mask
            elements = np.concatenate([elements, drawn[drawn < self.p]])
        return elements


GROUPS: dict[str, Callable[[float, int], Group]] = {
    "ring": Ring,
    "plain": Plain,
    "circle8": lambda bound, parties: Circle(8, parties),
    "circle16": lambda bound, parties: Circle(16, parties),
    "circle32": lambda bound, parties: Circle(32, parties),
    "field": lambda bound, parties: Field(parties=parties),
}


def group(name: str, bound: float, parties: int) -> Group:
    """Make the named group in `GROUPS`, for sums of up to `parties` encodings.

    `bound` is the maximum absolute value in "ring" and "plain"; the other groups have
    no bound. Raises ValueError if an argument is out of range.
    """
    if name not in GROUPS:
        raise ValueError(f"group must be one of {', '.join(GROUPS)}, got {name!r}")
    return GROUPS[name](bound, parties)
