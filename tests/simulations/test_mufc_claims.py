"""What the MUFC paper says of cost, beside what is measured, on tiny data."""

import json
import math

import numpy as np
import pytest

from simulations import mufc
from simulations.mufc import Numerics
from simulations.mufc_claims import (
    Shifted,
    app,
    bound_page,
    chances,
    counted,
    hits,
    imbalance,
    likeliest,
    most_chance,
    shifts,
    shifts_page,
    sized,
    sizes_page,
    speed_up,
    speedup_page,
)
from simulations.mufc_data import mixture, pooled
from vfl_flower.numerics import mufc as numerics_of_mufc
from vfl_flower.numerics.mufc import Quantizer


@pytest.fixture(scope="module")
def data():
    """Return three clusters of 60 rows at four parties, two clusters each."""
    rng = np.random.default_rng(5)
    X = np.repeat(rng.random((3, 2)), 60, axis=0) + rng.normal(0, 0.05, (180, 2))
    return pooled("tiny", "generated", X, 3, n_parties=4, k_prime=2)


# --- Theorem 5.4 --------------------------------------------------------------------


def test_chances_by_hand():
    """0, 1, 3 with K = 2: phi is 10, 5 and 13 with a first centroid there.

    The deviation of the mean of 2,000 draws is below 0.5 / sqrt(2000) = 0.011.
    """
    X = np.array([[0.0], [1.0], [3.0]])
    chance, largest = chances(X, 2, 2000, np.random.default_rng(0))
    expected = (1 + np.array([1 / 5 + 9 / 13, 1 / 10 + 4 / 13, 9 / 10 + 4 / 5])) / 3
    np.testing.assert_allclose(chance, expected, atol=0.06)
    assert chance.sum() == pytest.approx(2)
    assert largest == pytest.approx(0.9)


def test_imbalance_by_hand():
    """Means 1 and 101; squared distances 1, 1, 4 with mean 2, and 1, 1."""
    X = np.array([[0.0], [0.0], [3.0], [100.0], [102.0]])
    assert imbalance(X, 2, np.random.default_rng(0)) == pytest.approx((5 / 4, 2))


def test_imbalance_of_clusters_of_equal_rows():
    X = np.repeat([[0.0], [1.0]], 3, axis=0)
    assert imbalance(X, 2, np.random.default_rng(0)) == (1, 1)


@pytest.mark.parametrize(
    ("n", "expected"), [(50, 1.0), (1_000, 0.061), (10_000, 0.0061)]
)
def test_equation_18_by_hand(n, expected):
    assert most_chance(n, 2, 1.5, 2) == pytest.approx(expected)


def test_lemma_f1_holds_for_each_row():
    """The mean is K / n; the likeliest row and draw are below equations 18 and 17."""
    X, rng = mixture([700, 900, 1400], 4, np.random.default_rng(0)), 1
    e1, e2 = imbalance(X, 3, np.random.default_rng(rng))
    chance, largest = chances(X, 3, 60, np.random.default_rng(rng))
    assert chance.mean() == pytest.approx(3 / 3000)
    assert 3 / 3000 < chance.max() <= most_chance(3000, 3, e1, e2) < 1
    assert largest <= 10 * 3 * e1 * e2 / 3000


def test_an_outlier_is_nearly_always_a_centroid():
    """As [1] remarks: then no bound below 1 can hold, and epsilon_2 is about n."""
    X = np.append(mixture([400, 600], 2, np.random.default_rng(0)), [[99, 99]], axis=0)
    _, e2 = imbalance(X[:-1], 2, np.random.default_rng(0))
    assert e2 < 30
    chance, _ = chances(X, 2, 20, np.random.default_rng(0))
    assert chance[-1] > 0.9
    assert likeliest(pooled("far", "", X, 2, n_parties=2))["bound"] == 1


@pytest.mark.parametrize(("pattern", "count"), [("random", 40), ("batches of 10", 8)])
def test_distances_are_those_that_the_numerics_take(data, pattern, count, monkeypatch):
    """Besides those of training, n K; without the server's part."""
    inner, taken = numerics_of_mufc._squared_distances, []

    def counting(rows, centers):
        distances = inner(rows, centers)
        taken.append(np.size(distances))
        return distances

    monkeypatch.setattr(numerics_of_mufc, "_squared_distances", counting)
    monkeypatch.setattr(mufc.Numerics, "cluster", lambda self: 0.0)
    actual = counted(data, pattern, count, 0)
    assert 0 < sum(actual["redrawn"]) < count
    assert sum(taken) == data.n * data.k + sum(actual["distances"])


def test_random_removals_redraw_as_often_as_the_lemma_says(data):
    """1,000 removals of one row, with fixed seeds; five deviations: below 1e-6."""
    runs = [counted(data, "random", 10, seed) for seed in range(100)]
    chance = np.concatenate([run["chance"] for run in runs])
    redrawn = np.concatenate([run["redrawn"] for run in runs])
    deviation = math.sqrt((chance * (1 - chance)).sum())
    assert abs(redrawn.sum() - chance.sum()) < 5 * deviation
    distances, bound, anew = (
        np.mean([run[name] for run in runs]) for name in ("distances", "bound", "anew")
    )
    # K^2 for redraws, K for the size of a cluster otherwise.
    assert bound == data.k**2
    assert distances < 1.5 * (bound + data.k) < anew


