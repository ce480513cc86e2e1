"""Labels of new rows by a party's own part of a clustering."""

import csv
import os
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from vfl_flower.app.commands.cli import app
from vfl_flower.app.config import party_source
from vfl_flower.data import StoredRows, load_party
from vfl_flower.simulation import simulate
from vfl_flower.strategies import FKKMeans

PLACES = range(3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train on three files of the same columns, one of them text, far from scaled."""
    folder = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    for m in PLACES:
        group = rng.integers(3, size=80)
        table = pd.DataFrame(
            {
                "id": np.arange(80) + 1000 * m,
                "size": 5e6 + 1e6 * group + 1e4 * rng.normal(size=80),
                "kind": np.array(["a", "b", "c"])[group],
                "ratio": 1e-4 * (group + rng.normal(size=80)),
            }
        )
        table.to_csv(folder / f"{m}.csv", index=False)
    strategy = FKKMeans(3, 3, n_features=20, iterations=1, n_init=1, standardize=True)
    parties = [load(config) for config in node_configs(folder)]
    return folder, simulate(strategy, parties, seed=0).model


@pytest.fixture
def parties(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    return node_configs(tmp_path)


@pytest.fixture
def model(trained):
    return trained[1]


def refused(model, config, output):
    """Run the command; return what it says on the way out, or "" if it labels rows."""
    options = ["--node-config", config, "--output", str(output)]
    ended = CliRunner().invoke(app, ["label", model, *options])
    assert ended.exit_code == bool(ended.stderr), ended.output
    return ended.stderr.strip().removeprefix("Error: ")


def node_config(data, state):
    return f'data="{data}" state-dir="{state}" id-column="id"'


def node_configs(folder):
    return [node_config(folder / f"{m}.csv", folder / f"state-{m}") for m in PLACES]


def load(text):
    config = dict(item.split("=") for item in text.split())
    source = party_source({k: v.strip('"') for k, v in config.items()}, {})
    party = load_party(source)
    party.state_dir = source.state_dir
    party.source = StoredRows(source)
    return party


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_of_training_get_their_labels_again(parties, model, tmp_path):
    for m, party in enumerate(parties):
        output = tmp_path / "labels.csv"
        assert not refused(model.id, party, output)
        actual = rows_of(output)
        assert [int(row["prediction"]) for row in actual] == model.labels_[m].tolist()
        assert [int(row["id"]) for row in actual] == [1000 * m + i for i in range(80)]
        kept = rows_of(tmp_path / f"state-{m}" / f"predictions-{model.id}.csv")
        assert kept == actual


def test_new_rows_are_encoded_as_in_training(parties, model, tmp_path):
    """Without the level "a", and in another order of columns; one row, no run."""
    new = pd.DataFrame({"ratio": [2e-4], "kind": ["c"], "size": [7e6], "id": [5]})
    new.to_csv(tmp_path / "new.csv", index=False)
    output = tmp_path / "out.csv"
    config = node_config(tmp_path / "new.csv", tmp_path / "state-1")
    config = config.replace("data=", "data-path=")  # the same
    assert not refused(model.id, config, output)
    (row,) = rows_of(output)
    table = load(parties[1])
    same = table.X[:, [name == "kind=c" for name in table.columns]].ravel() == 1
    assert row["id"] == "5"
    assert int(row["prediction"]) == np.bincount(model.labels_[1][same]).argmax()


@pytest.mark.parametrize(
    ("config", "model", "reason"),
    [
        ('state-dir="/s"', "0123456789abcdef", "must set 'data' to the new rows'"),
        ('data="/x.csv"', "0123456789abcdef", "must set 'state-dir', as"),
        (None, "0123456789abcdef", "has no local model 0123456789abcdef"),
        (None, "latest", "model"),
    ],
)
def test_what_is_missing_is_said(parties, tmp_path, config, model, reason):
    assert reason in refused(model, config or parties[0], tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("output", ["state-0", "nowhere/out.csv", "pipe", "link"])
def test_where_the_labels_cannot_go(parties, model, tmp_path, output):
    """Only a regular file is replaced."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    said = refused(model.id, parties[0], tmp_path / output)
    assert said == "output must be a file in an existing folder"
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("way", ["itself", "a link", "another name"])
@pytest.mark.parametrize(
    "name", ["0.csv", "state-0/{}.npz", "state-0/predictions-{}.csv"]
)
def test_no_file_of_the_party_is_overwritten(parties, model, tmp_path, name, way):
    own = output = tmp_path / name.format(model.id)
    if way != "itself":
        output = tmp_path / "out.csv"
        (output.symlink_to if way == "a link" else output.hardlink_to)(own)
    before = own.read_bytes()
    assert refused(model.id, parties[0], output) == (
        "output must not replace the party's data or a file in the state-dir"
    )
    assert own.read_bytes() == before
    assert output.exists()


def test_no_file_of_a_folder_of_data_is_overwritten(parties, model, tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    for m in range(3):
        (folder / f"{m}.csv").hardlink_to(tmp_path / f"{m}.csv")
    config = node_config(folder, tmp_path / "state-0")
    config += " partition-id=0 num-partitions=3"
    said = refused(model.id, config, folder / "1.csv")
    assert "must not replace the party's data" in said
    assert not refused(model.id, config, tmp_path / "out.csv")
    assert len(rows_of(tmp_path / "out.csv")) == 80


def test_a_model_of_mufc_labels_in_a_run(tmp_path):
    number, state = "0123456789abcdef", tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / f"{number}.sqlite").touch()
    config = f'data="{tmp_path}/new.csv" state-dir="{state}"'
    said = refused(number, config, tmp_path / "out.csv")
    assert "STRATEGY --task predict --set model-id=0123" in said
