"""A party's side of clusters that can forget, each step alone, without Flower."""

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from forgetting import (
    SETTINGS,
    agreed,
    centroid_ids,
    federation,
    request_new_rows,
    staged_by,
)

from vfl_flower import Party, request_changes
from vfl_flower.clients.mufc import forgetting as mufc
from vfl_flower.clients.mufc import training as mufc_training
from vfl_flower.clients.mufc.state import ClientState, list_models
from vfl_flower.numerics.mufc import seed_centroids
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, flatten, structure
from vfl_flower.secure_aggregation.limbs import join_limbs

MODEL = "0123456789abcdef"
KEY = bytes(range(16))


def inside(party, index=0, seed=7):
    party.index, party.n_parties, party.seed = index, 4, seed
    return party


@pytest.fixture
def north(tmp_path):
    return inside(federation(tmp_path)[0])


def train(party, **settings):
    reply = mufc_training.train(party, MODEL, agreed(**settings), KEY)
    if party.state_dir is not None:
        ClientState(party.state_dir, MODEL).settle(1, MODEL)
    return reply


def forget(party, ids=(), version=1, before=MODEL, run="b", **values):
    """Let the party forget what its file requests, and these ids besides."""
    if ids:
        request_changes(party, forget=ids)
    return mufc.forget(party, MODEL, version, before, run, KEY, **values)


def commit(party, version, run):
    """Commit a version whose only centre is the middle of the box."""
    return mufc_training.commit(party, version, run, np.zeros((1, 2)), cost=True)


def refusal(step, *arguments, **values):
    with pytest.raises(PartyError) as caught:
        step(*arguments, **values)
    return str(caught.value)


def unchanged(step, party, *arguments, **values):
    """Return why a step refuses, which changes nothing of the party's state."""
    path = party.state_dir / f"{MODEL}.sqlite"
    before = path.read_bytes()
    text = refusal(step, party, *arguments, **values)
    assert path.read_bytes() == before
    return text


# -- what a step gives -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (mufc_training.train, {"message", "totals"}),
        (mufc_training.commit, {"cost", "sizes"}),
        (mufc.forget, {"message", "totals"}),
        (mufc.add, {"message", "totals"}),
        (mufc.status, set()),
    ],
)
def test_what_leaves_only_into_sums(step, names):
    reply = step.contract.reply
    hidden = {n for n, declared in reply.items() if declared.leaves is not None}
    assert hidden == names
    assert {reply[name].leaves.how for name in hidden} <= {"sum"}


def more(party, X, ids):
    made = Party(party.X, name=party.name, state_dir=party.state_dir)
    made.X, made.ids = np.concatenate([X, party.X]), np.concatenate([ids, party.ids])
    return inside(made)


def add(party, version=1, before=MODEL, run="b"):
    """Let the party add all rows that are new to the model, as its file requests."""
    request_new_rows(party, MODEL)
    return mufc.add(party, MODEL, version, before, run, KEY)


def test_only_requested_rows_are_added_and_once(north):
    """However often the server asks, and whatever other rows the file has got."""
    train(north)
    north = more(north, [[0.1, 0.2], [0.2, 0.1]], ["new.0", "new.1"])
    request_changes(north, add=["new.0", "north.3"])
    reply = mufc.add(north, MODEL, 1, MODEL, "b", KEY)
    assert reply["totals"].tolist() == [15, 1, 0]
    commit(north, 2, "b")
    assert not (north.state_dir / "add.txt").exists()
    reply = mufc.add(north, MODEL, 2, "b", "c", KEY)
    assert reply["totals"].tolist() == [15, 1, 0]
    state = ClientState(north.state_dir, MODEL)
    assert not state.known(state.tag(["new.1"])).any()


