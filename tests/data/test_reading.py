"""Readers, kinds of columns and statistics, in memory that does not grow with rows."""

import contextlib
import gzip
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from party_files import FRAME, ids_in, load, refusal

from vfl_flower.data import arrow_ipc, csv_tables, statistics, tables
from vfl_flower.data.arrow_ipc import batches_of, map_arrow
from vfl_flower.data.cache import StoredIds
from vfl_flower.data.ids import Ids
from vfl_flower.data.statistics import Numbers, packed
from vfl_flower.files import map_npz
from vfl_flower.party.party import PartyError, digest_ids

# -- text ------------------------------------------------------------------------------

ROWS = "a{0}b\n1{0}x\n2{0}Köln\n"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_delimiter_and_encoding_are_told_from_the_file(write, delimiter, encoding):
    text = ROWS.format(delimiter) + f"3{delimiter}y\n" * 30
    party = load(write(text.encode(encoding)))
    assert party.columns == ["a", "b=Köln", "b=x", "b=y"]
    assert party.X[:3].tolist() == [[1, 0, 1, 0], [2, 1, 0, 0], [3, 0, 0, 1]]


def test_what_is_not_utf_8_is_windows_1252_and_said_so(write, caplog):
    long = "".join(f"{i},x\n" for i in range(30_000))  # beyond the sample
    party = load(write((ROWS.format(",") + long + "7,Bärlin\n").encode("latin-1")))
    assert party.columns == ["a", "b=Bärlin", "b=Köln", "b=x"]
    assert "the encoding is cp1252, since the file is not UTF-8" in caplog.text


def test_options_win_over_what_is_told(write):
    text = "a;b,c\n1;2,3\n"
    assert load(write(text), delimiter=";").columns == ["a", "b,c"]
    party = load(write("a\nñ\nb\n".encode("cp850")), text_encoding="cp850")
    assert party.columns[1] == "a=ñ"
    party = load(write("1,2\n3,4\n"), header=False)
    assert party.columns == ["x0", "x1"]
    assert party.X.tolist() == [[1, 2], [3, 4]]


def test_an_archive_has_one_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("b.csv", "a\n1\n")
        archive.writestr("c.csv", "a\n1\n")
    assert "exactly one file, got 2" in refusal(tmp_path / "two.zip")


@pytest.mark.parametrize(
    "name", ["a.csv", "a.csv.gz", "a.csv.zip", "a.zip", "utf-16.csv"]
)
def test_text_is_unpacked_and_pyarrow_gets_it_by_a_path(tmp_path, monkeypatch, name):
    """With a Python file, one process in forty was aborted where it ended."""
    sources, open_csv = [], pyarrow.csv.open_csv

    def note(source: Any, *options: Any) -> Any:
        sources.append(source)
        return open_csv(source, *options)

    monkeypatch.setattr(pyarrow.csv, "open_csv", note)
    path = tmp_path / name
    text = FRAME.to_csv(index=False).encode()
    match name:
        case "a.csv.gz":
            path.write_bytes(gzip.compress(text))
        case "utf-16.csv":
            path.write_bytes(text.decode().encode("utf-16"))
        case "a.csv":
            path.write_bytes(text)
        case _:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("folder/b.csv", text)
    party = load(path, id_column="id", label_column="delay")
    assert party.name == name.partition(".")[0]
    np.testing.assert_array_equal(party.X, FRAME[["distance", "seats"]].to_numpy())
    assert sources
    assert all(isinstance(source, str) for source in sources)
    unchanged = name in ("a.csv", "a.csv.gz")
    assert (set(sources) == {str(path)}) == unchanged
    assert all(Path(source).exists() == unchanged for source in sources)


def test_several_parquet_files_are_one(tmp_path):
    for folder in ("parts", "a.parquet"):
        (tmp_path / folder).mkdir()
        for k in (0, 1):
            FRAME[2 * k : 2 * k + 2].to_parquet(tmp_path / folder / f"{k}.parquet")
    for path in (tmp_path / "parts" / "*.parquet", tmp_path / "a.parquet"):
        party = load(path, id_column="id", label_column="delay")
        np.testing.assert_array_equal(party.X, FRAME[["distance", "seats"]].to_numpy())
        assert party.ids_digest == digest_ids(FRAME["id"].to_numpy())
    FRAME[["id", "seats"]].to_parquet(tmp_path / "parts" / "2.parquet")
    words = "must have the same columns in the same order"
    assert words in refusal(tmp_path / "parts" / "*.parquet")


