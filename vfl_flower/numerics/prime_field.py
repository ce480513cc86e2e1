"""Arithmetic modulo a prime, and sparse sums recovered from their power sums.

[1] C. Pan, J. Sima, S. Prakash, V. Rana, O. Milenkovic, "Machine Unlearning of
Federated Clusters", ICLR 2023. Algorithm 2 sends S_i = sum_j q_j j^(i-1) instead of the
sparse vector q. Here the numbers j are called points x_j, and the entries q_j are
called values v_j.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vfl_flower.typing import Array

MERSENNE_61 = 2**61 - 1
"""A prime modulo which products need no division, since 2^61 = 1."""

_LIMB = 21
"""Bits of one limb of an element: three limbs hold 61 bits."""

_INNER = 1 << 11
"""Number of products of two limbs whose float64 sum stays exact, below 2^53."""

_POINTS = 1 << 10
"""Number of points processed at a time, so that tables of powers stay small."""


@dataclass(frozen=True)
class PrimeField:
    """The integers modulo a prime p, as NumPy arrays of uint64 below p (not checked).

    Raises ValueError unless p is 2^61 - 1 or a prime below 2^32.
    """

    p: int = MERSENNE_61

    def __post_init__(self) -> None:
        """Check that the arithmetic works modulo `p`."""
        p = operator.index(self.p)
        small = 2 <= p < 2**32 and all(p % q for q in range(2, math.isqrt(p) + 1))
        if not small and p != MERSENNE_61:
            raise ValueError(f"p must be 2^61 - 1 or a prime below 2^32, got {p}")
        object.__setattr__(self, "p", p)

    def add(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return ``a + b`` modulo p, elementwise; `out`, if given, may be `a`."""
        with np.errstate(over="ignore"):
            total = np.add(a, b, out=out)
            # Where total < p, total - p wraps around to a larger number.
            return np.asarray(np.minimum(total, total - np.uint64(self.p), out=out))

    def subtract(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return ``a - b`` modulo p, elementwise, with `out` as in `add`."""
        with np.errstate(over="ignore"):
            total = np.subtract(a, b, out=out)
            return np.asarray(np.minimum(total, total + np.uint64(self.p), out=out))

    def multiply(self, a: Array, b: Array) -> Array:
        """Return the product ``a b`` modulo p, elementwise.

        For p = 2^61 - 1, let a = 2^32 a_1 + a_0, and b likewise. Then 2^64 = 2^3, and
        the middle term m = a_1 b_0 + a_0 b_1 < 2^62 is split at bit 29, since
        2^32 2^29 = 1. The sum of all terms is below 2^63.
        """
        if self.p != MERSENNE_61:
            return np.asarray(a * b % np.uint64(self.p))
        low_32, low_29, p = map(np.uint64, (2**32 - 1, 2**29 - 1, self.p))
        a_1, a_0, b_1, b_0 = a >> 32, a & low_32, b >> 32, b & low_32
        middle = a_1 * b_0 + a_0 * b_1
        low = a_0 * b_0
        total = (a_1 * b_1 << 3) + (middle >> 29) + ((middle & low_29) << 32)
        total += (low & p) + (low >> 61)
        total = (total & p) + (total >> 61)
        with np.errstate(over="ignore"):
            return np.asarray(np.minimum(total, total - p))

    def power(self, a: Array, exponent: int) -> Array:
        """Return ``a^exponent`` modulo p, elementwise, for an exponent >= 0."""
        result = np.ones_like(a)
        for bit in f"{exponent:b}":
            result = self.multiply(result, result)
            if bit == "1":
                result = self.multiply(result, a)
        return result

    def inverse(self, a: Array) -> Array:
        """Return the inverse ``a^(p - 2)``, elementwise; 0 raises ZeroDivisionError."""
        if not np.all(a):
            raise ZeroDivisionError("0 has no inverse modulo p")
        return self.power(a, self.p - 2)

    def matmul(self, a: Array, b: Array) -> Array:
        """Return a b modulo p, by exact float64 products; a is (m, k), and b (k, n)."""
        total = np.zeros((len(a), b.shape[1]), dtype=np.uint64)
        unit = np.array([2**_LIMB % self.p], dtype=np.uint64)
        for start in range(0, len(b), _INNER):
            left = self._limbs(a[:, start : start + _INNER])
            right = self._limbs(b[start : start + _INNER])
            part = np.zeros_like(total)
            for shift in reversed(range(2 * len(left) - 1)):
                exact = np.zeros_like(total)
                for i in range(len(left)):
                    if 0 <= shift - i < len(right):
                        exact += (left[i] @ right[shift - i]).astype(np.uint64)
                exact %= np.uint64(self.p)
                part = self.add(self.multiply(part, unit), exact)
            total = self.add(total, part)
        return total

    def _limbs(self, a: Array) -> list[Array]:
        """Return the limbs of the elements, lowest first, as float64."""
        mask = np.uint64(2**_LIMB - 1)
        shifts = range(0, self.p.bit_length(), _LIMB)
        return [(a >> shift & mask).astype(np.float64) for shift in shifts]

    def powers(self, points: Array, count: int) -> Array:
        """Return x_j^i, i = 0 .. count - 1, for points x_j, (m,); shape (m, count)."""
        table = np.ones((len(points), count), dtype=np.uint64)
        known, step = 1, points
        while known < count:
            # x^(known + i) = x^known x^i: each pass doubles the known powers.
            table[:, known : 2 * known] = self.multiply(
                table[:, : min(known, count - known)], step[:, None]
            )
            known, step = 2 * known, self.multiply(step, step)
        return table

    def power_sums(self, points: Array, values: Array, count: int) -> Array:
        """Return S_i = sum_j v_j x_j^i for i = 0 .. count - 1.

        S_i here is S_(i+1) in [1], Algorithm 2, line 2. The points x_j, (m,), may
        repeat. Values v_j of the shape (m,) give sums of the shape (count,), and values
        (m, c) give sums (count, c).

        With i = a s + r, S_i = sum_j (x_j^s)^a (x_j^r v_j). This takes one matrix
        product and about 2 sqrt(count c) products per point, instead of count c.
        """
        width = math.prod(values.shape[1:])
        columns = values.reshape(len(points), width)
        # The value of s for which count / s and s c are closest to each other.
        step = max(1, round(math.sqrt(count / width)))
        n_steps = -(-count // step)
        total = np.zeros((n_steps, step * width), dtype=np.uint64)
        for start in range(0, len(points), _POINTS):
            x = points[start : start + _POINTS]
            small = self.powers(x, step)[:, :, None]
            terms = self.multiply(small, columns[start : start + _POINTS, None, :])
            large = self.powers(self.power(x, step), n_steps)
            product = self.matmul(large.T, terms.reshape(len(x), -1))
            total = self.add(total, product)
        sums = total.reshape(n_steps * step, width)[:count]
        return sums.reshape(count, *values.shape[1:])

    def points_of(self, sums: Array) -> Array | None:
        """Find the points of power sums without knowing the values.

        For at most N points, the minimal polynomial of the sequence S_i, i = 0 ..
        2 N - 1, is g(x) = prod_j (x - x_j); the Berlekamp-Massey algorithm finds this
        polynomial ([1], Algorithm 2, line 3, where the coefficients of g are in reverse
        order).

        Returns at most N different x_j, (m,), in increasing order, none of which is 0,
        or None if there are no such points. Even if points are returned, check that
        `power_sums` of these points and of their `values_at` equals `sums`.
        """
        ring = self._polynomials()
        minimal = ring.minpoly(sums.tolist())
        # Without a constant term, 0 is a root.
        if minimal.degree() > len(sums) // 2 or minimal[0] == 0:
            return None
        roots = minimal.roots() if minimal.degree() > 0 else []
        if len(roots) < minimal.degree():
            return None
        return np.array(sorted(int(root) for root, _ in roots), dtype=np.uint64)

    def values_at(self, points: Array, sums: Array) -> Array:
        """Solve S_i = sum_j v_j x_j^i for the values v_j, of shape (m, c).

        With g(x) = prod_j (x - x_j), the terms of g(x) sum_i S_i x^(-i-1) without
        negative powers form a polynomial h of degree below m, and v_j = h(x_j) /
        g'(x_j) (Forney's formula).

        The points x_j, (m,), are distinct; only the first m rows of `sums`, (count, c),
        are used. Raises ValueError if there are fewer sums than points, and
        ZeroDivisionError if two points are equal.
        """
        m = len(points)
        if len(sums) < m:
            raise ValueError(f"sums must have length {m} or more, got {len(sums)}")
        ring, roots = self._polynomials(), points.tolist()
        factors = [ring([-x, 1]) for x in roots] or [ring([1])]
        while len(factors) > 1:
            factors = [math.prod(factors[i : i + 2]) for i in range(0, len(factors), 2)]
        g = factors[0]
        # S_(m-1) + S_(m-2) x + ...: the series times x^m, without negative powers.
        series = [ring(column[::-1].tolist()) for column in sums[:m].T]
        polynomials = [*((g * part).right_shift(m) for part in series), g.derivative()]
        at_points = [
            [int(value) for value in f.multipoint_evaluate(roots)] for f in polynomials
        ]
        *h, slopes = np.array(at_points, dtype=np.uint64)
        return self.multiply(np.transpose(h), self.inverse(slopes)[:, None])

    def _polynomials(self) -> Any:
        """Return python-flint's ring of polynomials modulo p."""
        from flint import fmpz_mod_ctx, fmpz_mod_poly_ctx

        return fmpz_mod_poly_ctx(fmpz_mod_ctx(self.p))
