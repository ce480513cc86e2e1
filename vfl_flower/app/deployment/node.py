"""A SuperNode that runs the installed package, with a process for each message.

The SuperNode uses Flower's client for the SuperLink, like ``flower-supernode``, but
differs in five ways:

1. *Whose code it runs.* For the bundle of the installed package's app, it runs the
   installed package and fetches nothing. It runs the code of another bundle only if the
   bundle's hash is pinned.
2. *How a process starts.* A process without threads imports everything that a
   party needs, and then forks for each message. The fork ends with the reply.
3. *When it requests work.* It requests work soon after a message, then less and less
   often; ``flower-supernode`` requests work every 3 s.
4. *Ports.* It has no API for its processes, so it opens no port.
5. *Heartbeats.* It sends heartbeats twice as often, so that a run notices sooner if the
   SuperNode was killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from vfl_flower.app.deployment.bundle import hash_of, installed_bundle
from vfl_flower.app.flwr_internals import supernode
from vfl_flower.app.flwr_internals.config import parse_config_args
from vfl_flower.app.flwr_internals.runs import TaskIdentity
from vfl_flower.protocol.names import escape_record, printable
from vfl_flower.version import __version__

log = logging.getLogger("flwr")
log.addFilter(escape_record)  # the server chooses the types of messages

PRELOADED = (
    *("vfl_flower.app.deployment.node", "vfl_flower.app.client_app"),
    "vfl_flower.app.commands.cli",
    *("scipy.linalg", "scipy.sparse.linalg", "scipy.spatial.distance", "scipy.special"),
    *("sklearn.cluster", "sklearn.linear_model", "sklearn.metrics", "sklearn.datasets"),
    *("pyarrow.compute", "pyarrow.csv", "pyarrow.dataset", "pyarrow.parquet", "flint"),
)
"""Modules that are already imported in the process of a message. OpenBLAS stops its
threads before a fork, and the other modules start no threads before they have work."""

FIRST_WAIT, MOST_WAIT = 0.1, 3.0
"""Minimum and maximum seconds between two requests for work. Within these bounds, the
wait is a tenth of the time since the last message: each request costs a SuperLink
about 10 ms of CPU time."""

LONGEST = 7 * 24 * 3600.0
"""Maximum seconds for answering a message, even if the message permits more."""

HEARTBEAT = 15
"""Maximum seconds between two heartbeats (in Flower: 30). After twice that time without
a heartbeat, the SuperLink treats a node as disconnected; until then it refuses the
node's key."""


class NotAnswered(Exception):
    """A message whose reply is an error, with Flower's code for the error."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


# -- the process of the SuperNode ------------------------------------------------------


def run_node(arguments: Sequence[str], pinned: frozenset[str] = frozenset()) -> None:
    """Serve one party until the connection ends, or a signal ends the process.

    `arguments` are the arguments of ``flower-supernode``, and `pinned` contains the
    hashes of bundles whose code may also run. Raises ValueError for an unsupported
    option.
    """
    parser = supernode.options_parser()
    args, default = parser.parse_args(arguments), vars(parser.parse_args([]))
    for name, value in vars(args).items():
        if name not in supernode.HONOURED and value != default[name]:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option} is not supported by vfl-flower's SuperNode: leave it out"
            )
    keys = supernode.read_keys(args)
    if args.insecure and keys is not None:
        raise ValueError("a SuperNode with a key needs TLS, got --insecure")
    certificates = supernode.try_obtain_root_certificates(args, args.superlink)
    node_config = parse_config_args([args.node_config] if args.node_config else None)
    preload()
    for module in supernode.BEATING:
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT
    with (
        tempfile.TemporaryDirectory() as scratch,
        supernode.http_request_response(
            args.superlink,
            args.insecure,
            certificates,
            keys,
            args.max_retries,
            args.max_wait_time,
        ) as connection,
    ):
        Node(supernode.Fleet(*connection), node_config, pinned, Path(scratch)).serve()


class Node:
    """Receives messages, answers each in a new process, and sends the replies.

    The folder `scratch` contains the code of pinned bundles.
    """

    def __init__(
        self,
        fleet: supernode.Fleet,
        node_config: dict[str, Any],
        pinned: frozenset[str],
        scratch: Path,
    ) -> None:
        self.fleet, self.node_config, self.scratch = fleet, node_config, scratch
        self.installed, self.pinned = installed_bundle(), pinned
        self.runs: dict[int, tuple[Context, Path | None]] = {}

    def serve(self) -> NoReturn:
        """Answer one message after another."""
        log.info("SuperNode ID: %s", self.fleet.node_id)
        log.info("It runs the installed package, bundle %s", self.installed[1])
        last = time.monotonic()
        while True:
            try:
                received = self.fleet.receive()
            except supernode.RunNotRunningException:
                received = None
            if received is None:
                idle = time.monotonic() - last
                time.sleep(min(max(idle / 10, FIRST_WAIT), MOST_WAIT))
                continue
            try:
                self.answer(*received)
            except supernode.RunNotRunningException:
                log.info("The run has ended")
            except Exception:
                log.exception("A reply could not be sent")
            last = time.monotonic()

    def answer(self, head: Message, tree: supernode.ObjectTree) -> None:
        """Pull the content of a message, answer it, and send the reply."""
        run_id, start = head.metadata.run_id, time.monotonic()
        log.info("[RUN %s] Receiving: %s message", run_id, head.metadata.message_type)
        try:
            context, code = self.runs.get(run_id) or self.begin(run_id)
            message = supernode.pull_and_inflate_object_from_tree(
                tree,
                partial(self.fleet.pull_object, run_id),
                partial(self.fleet.confirm, run_id),
                return_type=Message,
                initial_backoff=0.02,  # Flower's 1 s would dominate a round trip
                backoff_cap=1.0,
            )
            # The content has no id; the message's id is the id of its tree.
            message.metadata.__dict__["_message_id"] = tree.object_id
            reply, context = in_a_process(message, context, code)
            self.runs[run_id] = context, code
        except NotAnswered as error:
            log.error("%s", error)
            reply = Message(Error(error.code, str(error)), reply_to=head)
        except Exception as error:  # without a reply, the server would wait a long time
            log.exception("The message could not be answered")
            reason = f"{type(error).__name__}: see the party's log"
            reply = Message(Error(supernode.ErrorCode.UNKNOWN, reason), reply_to=head)
        self.send(reply, time.monotonic() - start)
        log.info("[RUN %s] Sent after %.2f s", run_id, time.monotonic() - start)

    def begin(self, run_id: int) -> tuple[Context, Path | None]:
        """Return a run's context, and the folder of its pinned code or None.

        Raises NotAnswered unless the run's bundle is the installed bundle or is pinned.
        """
        run = self.fleet.get_run(run_id)
        self.forget_ended()
        bundle, expected = self.installed
        code = None
        if run.fab_hash in self.pinned:
            # Use the hash of the received bundle, not the hash that the server sent.
            bundle = self.fleet.get_fab(run.fab_hash, run_id).content
            if (expected := hash_of(bundle)) == run.fab_hash:
                code = supernode.install_from_fab(bundle, self.scratch / expected, True)
        if run.fab_hash != expected:
            version = printable(str(run.fab_version))[:20]
            raise NotAnswered(
                supernode.ErrorCode.INVALID_FAB,
                f"the party has version {__version__} of vfl_flower installed, but the "
                f"run needs version {version}: install the same version, or "
                f"pin the run's bundle. The party runs bundle {self.installed[1]} and "
                f"has not pinned the bundle {run.fab_hash} of this run",
            )
        context = Context(
            run_id=run_id,
            node_id=self.fleet.node_id,
            node_config=self.node_config,
            state=RecordDict(),
            run_config=supernode.get_fused_config_from_fab(bundle, run),
        )
        return context, code

    def forget_ended(self) -> None:
        """Drop the contexts of runs that have ended or that the SuperLink forgot."""
        for run_id in list(self.runs):
            try:
                self.fleet.get_run(run_id)
            except supernode.RunNotRunningException:
                del self.runs[run_id]

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply, and then the objects in it that the SuperLink lacks."""
        run_id = reply.metadata.run_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with supernode.no_object_id_recompute():
            wanted, session = self.fleet.send(
                reply, supernode.get_object_tree(reply), seconds
            )
            supernode.push_objects(
                supernode.get_all_nested_objects(reply),
                partial(self.fleet.push_object, run_id, session),
                object_ids_to_push=wanted,
            )


