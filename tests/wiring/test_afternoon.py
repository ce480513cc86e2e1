"""Three organisations, three raw files, one afternoon: by commands alone.

The commands are those of docs/deploy.md, in their order; what each party has to say in
advance is in its ``--for``. At the end no log of any process has a value of the data,
an id, a key, or a path of another party.
"""

import json
import os
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict

from vfl_flower import Party, load_model, simulate
from vfl_flower.app.client_app import load_from_context
from vfl_flower.app.config import check_run_config
from vfl_flower.app.deployment.certificates import write_supernode_key
from vfl_flower.app.deployment.federation import CONNECTION
from vfl_flower.app.deployment.party_folder import terms_of
from vfl_flower.app.deployment.processes import Processes, RunFailed, free_port
from vfl_flower.app.server_app import make_strategies
from vfl_flower.party.consent import ALLOW_ALL, Consent
from wiring.commands import Running, running, said, started_in
from wiring.raw_files import HOSPITAL, INSURER, LABORATORY, write_columns, write_rows

pytestmark = pytest.mark.slow


class Federation:
    """A coordinator and three parties that run, and the commands of the coordinator."""

    def __init__(self, place: Path) -> None:
        self.place, self.commands = place, 0
        self.port, self.parties = 0, dict[str, Running]()
        self.text = ""

    def said(self, *words: object, code: int = 0) -> str:
        self.commands += 1
        shown = said(self.place, *words, code=code)
        self.text += shown
        return shown

    def prepared(self, files: Mapping[str, Path], ids: str, *needs: str) -> None:
        for name, file in files.items():
            options = ["--id-column", ids]
            options += ["--label-column", "readmitted"] if name == INSURER else []
            self.said("check", file, *options)
            wanted = [f"--for={strategy}" for strategy in needs]
            self.said("init", name, "--data", file, *options, *wanted)

    def begin(self, name: str, *more: object) -> None:
        peers = [peer for peer in self.parties if peer != name]
        self.commands += 1
        self.parties[name] = Running(
            self.place,
            f"{name}-{self.commands}",
            *("party", name, "--superlink", f"localhost:{self.port}"),
            *("--ca", "federation/ca.crt"),
            *(f"--peer={peer}/{peer}.card" for peer in peers),
            *more,
        )

    def run(self, *words: object, code: int = 0) -> str:
        out = f"output-dir={self.place}/out"
        count = sum(party.poll() is None for party in self.parties.values())
        return self.said(
            *("run", *words, "--federation", "federation"),
            *("--set", f"n-parties={count}", "--set", out),
            code=code,
        )

    def result(self, name: str) -> Path:
        return max(self.place.glob(f"out/*/{name}"), key=lambda p: p.stat().st_mtime)


@contextmanager
def federation(
    place: Path, files: Mapping[str, Path], ids: str, *needs: str
) -> Iterator[Federation]:
    made = Federation(place)
    made.prepared(files, ids, *needs)
    made.said("certificates", "localhost")
    made.port, local = free_port(), free_port()
    while local == made.port:
        local = free_port()
    cards = [f"--card={name}/{name}.card" for name in files]
    ports = [f"--port={made.port}", f"--local-port={local}", "--host=127.0.0.1"]
    made.commands += 1
    with running(place, "link", "coordinator", "federation", *cards, *ports) as link:
        link.wait_to_say("SuperNodes connect")
        made.parties = dict.fromkeys(files)  # type: ignore[arg-type]
        for name in files:
            made.begin(name)
        try:
            for party in made.parties.values():
                party.wait_to_say("SuperNode ID")
                party.wait_to_say(f"Connecting to localhost:{made.port}. While")
            assert made.commands == 11  # as docs/deploy.md says
            yield made
        finally:
            for party in filter(None, made.parties.values()):
                if party.poll() is None:
                    party.end()
        link.end(signal.SIGINT)
    assert started_in(place) == []


def logs_of(place: Path) -> dict[str, str]:
    logs: dict[str, str] = {}
    for path in place.rglob("*.log"):
        name = re.sub(r"-\d+$", "", path.stem)
        logs[name] = logs.get(name, "") + path.read_text(errors="replace")
    return logs


