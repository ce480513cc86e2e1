"""X25519 key pairs (RFC 7748), as raw bytes."""

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

KEY_BYTES = 32


def new_private_key() -> bytes:
    """Return a private key from the operating system's random source, 32 bytes.

    The key never depends on the seed of an experiment. It stays with its party: neither
    messages nor logs may carry it.
    """
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key, 32 bytes.

    Parameters
    ----------
    private : bytes
        Private key, 32 bytes.

    Returns
    -------
    bytes
        Public key, 32 bytes.

    Raises
    ------
    ValueError
        If `private` does not have 32 bytes.
    """
    return _private(private).public_key().public_bytes_raw()


def shared_secret(private: bytes, public: bytes) -> bytes:
    """Return the X25519 shared secret of two parties, 32 bytes.

    Parameters
    ----------
    private : bytes
        The party's private key, 32 bytes.
    public : bytes
        The other party's public key, 32 bytes.

    Returns
    -------
    bytes
        The same 32 bytes at both parties. They are not uniform: use them only as input
        to a key derivation.

    Raises
    ------
    ValueError
        If a key does not have 32 bytes, or the secret is all zeros: the public key is
        a point of small order, which no honest party sends (RFC 7748, section 6.1).
    """
    if len(public) != KEY_BYTES:
        raise ValueError(f"public key must have 32 bytes, got {len(public)}")
    private_key = _private(private)
    try:
        return private_key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ValueError("public key must not give an all-zero shared secret") from None


def _private(private: bytes) -> X25519PrivateKey:
    if len(private) != KEY_BYTES:
        raise ValueError(f"private key must have 32 bytes, got {len(private)}")
    return X25519PrivateKey.from_private_bytes(private)
