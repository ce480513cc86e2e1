"""Texts that are nearly numbers, codes, categories: read, refused or pointed out."""

import numpy as np
import pandas as pd
import pytest
from party_files import findings_in, load, refusal, write_frame

VALUES = [1 + i * 7 % 40 for i in range(400)]
ENDINGS = ["csv", "parquet", "feather"]


def written(tmp_path, texts, ending, name="a", **more):
    frame = pd.DataFrame({name: texts, "b": np.arange(len(texts)) % 7 + 0.5, **more})
    return write_frame(frame, tmp_path / f"n.{ending}")


def levels_of(path, column, **options):
    return {f.level for f in findings_in(path, **options) if f.column == column}


def notations_of(path, **options):
    return [f.level for f in findings_in(path, **options) if f.about == "notation"]


READ = {
    "minus": (lambda i: f"\u2212{i}", -1),
    "dash": (lambda i: f"\u2013{i}.0", -1),
    "underscores": (lambda i: f"{i}_000", 1000),
    "exponent": (lambda i: f"{i}.0D+02", 100),
    "formula": (lambda i: f'="{i}"', 1),
    "apostrophe": (lambda i: f"'{i}", 1),
    "arabic": (lambda i: "".join(chr(0x660 + int(k)) for k in str(i)), 1),
    "arabic fraction": (lambda i: f"{chr(0x660 + i % 10)}\u066b\u0665", None),
    "full width": (lambda i: "".join(chr(0xFF10 + int(k)) for k in str(i)), 1),
}


BESIDE = [
    *("{} kg", "{}%", "\u20ac {}", "USD {}", "({})", "{}-", "0x{:02X}", "{}/7", "~{}"),
    *("-${}", "{}.5 x 10^3"),
]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("way", READ)
def test_numbers_in_another_notation_are_read_and_pointed_out(tmp_path, way, ending):
    write, factor = READ[way]
    path = written(tmp_path, list(map(write, VALUES)), ending)
    party = load(path)
    assert party.columns == ["a", "b"]
    expected = [i * factor if factor else i % 10 + 0.5 for i in VALUES]
    assert party.X[:, 0].tolist() == expected
    assert notations_of(path) == ["warning"]
    labels = load(path, label_column="a", columns=("b",)).y
    assert labels.tolist() == expected
    assert notations_of(path, label_column="a") == ["warning"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("write", BESIDE)
def test_numbers_with_something_beside_them_are_refused(tmp_path, write, ending):
    path = written(tmp_path, [write.format(i) for i in VALUES], ending)
    words = "column 'a' of party 'n' holds numbers in 400 rows, some with a unit"
    assert words in refusal(path)
    assert "holds numbers in 400 rows" in refusal(path, label_column="a")
    few = [write.format(1 + i % 3) for i in range(60)]
    assert "warning" in levels_of(written(tmp_path, few, ending), "a")


@pytest.mark.parametrize(
    "texts",
    [
        ["10-19", "20-29", "30-39", "40+"],
        [f"ward {i}" for i in range(30)],
        [f"E{i}.9" for i in range(30)],
        [f"10{i:03d} Ort{i}" for i in range(30)],
        [f"{i:02d}" for i in range(1, 20)] + ["2A", "2B"],
    ],
)
def test_levels_with_digits_stay_levels(tmp_path, texts):
    path = written(tmp_path, texts * 10, "csv")
    assert load(path).columns[:-1] == [f"a={text}" for text in sorted(texts)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_codes_with_leading_zeros_stay_texts(tmp_path, ending):
    codes = [f"{i:03d}" for i in VALUES]
    path = written(tmp_path, codes, ending)
    assert load(path).columns[:2] == ["a=001", "a=002"]
    assert "warning" in levels_of(path, "a")
    assert load(path, label_column="a", columns=("b",)).y[0] == 0
    late = ["1", *["12"] * 3000, "007"] * 30  # in a later batch
    assert load(written(tmp_path, late, ending)).columns[0] == "a=007"


@pytest.mark.parametrize("texts", [["0", "7"], ["0.07", "00.5"], ["-05", "03"]])
def test_numbers_with_a_zero_in_front_are_numbers(tmp_path, texts):
    path = written(tmp_path, texts * 20, "csv")
    assert load(path).X[:2, 0].tolist() == [float(text) for text in texts]
    assert not levels_of(path, "a")


def test_categories_of_numbers_are_these_numbers_in_each_format(tmp_path):
    years = pd.Categorical(2000 + np.arange(60) % 5)
    parties = {}
    for ending in ENDINGS:
        path = written(tmp_path, years, ending, y=pd.Categorical(np.arange(60) * 3))
        parties[ending] = load(path, label_column="y")
        told = "warning" if ending != "csv" else None
        assert (told in levels_of(path, "a")) == (ending != "csv")
    for party in parties.values():
        assert party.columns == ["a", "b"]
        np.testing.assert_array_equal(party.X, parties["csv"].X)
        np.testing.assert_array_equal(party.y, np.arange(60) * 3)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("texts", "classes"),
    [
        (["ill", "ill ", "well"], 2),
        (["caf\u00e9", "cafe\u0301", "th\u00e9"], 2),
        (["\uff21", "A", "B"], 2),
        (["Ill", "ill", "well"], 3),
        (["ill\u200b", "ill", "well"], 3),
    ],
)
def test_spellings_of_labels_and_levels(tmp_path, texts, classes, ending):
    path = written(tmp_path, texts * 20, ending)
    assert len(load(path).columns) == classes + 1
    assert len(np.unique(load(path, label_column="a", columns=("b",)).y)) == classes
    assert "warning" in levels_of(path, "a")
    assert "warning" in levels_of(path, "a", label_column="a")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_numbers_whose_squares_are_none_are_refused(tmp_path, factor, ending):
    values = np.random.default_rng(0).normal(size=50)
    path = written(tmp_path, values * factor, ending)
    assert "square" in refusal(path)
    assert "square" in refusal(path, label_column="a")
    assert "square" in refusal(path, standardize=True)


def test_labels_have_the_guards_of_features(tmp_path):
    values = np.where(np.arange(400) % 9, np.arange(400.0), -999)
    path = written(tmp_path, values, "csv")
    found = findings_in(path, label_column="a")
    assert "coded" in {finding.about for finding in found}
    path = written(tmp_path, np.arange(400) * 2**50 + 1, "csv")
    found = findings_in(path, label_column="a")
    assert "size" in {finding.about for finding in found}
