"""Kill -9 of each kind of process of a real deployment, and what becomes of the run.

A SuperLink with TLS, three registered SuperNodes and a ServerApp on loopback. A run is
killed at a random moment; then the process is started again, or not::

    python benchmarks/kills.py --strategies coreset-vrlr --moments 1

Each line says what was killed and when, how the run ended, after how many seconds, and
whether the model is that of a run that nobody killed. The script fails where a process
or a half-written file is left.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from wiring.deployment import (  # noqa: E402
    NAMES,
    Deployment,
    Run,
    deploy,
    node_configs,
    write_consents,
    write_party,
)

KINDS = ("flwr-serverapp", "flwr-clientapp", "flower-supernode", "flower-superlink")
"""Names of the commands."""

RUNS: dict[str, dict[str, Any]] = {
    "coreset-vrlr": {"coreset-vrlr.solver": "cg", "coreset-vrlr.max-iter": 3},
    "coreset-vkmc": {},
    "fdskl": {
        "fdskl.features": 64,
        "fdskl.target": "continuous",
        "fdskl.loss": "square",
    },
    "fk-kmeans": {"fk-kmeans.partition": "vertical", "fk-kmeans.iterations": 2},
    "mufc": {"mufc.box": "-9,9"},
}
LEAVES = ("rows", "totals", "row-sums", "coefficients", "angles", "centroids")


def pids_of(deployment: Deployment, kind: str) -> list[int]:
    """Return the processes of a kind that the deployment has started."""
    found = []
    for pid in sorted(deployment.processes.pids()):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]
            if any(Path(os.fsdecode(word)).name == kind for word in words):
                found.append(pid)
    return found


def model_of(folder: Path) -> dict[str, np.ndarray] | None:
    """Return the model in the folder of a run, without its number."""
    for path in folder.glob("model-*.npz"):
        with np.load(path) as stored:
            return {k: stored[k] for k in stored.files if k not in ("about", "model")}
    return None


def newest(out: Path) -> Path | None:
    """Return the folder of the last run."""
    return max(out.iterdir(), default=None) if out.exists() else None


def run(deployment: Deployment, config: dict[str, Any]) -> Run:
    """Run to the end."""
    return deployment.run(ROOT, config, timeout=400)


def killed(
    deployment: Deployment,
    configs: dict[str, Any],
    config: dict[str, Any],
    kind: str,
    after: float,
    restart: bool,
) -> tuple[str, float, Run]:
    """Run, kill a process after some seconds of the ServerApp, and wait for the end."""
    ended: list[Run] = []
    thread = threading.Thread(target=lambda: ended.append(run(deployment, config)))
    thread.start()
    while not pids_of(deployment, "flwr-serverapp") and thread.is_alive():
        time.sleep(0.2)
    time.sleep(after)
    while not (found := pids_of(deployment, kind)) and thread.is_alive():
        time.sleep(0.02)
    what = f"{kind} after {after:.0f} s"
    if not found:
        thread.join()
        return f"{what}: too late", 0.0, ended[0]
    victim = found[-1]
    name = NAMES[1]
    if kind == "flower-supernode":
        victim = deployment.supernodes[name].pid
    os.kill(victim, signal.SIGKILL)
    start = time.monotonic()
    if kind == "flower-supernode" and restart:
        deployment.supernodes[name].wait()
        node = deployment.node_ids[name]
        while node in deployment.online():
            time.sleep(1)
        deployment.start(name, configs[name])
    thread.join()
    return what, time.monotonic() - start, ended[0]


def main() -> None:
    """Kill, and print what became of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategies", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--moments", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    dice = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as base:
        folder, out = Path(base) / "parties", Path(base) / "runs"
        folder.mkdir()
        configs = node_configs(folder)
        rng = np.random.default_rng(0)
        X = rng.normal(size=(200, 3))
        for j, name in enumerate(NAMES):
            columns: dict[str, Any] = {
                "id": list(range(200)),
                f"x{j}": X[:, j].tolist(),
            }
            if name == NAMES[-1]:
                columns["y"] = (X.sum(axis=1) + rng.normal(size=200)).tolist()
            write_party(configs[name], columns)
        write_consents(configs, *LEAVES, allow_seed=True)
        for strategy in given.strategies:
            common = {"strategy": strategy, "seed": 1, "n-parties": 3} | RUNS[strategy]
            common |= {"timeout": given.timeout, "output-dir": str(out / strategy)}
            for kind in given.kinds:
                with deploy(Path(tempfile.mkdtemp(dir=base)), configs) as deployment:
                    whole = run(deployment, common)
                    truth = model_of(newest(out / strategy) or out)
                    print(
                        f"{strategy}: {whole.status} in {whole.seconds:.0f} s",
                        flush=True,
                    )
                    for _ in range(given.moments):
                        after = dice.uniform(2, max(3.0, whole.seconds - 10))
                        what, seconds, ended = killed(
                            deployment, configs, common, kind, after, True
                        )
                        show(strategy, what, seconds, ended, truth, out / strategy)
                        resume = newest(out / strategy)
                        if ended.completed or resume is None or kind == KINDS[3]:
                            continue
                        resumed(strategy, deployment, common, resume, truth)
                if kind == KINDS[3]:
                    with deploy(
                        Path(tempfile.mkdtemp(dir=base)), configs
                    ) as deployment:
                        resumed(strategy, deployment, common, resume, truth)
        partial = [p for p in Path(base).rglob("*.part")]
        assert not partial, partial


def resumed(
    strategy: str,
    deployment: Deployment,
    common: dict[str, Any],
    resume: Path,
    truth: Any,
) -> None:
    """Go on with a run, and show what it came to."""
    again = run(deployment, common | {"resume": resume.name})
    show(strategy, "  resumed", again.seconds, again, truth, resume.parent)


def show(
    strategy: str, what: str, seconds: float, ended: Run, truth: Any, out: Path
) -> None:
    """Print how a run ended."""
    folder = newest(out)
    model = model_of(folder) if folder is not None and ended.completed else None
    same = model is not None and truth is not None
    same = same and all(np.array_equal(model[k], truth[k]) for k in truth)
    reason = " ".join(ended.status.split())[-300:]
    print(f"{strategy}: {what}: {seconds:.0f} s, same={same}, {reason}", flush=True)


if __name__ == "__main__":
    main()
