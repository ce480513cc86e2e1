"""Arithmetic modulo a prime against Python's integers; points and values of sums."""

import numpy as np
import pytest
from draws import law
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl_flower.numerics.prime_field import MERSENNE_61, PrimeField

PRIMES = [2, 13, 65537, 2**32 - 5, MERSENNE_61]
EDGES = [0, 1, 2, 2**21, 2**29 - 1, 2**29, 2**32 - 1, 2**32, 2**60, 2**61 - 3]


def elements(rng, field, *shape):
    return rng.integers(field.p, size=shape, dtype=np.uint64)


def exact(a):
    return a.astype(object)


@st.composite
def pairs(draw):
    p = draw(st.sampled_from(PRIMES))
    edges = st.sampled_from([e % p for e in EDGES] + [p - 1])
    element = edges | st.integers(0, p - 1)
    both = st.lists(st.tuples(element, element), min_size=1, max_size=20)
    a, b = np.array(draw(both), dtype=np.uint64).T
    return PrimeField(p), a, b


@law
@given(pairs())
def test_arithmetic_is_that_of_integers(case):
    field, a, b = case
    assert np.array_equal(field.add(a, b), (exact(a) + exact(b)) % field.p)
    assert np.array_equal(field.subtract(a, b), (exact(a) - exact(b)) % field.p)
    product = field.multiply(a, b)
    assert product.dtype == np.uint64
    assert np.array_equal(product, exact(a) * exact(b) % field.p)


@law
@given(pairs(), st.integers(0, 2**61))
def test_powers_and_inverses(case, exponent):
    field, a, _ = case
    wanted = [pow(int(x), exponent, field.p) for x in a]
    assert field.power(a, exponent).tolist() == wanted
    units = a[a > 0]
    assert np.all(field.multiply(units, field.inverse(units)) == 1)


def test_sums_go_into_an_operand():
    field = PrimeField()
    a = np.array([field.p - 1, 3], dtype=np.uint64)
    b = np.array([5, 4], dtype=np.uint64)
    assert field.add(a, b, out=a) is a
    assert a.tolist() == [4, 7]
    assert field.subtract(a, b, out=a) is a
    assert a.tolist() == [field.p - 1, 3]


def test_zero_has_no_inverse():
    with pytest.raises(ZeroDivisionError, match="0 has no inverse"):
        PrimeField(13).inverse(np.array([1, 0], dtype=np.uint64))


@pytest.mark.parametrize("p", [0, 1, -13, 15, 2**32 + 15, 2**61, 2**61 + 15])
def test_p_is_a_prime_that_fits(p):
    with pytest.raises(ValueError, match=f"p must be 2\\^61 - 1 or .* got {p}"):
        PrimeField(p)


@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("inner", [0, 1, 5, 2049])
def test_matrix_product(p, inner):
    field, rng = PrimeField(p), np.random.default_rng(inner)
    a, b = elements(rng, field, 3, inner), elements(rng, field, inner, 2)
    wanted = (exact(a) @ exact(b)) % p if inner else np.zeros((3, 2))
    assert np.array_equal(field.matmul(a, b), wanted)


@pytest.mark.parametrize("inner", [2047, 8191])
def test_matrix_product_of_the_largest_elements(inner):
    """Odd sums of squares of 2^21 - 1, which float64 rounds above 2^53."""
    field = PrimeField()
    a = np.full((1, inner), 2**42 - 1, dtype=np.uint64)
    wanted = inner * (2**42 - 1) ** 2 % field.p
    assert field.matmul(a, a.T).tolist() == [[wanted]]
    a[:] = field.p - 1
    assert field.matmul(a, a.T).tolist() == [[inner]]


@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 13])
def test_powers(p, count):
    points = np.array([0, 1, p - 1, 7 % p], dtype=np.uint64)
    wanted = [[pow(int(x), i, p) for i in range(count)] for x in points]
    assert PrimeField(p).powers(points, count).tolist() == wanted


@settings(max_examples=30)
@given(
    st.sampled_from(PRIMES),
    st.sampled_from([0, 1, 3, 1030]),
    st.sampled_from([1, 2, 7, 20]),
    st.sampled_from([None, 1, 3, 40]),
    st.integers(0, 99),
)
def test_power_sums_are_their_definition(p, m, count, width, seed):
    field, rng = PrimeField(p), np.random.default_rng(seed)
    points = elements(rng, field, m)
    values = elements(rng, field, *((m,) if width is None else (m, width)))
    sums = field.power_sums(points, values, count)
    assert sums.shape == (count, *values.shape[1:])
    table = exact(field.powers(points, count)).T
    wanted = table @ exact(values) % p if m else np.zeros_like(sums)
    assert np.array_equal(sums, wanted)


@settings(max_examples=30)
@given(
    st.sampled_from([13, 65537, MERSENNE_61]),
    st.integers(0, 12),
    st.integers(0, 3),
    st.integers(0, 999),
)
def test_points_and_values_come_back_from_their_sums(p, m, spare, seed):
    field, rng = PrimeField(p), np.random.default_rng(seed)
    points = np.sort(rng.choice(min(p, 10**6) - 1, m, replace=False)) + 1
    points = points.astype(np.uint64)
    values = rng.integers(1, p, size=(m, 2), dtype=np.uint64)
    count = max(1, m + spare)
    sums = field.power_sums(points, values, 2 * count)
    actual = field.points_of(sums[:, 0])
    assert np.array_equal(actual, points)
    assert np.array_equal(field.values_at(actual, sums), values)


@pytest.mark.parametrize(
    ("p", "sums"),
    [
        (13, [0, 0, 0, 1]),  # minimal polynomial of degree 4, x^4 + c
        (17, [0, 0, 0, 1]),  # the same, and x^4 + 1 has four roots
        (13, [5, 0, 0, 0]),  # the point 0
        (13, [1, 0, 2, 0]),  # x^2 - 2, which has no root: 2 is no square modulo 13
        (13, [0, 1, 2, 3]),  # (x - 1)^2
    ],
)
def test_sums_without_points(p, sums):
    assert PrimeField(p).points_of(np.array(sums, dtype=np.uint64)) is None


def test_values_need_as_many_sums_as_points():
    field = PrimeField(13)
    points = np.array([1, 2, 3], dtype=np.uint64)
    with pytest.raises(ValueError, match="sums must have length 3 or more, got 2"):
        field.values_at(points, np.ones((2, 1), dtype=np.uint64))
    points[1] = 1
    with pytest.raises(ZeroDivisionError):
        field.values_at(points, np.ones((3, 1), dtype=np.uint64))
