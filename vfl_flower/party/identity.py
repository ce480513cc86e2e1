"""Identify the parties of a run: each party's long-term key signs its run key.

The public keys of a run pass through the server, which could replace them with its own
keys and decrypt values meant for a party. So each party has an Ed25519 key in its
``state-dir``, signs its run key with it, and reads the public keys of its peers from a
file that does not come from the server. A signature proves that the holder of a key
joined the run under a name; it does not prove that the holder is honest, or that the
holder does not collude with the server.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from vfl_flower.files import check_no_link, write_whole
from vfl_flower.party.consent import Consent
from vfl_flower.party.journal import Journal
from vfl_flower.party.parts import check_folder
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.contract import ContractError
from vfl_flower.protocol.errors import refusing_files
from vfl_flower.protocol.frame import KEY_BYTES, SIGNATURE_BYTES, Frame
from vfl_flower.protocol.names import is_name
from vfl_flower.secure_aggregation.keys import NO_IDENTITY, encode_key, public_key

log = logging.getLogger("vfl_flower")

FILE = "identity.pem"  # name of the file in the ``state-dir``

_DOMAIN = b"vfl_flower identity 1"
_LIST_DOMAIN = b"vfl_flower list of keys 1"
_LENGTH_BYTES = 4


def load_identity(folder: Path) -> Ed25519PrivateKey:
    """Return the party's identity key; create it in its ``state-dir`` if missing.

    Raises PartyError if the file is unusable, is accessible to other users, or does not
    contain an Ed25519 key.
    """
    check_folder(folder)
    path = folder / FILE
    what = f"{FILE} in this party's state-dir"
    with refusing_files(f"{what} cannot be read or created", path):
        if not os.path.lexists(path):
            _create(path)
        data = _read(path)
    try:
        private = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        log.error("not an Ed25519 key in PEM form without a password: %s", path)
        raise PartyError(f"{what} must hold an Ed25519 key without a password")
    return private


def _create(path: Path) -> None:
    """Write a new key, unless another process has just done so."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    write_whole(part, pem, private=True)
    try:
        with suppress(FileExistsError):
            os.link(part, path)  # a rename would replace the key of another process
            log.warning("%s contains a new key of this party: back it up", path)
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    check_no_link(path)
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) or mode & 0o077:  # reading a pipe would block
        log.error("not a regular file that only its owner may read: chmod 600 %s", path)
        raise PartyError(
            f"{FILE} in this party's state-dir must be a regular file that only its "
            f"owner may read (mode 600), got mode {stat.S_IMODE(mode):o}"
        )
    return path.read_bytes()


def public_identity(folder: Path) -> str:
    """Return the party's public key, which peers pin; see :func:`load_identity`."""
    return encode_key(load_identity(folder).public_key().public_bytes_raw())


@dataclass(frozen=True)
class Credential:
    """The signed statement in which a party identifies itself in ``hello``."""

    name: str  # "" if the party has none
    index: int  # -1 if unknown to the party
    n_parties: int  # 0 if unknown to the party
    public_key: bytes  # of the run (X25519), 32 bytes
    identity: bytes = NO_IDENTITY  # its long-term public key (Ed25519), 32 bytes
    signature: bytes = bytes(SIGNATURE_BYTES)  # made with that key, 64 bytes

    def signed(self, private: Ed25519PrivateKey, session: int) -> Credential:
        """Return this credential, signed for the run with number `session`."""
        identity = private.public_key().public_bytes_raw()
        signature = private.sign(self._said(session))
        return replace(self, identity=identity, signature=signature)

    def verify(self, session: int) -> bool:
        """Return whether the signature is valid for the run with number `session`."""
        return _is_signed(self.identity, self.signature, self._said(session))

    def _said(self, session: int) -> bytes:
        about = self.public_key, self.name, self.index, self.n_parties
        return _encoded(_DOMAIN, session, *about)


