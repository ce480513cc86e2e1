"""Start a party's SuperNode, which runs the package installed at the party.

This module calls internal functions of Flower
(:mod:`vfl_flower.app.flwr_internals`). If these functions differ in the installed flwr,
no SuperNode starts.
"""

from __future__ import annotations

import re
import signal
import sys
from importlib.metadata import version
from typing import Annotated

import typer

KNOWN = "1.40 to 1.42"
"""Versions of flwr with the internal functions that this package calls."""


app = typer.Typer(add_completion=False)


# Options that this command does not know are options of flower-supernode.
@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def supernode(
    context: typer.Context,
    bundle: Annotated[
        list[str] | None,
        typer.Option(metavar="HASH", help="Let this bundle's code run; repeatable."),
    ] = None,
) -> None:
    """Start a SuperNode that runs the installed package.

    All other options are options of flower-supernode. The SuperNode runs in the
    foreground until SIGINT or SIGTERM, or until it loses the SuperLink.
    """
    pinned = frozenset(bundle or ())
    for text in pinned:
        if not re.fullmatch("[0-9a-f]{64}", text):
            sys.exit(f"bundle must be 64 hexadecimal digits, got {text!r}")
    try:
        from vfl_flower.app.deployment.node import run_node
        from vfl_flower.app.flwr_internals.supernode import check_flower

        check_flower()
    except ImportError as error:
        sys.exit(
            f"the SuperNode needs flwr {KNOWN}, but the installed version is "
            f"{version('flwr')}: {error}"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        run_node(context.args, pinned)
    except ValueError as error:
        sys.exit(str(error))
    except KeyboardInterrupt as interrupt:
        # If the key is refused, flwr interrupts this process and logs nothing.
        reason = str(interrupt.__context__)
        sys.exit(reason if "401 Unauthorized" in reason else 0)
    sys.exit("the connection to the SuperLink has ended")
