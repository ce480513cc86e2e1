"""The experiments on MUFC, on tiny data."""

import json
import math

import click
import numpy as np
import pytest
from forgetting import addition
from measured import cells_of, run

from simulations import mufc
from simulations import mufc_federation as federation
from simulations.experiments import MissingData
from simulations.mufc_attack import OPTIONS, attacked, distances_to_bins, success
from vfl_flower import Party, simulate
from vfl_flower.numerics import mufc as numerics_of_mufc
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import Quantizer, initialise
from vfl_flower.strategies.mufc.training import MUFC


def trained(data, method="MUFC", seed=0, **settings):
    numerics = federation.Numerics(data, method, seed, **settings)
    numerics.train()
    return numerics


def rows_of(name, figures):
    """Return the cells of all rows of a table's page."""
    return cells_of(*mufc.TABLES[name].page(figures))


def strategy(data, method, server_state=None):
    training, points = federation.METHODS[method]
    return MUFC.paper(
        n_clusters=data.k,
        client_training=training,
        server_points=points,
        server_state=server_state,
    )


@pytest.fixture(scope="module")
def data():
    """Return three clusters of 40 rows at four parties, two clusters each."""
    rng = np.random.default_rng(5)
    X = np.repeat(rng.random((3, 2)), 40, axis=0) + rng.normal(0, 0.05, (120, 2))
    return federation.pooled("tiny", X, 3, n_parties=4, k_prime=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a folder with a celltype of four parties, and no other set."""
    path = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(0).random((400, 3))
    group = np.arange(400) % 4
    np.savez(path / "celltype.npz", X=X.astype("f4"), X64=X, y=group, group=group)
    return path


@pytest.mark.parametrize("k_prime", [1, 2, 4])
def test_split_is_a_partition_of_few_clusters_a_party(k_prime):
    labels = np.repeat([0, 1, 2, 3], [200, 90, 60, 50])
    parts = federation.split_clusters(labels, 10, k_prime, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(400))
    for rows in parts[:-1]:
        assert 1 <= len(np.unique(labels[rows])) <= k_prime
        assert 1 <= len(rows) <= 40
    assert len(parts) == 10
    assert len(parts[-1]) > 0


def test_split_of_too_few_rows():
    with pytest.raises(ValueError, match="6 parties need two rows each, got 11"):
        federation.split_clusters(np.zeros(11, int), 6, 1, np.random.default_rng(0))


def test_mixture_has_the_variance_of_the_paper():
    """Each column of a cluster has variance 0.5; 1e5 rows: 4 sigma are 0.009."""
    X = federation.mixture([100_000, 3], 2, np.random.default_rng(0))
    assert X.shape == (100_003, 2)
    np.testing.assert_allclose(X[:100_000].var(axis=0), 0.5, atol=0.01)
    assert (np.abs(X[:100_000].mean(axis=0) - 0.5) < 0.51).all()


def test_kfed_adds_the_farthest_and_moves_once():
    """First party: 0 and 1. Farthest of the others: 10. One step: {8, 10} -> 9."""
    own = [np.array([[0.0], [1.0]]), np.array([[8.0], [10.0]]), np.array([[1.5]])]
    np.testing.assert_allclose(federation.kfed_centroids(own, 3), [[0], [1.25], [9]])
    # Of the first party's centroids no more than K are taken, and no second step
    # comes: 1.5 and 10 went to 1, whose mean is (1 + 8 + 10 + 1.5) / 4.
    np.testing.assert_allclose(federation.kfed_centroids(own, 2), [[0], [5.125]])


def test_dckm_does_not_weigh():
    rng = np.random.default_rng(0)
    points = np.array([[0.0], [0.0], [3.0], [10.0]])
    assert sorted(federation.dckm_centroids(points, 2, rng).ravel()) == [1, 10]
    assert len(federation.dckm_centroids(points[:2], 2, rng)) == 1


@pytest.mark.parametrize(
    "method", [m for m in federation.METHODS if m.startswith("MUFC")]
)
def test_memory_draws_what_a_run_draws(data, method):
    """To the last digit, and the losses are those of the run."""
    numerics = trained(data, method, 3)
    parties = [Party(X) for X in data.rows]
    result = simulate(strategy(data, method), parties, seed=3)
    assert result.ledger.round_trips == 3
    np.testing.assert_array_equal(numerics.centers, result.model.cluster_centers_)
    induced, nearest = numerics.loss()
    assert induced == pytest.approx(result.model.inertia_, rel=1e-9)
    rows = np.concatenate(data.rows)
    expected = assign(rows, result.model.cluster_centers_)[1].sum()
    assert nearest == pytest.approx(expected)
    assert nearest <= induced


@pytest.mark.parametrize("method", ["MUFC", "MUFC, complete"])
def test_memory_adds_what_a_run_adds(data, method, tmp_path):
    """To the last digit; of two parties, whose last rows come later."""
    numerics = federation.Numerics(data, method, 3, gamma=(data.n - 6) ** -0.5)
    later = [np.arange(len(X) - 3 * (m < 2), len(X)) for m, X in enumerate(data.rows)]
    for stay, rows in zip(numerics.stay, later, strict=True):
        stay[rows] = False
    numerics.train()
    for m in (0, 1):
        seconds = numerics.add(m, later[m])
        assert min(seconds[:2]) > 0

    def parties(held_back):
        for m, X in enumerate(data.rows):
            rows = np.delete(np.arange(len(X)), held_back[m])
            place = {"name": f"party-{m}", "state_dir": tmp_path / str(m)}
            yield Party(X[rows], ids=rows, **place)

    none = later[-1]
    server = tmp_path / "server"
    trained = simulate(strategy(data, method, server), [*parties(later)], seed=3)
    for left in ([none, *later[1:]], [none, none, *later[2:]]):
        more = [*parties(left)]
        result = simulate(addition(more, server, trained.model.id), more, seed=3)
    np.testing.assert_array_equal(numerics.centers, result.model.cluster_centers_)
    assert numerics.loss()[0] == pytest.approx(result.model.inertia_, rel=1e-9)


def test_a_row_that_is_no_centroid_only_leaves_a_size(data):
    numerics = trained(data)
    row = next(i for i in range(len(data.rows[1])) if i not in numerics.drawn[1])
    before = [part.copy() for part in (numerics.centers, numerics.drawn[1])]
    sizes = numerics.sizes[1].copy()
    party, server, redrawn = numerics.remove(1, np.array([row]))
    assert (server, redrawn) == (0.0, False)
    assert party > 0
    np.testing.assert_array_equal(numerics.centers, before[0])
    np.testing.assert_array_equal(numerics.drawn[1], before[1])
    moved = sizes - numerics.sizes[1]
    nearest = np.square(data.rows[1][numerics.drawn[1]] - data.rows[1][row]).sum(axis=1)
    assert moved.tolist() == (np.arange(len(moved)) == nearest.argmin()).tolist()


@pytest.mark.parametrize("method", federation.METHODS)
def test_after_removals_all_is_of_the_rows_that_stay(data, method):
    """Sizes, centroids and costs."""
    numerics = trained(data, method)
    rng = np.random.default_rng(0)
    for m, rows in mufc.requests_of(numerics, "random", 30, rng):
        assert numerics.stay[m][rows].all()
        numerics.remove(m, rows)
    assert sum(kept.sum() for kept in numerics.stay) == 90
    for kept, drawn, count in zip(
        numerics.stay, numerics.drawn, numerics.sizes, strict=True
    ):
        assert kept[drawn].all()
        assert count.sum() == kept.sum()
        assert (count > 0).all()
    cached = numerics.loss()
    numerics._costs.clear()
    assert numerics.loss() == pytest.approx(cached)


def test_adversarial_requests_take_the_worst_row(data):
    numerics = trained(data)
    (m, rows), *_ = mufc.requests_of(
        numerics, "adversarial", 1, np.random.default_rng(0)
    )
    worst = numerics.costs(m)[rows[0]]
    assert worst == max(numerics.costs(j).max() for j in range(len(data.rows)))
    before = numerics.loss()[0]
    _, _, redrawn = numerics.remove(m, rows)
    if not redrawn:
        assert numerics.loss()[0] == pytest.approx(before - worst)
    assert numerics.costs(m)[rows[0]] == 0


def test_batches_are_of_one_party_that_keeps_some(data):
    numerics = trained(data)
    rng = np.random.default_rng(0)
    actual = list(mufc.requests_of(numerics, "batches of 10", 5, rng))
    for m, rows in actual:
        assert len(set(rows.tolist())) == 10
        assert len(data.rows[m]) >= 13
    assert not list(mufc.requests_of(numerics, "batches of 30", 5, rng))


def test_removal_has_all_patterns_and_a_page(data):
    actual = mufc.removal(data, 1, 20)
    # No party has rows for batches of 30.
    assert set(mufc.PATTERNS) - set(actual["patterns"]) == {"batches of 30"}
    assert [len(v) for v in actual["retraining"].values()] == [3, 3, 3]
    for name, runs in actual["patterns"].items():
        assert len(runs) == 1
        few = "counts" in name or "DC-KM" in name
        if "batches" not in name:
            assert len(runs[0]["party"]) == (2 if few else 20)
        assert bool(runs[0]["ratio"]) != few
        assert all(ratio > 0.99 for _, ratio in runs[0]["ratio"])
    rows = rows_of("removal", [actual])
    assert len(rows) == (1 + 1) + (1 + 6) + (1 + 3)
    assert sum(row[1] == "random, DC-KM" for row in rows) == 1


def test_additions_stand_beside_trainings_anew(data):
    cells = mufc.adding(data, 1, 3)["cells"]
    # No party has ten more rows.
    kinds = [(cell["method"], cell["size"]) for cell in cells]
    assert kinds == [("MUFC", 1), ("MUFC, complete", 1)]
    figures = mufc.additions(data, "MUFC", 1, 3, 0)
    assert len(figures["party"]) == len(figures["server anew"]) == 3
    assert figures["shown"] <= figures["shown anew"]
    assert min(figures["ratio"], figures["ratio anew"]) > 0.99
    assert len(rows_of("adding", [{"name": "tiny", "cells": cells}])) == 1 + 2


def test_the_number_of_clusters_is_chosen_from_bins_and_rows(data):
    actual = mufc.number(data, 2)
    header, *rows = rows_of("number", [actual])
    assert header[3:] == ["silhouette", "variance ratio", "BIC"]
    assert [row[2] for row in rows] == ["bins", "pooled"]
    X = federation.mixture([60] * 3, 2, np.random.default_rng(0))
    X += np.repeat([0, 40, 90], 60)[:, None]
    best = mufc.chosen(X, np.ones(180), np.random.default_rng(0))
    assert (best["silhouette"], best["variance ratio"]) == (3, 3)


def test_sets_are_generated_or_say_why_not(tmp_path):
    for name in ("celltype", "covtype15k"):
        with pytest.raises(MissingData, match=r"there is no \w+\.npz in"):
            mufc.LOADERS[name](tmp_path, True)
    few = mufc.LOADERS["tcga"](None, True)
    assert (few.name, few.d, few.k, len(few.rows)) == ("TCGA (generated)", 57, 4, 10)
    generated = mufc.LOADERS["gaussian"](None, True)
    assert set(generated.published) == set(federation.METHODS) - {"MUFC, weighted bins"}
    assert (generated.n, len(generated.spread(1).rows)) == (1000, 10)


def test_celltype_keeps_its_parties(folder):
    data = federation.celltype(folder, False)
    assert [len(X) for X in data.rows] == [100] * 4
    with np.load(folder / "celltype.npz") as file:
        np.testing.assert_array_equal(data.rows[3], file["X64"][3::4] - 0.5)


# -- bounds and times ---------------------------------------------------------------


def chances(X, k, draws, rng):
    """Estimate the probability of each row, (n,), to be a centroid of k-means++.

    P(x in C) = 1 / n + sum_(j=1)^(K-1) E d^2(x, C_j) / phi_c(X; C_j), equations 13 and
    18: the mean is taken over probabilities, and not over draws, so that rare rows
    need no luck. Also returns the largest probability in any draw but the first.
    """
    blocks, largest = RowBlocks(X), 0.0
    chance = np.full(len(X), 1 / len(X))
    for _ in range(draws):
        nearest = np.full(len(X), np.inf)
        for row in initialise(blocks, k, rng)[0][:-1]:
            nearest = np.minimum(nearest, np.square(X - X[row]).sum(axis=1))
            share = nearest / nearest.sum()
            chance += share / draws
            largest = max(largest, float(share.max()))
    return chance, largest


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
    assert mufc.imbalance(X, 2, np.random.default_rng(0)) == pytest.approx((5 / 4, 2))


@pytest.mark.parametrize(
    ("n", "expected"), [(50, 1.0), (1_000, 0.061), (10_000, 0.0061)]
)
def test_equation_18_by_hand(n, expected):
    assert mufc.most_chance(n, 2, 1.5, 2) == pytest.approx(expected)


def test_lemma_f1_holds_for_each_row():
    """The mean is K / n; the likeliest row and draw are below equations 18 and 17."""
    X, rng = federation.mixture([700, 900, 1400], 4, np.random.default_rng(0)), 1
    e1, e2 = mufc.imbalance(X, 3, np.random.default_rng(rng))
    chance, largest = chances(X, 3, 60, np.random.default_rng(rng))
    assert chance.mean() == pytest.approx(3 / 3000)
    assert 3 / 3000 < chance.max() <= mufc.most_chance(3000, 3, e1, e2) < 1
    assert largest <= 10 * 3 * e1 * e2 / 3000


@pytest.mark.parametrize(("pattern", "count"), [("random", 40), ("batches of 10", 8)])
def test_distances_are_those_that_the_numerics_take(pattern, count, monkeypatch):
    """Besides those of training, n K; without the server's part."""
    X = federation.mixture([200] * 3, 2, np.random.default_rng(0))
    data = federation.pooled("more", X, 3, n_parties=4)
    inner, taken = numerics_of_mufc.row_squares, []

    def counting(differences):
        distances = inner(differences)
        taken.append(np.size(distances))
        return distances

    monkeypatch.setattr(numerics_of_mufc, "row_squares", counting)
    monkeypatch.setattr(mufc.Numerics, "cluster", lambda self: 0.0)
    actual = mufc.counted(data, pattern, count, 0)
    assert 0 < sum(actual["redrawn"]) < count
    assert sum(taken) == data.n * data.k + sum(actual["distances"])


@pytest.mark.second
def test_random_removals_redraw_as_often_as_the_lemma_says(data):
    """1,000 removals of one row, with fixed seeds; five deviations: below 1e-6."""
    runs = [mufc.counted(data, "random", 10, seed) for seed in range(100)]
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


def test_the_chance_of_a_redraw_is_that_of_a_random_row_of_a_random_party(data):
    numerics = trained(data)
    able, share = mufc.hits(numerics)
    assert able.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(share, [3 / len(X) for X in data.rows])
    numerics.stay[2][3:] = False
    assert mufc.hits(numerics)[0].tolist() == [0, 1, 3]


def test_speed_up_measures_both_cases(data):
    actual = mufc.speedup(data, 2, 3)
    assert len(actual["redraw_seconds"]) == 6
    assert len(actual["complete_seconds"]) == len(actual["chance"]) == 2
    assert 0 < len(actual["untouched_seconds"]) <= 200
    assert min(actual["redraw_seconds"] + actual["untouched_seconds"]) > 0


def test_a_party_takes_the_whole_step():
    actual = mufc.sizes(300)
    assert 0 < actual["untouched_seconds"] < actual["step_seconds"]


def test_bound_has_a_row_for_each_pattern(data):
    actual = mufc.bound(data, 1, 2)
    # No party has rows for batches of 30.
    assert [*actual["patterns"]] == [*mufc.PATTERNS][:3]
    rows = rows_of("bound", [actual])
    assert [row[2] for row in rows[1:]] == ["2", "2", "2"]


def test_the_mean_of_a_random_removal_by_hand():
    """10 of 1,000 rows are centroids: 0.01 x 1,000 us + 0.99 x 10 us."""
    figures = {"untouched_seconds": 1e-5, "redraw_seconds": 1e-3, "step_seconds": 0.01}
    _, cells = rows_of("sizes", [{"n": 1000} | figures])
    assert cells == ["1,000", "10.0", "1,000", "1", "19.9", "10.0"]


def test_speed_ups_by_hand():
    """A tenth takes 10 ms and the others 0: 1 ms, a training 5 ms or 20 ms."""
    entry = {"name": "a", "chance": [0.05, 0.15]}
    entry |= {"redraw_seconds": [0.005, 0.015], "untouched_seconds": [0.0]}
    entry |= {"complete_seconds": [0.005], "own_seconds": [0.02]}
    _, *rows = rows_of("speedup", [entry, entry | {"complete_seconds": [0.015]}])
    ends = [[float(cell) for cell in row[-2:]] for row in rows]
    assert ends == [[5, 20], [15, 20], [10, 20]]


# -- membership ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def candidates_():
    """Return three clusters of 200 rows at two parties, of which 150 take no part."""
    X = federation.mixture([200] * 3, 4, np.random.default_rng(5))
    return federation.apart("tiny", X / (2 * np.abs(X).max()), 3, n_parties=2)


def test_rows_apart_take_no_part(candidates_):
    rows = np.concatenate([*candidates_.rows, candidates_.others])
    assert len(candidates_.others) == 150
    assert [len(X) for X in candidates_.rows] == [225, 225]
    assert len(np.unique(rows, axis=0)) == 600


def test_parties_of_a_given_split_keep_their_rows():
    X = np.arange(40.0)[:, None] / 100
    split = federation.apart("given", X, 2, group=np.arange(40) % 4)
    for j, rows in enumerate(split.rows):
        assert (np.rint(rows[:, 0] * 100) % 4 == j).all()


def test_rows_in_a_bin_are_at_most_half_a_side_away():
    quantizer = Quantizer(0.2)
    rows = np.array([[0.0, 0.09], [0.0, 0.3], [0.5, 0.5]])
    distances = distances_to_bins(rows, np.array([[2, 2], [2, 4]]), quantizer)
    np.testing.assert_allclose(distances, [0.45, 0.5, 2.5])


def test_success_counts_false_alarms():
    """By hand: members at 1 and 3, others at 2, 3, 4, 5."""
    others = np.array([5.0, 4, 3, 2])
    assert success(np.array([1.0, 3.0]), others, 0) == (0.5, 0.8125)
    assert success(np.array([1.0, 3.0]), others, 0.5) == (1.0, 0.8125)
    assert success(others, others, 0)[1] == 0.5


def test_drawn_rows_are_found_and_means_are_not(candidates_):
    drawn = attacked(candidates_, OPTIONS["init"], 0, 20)
    means = attacked(candidates_, OPTIONS["full, 20 rows"], 0, 20)
    assert (drawn["members"], drawn["tpr"]) == (1.0, 1.0)
    assert means["members"] < 0.4
    assert means["tpr"] < 0.4
    assert (means["small"], means["bins"] <= 6) == (0, True)
    assert 1 <= means["induced"] < drawn["induced"]
    assert means["moved"] > drawn["moved"]


# -- the command --------------------------------------------------------------------


def test_the_command_writes_json_and_tables(folder, tmp_path, capsys):
    arguments = ["loss", "removal", "--datasets", "celltype"]
    arguments += ["--datasets", "covtype15k", "--seeds", "1", "--requests", "4"]
    run(mufc.app, *arguments, "--data-dir", folder, "--output-dir", tmp_path)
    out = capsys.readouterr().out
    # The table of removals is not of covtype15k.
    for table, skipped in (("loss", ["covtype15k"]), ("removal", [])):
        results = json.loads((tmp_path / f"mufc-{table}.json").read_text())
        assert [entry["name"] for entry in results[table]] == ["celltype"]
        assert list(results["skipped"]) == skipped
        assert (tmp_path / f"mufc-{table}.md").read_text() in out


def test_the_command_merges_the_settings_of_sets(folder, tmp_path):
    arguments = ["settings", "--datasets", "celltype", "--seeds", "1"]
    run(mufc.app, *arguments, "--data-dir", folder, "--output-dir", tmp_path)
    results = json.loads((tmp_path / "mufc-settings.json").read_text())
    assert [len(cells) for cells in results["settings"].values()] == [5, 4, 0]


def test_the_command_refuses_sets_of_other_tables():
    with pytest.raises(click.UsageError, match="loss has none of these data sets"):
        run(mufc.app, "loss", "--datasets", "pol")
