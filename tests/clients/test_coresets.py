"""What a party refuses when it is asked for a coreset, or for a linear model on one."""

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.clients.coresets import gram, linear, prediction
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.clients.coresets.sampling import Clustering, WeightedRows
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, structure

N = 12


@pytest.fixture
def party() -> Party:
    """Return a party in the first step of a run."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    party = Party(X, X.sum(axis=1) + rng.normal(size=N), index=0)
    party.n_parties = 3
    return party


NONE, ROWS = np.ones(0), np.arange(2)
SIZES = {"n_rows": N, "n_columns": 2}
EITHER = "exactly one of intercept and clustering"
LINEAR = {"method": "cg", "n": N, "l2": 0.0, "intercept": True, "test_fraction": 0.0}


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({}, EITHER),
        ({"intercept": True, "clustering": Clustering(2, "lloyd", 2.0)}, EITHER),
        ({"clustering": Clustering(N + 1, "lloyd", 2.0)}, "n_clusters .* 12, .* 13"),
        ({"intercept": True, "test_fraction": 0.99}, "must not hold out all 12 rows"),
        ({"intercept": True, "size": 2**12 + 1}, "size must be at most 4096"),
    ],
)
def test_totals_that_a_party_refuses(party, arguments, rule):
    with pytest.raises(PartyError, match=rule):
        coresets.totals(party, **{"size": 0, "test_fraction": 0.0} | arguments)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({}, "either rows or both start and stop"),
        ({"start": 0}, "either rows or both start and stop"),
        ({"rows": ROWS, "start": 0, "stop": 2}, "must not be given together with rows"),
        ({"test_fraction": 0.99, "start": 0, "stop": 2}, "test_fraction must not"),
    ],
)
def test_rows_that_a_party_does_not_pool(party, arguments, rule):
    given = {"test_fraction": 0.0, "labels": True} | arguments
    with pytest.raises(PartyError, match=rule):
        coresets.pooled_rows(party, **given)


@pytest.mark.parametrize(
    "ask",
    [
        lambda p: coresets.totals(p, size=0, test_fraction=0.0, intercept=False),
        lambda p: linear.start(p, **LINEAR),
    ],
)
def test_labels_of_some_rows_are_not_enough(party, ask):
    party.y = np.where(np.arange(N) < 3, np.nan, party.y)
    with pytest.raises(PartyError, match="must have labels for all of its rows"):
        ask(party)


def test_a_message_has_so_many_distances_at_most(party, monkeypatch):
    ask = {"test_fraction": 0.0, "start": 0, "stop": N}
    monkeypatch.setattr(coresets, "MOST_DISTANCES", 2 * N)
    assert coresets.distances(party, centers=np.ones((2, 2)), **ask)
    with pytest.raises(PartyError, match="got the distances from 12 rows to 3 cent"):
        coresets.distances(party, centers=np.ones((3, 2)), **ask)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e-101, 1e101])
def test_weights_that_no_coreset_has(weight):
    coreset = {"coreset.rows": ROWS, "coreset.weights": np.array([1.0, weight])}
    with pytest.raises(ContractError, match="'weights' must hold numbers from 1e-100"):
        structure(linear.start.contract.request, coreset | LINEAR, dict(SIZES))


def test_row_numbers_that_are_truth_values(party):
    """NumPy takes an index of truth values as a mask; here they are rows 1, 0 and 1."""
    rows = np.array([True, False, True])
    sent = coresets.pooled_rows(party, test_fraction=0.0, labels=True, rows=rows)
    np.testing.assert_array_equal(sent["X"], party.X[[1, 0, 1]])


@pytest.mark.parametrize(
    ("method", "ask", "rule"),
    [
        ("saga", lambda p: linear.cg(p, np.ones(2), 0.1, 0.1), "earlier step"),
        ("cg", lambda p: linear.proximal(p, np.ones(2), 1.0, 0.5), "earlier step"),
        ("cg", lambda p: linear.saga(p, ROWS, NONE, 0.1, 0.0), "earlier"),
        ("cg", lambda p: linear.cg(p, np.ones(3), 0.1, 0.1), "each of the 2 rows"),
        ("saga", lambda p: linear.saga(p, np.array([2]), NONE, 0.1, 0.0), "below 2"),
        ("saga", lambda p: linear.saga(p, ROWS, np.ones(1), 0.1, 0.0), "earlier"),
        ("proximal", lambda p: linear.proximal(p, np.full(2, 1e308), 1.0, 0), "over"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_iterations_that_a_party_refuses(party, method, ask, rule):
    coreset = WeightedRows(ROWS, np.ones(2))
    linear.start(party, **LINEAR | {"method": method, "coreset": coreset})
    with pytest.raises(PartyError, match=rule):
        ask(party)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_columns_that_are_too_large_to_square(party):
    party.X = party.X * 1e200
    with pytest.raises(PartyError, match="in this party's columns, are too large"):
        linear.start(party, **LINEAR)


def test_of_many_rows_some_decide_how_all_are_clipped(party, monkeypatch):
    """Two columns of 12 rows: every sixth of them holds 4 numbers."""
    monkeypatch.setattr(gram, "PART_NUMBERS", 4)
    seen = []
    monkeypatch.setattr(gram, "row_clip", lambda X, *rest: seen.append(X) or np.eye(0))
    gram._gram_columns(party, np.arange(N), np.ones(N), N, intercept=True)
    np.testing.assert_array_equal(seen, [party.X[::6]])


def test_a_column_of_a_single_row_is_left_out_and_the_log_names_it(caplog):
    X = np.zeros((60, 2))
    X[:, 0], X[5, 1] = np.arange(60) % 7, 1
    party = Party(X, index=0, columns=["delay", "rare"])
    columns = gram._gram_columns(party, np.arange(60), np.ones(60), 60, intercept=True)
    assert columns.left_out == 1
    assert not columns.A[:, 1].any()
    assert "columns left out of the model: ['rare']" in caplog.text


def test_predictions_of_rows_held_out_are_counted(party):
    shared = []
    party.share = lambda rows, kind: shared.append((kind, sorted(rows)))
    prediction.held_out(party, np.ones(2), 1.0, 0.25, test=True, train=True)
    test, train = coresets.test_rows(party, 0.25), coresets.training_rows(party, 0.25)
    assert len(test) == 3
    assert shared == [("predictions", sorted(rows)) for rows in (test, train)]
