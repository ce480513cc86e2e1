"""The bundle of the installed package's app, and its hash.

``flwr run`` packs a folder into a bundle (Flower calls it a FAB), identified by its
SHA-256. The same version of this package produces the same bundle everywhere, so a
party knows the bundle's hash without having seen the bundle.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from vfl_flower.app.commands.template import project
from vfl_flower.app.flwr_internals import bundles


def installed_bundle() -> tuple[bytes, str]:
    """Return the bundle of the installed package's app, and its hash."""
    bundle, _ = bundles.build_fab_from_files({"pyproject.toml": project().encode()})
    return bundle, hash_of(bundle)


def hash_of_app(folder: Path | None = None) -> str:
    """Return the bundle hash of a folder, or of the installed package's app."""
    built = bundles.build_fab_from_disk(folder) if folder else installed_bundle()[0]
    return hash_of(built)


def hash_of(bundle: bytes) -> str:
    """Return the hash by which Flower identifies a bundle."""
    return hashlib.sha256(bundle).hexdigest()


def bundle_hash(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of an app; default: this package's.")
    ] = None,
) -> None:
    """Print the hash of an app's bundle, as an argument for --bundle."""
    typer.echo(hash_of_app(folder))
