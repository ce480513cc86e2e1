"""Private keys that are the same each time, and the derivation of keys by hand."""

import hashlib
import hmac

from vfl_flower.secure_aggregation.keys import public_key

PRIVATE = [bytes([j + 1]) * 32 for j in range(4)]
PUBLIC = [public_key(key) for key in PRIVATE]


def ends(kind, parties, run_id=1):
    """Return the masks or the relays of this number of parties."""
    keys = zip(PRIVATE[:parties], range(parties), strict=True)
    return [kind(key, PUBLIC[:parties], j, run_id) for key, j in keys]


def derived(secret, *parts):
    """Return HKDF-SHA256 by two HMACs; each part follows its length."""
    info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    pseudo_random = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(pseudo_random, info + b"\x01", hashlib.sha256)
