"""Histograms over all parties' bins, as boosted trees need them, through real steps."""

import os
from functools import cache
from pathlib import Path

import histograms
import numpy as np
import pytest
from histograms import BINS, BITS, FRACTION, PROOFS, TASKS, Histograms

from vfl_flower import Party, PartyFailed, simulate
from vfl_flower.secure_aggregation.fixed_point import decode
from vfl_flower.secure_aggregation.products.triples import SACRIFICED

WIDTH = BITS // 8
ROOT = bytes(32)


def quantile_bins(X):
    """Return the bin of each number, below BINS, by quantiles of its column."""
    cuts = np.quantile(X, np.arange(1, BINS) / BINS, axis=0).T
    pairs = zip(cuts, X.T, strict=True)
    return np.column_stack([np.searchsorted(cut, x) for cut, x in pairs])


def made():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1100, 5))
    return X, X.sum(axis=1)


def kc_house():
    folder = os.environ.get("VFL_FLOWER_DATA")
    if not folder:
        pytest.skip("VFL_FLOWER_DATA does not name a folder with kc_house.npz")
    file = np.load(Path(folder) / "kc_house.npz")
    return file["X"], file["y"]


def party_data(table, sizes):
    """Return the bins of all, the residuals of party 0, and the parties."""
    X, y = table()
    bins, residuals = quantile_bins(X), (y - y.mean()) / y.std()
    first, *others = np.split(bins.astype(float), np.cumsum(sizes)[:-1], axis=1)
    return bins, residuals, [Party(first, y=residuals), *map(Party, others)]


@cache
def run(table, sizes):
    """Return bins, residuals, and of a run its ledger and what :mod:`histograms` notes.

    Both tests of a table look at one run.
    """
    lists = {name: [] for name in ("OPENED", "SENT", "DEALT")}
    bins, residuals, parties = party_data(table, sizes)
    with pytest.MonkeyPatch.context() as patch:
        for name, items in lists.items():
            patch.setattr(histograms, name, items)
        ledger = simulate(Histograms(), parties, seed=0).ledger
    return bins, residuals, ledger, *lists.values()


TABLES = pytest.mark.parametrize(
    ("table", "sizes"),
    [
        *((made, (2, 2, 1)), (made, (2, 3))),
        pytest.param(kc_house, (6, 7, 5), marks=pytest.mark.slow),
    ],
)


@TABLES
def test_histograms_by_node_are_the_plain_ones_to_the_last_bit(table, sizes):
    bins, residuals, _, results, *_ = run(table, sizes)
    rounded = np.rint(residuals * 2.0**FRACTION) / 2.0**FRACTION
    first, second = (bins[:, :2] >= BINS // 2).T
    for (number, columns), opened in zip(TASKS, results, strict=True):
        nodes = columns // 2
        node = (2 * first + second) * (number > 1)
        cells = (bins + BINS * np.arange(sum(sizes))) * nodes + node[:, None]
        length, shape = BINS * sum(sizes) * nodes, (-1, nodes)
        counts = np.bincount(cells.ravel(), minlength=length)
        # Exact: no sum of these multiples of 2^-20 has more than 53 bits.
        weights = np.repeat(rounded, sum(sizes))
        sums = np.bincount(cells.ravel(), weights, length)
        assert np.array_equal(opened[:, :nodes], counts.reshape(shape))
        decoded = decode(opened[:, nodes:], BITS, FRACTION)
        assert np.array_equal(decoded, sums.reshape(shape))


@TABLES
def test_round_trips_and_bytes_are_those_of_the_formulas(table, sizes):
    """Each matrix is opened once; a product of m columns sends n m numbers each way."""
    bins, _, ledger, _, all_sent, all_dealt = run(table, sizes)
    n, shared = len(bins), BINS * sum(sizes[2:])
    own = [BINS * size for size in sizes[:2]]
    K = [size + shared for size in own]
    assert ledger.round_trips == 1 + 2 + 2 * len(TASKS) + 1
    sent, dealt = [], [(0, 64), (1, 64)]
    if shared:
        sent += [("bin_shares", 0, n * shared * WIDTH), ("bin_shares", 1, 32)]
    for sender in (1, 0):
        size = n * (K[sender] + SACRIFICED) * WIDTH
        sent.append(("bin_openings", 1 - sender, size))
    for _, m in TASKS:
        factor, shares = n * m * WIDTH, (sum(own) + shared) * m * WIDTH
        sent.append(("first_factor", 1, 32 + factor))
        sent.append(("second_factor", 0, factor + shares + PROOFS))
        of_holder = [64 + (k + SACRIFICED) * m * WIDTH for k in K]
        dealt += [(0, of_holder[0]), (0, 64), (1, 64), (1, of_holder[1])]
    assert all_sent == sent
    assert all_dealt == dealt
    arrays = sum(size for *_, size in sent)
    assert arrays < ledger.bytes_up < arrays + 20_000


def test_a_dealer_that_deals_another_product_ends_the_run(monkeypatch):
    deal_factor = histograms.deal_factor

    def mixed(deal, root, *rest):
        return deal_factor(deal, root, *rest)[0], deal_factor(deal, ROOT, *rest)[1]

    monkeypatch.setattr(histograms, "deal_factor", mixed)
    monkeypatch.setattr(histograms, "OPENED", [])
    *_, parties = party_data(made, (2, 2, 1))
    with pytest.raises(PartyFailed, match="the dealer must deal the product"):
        simulate(Histograms(), parties, seed=0)
    assert not histograms.OPENED
