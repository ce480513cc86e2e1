"""The runner of the MUFC experiments and its baselines, on tiny data."""

import json
import os

import click
import numpy as np
import pytest
from forgetting import addition

from simulations import mufc_data
from simulations.experiments import MissingData
from simulations.mufc import (
    METHODS,
    PATTERNS,
    Numerics,
    adding,
    adding_page,
    app,
    in_process,
    loss,
    loss_page,
    message_bytes,
    number,
    number_page,
    removal,
    removal_page,
    removals,
    requests_of,
    runs_page,
    settings,
    settings_page,
    strategy,
    whole_run,
)
from simulations.mufc_baselines import (
    KFED,
    DCKMeans,
    dckm_centroids,
    kfed_centroids,
)
from simulations.mufc_data import SplitRows, mixture, pooled, split_clusters
from vfl_flower import Party, simulate
from vfl_flower.numerics.kmeans import assign


@pytest.fixture(scope="module")
def data():
    """Return three clusters of 40 rows at four parties, two clusters each."""
    rng = np.random.default_rng(5)
    X = np.repeat(rng.random((3, 2)), 40, axis=0) + rng.normal(0, 0.05, (120, 2))
    return pooled("tiny", "generated", X, 3, n_parties=4, k_prime=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a folder with a celltype of four parties, and no other set."""
    path = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(0).random((400, 3))
    group = np.arange(400) % 4
    np.savez(path / "celltype.npz", X=X.astype("f4"), X64=X, y=group, group=group)
    return path


# -- data -----------------------------------------------------------------------------


@pytest.mark.parametrize("k_prime", [1, 2, 4])
def test_split_is_a_partition_of_few_clusters_a_party(k_prime):
    labels = np.repeat([0, 1, 2, 3], [200, 90, 60, 50])
    parts = split_clusters(labels, 10, k_prime, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(400))
    for rows in parts[:-1]:
        assert 1 <= len(np.unique(labels[rows])) <= k_prime
        assert 1 <= len(rows) <= 40
    assert len(parts) == 10
    assert len(parts[-1]) > 0


def test_split_of_one_cluster_after_another():
    """With K' = K = 1 each party but the last has n / L rows, in order."""
    parts = split_clusters(np.zeros(10, int), 3, 1, np.random.default_rng(0))
    assert [rows.tolist() for rows in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_split_of_too_few_rows():
    with pytest.raises(ValueError, match="6 parties need two rows each, got 11"):
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
    numerics = Numerics(data)
    numerics.train()
    assert data.best <= numerics.loss()[1]
    assert data.note.endswith("K' = 2 clusters each")


# -- baselines ------------------------------------------------------------------------


def test_kfed_adds_the_farthest_and_moves_once():
    """First party: 0 and 1. Farthest of the others: 10. One step: {8, 10} -> 9."""
    own = [np.array([[0.0], [1.0]]), np.array([[8.0], [10.0]]), np.array([[1.5]])]
    np.testing.assert_allclose(kfed_centroids(own, 3), [[0], [1.25], [9]])
    # Of the first party's centroids no more than K are taken, and no second step
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
    numerics = Numerics(data, method, 3)
    numerics.train()
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
    numerics = Numerics(data, method, 3, gamma=(data.n - 6) ** -0.5)
    later = [np.arange(len(X) - 3 * (m < 2), len(X)) for m, X in enumerate(data.rows)]
    for stay, rows in zip(numerics.stay, later, strict=True):
        stay[rows] = False
    numerics.train()
    for m in (0, 1):
        seconds = numerics.add(m, later[m])
        assert min(seconds[:2]) > 0

    def parties(held_back):
        return [
            Party(
                np.delete(X, held_back[m], axis=0),
                ids=np.delete(np.arange(len(X)), held_back[m]),
                name=f"party-{m}",
                state_dir=tmp_path / str(m),
            )
            for m, X in enumerate(data.rows)
        ]

    none = later[-1]
    server = tmp_path / "server"
    trained = simulate(strategy(data, method, server), parties(later), seed=3)
    for left in ([none, *later[1:]], [none, none, *later[2:]]):
        more = parties(left)
        result = simulate(addition(more, server, trained.model.model), more, seed=3)
    np.testing.assert_array_equal(numerics.centers, result.model.cluster_centers_)
    assert numerics.loss()[0] == pytest.approx(result.model.inertia_, rel=1e-9)


def test_adding_has_all_methods_and_a_page(data):
    actual = adding(data, 1, 3)
    cells = {(cell["method"], cell["size"]) for cell in actual["cells"]}
    methods = {method for method in METHODS if method.startswith("MUFC")}
    assert {method for method, _ in cells} == methods
    assert {size for _, size in cells} == {1}  # no party has ten more
    for cell in actual["cells"]:
        (figures,) = cell["runs"]
        assert len(figures["party"]) == len(figures["server anew"]) == 3
        assert figures["shown"] <= figures["shown anew"]
        assert min(figures["ratio"], figures["ratio anew"]) > 0.99
    page = "\n".join(adding_page([actual]))
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(cells)


def test_number_of_clusters_has_a_row_for_bins_and_rows(data):
    actual = number(data, 2)
    page = "\n".join(number_page([actual]))
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2
    for source in ("bins", "pooled"):
        assert len(actual[source]) == 2
        assert all(2 <= k <= 15 for run in actual[source] for k in run.values())


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
    ("name", "value"), [("n_clusters", 0), ("privacy", "some"), ("gamma", 2.0)]
)
def test_baselines_refuse_bad_settings(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be .* got {value!r}"):
        DCKMeans(**{name: value})


# -- removals -------------------------------------------------------------------------


def test_a_row_that_is_no_centroid_only_leaves_a_size(data):
    numerics = Numerics(data)
    numerics.train()
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


def test_counts_sent_again_make_the_server_cluster(data):
    numerics = Numerics(data)
    numerics.train()
    row = next(i for i in range(len(data.rows[1])) if i not in numerics.drawn[1])
    _, server, redrawn = numerics.remove(1, np.array([row]), lazy=False)
    assert server > 0
    assert not redrawn


def test_a_centroid_is_drawn_again_behind_those_before_it(data):
    numerics = Numerics(data)
    numerics.train()
    before = numerics.drawn[2].copy()
    _, server, redrawn = numerics.remove(2, before[[1]])
    assert server > 0
    assert redrawn
    assert numerics.drawn[2][0] == before[0]
    assert before[1] not in numerics.drawn[2]
    assert numerics.stay[2][numerics.drawn[2]].all()
    assert numerics.sizes[2].sum() == len(data.rows[2]) - 1


@pytest.mark.parametrize("method", METHODS)
def test_after_removals_all_is_of_the_rows_that_stay(data, method):
    """Sizes, centroids and costs."""
    numerics = Numerics(data, method)
    numerics.train()
    rng = np.random.default_rng(0)
    for m, rows in requests_of(numerics, "random", 30, data.k, rng):
        assert numerics.stay[m][rows].all()
        numerics.remove(m, rows)
    assert sum(kept.sum() for kept in numerics.stay) == 90 == len(numerics.remaining())
    for kept, drawn, sizes in zip(
        numerics.stay, numerics.drawn, numerics.sizes, strict=True
    ):
        assert kept[drawn].all()
        assert sizes.sum() == kept.sum()
        assert (sizes > 0).all()
    cached = numerics.loss()
    numerics._costs.clear()
    assert numerics.loss() == pytest.approx(cached)


def test_adversarial_requests_take_the_worst_row(data):
    numerics = Numerics(data)
    numerics.train()
    (m, rows), *_ = requests_of(
        numerics, "adversarial", 1, data.k, np.random.default_rng(0)
    )
    worst = numerics.costs(m)[rows[0]]
    assert worst == max(numerics.costs(j).max() for j in range(len(data.rows)))
    before = numerics.loss()[0]
    _, _, redrawn = numerics.remove(m, rows)
    if not redrawn:
        assert numerics.loss()[0] == pytest.approx(before - worst)
    assert numerics.costs(m)[rows[0]] == 0


def test_batches_are_of_one_party_that_keeps_some(data):
    numerics = Numerics(data)
    numerics.train()
    rng = np.random.default_rng(0)
    actual = list(requests_of(numerics, "batches of 10", 5, data.k, rng))
    for m, rows in actual:
        assert len(set(rows.tolist())) == 10
        assert len(data.rows[m]) >= 13
    assert not list(requests_of(numerics, "batches of 30", 5, 1000, rng))


def test_removals_end_where_the_parties_have_no_more_rows(data):
    """Ten rows a request of 120: there cannot be more than twelve."""
    actual = removals(data, "batches of 10", count=50)
    assert 1 <= len(actual["party"]) <= 12
    assert [done for done, _ in actual["ratio"]][:2] == [0, 12][: len(actual["ratio"])]


def test_removal_has_all_patterns_and_a_page(data):
    actual = removal(data, 1, count=8, few=2)
    # No party has rows for batches of 30.
    assert set(PATTERNS) - set(actual["patterns"]) == {"batches of 30"}
    assert [len(v) for v in actual["retraining"].values()] == [3, 3, 3]
    for name, runs in actual["patterns"].items():
        assert len(runs) == 1
        few = "counts" in name or "DC-KM" in name
        if "batches" not in name:
            assert len(runs[0]["party"]) == (2 if few else 8)
        assert bool(runs[0]["ratio"]) != few
        assert all(ratio > 0.99 for _, ratio in runs[0]["ratio"])
    page = "\n".join(removal_page([actual]))
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == (2 + 1) + (2 + 6) + (2 + 3)
    assert page.count("random, DC-KM") == 1


# -- tables ---------------------------------------------------------------------------


def test_loss_compares_all_methods(data):
    actual = loss(data, 2, ["MUFC"])
    assert set(actual["methods"]) == set(METHODS)
    for one in actual["methods"].values():
        assert {len(values) for values in one.values()} == {2}
        for induced, nearest in zip(one["induced"], one["nearest"], strict=True):
            assert 0.999 < nearest <= induced + 1e-12
    (whole,) = actual["runs"]
    assert whole["equal"]
    page = "\n".join(loss_page([actual]))
    assert sum("tiny" in line for line in page.splitlines()) == 1 + 5 + 1
    assert "the same" in page


def test_a_party_sends_what_the_formula_says():
    """8 (2 K L + K L ceil(d bits / 61)) to within a tenth, for many slots."""
    X = mixture([400, 400], 120, np.random.default_rng(0))
    data = pooled("wide", "", X, 8, n_parties=12)
    actual = whole_run(data, "MUFC")
    slots, bits = 8 * 12, 5  # 1 / gamma is 28.3, bins 29
    formula = 8 * (2 * slots + slots * -(-120 * bits // 61))
    assert message_bytes(data) == actual["formula"]
    assert abs(actual["formula"] / formula - 1) < 0.1
    assert abs(actual["bytes"] / formula - 1) < 0.1
    assert actual["round_trips"] == 3


def test_published_figures_stand_beside_their_method(data):
    more = {"published": {"MUFC": 1.14, "DC-KM": 1.46}}
    some = SplitRows(data.name, "", data.rows, 3, data.best, **more)
    lines = "\n".join(loss_page([loss(some, 1)])).splitlines()
    of = [line for line in lines if "1.14 |" in line or "1.46 |" in line]
    assert ["DC-KM" in line for line in of] == [False, True]


def test_settings_has_three_tables(data):
    actual = settings([data], [data], 1)
    assert [len(cells) for cells in actual.values()] == [5, 4, 1]
    assert actual["clusters"][0]["value"] == "2"
    assert sum(part.startswith("## ") for part in settings_page(actual)) == 3


def test_whole_runs_forget(data):
    actual = in_process(data, 4)
    assert [one["what"] for one in actual] == [
        "train",
        "remove one row",
        "remove 4 rows of one party",
        "train again",
    ]
    assert {one["round_trips"] for one in actual} == {3}
    *_, rows = runs_page({"here": actual})
    assert len(rows.splitlines()) == 2 + 4


def test_all_sets_can_be_generated_or_say_why(tmp_path):
    for name, make in mufc_data.DATASETS.items():
        if name in ("gaussian", "tmi", "tcga", "postures"):
            continue
        with pytest.raises(MissingData, match=r"there is no \w+\.npz in"):
            make(tmp_path, True)
    few = mufc_data.DATASETS["tcga"](None, True)
    assert (few.d, few.k, len(few.rows)) == (57, 4, 10)
    assert few.note.startswith("GENERATED, not TCGA")
    generated = mufc_data.DATASETS["gaussian"](None, True)
    assert set(generated.published) == set(METHODS) - {"MUFC, weighted bins"}


def test_stand_ins_have_a_heading_of_their_own_and_no_printed_figures(data):
    printed = SplitRows("ours", "", data.rows, 3, data.best, published={"MUFC": 1.14})
    parts = list(loss_page([loss(printed, 1), loss(data, 1)]))
    first, second = (
        parts.index("## Loss ratios"),
        parts.index("## Loss ratios of stand-ins"),
    )
    assert "**ours**" in parts[first + 1]
    assert "printed" in parts[first + 2]
    assert f"**{data.name}**" in parts[second + 1]
    assert "printed" not in parts[second + 2]


def test_celltype_keeps_its_parties(folder):
    data = mufc_data.celltype(folder, False)
    assert [len(X) for X in data.rows] == [100] * 4
    with np.load(folder / "celltype.npz") as file:
        np.testing.assert_array_equal(data.rows[3], file["X64"][3::4] - 0.5)


def run(*arguments):
    """Run the command, and let its exceptions through."""
    app([str(word) for word in arguments], standalone_mode=False)


def test_command_writes_json_and_tables(folder, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["loss", "removal", "--datasets", "celltype", "--datasets", "mnist"]
    arguments += ["--seeds", "1", "--requests", "4", "--quick"]
    run(*arguments, "--data-dir", folder, "--output-dir", out)
    assert sorted(os.listdir(out)) == [
        f"mufc-{table}.{ending}"
        for table in ("loss", "removal")
        for ending in ("json", "md")
    ]
    results = json.loads((out / "mufc-loss.json").read_text())
    assert results["loss"][0]["name"] == "celltype"
    assert all(one["equal"] for one in results["loss"][0]["runs"])
    assert list(results["skipped"]) == ["mnist"]
    page = (out / "mufc-removal.md").read_text()
    assert page in capsys.readouterr().out
    assert "**mnist** was skipped: there is no mnist.npz in" in page


def test_command_makes_settings_and_runs(folder, tmp_path):
    """Of one data set; runs without SuperNodes, since no project is given."""
    arguments = ["settings", "runs", "--datasets", "celltype", "--seeds", "1"]
    run(*arguments, "--data-dir", folder, "--output-dir", tmp_path)
    results = json.loads((tmp_path / "mufc-runs.json").read_text())
    assert [len(runs) for runs in results["runs"].values()] == [4]
    results = json.loads((tmp_path / "mufc-settings.json").read_text())
    assert [len(cells) for cells in results["settings"].values()] == [5, 4, 0]


@pytest.mark.parametrize("table", ["loss", "settings", "runs"])
def test_tables_without_data_say_so(table, tmp_path):
    folders = ["--data-dir", tmp_path, "--output-dir", tmp_path]
    with pytest.raises(MissingData, match=r"celltype: there is no celltype\.npz in"):
        run(table, "--datasets", "celltype", *folders)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["seeds", "requests"])
def test_command_refuses_what_cannot_be(name):
    with pytest.raises(click.UsageError) as caught:
        run("loss", f"--{name}", "0")
    assert caught.value.param.name == name
