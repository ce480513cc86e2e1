"""What a server gains that gives a party other peers than those it expects.

The masks of a party hide its addend among those of its peers. A server that plays the
peers itself takes the masks off again. The parties are real ones, with a ``state-dir``.
"""

import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from consents import distances
from deviating import RealParties

from vfl_flower import Party, PartyFailed
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.party import guards
from vfl_flower.party.consent import ALLOW_ALL, Consent, Limit
from vfl_flower.party.identity import load_identity, pack_credentials, parse_credentials
from vfl_flower.party.journal import FILE, journal_of
from vfl_flower.protocol.frame import Frame
from vfl_flower.secure_aggregation.keys import encode_key, new_private_key, public_key
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties

VICTIM = 1
pytestmark = pytest.mark.usefixtures("careless")
N = 40


def text_of(folder):
    return encode_key(load_identity(folder).public_key().public_bytes_raw())


def party(folder, name, seed=0):
    X = np.random.default_rng(seed).normal(size=(N, 2))
    return Party(X, name=name, state_dir=folder / name)


@pytest.fixture
def honest(tmp_path):
    """Return three parties."""
    return [party(tmp_path, name, seed) for seed, name in enumerate("abc")]


def consent(honest, **changes):
    """Return the consent of a party whose peers are the honest ones."""
    peers = {other.name: text_of(other.state_dir) for other in honest}
    return Consent(**{"leaves": ALLOW_ALL.leaves, "peers": peers} | changes)


def greet(parties):
    return Parties(Exchange(RealParties(parties)))


def kept(asked, place=VICTIM):
    """Return what a party keeps of the run."""
    return asked.grid._contexts[1000 + place].state


@pytest.fixture
def computing(monkeypatch):
    """Return the places of the parties that have begun to compute."""
    places = []
    sums = guards.PartySums

    def begun(private_key, public_keys, frame, *rest):
        places.append(frame.index)
        return sums(private_key, public_keys, frame, *rest)

    monkeypatch.setattr(guards, "PartySums", begun)
    return places


def refused(asked, computing, reason):
    """Check that the victim refuses, has computed nothing and keeps no keys."""
    with pytest.raises(PartyFailed, match=reason) as caught:
        distances(asked, 20)
    assert caught.value.party == "b"
    assert VICTIM not in computing
    assert {"peers", "seed"}.isdisjoint(kept(asked)["session"])
    assert kept(asked)["session"]["round"] == 0


# -- peers that the server plays -------------------------------------------------------


def played(tmp_path, victim, n_parties):
    """Return the victim among parties that the server plays, under their names."""
    folder, zeros = tmp_path / "server", np.zeros((N, 2))
    parties = [Party(zeros, name=name, state_dir=folder / name) for name in "abc"]
    parties[VICTIM] = victim
    return parties[:n_parties]


@pytest.mark.parametrize("n_parties", [2, 3])
def test_a_server_that_plays_the_peers_has_the_addend(honest, tmp_path, n_parties):
    """Without consent nobody is checked: the error is that of the fixed point."""
    victim = honest[VICTIM]
    seen = distances(greet(played(tmp_path, victim, n_parties)), 20)
    truth = (victim.X[:20] ** 2).sum(axis=1)
    assert np.abs(seen - truth).max() / np.abs(truth).max() < 1e-9


@pytest.mark.parametrize("n_parties", [2, 3])
def test_it_has_nothing_where_peers_are_pinned(honest, tmp_path, computing, n_parties):
    victim = honest[VICTIM]
    victim.consent = consent(honest, two_parties=True)
    asked = greet(played(tmp_path, victim, n_parties))
    refused(asked, computing, "key of party 'a' must be the key that is pinned")


def test_pinned_peers_are_accepted(honest):
    """Or the tests here would show nothing."""
    for one in honest:
        one.consent = consent(honest)
    asked = greet(honest)
    truth = sum((one.X**2).sum(axis=1) for one in honest)
    np.testing.assert_allclose(distances(asked, 20), truth[:20], atol=1e-9)
    np.testing.assert_allclose(distances(asked, 40, 20), truth[20:], atol=1e-9)


