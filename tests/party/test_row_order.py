"""Ids as all parties write them, and the order that a party keeps."""

import json
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl_flower.party import row_order
from vfl_flower.party.party import PartyError

SALT = bytes(range(32))


def order(ids, name="q4", tag="ab"):
    return row_order.RowOrder.of(name, tag, SALT, row_order.normal_ids(ids))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (7, "7"),
        (np.array([7]), np.array(["7"])),
        (np.array([np.int32(7), 8], dtype=object)[:1], "7"),
        (" a7\t", "a7"),
        ("\u00a0a", "a"),
        ("\uff17", "7"),
        ("e\u0301", "\u00e9"),
        ("\ufb01n", "fin"),
        (-3, "-3"),
    ],
)
def test_written_alike(one, other):
    def ids(value):
        return value if isinstance(value, np.ndarray) else [value]

    assert row_order.normal_ids(ids(one)) == row_order.normal_ids(ids(other))


def test_not_alike():
    for pair in (("A7", "a7"), ("7", "007"), ("7", "7.0"), ("a b", "ab"), ("7", "+7")):
        assert len(set(row_order.normal_ids(pair))) == 2


@pytest.mark.parametrize(
    ("ids", "rule"),
    [
        (None, "needs an id for each row: set id-column"),
        ([1, 2.5, "a"], "ids must be integers or text, but 1 are neither"),
        ([True, 2.5, b"x"], "ids must be integers or text, but 3 are neither"),
        (np.array([1.0, 2.0]), "ids must be integers or text, but 2 are neither"),
        (["a", " ", ""], "ids must not be empty or missing, but 2 are"),
        (["a", None, float("nan")], "ids must not be empty or missing, but 2 are"),
        (["a", "\ud800"], "ids must be valid Unicode text, but 1 have a lone"),
        (["secret", "secret ", 7, "7", "b"], "must be distinct .* got 2 repeated"),
    ],
)
def test_refused_with_a_count_and_no_id(ids, rule):
    with pytest.raises(PartyError, match=rule) as caught:
        row_order.normal_ids(ids)
    assert "secret" not in str(caught.value)


@given(st.permutations(range(12)), st.integers(1, 12))
def test_rows_are_found_by_id(shuffled, count):
    wanted = [f"r{k}" for k in range(count)]
    rows = order(wanted).rows([f" r{k}" for k in shuffled])
    assert [f"r{shuffled[row]}" for row in rows.tolist()] == wanted


def test_ids_in_blocks(monkeypatch):
    monkeypatch.setattr(row_order, "BLOCK", 2)
    kept = order(["a", "b", "c"])
    assert kept.rows(["x", "c", "b", "y", "a"]).tolist() == [4, 2, 1]
    with pytest.raises(PartyError, match=r"must be distinct .*, got 1 repeated"):
        kept.rows(["a", "b", "c", " a"])
    with pytest.raises(PartyError, match="needs an id for each row"):
        kept.rows(None)
    with pytest.raises(PartyError, match=r"2 of the 3 ids of alignment 'q4' are mis"):
        kept.rows(["b", "d"])


def test_saved_and_loaded(tmp_path):
    folder = tmp_path / "state"
    for _ in range(2):  # asked twice, it is the same order
        row_order.save_order(folder, order(["b", "a"], tag="cd"))
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(PartyError, match=r"2 rows must be accepted .* --accept q4"):
        row_order.load_order(folder, "q4")
    row_order.accept_order(folder, "q4")
    loaded = row_order.load_order(folder, "q4")
    assert (loaded.name, loaded.tag, loaded.digest) == ("q4", "cd", "alignment q4 cd")
    assert loaded.rows(["a", "x", "b"]).tolist() == [2, 0]


def test_an_order_is_never_replaced(tmp_path):
    row_order.save_order(tmp_path, order(["a", "b"]))
    row_order.accept_order(tmp_path, "q4")
    with pytest.raises(PartyError, match="'q4' already exists at this party"):
        row_order.save_order(tmp_path, order(["b", "a"]))
    file = tmp_path / "alignment-q4.npz"
    file.unlink()  # nor is another one accepted in its place
    row_order.save_order(tmp_path, order(["b", "a"]))
    assert row_order.list_orders(tmp_path) == ["q4"]
    assert not row_order.is_accepted(tmp_path, row_order.read_order(tmp_path, "q4"))


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "a" * 65, "a b", "x\n"])
def test_a_name_that_leads_elsewhere(tmp_path, name):
    rule = "alignment must be 1 to 64 letters"
    with pytest.raises(PartyError, match=rule):
        row_order.load_order(tmp_path, name)
    with pytest.raises(PartyError, match=rule):
        row_order.save_order(tmp_path, order(["a"], name=name))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(PartyError, match="needs a state-dir"):
        row_order.load_order(None, "q4")
    with pytest.raises(PartyError, match="has no alignment 'q4': use an existing"):
        row_order.load_order(tmp_path, "q4")
    row_order.save_order(tmp_path, order(["a"]))
    file = tmp_path / "alignment-q4.npz"
    file.rename(tmp_path / "alignment-q5.npz")
    with pytest.raises(PartyError, match="'q5' of this party is damaged or renamed"):
        row_order.load_order(tmp_path, "q5")
    about = {"format": row_order.FORMAT, "name": "q4", "tag": "ab"}
    ids = np.zeros((3, row_order.DIGEST_BYTES), np.uint8)
    stored = {"about": json.dumps(about), "salt": np.zeros(32, np.uint8), "ids": ids}
    np.savez(file, **stored)
    assert len(row_order.read_order(tmp_path, "q4").ids) == 3
    for write in (
        lambda: np.savez(file, **stored | {"about": json.dumps(about | {"format": 2})}),
        lambda: np.savez(file, **stored | {"ids": 1.0 * ids}),
        lambda: np.savez(file, **stored | {"ids": np.zeros((3, 17), np.uint8)}),
        lambda: np.savez_compressed(file, **stored),
        lambda: file.write_bytes(b"PK nothing"),
    ):
        write()
        with pytest.raises(PartyError, match="damaged or renamed, or has an unknown"):
            row_order.load_order(tmp_path, "q4")
    file.unlink()
    file.symlink_to(tmp_path / "alignment-q5.npz")
    with pytest.raises(PartyError, match="cannot be read: it is a symbolic link"):
        row_order.load_order(tmp_path, "q4")
