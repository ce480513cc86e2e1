"""Party data: every source, every error, the cache."""

import json
import logging
import os
import stat
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl_flower import data
from vfl_flower.clients.base import Party, PartyError, digest_ids
from vfl_flower.config import PartySource
from vfl_flower.data import load_party, split_columns


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("VFL_FLOWER_CACHE", str(folder))
    return folder


@pytest.fixture
def write(tmp_path):
    """Write the text of a party file, return its path."""

    def write(text, name="airline.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text)
        return path

    return write


def load(path, **options):
    return load_party(PartySource(data=str(path), **options))


def refusal(path, **options):
    """Return the sentence of the error, after checks that hold for each of them."""
    with pytest.raises(PartyError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert os.sep not in str(path) or str(path) not in text
    assert "/" not in text
    assert caught.value.__cause__ is None
    assert "secret" not in text
    return text


# --- Formats

FRAME = pd.DataFrame(
    {
        "id": [7, 3, 11, 5],
        "distance": [1400.0, 1416.5, 1089.25, 0.1],
        "seats": [55, 149, 20, 178],
        "delay": [11.0, -20.5, 33.0, 0.0],
    }
)


def write_frame(frame, path):
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".parquet":
            frame.to_parquet(path, index=False)
        case ".feather":
            frame.to_feather(path)
        case ".arrow" if "stream" in path.name:
            table = pa.Table.from_pandas(frame)
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
        case ".arrow":
            pyarrow.feather.write_feather(frame, path, compression="uncompressed")
        case ".npz":
            np.savez(
                path,
                X=frame[["distance", "seats"]].to_numpy(),
                y=frame["delay"].to_numpy(),
                ids=frame["id"].to_numpy(),
                columns=np.array(["distance", "seats"]),
            )
    return path


@pytest.mark.parametrize(
    "name",
    ["a.csv", "a.CSV", "a.parquet", "a.feather", "a.arrow", "stream.arrow", "a.npz"],
)
def test_every_format_gives_the_same_party(tmp_path, name):
    path = tmp_path / name
    write_frame(FRAME, path.with_suffix(path.suffix.lower())).rename(path)
    for _ in range(2):  # converted, then from the cache
        party = load(path, id_column="id", label_column="delay", index=1)
        np.testing.assert_array_equal(party.X, FRAME[["distance", "seats"]].to_numpy())
        np.testing.assert_array_equal(party.y, FRAME["delay"])
        assert party.X.dtype == party.y.dtype == np.float64
        assert type(party.X) is np.ndarray
        assert party.X.flags.c_contiguous
        assert list(party.columns) == ["distance", "seats"]
        assert party.ids is None
        assert party.ids_digest == digest_ids(np.array([7, 3, 11, 5]))
        assert (party.name, party.index, party.n_rows) == (path.stem, 1, 4)


def test_npz_needs_no_option_for_its_labels_and_ids(tmp_path):
    party = load(write_frame(FRAME, tmp_path / "a.npz"), name="bank")
    assert party.name == "bank"
    np.testing.assert_array_equal(party.y, FRAME["delay"])
    assert party.ids_digest == digest_ids(np.array(["7", "3", "11", "5"]))


def test_npz_with_x_alone_has_default_names(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(2, dtype=np.float16))
    party = load(tmp_path / "a.npz")
    assert party.columns == ["x0", "x1"]
    assert party.y is None
    assert party.ids_digest is None
    np.testing.assert_array_equal(party.X, np.eye(2))


def test_ids_of_a_csv_are_text(write):
    party = load(write("id,a\n007,1\n7,2\n"), id_column="id")
    assert party.ids_digest == digest_ids(np.array(["007", "7"]))


def test_a_csv_may_turn_from_integers_to_fractions_after_a_block(write, monkeypatch):
    monkeypatch.setattr(data, "CSV_BLOCK", 2**16)
    rows = ["7"] * 100_000 + ["0.5", '"2"']
    party = load(write("\n".join(["a", *rows]) + "\n"))
    assert party.X.shape == (100_002, 1)
    assert party.X[-2:, 0].tolist() == [0.5, 2.0]


def test_a_csv_may_hold_line_breaks_in_quotes_and_a_byte_order_mark(write):
    party = load(write('\ufeffa,b\n1,"x\ny"\n2,"u,v"\n'))
    assert party.columns == ["a", "b=u,v", "b=x\ny"]
    np.testing.assert_array_equal(party.X, [[1, 0, 1], [2, 1, 0]])


def test_an_empty_line_is_a_missing_value_in_one_column_only(write):
    assert load(write("a\n1\n\n5\n")).X[:, 0].tolist() == [1, 3, 5]
    assert load(write("a,b\n1,2\n\n5,6\n\n", "b.csv")).X.tolist() == [[1, 2], [5, 6]]


def test_quoted_line_breaks_may_fall_on_the_edge_of_a_block(write, monkeypatch):
    monkeypatch.setattr(data, "CSV_BLOCK", 2**10)
    party = load(write("a,b\n" + '1,"x\n\ny"\n' * 2000))
    assert party.columns == ["a", "b=x\n\ny"]
    np.testing.assert_array_equal(party.X, np.ones((2000, 2)))


def test_number_types_become_float64(tmp_path):
    from decimal import Decimal

    table = pa.table(
        {
            "decimal": pa.array([Decimal("1.5"), None], pa.decimal128(5, 2)),
            "bool": pa.array([True, False]),
            "small": pa.array([1, 255], pa.uint8()),
            "large": pa.array([2**60 + 1, 0], pa.int64()),
        }
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    party = load(tmp_path / "a.parquet", one_hot=False)
    np.testing.assert_array_equal(party.X, [[1.5, 1, 1, 2.0**60], [1.5, 0, 255, 0]])


def test_a_folder_called_like_a_partition_adds_no_column(tmp_path):
    (tmp_path / "year=2013").mkdir()
    party = load(write_frame(FRAME, tmp_path / "year=2013" / "a.parquet"))
    assert list(party.columns) == list(FRAME.columns)


# --- Encoding, filling, scaling: a worked example

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


# --- Folders


@pytest.fixture
def folder(write, tmp_path):
    write("id,a,t\n1,2,3\n2,5,6\n", "f/1_air.csv")
    write("id,b,delay\n1,4,0\n2,4,1\n", "f/2_sky.csv")
    write("not a party file", "f/README.md")
    write("not a party file", "f/._1_air.csv")
    return tmp_path / "f"


def test_a_folder_holds_one_file_a_party(folder):
    options = {"id_column": "id", "label_column": "delay", "columns": ("t", "b")}
    for count in (2, None):
        air, sky = (load(folder, index=j, count=count, **options) for j in (0, 1))
        assert (air.name, sky.name) == ("1_air", "2_sky")
        assert (air.columns, sky.columns) == (["t"], ["b"])
        assert air.y is None
        assert sky.y.tolist() == [0, 1]
        assert air.ids_digest == sky.ids_digest
        assert (air.index, sky.index) == (0, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"index": 0, "count": 3}, "must be the number of party files"),
        ({"index": 2}, "from 0 to 1, got 2"),
        ({"index": -1}, "from 0 to 1, got -1"),
        ({}, "got None"),
        (
            {"index": 0, "label_column": "dealy"},
            "the data folder has no column 'dealy'",
        ),
        ({"index": 0, "columns": ("a", "bb")}, "got 'bb'"),
        ({"index": 0, "columns": ("b",)}, "'1_air' has no feature column"),
        ({"index": 1, "id_column": "a"}, "'2_sky' has no column 'a'"),
    ],
)
def test_errors_of_a_folder(folder, options, words):
    assert words in refusal(folder, **options)


