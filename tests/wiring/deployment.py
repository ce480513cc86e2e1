"""A deployment as organisations have it, on loopback: TLS and registered SuperNodes.

How to use it, for three parties with a key of the node config beside the usual ones::

    configs = node_configs(folder, impute={"airline": "none", ...})
    with deploy(folder, configs) as deployment:
        write_party(configs["airline"], {"id": [...], "x": [...]})  # and the others
        write_consents(configs, "angles", allow_seed=True)  # before any run
        run = deployment.run(project, {"strategy": "fdskl", "seed": 3})
    run.status, run.seconds, run.log, run.party_logs["airline"]
"""

import http.client
import io
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from csv import writer
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfl_flower.app.certificates import write_certificates, write_supernode_key
from vfl_flower.app.flower_run import (
    COLOR,
    CONNECTION,
    START,
    Processes,
    RunFailed,
    free_port,
    submit,
    wait_for,
)
from vfl_flower.app.identity import line_for_peers
from vfl_flower.protocol.consent import Kind

NAMES = ("airline", "weather", "registry")
"""The parties; the last one holds the labels."""

FORKING = (sys.executable, "-m", "vfl_flower.app.executor")
"""What runs the SuperNode of a party that answers with its installed package."""
STOCK = ("flower-supernode",)
"""Flower's own SuperNode, which runs whatever bundle the server sends."""


def node_configs(
    folder: Path, **more: Mapping[str, Any]
) -> dict[str, dict[str, bool | int | float | str]]:
    """Return the node config of each party, whose files are in a folder.

    Parameters
    ----------
    folder : path
        Of the parties' files ``NAME.csv`` and ``NAME.toml``, their consent, and of
        their ``state-NAME`` folders.
    **more : mapping
        A further key of the node config, with ``_`` for ``-``: its value by party.
    """
    configs: dict[str, dict[str, Any]] = {
        name: {
            "partition-id": j,
            "data": str(folder / f"{name}.csv"),
            "party-name": name,
            "id-column": "id",
            "state-dir": str(folder / f"state-{name}"),
            "consent": str(folder / f"{name}.toml"),
        }
        for j, name in enumerate(NAMES)
    }
    configs[NAMES[-1]]["label-column"] = "y"
    for key, values in more.items():
        for name, value in values.items():
            configs[name][key.replace("_", "-")] = value
    return configs


def write_party(
    config: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]
) -> None:
    """Write the file of the party with a node config."""
    with Path(config["data"]).open("w", newline="") as file:
        rows = writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))


def write_consents(
    configs: Mapping[str, Mapping[str, Any]], *leaves: Kind, **rules: bool
) -> None:
    """Write the ``consent.toml`` of each party, with the keys of the others pinned.

    A SuperNode reads it for each message, so that a run holds what stands in it then.

    Parameters
    ----------
    configs : mapping
        Node config of each party, by name. A party that has no key is given one.
    *leaves : str
        The kinds that may leave each party, without limit.
    **rules : bool
        Further keys, with ``_`` for ``-``.
    """
    pins = {
        name: line_for_peers(Path(config["state-dir"]), name)
        for name, config in configs.items()
    }
    for name, config in configs.items():
        lines = [f"{k.replace('_', '-')} = {json.dumps(v)}" for k, v in rules.items()]
        lines += ["[leaves]", *(f"{kind} = true" for kind in leaves)]
        lines += ["[peers]", *(pin for peer, pin in pins.items() if peer != name)]
        path = Path(config["consent"])
        path.touch(mode=0o600)
        path.write_text("\n".join([*lines, ""]))


@dataclass(frozen=True)
class Run:
    """What became of a run.

    Attributes
    ----------
    status : str
        ``finished:completed``, or why the run did not come so far.
    seconds : float
        From ``flwr run`` to the end.
    log : str
        What the user of ``flwr run --stream`` sees: the log of the ServerApp.
    party_logs : dict of str
        What each party's SuperNode has logged during the run, by name.
    """

    status: str
    seconds: float
    log: str
    party_logs: dict[str, str]

    @property
    def completed(self) -> bool:
        """Whether the run came to its end."""
        return self.status == "finished:completed"


