"""The Compose files: what they may do, and the options they name."""

import re
from pathlib import Path

import click
import pytest
import yaml
from typer.testing import CliRunner

from vfl_flower.app.commands.cli import app

FOLDER = Path(__file__).parents[2] / "examples" / "compose"
FILES = ["compose.coordinator.yaml", "compose.party.yaml"]
README = (FOLDER / "README.md").read_text()

WRITABLE = {
    "coordinator": {"/federation/flwr", "/results"},
    "party": {"${PARTY_HOME}/${PARTY}/state", "${PARTY_HOME}/${PARTY}/flwr"},
    "setup": {"${PARTY_HOME}"},
}
"""The folders of the machine that each container may write."""


def compose(name):
    return yaml.safe_load((FOLDER / name).read_text())


SERVICES = {name: s for file in FILES for name, s in compose(file)["services"].items()}


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_container_may_do(name):
    service = SERVICES[name]
    assert service["user"].startswith("${OWNER")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    forbidden = {"privileged", "cap_add", "devices", "pid", "ipc", "env_file"}
    assert not forbidden & service.keys()
    volumes = service["volumes"]
    assert {v["type"] for v in volumes} == {"bind"}
    assert not any(v["bind"]["create_host_path"] for v in volumes)
    writable = {v["target"] for v in volumes if not v.get("read_only")}
    assert writable == WRITABLE[name]
    assert "docker.sock" not in str(service)


def test_network():
    """One port of the coordinator is open, that of the gate; setup has no network."""
    assert SERVICES["coordinator"]["ports"] == ["8000:8000"]
    assert "--port=8000" in SERVICES["coordinator"]["command"]
    assert "ports" not in SERVICES["party"]
    assert SERVICES["setup"]["network_mode"] == "none"


def test_keys_are_files():
    """No variable has a secret, and the key of the SuperLink is mounted as one."""
    secrets = compose("compose.coordinator.yaml")["secrets"]
    assert secrets == {"server-key": {"file": "./federation/server.key"}}
    for service in SERVICES.values():
        assert set(service["environment"]) <= {"FLWR_HOME", "HOME", "XDG_DATA_HOME"}
    mounted = [s["target"] for s in SERVICES["coordinator"]["secrets"]]
    assert mounted == ["/federation/server.key"]


def test_the_image_is_not_of_root():
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 65534:65534"]
    assert lines[-1] == 'ENTRYPOINT ["vfl-flower"]'
    for line in lines:
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (FOLDER.parents[1] / source).exists()
                assert f"!{source}" in (FOLDER / "Dockerfile.dockerignore").read_text()


def commands():
    """Return each command of vfl-flower with the options that are named for it."""
    named = []
    for name in ("coordinator", "party"):
        command, *options = SERVICES[name]["command"]
        given = {o.partition("=")[0] for o in options if o.startswith("--")}
        named.append((command, given))
    for line in re.findall(r"run --rm setup ((?:.*\\\n)*.*)", README):
        words = line.replace("\\\n", " ").split()
        named.append((words[0], {w for w in words if w.startswith("--")}))
    return named


def test_commands_are_found():
    assert [name for name, _ in commands()] == ["coordinator", "party", "init", "party"]


@pytest.mark.parametrize(("command", "options"), commands())
def test_options_exist(command, options):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert options
    assert options <= set(re.findall(r"--[a-z][a-z-]*", click.unstyle(shown.output)))
