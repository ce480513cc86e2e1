"""Masks cancel, never repeat, hide one message, and keep their format."""

import itertools
import tracemalloc
from collections import Counter
from functools import partial, reduce

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from draws import law
from fixed_keys import PRIVATE, PUBLIC, derived, ends
from hypothesis import given
from hypothesis import strategies as st
from uniformity import octets, uniform

from vfl_flower.secure_aggregation.groups import Circle, Plain, Ring, group
from vfl_flower.secure_aggregation.keys import new_private_key, public_key
from vfl_flower.secure_aggregation.masks import (
    PairwiseMasks,
    derive_key,
    masked,
    unmask_sum,
)
from vfl_flower.secure_aggregation.relay import Relay

names = st.text(max_size=12)


def _masks(parties, run_id=1):
    private = [new_private_key() for _ in range(parties)]
    public = [public_key(key) for key in private]
    return [PairwiseMasks(key, public, j, run_id) for j, key in enumerate(private)]


_fixed = partial(ends, PairwiseMasks)


def _mask(masks, chosen, count, *context):
    return masks.hide(np.zeros(count, chosen.dtype), chosen, *context)


KINDS = ["ring", "circle16", "circle32", "field"]


@law
@given(
    *(st.integers(2, 6), st.integers(0, 300), st.sampled_from(KINDS)),
    st.tuples(names, names, st.integers(0, 2**70)),
    st.integers(-(2**63), 2**64),
)
def test_masks_sum_to_zero(parties, count, kind, context, run_id):
    chosen = group(kind, 1.0, parties)
    terms = [_mask(m, chosen, count, *context) for m in _masks(parties, run_id)]
    for term in terms:
        assert term.shape == (count,)
        assert term.dtype == chosen.dtype
    assert not reduce(chosen.add, terms).any()


