"""Party files and folders: every format, every error."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from party_files import FRAME, TEXT, ids_in, load, refusal, write_frame

from vfl_flower.data import csv_tables
from vfl_flower.party.party import PartyError, digest_ids

# --- Formats


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
        assert ids_in(path, id_column="id") == ["7", "3", "11", "5"]
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


def test_a_csv_may_hold_line_breaks_in_quotes_and_a_byte_order_mark(write):
    party = load(write('\ufeffa,b\n1,"x\ny"\n2,"u,v"\n'))
    assert party.columns == ["a", "b=u,v", "b=x\ny"]
    np.testing.assert_array_equal(party.X, [[1, 0, 1], [2, 1, 0]])


def test_an_empty_line_is_a_missing_value_in_one_column_only(write):
    assert load(write("a\n1\n\n5\n")).X[:, 0].tolist() == [1, 3, 5]
    assert load(write("a,b\n1,2\n\n5,6\n\n", "b.csv")).X.tolist() == [[1, 2], [5, 6]]


def test_quoted_line_breaks_may_fall_on_the_edge_of_a_block(write, monkeypatch):
    monkeypatch.setattr(csv_tables, "CSV_BLOCK", 2**10)
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
            "large": pa.array([2**53, 0], pa.int64()),
        }
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    party = load(tmp_path / "a.parquet", one_hot=False)
    np.testing.assert_array_equal(party.X, [[1.5, 1, 1, 2.0**53], [1.5, 0, 255, 0]])


def test_a_folder_called_like_a_partition_adds_no_column(tmp_path):
    (tmp_path / "year=2013").mkdir()
    party = load(write_frame(FRAME, tmp_path / "year=2013" / "a.parquet"))
    assert list(party.columns) == list(FRAME.columns)


@pytest.mark.parametrize(
    "name", ["a.csv", "a.parquet", "a.feather", "stream.arrow", "a.npz"]
)
def test_a_missing_label_is_that_of_another_party(tmp_path, name, caplog):
    frame = FRAME.assign(delay=[11.0, None, 33.0, None])
    path = write_frame(frame, tmp_path / name)
    for _ in range(2):
        party = load(path, label_column="delay")
        np.testing.assert_array_equal(party.y, [11, np.nan, 33, np.nan])
    name = path.stem
    words = "label-column 'delay' lacks 2 of 4 labels: another party must have these"
    assert f"party '{name}': {words}" in caplog.text


# --- Ids


def test_ids_of_data_without_an_id_column(write, tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(2))
    for data in (write(TEXT), tmp_path / "a.npz", "iris", "synthetic:n=3"):
        assert ids_in(data) is None
    write_frame(FRAME, tmp_path / "b.npz")  # its array ids needs no option
    assert ids_in(tmp_path / "b.npz")[0] == "7"


def test_ids_keep_their_zeros_and_come_from_a_folder_and_the_cache(
    folder, write, monkeypatch
):
    write("id,a\n007,1\n7,2\n", "f/3_rail.csv")
    options = {"index": 2, "count": 3, "id_column": "id"}
    assert ids_in(folder, **options) == ["007", "7"]
    party = load(folder, **options)
    assert party.ids_digest == digest_ids(np.array(["007", "7"]))
    monkeypatch.setattr("vfl_flower.data.conversion.open_table", None)
    assert ids_in(folder, **options) == ["007", "7"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", r"party 'airline' has no column 'id' \(its id-column\)"),
        ("id,b\n1,2\n1,3\n", "got 1 repeated"),
        ("id,b\n1,2\n,3\n", "no missing value, 1 found"),
        ("id,id\n1,2\n", "more than one column named 'id'"),
        ("", "is empty"),
        ("id,a\n1,secret,3\n", "1 rows of party 'airline' do not have as many fie"),
    ],
)
def test_errors_of_ids(write, text, words):
    with pytest.raises(PartyError, match=words) as caught:
        ids_in(write(text), id_column="id")
    assert "/" not in str(caught.value)


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


def test_a_folder_that_is_not_there(tmp_path):
    words = refusal(tmp_path / "parties")
    assert "must be an existing folder or file, but nothing exists" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"index": 0, "count": 3}, "must be the number of party files"),
        ({"index": 2}, "from 0 to 1, got 2"),
        ({"index": -1}, "from 0 to 1, got -1"),
        ({}, "got None"),
        ({"index": 0, "label_column": "dealy"}, "data folder has no column 'dealy'"),
        ({"index": 0, "columns": ("a", "bb")}, "got 'bb'"),
        ({"index": 0, "columns": ("b",)}, "'1_air' has no feature column"),
        ({"index": 1, "id_column": "a"}, "'2_sky' has no column 'a'"),
        ({"index": 0, "id_column": "id", "columns": ("id", "a", "b")}, "got 'id'"),
    ],
)
def test_errors_of_a_folder(folder, options, words):
    assert words in refusal(folder, **options)


@pytest.mark.parametrize(
    "names",
    [
        ("2_y.csv", "10_x.csv"),
        ("party.csv", "party2.csv", "party10.csv"),
        ("a2_b9.csv", "a2_b10.csv", "a10_b1.csv"),
        ("01.csv", "1.csv", "02.csv"),
        ("1.csv", "a.csv"),
        ("Z.csv", "a.csv"),
    ],
)
def test_a_folder_is_in_natural_order(write, tmp_path, monkeypatch, names):
    for value, name in enumerate(names):
        write(f"a\n{value}\n", f"f/{name}")
    listed = list(type(tmp_path).iterdir(tmp_path / "f"))
    for order in (listed, listed[::-1]):  # however the file system lists them
        monkeypatch.setattr(type(tmp_path), "iterdir", lambda _, order=order: order)
        actual = [load(tmp_path / "f", index=j).X.item() for j in range(len(names))]
        assert actual == list(range(len(names)))


def test_a_folder_without_party_files(tmp_path):
    assert "has no file whose name ends in .arrow, .csv" in refusal(tmp_path, index=0)


# --- Errors of a file


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "is empty"),
        ("a,b\n", {}, "has a header but no rows"),
        ("a,b", {}, "has a header but no rows"),
        ("\n\n", {}, "is empty"),
        ("a,b\n1,secret,3\n", {}, "1 rows of party 'airline' do not have as many fie"),
        (b"a,b\n1,secret\0\n", {}, "read as CSV, which must be text in one enc"),
        ("a,b,a\n1,2,3\n", {}, "more than one column named 'a'"),
        ("a,b\n1,2\n", {"columns": ("a", "z")}, "party 'airline' must be columns of"),
        ("a,b\n1,2\n", {"columns": ("a", "a")}, "must be distinct"),
        ("a,b\n1,2\n", {"columns": ("a", "b"), "label_column": "b"}, "got 'b'"),
        ("a,b\n1,2\n", {"columns": ("a", "b"), "id_column": "b"}, "got 'b'"),
        ("a\n1\n", {"label_column": "a"}, "no feature column"),
        (",a\n0,1\n", {}, "column without a name"),
        ("a,b\n1,2\n", {"id_column": "z"}, "has no column 'z' (its id-column)"),
        ("a,b\n1,2\n", {"label_column": "z"}, "has no column 'z' (its label-column)"),
        ("a,b\n1,2\n", {"label_column": "a", "id_column": "a"}, "are both 'a'"),
        ("a,b\n1,2\n1,3\n2,4\n", {"id_column": "a"}, "got 1 repeated"),
        ("a,b\n1,2\n,3\n,4\n", {"id_column": "a"}, "no missing value, 2 found"),
        ("a,b\n1,inf\n2,\n", {"label_column": "b"}, "no infinite value, 1 found"),
        ("a,b\n1,secret\n", {"label_column": "b"}, "or 2 to 100 classes, got 1"),
        ("a,b\n1,\n", {"label_column": "b"}, "label-column 'b' of party 'airline' has"),
        ("a,b\n1,inf\n2,3\n", {}, "column 'b' of party 'airline' must have no inf"),
        ("a,b\n1,secret\n", {"one_hot": False}, "'b' of party 'airline' holds text"),
        ("a,b\n1,\n2,\n", {}, "column 'b' of party 'airline' has no value in any row"),
        ("a,b\n1,\n2,2\n,3\n", {"impute": "none"}, "1 in column 'a', 1 in column 'b'"),
        ("a,b\n1,\n2,x\n", {"impute": "none"}, "1 in column 'b'"),
        (
            "b\n" + "\n".join(f"secret{i}" for i in range(101)),
            {},
            "must have at most 100 distinct strings for one-hot encoding, got 101, "
            "which suggests ids or free text: use the column as "
            "id-column, or leave the column out",
        ),
    ],
)
def test_errors_of_a_csv(write, text, options, words, cache):
    assert words in refusal(write(text), **options)
    assert not list(cache.glob("parties/*"))


def test_new_rows_need_no_labels_to_be_aligned(write):
    """A party that is to find common rows may lack the column of its labels."""
    path = write("a,b\n1,2\n3,4\n", "a.csv")
    assert load(path, label_column="z", label_optional=True).y is None
    assert load(path, label_column="b", label_optional=True).y.tolist() == [2, 4]


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
        ({"X": np.ones(3)}, "columns, got shape (3,)"),
        ({"X": np.array([["secret"]])}, "must be a matrix of real numbers"),
        ({"X": np.eye(2), "columns": ["a"]}, "must be 2 distinct names, got 1"),
        ({"X": np.eye(2), "columns": ["a", "a"]}, "2 distinct names, got 2 names, 1"),
        ({"X": np.eye(2), "y": [1.0]}, "y in the data file of party 'a' must have one"),
        ({"X": np.eye(2), "y": [np.inf, np.nan]}, "no infinite value, 1 found"),
        ({"X": np.eye(2), "y": [np.nan, np.nan]}, "'y' of party 'a' has no value"),
        ({"X": np.eye(2), "y": ["b", "b"]}, "must hold numbers or 2 to 100 classes"),
        ({"X": np.eye(2), "ids": [1, 1]}, "got 1 repeated"),
        ({"X": np.eye(2), "ids": [1.0, 2.0]}, "must hold integers or text"),
        ({"X": np.eye(2), "y": [1, 2], "columns": ["y", "b"]}, "and column 'y' in X"),
        ({"X": np.zeros((0, 2))}, "no rows"),
        ({"X": np.zeros((2, 0))}, "has no feature column"),
    ],
)
def test_errors_of_an_npz(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **arrays)
    assert words in refusal(tmp_path / "a.npz")


def test_columns_that_are_neither_numbers_nor_text(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [[1], [2]]}), path)
    assert "column 'a' of party 'a' must hold numbers or" in refusal(path)


def test_an_index_that_pandas_stored_is_no_feature(tmp_path):
    FRAME.set_axis([5, 3, 9, 1]).to_parquet(tmp_path / "a.parquet")
    assert "column without a name" in refusal(tmp_path / "a.parquet")
    party = load(tmp_path / "a.parquet", columns=("seats",))
    assert party.X[:, 0].tolist() == FRAME["seats"].tolist()


def test_a_missing_file_is_named_in_the_local_log_only(tmp_path, caplog):
    text = refusal(tmp_path / "air.csv")
    assert text.startswith("the data file of party 'air' does not exist")
    assert str(tmp_path / "air.csv") in caplog.text
    (tmp_path / "link.csv").symlink_to("nowhere")
    assert "does not exist" in refusal(tmp_path / "link.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission(write):
    path = write("a\n1\n")
    path.chmod(0)
    assert "no permission to read" in refusal(path)


def test_anything_else_lists_what_is_possible(tmp_path):
    with pytest.raises(PartyError, match=r"diabetes.*synthetic.*\.csv.*got 'diabets'"):
        load("diabets")
    text = refusal(tmp_path / "secret.xlsx")
    assert "must be one of" in text
    assert "save a spreadsheet as CSV" in text


# -- small files that would be large in memory -----------------------------------------


ZEROS = {"a": np.zeros(2**24), "b": np.zeros(2**24)}
TEXTS = pa.DictionaryArray.from_arrays(np.zeros(2**10, "i4"), ["x" * 2**18])


def stream(path):
    table, options = pa.table(ZEROS), pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2**20)


BOMBS = {
    "rows.csv.gz": lambda path: path.write_bytes(
        gzip.compress(b"a\n" + b"1\n" * 2**26)
    ),
    "rows.parquet": lambda path: pq.write_table(pa.table(ZEROS), path),
    "texts.parquet": lambda path: pq.write_table(
        pa.table({"a": TEXTS.cast(pa.string())}), path
    ),
    "rows.feather": lambda path: pyarrow.feather.write_feather(
        pa.table(ZEROS), path, compression="zstd", chunksize=2**24
    ),
    "stream.arrow": stream,
    "zeros.npz": lambda path: np.savez_compressed(path, X=np.zeros((2**20, 20))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_is_sized_before_it_is_loaded(tmp_path, name, cache):
    BOMBS[name](tmp_path / name)
    assert (tmp_path / name).stat().st_size < 2**19
    text = refusal(tmp_path / name)
    assert "; the limit is" in text
    assert repr(name.split(".")[0]) in text
    assert not cache.exists()


def test_an_npz_of_one_row_has_no_countless_columns(tmp_path):
    """Each column gets a name, and a place in a table: 2 GB for this file of 8 kB."""
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((1, 2**20 + 1), dtype=bool))
    assert "at most 1048576 columns" in refusal(tmp_path / "a.npz")