def test_ids_of_no_rows_are_not_added(north, caplog):
    """Nor is anything else changed, although only the last line is wrong."""
    train(north)
    north = more(north, [[0.1, 0.2]], ["new"])
    request_changes(north, add=["new", "other"])
    text = unchanged(mufc.add, north, MODEL, 1, MODEL, "b", KEY)
    assert "ids to add must belong to rows of the data" in text
    assert "other" not in text + caplog.text
    assert "lines [2] of add.txt" in caplog.text
    assert (north.state_dir / "add.txt").read_text() == "new\nother\n"


def test_a_refusal_after_the_draw_changes_nothing(north):
    """The consent lets fewer rows leave than the counts show."""
    train(north)
    north.share = lambda rows, kind: (_ for _ in ()).throw(PartyError("no rows"))
    assert unchanged(forget, north, ["north.3"]) == "no rows"
    north = more(north, [[0.1, 0.2]], ["new"])
    north.share = lambda rows, kind: (_ for _ in ()).throw(PartyError("no rows"))
    assert unchanged(add, north) == "no rows"


@pytest.mark.parametrize("count", [0, 19, 20])
def test_the_log_says_what_a_change_reveals(north, caplog, count):
    """And warns of few rows, which the party does not refuse."""
    north.X = np.repeat(north.X, 3, axis=0)
    north.ids = np.array([f"north.{i}" for i in range(len(north.X))])
    train(north)
    forget(north, north.ids[:count].tolist())
    warned = f"{count} rows are removed from 42; the server can compute" in caplog.text
    assert warned == (count > 0)
    assert ("fewer than 20 rows" in caplog.text) == (count == 19)
    commit(north, 2, "b")
    X = np.full((count, 2), 0.1) + np.arange(count)[:, None] / 100
    north = more(north, X, [f"new.{i}" for i in range(count)])
    caplog.clear()
    add(north, 2, "b", "c")
    assert (f"{count} rows are added to {42 - count};" in caplog.text) == (count > 0)
    assert ("fewer than 20 rows" in caplog.text) == (count == 19)


def pinned(**rules):
    """Return the consent of a party on a SuperNode, to centroids alone."""
    return Consent(leaves={"centroids": Limit(), "rows": Limit()}, peers={}, **rules)


@pytest.mark.parametrize("ask", [forget, add])
def test_no_counts_without_a_party_that_the_consent_does_not_name(north, ask):
    """The server leaves one out, and gets its counts as a difference."""
    north.consent, north.names = pinned(), ["north", "south", "west", "lake"]
    train(north)
    ask(north)
    north.names = ["north", "south", "west", "invented"]
    for consent in (pinned(), pinned(changed_parties=["west"])):
        north.consent = consent
        text = refusal(ask, north, run="c")
        assert text.startswith("counts without 'lake' would reveal that party's")
        assert "changed-parties = ['lake']" in text
    assert staged_by(ClientState(north.state_dir, MODEL), "c") is None
    north.consent = pinned(changed_parties=["lake"])
    ask(north, run="c")


def test_a_state_that_does_not_name_its_parties(north):
    """It gives no counts to a SuperNode."""
    train(north)  # nobody signs
    assert ClientState(north.state_dir, MODEL).facts.parties == []
    forget(north)
    north.consent = pinned()
    assert "train again" in refusal(forget, north, run="c")
    assert mufc.status(north, MODEL, 1, MODEL)["rows"] == 14


def test_requests_in_the_file_wait_while_rows_are_added(north):
    train(north)
    path = north.state_dir / "forget.txt"
    path.write_text("north.1\n")
    north = more(north, [[0.1, 0.2]], ["new"])
    assert add(north)["totals"].tolist() == [15, 1, 0]
    commit(north, 2, "b")
    assert path.read_text() == "north.1\n"


