"""Sparse sums: exact, uniform under a mask, and an error in place of a wrong sum."""

import io
import math

import numpy as np
import pytest
from fixed_keys import ends
from hypothesis import given, settings
from hypothesis import strategies as st
from uniformity import uniform

from vfl_flower.numerics.prime_field import MERSENNE_61, PrimeField
from vfl_flower.secure_aggregation.groups import Field
from vfl_flower.secure_aggregation.masks import PairwiseMasks, masked, unmask_sum
from vfl_flower.secure_aggregation.sparse_sum import SparseSum, SparseSumError

KEY = bytes(range(16))


def total_of(messages, p=MERSENNE_61):
    return unmask_sum(list(messages), Field(p, parties=len(messages)))


def plain_sum(parties):
    """Return the sum of sparse vectors by a dictionary: bins and counts, in order."""
    q = {}
    for bins, counts in parties:
        for row, count in zip(bins.tolist(), counts.tolist(), strict=True):
            q[tuple(row)] = q.get(tuple(row), 0) + count
    return [list(row) for row in sorted(q)], [q[row] for row in sorted(q)]


def small_code(field="hash"):
    return SparseSum(2, 3, n_columns=5, n_values=100, key=KEY, field=field)


def clients_of(code, k=2, count=3):
    """Return the k bins and counts of each of some clients, and the sum of counts."""
    rng = np.random.default_rng(0)
    bins = rng.integers(code.n_values, size=(count, k, code.n_columns))
    counts = rng.integers(1, 1000, size=(count, k), endpoint=True)
    return [*zip(bins, counts, strict=True)], int(counts.sum())


# The sum is exact


@st.composite
def federations(draw):
    field = draw(st.sampled_from(["hash", "paper"]))
    n_clusters, n_parties = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    n_columns = draw(st.integers(1, 30 if field == "hash" else 7))
    most = 2**32 if field == "hash" else int(2 ** (60 / n_columns))
    n_values = draw(st.integers(1, min(most, 2**32)))
    code = SparseSum(n_clusters, n_parties, n_columns, n_values, KEY, field)
    # From a small pool, so that parties share bins and have some twice.
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    pool = rng.integers(n_values, size=(draw(st.integers(1, 20)), n_columns))
    parties = []
    for _ in range(n_parties):
        k = draw(st.integers(0, n_clusters))
        counts = draw(st.lists(st.integers(1, 2**40), min_size=k, max_size=k))
        bins = pool[rng.integers(len(pool), size=k)]
        parties.append((bins, np.array(counts, dtype=np.int64)))
    return code, parties


@settings(max_examples=60)
@given(federations())
def test_decoded_is_the_plain_sum(federation):
    code, parties = federation
    messages = [code.encode(*party) for party in parties]
    assert {message.shape for message in messages} == {(code.size,)}
    n = sum(int(counts.sum()) for _, counts in parties)
    total = total_of(messages)
    bins, counts = code.decode(total, n)
    assert (bins.tolist(), counts.tolist()) == plain_sum(parties)
    assert bins.shape == (len(counts), code.n_columns)


def test_bits_of_the_worked_example_are_above_the_bound_of_appendix_c():
    """[1]: 2KL ceil(log p) <= max(2KL log n, 2KL d log B) + 1. It is 32 against 29.7.

    The prime is above max(n, B^d), and each of the 2KL numbers is rounded up to bits.
    With one more bit a number in the place of one more bit in all it holds.
    """
    K, L, n, bins = 2, 2, 12, 4
    code = SparseSum(K, L, n_columns=2, n_values=2, field="paper", p=13)
    bits = code.size * math.ceil(math.log2(code.p))
    at_most = code.size * math.log2(max(n, bins))
    assert bits == 32 > at_most + 1
    assert bits <= at_most + code.size


