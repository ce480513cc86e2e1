"""Dealt randomness belongs to one use, and messages of a dealer cannot be swapped."""

import dataclasses
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl_flower.secure_aggregation.fixed_point import WIDTHS
from vfl_flower.secure_aggregation.products.shares import (
    BLOCK_ROWS,
    Deal,
    Dealt,
    add,
    pack,
    subtract,
    unpack,
)

DEAL = Deal(run_id=1, action="open", round=0, half=0, shape=(3, 4), bits=48)
SEED = bytes(range(32))
OTHERS = [
    {"run_id": 2},
    {"action": "predict"},
    {"round": 1},
    {"half": 1},
    {"shape": (4, 3)},
    {"shape": (3, 4, 1)},
    {"bits": 56},
]


@given(st.sampled_from([*WIDTHS, 49, 57, 64]), st.integers(0, 20), st.integers(0, 99))
def test_elements_survive_a_message(bits, count, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(2**64, size=(count, 2), dtype="<u8") >> np.uint64(64 - bits)
    data = pack(words, bits)
    assert data.nbytes == 2 * count * -(-bits // 8)
    assert np.array_equal(unpack(data, bits, words.shape), words)


def test_bytes_that_are_no_elements_are_refused():
    with pytest.raises(ValueError, match="elements must be 12 bytes"):
        unpack(np.zeros(11, "u1"), 48, (2,))
    with pytest.raises(ValueError, match="elements must be 12 bytes"):
        unpack(np.zeros(12, "u2"), 48, (2,))
    with pytest.raises(ValueError, match="elements must be below 2\\^63"):
        unpack(np.full(8, 255, "u1"), 63, (1,))


@given(st.sampled_from(WIDTHS), st.integers(0, 99))
def test_shares_add_up_to_what_is_shared(bits, seed):
    deal = dataclasses.replace(DEAL, bits=bits)
    rng = np.random.default_rng(seed)
    columns = rng.integers(2**64, size=(3, 2), dtype="<u8") >> np.uint64(64 - bits)
    second = deal.elements(SEED, "columns", 5, (3, 2))
    first = subtract(columns, second, bits)
    assert np.array_equal(add(first, second, bits=bits), columns)


def test_every_use_name_block_and_seed_has_its_own_elements():
    deals = [DEAL, *(dataclasses.replace(DEAL, **other) for other in OTHERS)]
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
    angles = DEAL.elements(SEED, "angles", 0, (500,), 16)
    assert angles.dtype == np.uint16


def test_each_receiver_gets_another_seed():
    root = os.urandom(32)
    deals = [DEAL, *(dataclasses.replace(DEAL, **other) for other in OTHERS)]
    seeds = {deal.seed(root, party) for deal in deals for party in range(4)}
    assert len(seeds) == 4 * len(deals)
    assert DEAL.seed(root, 2) == DEAL.seed(root, 2) != DEAL.seed(os.urandom(32), 2)


def test_blocks_cover_the_rows():
    deal = dataclasses.replace(DEAL, shape=(2 * BLOCK_ROWS + 1, 1))
    rows = np.concatenate([np.arange(deal.rows)[block] for block in deal.blocks()])
    assert np.array_equal(rows, np.arange(deal.rows))
    assert [block.stop - block.start for block in deal.blocks()] == [1024, 1024, 1]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"half": -1}, "half must be at least 0"),
        ({"round": -1}, "round must be at least 0"),
        ({"shape": ()}, "shape must have sizes"),
        ({"shape": (3, 0)}, "shape must have sizes"),
    ],
)
def test_uses_that_make_no_sense_are_refused(change, rule):
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(DEAL, **change)


def dealt():
    return Dealt.of(DEAL, 1, SEED, np.arange(9, dtype="u1"), "cosines 0")


def test_what_was_dealt_for_this_use_is_taken():
    dealt().check(DEAL, 1, 9, "cosines 0")


@pytest.mark.parametrize("other", OTHERS)
def test_a_replay_in_another_use_is_refused(other):
    with pytest.raises(ValueError, match="must be of this use"):
        dealt().check(dataclasses.replace(DEAL, **other), 1, 9, "cosines 0")


def test_a_message_for_another_party_or_block_is_refused():
    with pytest.raises(ValueError, match=r"dealt to party 0 .* must be of this use"):
        dealt().check(DEAL, 0, 9, "cosines 0")
    with pytest.raises(ValueError, match="must be of this use"):
        dealt().check(DEAL, 1, 9, "cosines 1")


def test_a_short_or_changed_message_is_refused():
    message = dealt()
    for length in (8, 10):
        with pytest.raises(ValueError, match=f"correction must be {length} bytes"):
            message.check(DEAL, 1, length, "cosines 0")
    changed = dataclasses.replace(message, correction=np.arange(1, 10, dtype="u1"))
    with pytest.raises(ValueError, match="unchanged"):
        changed.check(DEAL, 1, 9, "cosines 0")
    reseeded = dataclasses.replace(message, seed=bytes(32))
    with pytest.raises(ValueError, match="unchanged"):
        reseeded.check(DEAL, 1, 9, "cosines 0")
    short = dataclasses.replace(message, seed=SEED[:31])
    with pytest.raises(ValueError, match="seed must have 32 bytes"):
        short.check(DEAL, 1, 9, "cosines 0")


def test_a_message_shows_neither_seed_nor_correction():
    assert repr(SEED) not in repr(dealt())
    assert "correction=<ndarray of" in repr(dealt())
