"""What starts ServerApps: by a fork those of the installed package, others as Flower.

With a SuperLink that has TLS: tests/wiring/test_tutorial.py.
"""

import os
import signal
import sys
from dataclasses import replace
from queue import Queue
from unittest.mock import Mock, call

import pytest
import typer
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.logger import console_handler
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.superlink.grid import HttpGrid
from typer.testing import CliRunner

from vfl_flower.app.deployment import server_executor, serverapps
from vfl_flower.app.deployment.bundle import hash_of_app
from vfl_flower.app.deployment.federation import server_executor_command
from vfl_flower.app.deployment.node import PRELOADED, preload
from vfl_flower.app.deployment.serverapps import (
    PRELOADED_TOO,
    WAIT,
    ForkingExecutor,
    serve,
    serve_run,
    tell_end,
)
from vfl_flower.app.flwr_internals import superexec as internals
from vfl_flower.app.flwr_internals.superexec import check_flower

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own


def spec(bundle, kind=TaskType.SERVER_APP):
    return ExecutionSpec(
        task_type=kind,
        runtime_api_address="127.0.0.1:1",
        token="token",
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=os.getpid(),
        suppress_output=True,
        task_id=1,
        fab_hash=bundle,
    )


def test_the_installed_bundle_alone_is_forked_and_watched(monkeypatch):
    process, new, watched = Mock(), Mock(), Queue()
    monkeypatch.setattr(serverapps, "tell_end", lambda *given: watched.put(given))
    monkeypatch.setattr(serverapps.PROCESSES, "Process", process)
    monkeypatch.setattr(SubprocessExecutor, "launch", lambda _, spec: new(spec))
    executor, ours = ForkingExecutor(hash_of_app()), spec(hash_of_app())
    others = [spec("0" * 64), spec(None), spec(hash_of_app(), TaskType.SIMULATION)]
    launched = executor.launch(ours)
    for task in others:
        executor.launch(task)
    assert launched.status == LaunchResultStatus.ACCEPTED
    process.assert_called_once_with(target=serve_run, args=(ours,), daemon=True)
    process.return_value.start.assert_called_once_with()
    assert new.call_args_list == [call(task) for task in others]
    assert watched.get(timeout=60) == (ours, process.return_value)


@pytest.mark.parametrize("suppressed", [True, False])
@pytest.mark.parametrize("certificates", [None, b"of the authority"])
def test_a_forked_one_runs_as_flowers_own(
    monkeypatch, tmp_path, capfd, suppressed, certificates
):
    """What it prints is in the log of the run, and where asked nowhere else."""
    runs, path = [], tmp_path / "ca.crt"
    if certificates:
        path.write_bytes(certificates)
    task = replace(
        spec(hash_of_app()),
        insecure=not certificates,
        root_certificates_path=str(path) if certificates else None,
        suppress_output=suppressed,
    )

    def run_serverapp(address, lines, *given):
        os.write(1, b"of a library\n")
        os.write(2, b"of another\n")
        sys.stdout.write("of the app")
        runs.append((address, lines.get_nowait(), *given))

    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "write", stream.write)  # Flower puts another there
    monkeypatch.setattr(console_handler, "stream", console_handler.stream)
    monkeypatch.setattr(serverapps.flower, "run_serverapp", run_serverapp)
    serve_run(task)
    given = "127.0.0.1:1", "of the app", "token", not certificates, certificates
    assert runs == [(*given, os.getpid(), False)]
    out, err = capfd.readouterr()
    assert ("of a library" in out, "of another" in err) == (not suppressed,) * 2


def test_one_that_cannot_start_ends_its_run_alone(monkeypatch):
    """What forks was killed meanwhile: the executor goes on, and the run has failed."""
    process, tell = Mock(), Mock()
    process.return_value.start.side_effect = EOFError("unexpected EOF")
    monkeypatch.setattr(serverapps.PROCESSES, "Process", process)
    monkeypatch.setattr(serverapps, "tell", tell)
    launched = ForkingExecutor(hash_of_app()).launch(task := spec(hash_of_app()))
    assert launched.status == LaunchResultStatus.FAILED
    tell.assert_called_once_with(task, "the ServerApp was killed before it started")


