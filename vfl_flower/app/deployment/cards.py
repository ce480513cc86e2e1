"""The card of a party: a small public file for all other members of the federation.

A card contains the party's name, the public key that its peers pin, and the public key
of its SuperNode, which the coordinator registers. The card's fingerprint is a digest of
all three: two people who compare the fingerprint on the telephone know that nobody has
replaced the card.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from vfl_flower.files import write_whole
from vfl_flower.party.consent import Consent
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.names import MOST_OF_NAME

MOST_BYTES = 4096
"""Maximum number of bytes in a card."""

_DIGITS = 32
_DOMAIN = "vfl_flower card 1"

_ABOUT = """\
# The public card of a party, for all other members of its federation. Compare its
# fingerprint on the telephone with the one that the party sees.
"""


@dataclass(frozen=True)
class Card:
    """A party's name and public keys; raises ValueError for an invalid field."""

    name: str
    """The ``party-name``: letters, digits, spaces, dots, hyphens and underscores."""
    identity: str
    """The party's public key (Ed25519), as in ``[peers]`` of a ``consent.toml``."""
    supernode: str
    """The public key of the party's SuperNode (P-384), in OpenSSH's format."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_name(self.name)
        try:
            Consent.parse({"peers": {self.name: self.identity}})
        except PartyError as error:
            raise ValueError(str(error).removeprefix("consent: ")) from None
        try:
            load_ssh_public_key(self.supernode.encode())
            valid = re.fullmatch(r"ecdsa-sha2-nistp384 [\w+/=]+", self.supernode)
        except (ValueError, UnsupportedAlgorithm):
            valid = None
        if not valid:
            raise ValueError(
                "supernode must be a public key on the curve P-384 in OpenSSH's "
                f"format, without a comment, got {self.supernode[:60]!r}"
            )

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of a SHA-256 digest of the card, in groups of four."""
        fields = (_DOMAIN, self.name, self.identity, self.supernode)  # no line breaks
        digits = hashlib.sha256("\n".join(fields).encode()).hexdigest()[:_DIGITS]
        return " ".join(re.findall("....", digits))

    @property
    def supernode_pem(self) -> bytes:
        """The key of the SuperNode in Flower's format."""
        key = load_ssh_public_key(self.supernode.encode())
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @classmethod
    def load(cls, path: Path) -> Card:
        """Read a card; raise OSError on failure, and ValueError for an invalid card."""
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        try:
            if len(content) > MOST_BYTES:
                raise ValueError(f"a card must have at most {MOST_BYTES} bytes")
            table = tomllib.loads(content.decode())
            keys = ["name", "identity", "supernode", "fingerprint"]
            if sorted(table) != sorted(keys):
                raise ValueError(f"its keys must be {', '.join(keys)}")
            if not all(isinstance(value, str) for value in table.values()):
                raise ValueError("its values must be text")
            fingerprint = table.pop("fingerprint")
            card = cls(**table)
            if fingerprint != card.fingerprint:
                raise ValueError(
                    f"its fingerprint must be {card.fingerprint} to match its keys: "
                    "ask for the card again"
                )
        except ValueError as error:
            raise ValueError(f"{path} is not a party's card: {error}") from None
        return card

    def write(self, path: Path) -> None:
        """Write the card, and replace an earlier card."""
        table = asdict(self) | {"fingerprint": self.fingerprint}
        write_whole(path, (_ABOUT + tomli_w.dumps(table)).encode())


def check_name(name: str) -> None:
    """Raise ValueError for a name that a party or its folder cannot have."""
    if not (len(name) <= MOST_OF_NAME and re.fullmatch(r"\w[\w. -]*(?<! )", name)):
        raise ValueError(
            f"name must be 1 to {MOST_OF_NAME} letters, digits, spaces, dots, hyphens "
            f"and underscores, starting with a letter or digit, got {name[:40]!r}"
        )


def load_cards(paths: list[Path]) -> list[Card]:
    """Read cards; also raise ValueError if two cards share a name or a key."""
    cards = [Card.load(path) for path in paths]
    for what in ("name", "identity", "supernode"):
        values = [getattr(card, what) for card in cards]
        for k, value in enumerate(values):
            if value in values[:k]:
                raise ValueError(
                    f"cards must differ in {what}, but {paths[k]} and "
                    f"{paths[values.index(value)]} have the same {what}"
                )
    return cards
