"""What is packed into a seal comes out of it; whatever else comes is no seal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl_flower.protocol.seals import Seal, stem

WORDS = st.from_regex(r"[a-z_]{1,8}[0-9]{0,2}", fullmatch=True)
NUMBERS = st.integers(0, 2**40)
PLACE = WORDS, WORDS, NUMBERS, NUMBERS
BOUND = st.floats(allow_nan=False, allow_infinity=False)
SEALS = st.one_of(
    st.builds(Seal, st.sampled_from(["pad", "relay"]), *PLACE, WORDS, BOUND),
    st.builds(Seal, st.just("secret"), *PLACE),
)


@given(seal=SEALS)
def test_round_trip(seal):
    assert Seal.parse(seal.pack()) == seal


@given(text=st.text() | st.binary() | st.integers() | st.none() | st.lists(st.text()))
def test_what_is_no_seal(text):
    with pytest.raises(ValueError, match="a seal is malformed"):
        Seal.parse(text)


PAD = "pad sealing part 1 ring 0x1p+10 0"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *[("pad", word) for word in ("odd", "secret")],  # a secret has no bound
        *[(" 1 ", word) for word in (" -1 ", " one ", " ", f" {'9' * 9999} ")],
        *[("0x1p+10", word) for word in ("-", "nan", "inf", "0x1p+99999", "ten")],
        *[("+10 0", words) for words in ("+10 -1", "+10 0 0")],
    ],
)
def test_a_seal_with_a_wrong_word(old, new):
    Seal.parse(PAD)
    with pytest.raises(ValueError, match="a seal is malformed"):
        Seal.parse(PAD.replace(old, new, 1))


def test_a_name_without_its_number():
    names = {"angles": "angles", "angles_2": "angles", "angles2": "angles"}
    names |= {"x_y_3": "x_y", "_3": "", "a_b": "a_b"}
    assert {name: stem(name) for name in names} == names