@pytest.mark.parametrize(
    ("X", "ids", "rule"),
    [
        ([[0.1, 0.7]], ["new"], r"column 1, .* must have values inside the agreed box"),
        ([[0.1, 0.2]] * 2, ["new", "new"], "ids must be distinct, but some new rows"),
        ([[0.1, 0.2]], ["north.3"], "each training row .* must occur exactly once"),
    ],
)
def test_rows_that_cannot_be_added_change_nothing(north, X, ids, rule):
    train(north)
    text = unchanged(add, more(north, X, ids))
    assert re.search(rule, text)
    assert "0.7" not in text


def test_rows_that_are_gone_are_no_addition(north):
    train(north)
    north.X, north.ids = north.X[1:], north.ids[1:]
    assert "each training row that" in refusal(add, north)


def test_a_party_that_leaves_needs_no_state(north):
    request_changes(north, leave=[MODEL, "f" * 16])
    reply = forget(north, leaving=[0], settings=SETTINGS)
    assert not reply["message"].any()
    assert reply["totals"].tolist() == [0, 0, 0, 0]
    reply = commit(north, 2, "b")
    assert join_limbs(reply["cost"]).tolist() == [0]
    assert reply["sizes"].tolist() == [0]
    assert (north.state_dir / "leave.txt").read_text() == f"{'f' * 16}\n"


def test_a_party_leaves_only_at_its_own_request(north):
    """Neither the server nor a request for another model makes it leave."""
    train(north)
    request_changes(north, leave=["f" * 16])
    text = unchanged(forget, north, leaving=[0], settings=SETTINGS)
    assert f"leaves model {MODEL} only if the file leave.txt in its" in text


def test_requests_that_come_during_a_run_stay(north):
    train(north)
    path = north.state_dir / "forget.txt"
    path.write_text("north.1\nnorth.2\n\nnorth.3\n")
    assert forget(north)["totals"].tolist() == [11, 1, 3, 0]
    path.write_text("north.1\nnorth.2\nnorth.3\nnorth.4\n")
    commit(north, 2, "b")
    assert path.read_text() == "north.4\n"
    counts = {"rows": 11, "removed": 3, "added": 0, "pending": 1, "requests": 1}
    assert mufc.status(north, MODEL, 2, "b") == counts


@pytest.mark.parametrize("text", ["\ufeffnorth.3\n", "north.3\r\n\r\n", " north.3"])
def test_lists_of_other_editors(north, text):
    train(north)
    (north.state_dir / "forget.txt").write_bytes(text.encode())
    assert forget(north)["totals"].tolist() == [13, 1, 1, 0]


def test_a_list_that_is_no_text(north):
    train(north)
    (north.state_dir / "forget.txt").write_bytes("käthe".encode("utf-16"))
    assert "forget.txt must be a UTF-8 text file" in refusal(forget, north)


def test_requests_and_states_are_no_links(north, tmp_path):
    train(north)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("north.1\n")
    (north.state_dir / "forget.txt").symlink_to(elsewhere)
    assert "a request on each line, not a link" in refusal(forget, north)
    (north.state_dir / "forget.txt").unlink()
    state = north.state_dir / f"{MODEL}.sqlite"
    state.rename(elsewhere)
    state.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    for ask in (train, forget):
        assert "it is a symbolic link" in refusal(ask, north)
    assert elsewhere.read_bytes() == before
    elsewhere.unlink()
    assert "it is a symbolic link" in refusal(train, north)
    assert not elsewhere.exists()


def test_a_file_that_still_has_the_rows_is_not_cached(north, caplog):
    """Nor is it where all of its rows are known, but some were forgotten before."""
    dropped = []
    train(north)
    ids = north.ids.tolist
    north.source = SimpleNamespace(drop_cache=lambda: dropped.append(1), read_ids=ids)
    forget(north)
    commit(north, 2, "b")
    assert not dropped
    forget(north, ["north.3"], 2, "b", "c")
    assert len(dropped) == 1
    commit(north, 3, "c")
    assert len(dropped) == 2
    assert "1 rows of the data are not used" in caplog.text
    mufc.status(north, MODEL, 3, "c")
    assert len(dropped) == 3
    forget(north, [], 3, "c", "d")
    assert len(dropped) == 4


