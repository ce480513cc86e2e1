"""The card of a party: read back as it was written, or refused in one sentence."""

import tomllib
from dataclasses import replace

import pytest
from cards import card, public
from cryptography.hazmat.primitives.asymmetric import ec

from vfl_flower.app.deployment.cards import Card, load_cards
from vfl_flower.secure_aggregation.keys import encode_key


@pytest.fixture
def written(tmp_path):
    card().write(path := tmp_path / "airline.card")
    return path


@pytest.mark.parametrize("name", ["airline", "Zürich 2", "a.b-c_d"])
def test_a_card_is_read_as_it_was_written(tmp_path, name):
    made = card(name)
    made.write(path := tmp_path / "x.card")
    assert Card.load(path) == made
    assert tomllib.loads(path.read_text())["fingerprint"] == made.fingerprint


def test_the_fingerprint_is_of_every_field():
    made = card()
    others = [
        replace(made, name="weather"),
        replace(made, identity=encode_key(bytes([2]) * 32)),
        replace(made, supernode=public()),
    ]
    assert len({made.fingerprint, *(other.fingerprint for other in others)}) == 4
    groups = made.fingerprint.split(" ")
    assert len(groups) == 8
    assert all(len(group) == 4 and int(group, 16) >= 0 for group in groups)


def swap(key, value):
    def change(text):
        lines = text.splitlines()
        return "\n".join(
            f"{key} = {value}" if line.startswith(f"{key} =") else line
            for line in lines
        )

    return change


BAD = {
    "another key": (swap("supernode", f'"{public()}"'), "its fingerprint must be"),
    "no such curve": (
        swap("supernode", f'"{public(ec.SECP256R1())}"'),
        "supernode must be a public key on the curve P-384",
    ),
    "a comment": (swap("supernode", f'"{public()} me"'), "without a comment"),
    "no key": (swap("identity", '"ed25519:abc"'), "a party's public key must be"),
    "a path": (swap("name", '"../airline"'), "name must be 1 to 100 letters"),
    "a number": (swap("name", "5"), "its values must be text"),
    "one more key": (lambda text: text + "\nx = 1", "its keys must be name, identity"),
    "no TOML": (lambda text: text + "\n]", "is not a party's card"),
    "too large": (lambda text: text + "#" * 5000, "at most 4096 bytes"),
}


@pytest.mark.parametrize(("change", "rule"), BAD.values(), ids=BAD)
def test_a_file_that_is_no_card(written, change, rule):
    written.write_text(change(written.read_text()))
    with pytest.raises(ValueError, match=rule) as raised:
        Card.load(written)
    assert str(raised.value).startswith(f"{written} is not a party's card: ")
    assert "\n" not in str(raised.value).split(": ", 1)[0]


@pytest.mark.parametrize("what", ["name", "identity", "supernode"])
def test_two_cards_of_one_party(tmp_path, what):
    one, other = card(), card("weather", 2)
    other = replace(other, **{what: getattr(one, what)})
    paths = [tmp_path / "1.card", tmp_path / "2.card"]
    one.write(paths[0])
    other.write(paths[1])
    with pytest.raises(ValueError, match=f"cards must differ in {what}, but"):
        load_cards(paths)
