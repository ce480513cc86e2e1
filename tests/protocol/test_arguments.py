"""What a party and the estimators are given: checked, and never coerced."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse

import vfl_flower as vf
from vfl_flower.sklearn import (
    CoresetKMeans,
    CoresetRegressor,
    ForgettingKMeans,
    KernelClassifier,
)

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
Y = X @ [1.0, 2.0, 3.0, 4.0]
FRAME = pd.DataFrame(X, columns=list("abcd"))
MASKED = np.ma.masked_array(X, mask=X > 1)

IDS = {
    "NaN in a list": ["x", float("nan"), "b"],
    "None": ["a", None, "b"],
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
    """Ids of several types are texts."""
    with pytest.raises(ValueError, match="ids of the party must"):
        vf.Party(X[:3], ids=ids)
    texts = vf.Party(X[:3], ids=np.array([1, "2", 3], object)).ids
    assert texts.tolist() == ["1", "2", "3"]


DATES = pd.date_range("2020-01-01", periods=N)
BAD = {
    "masked": (MASKED, "masked value"),
    "text": (X.astype(str), "text or dates"),
    "text as object": (X.astype(str).astype(object), "text or dates"),
    "a column of text": (FRAME.assign(a=FRAME["a"].astype(str)), "'a'"),
    "dates": (FRAME.assign(a=DATES)[["a"]], "'a'"),
    "categories": (FRAME.assign(a=pd.Categorical(["x", "y"] * (N // 2))), "'a'"),
    "nullable": (FRAME.astype("Float64").where(FRAME < 1), "missing|NaN"),
    "large integers": ((X * 2**60).astype(np.int64), "2\\^53"),
    "large integers in a column": (FRAME.assign(a=2**53 + 1), "2\\^53"),
    "large nullable integers": (FRAME.assign(a=pd.array(N * [2**60])), "2\\^53"),
    "large integers as objects": (np.full((N, 4), 2**53 + 1, object), "2\\^53"),
    "bytes as object": (X.astype("S").astype(object), "text or dates"),
    "a complex column": (FRAME.assign(a=X[:, 0] + 1j), "'a'"),
    "huge": (X * 1e200, "too large"),
    "tiny": (X * 1e-200, "too small"),
}


SHAPES = {
    "sparse": (scipy.sparse.csr_array(X), "dense"),
    "ragged": ([[1.0, 2.0], [3.0]], "equal length"),
    "names twice": (FRAME.set_axis(list("aabb"), axis=1), "distinct (column )?names"),
}


@pytest.mark.parametrize(
    ("value", "words"), (BAD | SHAPES).values(), ids=[*BAD, *SHAPES]
)
def test_what_is_no_matrix_or_column_of_numbers_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        vf.Party(value)
    with pytest.raises(ValueError, match=words):
        CoresetRegressor(random_state=0).fit(value, Y)
    if words in ("dense", "equal length", "distinct (column )?names"):
        return
    labels = value.iloc[:, 0] if hasattr(value, "iloc") else value[:, 0]
    if words == "missing|NaN":
        assert np.isnan(vf.Party(X, y=labels).y).sum() == (X[:, 0] >= 1).sum()
        return
    with pytest.raises(ValueError, match=words):
        vf.Party(X, y=labels)


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "category"])
def test_columns_of_tables_that_are_numbers_are_taken(dtype):
    column = pd.Series(np.arange(N) % 2).astype(dtype)
    party = vf.Party(FRAME.assign(a=column), y=column)
    assert party.X[:, 0].tolist() == party.y.tolist() == [0, 1] * (N // 2)
    assert party.columns == vf.Party(pa.table(FRAME)).columns == list("abcd")
    np.testing.assert_array_equal(vf.Party(pa.table(FRAME)).X, X)


def test_a_permuted_index_is_refused():
    y, ids = pd.Series(Y), pd.Series([f"i{k}" for k in range(N)])
    shuffled = FRAME.sample(frac=1, random_state=0)
    vf.Party(shuffled, y=y[shuffled.index], ids=ids[shuffled.index])
    for given in ({"y": y}, {"ids": ids}):
        with pytest.raises(ValueError, match="must have the same index as X"):
            vf.Party(shuffled, **given)
    model = CoresetRegressor(random_state=0)
    halves = [shuffled[["a", "b"]], FRAME[["c", "d"]]]
    for rows in (shuffled, [shuffled[["a", "b"]], shuffled[["c", "d"]]]):
        with pytest.raises(ValueError, match="y must have the same index as X"):
            model.fit(rows, y)
    with pytest.raises(ValueError, match="must have the same index as X"):
        model.fit(halves, Y)
    model = model.set_params(sampling="full", solver="central").fit(FRAME, y)
    for predict in (model.predict, model.result_.model.predict):
        with pytest.raises(ValueError, match="must have the same index as X"):
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
    with pytest.raises(ValueError, match="same columns in the same order"):
        ForgettingKMeans(n_clusters=2).fit([FRAME, FRAME[list("dcba")], FRAME])
    means = CoresetKMeans(n_clusters=2, size=20, random_state=0).fit(blocks)
    with pytest.raises(ValueError, match="masked"):
        means.predict(MASKED)


OTHER = {
    "columns of text": ({"columns": "abcd"}, "list of names"),
    "columns without order": ({"columns": {*"abcd"}}, "list of names"),
    "columns twice": ({"columns": [*"aabb"]}, "distinct (column )?names"),
    "index as text": ({"index": "1"}, "whole number"),
    "consent": ({"consent": True}, "Consent or None"),
}


@pytest.mark.parametrize(("values", "words"), OTHER.values(), ids=OTHER)
def test_other_arguments_of_a_party_are_checked(values, words):
    with pytest.raises(ValueError, match=words):
        vf.Party(X, **values)


LABELS = {
    "None": ["a", "b", None],
    "empty": ["a", "b", ""],
    "nan as text": ["a", "b", "nan"],
    "NA": pd.array(["a", "b", pd.NA], "string"),
    "two types": [1, "b", "a"],
    "blanks": ["a", "a ", "b"],
    "case": ["a", "A", "b"],
    "form": ["\u00e9", "e\u0301", "b"],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_classes_that_are_unclear_are_refused(labels):
    y = pd.Series(labels, dtype=object)[np.arange(N) % 3].to_numpy()
    with pytest.raises(ValueError, match=r"y must have (no missing|classes)"):
        KernelClassifier().fit(X, y)


def test_score_checks_labels_as_fit_does():
    model = CoresetRegressor(sampling="full", random_state=0).fit(FRAME, Y)
    assert model.score(FRAME, pd.Series(Y)) == pytest.approx(1)
    for y in (pd.Series(Y)[::-1], Y.astype(str), np.ma.masked_less(Y, 0)):
        with pytest.raises(ValueError, match="y must"):
            model.score(FRAME, y)


def test_parties_whose_tables_have_other_orders_are_refused():
    parties = [vf.Party(FRAME[["a"]]), vf.Party(FRAME[["b"]][::-1], y=Y)]
    with pytest.raises(ValueError, match="rows in the same order"):
        vf.simulate(vf.CoresetVRLR(sampling="full"), parties)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("columns_per_party", value) for value in (True, [True, 3])],
        ("columns_per_party", [[0.0, 1.0], [2.0, 3.0]]),
        ("columns_per_party", [[False, True], [2, 3]]),
        *[("label_party", value) for value in (True, 0.0, np.array([True, False]))],
    ],
)
def test_a_truth_value_or_a_float_is_no_number(name, value):
    with pytest.raises(ValueError, match=name):
        CoresetRegressor(**{name: value}).fit(X, Y)


def test_a_fit_that_fails_changes_nothing():
    model = CoresetRegressor(sampling="full", random_state=0).fit(X, Y)
    before = model.predict(X)
    model.columns_per_party = [[3, 2], [1, 0]]
    with pytest.raises(ValueError, match="label_party"):
        model.set_params(label_party=7).fit(X[:, ::-1], Y)
    np.testing.assert_array_equal(model.predict(X), before)


def test_clusters_forget_rows_of_fit_alone(tmp_path):
    box = np.clip(X, -0.4, 0.4)
    model = ForgettingKMeans(n_clusters=2, state_folder=tmp_path, random_state=0)
    model.fit(box)
    for wrong in (box[::-1], box / 2):
        with pytest.raises(ValueError, match="rows passed to fit"):
            model.forget(wrong, [0])
    for rows in ([], np.ma.masked_array([0, 1], mask=[1, 0])):
        with pytest.raises(ValueError, match="rows must"):
            model.forget(box, rows)
    assert model.forget(box, [3]).forgotten_.tolist() == [3]
    assert model.forget(np.where(np.arange(N)[:, None] == 3, 0, box), [4]).labels_[4]
