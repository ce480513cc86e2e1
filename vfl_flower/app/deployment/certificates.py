"""Certificates of a federation and keys of its SuperNodes, as files for flwr."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

CURVE = ec.SECP384R1()
"""``flwr supernode register`` accepts the NIST curves, and recommends this one."""

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
"""Files: authority (for all parties), the SuperLink's certificate and private key."""

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


def write_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Write an authority and the certificate that it signs for a SuperLink, or neither.

    `folder` is created if it is missing. The files are ``ca.crt`` (for all parties),
    ``server.pem`` and ``server.key``. The authority's key is discarded, so the
    authority signs only this certificate. The `hosts` must include 127.0.0.1, at which
    a SuperLink connects to itself. Raises FileExistsError if the folder already has one
    of the files, and ValueError for an invalid host.
    """
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    key, authority_key = (ec.generate_private_key(CURVE) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Federation")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    signer = authority_key.public_key()
    start = datetime.now(UTC) - timedelta(minutes=5)  # for slow clocks
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    contents = {KEY: private}
    for name, subject, public_key in (
        (AUTHORITY, authority, signer),
        (CERTIFICATE, server, key.public_key()),
    ):
        is_authority = name == AUTHORITY
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
        builder = (
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
        if not is_authority:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(authority_key, hashes.SHA256())
        contents[name] = certificate.public_bytes(Encoding.PEM)
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as undo:
        for name, content in contents.items():
            mode = 0o600 if name == KEY else 0o644
            with _new_file(folder / name, mode) as file:
                undo.callback(os.unlink, file.name)
                file.write(content)
        undo.pop_all()


def read_certificate(path: Path) -> x509.Certificate:
    """Return a PEM file's first certificate.

    Raises OSError if the file cannot be read, and ValueError unless the certificate is
    valid.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path} must be a certificate in PEM format") from None
    if (end := certificate.not_valid_after_utc) < datetime.now(UTC):
        raise ValueError(
            f"{path} must be valid, but it expired on {end:%Y-%m-%d}: create new "
            "certificates, and give the new ca.crt to all parties"
        )
    return certificate


def write_supernode_key(path: Path) -> str:
    """Write a SuperNode's private key; return the public key to register.

    Both keys are in OpenSSH's format, as written by ``ssh-keygen -t ecdsa -b 384``.
    Only the owner may read the private key. Raises FileExistsError if `path` exists, so
    that no registered key is overwritten.
    """
    key = ec.generate_private_key(CURVE)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    with _new_file(path, 0o600) as file:
        file.write(private)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return public.decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*", host):
            raise ValueError(
                "host must be a name (such as link.example) or an IP address, without "
                f"a port, got {host[:60]!r}"
            ) from None
        return x509.DNSName(host)


def _new_file(path: Path, mode: int) -> BinaryIO:
    """Create a file with a mode; raise FileExistsError if the file exists."""
    return open(path, "xb", opener=partial(os.open, mode=mode))
