"""What an installation without extras lacks."""

from importlib.util import find_spec

_NEEDED = {
    "report": ("matplotlib", "figures need Matplotlib"),
    "simulation": ("ray", "a simulation of SuperNodes needs Ray"),
}


def lacks(extra: str) -> str:
    """Return why and how to install an extra that is missing, or ""."""
    package, reason = _NEEDED[extra]
    there = find_spec(package) is not None
    return "" if there else f'{reason}: pip install "vfl-flower[{extra}]"'


def check_extra(extra: str) -> None:
    """Raise ValueError where an extra is missing."""
    if reason := lacks(extra):
        raise ValueError(reason)
