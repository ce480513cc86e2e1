"""What must hold of every strategy holds of ours; a broken one fails it by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
import pytest
from federations import by_columns
from later_tasks import TASKS
from variants import VARIANTS, parties_of

import vfl_flower as vf
from vfl_flower import testing
from vfl_flower.models.base import Model, plain
from vfl_flower.protocol.contract import IN_SUM, OWN, Reals, Whole
from vfl_flower.protocol.errors import FederationError, PartyFailed
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import each, reveals, step_of
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.masks import PairwiseMasks
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.typing import Array

step = step_of("test_testing")

NAMES = "airline", "weather", "registry"
N = 120


@cache
def of_columns(holders: int = 1) -> list[vf.Party]:
    """Return parties of a linear model; the last `holders` of them know labels."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=N)
    return by_columns(X, y, names=NAMES, holders=range(3 - holders, 3))


@cache
def of_rows() -> list[vf.Party]:
    """Return parties of three clusters."""
    rng = np.random.default_rng(5)
    centers = np.array([[-0.4, -0.4], [0.4, 0.0], [0.0, 0.4]])
    X = centers[rng.integers(3, size=N)] + 0.05 * rng.normal(size=(N, 2))
    X = np.clip(X, -0.49, 0.49)
    return [
        vf.Party(X, name=name) for name, X in zip(NAMES, np.split(X, 3), strict=True)
    ]


def regression(test_fraction: float = 0.2, **settings: Any) -> ProtocolStrategy:
    return vf.CoresetVRLR(80, seed=1, test_fraction=test_fraction, **settings)


LASSO = {"solver": "cg", "regularizer": "lasso", "alpha": 1.0}
KERNEL: dict[str, Any] = {"loss": "square", "target": "continuous", "seed": 1}
KERNEL |= {"test_fraction": 0.2}
DIRECT = KERNEL | {"features": 16}
STEPS = {"features": 15, "iterations": 3}
RIDGE: dict[str, Any] = {"target": "continuous", "joint_features": 4, "seed": 1}


def embedding(k: int, **settings: Any) -> ProtocolStrategy:
    return vf.FKKMeans(k, k, n_features=10, iterations=1, n_init=1, seed=1, **settings)


ROWS = {"clustering": "coreset", "coreset_size": 30, "threshold": 0.5}
SUMS = {"passes": 3}
CASES = {
    "central": regression(solver="central", evaluate="full"),
    "central paper": regression(0, solver="central", rounds="paper"),
    "central uniform": regression(0, solver="central", sampling="uniform"),
    "cg": regression(solver="cg", max_iter=2),
    "proximal": regression(**LASSO, max_iter=2, sampling="uniform"),
    "saga": regression(solver="saga", max_iter=1, batch_size=40, sampling="uniform"),
    "gram": regression(evaluate="full"),
    "gram dealer": regression(sampling="uniform", dealer="airline"),
    "k-means": vf.CoresetVKMC(3, size=60, seed=1, evaluate="full"),
    "k-means full": vf.CoresetVKMC(3, sampling="full", seed=1),
    "distdim": vf.CoresetVKMC(3, solver="distdim", size=60, seed=1),
    "direct": vf.FDSKLDirect(**DIRECT),
    "direct ring": vf.FDSKLDirect(**DIRECT, topology="ring"),
    "doubly stochastic": vf.FDSKL(**KERNEL, **STEPS),
    "several holders": vf.FDSKL(**KERNEL, **STEPS),
    "ridge": vf.SecureRidge(**RIDGE),
    "ridge dealer": vf.SecureRidge(**RIDGE, test_fraction=0.2, dealer="airline"),
    "kernel k-means": embedding(2, **SUMS),
    "kernel k-means chosen": embedding(
        3, choose_clusters=True, kernel="laplacian", **SUMS
    ),
    "kernel k-means paper": embedding(2, eigensolver="lanczos", **ROWS),
    "mufc": vf.MUFC(3, seed=1),
    "mufc paper": vf.MUFC.paper(n_clusters=3, gamma=0.05, seed=1),
    "mufc in the clear": vf.MUFC(3, privacy="none", seed=1),
    "align": VARIANTS["align"],
}
"""A strategy of each kind of training."""

PARTIES = {"several holders": partial(of_columns, 3)}
PARTIES |= {"align": partial(parties_of, "align", 3)}

ALIKE = {
    *("direct", "several holders", "kernel k-means chosen", "mufc paper"),
    *("mufc in the clear", "linear evaluate", "direct evaluate", "ridge evaluate"),
    *("ridge linear predict", "mufc forget client"),
}
"""Those that ask for the steps of another one: faults strike these steps there."""