def test_a_folder_without_party_files(tmp_path):
    assert "has no file that ends in .arrow, .csv" in refusal(tmp_path, index=0)


# --- Errors of a file


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "is empty"),
        ("a,b\n", {}, "has a header and no rows"),
        ("a,b", {}, "has a header and no rows"),
        ("\n\n", {}, "is empty"),
        ("a,b\n1,secret,3\n", {}, "cannot be read as CSV: UTF-8, separated by commas"),
        (b"a,b\n1,secret\xff\xfe\n", {}, "cannot be read as CSV"),
        ("a,b,a\n1,2,3\n", {}, "more than one column 'a'"),
        ("a,b\n1,2\n", {"columns": ("a", "z")}, "party 'airline' must be columns"),
        ("a,b\n1,2\n", {"columns": ("a", "z")}, "got 'z'"),
        ("a,b\n1,2\n", {"columns": ("a", "a")}, "must be distinct"),
        ("a,b\n1,2\n", {"columns": ("a", "b"), "label_column": "b"}, "got 'b'"),
        ("a,b\n1,2\n", {"columns": ("a", "b"), "id_column": "b"}, "got 'b'"),
        ("a\n1\n", {"label_column": "a"}, "no feature column"),
        (",a\n0,1\n", {}, "column without a name"),
        ("a,b\n1,2\n", {"id_column": "z"}, "has no column 'z', its id-column"),
        ("a,b\n1,2\n", {"label_column": "z"}, "has no column 'z', its label-column"),
        ("a,b\n1,2\n", {"label_column": "a", "id_column": "a"}, "are both 'a'"),
        ("a,b\n1,2\n1,3\n2,4\n", {"id_column": "a"}, "1 rows repeat an id"),
        ("a,b\n1,2\n,3\n,4\n", {"id_column": "a"}, "no missing value, 2 found"),
        ("a,b\n1,2\n3,\n", {"label_column": "b"}, "missing or infinite value, 1 found"),
        ("a,b\n1,inf\n", {"label_column": "b"}, "missing or infinite value, 1 found"),
        (
            "a,b\n1,secret\n",
            {"label_column": "b"},
            "'b' of party 'airline' must hold num",
        ),
        ("a,b\n1,\n", {"label_column": "b"}, "must hold numbers"),
        (
            "a,b\n1,inf\n2,3\n",
            {},
            "column 'b' of party 'airline' must have no infinite",
        ),
        (
            "a,b\n1,secret\n",
            {"one_hot": False},
            "column 'b' of party 'airline' holds te",
        ),
        ("a,b\n1,\n2,\n", {}, "column 'b' of party 'airline' has no value in any row"),
        ("a,b\n1,\n2,2\n,3\n", {"impute": "none"}, "1 in column 'a', 1 in column 'b'"),
        ("a,b\n1,\n2,x\n", {"impute": "none"}, "1 in column 'b'"),
        ("a,b\n1,2\n", {"impute": "zero"}, "must be one of mean, median, none"),
        (
            "a,b\n1,2013-01-01\n",
            {},
            "column 'b' of party 'airline' holds dates or times",
        ),
        ("a,b\n1,2013-01-01T10:00:00Z\n", {}, "holds dates or times"),
        ("a,b\n1,10:30:00\n", {}, "holds dates or times"),
        (
            "b\n" + "\n".join(f"secret{i}" for i in range(101)),
            {},
            "column 'b' of party 'airline' must have at most 100 different texts to be "
            "one-hot encoded, got 101",
        ),
    ],
)
def test_errors_of_a_csv(write, text, options, words, cache):
    assert words in refusal(write(text), **options)
    assert not list(cache.glob("parties/*"))


