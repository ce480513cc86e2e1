"""Gram matrices and predictions under shares: exact, hidden, and bound to their use."""

import dataclasses
import tracemalloc
from collections import deque

import numpy as np
import pytest
from draws import law
from hypothesis import example, given
from hypothesis import strategies as st
from ring_elements import exact_product, shared, uniform_elements
from uniformity import octets, uniform

from simulations.ridge_costs import gram_error
from vfl_flower.secure_aggregation import fixed_point
from vfl_flower.secure_aggregation.products import triples
from vfl_flower.secure_aggregation.products.ring import SquareSum
from vfl_flower.secure_aggregation.products.shares import (
    BLOCK_ROWS,
    Deal,
    Dealt,
    Elements,
    add,
    pack,
    subtract,
    unpack,
)
from vfl_flower.secure_aggregation.products.triples import (
    SACRIFICED,
    GramTriple,
    PredictionTriple,
    deal_gram,
    deal_owner,
    deal_predictions,
    deal_row_owner,
    hide_columns,
    hide_rows,
    open_gram,
    upper,
)

ROOT = bytes(range(32))
CHALLENGE = bytes(range(32, 64))
OTHER_USES = [{"run_id": 2}, {"action": "b"}, {"round": 1}, {"half": 1}]

seeds = st.integers(0, 2**32 - 1)


def use(*shape, bits=48):
    return Deal(1, "open", 0, 0, shape, bits)


def triples_of(deal, kind=GramTriple, dealt=None, root=ROOT):
    """Return the parts of both parties in what is dealt for a use."""
    deals = {GramTriple: deal_gram, PredictionTriple: deal_predictions}
    pair = dealt or deals[kind](deal, root)
    return [kind(deal, party, message) for party, message in enumerate(pair)]


def gram(deal, shares, root=ROOT):
    pair, blocks = triples_of(deal, root=root), [*enumerate(deal.blocks())]
    sent = [
        np.concatenate([own.opening(share[rows], i) for i, rows in blocks])
        for own, share in zip(pair, shares, strict=True)
    ]
    opened = add(*sent, bits=deal.bits)
    for own in pair:
        for i, rows in blocks:
            own.add(opened[rows], i)
    return pair, sent, [own.share() for own in pair]


# -- exact -----------------------------------------------------------------------------


@law
@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from(fixed_point.WIDTHS), seeds)
@example(2 * BLOCK_ROWS + 52, 3, 63, 1)
def test_a_gram_matrix_is_that_of_the_elements(rows, columns, bits, seed):
    rng = np.random.default_rng(seed)
    edges = np.array([0, 1, 2**bits - 1, 2 ** (bits - 1)], "<u8")
    values = rng.choice([*edges, *uniform_elements(rng, 4, bits)], (rows, columns))
    deal = use(rows, columns, bits=bits)
    _, _, shares = gram(deal, shared(rng, values.astype("<u8"), bits))
    exact = exact_product(values.T, values, bits)
    assert np.array_equal(open_gram(*shares, deal), exact)


@law
@given(
    *(st.integers(2, 6), st.integers(1, 40), st.integers(1, 3)),
    *(st.sampled_from(fixed_point.WIDTHS), st.floats(0.01, 1000), seeds),
)
def test_columns_of_all_parties_give_the_pooled_gram_to_the_stated_error(
    parties, rows, columns, bits, bound, seed
):
    # Parties 0 and 1 compute with their columns and a zero; others split theirs.
    rng = np.random.default_rng(seed)
    numbers = fixed_point.finest_gram_fixed_point(rows, bound, bits)
    deal = use(rows, parties * columns, bits=bits)
    half = 2.0 ** -(numbers.fraction + 1)
    edges = [bound, -bound, half, 0, rng.uniform(-bound, bound)]
    F = rng.choice(edges, (parties, rows, columns))
    pairs = []
    for party, own in enumerate(F):
        elements, clipped = numbers.encode(own)
        assert clipped == 0
        zero, seed_of_party = np.zeros_like(elements), rng.bytes(32)
        pair = (elements, zero) if party == 0 else (zero, elements)
        if party > 1:
            name = f"columns {party}"
            mask = deal.elements(seed_of_party, name, 0, elements.shape)
            pair = subtract(elements, mask, bits), mask
        pairs.append(pair)
    _, _, shares = gram(deal, [np.hstack(share) for share in zip(*pairs, strict=True)])
    opened = fixed_point.decode(open_gram(*shares, deal), bits, 2 * numbers.fraction)
    pooled = np.hstack(list(F))
    difference = np.abs(opened - pooled.T @ pooled).max()
    rounding = 1e-13 * rows * bound**2  # of NumPy's own sums
    assert difference <= gram_error(rows, bound, half) + rounding


