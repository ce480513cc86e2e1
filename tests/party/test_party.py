"""The party: its data are checked once, its streams are its own, its state is kept."""

import hashlib
import zlib
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from consents import limited
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from fixed_keys import derived

from vfl_flower import Party
from vfl_flower.party.party import PartyError, Predictions, digest_ids, stored_as
from vfl_flower.typing import Array

X = np.arange(6.0).reshape(3, 2)


def test_data_are_taken_as_they_are():
    party = Party([[1, 2], [3, 4]], y=[True, False], ids=["a", "b"], columns=["u", "v"])
    assert party.X.shape == (2, 2)
    assert party.ids_digest == digest_ids(np.array(["a", "b"]))

    frame = pd.DataFrame({"age": [1, 2], 7: [3, 4]})
    assert Party(frame).columns == ["age", "7"]
    assert Party(frame, columns=frame.columns[::-1]).columns == ["7", "age"]
    assert Party(frame.to_numpy()).columns is None
    assert Party(X).state_dir is None
    assert Party(X, state_dir="/var/airline").state_dir == Path("/var/airline")
    for dtype in (bool, np.int8, np.uint64, np.float32, np.float64):
        data = np.ones((3, 2), dtype=dtype)
        assert Party(data, y=data[:, 0]).X is data


SHIFTED = pd.DataFrame(X, index=[4, 5, 6])
NAN = np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, -np.inf]])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"X": np.ones(3)}, r"^X of the party must be a matrix .* got shape \(3,\)"),
        ({"X": np.ones((0, 2))}, r"^X of the party .* one row .* got shape \(0, 2\)"),
        ({"X": np.ones((2, 0))}, r"^X of the party .* column, got shape \(2, 0\)"),
        ({"X": np.ones((2, 1), dtype=complex)}, "^X .* real numbers, .* complex128"),
        ({"X": np.ones((2, 1), dtype=object)}, "^X .* real numbers, got dtype object"),
        ({"X": NAN, "name": "airline"}, "^X of party 'airline' .* infinite value, 2 "),
        ({"X": X, "y": np.ones(2)}, r"^y of the party .* the 3 rows, got shape \(2,\)"),
        ({"X": X, "y": np.ones((3, 1))}, r"^y .* each of the 3 rows, .* \(3, 1\)"),
        ({"X": X, "y": NAN[:, 1]}, "^y of the party .* infinite value, 1 "),
        ({"X": X, "y": np.array([np.nan, np.inf, 1.0])}, "^y .* infinite value, 1 "),
        ({"X": X, "y": np.full(3, np.nan)}, "^y .* at least one label, got none"),
        ({"X": X, "ids": np.arange(4)}, r"^ids of the party .* the 3 rows, .* \(4,\)"),
        ({"X": X, "ids": np.array([17, 4, 17])}, "^ids of the .* distinct, got 1 "),
        ({"X": SHIFTED, "y": SHIFTED[0][::-1]}, "^y of the party .* the same index"),
        ({"X": SHIFTED, "ids": SHIFTED[0][::-1]}, "^ids of the party .* same index"),
        ({"X": X, "ids": np.ma.masked_less(range(3), 1)}, "^ids .* no masked value"),
        ({"X": X, "index": -1}, "^index of the party must be a whole number, 0 or"),
        ({"X": X, "index": True}, "^index of the party must be a whole number"),
        ({"X": X, "consent": {}}, "^consent of the party must be a Consent or None"),
        ({"X": X, "columns": "ab"}, "^columns of the party must be a list of names"),
        ({"X": X, "columns": [1, "1"]}, "^columns of the party .* distinct names"),
        ({"X": X, "columns": ["a"]}, "^columns of the party .* the 2 columns .* 1 nam"),
    ],
)
def test_bad_data(arguments, rule):
    with pytest.raises(ValueError, match=rule):
        Party(**arguments)


def test_missing_values_are_counted_over_blocks():
    data = np.zeros((70_000, 2))
    data[[3, 69_999], 1] = np.nan
    with pytest.raises(ValueError, match="2 found"):
        Party(data)


def test_checked_data_are_not_looked_at():
    assert np.isnan(Party(NAN, checked=True).X[1, 0])


