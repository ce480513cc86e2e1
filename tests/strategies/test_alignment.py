"""The parties agree on the rows that all hold, and nobody learns of another id."""

import functools
import hashlib
import secrets

import numpy as np
import pytest
from deviating import RealParties
from faults import Changed
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import is_uniform

import vfl_flower as vf
from vfl_flower import Alignment, FederationError, Party, PartyFailed
from vfl_flower.clients import alignment as client
from vfl_flower.party.party import PartyError
from vfl_flower.party.row_order import load_order, normal_ids
from vfl_flower.protocol.seals import Seal, Sealed
from vfl_flower.secure_aggregation.points import encrypt, hash_ids, hash_to_point
from vfl_flower.server import strategy as frame
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid
from vfl_flower.testing import Recorder

SECRET = bytes(range(32))


def party(ids, name=None, **given) -> Party:
    X = np.arange(2.0 * len(ids)).reshape(-1, 2)
    return Party(X, ids=np.array(ids, dtype=object), name=name, **given)


def parties(*lists, folder=None) -> list[Party]:
    """Return a party for each list of ids; with a folder, each with a state-dir."""
    made = []
    for j, ids in enumerate(lists):
        state_dir = None
        if folder is not None:
            state_dir = folder / f"p{j}"
            state_dir.mkdir(mode=0o700)
            (state_dir / client.KEY_FILE).touch(mode=0o600)
            (state_dir / client.KEY_FILE).write_bytes(SECRET)
        made.append(party(ids, f"p{j}", state_dir=state_dir))
    return made


# -- exact -----------------------------------------------------------------------------

IDS = st.one_of(
    st.lists(st.integers(-3, 9), min_size=1, unique=True),
    st.lists(st.sampled_from([*"079aAäx", "7.0"]), min_size=1, unique=True),
)


@pytest.mark.second
@given(st.lists(IDS, min_size=2, max_size=5))
@settings(max_examples=30)
def test_as_pythons_sets(lists):
    federation = parties(*lists)
    sets = [{str(one) for one in ids} for ids in lists]
    common = set.intersection(*sets)
    if not common:
        with pytest.raises(FederationError, match="no id is held by all"):
            vf.simulate(Alignment("q4"), federation)
        return
    result = vf.simulate(Alignment("q4"), federation)
    pairs = zip(federation, result.model.rows_, strict=True)
    orders = [list(map(str, member.take(rows).ids.tolist())) for member, rows in pairs]
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == sorted(common)
    assert result.metrics == {"common": len(common)}
    for places in [(0,), (0, 1), tuple(range(len(lists)))]:
        expected = set.intersection(*(sets[j] for j in places))
        assert result.model.n_shared(*places) == len(expected)


def test_a_party_that_writes_ids_in_another_way_is_a_warning():
    """Only sizes are compared, and parties that overlap alike are no warning."""
    ids = [f"AB{k}" for k in range(40)]
    other = [text.lower() if k % 3 == 0 else text for k, text in enumerate(ids)]
    (warning,) = vf.simulate(Alignment("q4"), parties(ids, other, ids)).warnings
    assert "at most 65% of the ids of 'p1' overlap with another party's" in warning
    assert "ids, while the ids of two other parties overlap by 100%" in warning
    assert not vf.simulate(Alignment("q4"), parties(ids, ids[9:], ids[:33])).warnings
    assert not vf.simulate(Alignment("q4"), parties(ids, other)).warnings


