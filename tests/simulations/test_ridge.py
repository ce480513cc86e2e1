"""Measurements of `SecureRidge`: whole on generated rows, resumed, and checked."""

import dataclasses
import json
from functools import partial
from types import SimpleNamespace

import click
import measured
import numpy as np
import pytest

from simulations import coresets, experiments, ridge
from simulations.experiments import MissingData
from simulations.ridge import FULL, QUICK, STEM, Cell, app, errors_page, load, plan
from simulations.ridge_costs import gram_errors

COMMITTED = experiments.ROOT / "docs" / "papers"


run = partial(measured.run, app)


@pytest.mark.second
def test_the_quick_command_measures_all(tmp_path, monkeypatch):
    """The errors of generated rows are those of a model that has learned something.

    Of two runs whose parties have processes there is one, and rows are few.
    """
    X = np.random.default_rng(0).normal(size=(500, 4))
    flights = SimpleNamespace(data=experiments.Columns(X, (2, 2), X.sum(axis=1)))
    monkeypatch.setitem(coresets.LOADERS, "flights", lambda *_: iter([flights]))
    quick = dataclasses.replace(QUICK, runs=QUICK.runs[:1])
    monkeypatch.setattr(ridge, "QUICK", quick)
    monkeypatch.setattr(ridge, "QUICK_ROWS", 800)
    run("--quick", "--output-dir", tmp_path)
    text = (tmp_path / f"{STEM}-quick.md").read_text()
    file = tmp_path / f"{STEM}-quick.json"
    cells = json.loads(file.read_text())["measured"]["cells"]
    assert [*cells] == [cell.name for cell in plan(quick, None)]
    assert "**Cells that are not measured yet**: none." in text
    assert "--quick" in text
    assert cells["errors generated 20 SecureRidge"]["error"] < 0.6
    assert cells["roles 512 32 3 two turns"]["round_trips"] == 10
    of_three = cells["parties generated 3"]
    assert (of_three["train_trips"], of_three["predict_trips"]) == (10, 5)
    assert of_three["error"] == pytest.approx(of_three["pooled_error"], rel=0.2)
    assert cells["coresets generated 3"]["ratio"] < 1.1


# --- Resumed --------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Let cells be three, of which the second fails at first; return what is asked."""
    asked = []

    def measure(name):
        asked.append(name)
        if asked.count(name) == 1 and name == "gram 2":
            raise RuntimeError
        return {"rms": 1.0}

    def cells(size, folder):
        for name in ("gram 1", "gram 2", "roles 3"):
            yield Cell(name, lambda name=name: measure(name), cheap=True)

    monkeypatch.setattr(ridge, "plan", cells)
    monkeypatch.setattr(ridge, "PAGES", ())
    return asked


def test_a_command_goes_on_where_it_was_ended(asked, tmp_path):
    with pytest.raises(RuntimeError):
        run("--output-dir", tmp_path)
    text = (tmp_path / f"{STEM}.md").read_text()
    assert "not measured yet**: 1 of 2 of gram, 1 of 1 of roles." in text
    run("roles", "--output-dir", tmp_path)
    assert asked == ["gram 1", "gram 2", "roles 3"]
    run("--output-dir", tmp_path)
    assert asked == ["gram 1", "gram 2", "roles 3", "gram 2"]
    assert "not measured yet**: none." in (tmp_path / f"{STEM}.md").read_text()


def test_a_check_finds_a_figure_that_differs(asked, tmp_path):
    with pytest.raises(click.ClickException, match="no figures"):
        run("--check", "--output-dir", tmp_path)
    with pytest.raises(RuntimeError):
        run("--output-dir", tmp_path)
    run("--check", "--output-dir", tmp_path)
    file = tmp_path / f"{STEM}.json"
    file.write_text(file.read_text().replace('"rms": 1.0', '"rms": 1.2'))
    with pytest.raises(click.ClickException, match=r"not as measured: rms of gram 1$"):
        run("--check", "--output-dir", tmp_path)
    page = tmp_path / f"{STEM}.md"
    page.write_text(page.read_text().replace("1 of 2", "0 of 2"))
    with pytest.raises(click.ClickException, match="measured: the page, rms of gram 1"):
        run("--check", "--output-dir", tmp_path)


def test_the_committed_page_is_that_of_its_figures(monkeypatch):
    """And cheap cells that need neither data nor processes give them again."""

    def without_roles(size, folder):
        for cell in plan(size, folder):
            cheap = cell.cheap and not cell.name.startswith("roles")
            yield dataclasses.replace(cell, cheap=cheap)

    monkeypatch.setattr(ridge, "plan", without_roles)
    monkeypatch.delenv("VFL_FLOWER_DATA", raising=False)
    run("--check", "--output-dir", COMMITTED)


# --- What the page says ---------------------------------------------------------------


def cells_of(**errors):
    """Return three seeds of each model of one set."""
    return {
        f"errors a9a {seed} {model}": {"error": error, "train": 10, "rows": 10}
        for model, error in errors.items()
        for seed in FULL.seeds
    }


def sentence_and_row(cells):
    """Return the sentence on the set, and its row of the table by columns."""
    size = dataclasses.replace(FULL, sets=("a9a",))
    _, sentence, table, *_ = errors_page(cells, size)
    row = dict(zip(*measured.cells_of(table), strict=True))
    return " ".join(sentence.split()), row


@pytest.mark.parametrize(
    ("errors", "wins"),
    [
        ({"SecureRidge": 5.0, "boosting": 4.5, "kernel": 4.4}, "kernel"),
        ({"SecureRidge": 5.0, "boosting": 4.2, "kernel": 4.4}, "boosting"),
        ({"SecureRidge": 4.0, "boosting": 4.2, "kernel": 4.4}, "SecureRidge"),
    ],
)
def test_the_lowest_mean_error_wins(errors, wins):
    sentence, row = sentence_and_row(cells_of(**errors))
    assert row["wins"] == wins
    first, second = sentence.split(";")
    assert first.endswith("on a9a" if wins == "boosting" else "on none")
    assert second.endswith("none." if wins == "boosting" else f"on a9a ({wins}).")


# --- Measurements ---------------------------------------------------------------------


def test_rows_are_split_and_classes_are_signs(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 8, size=200)
    np.savez(tmp_path / "covtype.npz", X=rng.normal(size=(200, 3)), y=labels)
    X, y, X_test, y_test = load("covtype", tmp_path, 20)
    assert (len(X), len(X_test)) == (160, 40)
    assert {*y, *y_test} == {-1.0, 1.0}
    assert (np.append(y, y_test) == 1).sum() == (labels == 2).sum()
    with pytest.raises(MissingData, match=r"there is no a9a\.npz"):
        load("a9a", tmp_path, 20)


@pytest.mark.parametrize("parties", [2, 5])
def test_gram_matrices_under_shares_are_within_their_bound(parties):
    found = gram_errors(500, 6, parties)
    assert 0 < found["rms"] < found["largest"] < found["bound"]
    assert found["rms"] < 0.3 < found["diagonal"] / 500
