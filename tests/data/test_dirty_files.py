"""Files as organisations have them: each fault is said in words, none of its values."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from party_files import findings_in, load, refusal
from typer.testing import CliRunner

from vfl_flower.app.commands.cli import app
from vfl_flower.data import checking
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
    assert "must be a file, and no folder, pipe or device" in said(path)
    assert "must be a file, and no folder, pipe or device" in refusal(path)


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
    assert "changed while it was read" in said(path)


# -- the first lines -------------------------------------------------------------------


def test_a_header_may_be_long(write):
    """As of genes: more than the first 64 KiB."""
    names = ",".join(f"expression-of-gene-{i}" for i in range(3_000))
    rows = lines(lambda i: ",".join([str(i)] * 3_000), 3)
    party = load(write(f"{names}\n{rows}"))
    assert party.X.shape == (3, 3_000)
    assert party.X[2, -1] == 2


def test_a_row_that_is_too_long_is_said_to_be(write):
    path = write("a,b\n1," + "x" * (2**20 + 5) + "\n2,3\n")
    assert "rows of less than 1 MiB" in said(path)


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
        ("secret report\nid,a,b\n" + lines(lambda i: f"{i},2,3"), "take out a title"),
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
    assert "no integer above 2^53, whose last digits are lost" in refusal(path)
    path = write("a,x\n" + lines(lambda i: f"{i}e18,{i * i}"))
    assert "2^53" not in said(path)


def test_texts_of_one_row_each_in_a_small_file(write):
    path = write("a,x\n" + lines(lambda i: f"secret{i},{i * i}"))
    assert "as ids or free text: leave it out" in said(path)
    assert "secret" not in said(path)


# -- files with types ------------------------------------------------------------------


def parts(folder, *columns):
    for k, values in enumerate(columns):
        pq.write_table(pa.table({"a": values, "b": [1.0, 2]}), folder / f"{k}.parquet")
    return folder / "*.parquet"


def test_parts_of_other_types_are_named(tmp_path):
    path = parts(tmp_path, [1.0, 2], ["secret", "x"])
    assert "column 'a' of the party has another type" in said(path)
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
