"""A protocol goes where a Flower strategy goes, and honours what it takes."""

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from vfl_flower import Ledger, Party
from vfl_flower.messages import unpack
from vfl_flower.models import LinearModel
from vfl_flower.simulations import InProcessGrid, simulate
from vfl_flower.strategies import (
    FDSKL,
    MUFC,
    STRATEGIES,
    CoresetVKMC,
    CoresetVRLR,
    FDSKLPrediction,
    FKKMeans,
    MUFCForgetClient,
    MUFCStatus,
    MUFCUnlearn,
)
from vfl_flower.strategies.base import ProtocolResult, ProtocolStrategy, Run
from vfl_flower.strategies.parties import Parties


class Trivial(ProtocolStrategy):
    """Record three models, and draw."""

    model_class = LinearModel

    def __init__(self, factor: float = 2.0, **base: Any) -> None:
        super().__init__(**base)
        self.factor = factor

    def settings(self) -> dict[str, Any]:
        """Return two of them."""
        return {"factor": self.factor, "seed": self.seed}

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Record."""
        for iteration in (0, 5, 10):
            model = LinearModel([np.full(p.n_columns, iteration) for p in parties])
            metrics = {"draw": float(run.rng("draw").random()), "t": iteration}
            run.record(iteration, model.to_record(), metrics if iteration else None)
        return model.to_record()


_kept = {"model": "0123456789abcdef", "server_state": "/state"}
SETTINGS: dict[type[ProtocolStrategy], dict[str, Any]] = {
    CoresetVRLR: {"size": 77, "sampling": "uniform", "protocol": "paper", "seed": 8},
    CoresetVKMC: {"size": 77, "sampling": "uniform", "protocol": "paper", "seed": 8},
    FDSKL: {"kernel": "laplacian", "bandwidth": 2.5, "masking": "plain", "seed": 8},
    FDSKLPrediction: {"model": "0123456789abcdef", "bits": 32, "n_parties": 3},
    FKKMeans: {"n_clusters": 3, "kernel": "laplacian", "gamma": 0.5, "seed": 8},
    MUFC: {"n_clusters": 3, "gamma": 0.5, "box": "0,1;2,3", "seed": 8},
    MUFCUnlearn: _kept | {"forget": "a:1,2;b:3", "seed": 8},
    MUFCForgetClient: _kept | {"clients": "a,b", "seed": 8},
    MUFCStatus: _kept | {"n_parties": 3},
}
"""Arguments other than the default ones, of each strategy."""


def test_settings_are_of_all_strategies():
    kinds = {kind for tasks in STRATEGIES.values() for kind in tasks.values()}
    assert kinds == set(SETTINGS)


@pytest.fixture
def grid(three) -> InProcessGrid:
    return InProcessGrid(three)


@pytest.mark.parametrize(("kind", "settings"), [*SETTINGS.items(), (Trivial, {})])
def test_is_a_flower_strategy(kind, settings):
    assert isinstance(kind(**settings), Strategy)
    assert isinstance(kind(**settings), ProtocolStrategy)


# -- the result ------------------------------------------------------------------------


def test_result(grid):
    result = Trivial(seed=3).start(grid)
    assert isinstance(result, Result)
    assert isinstance(result, ProtocolResult)
    assert isinstance(result.model, LinearModel)
    assert isinstance(result.ledger, Ledger)
    assert result.seed == 3
    assert result.ledger.round_trips == 1
    np.testing.assert_array_equal(result.arrays["coef_1"].numpy(), [10, 10])
    np.testing.assert_array_equal(result.model.coef_[1], [10, 10])
    assert list(result.train_metrics_clientapp) == [5, 10]
    assert isinstance(result.train_metrics_clientapp[5], MetricRecord)
    assert result.metrics == dict(result.train_metrics_clientapp[10])
    assert result.metrics["t"] == 10
    assert result.evaluate_metrics_serverapp == {}
    assert repr(result)


def test_metrics_of_a_strategy(three):
    result = simulate(CoresetVRLR(size=12, test_fraction=0.25, seed=1), three)
    assert list(result.train_metrics_clientapp) == [1]
    assert set(result.metrics) == {
        *("weight_sum", "train_loss", "sigma_min", "objective", "test_loss"),
    }
    model = LinearModel.from_arrays(result.arrays)
    X = [party.X for party in three]
    np.testing.assert_array_equal(model.predict(X), result.model.predict(X))


# -- evaluate_fn -----------------------------------------------------------------------


@pytest.mark.parametrize("answer", [MetricRecord({"mse": 1.5}), None])
def test_evaluate_fn_is_called_for_each_recorded_iteration(grid, answer):
    seen = []

    def evaluate(iteration, arrays):
        model = Trivial.model_class.from_arrays(arrays)
        seen.append((iteration, model.coef_[0][0]))
        return answer

    result = Trivial().start(grid, evaluate_fn=evaluate)
    assert seen == [(0, 0), (5, 5), (10, 10)]
    expected = {t: answer for t, _ in seen} if answer else {}
    assert result.evaluate_metrics_serverapp == expected


@pytest.mark.parametrize(
    "strategy",
    [CoresetVRLR(size=12), CoresetVRLR(size=12, solver="cg"), CoresetVKMC(2, size=12)],
    ids=["central", "cg", "k-means"],
)
def test_evaluate_fn_sees_the_start_and_the_end(grid, strategy):
    seen = {}

    def evaluate(iteration, arrays):
        seen[iteration] = strategy.model_class.from_arrays(arrays)
        return MetricRecord({"t": iteration})

    result = strategy.start(grid, evaluate_fn=evaluate)
    assert list(seen) == list(result.evaluate_metrics_serverapp) == [0, 1]
    assert all(np.concatenate(list(seen[0].arrays().values()), axis=None) == 0)
    for name, array in seen[1].arrays().items():
        np.testing.assert_array_equal(array, result.model.arrays()[name])


# -- what cannot be honoured -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("initial_arrays", LinearModel([np.zeros(2)]).to_record()),
        ("train_config", ConfigRecord({"lr": 0.1})),
        ("evaluate_config", ConfigRecord({"batch": 1})),
    ],
)
def test_settings_of_rounds_are_refused(grid, name, value):
    with pytest.raises(ValueError, match=name) as caught:
        CoresetVRLR(size=12).start(grid, **{name: value})
    assert str(caught.value) == (
        f"{name} must be None: CoresetVRLR takes its settings as arguments of its "
        "constructor"
    )
    assert grid._pushed == 0


def test_empty_settings_are_none(grid):
    Trivial().start(
        grid, train_config=ConfigRecord(), evaluate_config=ConfigRecord(), timeout=5
    )


@pytest.mark.parametrize("rounds", [0, 3])
def test_number_of_rounds_is_refused(grid, rounds):
    with pytest.raises(ValueError, match="num_rounds") as caught:
        CoresetVRLR(size=12).start(grid, num_rounds=rounds)
    assert str(caught.value) == (
        f"num_rounds must be None, got {rounds}: the protocol of CoresetVRLR sets its "
        "own number of round trips"
    )


@pytest.mark.parametrize("timeout", [0, -1.5, float("nan"), "5"])
def test_timeout_must_be_some_time(grid, timeout):
    sentence = f"timeout must be more than 0 seconds, got {timeout}"
    with pytest.raises(ValueError, match=sentence):
        Trivial().start(grid, timeout=timeout)
    assert grid._pushed == 0


@pytest.mark.parametrize(
    ("hook", "arguments"),
    [
        ("configure_train", (1, ArrayRecord(), ConfigRecord(), None)),
        ("aggregate_train", (1, [])),
        ("configure_evaluate", (1, ArrayRecord(), ConfigRecord(), None)),
        ("aggregate_evaluate", (1, [])),
    ],
)
def test_hooks_say_what_to_call(hook, arguments):
    with pytest.raises(NotImplementedError) as caught:
        getattr(CoresetVKMC(), hook)(*arguments)
    assert str(caught.value) == (
        f"CoresetVKMC is one protocol and has no {hook}: call start(grid) instead"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"masking": "none"}, "masking must be one of ring, plain, got 'none'"),
        ({"n_parties": -1}, "n_parties must be a whole number from 0, got -1"),
        ({"n_parties": 3.0}, "n_parties must be a whole number from 0, got 3.0"),
        ({"n_parties": 1}, "n_parties must be 0 or at least 2, got 1"),
        ({"seed": -1}, "seed must be a whole number from 0, got -1"),
        ({"seed": 1.0}, "seed must be a whole number from 0, got 1.0"),
        ({"seed": "1"}, "seed must be a whole number from 0, got '1'"),
        ({"seed": 2**63}, "seed must be below 2^63, got 9223372036854775808"),
    ],
)
def test_wrong_arguments(arguments, sentence):
    with pytest.raises(ValueError, match="must be") as caught:
        Trivial(**arguments)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5])
def test_seed_set_later_is_checked_before_any_message(grid, seed):
    strategy = Trivial()
    strategy.seed = seed
    with pytest.raises(ValueError, match=r"^seed must be "):
        strategy.start(grid)
    assert grid._pushed == 0


# -- seeds -----------------------------------------------------------------------------


class Told(InProcessGrid):
    """A grid that keeps what the server and the parties say."""

    def __init__(self, parties: list[Party]) -> None:
        super().__init__(parties)
        self.frames: list[dict[str, Any]] = []
        self.rows: list[list[int]] = []

    def push_messages(self, messages):
        """Keep the frames."""
        messages = list(messages)
        self.frames += [unpack(message.content)[1] for message in messages]
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        """Keep the rows that parties draw."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.message_type == "train.coresets_totals":
                self.rows.append(unpack(reply.content)[0]["rows"].tolist())
        return replies


