"""A protocol goes where a Flower strategy goes, and honours what it takes."""

import logging
from typing import Any, Literal

import numpy as np
import pydantic
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
from vfl_flower.simulation import InProcessGrid, simulate
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
    "model": "0123456789abcdef",
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
def test_a_strategy_has_at_most_20_settings(kind):
    assert len(settings_of(kind)) <= 20


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_says_what_it_means(kind):
    for setting in settings_of(kind):
        assert setting.text, setting.name
        assert setting.text.endswith((".", ")")), setting.name
        assert f"\n{setting.name} : {setting.rule}" in kind.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_refuses_another_type_by_its_name(kind):
    for setting in settings_of(kind):
        rule = f"^{setting.name} must be .* got 271828j"
        with pytest.raises(ValueError, match=rule):
            made(kind, **{setting.name: 271828j})


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_argument_is_refused(kind):
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


def test_what_only_evaluates_is_counted_apart(three):
    result = simulate(CoresetVKMC(2, size=12, evaluate="full", seed=1), three)
    assert 0 < result.evaluation.round_trips < result.ledger.round_trips
    assert 0 < result.evaluation.bytes_up < result.ledger.bytes_up


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
    ("arguments", "rule"),
    [
        ({"masking": "none"}, "masking must be one of 'ring', 'plain', got 'none'"),
        ({"n_parties": -1}, "n_parties must be a whole number of at least 0, got -1"),
        ({"seed": -1}, "seed must be a whole number of at least 0 .* got -1"),
        ({"seed": 2**63}, r"seed must be .* below 2\^63, or None, got 92233720"),
    ],
)
def test_wrong_arguments(arguments, rule):
    with pytest.raises(ValueError, match=f"^{rule}"):
        Trivial(**arguments)


@pytest.mark.parametrize(
    ("name", "value"), [("seed", -1), ("seed", 1.5), ("n_parties", 1), ("masking", "x")]
)
def test_a_setting_that_was_changed_is_checked_before_any_message(grid, name, value):
    strategy = Trivial()
    setattr(strategy, name, value)
    with pytest.raises(ValueError, match=f"^{name} must be "):
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


def test_without_a_seed_each_party_draws_from_a_secret_of_its_own(three, monkeypatch):
    """And so it does although the server draws the same public seed again."""
    monkeypatch.setattr(Checkpoint, "number", lambda self: 7)
    strategy = CoresetVRLR(size=12, solver="central")
    grids = [Told(three), Told(three)]
    results = [strategy.start(grid) for grid in grids]
    assert [result.seed for result in results] == [None, None]
    assert strategy.seed is None
    for grid in grids:
        assert [frame["seed"] for frame in grid.frames[3:]] == [7] * 6
        assert [frame["private_draws"] for frame in grid.frames[3:]] == [True] * 6
    # The chance that 12 draws of 24 unlike rows are the same is below 1e-9.
    for first, second in zip(grids[0].rows, grids[1].rows, strict=True):
        assert first != second
    assert results[0].arrays.object_id != results[1].arrays.object_id
    seeded = Told(three)
    CoresetVRLR(size=12, seed=7, solver="central").start(seeded)
    assert all(rows not in seeded.rows for grid in grids for rows in grid.rows)


def test_with_a_seed_the_parties_draw_the_same(three):
    grids = [Told(three), Told(three)]
    results = [
        CoresetVRLR(size=12, seed=7, solver="central").start(grid) for grid in grids
    ]
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
        CoresetVRLR(size=12, solver="central").start(grid)
        seeds |= {frame["seed"] for frame in grid.frames[3:]}
    assert len(seeds) == 2
    assert all(0 <= seed < 2**63 for seed in seeds)


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


@pytest.mark.parametrize("masking", ["odd", "ring", "plain"])
def test_a_masking_of_its_own_is_the_strategys_own_matter(three, masking):
    """All sums but its own are masked or plain."""

    @settings
    class Odd(CoresetVRLR):
        masking: Literal["odd", "ring", "plain"] = pydantic.Field("odd", kw_only=True)
        """How sums are hidden."""

    grid = Told(three)
    Odd(size=12, masking=masking, solver="central").start(grid)
    told = "plain" if masking == "plain" else "ring"
    assert {frame["masking"] for frame in grid.frames[3:]} == {told}
    with pytest.raises(ValueError, match=r"^masking must be one of 'ring', 'plain'"):
        CoresetVRLR(size=12, masking="odd", solver="central")


# -- the log ---------------------------------------------------------------------------


def test_settings_that_were_changed_are_logged_at_the_start(grid, caplog):
    caplog.set_level(logging.INFO, "vfl_flower")
    Trivial(factor=3, seed=4).start(grid)
    assert caplog.messages[0] == "Trivial(seed=4, factor=3.0)"
