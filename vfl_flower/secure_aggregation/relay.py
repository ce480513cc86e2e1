"""Messages from party to party that the server passes on and cannot read."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.masks import context, derive_key, shared_secrets

_NONCE = bytes(12)


class Relay:
    """One party's end of the sealed messages between parties.

    A message is encrypted and authenticated with ChaCha20-Poly1305 (RFC 8439) under a
    key of its own: HKDF-SHA256 of the X25519 secret of sender and receiver, with run,
    action, name, round, both indices and both public keys bound in. So the server, or
    another party, can neither read nor change it, nor pass it off as a message of
    another step, round, sender or receiver; it sees the length, and it can withhold
    it. ChaCha20-Poly1305 is safe as long as no pair of key and nonce encrypts two
    plaintexts; no key seals a second message, so the nonce may be the same each time:
    zero.

    **Contract of the caller**: never use a context (action, name, round, receiver)
    again with other data. Two messages under one key give away where they differ, and
    let the server forge a third. The same data may be sealed again (a retry): the
    message is then the same, bit for bit.

    Public keys reach a party through the server, so this protects against a server
    that follows the protocol and is curious, not against one that forges keys; see
    `PairwiseMasks`.

    Parameters
    ----------
    private_key : bytes
        The party's private key, 32 bytes; see `new_private_key`.
    public_keys : sequence of bytes
        The public keys of all parties, this one included, in party order; at least two.
    index : int
        Place of this party in `public_keys`.
    run_id : int
        Id of the run, the same at all parties.

    Raises
    ------
    ValueError
        If there are fewer than two keys, a key does not have 32 bytes, two are equal,
        the party's own is not at `index`, or one gives an all-zero shared secret.

    Examples
    --------
    >>> from vfl_flower.secure_aggregation import new_private_key, public_key
    >>> private = [new_private_key() for _ in range(2)]
    >>> public = [public_key(key) for key in private]
    >>> a, b = (Relay(key, public, j, run_id=7) for j, key in enumerate(private))
    >>> sealed = a.seal(1, b"partial sum", "example_tree", "angles", 3)
    >>> b.open(0, sealed, "example_tree", "angles", 3)
    b'partial sum'
    """

    def __init__(
        self,
        private_key: bytes,
        public_keys: Sequence[bytes],
        index: int,
        run_id: int,
    ) -> None:
        self._secrets = shared_secrets(private_key, public_keys, index)
        self._public_keys = list(public_keys)
        self._index = operator.index(index)
        self._run_id = operator.index(run_id)

    def seal(self, to: int, data: bytes, action: str, name: str, round: int) -> bytes:
        """Seal a message to one party.

        Parameters
        ----------
        to : int
            Index of the receiver. It may be this party: the key then comes from the
            private key alone, and nobody else can open the message.
        data : bytes
            Content, any length.
        action, name, round : str, str, int
            Context, never used again with other data; see the class.

        Returns
        -------
        bytes
            Sealed message, 16 bytes longer than `data`.

        Raises
        ------
        ValueError
            If `to` is no party, or `round` is negative.
        """
        cipher = self._cipher("to", self._index, to, action, name, round)
        return cipher.encrypt(_NONCE, data, None)

    def open(
        self, sender: int, data: bytes, action: str, name: str, round: int
    ) -> bytes:
        """Open a message that one party sealed to this one.

        Parameters
        ----------
        sender : int
            Index of the party that sealed it; it may be this party.
        data : bytes
            Sealed message.
        action, name, round : str, str, int
            Context in which it was sealed.

        Returns
        -------
        bytes
            Content.

        Raises
        ------
        ValueError
            If the message was altered, or sealed by another party, to another one or
            in another context; if `sender` is no party, or `round` is negative.
        """
        cipher = self._cipher("sender", sender, self._index, action, name, round)
        try:
            return cipher.decrypt(_NONCE, data, None)
        except InvalidTag:
            raise ValueError(
                f"the message of party {sender} to party {self._index} in {action} "
                "was altered on its way, or is of another step"
            ) from None

    def agree(self, party: int) -> bytes:
        """Return 32 bytes that this party and another one know, and nobody else.

        The same in the whole run, whatever is sealed.

        Parameters
        ----------
        party : int
            Index of the other one.
        """
        pair = sorted((self._index, operator.index(party)))
        parts = [labels.AGREED_SECRET, str(self._run_id).encode()]
        parts += [self._public_keys[place] for place in pair]
        return derive_key(self._secrets[party], parts)

    def _cipher(
        self,
        argument: str,
        sender: int,
        receiver: int,
        action: str,
        name: str,
        round: int,
    ) -> ChaCha20Poly1305:
        last = len(self._public_keys) - 1
        # The party at the other end, which may be this party itself.
        peer = receiver if sender == self._index else sender
        if not 0 <= peer <= last:
            raise ValueError(f"{argument} must be between 0 and {last}, got {peer}")
        parts = [
            labels.RELAYED_MESSAGE,
            *context(self._run_id, action, name, round),
            str(operator.index(sender)).encode(),
            str(operator.index(receiver)).encode(),
            self._public_keys[sender],
            self._public_keys[receiver],
        ]
        return ChaCha20Poly1305(derive_key(self._secrets[peer], parts))
