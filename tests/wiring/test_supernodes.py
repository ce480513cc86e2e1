"""Three organisations with files and SuperNodes: who takes part, and in what.

The SuperLink has TLS, and takes the registered SuperNodes only. The parties have pinned
each other's keys, and each test says what else their consent lets leave them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from vfl_flower.app.commands.identity import line_for_peers
from vfl_flower.app.config import check_run_config, make_strategy
from vfl_flower.app.deployment.bundle import installed_bundle
from vfl_flower.app.deployment.certificates import write_certificates
from vfl_flower.app.deployment.processes import RunFailed
from wiring.deployment import NAMES, STOCK, Deployment, Run

pytestmark = pytest.mark.second


# -- who may take part -----------------------------------------------------------------


@pytest.fixture
def stranger(organisations) -> Iterator[str]:
    """Return the name of a SuperNode that no test registers for good."""
    yield "stranger"
    deployment = organisations.deployment
    deployment.stop("stranger")
    del deployment.supernodes["stranger"]
    if "stranger" in deployment.node_ids:  # the test has failed
        deployment.unregister("stranger")


def ended(deployment: Deployment, name: str) -> str:
    assert deployment.supernodes[name].wait(30) != 0
    return deployment.processes.log(name, lines=100)


def test_only_a_registered_supernode_connects(organisations, stranger):
    """The same key before, with and after registration."""
    deployment = organisations.deployment
    three = set(deployment.online())
    assert three == set(deployment.node_ids.values())
    config = {"partition-id": 0, "party-name": NAMES[0]}  # it claims to be a party
    deployment.start(stranger, config, program=STOCK)
    assert "Failed to activate SuperNode" in ended(deployment, stranger)
    assert set(deployment.online()) == three

    deployment.register(stranger)
    deployment.start(stranger, config, program=STOCK)
    deployment.wait_online(stranger)
    assert set(deployment.online()) == three | {deployment.node_ids[stranger]}
    deployment.unregister(stranger)
    assert set(deployment.online()) == three
    with pytest.raises(RunFailed, match="Public key already in use"):
        deployment.register(stranger)


def test_no_one_takes_another_superlink_for_ours(organisations, stranger, tmp_path):
    """Neither a SuperNode nor ``flwr`` with another authority's certificate."""
    deployment = organisations.deployment
    write_certificates(tmp_path, ["127.0.0.1"])
    other = f"--root-certificates={tmp_path / 'ca.crt'}"
    deployment.start(stranger, {}, other, program=STOCK)
    assert "certificate verify failed" in ended(deployment, stranger)
    deployment.connect("impostor", tmp_path / "ca.crt")
    with pytest.raises(RunFailed, match="SuperLink is unavailable"):
        deployment.processes.flwr("ls", "impostor")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own
def test_flowers_own_supernode_runs_the_bundle_of_a_checkout(
    project, pinned, tmp_path, organisations
):
    """Unless it has trusted entities, as docs/deploy.md says of the bundle of a folder.

    Remove the warning there when this test fails. The other two parties have pinned
    the bundle, and have started their SuperNodes as docs/deploy.md advises.
    """
    assert pinned != installed_bundle()[1]
    organisations.consent("rows", "totals")
    write_numbers(organisations)
    deployment, name = organisations.deployment, NAMES[-1]
    config = organisations.configs[-1]
    key = Ed25519PrivateKey.generate().public_key()
    text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (tmp_path / "trusted.yaml").write_text(f"fpk_0: {text}\n")
    runs = []
    try:
        for options in ([f"--trusted-entities={tmp_path / 'trusted.yaml'}"], []):
            deployment.stop(name)
            deployment.start(name, config, *options, program=STOCK)
            deployment.wait_online(name)
            # Each message starts a process that imports all, so few round trips.
            strategy = {"strategy": "coreset-vkmc", "coreset-vkmc.size": 20}
            runs.append(organisations.run(project, tmp_path, strategy))
    finally:
        deployment.stop(name)
        deployment.start(name, config)
        deployment.wait_online(name)
    run, again = runs
    assert f"node {deployment.node_ids[name]}" in run.status
    assert "The FAB could not be verified" in run.status
    assert run.seconds < MOST_SECONDS
    refusal = "App verification is not supported by the connected SuperLink"
    assert refusal in run.party_logs[name]
    assert all(refusal not in run.party_logs[other] for other in NAMES[:-1])
    assert again.completed, again
    assert all(told(again, other) == [] for other in NAMES)


# -- what no party has consented to ----------------------------------------------------

MOST_SECONDS = 220
"""Until a refusal: less than the time-out of one round trip of these runs."""


def refusal(run: Run, error: str) -> str:
    assert not run.completed
    assert run.seconds < MOST_SECONDS, run
    (sentence,) = re.findall(r"(?m)^(?:[\w.]+\.)?RunEnded: (.*)$", run.log)
    assert f"ServerApp failed with exception: {sentence}\n" in run.status
    return sentence


def told(run: Run, party: str) -> list[str]:
    return re.findall(r"(?m)^.*consent.*$", run.party_logs[party])


def lacking(run: Run, *lines: str) -> None:
    need = f"would need {', '.join(lines)}"
    which = "; ".join(f"the consent.toml of {name!r} {need}" for name in NAMES)
    sentence, _, _ = refusal(run, "FederationError").partition(". With solver='cg'")
    assert sentence == f"3 of 3 parties refuse the run: {which}"
    own = f"the consent of this party lacks: {'; '.join(lines)}"
    assert all(told(run, name) == [own] for name in NAMES)


def write_numbers(parties):
    numbers = np.random.default_rng(3).normal(size=(4, 300)).tolist()
    for j, config in enumerate(parties.configs):
        columns = {"id": list(range(300)), f"x{j}": numbers[j]}
        labels = {"y": numbers[3]} if "label-column" in config else {}
        parties.write(j, columns | labels)


def test_no_run_without_consent(app, tmp_path, organisations):
    """To what the strategy needs, to a seed, and to the key of each other party.

    That each strategy needs what it says, tests/party/test_consent.py shows.
    """
    write_numbers(organisations)
    organisations.consent()
    config = {"strategy": "coreset-vrlr"}
    needs = make_strategy(check_run_config(config)).terms.needs
    run = organisations.run(app, tmp_path, config | {"seed": 1})
    lines = "allow-seed = true", "[leaves]", *(f"{kind} = true" for kind in needs)
    lacking(run, *lines)

    organisations.consent("row-sums", "totals", "coefficients", "moments")
    consent = Path(organisations.named["airline"]["consent"])
    (pin,) = re.findall('(?m)^weather = ".*"\n', text := consent.read_text())
    other = line_for_peers(tmp_path / "other", "weather")
    pinned, forged = (line.split('"')[1] for line in (pin, other))
    assert forged != pinned
    consent.write_text(text.replace(pin, f"{other}\n"))
    run = organisations.run(app, tmp_path, config)
    rule = (
        f"the key of party 'weather' must be the one that is pinned, but it is {pinned}"
    )
    sentence = f"party 'airline' failed in 'linear_gram_columns': {rule}"
    assert refusal(run, "PartyFailed") == sentence
    assert f"\nrefused linear_gram_columns: {rule}\n" in run.party_logs["airline"]