@pytest.mark.parametrize("method", ["ecdh", "keyed"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_round_trips_bytes_and_files(method, count, tmp_path):
    lists = [[f"r{k}" for k in range(40) if k % (j + 7)] for j in range(count)]
    federation = parties(*lists, folder=tmp_path)
    result = vf.simulate(Alignment("2026-q4", method=method), federation)
    # Greeting, the lists, T - 1 passes, and the order.
    assert result.ledger.round_trips == (2 + count if method == "ecdh" else 3)
    entries = result.ledger.entries.items()
    up = sum(e.units_up for (a, _), e in entries if a != "alignment_keep_order")
    lengths = sum(map(len, lists))
    # 32 bytes a point and a pass, and 16 for each seal.
    sealed = 16 * count * (count - 1)
    assert up == (32 * count * lengths + sealed if method == "ecdh" else 32 * lengths)
    orders = [load_order(p.state_dir, "2026-q4") for p in federation]
    assert {order.tag for order in orders} == {result.model.tag}
    for member, rows, order in zip(federation, result.model.rows_, orders, strict=True):
        np.testing.assert_array_equal(order.rows(member.ids), rows)
    # Nobody could test an id by what one party keeps of another: salts differ.
    assert len({order.salt for order in orders}) == count
    assert len({order.ids.tobytes() for order in orders}) == count


def test_an_order_is_never_replaced(tmp_path):
    federation = parties(["a", "b"], ["b", "a"], folder=tmp_path)
    tag = vf.simulate(Alignment("q4"), federation, seed=1).model.tag
    with pytest.raises(PartyFailed, match="'q4' already exists at this party"):
        vf.simulate(Alignment("q4"), federation, seed=1)
    other = vf.simulate(Alignment("q5"), federation, seed=1).model.tag
    assert other != tag  # keys are new, whatever the seed
    assert load_order(federation[0].state_dir, "q4").tag == tag


# -- who learns what -------------------------------------------------------------------

SPACE = [f"id-{k:03}" for k in range(300)]
"""All ids that there could be, few enough to try each."""


def own_lists(count=3, size=120):
    rng = np.random.default_rng(12)
    return [rng.choice(SPACE, size, replace=False).tolist() for _ in range(count)]


def points_of(ids, *keys):
    """Return what an attacker makes of guesses: points, under keys that it knows."""
    hashed = hash_ids(normal_ids(ids))
    if not keys:
        return [hash_to_point(bytes(row)) for row in hashed]
    made = encrypt(hashed, keys[0], hashed=True)
    for key in keys[1:]:
        made = encrypt(made, key)
    return [bytes(row) for row in made]


def found(seen: set[bytes], *keys) -> list[str]:
    """Return the ids of the space whose points an attacker finds in what it sees."""
    pairs = zip(SPACE, points_of(SPACE, *keys), strict=True)
    return [one for one, point in pairs if point in seen]


class Watched:
    """What each party is given by another, and the keys of all, for the tests alone."""

    def __init__(self, monkeypatch) -> None:
        self.given: dict[int, list[bytes]] = {}
        self.keys: dict[int, bytes] = {}
        own_key, more = client._key, client.encrypt_points.function

        def key(member, purpose):
            made = own_key(member, purpose)
            if purpose == "points":
                self.keys[member.index] = made
            return made

        @functools.wraps(more)
        def encrypt_points(member, points):
            self.given.setdefault(member.index, []).append(points)
            return more(member, points)

        monkeypatch.setattr(client, "_key", key)
        monkeypatch.setattr(client.encrypt_points, "function", encrypt_points)

    def seen(self, j: int) -> set[bytes]:
        """Return the points that a party is given."""
        return {
            data[k : k + 32] for data in self.given[j] for k in range(0, len(data), 32)
        }


@pytest.mark.parametrize("count", [2, 3])
def test_no_id_is_found_by_trying_each(count, monkeypatch):
    """By the server, and by each party with its own key.

    Neither can succeed by chance: two of 2^252 points are equal. The same attackers
    find every id with the keys that they lack, so that the test can fail.
    """
    watched, lists = Watched(monkeypatch), own_lists(count)
    grid = Recorder(parties(*lists))
    Alignment("q4").start(grid)
    seen = {bytes(p) for e in grid.transcript for p in e.values.get("encrypted", ())}
    assert len(seen) == len(set().union(*lists))
    assert found(seen) == []
    assert sorted(found(seen, *watched.keys.values())) == sorted(set().union(*lists))
    for j, own in watched.keys.items():
        sees = watched.seen(j)
        assert found(sees) == found(sees, own) == found(sees, own, own) == []
        before = watched.keys[(j - 1) % count]
        assert sorted(found(sees, before)) == sorted(lists[(j - 1) % count])
        # Together with the server, but without the key of another party.
        assert found(seen | sees, own) == []


def test_nothing_tells_points_from_random_ones(monkeypatch):
    """Each byte of points, by chi-square; and whether a list keeps its order.

    False-alarm rate 1e-9 for bytes, 2e-9 for the order of each list (6 standard
    deviations of the rank correlation of 600 random ones).
    """
    watched = Watched(monkeypatch)
    lists = [[f"x{k:04}" for k in range(600)], [f"x{k:04}" for k in range(300, 900)]]
    grid = Recorder(parties(*lists))
    result = Alignment("q4").start(grid)
    (first,) = watched.given[1]
    points = np.frombuffer(first, dtype=np.uint8).reshape(-1, 32)
    assert is_uniform(points[:, :31])  # the last byte has a bit that is always 0
    where = {point: k for k, point in enumerate(points_of(lists[0], watched.keys[0]))}
    places = [where[bytes(row)] for row in points]
    assert abs(np.corrcoef(places, np.arange(600))[0, 1]) < 6 / np.sqrt(600)
    # The common order is no order of ids either.
    rows = [m.remembered("rows") for m in grid.memories()]
    assert result.metrics == {"common": 300}
    assert abs(np.corrcoef(rows[0], np.arange(300))[0, 1]) < 6 / np.sqrt(300)


def test_the_transcript():
    """No message has an id; `check_masks` sees that the points are sealed."""
    grid = Recorder(parties(*own_lists()))
    Alignment("q4").start(grid)
    for entry in grid.transcript:
        assert not any(one.encode() in entry.data for one in SPACE)
        if entry.up and "points" in entry.values:
            assert entry.values["points"].shape == (32 * 120 + 16,)
        if entry.action == "hello" and entry.up:
            # A digest of ids would let the server test a guess of all.
            assert (entry.values["ids_digest"], entry.values["columns"]) == ("", [])


def test_keyed_hashes_hide_ids_from_whoever_lacks_the_key_alone(tmp_path):
    """The server's brute force fails; whoever has its messages and the key succeeds."""
    lists = own_lists()
    grid = Recorder(parties(*lists, folder=tmp_path))
    Alignment("q4", method="keyed").start(grid)
    hashed = [e for e in grid.transcript if "hashes" in e.values]
    seen = {bytes(row) for e in hashed for row in e.values["hashes"]}
    asked = [e for e in grid.transcript if "salt" in e.values]
    keys = hashlib.sha256(asked[0].frame["peers"]).digest()
    salts = [b"vfl_flower keyed ids 1", asked[0].values["salt"], keys]

    def tried(key):
        made = client.keyed_hashes(normal_ids(SPACE), client.derive_key(key, salts))
        pairs = zip(SPACE, made, strict=True)
        return sorted(one for one, row in pairs if bytes(row) in seen)

    assert tried(bytes(32)) == []
    assert tried(SECRET) == sorted(set().union(*lists))


# -- whoever deviates ------------------------------------------------------------------


def deviating(monkeypatch, tamper):
    """Run with a server that changes requests, and return the refusal."""

    class Deviating(Parties):
        def _round_trip(self, step, requests, *rest):
            told = {
                j: tamper(self, step.action, j, dict(v)) for j, v in requests.items()
            }
            return super()._round_trip(step, told, *rest)

    monkeypatch.setattr(frame, "Parties", Deviating)
    with pytest.raises(PartyFailed) as caught:
        Alignment("q4").start(RealParties(parties(*own_lists())))
    return caught.value


OWN, MORE, KEEP = (
    f"alignment_{name}" for name in ("encrypt_ids", "encrypt_points", "keep_order")
)


def changing(action, place, **changes):
    """Return what changes values of a request to the party at a place."""

    def tamper(parties, asked, j, values):
        return values | changes if (asked, j) == (action, place) else values

    return tamper


def test_the_server_cannot_choose_points(monkeypatch):
    """The attack: guesses in place of a list would come back under a party's key.

    With them the server could find each guess in that party's own list. Parties take
    points from a party alone, so it has no way to ask.
    """
    guesses = np.frombuffer(b"".join(points_of(SPACE[:120])), dtype=np.uint8)
    failed = deviating(monkeypatch, changing(MORE, 1, points=guesses))
    assert (failed.party, failed.action) == ("p1", MORE)
    assert "'points' must come, encrypted, from" in failed.reason


def test_the_server_cannot_seal_points_itself(monkeypatch):
    def tamper(parties, action, j, values):
        if action == MORE and j == 1:
            data = secrets.token_bytes(32 * 120 + 16)
            seal = Seal("secret", OWN, "points", parties._round, 0)
            part = np.frombuffer(data, dtype=np.uint8)
            values["points"] = Sealed(1, (part,), (seal,))
        return values

    failed = deviating(monkeypatch, tamper)
    assert failed.party == "p1"
    assert "altered in transit" in failed.reason


def test_a_list_is_encrypted_once(monkeypatch):
    """A list of an earlier round trip would show the keys of some parties alone."""
    kept = {}

    def tamper(parties, action, j, values):
        if action == MORE:
            values["points"] = kept.setdefault(j, values["points"])
        return values

    failed = deviating(monkeypatch, tamper)
    assert failed.action == MORE
    assert "in the previous round trip" in failed.reason


def test_a_step_more_than_there_are_lists():
    """Nobody sends a party such a list, since the last ones go to the server."""
    member = party(["a", "b"])
    member.index, member.n_parties, member.run_secret = 0, 2, bytes(32)
    made = client.encrypt_ids(member, [2, 2])["points"]
    assert client.encrypt_points(member, made).keys() == {"encrypted"}
    with pytest.raises(PartyError, match="has already encrypted every other"):
        client.encrypt_points(member, made)


def encrypt_ids(parties):
    parties.ask(client.encrypt_ids, sizes=[120] * 3)


def hash_with_key(parties):
    """Under another salt: who has the key needs no second list."""
    parties.ask(client.hash_with_key, salt=bytes(16), sizes=[120] * 3)


def keep_rows(parties):
    """Another order would take the place of the one that was agreed on."""
    given = {"positions": np.arange(3), "tag": bytes(32)}
    parties.ask(client.keep_order, alignment="q4", **given)


@pytest.mark.parametrize(
    ("method", "again"),
    [("ecdh", encrypt_ids), ("keyed", hash_with_key), ("ecdh", keep_rows)],
)
def test_each_step_of_ids_is_answered_once_in_a_run(method, again, tmp_path):
    class Deviating(Alignment):
        def protocol(self, parties, run):
            super().protocol(parties, run)
            again(parties)

    grid = RealParties(parties(*own_lists(), folder=tmp_path))
    with pytest.raises(PartyFailed, match="may be requested only once in a session"):
        Deviating("q4", method=method).start(grid)


def test_keys_of_a_run_differ_by_their_purpose():
    """The salt of the order lies in a file: it must tell nothing of the other keys."""
    member = party(["a", "b"])
    member.run_secret = bytes(32)
    purposes = ["points", "shuffle", "ids", "order"]
    assert len({client._key(member, purpose) for purpose in purposes}) == 4


SIZES = "sizes must list each party's number of ids, from 1 to"


@pytest.mark.parametrize(
    ("action", "name", "values", "rule"),
    [
        (OWN, "sizes", [], SIZES),
        (OWN, "sizes", [120, 120], SIZES),
        (OWN, "sizes", [120, 119, 120], SIZES),
        (OWN, "sizes", [120, 120, 0], SIZES),
        (OWN, "sizes", [120, 120, client.MOST_IDS + 1], SIZES),
        (KEEP, "positions", [*range(20), 0], "positions must not contain a row twice"),
        (KEEP, "positions", [], "at least 20 rows in common, got 0"),
        (KEEP, "positions", [*range(19)], "at least 20 rows in common, got 19"),
        (KEEP, "positions", [120], "below 120"),
    ],
)
def test_a_request_that_cannot_be(action, name, values, rule, monkeypatch):
    if name == "positions":
        values = np.array(values, dtype=np.int64)
    failed = deviating(monkeypatch, changing(action, 1, **{name: values}))
    assert failed.party == "p1"
    assert rule in failed.reason


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda data: data[:-32], "must have 120 points of 32 bytes each, got 3808 "),
        (lambda data: data + bytes(1), "must have 120 points .* got 3841 bytes"),
        (lambda data: bytes(32) + data[32:], "must have no small-order points"),
    ],
)
def test_a_party_that_sends_another_list(change, rule, monkeypatch):
    whole = client.encrypt_ids.function

    @functools.wraps(whole)  # its annotations are the contract of the step
    def encrypt_ids(member, sizes):
        made = whole(member, sizes)
        return {"points": change(made["points"])} if member.index == 0 else made

    monkeypatch.setattr(client.encrypt_ids, "function", encrypt_ids)
    with pytest.raises(PartyFailed, match=f"position 0 {rule}") as caught:
        Alignment("q4").start(InProcessGrid(parties(*own_lists())))
    assert caught.value.party == "p1"


