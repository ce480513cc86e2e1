"""What a party with labels tells of a model, and what the server records of it."""

import numpy as np
import pytest
from federations import by_columns

from vfl_flower import FDSKLDirect, Party
from vfl_flower.clients.evaluation import NAMES, hides_each, measures_of
from vfl_flower.party.party import PartyError
from vfl_flower.simulation import InProcessGrid, simulate

N = 200


def classes_of(positives):
    """Return a party, its labels 7 and 3, of which the second class has so many."""
    y = np.where(np.arange(N) < positives, 7.0, 3.0)
    return Party(np.zeros((N, 1)), y=y), y


def test_numbers_of_two_classes():
    party, y = classes_of(60)
    scores = np.linspace(1, -1, N)
    answer = np.where(scores > 0, 7.0, 3.0)
    own = np.where(y == 7, 0.75, 0.5)
    actual = measures_of(party, y, answer, "binary", np.array([3.0, 7.0]), scores, own)
    assert set(actual) <= set(NAMES)
    assert actual["test_rows"] == N
    assert actual["test_error"] == pytest.approx(0.2)  # 100 taken for 60
    assert actual["test_base_error"] == pytest.approx(0.3)
    assert actual["test_auc"] == 1.0
    assert actual["test_true_positives"] == 60
    assert actual["test_false_positives"] == 40
    expected = 0.3 * np.log(4 / 3) + 0.7 * np.log(2)
    assert actual["test_log_loss"] == pytest.approx(expected)
    assert actual["test_brier"] == pytest.approx(0.3 / 16 + 0.7 / 4)


@pytest.mark.parametrize(("positives", "named"), [(0, False), (19, False), (20, True)])
def test_a_class_of_few_rows_is_not_counted(positives, named):
    """Counts of a class of few rows say of known members what the model says."""
    party, y = classes_of(positives)
    known = np.array([3.0, 7.0])
    actual = measures_of(party, y, y, "binary", known, np.zeros(N), np.ones(N))
    of_classes = {n for n in actual if "positives" in n or "auc" in n or "base" in n}
    assert bool(of_classes) is named
    assert actual["test_error"] == actual["test_log_loss"] == 0.0


def test_several_classes_have_no_positive_one():
    y = np.repeat([0.0, 1.0, 2.0], [60, 70, 70])
    party = Party(np.zeros((N, 1)), y=y)
    actual = measures_of(party, y, np.ones(N), "multiclass", np.arange(3.0))
    names = "test_rows", "test_error", "test_error_se", "test_base_error"
    assert set(actual) == {*names}
    assert actual["test_error"] == actual["test_base_error"] == pytest.approx(0.65)


@pytest.mark.parametrize(("rows", "shown"), [(19, False), (20, True)])
def test_a_party_shows_no_table_with_a_class_of_few_rows(rows, shown):
    y = np.repeat([0.0, 1.0, 2.0], [rows, 90, N - 90 - rows])
    party = Party(np.zeros((N, 1)), y=y)
    actual = measures_of(party, y, y, "multiclass", np.arange(3.0), curves=True)
    assert ("curve_confusion" in actual) is shown


def test_an_error_that_overflows():
    party, y = classes_of(60)
    with pytest.raises(PartyError, match="mean squared error is not finite"):
        measures_of(party, y, np.full(N, 1e200), "continuous", np.zeros(0))


@pytest.mark.parametrize(("labels", "least"), [(200, 20), (30, 15), (1, 1)])
def test_a_mean_hides_each_of_twenty_rows_that_are_there_once(labels, least):
    """Of a party with fewer labels half of them are enough, but one at least."""
    party = Party(np.zeros((N, 1)), y=np.where(np.arange(N) < labels, 1.0, np.nan))
    assert hides_each(party, np.arange(least))
    assert not hides_each(party, np.arange(least - 1))
    with pytest.raises(PartyError, match="on each row only once"):
        hides_each(party, np.append(np.arange(40), 7))


def test_what_the_server_records_of_a_model(caplog):
    """Which rows it lacks too; in one process it has the local models in the end."""
    X, seen = np.random.default_rng(0).normal(size=(60, 3)), {}
    parties = by_columns(X, X[:, 0] > 0)
    strategy = FDSKLDirect(loss="square", features=8, bandwidth=2.0)
    with caplog.at_level("INFO", "vfl_flower"):
        made = strategy.start(InProcessGrid(parties), evaluate_fn=seen.setdefault)
    assert f"model {made.model.id}" in caplog.messages
    assert list(seen) == [0, 1]
    assert (made.model.parts, made.model.widths) == (None, [1, 1, 1])
    assert (made.warnings, caplog.text.count("held out")) == ((), 0)
    strategy = strategy.replace(budget=8 * 20 * 2, test_fraction=0.001)
    result = simulate(strategy, parties)
    assert [*result.train_metrics_clientapp] == [1]
    assert result.model.predict(np.split(X, 3, axis=1)).shape == (60,)
    assert result.warnings[0].startswith("40 of 60 rows to train on are left out: ")
    assert "test_fraction is 0.001, and there are only 60 rows" in caplog.text
