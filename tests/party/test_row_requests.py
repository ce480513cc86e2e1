"""What a party requests of clusters that can forget, by files of its own."""

import stat

import numpy as np
import pandas as pd
import pytest

from vfl_flower import Party, request_changes
from vfl_flower.party.row_requests import finish_requests, read_requests

MODEL = "0123456789abcdef"


@pytest.fixture
def party(tmp_path):
    return Party(np.zeros((3, 1)), ids=[4, 7, 9], name="a", state_dir=tmp_path / "a")


def test_requests_join_those_that_wait(party):
    request_changes(party, forget=[4, "x y"], leave=[MODEL])
    path = party.state_dir / "forget.txt"
    path.write_text(path.read_text() + "\n 9 ")  # with an editor
    request_changes(party, forget=np.array([7, 4]), add=pd.Series([np.int64(11)]))
    assert path.read_text() == "4\nx y\n9\n7\n"
    assert (party.state_dir / "add.txt").read_text() == "11\n"
    assert (party.state_dir / "leave.txt").read_text() == f"{MODEL}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(party.state_dir.stat().st_mode) == 0o700


MASK = np.array([True, False, True])


@pytest.mark.parametrize(
    "wrong",
    [
        *(MASK, pd.Series(MASK), MASK.tolist(), [1, True], [7, None], [7, np.nan]),
        *([7.0], [7, pd.NA], [7, b"x"], [[7]], "17", b"17", {7: 1}, 7, None),
        *(np.array([[7]]), pd.DataFrame({"id": [7]})),
        *(["a\nb"], [" a"], [""], ["\ud800"]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["forget", "add"])
def test_no_part_of_a_wrong_list_is_written(party, name, wrong):
    """Its valid ids neither, nor those of a valid list beside it."""
    request_changes(party, forget=[4])
    with pytest.raises(
        ValueError, match=rf"^{name} must (be a list, got|hold (ids|single))"
    ):
        request_changes(party, **({"forget": [7], "add": [7]} | {name: wrong}))
    assert read_requests(party.state_dir, "forget.txt") == {1: "4"}
    assert not (party.state_dir / "add.txt").exists()


def test_other_arguments_that_are_wrong(party):
    with pytest.raises(ValueError, match=r"^leave must hold ids of models"):
        request_changes(party, forget=[4], leave=["../x"])
    assert not party.state_dir.exists()
    party.state_dir = None
    with pytest.raises(ValueError, match=r"^party must have a state_dir"):
        request_changes(party, forget=[4])


def test_what_is_served_goes_and_the_rest_stays(party):
    request_changes(party, forget=[4, 7, 9])
    finish_requests(party.state_dir, "forget.txt", lambda ids: [i != "7" for i in ids])
    assert list(read_requests(party.state_dir, "forget.txt").values()) == ["7"]
    finish_requests(party.state_dir, "forget.txt", lambda ids: [True] * len(ids))
    assert not (party.state_dir / "forget.txt").exists()
