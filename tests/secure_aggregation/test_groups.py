"""Fixed point: exact sums, stated error, clipping, refusals."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vfl_flower.secure_aggregation import Group, Plain, Ring, group, unmask_sum

bounds = st.floats(1e-250, 1e250)
party_counts = st.integers(1, 5000)


def _sizes(bound):
    edge = st.sampled_from([bound, -bound, 0.0, -0.0, 5e-324, -5e-324])
    # A few steps of the fixed point, where rounding shows.
    small = st.floats(-8, 8).map(lambda steps: steps * bound / 2**62)
    return edge | st.floats(-bound, bound) | small


@st.composite
def _inputs(draw):
    bound = draw(bounds)
    parties = draw(st.integers(1, 6))
    sent = draw(st.integers(1, parties))
    shape = (sent, draw(st.integers(0, 5)))
    return bound, parties, draw(arrays(np.float64, shape, elements=_sizes(bound)))


@given(bounds, party_counts)
def test_scale_is_the_largest_power_of_two_without_overflow(bound, parties):
    scale = Ring(bound, parties).scale
    assert math.frexp(scale)[0] == 0.5

    def fits(scale):
        return parties * math.ceil(Fraction(bound) * Fraction(scale)) < 2**63

    assert fits(scale)
    assert not fits(2 * scale)


def test_rounding_at_the_bound_leaves_room_for_thousands_of_parties():
    """3000 b < 2^63, but 3000 ceil(b) is not: the scale is not 1 but 1/2."""
    bound = 3074457345618258.5
    assert 3000 * Fraction(bound) < 2**63 <= 3000 * math.ceil(bound)
    assert Ring(bound, 3000).scale == 0.5


@pytest.mark.parametrize(
    ("bound", "parties", "exponent"),
    [(1.0, 1, 62), (1.0, 2, 61), (2.0, 3, 60), (0.5, 1, 63), (1000.0, 3, 51)],
)
def test_scale_worked_by_hand(bound, parties, exponent):
    """For 1000 and 3: 3000 lies between 2^11 and 2^12, so 3000 * 2^51 < 2^63."""
    assert Ring(bound, parties).scale == 2.0**exponent


@given(_inputs())
def test_decode_of_the_sum_is_within_the_stated_error(case):
    """Half a step a term in the sum, and one rounding to float64 at the end."""
    bound, parties, terms = case
    ring = Ring(bound, parties)
    decoded = unmask_sum([ring.encode(row)[0] for row in terms], ring)
    step = 1 / Fraction(ring.scale)
    for got, column in zip(decoded, terms.T, strict=True):
        exact = sum(map(Fraction, column.tolist()), Fraction(0))
        allowed = parties * step / 2
        allowed += (abs(exact) + allowed) / 2**53
        assert abs(Fraction(float(got)) - exact) <= allowed


@given(_inputs())
def test_elements_are_the_nearest_integers_and_add_exactly(case):
    bound, parties, terms = case
    ring = Ring(bound, parties)
    elements = [ring.encode(row)[0] for row in terms]
    total = elements[0]
    for element in elements[1:]:
        total = ring.add(total, element)
    for got, column in zip(total, terms.T, strict=True):
        expected = sum(round(Fraction(v) * Fraction(ring.scale)) for v in column)
        assert abs(expected) < 2**63
        assert int(got) == expected % 2**64


def test_rounds_to_nearest():
    """With bound 1 and one party a step is 2^-62; ties go to even."""
    steps = np.array([0.49, 0.51, 1.5, 2.5, -0.51, -1.49, -2.5])
    element, _ = Ring(1.0, 1).encode(steps * 2.0**-62)
    assert element.view("<i8").tolist() == [0, 1, 2, 2, -1, -1, -2]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@given(bounds, st.integers(1, 6))
def test_all_parties_at_the_bound_do_not_overflow(sign, bound, parties):
    ring = Ring(bound, parties)
    element, clipped = ring.encode(np.array([sign * bound]))
    (total,) = unmask_sum([element] * parties, ring)
    assert clipped == 0
    assert total == pytest.approx(sign * bound * parties, rel=1e-12, abs=0)


@given(st.lists(arrays(np.int64, 4, elements=st.integers(-1000, 1000)), min_size=1))
def test_integers_sum_exactly(terms):
    ring = Ring(1000.0, len(terms))
    total = unmask_sum([ring.encode(term)[0] for term in terms], ring)
    np.testing.assert_array_equal(total, np.sum(terms, axis=0))


@given(arrays(np.uint64, 7), arrays(np.uint64, 7))
def test_ring_subtract_undoes_add(a, b):
    ring = Ring(1.0, 2)
    np.testing.assert_array_equal(ring.subtract(ring.add(a, b), b), a)


@pytest.mark.parametrize("name", ["ring", "plain"])
def test_clips_and_counts(name):
    chosen = group(name, 2.0, 3)
    values = np.array([[2.0, -2.0, np.nextafter(2.0, 3.0)], [-1e300, 0.5, 7.0]])
    before = values.copy()
    element, clipped = chosen.encode(values)
    assert clipped == 3
    np.testing.assert_array_equal(
        chosen.decode(element), [[2.0, -2.0, 2.0], [-2.0, 0.5, 2.0]]
    )
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("name", ["ring", "plain"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_values_that_are_not_finite(name, bad):
    with pytest.raises(ValueError, match="values must be finite"):
        group(name, 1.0, 3).encode(np.array([0.0, bad]))


@pytest.mark.parametrize("name", ["ring", "plain"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 4)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.bool_])
def test_keeps_shapes_and_gives_the_wire_type(name, shape, dtype):
    chosen = group(name, 1.0, 3)
    element, _ = chosen.encode(np.ones(shape, dtype))
    assert isinstance(element, np.ndarray)
    assert element.dtype == chosen.dtype == np.dtype({"ring": "<u8"}.get(name, "<f8"))
    assert element.shape == shape
    decoded = chosen.decode(element)
    assert isinstance(decoded, np.ndarray)
    assert decoded.dtype == np.float64
    np.testing.assert_array_equal(decoded, np.ones(shape))


@pytest.mark.parametrize("name", ["ring", "plain"])
def test_encode_takes_strided_and_fortran_arrays(name):
    values = np.arange(12.0).reshape(3, 4)
    chosen = group(name, 12.0, 1)
    for view in (values.T, values[:, ::2], np.asfortranarray(values)):
        np.testing.assert_array_equal(chosen.decode(chosen.encode(view)[0]), view)


def test_ring_elements_are_little_endian_bytes():
    element, _ = Ring(1.0, 1).encode(np.array([1.0, -(2.0**-62)]))
    assert element.tobytes() == bytes([0, 0, 0, 0, 0, 0, 0, 0x40]) + b"\xff" * 8


def test_ring_random_reads_the_stream_in_order_and_no_more():
    taken = []

    def take(n_bytes):
        start = sum(taken)
        taken.append(n_bytes)
        return bytes(range(start, start + n_bytes))

    ring = Ring(1.0, 1)
    parts = np.concatenate([ring.random(take, 2), ring.random(take, 0)])
    assert parts.tolist() == [0x0706050403020100, 0x0F0E0D0C0B0A0908]
    assert sum(taken) == 16


def test_plain_random_is_zero_and_takes_nothing():
    def take(n_bytes):
        raise AssertionError

    np.testing.assert_array_equal(Plain(1.0, 2).random(take, 3), np.zeros(3))


@given(bounds, party_counts, bounds, party_counts)
def test_labels_differ_when_settings_do(bound, parties, other_bound, other_parties):
    same = (bound, parties) == (other_bound, other_parties)
    one, other = Ring(bound, parties), Ring(other_bound, other_parties)
    assert (one.label == other.label) is same
    assert one.label != Plain(bound, parties).label


def test_labels_do_not_depend_on_the_number_types():
    assert Ring(2, np.int64(3)).label == Ring(np.float64(2.0), 3).label


def test_group_by_name():
    ring, plain = group("ring", 2.0, 3), group("plain", 2.0, 3)
    assert ring == Ring(2.0, 3)
    assert plain == Plain(2.0, 3)
    assert (ring.name, plain.name) == ("ring", "plain")
    assert (ring.protects, plain.protects) == (True, False)
    assert pickle.loads(pickle.dumps(ring)) == ring


def test_group_refuses_an_unknown_name():
    with pytest.raises(ValueError, match="group must be one of ring, plain, got 'x'"):
        group("x", 1.0, 3)


@pytest.mark.parametrize("name", ["ring", "plain"])
@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf, 1e300, 1e-300])
def test_refuses_a_bad_bound(name, bound):
    with pytest.raises(ValueError, match="bound must be between"):
        group(name, bound, 3)


@pytest.mark.parametrize("name", ["ring", "plain"])
@pytest.mark.parametrize("parties", [0, -1])
def test_refuses_no_parties(name, parties):
    with pytest.raises(ValueError, match="parties must be at least 1, got"):
        group(name, 1.0, parties)


def test_plain_sums_like_the_ring():
    terms = np.random.default_rng(0).uniform(-3, 3, (4, 50))
    sums = []
    for name in ("plain", "ring"):
        chosen: Group = group(name, 2.0, 4)
        sums.append(unmask_sum([chosen.encode(row)[0] for row in terms], chosen))
    np.testing.assert_allclose(sums[0], sums[1], rtol=0, atol=1e-14)