def test_a_party_without_predictions_is_behind(north):
    """They go before a version is settled: a run killed then has left none."""
    train(north)
    path = north.state_dir / f"predictions-{MODEL}.csv"
    path.write_text("row,cluster\n")
    assert forget(north)["totals"].tolist() == [14, 0, 0, 0]
    assert path.exists()
    commit(north, 2, "b")
    assert not path.exists()
    assert forget(north, [], 2, "b", "c")["totals"].tolist() == [14, 1, 0, 0]
    path.write_text("row,cluster\n")
    # The server has saved version 3, and was killed before it said so.
    mufc.status(north, MODEL, 2, "b")
    forget(north, ["north.3"], 2, "b", "c")
    assert path.exists()
    mufc.status(north, MODEL, 3, "c")
    assert not path.exists()


@pytest.mark.parametrize(
    ("places", "names", "rule"),
    [
        ([0], None, "2 training columns, got 1"),
        ([0, 1, 1], "abc", "2 training columns, got 3"),
        ([1, 0], "ba", "the names differ"),
        ([0, 1], "ac", "the names differ"),
    ],
    ids=["fewer", "more", "order", "names"],
)
def test_other_columns_than_in_training(north, places, names, rule):
    """Refused, and nothing is staged; also with columns that have no names."""
    north.columns = names and ("a", "b")
    train(north)
    north.X, north.columns = north.X[:, places], names and tuple(names)
    text = refusal(forget, north, ["north.3"])
    assert rule in text
    assert staged_by(ClientState(north.state_dir, MODEL), "b") is None
    for step in (mufc_training.predict, mufc_training.evaluate):
        assert refusal(step, north, MODEL, 1, MODEL, CENTERS) == text


def test_induced_objective_by_hand(north):
    """Rows go where their local centroid goes, also where another centre is nearer."""
    north.X = np.array([[-0.4, 0], [-0.3, 0], [0.05, 0], [0.4, 0]])
    north.state_dir = None
    train(north, local_clusters=1)
    centers = np.array([[-0.3, 0.0], [0.3, 0.0]])
    reply = mufc_training.commit(north, 1, MODEL, centers, cost=True)
    drawn = north.X[north.recall(mufc_training.MUFCState).drawn[0]]
    side = int(drawn[0] > 0)
    assert north.predictions.values.tolist() == [side] * 4
    assert north.predictions.model == MODEL
    assert reply["sizes"].tolist() == [[4, 0], [0, 4]][side]
    expected = ((north.X - centers[side]) ** 2).sum()
    np.testing.assert_allclose(join_limbs(reply["cost"]), [expected])


@pytest.mark.parametrize(
    ("name", "rule"), [("ids", "need an id-column"), ("state_dir", "no state-dir")]
)
def test_a_party_that_cannot_forget(north, name, rule):
    train(north)
    setattr(north, name, None)
    assert rule in refusal(forget, north)


def test_an_id_that_came_twice_beside_all_others(north):
    """The rows of training are all there, and one of them twice."""
    train(north)
    ids, north.X = north.ids, np.concatenate([north.X, north.X[:1]])
    north.ids = np.append(ids, "north.0")
    assert "not forgotten must occur exactly once" in refusal(forget, north)
    north.ids = np.append(ids, "new")
    forget(north)


# -- requests that are malformed, or come out of order ---------------------------------


CENTERS = np.array([[0.1, 0.2]])


def bound(step, values):
    sizes = {"n_rows": 14, "n_columns": 2, "n_parties": 4}
    return structure(step.contract.request, flatten(values), sizes)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"lower": np.full(3, -0.5), "upper": np.full(3, 0.5)}, "3 columns"),
        ({"lower": np.array([]), "upper": np.array([])}, "0 columns"),
        ({"field": "paper", "gamma": 3e-10}, "field must be 'hash'"),
    ],
)
def test_settings_that_do_not_fit_the_data(north, changes, rule):
    settings = agreed(**changes)
    assert rule in refusal(mufc_training.train, north, MODEL, settings, KEY)
    assert not north.state_dir.exists()
    request_changes(north, leave=[MODEL])
    assert rule in refusal(forget, north, leaving=[0], settings=settings)


