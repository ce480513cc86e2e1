"""What a party has on its disk of a session, under a key that is not on that disk.

The party draws the key when the session starts, and gives it to the server, which sends
it back with each message. So the disk of the party alone reveals nothing of the
session, and the server alone has nothing that the key opens.
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
    """Locks values with AES-256-GCM, for one session, each under a fresh nonce."""

    def __init__(self, key: bytes, session: int) -> None:
        self._cipher = AESGCM(derive_key(key, [labels.STATE_CIPHER]))
        self._label_key = derive_key(key, [labels.STATE_LABEL])
        self._session = b"vfl_flower session %d " % session

    def lock(self, name: bytes, value: bytes) -> bytes:
        """Return a value, encrypted under its name."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value, self._session + name)

    def open(self, name: bytes, locked: bytes) -> bytes:
        """Return what was locked; raise PartyError for another key, session or name."""
        nonce, value = locked[:_NONCE_BYTES], locked[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, value, self._session + name)
        except InvalidTag:
            raise PartyError(
                "the key that the server has sent does not open this party's state of "
                "the session: begin a new one"
            ) from None

    def label(self, digest: bytes) -> bytes:
        """Return what stands for a digest on disk, so that nobody can test a guess."""
        return hashlib.blake2b(digest, digest_size=32, key=self._label_key).digest()
