"""Fixtures that every folder of tests may use."""

import gc
import os

import hypothesis
import numpy as np
import pytest
from faults import Clock

from vfl_flower import Party
from vfl_flower.protocol import exchange, parties
from vfl_flower.protocol.metrics import SPREAD
from vfl_flower.protocol.strategy import ProtocolStrategy


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Return the clock by which the server now waits: no test waits for real."""
    clock = Clock()
    monkeypatch.setattr(exchange, "time", clock)
    monkeypatch.setattr(parties, "time", clock)
    return clock


@pytest.fixture(autouse=True, scope="session")
def explained():
    """Fail whatever test gets a metric that its strategy does not explain."""
    start = ProtocolStrategy.start

    def checked(strategy, *args, **kwargs):
        result = start(strategy, *args, **kwargs)
        named = {n for of in result.train_metrics_clientapp.values() for n in of}
        named = {name.removesuffix(SPREAD) for name in named} | {*result.traces}
        ours = type(strategy).__module__.startswith("vfl_flower.")
        assert not ours or named <= {*strategy.explained}, named
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProtocolStrategy, "start", checked)
        yield


@pytest.fixture(scope="session")
def three() -> list[Party]:
    """Return three small parties, the last with labels."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(24, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=24)
    names = "airline", "weather", "registry"
    return [
        Party(X[:, 2 * j : 2 * j + 2], name=name, y=y if j == 2 else None)
        for j, name in enumerate(names)
    ]


# How long an example takes is the machine's business: see benchmarks/.
hypothesis.settings.register_profile("no clock", deadline=None)
hypothesis.settings.load_profile("no clock")


def pytest_collection_modifyitems(items):
    """Begin with the slow tests: they wait for processes while others compute.

    The workers first share the list out in runs of equal length, so one would have all
    slow tests, one after another, and end alone. A third of their time is in the two
    tests of whole guides, with which another worker begins; more deployments at once
    would be too much for two cores. Tests that share a deployment come first of all.
    """
    guides = "test_the_tutorial", "test_three_files_of_columns"
    shared, slow, alone, fast = [], [], [], []
    for item in items:
        if item.get_closest_marker("slow") is None:
            fast.append(item)
        elif item.name in guides:
            alone.append(item)
        else:
            (shared if "organisations" in item.fixturenames else slow).append(item)
    slow = [*shared, *slow]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    length = max(0, len(items) // workers - len(slow))
    items[:] = [*slow, *fast[:length], *alone, *fast[length:]]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage in what modules and collected tests leave: there is none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
