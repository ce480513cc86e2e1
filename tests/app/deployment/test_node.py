"""A SuperNode that runs the installed package, each message in a process of its own.

The SuperLink is one in memory. With a real one: tests/wiring/test_executor.py.
"""

import itertools
import multiprocessing
import os
import signal
import time
from collections import namedtuple
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
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

from vfl_flower.app.commands.template import project
from vfl_flower.app.deployment import executor, node
from vfl_flower.app.deployment.bundle import hash_of, hash_of_app, installed_bundle
from vfl_flower.app.deployment.certificates import (
    write_certificates,
    write_supernode_key,
)
from vfl_flower.app.deployment.node import Node
from vfl_flower.app.flwr_internals import supernode
from vfl_flower.app.flwr_internals.supernode import Fleet, check_flower, push_objects
from vfl_flower.simulation import apart
from vfl_flower.version import __version__

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own

OTHER = """
import os, signal, time
from pathlib import Path
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
    time.sleep(20)
    Path(__file__).with_name("done").touch()
    return Message(RecordDict(), reply_to=message)

@app.query("interrupt")
def interrupt(message, context):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return Message(RecordDict(), reply_to=message)

@app.query("raise")
def fail(message, context):
    raise ValueError("a row of the party: 17, 42")
"""
"""The code of another bundle."""


class Link:
    def __init__(self, bundle: bytes, called: str = "") -> None:
        self.run, self.ended = Run.create_empty(7), set[int]()
        self.run.fab_hash = called or hash_of(bundle)
        self.run.override_config = {"seed": 5}
        self.run.fab_version = "0.0.9"
        self.bundle = bundle
        self.objects: dict[str, bytes] = {}
        self.replies: list[str] = []
        self.fetched: list[str] = []
        self.confirmed: list[str] = []
        self.numbers = itertools.count()

    def fleet(self) -> Fleet:
        return Fleet(
            node_id=12,
            receive=lambda: None,
            send=self._send,
            get_run=self._get_run,
            get_fab=self._get_fab,
            pull_object=lambda run_id, object_id: self._fetch(object_id),
            push_object=lambda run_id, session, object_id, content: self.objects.update(
                {object_id: content}
            ),
            confirm=lambda run_id, object_id: self.confirmed.append(object_id),
        )

    def ask(self, party: Node, action: str, ttl: float = 60.0) -> Message:
        number = self.tell(party, action, ttl)
        reply = inflate_object_from_contents(self.replies.pop(), self.objects)
        assert reply.metadata.reply_to_message_id == number
        return reply

    def tell(self, party: Node, action: str, ttl: float = 60.0) -> str:
        values = ConfigRecord({"number": next(self.numbers)})
        with apart():
            TaskIdentity.run_id = self.run.run_id
            TaskIdentity.node_id = TaskIdentity.task_id = 1
            content = RecordDict({"values": values})
            message = Message(content, 12, f"query.{action}", ttl=ttl)
        nested = get_all_nested_objects(message)
        self.objects |= {name: part.deflate() for name, part in nested.items()}
        tree = get_object_tree(message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        party.answer(message, tree)
        return tree.object_id

    def _send(self, message, tree, seconds):
        self.replies.append(tree.object_id)
        return set(get_all_nested_objects(message)), "session"

    def _get_run(self, run_id: int) -> Run:
        if run_id in self.ended:
            raise RunNotRunningException
        return self.run

    def _fetch(self, object_id: str) -> bytes:
        self.fetched.append(object_id)
        return self.objects[object_id]

    def _get_fab(self, fab_hash: str, run_id: int) -> Fab:
        self.fetched.append(fab_hash)
        return Fab(fab_hash, self.bundle, {})


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
    link = Link(other, called=hash_of_app())
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
    versions = f"has version {__version__} of vfl_flower installed"
    assert f"{versions}, but the run needs version 0.0.9" in caplog.text


def test_other_code_under_a_pinned_hash_is_refused(start, other):
    pinned = installed_bundle()[0] + b" "
    link = Link(other, called=hash_of(pinned))
    assert link.ask(start(link, pinned), "count").error.code == ErrorCode.INVALID_FAB
    assert link.fetched == [hash_of(pinned)]


def test_a_pinned_bundle_has_its_own_modules(start):
    """A checkout of this package in a bundle, say, of which all is imported already."""
    files = {"vfl_flower/__init__.py": b"", "vfl_flower/app/__init__.py": b""}
    files |= {"pyproject.toml": project().encode()}
    files |= {"vfl_flower/app/client_app.py": OTHER.encode()}
    bundle = build_fab_from_files(files)[0]
    link = Link(bundle)
    reply = link.ask(start(link, bundle), "count")
    assert reply.content["values"]["party"] == "airline"


# -- a process for each message --------------------------------------------------------


def test_each_message_has_a_process_and_a_run_has_its_state(start, other):
    """In the code of a bundle that is pinned."""
    link = Link(other)
    party = start(link, other)
    first, second = (link.ask(party, "count").content["values"] for _ in range(2))
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert (first["seen"], second["seen"]) == (1, 1)
    assert (first["kept"], second["kept"]) == (1, 2)
    assert (first["party"], first["setting"]) == ("airline", 5)
    assert first["parent"] == second["parent"] != os.getpid()
    for values in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(values["pid"], 0)
    threads = Path(f"/proc/{first['parent']}/task")
    if threads.is_dir():
        names = [path.read_text() for path in threads.glob("*/comm")]
        assert len(names) == 1, names


def test_the_state_of_a_run_goes_once_it_has_ended(start, other):
    link = Link(other)
    party = start(link, other)
    for run_id in (7, 8):
        link.run.run_id = run_id
        link.ask(party, "count")
    assert [*party.runs] == [7, 8]
    link.ended, link.run.run_id = {7}, 9
    assert link.ask(party, "count").content["values"]["kept"] == 1
    assert [*party.runs] == [8, 9]
    link.run.run_id = 8
    assert link.ask(party, "count").content["values"]["kept"] == 2


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


@pytest.mark.parametrize(("longest", "ttl"), [(0.5, 60.0), (60.0, 0.5)])
def test_a_process_ends_with_the_life_of_its_message(
    start, other, monkeypatch, tmp_path, longest, ttl
):
    """It is killed: none is left, and none has come to its end."""
    monkeypatch.setattr(node, "LONGEST", longest)
    link = Link(other)
    reply = link.ask(start(link, other), "hang", ttl)
    assert "longer than 0.5 s" in reply.error.reason
    assert multiprocessing.active_children() == []
    assert list(tmp_path.rglob("done")) == []


def test_a_process_ends_with_a_killed_node(start, other, monkeypatch):
    """A killed node has no end of the pipe that the process watches."""
    poll = Connection.poll

    def cut(self, seconds):
        (process,) = multiprocessing.active_children()
        watched, _ = process._popen.finalizer._args
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), watched)
        return poll(self, seconds)

    link = Link(other)
    party = start(link, other)
    monkeypatch.setattr(Connection, "poll", cut)
    assert "exit code 1" in link.ask(party, "hang").error.reason


