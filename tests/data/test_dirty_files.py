"""Files as organisations have them: each fault is said in words, none of its values."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from party_files import findings_in, ids_in, load, refusal
from typer.testing import CliRunner

from vfl_flower.app.commands.cli import app
from vfl_flower.data import checking
from vfl_flower.data.source import PartySource
from vfl_flower.party.party import PartyError

N = 60


def lines(form, n=N):
    return "".join(form(i) + "\n" for i in range(n))


def said(path, level=("error", "warning"), **options):
    return "; ".join(f.text for f in findings_in(path, **options) if f.level in level)


# -- what stands at the path -----------------------------------------------------------


@pytest.mark.parametrize("make", ["pipe", "device"])
def test_a_pipe_or_a_device_is_not_opened(tmp_path, make):
    """The open of a pipe waits for a writer, and /dev/zero never ends."""
    path = tmp_path / "a.csv"
    if make == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert "must be a file, not a folder, a pipe or a device" in said(path)
    assert "must be a file, not a folder, a pipe or a device" in refusal(path)


@pytest.mark.parametrize("number", [13, 36])
def test_a_path_that_cannot_be_looked_at(tmp_path, number, monkeypatch):
    def is_dir(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert f"cannot be opened: {os.strerror(number)}" in said(tmp_path / "a.csv")
    assert f"cannot be opened: {os.strerror(number)}" in refusal(tmp_path / "a.csv")


def test_a_file_that_changes_during_the_check(write, monkeypatch):
    path, survey = write("a,b\n1,2\n3,5\n"), checking.Survey

    def survey_file(*args, **options):
        done = survey(*args, **options)
        write("a,b\n1,2\n")
        return done

    monkeypatch.setattr(checking, "Survey", survey_file)
    assert "changed while it was being read" in said(path)


# -- the first lines -------------------------------------------------------------------


def test_a_header_may_be_long(write):
    """As of genes: more than the first 64 KiB."""
    names = ",".join(f"expression-of-gene-{i:060}" for i in range(1_000))
    rows = lines(lambda i: ",".join([str(i)] * 1_000), 3)
    party = load(write(f"{names}\n{rows}"))
    assert party.X.shape == (3, 1_000)
    assert party.X[2, -1] == 2


def test_a_row_that_is_too_long_is_said_to_be(write):
    path = write("a,b\n1," + "x" * (2**20 + 5) + "\n2,3\n")
    assert "rows shorter than 1 MiB" in said(path)


@pytest.mark.parametrize(
    "row",
    [
        lambda i: f"secret{i},{1950 + i}",
        lambda i: f"secret{i},{(i + 1) % 2}",
        lambda i: f"secret{i},01.02.{50 + i % 40}",
        lambda i: f"secret{i},{'mf'[i % 2]},{['Bonn', 'Berlin'][i % 2]}",
    ],
)
def test_a_first_line_of_values_is_no_header(write, row):
    path = write(lines(row))
    assert "has no header" in said(path)
    assert "has no header" in refusal(path)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("secret report;;\nid;a;b\n1;2;3\n", "lacks 2 of its 3 names"),
        ("secret report\nid,a,b\n" + lines(lambda i: f"{i},2,3"), "remove a title"),
        ("id,a,,\n1,2,,\n3,4,,\n", "lacks 2 of its 4 names"),
        ('id,"a,b\n' + lines(lambda i: f"secret{i},2,3") + '"\n1,2,3\n', "more than"),
        ("<html><body>secret\n<p>log in\n</html>\n", "HTML, XML or JSON"),
        ('{"a": 1, "b": "secret"}\n{"a": 2, "b": "x"}\n', "HTML, XML or JSON"),
    ],
)
def test_first_lines_that_are_no_names(write, text, rule):
    path = write(text)
    assert rule in said(path)
    assert "secret" not in said(path).replace("secret report' of", "")
    with pytest.raises(PartyError, match=rule):
        load(path)


# -- dates and numbers -----------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        ("01.02.13", "05.03.99"),
        ("5-Jan-2013", "28-Feb-2013"),
        ("5. März 2013", "28. Mai 2013"),
        ("Jan 5, 2013", "Feb 28, 2013"),
        ("2013-01-05", "05.01.2013"),
        ("2013/01/31", "2013/02/01"),
        ("2013-01-05 3:15 PM", "2013-01-06 3:15 AM"),
        ("2013-02-28", "2013-02-30"),
        ("01-31-2013", "02-28-2013"),
    ],
)
def test_dates_in_other_forms_are_refused_as_dates(write, values):
    """01.02.13 was a day of the year 13, and the others one column each."""
    path = write("x,y\n" + lines(lambda i: f'"{values[i % 2]}",{i * i}'))
    assert [f.about for f in findings_in(path) if f.level == "error"] == ["dates"]
    assert values[0] not in refusal(path)


@pytest.mark.parametrize(
    "values", [("1.234,5", "12,5"), ("1.234.567", "1.234"), ("1 000", "20 000,5")]
)
def test_numbers_with_signs_for_thousands_are_refused(write, values):
    """They became one column each, where a file had few of them."""
    path = write("x;y\n" + lines(lambda i: f"{values[i % 2]};{i * i}"))
    assert [f.about for f in findings_in(path) if f.level == "error"] == ["numbers"]
    assert values[0] not in refusal(path)


def test_digits_that_are_lost_are_refused(write):
    path = write("a,x\n" + lines(lambda i: f"{10**18 + i},{i * i}"))
    assert "no integer above 2^53: its last digits would be lost" in refusal(path)
    path = write("a,x\n" + lines(lambda i: f"{i}e18,{i * i}"))
    assert "2^53" not in said(path)


def test_texts_of_one_row_each_in_a_small_file(write):
    path = write("a,x\n" + lines(lambda i: f"secret{i},{i * i}"))
    assert "resembling ids or free text: leave it out" in said(path)
    assert "secret" not in said(path)


# -- files with types ------------------------------------------------------------------


def parts(folder, *columns):
    for k, values in enumerate(columns):
        pq.write_table(pa.table({"a": values, "b": [1.0, 2]}), folder / f"{k}.parquet")
    return folder / "*.parquet"


def test_parts_of_other_types_are_named(tmp_path):
    path = parts(tmp_path, [1.0, 2], ["secret", "x"])
    assert "column 'a' of the party must have the same type" in said(path)
    assert "column 'a'" in refusal(path)


@pytest.mark.parametrize("first", [True, False])
def test_a_part_without_values_fits(tmp_path, first):
    """Pandas writes a column of texts that are all missing without a type."""
    columns = [pa.nulls(2), pa.array(["x", "z"])]
    party = load(parts(tmp_path, *(columns if first else columns[::-1])))
    assert party.columns == ["a=x", "a=z", "b"]
    assert party.X[:, 0].tolist() == ([0.5, 0.5, 1, 0] if first else [1, 0, 0.5, 0.5])


@pytest.mark.parametrize("kind", [">f8", ">i4", "f2", np.longdouble])
def test_an_npz_of_any_machine(tmp_path, kind):
    X = np.arange(6.0).reshape(3, 2)
    ids = np.array([5, 6, 7], dtype=">i8")
    np.savez(tmp_path / "a.npz", X=X.astype(kind), y=X[:, 0].astype(kind), ids=ids)
    party = load(tmp_path / "a.npz")
    np.testing.assert_array_equal(party.X, X)
    np.testing.assert_array_equal(party.y, X[:, 0])


# -- as pandas reads it ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_x_is_what_pandas_reads(write, seed):
    rng = np.random.default_rng(seed)
    columns = {
        "a": [repr(float(x)) for x in rng.normal(size=N) * 10.0 ** rng.integers(99)],
        "b": [str(x) for x in rng.integers(-(10**15), 10**15, N)],
        "c": ["2", *rng.choice(["1", "-0", "+3", ".5", "5.", "1E3", "NA", ""], N - 1)],
    }
    path = write(pd.DataFrame(columns).to_csv(index=False))
    frame = pd.read_csv(path).astype(float)
    np.testing.assert_allclose(load(path).X, frame.fillna(frame.mean()), rtol=1e-14)


def test_names_of_columns_do_not_steer_a_terminal(write):
    path = write("a\x1b[31m,b\n5,2\n5,4\n")
    done = CliRunner().invoke(app, ["check", str(path)])
    assert "\x1b" not in done.output


# -- rows that are none, code pages, fine dates ----------------------------------------

ROWS = "".join(f"{i},{i * 7 % 40 + 0.5}\n" for i in range(60))


@pytest.mark.parametrize("empty", [",", ",\r", " ,", '"",""', ", "])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_rows_of_delimiters_alone_are_left_out(write, empty, encoding):
    names = "a\u00e9,b\n"
    middle = ROWS.replace("30,", f"{empty}\n30,", 1)
    text = names + middle + f"{empty}\n" * 5
    path = write(text.encode(encoding), "n.csv")
    party = load(path)
    assert party.X[:, 0].tolist() == list(range(60))
    assert load(path, columns=("b",)).X.shape == (60, 1)
    found = checking.check(PartySource(data=str(path)))
    assert found.rows == 60
    faults = [f.text for f in found.findings if f.level == "error"]
    assert len(faults) == 1
    assert "6 rows contain only delimiters" in faults[0]
    ids = ids_in(path, id_column="a\u00e9")
    assert list(ids) == [str(i) for i in range(60)]


def test_a_row_with_a_value_is_no_empty_row(write):
    path = write("a,b,c\n1,,\n,,2\n3,4,5\n", "n.csv")
    assert len(load(path).X) == 3
    assert len(load(write("a\tb\n1\t2\n\t\n3\t4\n", "n.tsv")).X) == 2


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_rows_without_a_value_are_pointed_out(tmp_path, ending):
    frame = pd.DataFrame({"a": [1.0, None, 3.0] * 9, "b": ["x", None, "y"] * 9})
    frame["id"] = pd.Categorical([f"p{i}" for i in range(len(frame))])
    path = tmp_path / f"n.{ending}"
    getattr(frame, f"to_{ending}")(path)
    found = findings_in(path, id_column="id")
    assert any("9 rows have no value in any feature" in f.text for f in found)


def test_a_column_with_one_rarer_value_is_no_heavy_tail(write):
    """Nobody can write the logarithm of 0."""
    path = write("a,b\n" + "".join(f"{int(i == 7)},{i % 9}\n" for i in range(90)))
    (text,) = [f.text for f in findings_in(path)]
    assert "column 'a' has only two values, and one occurs in 1 of 90 rows" in text


def test_a_quote_that_takes_lines_is_refused_with_its_line(write):
    lines = [f"{i},{'xyz'[i % 3]},{i % 7}" for i in range(30)]
    lines[3], lines[20] = '3,"5 in,1', '20,n",2'
    words = "line 5 of the data file of party 'n' has a quote that makes the next"
    path = write("\n".join(["a,t,b", *lines]), "n.csv")
    assert words in refusal(path)
    assert words in refusal(path, columns=("a",))
    lines[3], lines[20] = '3,"5 in\nor, so",1', '20,"a, b,\nc",2'  # as it should be
    assert load(write("\n".join(["a,t,b", *lines]), "n.csv")).X.shape == (30, 7)


def test_windows_1252_is_read_as_such(write):
    ids = [f"\u0160{i}\u20ac" for i in range(50)]
    text = "id,v\n" + "".join(f"{i},{k}\n" for k, i in enumerate(ids))
    path = write(text.encode("cp1252"), "n.csv")
    assert ids_in(path, id_column="id") == ids
    found = findings_in(path, id_column="id")
    assert [f.level for f in found if f.about == "encoding"] == ["warning"]
    path = write(text.encode("cp1252"), "m.csv")
    found = findings_in(path, text_encoding="cp1252")
    assert "warning" not in [f.level for f in found if f.about == "encoding"]
    assert load(write(b"t,a\n\x81,1\nx,2\n", "l.csv")).columns[1] == "t=\x81"


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_dates_with_nanoseconds(write, zone):
    start = pd.Timestamp("2024-01-01")
    times = [start + pd.Timedelta((7 * i + 1) * (i > 2), "ns") for i in range(20)]
    text = "d\n" + "".join(f"{time}{zone}\n" for time in times)
    days = load(write(text, "n.csv")).X[:, 0]
    expected = 19723 - (2 / 24 if zone == "+02:00" else 0)
    np.testing.assert_allclose(days, expected, atol=1e-9)
