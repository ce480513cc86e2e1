"""Functions that connect a SuperNode, like ``flower-supernode``, and move messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, get_args, get_type_hints

from flwr.app import Message
from flwr.cli.install import install_from_fab
from flwr.common.args import try_obtain_root_certificates
from flwr.common.config import get_fused_config_from_fab, get_project_config
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore import heartbeat
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.object_ref import load_app
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli.flower_supernode import (
    _parse_args_run_supernode as options_parser,
)
from flwr.supernode.cli.flower_supernode import (
    _try_setup_client_authentication as read_keys,
)
from flwr.supernode.fleet_http_connection import http_request_response

from vfl_flower.app.flwr_internals.runs import Run
from vfl_flower.app.flwr_internals.shapes import check_shapes

HONOURED = frozenset(
    {
        *("superlink", "insecure", "root_certificates", "auth_supernode_private_key"),
        *("node_config", "max_retries", "max_wait_time", "host", "port"),
    }
)
"""Options of ``flower-supernode`` that ``vfl-flower supernode`` accepts; the command
needs no port."""

BEATING = (heartbeat, fleet_http_connection)
"""Modules of Flower that define the time between two heartbeats."""


class Fleet(NamedTuple):
    """The functions of Flower's client for SuperNodes, in the client's order."""

    node_id: int
    receive: Callable[[], tuple[Message, ObjectTree] | None]
    send: Callable[[Message, ObjectTree, float], tuple[set[str], str]]
    get_run: Callable[[int], Run]
    get_fab: Callable[[str, int], Fab]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


SHAPES: dict[Callable[..., Any], str] = {
    http_request_response: "server_address insecure root_certificates "
    "authentication_keys max_retries max_wait_time",
    pull_and_inflate_object_from_tree: "object_tree pull_object_fn "
    "confirm_object_received_fn * return_type initial_backoff backoff_cap",
    push_objects: "objects push_object_fn * object_ids_to_push",
    get_fused_config_from_fab: "fab_file run",
    install_from_fab: "fab_file install_dir skip_prompt",
    load_app: "module_attribute_str error_type project_dir",
}
"""Parameters with which this package calls Flower's internal functions; parameters
after ``*`` are passed by name."""


def check_flower() -> None:
    """Raise ImportError if Flower's internals differ from those used here."""
    check_shapes(SHAPES)
    hints = get_type_hints(inspect.unwrap(http_request_response))
    n, known = len(get_args(get_args(hints["return"])[0])), len(Fleet._fields)
    if n != known:
        raise ImportError(f"flwr's SuperNode connection has {n} values, not {known}")
    if not all(hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL") for module in BEATING):
        raise ImportError("flwr's heartbeats have no HEARTBEAT_DEFAULT_INTERVAL")
    if unknown := HONOURED - vars(options_parser().parse_args([])).keys():
        raise ImportError(f"flower-supernode has no option {min(unknown)}")
