"""Functions that start the ServerApps of a SuperLink, like ``flower-superexec``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.superlink.grid import HttpGrid
from flwr.superlink.runtime.run_serverapp import run_serverapp

from vfl_flower.app.flwr_internals.shapes import check_shapes

SHAPES: dict[Callable[..., Any], str] = {
    run_serverapp: "runtime_api_address log_queue token insecure certificates "
    "parent_pid runtime_dependency_install",
    superexec.run_superexec: "runtime_api_address insecure root_certificates_path "
    "superexec_auth_secret plugin_config parent_pid",
    mirror_output_to_queue: "log_queue",
    validate_and_resolve_root_certificates: "root_cert_path insecure",
    HttpGrid: "runtime_api_address insecure root_certificates",
}
"""The first parameters of Flower's internal functions, as this package uses them."""


def check_flower() -> None:
    """Raise ImportError if Flower's internals differ from those used here."""
    check_shapes(SHAPES)
    if not hasattr(superexec, "get_executor"):
        raise ImportError("flwr's run_superexec has no get_executor")
    if not hasattr(HttpGrid, "_runtime_client"):
        raise ImportError("flwr's HttpGrid has no _runtime_client")
    if "fab_hash" not in ExecutionSpec.__dataclass_fields__:
        raise ImportError("flwr's task for a ServerApp has no fab_hash")
