"""Packages that are installed only with extras."""

from importlib.util import find_spec

_REASONS = {
    "matplotlib": "figures need Matplotlib: pip install matplotlib",
    "ray": 'simulated SuperNodes need Ray: pip install "flwr[simulation]"',
}


def reason_missing(package: str) -> str:
    """Return why a package is needed and how to install it; "" if it is installed."""
    return _REASONS[package] if find_spec(package) is None else ""


def check_installed(package: str) -> None:
    """Raise ValueError if a package of an extra is missing."""
    if reason := reason_missing(package):
        raise ValueError(reason)
