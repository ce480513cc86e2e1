"""Fixed point: exact sums, stated error, clipping, refusals."""

import io
import math
import pickle
from fractions import Fraction
from functools import reduce
from itertools import product

import numpy as np
import pytest
from draws import law
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vfl_flower.secure_aggregation.groups import Circle, Plain, Ring, group
from vfl_flower.secure_aggregation.masks import unmask_sum

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


@law
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


@law
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


@law
@given(_inputs())
def test_elements_are_the_nearest_integers_and_add_exactly(case):
    bound, parties, terms = case
    ring = Ring(bound, parties)
    total = reduce(ring.add, (ring.encode(row)[0] for row in terms))
    for got, column in zip(total, terms.T, strict=True):
        expected = sum(round(Fraction(v) * Fraction(ring.scale)) for v in column)
        assert abs(expected) < 2**63
        assert int(got) == expected % 2**64


@pytest.mark.parametrize("name", ["ring", "plain"])
def test_clips_and_counts(name):
    chosen = group(name, 2.0, 3)
    values = np.array([[2.0, -2.0, np.nextafter(2.0, 3.0)], [-1e300, 0.5, 7.0]])
    before = values.copy()
    element, clipped = chosen.encode(values)
    assert clipped == 3
    assert chosen.decode(element).tolist() == [[2.0, -2.0, 2.0], [-2.0, 0.5, 2.0]]
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("name", ["ring", "plain", "circle16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_values_that_are_not_finite(name, bad):
    with pytest.raises(ValueError, match="values must be finite"):
        group(name, 1.0, 3).encode(np.array([0.0, bad]))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(["ring", "plain"], [np.float64, np.float32, np.int32, np.bool_]),
        *product(["circle32"], [np.float64, np.float32, np.float16]),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 4)])
def test_keeps_shapes_and_gives_the_wire_type(name, shape, dtype):
    """A circle has 1/4 of 1.25 turns left, in units; the others have a bound of 1."""
    chosen, types = group(name, 1.0, 3), {"ring": "<u8", "circle32": "<u4"}
    circle = name == "circle32"
    values = np.full(shape, 1.25 if circle else 1, dtype)
    before = values.copy()
    element, _ = chosen.encode(values)
    decoded = chosen.decode(element)
    np.testing.assert_array_equal(values, before)
    assert isinstance(element, np.ndarray)
    assert isinstance(decoded, np.ndarray)
    assert element.dtype == chosen.dtype == np.dtype(types.get(name, "<f8"))
    assert element.shape == shape
    expected = np.full(shape, 2**30, "<u4") if circle else np.ones(shape)
    assert decoded.dtype == expected.dtype
    np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("name", ["ring", "plain"])
def test_encode_takes_strided_and_fortran_arrays(name):
    values = np.arange(12.0).reshape(3, 4)
    chosen = group(name, 12.0, 1)
    for view in (values.T, values[:, ::2], np.asfortranarray(values)):
        np.testing.assert_array_equal(chosen.decode(chosen.encode(view)[0]), view)


def test_plain_random_is_zero_and_takes_nothing():
    def take(n_bytes):
        raise AssertionError

    np.testing.assert_array_equal(Plain(1.0, 2).random(take, 3), np.zeros(3))


@law
@given(bounds, party_counts, bounds, party_counts)
def test_labels_differ_when_settings_do(bound, parties, other_bound, other_parties):
    same = (bound, parties) == (other_bound, other_parties)
    one, other = Ring(bound, parties), Ring(other_bound, other_parties)
    assert (one.label == other.label) is same
    assert one.label != Plain(bound, parties).label


def test_labels_do_not_depend_on_the_number_types():
    assert Ring(2, 3).label == Ring(np.float64(2.0), 3).label
    assert Circle(np.int64(16), np.int64(3)).label == Circle(16, 3).label


@pytest.mark.parametrize(
    ("name", "made"),
    [
        *(("ring", Ring(2.0, 3)), ("plain", Plain(2.0, 3)), ("circle8", Circle(8, 3))),
        *(("circle16", Circle(16, 3)), ("circle32", Circle(32, 3))),
    ],
)
def test_group_by_name(name, made):
    """The circles have no bound."""
    for bound in (2.0, 0.0, np.nan) if "circle" in name else (2.0,):
        chosen = group(name, bound, 3)
        assert chosen == made
        assert chosen.name == name
        assert chosen.protects is (name != "plain")
        assert pickle.loads(pickle.dumps(chosen)) == chosen