def test_a_party_that_repeats_a_point():
    def change(replies):
        if "encrypted" in replies[0]:
            points = replies[0]["encrypted"]
            replies[0]["encrypted"] = np.repeat(points[:1], len(points), axis=0)

    with pytest.raises(FederationError, match="'p1' repeats a point, but must"):
        Alignment("q4").start(Changed(parties(*own_lists()), MORE, change))


def test_an_order_before_all_have_encrypted():
    class Deviating(Alignment):
        def protocol(self, parties, run):
            encrypt_ids(parties)
            keep_rows(parties)

    with pytest.raises(PartyFailed, match="not all parties have encrypted the lists"):
        Deviating("q4").start(RealParties(parties(*own_lists())))


class Sorted:
    """Ids of a file that another program sorts the other way before each reading."""

    def __init__(self, ids):
        self.ids = ids

    def read_ids(self):
        """Return the ids in the order that the file now has."""
        self.ids = self.ids[::-1]
        return self.ids

    def drop_cache(self):
        """Have no copy."""


def test_ids_in_another_order_than_before(tmp_path):
    """The order would be of other rows: what the party told of its ids is the same."""
    federation = parties(*own_lists(), folder=tmp_path)
    changed = federation[1]
    changed.source = Sorted(changed.ids.tolist())
    with pytest.raises(PartyFailed, match="changed during the alignment") as caught:
        Alignment("q4").start(RealParties(federation))
    assert caught.value.party == "p1"
    assert not list(changed.state_dir.glob("alignment-*"))