def test_an_interrupt_of_the_terminal_is_for_the_node(start, other):
    """Ctrl-C reaches each process of a group: an answer is finished."""
    link = Link(other)
    assert link.ask(start(link, other), "interrupt").has_content()


def test_what_the_superlink_has_is_not_sent(start, other):
    """It is told of each message that came, which it then need not keep."""
    link, sent = Link(other), []
    party = start(link, other)
    party.fleet = party.fleet._replace(
        send=lambda *_: (set(), "session"),
        push_object=lambda *given: sent.append(given),
    )
    link.tell(party, "count")
    assert sent == []
    (confirmed,) = link.confirmed
    assert confirmed in link.fetched


def test_an_exception_tells_the_server_no_value(start, other, monkeypatch):
    """That of a ClientApp, and one of the node itself."""
    link = Link(other)
    party = start(link, other)
    secret = "ValueError: see the party's log"
    assert link.ask(party, "raise").error.reason == secret
    fails = Mock(side_effect=ValueError("a row of the party: 17, 42"))
    monkeypatch.setattr(node, "in_a_process", fails)
    assert link.ask(party, "count").error.reason == secret


# -- the connection --------------------------------------------------------------------


@pytest.fixture
def connected(monkeypatch):
    """Return what SuperNodes that start connect by, and what then serves."""
    calls: list[tuple[object, ...]] = []

    @contextmanager
    def connect(*given):
        calls.append(given)
        yield Link(installed_bundle()[0]).fleet()

    for module in supernode.BEATING:
        monkeypatch.setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", 30)
    monkeypatch.setattr(node, "preload", lambda: calls.append(()))
    monkeypatch.setattr(supernode, "http_request_response", connect)
    monkeypatch.setattr(Node, "serve", lambda served: calls.append(served))
    return calls


def test_it_connects_as_its_party_says(connected, tmp_path):
    """By its key, to a SuperLink of that authority, with its bundles and no others."""
    write_certificates(tmp_path, ["localhost"])
    write_supernode_key(tmp_path / "airline.key")
    words = ["--superlink=localhost:443", "--max-retries=3"]
    words += [f"--root-certificates={tmp_path / 'ca.crt'}"]
    words += [f"--auth-supernode-private-key={tmp_path / 'airline.key'}"]
    words += ["--node-config", 'party-name="airline"']
    node.run_node(words, frozenset({"a" * 64}))
    preloaded, (address, insecure, authority, keys, *retries), served = connected
    assert preloaded == ()  # before there is a connection, and its threads
    assert (address, insecure, retries) == ("localhost:443", False, [3, None])
    assert authority == (tmp_path / "ca.crt").read_bytes()
    own = load_ssh_private_key((tmp_path / "airline.key").read_bytes(), None)
    assert keys[0].private_numbers() == own.private_numbers()
    assert served.pinned == {"a" * 64}
    assert served.node_config == {"party-name": "airline"}
    assert not served.scratch.exists()
    for module in supernode.BEATING:
        assert module.HEARTBEAT_DEFAULT_INTERVAL == node.HEARTBEAT


