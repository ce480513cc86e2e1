"""What the experiments share: tables, results, and the options of the commands."""

import json
import os
from typing import Annotated

import click
import numpy as np
import pytest
import typer
from measured import run

from simulations import coresets, experiments, fdskl, kernel_kmeans

AB = ["a", "b"]


def test_a_table_has_a_column_for_each_key_of_any_row():
    lines = experiments.table(
        [{"": "a [1]", "m": "1,000"}, {"": "b", "x": "2"}]
    ).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == ["", "m", "x"]
    assert all(set(cell) == {"-", ":"} for cell in cells[1])
    assert cells[2:] == [["a [1]", "1,000", ""], ["b", "", "2"]]
    assert experiments.table([]) == ""


def test_constant_columns_become_zero():
    X = np.array([[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]])
    np.testing.assert_array_equal(
        experiments.standardise(X, 2), [[-1, 0], [1, 0], [3, 0]]
    )


def test_missing_data_are_a_reason(tmp_path):
    with pytest.raises(experiments.MissingData, match=r"there is no a9a\.npz in"):
        experiments.load_npz(tmp_path, "a9a")
    with pytest.raises(
        experiments.MissingData, match="set VFL_FLOWER_DATA or --data-dir"
    ):
        experiments.load_npz(None, "a9a")


# --- Results --------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """Return a command of one table, which only the data set "a" has figures for."""
    app = experiments.new_app()

    @app.command()
    def main(
        context: typer.Context,
        tables: Annotated[list[str], experiments.tables_of(["one", "two"])],
        datasets: Annotated[list[str], experiments.some_of("abc", "Data sets.")] = AB,
        rows: int = 5,
        quick: bool = False,
        data_dir: experiments.DataDir = None,
        output_dir: experiments.OutputDir = tmp_path,
    ) -> None:
        for name in tables:
            results, figures = experiments.Results(context, "some", name), {}
            for dataset in datasets:
                with results.skipping(dataset, datasets):
                    if dataset != "a":
                        raise experiments.MissingData(f"{dataset} is far away")
                    figures[dataset] = rows
                results.write(figures, [f"# Title of {name}", "", "Text."])

    return app


def test_results_hold_figures_and_reasons(command, tmp_path, capsys):
    run(command, "one", "two")
    files = [
        f"some-{name}.{kind}" for name in ("one", "two") for kind in ("json", "md")
    ]
    assert sorted(os.listdir(tmp_path)) == files
    results = json.loads((tmp_path / "some-two.json").read_text())
    assert set(results) == {"command", "options", "stamp", "skipped", "two"}
    assert (results["two"], results["skipped"]) == ({"a": 5}, {"b": "b is far away"})
    assert results["options"]["datasets"] == ["a", "b"]
    assert {"data_dir", "output_dir"}.isdisjoint(results["options"])
    for package in ("python", "flwr", "numpy", "scikit-learn"):
        assert f"{package} " in results["stamp"]["versions"]
    assert {"date", "machine"} < set(results["stamp"])
    page = (tmp_path / "some-one.md").read_text()
    assert page == "# Title of one\n\nText.\n\n**b** was skipped: b is far away.\n"
    assert "b skipped: b is far away" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "command_line"),
    [
        ([], ""),
        (["--rows", "5"], " --rows 5"),  # given, though it is the default
        (["--quick", "--data-dir", "../x y"], " --quick --data-dir '../x y'"),
        (["--data-dir", "/home/me"], " --data-dir FOLDER"),
        (["--datasets", "c", "--datasets", "a"], " --datasets c --datasets a"),
    ],
)
def test_the_command_in_the_results_has_all_options_given(
    command, tmp_path, arguments, command_line, monkeypatch
):
    monkeypatch.setenv("VFL_FLOWER_DATA", str(tmp_path))
    run(command, "one", *arguments)
    results = json.loads((tmp_path / "some-one.json").read_text())
    assert results["command"] == f"python -m simulations.some one{command_line}"


def test_without_any_data_a_command_ends_with_1(command, capsys):
    with pytest.raises(SystemExit) as caught:
        command(["one", "--datasets", "b", "--datasets", "c"])
    assert caught.value.code == 1
    assert "b: b is far away; c: c is far away" in capsys.readouterr().err


# --- The commands ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "arguments", "option"),
    [
        (coresets, ["--sizes", "0"], "sizes"),
        (coresets, ["--repeats", "0"], "repeats"),
        (coresets, ["--datasets", "x"], "datasets"),
        (coresets, ["--tasks", "x"], "tasks"),
        (fdskl, [], "tables"),
        (fdskl, ["x"], "tables"),
        (fdskl, ["errors", "--seeds", "0"], "seeds"),
        (fdskl, ["errors", "--rows", "7"], "rows"),
        (fdskl, ["errors", "--budgets", "1", "--budgets", "0"], "budgets"),
        (fdskl, ["errors", "--sizes", "0"], "sizes"),
        (kernel_kmeans, ["nmi", "--rows", "99"], "rows"),
        (kernel_kmeans, ["nmi", "--seeds", "0"], "seeds"),
        (kernel_kmeans, ["x"], "tables"),
    ],
)
def test_commands_refuse_what_cannot_be(module, arguments, option):
    with pytest.raises(click.UsageError) as caught:
        run(module.app, *arguments)
    error = caught.value
    name = error.param.name if getattr(error, "param", None) else error.message
    assert option in name


@pytest.mark.parametrize(
    ("module", "arguments", "name"),
    [
        (coresets, [], "kc_house"),
        (fdskl, ["errors"], "a9a"),
        (fdskl, ["scaling"], "covtype"),
        (kernel_kmeans, ["floats"], "mnist"),
    ],
)
def test_commands_without_data_make_no_page(module, arguments, name, tmp_path):
    folders = ["--data-dir", tmp_path, "--output-dir", tmp_path / "out"]
    with pytest.raises(experiments.MissingData, match=rf"there is no {name}\.npz in"):
        run(module.app, *arguments, "--datasets", name, *folders)
    assert not (tmp_path / "out").exists()
