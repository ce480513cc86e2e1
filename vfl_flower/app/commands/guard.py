"""Decisions of a party's operator: which row orders and which journal to use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from vfl_flower.app.deployment.party_folder import NODE_CONFIG, load_party_folder
from vfl_flower.party import row_order
from vfl_flower.party.journal import FILE
from vfl_flower.party.row_sets import confirm_journal, count_sets

Folder = Annotated[Path, typer.Argument(help="Folder of the party, or its state-dir.")]


def align(
    folder: Folder,
    accept: Annotated[
        str, typer.Option(metavar="NAME", help="Let runs use this order.")
    ] = "",
) -> None:
    """List the row orders that the party has stored, or accept one of them.

    A run can use only an order that the party's operator has accepted. The server
    proposes the order, so first compare the number of rows in it with the number you
    expect.
    """
    state_dir = state_dir_of(folder)
    if accept:
        order = row_order.accept_order(state_dir, accept)
        typer.echo(f"accepted: alignment {accept!r} with {len(order.ids)} rows")
        return
    if not (names := row_order.list_orders(state_dir)):
        raise ValueError(f"{state_dir} has no row order: first align rows in a run")
    for name in names:
        order = row_order.read_order(state_dir, name)
        state = (
            "accepted" if row_order.is_accepted(state_dir, order) else "not accepted"
        )
        typer.echo(f"{name}: {len(order.ids)} rows, {state}")


def journal(
    folder: Folder,
    confirm: Annotated[
        bool, typer.Option(help="Use this journal, although it may lack row sets.")
    ] = False,
) -> None:
    """Show the number of row sets whose sums have left the party.

    A party whose journal was lost or restored from a backup no longer knows all of its
    row sets, and refuses further sums. With --confirm, the party uses the present
    journal: the row sets of a later sum and of a forgotten sum can then differ by a
    single row.
    """
    path = state_dir_of(folder) / FILE
    if confirm:
        confirm_journal(path)
    if not path.exists():
        raise ValueError(f"{path} not found: the party has not taken part in a run")
    with closing(sqlite3.connect(path)) as db:
        typer.echo(f"row sets in {path}: {count_sets(db)}")


def state_dir_of(folder: Path) -> Path:
    """Return the ``state-dir`` of a party's folder, or the folder itself."""
    if not (folder / NODE_CONFIG).exists():
        return folder
    source, _ = load_party_folder(folder)
    assert source.state_dir is not None
    return source.state_dir
