"""Predictions by blocks of a model that the parties keep, against the whole model."""

import csv
import dataclasses
import functools
import math
from contextlib import nullcontext

import numpy as np
import pytest
from consents import letting
from deviating import RealParties
from federations import MODEL, by_columns, hand_out
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from vfl_flower import CoresetVKMC, CoresetVRLR, FederationError, Party, PartyFailed
from vfl_flower.clients.coresets import prediction as party
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, structure
from vfl_flower.protocol.steps import Sum, each, opened
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies import CoresetEvaluation, CoresetPrediction

N, HOLDER = 200, 2


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)) + 3 * rng.integers(3, size=(n, 1))
    return X, X @ np.arange(6.0) + 2 + rng.normal(size=n)


def parties(folder, X, y, count=3):
    return by_columns(X, y, count, names="{}", folder=folder)


MODELS = {
    "gram": CoresetVRLR(sampling="full"),
    "central": CoresetVRLR(100, solver="central"),
    "cg": CoresetVRLR(100, solver="cg", fit_intercept=False),
    "k-means": CoresetVKMC(3, size=100),
}


def trained(folder, name, count=3):
    """Return the model, whose parts are in the folders of the parties."""
    settings = {"allow_two_parties": True} if name == "cg" else {}
    strategy = MODELS[name].replace(seed=1, **settings)
    return strategy.start(InProcessGrid(parties(folder, *data(), count))).model


@pytest.mark.parametrize(
    ("name", "count"),
    [("gram", 3), ("central", 2), ("cg", 3), ("k-means", 2), ("k-means", 3)],
)
def test_predictions_are_those_of_the_whole_model(name, count, tmp_path, monkeypatch):
    """In blocks of 30 rows; the receiver has them, by the numbers of the rows.

    Of two parties only where it is allowed.
    """
    monkeypatch.setattr(party, "MOST_SUMS", 90)
    model = trained(tmp_path, name, count)
    X, y = data(70, seed=3)
    grid = InProcessGrid(parties(tmp_path, X, y, count))
    if count == 2:
        with pytest.raises(FederationError, match="at least three parties"):
            CoresetPrediction(model.id).start(grid)
    result = CoresetPrediction(model.id, allow_two_parties=True).start(grid)
    assert result.metrics == {"rows": 70}
    receiver = 0 if name == "k-means" else count - 1
    (path,) = (tmp_path / str(receiver)).glob("predictions-*.csv")
    with path.open() as file:
        written = [float(row["prediction"]) for row in csv.DictReader(file)]
    expected = model.predict(np.array_split(X, count, axis=1))
    np.testing.assert_allclose(written, expected, rtol=1e-9, atol=1e-9)
    for other in set(range(count)) - {receiver}:
        assert not list((tmp_path / str(other)).glob("*.csv"))


def assert_errors(metrics, y, predicted, rel):
    near = functools.partial(pytest.approx, rel=rel)
    assert metrics["test_rows"] == len(y)
    assert metrics["test_loss"] == near(mean_squared_error(y, predicted))
    assert metrics["test_mae"] == near(mean_absolute_error(y, predicted))
    assert metrics["test_r2"] == near(r2_score(y, predicted))


def test_what_a_regression_is_worth_on_new_rows(tmp_path):
    model = trained(tmp_path, "gram")
    X, y = data(90, seed=3)
    y[:20] = np.nan
    result = CoresetEvaluation(model.id).start(InProcessGrid(parties(tmp_path, X, y)))
    predicted = model.predict(np.array_split(X, 3, axis=1))[20:]
    assert_errors(result.metrics, y[20:], predicted, 1e-6)
    spread = ((y[20:] - predicted) ** 2).std(ddof=1) / math.sqrt(70)
    assert result.metrics["test_loss_se"] == pytest.approx(spread, rel=1e-6)
    assert result.ledger.round_trips == 4
    assert not list((tmp_path / "2").glob("*.csv"))


def test_what_clusters_are_worth_on_new_rows(tmp_path):
    model = trained(tmp_path, "k-means")
    X, _ = data(90, seed=3)
    grid = InProcessGrid(parties(tmp_path, X, None))
    result = CoresetEvaluation(model.id).start(grid)
    centers = np.hstack(model.cluster_centers_)
    squares = ((X[:, None] - centers) ** 2).sum(axis=2).min(axis=1)
    assert result.metrics["test_loss"] == pytest.approx(squares.mean())
    assert result.curves == {}


