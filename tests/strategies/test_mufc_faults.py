"""Many parties of which one fails, and messages that were changed on their way.

Whatever happens, the run ends with a reason or q is that of those who take part.
"""

import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from faults import Changed, Fault, FaultyGrid, of_all, of_party
from forgetting import (
    addition,
    centroid_ids,
    check,
    federation,
    first_rows,
    plain_q,
    predicted,
    removal,
)

from vfl_flower import FederationError, PartyFailed
from vfl_flower.clients.mufc.state import list_models
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import MUFC, MUFCStatus
from vfl_flower.strategies.mufc import training
from vfl_flower.strategies.mufc.state import ServerState

TIMEOUT = 10.0  # seconds of a clock that only sleeping moves
SETTINGS = {"n_clusters": 3, "local_clusters": 1, "gamma": 0.01, "n_init": 1}
SETTINGS |= {"client_training": "init", "min_rows_per_bin": 1}
NAMED = ("raise", "lose reply")
"""Kinds that end the run."""


@pytest.fixture
def three(tmp_path):
    return federation(tmp_path)


@pytest.fixture
def server(tmp_path):
    return tmp_path / "server"


def train(three, server, **settings):
    strategy = MUFC(**SETTINGS | settings, server_state=server)
    return simulate(strategy, three, seed=1).model.id


@pytest.mark.parametrize("stored", [True, False])
def test_a_party_that_fails_after_the_sum_ends_the_run(clock, tmp_path, server, stored):
    """A second sum without it would show its counts; a model that is kept is named."""
    strategy = MUFC(**SETTINGS, server_state=server if stored else "", seed=1)
    four = federation(tmp_path, (14, 9, 6, 5))
    grid = FaultyGrid(four, [Fault("lose reply", "mufc_commit", 3, nth=None)], clock)
    with pytest.raises(PartyFailed) as caught:
        strategy.start(grid, timeout=TIMEOUT)
    text, models = str(caught.value), list_models(server)
    assert text.startswith("party 'east' failed in 'mufc_commit': ")
    assert len(models) == stored == ("saved" in text)
    assert [list_models(party.state_dir) for party in four] == [models] * 4
    for model in models:
        assert text.endswith(f"{model} is saved, and its next task completes the model")
        assert ServerState(server, model).load().parties == [p.name for p in four]
        simulate(removal(four, server, model), four)
        check(four, server, model)
        assert [predicted(p, model) for p in four] == [p.ids.tolist() for p in four]


@pytest.mark.parametrize(
    ("task", "action", "kind"),
    [
        ("train", "mufc_train", "raise"),
        ("unlearn", "mufc_forget", "lose reply"),
        ("unlearn", "mufc_commit", "raise"),
        ("add", "mufc_add", "raise"),
        # The other kinds are in test_faults.py, where no task changes what is kept.
        ("train", "mufc_train", "reply unavailable"),
        ("unlearn", "mufc_forget", "duplicate"),
        ("unlearn", "mufc_commit", "reply unavailable"),
        ("add", "mufc_add", "duplicate"),
    ],
)
def test_whatever_happens_once(clock, tmp_path, server, kind, task, action):
    """The task has its result, or the party is named, and the same task has it then."""
    whole = federation(tmp_path, (20, 12, 8))
    parties = first_rows(whole, (14, 9, 6))
    strategy, gone = MUFC(**SETTINGS, server_state=server, seed=1), []
    model = task != "train" and train(parties, server)
    if task == "unlearn":
        gone = [centroid_ids(parties[0], model)[0], "south.1"]
        strategy = removal(parties, server, model, gone)
    elif task == "add":
        parties, strategy = whole, addition(whole, server, model)
    grid = FaultyGrid(parties, [Fault(kind, action, 1)], clock)
    if kind in NAMED:
        with pytest.raises(PartyFailed, match=f"'south' failed in '{action}': "):
            strategy.start(grid, timeout=TIMEOUT)
        if model:
            saved = action == "mufc_commit"
            assert ServerState(server, model).version == 1 + saved
        grid = InProcessGrid(parties)
    result = strategy.start(grid, timeout=TIMEOUT)
    assert kind in NAMED or grid.struck
    assert result.metrics["rows"] == {"train": 29, "unlearn": 27, "add": 40}[task]
    check(parties, server, result.model.id, gone)