@pytest.fixture
def checks(name, monkeypatch):
    if name in ALIKE:
        others = [c for c in testing.CHECKS if c is not testing.check_faults]
        monkeypatch.setattr(testing, "CHECKS", others)


@pytest.mark.usefixtures("checks")
@pytest.mark.parametrize("name", CASES)
def test_our_strategies(name):
    columns = CASES[name].partition == "vertical"
    testing.check_strategy(
        CASES[name], PARTIES.get(name, of_columns if columns else of_rows)
    )


@pytest.mark.usefixtures("checks")
@pytest.mark.parametrize("name", TASKS)
def test_our_later_tasks(name, tmp_path):
    testing.check_strategy(*TASKS[name](tmp_path))


# -- broken strategies -----------------------------------------------------------------


class Total(TypedDict):
    total: Annotated[Array, Reals("n_columns"), IN_SUM]


class Chatty(Total):
    extra: NotRequired[int]


class Shown(TypedDict):
    row: Annotated[Array, Reals("n_columns")]


@step
def summed(party: vf.Party) -> Total:
    return {"total": party.X.sum(axis=0)}


@step
def shown(party: vf.Party) -> Shown:
    return {"row": party.X[0]}


@step
@reveals("totals")
def disguised(party: vf.Party) -> Shown:
    return shown(party)


@step
def chatty(party: vf.Party, more: bool = False) -> Chatty:
    return {"total": party.X.sum(axis=0)} | ({"extra": 1} if more else {})


@step
def dealt(
    party: vf.Party, share: Annotated[Array, Whole("n_columns", 0, 256), OWN]
) -> Total:
    return {"total": party.X.sum(axis=0) + share}


@step
def other(party: vf.Party) -> Total:
    return summed(party)


@step
@reveals("rows")
def revealed(party: vf.Party) -> Total:
    return summed(party)


@dataclass
class MeanModel(Model):
    kind = "mean of a test"
    mean: Array

    def arrays(self) -> Mapping[str, Array]:
        return {"mean": self.mean}

    @classmethod
    def from_arrays(cls, arrays: Any) -> "MeanModel":
        return cls(plain(arrays)["mean"])


@settings
class Mean(ProtocolStrategy):
    """The mean of rows that several parties hold."""

    model_class = MeanModel
    partition = "horizontal"
    steps = (summed, shown, revealed, other, chatty)
    asks = summed

    def protocol(self, parties, run):
        mean = self.total(parties) / parties.n_rows
        run.record(1, None, self.metrics())
        return self.model_class(mean).to_record()

    def total(self, parties):
        return parties.secure_sum(self.asks.summing(total=2.0**20))["total"]

    def metrics(self):
        return {"test_r2": 0.5}


class Unused(Mean):
    terms = Terms(("moments",))


class Insisting(Mean):
    terms = Terms(wants=("rows",))
    asks = revealed


class Hidden(Mean):
    asks = revealed


class Uncounted(Hidden):
    terms = Terms(("rows",))


class Unlisted(Mean):
    steps = (shown,)

    def check(self):
        vars(self)["steps"] = ()


class Clear(Mean):
    asks = shown

    def total(self, parties):
        return sum(parties.ask(self.asks).each("row"))


class Disguised(Clear):
    terms = Terms(("totals",))
    steps = (disguised,)
    asks = disguised


class Unmasked(Mean):
    masking = "plain"

    def __post_init__(self):
        self.masking = "plain"


class Unplanned(Mean):
    def total(self, parties):
        total = super().total(parties)
        return super().total(parties) if np.abs(total).max() > N else total


class OfThree(Mean):
    def total(self, parties):
        if len(parties) == 2:
            raise FederationError("it does not work")
        return super().total(parties)


class Rounded(MeanModel):
    @classmethod
    def from_arrays(cls, arrays: Any) -> "Rounded":
        return cls(plain(arrays)["mean"].round(1))


class Forgetful(Mean):
    model_class = Rounded


class Patient(Mean):
    def total(self, parties):
        total = super().total(parties)
        try:
            parties.ask(other.summing(total=2.0**20))
        except PartyFailed:
            total = 2 * total
        return total


class Counting(Mean):
    def total(self, parties):
        return super().total(parties) * parties.ledger.messages


class Trusting(Mean):
    steps = (dealt,)

    def total(self, parties):
        shares = each([np.full(2, 3, np.uint8)] * len(parties))
        total = parties.secure_sum(dealt.summing(total=2.0**20), share=shares)["total"]
        return total - 3 * len(parties)


