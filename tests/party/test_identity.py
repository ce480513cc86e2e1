"""Keys that outlive a run, what they sign, and whom a party refuses."""

import dataclasses
import os
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl_flower import Party
from vfl_flower.party import identity
from vfl_flower.party.consent import Consent
from vfl_flower.party.journal import Journal
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError
from vfl_flower.protocol.frame import Frame
from vfl_flower.secure_aggregation import keys

SESSION = 11
NAMES = ("a", "b", "c")
PLACE = 1
PRIVATE = [Ed25519PrivateKey.generate() for _ in NAMES]
OF_RUN = [keys.public_key(keys.new_private_key()) for _ in NAMES]
KEYS = b"".join(OF_RUN)
LISTED = [
    identity.Credential(name, j, 3, OF_RUN[j]).signed(PRIVATE[j], SESSION)
    for j, name in enumerate(NAMES)
]
PINNED = {c.name: keys.encode_key(c.identity) for c in LISTED}


def text_of(private):
    return keys.encode_key(private.public_key().public_bytes_raw())


# -- the file --------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def put(folder, data, mode=0o600):
    (folder / identity.FILE).write_bytes(data)
    (folder / identity.FILE).chmod(mode)


def pem_of(key, encryption=None):
    encryption = encryption or serialization.NoEncryption()
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


@pytest.mark.parametrize("together", [False, True])
def test_a_key_is_made_once(folder, together, monkeypatch):
    """Also by two processes, where both have seen that there is no file."""
    first = identity.load_identity(folder)
    if together:
        monkeypatch.setattr(os.path, "lexists", lambda path: False)
    assert text_of(identity.load_identity(folder)) == text_of(first)
    assert (folder / identity.FILE).read_bytes() == pem_of(first)
    assert stat.S_IMODE((folder / identity.FILE).stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == [identity.FILE]


def test_a_key_that_cannot_be_written_leaves_nothing(folder, monkeypatch):
    def refuse(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PartyError, match="read or created: No space left on device"):
        identity.load_identity(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no key",
        pem_of(X25519PrivateKey.generate()),
        pem_of(PRIVATE[0], serialization.BestAvailableEncryption(b"password")),
        pem_of(PRIVATE[0])[:-40],
    ],
    ids=["empty", "text", "X25519", "password", "cut"],
)
def test_a_file_without_a_key_is_refused_and_stays(folder, data):
    put(folder, data)
    with pytest.raises(PartyError, match="must hold an Ed25519 key without a password"):
        identity.load_identity(folder)
    assert (folder / identity.FILE).read_bytes() == data


def test_what_others_may_read_is_refused(folder):
    put(folder, pem_of(PRIVATE[0]), 0o640)
    with pytest.raises(PartyError, match=r"only its owner may read .*got mode 640"):
        identity.load_identity(folder)
    folder.chmod(0o755)
    with pytest.raises(PartyError, match="mode 755"):
        identity.load_identity(folder)


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_what_is_no_file_is_refused(folder, tmp_path, kind):
    path = folder / identity.FILE
    if kind == "pipe":
        os.mkfifo(path, 0o644)
    elif kind == "folder":
        path.mkdir()
    else:
        target = tmp_path / "elsewhere.pem"
        if kind == "link":
            target.write_bytes(pem_of(PRIVATE[0]))
            target.chmod(0o600)
        path.symlink_to(target)
    with pytest.raises(PartyError, match=r"identity\.pem in this party's state-dir"):
        identity.load_identity(folder)


# -- what is signed, and how a message holds it ----------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *({"name": "b"}, {"name": ""}, {"index": 1}, {"index": -1}, {"n_parties": 2}),
        *({"public_key": OF_RUN[1]}, {"identity": LISTED[1].identity}),
        *({"identity": keys.NO_IDENTITY}, {"signature": LISTED[1].signature}),
        *({"signature": bytes(64)}, {"signature": b""}),
    ],
)
def test_each_part_and_the_run_are_signed(change):
    assert LISTED[0].verify(SESSION)
    assert not LISTED[0].verify(SESSION + 1)
    assert not dataclasses.replace(LISTED[0], **change).verify(SESSION)


def test_the_key_of_no_party_signs_nothing():
    """Zeros are a point of order 4: a quarter of all texts would verify."""
    empty = identity.Credential("a", 0, 3, OF_RUN[0])
    assert not any(empty.verify(session) for session in range(50))


def test_the_statement_stays_the_same():
    """Another one would end the runs of parties of two versions: change _DOMAIN."""
    told = identity._encoded(identity._DOMAIN, 7, b"\x01\x02", "é", -1, 3)
    assert told == (
        b"\0\0\0\x15vfl_flower identity 1\0\0\0\x017\0\0\0\x02\x01\x02"
        b"\0\0\0\x02\xc3\xa9\0\0\0\x02-1\0\0\0\x013"
    )


