"""Ids as points of the curve, and encryption by commuting keys."""

import hashlib
import hmac
import secrets
import subprocess
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import x25519
from hypothesis import given, settings
from hypothesis import strategies as st
from uniformity import uniform

from vfl_flower.secure_aggregation import points
from vfl_flower.secure_aggregation.points import PRIME, A, encrypt, hash_ids

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Order of the prime subgroup of the curve (RFC 7748, section 4.1)."""

SMALL_ORDER = [
    *(0, 1, PRIME - 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]
"""u-coordinates whose points have order 1, 2, 4 or 8, on the curve or on its twist."""


def euler(u: int) -> bool:
    """By the definition, which the package computes in another way."""
    return pow((u**3 + A * u**2 + u) % PRIME, (PRIME - 1) // 2, PRIME) == 1


def number(row) -> int:
    return int.from_bytes(bytes(row), "little")


def array(*numbers):
    data = b"".join(n.to_bytes(32, "little") for n in numbers)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 32)


def ladder(k: int, u: int) -> int:
    """Return the multiple of a point by any number (RFC 7748, section 5)."""
    x1, x2, z2, x3, z3 = u, 1, 0, u, 1
    for bit in map(int, bin(k)[2:]):
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a % PRIME, c * b % PRIME
        x3, z3 = (da + cb) ** 2 % PRIME, x1 * (da - cb) ** 2 % PRIME
        e = a * a - b * b
        x2, z2 = a * a * b * b % PRIME, e * (a * a + 121665 * e) % PRIME
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return z2 and x2 * pow(z2, -1, PRIME) % PRIME


def test_a_hash_as_it_is_shows_a_bit_of_its_id():
    """The attack: encryption under an unknown key keeps the curve, or the twist.

    About half the ids are on each, and who knows an id's hash knows on which: a list of
    encrypted ids then shows a bit of each. With the hash of the package all bits are
    one.
    """
    ids = [b"id-%d" % k for k in range(200)]
    straight = [number(hashlib.sha256(i).digest()) % 2**255 % PRIME for i in ids]
    unknown = secrets.token_bytes(32)

    leaked = [euler(number(row)) for row in encrypt(array(*straight), unknown)]
    assert leaked == [euler(u) for u in straight]
    assert 60 < sum(leaked) < 140

    ours = encrypt(hash_ids(ids), unknown, hashed=True)
    assert all(euler(number(row)) for row in ours)


@given(st.integers(0, PRIME - 1))
@settings(max_examples=50)
def test_the_symbol_is_eulers_criterion(u):
    assert points.on_curve(u) == euler(u)


def test_a_hash_is_the_first_that_is_on_the_curve():
    hashed = (points.LABEL + bytes([counter, 0, 0, 0]) + b"x" for counter in range(20))
    digests = [hashlib.new("sha512_256", data).digest() for data in hashed]
    tried = [number(digest) % 2**255 for digest in digests]
    expected = next(u for u in tried if euler(u))
    assert points.hash_to_point(b"x") == expected.to_bytes(32, "little")


def test_what_is_encrypted_is_in_the_subgroup_of_prime_order():
    """A hash itself need not be: 7 of 8 points have a part of small order."""
    hashes = array(*(number(points.hash_to_point(b"%d" % k)) for k in range(40)))
    assert 10 < sum(ladder(ORDER, number(row)) != 0 for row in hashes) < 40
    for row in encrypt(hashes, secrets.token_bytes(32)):
        assert ladder(ORDER, number(row)) == 0


def test_keys_commute():
    hashed = hash_ids([b"a", b"b", b"c"])
    a, b, c = (secrets.token_bytes(32) for _ in range(3))
    one = encrypt(encrypt(encrypt(hashed, a, hashed=True), b), c)
    other = encrypt(encrypt(encrypt(hashed, c, hashed=True), a), b)
    np.testing.assert_array_equal(one, other)
    assert len({bytes(row) for row in one}) == 3
    assert not (one == encrypt(encrypt(hashed, a, hashed=True), b)).all(axis=1).any()


def test_a_multiple_is_that_of_x25519():
    key = secrets.token_bytes(32)
    ours = encrypt(hash_ids([b"a"]), key, hashed=True)
    point = points.hash_to_point(hash_ids([b"a"]).tobytes())
    private = x25519.X25519PrivateKey.from_private_bytes(key)
    assert ours.tobytes() == private.exchange(
        x25519.X25519PublicKey.from_public_bytes(point)
    )


@pytest.mark.parametrize("u", SMALL_ORDER)
def test_a_point_of_small_order_is_refused(u):
    given = array(9, u)
    with pytest.raises(ValueError, match="points must not have small order"):
        encrypt(given, secrets.token_bytes(32))


@pytest.mark.parametrize("hashed", [False, True])
def test_processes_give_what_one_does(hashed, monkeypatch):
    given, key = hash_ids([b"%d" % k for k in range(50)]), secrets.token_bytes(32)
    if not hashed:
        given = encrypt(given, secrets.token_bytes(32), hashed=True)
    alone = encrypt(given, key, hashed=hashed)
    started = []
    run = subprocess.run

    def start(command, **options):
        started.append(command)
        return run(command, **options)

    monkeypatch.setattr(points, "LEAST_OF_A_PROCESS", 10)
    monkeypatch.setattr(points, "_processors", lambda: 3)
    monkeypatch.setattr(subprocess, "run", start)
    np.testing.assert_array_equal(encrypt(given, key, hashed=hashed), alone)
    assert len(started) == 3
    assert all(key.hex() not in str(command) for command in started)


def test_a_process_that_fails_is_no_result(monkeypatch):
    monkeypatch.setattr(points, "LEAST_OF_A_PROCESS", 1)
    monkeypatch.setattr(points, "_processors", lambda: 2)
    with pytest.raises(ValueError, match="small order"):
        encrypt(array(9, 9, 9, 1), secrets.token_bytes(32))
    monkeypatch.setattr(points, "__file__", "no such file")
    with pytest.raises(RuntimeError, match="was stopped"):
        encrypt(array(9, 9), secrets.token_bytes(32))


def test_a_process_imports_nothing_of_the_package():
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]);"
        "print([m for m in sys.modules if m.startswith(('vfl_flower', 'flwr'))])"
    )
    command = [sys.executable, "-P", "-c", code, points.__file__]
    assert subprocess.check_output(command).strip() == b"[]"


def test_keyed_hashes():
    (row,) = points.keyed_hashes([b"a"], b"key")
    assert bytes(row) == hmac.new(b"key", b"a", "sha256").digest()


def test_a_permutation_is_uniform():
    """Where 0 goes among four, by chi-square; false-alarm rate 1e-6, fixed keys."""
    keys = (hashlib.sha256(b"%d" % k).digest() for k in range(2000))
    assert uniform([points.permutation(4, key).tolist().index(0) for key in keys], 4)
    key = secrets.token_bytes(32)
    first, again = (points.permutation(100, key).tolist() for _ in "ab")
    assert first == again
    assert sorted(first) == list(range(100))
