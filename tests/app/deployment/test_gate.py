"""The gate hands on what SuperNodes ask for, whole, and nothing else."""

import gzip
import ssl
import threading
from contextlib import contextmanager, nullcontext

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vfl_flower.app.deployment import gate
from vfl_flower.app.deployment.certificates import write_certificates
from vfl_flower.app.deployment.gate import make_gate
from vfl_flower.app.deployment.processes import free_port, wait_for


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
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    write_certificates(folder, ["127.0.0.1", "localhost"])
    return folder


@pytest.fixture(scope="module")
def link(asked):
    async def note(request: Request) -> Response:
        body = await request.body()
        told = dict(request.headers)
        asked.append((request.method, request.url, told, body))
        status = 401 if body == b"stranger" else 200
        headers = {"X-Of-Superlink": "yes", "Keep-Alive": "timeout=9"}
        headers["Content-Encoding"] = told.get("x-encoding", "identity")
        return Response(body[::-1], status, headers)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return Starlette(routes=[Route("/{path:path}", note, methods=methods)])


@contextmanager
def gated(link, folder, superlinks):
    """Serve a gate and, by the certificates in `superlinks` if there are any, a link.

    Yields a client of the gate, whose own certificates are in `folder`.
    """
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    inner, outer = free_port(), free_port()
    app = make_gate(f"https://127.0.0.1:{inner}", context)
    with (
        serve(link, superlinks, inner) if superlinks else nullcontext(),
        serve(app, folder, outer),
        httpx.Client(
            base_url=f"https://localhost:{outer}",
            verify=context,
            trust_env=False,
            timeout=60,
        ) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(folder, link):
    with gated(link, folder, folder) as client:
        yield client


def test_a_supernode_passes(client, asked):
    """Body, headers, status and reply are those of the SuperLink.

    SuperNodes only post, and have no query.
    """
    body = bytes(range(256)) * 20_000  # 5 MB
    headers = {"X-Flwr-Signature": "abc", "Content-Type": "application/protobuf"}
    path = "/v1/fleet/pull-messages"
    reply = client.post(f"{path}?y=1", content=body, headers=headers)
    assert (reply.status_code, reply.content) == (200, body[::-1])
    assert reply.headers["x-of-superlink"] == "yes"
    method, url, told, got = asked.pop()
    assert (method, url.path, url.query, got) == ("POST", path, "", body)
    assert told["x-flwr-signature"] == "abc"
    assert told["content-type"] == "application/protobuf"
    reply = client.post("/v1/fleet/activate-node", content=b"stranger")
    assert (reply.status_code, reply.content) == (401, b"regnarts")
    asked.clear()
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        assert client.request(method, path).status_code == 405
    assert asked == []


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
    assert client.post(url).status_code == 403
    assert client.get(url).status_code == 405
    assert asked == []


@pytest.mark.parametrize("down", [True, False])
def test_a_superlink_that_is_down_or_another_one(folder, link, asked, tmp_path, down):
    """One that listens on that port with the certificate of another authority.

    It hears nothing, and a SuperNode takes the status as a reason to try again.
    """
    write_certificates(tmp_path, ["127.0.0.1"])
    with gated(link, folder, None if down else tmp_path) as client:
        assert client.post("/v1/fleet/x", content=b"y").status_code == 503
    assert asked == []


def test_the_superlink_is_waited_for_without_a_proxy(folder, link, asked, monkeypatch):
    """Whatever the environment names, and however short HTTPX waits by default."""
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setitem(httpx.AsyncClient.__init__.__kwdefaults__, "timeout", 1e-6)
    with gated(link, folder, folder) as client:
        assert client.post("/v1/fleet/x").status_code == 200
    asked.clear()


def test_a_packed_reply_stays_packed(client, asked):
    sent, headers = gzip.compress(b"some reply")[::-1], {"X-Encoding": "gzip"}
    with client.stream("POST", "/v1/fleet/x", content=sent, headers=headers) as reply:
        assert b"".join(reply.iter_raw()) == sent[::-1]
    asked.clear()


def test_headers_of_one_connection_stay_there(client, asked):
    """Those that say how long it lasts, and whom it is with."""
    headers = {"Host": "elsewhere", "Keep-Alive": "timeout=9", "TE": "trailers"}
    reply = client.post("/v1/fleet/x", headers=headers)
    assert "keep-alive" not in reply.headers
    _, _, told, _ = asked.pop()
    assert told["host"].startswith("127.0.0.1:")
    assert "keep-alive" not in told
    assert "te" not in told


def test_the_command_knows_the_superlink_by_its_authority(folder, monkeypatch):
    made, started = [], []
    monkeypatch.setattr(gate, "make_gate", lambda *given: made.append(given))
    monkeypatch.setattr(uvicorn, "run", lambda app, **how: started.append(how))
    gate.gate(folder, port=8000, superlink=8001, host="127.0.0.2")
    ((address, context),) = made
    assert address == "https://127.0.0.1:8001"
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1  # and none of the system's
    (how,) = started
    assert (how["host"], how["port"]) == ("127.0.0.2", 8000)
    assert how["ssl_certfile"] == folder / "server.pem"
    assert how["ssl_keyfile"] == folder / "server.key"
