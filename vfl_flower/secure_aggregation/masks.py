"""Pairwise masks that cancel in the sum.

Parties i < j share a secret s_ij and expand it, for each context, to the same uniform
elements r_ij. Party i sends x_i + sum_{j > i} r_ij - sum_{j < i} r_ji: each message is
uniform, and the sum over all parties is sum_i x_i (Bonawitz et al., "Practical secure
aggregation for privacy-preserving machine learning", CCS 2017, section 4; without the
recovery from drop-outs, since here every party must answer). A sum meant for one party
also contains that party's pad, which nobody else can remove.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.groups import Group, Take
from vfl_flower.secure_aggregation.keys import KEY_BYTES, public_key, shared_secret
from vfl_flower.typing import Array

_BLOCK = 1 << 16
"""Bytes processed at a time: they fit in a cache, and allocators reuse such blocks."""

_NONCE = bytes(16)


class PairwiseMasks:
    """The masks of one party, from the X25519 secrets it shares with every other party.

    The sum of the masks of all parties for one context (action, name, round) is the
    zero of the group. To anyone without the private keys of a pair, the pair's masks
    are indistinguishable from uniform elements, independent for each context, group
    setting, count and run. So even the server together with all but one of the other
    parties learns no more than the sum of the inputs of the remaining two parties.

    **Contract of the caller**: never use a context again with different values. Two
    messages under the same mask reveal the difference of their values. Within a run,
    `round` must strictly increase for the same action and name. Use new keys in each
    run. The same values may be sent again (a retry): the message is then the same, bit
    for bit.

    Public keys reach a party through the server. The masks therefore protect against a
    curious server that follows the protocol, but not against a server that forges keys.

    `public_keys` are the keys of all parties, with this party's key at `index`;
    `run_id` is the same at all parties. Raises ValueError if there are fewer than two
    keys, a key does not have 32 bytes, two keys are equal, the key at `index` does not
    belong to `private_key`, or a key yields an all-zero shared secret.

    >>> from vfl_flower.secure_aggregation.groups import Ring
    >>> from vfl_flower.secure_aggregation.keys import new_private_key, public_key
    >>> private = [new_private_key() for _ in range(3)]
    >>> public = [public_key(key) for key in private]
    >>> ring = Ring(bound=10.0, parties=3)
    >>> messages = [
    ...     masked(
    ...         np.array([1.5, float(j)]), ring,
    ...         PairwiseMasks(key, public, j, run_id=7), "scores", "g", 0,
    ...     )[0]
    ...     for j, key in enumerate(private)
    ... ]
    >>> unmask_sum(messages, ring)
    array([4.5, 3. ])
    """

    def __init__(
        self, private_key: bytes, public_keys: Sequence[bytes], index: int, run_id: int
    ) -> None:
        if len(public_keys) < 2:
            raise ValueError(
                f"the number of public_keys must be at least 2, got {len(public_keys)}"
            )
        if not 0 <= index < len(public_keys):
            raise ValueError(
                f"index must be between 0 and {len(public_keys) - 1}, got {index}"
            )
        for j, key in enumerate(public_keys):
            if len(key) != KEY_BYTES:
                raise ValueError(
                    f"public key of party {j} must have 32 bytes, got {len(key)}"
                )
            if (first := public_keys.index(key)) != j:
                raise ValueError(
                    f"the public keys of parties {first} and {j} must differ"
                )
        if public_keys[index] != public_key(private_key):
            raise ValueError(f"public key of party {index} must match the private key")
        # This party's own entry is its private key, which it shares with nobody.
        self._secrets = [private_key] * len(public_keys)
        for j, key in enumerate(public_keys):
            if j != index:
                try:
                    self._secrets[j] = shared_secret(private_key, key)
                except ValueError:
                    raise ValueError(
                        f"public key of party {j} must not yield an all-zero shared "
                        "secret"
                    ) from None
        self._public_keys = list(public_keys)
        self._index, self._run_id = index, run_id

    def hide(
        self, elements: Array, group: Group, action: str, name: str, round: int
    ) -> Array:
        """Add the mask of one context to `elements`, shape ``(count,)``, in place.

        For party i the mask is sum_{j > i} r_ij - sum_{j < i} r_ji. `action` is the
        step of the protocol, and `name` the array in the step's message; for `round`,
        see the class.
        """
        parts = self._parts(group, elements.size, action, name, round)
        streams: list[tuple[bool, Take]] = []
        for j, secret in enumerate(self._secrets):
            if j != self._index:
                pair = sorted((self._index, j))
                keys = [self._public_keys[i] for i in pair]
                take = stream(secret, [labels.PAIRWISE_MASK, *parts, *keys])
                streams.append((self._index < j, take))
        return _add_streams(elements, group, streams)

    def pad(
        self, group: Group, count: int, action: str, name: str, round: int
    ) -> Array:
        """Return the party's own pad for one context, uniform, shape ``(count,)``.

        If a sum is meant for this party alone, the party adds the pad to its message,
        and subtracts the pad from the total that the server forwards. The total with
        the pad looks uniform. The pad is derived from the party's private key alone, so
        it is independent of the masks, and nobody else can compute it. The contract of
        the class also applies to pads.
        """
        parts = self._parts(group, count, action, name, round)
        parts = [labels.OWN_PAD, *parts, self._public_keys[self._index]]
        take = stream(self._secrets[self._index], parts)
        return _add_streams(np.zeros(count, group.dtype), group, [(True, take)])

    def _parts(
        self, group: Group, count: int, action: str, name: str, round: int
    ) -> list[bytes]:
        """Return the context to which masks and pads are bound, for `derive_key`."""
        parts = context(self._run_id, action, name, round)
        return [*parts, group.label.encode(), str(count).encode()]


def masked(
    values: Array,
    group: Group,
    masks: PairwiseMasks | None,
    action: str,
    name: str,
    round: int,
) -> tuple[Array, int]:
    """Return one party's values x_i, encoded and hidden, and how many were clipped.

    Never use the context of the mask again with different values; see `PairwiseMasks`.
    Without `masks` (None), or in the group `Plain`, the encoding is not hidden. Raises
    ValueError if a value is NaN or infinite, or if the group cannot sum the encodings
    of so many parties.
    """
    encoded, clipped = group.encode(values)
    if masks is None or not group.protects:
        return encoded, clipped
    if (parties := len(masks._public_keys)) > group.parties:
        raise ValueError(
            f"group must support sums over {parties} parties, got {group.parties}"
        )
    hidden = masks.hide(encoded.flatten(), group, action, name, round)
    return hidden.reshape(encoded.shape), clipped


def unmask_sum(arrays: Sequence[Array], group: Group) -> Array:
    """Add the messages of all parties, so that masks cancel, and decode sum_i x_i.

    If the message of a party is missing, the result is noise, which this function
    cannot detect. Raises ValueError if there are no arrays, or more arrays than the
    group can sum.
    """
    if not 1 <= len(arrays) <= group.parties:
        raise ValueError(
            f"the number of arrays must be from 1 to {group.parties}, got {len(arrays)}"
        )
    total = arrays[0].copy()
    for array in arrays[1:]:
        group.add(total, array, out=total)
    return group.decode(total)


def context(run_id: int, action: str, name: str, round: int) -> list[bytes]:
    """Return a context for `derive_key`."""
    return [part.encode() for part in (str(run_id), action, name, str(round))]


def derive_key(secret: bytes, parts: Sequence[bytes]) -> bytes:
    """Return the key for one use of a secret, 32 bytes.

    The key is HKDF-SHA256 (RFC 5869, no salt) of the secret. In the info, each part is
    preceded by its length (4 bytes, little endian), so that no two lists of parts have
    the same info.
    """
    info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def stream(secret: bytes, parts: Sequence[bytes]) -> Take:
    """Return the ChaCha20 key stream of one secret in one context.

    ChaCha20 (RFC 8439) is safe as long as no pair of key and nonce encrypts two
    plaintexts. Each context has a separate key, so the nonce is always zero.
    """
    key = derive_key(secret, parts)
    encryptor = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
    return lambda n_bytes: encryptor.update(bytes(n_bytes))


def _add_streams(
    elements: Array, group: Group, streams: Sequence[tuple[bool, Take]]
) -> Array:
    """Add streams to `elements`, shape ``(count,)``, or subtract them, in place."""
    length = _BLOCK // elements.itemsize
    for start in range(0, elements.size, length):
        block = elements[start : start + length]
        for adds, take in streams:
            combine = group.add if adds else group.subtract
            combine(block, group.random(take, block.size), out=block)
    return elements
