"""What the data forbid is said after the greeting and before any training."""

import numpy as np
import pytest

from vfl_flower import CoresetVKMC, CoresetVRLR, FederationError, Party
from vfl_flower.simulation import InProcessGrid

TIMEOUT = 10.0
X = np.arange(8.0).reshape(4, 2)
SOME = np.array([1.0, np.nan, 2.0, np.nan])


class Kept(InProcessGrid):
    """A grid that keeps which steps were asked for."""

    def __init__(self, parties: list[Party]) -> None:
        super().__init__(parties)
        self.asked: set[str] = set()

    def push_messages(self, messages):
        """Keep the steps."""
        messages = list(messages)
        self.asked |= {message.metadata.message_type for message in messages}
        return super().push_messages(messages)


def refusal(strategy, parties: list[Party]) -> str:
    """Return why a run ends with its greeting."""
    grid = Kept(parties)
    with pytest.raises(FederationError) as caught:
        strategy.start(grid, timeout=TIMEOUT)
    assert grid.asked == {"train.hello"}
    return str(caught.value)


@pytest.mark.parametrize("solver", ["central", "cg", "saga"])
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([None, None, SOME], "'c' must hold the labels of all 4 rows, 2 are missing"),
        ([SOME, None, SOME[::-1]], "exactly one party must hold the labels, but a, c"),
        ([None, None, None], "exactly one party must hold the labels, but none"),
    ],
    ids=["of some rows", "in two halves", "none"],
)
def test_one_party_must_hold_all_labels(solver, labels, words, clock):
    parties = [Party(X, y, name=n) for n, y in zip("abc", labels, strict=True)]
    assert words in refusal(CoresetVRLR(size=2, solver=solver), parties)


@pytest.mark.parametrize(
    ("strategy", "count", "words"),
    [
        (CoresetVRLR(size=5, sampling="uniform"), 3, ("size", "5", "4 rows")),
        (
            CoresetVRLR(size=3, sampling="uniform", test_fraction=0.5),
            3,
            ("size", "3", "2 rows"),
        ),
        (CoresetVKMC(n_clusters=5, size=5), 3, ("n_clusters", "5", "4 rows")),
        (CoresetVRLR(size=3, test_fraction=0.9), 3, ("test_fraction", "0.9", "4 rows")),
        (
            CoresetVKMC(n_clusters=4, size=4, evaluate="full"),
            3,
            ("n_clusters", "columns", "4 for 3", "check_size"),
        ),
        (CoresetVRLR(size=3), 2, ("size", "20", "4 for each column", "got 3")),
        (CoresetVRLR(size=3, solver="cg"), 2, ("'cg'", "at least three parties")),
        (CoresetVRLR(size=3, solver="saga"), 2, ("'saga'", "at least three parties")),
    ],
    ids=[
        "uniform",
        "uniform, test rows",
        "k",
        "no rows",
        "full",
        "moments",
        "cg",
        "saga",
    ],
)
def test_what_the_data_forbid(strategy, count, words, clock):
    y = [*[None] * (count - 1), X[:, 0]]
    sentence = refusal(strategy, [Party(X[:, :1], labels) for labels in y])
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        (CoresetVKMC(n_clusters=3, size=4, n_init=1, evaluate="full"), 3),
        (CoresetVKMC(n_clusters=4, size=4, n_init=1), 3),
        (CoresetVRLR(size=3, solver="cg", allow_two_parties=True), 2),
        (CoresetVRLR(size=3, solver="saga", allow_two_parties=True, max_iter=1), 2),
        (CoresetVRLR(size=3, solver="cg"), 3),
        (CoresetVRLR(size=3, solver="central"), 2),
    ],
)
def test_what_the_data_just_allow(strategy, count, clock):
    X = np.random.default_rng(2).normal(size=(4, 3))
    last = count - 1
    ours = [Party(X[:, [j]], X[:, 0] if j == last else None) for j in range(count)]
    result = strategy.start(InProcessGrid(ours), timeout=TIMEOUT)
    assert ("full_cost" in result.metrics) == (strategy.evaluate == "full")