# -- messages that were changed, with a digest that fits -------------------------------


P = np.uint64(2**61 - 1)


def changed(place, by=1):
    """Return a change of one element of one message."""

    def change(message):
        message = message.copy()
        message[place] = (message[place] + np.uint64(by)) % P
        return message

    return of_party(1, message=change)


CHANGES = {
    "sum of counts": changed(0),
    "power sum": changed(5, 12345),
    "coordinates": changed(12, 99),
    "mask missing": of_party(1, message=np.zeros_like),
}
REASONS = (
    "the sum of the parties' row counts is not between 0 and 2.40: a message |"
    "counts of all parties must add up|must hold at most|must hash to the bin's point|"
    "numbers within their bound"
)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_message_never_gives_a_wrong_q(three, server, name):
    """With local_clusters = 2 and three parties: 12 power sums, 6 of coordinates.

    What a sum does that was changed, tests/secure_aggregation/test_sparse_sum.py shows.
    """
    model = train(three, server, local_clusters=2)
    gone = [centroid_ids(three[0], model)[0]]
    strategy = removal(three, server, model, gone)
    with pytest.raises(FederationError, match=REASONS) as caught:
        strategy.start(Changed(three, "mufc_forget", CHANGES[name]), timeout=TIMEOUT)
    assert "\n" not in str(caught.value)
    simulate(MUFCStatus(model, server_state=server), three)
    check(three, server, model)
    simulate(strategy, three)
    check(three, server, model, gone)


def test_masks_that_do_not_cancel_give_a_reason_whatever_the_sum(three):
    """All that a party has sent comes again, in another session or as another's.

    The number of rows is noise then, of either sign.
    """
    first_reply = {}
    strategy = MUFC(**SETTINGS, seed=1)
    first = Changed(three, "mufc_train", lambda replies: first_reply.update(replies[1]))
    strategy.start(first)
    for change in (
        lambda replies: replies[1].update(message=first_reply["message"]),
        *[lambda replies: replies[1].update(first_reply)] * 2,
        *[lambda replies: replies[1].update(replies[0])] * 2,
    ):
        with pytest.raises(FederationError, match=REASONS):
            strategy.start(Changed(three, "mufc_train", change))