@pytest.mark.parametrize("kind", KINDS)
def test_masks_sum_to_zero_over_several_blocks(kind):
    chosen, count = group(kind, 1.0, 3), 2**18 + 3
    terms = [_mask(masks, chosen, count, "a", "b", 0) for masks in _masks(3)]
    assert not reduce(chosen.add, terms).any()
    # No block comes back: no 8 bytes of one mask repeat. The chance that uniform
    # elements do is below 2^36 / 2^61 = 3e-8; narrower ones are looked at in words.
    words = terms[0][: count // 4 * 4].view("<u8")
    assert len(np.unique(words)) == len(words)


@law
@given(
    *(st.integers(2, 6), st.tuples(st.integers(0, 5), st.integers(0, 5))),
    st.integers(0, 2**32 - 1),
)
def test_masked_sum_is_the_sum_of_the_encodings(parties, shape, seed):
    values = np.random.default_rng(seed).uniform(-1, 1, (parties, *shape))
    ring, context = Ring(1.0, parties), ("gram", "K", 4)
    pairs = zip(values, _masks(parties), strict=True)
    sent = [masked(x, ring, masks, *context)[0] for x, masks in pairs]
    bare = [masked(x, ring, None, *context)[0] for x in values]
    total = unmask_sum(sent, ring)
    assert total.shape == shape
    np.testing.assert_array_equal(total, unmask_sum(bare, ring))
    np.testing.assert_allclose(total, values.sum(axis=0), rtol=0, atol=1e-14)


def test_masked_sum_counts_what_it_clips():
    ring, (first, _) = Ring(1.0, 2), _masks(2)
    assert masked(np.array([0.5, 3.0, -9.0]), ring, first, "a", "b", 0)[1] == 2


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("data", [0.0, 0.25, "ramp"])
def test_one_message_is_uniform(index, data):
    """Chi-square over all bytes of the ring and all elements of the circle; fixed keys.

    Level 1e-6 in each tail: one of 27 tests would fail with chance 5e-5 for other keys.
    """
    n, context = 2**20, ("a", "b", 0)
    turns = np.arange(n) / n if data == "ramp" else np.full(n, data)
    message, _ = masked(turns[::16], Ring(1.0, 3), _fixed(3)[index], *context)
    for half in np.split(octets(message), 2, axis=1):
        assert uniform(half)
    message, _ = masked(turns, Circle(16, 3), _fixed(3)[index], *context)
    assert uniform(message, 2**16)


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_padded_sum_and_messages_are_jointly_uniform(owner):
    """Who relays sees the messages of all, hence their sum plus the pad, and no more.

    High bytes of the padded sum against those of the owner's and of another party's
    message: chi-square over 256 x 256 cells, level 1e-6 in each tail, fixed keys.
    The sum itself is constant.
    """
    n, circle, parties = 2**20, Circle(16, 3), _fixed(3)
    sent = [masked(np.full(n, 777, "<u2"), circle, m, "a", "b", 0)[0] for m in parties]
    pad = parties[owner].pad(circle, n, "a", "b", 0)
    circle.add(sent[owner], pad, out=sent[owner])
    padded = unmask_sum(sent, circle)
    assert (circle.subtract(padded, pad) == 3 * 777).all()
    for other in (sent[owner], sent[(owner + 1) % 3]):
        assert uniform((padded >> 8).astype(int) * 256 + (other >> 8), 2**16)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pad_is_the_same_again_and_only_its_owner_has_it(kind):
    """Equal elements by chance: below 100 * 2^-64 for words of 64 bits."""
    chosen, parties, count = group(kind, 1.0, 3), _fixed(3), 64
    pads = [m.pad(chosen, count, "a", "b", 0) for m in parties]
    again = [m.pad(chosen, count, "a", "b", 0) for m in _fixed(3)]
    other = [parties[0].pad(chosen, count, *c) for c in CONTEXTS]
    masks = [_mask(m, chosen, count, "a", "b", 0) for m in parties]
    np.testing.assert_array_equal(pads, again)
    words = [a[:4].tobytes() for a in [*pads, *other, *masks]]
    assert len(set(words)) == len(words)
    assert {(a.shape, a.dtype) for a in pads} == {((count,), chosen.dtype)}


CONTEXTS = [("a", "b", 1), ("a", "c", 0), ("b", "b", 0), ("ab", "", 0), ("", "ab", 0)]


def test_one_context_for_two_messages_gives_their_difference_away():
    """The contract of the caller is not decoration."""
    circle, (first, _) = Circle(16, 2), _masks(2)
    a, b = np.arange(9, dtype="<u2"), np.arange(9, dtype="<u2")[::-1] * 5
    sent = [masked(x, circle, first, "a", "b", 0)[0] for x in (a, b)]
    np.testing.assert_array_equal(sent[0] - sent[1], a - b)
    sent[1] = masked(b, circle, first, "a", "b", 1)[0]
    assert (sent[0] - sent[1] != a - b).any()  # wrong with chance 2^-144


def test_no_two_uses_of_a_secret_share_a_key(monkeypatch):
    """Every key derivation of masks, pads and sealed messages, recorded.

    A key may be derived twice only by the two ends of one pair, in one context.
    """
    seen = Counter()

    def record(secret, parts):
        key = derive_key(secret, parts)
        info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        seen[secret, info, key] += 1
        return key

    monkeypatch.setattr("vfl_flower.secure_aggregation.masks.derive_key", record)
    monkeypatch.setattr("vfl_flower.secure_aggregation.relay.derive_key", record)
    contexts = list(itertools.product(("a", "ab", "1"), ("b", "", "1"), (0, 1, 11)))
    groups = [Circle(16, 3), Circle(32, 3), Ring(1.0, 3), Ring(2.0, 3)]
    for run_id, j in itertools.product((1, 11), range(3)):
        masks, relay = (ends(kind, 3, run_id)[j] for kind in (PairwiseMasks, Relay))
        for context in contexts:
            for chosen, count in itertools.product(groups, (1, 11)):
                _mask(masks, chosen, count, *context)
                masks.pad(chosen, count, *context)
            for to in range(3):
                relay.seal(to, b"x", *context)
    n = 2 * len(contexts)
    masks_and_pads = n * len(groups) * 2 * (3 + 3)
    assert len(seen) == masks_and_pads + n * 9
    assert len({key for _, _, key in seen}) == len(seen)
    assert Counter(seen.values()) == {
        2: n * len(groups) * 2 * 3,  # r_ij, at i and at j
        1: n * len(groups) * 2 * 3 + n * 9,  # pads; messages, sealed only
    }


@pytest.mark.parametrize("kind", ["ring", "circle16", "plain"])
def test_masked_leaves_the_values_as_they_are(kind):
    chosen, first = group(kind, 9.0, 2), _masks(2)[0]
    values = np.arange(6, dtype=chosen.dtype if kind == "circle16" else float)
    values = values.reshape(2, 3).T
    values.flags.writeable = False
    before = values.copy()
    message, _ = masked(values, chosen, first, "a", "b", 0)
    np.testing.assert_array_equal(values, before)
    assert message.shape == (3, 2)


@pytest.mark.parametrize("kind", ["ring", "circle16"])
def test_a_masked_message_takes_at_most_two_arrays_of_memory(kind):
    """Traced by NumPy's own allocations; a block of key stream and small change."""
    chosen, first = group(kind, 9.0, 2), _masks(2)[0]
    values = np.zeros(2**21, chosen.dtype if kind == "circle16" else float)
    masked(values[:1], chosen, first, "a", "b", 0)
    tracemalloc.start()
    message, _ = masked(values, chosen, first, "a", "b", 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 2 * message.nbytes + 2**22


def test_the_sum_of_the_server_does_not_change_the_messages():
    terms = [np.full((2, 2), v, "<u2") for v in (1, 2, 2**16 - 1)]
    for term in terms:
        term.flags.writeable = False
    for count, total in ((1, 1), (3, 2)):
        assert (unmask_sum(terms[:count], Circle(16, 3)) == total).all()
    assert [int(term[0, 0]) for term in terms] == [1, 2, 2**16 - 1]


def test_a_missing_party_leaves_noise():
    """Noise is uniform in [-4, 4): within 1e-5 of the partial sum with chance 2.5e-6.

    For five elements at once that is below 1e-27.
    """
    ring, values = Ring(1.0, 3), np.full(5, 0.25)
    sent = [masked(values, ring, m, "a", "b", 0)[0] for m in _masks(3)]
    np.testing.assert_array_equal(unmask_sum(sent, ring), 3 * values)
    for j in range(3):
        partial = unmask_sum(sent[:j] + sent[j + 1 :], ring)
        assert (np.abs(partial - 2 * values) > 1e-5).any()


def test_plain_passes_masks_by():
    plain, values = Plain(2.0, 3), np.array([[-0.0, 1.5], [-2.0, 0.1]])
    sent = [masked(values, plain, m, "a", "b", 0) for m in _masks(3)]
    for message, clipped in sent:
        assert message.tobytes() == values.tobytes()
        assert clipped == 0
    total = unmask_sum([message for message, _ in sent], plain)
    np.testing.assert_array_equal(total, values + values + values)
    assert not _mask(_masks(3)[0], plain, 4, "a", "b", 0).any()
    assert not _masks(3)[0].pad(plain, 4, "a", "b", 0).any()


# A change of the format needs a new label.


def _stream(secret, *parts):
    """Return 32 bytes of key stream, by RFC 5869 and RFC 8439 without this package."""
    cipher = Cipher(ChaCha20(derived(secret, *parts), bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(32))


def test_format_by_hand():
    """Of each pair the same stream, which the first adds and the second subtracts."""
    expected = np.zeros((3, 4), "<u8")
    for i, j in itertools.combinations(range(3), 2):
        key, peer = (X25519PrivateKey.from_private_bytes(PRIVATE[k]) for k in (i, j))
        stream = _stream(
            key.exchange(peer.public_key()),
            *(b"vfl_flower pairwise mask 1", b"42", b"coresets_scores", b"g", b"3"),
            *(b"ring 0x1.0000000000000p+1 3", b"4", PUBLIC[i], PUBLIC[j]),
        )
        expected[i] += np.frombuffer(stream, "<u8")
        expected[j] -= np.frombuffer(stream, "<u8")
    context = 4, "coresets_scores", "g", 3
    made = [_mask(masks, Ring(2.0, 3), *context) for masks in _fixed(3, 42)]
    np.testing.assert_array_equal(made, expected)


def test_format_of_a_pad_by_hand():
    """Of the private key: party 1 of 2, round 3, three 16-bit elements."""
    stream = _stream(
        PRIVATE[1],
        *(b"vfl_flower own pad 1", b"42", b"fdskl_angles", b"turns", b"3"),
        *(b"circle16 2", b"3", PUBLIC[1]),
    )
    pad = _fixed(2, 42)[1].pad(Circle(16, 2), 3, "fdskl_angles", "turns", 3)
    assert pad.tobytes() == stream[:6]


KEY = bytes(range(32))
OWN, OTHER = public_key(KEY), public_key(bytes([9]) * 32)
POINTS = [bytes(32), bytes([1]) + bytes(31)]


@pytest.mark.parametrize(
    ("key", "public", "index", "reason"),
    [
        (KEY, [OWN], 0, "public_keys must be at least 2, got 1"),
        (KEY, [OWN, OTHER], -1, "between 0 and 1, got -1"),
        (KEY, [OWN, OTHER], 2, "between 0 and 1, got 2"),
        (KEY, [OWN, OTHER], 1, "party 1 must match the private key"),
        (KEY, [OWN, OTHER, OTHER], 0, "public keys of parties 1 and 2 must differ"),
        (KEY, [OWN, b""], 0, "party 1 must have 32 bytes, got 0"),
        (KEY, [OWN, bytes(31)], 0, "party 1 must have 32 bytes, got 31"),
        (KEY, [OWN, bytes(33)], 0, "party 1 must have 32 bytes, got 33"),
        (bytes(5), [OWN, OTHER], 0, "private key is 32 bytes long"),
        (KEY, [OWN, POINTS[0]], 0, "party 1 must not yield an all-zero shared"),
        (KEY, [OWN, POINTS[1]], 0, "party 1 must not yield an all-zero shared"),
    ],
)
def test_keys_that_do_not_fit_are_refused(key, public, index, reason):
    with pytest.raises(ValueError, match=reason):
        PairwiseMasks(key, public, index, 1)


def test_errors_and_repr_carry_no_secret():
    key = new_private_key()
    public = [public_key(key), public_key(new_private_key())]
    assert key.hex() not in repr(PairwiseMasks(key, public, 0, 1))
    with pytest.raises(ValueError, match="match the private key") as error:
        PairwiseMasks(key, public, 1, 1)
    assert repr(key) not in str(error.value)


@pytest.mark.parametrize("count", [0, 3])
def test_a_sum_of_terms_that_do_not_fit_is_refused(count):
    with pytest.raises(ValueError, match=f"from 1 to 2, got {count}"):
        unmask_sum([np.zeros(1, "<u8")] * count, Ring(1.0, 2))


def test_refuses_a_group_too_small_for_the_parties():
    with pytest.raises(ValueError, match="support sums over 3 parties, got 2"):
        masked(np.ones(1), Ring(1.0, 2), _masks(3)[0], "a", "b", 0)