@pytest.mark.parametrize("name", ["local_clusters", "n_clusters"])
def test_no_request_has_more_clusters_than_a_party_has_time_for(name):
    values = {"model": MODEL, "key": KEY}
    bound(mufc_training.train, values | {"settings": agreed(**{name: 2**12})})
    with pytest.raises(ContractError, match=f"{name}.* at most 4096"):
        bound(mufc_training.train, values | {"settings": agreed(**{name: 4097})})


def test_a_message_has_at_most_2_to_the_20_numbers(north):
    """2 K L with the field of the paper, and no words: each sums over all centroids."""
    settings = {"local_clusters": 2**12, "field": "paper"}
    assert agreed(**settings).code(2**7, 2, KEY).size == 2**20
    north.n_parties = 2**7 + 1
    assert "local_clusters must be lower" in refusal(train, north, **settings)


def test_each_row_must_be_in_the_box(north):
    """Also one that is no centroid: here there is a single one."""
    X = north.X.copy()
    for row in range(2):
        north.X = X.copy()
        north.X[row] = 9.0
        settings = agreed(local_clusters=1)
        text = refusal(mufc_training.train, north, MODEL, settings, KEY)
        assert "inside the agreed box" in text
        assert not north.state_dir.exists()


@pytest.mark.parametrize(
    ("step", "values", "rule"),
    [
        (mufc_training.train, {"key": b"short"}, "key must have 16 bytes"),
        (mufc_training.train, {"model": "../x"}, "id of a model"),
        (mufc.forget, {"model": "../x"}, "id of a model"),
        (mufc.forget, {"model": "f" * 16}, "no state of model"),
        (mufc.forget, {"version": 2}, "party has version 1"),
        (mufc.forget, {"version": 0}, "party has version 1"),
        (mufc.forget, {"version": 2**63 - 2}, "party has version 1"),
        (mufc.forget, {"before": "c"}, "party has version 1"),
        (mufc.forget, {"key": b""}, "key must have 16 bytes"),
        (mufc.forget, {"leaving": [0]}, "lacks the training settings"),
        (mufc.status, {"model": "../x"}, "id of a model"),
        (mufc.status, {"version": 5}, "party has version 1"),
        (mufc_training.commit, {"version": 3}, "party has version 1"),
        (mufc_training.commit, {"run": ""}, "party has version 1"),
        (mufc_training.commit, {"centers": np.full((1, 2), 9.0)}, "in the box"),
        (mufc_training.commit, {"centers": np.array([[1e308, -1e308]])}, "in the box"),
    ],
)
def test_malformed_requests_are_refused_and_change_nothing(north, step, values, rule):
    """Each as the contract lets it through."""
    train(north)
    forget(north, ["north.3"])
    known = {"model": MODEL, "version": 1, "before": MODEL}
    right = {
        mufc_training.train: {"model": "a" * 16, "settings": SETTINGS, "key": KEY},
        mufc.forget: {**known, "run": "c", "key": KEY},
        mufc.status: known,
        mufc_training.commit: {"version": 2, "run": "b", "centers": CENTERS},
    }
    assert rule in refusal(step, north, **bound(step, right[step] | values))
    state = ClientState(north.state_dir, MODEL)
    assert (state.version, state.removed()) == (1, set())
    assert list_models(north.state_dir) == [MODEL]


