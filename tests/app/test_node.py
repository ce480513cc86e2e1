"""A SuperNode that runs the installed package, each message in a process of its own.

The SuperLink is one in memory. With a real one: tests/wiring/test_executor.py.
"""

import itertools
import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from vfl_flower.app import executor, node
from vfl_flower.app.bundle import bundle_hash, hash_of, installed_bundle
from vfl_flower.app.node import Fleet, Node, check_flower
from vfl_flower.app.template import project
from vfl_flower.simulation import apart

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own

OTHER = """
import os, signal, time
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
seen = []

@app.query("count")
def count(message, context):
    seen.append(1)
    kept = context.state.get("kept", ConfigRecord({"n": 0}))["n"] + 1
    context.state["kept"] = ConfigRecord({"n": kept})
    values = {"pid": os.getpid(), "parent": os.getppid(), "seen": len(seen)}
    values |= {"kept": kept, "party": context.node_config["party-name"]}
    values |= {"setting": context.run_config["seed"]}
    return Message(RecordDict({"values": ConfigRecord(values)}), reply_to=message)

@app.query("compute")
def compute(message, context):
    from sklearn.cluster import KMeans
    X = np.random.default_rng(0).normal(size=(400, 40))
    KMeans(3, n_init=1).fit(X)
    value = float(np.linalg.eigvalsh(X @ X.T)[-1])
    values = ConfigRecord({"value": value})
    return Message(RecordDict({"values": values}), reply_to=message)

@app.query("tear")
def tear(message, context):
    from multiprocessing.connection import Connection

    def send(self, buffer):
        os.write(self.fileno(), bytes(buffer[: len(buffer) // 2]))
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = send
    return Message(RecordDict(), reply_to=message)

@app.query("die")
def die(message, context):
    os.kill(os.getpid(), signal.SIGKILL)

@app.query("hang")
def hang(message, context):
    time.sleep(60)

@app.query("raise")
def fail(message, context):
    raise ValueError("a row of the party: 17, 42")
"""
"""The code of another bundle."""


class Link:
    """A SuperLink with one run, as its SuperNode sees it."""

    def __init__(self, bundle: bytes, called: str = "") -> None:
        self.run = Run.create_empty(7)
        self.run.fab_hash = called or hash_of(bundle)
        self.run.override_config = {"seed": 5}
        self.bundle = bundle
        self.objects: dict[str, bytes] = {}
        self.replies: list[str] = []
        self.fetched: list[str] = []
        self.numbers = itertools.count()

    def fleet(self) -> Fleet:
        """Return the connection of the run's only node."""
        return Fleet(
            node_id=12,
            receive=lambda: None,
            send=self._send,
            get_run=lambda run_id: self.run,
            get_fab=self._get_fab,
            pull_object=lambda run_id, object_id: self._fetch(object_id),
            push_object=lambda run_id, session, object_id, content: self.objects.update(
                {object_id: content}
            ),
            confirm=lambda run_id, object_id: None,
        )

    def ask(self, party: Node, action: str, ttl: float = 60.0) -> Message:
        """Let the node answer a message, and return its reply."""
        values = ConfigRecord({"number": next(self.numbers)})
        with apart():
            TaskIdentity.run_id = self.run.run_id
            TaskIdentity.node_id = TaskIdentity.task_id = 1
            content = RecordDict({"values": values})
            message = Message(content, 12, f"query.{action}", ttl=ttl)
        message.metadata.__dict__["_message_id"] = message.object_id
        nested = get_all_nested_objects(message)
        self.objects |= {name: part.deflate() for name, part in nested.items()}
        party.answer(message, get_object_tree(message))
        return inflate_object_from_contents(self.replies.pop(), self.objects)

    def _send(self, message, tree, seconds):
        self.replies.append(tree.object_id)
        return {tree.object_id, *(t.object_id for t in descendants(tree))}, "session"

    def _fetch(self, object_id: str) -> bytes:
        self.fetched.append(object_id)
        return self.objects[object_id]

    def _get_fab(self, fab_hash: str, run_id: int) -> Fab:
        self.fetched.append(fab_hash)
        return Fab(fab_hash, self.bundle, {})


