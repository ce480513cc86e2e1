"""Federated learning over split columns, or split rows, with Flower."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vfl_flower.version import __version__ as __version__

if TYPE_CHECKING:
    from vfl_flower.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Import the public names when one is used: the commands' help needs none."""
    api = import_module("vfl_flower.api")
    if name == "__all__":
        public = {n: v for n, v in vars(api).items() if not n.startswith("_")}
        return [n for n, v in public.items() if not isinstance(v, ModuleType)]
    return getattr(api, name)


def __dir__() -> list[str]:
    """Return the public names too."""
    return [*globals(), *__getattr__("__all__")]
