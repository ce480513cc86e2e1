"""Files of an earlier commit can still be read; ``earlier.py`` made them."""

import csv
import json
import math
import shutil
import tarfile

import numpy as np
import pytest
from earlier import ARCHIVE, KILLED, TRAINED, predicted, start_or_resume, use
from transcripts import our_steps

from vfl_flower import load_model
from vfl_flower.party import journal, party
from vfl_flower.server import checkpoint


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the folder of the files, which no test changes."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="tar")
    return folder


@pytest.fixture(scope="module")
def about(files):
    return json.loads((files / "about.json").read_text())


def assert_same(arrays, path):
    """Compare arrays with those of a file; another machine may round otherwise."""
    with np.load(path) as stored:
        assert set(stored.files) - {"kind", "format"}
        for name in set(stored.files) - {"kind", "format"}:
            if stored[name].dtype.kind == "f":
                np.testing.assert_allclose(arrays[name], stored[name], 1e-6, 1e-9)
            else:
                np.testing.assert_array_equal(arrays[name], stored[name], name)


def test_names_are_those_of_the_files(about):
    """A file, and a party of the commit before, know a step or a state by its name."""
    assert set(about["actions"]) <= set(our_steps())
    states = {name for names in about["states"].values() for name in names}
    assert len(states) == 12
    assert states <= set(party._NAMES.values())


def test_a_model_of_each_kind_is_read(files, about):
    kinds = set()
    for name, (strategy, _) in TRAINED.items():
        for path in (files / f"{name}.npz", files / f"{name} used.npz"):
            model = load_model(path)
            kinds.add(model.kind)
            assert_same(model.arrays(), path)
        before = files / f"{name} predicted.npy"
        if before.exists():
            now = predicted(load_model(files / f"{name}.npz"), strategy)
            np.testing.assert_allclose(now, np.load(before), 1e-6, 1e-9)
    assert kinds == set(about["kinds"])


@pytest.mark.parametrize("name", TRAINED)
def test_a_later_task_uses_stored_parts(name, files, about, tmp_path):
    """Their parts of a model, or the state of clusters that then forget a row."""
    folder = shutil.copytree(files / "trained" / name, tmp_path / "run")
    result, written = use(name, folder, about["models"][name])
    assert_same(result.model.arrays(), files / f"{name} used.npz")
    assert written.keys() == about["predictions"][name].keys()
    for place, text in about["predictions"][name].items():
        before, now = (list(csv.reader(t.splitlines())) for t in (text, written[place]))
        assert [row[0] for row in now] == [row[0] for row in before]
        numbers = [[float(row[1]) for row in rows[1:]] for rows in (now, before)]
        rounded = 0.1 if name == "ridge" else 1e-9  # shares round at random
        np.testing.assert_allclose(*numbers, 1e-6, rounded)


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_continues(name, files, about, tmp_path, monkeypatch):
    """From the parties' journals and the server's checkpoint, on the same day."""
    monkeypatch.setattr(journal, "STATE_SECONDS", math.inf)
    monkeypatch.setattr(checkpoint, "__version__", "0.1.0")
    folder = shutil.copytree(files / "killed" / name, tmp_path / "run")
    grid = start_or_resume(name, folder, about["models"].get(KILLED[name][0], ""))
    assert f"train.{KILLED[name][1]}" not in grid.types  # it was answered before
    assert_same(grid.result.model.arrays(), files / f"{name} killed.npz")
