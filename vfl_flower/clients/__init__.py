"""The party's side: one module for each algorithm.

``vfl_flower.clients.client_app`` is the ready ClientApp for a SuperNode.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return ``client_app``, made when it is first asked for."""
    if name == "client_app":
        from vfl_flower.client_app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
