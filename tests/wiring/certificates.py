"""The files of a federation's TLS and of its SuperNodes' keys, as flwr takes them."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CURVE = ec.SECP384R1()
"""``flwr supernode register`` takes the NIST curves, and recommends this one."""


def write_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Write a certificate authority, and the SuperLink's certificate by it.

    Parameters
    ----------
    folder : path
        Where ``ca.crt`` (for everyone), ``server.pem`` and ``server.key`` are written.
        The key of the authority is not kept: it signs this one certificate.
    hosts : sequence of str
        Names and IP addresses by which the SuperLink is reached. A SuperLink calls
        itself by 127.0.0.1, so this address must be one of them.
    days : int
        How long the certificates are valid.

    Raises
    ------
    FileExistsError
        `folder` has a ``server.key``.
    """
    key, authority_key = (ec.generate_private_key(CURVE) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Federation")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    signer = authority_key.public_key()

    def signed(
        subject: x509.Name, public_key: ec.EllipticCurvePublicKey, is_authority: bool
    ) -> x509.CertificateBuilder:
        start = datetime.now(UTC) - timedelta(minutes=5)  # for clocks that are behind
        usage = x509.KeyUsage(
            digital_signature=not is_authority,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False
            )
        )

    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    builders = {
        "ca.crt": signed(authority, signer, is_authority=True),
        "server.pem": signed(server, key.public_key(), is_authority=False)
        .add_extension(names, critical=False),
    }  # fmt: skip
    _write_secret(
        folder / "server.key",
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    for name, builder in builders.items():
        certificate = builder.sign(authority_key, hashes.SHA256())
        text = certificate.public_bytes(serialization.Encoding.PEM)
        (folder / name).write_bytes(text)


def write_supernode_key(path: Path) -> Path:
    """Write a SuperNode's private key, and beside it the public key to register.

    Both are in OpenSSH's format, as ``ssh-keygen -t ecdsa -b 384`` writes them.

    Parameters
    ----------
    path : path
        File of the private key, which only its owner may read.

    Returns
    -------
    path
        File of the public key: `path` with ``.pub`` behind it.

    Raises
    ------
    FileExistsError
        `path` is there: a key that may be registered is not overwritten.
    """
    key = ec.generate_private_key(CURVE)
    _write_secret(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    public = path.with_name(f"{path.name}.pub")
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return public


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, secret: bytes) -> None:
    """Write a new file that only its owner may read."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "wb") as opened:
        opened.write(secret)
