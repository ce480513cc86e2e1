"""A Flower app that runs the installed package, for use outside a checkout.

``vfl-flower new-app my-app`` writes an app for ``flwr run my-app CONNECTION --stream``.
Without a connection, Flower simulates the SuperNodes, which needs Ray.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vfl_flower.app.settings import toml
from vfl_flower.version import __version__

BUNDLE = "vfl-flower-app"
"""Name of the app, the same in every folder, so that a version has only one bundle."""

PROJECT = """\
[project]
name = "{name}"
version = "{version}"
description = "Runs the installed vfl_flower {version}"
license = "Apache-2.0"
dependencies = ["vfl-flower=={version}"]

[tool.flwr.app]
publisher = "vfl-flower"

[tool.flwr.app.components]
serverapp = "vfl_flower.app.server_app:app"
clientapp = "vfl_flower.app.client_app:app"

{config}"""


def project() -> str:
    """Return the ``pyproject.toml`` of the app."""
    return PROJECT.format(name=BUNDLE, version=__version__, config=toml())


def write_app(folder: Path) -> Path:
    """Write an app that runs the installed package; raise ValueError if one exists."""
    target = folder / "pyproject.toml"
    if target.exists():
        raise ValueError(f"{folder} already contains a pyproject.toml")
    folder.mkdir(parents=True, exist_ok=True)
    target.write_text(project(), encoding="utf-8")
    return target


def new_app(
    folder: Annotated[Path, typer.Argument(help="Folder of the new app.")],
) -> None:
    """Write a Flower app that runs the installed package."""
    command = f"flwr run {folder} CONNECTION"
    typer.echo(f"wrote {write_app(folder)}; run the app with {command}")
