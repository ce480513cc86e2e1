"""Groups in which masked values are added: encode, add, decode.

A secure sum needs a finite group, since only there a uniform mask hides a value
perfectly. Each group says how values become elements, how elements add, and how a
stream of random bytes becomes uniform elements; the masks know nothing else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from vfl_flower.secure_aggregation.sparse_sum import Field
from vfl_flower.typing import Array

Take = Callable[[int], bytes]
"""The next ``n`` bytes of a random stream."""


class Group(Protocol):
    """What masks and sums need to know of a commutative group.

    Its zero is the number 0 of `dtype`, in every group.
    """

    @property
    def name(self) -> str:
        """Name of the group, as `group` takes it."""

    @property
    def label(self) -> str:
        """Name and every setting that changes `encode`; bound into each mask's key."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element, in memory and in a message."""

    @property
    def parties(self) -> int:
        """Largest number of encodings whose sum `decode` still understands."""

    @property
    def protects(self) -> bool:
        """Whether a mask hides a value; false for `Plain` alone."""

    def encode(self, values: Array) -> tuple[Array, int]:
        """Elements of the same shape, and how many values were clipped.

        The elements may be the array of `values` itself: do not change them in place.
        """

    def decode(self, total: Array) -> Array:
        """Values of a sum of up to `parties` encodings, of the same shape."""

    def add(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Sum ``a + b`` in the group, elementwise; into `out`, which may be `a`."""

    def subtract(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Difference ``a - b`` in the group, elementwise; into `out` as in `add`."""

    def random(self, take: Take, count: int) -> Array:
        """Return `count` uniform elements from the stream, shape ``(count,)``.

        The stream is read in order and no byte beyond those that the elements need,
        so that ``m`` elements and then ``n`` are the same as ``m + n`` at once. The
        array may be read-only.
        """


def clipped_to(bound: float, values: Array) -> tuple[Array, int]:
    """Clip to ``[-bound, bound]`` in a new float64 array; count what was clipped.

    Raises ValueError if a value is NaN or infinite.
    """
    exact = np.asarray(values, dtype=np.float64)
    if not np.isfinite(exact).all():
        raise ValueError("values must be finite, got NaN or infinity")
    clipped = int(np.count_nonzero(np.abs(exact) > bound))
    return np.clip(exact, -bound, bound, out=np.empty_like(exact)), clipped


class _Numbers:
    """What the groups share whose elements NumPy adds: unsigned integers wrap."""

    parties: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.parties < 1:
            raise ValueError(f"parties must be at least 1, got {self.parties}")

    def add(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Sum, modulo the size of the group."""
        return np.add(a, b, out=out)

    def subtract(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Difference, modulo the size of the group."""
        return np.subtract(a, b, out=out)

    def random(self, take: Take, count: int) -> Array:
        """Return `count` elements of the stream's bytes, little endian; read-only."""
        return np.frombuffer(take(self.dtype.itemsize * count), dtype=self.dtype)


@dataclass(frozen=True)
class _Bounded(_Numbers):
    """What the groups of real numbers share, whose size has a bound."""

    name: ClassVar[str]

    bound: float
    """Largest size of a value, in its unit, from 1e-250 to 1e250; larger ones are
    clipped and counted."""
    parties: int
    """Largest number of encodings in a sum, at least 1."""

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if not 1e-250 <= self.bound <= 1e250:
            raise ValueError(
                f"bound must be between 1e-250 and 1e250, got {self.bound}"
            )
        object.__setattr__(self, "bound", float(self.bound))

    @property
    def label(self) -> str:
        """Name, bound and parties, exactly."""
        return f"{self.name} {self.bound.hex()} {self.parties}"


@dataclass(frozen=True)
class Ring(_Bounded):
    """The integers modulo 2^64, for real values in fixed point.

    A value v becomes the integer nearest to ``scale * v``, modulo 2^64. No sum of
    `parties` such integers reaches 2^63 in size, so the sum of the encodings is exact
    and what `decode` returns differs from the sum of the clipped values by at most
    ``parties / (2 * scale)``, plus the rounding of that one number to float64. Raises
    ValueError if `bound` or `parties` is out of range.

    >>> ring = Ring(bound=10.0, parties=2)
    >>> a, _ = ring.encode(np.array([1.25, -3.0]))
    >>> b, clipped = ring.encode(np.array([0.5, 11.0]))
    >>> ring.decode(ring.add(a, b)), clipped
    (array([1.75, 7.  ]), 1)
    """

    name: ClassVar[str] = "ring"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<u8")
    protects: ClassVar[bool] = True

    scale: float = field(init=False)
    """The largest power of two with ``parties * ceil(bound * scale) < 2^63``."""

    def __post_init__(self) -> None:
        """Check the settings and find the scale, in exact integers."""
        super().__post_init__()
        bound, parties = self.bound, operator.index(self.parties)
        # bound = numerator / 2^d, and parties * numerator has k bits:
        # parties * bound * 2^e < 2^(k - d + e) <= 2^63 for e = 63 + d - k.
        numerator, denominator = bound.as_integer_ratio()
        exponent = 62 + denominator.bit_length() - (parties * numerator).bit_length()
        # Rounding to integers can only matter for more than 1024 parties.
        if parties * math.ceil(math.ldexp(bound, exponent)) >= 2**63:
            exponent -= 1
        object.__setattr__(self, "parties", parties)
        object.__setattr__(self, "scale", math.ldexp(1.0, exponent))

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return elements of the same shape, and how many values were clipped.

        The elements are uint64. Raises ValueError if a value is NaN or infinite.
        """
        exact, clipped = clipped_to(self.bound, values)
        exact *= self.scale
        np.rint(exact, out=exact)
        return exact.astype("<i8").view(self.dtype), clipped

    def decode(self, total: Array) -> Array:
        """Return the float64 values of a sum of elements, uint64, any shape."""
        signed = np.asarray(total, dtype=self.dtype).view("<i8")
        return np.asarray(signed / self.scale, dtype=np.float64)


@dataclass(frozen=True)
class Circle(_Numbers):
    """The circle R / Z: angles in turns, as fractions of a turn with `bits` bits.

    A value v becomes the integer nearest to ``2^bits * v``, modulo 2^bits: whole turns
    fall away, and nothing is ever clipped. Integers of `bits` bits wrap, so the sum of
    any number of elements is exact modulo a turn, and the sum of T elements differs
    from the sum of their values by at most ``T / 2^(bits + 1)`` turns. Raises
    ValueError if a setting is out of range.
    """

    protects: ClassVar[bool] = True

    bits: int
    """Width of an element, 8, 16 or 32; one turn is ``2^bits`` units."""
    parties: int
    """Number of parties, at least 1. A sum of more would be exact as well."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.bits not in (8, 16, 32):
            raise ValueError(f"bits must be 8, 16 or 32, got {self.bits}")
        super().__post_init__()

    @property
    def name(self) -> str:
        """``"circle8"``, ``"circle16"`` or ``"circle32"``."""
        return f"circle{self.bits}"

    @property
    def label(self) -> str:
        """Name and parties."""
        return f"{self.name} {self.parties}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Unsigned integers of `bits` bits, little endian."""
        return np.dtype(f"<u{self.bits // 8}")

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return elements in units of ``2^-bits`` turns, and 0: nothing is clipped.

        `values` are finite floats in turns, or elements in an array of exactly `dtype`,
        which come back as they are and not as a copy. Raises ValueError for any others.
        """
        values = np.asarray(values)
        if values.dtype == self.dtype:
            return values, 0
        if values.dtype.kind != "f":
            # Whole numbers are whole turns: elements of another width would silently
            # become 0.
            raise ValueError(
                f"values must be floats in turns or {self.dtype} elements, "
                f"got {values.dtype}"
            )
        if not np.isfinite(values).all():
            raise ValueError("values must be finite, got NaN or infinity")
        exact = values.astype(np.float64)
        exact -= np.rint(exact)  # exact; in [-1/2, 1/2]
        exact *= 2.0**self.bits
        return np.rint(exact, out=exact).astype("<i8").astype(self.dtype), 0

    def decode(self, total: Array) -> Array:
        """Return a sum of elements as it is: unsigned integers, any shape.

        The values of the circle are fractions of a turn, in units of ``2^-bits``.
        """
        return np.asarray(total, dtype=self.dtype)


@dataclass(frozen=True)
class Plain(_Bounded):
    """Real numbers as they are: the same interface and no protection.

    For tests and comparison. Values are checked and clipped as in `Ring`.
    """

    name: ClassVar[str] = "plain"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<f8")
    protects: ClassVar[bool] = False

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return the clipped float64 values and how many were clipped."""
        return clipped_to(self.bound, values)

    def decode(self, total: Array) -> Array:
        """Return the sum as it is, float64."""
        return np.asarray(total, dtype=np.float64)

    def random(self, take: Take, count: int) -> Array:
        """Return `count` zeros: nothing is hidden."""
        return np.zeros(count, dtype=self.dtype)


GROUPS: dict[str, Callable[[float, int], Group]] = {
    "ring": Ring,
    "plain": Plain,
    "circle8": lambda bound, parties: Circle(8, parties),
    "circle16": lambda bound, parties: Circle(16, parties),
    "circle32": lambda bound, parties: Circle(32, parties),
    "field": lambda bound, parties: Field(parties=parties),
}


def group(name: str, bound: float, parties: int) -> Group:
    """Make the group of a name in `GROUPS`, for sums of up to `parties` encodings.

    `bound` is the largest size of a value; larger ones are clipped and counted. A
    circle ignores it, since angles have no size. Raises ValueError if an argument is
    out of range.
    """
    if name not in GROUPS:
        raise ValueError(f"group must be one of {', '.join(GROUPS)}, got {name!r}")
    return GROUPS[name](bound, parties)
