"""A Flower app that runs the installed package, for work outside a checkout.

``flwr run`` takes a folder with a ``pyproject.toml``. This command writes one whose
apps are those of the installed vfl_flower, with every key of the run config::

    python -m vfl_flower.app.template my-app
    flwr run my-app --stream
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from vfl_flower.app.settings import toml
from vfl_flower.version import __version__

BUNDLE = "vfl-flower-app"
"""Name of the app that ``vfl-flower run`` sends."""

PROJECT = """\
[project]
name = "{name}"
version = "{app_version}"
description = "Runs the installed vfl_flower {version}"
license = "Apache-2.0"
dependencies = ["vfl-flower=={version}"]

[tool.flwr.app]
publisher = "{publisher}"

[tool.flwr.app.components]
serverapp = "vfl_flower.app.server_app:app"
clientapp = "vfl_flower.app.client_app:app"

{config}"""


def write_app(folder: Path) -> Path:
    """Write the ``pyproject.toml`` of a Flower app that runs the installed package.

    Parameters
    ----------
    folder : Path
        Created if it does not exist; its name becomes the name of the app.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    ValueError
        The folder has a ``pyproject.toml`` already.
    """
    target = folder / "pyproject.toml"
    if target.exists():
        raise ValueError(f"the folder must have no pyproject.toml yet, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    name = folder.absolute().name
    target.write_text(
        _project(name, publisher="me", app_version="0.1.0"), encoding="utf-8"
    )
    return target


def _project(name: str, publisher: str, app_version: str) -> str:
    return PROJECT.format(
        name=name,
        publisher=publisher,
        app_version=app_version,
        version=__version__,
        config=toml(),
    )


def write_bundle(folder: Path) -> Path:
    """Write the app that ``vfl-flower run`` sends, into a folder of its own.

    Its name, its version and its bytes are those of the installed package alone.

    Parameters
    ----------
    folder : Path
        A folder that exists and has no folder :data:`BUNDLE`.

    Returns
    -------
    Path
        The folder of the app.
    """
    target = folder / BUNDLE
    target.mkdir()
    text = _project(BUNDLE, publisher="vfl-flower", app_version=__version__)
    (target / "pyproject.toml").write_bytes(text.encode())
    return target


def bundle_hash() -> str:
    """Return the SHA-256 of the bundle of ``vfl-flower run``, as parties see it.

    Flower packs the bundle, so that another version of it may pack other bytes.
    """
    from flwr.cli.build import build_fab_from_disk

    with tempfile.TemporaryDirectory() as folder:
        return hashlib.sha256(
            build_fab_from_disk(write_bundle(Path(folder)))
        ).hexdigest()


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the new app.")],
) -> None:
    """Write a Flower app that runs the installed package."""
    try:
        typer.echo(f"{write_app(folder)} is written; run it with flwr run {folder}")
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
