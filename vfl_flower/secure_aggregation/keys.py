"""X25519 key pairs (RFC 7748) as raw bytes, and public Ed25519 keys as text."""

import base64
import re

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

KEY_BYTES = 32

NO_IDENTITY = bytes(KEY_BYTES)
"""Placeholder for the key of a party that has no Ed25519 key."""

_PREFIX = "ed25519:"


def new_private_key() -> bytes:
    """Return a private key from the operating system's random source, 32 bytes.

    The key never depends on a seed, and it must not appear in messages or logs.
    """
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key.

    Raises ValueError if the private key does not have 32 bytes.
    """
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_secret(private: bytes, public: bytes) -> bytes:
    """Return the X25519 shared secret of two parties, the same 32 bytes at both.

    These bytes are not uniform: use them only as input to a key derivation. Raises
    ValueError if a key does not have 32 bytes, or if the secret is all zeros. In the
    latter case, the public key is a point of small order, which no honest party sends
    (RFC 7748, section 6.1).
    """
    private_key = X25519PrivateKey.from_private_bytes(private)
    peer = X25519PublicKey.from_public_bytes(public)
    return private_key.exchange(peer)


def encode_key(identity: bytes) -> str:
    """Return a public key as text: ``ed25519:`` and 43 base64url characters.

    >>> encode_key(bytes(range(32)))
    'ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8'
    """
    return _PREFIX + base64.urlsafe_b64encode(identity).decode().rstrip("=")


def parse_key(text: str) -> bytes:
    """Return the public key, 32 bytes, from the text that :func:`encode_key` returned.

    Raises ValueError if the text is not a public key.
    """
    if re.fullmatch(f"{_PREFIX}[A-Za-z0-9_-]{{43}}", text):
        identity = base64.urlsafe_b64decode(f"{text.removeprefix(_PREFIX)}=")
        if encode_key(identity) == text and identity != NO_IDENTITY:
            return identity
    raise ValueError(
        f"a party's public key must be {_PREFIX!r} followed by 43 letters, digits, '-' "
        f"or '_', as printed by vfl-flower identity-key, got {text[:60]!r}"
    )
