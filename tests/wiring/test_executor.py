"""Three organisations whose SuperNodes run the installed package, and fork it.

The SuperLink has TLS and takes registered SuperNodes only, as in test_supernodes.py.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from wiring.deployment import (
    NAMES,
    Deployment,
    deploy,
    node_configs,
    write_consents,
    write_party,
)

from vfl_flower.app.config import check_run_config, make_strategy, party_source
from vfl_flower.app.flower_run import wait_for
from vfl_flower.app.template import project as template_project
from vfl_flower.app.template import write_app
from vfl_flower.data import load_party
from vfl_flower.simulation import simulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]

FORKING = (sys.executable, "-m", "vfl_flower.app.executor", "--no-fall-back")
CONFIG = {"strategy": "fdskl", "fdskl.features": 64, "fdskl.bandwidth": 2.0, "seed": 3}
CONFIG |= {"fdskl.test-fraction": 0.0, "n-parties": 3, "timeout": 120.0}

ATTACK = '''
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query("steal")
def steal(message, context):
    """Send the party's file."""
    text = Path(context.node_config["data"]).read_text()
    return Message(RecordDict({"x": ConfigRecord({"text": text})}), reply_to=message)

@server.main()
def main(grid, context):
    ids = list(grid.get_node_ids())
    messages = [Message(RecordDict(), node, "query.steal") for node in ids]
    for reply in grid.send_and_receive(messages, timeout=120):
        if reply.has_error():
            print("REFUSED", reply.error.reason)
        else:
            print("STOLEN", repr(reply.content["x"]["text"]))
'''
"""The code of an attacker who can start runs."""


class Organisations:
    """The files of three parties, and the deployment that reads them."""

    def __init__(self, folder: Path, deployment: Deployment) -> None:
        self.folder, self.deployment = folder, deployment
        self.configs = node_configs(folder)
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 3))
        y = ((X**2).sum(axis=1) > 2.4).astype(int)
        for j, (name, config) in enumerate(self.configs.items()):
            columns = {"id": [f"row{i}" for i in range(300)], f"x{j}": X[:, j].tolist()}
            columns |= {"y": y.tolist()} if name == NAMES[-1] else {}
            write_party(config, columns)
        write_consents(self.configs, "angles", allow_seed=True)


@pytest.fixture(scope="module")
def organisations(tmp_path_factory) -> Iterator[Organisations]:
    folder = tmp_path_factory.mktemp("organisations")
    scratch = tmp_path_factory.mktemp("deployment")
    with deploy(scratch, node_configs(folder), FORKING) as running:
        yield Organisations(folder, running)


def children(pid: int) -> list[int]:
    """Return the live children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return found


def forking_process(organisations: Organisations, name: str) -> int:
    """Return the process that forks one for each message of a party."""
    for pid in children(organisations.deployment.supernodes[name].pid):
        if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError(f"{name} has no process that forks")


def test_a_run_is_that_of_one_process(organisations, tmp_path):
    app = write_app(tmp_path / "app").parent
    config = CONFIG | {"output-dir": str(tmp_path / "out")}
    sources = [party_source(node, config) for node in organisations.configs.values()]
    strategy = make_strategy(check_run_config(config))
    expected = simulate(strategy, [load_party(source) for source in sources])

    run = organisations.deployment.run(app, config)
    assert run.completed, run
    (report,) = tmp_path.glob("out/*/result.json")
    trained = json.loads(report.read_text())["results"]["train"]
    assert trained["metrics"]["1"] == pytest.approx(expected.metrics, rel=1e-10)
    assert trained["ledger"]["round_trips"] == expected.ledger.round_trips
    for name in NAMES:
        assert "Receiving: train.fdskl_fit" in run.party_logs[name]


def test_the_bundle_of_a_checkout_must_be_pinned(organisations, project, tmp_path):
    """It has the code of the whole package, and so another hash."""
    run = organisations.deployment.run(project, CONFIG | {"output-dir": str(tmp_path)})
    assert not run.completed
    assert "has not pinned the bundle" in run.log
    for name in NAMES:
        assert run.party_logs[name].count("has not pinned the bundle") == 1


def test_code_that_reads_the_file_runs_in_flowers_own_supernode_only(
    organisations, tmp_path
):
    app = tmp_path / "attack"
    app.mkdir()
    text = template_project().replace("vfl_flower.app.server_app:app", "attack:server")
    text = text.replace("vfl_flower.app.client_app:app", "attack:client")
    (app / "pyproject.toml").write_text(text)
    (app / "attack.py").write_text(ATTACK)

    deployment = organisations.deployment
    deployment.register("stock")
    deployment.start("stock", organisations.configs["airline"])
    try:
        deployment.wait_online("stock")
        run = deployment.run(app, {})
    finally:
        deployment.stop("stock")
        deployment.unregister("stock")
        del deployment.supernodes["stock"]
    lines = run.log.splitlines()
    (stolen,) = [line for line in lines if line.startswith("STOLEN")]
    assert "row299" in stolen
    refused = [line for line in lines if line.startswith("REFUSED")]
    assert len(refused) == 3
    assert all("has not pinned the bundle" in line for line in refused)
    for name in NAMES:
        assert run.party_logs[name].count("has not pinned the bundle") == 1


def test_a_killed_process_is_asked_again(organisations, tmp_path):
    app = write_app(tmp_path / "app").parent
    forking = forking_process(organisations, "weather")
    killed, stop = [], threading.Event()

    def kill_one() -> None:
        while not (killed or stop.is_set()):
            for pid in children(forking):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.002)

    thread = threading.Thread(target=kill_one)
    thread.start()
    config = CONFIG | {"output-dir": str(tmp_path / "out")}
    try:
        run = organisations.deployment.run(app, config)
    finally:
        stop.set()
        thread.join()
    assert killed
    assert run.completed, run
    assert "ended with exit code -9" in run.party_logs["weather"]
    assert run.seconds < 100  # the timeout of a round trip has not passed


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_supernode_has_started_ends_with_it(organisations, kind):
    deployment = organisations.deployment
    forking = forking_process(organisations, "airline")
    deployment.supernodes["airline"].send_signal(kind)
    deployment.supernodes["airline"].wait(60)
    gone = Path(f"/proc/{forking}")
    wait_for(lambda: not gone.exists(), 60, "the process that forks to end")
    deployment.start("airline", organisations.configs["airline"], program=FORKING)
    deployment.wait_online("airline")
