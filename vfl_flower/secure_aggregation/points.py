"""Ids as points of Curve25519, encrypted so that the order of the keys does not matter.

Diffie-Hellman on X25519 (RFC 7748) maps the u-coordinate of a point P and a key k to
the u-coordinate of k P. Keys commute, k (l P) = l (k P). So points that several parties
encrypted one after the other are equal if and only if the original points were equal,
whatever the order of the keys.

The security rests on three facts:

1. About half of the u-coordinates belong to points of the curve v^2 = u^3 + A u^2 + u,
   and the rest to points of its twist. Encryption moves no point from one to the other.
   So a hash used directly as a u-coordinate would reveal a bit of each id to everybody.
   Therefore :func:`hash_to_point` hashes again until the right-hand side is a square.
2. A point of the curve is the sum of a point of prime order and a point whose order
   divides 8. X25519 clears the three lowest bits of a key, which makes the key a
   multiple of 8, so the first encryption removes the second of these points. All points
   that leave a party are in the subgroup of prime order, where decisional
   Diffie-Hellman is assumed to be hard.
3. Under that assumption, the points P and k P, for many random P and one key k, cannot
   be distinguished from random points. So without the key, nobody can test whether a
   point belongs to a given id.

:func:`encrypt` runs this file in separate processes. To start fast, this file imports
no other code of the package.
"""

from __future__ import annotations

import hmac
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA512_256, Hash
from numpy.typing import NDArray

Points = NDArray[np.uint8]
"""u-coordinates, or other values of 32 bytes, one per row."""

PRIME = 2**255 - 19
A = 486662
POINT_BYTES = 32

LABEL = b"vfl_flower id to point 1"
"""Protocol and version; increase the version when the hash changes."""

LEAST_OF_A_PROCESS = 4096
"""Number of points per process: 0.15 s of work (a process takes 0.3 s to start)."""


def hash_ids(ids: Sequence[bytes]) -> Points:
    """Return the SHA-512/256 of each of the `normal_ids`, of shape (n, 32)."""
    return _rows(b"".join(map(_sha512_256, ids)))


def keyed_hashes(ids: Sequence[bytes], key: bytes) -> Points:
    """Return the HMAC-SHA256 of each id, of shape (n, 32)."""
    return _rows(b"".join(hmac.digest(key, id_, "sha256") for id_ in ids))


def hash_to_point(data: bytes) -> bytes:
    """Return the u-coordinate of a point of the curve, never of its twist.

    For each counter 0, 1, .., the SHA-512/256 of (label, counter, data), without its
    top bit, is tried as u, 32 bytes, little endian. The result is the first u that is
    below p = 2^255 - 19 and on the curve. On average, two counters are tried.
    """
    for counter in itertools.count():
        digest = _sha512_256(LABEL + counter.to_bytes(4, "little") + data)
        u = int.from_bytes(digest, "little") & (2**255 - 1)
        if u < PRIME and on_curve(u):
            break
    return u.to_bytes(POINT_BYTES, "little")


def on_curve(u: int) -> bool:
    """Return whether u^3 + A u^2 + u is a nonzero square modulo p.

    The test is Euler's criterion, computed as the Jacobi symbol, since p is prime.
    """
    from flint import fmpz

    return bool(fmpz(u * (u * (u + A) + 1) % PRIME).jacobi(fmpz(PRIME)) == 1)


def encrypt(points: Points, key: bytes, *, hashed: bool = False) -> Points:
    """Multiply points by a key of 32 bytes; return the results in the same order.

    Points and multiples are uint8, (n, 32). With `hashed`, `points` may be any values,
    which :func:`hash_to_point` first maps to points. The work is split among at most as
    many processes as there are processors available to this process. Raises ValueError
    if a point has small order, since its multiple is then the same for every key, and
    RuntimeError if a process was stopped.
    """
    shares = min(_processors(), len(points) // LEAST_OF_A_PROCESS)
    mode = b"h" if hashed else b"e"
    if shares < 2:
        done = _work(mode, key, points.tobytes())
    else:
        parts = np.array_split(points, shares)
        with ThreadPoolExecutor(shares) as threads:
            sent = [mode + key + part.tobytes() for part in parts]
            done = b"".join(threads.map(_in_a_process, sent))
    if len(done) != points.size:
        raise RuntimeError("a process that encrypts points was stopped")
    multiples = _rows(done)
    if not multiples.any(axis=1).all():
        raise ValueError("points must not have small order")
    return multiples


def permutation(n: int, key: bytes) -> NDArray[np.int64]:
    """Return the order in which a key shuffles n items, of shape (n,).

    The items are sorted by 64-bit words of the key's ChaCha20 stream (RFC 8439). The
    order is uniform unless two words are equal, which has a probability below
    n^2 / 2^65.
    """
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    words = np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8")
    return np.argsort(words, kind="stable")


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_a_process(data: bytes) -> bytes:
    """Return the output of :func:`main` for an input; no command line holds a key."""
    command = [sys.executable, "-P", __file__]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE).stdout


def _rows(data: bytes) -> Points:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, POINT_BYTES)


def _sha512_256(data: bytes) -> bytes:
    sha = Hash(SHA512_256())
    sha.update(data)
    return sha.finalize()


def _work(mode: bytes, key: bytes, data: bytes) -> bytes:
    private = X25519PrivateKey.from_private_bytes(key)
    multiples = bytearray()  # a list of bytes would take twice the memory
    for start in range(0, len(data), POINT_BYTES):
        point = data[start : start + POINT_BYTES]
        if mode == b"h":
            point = hash_to_point(point)
        try:
            multiples += private.exchange(X25519PublicKey.from_public_bytes(point))
        except ValueError:  # RFC 7748, section 6.1: the result would be all zeros
            multiples += bytes(POINT_BYTES)
    return bytes(multiples)


def main() -> None:
    """Read mode, key and points from standard input, and write the multiples."""
    mode, key = sys.stdin.buffer.read(1), sys.stdin.buffer.read(POINT_BYTES)
    sys.stdout.buffer.write(_work(mode, key, sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
