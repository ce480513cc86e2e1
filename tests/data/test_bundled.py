"""Sets that are split by index and count."""

import numpy as np
import pytest
from party_files import load, refusal

from vfl_flower.data import load_party
from vfl_flower.data.bundled import ids_of_bundled
from vfl_flower.data.source import PartySource
from vfl_flower.party.party import PartyError


@pytest.mark.parametrize(
    "name", ["breast_cancer", "diabetes", "digits", "iris", "wine"]
)
def test_bundled_sets_equal_scikit_learn(name):
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    parties = [load(name, index=j, count=3) for j in range(3)]
    np.testing.assert_array_equal(np.hstack([party.X for party in parties]), bunch.data)
    columns = [column for party in parties for column in party.columns]
    assert columns == list(bunch.feature_names)
    np.testing.assert_array_equal(parties[2].y, bunch.target)
    assert [party.y is None for party in parties] == [True, True, False]
    assert all(party.X.base is None for party in parties)  # not the whole set


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("data", ["iris", "synthetic:n=50,d=5"])
def test_an_encoding_repeats_what_was_done_to_a_split_set(data, rows):
    place = {"index": 0, "count": 2, "rows": rows}
    own = load(data, standardize=True, **place)
    again = load(data, own.encoding, **place)
    np.testing.assert_array_equal(again.X, own.X)
    assert again.columns == own.columns
    assert again.encoding is own.encoding
    raw = load(data, **place)
    for k, about in enumerate(own.encoding["columns"]):
        assert about["name"] == own.columns[k]
        assert about["mean"] == [raw.X[:, k].mean()]
        assert about["scale"] == [raw.X[:, k].std()]
    assert raw.encoding["columns"][0]["mean"] == []
    np.testing.assert_array_equal(load(data, raw.encoding, **place).X, raw.X)


def test_an_encoding_chooses_and_orders_split_columns():
    columns = ("s5", "bmi", "bp")
    own = load("diabetes", index=1, count=3, columns=columns, standardize=True)
    again = load("diabetes", own.encoding, index=1, count=3)
    assert again.columns == own.columns == ["bmi"]
    np.testing.assert_array_equal(again.X, own.X)
    encoding = load("synthetic:n=9,d=4", index=0, count=1).encoding
    encoding["columns"] = encoding["columns"][3:1:-1]
    party = load("synthetic:n=9,d=4", encoding, index=0, count=1)
    assert party.columns == ["x3", "x2"]
    whole = load("synthetic:n=9,d=4", index=0, count=1)
    np.testing.assert_array_equal(party.X, whole.X[:, 3:1:-1])


def test_new_rows_of_a_generated_set_are_scaled_as_those_of_training():
    place = {"index": 0, "count": 1}
    encoding = load("synthetic:n=500,d=2", standardize=True, **place).encoding
    raw = load("synthetic:n=7,d=2", **place).X
    mean, scale = (
        np.array([about[key][0] for about in encoding["columns"]])
        for key in ("mean", "scale")
    )
    X = load("synthetic:n=7,d=2", encoding, **place).X
    np.testing.assert_array_equal(X, (raw - mean) / scale)


def test_errors_of_an_encoding_of_other_columns(write):
    place = {"index": 0, "count": 2}
    encoding = load("iris", **place).encoding
    words = "party-0 has no column 'sepal length (cm)', on which its local model"
    assert words in refusal("wine", encoding, **place)
    assert words in refusal("synthetic:d=4", encoding, **place)
    encoding = load(write("x0\nsecret\n")).encoding
    words = "column 'x0' of party-0 must hold text"
    assert words in refusal("synthetic:d=4", encoding, **place)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("iris", {"count": 5}, "at most 4, the number of columns, got 5"),
        ("iris", {"index": 3, "count": 3}, "num-partitions - 1 = 2, got 3"),
        ("iris", {"count": None}, "partition-id and num-partitions must be set"),
        ("iris", {"index": None}, "partition-id and num-partitions must be set"),
        ("iris", {"id_column": "a"}, "id-column needs a party f"),
        ("iris", {"columns": ("a",)}, "got 'a'"),
        ("synthetic", {"columns": ("x0",)}, "columns needs a pa"),
        ("synthetic:d=2", {"count": 3}, "at most 2, the number of col"),
        ("iris", {"index": 3, "count": 3, "rows": True}, "num-partitions - 1 = 2"),
        ("iris", {"count": 151, "rows": True}, "at most 150, the number of rows"),
        ("synthetic:n=9", {"count": 10, "rows": True}, "at most 9, the num"),
        *(
            (f"synthetic:{option}", {}, f":{option}'")
            for option in (
                *("n=0", "n=1.5", "m=1", "n", "noise=-1", "noise=nan", "noise=inf"),
                "correlation=1",
            )
        ),
    ],
)
def test_errors_of_sets_that_are_split(name, options, words):
    assert words in refusal(name, **{"index": 0, "count": 2} | options)