def nothing_leaks(made: Federation, files: Mapping[str, Path], data: pd.DataFrame):
    logs = logs_of(made.place) | {"coordinator": made.text}
    assert {"link", *files} <= set(logs)
    ids = list(map(str, data.index))
    numbers = data.select_dtypes("float").to_numpy().ravel()
    # Shorter ones stand in sizes and times too.
    values = {f"{v!r}" for v in numbers.tolist() if len(f"{v!r}") > 6}
    secret = {
        path.read_text().split("-----")[2].strip()[-40:]
        for name in files
        for path in made.place.glob(f"{name}/**/*")
        if path.suffix in (".key", ".pem") and path.is_file()
    }
    assert len(secret) >= 2 * len(files)
    for log, text in logs.items():
        words = set(re.split(r"[\s,;:=()\[\]'\"]+", text))
        assert not words & (set(ids) | values), log
        assert not [key for key in secret if key in text], log
        for name, file in files.items():
            if log not in (name, "coordinator"):  # who typed all commands here
                assert str(file) not in text, log
                assert str(made.place / name / "state") not in text, log


def test_three_files_of_columns(tmp_path):
    files, table = write_columns(tmp_path / "raw", 500)
    new, unseen = write_columns(tmp_path / "new", 500, seed=1, new=800)
    needs = "align", "coreset-vrlr", "coreset-vkmc", "ridge"
    with federation(tmp_path, files, "patient", *needs) as made:
        aligned = ["--set", "alignment=2026-q4"]
        shown = made.run("align", *aligned)
        common = set.intersection(*(ids_of(file) for file in files.values()))
        assert f"{len(common)}" in shown
        for name in files:
            said = made.said("align", name, "--accept", "2026-q4")
            assert f"of {len(common)} rows" in said
        # There are too few rows for a Gram matrix of their 78 columns.
        sizes = ["--set", "size=200", "--set", "solver=central"]
        out = made.run("coreset-vrlr", *aligned, *sizes)
        shown = [line for line in out.splitlines() if "round trip  " in line]
        steps = [line.split("round trip")[0].split()[-1] for line in shown]
        assert steps[:3] == ["hello", "coresets_totals", "coresets_scores"], out
        assert "100%" in shown[-1]
        assert "INFO" not in out
        assert "coresets_totals" in made.said("report", "--output-dir", "out")
        assert made.commands == 17  # the afternoon of docs/deploy.md
        made.run("coreset-vkmc", *aligned, "--set", "size=100")
        made.parties[HOSPITAL].end()
        models = two_train(made, "2026-q4")
        labels = unseen["readmitted"].to_numpy()
        later = labelled(new, labels, tmp_path)
        two_predict(made, models, later, labels == "yes")
        nothing_leaks(made, files, table)
        nothing_leaks(made, later, unseen)


def labelled(
    new: Mapping[str, Path], labels: np.ndarray, folder: Path
) -> dict[str, Path]:
    """Return the files of new rows, with labels in a copy of the insurer's."""
    path = folder / "labelled.arrow"
    rows = pd.read_feather(new[INSURER]).assign(readmitted=labels)
    rows.to_feather(path, compression="uncompressed")
    return {**new, INSURER: path}


TWO = INSURER, LABORATORY
"""In the order of the run, which is that of the names."""

TRAINED = {"ridge": 13, "coreset-vrlr": 7}
"""Round trips with a test on rows held out, where the parties keep their parts of the
model."""

SEED = 3


def allow(folder: Path, *lines: str) -> None:
    """Put lines of a ``consent.toml`` in the place of those with the same keys."""
    text = (path := folder / "consent.toml").read_text()
    for line in lines:
        key, _, _ = line.partition(" = ")
        text, count = re.subn(rf"(?m)^(# )?{key} = .*$", line, text)
        assert count == 1, line
    path.write_text(text)


def outcome(made: Federation) -> dict[str, Any]:
    results = json.loads(made.result("result.json").read_text())["results"]
    (only,) = results.values()
    return only | {"metrics": only["metrics"][max(only["metrics"])]}


def loaded(made: Federation, name: str, run: Mapping[str, Any], **node: str) -> Party:
    config = tomllib.loads((made.place / name / "party.toml").read_text()) | node
    party = load_from_context(Context(0, 0, config, RecordDict(), dict(run)))
    party.consent, party.state_dir = ALLOW_ALL, None
    return party