def test_worked_example():
    """The settings of [1], Figure 2, K = 2, L = 2, B^d = 4, n = 12, p = 13; by hand.

    Client 1 has 3 rows in bin 1 and 2 in bin 3, party 2 has 4 in bin 3 and 3 in bin
    4, so q = (3, 0, 6, 3). Modulo 13 the powers i = 0 .. 7 are

        of 3: 1 3 9  1 3  9 1 3
        of 4: 1 4 3 12 9 10 1 4

    so S^(1) = 3 + 2 * 3^i and S^(2) = 4 * 3^i + 3 * 4^i are

        S^(1): 5  9 8 5 9 8 5  9
        S^(2): 7 11 6 1 0 1 7 11
        S:    12  7 1 6 9 9 12 7

    and each S_i with i >= 3 is -(5 S_(i-1) + 6 S_(i-2) + S_(i-3)), since
    (x - 1) (x - 3) (x - 4) = x^3 + 5 x^2 + 6 x + 1.
    """
    code = SparseSum(2, 2, n_columns=2, n_values=2, field="paper", p=13)
    assert code.size == 8
    # Bins 1, 2, 3, 4 in the order of their numbers.
    bins = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    first = code.encode(bins[[0, 2]], np.array([3, 2]))
    second = code.encode(bins[[2, 3]], np.array([4, 3]))
    assert first.tolist() == [5, 9, 8, 5, 9, 8, 5, 9]
    assert second.tolist() == [7, 11, 6, 1, 0, 1, 7, 11]

    z = np.array([4, 12, 0, 7, 1, 9, 3, 6], dtype=np.uint64)
    group = Field(13, parties=2)
    sent = group.add(first, z), group.subtract(second, z)
    assert sent[0].tolist() == [9, 8, 8, 12, 10, 4, 8, 2]
    assert sent[1].tolist() == [3, 12, 6, 7, 12, 5, 4, 5]
    total = unmask_sum(sent, group)
    assert total.tolist() == [12, 7, 1, 6, 9, 9, 12, 7]

    actual, counts = code.decode(total, n=12)
    assert actual.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert counts.tolist() == [3, 6, 3]


