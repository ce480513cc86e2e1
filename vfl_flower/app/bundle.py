"""The bundle of the installed package's app, and what says that a bundle is this one.

``flwr run`` packs a folder into a bundle (Flower calls it a FAB), which is known by the
SHA-256 of its bytes. The folder that :mod:`vfl_flower.app.template` writes gives the
same bundle wherever the same version of this package is installed, so that a party
knows its hash without having seen it::

    python -m vfl_flower.app.bundle           # of the installed package's app
    python -m vfl_flower.app.bundle FOLDER    # of another one, to pin it
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer
from flwr.cli.build import build_fab_from_disk, build_fab_from_files

from vfl_flower.app.options import ends_in_a_sentence
from vfl_flower.app.template import project


def installed_bundle() -> tuple[bytes, str]:
    """Return the bundle of the installed package's app, and its hash."""
    bundle, _ = build_fab_from_files({"pyproject.toml": project().encode()})
    return bundle, hash_of(bundle)


def bundle_hash(folder: Path | None = None) -> str:
    """Return the hash of the bundle of a folder, or of the installed package's app.

    Raises ValueError if the folder has no ``pyproject.toml`` of a Flower app.
    """
    if folder is None:
        return installed_bundle()[1]
    return hash_of(build_fab_from_disk(folder))


def hash_of(bundle: bytes) -> str:
    """Return the hash by which Flower knows a bundle."""
    return hashlib.sha256(bundle).hexdigest()


@ends_in_a_sentence()
def main(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of an app; default: the installed.")
    ] = None,
) -> None:
    """Print the hash of a bundle, as a party pins it."""
    typer.echo(bundle_hash(folder))


if __name__ == "__main__":
    typer.run(main)
