"""The line with a party's public key, for its peers' consent files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import tomli_w
import typer

from vfl_flower.party.identity import public_identity
from vfl_flower.protocol.names import MOST_OF_NAME, is_name

HOW_TO_USE = """\
Each peer puts this line under [peers] in its consent file. Send it over a channel where
the server of the runs cannot change it. Keep a copy of identity.pem, which is in the
state-dir: if the key changes, peers refuse this party until they have the new line."""


def line_for_peers(state_dir: Path, name: str) -> str:
    """Return the line with which peers pin a key; raise ValueError for a bad name."""
    if not is_name(name):
        raise ValueError(
            f"name must be 1 to {MOST_OF_NAME} printable characters, got {name[:40]!r}"
        )
    return tomli_w.dumps({name: public_identity(state_dir)}).strip()


def identity_key(
    state_dir: Annotated[Path, typer.Option(help="The node config's state-dir.")],
    name: Annotated[str, typer.Option(help="The node config's party-name.")],
) -> None:
    """Print the public key of a party, for its peers' consent files.

    If the key is missing, it is created in the party's state-dir.
    """
    logging.basicConfig(format="%(message)s")
    typer.echo(line_for_peers(state_dir, name))
    typer.echo(HOW_TO_USE, err=True)
