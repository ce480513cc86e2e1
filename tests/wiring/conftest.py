"""One SuperLink and several SuperNodes on loopback, as organisations run them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from vfl_flower.app.flower_run import (
    Processes,
    RunOutcome,
    start_superlink,
    start_supernodes,
    submit,
)

RUN_LIMIT = 300.0  # seconds: a hanging run must not hang the suite


@dataclass
class Deployment:
    """A running SuperLink with its SuperNodes."""

    processes: Processes

    def run(
        self,
        app_dir: str | Path,
        run_config: Sequence[str] = (),
        timeout: float = RUN_LIMIT,
    ) -> RunOutcome:
        """Run a project here; raise RunFailed unless it completes."""
        return submit(self.processes, app_dir, run_config=run_config, timeout=timeout)


@contextmanager
def deploy(home: Path, node_configs: Sequence[str]) -> Iterator[Deployment]:
    """Start a SuperLink and one SuperNode a node config; stop all at the end."""
    with Processes(home) as processes:
        port = start_superlink(processes)
        start_supernodes(processes, port, node_configs)
        yield Deployment(processes)
    assert not processes.pids()


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Sequence[str]], AbstractContextManager[Deployment]]:
    """Return ``deployment(node_configs)``, to be used in a ``with`` statement."""
    return lambda configs: deploy(tmp_path_factory.mktemp("flwr"), configs)


@pytest.fixture(scope="session")
def project() -> Path:
    """Return the folder of this project's ``pyproject.toml``."""
    return Path(__file__).parents[2]