# -- what the server alters on the way -------------------------------------------------


@pytest.fixture
def swapping(monkeypatch):
    """Put the server's own key under the signature of a peer."""
    pack = Frame.pack

    def packed(self):
        told = pack(self)
        if self.index == VICTIM and "peers" in told:
            first, *others = parse_credentials(told["credentials"], told["peers"])
            key = public_key(new_private_key())
            swapped = [replace(first, public_key=key), *others]
            told["credentials"] = pack_credentials(swapped)
            told["peers"] = b"".join(c.public_key for c in swapped)
        return told

    monkeypatch.setattr(Frame, "pack", packed)


@pytest.mark.usefixtures("swapping")
def test_a_swapped_key_is_refused_and_leaves_no_keys(honest, computing):
    """Other alterations: tests/party/test_identity.py. The second was answered."""
    honest[VICTIM].consent = consent(honest)
    asked = greet(honest)
    refused(asked, computing, "signature of party 'a' is not valid")
    asked._last[VICTIM] = 0
    asked._peers, asked._credentials = None, None
    refused(asked, computing, "and lost the run's keys")


# -- later messages --------------------------------------------------------------------


REPLAYED = {"missing": None, "zeros": bytes(64), "of another list": b"earlier"}


@pytest.mark.parametrize("signature", REPLAYED.values(), ids=REPLAYED)
def test_a_hello_that_is_replayed_ends_at_the_second_message(honest, signature):
    """The peer 'c' has lost its key of the session and answers no step."""
    honest[VICTIM].consent = consent(honest)
    if signature == b"earlier":
        earlier = greet(honest)
        distances(earlier, 20)
        signature = earlier._signed[2]
    asked = greet(honest)
    question = {"test_fraction": 0.0, "labels": False}
    rows = np.arange(20, dtype=np.uint32)
    for place in (0, VICTIM):
        asked.ask_one(place, coresets.pooled_rows, rows=rows, **question)
    if signature is not None:
        asked._signed[2] = signature
    with pytest.raises(PartyFailed, match="has not signed the list of the parties'"):
        asked.ask_one(VICTIM, coresets.pooled_rows, rows=rows + 20, **question)


# -- trust on first use ----------------------------------------------------------------


def trusted(party):
    with journal_of(party.state_dir, 0) as journal:
        return journal.trusted


def test_a_key_that_is_trusted_on_first_use_stays(honest, tmp_path, computing):
    victim = honest[VICTIM]
    victim.consent = consent(honest, peers={}, trust_on_first_use=True)
    first = {one.name: text_of(one.state_dir) for one in honest if one is not victim}
    distances(greet(honest), 20)
    assert trusted(victim) == first
    distances(greet(honest), 20)
    computing.clear()
    honest[0] = party(tmp_path / "server", "a", 0)
    refused(greet(honest), computing, "'a' must be the key that was trusted on f")
    assert trusted(victim) == first


def test_a_refused_message_trusts_nobody(honest):
    """Neither the journal nor the run's memory: the next message checks again."""
    victim = honest[VICTIM]
    few = {"rows": Limit(5)}
    victim.consent = consent(honest, peers={}, trust_on_first_use=True, leaves=few)
    asked = greet(honest)
    with pytest.raises(PartyFailed, match="consent allows at most 5 rows"):
        distances(asked, 20)
    assert trusted(victim) == {}
    assert "peers" not in kept(asked)["session"]


def test_a_journal_of_before_there_were_peers(honest):
    """It lacks their table."""
    victim = honest[VICTIM]
    victim.consent = consent(honest, peers={}, trust_on_first_use=True)
    trusted(victim)
    with closing(sqlite3.connect(victim.state_dir / FILE)) as db:
        db.execute("DROP TABLE peers")
    distances(greet(honest), 20)
    assert set(trusted(victim)) == {"a", "c"}