def test_a_hundred_levels_are_allowed(write):
    path = write("b\n" + "\n".join(f"level{i}" for i in range(100)))
    np.testing.assert_array_equal(load(path).X.sum(axis=1), 1)


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow", "a.npz"])
@pytest.mark.parametrize("keep", [0, 7, 300])
def test_damaged_files(tmp_path, name, keep, caplog):
    path = write_frame(FRAME, tmp_path / name)
    path.write_bytes(path.read_bytes()[:keep])
    text = refusal(path)
    assert "the data file of party 'a'" in text
    assert ("is empty" if keep == 0 else "cannot be read as") in text
    assert all("secret" not in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"Z": np.eye(2)}, "cannot be read as NPZ with a matrix X"),
        ({"X": np.eye(2).astype(object)}, "cannot be read as NPZ"),
        ({"X": np.ones(3)}, "must be a matrix of real numbers, got shape (3,)"),
        ({"X": np.array([["secret"]])}, "must be a matrix of real numbers"),
        ({"X": np.eye(2), "columns": ["a"]}, "must be 2 distinct names, got 1"),
        ({"X": np.eye(2), "columns": ["a", "a"]}, "2 distinct names, got 2 with 1 dis"),
        ({"X": np.eye(2), "y": [1.0]}, "y in the data file of party 'a' must have one"),
        ({"X": np.eye(2), "y": [1, np.nan]}, "missing or infinite value, 1 found"),
        ({"X": np.eye(2), "y": ["b", "c"]}, "must hold numbers"),
        ({"X": np.eye(2), "ids": [1, 1]}, "1 rows repeat an id"),
        ({"X": np.eye(2), "ids": [1.0, 2.0]}, "must hold integers or text"),
        ({"X": np.eye(2), "y": [1, 2], "columns": ["y", "b"]}, "for the same thing"),
        ({"X": np.zeros((0, 2))}, "no rows"),
        ({"X": np.zeros((2, 0))}, "has no feature column"),
    ],
)
def test_errors_of_an_npz(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **arrays)
    assert words in refusal(tmp_path / "a.npz")