@pytest.mark.parametrize(
    ("n_columns", "n_values", "n_words"),
    [
        *((1, 1, 1), (60, 2, 1), (61, 2, 2), (784, 193, 105), (2, 2**30, 1)),
        *((3, 2**30, 2), (15, 2**32, 8), (15, 2**31, 8), (784, 256, 105)),
    ],
)
def test_size_of_a_message(n_columns, n_values, n_words):
    code = SparseSum(3, 4, n_columns, n_values, KEY)
    assert code.n_words == n_words == -(-n_columns * code.bits // 60)
    assert code.size == 2 * 12 + 12 * n_words
    # All ones, up to the last bit of each word.
    bins = np.full((1, n_columns), n_values - 1)
    message = code.encode(bins, np.array([1]))
    assert message.nbytes == 8 * code.size
    assert np.array_equal(code.decode(message, 1)[0], bins)


# Under a mask


def masked_by_all(inputs, group):
    pairs = zip(inputs, ends(PairwiseMasks, len(inputs)), strict=True)
    return [masked(x, group, masks, "action", "name", 0)[0] for x, masks in pairs]


@pytest.mark.parametrize("p", [13, MERSENNE_61])
def test_masks_cancel_in_the_field(p):
    """Over several blocks, of which 3 of 16 words modulo 13 are left out."""
    group, rng = Field(p, parties=4), np.random.default_rng(2)
    inputs = rng.integers(p, size=(4, 20_000), dtype=np.uint64)
    total = unmask_sum(masked_by_all(inputs, group), group)
    assert np.array_equal(total, inputs.astype(object).sum(axis=0) % p)


def test_one_masked_message_is_uniform():
    """Pearson's test at level 1e-6 of 256 cells, fixed keys: highest and lowest bits.

    The bare message of a party with one bin and small numbers fails it.
    """
    code = SparseSum(10, 100, n_columns=300, n_values=2, key=KEY)
    message = code.encode(np.zeros((1, 300), dtype=int), np.array([1]))
    group = Field(parties=3)
    hidden, _ = masked(message, group, ends(PairwiseMasks, 3)[1], "action", "name", 0)
    for shift in (0, 53):
        assert uniform((hidden >> shift & 255).astype(int), 256)
    assert not uniform((message >> 53).astype(int), 256)
    assert len(set(hidden.tolist())) == len(hidden)


@pytest.mark.parametrize("p", [13, 2**32 - 5, MERSENNE_61])
def test_random_elements_are_uniform(p):
    """Pearson's test at level 1e-6, fixed seed."""
    drawn = Field(p, parties=2).random(np.random.default_rng(3).bytes, 20000)
    assert drawn.max() < p
    n_cells = min(p, 64)
    assert uniform((drawn.astype(object) * n_cells // p).astype(int), n_cells)


@pytest.mark.parametrize("p", [13, MERSENNE_61])
def test_random_reads_the_stream_in_order_and_no_further(p):
    """The words p and more are left out; the elements do not depend on the cuts."""
    words = [3, p, 5, 2**64 - 1, p - 1, p, p, 0, p + 1, 7, 8]
    stream = np.array(words, dtype="<u8").tobytes()
    group = Field(p, parties=2)
    wrapped = [word & (2 ** p.bit_length() - 1) for word in words]
    accepted = [i for i, word in enumerate(wrapped) if word < p][:5]
    wanted, last = [wrapped[i] for i in accepted], accepted[-1]

    for cut in range(6):
        take = io.BytesIO(stream).read
        parts = [group.random(take, cut), group.random(take, 5 - cut)]
        assert np.concatenate(parts).tolist() == wanted
        assert take(8) == stream[8 * last + 8 : 8 * last + 16]


def test_settings_change_the_label():
    groups = Field(parties=2), Field(parties=3), Field(13, parties=2)
    assert len({group.label for group in groups}) == 3


def test_group_takes_elements_alone():
    group = Field(parties=2)
    fits = np.array([[0, 2**61 - 2]], dtype=np.uint64)
    assert group.encode(fits)[0] is fits
    for check in (group.encode, group.decode):
        with pytest.raises(ValueError, match="must be uint64 elements, got int64"):
            check(np.array([1]))
        with pytest.raises(ValueError, match="below p = 2305843009213693951"):
            check(np.array([2**61 - 1], dtype=np.uint64))
    with pytest.raises(ValueError, match="p must be"):
        Field(12, parties=2)


# Never a wrong sum


@pytest.mark.parametrize("field", ["hash", "paper"])
def test_a_missing_message_is_an_error(field):
    code = small_code(field)
    parties, n = clients_of(code)
    group = Field(parties=3)
    messages = masked_by_all([code.encode(*party) for party in parties], group)
    bins, _ = code.decode(unmask_sum(messages, group), n)
    assert len(bins) == 6
    for sent in (messages[:2], [*messages[:2], messages[0]]):
        with pytest.raises(SparseSumError, match=f"add up to {n}, but do"):
            code.decode(unmask_sum(sent, group), n)


ONE_SLOT = SparseSum(1, 1, n_columns=5, n_values=100, key=KEY)


@pytest.mark.parametrize(
    ("code", "reader", "k", "count", "words"),
    [
        (small_code(), small_code(), 2, 4, "must hold at most 6 bins"),
        (small_code("paper"), small_code("paper"), 2, 4, "must hold at most 6 bins"),
        # Two sums always fit one point: the hash tells that it is no bin.
        (ONE_SLOT, ONE_SLOT, 1, 2, "but in 1 of 1 bins"),
        (small_code(), SparseSum(2, 3, 5, 100, key=bytes(16)), 2, 3, "in 6 of 6 bins"),
    ],
    ids=["more bins", "more bins of the paper", "two in one slot", "another key"],
)
def test_bins_that_are_none_are_an_error(code, reader, k, count, words):
    parties, n = clients_of(code, k, count)
    total = total_of([code.encode(*party) for party in parties])
    with pytest.raises(SparseSumError, match=words):
        reader.decode(total, n)


def test_a_count_out_of_range_is_an_error():
    """Counts 5 and -2 add up to 3, and every sum fits them."""
    code, group = small_code(), Field(parties=2)
    message = code.encode(np.array([[1] * 5, [2] * 5]), np.array([5, 2]))
    twice = code.encode(np.array([[2] * 5]), np.array([4]))
    with pytest.raises(SparseSumError, match="a count from 1 to 3"):
        code.decode(group.subtract(message, twice), n=3)


def test_counts_that_add_up_only_modulo_p_are_an_error():
    code = SparseSum(3, 1, n_columns=1, n_values=4, field="paper", p=13)
    bins = np.array([[0], [1], [2]])
    message = code.encode(bins, np.array([9, 9, 4]))  # 22 = 9 modulo 13
    with pytest.raises(SparseSumError, match="must hold at most"):
        code.decode(message, n=9)


def test_a_bin_that_does_not_exist_is_an_error():
    wider = SparseSum(2, 1, n_columns=2, n_values=10, field="paper")
    code = SparseSum(2, 1, n_columns=2, n_values=9, field="paper")
    message = wider.encode(np.array([[9, 9]]), np.array([1]))
    with pytest.raises(SparseSumError, match="must hold at most"):
        code.decode(message, n=1)


def test_coordinates_out_of_range_are_an_error():
    code = small_code()
    wider = SparseSum(2, 3, 5, 128, KEY)  # as many bits
    message = wider.encode(np.array([[1, 2, 3, 4, 100]]), np.array([3]))
    assert wider.decode(message, 3)[0].tolist() == [[1, 2, 3, 4, 100]]
    with pytest.raises(SparseSumError, match="must hash to the bin's point"):
        code.decode(message, 3)


def test_a_bit_that_belongs_to_no_coordinate_is_an_error():
    code = SparseSum(1, 1, n_columns=5, n_values=100, key=KEY)
    message = code.encode(np.array([[1, 2, 3, 4, 5]]), np.array([3]))
    message[2] += np.uint64(3 << 50)  # 35 of 60 bits are used
    with pytest.raises(SparseSumError, match="must hash to the bin's point"):
        code.decode(message, n=3)


@pytest.mark.parametrize("wrong", [[], [4], [3, 4]])
def test_wrong_points_are_an_error(monkeypatch, wrong):
    """Not even a wrong root of the minimal polynomial, x - 3, would get through."""
    code = SparseSum(2, 1, n_columns=1, n_values=10, field="paper")
    message = code.encode(np.array([[2]]), np.array([5]))
    points = np.array(wrong, dtype=np.uint64)
    monkeypatch.setattr(PrimeField, "points_of", lambda *_: points)
    with pytest.raises(SparseSumError, match="must hold at most"):
        code.decode(message, n=5)


@settings(max_examples=60)
@given(st.integers(0, 17), st.integers(1, MERSENNE_61 - 1))
def test_a_changed_message_never_gives_another_sum(place, change):
    code = small_code()
    parties, n = clients_of(code)
    total = total_of([code.encode(*party) for party in parties])
    assert len(total) == 18
    difference = np.zeros_like(total)
    difference[place] = change
    changed = Field(parties=2).add(total, difference)
    with pytest.raises(SparseSumError):
        code.decode(changed, n)


@pytest.fixture
def _colliding(monkeypatch):
    monkeypatch.setattr(SparseSum, "_points", lambda _, bins: 7 + bins[:, 0].view("u8"))


@pytest.mark.usefixtures("_colliding")
def test_two_bins_of_a_client_with_one_point_are_an_error():
    code = SparseSum(3, 2, 2, 10, KEY)
    twins = np.array([[1, 2], [1, 2], [3, 2]])
    assert code.decode(code.encode(twins, np.ones(3, int)), 3)[1].tolist() == [2, 1]
    with pytest.raises(SparseSumError, match="use a new key"):
        code.encode(np.array([[1, 2], [1, 3]]), np.ones(2, int))


@pytest.mark.usefixtures("_colliding")
def test_bins_of_two_clients_with_one_point_are_an_error():
    code = SparseSum(2, 2, 2, 10, KEY)
    first = code.encode(np.array([[1, 2], [2, 2]]), np.array([5, 1]))
    second = code.encode(np.array([[1, 3]]), np.array([4]))
    with pytest.raises(SparseSumError, match=r"in 1 of 2 .* \(use a new"):
        code.decode(total_of([first, second]), 10)


# Points


def test_points_depend_on_the_key_and_the_bin():
    bins = np.array([[1, 2], [2, 1], [1, 2]])
    points = [SparseSum(3, 1, 2, 10, key)._points(bins) for key in (KEY, bytes(16))]
    assert points[0][0] == points[0][2] != points[0][1]
    assert not set(points[0].tolist()) & set(points[1].tolist())


def test_points_are_uniform():
    """Pearson's test at level 1e-6 of 64 cells, fixed key."""
    points = SparseSum(1, 1, 1, 2**16, KEY)._points(np.arange(20000)[:, None])
    assert points.min() > 0
    assert points.max() < MERSENNE_61
    assert uniform((points >> 55).astype(int), 64)


# Bad input


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"key": b"short"}, "key must have 16 bytes, got 5"),
        ({"p": 13}, r"p must be 2\^61 - 1 for field=\"hash\", got 13"),
        ({"p": 12, "field": "paper"}, "p must be"),
        ({"field": "paper", "n_columns": 10}, r"below p = .*, got 100\^10"),
        ({"field": "paper", "n_columns": 10**9}, r"got 100\^1000000000"),
        ({"field": "paper", "n_columns": 1, "p": 97}, r"below p = 97 .* got 100\^1"),
    ],
)
def test_settings_must_fit(change, match):
    good = {"n_clusters": 2, "n_parties": 3, "n_columns": 5, "n_values": 100}
    with pytest.raises(ValueError, match=match):
        SparseSum(**good | {"key": KEY} | change)


BINS, COUNTS = [[1, 2, 3, 4, 5], [0, 0, 0, 0, 99]], [3, 4]


def test_a_client_has_at_most_k_bins():
    with pytest.raises(ValueError, match="number of bins must be at most 2, got 4"):
        small_code().encode(np.array(2 * BINS), np.array(2 * COUNTS))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_integers_of_any_type(dtype):
    code = SparseSum(2, 3, 5, n_values=2**32, key=KEY)
    assert code.bits == 32
    message = code.encode(np.array(BINS, dtype), np.array(COUNTS, dtype))
    bins, counts = code.decode(message, 7)
    assert bins.tolist() == BINS[::-1]
    assert counts.tolist() == [4, 3]