def test_a_party_says_what_it_knows(folder):
    party = Party(np.ones((2, 1)), state_dir=folder)
    said, again = (identity.credential_of(party, SESSION, OF_RUN[0]) for _ in "ab")
    assert (said.name, said.index, said.n_parties) == ("", -1, 0)
    assert said == again  # to compare with later
    with pytest.raises(PartyError, match="state-dir must be set"):
        identity.credential_of(Party(np.ones((2, 1))), SESSION, OF_RUN[0])


CREDENTIALS = st.lists(
    st.builds(
        identity.Credential,
        st.text(max_size=100).filter(str.isprintable),
        st.integers(-1, 2**40),
        st.integers(0, 2**40),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=64, max_size=64),
    ),
    max_size=5,
)


@settings(max_examples=30)
@given(CREDENTIALS)
def test_packed_and_back(credentials):
    peers = b"".join(c.public_key for c in credentials)
    packed = identity.pack_credentials(credentials)
    assert identity.parse_credentials(packed, peers) == credentials


PACKED = identity.pack_credentials(LISTED)
INDEX, NAME = b"\0\0\0\x010", b"\0\0\0\x01a"


@pytest.mark.parametrize(
    "packed",
    [
        *(b"", PACKED[:-1], PACKED + b"\0", PACKED + b"\0\0\0\0", PACKED * 2),
        *(PACKED.replace(INDEX, new) for new in (b"\0\0\0\x0200", b"\0\0\0\x01x")),
        *(PACKED.replace(NAME, b"\0\0\0\x01" + new) for new in (b"\xff", b"\n")),
        PACKED.replace(NAME, b"\0\0\0\x65" + b"a" * 101),
        b"\xff" * len(PACKED),
    ],
)
def test_malformed_credentials(packed):
    assert packed != PACKED
    with pytest.raises(ContractError, match="'credentials' must hold one credential"):
        identity.parse_credentials(packed, KEYS)


# -- whom a party refuses, which runs, and which lists of keys -------------------------


def check(credentials=LISTED, place=PLACE, pinned=PINNED, trust=False, known=()):
    consent = Consent(peers=pinned, trust_on_first_use=trust)
    given = SESSION, place, LISTED[PLACE], consent, dict(known)
    return identity.check_listed(credentials, *given)


def other(j, **change):
    c = dataclasses.replace(LISTED[j], **change)
    return [*LISTED[:j], c.signed(PRIVATE[j], SESSION), *LISTED[j + 1 :]]


def altered(j, **change):
    return [*LISTED[:j], dataclasses.replace(LISTED[j], **change), *LISTED[j + 1 :]]


def test_pinned_peers_are_accepted():
    assert check() == {}
    assert check(pinned={"a": PINNED["a"], "c": PINNED["c"], "d": PINNED["b"]}) == {}
    assert check(other(0, n_parties=7)) == {}


def test_parties_without_an_index_stand_by_name():
    listed = [other(j, index=-1, n_parties=0)[j] for j in range(3)]
    given = SESSION, 1, listed[1], Consent(peers=PINNED), None
    assert identity.check_listed(listed, *given) == {}
    with pytest.raises(PartyError, match="order of their names, but 'b' follows 'c'"):
        identity.check_listed(listed[::-1], *given)


OWN = "does not contain this party's own credential"
FORGED = "signature of party 'a' is not valid"


def signed_by(signer, j):
    c = identity.Credential(NAMES[j], j, 3, OF_RUN[j]).signed(PRIVATE[signer], SESSION)
    return [*LISTED[:j], c, *LISTED[j + 1 :]]