of_south = functools.partial(of_party, 1)
NOISE = np.full(2, 2**61 + 12345, np.uint64)
POINT, NINE, ROWS = np.zeros((1, 2)), np.zeros((9, 2)), np.ones(1, np.int64)
NONE = {"privacy": "none"}
FAULTS = {
    "shorter at all": ("train", of_all(message=np.ones(7, np.uint64)), {}),
    "no rows": ("train", of_all(totals=np.zeros(2, np.uint64)), {}),
    "rows of noise": ("train", of_south(totals=NOISE), {}),
    "totals of noise": ("train", of_all(totals=NOISE), {}),
    "no centroids": ("train", of_south(centroids=None), NONE),
    "another message": ("train", of_south(message=NOISE), NONE),
    "centroids that are none": ("train", of_south(centroids=POINT + np.nan), NONE),
    "centroids outside": ("train", of_south(centroids=POINT + 0.6), NONE),
    "centroids far away": ("train", of_south(centroids=POINT - 1e308), NONE),
    "more sizes": ("train", of_south(sizes=np.ones(2, int)), NONE),
    "too many": ("train", of_south(centroids=NINE, sizes=ROWS.repeat(9)), NONE),
    "size -1": ("train", of_south(sizes=-ROWS), NONE),
    "size 2^40 - 1": ("train", of_south(sizes=np.array([2**40 - 1])), NONE),
    "other sizes": ("train", of_south(sizes=np.array([8], np.uint8)), NONE),
    "nothing at all": ("train", of_all(centroids=POINT[:0], sizes=ROWS[:0]), NONE),
    "cost of noise": ("commit", of_south(cost=np.ones((5, 1), np.uint64)), {}),
    "sizes of noise": ("commit", of_south(sizes=np.full(3, 2**62, np.uint64)), {}),
    "a cost of one limb": ("commit", of_south(cost=np.ones(1, np.uint64)), {}),
    "status below 0": ("status", of_south(removed=-1), {}),
    "status of 2^62": ("status", of_south(requests=2**62), {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_replies_end_with_a_sentence(three, server, name):
    """Where it can be told whose fault it is, with the party's name."""
    step, change, settings = FAULTS[name]
    strategy = MUFC(**SETTINGS, **settings, server_state=server, seed=1)
    if step == "status":
        strategy = MUFCStatus(train(three, server), server_state=server)
    with pytest.raises(FederationError) as caught:
        strategy.start(Changed(three, f"mufc_{step}", change), timeout=TIMEOUT)
    text = str(caught.value)
    assert "\n" not in text
    if isinstance(caught.value, PartyFailed):
        who = "north" if "at all" in name else "south"
        assert text.startswith(f"party {who!r} failed in 'mufc_{step}': ")
    else:
        assert re.search("add up to|the sum of|this objective|at least one row", text)
    (number,) = list_models(server) or [None]
    assert (number is None) == (step == "train")
    if step == "commit":  # it is saved: what the parties have staged is taken
        assert f"model {number} is saved" in text
        simulate(removal(three, server, number), three)
        check(three, server, number)


@pytest.mark.parametrize("sizes", [[20.0, 8.0], [30.0, -1.0]])
def test_sizes_of_clusters_add_up_to_the_rows(sizes):
    replies = SimpleNamespace(sums={"sizes": np.array(sizes)})
    with pytest.raises(FederationError, match="not add up to 29, the number of rows"):
        training._sizes(replies, 29)


COPIES = "of forgotten rows are not between 0 and 2.40: .*north, south, west"


@pytest.mark.parametrize(
    ("task", "privacy", "sizes", "totals", "rule"),
    [
        # In the clear a party may send any sizes.
        (removal, "none", 5, [5.0, 0, 0, 0], "at most 29, the"),
        (addition, "none", -1, [-1.0, 0, 0], "at least 29, the"),
        # Copies of forgotten rows, in files and in models.
        (removal, "scma", 0, [0, 0, -5.0, 0], COPIES),
        (removal, "scma", 0, [0, 0, 0, -5.0], COPIES),
    ],
)
def test_impossible_numbers_of_rows(three, server, task, privacy, sizes, totals, rule):
    """They change nothing."""
    model = train(three, server, privacy=privacy)
    request = task(three, server, model, masking="plain")

    def change(replies):
        values = replies[1]
        values["totals"] = values["totals"] + totals
        if sizes:
            values["sizes"] = values["sizes"] + sizes

    step = "mufc_forget" if task is removal else "mufc_add"
    with pytest.raises(FederationError, match=rule):
        request.start(Changed(three, step, change), timeout=TIMEOUT)
    simulate(MUFCStatus(model, server_state=server), three)
    check(three, server, model)


def test_plain_q_is_what_the_check_compares(three, server):
    """A wrong q is found out by the check itself."""
    model = train(three, server)
    now = ServerState(server, model).load()
    assert sum(plain_q(three[0].X[:2], [1, 2], now.settings).values()) == 3
    counts = now.counts.copy()
    counts[0] += 1
    state = ServerState(server, model)
    state.save(2, now.bins, counts, now.centers, now.parties, "unlearn")
    with pytest.raises(AssertionError):
        check(three, server, model)
