"""Encoding, filling, scaling: a worked example, scikit-learn and pandas."""

import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest
from party_files import load

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
    np.testing.assert_allclose(
        party.X,
        [
            [1, 0, 1, 1, 10],
            [3, 1, 0, 0, 10],
            [4, 1 / 3, 2 / 3, 1, 10],
            [4, 0, 1, 1, 10],
        ],
        rtol=1e-15,
    )
    (record,) = caplog.records  # once, and not again from the cache
    assert record.name == "vfl_flower"
    assert record.getMessage() == (
        "party 'airline': text column 'carrier' became 2 columns of 0 and 1; "
        "1 missing values of column 'a' became its mean; "
        "1 missing values of column 'carrier' became its mean"
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


@pytest.mark.parametrize("value", [0.1, 1e-300, 1e9 + 0.1])
def test_a_constant_column_is_scaled_to_zero(tmp_path, value):
    np.savez(tmp_path / "a.npz", X=np.full((999, 1), value))
    assert not load(tmp_path / "a.npz", standardize=True).X.any()


def test_one_hot_agrees_with_pandas(tmp_path):
    rng = np.random.default_rng(0)
    text = rng.choice(["b", "a", "ä", "Z"], 500)
    frame = pd.DataFrame({"t": text, "c": pd.Categorical(rng.integers(9, 12, 500))})
    frame.to_feather(tmp_path / "a.feather")
    party = load(tmp_path / "a.feather")
    expected = pd.get_dummies(frame, prefix_sep="=", dtype=float)
    assert party.columns == ["t=Z", "t=a", "t=b", "t=ä", "c=9", "c=10", "c=11"]
    np.testing.assert_array_equal(party.X, expected[party.columns])


def test_levels_are_the_same_across_chunks_of_a_file(tmp_path):
    chunks = [
        pa.array(["x", "y"]).dictionary_encode(),
        pa.array(["y", "a"]).dictionary_encode(),
    ]
    table = pa.table({"t": pa.chunked_array(chunks)})
    pyarrow.feather.write_feather(table, tmp_path / "a.feather")
    party = load(tmp_path / "a.feather")
    assert party.columns == ["t=a", "t=x", "t=y"]
    assert party.X.argmax(axis=1).tolist() == [1, 2, 2, 0]


def test_columns_are_chosen_and_ordered(write):
    path = write("id,c,t,a\n1,2,secret,3\n")
    assert load(path, columns=("a", "c")).X.tolist() == [[3, 2]]
    assert load(path, columns=("c",), id_column="id").X.tolist() == [[2]]
