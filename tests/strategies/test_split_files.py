"""Party files of different rows: levels, missing values and scales over all parties."""

import csv
from pathlib import Path

import numpy as np
import pytest
from supernodes import SuperNodes, write_rows

from vfl_flower import MUFC, FDSKLDirect, FKKMeans, Party, simulate
from vfl_flower.app.config import check_run_config as checked
from vfl_flower.app.config import make_strategy, party_source
from vfl_flower.clients.kernel_kmeans import training as party
from vfl_flower.data import load_party
from vfl_flower.data.levels import parse_levels
from vfl_flower.party.party import PartyError
from vfl_flower.server.exchange import FederationError

HEADER = ["id", "age", "sex", "region", "seen", "weight"]
LEVELS = "sex=f|m;region=n|s|w|other"
RUN = {"strategy": "fk-kmeans", "levels": LEVELS, "id-column": "id"}


def table(n: int = 150, seed: int = 3) -> list[list[str]]:
    """Return rows as text; of these party m has those that have m as last digit."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        group = int(rng.integers(2))
        age = "" if rng.random() < 0.1 else f"{40 + 20 * group + rng.normal():.4f}"
        # No party but the first knows both levels.
        sex = "" if rng.random() < 0.05 else ("fm"[group] if i % 3 == 0 else "m")
        region = str(rng.choice([*["ns", "sw", "snxy"][i % 3]]))
        weight = f"{rng.normal() / 1000 + group / 100:.6f}"
        rows.append([str(i), age, sex, region, f"2020-01-{1 + group:02d}", weight])
    return rows


def write(path: Path, rows: list[list[str]], order: list[int]) -> None:
    write_rows(path, *([row[k] for k in order] for row in [HEADER, *rows]))


@pytest.fixture
def folder(files: Path) -> Path:
    """Return a folder of three files, whose columns are in three orders."""
    orders = [0, 1, 2, 3, 4, 5], [5, 4, 3, 0, 2, 1], [2, 0, 5, 1, 3, 4]
    for m, order in enumerate(orders):
        write(files / f"{m}.csv", table()[m::3], order)
    return files


def loaded(folder: Path, **run: object) -> list[Party]:
    """Return the parties of a folder, as simulated SuperNodes load them."""
    config = RUN | {"data": str(folder)} | run
    nodes = [{"partition-id": m, "num-partitions": 3} for m in range(3)]
    return [load_party(party_source(node, config)) for node in nodes]


def reference() -> tuple[np.ndarray, list[str]]:
    """Return the pooled rows as numbers, filled, and the names of their columns."""
    rows = table()
    columns = {"age": np.array([float(r[1] or "nan") for r in rows])}
    for name, place, levels in (("sex", 2, "fm"), ("region", 3, "nsw")):
        known = np.array([row[place] != "" for row in rows])
        for level in levels:
            ones = np.array([float(row[place] == level) for row in rows])
            columns[f"{name}={level}"] = np.where(known, ones, np.nan)
    regions = np.column_stack([columns[f"region={level}"] for level in "nsw"])
    columns["region=other"] = 1 - regions.sum(axis=1)
    days = (np.datetime64("2020-01-01") - np.datetime64("1970-01-01")).astype(int)
    columns["seen"] = np.array([days + int(r[4][-2:]) - 1 for r in rows], dtype=float)
    columns["weight"] = np.array([float(row[5]) for row in rows])
    X = np.column_stack(list(columns.values()))
    return np.where(np.isnan(X), np.nanmean(X, axis=0), X), list(columns)


def small(**settings: object) -> FKKMeans:
    return FKKMeans(2, 4, n_features=30, iterations=2, n_init=4, **settings)


def to_the_bit(**settings: object) -> FKKMeans:
    """Return a strategy whose draws do not depend on the last bits of centres."""
    return small(clustering="coreset", **settings)


@pytest.mark.parametrize(
    ("settings", "standardize"),
    [({}, True), ({}, False), ({"gamma": 0.1}, True), ({"kernel": "laplacian"}, False)],
)
def test_files_give_the_clusters_of_the_pooled_rows(folder, settings, standardize):
    X, names = reference()
    strategy = to_the_bit(standardize=standardize, **settings)
    parties = loaded(folder)
    assert [p.X.shape[1] for p in parties] == [len(names)] * 3
    assert [bool(np.isnan(p.X).any()) for p in parties] == [True] * 3
    # The means of each party alone would be others.
    assert abs(np.nanmean(parties[0].X[:, 0]) - X[:, 0].mean()) > 1e-3
    ours = simulate(strategy, parties, seed=5)
    pooled = [Party(X[m::3], columns=names) for m in range(3)]
    theirs = simulate(strategy, pooled, seed=5)
    for a, b in zip(ours.model.labels_, theirs.model.labels_, strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("gamma", "inertia", "threshold"):
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=1e-9)
    np.testing.assert_allclose(
        ours.model.transform(X), theirs.model.transform(X), atol=1e-8
    )
    part = ours.model.parts[1]
    np.testing.assert_allclose(part["fill"], X.mean(axis=0), rtol=1e-12, atol=1e-15)
    if standardize:
        np.testing.assert_allclose(part["scale"], 1 / X.std(axis=0), rtol=1e-6)


def test_missing_values_of_a_column_far_from_0_become_its_mean(files):
    """Such columns are asked for again, less a rough mean."""
    rows = [["" if i % 7 == 3 else str(10**9 + i % 5), str(i % 4)] for i in range(90)]
    for m in range(3):
        write_rows(files / f"{m}.csv", ["x", "y"], *rows[m::3])
    parties = loaded(files, **{"levels": "", "id-column": ""})
    known = [float(x) for x, _ in rows if x]
    part = simulate(small(standardize=True), parties, seed=5).model.parts[0]
    assert part["fill"][0] == pytest.approx(np.mean(known), rel=1e-12)


def test_without_missing_values_nothing_more_is_asked_for(folder):
    """The sums of a run, and what it tells, are then those of before."""
    X, names = reference()
    parties = [Party(X[m::3], columns=names) for m in range(3)]
    model = simulate(small(), parties, seed=5).model
    assert "fill" not in model.parts[0]
    with pytest.raises(ValueError, match="the training rows had none"):
        model.predict(np.full((1, len(names)), np.nan))


def test_new_rows_are_filled_with_the_mean_over_all(folder, tmp_path):
    parties = loaded(folder)
    model = simulate(small(standardize=True), parties, seed=5).model
    X, _ = reference()
    new = X[:4].copy()
    new[:, 0] = np.nan
    filled = new.copy()
    filled[:, 0] = X[:, 0].mean()
    np.testing.assert_allclose(model.transform(new), model.transform(filled), atol=1e-9)
    # A file of new rows may lack values that training did not lack, and levels.
    write(tmp_path / "new.csv", [["1", "", "m", "q", "2020-01-02", "0"]], [*range(6)])
    source = party_source({"data": str(tmp_path / "new.csv"), "id-column": "id"}, {})
    again = load_party(source, encoding=parties[0].encoding)
    assert np.isnan(again.X[0, 0])
    assert again.columns == parties[0].columns
    model.predict(again.X)


def test_mufc_takes_text_whose_levels_are_given(files):
    for m in range(3):
        rows = [["age", "sex"], *([m, "fm"[k % 2] if m else "f"] for k in range(30))]
        write_rows(files / f"{m}.csv", *(row[:: 1 - 2 * (m == 1)] for row in rows))
    run = {"strategy": "mufc", "id-column": ""}
    parties = loaded(files, levels="sex=f|m", **run)
    model = simulate(MUFC(n_clusters=2, box="0,2"), parties, seed=0).model
    assert int(model.sizes_.sum()) == 90
    with pytest.raises(PartyError, match="one-hot is off"):
        loaded(files, levels="", **run)


# -- bad inputs ------------------------------------------------------------------------


def error_of(parties: list[Party]) -> str:
    with pytest.raises(FederationError) as caught:
        simulate(small(), parties)
    return str(caught.value)


def test_levels_that_differ_are_refused_and_not_shown(folder):
    """The first has f and m, and the others have m alone."""
    text = error_of(loaded(folder, levels=""))
    assert text.startswith("text columns must have the same levels at all parties: ")
    assert "levels of 'sex', 'region' differ between '0' and '1'; " in text
    assert "m" not in text.split()


@pytest.mark.parametrize(
    ("place", "value", "kinds"),
    [
        (1, "old", "'age' is of kind text at '2' and number at '0': set 'levels' for"),
        (4, "3", "'seen' is of kind number at '2' and date at '0'"),
    ],
)
def test_a_column_of_another_kind_is_refused(folder, place, value, kinds):
    rows = table()[2::3]
    for row, end in zip(rows, "ab" * 25, strict=True):
        row[place] = value + (end if value == "old" else "")
    write(folder / "2.csv", rows, [*range(6)])
    text = error_of(loaded(folder))
    assert text.startswith(f"a column must be of the same kind at all parties: {kinds}")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"levels": "sex=f|x;region=other|n"}, "not among its levels"),
        ({"levels": "sex=f|m|NA;region=other|n"}, "must not mark missing values"),
        ({"levels": "age=1|2"}, "strings, in"),
        ({"impute": "none"}, "impute is none"),
    ],
)
def test_texts_and_gaps_that_do_not_fit_are_refused(folder, run, words):
    with pytest.raises(PartyError) as caught:
        loaded(folder, **run)
    text = str(caught.value)
    assert words in text
    assert "'m'" not in text


def test_levels_of_a_column_that_is_not_there(folder):
    node = {"data": str(folder / "0.csv"), "levels": "sexx=f|m", "id-column": "id"}
    with pytest.raises(PartyError, match="no column 'sexx', for which levels"):
        load_party(party_source(node, {"strategy": "fk-kmeans"}))


def test_few_known_values_make_no_mean(folder):
    rows = table()[0::3]
    for row in rows[19:]:
        row[1] = ""
    write(folder / "0.csv", rows, [*range(6)])
    with pytest.raises(PartyError, match="'age' of party '0' must have at least 20"):
        loaded(folder)


def test_the_median_of_one_party_is_not_that_of_all(folder):
    with pytest.raises(ValueError, match="only the median of its own rows"):
        loaded(folder, impute="median")


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        (MUFC(n_clusters=2, box="-1e6,1e6"), "which MUFC does not fill"),
        (FDSKLDirect(), "must fill their missing values"),
    ],
)
def test_missing_values_need_a_strategy_that_fills_them(folder, strategy, rule):
    with pytest.raises(FederationError, match=rule):
        simulate(strategy, loaded(folder))


def test_a_server_that_does_not_fill_is_refused(folder):
    ours = loaded(folder)[0]
    ours.index, ours.n_parties = 0, 3
    party.begin(ours, known=True)
    with pytest.raises(PartyError, match="fill must be given"):
        party.gram(ours, t=1, setup=party.Setup("gaussian", 1.0, 5, 5))


# -- levels in a config ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sex", "must be 'column=a|b'"),
        ("sex=f|m;sex=f|m", "each column named once"),
        ("sex=f|f", "must be distinct, non-empty"),
        ("sex=f|", "must be distinct, non-empty"),
        ("sex=f", "2 to 1000 levels, got 1"),
    ],
)
def test_levels_that_are_none(text, words):
    with pytest.raises(ValueError, match=words.replace("|", r"\|")):
        parse_levels(text, files=True)


def test_levels_of_a_file(tmp_path):
    path = tmp_path / "levels.toml"
    path.write_text('sex = ["f", "m"]\n"the region" = ["a=b", "c|d;e"]\n')
    wanted = {"sex": ("f", "m"), "the region": ("a=b", "c|d;e")}
    assert parse_levels(str(path), files=True) == wanted
    with pytest.raises(ValueError, match="only in a node config"):
        parse_levels(str(path), files=False)
    for bad in ("sex = 3", "sex = ['f', 3]", "sex", "[sex]\na = 1"):
        path.write_text(bad)
        with pytest.raises(ValueError, match="levels"):
            parse_levels(str(path), files=True)
    with pytest.raises(ValueError, match="cannot be read") as caught:
        parse_levels(str(tmp_path / "nothing.toml"), files=True)
    assert str(tmp_path) not in str(caught.value)


def test_levels_of_a_server_apply_to_no_node_with_data(folder):
    assert not party_source({"data": str(folder / "0.csv")}, RUN).levels
    assert make_strategy(checked(RUN)).n_clusters == 10


def test_other_orders_of_levels_are_one(folder):
    ours = loaded(folder)[0]
    same = loaded(folder, levels="region=other|w|s|n;sex=m|f")[0]
    assert same.columns == ours.columns
    np.testing.assert_array_equal(same.X, ours.X)


# -- as on SuperNodes ------------------------------------------------------------------


def test_supernodes_and_one_process_give_the_same(folder):
    strategy = to_the_bit(standardize=True, seed=5)
    consent = "[leaves]\nrow-sums = true\nembedded-rows = true\n"
    grid = SuperNodes(folder, consent, {"levels": LEVELS}, strategy="fk-kmeans")
    model = strategy.start(grid).model
    for m, labels in enumerate(simulate(strategy, loaded(folder)).model.labels_):
        path = folder.parent / f"state-{m}" / f"predictions-{model.id}.csv"
        with path.open() as file:
            written = [int(row["prediction"]) for row in csv.DictReader(file)]
        assert written == labels.tolist()
