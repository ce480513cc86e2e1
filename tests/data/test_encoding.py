"""Encoding, filling, scaling: a worked example, scikit-learn and pandas."""

import json
import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest
from party_files import load, refusal, write_frame

from vfl_flower.party.party import digest_ids

MIXED = """a,carrier,flag,b
1,UA,true,10
,AA,false,10
4,,true,10
4,UA,true,10
"""


def test_mean_fills_numbers_and_levels(write, caplog):
    """A = (1, ?, 4, 4) has mean 3; carrier = (UA, AA, ?, UA) is 1/3 AA and 2/3 UA."""
    with caplog.at_level(logging.INFO, logger="vfl_flower"):
        path = write(MIXED)
        party = load(path)
        load(path)
    assert party.columns == ["a", "carrier=AA", "carrier=UA", "flag", "b"]
    expected = [[1, 0, 1, 1, 10], [3, 1, 0, 0, 10]]
    expected += [[4, 1 / 3, 2 / 3, 1, 10], [4, 0, 1, 1, 10]]
    np.testing.assert_allclose(party.X, expected, rtol=1e-15)
    (record,) = caplog.records  # once, and not again from the cache
    assert record.name == "vfl_flower"
    assert record.getMessage() == (
        "party 'airline': column 'a' lacks 1 of 4 values, which are set to its mean; "
        "column 'carrier' lacks 1 of 4 values, which are set to its mean; "
        "column 'carrier' holds 2 distinct strings, which become 2 columns of 0 and 1; "
        "column 'flag' holds yes and no, or true and false, which become 1 and 0"
    )


def test_median_fills_numbers_and_levels(write):
    X = load(write(MIXED), impute="median").X
    assert X[1, 0] == 4
    assert X[2, 1:3].tolist() == [0, 1]


def test_standardize_agrees_with_scikit_learn(write):
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    party = load(write(MIXED), standardize=True)
    frame = pd.read_csv(write(MIXED, "again.csv"))
    numbers = SimpleImputer().fit_transform(frame[["a", "flag", "b"]])
    expected = StandardScaler().fit_transform(numbers)
    np.testing.assert_allclose(party.X[:, [0, 3, 4]], expected, atol=1e-15)
    np.testing.assert_allclose(party.X.mean(axis=0), 0, atol=1e-15)
    assert party.X[:, 4].tolist() == [0, 0, 0, 0]  # constant


@pytest.mark.parametrize("value", [0.1, 1e-100, 1e9 + 0.1])
def test_a_constant_column_is_scaled_to_zero(tmp_path, value):
    np.savez(tmp_path / "a.npz", X=np.full((999, 1), value))
    assert not load(tmp_path / "a.npz", standardize=True).X.any()


def test_one_hot_agrees_with_pandas(tmp_path):
    rng = np.random.default_rng(0)
    text = rng.choice(["b", "a", "ä", "Z"], 500)
    frame = pd.DataFrame(
        {"t": text, "c": pd.Categorical(rng.integers(9, 12, 500).astype(str))}
    )
    frame.to_feather(tmp_path / "a.feather")
    party = load(tmp_path / "a.feather")
    expected = pd.get_dummies(frame, prefix_sep="=", dtype=float)
    assert party.columns == ["t=Z", "t=a", "t=b", "t=ä", "c=10", "c=11", "c=9"]
    np.testing.assert_array_equal(party.X, expected[party.columns])


def test_levels_are_the_same_across_chunks_of_a_file(tmp_path):
    chunks = [pa.array(list(t)).dictionary_encode() for t in ("xy", "ya")]
    table = pa.table({"t": pa.chunked_array(chunks)})
    pyarrow.feather.write_feather(table, tmp_path / "a.feather")
    party = load(tmp_path / "a.feather")
    assert party.columns == ["t=a", "t=x", "t=y"]
    assert party.X.argmax(axis=1).tolist() == [1, 2, 2, 0]


def test_columns_are_chosen_and_ordered(write):
    path = write("id,c,t,a\n1,2,secret,3\n")
    assert load(path, columns=("a", "c")).X.tolist() == [[3, 2]]
    assert load(path, columns=("c",), id_column="id").X.tolist() == [[2]]


# --- Encoding new rows as those of training