def test_a_changed_part_is_read_again(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    for values in ([1.0, 2.0], [3.0, 4.0, 5.0]):
        pd.DataFrame({"a": values}).to_parquet(tmp_path / "a.parquet" / "0.parquet")
        pd.DataFrame({"a": [9.0]}).to_parquet(tmp_path / "a.parquet" / "1.parquet")
        assert load(tmp_path / "a.parquet").X[:, 0].tolist() == [*values, 9]


def test_a_query(tmp_path):
    FRAME.to_parquet(tmp_path / "x.parquet")
    sql = (
        f"duckdb:SELECT id, seats * 2 AS twice FROM '{tmp_path}/x.parquet' ORDER BY id"
    )
    party = load(sql, id_column="id", name="bank")
    assert party.X[:, 0].tolist() == [298, 356, 110, 40]
    assert ids_in(sql, id_column="id") == ["3", "5", "7", "11"]
    FRAME.assign(seats=1).to_parquet(tmp_path / "x.parquet")
    assert load(sql, id_column="id").X[:, 0].tolist() == [2, 2, 2, 2]
    with pytest.raises(PartyError, match="result of a query: fix the query"):
        load("duckdb:SELECT secret FROM nowhere")


def test_a_query_without_duckdb(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(PartyError, match="needs DuckDB: pip install"):
        load("duckdb:SELECT 1 AS a")


# -- kinds -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1970-01-02", "1969-12-31"], [1, -1]),
        (["1970-01-01 12:00", "1970-01-02T06:00:00"], [0.5, 1.25]),
        (["1970-01-01T12:00:00+06:00", "1970-01-02T00:00:00Z"], [0.25, 1]),
        (["02.01.1970", "11.01.1970"], [1, 10]),
        (["06:00", "12:00:00"], [0.25, 0.5]),
        (["Yes", "no"], [1, 0]),
        (["T", " f"], [1, 0]),
        (["+1.5", " 2"], [1.5, 2]),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_what_text_becomes(tmp_path, values, expected, name):
    frame = pd.DataFrame({"a": [*values, None], "b": [1, 2, 3]})
    path = tmp_path / name
    frame.to_csv(path, index=False) if name == "a.csv" else frame.to_parquet(path)
    party = load(path)
    assert party.columns == ["a", "b"]
    np.testing.assert_allclose(party.X[:, 0], [*expected, np.mean(expected)])


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns", "UTC")]
)
def test_typed_dates_become_days(tmp_path, kind):
    column = pa.array([0, 86_400, None]).cast(pa.timestamp("s")).cast(kind)
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet").X[:, 0].tolist() == [0, 1, 0.5]


def test_decimal_commas_where_commas_separate_no_fields(write):
    assert load(write("a;b\n1,5;2\n-2;1\n")).X.tolist() == [[1.5, 2], [-2, 1]]
    assert "with commas, points or blanks" in refusal(write('a,b\n"1,5",2\n', "b.csv"))


def test_markers_of_missing_values(write):
    markers = ["", "NA", "n/a", "NaN", "NULL", "none", "?", "-", "."]
    path = write("a,b\n1,x\n" + "".join(f"{m},x\n" for m in markers) + "3,x\n")
    assert load(path).X[:, 0].tolist() == [1, *[2] * len(markers), 3]
    path = write("a,t\n1,NA\n-9,?\n3,x\n", "b.csv")
    party = load(path, missing=("?", "-9"))
    assert party.columns == ["a", "t=NA", "t=x"]
    assert party.X[:, 0].tolist() == [1, 2, 3]
    pd.DataFrame({"a": [1.0, -9.0, 3.0]}).to_parquet(path.with_name("c.parquet"))
    party = load(path.with_name("c.parquet"), missing=("-9",))
    assert party.X[:, 0].tolist() == [1, 2, 3]


def test_many_levels_become_the_most_frequent_and_the_others(write, caplog):
    rng = np.random.default_rng(0)
    levels = [f"L{k}" for k in np.minimum(rng.geometric(0.01, 3000), 400)]
    path = write("t\n" + "\n".join(levels) + "\n")
    party = load(path)
    assert len(party.columns) == 21
    assert party.columns[-1] == "t=other"
    assert "distinct strings: the 20 most frequent become columns" in caplog.text
    counts = pd.Series(levels).value_counts()
    kept = party.X[:, :-1].sum(axis=0)
    assert sorted(kept, reverse=True) == counts[:20].tolist()
    np.testing.assert_array_equal(party.X.sum(axis=1), 1)
    assert len(load(path, max_levels=5).columns) == 6
    few = write("t\nother\nb\nb\nc\nc\nd\n", "few.csv")
    assert load(few, max_levels=2).columns == ["t=b", "t=c", "t=other"]
    assert load(few, max_levels=2).X[0].tolist() == [0, 0, 1]
    new = load(write("t\nb\nz\n", "new.csv"), load(few, max_levels=2).encoding)
    assert new.X.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_new_rows_have_dates_and_classes_of_training(write):
    path = write("d,t,y\n1970-01-03,yes,b\n1970-01-05,no,a\n")
    trained = load(path, label_column="y")
    assert trained.y.tolist() == [1, 0]
    assert trained.encoding["classes"] == ["a", "b"]
    new = write("d,t,y\n1970-02-01,no,b\n,yes,z\n", "n.csv")
    party = load(new, trained.encoding, label_column="y")
    assert party.X.tolist() == [[31, 0], [3, 1]]
    np.testing.assert_array_equal(party.y, [1, np.nan])
    text = refusal(write("d,t\n5,x\n", "m.csv"), trained.encoding)
    assert "column 'd' of party 'm' must hold dates" in text
    assert "column 't' of party 'm' must hold numbers" in text


@pytest.mark.parametrize("labels", [("no", "yes"), ("0", "1"), ("1,5", "2,5")])
def test_new_labels_must_be_texts_where_those_of_training_were(write, labels):
    """Else 1 would stand for a class that nobody named: the second of training."""
    trained = load(write("d;y\n1;stays\n2;leaves\n"), label_column="y")
    new = write("d;y\n" + "".join(f"3;{label}\n" for label in labels), "n.csv")
    text = refusal(new, trained.encoding, label_column="y")
    assert "label-column 'y' of party 'n' must hold class names as text" in text


def test_classes_with_gaps_might_be_numbered_otherwise_elsewhere(write):
    text = refusal(write("a,y\n1,secret-a\n2,secret-b\n3,\n"), label_column="y")
    assert "must hold numbers if labels are missing" in text
    party = load(write("a,y\n1,yes\n2,no\n3,\n", "b.csv"), label_column="y")
    np.testing.assert_array_equal(party.y, [1, 0, np.nan])


def test_a_column_may_change_its_kind_after_blocks(write, monkeypatch):
    """Numbers, then a text, far behind: the first blocks are looked at again."""
    monkeypatch.setattr(csv_tables, "CSV_BLOCK", 2**12)
    rows = ["1,2020-01-01", "2,2020-01-02"] * 1000 + ["x,y"]
    party = load(write("a,b\n" + "\n".join(rows) + "\n"))
    assert party.columns[:3] == ["a=1", "a=2", "a=x"]
    assert party.columns[3:] == ["b=2020-01-01", "b=2020-01-02", "b=y"]
    np.testing.assert_array_equal(party.X.sum(axis=0), [1000, 1000, 1] * 2)


# -- statistics ------------------------------------------------------------------------

VALUES = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.just(np.nan), st.integers(-3, 3).map(float)),
    min_size=1,
    max_size=60,
)