def descendants(tree):
    for child in tree.children:
        yield child
        yield from descendants(child)


@pytest.fixture
def other() -> bytes:
    """Return the bundle of another app: the same settings, and code of its own."""
    text = project().replace("vfl_flower.app.client_app:app", "other:app")
    files = {"pyproject.toml": text.encode(), "other.py": OTHER.encode()}
    return build_fab_from_files(files)[0]


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a node of a SuperLink, with pinned bundles."""

    def start(link: Link, *pinned: bytes) -> Node:
        node.preload()
        hashes = frozenset(map(hash_of, pinned))
        return Node(link.fleet(), {"party-name": "airline"}, hashes, tmp_path)

    return start


# -- whose code runs -------------------------------------------------------------------


def test_the_bundle_of_the_installed_package_is_not_even_fetched(start, other):
    """A server that sends other code under its hash: the installed package answers."""
    link = Link(other, called=bundle_hash())
    reply = link.ask(start(link), "count")
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reply.error.reason.startswith("ValueError")  # it has no such step
    assert link.run.fab_hash not in link.fetched


def test_another_bundle_is_refused_before_anything_is_fetched(start, other, caplog):
    link = Link(other)
    reply = link.ask(start(link), "count")
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert hash_of(other) in reply.error.reason
    assert link.fetched == []
    assert "has not pinned the bundle" in caplog.text


def test_a_pinned_bundle_runs(start, other):
    link = Link(other)
    values = link.ask(start(link, other), "count").content["values"]
    assert values["party"] == "airline"
    assert values["setting"] == 5


def test_other_code_under_a_pinned_hash_is_refused(start, other):
    pinned = installed_bundle()[0] + b" "
    link = Link(other, called=hash_of(pinned))
    assert link.ask(start(link, pinned), "count").error.code == ErrorCode.INVALID_FAB
    assert link.fetched == [hash_of(pinned)]


# -- a process for each message --------------------------------------------------------


def test_each_message_has_a_process_and_a_run_has_its_state(start, other):
    link = Link(other)
    party = start(link, other)
    first, second = (link.ask(party, "count").content["values"] for _ in range(2))
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert (first["seen"], second["seen"]) == (1, 1)
    assert (first["kept"], second["kept"]) == (1, 2)
    assert first["parent"] == second["parent"] != os.getpid()
    for values in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(values["pid"], 0)
    threads = Path(f"/proc/{first['parent']}/task")
    if threads.is_dir():
        names = [path.read_text() for path in threads.glob("*/comm")]
        assert len(names) == 1, names


def test_a_forked_process_computes_with_threads(start, other):
    link = Link(other)
    party = start(link, other)
    values = [link.ask(party, "compute").content["values"]["value"] for _ in range(2)]
    assert values[0] == values[1] > 0


@pytest.mark.parametrize("how", ["die", "tear"])
def test_a_killed_process_is_an_error_at_once(start, other, caplog, how):
    """In its step, or when half of its reply is sent."""
    link = Link(other)
    party = start(link, other)
    begin = time.monotonic()
    reply = link.ask(party, how)
    assert time.monotonic() - begin < 30
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert "exit code -9" in reply.error.reason
    assert "exit code -9" in caplog.text
    assert link.ask(party, "count").content["values"]["kept"] == 1


def test_a_process_that_could_not_start_is_asked_for_again(start, other, monkeypatch):
    """What forks is killed when it has the request, and has forked nothing yet."""
    link, forks = Link(other), forkserver.ForkServer()

    def connect(descriptors):
        forks.ensure_running()
        os.kill(forks._forkserver_pid, signal.SIGSTOP)
        try:
            return forks.connect_to_new_process(descriptors)
        finally:
            os.kill(forks._forkserver_pid, signal.SIGKILL)

    party = start(link, other)
    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "connect_to_new_process", connect)
        reply = link.ask(party, "count")
    forks._stop()
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED  # which is asked again
    assert reply.error.reason == "the process for query.count could not start"
    assert link.ask(party, "count").content["values"]["kept"] == 1


def test_a_process_ends_with_the_life_of_its_message(start, other, monkeypatch):
    monkeypatch.setattr(node, "LONGEST", 1.5)
    link = Link(other)
    reply = link.ask(start(link, other), "hang")
    assert "longer than 1.5 s" in reply.error.reason


def test_an_exception_tells_the_server_no_value(start, other):
    link = Link(other)
    reply = link.ask(start(link, other), "raise")
    assert reply.error.reason == "ValueError; the party's log says more"


def test_a_failure_of_the_node_itself_is_answered(start, other, monkeypatch):
    link = Link(other)
    party = start(link, other)
    monkeypatch.setattr(node, "in_a_process", lambda *_: 1 / 0)
    assert link.ask(party, "count").error.reason.startswith("ZeroDivisionError")


# -- asking for work -------------------------------------------------------------------


def test_it_asks_less_and_less_often(start, other, monkeypatch):
    """A twentieth of the time since the last message, from 0.1 s to 3 s."""
    now, slept = [100.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds
        if now[0] > 300:
            raise KeyboardInterrupt

    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        start(Link(other)).serve()
    assert slept[0] == 0.1
    assert slept == sorted(slept)
    assert slept[-1] == 3.0
    assert len(slept) < 150


def test_it_outlives_a_run_that_is_stopped_and_a_reply_that_is_lost(
    start, other, monkeypatch
):
    link = Link(other)
    party = start(link)
    outcomes = iter([RunNotRunningException(), OSError(), None, KeyboardInterrupt()])

    def answer(*_):
        if (outcome := next(outcomes)) is not None:
            raise outcome

    monkeypatch.setattr(party, "answer", answer)
    party.fleet = party.fleet._replace(receive=lambda: (None, None))
    with pytest.raises(KeyboardInterrupt):
        party.serve()


# -- the installed Flower, and what starts where it is another -------------------------


def test_the_installed_flower_is_the_one_that_is_called():
    check_flower()


@pytest.mark.parametrize(
    "shape", [("other", ""), ("objects push_object_fn", "gone")], ids=["first", "named"]
)
def test_another_flower_is_noticed(monkeypatch, shape):
    monkeypatch.setitem(node.SHAPES, node.push_objects, shape)
    with pytest.raises(ImportError, match="push_objects has other parameters"):
        check_flower()


def test_other_heartbeats_are_noticed(monkeypatch):
    monkeypatch.delattr(node.fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL")
    with pytest.raises(ImportError, match="heartbeats"):
        check_flower()


def test_flowers_own_node_starts_in_its_place_and_says_so(
    monkeypatch, replaced, caplog
):
    monkeypatch.setitem(node.SHAPES, node.push_objects, ("other", ""))
    with pytest.raises(SystemExit):
        executor.command()(["--bundle", "a" * 64, "--insecure", "--port", "9091"])
    command = ["flower-supernode", "--insecure", "--port", "9091"]
    assert replaced == [("flower-supernode", command)]
    assert "runs whatever bundle the server sends" in caplog.text
    assert "push_objects" in caplog.text


def test_it_ends_where_it_must_not_fall_back(monkeypatch, replaced):
    monkeypatch.setitem(node.SHAPES, node.push_objects, ("other", ""))
    with pytest.raises(SystemExit, match="push_objects"):
        executor.command()(["--no-fall-back", "--insecure"])
    assert replaced == []


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--bundle", "abc"], "64 hexadecimal digits, got 'abc'"),
        (["--bundle", "g" * 64], "64 hexadecimal digits, got 'ggg"),
        (["--insecure", "--isolation", "process"], "--isolation cannot be used"),
        (["--insecure", "--trusted-entities", "f.yaml"], "--trusted-entities cannot"),
    ],
)
def test_an_option_without_a_meaning_is_refused(arguments, rule, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit, match=rule):
        executor.command()(arguments)


@pytest.mark.parametrize(("ends", "code"), [(None, "has ended"), ("interrupt", "0")])
def test_what_it_ends_with(ends, code, monkeypatch):
    """Systemd starts it again after a lost connection, and not after Ctrl-C."""

    def run_node(*_):
        if ends:
            raise KeyboardInterrupt

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(node, "run_node", run_node)
    with pytest.raises(SystemExit, match=code):
        executor.start(["--insecure"])
