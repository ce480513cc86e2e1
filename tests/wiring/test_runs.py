"""``vfl-flower run`` on a SuperLink: what it shows, and with what it ends."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from vfl_flower.app.deployment.flower_run import CONNECTION
from wiring.commands import Running
from wiring.deployment import NAMES, Organisations

pytestmark = pytest.mark.second


@pytest.fixture(autouse=True)
def _rows(organisations) -> None:
    rng = np.random.default_rng(0)
    for j, name in enumerate(NAMES):
        columns = {"id": list(range(60)), f"x-{name}": rng.normal(size=60).tolist()}
        labels = {"y": rng.normal(size=60).tolist()} if j == len(NAMES) - 1 else {}
        organisations.write(j, columns | labels)
    organisations.consent("rows", "totals")


def start(organisations: Organisations, folder: Path, *given: str) -> Running:
    common = ["size=10", "solver=central", "test-fraction=0.0", "n-parties=3"]
    common += ["timeout=60", f"output-dir={folder}"]
    words = "run", "coreset-vrlr", *(f"--set={item}" for item in [*common, *given])
    environment = organisations.deployment.processes.env
    options = "--connection", CONNECTION
    return Running(folder, "run", *words, *options, environment=environment)


def test_a_party_at_fault_is_named_in_the_last_line(organisations, tmp_path):
    """Already in hello, when the server does not know it yet."""
    Path(organisations.named["weather"]["data"]).write_text("")
    run = start(organisations, tmp_path)
    assert run.wait(200) == 1
    out = run.log.read_text()
    last = out.splitlines()[-1]
    assert last.startswith("the run failed: party 'weather' failed in 'hello': "), out
    assert "Traceback" not in out
    assert "node " not in out


def test_a_killed_server_is_a_failure(organisations, tmp_path):
    run = start(organisations, tmp_path, "timeout=600")
    run.wait_to_say("hello", 200)
    killed = [
        pid
        for pid in organisations.deployment.processes.pids()
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert run.wait(300) == 1
    out = run.log.read_text()
    last = out.splitlines()[-1]
    assert last.startswith("the run failed: the ServerApp has gone silent"), out
