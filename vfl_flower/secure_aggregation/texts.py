"""Sums of how often parties have each of their texts, whose adder can read no text.

All parties have one secret key, which the server that adds lacks. A text has

1. a *token* of 60 bits, a keyed hash, by which the server adds up counts;
2. a *ciphertext*, AES-SIV (RFC 5297) with the token as associated data. It is the same
   at all parties, so that sums of it, weighted by counts, are the ciphertext times the
   total count, whoever has the text;
3. a *tag* of its count, an authenticator that adds up: alpha q + beta, where alpha is
   one element of the key for all texts, and beta one for each, which a single party
   adds. From the sum q and its tag the server learns nothing of alpha and beta, and
   finds the tag of another count with a probability of 2^-61 (Wegman and Carter, "New
   hash functions and their use in authentication and set equality", J. Comput. Syst.
   Sci. 22, 1981).

Whoever has the key can test any text against tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from vfl_flower.numerics.prime_field import PrimeField
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.typing import Array

KEY_BYTES = 32
"""Length of the secret key."""

TOKEN_BITS = 30
"""Bits of each of the two numbers of a token."""

MOST_TEXT_BYTES = 100
"""Most bytes of a text, in UTF-8."""

MOST_COLUMNS = 2**16
"""Most columns of texts: one more than the largest place of a column."""

_WORD = 7
"""Bytes of a ciphertext in an element of the field."""

N_WORDS = 17
"""Elements of a ciphertext: 16 bytes of AES-SIV, and 103 of place, length and text."""

WIDTH = 2 + N_WORDS
"""Elements of a row of sums: the count, its tag, and the ciphertext times the count."""

Text = tuple[int, str]
"""The place of a column, and a text in it."""


class TextCode:
    """Tokens, ciphertexts and tags of texts under one key.

    The key has 32 random bytes, of one run alone, that the parties know. Raises
    ValueError if it has another length.

    Two parties have a text in 12 and in 8 rows. One of them adds the betas.

    >>> code = TextCode(bytes(32))
    >>> tokens = code.tokens([(0, "north")])
    >>> a = code.rows(tokens, [(0, "north")], [12], first=True)
    >>> b = code.rows(tokens, [(0, "north")], [8], first=False)
    >>> code.open(tokens, code.field.add(a, b))
    ([(0, 'north')], array([20]))
    """

    field = PrimeField()

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key must have {KEY_BYTES} bytes, got {len(key)}")
        self._token_key, self._tag_key, first, second = (
            derive_key(key, [labels.TEXTS, purpose])
            for purpose in (b"token", b"tag", b"siv 1", b"siv 2")
        )
        self._siv = AESSIV(first + second)
        self._alpha = self._element(b"alpha")

    def tokens(self, texts: Sequence[Text]) -> Array:
        """Return the tokens of texts, int64, shape (m, 2), each from 0 to 2^30 - 1."""
        digests = (
            hashlib.blake2b(_plain(text), digest_size=8, key=self._token_key).digest()
            for text in texts
        )
        words = np.frombuffer(b"".join(digests), dtype="<u8")
        halves = np.column_stack([words, words >> np.uint64(32)])
        return (halves & np.uint64(2**TOKEN_BITS - 1)).astype(np.int64)

    def rows(
        self, tokens: Array, texts: Sequence[Text], counts: Sequence[int], first: bool
    ) -> Array:
        """Return what a party adds to the sums of some tokens, uint64, shape (m, 19).

        The columns are elements of the field: count, tag, and the ciphertext times the
        count. `tokens`, (m, 2), are those that are asked for; `texts` are all that the
        party has, which may have other tokens, and `counts`, q_j, in how many rows it
        has each. A text that the party lacks has the count 0. `first` is true at the
        one party that adds the betas.
        """
        place = {tuple(token): k for k, token in enumerate(tokens.tolist())}
        rows = np.zeros((len(tokens), WIDTH), dtype=np.uint64)
        of_texts = self.tokens(texts)
        for token, text, count in zip(of_texts, texts, counts, strict=True):
            if (k := place.get(tuple(token.tolist()))) is not None:
                rows[k, 0] = count
                rows[k, 2:] = self._encrypted(text, token)
        q = rows[:, :1].copy()
        rows[:, 1:2] = self.field.multiply(q, np.full_like(q, self._alpha))
        rows[:, 2:] = self.field.multiply(rows[:, 2:], np.repeat(q, N_WORDS, axis=1))
        if first:
            rows[:, 1] = self.field.add(rows[:, 1], self._betas(tokens))
        return rows

    def open(self, tokens: Array, totals: Array) -> tuple[list[Text], Array]:
        """Return the m texts and their counts, (m,), from sums over all parties.

        `tokens`, (m, 2), are those that were asked for, and `totals`, (m, 19), the sums
        of what all parties have added. Raises ValueError if they are not the sums of
        these tokens.
        """
        totals = np.asarray(totals).astype(np.uint64)
        if totals.shape != (len(tokens), WIDTH) or (totals >= self.field.p).any():
            raise ValueError(f"totals must be {WIDTH} elements for each token")
        counts, tags = totals[:, 0], totals[:, 1]
        alpha = np.full_like(counts, self._alpha)
        wanted = self.field.add(self.field.multiply(counts, alpha), self._betas(tokens))
        if (tags != wanted).any() or not counts.all():
            raise ValueError("counts must be the sums of the parties' counts")
        inverse = np.repeat(self.field.inverse(counts)[:, None], N_WORDS, axis=1)
        words = self.field.multiply(totals[:, 2:], inverse)
        texts = [self._decrypted(*pair) for pair in zip(words, tokens, strict=True)]
        if not np.array_equal(self.tokens(texts), np.reshape(tokens, (-1, 2))):
            raise ValueError("a text must have its own token")
        return texts, counts.astype(np.int64)

    def _encrypted(self, text: Text, token: Array) -> Array:
        padded = _plain(text).ljust(_WORD * N_WORDS - 16, b"\0")
        data = self._siv.encrypt(padded, [token.astype("<i8").tobytes()])
        octets = np.zeros((N_WORDS, 8), dtype=np.uint8)
        octets[:, :_WORD] = np.frombuffer(data, dtype=np.uint8).reshape(N_WORDS, _WORD)
        return octets.view("<u8")[:, 0]

    def _decrypted(self, words: Array, token: Array) -> Text:
        octets = words.astype("<u8")[:, None].view(np.uint8)
        data = octets[:, :_WORD].tobytes()
        try:
            plain = self._siv.decrypt(data, [token.astype("<i8").tobytes()])
            place, length = int.from_bytes(plain[:2], "little"), plain[2]
            return place, plain[3 : 3 + length].decode()
        except (InvalidTag, UnicodeDecodeError):
            raise ValueError("a text must be one that a party has encrypted") from None

    def _betas(self, tokens: Array) -> Array:
        parts = (b"beta" + token.astype("<i8").tobytes() for token in tokens)
        return np.array([self._element(part) for part in parts], dtype=np.uint64)

    def _element(self, name: bytes) -> int:
        """Return an element of the key: 128 bits modulo p, uniform but for 2^-67."""
        digest = hashlib.blake2b(name, digest_size=16, key=self._tag_key).digest()
        return int.from_bytes(digest, "little") % self.field.p


def _plain(text: Text) -> bytes:
    """Return place, length and text as bytes, so that no two texts read the same."""
    place, content = text[0], text[1].encode()
    if not 0 <= place < MOST_COLUMNS or len(content) > MOST_TEXT_BYTES:
        raise ValueError(
            f"a text must have at most {MOST_TEXT_BYTES} bytes, and its column a place "
            f"below {MOST_COLUMNS}"
        )
    return place.to_bytes(2, "little") + bytes([len(content)]) + content
