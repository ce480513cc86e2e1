"""Starts a SuperLink's ServerApps, using forks for the installed package's app.

It gets tasks from the SuperLink like Flower's ``flower-superexec``, but differs in
three ways:

1. *How a ServerApp starts.* A process without threads imports everything that runs
   need, and then forks for each run of the installed package's app. A run of another
   bundle gets a new process, as in Flower, and thus its own modules.
2. *When it requests work.* It requests work every 0.2 s; Flower does so every second.
3. *When it reports a killed ServerApp.* It reports the kill at once; with Flower, the
   SuperLink waits a minute or more for heartbeats.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing
from multiprocessing.process import BaseProcess
from queue import Queue

from vfl_flower.app.deployment.bundle import installed_bundle
from vfl_flower.app.deployment.flower_run import KILLED
from vfl_flower.app.deployment.node import BROKEN_OFF, PRELOADED, PROCESSES, preload
from vfl_flower.app.flwr_internals import superexec as flower

PRELOADED_TOO = ("vfl_flower.app.deployment.serverapps", "vfl_flower.app.server_app")
"""Further modules that are already imported in a ServerApp's process."""

WAIT = "0.2"
"""Seconds between two requests for work."""


class ForkingExecutor(flower.SubprocessExecutor):
    """Starts ServerApps of one bundle by forks, and everything else as Flower does."""

    def __init__(self, bundle: str) -> None:
        self.bundle = bundle

    def launch(self, spec: flower.ExecutionSpec) -> flower.LaunchResult:
        """Start a process for a task."""
        if spec.task_type != flower.TaskType.SERVER_APP or spec.fab_hash != self.bundle:
            return super().launch(spec)
        process = PROCESSES.Process(target=serve_run, args=(spec,), daemon=True)
        try:
            process.start()
        except BROKEN_OFF as error:
            tell(spec, f"{KILLED} before it started")
            return flower.LaunchResult.failed(str(error))
        threading.Thread(target=tell_end, args=(spec, process), daemon=True).start()
        return flower.LaunchResult.accepted()


def serve_run(spec: flower.ExecutionSpec) -> None:
    """Run a ServerApp like ``flwr-serverapp``, in its own process."""
    if spec.suppress_output:  # the run has its own log
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    lines: Queue[str | None] = Queue()
    flower.mirror_output_to_queue(lines)
    flower.run_serverapp(
        spec.runtime_api_address,
        lines,
        spec.token,
        spec.insecure,
        flower.validate_and_resolve_root_certificates(
            spec.root_certificates_path, spec.insecure
        ),
        spec.parent_pid,
        spec.runtime_dependency_install,
    )


def tell_end(spec: flower.ExecutionSpec, process: BaseProcess) -> None:
    """Wait for the end of a ServerApp, and report to the SuperLink if it was killed."""
    process.join()
    if process.exitcode is not None and process.exitcode < 0:
        tell(spec, f"{KILLED} by signal {-process.exitcode}")


def tell(spec: flower.ExecutionSpec, details: str) -> None:
    """Report to the SuperLink that a task has failed, with details."""
    certificates = flower.validate_and_resolve_root_certificates(
        spec.root_certificates_path, spec.insecure
    )
    failed = flower.PushTaskOutputRequest(
        sub_status=flower.SubStatus.FAILED, details=details
    )
    address, token = spec.runtime_api_address, spec.token
    with closing(
        flower.HttpGrid(address, spec.insecure, certificates, token=token)
    ) as grid:
        grid._runtime_client.PushTaskOutput(failed)


def serve(superlink: str, root_certificates: str | None, parent: int | None) -> None:
    """Start ServerApps until a signal ends this process."""
    PROCESSES.set_forkserver_preload([*PRELOADED, *PRELOADED_TOO])
    preload()
    executor = ForkingExecutor(installed_bundle()[1])
    # run_superexec starts its tasks with the executor that this function returns.
    flower.superexec.__dict__["get_executor"] = lambda *_, **__: executor
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", WAIT)
    flower.superexec.run_superexec(
        superlink, root_certificates is None, root_certificates, parent_pid=parent
    )
