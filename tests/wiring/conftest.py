"""Flower itself, as organisations run it."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vfl_flower.app.commands.template import write_app
from vfl_flower.app.deployment.bundle import hash_of_app
from vfl_flower.app.deployment.processes import Processes
from wiring.deployment import Deployment, Organisations, kernel_ports


@pytest.fixture(scope="session")
def free_port() -> Iterator[Callable[[], int]]:
    with kernel_ports() as free_port:
        yield free_port


@pytest.fixture(scope="session")
def project() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def app(tmp_path_factory) -> Path:
    return write_app(tmp_path_factory.mktemp("app") / "app").parent


@pytest.fixture(scope="session")
def pinned(project) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        return hash_of_app(project)


@pytest.fixture(scope="package")
def organisations(tmp_path_factory, pinned, free_port) -> Iterator[Organisations]:
    """Return three parties whose SuperNodes run the installed package.

    They also run the bundle of this project, which they have pinned. One deployment
    serves all tests: each puts its own files in the place of those before. It ends when
    another folder's test begins: idle, its SuperNodes ask for work all the time.
    """
    folder = tmp_path_factory.mktemp("organisations")
    scratch = tmp_path_factory.mktemp("deployment")
    with Processes(scratch / "flwr") as processes:
        processes.env["VFL_FLOWER_CACHE"] = str(scratch / "cache")
        deployment = Deployment(scratch, processes, free_port)
        try:
            (made := Organisations(folder, deployment, pinned)).start()
            yield made
        finally:
            for name in [*deployment.supernodes]:
                deployment.stop(name)
    assert not processes.pids()
