"""What a party and the estimators are given: checked, and never coerced."""

import numpy as np
import pandas as pd
import pytest

import vfl_flower as vf
from vfl_flower.sklearn import CoresetKMeans, CoresetRegressor, ForgettingKMeans

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
Y = X @ [1.0, 2.0, 3.0, 4.0]
FRAME = pd.DataFrame(X, columns=list("abcd"))
MASKED = np.ma.masked_array(X, mask=X > 1)

IDS = {
    "NaN in a list": ["x", float("nan"), "b"],
    "None": ["a", None, "b"],
    "object with NaN": np.array(["a", float("nan"), "b"], object),
    "NA": ["a", "NA", "b"],
    "nan as text": np.array(["a", "nan", "b"]),
    "pandas NA": pd.array(["a", pd.NA, "b"], "string"),
    "NaT": pd.Series([pd.Timestamp("2020-01-01"), pd.NaT, pd.NaT]),
    "blank": ["a", " ", "b"],
    "floats": [1.5, 2.5, 3.5],
    "truth values": [True, False, True],
    "masked": np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
    "lone surrogate": ["\ud800", "a", "b"],
    "equal in normal form": ["\u00e9", "e\u0301", "b"],
    "equal but for blanks": ["a", "a ", "b"],
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_that_are_none_are_refused_with_a_sentence(ids):
    with pytest.raises(ValueError, match="ids of the party must"):
        vf.Party(X[:3], ids=ids)


def test_ids_of_several_types_are_texts():
    ids = vf.Party(X[:3], ids=np.array([1, "2", 3], object)).ids
    assert ids.tolist() == ["1", "2", "3"]


DATES = pd.date_range("2020-01-01", periods=N)
BAD = {
    "masked": (MASKED, "masked value"),
    "text": (X.astype(str), "text or dates"),
    "text as object": (X.astype(str).astype(object), "text or dates"),
    "a column of text": (FRAME.assign(a=FRAME["a"].astype(str)), "'a'"),
    "a column of dates": (FRAME.assign(a=DATES), "'a'"),
    "dates": (FRAME.assign(a=DATES)[["a"]], "'a'"),
    "categories": (FRAME.assign(a=pd.Categorical(["x", "y"] * (N // 2))), "'a'"),
    "nullable": (FRAME.astype("Float64").where(FRAME < 1), "missing|NaN"),
    "large integers": ((X * 2**60).astype(np.int64), "2\\^53"),
    "huge": (X * 1e200, "too large"),
    "tiny": (X * 1e-200, "too small"),
}


@pytest.mark.parametrize(("value", "words"), BAD.values(), ids=BAD)
def test_what_is_no_matrix_of_numbers_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        vf.Party(value)
    with pytest.raises(ValueError, match=words):
        CoresetRegressor(random_state=0).fit(value, Y)


@pytest.mark.parametrize(("value", "words"), BAD.values(), ids=BAD)
def test_labels_that_are_no_numbers_are_refused(value, words):
    labels = value.iloc[:, 0] if hasattr(value, "iloc") else value[:, 0]
    if words == "missing|NaN":
        assert np.isnan(vf.Party(X, y=labels).y).sum() == (X[:, 0] >= 1).sum()
        return
    with pytest.raises(ValueError, match=words):
        vf.Party(X, y=labels)


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "category"])
def test_columns_of_pandas_that_are_numbers_are_taken(dtype):
    column = pd.Series(np.arange(N) % 2).astype(dtype)
    party = vf.Party(FRAME.assign(a=column), y=column)
    assert party.X[:, 0].tolist() == party.y.tolist() == [0, 1] * (N // 2)
    assert party.columns == list("abcd")


def test_a_permuted_index_is_refused():
    y, ids = pd.Series(Y), pd.Series([f"i{k}" for k in range(N)])
    shuffled = FRAME.sample(frac=1, random_state=0)
    vf.Party(shuffled, y=y[shuffled.index], ids=ids[shuffled.index])
    for given in ({"y": y}, {"ids": ids}):
        with pytest.raises(ValueError, match="must have the index of X"):
            vf.Party(shuffled, **given)
    model = CoresetRegressor(random_state=0)
    halves = [shuffled[["a", "b"]], FRAME[["c", "d"]]]
    for rows in (shuffled, [shuffled[["a", "b"]], shuffled[["c", "d"]]]):
        with pytest.raises(ValueError, match="y must have the index of X"):
            model.fit(rows, y)
    with pytest.raises(ValueError, match="must have the index of X"):
        model.fit(halves, Y)
    model = model.set_params(sampling="full", solver="central").fit(FRAME, y)
    for predict in (model.predict, model.result_.model.predict):
        with pytest.raises(ValueError, match="must have the index of X"):
            predict(halves)


def test_blocks_keep_the_names_and_the_order_of_columns():
    for first in (FRAME, [FRAME[["a", "b"]], FRAME[["c", "d"]]]):
        model = CoresetRegressor(sampling="full", solver="central", random_state=0)
        model.fit(first, Y)
        assert model.feature_names_in_.tolist() == list("abcd")
        blocks = [FRAME[["a", "b"]], FRAME[["c", "d"]]]
        np.testing.assert_allclose(model.predict(blocks), Y)
        for wrong in (["ba", "cd"], ["cd", "ab"]):
            with pytest.raises(ValueError, match="columns of a block must be"):
                model.predict([FRAME[list(names)] for names in wrong])
    with pytest.raises(ValueError, match="same columns in one order"):
        ForgettingKMeans(n_clusters=2).fit([FRAME, FRAME[list("dcba")], FRAME])
    means = CoresetKMeans(n_clusters=2, size=20, random_state=0).fit(blocks)
    with pytest.raises(ValueError, match="masked"):
        means.predict(MASKED)
