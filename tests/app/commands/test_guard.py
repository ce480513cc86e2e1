"""What a party's operator decides of its rows, on the command line."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from vfl_flower.app.commands.cli import app
from vfl_flower.party.journal import journal_of
from vfl_flower.party.party import PartyError
from vfl_flower.party.row_order import RowOrder, load_order, normal_ids, save_order
from vfl_flower.party.row_sets import ANCHOR, check_journal


def said(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def state(tmp_path):
    ids = normal_ids(np.arange(30))
    save_order(tmp_path, RowOrder.of("q4", "ab", bytes(32), ids))
    return tmp_path


def test_an_order_is_listed_and_accepted(state):
    assert said("align", state) == "q4: 30 rows, not accepted\n"
    with pytest.raises(PartyError, match="must be accepted"):
        load_order(state, "q4")
    assert "alignment 'q4' with 30 rows" in said("align", state, "--accept", "q4")
    assert said("align", state) == "q4: 30 rows, accepted\n"
    assert len(load_order(state, "q4").ids) == 30


def test_what_is_not_there_is_said_in_a_line(state, tmp_path):
    assert "has no alignment 'q5'" in said("align", state, "--accept", "q5", code=1)
    assert "has not taken part in a run" in said("journal", state, code=1)
    assert "has no row order: first align rows" in said("align", state / "none", code=1)
    assert "No such file" in said("journal", state / "none", "--confirm", code=1)


def test_a_lost_journal_is_confirmed(state):
    with journal_of(state, 1):
        pass
    (state / ANCHOR).write_text("3")
    path = state / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db:
        with pytest.raises(PartyError, match="lost or restored"):
            check_journal(db, path)
        assert said("journal", state) == f"row sets in {path}: 0\n"
        said("journal", state, "--confirm")
        check_journal(db, path)