def test_a_key_needs_tls(connected, tmp_path):
    write_supernode_key(tmp_path / "airline.key")
    key = f"--auth-supernode-private-key={tmp_path / 'airline.key'}"
    with pytest.raises(ValueError, match="a SuperNode with a key needs TLS"):
        node.run_node(["--insecure", key])
    assert connected == []


# -- asking for work -------------------------------------------------------------------


def test_it_asks_less_and_less_often(start, other, monkeypatch):
    """A tenth of the time since the last message, from 0.1 s to 3 s."""
    now, slept, messages = [100.0], [], [(None, None)]
    party = start(Link(other))

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds
        if now[0] > 300:
            raise KeyboardInterrupt

    def receive():
        return messages.pop() if messages and 3.0 in slept else None

    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", sleep)
    monkeypatch.setattr(party, "answer", lambda *_: None)
    party.fleet = party.fleet._replace(receive=receive)
    with pytest.raises(KeyboardInterrupt):
        party.serve()
    message = slept.index(3.0) + 1
    for waits in (slept[:message], slept[message:]):
        assert waits[0] == 0.1
        assert waits == sorted(waits)
        assert waits[-1] == 3.0
        assert 40 < len(waits) < 100


def test_it_outlives_a_run_that_is_stopped_and_a_reply_that_is_lost(
    start, other, monkeypatch
):
    party, stopped = start(Link(other)), RunNotRunningException()
    answer = Mock(side_effect=[stopped, OSError(), None, KeyboardInterrupt()])
    receive = Mock(side_effect=[stopped, *[(None, None)] * 4])
    monkeypatch.setattr(party, "answer", answer)
    party.fleet = party.fleet._replace(receive=receive)
    with pytest.raises(KeyboardInterrupt):
        party.serve()
    assert (receive.call_count, answer.call_count) == (5, 4)


# -- the installed Flower, and what starts where it is another -------------------------


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("SHAPES", {push_objects: "other"}, "push_objects has unexpected"),
        ("SHAPES", {push_objects: "objects push_object_fn * gone"}, "push_objects has"),
        ("BEATING", (node,), "heartbeats"),
        ("Fleet", namedtuple("Fleet", "node_id"), "connection has 8 values, not 1"),
        ("HONOURED", {"another"}, "has no option another"),
    ],
    ids=["first", "named", "heartbeats", "connection", "option"],
)
def test_another_flower_is_noticed(name, value, rule, monkeypatch):
    check_flower()
    monkeypatch.setattr(supernode, name, value)
    with pytest.raises(ImportError, match=rule):
        check_flower()


def test_nothing_starts_with_another_flower(monkeypatch, replaced):
    monkeypatch.setitem(supernode.SHAPES, push_objects, "other")
    with pytest.raises(SystemExit, match=r"needs flwr 1.40 to 1.42, .* push_objects"):
        executor.app(["--insecure"])
    assert replaced == []


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--bundle", "abc"], "64 hexadecimal digits, got 'abc'"),
        (["--bundle", "g" * 64], "64 hexadecimal digits, got 'ggg"),
        (["--insecure", "--isolation", "process"], "--isolation is not supported"),
        (["--insecure", "--trusted-entities", "f.yaml"], "--trusted-entities is"),
    ],
)
def test_an_option_without_a_meaning_is_refused(arguments, rule, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(node, "preload", lambda: pytest.fail("it starts"))
    with pytest.raises(SystemExit, match=rule):
        executor.app(arguments)


REFUSED = KeyboardInterrupt()
REFUSED.__context__ = ValueError("Client error '401 Unauthorized' for url 'https://x'")


@pytest.mark.parametrize(
    ("ends", "code"),
    [(None, "has ended"), (KeyboardInterrupt, "^0$"), (REFUSED, "401 Unauthorized")],
    ids=["connection lost", "Ctrl-C", "key refused"],
)
def test_what_it_ends_with(ends, code, monkeypatch):
    """Systemd starts it again after a lost connection, and not after Ctrl-C.

    On a refusal of its key, flwr interrupts its own process.
    """
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(node, "run_node", Mock(side_effect=ends))
    with pytest.raises(SystemExit, match=code):
        executor.app(["--insecure"])
