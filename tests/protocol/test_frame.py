"""What is packed into a frame comes out of it; whatever else comes is refused."""

from dataclasses import replace

import pytest

from vfl_flower.protocol.contract import ContractError
from vfl_flower.protocol.frame import Frame, SumRequest
from vfl_flower.protocol.messages import pack, unpack
from vfl_flower.protocol.seals import Seal

SMALL = Frame(11, 3, False, "ring", round=2, previous=1, parties=3, index=2)
LARGE = replace(
    SMALL,
    peers=bytes(range(96)),
    model="0123456789abcdef",
    sums={
        "total": SumRequest(2, 1.5, "ring"),
        "angles_0": SumRequest(2, 1.0, "circle16", to=1),
        "angles_1": SumRequest(5, 2.0**60, "plain", relay=0),
    },
    sealed={
        "part": [Seal("pad", "sealing", "part", 1, bound=1.0)],
        "key": [Seal("secret", "telling", "key", 1, 2)] * 2,
    },
)


@pytest.mark.parametrize("frame", [SMALL, LARGE], ids=["small", "large"])
def test_round_trip(frame):
    _, packed = unpack(pack({}, frame.pack()))
    assert Frame.parse(packed) == replace(frame, digest=packed["digest"])
    assert None not in frame.pack().values()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"session": -1}, ("'session'", "at least 0")),
        ({"seed": 1.5}, ("'seed'", "whole number")),
        ({"private_draws": None}, ("'private_draws' is missing",)),
        ({"private_draws": 1}, ("'private_draws'", "True or False")),
        ({"masking": "odd"}, ("'masking'", "'ring', 'plain'")),
        ({"round": 0}, ("'round'", "at least 1")),
        ({"previous": -1}, ("'previous'", "at least 0")),
        ({"parties": 0}, ("'parties'", "at least 1")),
        ({"parties": 2**30}, ("'parties'", "at most 2^20")),
        ({"index": 3}, ("below 3, got 3",)),
        ({"index": -1}, ("'index'", "at least 0")),
        ({"peers": bytes(95)}, ("'peers'",)),
        ({"peers": "a" * 96}, ("'peers'", "bytes")),
        ({"model": 5}, ("'model'", "text")),
        ({"weather": 5}, ("'weather'",)),
        ({"sum.total": 0}, ("the sum 'total'", "'sum'", "at least 1")),
        ({"sum.total": None}, ("the sum 'total'", "'sum' is missing")),
        # 1.5 is more than 1, and would be cut to it.
        ({"sum.total": 1.5}, ("the sum 'total'", "'sum'", "whole number")),
        ({"bound.total": None}, ("the sum 'total'", "'bound' is missing")),
        ({"bound.total": float("inf")}, ("the sum 'total'", "'bound'", "a number")),
        ({"group.total": None}, ("the sum 'total'", "'group' is missing")),
        ({"bound.total": float("nan")}, ("the sum 'total'", "'bound'", "a number")),
        ({"group.total": 5}, ("the sum 'total'", "'group'", "text")),
        ({"to.total": 3}, ("below 3, got 3",)),
        ({"relay.angles_1": 7}, ("below 3, got 7",)),
        ({"relay.angles_1": -1}, ("the sum 'angles_1'", "'relay'", "at least 0")),
        ({"to.total": True}, ("the sum 'total'", "'to'", "whole number")),
        ({"colour.total": 1}, ("the sum 'total'", "'colour'")),
        ({"sum." + "x" * 999: 1}, ("the sum 'xxx",)),
        ({"sealed.part": []}, ("the seals of 'part'",)),
        ({"sealed.part": "pad sealing part 1 ring 0x1p+10 0"}, ("seals of 'part'",)),
        ({"sealed.part": ["pad"]}, ("the seals of 'part'",)),
        ({"sealed.part": 5}, ("the seals of 'part'",)),
        ({"sealed.key": ["secret telling key 1 - - 3"]}, ("below 3, got 3",)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_frame_that_is_none_names_the_value_and_the_rule(change, words):
    packed = LARGE.pack() | change
    sent = {name: value for name, value in packed.items() if value is not None}
    with pytest.raises(ContractError) as caught:
        Frame.parse(sent)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 200
