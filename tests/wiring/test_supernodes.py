"""Three organisations with files and SuperNodes: who takes part, and in what.

The SuperLink has TLS, and takes the registered SuperNodes only. The parties have pinned
each other's keys, and each test says what else their consent lets leave them.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from vfl_flower.app.commands.template import project as template_project
from vfl_flower.app.deployment.bundle import installed_bundle
from vfl_flower.app.deployment.certificates import write_certificates
from vfl_flower.app.deployment.processes import RunFailed
from wiring.deployment import NAMES, STOCK

pytestmark = pytest.mark.second


# -- who may take part -----------------------------------------------------------------


@pytest.fixture
def stranger(organisations) -> Iterator[str]:
    """Return the name of a SuperNode that no test registers."""
    yield "stranger"
    organisations.deployment.stop("stranger")


def test_only_a_registered_supernode_connects(organisations, stranger):
    """A node config that claims to be that of a party changes nothing."""
    deployment = organisations.deployment
    three = set(deployment.online())
    assert three == set(deployment.node_ids.values())
    config = {"partition-id": 0, "party-name": NAMES[0]}  # it claims to be a party
    deployment.start(stranger, config, "--isolation=process", program=STOCK)
    refused = deployment.supernodes[stranger]
    assert refused.wait(30) == 1
    assert "Failed to activate SuperNode" in refused.log.read_text()
    assert set(deployment.online()) == three


def test_no_one_takes_another_superlink_for_ours(organisations, stranger, tmp_path):
    """Neither a SuperNode nor ``flwr`` with another authority's certificate."""
    deployment = organisations.deployment
    write_certificates(tmp_path, ["127.0.0.1"])
    other = f"--root-certificates={tmp_path / 'ca.crt'}"
    deployment.start(stranger, {}, other, "--isolation=process", program=STOCK)
    refused = deployment.supernodes[stranger]
    assert refused.wait(30) == 1
    assert "certificate verify failed" in refused.log.read_text()
    deployment.connect("impostor", tmp_path / "ca.crt")
    with pytest.raises(RunFailed, match="SuperLink is unavailable"):
        deployment.processes.flwr("ls", "impostor")


# -- whose code runs -------------------------------------------------------------------


def write_numbers(parties):
    numbers = np.random.default_rng(3).normal(size=(4, 300)).tolist()
    for j, config in enumerate(parties.configs):
        columns = {"id": list(range(300)), f"x{j}": numbers[j]}
        labels = {"y": numbers[3]} if "label-column" in config else {}
        parties.write(j, columns | labels)


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


@pytest.fixture(scope="module")
def stock(organisations, tmp_path_factory) -> Iterator[dict[str, Any]]:
    """Return the node config of a fourth party, which has Flower's own SuperNode."""
    deployment = organisations.deployment
    own = {"partition-id": 3, "party-name": "stock"}
    own["state-dir"] = str(tmp_path_factory.mktemp("stock"))
    config = organisations.named["airline"] | own
    deployment.register("stock")
    deployment.start("stock", config, program=STOCK)
    deployment.wait_online("stock")
    yield config
    deployment.stop("stock")
    deployment.unregister("stock")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own
def test_the_bundle_of_a_checkout_runs_where_it_is_pinned_and_in_flowers_own(
    organisations, stock, project, pinned, tmp_path
):
    """The other three parties started their SuperNodes as docs/deploy.md advises."""
    assert pinned != installed_bundle()[1]
    organisations.consent("rows", "totals")
    write_numbers(organisations)
    config = {"strategy": "coreset-vkmc", "n-parties": 4, "output-dir": str(tmp_path)}
    # One round trip: each message of a checkout starts a process that imports all.
    run = organisations.deployment.run(project, config | {"dry-run": True})
    assert run.completed, run
    for name in (*NAMES, "stock"):
        assert "consent" not in run.party_logs[name]
        assert len(re.findall("Receiving: train.hello", run.party_logs[name])) == 1


def test_code_that_reads_the_file_runs_in_flowers_own_supernode_only(
    organisations, stock, tmp_path
):
    """Unless it has trusted entities: then it runs no bundle, as docs/deploy.md says.

    Remove the warning there when this test fails. The SuperLink serves such a SuperNode
    as long as its key is registered.
    """
    write_numbers(organisations)
    text = template_project().replace("vfl_flower.app.server_app:app", "attack:server")
    text = text.replace("vfl_flower.app.client_app:app", "attack:client")
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "attack.py").write_text(ATTACK)
    key = Ed25519PrivateKey.generate().public_key()
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (tmp_path / "trusted.yaml").write_text(f"fpk_0: {line}\n")
    trusted = f"--trusted-entities={tmp_path / 'trusted.yaml'}"

    deployment, three = organisations.deployment, set(organisations.deployment.online())
    deployment.register("wary")
    options = trusted, "--isolation=process"  # it never runs one
    deployment.start("wary", stock, *options, program=STOCK)
    try:
        deployment.wait_online("wary")
        assert set(deployment.online()) == three | {deployment.node_ids["wary"]}
        run = deployment.run(tmp_path, {})
        deployment.unregister("wary")
        assert set(deployment.online()) == three
        with pytest.raises(RunFailed, match="Public key already in use"):
            deployment.register("wary")
    finally:
        deployment.stop("wary")
    lines = run.log.splitlines()
    (stolen,) = [line for line in lines if line.startswith("STOLEN")]
    assert "\\n299;" in stolen  # the last id of the party's file
    reasons = [line for line in lines if line.startswith("REFUSED")]
    assert len(reasons) == 4
    assert sum("has not pinned the bundle" in reason for reason in reasons) == 3
    assert sum("The FAB could not be verified" in reason for reason in reasons) == 1
    for name in NAMES:
        assert run.party_logs[name].count("has not pinned the bundle") == 1
    unverified = "App verification is not supported by the connected SuperLink"
    logs = run.party_logs.items()
    assert [name for name, log in logs if unverified in log] == ["wary"]
