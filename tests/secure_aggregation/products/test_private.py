"""Products of a private matrix with shares: exact, hidden, checked and of one use."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_elements import exact_product, shared, uniform_elements
from uniformity import octets, uniform

from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.secure_aggregation.products.private import (
    PrivateProduct,
    bin_sums,
    deal_factor,
    deal_matrix,
    hide_matrix,
    one_hot,
)
from vfl_flower.secure_aggregation.products.shares import (
    Deal,
    Dealt,
    add,
    pack,
    subtract,
    unpack,
)
from vfl_flower.secure_aggregation.products.triples import SACRIFICED

ROOT = bytes(range(32))
CHALLENGE = bytes(range(32, 64))

seeds = st.integers(0, 2**32 - 1)


def use(rows, columns, holder=0, bits=48):
    owners = (columns, 0) if holder == 0 else (0, columns)
    return Deal(1, "bins", 0, 0, (rows, columns), bits, owners)


def opened(deal, Z, root=ROOT):
    blocks = [Z[rows] for rows in deal.blocks()]
    return list(hide_matrix(deal, deal_matrix(deal, root), blocks, CHALLENGE))


def multiply(deal, Z, s, number, EU=None, dealt=None):
    """Return W, the shares of Z^T s, holder's first, and both proofs."""
    EU, columns = opened(deal, Z) if EU is None else EU, s.shape[1]
    dealt = deal_factor(deal, ROOT, number, columns) if dealt is None else dealt
    pair = [PrivateProduct(deal, j, dealt[j], number, columns) for j in (0, 1)]
    holder, other = pair if deal.owners[0] else pair[::-1]
    W = other.opening(s)
    sums = other.masked_sums(EU)
    shares = holder.share(reduce(Z.T @ W, deal.bits)), other.share(sums)
    return W, shares, (holder.proof(CHALLENGE), other.proof(CHALLENGE, sums))


# -- exact -----------------------------------------------------------------------------


@given(
    *(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 1)),
    *(st.sampled_from([1, 5, 16, 32, 48, 63, 64]), seeds),
)
def test_shares_add_up_to_each_product_of_a_matrix_that_is_opened_once(
    rows, columns, factors, holder, bits, seed
):
    rng, deal = np.random.default_rng(seed), use(rows, columns, holder, bits)
    edges = np.array([0, 1, 2**bits - 1], "<u8")
    Z = rng.choice([*edges, *uniform_elements(rng, 3, bits)], (rows, columns))
    EU = opened(deal, Z.astype("<u8"))
    for number in (1, 5):
        s = uniform_elements(rng, (rows, factors), bits)
        _, shares, proofs = multiply(deal, Z.astype("<u8"), s, number, EU)
        assert np.array_equal(add(*shares, bits=bits), exact_product(Z.T, s, bits))
        assert proofs[0] == proofs[1]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 3), seeds)
def test_a_count_by_bin_is_the_product_with_one_hot_columns(widths, columns, seed):
    rng = np.random.default_rng(seed)
    bins = rng.integers(widths, size=(1100, len(widths)), dtype=np.uint8)
    values = uniform_elements(rng, (1100, columns), 64)
    Z = one_hot(bins, widths)
    assert Z.shape == (1100, sum(widths))
    assert (Z.sum(axis=1) == len(widths)).all()
    for bits in (64, 48):
        product = reduce(Z.T @ values, bits)
        assert np.array_equal(bin_sums(bins, widths, values, bits), product)


@pytest.mark.parametrize("further", [0, 1, 3])
def test_sums_by_bin_of_all_parties_come_from_both_directions(further):
    """As boosted trees need them: s is shared, and so are bins of further parties.

    Each of the two that compute has a Z of its own bins and its shares of the others',
    whose products with its own share of s need no help.
    """
    # given
    rng, widths = np.random.default_rng(0), ([16, 16], [16], [16] * further)
    columns = [one_hot(rng.integers(16, size=(1100, len(w))), w) for w in widths[:2]]
    others = rng.integers(2, size=(1100, sum(widths[2])), dtype="<u8")
    s = uniform_elements(rng, (1100, 4), 48)
    # when
    total = []
    pairs = zip(columns, shared(rng, others, 48), shared(rng, s, 48), strict=True)
    sides = [(np.hstack([own, share]), mine) for own, share, mine in pairs]
    for holder, (Z, mine) in enumerate(sides):
        deal = use(1100, Z.shape[1], holder)
        dealt = deal_factor(deal, ROOT, 1, 4)
        lengths = [64, 64]
        lengths[holder] += (Z.shape[1] + SACRIFICED) * 4 * 6
        assert [len(message.pack()) for message in dealt] == lengths
        theirs = sides[1 - holder][1]
        _, shares, proofs = multiply(deal, Z, theirs, 1, dealt=dealt)
        assert proofs[0] == proofs[1]
        total.append(add(reduce(Z.T @ mine, 48), *shares, bits=48))
    # then
    sums = [part[: own.shape[1]] for own, part in zip(columns, total, strict=True)]
    sums.append(add(total[0][32:], total[1][16:], bits=48))
    whole = np.hstack([*columns, others])
    assert np.array_equal(np.vstack(sums), exact_product(whole.T, s, 48))