# --- Shifted bins -------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1.0, 0.3, 1 / 3, 0.01])
def test_shifted_bins_are_the_nearest(gamma):
    rng = np.random.default_rng(0)
    for shift in (*rng.uniform(-gamma / 2, gamma / 2, (20, 3)), np.full(3, gamma / 2)):
        quantizer = Shifted(gamma, shift)
        points = np.append(rng.uniform(-0.5, 0.5, (50, 3)), [[0.5] * 3, [-0.5] * 3], 0)
        bins = quantizer.bins(points)
        assert bins.min() >= 0
        assert bins.max() < quantizer.n_bins
        drawn = quantizer.sample(bins, np.ones(len(bins), int), rng)
        assert np.abs(drawn).max() <= 0.5 + 1e-12
        assert np.abs(drawn - points).max() <= gamma + 1e-12
        middles = quantizer.gamma * (bins - (quantizer.n_bins - 1) // 2) + shift
        assert np.abs(middles - points).max() <= gamma / 2 + 1e-12


def test_bins_without_a_shift_are_those_of_the_quantizer():
    points = np.random.default_rng(0).uniform(-0.5, 0.5, (50, 2))
    for gamma in (0.3, 0.05):
        plain, shifted = Quantizer(gamma), Shifted(gamma, np.zeros(2))
        np.testing.assert_allclose(
            shifted.centers(shifted.bins(points)), plain.centers(plain.bins(points))
        )


def test_shifts_change_the_bins_alone(data):
    actual = shifts(data, 2)
    assert [entry["factor"] for entry in actual] == [1, 16, 32]
    for entry in actual:
        assert len(entry["plain"]) == len(entry["shifted"]) == 2
        assert entry["plain"] != entry["shifted"]
    alone = Numerics(data)
    alone.train()
    assert actual[0]["plain"][0] == alone.loss()[0] / data.best
    page = "\n".join(shifts_page(actual))
    assert page.count("tiny") == 3


def test_a_difference_of_shifts_has_the_error_of_pairs():
    """+0.1 and +0.3: mean 0.2, standard error 0.1."""
    ratios = {"plain": [1.0, 1.2], "shifted": [1.1, 1.5]}
    (_, page) = shifts_page([{"data": "a", "factor": 1, "gamma": 0.1} | ratios])
    assert "| +0.200 ± 0.100 |" in page


# --- Average speed-up ---------------------------------------------------------------


def test_the_chance_of_a_redraw_is_that_of_a_random_row_of_a_random_party(data):
    numerics = Numerics(data)
    numerics.train()
    able, share = hits(numerics, data.k)
    assert able.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(share, [3 / len(X) for X in data.rows])
    numerics.stay[2][3:] = False
    assert hits(numerics, data.k)[0].tolist() == [0, 1, 3]


def test_speed_up_measures_both_cases(data):
    actual = speed_up(data, 2, 3)
    assert len(actual["redraw_seconds"]) == 6
    assert len(actual["complete_seconds"]) == len(actual["chance"]) == 2
    assert 0 < len(actual["untouched_seconds"]) <= 200
    assert min(actual["redraw_seconds"] + actual["untouched_seconds"]) > 0
    assert not actual["printed"]


def test_speed_ups_by_hand():
    """A tenth takes 10 ms and the others 0: 1 ms, a training 5 ms or 20 ms."""
    entry = {
        **{"name": "a", "printed": True, "chance": [0.05, 0.15]},
        **{"redraw_seconds": [0.005, 0.015], "untouched_seconds": [0.0]},
        **{"complete_seconds": [0.005], "own_seconds": [0.02]},
    }
    other = entry | {"name": "b", "complete_seconds": [0.015]}
    stand_in = entry | {"name": "c", "printed": False}
    title, first, others, second = speedup_page([entry, other, stand_in])
    assert title.endswith("speed-up")
    assert others.endswith("of stand-ins")
    ends = [line.split("|")[-3:-1] for line in first.splitlines()[2:]]
    assert [[float(cell) for cell in end] for end in ends] == [
        [5, 20],
        [15, 20],
        [10, 20],
    ]
    assert "c |" in second
    assert "c |" not in first


# --- Parties of all sizes -----------------------------------------------------------


def test_the_mean_of_a_random_removal_by_hand():
    """10 of 1,000 rows are centroids: 0.01 x 1,000 us + 0.99 x 10 us."""
    figures = {"untouched_seconds": 1e-5, "redraw_seconds": 1e-3, "step_seconds": 0.01}
    _, page = sizes_page([{"n": 1000} | figures])
    cells = [cell.strip() for cell in page.splitlines()[-1].split("|")[1:-1]]
    assert cells == ["1,000", "10.0", "1,000", "1", "19.9", "10.0"]


def test_a_party_takes_the_whole_step():
    actual = sized(300)
    assert 0 < actual["untouched_seconds"] < actual["step_seconds"]


# --- The command --------------------------------------------------------------------


def test_the_command_writes_each_table(tmp_path):
    words = "bound shifts speedup --quick --datasets tcga --seeds 2 --requests 10"
    app([*words.split(), "--output-dir", str(tmp_path)], standalone_mode=False)
    for name in ("bound", "shifts", "speedup"):
        results = json.loads((tmp_path / f"mufc_claims-{name}.json").read_text())
        assert results[name]
        assert "TCGA" in (tmp_path / f"mufc_claims-{name}.md").read_text()


def test_bound_has_a_row_for_each_pattern(data):
    one = {"redrawn": 0.5, "distances": 9.0, "chance": 0.4, "bound": 8.0, "anew": 90.0}
    figures = {"name": "a", "k": 3, "patterns": {"random": one | {"number": 7}}}
    _, removals, _, rows = bound_page([figures | {"likeliest": likeliest(data)}])
    assert "|      7 |      50.0 |" in removals
    assert "0 of 4" in rows