def test_labels_that_the_party_knows():
    few = np.array([np.nan, np.nan, 7], dtype=np.float32)
    labels = [None, few, [0.0, np.nan, 0.0], [True, False, True]]
    assert [Party(X, y=y).n_labels for y in labels] == [0, 1, 2, 3]


def test_what_a_run_sets_is_no_argument():
    names = ["n_parties", "seed", "private_draws", "releases", "allow_plain", "part"]
    for name in [*names, "encoding", "predictions", "source", "shared", "cache"]:
        with pytest.raises(TypeError, match=name):
            Party(X, **{name: 1})
        assert not getattr(Party(X), name)


def test_digest_of_ids():
    """No text of an id passes for the end of one."""
    ids = np.array([7, 12, 3])
    assert digest_ids(ids) == hashlib.sha256(b"1:72:121:3").hexdigest()
    assert digest_ids(ids) == digest_ids(np.array(["7", "12", "3"]))
    assert digest_ids(np.array(["\u00e9"])) == hashlib.sha256(b"2:\xc3\xa9").hexdigest()
    for some, others in (
        (["7", "12", "3"], ["12", "7", "3"]),
        (["1", "23"], ["12", "3"]),
        (["a", "1:b"], ["a1:b"]),
        (["1:a", "b"], ["1", "a1:b"]),
        (["a"], ["a", ""]),
    ):
        assert digest_ids(np.array(some)) != digest_ids(np.array(others))


def test_ids_and_their_digest_are_those_that_are_given():
    party = Party(X, ids=np.arange(3), ids_digest="ab")
    assert party.ids_digest == "ab"
    np.testing.assert_array_equal(party.read_ids(), [0, 1, 2])
    assert Party(X).read_ids() is None


# -- streams ---------------------------------------------------------------------------

SECRET = bytes(range(32))


def drawing(index: int = 0, seed: int = 0, secret: bytes = b"") -> Party:
    party = Party(X, index=index)
    party.seed, party.private_draws, party.run_secret = seed, bool(secret), secret
    return party


def stream(name: str = "draw", **run: Any) -> list[int]:
    numbers: list[int] = drawing(**run).rng(name).integers(2**62, size=4).tolist()
    return numbers


def test_a_stream_is_given_by_seed_party_and_name():
    first = stream()
    assert stream() == first
    others = [stream("cluster"), stream(index=1)]
    others += [stream(seed=seed) for seed in (1, 2**63 - 1)]
    others += [stream(secret=bytes([k]) * 32) for k in range(3)]
    assert len({tuple(numbers) for numbers in [first, *others]}) == 8
    assert stream(secret=bytes([1]) * 32) == others[5]


def test_a_run_with_a_seed_draws_what_it_has_always_drawn():
    party = drawing(index=2, seed=3)
    entropy = np.random.SeedSequence([3, 2, zlib.crc32(b"draw")])
    expected = np.random.default_rng(entropy).bytes(24)
    assert party.rng("draw").bytes(24) == party.secret_bytes("draw", 24) == expected


def test_each_private_stream_has_a_key_of_its_own():
    """By hand: HKDF of the secret, which a generator's numbers do not give away."""
    party = drawing(seed=3, secret=SECRET)
    key = derived(SECRET, b"vfl_flower random stream 1", b"draw")
    expected = np.random.default_rng(int.from_bytes(key)).bytes(24)
    assert party.rng("draw").bytes(24) == expected
    assert drawing(seed=4, secret=SECRET).rng("draw").bytes(24) == expected


def test_private_secret_bytes_come_from_a_cipher():
    party = drawing(secret=SECRET)
    key = derived(SECRET, b"vfl_flower secret draw 1", b"draw")
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    expected = cipher.update(bytes(40))
    assert party.secret_bytes("draw", 40) == expected
    assert party.secret_bytes("draw", 16) == expected[:16]  # asked again
    assert party.secret_bytes("features", 40) != expected
    assert party.rng("draw").bytes(40) != expected


@pytest.mark.parametrize("secret", [b"", SECRET], ids=["seed", "private"])
def test_no_stream_outside_a_run(secret):
    party = drawing(secret=secret)
    party.index = None
    for draw in (party.rng, lambda name: party.secret_bytes(name, 16)):
        with pytest.raises(RuntimeError, match="must be called inside a step"):
            draw("draw")


