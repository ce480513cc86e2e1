"""Three organisations set up a federation by the commands of ``vfl-flower`` alone."""

import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from wiring.commands import Running, running, said, started_in
from wiring.deployment import NAMES

from vfl_flower.app.certificates import write_supernode_key
from vfl_flower.app.federation import CONNECTION, RESTART
from vfl_flower.app.flower_run import (
    Processes,
    RunFailed,
    free_port,
)
from vfl_flower.protocol.consent import Consent

pytestmark = pytest.mark.slow


def write_files(folder: Path) -> None:
    """Write the files of three parties; the last one holds the labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    for j, name in enumerate(NAMES):
        holds = name == NAMES[-1]
        lines = [f"id,x{j}" + ",y" * holds]
        for i, row in enumerate(X):
            lines.append(f"r{i},{row[j]:.6f}" + f",{row.sum():.6f}" * holds)
        (folder / f"{name}.csv").write_text("\n".join([*lines, ""]))


def test_a_federation_by_commands_alone(tmp_path, project):
    write_files(tmp_path)
    port, local = free_port(), free_port()
    while port == local:
        local = free_port()
    commands = 0
    said(tmp_path, "certificates", "localhost")
    commands += 1
    for name in NAMES:
        file, options = f"{name}.csv", ["--id-column", "id"]
        options += ["--label-column", "y"] if name == NAMES[-1] else []
        said(tmp_path, "check", file, *options)
        needs = ["--for", "coreset-vrlr"]
        said(tmp_path, "init", name, "--data", file, *options, *needs)
        commands += 2
    cards = {name: f"{name}/{name}.card" for name in NAMES}
    options = [f"--card={card}" for card in cards.values()]
    options += [f"--port={port}", f"--local-port={local}", "--host=127.0.0.1"]
    with running(tmp_path, "link", "coordinator", "federation", *options) as link:
        commands += 1
        link.wait_to_say("SuperNodes connect")
        parties = {}
        for name in NAMES:
            words = ["--superlink", f"localhost:{port}", "--ca", "federation/ca.crt"]
            words += [f"--peer={cards[peer]}" for peer in NAMES if peer != name]
            parties[name] = Running(tmp_path, name, "party", name, *words)
            commands += 1
        try:
            for party in parties.values():
                party.wait_to_say("SuperNode ID")
            assert commands == 11
            assert len(started_in(tmp_path)) >= 8  # each with an executor

            _nobody_else_starts_a_run(tmp_path, port, project)
            first, other, killed = parties.values()
            first.end(signal.SIGINT)
            other.end(signal.SIGTERM)
            _refused_until_missed(tmp_path, killed, words)
        finally:
            for party in parties.values():
                if party.process.poll() is None:
                    party.end()
        log = link.end(signal.SIGINT)
    assert re.search(r"(?m)^\$ flower-superlink --host=127.0.0.1 ", log)
    assert started_in(tmp_path) == []
    for name in NAMES:
        peers = Consent.load(tmp_path / name / "consent.toml").peers
        assert set(peers) == set(NAMES) - {name}


def _nobody_else_starts_a_run(folder: Path, port: int, project: Path) -> None:
    """Neither a run nor a key of a SuperNode comes in by the port of the SuperNodes."""
    with Processes(folder / "outside") as processes:
        (processes.home / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "localhost:{port}"\n'
            f'root-certificates = "{folder}/federation/ca.crt"\n'
        )
        key = write_supernode_key(folder / "stranger.key")
        for words in (
            ("run", str(project), CONNECTION),
            ("ls", CONNECTION),
            ("supernode", "register", str(key), CONNECTION),
        ):
            with pytest.raises(RunFailed, match="403"):
                processes.flwr(*words)


def _refused_until_missed(folder: Path, party: Running, words: list[str]) -> None:
    """Kill a SuperNode: the same key is refused, and the command says why."""
    name = party.log.stem
    (pid, *_) = [
        int(line.split()[0])
        for line in subprocess.run(
            ["ps", "-axww", "-o", "pid=,command="],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        if f"{folder}/{name}/supernode.key" in line
    ]
    os.kill(pid, signal.SIGKILL)
    assert party.process.wait(30) == 1
    assert "Error: the SuperNode ended" in party.log.read_text()
    again = Running(folder, f"{name}-again", "party", name, *words)
    assert again.process.wait(60) == 1
    text = again.log.read_text()
    assert "Error: the SuperNode ended. The SuperLink has refused the key" in text
    assert f"wait {RESTART} seconds" in text