@pytest.mark.parametrize(("labels", "rows"), [(19, 0), (20, 20)])
def test_of_few_labels_nothing_is_told(labels, rows, tmp_path):
    """The error of one row would be nearly its label."""
    model = trained(tmp_path, "gram")
    X, y = data(90, seed=3)
    y[labels:] = np.nan
    grid = InProcessGrid(parties(tmp_path, X, y))
    metrics = CoresetEvaluation(model.id).start(grid).metrics
    assert metrics["test_rows"] == rows
    assert ("test_loss" in metrics) == (rows > 0)


def greeted(folder, model):
    """Return a server of its own that has greeted the parties, with 70 new rows."""
    grid = InProcessGrid(parties(folder, *data(70)))
    asked = Parties(Exchange(grid), model=model.id)
    asked.ask(party.part)
    return asked


def sum_of(asked, start, stop):
    """Ask for the sums of some rows, which the first party can open."""
    wanted = party.addends.summing(sums=Sum(2.0**20, to=0))
    return opened(asked.ask_exactly(wanted, start=start, stop=stop).sealed["sums"])


def test_sums_are_those_of_the_next_block(tmp_path, monkeypatch):
    """Neither of a part of it, nor of another one of other length.

    The mean distance of one row, sixty times, was its distance to 3e-13.
    """
    monkeypatch.setattr(party, "MOST_SUMS", 90)
    model = trained(tmp_path, "k-means")
    for start, stop in ((0, 29), (1, 31), (5, 6), (30, 61), (60, 90)):
        with pytest.raises(PartyFailed, match="must be a block of 30 rows or the last"):
            sum_of(greeted(tmp_path, model), start, stop)
    asked = greeted(tmp_path, model)
    sums = sum_of(asked, 60, 70)
    with pytest.raises(PartyFailed, match="sums must cover the next 30 rows, got 10"):
        asked.ask_one(0, party.answer, sums=sums, evaluate=False, last=False)


def keeping(kind="k-means", receiver=1):
    """Return the second of three parties, with 40 rows and its block of a model."""
    member = Party(data(40)[0][:, 2:4], name="p1", index=1)
    member.n_parties, member.session = 3, 5
    party.keep(member, kind, np.eye(2)[: 1 + (kind == "k-means")], 0.0, receiver)
    return member


def answered(member):
    party.answer(member, np.ones(80), evaluate=True, last=True)
    member.recall(party.PredictionState).values = np.zeros(0)
    return member


@pytest.mark.parametrize(
    ("member", "values", "rule"),
    [
        # Each party that has a mean of its own would tell it for other centres.
        (keeping(receiver=0), {}, "sent to the model's receiver, for all"),
        (keeping(), {"sums": np.ones(79)}, "sent to the model's receiver, for"),
        (keeping(), {"sums": np.ones(60)}, "the next 40 rows, got 30"),
        (answered(keeping()), {}, "only once in a session"),
        (keeping("linear"), {"sums": np.ones(40)}, "holds no labels"),
        (Party(np.ones((40, 2))), {}, "neither a linear model nor centres"),
    ],
)
def test_sums_that_a_party_does_not_answer(member, values, rule):
    values = {"sums": np.ones(80), "evaluate": True, "last": True} | values
    with pytest.raises(PartyError, match=rule):
        party.answer(member, **values)


def test_the_mean_of_some_rows_is_not_told(monkeypatch):
    """A server reads a block of rows, or few of them, if it says too soon `last`."""
    monkeypatch.setattr(party, "MOST_SUMS", 60)
    with pytest.raises(PartyError, match="must cover all 40 rows"):
        party.answer(keeping(), np.ones(60), evaluate=True, last=True)


def test_models_that_the_server_chooses_tell_how_many_have_a_label(tmp_path):
    """Of the model b alone MAE(b) = mean |y - b|, which bends at each label.

    A limit of moments ends it: see test_curves.py.
    """
    ages = np.repeat([1.0, 2.0, 4.0, 7.0], [3, 9, 2, 16])
    federation = parties(tmp_path, np.zeros((30, 6)), ages)
    for member in federation:
        member.ids, member.consent = np.arange(30), letting("predictions", "moments")

    def error(b):
        grid = RealParties(hand_out(federation, np.zeros(6), b))
        return CoresetEvaluation(MODEL).start(grid).metrics["test_mae"]

    bends = np.diff([error(b) for b in range(10)], 2) * len(ages) / 2
    np.testing.assert_allclose(bends, [3, 9, 0, 2, 0, 0, 16, 0], atol=1e-6)