# -- hidden ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 2**40])
def test_all_that_either_party_receives_is_uniform(value):
    # 15 tests of one in a million in each tail, so one false alarm in 30,000 seeds.
    deal = use(300, 60)
    Z, s = np.full((300, 60), value % 2, "<u8"), np.full((300, 40), value, "<u8")
    EU = np.concatenate(opened(deal, Z))
    W, (mine, theirs), _ = multiply(deal, Z, s, 1)
    correction = unpack(deal_factor(deal, ROOT, 1, 40)[0].correction, 48, (100, 40))
    for elements in (EU[:, :60], EU[:, 60:], W, correction, mine):
        assert uniform(octets(elements, 6))
    assert not uniform(octets(add(mine, theirs, bits=48), 6))


def test_each_factor_and_direction_has_masks_of_its_own():
    """The difference of two openings is that of the masks, so uniform."""
    Z, s = np.zeros((300, 60), "<u8"), np.zeros((300, 60), "<u8")
    drawn = [multiply(use(300, 60, j), Z, s, n)[0] for j in (0, 1) for n in (1, 2)]
    drawn += [np.concatenate(opened(use(300, 60, j), Z))[:, :60] for j in (0, 1)]
    # Fifteen pairs at two in a million each.
    for place, first in enumerate(drawn):
        for second in drawn[:place]:
            assert uniform(octets(subtract(first, second, 48), 6))


def test_a_retry_opens_the_same_again():
    Z, s = np.ones((5, 2), "<u8"), np.ones((5, 3), "<u8")
    (first, *_), (again, *_) = (multiply(use(5, 2), Z, s, 1) for _ in range(2))
    assert np.array_equal(first, again)
    assert np.array_equal(*(opened(use(5, 2), Z) for _ in range(2)))


# -- bound to the use, and a dealer that deviates --------------------------------------


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(
    ("other", "number", "columns"),
    [
        *(({"run_id": 2}, 1, 3), ({"action": "b"}, 1, 3), ({"half": 1}, 1, 3)),
        *(({"bits": 47}, 1, 3), ({"owners": (0, 4)}, 1, 3), ({"shape": (6, 4)}, 1, 3)),
        *(({}, 2, 3), ({}, 1, 2)),
    ],
)
def test_a_replay_in_another_use_is_refused(other, number, columns, party):
    deal, rule = use(5, 4), r"has a wrong tag: it was|correction must be"
    dealt = deal_factor(deal, ROOT, 1, 3)[party]
    PrivateProduct(deal, party, Dealt.unpack(dealt.pack()), 1, 3)
    replaced = dataclasses.replace(deal, **other)
    with pytest.raises(ValueError, match=rule):
        PrivateProduct(replaced, party, dealt, number, columns)
    with pytest.raises(ValueError, match=rule):
        PrivateProduct(deal, 1 - party, dealt, 1, 3)


def test_changed_bytes_are_refused():
    deal = use(5, 4)
    for place in (0, 40, 70):  # in the seed, the tag and the correction
        data = deal_factor(deal, ROOT, 1, 3)[0].pack()
        data[place] ^= 1
        with pytest.raises(ValueError, match="has a wrong tag"):
            PrivateProduct(deal, 0, Dealt.unpack(data), 1, 3)
    with pytest.raises(ValueError, match="correction must be"):
        PrivateProduct(deal, 0, Dealt.unpack(data[:-6]), 1, 3)
    replayed = deal_matrix(dataclasses.replace(deal, run_id=2), ROOT)
    with pytest.raises(ValueError, match="has a wrong tag: it was altered"):
        next(hide_matrix(deal, replayed, [np.zeros((5, 4), "<u8")], CHALLENGE))


def test_uses_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"owners must be \(4, 0\) or \(0, 4\)"):
        deal_matrix(dataclasses.replace(use(5, 4), owners=(2, 2)), ROOT)
    with pytest.raises(ValueError, match="number must be above the round, 0"):
        deal_factor(use(5, 4), ROOT, 0, 3)


def test_a_wrong_product_fails_the_check():
    rng, deal = np.random.default_rng(0), use(6, 3)
    Z, s = uniform_elements(rng, (6, 3), 1), uniform_elements(rng, (6, 2), 48)
    mine, theirs = deal_factor(deal, ROOT, 1, 2)
    for place in (0, 5, -1):  # the last is in the columns that are sacrificed
        for error in (1, 2**20, 2**47):
            elements = unpack(mine.correction, 48, (3 + SACRIFICED, 2))
            elements.flat[place] ^= np.uint64(error)
            factor = dataclasses.replace(deal, round=1, shape=(6, 3, 2))
            wrong = Dealt.of(factor, 0, mine.seed, pack(elements, 48))
            *_, proofs = multiply(deal, Z, s, 1, dealt=(wrong, theirs))
            assert proofs[0] != proofs[1]


@pytest.mark.parametrize("party", [0, 1])
def test_the_seed_of_another_mask_fails_the_check(party):
    """The holder of A, or the other of M, has a mask that the dealer did not multiply.

    Its messages have good tags: the dealer knows the seeds.
    """
    deal, other = use(6, 3), bytes(32)
    Z, s = np.ones((6, 3), "<u8"), np.ones((6, 2), "<u8")
    EU, dealt = opened(deal, Z), list(deal_factor(deal, ROOT, 1, 2))
    if party == 0:
        EU = opened(deal, Z, root=other)
    else:
        dealt[1] = deal_factor(deal, other, 1, 2)[1]
    *_, proofs = multiply(deal, Z, s, 1, EU, dealt)
    assert proofs[0] != proofs[1]