class Talkative(Mean):
    asks = chatty

    def total(self, parties):
        total = super().total(parties)
        more = bool(np.abs(total).max() > N)
        parties.ask(chatty.summing(total=2.0**20), more=more)
        return total


class Useless(Mean):
    def metrics(self):
        return {"test_r2": -0.1}


BROKEN = {
    Unused: ("check_needs", "needs lists 'moments', which no step reveals"),
    Insisting: ("check_needs", "a step fails without consent to `wants`: party"),
    Uncounted: ("check_needs", "'rows' to 0 must refuse the run, but did not: a step"),
    Unlisted: ("check_names", "steps must list test_testing_summed"),
    Clear: ("check_data", "test_testing_shown sends 'row' in the clear, but declares"),
    Disguised: ("check_data", "test_testing_disguised contains a number from a party"),
    Unmasked: ("check_masks", "of 'test_testing_summed' is the same in two runs"),
    Unplanned: ("check_plan", "took 2 round trips, but a dry run says 1"),
    Talkative: ("check_plan", "must show 'extra' of test_testing_chatty"),
    OfThree: ("check_two_parties", "two parties get an unclear error: it does not"),
    Forgetful: ("check_model", "a saved model must keep its 'mean'"),
    Patient: ("check_faults", "the run must fail"),
    Counting: ("check_faults", "the model has different 'mean'"),
    Trusting: ("check_faults", "with the fault 'deal' at 'airline' in test_testing_"),
    Useless: ("check_quality", "test_r2 must be above 0, got -0.1"),
}


def test_a_sound_strategy():
    testing.check_strategy(Mean(seed=1), of_rows())


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_strategy_fails_one_check(broken):
    # Larger numbers than those of a rehearsal.
    parties = [vf.Party(party.X + 5, name=party.name) for party in of_rows()]
    runs = testing.Runs(broken(seed=1), lambda: parties)
    failed = {}
    for check in testing.CHECKS:
        try:
            check(runs)
        except AssertionError as error:
            failed[check.__name__] = " ".join(str(error).split()).lower()
    name, reason = BROKEN[broken]
    assert list(failed) == [name]
    assert reason.lower() in failed[name]


def test_every_check_has_a_strategy_that_fails_it():
    assert {name for name, _ in BROKEN.values()} == {c.__name__ for c in testing.CHECKS}


def test_parties_refuse_what_is_not_declared():
    """An error says in which check it was."""
    with pytest.raises(PartyFailed, match="does not allow rows") as caught:
        testing.check_strategy(Hidden(seed=1), of_rows())
    assert caught.value.__notes__[0].startswith("in check_needs: Check that")


@pytest.mark.parametrize(
    ("strategy", "members", "message"),
    [
        (Mean, of_rows, "call the class with settings"),
        (Mean(), lambda: of_rows()[0], "parties must be a list of parties, got Party"),
        (Mean(), lambda: of_rows()[:1], "needs at least 2 parties, got 1"),
        (Mean(n_parties=4), of_rows, "n_parties must be 0 or 3, the number of parties"),
    ],
)
def test_what_cannot_run_is_refused_at_once(strategy, members, message):
    with pytest.raises(ValueError, match=message):
        testing.check_strategy(strategy, members())


def test_sums_that_are_hidden_by_little_noise(monkeypatch):
    """They differ in each run, and their largest bytes are those of small numbers."""
    rng = np.random.default_rng(0)

    def noise(self, hidden, *_):
        most = 2**30 if hidden.size > 1 else 1  # one: how many values were clipped
        return hidden + rng.integers(most, size=hidden.size, dtype="<u8")

    wide = [vf.Party(rng.normal(size=(30, 50)), name=name) for name in NAMES]
    testing.check_masks(testing.Runs(Mean(seed=1), lambda: wide))
    monkeypatch.setattr(PairwiseMasks, "hide", noise)
    with pytest.raises(AssertionError, match="must look random"):
        testing.check_masks(testing.Runs(Mean(seed=1), lambda: wide))


def test_data_of_few_digits_show_nothing():
    parties = [vf.Party(np.round(party.X), name=party.name) for party in of_rows()]
    with pytest.raises(AssertionError, match="numbers with many digits"):
        testing.check_data(testing.Runs(Mean(seed=1), lambda: parties))


def test_a_value_that_is_not_declared():
    """Server and parties refuse one, so that it is put into what was recorded."""
    runs = testing.Runs(Mean(seed=1), of_rows)
    testing.check_names(runs)
    more = replace(runs.first.transcript[-1], values={"extra": np.ones(2)})
    vars(runs)["first"] = runs.first._replace(transcript=[more])
    with pytest.raises(AssertionError, match="summed does not declare 'extra'"):
        testing.check_names(runs)
