"""A party's session state on its disk, encrypted under a key that is not on that disk.

The party draws the key when the session starts, and sends it to the server, which
returns it with each message. So the party's disk alone reveals nothing about the
session, and the server alone has no data that the key decrypts.
"""

from __future__ import annotations

import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.frame import STATE_KEY_BYTES
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.masks import derive_key

_NONCE_BYTES = 12


def new_state_key() -> bytes:
    """Return a key for the state of a new session."""
    return secrets.token_bytes(STATE_KEY_BYTES)


class Vault:
    """Encrypts values of one session with AES-256-GCM, each under a fresh nonce."""

    def __init__(self, key: bytes, session: int) -> None:
        self._cipher = AESGCM(derive_key(key, [labels.STATE_CIPHER]))
        self._label_key = derive_key(key, [labels.STATE_LABEL])
        self._session = b"vfl_flower session %d " % session

    def lock(self, name: bytes, value: bytes) -> bytes:
        """Return a value, encrypted under its name."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value, self._session + name)

    def open(self, name: bytes, locked: bytes) -> bytes:
        """Return the value; raise PartyError if the key, session or name is wrong."""
        nonce, value = locked[:_NONCE_BYTES], locked[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, value, self._session + name)
        except InvalidTag:
            raise PartyError(
                "the key from the server does not decrypt this party's session state: "
                "start a new run"
            ) from None

    def label(self, digest: bytes) -> bytes:
        """Return a keyed label for a digest on disk, so that no guess can be tested."""
        return hashlib.blake2b(digest, digest_size=32, key=self._label_key).digest()