@law
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), seeds)
def test_a_prediction_is_the_product_of_the_elements(rows, columns, outputs, seed):
    rng, deal = np.random.default_rng(seed), use(rows, columns, outputs, bits=56)
    values = uniform_elements(rng, (rows, columns), 56)
    weights = uniform_elements(rng, (columns, outputs), 56)
    pair = triples_of(deal, PredictionTriple)
    first, second = shared(rng, values, 56)
    hidden = pair[0].hidden_weights(weights)
    opened = pair[1].opening(second, 0)
    mine = pair[0].share_of_weights(weights, first, opened, 0)
    total = add(mine, pair[1].share_of_mask(hidden, 0), bits=56)
    assert np.array_equal(total, exact_product(values, weights, 56))
    spare = pair[1].sacrifice(CHALLENGE)
    assert pair[0].proof(CHALLENGE, spare) == pair[1].proof(CHALLENGE)


@law
@given(st.integers(1, 1100), st.integers(0, 3), st.integers(1, 3), seeds)
def test_owners_hide_their_columns_of_rows_for_party_0(rows, own, joint, seed):
    """Two owners, and columns of which both that compute have shares."""
    rng, widths = np.random.default_rng(seed), (own, 2, joint)
    deal = dataclasses.replace(use(rows, sum(widths), 2, bits=56), owners=widths)
    values = uniform_elements(rng, deal.shape[:2], 56)
    weights = uniform_elements(rng, deal.shape[1:], 56)
    pair = triples_of(deal, PredictionTriple)
    parts = np.split(values, np.cumsum(widths)[:-1], axis=1)
    hidden = [
        hide_rows(deal, owner, deal_row_owner(deal, ROOT, owner), parts[owner])
        for owner in (0, 1)
    ]
    first, second = shared(rng, parts[2], 56)
    drawn = pair[0].hidden_weights(weights)
    known = np.zeros((rows, own + 2), "<u8")
    for block, part in enumerate(deal.blocks()):
        opened = pair[1].opening(second[part], block, 2)
        mine = pair[0].share_of_weights(
            weights,
            np.hstack([known[part], first[part]]),
            np.hstack([hidden[0][part], hidden[1][part], opened]),
            block,
        )
        total = add(mine, pair[1].share_of_mask(drawn, block), bits=56)
        assert np.array_equal(total, exact_product(values[part], weights, 56))


def test_the_hidden_columns_of_an_owner_are_uniform_and_of_one_use():
    deal = dataclasses.replace(use(400, 50, 1), owners=(30, 20))
    dealt = deal_row_owner(deal, ROOT, 0)
    assert uniform(octets(hide_rows(deal, 0, dealt, np.zeros((400, 30), "<u8")), 6))
    for other, owner in ((dataclasses.replace(deal, round=1), 0), (deal, 1)):
        with pytest.raises(ValueError, match="has a wrong tag: it was altered"):
            hide_rows(other, owner, dealt, np.zeros((400, deal.owners[owner]), "<u8"))


def sacrifice(rows):
    """Make the columns of a check, and keep none."""
    deal = use(rows, 8)
    dealt = Dealt.of(deal, 0, deal.seed(ROOT, 0))
    deque(GramTriple(deal, 0, dealt).sacrifice(ROOT), 0)


@pytest.mark.parametrize(
    "work",
    [
        lambda rows: deal_gram(use(rows, 8), ROOT),
        sacrifice,
        lambda rows: deal_predictions(use(rows, 64, 1), ROOT),
    ],
)
def test_masks_are_made_block_by_block(work):
    peaks = []
    for blocks in (2, 12):
        tracemalloc.start()
        work(blocks * BLOCK_ROWS)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Ten more blocks of a mask are 10 * 1024 * (8 + 40) * 8 bytes, nearly 4 MB.
    assert peaks[1] - peaks[0] < 1e6


