"""Dealt randomness belongs to one use, and messages of a dealer cannot be swapped."""

import dataclasses
import os

import numpy as np
import pytest
from draws import law
from hypothesis import given
from hypothesis import strategies as st
from ring_elements import uniform_elements

from vfl_flower.secure_aggregation.fixed_point import WIDTHS
from vfl_flower.secure_aggregation.products import shares

DEAL = shares.Deal(run_id=1, action="open", round=0, half=0, shape=(3, 4), bits=48)
SEED = bytes(range(32))
CHANGES = [
    *({"run_id": 2}, {"action": "predict"}, {"round": 1}, {"half": 1}),
    *({"shape": (4, 3)}, {"shape": (3, 4, 1)}, {"bits": 56}),
]
OTHERS = [dataclasses.replace(DEAL, **change) for change in CHANGES]


@law
@given(st.sampled_from([*WIDTHS, 49, 57, 64]), st.integers(0, 20), st.integers(0, 99))
def test_elements_survive_a_message(bits, count, seed):
    words = uniform_elements(np.random.default_rng(seed), (count, 2), bits)
    data = shares.pack(words, bits)
    assert data.nbytes == 2 * count * -(-bits // 8)
    assert np.array_equal(shares.unpack(data, bits, words.shape), words)


@pytest.mark.parametrize(
    ("data", "bits", "rule"),
    [
        (np.zeros(11, "u1"), 48, "elements must be 12 bytes"),
        (np.zeros(12, "u2"), 48, "elements must be 12 bytes"),
        (np.full(16, 255, "u1"), 63, "elements must be below 2\\^63"),
    ],
)
def test_bytes_that_are_no_elements_are_refused(data, bits, rule):
    with pytest.raises(ValueError, match=rule):
        shares.unpack(data, bits, (2,))


def test_every_use_name_block_and_seed_has_its_own_elements():
    deals = [DEAL, *OTHERS]
    drawn = [
        (deal.elements(seed, name, block, (4,)) & np.uint64(2**48 - 1)).tobytes()
        for deal in deals
        for name in ("matrix", "product")
        for block in (0, 1)
        for seed in (SEED, os.urandom(32))
    ]
    assert len(set(drawn)) == len(drawn) == len(deals) * 8


def test_elements_are_the_same_each_time_and_below_the_modulus():
    first = DEAL.elements(SEED, "matrix", 0, (50, 4))
    assert np.array_equal(first, DEAL.elements(SEED, "matrix", 0, (50, 4)))
    assert 2**47 < int(first.max()) < 2**48
    assert DEAL.elements(SEED, "angles", 0, (500,), 16).dtype == np.uint16


def test_each_receiver_gets_another_seed():
    root, deals = os.urandom(32), [DEAL, *OTHERS]
    seeds = {deal.seed(root, party) for deal in deals for party in range(4)}
    assert len(seeds) == 4 * len(deals)
    assert DEAL.seed(root, 2) == DEAL.seed(root, 2) != DEAL.seed(os.urandom(32), 2)


def test_blocks_cover_the_rows():
    deal = dataclasses.replace(DEAL, shape=(2 * shares.BLOCK_ROWS + 1, 1))
    rows = np.concatenate([np.arange(deal.rows)[block] for block in deal.blocks()])
    assert np.array_equal(rows, np.arange(deal.rows))
    assert [block.stop - block.start for block in deal.blocks()] == [1024, 1024, 1]


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_uses_that_make_no_sense_are_refused(shape):
    with pytest.raises(ValueError, match="shape must have sizes"):
        dataclasses.replace(DEAL, shape=shape)


def dealt():
    return shares.Dealt.of(DEAL, 1, SEED, np.arange(9, dtype="u1"), "cosines 0")


@pytest.mark.parametrize(
    ("use", "receiver", "name"),
    [
        *((other, 1, "cosines 0") for other in OTHERS),
        *((DEAL, 0, "cosines 0"), (DEAL, 1, "cosines 1")),
    ],
)
def test_a_replay_in_another_use_party_or_block_is_refused(use, receiver, name):
    dealt().check(DEAL, 1, 9, "cosines 0")
    with pytest.raises(ValueError, match=f"{receiver} .* has a wrong tag: it was"):
        dealt().check(use, receiver, 9, name)


@pytest.mark.parametrize(
    ("change", "length", "rule"),
    [
        ({}, 8, "correction must be 8 bytes"),
        ({}, 10, "correction must be 10 bytes"),
        ({"correction": np.arange(1, 10, dtype="u1")}, 9, "has a wrong tag"),
        ({"seed": bytes(32)}, 9, "has a wrong tag"),
        ({"seed": SEED[:31]}, 9, "seed must have 32 bytes"),
    ],
)
def test_a_short_or_changed_message_is_refused(change, length, rule):
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(dealt(), **change).check(DEAL, 1, length, "cosines 0")


def test_a_message_shows_neither_seed_nor_correction():
    assert repr(SEED) not in repr(dealt())
    assert "correction=<ndarray of" in repr(dealt())
