"""The runner of the MUFC experiments and its baselines, on tiny data."""

import json
import logging
import os

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.models import MUFCModel
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.mufc import contributions
from vfl_flower.simulations import mufc_data, simulate
from vfl_flower.simulations.experiments import MissingData
from vfl_flower.simulations.mufc import (
    METHODS,
    PATTERNS,
    Memory,
    in_process,
    loss,
    loss_page,
    main,
    message_bytes,
    removal,
    removal_page,
    removals,
    requests_of,
    run,
    runs_page,
    settings,
    settings_page,
    strategy,
    whole_run,
)
from vfl_flower.simulations.mufc_baselines import (
    KFED,
    DCKMeans,
    dckm_centroids,
    kfed_centroids,
)
from vfl_flower.simulations.mufc_data import Clients, mixture, pooled, split_clusters


@pytest.fixture(scope="module", autouse=True)
def quiet():
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)
    yield
    logging.getLogger("vfl_flower").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def data():
    """Return three clusters of 40 rows at four clients, two clusters each."""
    rng = np.random.default_rng(5)
    X = np.repeat(rng.random((3, 2)), 40, axis=0) + rng.normal(0, 0.05, (120, 2))
    return pooled("tiny", "generated", X, 3, n_clients=4, k_prime=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a folder with a celltype of four clients, and no other set."""
    path = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(0).random((400, 3))
    group = np.arange(400) % 4
    np.savez(path / "celltype.npz", X=X.astype("f4"), X64=X, y=group, group=group)
    return path


def silent(line):
    pass


# -- data -----------------------------------------------------------------------------


@pytest.mark.parametrize("k_prime", [1, 2, 4])
def test_split_is_a_partition_of_few_clusters_a_client(k_prime):
    labels = np.repeat([0, 1, 2, 3], [200, 90, 60, 50])
    parts = split_clusters(labels, 10, k_prime, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(400))
    for rows in parts[:-1]:
        assert 1 <= len(np.unique(labels[rows])) <= k_prime
        assert 1 <= len(rows) <= 40
    assert len(parts) == 10
    assert len(parts[-1]) > 0


def test_split_of_one_cluster_after_another():
    """With K' = K = 1 each client but the last has n / L rows, in order."""
    parts = split_clusters(np.zeros(10, int), 3, 1, np.random.default_rng(0))
    assert [rows.tolist() for rows in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_split_of_too_few_rows():
    with pytest.raises(ValueError, match="6 clients need two rows each, got 11"):
        split_clusters(np.zeros(11, int), 6, 1, np.random.default_rng(0))


def test_mixture_has_the_variance_of_the_paper():
    """Each column of a cluster has variance 0.5; 1e5 rows: 4 sigma are 0.009."""
    X = mixture([100_000, 3], 2, np.random.default_rng(0))
    assert X.shape == (100_003, 2)
    np.testing.assert_allclose(X[:100_000].var(axis=0), 0.5, atol=0.01)
    assert (np.abs(X[:100_000].mean(axis=0) - 0.5) < 0.51).all()


def test_pooled_rows_fill_the_box(data):
    rows = np.concatenate(data.rows)
    assert np.abs(rows).max() == 0.5
    assert (data.n, data.d, data.k, len(data.rows)) == (120, 2, 3, 4)
    centers = Memory(data)
    centers.train()
    assert data.best <= centers.loss()[1]
    assert data.note.endswith("K' = 2 clusters each")


# -- baselines ------------------------------------------------------------------------


def test_kfed_adds_the_farthest_and_moves_once():
    """First client: 0 and 1. Farthest of the others: 10. One step: {8, 10} -> 9."""
    own = [np.array([[0.0], [1.0]]), np.array([[8.0], [10.0]]), np.array([[1.5]])]
    np.testing.assert_allclose(kfed_centroids(own, 3), [[0], [1.25], [9]])
    # Of the first client's centroids no more than K are taken, and no second step
    # comes: 1.5 and 10 went to 1, whose mean is (1 + 8 + 10 + 1.5) / 4.
    np.testing.assert_allclose(kfed_centroids(own, 2), [[0], [5.125]])


def test_kfed_has_no_two_equal_centres():
    own = [np.zeros((0, 1)), np.array([[2.0], [2.0]]), np.array([[2.0], [3.0]])]
    np.testing.assert_array_equal(kfed_centroids(own, 4), [[2], [3]])


def test_dckm_does_not_weigh():
    rng = np.random.default_rng(0)
    points = np.array([[0.0], [0.0], [3.0], [10.0]])
    assert sorted(dckm_centroids(points, 2, rng).ravel()) == [1, 10]
    assert len(dckm_centroids(points[:2], 2, rng)) == 1


@pytest.mark.parametrize("method", METHODS)
def test_memory_draws_what_a_run_draws(data, method):
    """To the last digit, and the losses are those of the run."""
    memory = Memory(data, method, 3)
    memory.train()
    parties = [Party(X) for X in data.rows]
    result = simulate(strategy(data, method), parties, seed=3)
    assert isinstance(result.model, MUFCModel)
    assert result.ledger.round_trips == 3
    np.testing.assert_array_equal(memory.centers, result.model.cluster_centers_)
    induced, nearest = memory.loss()
    assert induced == pytest.approx(result.model.inertia_, rel=1e-9)
    blocks = RowBlocks(np.concatenate(data.rows))
    expected = contributions(blocks, result.model.cluster_centers_).sum()
    assert nearest == pytest.approx(expected)
    assert nearest <= induced


def test_quantised_dckm_is_near_the_exact_one(data):
    """A bin's side is 0.001; the means move by no more, up to which start is best."""
    parties = [Party(X) for X in data.rows]
    exact, quantised = (
        simulate(DCKMeans(3, privacy, gamma=0.001), parties, seed=0).model
        for privacy in ("none", "scma")
    )
    assert quantised.inertia_ == pytest.approx(exact.inertia_, rel=0.01)
    assert not quantised.kept


def test_sums_have_the_same_size_whoever_clusters(data):
    parties = [Party(X) for X in data.rows]
    ledgers = [
        simulate(one, parties, seed=0).ledger.of("mufc_train")
        for one in (DCKMeans(3, "scma"), strategy(data, "MUFC"), KFED(3))
    ]
    assert ledgers[0].bytes_up == ledgers[1].bytes_up > ledgers[2].bytes_up


@pytest.mark.parametrize("baseline", [KFED, DCKMeans])
def test_baselines_keep_no_state(data, baseline, tmp_path):
    model = simulate(baseline(3), data.parties(tmp_path)).model
    assert not model.kept
    kept = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {".csv"}  # clusters of rows


@pytest.mark.parametrize("baseline", [KFED, DCKMeans])
def test_baselines_scale_by_the_box(data, baseline):
    """As rows that were scaled by hand."""
    box = ([0.0, -5e5], [1e-3, 5e5])
    lower, width = np.array(box[0]), np.subtract(*box[::-1])
    wide = [np.clip((X + 0.5) * width + lower, *box) for X in data.rows]
    by_hand = [(X - lower) / width - 0.5 for X in wide]
    one = simulate(baseline(3, box=box), [Party(X) for X in wide], seed=0).model
    two = simulate(baseline(3), [Party(X) for X in by_hand], seed=0).model
    np.testing.assert_array_equal(
        one.cluster_centers_, (two.cluster_centers_ + 0.5) * width + lower
    )
    for mine, other in zip(one.labels_, two.labels_, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be a whole number from 1, got 0"),
        ({"privacy": "some"}, "privacy must be one of scma, none, got 'some'"),
        ({"gamma": 2.0}, r"gamma must be 'auto' or in \(0, 1\], got 2"),
    ],
)
def test_baselines_refuse_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        DCKMeans(**arguments)


# -- removals -------------------------------------------------------------------------


def test_a_row_that_is_no_centroid_only_leaves_a_size(data):
    memory = Memory(data)
    memory.train()
    row = next(i for i in range(len(data.rows[1])) if i not in memory.drawn[1])
    before = [part.copy() for part in (memory.centers, memory.drawn[1])]
    sizes = memory.sizes[1].copy()
    client, server, redrawn = memory.remove(1, np.array([row]))
    assert (server, redrawn) == (0.0, False)
    assert client > 0
    np.testing.assert_array_equal(memory.centers, before[0])
    np.testing.assert_array_equal(memory.drawn[1], before[1])
    moved = sizes - memory.sizes[1]
    nearest = np.square(data.rows[1][memory.drawn[1]] - data.rows[1][row]).sum(axis=1)
    assert moved.tolist() == (np.arange(len(moved)) == nearest.argmin()).tolist()


def test_counts_sent_again_make_the_server_cluster(data):
    memory = Memory(data)
    memory.train()
    row = next(i for i in range(len(data.rows[1])) if i not in memory.drawn[1])
    _, server, redrawn = memory.remove(1, np.array([row]), lazy=False)
    assert server > 0
    assert not redrawn


def test_a_centroid_is_drawn_again_behind_those_before_it(data):
    memory = Memory(data)
    memory.train()
    before = memory.drawn[2].copy()
    _, server, redrawn = memory.remove(2, before[[1]])
    assert server > 0
    assert redrawn
    assert memory.drawn[2][0] == before[0]
    assert before[1] not in memory.drawn[2]
    assert memory.kept[2][memory.drawn[2]].all()
    assert memory.sizes[2].sum() == len(data.rows[2]) - 1


@pytest.mark.parametrize("method", METHODS)
def test_memory_after_removals_is_that_of_its_rows(data, method):
    """Sizes, centroids and costs are those of the rows that are kept."""
    memory = Memory(data, method)
    memory.train()
    rng = np.random.default_rng(0)
    for m, rows in requests_of(memory, "random", 30, data.k, rng):
        assert memory.kept[m][rows].all()
        memory.remove(m, rows)
    assert sum(kept.sum() for kept in memory.kept) == 90 == len(memory.remaining())
    for kept, drawn, sizes in zip(memory.kept, memory.drawn, memory.sizes, strict=True):
        assert kept[drawn].all()
        assert sizes.sum() == kept.sum()
        assert (sizes > 0).all()
    cached = memory.loss()
    memory._costs.clear()
    assert memory.loss() == pytest.approx(cached)


def test_adversarial_requests_take_the_worst_row(data):
    memory = Memory(data)
    memory.train()
    (m, rows), *_ = requests_of(
        memory, "adversarial", 1, data.k, np.random.default_rng(0)
    )
    worst = memory._cost(m)[rows[0]]
    assert worst == max(memory._cost(j).max() for j in range(len(data.rows)))
    before = memory.loss()[0]
    _, _, redrawn = memory.remove(m, rows)
    if not redrawn:
        assert memory.loss()[0] == pytest.approx(before - worst)
    assert memory._cost(m)[rows[0]] == 0


def test_batches_are_of_one_client_that_keeps_some(data):
    memory = Memory(data)
    memory.train()
    rng = np.random.default_rng(0)
    found = list(requests_of(memory, "batches of 10", 5, data.k, rng))
    for m, rows in found:
        assert len(set(rows.tolist())) == 10
        assert len(data.rows[m]) >= 13
    assert not list(requests_of(memory, "batches of 30", 5, 1000, rng))


def test_removals_end_where_the_clients_have_no_more_rows(data):
    """Ten rows a request of 120: there cannot be more than twelve."""
    found = removals(data, "batches of 10", count=50)
    assert 1 <= len(found["client"]) <= 12
    assert [done for done, _ in found["ratio"]][:2] == [0, 12][: len(found["ratio"])]


def test_removal_has_all_patterns_and_a_page(data):
    found = removal(data, 1, count=8, few=2, tell=silent)
    # No client has rows for batches of 30.
    assert set(PATTERNS) - set(found["patterns"]) == {"batches of 30"}
    assert [len(v) for v in found["retraining"].values()] == [3, 3, 3]
    for name, runs in found["patterns"].items():
        assert len(runs) == 1
        few = "counts" in name or "DC-KM" in name
        if "batches" not in name:
            assert len(runs[0]["client"]) == (2 if few else 8)
        assert bool(runs[0]["ratio"]) != few
        assert all(ratio > 0.99 for _, ratio in runs[0]["ratio"])
    page = removal_page([found])
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == (2 + 1) + (2 + 6) + (2 + 3)
    assert page.count("random, DC-KM") == 1


# -- tables ---------------------------------------------------------------------------


def test_loss_compares_all_methods(data):
    found = loss(data, 2, ["MUFC"], tell=silent)
    assert set(found["methods"]) == set(METHODS)
    for one in found["methods"].values():
        assert {len(values) for values in one.values()} == {2}
        for induced, nearest in zip(one["induced"], one["nearest"], strict=True):
            assert 0.999 < nearest <= induced + 1e-12
    (whole,) = found["runs"]
    assert whole["equal"]
    page = loss_page([found])
    assert sum("tiny" in line for line in page.splitlines()) == 1 + 5 + 1
    assert "the same" in page


def test_a_client_sends_what_the_formula_says():
    """8 (2 K L + K L ceil(d bits / 61)) to within a tenth, for many slots."""
    X = mixture([400, 400], 120, np.random.default_rng(0))
    data = pooled("wide", "", X, 8, n_clients=12)
    found = whole_run(data, "MUFC")
    slots, bits = 8 * 12, 5  # 1 / gamma is 28.3, bins 29
    formula = 8 * (2 * slots + slots * -(-120 * bits // 61))
    assert message_bytes(data) == found["formula"]
    assert abs(found["formula"] / formula - 1) < 0.1
    assert abs(found["bytes"] / formula - 1) < 0.1
    assert found["round_trips"] == 3


def test_published_figures_stand_beside_their_method(data):
    more = {"published": {"MUFC": 1.14, "DC-KM": 1.46}}
    some = Clients(data.name, "", data.rows, 3, data.best, **more)
    lines = loss_page([loss(some, 1, tell=silent)]).splitlines()
    of = [line for line in lines if "1.14 |" in line or "1.46 |" in line]
    assert ["DC-KM" in line for line in of] == [False, True]


def test_settings_has_three_tables(data):
    found = settings([data], [data], 1, tell=silent)
    assert [len(cells) for cells in found.values()] == [5, 4, 1]
    assert found["clusters"][0]["value"] == "2"
    assert settings_page(found).count("## ") == 3


def test_whole_runs_forget(data):
    found = in_process(data, 4, tell=silent)
    assert [one["what"] for one in found] == [
        "train",
        "remove one row",
        "remove 4 rows of one client",
        "train again",
    ]
    assert {one["round_trips"] for one in found} == {3}
    assert len(runs_page({"here": found}).splitlines()) == 2 + 2 + 4


def test_all_sets_can_be_generated_or_say_why(tmp_path):
    for name, make in mufc_data.DATASETS.items():
        if name in ("gaussian", "tmi", "tcga", "postures"):
            continue
        with pytest.raises(MissingData, match=r"there is no \w+\.npz in"):
            make(tmp_path, True)
    few = mufc_data.DATASETS["tcga"](None, True)
    assert (few.d, few.k, len(few.rows)) == (57, 4, 10)
    assert few.note.startswith("GENERATED, not TCGA")
    assert set(few.published) == set(METHODS) - {"MUFC, weighted bins"}


def test_celltype_keeps_its_clients(folder):
    data = mufc_data.celltype(folder, False)
    assert [len(X) for X in data.rows] == [100] * 4
    with np.load(folder / "celltype.npz") as file:
        np.testing.assert_array_equal(data.rows[3], file["X64"][3::4] - 0.5)


def test_command_writes_json_and_tables(folder, tmp_path, capsys):
    arguments = ["loss", "removal", "--datasets", "celltype", "mnist", "--seeds", "1"]
    arguments += ["--requests", "4", "--quick", "--data-dir", str(folder)]
    main([*arguments, "--output-dir", str(tmp_path / "out")])
    assert sorted(os.listdir(tmp_path / "out")) == [
        f"mufc-{table}.{ending}"
        for table in ("loss", "removal")
        for ending in ("json", "md")
    ]
    found = json.loads((tmp_path / "out" / "mufc-loss.json").read_text())
    assert set(found) == {"settings", "versions", "skipped", "loss"}
    assert found["loss"][0]["name"] == "celltype"
    assert all(one["equal"] for one in found["loss"][0]["runs"])
    page = (tmp_path / "out" / "mufc-removal.md").read_text()
    told = capsys.readouterr().out
    assert page in told
    assert "**mnist** was skipped: there is no mnist.npz in" in page


@pytest.mark.parametrize("table", ["loss", "settings", "runs"])
def test_tables_without_data_say_so(table, tmp_path):
    reason = "celltype: there is no celltype.npz in"
    with pytest.raises(MissingData, match=reason):
        run(table, tmp_path, tmp_path, names=["celltype"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["seeds", "requests"])
def test_command_refuses_what_cannot_be(name, capsys):
    with pytest.raises(SystemExit):
        main(["loss", f"--{name}", "0"])
    assert f"--{name} must be at least 1, got 0" in capsys.readouterr().err