def two_train(made: Federation, alignment: str) -> dict[str, tuple[str, Any]]:
    """Let two of the parties train, and compare with the same run in one process."""
    for name in TWO:
        lines = "two-parties = true", "allow-seed = true", "rows = false"
        allow(made.place / name, *lines, "predictions = true")
    allow(made.place / INSURER, 'dealers = ["server"]')
    settings = ["--set", f"alignment={alignment}", "--set", f"seed={SEED}"]
    settings += ["--set=test-fraction=0.2"]
    shown = made.run("ridge", *settings, code=1)
    lacks = (
        f'the consent.toml of {LABORATORY!r} would need dealers = ["server"]. With two'
    )
    assert f"1 of 2 parties refuse the run: {lacks}" in shown
    assert "neither party may operate the dealer (the server)" in shown
    allow(made.place / LABORATORY, 'dealers = ["server"]')
    models = {}
    for strategy, trips in TRAINED.items():
        run = {"strategy": strategy, "alignment": alignment, "seed": SEED}
        run[f"{strategy}.test-fraction"] = 0.2
        if strategy == "coreset-vrlr":  # the label holder learns the other's part
            run[f"{strategy}.allow-two-parties"] = True
            settings += ["--set=allow-two-parties=true"]
        made.run(strategy, *settings)
        found = outcome(made)
        assert found["ledger"]["round_trips"] == trips
        (same,) = make_strategies(check_run_config(run)).values()
        expected = simulate(same, [loaded(made, name, run) for name in TWO])
        models[strategy] = found["model"], expected.model
        if strategy == "ridge":  # which rounds otherwise each time
            for metric in ("rows", "features", "local_columns", "test_rows"):
                assert found["metrics"][metric] == expected.metrics[metric]
            assert found["metrics"]["test_error"] < found["metrics"]["test_base_error"]
        else:
            assert found["metrics"] == expected.metrics
            assert 0 < found["metrics"]["test_r2"] < 1
            model = load_model(made.result("model-coreset.npz"))
            for own, coef in zip(model.coef_, expected.model.coef_, strict=True):
                np.testing.assert_array_equal(own, coef)
    return models


def two_predict(
    made: Federation,
    models: Mapping[str, tuple[str, Any]],
    new: Mapping[str, Path],
    true: np.ndarray,
) -> None:
    """Let these two evaluate and predict, under what ``init`` writes and three lines.

    They do not allow a seed any more. The party with the labels finds the predictions,
    and nobody else has one, nor an id.
    """
    needs = {kind for strategy in TRAINED for kind in terms_of(strategy).needs}
    for name in TWO:
        made.parties[name].end()
        made.begin(name, "--data", new[name])
        allow(made.place / name, "allow-seed = false")
        consent = Consent.load(made.place / name / "consent.toml")
        assert set(consent.leaves) == needs | {"predictions"}
        rules = consent.two_parties, consent.dealers, consent.allow_seed
        assert rules == (True, ["server"], False)
    for name in TWO:
        made.parties[name].wait_to_say("SuperNode ID")
    secret = set[str]()
    for strategy, (number, expected) in models.items():
        about = [strategy, "--set", f"model={number}"]
        if strategy == "coreset-vrlr":  # the label holder learns the other's part
            about += ["--set", "allow-two-parties=true"]
        made.run(*about, "--task", "evaluate")
        told = outcome(made)
        made.run(*about, "--task", "predict")
        for found in (told, outcome(made)):
            assert found["ledger"]["round_trips"] == 5 - (strategy == "coreset-vrlr")
            assert found["metrics"]["rows"] == len(true)
        (path,) = made.place.rglob(f"predictions-{number}-*")
        assert path.parent == made.place / INSURER / "state"
        written = pd.read_csv(path, dtype=str)
        secret |= {text for text in written.to_numpy().ravel() if len(text) > 6}
        given = written["prediction"].to_numpy(float)
        run = {"strategy": strategy, "task": "predict", "model": number}
        blocks = [loaded(made, name, run, data=str(new[name])).X[:] for name in TWO]
        if strategy == "ridge":
            # Another run: rows whose score is near 0 may be in the other class, up to
            # one in twenty, where some 1 % of the scores are within the difference.
            wrong = np.mean(given != true)
            assert wrong < 0.35
            assert told["metrics"]["test_error"] == pytest.approx(wrong, abs=0.05)
            scores = expected.decision_function(blocks)[:, 0]
            off = written["score"].to_numpy(float) - scores
            # Rounding differs from run to run, and among so few rows it now and then
            # leads the search to other penalties, as far as another seed does: 0.18.
            # Scores of rows in another order are at a distance of 1.4.
            assert np.sqrt(np.mean(off**2)) < 0.5 * scores.std()
        else:
            loss = np.mean((given - true) ** 2)
            assert told["metrics"]["test_loss"] == pytest.approx(loss)
            np.testing.assert_allclose(given, expected.predict(blocks), atol=1e-9)
    for path in made.place.rglob("*"):
        elsewhere = {INSURER, "raw", "new"}.isdisjoint(path.parts)
        if elsewhere and path.is_file() and path != new[INSURER]:
            words = re.split(r"[^\w.-]+", path.read_text(errors="replace"))
            assert not secret.intersection(words), path