@contextmanager
def deploy(
    folder: Path,
    configs: Mapping[str, Mapping[str, Any]],
    program: Sequence[str] = STOCK,
) -> Iterator["Deployment"]:
    """Start a SuperLink and the registered SuperNode of each party; end them all.

    Parameters
    ----------
    folder : path
        For certificates, keys, logs and Flower's own files.
    configs : mapping
        Node config of each party, by name, as of :func:`node_configs`.
    program : sequence of str
        What runs the SuperNodes.
    """
    with Processes(folder / "flwr") as processes:
        deployment = Deployment(folder, processes, program)
        for name in configs:
            deployment.register(name)
        for name, config in configs.items():
            deployment.start(name, config)
        deployment.wait_online(*configs)
        yield deployment
    assert not processes.pids()


class Deployment:
    """A running SuperLink with TLS and SuperNode authentication, and its SuperNodes.

    Parameters
    ----------
    folder, program
        As for :func:`deploy`.
    processes : Processes
        Owner of the processes, which ends them.
    """

    def __init__(
        self, folder: Path, processes: Processes, program: Sequence[str] = STOCK
    ) -> None:
        self.folder = folder
        self.processes = processes
        self.program = program
        self.port = free_port()
        self.node_ids: dict[str, int] = {}
        self.supernodes: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, int] = {}
        write_certificates(folder, ["127.0.0.1", "localhost"])
        self.ca = folder / "ca.crt"
        self.connect(CONNECTION, self.ca)
        superlink = processes.start(
            "superlink",
            "flower-superlink",
            f"--port={self.port}",
            f"--ssl-ca-certfile={self.ca}",
            f"--ssl-certfile={folder / 'server.pem'}",
            f"--ssl-keyfile={folder / 'server.key'}",
            "--enable-supernode-auth",
        )
        wait_for(lambda: self._answers(superlink), START, "the SuperLink to answer")

    def connect(self, name: str, ca: Path) -> None:
        """Add the SuperLink to ``config.toml``, with whose certificates one trusts."""
        with (self.processes.home / "config.toml").open("a") as file:
            file.write(
                f'[superlink.{name}]\naddress = "127.0.0.1:{self.port}"\n'
                f'root-certificates = "{ca}"\n\n'
            )

    def key(self, name: str) -> Path:
        """Return the private key of a SuperNode, which is made if there is none."""
        path = self.folder / f"{name}.key"
        if not path.exists():
            write_supernode_key(path)
        return path

    def register(self, name: str) -> None:
        """Register the public key of a SuperNode, as the SuperLink's owner does."""
        public = self.key(name).with_suffix(".key.pub")
        answer = self.processes.flwr("supernode", "register", str(public), CONNECTION)
        self.node_ids[name] = int(answer["node-id"])

    def unregister(self, name: str) -> None:
        """Take a SuperNode from the list of those that may connect."""
        node_id = str(self.node_ids.pop(name))
        self.processes.flwr("supernode", "unregister", node_id, CONNECTION)

    def start(
        self,
        name: str,
        config: Mapping[str, Any],
        *options: str,
        program: Sequence[str] | None = None,
    ) -> None:
        """Start the SuperNode of a party; `options` come behind the usual ones."""
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        log = self.processes.home / f"{name}.log"
        self._before[name] = len(self._log(name)) if log.exists() else 0
        self.supernodes[name] = self.processes.start(
            name,
            *(program or self.program),
            f"--superlink=127.0.0.1:{self.port}",
            f"--root-certificates={self.ca}",
            f"--auth-supernode-private-key={self.key(name)}",
            f"--port={free_port()}",
            f"--node-config={text}",
            *options,
        )

    def wait_online(self, *names: str) -> None:
        """Wait until the SuperNodes of these parties are online.

        Raises
        ------
        RunFailed
            One of them ended, or was not online in time.
        """
        self.wait_activated(*names)
        ids = {self.node_ids[name] for name in names}
        who = f"the SuperNodes of {', '.join(names)} to be online"
        wait_for(lambda: ids <= set(self.online()), START, who, pause=0.5)

    def wait_activated(self, *names: str) -> None:
        """Wait until these parties' SuperNodes say that the SuperLink has taken them.

        To ask ``flwr`` meanwhile takes a second of computing for each answer.

        Raises
        ------
        RunFailed
            As for :meth:`wait_online`.
        """

        def activated() -> bool:
            for name in names:
                if self.supernodes[name].poll() is not None:
                    raise RunFailed(f"{name} ended:\n{self.processes.log(name)}")
            return all(
                "SuperNode ID" in self._log(name)[self._before[name] :]
                for name in names
            )

        who = f"the SuperNodes of {', '.join(names)}"
        wait_for(activated, START, f"{who} to connect")

    def online(self) -> list[int]:
        """Return the ids of the SuperNodes that are online."""
        nodes = self.processes.flwr("supernode", "list", CONNECTION)["nodes"]
        return [int(node["node-id"]) for node in nodes if node["status"] == "online"]

    def stop(self, name: str) -> None:
        """End the SuperNode of a party."""
        self.supernodes[name].terminate()
        self.supernodes[name].wait(START)

    def run(
        self, project: Path, config: Mapping[str, Any], timeout: float = 300.0
    ) -> Run:
        """Run a project, whether it comes to its end or not.

        Parameters
        ----------
        project : path
            Folder of its ``pyproject.toml``.
        config : mapping
            The run config: text, numbers and truth values by key.
        timeout : float
            Seconds after which the run is stopped.
        """
        texts = {key: json.dumps(value) for key, value in config.items()}
        before = {name: len(self._log(name)) for name in self.supernodes}
        shown, start = io.StringIO(), time.monotonic()
        try:
            with redirect_stdout(shown):
                outcome = submit(
                    self.processes, project, run_config=texts, timeout=timeout
                )
            status = outcome.status
        except RunFailed as error:
            status = str(error)
        seconds = time.monotonic() - start
        logs = {name: self._log(name)[length:] for name, length in before.items()}
        return Run(status, seconds, COLOR.sub("", shown.getvalue()), logs)

    def _log(self, name: str) -> str:
        return self.processes.log(name, lines=1_000_000)

    def _answers(self, superlink: subprocess.Popen[bytes]) -> bool:
        if superlink.poll() is not None:
            raise RunFailed(f"the SuperLink ended:\n{self.processes.log('superlink')}")
        context = ssl.create_default_context(cafile=self.ca)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=1, context=context
        )
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except ssl.SSLCertVerificationError:
            raise
        except OSError:
            return False
        finally:
            connection.close()


class Organisations:
    """The files of three parties, and the deployment that reads them.

    Attributes
    ----------
    named : dict
        Node config of each party, by name; ``configs`` is the list of them.
    """

    def __init__(self, folder: Path, deployment: Deployment) -> None:
        self.folder = folder
        self.deployment = deployment
        self.named = node_configs(folder)
        self.configs = list(self.named.values())

    def write(self, j: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write the file of party j."""
        write_party(self.configs[j], columns)

    def consent(self, *leaves: Kind, **rules: bool) -> None:
        """Write the consent of all parties, as of :func:`write_consents`."""
        write_consents(self.named, *leaves, **rules)

    def run(self, project: Path, out: Path, config: Mapping[str, Any]) -> Run:
        """Run a project on the SuperNodes."""
        common = {"n-parties": 3, "timeout": 240.0, "output-dir": str(out)}
        return self.deployment.run(project, {**config, **common})