def test_a_party_that_claims_all_ids_learns_the_other_list():
    """What no intersection prevents, and the guide says; its size is in the logs."""
    honest = own_lists(1)[0]
    federation = parties(honest, SPACE)
    model = vf.simulate(Alignment("q4"), federation).model
    assert sorted(federation[1].take(model.rows_[1]).ids.tolist()) == sorted(honest)


def test_the_sizes_of_all_lists_are_in_the_log_of_a_party(caplog):
    vf.simulate(Alignment("q4"), parties(["a"], ["a", "b"]))
    assert caplog.text.count("numbers of ids in the lists to align: 1, 2") == 2


# -- refusals --------------------------------------------------------------------------


def test_ids_that_a_party_refuses():
    """A file is read at each step. Other rules: tests/party/test_row_order.py."""
    bad = party([*"abc"], "p1")
    bad.ids = np.array(["a", "a ", "b"])
    with pytest.raises(PartyFailed, match="got 1 repeated") as caught:
        vf.simulate(Alignment("q4"), [party(["a"], "p0"), bad])
    assert caught.value.party == "p1"


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("alignment", text) for text in ("../q4", "a b", "x" * 65)), ("n_parties", 1)],
)
def test_settings_that_cannot_be(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be (1 to 64|0 or at least 2)"):
        Alignment(**{name: value})
    with pytest.raises(ValueError, match="alignment must be 1 to 64 letters"):
        vf.simulate(Alignment(), parties(["a"], ["a"]))


@pytest.mark.parametrize(
    ("write", "rule"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b"short"), "at least 32 random bytes, got 5"),
        (lambda path: path.chmod(0o640), "mode 600.*, got mode 640"),
    ],
)
def test_a_shared_key_that_is_none(write, rule, tmp_path):
    federation = parties(["a"], ["a"], folder=tmp_path)
    write(tmp_path / "p1" / client.KEY_FILE)
    with pytest.raises(PartyFailed, match=rule) as caught:
        vf.simulate(Alignment("q4", method="keyed"), federation)
    assert caught.value.party == "p1"
    assert str(tmp_path) not in str(caught.value)