def ids_of(file: Path) -> set[str]:
    read = {".csv": lambda p: pd.read_csv(p, sep=";"), ".parquet": pd.read_parquet}
    return set(read.get(file.suffix, pd.read_feather)(file)["patient"])


@pytest.fixture(scope="module")
def clinics(
    tmp_path_factory,
) -> Iterator[tuple[Federation, dict[str, Path], pd.DataFrame]]:
    place = tmp_path_factory.mktemp("clinics")
    files, table = write_rows(place / "raw", 200)
    with federation(place, files, "visit", "fk-kmeans", "mufc") as made:
        yield made, files, table
    log = (place / "link.log").read_text()
    assert re.search(r"(?m)^\$ flower-superlink --host=127.0.0.1 ", log)


def test_three_files_of_rows(clinics):
    made, files, table = clinics
    assert len(started_in(made.place)) >= 8  # each SuperNode with an executor
    # Of the many round trips of each kind three are enough here.
    few = ["--set", "iterations=3", "--set", "passes=3"]
    made.run("fk-kmeans", "--set", "n-clusters=4", *few)
    made.run("mufc", "--set", "n-clusters=4", "--set", "box=0,1")
    model = re.search(r"[0-9a-f]{16}", made.result("report.md").read_text()).group()
    forgotten = table.index[[3, 250]]
    for name, visit in zip(("clinic-a", "clinic-b"), forgotten, strict=True):
        (made.place / name / "state" / "forget.txt").write_text(f"{visit}\n")
    shown = made.run("mufc", "--task", "unlearn", "--set", f"model={model}")
    assert "clinic-a" in shown  # its file still has the row
    made.said(
        *("models", "remove", model, "--federation", "federation"),
        *("--output-dir", made.place / "out", "--set", "n-parties=3"),
    )
    for name in files:
        assert not list((made.place / name / "state").rglob(f"*{model}*"))
        peers = Consent.load(made.place / name / "consent.toml").peers
        assert set(peers) == set(files) - {name}
    nothing_leaks(made, files, table)


def test_nobody_else_starts_a_run(clinics, project):
    """Neither a run nor a key of a SuperNode comes in by the port of the SuperNodes."""
    made, *_ = clinics
    place = made.place
    with Processes(place / "outside") as processes:
        (processes.home / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "localhost:{made.port}"\n'
            f'root-certificates = "{place}/federation/ca.crt"\n'
        )
        key = write_supernode_key(place / "stranger.key")
        for words in (
            ("run", str(project), CONNECTION),
            ("ls", CONNECTION),
            ("supernode", "register", str(key), CONNECTION),
        ):
            with pytest.raises(RunFailed, match="403"):
                processes.flwr(*words)


def test_each_party_ends_and_a_killed_one_is_refused_until_it_is_missed(clinics):
    """The same key is refused, and the command says why."""
    made, *_ = clinics
    place = made.place
    first, other, killed = made.parties.values()
    first.end(signal.SIGINT)
    other.end(signal.SIGTERM)
    name = "clinic-c"
    (pid, *_) = [
        int(line.split()[0])
        for line in subprocess.run(
            ["ps", "-axww", "-o", "pid=,command="],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        if f"{place}/{name}/supernode.key" in line
    ]
    os.kill(pid, signal.SIGKILL)
    assert killed.wait(30) == 1
    assert "Error: the SuperNode ended" in killed.log.read_text()
    made.begin(name)
    again = made.parties[name]
    assert again.wait(60) == 1
    text = again.log.read_text()
    assert "Error: the SuperNode ended. The SuperLink has refused the key" in text
    assert "wait 30 seconds" in text