def test_other_parties_or_columns_than_in_training(tmp_path):
    new = parties(tmp_path, *data(40))
    predict = CoresetPrediction(trained(tmp_path, "central").id)
    swapped = [
        dataclasses.replace(new[j], state_dir=new[k].state_dir)
        for j, k in ((0, 1), (1, 0), (2, 2))
    ]
    with pytest.raises(FederationError, match="the same index as in training"):
        predict.start(InProcessGrid(swapped))
    wider = [Party(np.zeros((40, 3)), state_dir=new[0].state_dir), *new[1:]]
    with pytest.raises(PartyFailed, match="must have the 2 training columns"):
        predict.start(InProcessGrid(wider))
    with pytest.raises(PartyFailed, match="no local model"):
        CoresetPrediction(MODEL).start(InProcessGrid(new))


def test_without_a_state_dir_nothing_is_kept(tmp_path):
    federation = parties(tmp_path, *data())
    federation[1].state_dir = None
    assert not MODELS["gram"].start(InProcessGrid(federation)).model.id
    assert not list(tmp_path.glob("*/*.npz"))


@pytest.mark.parametrize(("outputs", "taken"), [(1024, True), (1025, False)])
def test_a_party_keeps_no_model_of_any_size(outputs, taken):
    """No kind is asked for, and the part lies on the party's disk."""
    sizes = {"n_rows": 9, "n_columns": 2, "n_parties": 3}
    message = {"kind": "k-means", "intercept": 0.0, "receiver": 2}
    message["weights"] = np.zeros((outputs, 2))
    refused = pytest.raises(ContractError, match="weights")
    with nullcontext() if taken else refused:
        structure(party.keep.contract.request, message, sizes)


# -- in training -----------------------------------------------------------------------

ROWS = {"test_fraction": 0.3, "test": True, "train": False}


@pytest.mark.parametrize(
    ("name", "scale"), [("gram", 1), ("central", 1e-6), ("cg", 1), ("cg", 1e6)]
)
def test_the_label_holder_evaluates_the_model_of_training(name, scale, tmp_path):
    X, y = data()
    X[:, 1] += 1e3  # means that cancel
    y *= scale
    strategy = MODELS[name].replace(test_fraction=0.3, evaluate="full", seed=1)
    result = strategy.start(InProcessGrid(parties(tmp_path, X, y)))
    predicted = result.model.predict(np.array_split(X, 3, axis=1))
    train, test = split_rows(N, 0.3, 1)
    assert_errors(result.metrics, y[test], predicted[test], 1e-9)
    loss = mean_squared_error(y[train], predicted[train])
    assert result.metrics["full_train_loss"] == pytest.approx(loss, rel=1e-9)
    assert result.evaluation.round_trips == 2
    dealt = {a for a in result.ledger.waits if "deal" in a or "products" in a}
    assert dealt == ({"products_multiply"} if name == "gram" else set())


@pytest.mark.parametrize(("rows", "reported"), [(63, False), (67, True)])
def test_nineteen_rows_held_out_have_no_error(rows, reported, tmp_path, caplog):
    """The mean error of few rows is nearly that of each."""
    strategy = CoresetVRLR(20, solver="central", test_fraction=0.3, seed=0)
    result = strategy.start(InProcessGrid(parties(tmp_path, *data(rows))))
    assert ("test_loss" in result.metrics) == reported
    assert ("there is no test_loss" in caplog.text) != reported


@pytest.mark.parametrize("allowed", [False, True])
def test_two_parties_evaluate_only_where_it_is_allowed(allowed, tmp_path, caplog):
    """The label holder takes its own addend off each prediction."""
    grid = InProcessGrid(parties(tmp_path, *data(), 2))
    strategy = CoresetVRLR(50, solver="central", seed=0, allow_two_parties=allowed)
    metrics = strategy.replace(test_fraction=0.3).start(grid).metrics
    assert ("test_loss" in metrics) == allowed
    assert ("would learn the other party's contribution" in caplog.text) != allowed
    full = strategy.replace(evaluate="full")
    if allowed:
        assert "full_train_loss" in full.start(grid).metrics
    else:
        with pytest.raises(FederationError, match="at least three parties"):
            full.start(grid)


