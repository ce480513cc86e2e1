"""A checkpoint holds what a run has done, for that run alone."""

import stat
import subprocess
import sys
import time
from concurrent.futures import wait
from functools import partial
from threading import Event

import numpy as np
import psutil
import pytest
from deviating import RealParties
from faults import UNAVAILABLE
from federations import by_columns
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from vfl_flower import FederationError, PartyFailed
from vfl_flower.protocol.steps import STEPS
from vfl_flower.server.checkpoint import FILE, Checkpoint, digest_of
from vfl_flower.server.exchange import ABSENCE, PATIENCE, Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies import CoresetVRLR

COUNT = 3


def parties(folder=None):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 6)), rng.normal(size=40)
    return by_columns(X, y, COUNT, names=list("abc"), folder=folder)


class Dying(RealParties):
    """A grid whose server dies as it would send a message."""

    def __init__(self, folder, left):
        super().__init__(parties(folder))
        self.left = left

    def _push(self, message):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super()._push(message)


STRATEGY = CoresetVRLR(size=10, solver="central")


def die(folder, left=4, **settings):
    """Begin a run that dies after a number of messages; return its checkpoint."""
    checkpoint = Checkpoint(folder / FILE, settings)
    with pytest.raises(KeyboardInterrupt):
        STRATEGY.start(Dying(folder, left), checkpoint=checkpoint)
    checkpoint.end()
    return folder / FILE


def test_only_complete_round_trips_are_kept(tmp_path):
    """Of the second one a single reply had come."""
    path = die(tmp_path, COUNT + 1)
    again = Checkpoint(path)
    assert again.held == again.ahead == 1
    again.end()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_draws_are_those_of_the_run(tmp_path):
    first = Checkpoint(tmp_path / FILE)
    drawn = [first.token(16), first.token(16), first.number()]
    first.end()
    again = Checkpoint(tmp_path / FILE)
    assert [again.token(16), again.token(16), again.number()] == drawn
    again.end()
    assert len(set(drawn)) == 3
    other = Checkpoint(tmp_path / "other.sqlite")
    assert other.token(16) not in drawn
    other.end()


def test_other_settings_are_refused_by_name(tmp_path):
    path = die(tmp_path, size=10)
    with pytest.raises(FederationError, match="the same size as before, 10, got 11"):
        Checkpoint(path, {"size": 11})
    Checkpoint(path, {"size": 10}).end()  # and nothing was changed


def test_another_version_is_refused(tmp_path, monkeypatch):
    path = die(tmp_path)
    monkeypatch.setattr("vfl_flower.server.checkpoint.__version__", "99.0")
    with pytest.raises(FederationError, match="must have the same version as before"):
        Checkpoint(path)


def test_other_requests_are_refused(tmp_path):
    path = die(tmp_path, 2 * COUNT)
    again = Checkpoint(path)
    with pytest.raises(FederationError, match=r"trip 2 requested .* differs: a set"):
        CoresetVRLR(size=11, solver="central").start(
            RealParties(parties(tmp_path)), checkpoint=again
        )
    again.end()