def test_without_a_seed_each_party_draws_from_a_secret_of_its_own(three, monkeypatch):
    """And so it does although the server draws the same public seed again."""
    drawn = SimpleNamespace(randbits=lambda bits: 7)
    monkeypatch.setattr("vfl_flower.strategies.base.secrets", drawn)
    strategy = CoresetVRLR(size=12)
    grids = [Told(three), Told(three)]
    results = [strategy.start(grid) for grid in grids]
    assert [result.seed for result in results] == [None, None]
    assert strategy.seed is None
    for grid in grids:
        assert [frame["seed"] for frame in grid.frames[3:]] == [7] * 6
        assert [frame["private_draws"] for frame in grid.frames[3:]] == [True] * 6
    # The chance that 12 draws of 24 unlike rows are the same is below 1e-9.
    for one, other in zip(grids[0].rows, grids[1].rows, strict=True):
        assert one != other
    assert results[0].arrays.object_id != results[1].arrays.object_id
    seeded = Told(three)
    CoresetVRLR(size=12, seed=7).start(seeded)
    assert all(rows not in seeded.rows for grid in grids for rows in grid.rows)


def test_with_a_seed_the_parties_draw_the_same(three):
    grids = [Told(three), Told(three)]
    results = [CoresetVRLR(size=12, seed=7).start(grid) for grid in grids]
    for grid in grids:
        assert [frame["seed"] for frame in grid.frames[3:]] == [7] * 6
        assert [frame["private_draws"] for frame in grid.frames[3:]] == [False] * 6
    assert len(grids[0].rows) == 3
    assert grids[0].rows == grids[1].rows
    assert results[0].arrays.object_id == results[1].arrays.object_id