TABLE = pd.DataFrame(
    {
        "number": [0.1, np.nan, 3.3, -7.0, 1e9, 0.7],
        "text": ["b", "a", None, "ä", "b", "b"],
        "flag": [True, False, True, True, False, False],
        "constant": [0.1] * 6,
        "whole": [3, 1, 4, 1, 5, 9],
    }
)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("impute", ["mean", "median"])
@pytest.mark.parametrize(
    "name", ["a.csv", "a.parquet", "a.feather", "a.arrow", "stream.arrow", "a.npz"]
)
def test_its_own_encoding_gives_the_training_rows_bit_by_bit(
    tmp_path, name, impute, standardize
):
    path = tmp_path / name
    if path.suffix == ".npz":
        numbers = TABLE.select_dtypes("number")
        np.savez(path, X=numbers.to_numpy(), columns=np.array(list(numbers)))
    else:
        write_frame(TABLE, path)
    trained = load(path, impute=impute, standardize=standardize)
    encoding = json.loads(json.dumps(trained.encoding))
    again = load(path, encoding)
    assert again.X.tobytes() == trained.X.tobytes()
    assert again.columns == trained.columns
    assert again.encoding == trained.encoding


def test_an_encoding_worked_by_hand(write):
    """A = (1, ?, 4, 4) has mean 3 and, filled, variance 6/4; b is constant."""
    path = write(MIXED)
    columns = load(path, columns=("a", "carrier", "b"), standardize=True).encoding
    assert columns["format"] == 1
    a, carrier, b = columns["columns"]
    third = 1 / 3
    assert (a["name"], a["levels"], a["fill"], a["mean"]) == ("a", None, [3], [3])
    np.testing.assert_allclose(a["scale"], np.sqrt(1.5))
    assert (carrier["name"], carrier["levels"]) == ("carrier", ["AA", "UA"])
    np.testing.assert_allclose(carrier["fill"], [third, 2 * third])
    np.testing.assert_allclose(carrier["mean"], [third, 2 * third])
    assert (b["fill"], b["mean"], b["scale"]) == ([10], [10], [0])
    assert load(path, impute="none", columns=("b",)).encoding["columns"] == [
        {"name": "b", "levels": None, "fill": [], "mean": [], "scale": []}
    ]


def test_new_rows_are_encoded_as_those_of_training(write, caplog):
    encoding = load(write(MIXED)).encoding
    caplog.clear()
    path = write("b,more,carrier,flag,a\n7,9,ZZ,true,5\n,9,,,\n", "n.csv")
    party = load(path, encoding)
    assert party.columns == ["a", "carrier=AA", "carrier=UA", "flag", "b"]
    np.testing.assert_array_equal(
        party.X, [[5, 0, 0, 1, 7], [3, 1 / 3, 2 / 3, 0.75, 10]]
    )
    assert [record.getMessage() for record in caplog.records] == [
        "party 'n': its local model was not trained on these columns, which are "
        "ignored: 'more'",
        "party 'n': column 'a' lacks 1 of 2 values, which are set to the fill value "
        "from training; column 'carrier' lacks 1 of 2 values, which are set to the "
        "fill value from training; column 'carrier' has 1 values that did not occur "
        "in training: they become 0 in each of its columns; column 'flag' lacks 1 of 2 "
        "values, which are set to the fill value from training; column 'b' lacks 1 of "
        "2 values, which are set to the fill value from training",
    ]


def test_new_rows_are_scaled_by_training_and_constants_stay_zero(write):
    encoding = load(write("a,b,t\n1,5,x\n3,5,y\n"), standardize=True).encoding
    X = load(write("a,b,t\n9,6,y\n2,5,z\n1,,x\n", "n.csv"), encoding).X
    np.testing.assert_array_equal(X, [[7, 0, -1, 1], [0, 0, -1, -1], [-1, 0, 1, -1]])


def test_the_options_of_reading_say_nothing_beside_an_encoding(write):
    trained = load(write(MIXED))
    options = {"columns": ("b",), "standardize": True, "one_hot": False}
    again = load(write(MIXED), trained.encoding, impute="none", **options)
    np.testing.assert_array_equal(again.X, trained.X)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(2, 3), slice(1, 4)])
