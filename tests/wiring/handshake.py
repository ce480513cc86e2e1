"""A check of certificates and keys, whoever has made them."""

import ssl
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes


def shake_hands(folder: Path, host: str, ca: Path | None = None) -> None:
    """Let a client that trusts `ca` and a SuperLink with `folder` greet in memory."""
    context = ssl.create_default_context(cafile=ca or folder / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(folder / "server.pem", folder / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=host)
    server = served.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


def check_supernode_key(path: Path) -> None:
    """Read both halves as ``flower-supernode`` and ``flwr supernode register`` do."""
    key = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    public = try_load_public_key(path.with_name(f"{path.name}.pub"))
    assert public == public_key_to_bytes(key.public_key())
    assert path.stat().st_mode & 0o077 == 0