@given(VALUES, st.integers(1, 60))
def test_blocks_tell_what_the_whole_column_does(values, size):
    values = np.array(values)
    known = values[~np.isnan(values)]
    numbers = Numbers()
    for start in range(0, len(values), size):
        numbers.add(values[start : start + size])
    assert (numbers.n, numbers.gaps) == (len(values), np.isnan(values).sum())
    if not len(known):
        return
    assert (numbers.least, numbers.most) == (known.min(), known.max())
    assert numbers.at_least == (known == known.min()).sum()
    assert numbers.at_most == (known == known.max()).sum()
    assert numbers.rising == bool((np.diff(known) > 0).all())
    scale = np.abs(known).max() + 1
    np.testing.assert_allclose(numbers.mean, known.mean(), atol=1e-12 * scale)
    filled = np.where(np.isnan(values), 0.5, values)
    mean, variance = numbers.filled(0.5)
    np.testing.assert_allclose(mean, filled.mean(), atol=1e-12 * scale)
    np.testing.assert_allclose(variance, filled.var(), atol=1e-12 * scale**2)


def test_medians_are_those_of_numpy(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "MEDIANS", 2)
    monkeypatch.setattr(tables, "BATCH", 7)
    X = np.random.default_rng(0).normal(size=(100, 5))
    X[np.abs(X) > 1.5] = np.nan
    X[3:, 4] = np.nan
    np.savez(tmp_path / "a.npz", X=X)
    X = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    np.testing.assert_array_equal(load(tmp_path / "a.npz", impute="median").X, X)


