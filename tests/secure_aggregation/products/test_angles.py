"""Shares of cosines of a sum of angles, which open to them and show nothing."""

import numpy as np
import pytest
from draws import law
from hypothesis import given
from hypothesis import strategies as st
from uniformity import octets, uniform

from simulations.ridge_costs import cosine_bound, cosine_error
from vfl_flower.secure_aggregation.fixed_point import WIDTHS, decode
from vfl_flower.secure_aggregation.products.angles import (
    cosine_shares,
    deal_cosines,
    hide_angles,
)
from vfl_flower.secure_aggregation.products.shares import Deal, Dealt, add

ROOT = bytes(range(32))
FRACTION = 16


def run(deal, angles, multiple=1, fraction=FRACTION, root=ROOT):
    """Return what parties send, and the shares of cosines and sines."""
    parties, width = len(angles), 8 * angles[0].itemsize
    messages, shares = [], ([], [])
    dealt = deal_cosines(deal, root, parties, fraction, multiple, width)
    for block, (rows, second) in enumerate(zip(deal.blocks(), dealt, strict=True)):
        sent = [
            hide_angles(deal, deal.seed(root, party), own[rows], block)
            for party, own in enumerate(angles)
        ]
        messages.append(sent)
        delta = np.sum(sent, axis=0, dtype=angles[0].dtype)
        first = Dealt.of(deal, 0, deal.seed(root, 0))
        for party, message in enumerate((first, second)):
            both = cosine_shares(deal, party, message, delta, block, fraction, multiple)
            shares[party].append(both)
    return messages, [np.concatenate(own) for own in shares]


@law
@given(
    *(st.integers(2, 6), st.tuples(st.integers(1, 5), st.integers(1, 4))),
    *(st.sampled_from(WIDTHS), st.sampled_from([1, 2, 3, 4])),
    *(st.sampled_from([16, 32]), st.integers(0, 2**32 - 1)),
)
def test_both_shares_add_up_to_cosines_and_sines(
    parties, shape, bits, multiple, width, seed
):
    rng, deal = np.random.default_rng(seed), Deal(1, "angles", 0, 0, shape, bits)
    edges = [0, 0.25, 0.5, 0.75, 1 - 2**-20, rng.random()]
    turns = rng.choice(edges, (parties, *shape))
    angles = np.rint(turns * 2.0**width).astype("u8").astype(f"<u{width // 8}")
    _, shares = run(deal, angles, multiple)
    opened = decode(add(*shares, bits=bits), bits, FRACTION)
    exact = 2 * np.pi * multiple * turns.sum(axis=0)
    off = np.abs(opened - np.hstack([np.cos(exact), np.sin(exact)])).max()
    assert off <= cosine_error(parties, FRACTION, width, multiple) + 1e-12
    assert np.abs(opened).max() <= cosine_bound(FRACTION)


def test_the_error_bound_is_nearly_reached_by_the_rounding_of_cosines():
    rng = np.random.default_rng(5)
    deal = Deal(1, "angles", 0, 0, (1000, 100), 48)
    angles = [rng.integers(2**16, size=deal.shape).astype("<u2") for _ in range(2)]
    _, shares = run(deal, angles)
    exact = np.cos(2 * np.pi * (angles[0] + angles[1]).astype(float) / 2**16)
    error = decode(add(*shares, bits=48), 48, FRACTION)[:, :100] - exact
    assert 0.8 < np.abs(error).max() / cosine_error(0, FRACTION) <= 1
    assert error.std() == pytest.approx(2**-8 / 6**0.5, rel=0.02)
    near = exact + error
    entries = (near.T @ near - exact.T @ exact)[np.triu_indices(100, 1)]
    assert entries.std() == pytest.approx(1000**0.5 * 2**-8 / 6**0.5, rel=0.1)


