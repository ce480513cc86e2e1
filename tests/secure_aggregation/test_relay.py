"""Sealed messages: only the receiver opens them, only as what they were sent."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from draws import law
from fixed_keys import PRIVATE, PUBLIC, derived
from hypothesis import given
from hypothesis import strategies as st
from uniformity import uniform

from vfl_flower.secure_aggregation.keys import shared_secret
from vfl_flower.secure_aggregation.relay import Relay

STEP = ("fdskl_tree", "angles", 3)
REFUSED = "was altered in transit, or belongs to a different"

names = st.text(max_size=12)


def _relay(index, run_id=1, parties=3):
    return Relay(PRIVATE[index], PUBLIC[:parties], index, run_id)


@law
@given(
    *(st.integers(0, 2), st.integers(0, 2), st.binary(max_size=300)),
    st.tuples(names, names, st.integers(0, 2**70)),
)
def test_the_receiver_opens_what_was_sealed(sender, to, data, step):
    sealed = _relay(sender).seal(to, data, *step)
    assert len(sealed) == len(data) + 16
    assert _relay(to).open(sender, sealed, *step) == data
    assert sealed == _relay(sender).seal(to, data, *step)


@pytest.mark.parametrize("to", [0, 1])
def test_refuses_a_message_with_any_bit_altered_or_of_another_length(to):
    sealed = _relay(0).seal(to, b"ab", *STEP)
    bits, number = range(8 * len(sealed)), int.from_bytes(sealed)
    altered = [(number ^ 1 << bit).to_bytes(len(sealed)) for bit in bits]
    lengths = [(sealed + bytes(1))[:size] for size in (0, 1, 15, 16, 17, 19)]
    for wrong in altered + lengths:
        with pytest.raises(ValueError, match=REFUSED):
            _relay(to).open(0, wrong, *STEP)


@pytest.mark.parametrize(
    "step",
    [
        *(("fdskl_tre", "eangles", 3), ("fdskl_sum", "angles", 3)),
        *(("fdskl_tree", "sum", 3), ("fdskl_tree", "angles", 2)),
    ],
)
def test_refuses_another_step(step):
    sealed = _relay(0).seal(1, b"ab", *STEP)
    with pytest.raises(ValueError, match=f"from party 0 to party 1 in .* {REFUSED}"):
        _relay(1).open(0, sealed, *step)


def test_refuses_another_sender_receiver_run_or_set_of_keys():
    sealed = _relay(0).seal(1, b"ab", *STEP)
    wrong = [
        (_relay(1), 2),  # said to come from another party
        (_relay(1), 1),  # or from the receiver itself
        (_relay(2), 0),  # passed on to another party
        (_relay(0), 1),  # sent back to its sender
        (_relay(0), 0),
        (_relay(1, run_id=11), 0),
        (Relay(PRIVATE[1], [PUBLIC[3], *PUBLIC[1:3]], 1, 1), 0),
        (Relay(PRIVATE[1], [PUBLIC[0], PUBLIC[2], PUBLIC[1]], 2, 1), 0),  # in turn
    ]
    for relay, sender in wrong:
        with pytest.raises(ValueError, match=REFUSED):
            relay.open(sender, sealed, *STEP)


def test_one_step_for_two_messages_gives_away_where_they_differ():
    """The contract of the caller is not decoration."""
    a, b = (_relay(0).seal(1, data, *STEP)[:9] for data in (b"secret of", b"secret on"))
    assert [x ^ y for x, y in zip(a, b, strict=True)] == [0] * 8 + [ord("f") ^ ord("n")]


def test_a_sealed_message_is_uniform_to_the_server():
    """Chi-square over the values of a byte, level 1e-6 in each tail; keys are fixed."""
    assert uniform(np.frombuffer(_relay(0).seal(1, bytes(2**18), *STEP), np.uint8))


@pytest.mark.parametrize("to", [0, 1])
def test_format_by_hand(to):
    """HKDF from two HMACs, then ChaCha20-Poly1305; a change here needs a new label."""
    secret = PRIVATE[0] if to == 0 else shared_secret(PRIVATE[0], PUBLIC[1])
    key = derived(
        *(secret, b"vfl_flower relayed message 1", b"42", b"fdskl_tree", b"angles"),
        *(b"3", b"0", str(to).encode(), PUBLIC[0], PUBLIC[to]),
    )
    expected = ChaCha20Poly1305(key).encrypt(bytes(12), b"ab", None)
    assert _relay(0, run_id=42).seal(to, b"ab", *STEP) == expected


def test_refuses_who_is_no_party():
    for other in (-1, 3):
        with pytest.raises(ValueError, match=f"to must .* 0 and 2, got {other}"):
            _relay(0).seal(other, b"", *STEP)
        with pytest.raises(ValueError, match=f"sender must .* 0 and 2, got {other}"):
            _relay(0).open(other, bytes(16), *STEP)


def test_repr_and_errors_carry_no_secret():
    relay = _relay(0)
    assert PRIVATE[0].hex() not in repr(relay)
    with pytest.raises(ValueError, match=REFUSED) as error:
        relay.open(0, bytes(20), *STEP)
    assert error.value.__suppress_context__