@pytest.mark.parametrize("values", [{}, {"kept": False}])
def test_nothing_is_committed_that_was_not_asked_before(north, values):
    train(north)
    north.resume({})
    text = unchanged(mufc_training.commit, north, 1, MODEL, CENTERS, **values)
    assert "an earlier step" in text


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda X: X[:2], "changed during"),
        (lambda X: X + 9, "inside the agreed box"),
        (lambda X: X * 0, "the same values as"),
    ],
    ids=["fewer", "outside", "others"],
)
def test_data_that_change_during_a_run(north, change, rule):
    train(north)
    north.X = change(north.X)
    assert rule in refusal(commit, north, 1, MODEL)


def test_values_that_change_between_runs(north):
    """A row that stays may have another value; two centroids may not be one."""
    train(north)
    north.X = north.X * 0
    gone = centroid_ids(north, MODEL)[-1:]
    assert "the same values as in training" in refusal(forget, north, gone)


def test_each_version_draws_from_a_stream_of_its_own(north, monkeypatch):
    """Else a seed, or a secret that is asked again, gives two redraws one draw."""
    drawn, rng = [], Party.rng

    def recorded(party, stream):
        drawn.append(rng(party, stream).random())
        return rng(party, stream)

    monkeypatch.setattr(Party, "rng", recorded)
    train(north)
    for version, (before, run) in enumerate([(MODEL, "b"), ("b", "c"), ("c", "d")], 1):
        forget(north, centroid_ids(north, MODEL)[:1], version, before, run)
        ClientState(north.state_dir, MODEL).settle(version + 1, run)
    assert len(set(drawn)) == len(drawn) == 4


# -- the law, which tests/numerics/test_mufc.py computes of the seeding ----------------


def assert_seeded(party, clusters, stream, prefix=(), without=(), new=None):
    """Compare clusters with the seeding of the rows that stay, from a stream."""
    places = [party.ids.tolist().index(name) for name in prefix]
    stay = ~np.isin(party.ids, without)
    rows, sizes = seed_centroids(
        *(party.rows, SETTINGS.box, 3, party.rng(stream), stay),
        *(np.array(places, int), new),
    )
    tags = ClientState(party.state_dir, MODEL).tag(party.ids[rows])
    assert (clusters.centroids, clusters.sizes.tolist()) == (tags, sizes.tolist())


@pytest.mark.parametrize("gone", [[], [0], [1], [2], [2, 1], [0, 1, 2]])
def test_training_and_removals_draw_by_the_law(north, gone):
    """The centroids before the first one that goes stay; those behind it do not."""
    train(north)
    state = ClientState(north.state_dir, MODEL)
    assert_seeded(north, state.current(), "centroids")
    drawn = centroid_ids(north, MODEL)
    row = next(name for name in north.ids if name not in drawn)
    without = [row, *(drawn[i] for i in gone)]
    forget(north, without)
    prefix = drawn[: min(gone, default=3)]
    assert_seeded(north, staged_by(state, "b"), "redraw 1", prefix, without)


def test_additions_draw_by_the_law(tmp_path):
    """New rows may take the places of centroids, and forgotten ones never do."""
    stayed = Counter()
    for seed in range(12):
        party = inside(federation(tmp_path / str(seed))[0], seed=seed)
        train(party)
        gone = centroid_ids(party, MODEL)[2]
        forget(party, [gone])
        ClientState(party.state_dir, MODEL).settle(2, "b")
        drawn = centroid_ids(party, MODEL)
        X = np.random.default_rng(seed).uniform(-0.5, 0.5, size=(6, 2))
        party = inside(more(party, X, [f"new.{i}" for i in range(6)]), seed=seed)
        add(party, 2, "b", "c")
        state = ClientState(party.state_dir, MODEL)
        new = np.arange(20) < 6
        assert_seeded(party, staged_by(state, "c"), "add 2", drawn, [gone], new)
        stays = [tag in state.tag(drawn) for tag in staged_by(state, "c").centroids]
        stayed[stays.index(False) if False in stays else 3] += 1
    assert stayed.keys() == {0, 1, 2, 3}
