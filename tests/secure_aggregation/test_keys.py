"""X25519 key pairs: sizes, the vectors of RFC 7748, refusals."""

import pytest

from vfl_flower.secure_aggregation.keys import (
    encode_key,
    new_private_key,
    parse_key,
    public_key,
    shared_secret,
)


def test_vector_of_rfc_7748_section_6_1():
    bob = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
    alice_public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    bob_public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert public_key(bytes.fromhex(bob)).hex() == bob_public
    assert shared_secret(*map(bytes.fromhex, (bob, alice_public))).hex() == secret


def test_keys_are_fresh_and_have_32_bytes():
    keys = [new_private_key() for _ in range(20)]
    assert len(set(keys)) == 20
    assert {len(key) for key in keys} == {32}
    assert {len(public_key(key)) for key in keys} == {32}


@pytest.mark.parametrize("size", [0, 31, 33])
def test_refuses_wrong_lengths(size):
    with pytest.raises(ValueError, match="private key is 32 bytes long"):
        public_key(bytes(size))
    with pytest.raises(ValueError, match="public key is 32 bytes long"):
        shared_secret(new_private_key(), bytes(size))


@pytest.mark.parametrize("point", [0, 1, 2**255 - 20])
def test_refuses_points_of_small_order(point):
    with pytest.raises(ValueError, match="computing shared key"):
        shared_secret(new_private_key(), point.to_bytes(32, "little"))


def test_a_public_key_as_text():
    text = "ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    assert encode_key(bytes(range(32))) == text
    for key in (bytes(range(32)), b"\xfb\xff" * 16):
        assert parse_key(encode_key(key)) == key
    for wrong in (
        *("", text[:-1], f"{text}A", f"{text}=", f"{text}\n", text[8:]),
        *(text.replace("ed25519", "x25519"), encode_key(bytes(32))),
        f"{text[:-1]}9",  # other bits that stand for no byte
    ):
        with pytest.raises(ValueError, match="must be 'ed25519:' followed by 43"):
            parse_key(wrong)