def test_ids_are_digested_and_compared_in_blocks(monkeypatch):
    monkeypatch.setattr(Ids, "BLOCK", 64)
    rng = np.random.default_rng(0)
    texts = [f"id-{'x' * int(rng.integers(90))}-{i}" for i in range(1000)] + ["", "ä"]
    ids = Ids("id", frozenset())
    for start in range(0, len(texts), 97):
        ids.add(pa.array(texts[start : start + 97]))
    assert ids.digest == digest_ids(np.array(texts))
    assert ids.repeated() == 0
    ids.add(pa.array([texts[3], texts[700], texts[700]]))
    assert ids.repeated() == 3
    assert bytes(packed(pa.array(["ab", "ä"]))) == b"2:ab2:\xc3\xa4"


def test_stored_ids_are_a_sequence():
    data = np.frombuffer("abä".encode(), dtype=np.uint8)
    ids = StoredIds(data, np.array([0, 1, 1, 4]))
    assert list(ids) == ["a", "", "bä"] == [ids[0], ids[1], ids[-1]]
    assert ids[1:] == ["", "bä"]
    with pytest.raises(IndexError):
        ids[3]


def test_too_many_texts_are_not_counted(write, monkeypatch):
    monkeypatch.setattr(statistics, "MOST_DISTINCT", 50)
    text = refusal(write("a\n" + "".join(f"secret{i}\n" for i in range(200))))
    assert "got more than" in text


N, D = 500_000, 8
"""Rows and columns of a long file: 32 MB as numbers, and ids."""


def write_npz(table: pa.Table, path: Path) -> None:
    """Write the ids and the other columns: rows compressed, or columns as they are."""
    columns = np.array([c.to_numpy() for c in table.drop_columns("id").columns])
    by_column = path.stem == "columns"
    kind = zipfile.ZIP_STORED if by_column else zipfile.ZIP_DEFLATED
    arrays = {"X": columns.T if by_column else np.ascontiguousarray(columns.T)}
    arrays["ids"] = table["id"].to_numpy().astype(str)
    with zipfile.ZipFile(path, "w", kind, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array)


def write_long(n: int, folder: Path) -> None:
    """Write one table as a file of each kind."""
    rng = np.random.default_rng(0)
    table = pa.table(
        {"id": [f"P{i:09d}" for i in range(n)]}
        | {f"c{j}": rng.standard_normal(n).round(4) for j in range(D)}
    )
    folder.mkdir()
    pyarrow.csv.write_csv(table, folder / "a.csv")
    pq.write_table(table, folder / "a.parquet", row_group_size=n)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    path = str(folder / "lz4.arrow")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=n // 4)
    for name in ("packed.npz", "columns.npz"):
        write_npz(table, folder / name)


