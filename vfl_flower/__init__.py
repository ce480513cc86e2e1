"""Federated learning over split columns, or split rows, with Flower."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vfl_flower.version import __version__ as __version__

if TYPE_CHECKING:
    from vfl_flower.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Import the public names on first use: the commands' help does not need them."""
    public = vars(import_module("vfl_flower.api"))
    if name == "__all__":
        shown = [n for n, v in public.items() if not isinstance(v, ModuleType)]
        return ["__version__", *(n for n in shown if not n.startswith("_"))]
    names = globals() | public  # including the modules that are now imported
    if name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return names[name]


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__getattr__("__all__")]