# -- state -----------------------------------------------------------------------------


@stored_as("inner")
class Inner:
    scale: float
    rows: Array | None = None


@stored_as("state")
class State:
    n: int
    name: str = "a"
    sizes: list[int] = field(default_factory=list)
    inner: Inner | None = None
    blocks: dict[int, Array] = field(default_factory=dict)
    skipped: Array | None = None


def continued(party: Party) -> Party:
    later = Party(X)
    later.resume(dict(party.remembered()))
    return later


def test_a_state_comes_back_as_it_was():
    party = Party(X)
    rows = np.array([2, 0], dtype=np.uint32)
    blocks = {3: np.ones(2), 0: np.zeros((1, 2))}
    party.remember(State(5, "b", [1, 2], Inner(0.5, rows), blocks))
    state = continued(party).recall(State)
    assert (state.n, state.name, state.sizes) == (5, "b", [1, 2])
    assert state.inner.scale == 0.5
    np.testing.assert_equal(state.inner.rows, rows)
    assert state.inner.rows.dtype == rows.dtype
    np.testing.assert_equal(state.blocks, blocks)
    assert state.skipped is None


def test_a_change_in_place_is_kept():
    party = Party(X)
    party.remember(State(1, sizes=[7], inner=Inner(0.5)))
    later = continued(party)
    later.recall(State).n += 1
    later.recall(State).inner = None
    assert later.recall(State).n == 2
    assert continued(later).recall(State).inner is None
    assert continued(continued(later)).recall(State).n == 2  # nor was it looked at
    assert party.recall(State).n == 1


@pytest.mark.parametrize("before", [None, State(1, sizes=[7])])
def test_a_state_that_no_step_has_left(before):
    party = Party(X)
    if before is not None:
        party.remember(before)
    for place in (party, continued(party)):
        with pytest.raises(PartyError, match="earlier step"):
            place.recall(Inner)


def test_states_of_several_kinds_are_kept_side_by_side():
    party = Party(X)
    party.remember(State(1, sizes=[7]))
    party = continued(party)
    party.remember(Inner(0.5))
    party = continued(party)
    assert (party.recall(State).n, party.recall(Inner).scale) == (1, 0.5)
    party.remember(Inner(2.0))
    party.forget(State)
    party = continued(party)
    assert party.recall(Inner).scale == 2.0
    assert not [name for name in party.remembered() if "State" in name]


def test_a_first_state_is_kept_where_there_is_none():
    party = Party(X)
    assert party.recall(Inner, Inner(0.5)).scale == 0.5
    assert continued(party).recall(Inner, Inner(9.0)).scale == 0.5


@stored_as("odd")
class Odd:
    path: Path


@pytest.mark.parametrize("state", [{"n": 1}, Odd(Path()), 5, Predictions(X)])
def test_what_is_no_state(state):
    with pytest.raises(TypeError):
        Party(X).remember(state)


# -- rows that leave the party ---------------------------------------------------------


def test_each_row_counts_once_where_there_is_a_limit():
    party = Party(X)
    party.share(np.arange(3), "rows")
    assert not party.shared
    party.consent = limited(2)
    party.share(np.array([0, 2, 0]), "rows")
    party.share(np.array([2]), "rows")
    party.share(np.zeros(0, dtype=int), "rows")
    with pytest.raises(PartyError, match=r"at most 2 rows .* requests 3"):
        party.share(np.array([1]), "rows")
    assert party.shared["rows"].tolist() == [True, False, True]  # without the refused


@pytest.mark.parametrize("name", [3, "", "a" * 101, "a\nb"])
def test_a_name_that_no_report_can_show(name):
    with pytest.raises(ValueError, match="name must be 1 to 100 printable characters"):
        Party(X, name=name)


@pytest.mark.parametrize("name", ["a/b", "vfl_flower.clients.fdskl.FDSKLState"])
def test_a_name_of_states_is_new_and_has_no_slash(name):
    with pytest.raises(ValueError, match="name must be unused and contain no '/'"):
        stored_as(name)
