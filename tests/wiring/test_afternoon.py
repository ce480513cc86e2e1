"""Three organisations, three raw files, one afternoon: by commands alone.

The commands are those of docs/deploy.md, in their order; what each party has to say in
advance is in its ``--for``. At the end no log of any process has a value of the data,
an id, a key, or a path of another party.
"""

import json
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import psutil
import pytest

from vfl_flower.app.deployment.certificates import write_supernode_key
from vfl_flower.app.deployment.federation import CONNECTION
from vfl_flower.app.deployment.processes import Processes, RunFailed, free_port
from vfl_flower.party.consent import Consent
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
    # Those of coreset-vkmc let rows leave, as solver=central needs it.
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
        made.parties[HOSPITAL].end()
        two_train(made, *aligned)
        nothing_leaks(made, files, table)


def allow(folder: Path, *lines: str) -> None:
    """Put lines of a ``consent.toml`` in the place of those with the same keys."""
    text = (path := folder / "consent.toml").read_text()
    for line in lines:
        key, _, _ = line.partition(" = ")
        text, count = re.subn(rf"(?m)^(# )?{key} = .*$", line, text)
        assert count == 1, line
    path.write_text(text)


def two_train(made: Federation, *settings: str) -> None:
    """Let two of the parties train: each learns what its consent lacks."""
    for name in (INSURER, LABORATORY):
        lines = "two-parties = true", "rows = false", "predictions = true"
        allow(made.place / name, *lines)
    allow(made.place / INSURER, 'dealers = ["server"]')
    shown = made.run("ridge", *settings, code=1)
    lacks = (
        f'the consent.toml of {LABORATORY!r} would need dealers = ["server"]. With two'
    )
    assert f"1 of 2 parties refuse the run: {lacks}" in shown
    assert "neither party may operate the dealer (the server)" in shown
    allow(made.place / LABORATORY, 'dealers = ["server"]')
    settings = *settings, "--set=allow-two-parties=true", "--set=test-fraction=0.2"
    made.run("coreset-vrlr", *settings)
    results = json.loads(made.result("result.json").read_text())["results"]
    assert 0 < results["coreset"]["metrics"]["1"]["test_r2"] < 1
    assert results["coreset"]["ledger"]["round_trips"] == 7


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
    shown = made.run("mufc", "--task", "unlearn", "--set", f"model-id={model}")
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
        public = place / "stranger.pub"
        public.write_text(write_supernode_key(place / "stranger.key"))
        for words in (
            ("run", str(project), CONNECTION),
            ("ls", CONNECTION),
            ("supernode", "register", str(public), CONNECTION),
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
    key = f"{place}/{name}/supernode.key"
    live = psutil.process_iter(["cmdline"], ad_value=[])
    (node, *_) = [p for p in live if key in " ".join(p.info["cmdline"])]
    node.kill()
    assert killed.wait(30) == 1
    assert "Error: the SuperNode ended" in killed.log.read_text()
    made.begin(name)
    again = made.parties[name]
    assert again.wait(60) == 1
    text = again.log.read_text()
    assert "Error: the SuperNode ended. The SuperLink has refused the key" in text
    assert "wait 30 seconds" in text