# -- hidden ----------------------------------------------------------------------------


def views(F_shares, deal, root=ROOT):
    """Return what parties 0 and 1 receive in a Gram matrix, without their seeds."""
    pair, sent, shares = gram(deal, F_shares, root)
    masked = [np.concatenate(list(own.sacrifice(CHALLENGE))) for own in pair]
    correction = deal_gram(deal, root)[1].correction
    return {
        "E_1 at party 0": sent[1],
        "U_1 at party 0": masked[1],
        "share at party 0": shares[1] >> np.uint64(1),  # but for E^T E modulo 2
        "E_0 at party 1": sent[0],
        "U_0 at party 1": masked[0],
        "C_1 at party 1": unpack(correction, deal.bits, (len(correction) // 6,)),
    }


@pytest.mark.parametrize("kind", ["zeros", "largest", "sparse"])
def test_all_that_a_computing_party_receives_is_uniform(kind):
    # Six tests of one in a million each, at fixed seeds, whatever the columns hold.
    deal = use(300, 60)
    values = np.full((300, 60), 2**16 if kind == "largest" else 0, "<u8")
    values[7, 3] += np.uint64(kind == "sparse")
    # All at party 0, none at party 1: the worst of shares.
    for name, elements in views((values, np.zeros_like(values)), deal).items():
        assert uniform(octets(elements, 6)), name


def test_the_check_of_uniformity_finds_a_mask_that_is_used_twice():
    deal = use(300, 60)
    zeros, values = np.zeros((300, 60), "<u8"), np.full((300, 60), 2**16, "<u8")
    first, again = (views((F, zeros), deal)["E_0 at party 1"] for F in (zeros, values))
    assert uniform(octets(first, 6))
    assert not uniform(octets(subtract(again, first, 48), 6))


def test_all_that_is_sent_for_a_prediction_is_uniform():
    # 5 tests of one in a million each, at fixed seeds.
    deal = use(400, 50, 20)
    weights, zeros = np.full((50, 20), 3, "<u8"), np.zeros((400, 50), "<u8")
    first, second = triples_of(deal, PredictionTriple)
    opened, hidden = second.opening(zeros, 0), first.hidden_weights(weights)
    shares = (
        first.share_of_weights(weights, zeros, opened, 0),
        second.share_of_mask(hidden, 0),
    )
    for elements in (opened, hidden, second.sacrifice(CHALLENGE), *shares):
        assert uniform(octets(elements, 6))


class Dealer:
    """Deals any matrices that a test names, in the place of those of seeds."""

    def __init__(self, monkeypatch):
        self.given = {}
        elements = Deal.elements

        def redealt(deal, seed, name, *rest):
            if (seed, name) in self.given:
                return self.given[seed, name].copy()
            return elements(deal, seed, name, *rest)

        monkeypatch.setattr(Deal, "elements", redealt)


def test_party_0_sees_the_same_whatever_else_has_that_gram(monkeypatch):
    """For other columns with the same Gram matrix, a dealing gives the same view.

    F' is F with rows in another order and other signs. With A_1' = [F']_1 - E_1 the
    opening is as before, and so is the share that party 0 gets: it is what is missing
    to 2 F^T F. So its view is as likely for F' as it is for F.
    """
    rng, deal = np.random.default_rng(5), use(30, 4)
    dealer, seeds = Dealer(monkeypatch), [deal.seed(ROOT, party) for party in (0, 1)]
    values = uniform_elements(rng, (30, 4), 48)
    others = values[rng.permutation(30)]
    others[::2] = fixed_point.reduce(-others[::2], 48)
    assert not np.array_equal(values, others)
    first, second = shared(rng, values, 48)
    _, sent, shares = gram(deal, (first, second))
    mask = deal.elements(seeds[1], "matrix", 0, (30, 4 + SACRIFICED)).copy()
    mask[:, :4] = subtract(subtract(others, first, 48), sent[1], 48)
    dealer.given[seeds[1], "matrix"] = mask
    _, resent, reshares = gram(deal, (first, subtract(others, first, 48)))
    assert np.array_equal(resent[1], sent[1])
    assert np.array_equal(reshares[1], shares[1])
    assert np.array_equal(open_gram(*shares, deal), open_gram(*reshares, deal))


def test_party_1_sees_the_same_whatever_the_columns(monkeypatch):
    """For any other columns a dealing gives the same openings and the same C_1."""
    rng, deal = np.random.default_rng(6), use(30, 4)
    dealer, seeds = Dealer(monkeypatch), [deal.seed(ROOT, party) for party in (0, 1)]
    first, second = shared(rng, uniform_elements(rng, (30, 4), 48), 48)
    _, sent, _ = gram(deal, (first, second))
    correction = deal_gram(deal, ROOT)[1].correction
    others = uniform_elements(rng, (30, 4), 48)
    shape = (30, 4 + SACRIFICED)
    masks = [deal.elements(seed, "matrix", 0, shape) for seed in seeds]
    masks[0][:, :4] = subtract(subtract(others, second, 48), sent[0], 48)
    squares = SquareSum(shape[1], 48)
    squares.add(subtract(*masks, 48))
    triangle = upper(squares.total())
    kept = unpack(correction, 48, triangle.shape)
    dealer.given[seeds[0], "matrix"] = masks[0]
    dealer.given[seeds[0], "product"] = subtract(triangle, kept, 48)
    _, resent, shares = gram(deal, (subtract(others, second, 48), second))
    assert np.array_equal(resent[0], sent[0])
    assert np.array_equal(deal_gram(deal, ROOT)[1].correction, correction)
    exact = exact_product(others.T, others, 48)
    assert np.array_equal(open_gram(*shares, deal), exact)


# -- bound to the use ------------------------------------------------------------------


@pytest.mark.parametrize("other", [*OTHER_USES, {"shape": (6, 2)}, {"bits": 56}])
@pytest.mark.parametrize("party", [0, 1])
def test_a_replayed_triple_is_refused(other, party):
    for kind, make, shape in (
        (GramTriple, deal_gram, (5, 2)),
        (PredictionTriple, deal_predictions, (5, 2, 1)),
    ):
        deal = use(*shape)
        replayed = make(deal, ROOT)[party]
        kind(deal, party, replayed)
        change = {"shape": (6, *shape[1:])} if "shape" in other else other
        with pytest.raises(ValueError, match=r"has a wrong tag: |correction must be"):
            kind(dataclasses.replace(deal, **change), party, replayed)


def test_a_short_triple_or_that_of_the_other_party_is_refused():
    deal = use(5, 2)
    dealt = deal_gram(deal, ROOT)
    short = dataclasses.replace(dealt[1], correction=dealt[1].correction[:-6])
    for party, message in ((1, short), (0, dealt[1]), (1, dealt[0])):
        with pytest.raises(ValueError, match="correction must be"):
            GramTriple(deal, party, message)


def test_parties_that_added_other_openings_are_told():
    rng, deal = np.random.default_rng(7), use(5, 4)
    shares = shared(rng, uniform_elements(rng, (5, 4), 48), 48)
    _, _, (first, _) = gram(deal, shares)
    _, _, (_, second) = gram(deal, (shares[0] ^ np.uint64(1), shares[1]))
    with pytest.raises(ValueError, match="shares must come from the same openings"):
        open_gram(first, second, deal)


# -- a dealer that deviates, and columns that their owners hide ------------------------


def proofs(deal, dealt, challenge=CHALLENGE):
    pair = triples_of(deal, dealt=dealt)
    sent = tuple(np.concatenate(list(own.sacrifice(challenge))) for own in pair)
    return [own.proof(challenge, sent) for own in pair]


def wrong(deal, dealt, place, error):
    """Return a dealing whose C is wrong in one entry, with a good tag."""
    elements = unpack(dealt[1].correction, 48, (len(dealt[1].correction) // 6,))
    elements[place] ^= np.uint64(error)
    return dealt[0], Dealt.of(deal, 1, dealt[1].seed, pack(elements, 48))


def test_a_right_triple_passes_the_check_and_any_wrong_one_fails():
    deal = use(1100, 3)
    dealt = deal_gram(deal, ROOT)
    first, second = proofs(deal, dealt)
    assert first == second
    for place in (0, 1, 3, -1):  # the last is in the columns that are sacrificed
        for error in (1, 2**20, 2**47):
            first, second = proofs(deal, wrong(deal, dealt, place, error))
            assert first != second


def test_one_column_of_a_check_finds_half_of_the_errors_in_the_highest_bit(monkeypatch):
    """Why many columns are sacrificed: d v = 0 for half of all v if d is 2^47.

    An error of 2^40 passes with probability 2^-8 and one in the lowest bit never does.
    Of 200 tries the standard deviation is 7: six of them fail once in 10^8.
    """
    monkeypatch.setattr(triples, "SACRIFICED", 1)
    deal = use(2, 2)
    dealt = deal_gram(deal, ROOT)
    for power, least, most in ((47, 58, 142), (40, 0, 8), (0, 0, 0)):
        bad = wrong(deal, dealt, 0, 2**power)
        tries = (proofs(deal, bad, i.to_bytes(32, "big")) for i in range(200))
        assert least <= sum(first == second for first, second in tries) <= most


def test_a_wrong_triple_of_predictions_fails_the_check():
    deal = use(6, 3, 2)
    dealt = deal_predictions(deal, ROOT)
    for place in (0, 11, -1):
        for error in (1, 2**47):
            bad = wrong(deal, dealt, place, error)
            first, second = triples_of(deal, PredictionTriple, bad)
            opened = second.sacrifice(CHALLENGE)
            assert first.proof(CHALLENGE, opened) != second.proof(CHALLENGE)


def owned(values, widths, root=ROOT):
    """Return the Gram matrix of columns that their owners open, and the openings."""
    deal = dataclasses.replace(use(*values.shape), owners=widths)
    pair = triples_of(deal, root=root)
    blocks = np.split(values, np.cumsum(widths)[:-1], axis=1)
    opened = [
        hide_columns(deal, owner, deal_owner(deal, root, owner), block)
        for owner, block in enumerate(blocks)
    ]
    last = opened[-1] >> 1  # of joint columns, both parties open their shares
    for triple in pair:
        parts = [pack(p, deal.bits) for p in (*opened[:-1], last, opened[-1] - last)]
        triple.add_all([*map(Elements, parts[:-2])], [*map(Elements, parts[-2:])])
    longer = [Elements(np.append(part, parts[0][:1])) for part in parts]
    with pytest.raises(ValueError, match="openings have too many bytes"):
        triples_of(deal, root=root)[0].add_all(longer[:-2], longer[-2:])
    return open_gram(*(triple.share() for triple in pair), deal), opened, deal, pair


def test_owners_open_their_own_columns_in_one_message():
    values = np.random.default_rng(0).integers(0, 2**20, (2100, 7)).astype("u8")
    gram, opened, deal, pair = owned(values, (3, 0, 4))
    assert np.array_equal(gram, fixed_point.reduce(values.T @ values, deal.bits))
    sacrificed = tuple(np.vstack(list(t.sacrifice(ROOT[::-1]))) for t in pair)
    assert len({t.proof(ROOT[::-1], sacrificed) for t in pair}) == 1
    # Uniform to a computing party, who knows its own mask.
    for j in (0, 1):
        masks = [pair[j]._mask(block) for block, _ in enumerate(deal.blocks())]
        seen = np.hstack(opened) + np.vstack(masks)
        assert uniform(octets(fixed_point.reduce(seen, deal.bits), deal.bits // 8))


def test_what_an_owner_is_dealt_is_of_one_use_and_one_owner():
    deal = dataclasses.replace(use(5, 4), owners=(2, 2))
    dealt, columns = deal_owner(deal, ROOT, 1), np.zeros((5, 2), "u8")
    hide_columns(deal, 1, Dealt.unpack(dealt.pack()), columns)
    other = dataclasses.replace(deal, run_id=deal.run_id + 1)
    for wrong_use, owner in ((deal, 0), (other, 1)):
        with pytest.raises(ValueError, match="has a wrong tag: it was altered"):
            hide_columns(wrong_use, owner, dealt, columns)
    with pytest.raises(ValueError, match="correction must be 32 bytes"):
        hide_columns(deal, 1, Dealt.unpack(dealt.pack()[:-1]), columns)
    with pytest.raises(ValueError, match="owners must add up to 4 columns"):
        dataclasses.replace(deal, owners=(2, 1))