def _is_signed(identity: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return identity != NO_IDENTITY  # a point of order 4: any signature may verify


def credential_of(party: Party, session: int, public_key: bytes) -> Credential:
    """Return the signed credential of a party; raise PartyError without a state-dir."""
    if party.state_dir is None:
        raise PartyError("state-dir must be set, so that this party can sign its keys")
    index = -1 if party.index is None else party.index
    unsigned = Credential(party.name or "", index, party.n_parties, public_key)
    return unsigned.signed(load_identity(party.state_dir), session)


def _encoded(*fields: bytes | str | int) -> bytes:
    """Return fields with their lengths, so that no two lists yield the same bytes."""
    parts = [f if isinstance(f, bytes) else str(f).encode() for f in fields]
    return b"".join(len(p).to_bytes(_LENGTH_BYTES, "big") + p for p in parts)


def pack_credentials(credentials: Sequence[Credential]) -> bytes:
    """Return credentials as bytes, without the keys of the run."""
    packed = b""
    for c in credentials:
        packed += _encoded(c.name, c.index, c.n_parties, c.identity, c.signature)
    return packed


def parse_credentials(packed: bytes, peers: bytes) -> list[Credential]:
    """Return the credentials that :func:`pack_credentials` packed.

    `peers` are the run keys of the parties. Raises ContractError unless there is one
    credential for each key.
    """
    try:
        fields = zip(*[iter(_fields(packed))] * 5, strict=True)
        keys = [peers[k : k + KEY_BYTES] for k in range(0, len(peers), KEY_BYTES)]
        credentials = [
            Credential(name.decode(), int(index), int(n), key, *signed)
            for key, (name, index, n, *signed) in zip(keys, fields, strict=True)
        ]
        whole = pack_credentials(credentials) == packed
    except ValueError:
        whole = False
    if not whole or not all(map(_has_form, credentials)):
        raise ContractError("'credentials' must hold one credential for each party")
    return credentials


def _fields(packed: bytes) -> list[bytes]:
    fields, at = [], 0
    while at < len(packed):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(packed[at:start], "big")
        fields.append(packed[start:at])
    return fields


def _has_form(credential: Credential) -> bool:
    sizes = len(credential.identity), len(credential.signature)
    named = not credential.name or is_name(credential.name)
    return named and sizes == (KEY_BYTES, SIGNATURE_BYTES)


def sign_list(party: Party, session: int, keys: bytes, packed: bytes) -> bytes:
    """Return the signature with which a party accepts this list of keys.

    A ``hello`` of a peer that has lost the session can be replayed; this signature
    cannot, since the list contains fresh keys of the other parties.
    """
    assert party.state_dir is not None
    identity = load_identity(party.state_dir)
    return identity.sign(_encoded(_LIST_DOMAIN, session, keys, packed))


def check_list(signatures: bytes, session: int, keys: bytes, packed: bytes) -> None:
    """Raise ``PartyError`` unless all parties have signed the same list of keys."""
    listed = _encoded(_LIST_DOMAIN, session, keys, packed)
    for j, peer in enumerate(parse_credentials(packed, keys)):
        signature = signatures[j * SIGNATURE_BYTES : (j + 1) * SIGNATURE_BYTES]
        if not _is_signed(peer.identity, signature, listed):
            raise PartyError(
                f"party {peer.name!r} has not signed the list of the parties' keys, "
                "so this party answers only the first message"
            )


def check_listed(
    credentials: Sequence[Credential],
    session: int,
    place: int,
    announced: Credential,
    consent: Consent,
    known: Mapping[str, str] | None,
) -> dict[str, str]:
    """Check the parties of a run; return names and keys trusted for the first time.

    The credentials and this party's `place` come from the server; `known` contains the
    names and keys in the journal. Without a journal, this party trusts nobody on first
    use. With trust on first use, the server can invent a party: only a later change of
    the key is noticed. Raises PartyError if a party is not the expected party.
    """
    pinned = consent.peers or {}
    trusts = consent.trust_on_first_use and known is not None
    if not 0 <= place < len(credentials) or credentials[place] != announced:
        raise PartyError(
            "the server's list of the parties does not contain this party's own "
            f"credential at position {place}"
        )
    text = encode_key(announced.identity)
    if pinned.get(announced.name, text) != text:
        raise PartyError(
            f"the key pinned for this party's own name {announced.name!r} must be the "
            f"key in this party's state-dir, {text}"
        )
    _check_distinct(credentials)
    _check_order(credentials)
    accepted = {**(known or {}), **pinned} if trusts else pinned
    new = {}
    for j, peer in enumerate(credentials):
        if j == place:
            continue
        who, text = f"party {peer.name!r}", encode_key(peer.identity)
        if peer.identity == NO_IDENTITY:
            rule = "must have a long-term key (so its state-dir must be set)"
            raise PartyError(f"{who} {rule}, but has none")
        if not peer.verify(session):
            raise PartyError(
                f"the signature of {who} is not valid: the signed credential is for "
                "a different run, or was altered"
            )
        if peer.name not in accepted:
            if not trusts:
                rule = "must be pinned among the peers of this party's consent"
                raise PartyError(f"{who} {rule}, but is not")
            new[peer.name] = text
        elif accepted[peer.name] != text:
            how = "is pinned" if peer.name in pinned else "was trusted on first use"
            rule = f"must be the key that {how}"
            raise PartyError(f"the key of {who} {rule}, but it is {text}")
    return new


def _check_distinct(credentials: Sequence[Credential]) -> None:
    """Raise PartyError if a name or key is repeated, or a party has no name."""
    names = [c.name for c in credentials]
    if "" in names:
        raise PartyError(
            "each party must have a party-name, under which others pin its key, but "
            f"the party at position {names.index('')} has none"
        )
    for what in ("name", "identity", "public_key"):
        seen: dict[str | bytes, str] = {}
        for c in credentials:
            value = getattr(c, what)
            if value in seen and value != NO_IDENTITY:
                if what == "name":
                    raise PartyError(f"party names must differ, got {c.name!r} twice")
                raise PartyError(
                    f"the parties must have different keys, but {seen[value]!r} and "
                    f"{c.name!r} have the same key"
                )
            seen[value] = c.name


def _check_order(credentials: Sequence[Credential]) -> None:
    """Check that parties are in index order, or in name order if they have no index."""
    named = all(c.index == -1 for c in credentials)
    if not named and (lacking := [c.name for c in credentials if c.index < 0]):
        raise PartyError(f"some parties have an index, but {lacking[0]!r} has none")
    for first, second in pairwise(credentials):
        if (first.name >= second.name) if named else (first.index >= second.index):
            raise PartyError(
                f"parties must be listed in the order of their "
                f"{'names' if named else 'indices'}, but {second.name!r} follows "
                f"{first.name!r}"
            )


def check_run(
    frame: Frame,
    announced: Party,
    private_key: bytes,
    consent: Consent,
    journal: Journal | None,
) -> None:
    """Raise ``PartyError`` for parties or a seed that this party has not consented to.

    `announced` is this party as described in its reply to ``hello``; the first frame
    names the other parties.
    """
    if frame.parties < (least := consent.least_parties):
        raise PartyError(
            f"this party's consent requires at least {least} parties in a run, but "
            f"this run has {frame.parties}"
        )
    if not (frame.private_draws or consent.allow_seed):
        raise PartyError(
            "a run with a seed is refused, since the server could repeat this party's "
            "random draws: to allow seeds, set 'allow-seed = true' in its consent.toml"
        )
    if consent.peers is None or frame.peers is None:  # checked before, or never
        return
    if frame.credentials is None:
        raise PartyError("the server must forward the parties' signatures, but did not")
    listed = parse_credentials(frame.credentials, frame.peers)
    said = credential_of(announced, frame.session, public_key(private_key))
    known = None if journal is None else journal.trusted
    new = check_listed(listed, frame.session, frame.index, said, consent, known)
    for name, key in new.items():
        log.warning("party %r is trusted on first use with key %s", name, key)
    if journal is not None:
        journal.trusted |= new
