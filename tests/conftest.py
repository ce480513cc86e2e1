"""Fixtures that every folder of tests may use."""

import gc
import os
import shutil
import signal
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from faults import Clock
from threadpoolctl import threadpool_limits
from times import CpuTimes

from vfl_flower import Party
from vfl_flower.server import exchange, greeting
from vfl_flower.server.metrics import SPREAD
from vfl_flower.server.strategy import ProtocolStrategy

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As shells start what runs in the background: commands of tests would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Return the clock by which the server now waits: no test waits for real."""
    clock = Clock()
    monkeypatch.setattr(exchange, "time", clock)
    monkeypatch.setattr(greeting, "time", clock)
    return clock


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    """Let parties keep converted files here, not among thousands of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VFL_FLOWER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_worker_of_ray():
    """Let Ray start one worker, and only when it is needed: each imports all anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 1}')
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        yield


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
    rng = np.random.default_rng(5)
    X = rng.normal(size=(24, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=24)
    names = "airline", "weather", "registry"
    return [
        Party(X[:, 2 * j : 2 * j + 2], name=name, y=y if j == 2 else None)
        for j, name in enumerate(names)
    ]


# The first stage is the same each time; `draws.law` is for the second. How long an
# example takes is the machine's business: see benchmarks/.
hypothesis.settings.register_profile(
    "first",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("first")


MEMORY = Path("/dev/shm")
"""The file system that Linux keeps in memory."""

OWN = pytest.StashKey[str]()
"""The folder there of this test run."""

ROOM = 6 * 2**30
"""Bytes that must be free there. The tests need less than a third of them."""


def pytest_addoption(parser):
    """Add the option of `make test-times`."""
    parser.addoption("--cpu", action="store_true", help="CPU seconds by folder")


def pytest_configure(config):
    """Write temporary files into memory where there is room, unless ``TMPDIR`` is set.

    Parties make sure that what they count is on the disk, and tests count thousands of
    times. The tests kill processes alone, and what a process has written outlives it in
    memory too. That files are synchronised, tests/test_files.py shows.
    """
    if config.getoption("cpu"):
        config.pluginmanager.register(CpuTimes())
    if "OMP_NUM_THREADS" not in os.environ:  # as without make
        os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
        threadpool_limits(1)
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    runs_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if runs_programs and min(free, shutil.disk_usage(MEMORY).free) > ROOM:
        # Of this process alone: the workers of xdist take over its environment.
        config.stash[OWN] = tempfile.mkdtemp(prefix="vfl-", dir=MEMORY)
        os.environ["TMPDIR"] = config.stash[OWN]
        tempfile.tempdir = None  # which is read anew


def pytest_sessionfinish(session, exitstatus):
    """Free the memory again; what a failed test has written stays, to be looked at."""
    own = session.config.stash.get(OWN, None)
    if own is not None and exitstatus == pytest.ExitCode.OK:
        # After multiprocessing has removed its folder in there, which has -100.
        Finalize(None, shutil.rmtree, (own, True), exitpriority=-200)


def pytest_collection_modifyitems(items):
    """Begin with the slow tests: they wait for processes while others compute.

    Of the equal shares in which xdist deals the tests out, the first begins with those
    that share a deployment, so that one worker has them, and goes on with those of
    other folders, so that the deployment ends. The second begins with the other tests
    of tests/wiring, the longest of all.
    """
    shared, elsewhere, wiring, quick = [], [], [], []
    for item in items:
        if item.get_closest_marker("second") is None:
            quick.append(item)
        elif "organisations" in item.fixturenames:
            shared.append(item)
        else:
            (wiring if "wiring" in item.path.parts else elsewhere).append(item)
    first = [*shared, *elsewhere]
    share = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    cut = max(0, share - len(first))
    items[:] = [*first, *quick[:cut], *wiring, *quick[cut:]]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage in what modules and collected tests leave: there is none.

    And later less often than Python does for smaller programs: 4 % of the tests' time.
    """
    gc.set_threshold(200_000, 20, 100)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
