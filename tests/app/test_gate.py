"""The gate hands on what SuperNodes ask for, whole, and nothing else."""

import ssl
import threading
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vfl_flower.app.certificates import write_certificates
from vfl_flower.app.flower_run import free_port, wait_for
from vfl_flower.app.gate import make_gate


@contextmanager
def serve(app, folder, port):
    config = uvicorn.Config(
        app,
        port=port,
        log_level="error",
        ws="none",
        ssl_certfile=folder / "server.pem",
        ssl_keyfile=folder / "server.key",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, 20, "the server")
        yield
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def asked():
    """Return what has reached the SuperLink."""
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    write_certificates(folder, ["127.0.0.1", "localhost"])
    return folder


@pytest.fixture(scope="module")
def client(folder, asked):
    """Return a client of a gate, behind which a SuperLink notes what it is asked."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")

    async def note(request: Request) -> Response:
        body = await request.body()
        headers = dict(request.headers)
        asked.append((request.method, request.url.path, headers, body))
        status = 401 if body == b"stranger" else 200
        return Response(body[::-1], status, {"X-Of-Superlink": "yes"})

    link = Starlette(routes=[Route("/{path:path}", note, methods=["GET", "POST"])])
    inner, outer = free_port(), free_port()
    gate = make_gate(f"https://127.0.0.1:{inner}", context)
    with (
        serve(link, folder, inner),
        serve(gate, folder, outer),
        httpx.Client(
            base_url=f"https://localhost:{outer}", verify=context, trust_env=False
        ) as client,
    ):
        yield client


def test_a_supernode_passes(client, asked):
    """Body, headers, status and reply are those of the SuperLink."""
    body = bytes(range(256)) * 20_000  # 5 MB
    headers = {"X-Flwr-Signature": "abc", "Content-Type": "application/protobuf"}
    reply = client.post("/v1/fleet/pull-messages", content=body, headers=headers)
    assert (reply.status_code, reply.content) == (200, body[::-1])
    assert reply.headers["x-of-superlink"] == "yes"
    method, path, told, got = asked.pop()
    assert (method, path, got) == ("POST", "/v1/fleet/pull-messages", body)
    assert told["x-flwr-signature"] == "abc"
    assert told["content-type"] == "application/protobuf"
    reply = client.post("/v1/fleet/activate-node", content=b"stranger")
    assert (reply.status_code, reply.content) == (401, b"regnarts")
    asked.clear()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/runtime/pull-task",
        "/health",
        "/",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "/v1/fleet//v1/control/start-run",
        "/v1/fleet/x\n",
        "//v1/fleet/x",
        "/V1/fleet/x",
    ],
)
def test_no_one_else_passes(client, asked, path):
    """Such a request is answered by the gate, and the SuperLink hears nothing of it."""
    url = client.base_url.copy_with(raw_path=path.replace("\n", "%0a").encode())
    for method in ("GET", "POST"):
        assert client.request(method, url).status_code == 403
    assert client.put(url).status_code in (403, 405)
    assert asked == []


def test_a_superlink_that_is_down(folder):
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    gate = make_gate(f"https://127.0.0.1:{free_port()}", context)
    outer = free_port()
    with (
        serve(gate, folder, outer),
        httpx.Client(verify=context, trust_env=False) as client,
    ):
        reply = client.post(f"https://127.0.0.1:{outer}/v1/fleet/x", content=b"y")
    assert reply.status_code == 503  # which a SuperNode takes as a reason to try again