def test_columns_that_are_neither_numbers_nor_text(tmp_path):
    pa.parquet.write_table(pa.table({"a": [[1], [2]]}), tmp_path / "a.parquet")
    assert "column 'a' of party 'a' must hold numbers or" in refusal(
        tmp_path / "a.parquet"
    )


def test_an_index_that_pandas_stored_is_no_feature(tmp_path):
    FRAME.set_axis([5, 3, 9, 1]).to_parquet(tmp_path / "a.parquet")
    assert "column without a name" in refusal(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", columns=("seats",)).X[:, 0].tolist() == [
        55,
        149,
        20,
        178,
    ]


def test_a_missing_file_is_named_in_the_local_log_only(tmp_path, caplog):
    text = refusal(tmp_path / "air.csv")
    assert text.startswith("the data file of party 'air' does not exist")
    assert str(tmp_path / "air.csv") in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission(write):
    path = write("a\n1\n")
    path.chmod(0)
    assert "may not be read" in refusal(path)


def test_anything_else_lists_what_is_possible(tmp_path):
    with pytest.raises(PartyError, match=r"diabetes.*synthetic.*\.csv.*got 'diabets'"):
        load("diabets")
    text = refusal(tmp_path / "secret.xlsx")
    assert "must be one of" in text


def test_rows_are_neither_sorted_nor_dropped(write):
    order = np.random.default_rng(0).permutation(1000)
    text = "id,a\n" + "".join(f"{i},{i if i % 7 else ''}\n" for i in order)
    party = load(write(text), id_column="id")
    assert party.ids_digest == digest_ids(order)
    known = order % 7 != 0
    np.testing.assert_array_equal(party.X[known, 0], order[known])


# --- The cache


@pytest.fixture
def conversions(monkeypatch):
    """Count the conversions of files."""
    calls = []
    convert = data._convert

    def counted(path, *args):
        calls.append(path)
        return convert(path, *args)

    monkeypatch.setattr(data, "_convert", counted)
    return calls


TEXT = "id,a,b\n1,2,3\n2,4,5\n"