def test_few_rows_of_a_csv_are_read_as_all_of_them(write, rows):
    """Any rows alone look like numbers, dates or truth values, or are missing."""
    lines = ["1,1,2013-01-01,true", "2,2,x,x", "3,2,2013-01-02,false", "4,x,x,inf"]
    lines += ["5,-3,x,x", "0.5, 4,x,.5", ",,,"]
    trained = load(write("\n".join(["n,a,b,c", *lines])))
    assert trained.columns[1:6] == ["a=-3", "a=1", "a=2", "a=4", "a=x"]
    party = load(write("\n".join(["n,a,b,c", *lines[rows]]), "n.csv"), trained.encoding)
    np.testing.assert_array_equal(party.X, trained.X[rows])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t,f\nx,true\n", "party 'n' has no column 'a', on which its local model"),
        ("a,t,f\nsecret,x,true\n", "column 'a' of party 'n' must hold numbers"),
        ("a,t,f\n1,2,true\n", "column 't' of party 'n' must hold text"),
        ("a,t,f\n1,2013-01-01,true\n", "column 't' of party 'n' must hold text"),
        ("a,t,f\n2013-01-01,x,true\n", "column 'a' of party 'n' must hold numbers"),
        ("a,t,f\ninf,x,true\n", "column 'a' of party 'n' must have no infinite"),
        ("a,t,f\n", "a header but no rows"),
        ("a,t,f,a\n1,x,true,2\n", "more than one column named 'a'"),
    ],
)
def test_errors_of_new_rows(write, text, words):
    encoding = load(write("a,t,f\n1,x,true\n2,y,false\n")).encoding
    assert words in refusal(write(text, "n.csv"), encoding)


@pytest.mark.parametrize(
    "column", [pa.array([1, 2]), pa.array([[1], [2]]), pa.array([1, 2], pa.date32())]
)
def test_a_typed_column_must_be_text_where_training_had_text(write, tmp_path, column):
    encoding = load(write("a\nx\ny\n")).encoding
    pyarrow.feather.write_feather(pa.table({"a": column}), tmp_path / "n.feather")
    words = "column 'a' of party 'n' must hold text"
    assert words in refusal(tmp_path / "n.feather", encoding)


def test_new_rows_too_large_for_the_scale_of_training(write):
    encoding = load(write("a\n1e-9\n2e-9\n"), standardize=True).encoding
    words = "column 'a' of party 'n' has values too large"
    assert words in refusal(write("a\n1e308\n", "n.csv"), encoding)
    missing = "a,b\n1e99,1\n,2\n-1e99,3\n"
    path = write(missing, "m.csv")
    assert "impute is none" in refusal(path, impute="none", standardize=True)


def test_missing_values_where_training_allowed_none(write):
    encoding = load(write("a,t\n1,x\n2,y\n"), impute="none").encoding
    assert load(write("a,t\n3,z\n", "n.csv"), encoding).X.tolist() == [[3, 0, 0]]
    text = refusal(write("a,t\n3,\n,x\n,y\n", "m.csv"), encoding)
    assert "impute was none in training: 2 in column 'a', 1 in column 't'" in text


def test_new_rows_need_no_labels(write, caplog):
    options = {"label_column": "y", "id_column": "id"}
    encoding = load(write("id,a,y\n1,2,3\n2,3,5\n"), **options).encoding
    assert [about["name"] for about in encoding["columns"]] == ["a"]
    for text in ("id,a\n7,5\n", "y,id,a\n,7,5\n"):
        party = load(write(text, "n.csv"), encoding, **options)
        assert party.y is None
        assert party.X.tolist() == [[5]]
        assert party.ids_digest == digest_ids(np.array([7]))
    party = load(write("y,id,a\n1,7,5\n,8,6\n", "m.csv"), encoding, **options)
    np.testing.assert_array_equal(party.y, [1, np.nan])
    assert "which are ignored" not in caplog.text
    words = "has no column 'id' (its id-column)"
    assert words in refusal(write("a\n1\n", "o.csv"), encoding, **options)
    words = "has no column 'a', on which its"  # a label now
    assert words in refusal(write("a\n1\n", "o.csv"), encoding, label_column="a")


def test_a_folder_of_new_rows(write, tmp_path):
    write("a,y\n1,2\n3,5\n", "f/1.csv")
    write("b\n1\n3\n", "f/2.csv")
    options = {"label_column": "y", "standardize": True}
    trained = [load(tmp_path / "f", index=j, **options) for j in (0, 1)]
    write("a\n2\n", "g/1.csv")
    write("c,b\n2,5\n", "g/2.csv")
    for j, expected in enumerate([0, 3]):
        party = load(tmp_path / "g", trained[j].encoding, index=j, **options)
        assert party.X.tolist() == [[expected]]
        assert party.y is None


def test_an_encoding_of_a_later_format(write):
    path = write("a\n1\n")
    encoding = load(path).encoding | {"format": 3}
    words = "the encoding of party 'airline' must have format 1 to 2, got 3"
    assert words in refusal(path, encoding)
