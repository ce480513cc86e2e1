"""The line of a party's public key, for the consent of its peers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import tomli_w
import typer

from vfl_flower.party.identity import public_identity
from vfl_flower.protocol.names import MOST_OF_NAME, is_name

HOW_TO_USE = """\
Each peer puts this line under [peers] in its consent file. Give it to them by a way on
which the server of the runs cannot change it, and keep a copy of identity.pem in the
state-dir: with another key this party is refused until its peers have the new line."""


def line_for_peers(state_dir: Path, name: str) -> str:
    """Return the line by which peers pin a party's key; raise for an invalid name."""
    if not is_name(name):
        raise ValueError(
            f"name must be 1 to {MOST_OF_NAME} printable characters, got {name[:40]!r}"
        )
    return tomli_w.dumps({name: public_identity(state_dir)}).strip()


def identity_key(
    state_dir: Annotated[Path, typer.Option(help="As in the party's node config.")],
    name: Annotated[str, typer.Option(help="The party-name of its node config.")],
) -> None:
    """Print the public key of a party, for the consent of its peers.

    The key is made in the party's state-dir if it is missing.
    """
    logging.basicConfig(format="%(message)s")
    typer.echo(line_for_peers(state_dir, name))
    typer.echo(HOW_TO_USE, err=True)