# -- the process of a message ----------------------------------------------------------

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(list(PRELOADED))

BROKEN_OFF = (EOFError, OSError)
"""Errors raised if a process is killed while it starts another process or sends a
reply. A killed forkserver is restarted with the next process."""


def preload() -> None:
    """Start the forkserver, and return when it has imported its modules."""
    # Arrow's import would start a thread of an unused allocator.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    process = PROCESSES.Process(target=os.getpid)
    process.start()
    process.join()


def in_a_process(
    message: Message, context: Context, code: Path | None
) -> tuple[Message, Context]:
    """Answer a message in a new process; return the reply and context.

    Raises NotAnswered if the process did not start, ended without a reply, or took
    longer than the message permits.
    """
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=answer, args=(sender, message, context, code))
    try:
        process.start()
    except BROKEN_OFF as error:
        receiver.close()
        reason = f"the process for {message.metadata.message_type} could not start"
        raise NotAnswered(supernode.ErrorCode.CLIENT_APP_CRASHED, reason) from error
    finally:
        sender.close()
    seconds = min(LONGEST, message.metadata.ttl)
    try:
        if receiver.poll(seconds):
            answered: tuple[Message, Context] = receiver.recv()
            return answered
        reason = f"took longer than {seconds:g} s"
    except BROKEN_OFF:
        process.join()
        reason = f"ended with exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
        receiver.close()
    reason = f"the process for {message.metadata.message_type} {reason}"
    raise NotAnswered(supernode.ErrorCode.CLIENT_APP_CRASHED, reason)


def answer(
    pipe: Connection, message: Message, context: Context, code: Path | None
) -> None:
    """Answer a message, in the process started for the message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the SuperNode ends this process
    threading.Thread(target=_end_with_the_node, daemon=True).start()
    TaskIdentity.run_id, TaskIdentity.node_id = context.run_id, context.node_id
    TaskIdentity.task_id = message.metadata.dst_task_id or 0
    try:
        reply = _client_app(code)(message=message, context=context)
    except Exception as error:
        # Steps scrub their errors; the text of any other error may contain data.
        log.exception("The ClientApp raised an exception")
        reason = f"{type(error).__name__}: see the party's log"
        kind = supernode.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        reply = Message(Error(kind, reason), reply_to=message)
    pipe.send((reply, context))


def _end_with_the_node() -> None:
    """End this process if the SuperNode was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _client_app(code: Path | None) -> ClientApp:
    """Return the ClientApp of the installed package, or of a pinned bundle."""
    if code is None:
        from vfl_flower.app.client_app import app

        return app
    # Import the bundle's modules, not loaded modules with the same names.
    modules = {path.stem for path in code.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        del sys.modules[name]
    parts = supernode.get_project_config(code)["tool"]["flwr"]["app"]["components"]
    loaded: ClientApp = supernode.load_app(parts["clientapp"], ImportError, code)
    return loaded
