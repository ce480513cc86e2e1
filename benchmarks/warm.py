"""Compare Flower's processes with forking processes, side by side in one session.

Two deployments on loopback, each with a SuperLink and three SuperNodes, exist at the
same time and take turns with an empty round trip, and with whole runs of each strategy
on small data::

    python benchmarks/warm.py --repeats 3

A whole run lasts from ``flwr run`` to its end; this includes three commands of
``flwr``, which are the same in both deployments. "Trips" is the time in round trips.
"""

import argparse
import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from vfl_flower.app.commands.template import write_app
from vfl_flower.app.deployment.bundle import hash_of_app
from vfl_flower.app.deployment.flower_run import CONNECTION, start_superlink, submit
from vfl_flower.app.deployment.foreground import program
from vfl_flower.app.deployment.processes import (
    START,
    Processes,
    RunFailed,
    free_port,
    wait_for,
)
from vfl_flower.protocol.terms import KINDS

EMPTY = Path(__file__).parent / "round_trip_app"

RUNS = {
    "coreset-vrlr central": {
        "strategy": "coreset-vrlr",
        "coreset-vrlr.size": 200,
        "coreset-vrlr.solver": "central",
    },
    "coreset-vrlr cg": {
        "strategy": "coreset-vrlr",
        "coreset-vrlr.size": 200,
        "coreset-vrlr.solver": "cg",
    },
    "coreset-vkmc": {
        "strategy": "coreset-vkmc",
        "data": "wine",
        "coreset-vkmc.n-clusters": 3,
        "coreset-vkmc.size": 100,
    },
    "ridge train": {"strategy": "ridge", "data": "breast_cancer"},
    "fk-kmeans": {
        "strategy": "fk-kmeans",
        "data": "wine",
        "fk-kmeans.n-clusters": 3,
        "fk-kmeans.iterations": 2,  # a round trip each
        "fk-kmeans.clustering": "coreset",
    },
    "mufc": {
        "strategy": "mufc",
        "data": "wine",
        "mufc.n-clusters": 3,
        "mufc.box": "0,2000",
    },
}
"""Run configs by name; other settings have their defaults."""

CONSENT = "\n".join(
    ["trust-on-first-use = true", "[leaves]", *(f"{kind} = true" for kind in KINDS)]
)
"""A consent that permits every kind."""


def start_supernodes(
    processes: Processes,
    superlink_port: int,
    node_configs: Sequence[str],
    command: Sequence[str] = ("flower-supernode",),
) -> None:
    """Start one SuperNode on loopback for each node config, wait until all are online.

    `superlink_port` is that of :func:`start_superlink`, and `command` the program.
    Raises RunFailed if a SuperNode ended, or if they were not all online in time.
    """
    supernodes = {
        f"supernode-{index}": processes.start(
            f"supernode-{index}",
            *command,
            "--insecure",
            f"--superlink=127.0.0.1:{superlink_port}",
            f"--port={free_port()}",
            f"--node-config={config}",
        )
        for index, config in enumerate(node_configs)
    }

    def online() -> bool:
        for name, supernode in supernodes.items():
            if supernode.poll() is not None:
                raise RunFailed(f"{name} ended:\n{processes.log(name)}")
        nodes = processes.flwr("supernode", "list", CONNECTION)["nodes"]
        return [node["status"] for node in nodes].count("online") == len(supernodes)

    # Each check is a command, which takes processor time from the starting SuperNodes.
    what = f"{len(supernodes)} SuperNodes to be online"
    wait_for(online, START, what, pause=0.5)


class Deployment:
    """A SuperLink and three SuperNodes that one program has started."""

    def __init__(self, processes: Processes, folder: Path, forks: bool) -> None:
        self.processes, self.folder = processes, folder
        nodes = [
            f'partition-id={index} num-partitions=3 party-name="party-{index}" '
            f'state-dir="{folder}/state-{index}" consent="{folder}/consent.toml"'
            for index in range(3)
        ]
        for index in range(3):
            (folder / f"state-{index}").mkdir(mode=0o700, parents=True)
        (folder / "consent.toml").write_text(CONSENT)
        (folder / "consent.toml").chmod(0o600)
        if not forks:
            start_supernodes(processes, start_superlink(processes), nodes)
            return
        port = start_superlink(processes, "--isolation=process")
        serverapps = [sys.executable, "-m", "vfl_flower.app.deployment.server_executor"]
        processes.start("serverapps", *serverapps, f"--superlink=127.0.0.1:{port}")
        command = [*program(), "supernode", "--bundle", hash_of_app(EMPTY)]
        start_supernodes(processes, port, nodes, command)

    def empty(self) -> float:
        """Return the median seconds of four empty round trips."""
        output = self._submit(EMPTY, {"repeats": 4})
        line = re.search(r"^ROUND_TRIP (.*)$", output, re.MULTILINE)
        assert line is not None
        return median(json.loads(line[1])["Parties.ask"])

    def run(
        self, app: Path, config: dict[str, object], number: int
    ) -> tuple[float, float, int]:
        """Return the seconds of a run, the seconds in round trips, and their number."""
        out = self.folder / f"out-{number}"
        config = config | {"n-parties": 3, "seed": 1, "output-dir": str(out)}
        start = time.monotonic()
        self._submit(app, config)
        seconds = time.monotonic() - start
        (path,) = out.glob("*/result.json")
        (result,) = json.loads(path.read_text())["results"].values()
        ledger = result["ledger"]
        return seconds, ledger["seconds_waited"], ledger["round_trips"]

    def _submit(self, app: Path, config: dict[str, object]) -> str:
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = submit(self.processes, app, run_config=config, timeout=1800)
        return outcome.output


def main() -> None:
    """Measure and print each pair as soon as it is available."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="repeats of empty trips")
    parser.add_argument("--runs", type=int, default=1, help="runs of each strategy")
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=list(RUNS))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that both end
    with (
        tempfile.TemporaryDirectory() as scratch,
        Processes() as stock_processes,
        Processes() as warm_processes,
    ):
        folder = Path(scratch)
        app = write_app(folder / "app").parent
        stock = Deployment(stock_processes, folder / "stock", forks=False)
        warm = Deployment(warm_processes, folder / "warm", forks=True)
        warm.empty()  # costs of the first run only, such as Flower's own caches
        print(f"{'':22} {'stock s':>9} {'warm s':>8} {'ratio':>6}   load", flush=True)
        for _ in range(args.repeats):
            pair = stock.empty(), warm.empty()
            show("empty round trip", *pair)
        for name in args.only:
            for number in range(args.runs):
                unique = hash((name, number))
                before = stock.run(app, RUNS[name], unique)
                after = warm.run(app, RUNS[name], unique)
                show(f"{name}, run", before[0], after[0])
                show(f"{name}, {after[2]} trips", before[1], after[1])


def show(name: str, stock: float, warm: float) -> None:
    """Print a pair of seconds, their ratio and the load of the machine."""
    load = os.getloadavg()[0]
    ratio = warm / stock
    print(f"{name:22} {stock:9.2f} {warm:8.2f} {ratio:6.3f} {load:6.1f}", flush=True)


if __name__ == "__main__":
    main()