@pytest.mark.parametrize(
    ("target", "argument", "told"),
    [
        (signal.raise_signal, signal.SIGKILL, "the ServerApp was killed by signal 9"),
        (sys.exit, 3, None),
        (sys.exit, 0, None),
    ],
)
def test_the_superlink_is_told_of_a_killed_one(monkeypatch, target, argument, told):
    """With the token of its task; others have told their end themselves."""
    monkeypatch.setattr(serverapps.flower, "HttpGrid", grid := Mock())
    preload()  # else the process that forks has a thread of Arrow's, for all tests
    process = serverapps.PROCESSES.Process(target=target, args=(argument,))
    process.start()
    tell_end(spec("0" * 64), process)
    if told is None:
        assert grid.mock_calls == []
    else:
        grid.assert_called_once_with("127.0.0.1:1", True, None, token="token")
        push, close = grid.return_value.mock_calls
        (request,) = push.args
        assert push[0] == "_runtime_client.PushTaskOutput"
        assert (request.sub_status, request.details) == (SubStatus.FAILED, told)
        assert close == call.close()


def test_flowers_loop_takes_this_executor(monkeypatch):
    """It asks the module for what starts processes, and finds the one that forks."""
    found, steps = [], []

    def loop(address, insecure, certificates, parent_pid):
        steps.append(os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"])
        executor = superexec.get_executor("subprocess", executor_config=None)
        found.append((executor.bundle, address, insecure, certificates, parent_pid))

    monkeypatch.setattr(superexec, "get_executor", superexec.get_executor)
    monkeypatch.setattr(superexec, "run_superexec", loop)
    monkeypatch.setattr(serverapps, "preload", lambda: steps.append("preloaded"))
    monkeypatch.setattr(serverapps.PROCESSES, "set_forkserver_preload", steps.extend)
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "")  # as after the test
    monkeypatch.delenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL")
    serve("127.0.0.1:1", "ca.crt", 7)
    assert found == [(hash_of_app(), "127.0.0.1:1", False, "ca.crt", 7)]
    assert steps == [*PRELOADED, *PRELOADED_TOO, "preloaded", WAIT]
    serve("127.0.0.1:1", None, 7)
    assert found[1:] == [(hash_of_app(), "127.0.0.1:1", True, None, 7)]


@pytest.mark.parametrize(
    ("holder", "name"), [(superexec, "get_executor"), (HttpGrid, "_runtime_client")]
)
def test_another_flower_is_noticed(monkeypatch, holder, name):
    check_flower()
    monkeypatch.delitem(ExecutionSpec.__dataclass_fields__, "fab_hash")
    with pytest.raises(ImportError, match="has no fab_hash"):
        check_flower()
    monkeypatch.delattr(holder, name)
    with pytest.raises(ImportError, match=f"has no {name}"):
        check_flower()


def test_the_command_knows_the_superlink_by_its_authority(monkeypatch, tmp_path):
    """And ends with the SuperLink: the words are those of the coordinator."""
    served = []
    monkeypatch.setattr(serverapps, "serve", lambda *given: served.append(given))
    command = typer.Typer()
    command.command()(server_executor.main)
    words = server_executor_command(tmp_path, 8001, 7)
    done = CliRunner().invoke(command, words[3:])
    assert done.exit_code == 0, done.output
    assert served == [("127.0.0.1:8001", str(tmp_path / "ca.crt"), 7)]


def test_nothing_starts_with_another_flower(monkeypatch, replaced):
    monkeypatch.setitem(internals.SHAPES, preload, "other")
    monkeypatch.setattr(serverapps, "serve", lambda *_: pytest.fail("it serves"))
    with pytest.raises(
        SystemExit, match=r"flwr 1.40 to 1.42: .*preload has unexpected"
    ):
        server_executor.main("127.0.0.1:1", None, 7)
    assert replaced == []