def test_server_draws_a_new_seed_where_none_is_given(three):
    seeds = set()
    for _ in range(2):
        grid = Told(three)
        CoresetVRLR(size=12).start(grid)
        seeds |= {frame["seed"] for frame in grid.frames[3:]}
    assert len(seeds) == 2
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_smallest_and_largest_seed(three, seed):
    one, two = (simulate(CoresetVKMC(2, size=12, seed=seed), three) for _ in range(2))
    assert one.seed == seed
    assert one.arrays.object_id == two.arrays.object_id


def test_streams_of_a_run():
    draws = {
        (seed, name): Run(seed).rng(name).integers(2**62)
        for seed in (0, 1)
        for name in ("allocate", "cluster")
    }
    assert len(set(draws.values())) == 4
    assert Run(1).rng("allocate").integers(2**62) == draws[1, "allocate"]


def test_server_and_parties_do_not_share_streams():
    party = Party(np.ones((2, 1)), index=0)
    party.seed = 5
    drawn = party.rng("draw").integers(2**62)
    assert Run(5).rng("draw").integers(2**62) != drawn


# -- the frame -------------------------------------------------------------------------


def test_what_each_message_tells_the_parties(three):
    class Telling(CoresetVRLR):
        def frame(self) -> dict[str, Any]:
            return {"topic": "delays"}

    grid, other = Told(three), Told(three)
    Telling(size=12).start(grid)
    CoresetVRLR(size=12).start(other)
    hello, told = grid.frames[:3], grid.frames[3:]
    assert not any("topic" in frame for frame in hello)
    assert [frame["topic"] for frame in told] == ["delays"] * 6
    for frame, plain in zip(grid.frames, other.frames, strict=True):
        assert set(frame) - {"topic"} == set(plain)