def test_a_file_is_converted_once(write, conversions, cache):
    path = write(TEXT)
    first, second = (load(path, id_column="id", label_column="b") for _ in range(2))
    assert len(conversions) == 1
    np.testing.assert_array_equal(first.X, second.X)
    np.testing.assert_array_equal(first.y, second.y)
    assert first.ids_digest == second.ids_digest
    for party in (first, second):
        assert isinstance(party.X.base, np.memmap)
        assert not party.X.flags.writeable
    assert stat.S_IMODE((cache / "parties").stat().st_mode) == 0o700
    files = list((cache / "parties").iterdir())
    assert sorted("".join(file.suffixes) for file in files) == [
        ".X.npy",
        ".json",
        ".y.npy",
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.parametrize(
    "options",
    [
        {"id_column": "id"},
        {"label_column": "b"},
        {"columns": ("a",)},
        {"standardize": True},
        {"one_hot": False},
        {"impute": "median"},
    ],
)
def test_other_options_are_another_entry(write, conversions, options):
    path = write(TEXT)
    for _ in range(2):
        load(path)
        load(path, **options)
    assert len(conversions) == 2


def test_name_and_index_are_not_part_of_an_entry(write, conversions):
    path = write(TEXT)
    assert load(path, name="bank", index=2).name == "bank"
    assert load(path, index=1).index == 1
    assert len(conversions) == 1


def test_a_changed_file_replaces_its_entries(write, conversions, cache):
    path = write(TEXT)
    load(path)
    load(path, standardize=True)
    before = path.stat()
    write(TEXT.replace("5", "6"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert load(path).X[1, 2] == 6
    assert len(conversions) == 3
    assert len(list(cache.glob("parties/*.json"))) == 1
    write(TEXT + "3,6,7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert load(path).n_rows == 3


def test_equal_files_at_two_places_are_two_entries(write, conversions):
    assert load(write(TEXT, "a.csv")).name == "a"
    assert load(write(TEXT, "b.csv")).name == "b"
    assert len(conversions) == 2


@pytest.mark.parametrize("ending", [".X.npy", ".y.npy", ".json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "garbage", "other"])
def test_a_damaged_entry_is_made_again(write, conversions, cache, ending, damage):
    path = write(TEXT)
    expected = load(path, label_column="b")
    (file,) = cache.glob(f"parties/*{ending}")
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        other = cache / "other.npy"
        np.save(other, np.ones((1, 1)))
        file.write_bytes(
            {
                "empty": b"",
                "half": whole[: len(whole) // 2],
                "garbage": b"garbage" * 99,
                "other": b"[1]" if ending == ".json" else other.read_bytes(),
            }[damage]
        )
    party = load(path, label_column="b")
    assert len(conversions) == 2
    np.testing.assert_array_equal(party.X, [[1, 2], [2, 4]])
    np.testing.assert_array_equal(party.y, [3, 5])
    assert party.columns == expected.columns


def test_a_failed_write_leaves_no_entry(write, monkeypatch, cache, caplog):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    party = load(write(TEXT))
    assert party.X.tolist() == [[1, 2, 3], [2, 4, 5]]
    assert list((cache / "parties").iterdir()) == []
    assert "every message converts the file again" in caplog.text


def test_a_file_that_changes_while_it_is_read_is_refused(write, monkeypatch):
    path = write(TEXT)
    convert = data._convert

    def slow(*args):
        converted = convert(*args)
        write(TEXT + "3,6,7\n")
        return converted

    monkeypatch.setattr(data, "_convert", slow)
    assert "changed while it was read" in refusal(path)


def test_a_second_load_reads_and_imports_little(tmp_path):
    """The second process imports none of the heavy packages and is fast."""
    X = np.random.default_rng(0).standard_normal((200_000, 20))
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(20)])
    path = tmp_path / "a.parquet"
    frame.to_parquet(path)
    code = f"""
import json, sys, time
from vfl_flower.config import PartySource
from vfl_flower.data import load_party
start = time.perf_counter()
party = load_party(PartySource(data={str(path)!r}))
seconds = time.perf_counter() - start
heavy = [m for m in ("pandas", "pyarrow", "scipy", "sklearn") if m in sys.modules]
print(json.dumps([heavy, seconds, party.X[-1].tolist()]))
"""

    def run():
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    heavy, _, row = run()
    assert "pyarrow" in heavy
    assert row == X[-1].tolist()
    path.write_bytes(b"\0" * path.stat().st_size)  # it is not read again
    stamp = path.stat()
    (about,) = (tmp_path / "cache" / "parties").glob("*.json")
    size, mtime = json.loads(about.read_text())["stamp"]
    assert size == stamp.st_size
    os.utime(path, ns=(mtime, mtime))
    heavy, seconds, row = run()
    assert heavy == []
    assert row == X[-1].tolist()
    assert seconds < 0.2  # about 1 ms


# --- Splits


@given(st.integers(1, 40), st.integers(1, 40))
def test_split_columns_is_a_partition(d, count):
    X = np.arange(3.0 * d).reshape(3, d)
    y = np.arange(3.0)
    names = [f"c{j}" for j in range(d)]
    if count > d:
        with pytest.raises(ValueError, match=f"between 1 and the {d} columns"):
            split_columns(X, y, count)
        return
    parties = split_columns(X, y, count, columns=names)
    np.testing.assert_array_equal(np.hstack([party.X for party in parties]), X)
    assert [name for party in parties for name in party.columns] == names
    sizes = [party.X.shape[1] for party in parties]
    assert sizes == [len(part) for part in np.array_split(range(d), count)]
    assert all(np.shares_memory(party.X, X) for party in parties)
    assert all(party.y is None for party in parties[:-1])
    np.testing.assert_array_equal(parties[-1].y, y)
    assert [party.index for party in parties] == list(range(count))


def test_split_columns_names_parties():
    parties = split_columns(np.eye(3), None, 2, names=["bank", "shop"])
    assert [party.name for party in parties] == ["bank", "shop"]
    assert parties[1].y is None


@pytest.mark.parametrize(
    ("X", "options", "words"),
    [
        (
            np.eye(3),
            {"count": 0},
            "count must be between 1 and the 3 columns of X, got 0",
        ),
        (np.eye(3), {"count": 4}, "got 4"),
        (np.ones(3), {"count": 1}, "X must be a matrix"),
        (np.eye(3), {"count": 2, "names": ["a"]}, "each of the 2 parties, got 1"),
        (
            np.eye(3),
            {"count": 2, "columns": ["a"]},
            "each of the 3 columns of X, got 1",
        ),
        (np.full((2, 2), np.nan), {"count": 2}, "no missing or infinite value"),
    ],
)
def test_errors_of_split_columns(X, options, words):
    with pytest.raises(ValueError, match=words):
        split_columns(X, None, **options)


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


def test_bundled_sets_take_the_options_of_columns():
    party = load("diabetes", index=1, count=2, columns=("s5", "bmi", "bp"))
    assert party.columns == ["bp"]
    X = load("iris", index=0, count=1, standardize=True).X
    np.testing.assert_allclose(X.std(axis=0), 1)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("iris", {"index": 0, "count": 5}, "at most the 4 columns of the data, got 5"),
        ("iris", {"index": 3, "count": 3}, "num-partitions - 1 = 2, got 3"),
        ("iris", {"index": 0}, "partition-id and num-partitions must be given"),
        ("iris", {"count": 2}, "partition-id and num-partitions must be given"),
        (
            "iris",
            {"index": 0, "count": 2, "id_column": "a"},
            "id-column needs a party f",
        ),
        ("iris", {"index": 0, "count": 2, "columns": ("a",)}, "got 'a'"),
        (
            "synthetic",
            {"index": 0, "count": 2, "columns": ("x0",)},
            "columns needs a pa",
        ),
        ("synthetic:d=2", {"index": 0, "count": 3}, "at most the 2 columns"),
        (
            "synthetic:n=0",
            {"index": 0, "count": 1},
            "n of synthetic must be at least 1",
        ),
        ("synthetic:m=1", {"index": 0, "count": 1}, "got 'm=1'"),
        ("synthetic:n=1.5", {"index": 0, "count": 1}, "got 'n=1.5'"),
        ("synthetic:noise=-1", {"index": 0, "count": 1}, "at least 0 and finite"),
        ("synthetic:noise=nan", {"index": 0, "count": 1}, "at least 0 and finite"),
        (
            "synthetic:correlation=1",
            {"index": 0, "count": 1},
            "must be in [0, 1), got 1",
        ),
    ],
)
def test_errors_of_sets_that_are_split(name, options, words):
    assert words in refusal(name, **options)


def test_a_download_that_fails_is_one_sentence(monkeypatch):
    import urllib.error

    import sklearn.datasets

    def offline(**_):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", offline)
    assert "could not download 'covtype'" in refusal("covtype", index=0, count=2)


# --- The generated set


def test_synthetic_is_the_same_however_it_is_split():
    name = "synthetic:n=50,d=7,noise=0.5,correlation=0.3"
    (whole,) = (load(name, index=0, count=1),)
    parties = [load(name, index=j, count=3) for j in range(3)]
    np.testing.assert_array_equal(np.hstack([party.X for party in parties]), whole.X)
    np.testing.assert_array_equal(parties[2].y, whole.y)
    assert [party.y is None for party in parties] == [True, True, False]
    assert [party.X.shape for party in parties] == [(50, 3), (50, 2), (50, 2)]
    assert parties[1].columns == ["x3", "x4"]
    other = load_party(PartySource(data=name, index=0, count=1), seed=1)
    assert not np.isclose(other.X, whole.X).any()


def test_synthetic_without_noise_is_linear():
    party = load("synthetic:n=40,d=4,noise=0", index=0, count=1)
    residual = np.linalg.lstsq(party.X, party.y)[1]
    assert residual[0] < 1e-20


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


def test_a_loaded_party_is_a_party(write):
    assert isinstance(load(write(TEXT)), Party)