def test_a_download_that_fails_is_one_sentence(monkeypatch):
    import urllib.error

    import sklearn.datasets

    def offline(**_):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", offline)
    assert "could not download 'covtype'" in refusal("covtype", index=0, count=2)
    with pytest.raises(PartyError, match="could not download 'covtype'"):
        ids_of_bundled(PartySource(data="covtype", index=0, count=2, rows=True))


# --- Split by rows


@pytest.mark.parametrize("count", [1, 2, 7])  # also more than there are columns
@pytest.mark.parametrize("name", ["iris", "wine", "synthetic:n=51,d=3,noise=0.5"])
def test_rows_of_all_parties_are_all_rows(name, count):
    whole = load(name, index=0, count=1)
    parties = [load(name, index=j, count=count, rows=True) for j in range(count)]
    for j, party in enumerate(parties):
        np.testing.assert_array_equal(party.X, whole.X[j::count])
        np.testing.assert_array_equal(party.y, whole.y[j::count])
        assert party.columns == whole.columns
        assert party.index == j
        assert party.X.base is None  # not the whole set
    assert sum(party.n_rows for party in parties) == whole.n_rows


def test_chosen_columns_are_the_same_at_all_where_rows_are_split():
    place = {"count": 2, "rows": True, "columns": ("bp", "age")}
    parties = [load("diabetes", index=j, **place) for j in range(2)]
    assert [party.columns for party in parties] == [["bp", "age"]] * 2
    whole = load("diabetes", index=0, count=1, columns=("bp", "age"))
    np.testing.assert_array_equal(parties[1].X, whole.X[1::2])


# --- The generated set


def test_synthetic_is_the_same_however_it_is_split():
    name = "synthetic:n=50,d=7,noise=0.5,correlation=0.3"
    whole = load(name, index=0, count=1)
    parties = [load(name, index=j, count=3) for j in range(3)]
    np.testing.assert_array_equal(np.hstack([party.X for party in parties]), whole.X)
    np.testing.assert_array_equal(parties[2].y, whole.y)
    assert [party.y is None for party in parties] == [True, True, False]
    assert [party.X.shape for party in parties] == [(50, 3), (50, 2), (50, 2)]
    assert parties[1].columns == ["x3", "x4"]
    other = load_party(PartySource(data=name, index=0, count=1), seed=1)
    assert not np.isclose(other.X, whole.X).any()


def test_synthetic_has_the_moments_it_promises():
    """Seed 0; six standard errors of n = 40,000, so a false alarm is below 1e-6."""
    n = 40_000
    party = load(f"synthetic:n={n},d=5,noise=2,correlation=0.4", index=0, count=1)
    error = 6 / np.sqrt(n)
    assert np.abs(np.corrcoef(party.X.T) - (0.6 * np.eye(5) + 0.4)).max() < error
    assert np.abs(party.X.mean(axis=0)).max() < error
    assert np.abs(party.X.var(axis=0) - 1).max() < np.sqrt(2) * error
    rss = np.linalg.lstsq(party.X, party.y)[1][0]
    assert abs(rss / n - 4) < 4 * np.sqrt(2) * error


def test_synthetic_columns_are_no_stream_of_the_protocol():
    """Columns share no draw with SeedSequence([seed, party, step])."""
    X = load("synthetic:n=20,d=6", index=0, count=1).X
    draws = [
        np.random.default_rng([0, party, step]).standard_normal(20)
        for party in range(4)
        for step in range(6)
    ]
    assert not np.isin(np.array(draws), X).any()