CONVERT = """
import os, sys
import pandas  # which pyarrow would import in each process
from vfl_flower.data import arrow_ipc, csv_tables, load_party, read_ids
from vfl_flower.data.source import PartySource

csv_tables.CSV_BLOCK, arrow_ipc.VALUES = 2**18, 2**19
os.fsync = lambda handle: None  # another test waits for the disk
for name in sys.argv[1:]:
    if os.fork():  # each name has a process, which begins with the same memory
        assert os.wait()[1] == 0
        continue
    for path in (f"short/{name}", f"long/{name}"):
        source = PartySource(data=path, id_column="ids" if "npz" in name else "id")
        assert load_party(source).n_rows == len(read_ids(source))
        lines = open("/proc/self/status").read().splitlines()
        (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        print(peak)  # getrusage would tell the peak of the process that began this one
    break
"""


@pytest.mark.second
@pytest.mark.skipif(sys.platform != "linux", reason="kilobytes are those of Linux")
def test_memory_does_not_grow_with_rows(tmp_path):
    """A long file after a short one needs less than its numbers would take at once."""
    write_long(N // 25, tmp_path / "short")
    write_long(N, tmp_path / "long")
    names = sorted(path.name for path in (tmp_path / "long").iterdir())
    run = subprocess.run(
        [sys.executable, "-c", CONVERT, *names],
        cwd=tmp_path,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        text=True,
        check=True,
    )
    short, long = np.array(run.stdout.split(), dtype=int).reshape(5, 2).T
    assert max(1000 * (long - short)) < 8 * N * D, names


@pytest.mark.parametrize("kind", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("packed", ["lz4", "zstd"])
def test_a_large_compressed_file_is_unpacked_first(tmp_path, monkeypatch, packed, kind):
    """The same table: texts, gaps, dictionaries and buffers without a byte."""
    rng, n = np.random.default_rng(0), 200
    table = pa.table(
        {
            "number": rng.standard_normal(n),
            "gaps": pa.array([None if i % 7 == 0 else i for i in range(n)]),
            "level": pa.array([f"L{i % 3}" for i in range(n)]).dictionary_encode(),
            "yes": [i % 2 == 0 for i in range(n)],
            "text": [f"P{i}" * (i % 5) for i in range(n)],
            "nothing": pa.nulls(n),
        }
    )
    path = tmp_path / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression=packed)
    with kind(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=150)  # 150 rows, and 50
    whole = list(batches_of(map_arrow(path)))
    monkeypatch.setattr(arrow_ipc, "VALUES", 300)  # two columns at a time
    maps = map_arrow(path)
    assert len(maps) == 3
    assert table["number"].to_numpy()[:150].tobytes() in maps[0][:]
    again = list(batches_of(maps))
    assert again == whole
    assert pa.Table.from_batches(again).equals(table)
    assert [len(batch) for batch in again] == [150, 50]


def test_a_damaged_compressed_file_is_refused(tmp_path, monkeypatch):
    """Whichever byte is damaged: the party's sentence, or other values."""
    monkeypatch.setattr(arrow_ipc, "VALUES", 80)
    table = pa.table({"a": [0.5, 1.5] * 40, "b": [f"t{i % 2}" for i in range(80)]})
    path = tmp_path / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        with contextlib.suppress(PartyError):
            load(path)
            refused -= 1
        refused += 1
    assert refused > len(whole) // 8


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_is_mapped_in_any_order(tmp_path, save, order):
    X = np.asarray(np.arange(12.0).reshape(4, 3), order=order)
    path = tmp_path / "a.npz"
    save(path, other=np.ones(3), X=X, y=np.arange(4, dtype=">i2"), ids=list("abcd"))
    with path.open("rb") as file:
        arrays, maps = map_npz(file, ("X", "y", "ids"))
    assert len(maps) == 3
    assert np.array_equal(arrays["X"], X)
    assert arrays["X"].flags[f"{order}_CONTIGUOUS"]
    assert arrays["y"].tolist() == [0, 1, 2, 3]
    assert arrays["ids"].tolist() == list("abcd")
    with pytest.raises(ValueError, match="read-only"):
        arrays["X"][0] = 0


def test_a_damaged_npz_is_not_mapped(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=np.ones((50, 2)))
    data = bytearray(path.read_bytes())
    data[300] ^= 1  # within the numbers
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(zipfile.BadZipFile):
        map_npz(file, ("X",))
