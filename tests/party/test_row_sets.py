"""The guard of the rows over which a party adds up: what it notes and refuses."""

import logging
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vfl_flower import Party
from vfl_flower.numerics.row_sets import BLOCKS, block_sums, sure_number
from vfl_flower.party import row_sets
from vfl_flower.party.consent import Consent
from vfl_flower.party.party import PartyError

KEY, N = bytes(32), 200
EVERY = np.arange(N)


class Guarded:
    """A party whose guard lives as long as its folder."""

    def __init__(self, folder, **rules):
        self.path, self.rules = folder / "journal.sqlite", rules
        row_sets.confirm_journal(self.path)
        self.path.with_name(row_sets.ANCHOR).unlink()

    def sum_over(
        self, rows=None, weights=None, by_choice=False, n=N, ids=True, who="abc"
    ):
        party = Party(
            np.zeros((n, 1)),
            ids=np.array([f"r{i}" for i in range(n)]) if ids else None,
            consent=Consent(**self.rules),
        )
        party.names = list(who)
        with closing(sqlite3.connect(self.path)) as db, db:
            party.row_sets = row_sets.RowSets(db, self.path, party, KEY)
            party.sum_over(rows, weights, by_choice=by_choice)


@pytest.fixture
def party(tmp_path):
    return Guarded(tmp_path)


def refused(party, *args, **more):
    with pytest.raises(PartyError, match="refuses to add up the rows"):
        party.sum_over(*args, **more)


# -- numbers ---------------------------------------------------------------------------


@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8
    ).filter(lambda pairs: all(map(any, zip(*pairs, strict=True)))),
    c=st.one_of(st.floats(-9, 9), st.fractions(0, 6, max_denominator=6).map(float)),
)
def test_no_scale_gives_a_row_a_larger_share(pairs, c):
    v, w = np.array(pairs, dtype=float).T
    assume(any(weighted(x).weights is not None for x in (v, w)))
    difference = v - c * w
    largest, squares = np.square(difference).max(), difference @ difference
    apart = weighted(v).apart(weighted(w))
    assert apart == pytest.approx(weighted(w).apart(weighted(v)))
    assert apart / row_sets.WEIGHTED * largest <= (1 + 1e-6) * squares + 1e-9


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=12),
    n=st.integers(13, 60),
    shared=st.integers(0, 12),
)
def test_what_sizes_say_is_no_more_than_the_difference(weights, n, shared):
    """Of m rows with weights, and n without of which some are the same."""
    v, w = np.zeros(100), np.zeros(100)
    v[: len(weights)] = weights
    w[min(shared, len(weights)) :][:n] = 1.0
    sets = weighted(v), weighted(w)
    assume(sets[0].weights is not None)
    share = 1 / sets[0].squares
    sure = row_sets.WEIGHTED * sure_number(n, len(weights), share)
    assert sure <= sets[0].apart(sets[1]) * (1 + 1e-9)


def weighted(v):
    return row_sets.RowSet.of(np.flatnonzero(v), v[v > 0] + 0.0)


@pytest.mark.parametrize("n_rows", [3000, 40])
def test_a_heavy_row_is_not_hidden_by_many_light_ones(party, n_rows):
    """The sum of the light ones is known but for its noise, which is much less."""
    rng = np.random.default_rng(0)
    rows, weights = np.arange(n_rows), np.ones(n_rows)
    weights[7] = 0.2 * n_rows
    refused(party, rows, weights, n=2 * n_rows)
    weights[:25] = 0.2 * n_rows
    party.sum_over(rows, weights, n=2 * n_rows)
    weights[7] += 0.1 * n_rows
    weights[25:] += 0.1 * rng.random(n_rows - 25)
    refused(party, rows, weights, n=2 * n_rows)


def test_block_sums_of_many_rows():
    mask = np.random.default_rng(0).random(300 * BLOCKS + 7) < 0.9
    expected = np.bincount(np.arange(len(mask)) % BLOCKS, weights=mask)
    np.testing.assert_array_equal(block_sums(mask), expected)


# -- rows ------------------------------------------------------------------------------


def test_the_same_rows_may_be_added_up_again(party):
    for _ in range(2):
        party.sum_over()
        party.sum_over(EVERY[:100])
        party.sum_over(EVERY[:100][::-1])  # in whatever order


@pytest.mark.parametrize("fewer", [1, 19])
@pytest.mark.parametrize("first", [None, EVERY])
def test_rows_that_differ_by_few_are_refused(party, first, fewer):
    party.sum_over(first)
    refused(party, EVERY[fewer:])
    party.sum_over(EVERY[20:])  # which would be refused if that were noted
    refused(party, np.append(EVERY[30:], EVERY[:9]))  # in the place of others
    party.sum_over(np.append(EVERY[30:], EVERY[:10]))