REFUSED = {
    "own key of the run": (altered(PLACE, public_key=bytes(32)), OWN),
    "own name": (altered(PLACE, name="bb"), OWN),
    "own number of parties": (altered(PLACE, n_parties=2), OWN),
    "own identity": (altered(PLACE, identity=LISTED[0].identity), OWN),
    "own place": ([LISTED[1], LISTED[0], LISTED[2]], OWN),
    "left out": ([LISTED[0], LISTED[2]], OWN),
    "nobody": ([], OWN),
    "key of the run": (altered(0, public_key=bytes(32)), FORGED),
    "number of parties": (altered(0, n_parties=2), FORGED),
    "signature": (altered(0, signature=LISTED[1].signature), FORGED),
    "no identity": (
        altered(0, identity=keys.NO_IDENTITY),
        "'a' must have a long-term key",
    ),
    "a new name": (other(2, name="d"), "party 'd' must be pinned"),
    "no name": (other(2, name=""), "the party at position 2 has none"),
    "one name": (other(2, name="a"), "names must differ, got 'a' twice"),
    "own name twice": (other(2, name="b"), "names must differ, got 'b' twice"),
    "one identity": (signed_by(0, 2), "but 'a' and 'c' have the same"),
    "own identity twice": (signed_by(1, 2), "but 'b' and 'c' have the same"),
    "one key": (other(2, public_key=OF_RUN[0]), "but 'a' and 'c' have the same"),
    "another key": (signed_by(2, 0)[:2], "must be the key that is pinned, but it is"),
    "order": (other(0, index=2), "in the order of their indices, but 'b' follows 'a'"),
    "one index": (other(2, index=1), "indices, but 'c' follows 'b'"),
    "no index": (other(0, index=-1), "some parties have an index, but 'a' has none"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("trust", [False, True])
def test_refused(case, trust):
    credentials, reason = REFUSED[case]
    if case == "a new name" and trust:
        assert list(check(credentials, trust=True)) == ["d"]
        return
    with pytest.raises(PartyError, match=reason):
        check(credentials, trust=trust)


def test_another_place_or_own_key_is_refused():
    for place in (-2, -1, 0, 2, 3):
        with pytest.raises(PartyError, match=f"credential at position {place}"):
            check(place=place)
    with pytest.raises(PartyError, match=f"the key in this party's .*{PINNED['b']}"):
        check(pinned=PINNED | {"b": PINNED["a"]})


def test_trust_on_first_use():
    pinned = {"a": PINNED["a"]}
    new = check(pinned=pinned, trust=True)
    assert new == {"c": PINNED["c"]}
    assert check(pinned=pinned, trust=True, known=new) == {}
    with pytest.raises(PartyError, match="'c' must be the key that was trusted"):
        check(pinned=pinned, trust=True, known={"c": PINNED["b"]})
    with pytest.raises(PartyError, match="'c' must be pinned"):
        check(pinned=pinned, known=new)  # without the flag only what is pinned counts
    changed = {"c": PINNED["b"]}  # what is pinned counts more
    assert check(pinned=PINNED, trust=True, known=changed) == {}
    assert "c" not in pinned


FRAME = Frame(SESSION, 3, True, "ring", round=2, previous=1, parties=3, index=PLACE)


@pytest.mark.parametrize(
    ("change", "allowed", "reason"),
    [
        ({}, {}, ""),
        ({"parties": 2}, {"two_parties": True}, ""),
        ({"private_draws": False}, {"allow_seed": True}, ""),
        ({"parties": 2}, {}, "at least 3 parties .*, but this run has 2"),
        ({"parties": 3}, {"min_parties": 4}, "at least 4 parties"),
        ({"parties": 1}, {"two_parties": True}, "at least 2 parties"),
        ({"private_draws": False}, {}, "a run with a seed is refused.*allow-seed"),
        ({"peers": KEYS}, {}, "must forward the parties' signatures"),
        ({"peers": KEYS, "credentials": b"x"}, {}, "'credentials' must hold"),
    ],
)
def test_a_run_with_and_without_consent(change, allowed, reason):
    """Also in a later message, which brings no keys."""
    party = Party(np.ones((2, 1)), name="b", index=PLACE)
    given = dataclasses.replace(FRAME, **change), party, bytes(32)
    consent = Consent(peers=PINNED, **allowed)
    if not reason:
        identity.check_run(*given, consent, None)
        return
    with pytest.raises((PartyError, ContractError), match=reason):
        identity.check_run(*given, consent, Journal())


@pytest.mark.parametrize("noted", [False, True])
def test_without_a_journal_nobody_is_trusted_on_first_use(folder, noted, caplog):
    """It would be the first use each time."""
    party = Party(np.ones((2, 1)), name="b", index=PLACE, state_dir=folder)
    party.n_parties = 3
    private = keys.new_private_key()
    own = identity.credential_of(party, SESSION, keys.public_key(private))
    listed = [LISTED[0], own, LISTED[2]]
    peers = b"".join(c.public_key for c in listed)
    frame = dataclasses.replace(
        FRAME, peers=peers, credentials=identity.pack_credentials(listed)
    )
    journal = Journal() if noted else None
    agreed = Consent(peers={}, trust_on_first_use=True)
    if noted:
        identity.check_run(frame, party, private, agreed, journal)
        assert journal.trusted == {"a": PINNED["a"], "c": PINNED["c"]}
        assert f"'c' is trusted on first use with key {PINNED['c']}" in caplog.text
    else:
        with pytest.raises(PartyError, match="'a' must be pinned"):
            identity.check_run(frame, party, private, agreed, journal)


def test_each_party_signs_the_list_of_keys(tmp_path):
    packed, signatures = identity.pack_credentials(LISTED), []
    for name, private in zip(NAMES, PRIVATE, strict=True):
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        put(folder, pem_of(private))
        party = Party(np.ones((2, 1)), name=name, state_dir=folder)
        signatures.append(identity.sign_list(party, SESSION, KEYS, packed))
    identity.check_list(b"".join(signatures), SESSION, KEYS, packed)
    for signed, session, missing in (
        (signatures[:2], SESSION, "c"),
        (signatures[::-1], SESSION, "a"),
        (signatures, SESSION + 1, "a"),
    ):
        with pytest.raises(PartyError, match=f"'{missing}' has not signed the list"):
            identity.check_list(b"".join(signed), session, KEYS, packed)