def holding(width=2):
    """Return a party with 100 rows, and how a deviating server asks it for some."""
    X, y = data(100)
    X = np.resize(np.abs(X) + 2, (100, width))
    member = Party(X, y, name="p2", index=2)
    member.n_parties, member.session, member.seed = 3, 5, 0
    values = {"coefficients": np.eye(width)[0], "intercept": 0.0} | ROWS
    return member, functools.partial(party.held_out, member, **values)


def held_out_by(asked, high=party.HIGH):
    """Ask, as a server of its own, for the limbs that the third party can open."""
    wanted = party.held_out.summing(high=Sum(high, to=2), low=Sum(party.LOW, to=2))
    model = each([np.ones(2)] * 3)
    return asked.ask(wanted, coefficients=model, intercept=0.0, **ROWS).sealed


@pytest.mark.parametrize("kinds", [(), ("predictions",), ("moments",)])
def test_a_strict_party_evaluates_nothing_in_training(kinds, tmp_path):
    """Neither where the label holder changes its consent file in between."""
    federation = parties(tmp_path, *data())
    for member in federation:
        member.ids = np.arange(N)
        member.consent = letting("predictions", "moments", allow_seed=True)
    grid = RealParties(federation)
    asked = Parties(Exchange(grid), seed=0)
    sealed = {name: opened(limb) for name, limb in held_out_by(asked).items()}
    strict = letting(*kinds, allow_seed=True)
    for member in grid._parties.values():
        member.consent, member.releases = strict, None
    if "moments" not in kinds:
        with pytest.raises(PartyFailed, match="does not allow moments"):
            asked.ask_one(2, party.errors, **sealed, unit=1.0, **ROWS)
    federation[0].consent = strict
    missing = "moments" if "predictions" in kinds else "predictions"
    with pytest.raises(PartyFailed, match=f"consent does not allow {missing}"):
        held_out_by(Parties(Exchange(RealParties(federation)), seed=0))


def test_a_sum_that_clips_addends_is_refused(tmp_path):
    """The server would learn how many addends are above the bound, again and again."""
    asked = Parties(Exchange(InProcessGrid(parties(tmp_path, *data()))), seed=0)
    refusals = FederationError, PartyFailed
    with pytest.raises(refusals, match="power of two and at least"):
        held_out_by(asked, high=2.0)


@pytest.mark.parametrize(
    "model", [(1e300, 1e300), (-1e300, -1e300), (1.7e308, -1.7e308)]
)
def test_predictions_that_overflow_are_not_refused(model):
    """The server chooses the coefficients, and would learn which rows are large."""
    member, ask = holding(width=32)
    reply = ask(coefficients=np.resize(model, 32))
    assert set(np.abs(reply["high"] + reply["low"])) <= {0.0, party.HIGH}
    high, low = reply["high"], reply["low"]
    errors = party.errors(member, high, low, unit=1e50, **ROWS)
    assert "test_loss" in errors or errors == {}


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"high": np.zeros(29), "low": np.zeros(29)}, "the evaluated rows, got 29"),
        ({"test": False}, "test or train must be true"),
    ],
)
def test_errors_are_of_all_rows_held_out(values, rule):
    member, _ = holding()
    values = {"high": np.zeros(30), "low": np.zeros(30), "unit": 1.0} | ROWS | values
    with pytest.raises(PartyError, match=rule):
        party.errors(member, **values)


class Accepting:
    """Row sets of a party on a SuperNode, of which none is refused."""

    def check(self, rows, weights, by_choice):
        pass


@pytest.mark.parametrize(("rows", "reported"), [(19, False), (20, True)])
def test_errors_of_nineteen_rows_are_neither_reported_nor_refused(rows, reported):
    """The server chooses how many rows are held out."""
    member, _ = holding()
    member.row_sets = Accepting()
    asked = ROWS | {"test_fraction": rows / 100, "unit": 1.0}
    reply = party.errors(member, high=np.zeros(rows), low=np.zeros(rows), **asked)
    assert ("test_loss" in reply) == reported
