"""A deployment as organisations have it, on loopback: TLS and registered SuperNodes."""

import io
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from vfl_flower.app.commands.identity import line_for_peers
from vfl_flower.app.deployment.certificates import (
    write_certificates,
    write_supernode_key,
)
from vfl_flower.app.deployment.flower_run import CONNECTION, submit, wait_for_superlink
from vfl_flower.app.deployment.processes import (
    COLOR,
    START,
    Processes,
    RunFailed,
    wait_for,
)
from vfl_flower.protocol.terms import Kind
from wiring.commands import Running

FILES = {"airline": "csv", "weather": "parquet", "registry": "arrow"}
"""The parties with the formats of their files; the last one holds the labels."""
NAMES = tuple(FILES)

FORKING = "vfl_flower.app.deployment.executor:app"
"""What runs the SuperNode of a party that answers with its installed package."""
STOCK = "flwr.supernode.cli:flower_supernode"
"""Flower's own SuperNode, which runs whatever bundle the server sends."""


@contextmanager
def kernel_ports() -> Iterator[Callable[[], int]]:
    """Yield a function that returns a port of loopback that the kernel has chosen.

    Until the end of the block a socket that does not listen is bound to it, so that the
    kernel gives it neither to another process nor to an outgoing connection. A server
    that reuses addresses, as those of Flower and of the gate do, can listen there.
    """
    with ExitStack() as stack:

        def port() -> int:
            keeper = stack.enter_context(socket.socket())
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.bind(("127.0.0.1", 0))
            return int(keeper.getsockname()[1])

        yield port


@dataclass(frozen=True)
class Run:
    """What became of a run."""

    status: str
    log: str
    party_logs: dict[str, str]

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


class Deployment:
    """A running SuperLink with TLS and SuperNode authentication, and its SuperNodes."""

    def __init__(
        self, folder: Path, processes: Processes, free_port: Callable[[], int]
    ) -> None:
        self.folder = folder
        self.processes = processes
        self.free_port, self.port = free_port, free_port()
        self.node_ids: dict[str, int] = {}
        self.supernodes: dict[str, Running] = {}
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
        wait_for_superlink(superlink, self.port, self.ca)

    def connect(self, name: str, ca: Path) -> None:
        with (self.processes.home / "config.toml").open("a") as file:
            file.write(
                f'[superlink.{name}]\naddress = "127.0.0.1:{self.port}"\n'
                f'root-certificates = "{ca}"\n\n'
            )

    def key(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        if not path.exists():
            path.with_suffix(".key.pub").write_text(write_supernode_key(path))
        return path

    def register(self, name: str) -> None:
        public = self.key(name).with_suffix(".key.pub")
        answer = self.processes.flwr("supernode", "register", str(public), CONNECTION)
        self.node_ids[name] = int(answer["node-id"])

    def unregister(self, name: str) -> None:
        node_id = str(self.node_ids.pop(name))
        self.processes.flwr("supernode", "unregister", node_id, CONNECTION)

    def start(
        self,
        name: str,
        config: Mapping[str, Any],
        *options: str,
        program: str = FORKING,
    ) -> None:
        """Start the SuperNode of a party; `options` come behind the usual ones."""
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        self.supernodes[name] = Running(
            self.processes.home,
            name,
            f"--superlink=127.0.0.1:{self.port}",
            f"--root-certificates={self.ca}",
            f"--auth-supernode-private-key={self.key(name)}",
            f"--port={self.free_port()}",
            f"--node-config={text}",
            *options,
            program=program,
            environment=self.processes.env,
        )

    def wait_online(self, *names: str) -> None:
        """Wait until the SuperNodes of these parties are online."""
        for name in names:
            self.supernodes[name].wait_to_say("SuperNode ID")
        ids = {self.node_ids[name] for name in names}
        who = f"the SuperNodes of {', '.join(names)} to be online"
        wait_for(lambda: ids <= set(self.online()), START, who, pause=0.5)

    def online(self) -> list[int]:
        nodes = self.processes.flwr("supernode", "list", CONNECTION)["nodes"]
        return [int(node["node-id"]) for node in nodes if node["status"] == "online"]

    def stop(self, name: str) -> None:
        supernode = self.supernodes.pop(name)
        supernode.process.terminate()
        assert supernode.wait(START) is not None

    def run(
        self, project: Path, config: Mapping[str, Any], timeout: float = 300.0
    ) -> Run:
        """Run a project, whether it comes to its end or not."""
        before = {name: len(self._log(name)) for name in self.supernodes}
        shown = io.StringIO()
        try:
            with redirect_stdout(shown):
                outcome = submit(
                    self.processes, project, run_config=config, timeout=timeout
                )
            status = outcome.status
        except RunFailed as error:
            status = str(error)
        logs = {name: self._log(name)[length:] for name, length in before.items()}
        return Run(status, COLOR.sub("", shown.getvalue()), logs)

    def _log(self, name: str) -> str:
        return self.processes.log(name, lines=1_000_000)


class Organisations:
    """The files of three parties in a folder, and the deployment that reads them."""

    def __init__(self, folder: Path, deployment: Deployment, pinned: str) -> None:
        self.deployment, self.pinned = deployment, pinned
        self.named: dict[str, dict[str, Any]] = {
            name: {
                "partition-id": j,
                "data": str(folder / f"{name}.{ending}"),
                "party-name": name,
                "id-column": "id",
                "state-dir": str(folder / f"state-{name}"),
                "consent": str(folder / f"{name}.toml"),
            }
            for j, (name, ending) in enumerate(FILES.items())
        }
        self.named[NAMES[-1]]["label-column"] = "y"
        self.configs = list(self.named.values())

    def start(self) -> None:
        """Register the SuperNode of each party, and start it."""
        for name in NAMES:
            self.deployment.register(name)
        for name, config in self.named.items():
            self.deployment.start(name, config, f"--bundle={self.pinned}")
        self.deployment.wait_online(*NAMES)

    def write(self, j: int, columns: Mapping[str, Sequence[Any]]) -> None:
        table, path = pd.DataFrame(columns), self.configs[j]["data"]
        if path.endswith(".csv"):
            table.to_csv(path, sep=";", index=False)  # of a German spreadsheet
        elif path.endswith(".parquet"):
            table.to_parquet(path, index=False)
        else:
            table.to_feather(path, compression="uncompressed")

    def consent(self, *leaves: Kind, **rules: bool) -> None:
        """Write the ``consent.toml`` of each, with the keys of the others pinned."""
        pins = {
            name: line_for_peers(Path(config["state-dir"]), name)
            for name, config in self.named.items()
        }
        for name, config in self.named.items():
            given = rules.items()
            lines = [f"{k.replace('_', '-')} = {json.dumps(v)}" for k, v in given]
            lines += ["[leaves]", *(f"{kind} = true" for kind in leaves)]
            lines += ["[peers]", *(pin for peer, pin in pins.items() if peer != name)]
            path = Path(config["consent"])
            path.touch(mode=0o600)
            path.write_text("\n".join([*lines, ""]))

    def run(self, project: Path, out: Path, config: Mapping[str, Any]) -> Run:
        common = {"n-parties": 3, "timeout": 240.0, "output-dir": str(out)}
        return self.deployment.run(project, {**config, **common})