def test_no_encoded_cosine_is_larger_than_its_bound():
    angles = np.arange(2**16, dtype="<u2")
    circle = 2 * np.pi * angles / 2**16
    for half in (4, 8, 13):
        points = np.rint(2.0**half * np.stack([np.cos(circle), np.sin(circle)]))
        longest = (points**2).sum(axis=0).max()  # the largest scalar product of two
        assert longest <= 4.0**half * cosine_bound(2 * half)


def test_all_messages_are_uniform_whatever_the_angles():
    # Eight tests of one in a million each, at fixed seeds.
    deal = Deal(1, "angles", 0, 0, (1500, 20), 48)
    for theta in (0, 2**15):
        angles = [np.full(deal.shape, theta, "<u2")] * 3
        messages, _ = run(deal, angles)
        for party in range(3):
            assert uniform(octets(np.concatenate([sent[party] for sent in messages])))
    for multiple in (1, 2):
        dealt = deal_cosines(deal, ROOT, 3, FRACTION, multiple)
        assert uniform(np.concatenate([message.correction for message in dealt]))


def test_shares_of_cosines_are_not_uniform_and_so_never_sent_as_they_are():
    # Where cos(delta) and sin(delta) are both even, so is the share.
    deal = Deal(1, "angles", 0, 0, (1000, 20), 48)
    _, shares = run(deal, [np.zeros(deal.shape, "<u2")] * 3)
    assert not any(uniform(octets(own, 6)) for own in shares)


def test_for_any_other_angles_there_is_a_dealing_with_the_same_view(monkeypatch):
    """A computing party cannot tell angles from any others: one for one.

    The dealing that shows the other angles has r' = (theta + r) - theta' at the parties
    whose angles differ; the share of the party that looks on is as before, and that of
    the other computing party makes up for it.
    """
    deal = Deal(1, "angles", 0, 0, (4, 3), 48)
    seeds = [deal.seed(ROOT, party) for party in range(3)]
    angles = np.random.default_rng(2).integers(2**16, size=(3, 4, 3)).astype("<u2")
    messages, shares = run(deal, angles)
    elements = Deal.elements
    for looks_on in (0, 1):
        others = angles.copy()
        others[[p for p in range(3) if p != looks_on]] += np.uint16(12345)
        random = {
            seed: elements(deal, seed, "angles", 0, (4, 3), 16) + own - other
            for seed, own, other in zip(seeds, angles, others, strict=True)
        }

        def redealt(self, seed, name, *rest, random=random):
            if name == "angles":
                return random[seed]
            return elements(self, seed, name, *rest)

        monkeypatch.setattr(Deal, "elements", redealt)
        again, reshares = run(deal, others)
        assert np.array_equal(again, messages)
        if looks_on == 0:  # its share comes from its seed, as before
            assert np.array_equal(reshares[0], shares[0])
        opened = decode(add(*reshares, bits=48), 48, FRACTION)[:, :3]
        exact = np.cos(2 * np.pi * others.sum(axis=0, dtype="<u2") / 2**16)
        assert np.abs(opened - exact).max() <= cosine_error(0, FRACTION)
        monkeypatch.undo()


def test_a_correction_of_another_block_is_refused():
    deal = Deal(1, "angles", 0, 0, (1500, 2), 48)
    first, second = deal_cosines(deal, ROOT, 2, FRACTION)
    delta = np.zeros((1024, 2), "<u2")
    cosine_shares(deal, 1, first, delta, 0, FRACTION)
    with pytest.raises(ValueError, match="has a wrong tag: it was altered"):
        cosine_shares(deal, 1, first, delta, 1, FRACTION)
    for party, message in ((1, second), (0, first)):
        with pytest.raises(ValueError, match="correction must be"):
            cosine_shares(deal, party, message, delta, 1, FRACTION)


def test_an_odd_number_of_fraction_bits_is_refused():
    with pytest.raises(ValueError, match="fraction must be even, got 17"):
        next(deal_cosines(Deal(1, "a", 0, 0, (1, 1), 48), ROOT, 2, 17))