def test_a_prediction_tells_of_which_model(three):
    model = "0123456789abcdef"
    assert FDSKLPrediction(model).frame() == {"model": model}
    assert CoresetVRLR(size=12).frame() == FDSKL().frame() == {}


@pytest.mark.parametrize(
    ("masking", "told"), [("odd", "ring"), ("ring", "ring"), ("plain", "plain")]
)
def test_maskings_of_a_strategy(three, masking, told):
    """What hides its own sums is its own matter; all others are masked or plain."""

    class Odd(CoresetVRLR):
        maskings = ("odd", "ring", "plain")

    grid, strategy = Told(three), Odd(size=12)
    strategy.masking = masking
    strategy.start(grid)
    assert {frame["masking"] for frame in grid.frames[3:]} == {told}
    with pytest.raises(ValueError, match="masking must be one of ring, plain, got"):
        CoresetVRLR(size=12, masking="odd")
    sentence = "masking must be one of circle, paper, plain, got 'ring'"
    with pytest.raises(ValueError, match=sentence):
        FDSKL(masking="ring")


# -- the log ---------------------------------------------------------------------------


def test_settings_are_logged_at_the_start(grid, caplog):
    caplog.set_level(logging.INFO, "vfl_flower")
    CoresetVRLR(size=12, seed=4, protocol="paper").start(grid)
    line = caplog.messages[0]
    assert line.startswith("CoresetVRLR(size=12, regularizer='none', alpha=0.0")
    assert "protocol='paper'" in line
    assert "seed=4" in line


@pytest.mark.parametrize(("kind", "settings"), SETTINGS.items())
def test_settings_make_the_strategy_again(kind, settings):
    made = kind(**settings)
    again = kind(**made.settings())
    assert again.settings() == made.settings()
    assert again.settings() | settings == again.settings()


def test_summary_of_a_subclass(caplog):
    caplog.set_level(logging.INFO, "vfl_flower")
    Trivial(factor=3.0, seed=1).summary()
    assert caplog.messages == ["Trivial(factor=3.0, seed=1)"]


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (FKKMeans, "allow_two_parties"),
        (FKKMeans, "standardize"),
        (FKKMeans, "cem"),
        (FKKMeans, "allow_missing"),
        (FDSKL, "allow_two_parties"),
        (CoresetVRLR, "allow_two_parties"),
        (CoresetVRLR, "fit_intercept"),
        (MUFC, "allow_missing"),
        (partial(MUFCUnlearn, "0123456789abcdef"), "lazy_counts"),
    ],
)
def test_what_is_true_or_false_is_nothing_else(strategy, name):
    with pytest.raises(ValueError, match=f"{name} must be True or False, got 'no'"):
        strategy(**{name: "no"})
