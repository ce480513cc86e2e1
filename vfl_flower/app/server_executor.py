r"""Start the ServerApps of a SuperLink that has ``--isolation process``.

It takes the place of Flower's ``flower-superexec``::

    python -m vfl_flower.app.server_executor --superlink 127.0.0.1:8001 \
        --root-certificates ca.crt

:mod:`vfl_flower.app.serverapps` calls internal functions of Flower. Where the installed
flwr has others, ``flower-superexec`` starts instead, and a run takes longer to begin.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

log = logging.getLogger("vfl_flower")


def start(
    superlink: str, root_certificates: str | None = None, parent: int | None = None
) -> None:
    """Start ServerApps, in the foreground, until a signal ends this process.

    Parameters
    ----------
    superlink : str
        HOST:PORT.
    root_certificates : str, optional
        File of the authority; default: without TLS.
    parent : int, optional
        A process with whose end this one ends.
    """
    try:
        from vfl_flower.app.serverapps import check_flower, serve

        check_flower()
    except ImportError as error:
        log.warning("Flower's own SuperExec starts: %s", error)
        scripts = Path(sys.executable).parent
        os.environ["PATH"] = f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"
        tls = [f"--root-certificates={root_certificates}"]
        options = [f"--runtime-api-address={superlink}"]
        options += tls if root_certificates else ["--insecure"]
        options += [f"--parent-pid={parent}"] if parent else []
        os.execvp("flower-superexec", ["flower-superexec", *options])
    serve(superlink, root_certificates, parent)


def main(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    root_certificates: Annotated[
        str | None, typer.Option(help="Its authority; without: no TLS.")
    ] = None,
    parent_pid: Annotated[
        int | None, typer.Option(help="The process with whose end this one ends.")
    ] = None,
) -> None:
    """Start the ServerApps of a SuperLink."""
    start(superlink, root_certificates, parent_pid)


if __name__ == "__main__":
    typer.run(main)
