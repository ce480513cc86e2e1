"""Rows of a CSV that are none, swallowed lines, code pages and fine dates."""

import numpy as np
import pandas as pd
import pytest
from party_files import findings_in, ids_in, load, refusal

from vfl_flower.data.checking import check
from vfl_flower.data.source import PartySource

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
    found = check(PartySource(data=str(path)))
    assert found.rows == 60
    faults = [f.text for f in found.findings if f.level == "error"]
    assert len(faults) == 1
    assert "6 empty rows" in faults[0]
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
    assert "column 'a' has two values, one of them in 1 of 90 rows" in text


def test_a_quote_that_takes_lines_is_refused_with_its_line(write):
    lines = [f"{i},{'xyz'[i % 3]},{i % 7}" for i in range(30)]
    lines[3], lines[20] = '3,"5 in,1', '20,n",2'
    words = "line 5 of the data file of party 'n' has a quote that takes the lines"
    path = write("\n".join(["a,t,b", *lines]), "n.csv")
    assert words in refusal(path)
    assert words in refusal(path, columns=("a",))


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
