"""flower_run judges a run by its status and leaves nothing behind."""

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.common.config import parse_config_args
from typer.testing import CliRunner

from vfl_flower.app.commands.cli import app
from vfl_flower.app.deployment import flower_run
from vfl_flower.app.deployment.flower_run import CONNECTION, run, submit
from vfl_flower.app.deployment.foreground import program
from vfl_flower.app.deployment.processes import (
    Processes,
    RunFailed,
    live_processes,
    wait_for,
    write_flower_config,
)

PROJECT = """
[project]
name = "probe"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
mode = "echo"
text = ""
number = 0
"""

CLIENT = """
from flwr.clientapp import ClientApp

app = ClientApp()
"""

SERVER = """
import time

from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    print("CONFIG", config["text"], config["number"], flush=True)
    if config["mode"] == "hang":
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "client_app.py").write_text(CLIENT)
    (folder / "server_app.py").write_text(SERVER)
    return folder


@pytest.mark.second
def test_timeout(probe, organisations):
    processes, runs = organisations.deployment.processes, list[str]()
    given = {"run_config": {"mode": "hang"}, "timeout": 5, "started": runs.append}
    with pytest.raises(RunFailed, match="did not finish within 5 s"):
        submit(processes, probe, **given)
    (row,) = processes.flwr("ls", CONNECTION, "--run-id", *runs)["runs"]
    assert row["status"] == "finished:stopped"


def test_lines_that_come_at_the_end_are_shown(tmp_path):
    """Flower reads the log, then that the run has ended, and ends the stream."""
    logs = iter([b"one\ntwo\n", b"one\ntwo\nresults in here\n"])

    class Cut:
        def flwr(self, command, *_):
            ended = {"status": "finished:completed", "status-details": ""}
            return {"run": {"run-id": "7"}, "ls": {"runs": [ended]}}[command]

        @contextmanager
        def command(self, _, out, err):
            out.write(next(logs))
            yield SimpleNamespace(wait=lambda: 0, kill=lambda: None)

    shown = []
    submit(Cut(), tmp_path, show=shown.append)
    assert shown == ["one\n", "two\n", "results in here\n"]


@pytest.mark.second
def test_refused(tmp_path, monkeypatch):
    """Before it reaches the SuperLink, which is stopped; a process stands for it."""
    made = []

    def start(processes, *_):
        made.append(processes)
        write_flower_config(processes.home, CONNECTION, 1, {"insecure": True})
        processes.start("superlink", "sleep", "600")
        assert len(processes.pids()) == 1

    monkeypatch.setattr(flower_run, "start_superlink", start)
    (tmp_path / "pyproject.toml").write_text(PROJECT.replace("publisher =", "by ="))
    with pytest.raises(RunFailed, match=r"(?s)flwr run: .*publisher"):
        run(tmp_path, {}, timeout=120)
    (environment,) = made
    assert environment.pids() == set()
    assert not environment.home.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nummer=1", "run config has no key 'nummer'; did you mean 'number'[?]"),
        ("unlike=1", "run config has no key 'unlike'$"),
        ("number=one", "run config 'number=one' cannot be read: .* invalid format"),
        ("number 3", "run config must be KEY=VALUE pairs, got 'number'"),
        ("none.toml", "run config none[.]toml cannot be read: No such file"),
        ("bad.toml", "run config bad[.]toml cannot be read: "),
    ],
)
def test_run_config_that_flower_would_not_name(
    given, message, probe, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("number = = 1")
    with pytest.raises(ValueError, match=message):
        flower_run.read_run_config(probe, [given])


def test_later_pairs_and_files_win(probe, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('text = "both \' and \\""\nnumber = 2.5\n')
    items = ["""text="a b = c" number=3 mode='x y'""", str(path), "number=4"]
    config = flower_run.read_run_config(probe, items)
    assert config == {"text": "both ' and \"", "number": 4, "mode": "x y"}


def test_flower_reads_the_run_config_unchanged(tmp_path):
    given = {
        "text": "both ' and \"\n",
        "back": "C:\\x",
        "flag": True,
        "model.width": 5,
        "model.depth": 2.5,
        "model.most": math.inf,
    }
    read = []

    class Reads:
        def flwr(self, command, *arguments):
            texts = [text for text in arguments if text.startswith("--run-config=")]
            read.append(parse_config_args([texts[0].partition("=")[2]]))
            raise RunFailed(command)

    with pytest.raises(RunFailed):
        submit(Reads(), tmp_path, run_config=given)
    assert read == [given]


@pytest.mark.parametrize("value", ["1979-01-01", "[1, 2]"])
def test_values_that_flower_cannot_take(value, probe, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"number = {value}")
    for item in (str(path), f"number={value.replace(' ', '')}"):
        with pytest.raises(ValueError, match=r"cannot be read: .* key number needs"):
            flower_run.read_run_config(probe, [item])


def test_interrupted(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(flower_run, "run", interrupted)
    assert CliRunner().invoke(app, ["simulate-app"]).exit_code == 130


@pytest.mark.second
def test_what_was_started_ends_with_it(probe, tmp_path):
    mark = {"VFL_FLOWER_TEST": str(tmp_path)}

    def marked() -> set[int]:
        live = live_processes()
        return {p.pid for p in live if mark.items() <= p.info["environ"].items()}

    log = tmp_path / "log"
    with log.open("wb") as file:
        tool = subprocess.Popen(
            [*program(), "simulate-app", str(probe), "--run-config", 'mode="hang"'],
            stdout=file,
            stderr=file,
            env=os.environ | mark,
        )
    try:
        wait_for(lambda: "CONFIG" in log.read_text(), 200, "the run to start")
        assert len(marked()) > 4
        tool.terminate()
        assert tool.wait(60) == 128 + signal.SIGTERM
        assert marked() == set()
    finally:
        for pid in marked():
            os.kill(pid, signal.SIGKILL)
        tool.wait()


@pytest.mark.second
def test_a_command_is_that_of_a_shell(tmp_path, monkeypatch):
    """What it says, with which exit code, and which files it finds."""
    (place := tmp_path / "a place").mkdir()
    monkeypatch.chdir(place)
    logs, words = (place / "out", place / "err"), ("build", "--app", "here")
    with (
        Processes(tmp_path / "home") as processes,
        logs[0].open("wb") as out,
        logs[1].open("wb") as err,
        processes.command(words, out, err) as command,
    ):
        code = command.wait()
    done = subprocess.run(
        ["flwr", *words], env=processes.env, capture_output=True, check=False
    )
    assert code == done.returncode != 0
    assert [log.read_bytes() for log in logs] == [done.stdout, done.stderr]
    assert done.stdout + done.stderr


@pytest.mark.second
def test_a_process_runs_commands_until_it_is_killed(tmp_path):
    """Two at the same time take two; a killed one fails its command alone."""
    with Processes(tmp_path) as processes:

        def fails() -> set[int]:
            with pytest.raises(RunFailed, match="'nowhere' not found"):
                processes.flwr("ls", "nowhere")
            return processes.pids()

        (first,) = fails()
        assert fails() == {first}
        with (
            (tmp_path / "out").open("wb") as out,
            processes.command(("--version",), out, out) as command,
        ):
            assert command.process.pid == first
            (second,) = fails() - {first}
            assert command.wait() == 0
        assert processes.pids() == {first, second}
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(RunFailed, match="was killed"):
                processes.flwr("ls", "nowhere")
        fails()
        processes.no_more_commands()
        assert processes.pids() == set()


@pytest.mark.second
def test_stop_finds_orphans_and_kills_the_stubborn(tmp_path, monkeypatch):
    monkeypatch.setattr("vfl_flower.app.deployment.processes.GRACE", 3.0)
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    orphan = (
        f"import subprocess, sys; subprocess.Popen({sleep}, start_new_session=True)"
    )
    stubborn = (
        "import signal, subprocess, sys, time; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"subprocess.Popen({sleep}, env={{}}); "
        "print('ready', flush=True); time.sleep(600)"
    )
    with Processes(tmp_path) as processes:
        processes.start("orphan", sys.executable, "-c", orphan).wait()
        processes.start("stubborn", sys.executable, "-c", stubborn)
        wait_for(lambda: "ready" in processes.log("stubborn"), 60, "it")
        left = processes.pids()
        assert len(left) == 3  # the orphan's child, the stubborn and its child
        start = time.monotonic()
    assert processes.pids(left) == set()
    assert time.monotonic() - start < 60  # those that are left sleep for 600 s