def test_a_sum_is_over_twenty_rows_or_more(party):
    refused(party, EVERY[:19])
    refused(party, np.repeat(EVERY[:10], 10))
    refused(party, EVERY[:30], np.r_[1e6, np.ones(29)])
    refused(party, EVERY[:0])
    party.sum_over(EVERY[:20])


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_other_weights_of_equal_rows_are_another_set(party, scale):
    weights = np.random.default_rng(0).random(180) + 2
    party.sum_over(EVERY[:180], weights)
    party.sum_over(EVERY[:180], weights)
    changed = scale * weights
    changed[7] *= 2
    refused(party, EVERY[:180], changed)
    changed[:50] *= 1 + 1e-9  # a difference in many rows that hides none
    refused(party, EVERY[:180], changed)
    party.sum_over(EVERY[:180], np.random.default_rng(1).random(180) + 2)
    party.sum_over(EVERY, (np.random.default_rng(0).random(N) + 2) * 1e90)
    refused(party, EVERY, np.r_[np.ones(N - 1), 1e100])


def test_rows_with_weights_beside_rows_without(party):
    party.sum_over(EVERY[:100])
    refused(party, EVERY[:100], np.r_[2.0, np.ones(99)])
    refused(party, np.append(EVERY[:100], 5))  # a repeated row has twice the weight
    party.sum_over(EVERY[:100], np.arange(1.0, 101))


def test_rows_are_known_by_their_ids_in_a_file_that_changed(party):
    party.sum_over()
    refused(party, n=N + 1)
    party.sum_over(n=N + 20)
    party.sum_over(EVERY, n=N + 20)  # the rows of the first file


def test_a_removal_that_the_party_chose_is_noted_and_not_refused(party):
    """Rows without ids are known by their places."""
    for ids in (True, False):
        party.sum_over(ids=ids)
        party.sum_over(EVERY[1:], by_choice=True, ids=ids)
        party.sum_over(EVERY[1:], ids=ids)
        refused(party, EVERY[2:], ids=ids)
    refused(party, n=N + 1, ids=False)


@pytest.mark.parametrize(("rules", "most"), [({}, 30), ({"most_row_sets": 3}, 3)])
def test_there_are_fewer_sets_than_rows_to_solve_for(tmp_path, rules, most):
    party, rng = Guarded(tmp_path, **rules), np.random.default_rng(0)
    halves = [rng.permutation(N)[: N // 2] for _ in range(most)]
    for rows in halves:
        party.sum_over(rows)
    refused(party, rng.permutation(N)[: N // 2])
    party.sum_over(halves[0])
    party.sum_over()


def test_the_consent_says_how_many_rows_must_differ(tmp_path, caplog):
    party = Guarded(tmp_path, min_changed_rows=5)
    party.sum_over()
    with caplog.at_level(logging.ERROR):
        refused(party, EVERY[4:])
    assert "from an earlier sum in 4 rows" in caplog.text
    assert "'min-changed-rows = 4'" in caplog.text
    party.sum_over(EVERY[5:])


def test_open_three_sums_reveal_a_row(party):
    """Any two of the sets differ by 21 rows or more, and docs/security.md says so."""
    a, b, c = EVERY[:1], EVERY[1:21], EVERY[21:41]
    values, sums = np.random.default_rng(0).normal(size=N), []
    for rows in (np.r_[a, b], np.r_[b, c], np.r_[a, c]):
        party.sum_over(rows)
        sums.append(values[rows].sum())
    assert (sums[0] - sums[1] + sums[2]) / 2 == pytest.approx(values[0])


# -- parties, and the journal ----------------------------------------------------------


def test_equal_rows_with_one_party_more_are_refused(party, caplog):
    party.sum_over()
    refused(party, who="abcd")
    assert "parties have changed ('d')" in caplog.text
    assert "'changed-parties = [\"d\"]'" in caplog.text
    refused(party, who="abe")
    party.sum_over(who="abcdef")  # three at once


def test_parties_may_come_and_go_with_consent(tmp_path):
    party = Guarded(tmp_path, changed_parties=["d"])
    party.sum_over(who="abcd")
    party.sum_over()
    refused(party, who="abd")


@pytest.mark.parametrize("way", ["restored", "copied"])
def test_a_journal_that_was_lost_or_restored_must_be_confirmed(party, way):
    path, copy = party.path, party.path.with_name("copy")
    before = path.read_bytes()
    party.sum_over()
    if way == "restored":  # in the same file
        row_sets.write_anchor(path, 1)
        path.write_bytes(before)
    else:
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
    with pytest.raises(PartyError, match="lost or restored"):
        party.sum_over()
    row_sets.confirm_journal(path)
    with closing(sqlite3.connect(path)) as db:
        assert row_sets.count_sets(db) == (way == "copied")
    party.sum_over()
