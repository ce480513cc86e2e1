"""Three organisations with rows of the same columns, one afternoon: by commands alone.

The commands are those of docs/deploy.md, in their order; what each party has to say in
advance is in its ``--for``. At the end no log of any process has a value of the data,
an id, a key, or a path of another party. Files of columns: test_tutorial.py.
"""

import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from vfl_flower.app.deployment.certificates import write_supernode_key
from vfl_flower.app.deployment.federation import CONNECTION
from vfl_flower.app.deployment.processes import Processes, RunFailed, free_port
from vfl_flower.party.consent import Consent
from wiring.commands import Running, running, said, started_in

pytestmark = pytest.mark.second


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
            self.said("check", file, *options)
            wanted = [f"--for={strategy}" for strategy in needs]
            self.said("init", name, "--data", file, *options, *wanted)

    def begin(self, name: str) -> None:
        peers = [peer for peer in self.parties if peer != name]
        self.commands += 1
        self.parties[name] = Running(
            self.place,
            f"{name}-{self.commands}",
            *("party", name, "--superlink", f"localhost:{self.port}"),
            *("--ca", "federation/ca.crt"),
            *(f"--peer={peer}/{peer}.card" for peer in peers),
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


def write_clinics(folder: Path, n: int) -> tuple[dict[str, Path], pd.DataFrame]:
    """Write three files of n rows each, in four clusters, and each in its format."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.1, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.9]])
    points = centres[rng.integers(4, size=3 * n)] + 0.03 * rng.normal(size=(3 * n, 2))
    points = np.clip(points, 0, 1).round(6)
    visits = [f"VIS-{k:06}" for k in 900_000 + rng.permutation(3 * n)]
    table = pd.DataFrame(points, columns=["severity", "recovery"])
    table.insert(0, "visit", visits)
    folder.mkdir()
    endings = {"clinic-a": "csv", "clinic-b": "parquet", "clinic-c": "arrow"}
    files = {name: folder / f"{name}.{ending}" for name, ending in endings.items()}
    csv, parquet, arrow = files.values()
    parts = (table[j * n :][:n].reset_index(drop=True) for j in range(3))
    next(parts).to_csv(csv, sep=";", index=False)  # of a German spreadsheet
    next(parts).to_parquet(parquet, index=False)
    next(parts).to_feather(arrow, compression="uncompressed")
    return files, table.set_index("visit")


@pytest.fixture(scope="module")
def clinics(
    tmp_path_factory,
) -> Iterator[tuple[Federation, dict[str, Path], pd.DataFrame]]:
    place = tmp_path_factory.mktemp("clinics")
    files, table = write_clinics(place / "raw", 200)
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
