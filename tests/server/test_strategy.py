"""A protocol goes where a Flower strategy goes, and honours what it takes."""

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result
from transcripts import Listening

from vfl_flower import CoresetVKMC, CoresetVRLR, Ledger, Party
from vfl_flower.models.coresets import LinearModel
from vfl_flower.protocol.messages import unpack
from vfl_flower.protocol.settings import Positive, settings, settings_of, values_of
from vfl_flower.server.checkpoint import Checkpoint
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolResult, ProtocolStrategy, Run
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies import algorithms


@settings
class Trivial(ProtocolStrategy):
    factor: Positive = 2.0
    """What nothing depends on."""

    model_class = LinearModel

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        for iteration in (0, 5, 10):
            model = LinearModel([np.full(p.n_columns, iteration) for p in parties])
            metrics = {"draw": float(run.rng("draw").random()), "t": iteration}
            run.record(iteration, model.to_record(), metrics if iteration else None)
        return model.to_record()


NEEDED: dict[str, Any] = {
    "model_id": "0123456789abcdef",
    "server_state": "/state",
    "clients": "a",
}
"""Arguments that strategies need, by name."""

KINDS = [
    pytest.param(kind, id=kind.__name__)
    for kinds in algorithms().values()
    for kind in kinds
]


def made(kind: type[ProtocolStrategy], **arguments: Any) -> ProtocolStrategy:
    needed = [s.name for s in settings_of(kind) if s.name in NEEDED]
    return kind(**{name: NEEDED[name] for name in needed} | arguments)


@pytest.fixture
def grid(three) -> InProcessGrid:
    return InProcessGrid(three)


# -- every strategy --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_says_what_it_means(kind):
    assert len(settings_of(kind)) <= 20
    for setting in settings_of(kind):
        assert setting.text, setting.name
        assert setting.text.endswith((".", ")")), setting.name
        assert f"\n{setting.name} : {setting.rule}" in kind.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_of_another_type_or_name_is_refused_by_it(kind):
    for setting in settings_of(kind):
        rule = f"^{setting.name} must be .* got 271828j"
        with pytest.raises(ValueError, match=rule):
            made(kind, **{setting.name: 271828j})
    with pytest.raises(TypeError, match=rf"{kind.__name__}: .*'weather'"):
        made(kind, weather=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_strategy_is_made_again_from_its_settings(kind):
    strategy = made(kind, n_parties=3)
    again = strategy.replace()
    assert type(again) is kind
    assert values_of(again) == values_of(strategy)
    assert strategy.replace(n_parties=5).n_parties == 5
    assert strategy.n_parties == 3


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
    [
        CoresetVRLR(size=12, solver="central"),
        CoresetVRLR(size=12, solver="cg"),
        CoresetVKMC(n_clusters=2, size=12),
    ],
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
        ("num_rounds", 0),
        ("num_rounds", 3),
        *(("timeout", value) for value in (0, -1.5, float("nan"), "5")),
    ],
)
def test_an_argument_that_a_protocol_cannot_honour(grid, name, value):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Trivial().start(grid, **{name: value})
    assert grid._pushed == 0


def test_empty_settings_are_none(grid):
    Trivial().start(
        grid, train_config=ConfigRecord(), evaluate_config=ConfigRecord(), timeout=5
    )


@pytest.mark.parametrize("phase", ["train", "evaluate"])
@pytest.mark.parametrize("hook", ["configure", "aggregate"])
def test_hooks_say_what_to_call(hook, phase):
    sentence = r"Trivial is one protocol without rounds: call start\(grid\)"
    with pytest.raises(NotImplementedError, match=sentence):
        getattr(Trivial(), f"{hook}_{phase}")(1, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("seed", value) for value in (-1, 1.5, 2**63)),
        *(("n_parties", value) for value in (-1, 1)),
        ("masking", "x"),
    ],
)
def test_a_setting_that_was_changed_is_checked_before_any_message(grid, name, value):
    strategy = Trivial()
    setattr(strategy, name, value)
    with pytest.raises(ValueError, match=f"^{name} must be .* got {value!r}"):
        strategy.start(grid)
    assert grid._pushed == 0


def test_a_strategy_checks_before_any_message(grid):
    class Careful(Trivial):
        def check(self) -> None:
            raise ValueError("the state is gone")

    with pytest.raises(ValueError, match="the state is gone"):
        Careful().start(grid)
    assert grid._pushed == 0


# -- seeds -----------------------------------------------------------------------------


class Told(Listening):
    @property
    def frames(self) -> list[dict[str, Any]]:
        return [unpack(message.content)[1] for message in self.sent]

    @property
    def rows(self) -> list[list[int]]:
        return [
            unpack(reply.content)[0]["rows"].tolist()
            for reply in self.seen
            if reply.metadata.message_type == "train.coresets_totals"
        ]


@pytest.mark.parametrize("seed", [None, 7])
def test_only_without_a_seed_parties_draw_from_secrets_of_their_own(
    three, monkeypatch, seed
):
    """And so it does although the server draws the same public seed again."""
    monkeypatch.setattr(Checkpoint, "number", lambda self: 7)
    strategy = CoresetVRLR(size=12, solver="central", seed=seed)
    grids = [Told(three), Told(three)]
    results = [strategy.start(grid) for grid in grids]
    assert [result.seed for result in results] == [seed, seed]
    assert strategy.seed == seed
    for grid in grids:
        draws = [(frame["seed"], frame["private_draws"]) for frame in grid.frames[3:]]
        assert draws == [(7, seed is None)] * 6
    # The chance that 12 draws of 24 unlike rows are the same is below 1e-9.
    pairs = list(zip(*(grid.rows for grid in grids), strict=True))
    assert [first == second for first, second in pairs] == [seed is not None] * 3
    first, second = (result.arrays.object_id for result in results)
    assert (first == second) == (seed is not None)


def test_server_draws_a_new_seed_where_none_is_given(three):
    seeds = set()
    for _ in range(2):
        grid = Told(three)
        CoresetVRLR(size=12, solver="central").start(grid)
        seeds |= {frame["seed"] for frame in grid.frames[3:]}
    assert len(seeds) == 2
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_streams_of_a_run_are_its_own():
    """By its seed and their names, and none is that of a party."""
    runs = [(seed, name) for seed in (0, 1) for name in ("allocate", "draw")]
    draws = [Run(seed).rng(name).integers(2**62) for seed, name in runs]
    party = Party(np.ones((2, 1)), index=0)
    party.seed = 1
    assert len({*draws, party.rng("draw").integers(2**62)}) == 5
    assert Run(1).rng("draw").integers(2**62) == draws[-1]


# -- the log ---------------------------------------------------------------------------


def test_settings_that_were_changed_are_logged_at_the_start(grid, caplog):
    caplog.set_level(logging.INFO, "vfl_flower")
    Trivial(factor=3, seed=4).start(grid)
    assert caplog.messages[0] == "Trivial(factor=3.0, seed=4)"