def test_group_refuses_an_unknown_name():
    names = "ring, plain, circle8, circle16, circle32, field"
    with pytest.raises(ValueError, match=f"group must be one of {names}, got 'x'"):
        group("x", 1.0, 3)


@pytest.mark.parametrize("name", ["ring", "plain"])
@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf, 1e300, 1e-300])
def test_refuses_a_bad_bound(name, bound):
    with pytest.raises(ValueError, match="bound must be between"):
        group(name, bound, 3)


# The circle.

angles = st.floats(-(2.0**40), 2.0**40)
circles = st.sampled_from([16, 32]).map(lambda bits: Circle(bits, 3))


def _distance(a, b):
    """Size of the difference of two fractions modulo a turn."""
    return abs((a - b + Fraction(1, 2)) % 1 - Fraction(1, 2))


@law
@given(circles, arrays(np.float64, st.integers(0, 8), elements=angles))
def test_circle_elements_are_the_nearest_fractions_of_a_turn(circle, turns):
    elements, clipped = circle.encode(turns)
    assert clipped == 0
    assert elements.dtype == circle.dtype == np.dtype(f"<u{circle.bits // 8}")
    for got, v in zip(elements.tolist(), turns.tolist(), strict=True):
        distance = _distance(Fraction(got, 2**circle.bits), Fraction(v))
        assert distance <= Fraction(1, 2 ** (circle.bits + 1))


@law
@given(circles, st.lists(arrays(np.float64, 3, elements=angles), min_size=1))
def test_circle_sums_are_exact_modulo_a_turn(circle, terms):
    """However many the parties; each value is at most half a unit off."""
    elements = [circle.encode(term)[0] for term in terms]
    total = elements[0].copy()
    for element in elements[1:]:
        assert circle.add(total, element, out=total) is total
    columns = np.transpose(elements), np.transpose(terms)
    for got, encoded, column in zip(total, *columns, strict=True):
        assert int(got) == sum(map(int, encoded)) % 2**circle.bits
        exact = sum(map(Fraction, column.tolist()), Fraction(0))
        allowed = Fraction(len(terms), 2 ** (circle.bits + 1))
        assert _distance(Fraction(int(got), 2**circle.bits), exact) <= allowed


@law
@given(circles, arrays(np.uint32, 7), arrays(np.uint32, 7))
def test_circle_subtract_undoes_add(circle, a, b):
    a, b = a.astype(circle.dtype), b.astype(circle.dtype)
    total = circle.add(a, b)
    assert total.dtype == circle.dtype
    np.testing.assert_array_equal(circle.subtract(total, b), a)
    assert circle.subtract(total, b, out=total) is total
    np.testing.assert_array_equal(total, a)


@pytest.mark.parametrize("bits", [16, 32])
def test_circle_takes_elements_as_they_are(bits):
    circle = Circle(bits, 3)
    elements = np.arange(6, dtype=circle.dtype).reshape(2, 3).T
    elements.flags.writeable = False
    assert circle.encode(elements)[0] is elements
    assert circle.decode(elements) is elements


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("kind", ["<u2", "<u4", ">u2", ">u4", "<i8", "?", "<c16"])
def test_circle_refuses_elements_of_another_kind(bits, kind):
    """They would all be whole turns, or wrong ones."""
    circle = Circle(bits, 3)
    if np.dtype(kind) == circle.dtype:
        return
    with pytest.raises(ValueError, match=r"floats \(fractions of a turn\) or uint"):
        circle.encode(np.zeros(2, kind))


@pytest.mark.parametrize("value", [1e300, -1e300, 5e-324])
def test_circle_takes_values_of_any_size(value):
    assert Circle(16, 3).encode(np.array([value]))[0].tolist() == [0]


def test_random_reads_the_stream_in_order_and_no_more():
    stream = io.BytesIO(bytes(range(256)))
    for bits, first in ((16, 0x0100), (32, 0x09080706)):
        circle = Circle(bits, 1)
        start = stream.tell()
        got = [circle.random(stream.read, count) for count in (1, 0, 2)]
        assert [len(part) for part in got] == [1, 0, 2]
        assert got[0].dtype == circle.dtype
        words = np.arange(start, stream.tell(), dtype=np.uint8).view(circle.dtype)
        assert np.concatenate(got).tolist() == words.tolist()
        assert int(got[0][0]) == first
    assert stream.tell() == 18


def test_circle_labels_differ():
    chosen = [Circle(b, p) for b in (8, 16, 32) for p in (1, 11)] + [Ring(1, 1)]
    assert len({one.label for one in chosen}) == len(chosen)
