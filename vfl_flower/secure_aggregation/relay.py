"""Messages from party to party that the server forwards but cannot read."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.masks import PairwiseMasks, context, derive_key

_NONCE = bytes(12)


class Relay(PairwiseMasks):
    """One party's masks, and its sealing and opening of messages between parties.

    Each message is encrypted and authenticated with ChaCha20-Poly1305 (RFC 8439) under
    a separate key: HKDF-SHA256 of the X25519 secret of sender and recipient, bound to
    the run, action, name, round, both indices and both public keys. So neither the
    server nor another party can read or change a message, or pass it off as a message
    of a different step, round, sender or recipient. The server sees the length of a
    message, and can withhold it. No key seals a second message, so the nonce is always
    zero.

    **Contract of the caller**: never use a context (action, name, round, recipient)
    again with different data. Two messages under the same key reveal where they differ,
    and let the server forge a third message. The same data may be sealed again (a
    retry): the message is then the same, bit for bit. For forged keys, see
    `PairwiseMasks`.

    >>> from vfl_flower.secure_aggregation.keys import new_private_key, public_key
    >>> private = [new_private_key() for _ in range(2)]
    >>> public = [public_key(key) for key in private]
    >>> a, b = (Relay(key, public, j, run_id=7) for j, key in enumerate(private))
    >>> sealed = a.seal(1, b"partial sum", "example_tree", "angles", 3)
    >>> b.open(0, sealed, "example_tree", "angles", 3)
    b'partial sum'
    """

    def seal(self, to: int, data: bytes, action: str, name: str, round: int) -> bytes:
        """Seal data for one party; the message is 16 bytes longer than the data.

        The recipient, `to`, may be this party itself: the key is then derived from the
        private key alone, and nobody else can open the message. Raises ValueError if
        `to` is not a party.
        """
        cipher = self._cipher(self._index, to, action, name, round)
        return cipher.encrypt(_NONCE, data, None)

    def open(
        self, sender: int, data: bytes, action: str, name: str, round: int
    ) -> bytes:
        """Open a message that a party, possibly this one, sealed for this party.

        Raises ValueError if the message was altered, if it was sealed by or for a
        different party or in a different context, or if `sender` is not a party.
        """
        cipher = self._cipher(sender, self._index, action, name, round)
        try:
            return cipher.decrypt(_NONCE, data, None)
        except InvalidTag:
            raise ValueError(
                f"the message from party {sender} to party {self._index} in {action} "
                "was altered in transit, or belongs to a different step"
            ) from None

    def agree(self, party: int) -> bytes:
        """Return 32 bytes for this run that only this party and `party` know."""
        pair = sorted((self._index, party))
        parts = [labels.AGREED_SECRET, str(self._run_id).encode()]
        parts += [self._public_keys[place] for place in pair]
        return derive_key(self._secrets[party], parts)

    def _cipher(
        self, sender: int, receiver: int, action: str, name: str, round: int
    ) -> ChaCha20Poly1305:
        last = len(self._public_keys) - 1
        # The party at the other end, which may be this party itself.
        sends = sender == self._index
        argument, peer = ("to", receiver) if sends else ("sender", sender)
        if not 0 <= peer <= last:
            raise ValueError(f"{argument} must be between 0 and {last}, got {peer}")
        parts = [
            labels.RELAYED_MESSAGE,
            *context(self._run_id, action, name, round),
            str(sender).encode(),
            str(receiver).encode(),
            self._public_keys[sender],
            self._public_keys[receiver],
        ]
        return ChaCha20Poly1305(derive_key(self._secrets[peer], parts))
