r"""Start the ServerApps of a SuperLink that runs with ``--isolation process``.

This program replaces Flower's ``flower-superexec``, and calls internal functions of
Flower (:mod:`vfl_flower.app.flwr_internals`). If these functions differ in the
installed flwr, no ServerApp starts.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vfl_flower.app.deployment.executor import KNOWN


def main(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    root_certificates: Annotated[
        str | None, typer.Option(help="Its certificate authority; default: no TLS.")
    ] = None,
    parent_pid: Annotated[
        int | None, typer.Option(help="Process whose end also ends this process.")
    ] = None,
) -> None:
    """Keep starting the ServerApps of a SuperLink until a signal ends this process."""
    try:
        from vfl_flower.app.deployment.serverapps import serve
        from vfl_flower.app.flwr_internals.superexec import check_flower

        check_flower()
    except ImportError as error:
        sys.exit(f"the SuperLink needs flwr {KNOWN}: {error}")
    serve(superlink, root_certificates, parent_pid)


if __name__ == "__main__":
    typer.run(main)