USING = """
import pathlib, sys
from vfl_flower.server.checkpoint import Checkpoint
checkpoint = Checkpoint(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def test_two_processes_do_not_go_on_with_one_run(tmp_path):
    path = die(tmp_path)
    command = [sys.executable, "-c", USING, path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as other:
        other.stdout.readline()
        with pytest.raises(FederationError, match="another process is") as error:
            Checkpoint(path)
        assert error.traceback  # which keeps the checkpoint, but not its file
        assert str(path) not in [file.path for file in psutil.Process().open_files()]
        other.kill()
    Checkpoint(path).end()


def test_a_party_that_has_lost_its_folder_is_named(tmp_path):
    path = die(tmp_path, 2 * COUNT)
    for file in (tmp_path / "b").glob("journal*"):
        file.unlink()
    again = Checkpoint(path)
    refused = pytest.raises(FederationError, match="'b' has lost the state of the run")
    with refused:
        STRATEGY.start(RealParties(parties(tmp_path)), checkpoint=again)
    again.end()


def reply(number):
    return RecordDict({"settings": ConfigRecord({"number": number})})


def test_replies_are_in_the_order_of_the_nodes(tmp_path):
    """They come in any order, and some twice: from a try that was given up."""
    first = Checkpoint(tmp_path / FILE)
    first.add(0, reply(-1))
    first.drop()
    for place in (2, 0, 1):
        first.add(place, reply(place))
    first.commit("probe", b"digest", 1.5, [11, 12, 13])
    first.end()
    again = Checkpoint(tmp_path / FILE)
    assert again.nodes() == [11, 12, 13]
    seconds, replies = again.replay("probe", b"digest")
    numbers = [content["settings"]["number"] for content in replies]
    assert (seconds, numbers) == (1.5, [0, 1, 2])
    assert again.nodes() == []
    assert again.replay("probe", b"digest") is None
    again.end()


def test_the_digest_of_requests_is_of_the_action_too():
    """A reply to one step would be taken for that to another."""
    frames = [ConfigRecord({"digest": bytes([k])}) for k in (1, 2)]
    first, second = (RecordDict({"frame": frame}) for frame in frames)
    digest = digest_of("one", [first, second])
    assert digest != digest_of("two", [first, second])
    assert digest != digest_of("one", [second, first])


def test_parties_without_folders_leave_no_checkpoint(tmp_path):
    """They could not go on."""
    checkpoint = Checkpoint(tmp_path / FILE)
    STRATEGY.start(InProcessGrid(parties()), checkpoint=checkpoint)
    assert list(tmp_path.iterdir()) == []


# -- nodes that come back --------------------------------------------------------------


class Leaving(RealParties):
    """A node that is gone for some seconds of a clock, with what it was asked."""

    def __init__(self, clock, seconds):
        super().__init__(parties())
        self.clock, self.back, self.seconds, self.asked = clock, None, seconds, 0

    def _away(self):
        return self.back is not None and self.clock.now < self.back

    def get_node_ids(self):
        return [n for n in super().get_node_ids() if n != 1001 or not self._away()]

    def _push(self, message):
        if message.metadata.dst_node_id == 1001 and "hello" not in str(
            message.metadata.message_type
        ):
            self.asked += 1
            if self.back is None:
                self.back = self.clock.now + self.seconds
                self._pushed += 1
                number = f"message-{self._pushed}"
                message.metadata.__dict__["_message_id"] = number
                lost = Error(UNAVAILABLE, "no heartbeat")
                self._replies[number] = Message(lost, reply_to=message)
                return number
        return super()._push(message)


def ask(grid, timeout):
    asked = Parties(Exchange(grid, timeout=timeout), seed=0)
    return asked.ask(
        STEPS["coresets_totals"], size=5, test_fraction=0.0, intercept=True
    )


def test_a_node_that_stays_away_is_named_at_the_time_out(clock):
    rule = "no reply within 20 s; 'b' is not connected"
    with pytest.raises(PartyFailed, match=rule):
        ask(Leaving(clock, 1000.0), 20.0)


class Announcing(Leaving):
    """A node that is killed when it has announced a reply: the grid waits for it."""

    in_process = False

    def __init__(self, clock, seconds, action):
        super().__init__(clock, seconds)
        self.action, self.announced = action, None
        self.waiting, self.expired = Event(), Event()

    def _push(self, message):
        number, metadata = RealParties._push(self, message), message.metadata
        wanted = f"train.{self.action}", 1001
        if (metadata.message_type, metadata.dst_node_id) == wanted:
            self.asked += 1
            if self.announced is None:
                self.announced, self.back = number, self.clock.now + self.seconds
        return number

    def pull_messages(self, message_ids):
        """Return the replies that have come; wait for one that was announced."""
        if self.announced in message_ids:
            self.waiting.set()
            self.expired.wait(60)
        return super().pull_messages(message_ids)


@pytest.fixture
def announcing(clock, monkeypatch):
    """Return a function that makes such a grid; its threads end with the test.

    The server's patience ends when the grid waits, and not after so many seconds.
    """
    grids = []

    def patient(calls, patience):
        (call,) = calls
        assert patience in (0.0, PATIENCE)
        while patience and not (call.done() or grids[-1].waiting.is_set()):
            time.sleep(0.001)
        grids[-1].waiting.clear()
        return wait(calls, 0.0)

    monkeypatch.setattr("vfl_flower.server.exchange.wait", patient)

    def make(seconds, action="coresets_totals"):
        grids.append(Announcing(clock, seconds, action))
        return grids[-1]

    yield make
    for grid in grids:
        grid.expired.set()


@pytest.fixture(params=["with its request", "with its reply"])
def leaving(request, clock):
    """Return a function that makes a grid whose node leaves for so many seconds."""
    if request.param == "with its reply":
        return request.getfixturevalue("announcing")
    return partial(Leaving, clock)


def test_a_node_that_stays_away_is_not_waited_for_as_long_as_one_at_work(
    leaving, clock
):
    with pytest.raises(PartyFailed, match=f"'b' .*no connection for {ABSENCE:g} s"):
        ask(leaving(1000.0), 3600.0)
    assert ABSENCE <= clock.now < ABSENCE + 5


def test_a_node_that_comes_back_is_asked_again_once(leaving, clock):
    grid = leaving(ABSENCE - 5)
    assert len(ask(grid, 100.0)) == COUNT
    assert grid.asked == 2
    assert ABSENCE - 5 <= clock.now < ABSENCE


def test_a_reply_that_is_long_on_its_way_is_waited_for(announcing, clock, monkeypatch):
    """Its node is connected: it sends the rest."""
    grid, looks = announcing(0.0), []
    sleep = clock.sleep

    def passing(seconds):
        looks.append(seconds)
        sleep(seconds)
        if len(looks) > 20:
            grid.expired.set()
            time.sleep(0.01)

    monkeypatch.setattr(clock, "sleep", passing)
    assert len(ask(grid, 3600.0)) == COUNT
    assert len(looks) > 20


@pytest.mark.parametrize("name", ["", "weather", "two\nlines"])
def test_a_node_that_is_gone_in_the_greeting_is_named(name, announcing, monkeypatch):
    """By the name with which its key is registered, or by a hint how to find it."""
    grid = announcing(1000.0, "hello")
    nodes = [NodeInfo(node_id=1000 + j, name=name) for j in range(COUNT)]
    monkeypatch.setattr(grid, "get_nodes", lambda: nodes)
    with pytest.raises(PartyFailed, match="no connection for") as caught:
        Parties(Exchange(grid, timeout=3600.0), seed=0)
    if name == "weather":
        assert caught.value.party == "weather (node 1001)"
    else:
        assert caught.value.party == "node 1001"
        assert "flwr supernode list" in str(caught.value)
