"""The gate of a SuperLink, which forwards SuperNodes' requests and nothing else.

A SuperLink serves SuperNodes, ``flwr`` and its own processes on one port, and
authenticates only SuperNodes. It therefore listens only on its own machine, and
SuperNodes on other machines reach it through this gate, or through the reverse proxy in
docs/deploy.md.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import httpx
import typer
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from vfl_flower.app.deployment.certificates import AUTHORITY, CERTIFICATE, KEY

SUPERNODES = re.compile("/v1/fleet/[a-z-]+")
"""Paths of SuperNodes' requests, which use POST and have no query."""

_OF_A_HOP = {b"connection", b"host", b"keep-alive", b"te", b"transfer-encoding"}
"""Headers of a single connection, which are not forwarded."""


def make_gate(superlink: str, context: ssl.SSLContext) -> Starlette:
    """Return the gate's application for a SuperLink at an ``https://`` address."""
    client = httpx.AsyncClient(
        base_url=superlink, verify=context, timeout=None, trust_env=False
    )

    async def forward(request: Request) -> Response:
        path = request.scope["path"]
        if not SUPERNODES.fullmatch(path):
            return Response("only SuperNodes may use this port\n", 403)
        asked = client.build_request(
            request.method,
            path,
            headers=[h for h in request.headers.raw if h[0] not in _OF_A_HOP],
            content=request.stream(),
        )
        try:
            reply = await client.send(asked, stream=True)
        except httpx.TransportError:
            return Response("the SuperLink does not answer\n", 503)
        done = BackgroundTask(reply.aclose)
        answer = StreamingResponse(
            reply.aiter_raw(), reply.status_code, background=done
        )
        answer.raw_headers = [
            (name.lower(), value)
            for name, value in reply.headers.raw
            if name.lower() not in _OF_A_HOP
        ]
        return answer

    @asynccontextmanager
    async def closing(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    routes = [Route("/{path:path}", forward, methods=["POST"])]
    return Starlette(routes=routes, lifespan=closing)


def gate(
    folder: Annotated[Path, typer.Argument(help="Folder of the certificates.")],
    port: Annotated[int, typer.Option(help="Port for SuperNodes.")],
    superlink: Annotated[int, typer.Option(help="Port of the SuperLink.")],
    host: Annotated[str, typer.Option(help="Address for SuperNodes.")] = "0.0.0.0",
) -> None:
    """Forward SuperNodes' requests, and nothing else, to a SuperLink."""
    context = ssl.create_default_context(cafile=folder / AUTHORITY)
    uvicorn.run(
        make_gate(f"https://127.0.0.1:{superlink}", context),
        host=host,
        port=port,
        ssl_certfile=folder / CERTIFICATE,
        ssl_keyfile=folder / KEY,
        log_level="warning",
        ws="none",
        server_header=False,
        date_header=False,
    )


if __name__ == "__main__":  # without the imports of other commands
    typer.run(gate)
