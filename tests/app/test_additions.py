"""Months of party files, added to coresets by the command line."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from vfl_flower.app.cli import app
from vfl_flower.protocol.parts import load_part

N = 300


def write(folder, t, carriers):
    """Write the files of month t; the second party has the labels."""
    rng = np.random.default_rng(t)
    X = rng.normal(size=(N, 3)) * (1 + t) + 2 * t
    carrier = rng.choice(carriers, size=N)
    ids = [f"{t}-{i}" for i in range(N)]
    y = X.sum(axis=1) + 4 * (carrier == "b") + rng.normal(size=N)
    a = {"id": ids, "u": X[:, 0], "carrier": carrier}
    b = {"id": ids, "v": X[:, 1], "w": X[:, 2], "y": y}
    (folder / str(t)).mkdir()
    paths = [folder / str(t) / f"{name}.csv" for name in "ab"]
    for path, table in zip(paths, (a, b), strict=True):
        pd.DataFrame(table).to_csv(path, index=False)
    return paths, pd.DataFrame(a | b).set_index("id")


def simulated(paths, out, keep, *more):
    """Return what the last run of a command has told."""
    words = ["simulate", "coreset-vrlr", "--state-dir", keep, *more]
    words += [word for path in paths for word in ("--party", path)]
    words += ["--id-column", "id", "--label-column", "y"]
    for setting in ("size=60", "solver=central", "standardize=true"):
        words += ["--set", setting]
    ended = CliRunner().invoke(app, [*map(str, words), "--set", f"output-dir={out}"])
    assert ended.exit_code == 0, ended.output
    (folder,) = out.iterdir()
    return json.loads((folder / "result.json").read_text())


def test_months_of_files_are_encoded_as_the_first(tmp_path):
    """The second has other means and no carrier "b"; kept rows are as in its file."""
    keep = tmp_path / "kept"
    first, table = write(tmp_path, 0, ["a", "b", "c"])
    second, later = write(tmp_path, 1, ["a", "c"])
    options = ("--set", "keep-coreset=true", "--set", "seed=1")
    simulated(first, tmp_path / "out0", keep, *options)
    folders = sorted(path for path in keep.iterdir() if path.is_dir())
    model = next(folders[0].glob("*.npz")).stem
    before = [load_part(folder, model) for folder in folders]
    options = ("--task", "add", "--set", f"model={model}", "--set", "seed=1")
    told = simulated(second, tmp_path / "out1", keep, *options)
    (number,) = {p.stem for p in folders[0].glob("*.npz")} - {model}
    after = [load_part(folder, number) for folder in folders]
    assert [part.settings["encoding"] for part in after] == [
        part.settings["encoding"] for part in before
    ]
    rows = pd.concat([table, later]).loc[after[0].settings["kept_ids"]]
    assert rows.index.str.startswith("1-").any()
    assert rows.index.str.startswith("0-").any()
    # u: standardised by month 0's training rows, whatever month a row is of.
    mean, std = table["u"].mean(), table["u"].std(ddof=0)
    kept = after[0].arrays["kept_X"]
    np.testing.assert_allclose(kept[:, 0], (rows["u"] - mean) / std, rtol=1e-6)
    assert kept.shape[1] == 1 + 3
    np.testing.assert_allclose(after[1].arrays["kept_y"], rows["y"])
    (result,) = told["results"].values()
    assert result["metrics"]["1"]["months"] == 2


def test_a_month_twice_ends_the_command(tmp_path):
    keep = tmp_path / "kept"
    first, _ = write(tmp_path, 0, ["a", "b"])
    simulated(first, tmp_path / "out0", keep, "--set", "keep-coreset=true")
    model = next(keep.glob("*/*.npz")).stem
    with pytest.raises(AssertionError, match="are those of month 1 of the 1"):
        simulated(
            first,
            tmp_path / "out1",
            keep,
            *("--task", "add", "--set", f"model={model}"),
        )
