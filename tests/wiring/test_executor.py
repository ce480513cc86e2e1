"""Three organisations whose SuperNodes run the installed package, and fork it.

The SuperLink has TLS and takes registered SuperNodes only, as in test_supernodes.py.
"""

import json

import numpy as np
import psutil
import pytest

from vfl_flower.app.commands.template import project as template_project
from vfl_flower.app.config import check_run_config, make_strategy, party_source
from vfl_flower.app.deployment.processes import wait_for
from vfl_flower.data import load_party
from vfl_flower.simulation import simulate
from wiring.deployment import NAMES, STOCK, Organisations

pytestmark = pytest.mark.second

CONFIG = {"strategy": "fdskl-direct", "fdskl-direct.features": 64}
CONFIG |= {"fdskl-direct.bandwidth": 2.0, "seed": 3}
CONFIG |= {"fdskl-direct.test-fraction": 0.0, "n-parties": 3, "timeout": 240.0}

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


@pytest.fixture(autouse=True)
def _circle(organisations) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = ((X**2).sum(axis=1) > 2.4).astype(int)
    for j in range(len(NAMES)):
        columns = {"id": [f"row{i}" for i in range(300)], f"x{j}": X[:, j].tolist()}
        organisations.write(j, columns | ({"y": y.tolist()} if j == 2 else {}))
    organisations.consent("angles", allow_seed=True)


def forking_process(organisations: Organisations, name: str) -> psutil.Process:
    node = psutil.Process(organisations.deployment.supernodes[name].pid)
    (forking,) = [p for p in node.children() if "forkserver" in " ".join(p.cmdline())]
    return forking


def test_a_run_is_that_of_one_process(organisations, app, tmp_path):
    config = CONFIG | {"output-dir": str(tmp_path / "out")}
    sources = [party_source(node, config) for node in organisations.configs]
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
    deployment.start("stock", organisations.named["airline"], program=STOCK)
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


def test_what_a_supernode_has_started_ends_with_it(organisations):
    """Also when it is killed: that of a fourth party, which is in no run."""
    deployment = organisations.deployment
    deployment.register("brief")
    try:
        deployment.start("brief", organisations.named["airline"])
        deployment.wait_activated("brief")
        forking = forking_process(organisations, "brief")
        deployment.supernodes["brief"].kill()
        deployment.supernodes["brief"].wait(60)
        wait_for(lambda: not forking.is_running(), 60, "the process that forks to end")
    finally:
        deployment.unregister("brief")
        del deployment.supernodes["brief"]
