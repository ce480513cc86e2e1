"""``vfl-flower run`` on a SuperLink: what it shows, and with what it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from wiring.deployment import NAMES, node_configs, write_party

from vfl_flower.app.flower_run import Processes, start_superlink, start_supernodes

pytestmark = pytest.mark.slow

CONSENT = "trust-on-first-use = true\n[leaves]\nrows = true\ntotals = true\n"


class Place:
    """A SuperLink with three SuperNodes, and a user of the command line."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        self.configs = node_configs(folder)
        rng = np.random.default_rng(0)
        for name, config in self.configs.items():
            columns = {"id": list(range(60)), f"x-{name}": rng.normal(size=60).tolist()}
            if name == NAMES[-1]:
                columns["y"] = rng.normal(size=60).tolist()
            write_party(config, columns)
            consent = Path(config["consent"])
            consent.touch(mode=0o600)
            consent.write_text(CONSENT)

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command line."""
        return subprocess.Popen(
            [sys.executable, "-m", "vfl_flower.app.cli", *arguments],
            env=self.processes.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *given: str) -> subprocess.Popen[str]:
        """Start ``vfl-flower run``."""
        common = ["size=10", "n-parties=3", "timeout=60", f"output-dir={self.folder}"]
        options = [word for item in [*common, *given] for word in ("--set", item)]
        return self.command("run", "coreset-vrlr", *options)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    with Processes(tmp_path_factory.mktemp("flwr")) as processes:
        place = Place(tmp_path_factory.mktemp("organisations"), processes)
        port = start_superlink(processes, "--disable-runtime-dependency-installation")
        texts = [
            " ".join(
                f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}"
                for k, v in config.items()
            )
            for config in place.configs.values()
        ]
        start_supernodes(processes, port, texts)
        yield place
    assert not processes.pids()


def test_a_party_at_fault_is_named_in_the_last_line(place):
    """Already in hello, when the server does not know it yet."""
    config = place.configs["weather"]
    data = Path(config["data"])
    text = data.read_text()
    data.write_text("")
    try:
        process = place.run()
        out, _ = process.communicate(timeout=200)
    finally:
        data.write_text(text)
    assert process.returncode == 1, out
    last = out.splitlines()[-1]
    assert last.startswith("the run failed: party 'weather' failed in 'hello': "), out
    assert "Traceback" not in out
    assert "node " not in out


def test_a_killed_server_is_a_failure(place):
    process = place.run("timeout=600")
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "hello" in line:
            break
    killed = [
        pid
        for pid in place.processes.pids()
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert killed, lines
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    last = out.splitlines()[-1]
    assert last.startswith("the run failed: the ServerApp has gone silent"), out
