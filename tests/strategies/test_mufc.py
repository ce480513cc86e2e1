"""Clusters that can forget, as whole runs: results, requests, files, what is seen."""

import logging
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from draws import stream
from flwr.app import Context, RecordDict
from forgetting import (
    addition,
    centroid_ids,
    check,
    cube,
    departure,
    federation,
    nearest,
    plain_clusters,
    plain_q,
    predicted,
    q_of,
    removal,
)
from supernodes import SuperNodes, write_rows
from transcripts import actual, is_uniform, patterns, replies

from simulations.mufc_attack import distances_to_bins
from vfl_flower import MUFC, FederationError, Party, PartyFailed, request_changes
from vfl_flower.app.server_app import main
from vfl_flower.clients.mufc.state import ClientState
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import weighted_kmeans
from vfl_flower.numerics.mufc import initialise, number_of_clusters
from vfl_flower.protocol.settings import values_of
from vfl_flower.secure_aggregation.sparse_sum import SparseSum
from vfl_flower.simulation import simulate
from vfl_flower.strategies import MUFCAdd, MUFCForgetClient, MUFCStatus, MUFCUnlearn
from vfl_flower.strategies.mufc.box import parse_box
from vfl_flower.strategies.mufc.state import ServerState
from vfl_flower.testing import Recorder

MODEL = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "server"


@pytest.fixture
def parties(tmp_path):
    return federation(tmp_path)


FULL = {"client_training": "full"}
PAPER = {"client_training": "init", "min_rows_per_bin": 1}
"""The form of the paper: drawn rows are the centroids, whatever their clusters hold."""


def train(parties, folder, seed=1, **settings):
    """Train, in the form of the paper unless the settings say other; the result."""
    settings = {"n_clusters": 3, "gamma": 0.01, "n_init": 2} | PAPER | settings
    return simulate(MUFC(**settings, server_state=folder), parties, seed=seed)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a folder in which parties and server have trained, and the model's id."""
    top = tmp_path_factory.mktemp("stored")
    return top, train(federation(top), top / "server").model.id


@pytest.fixture
def model(stored, tmp_path):
    """Return the id of a model that `parties` and a server in `folder` have."""
    shutil.copytree(stored[0], tmp_path, dirs_exist_ok=True)
    return stored[1]


def forget(parties, folder, model, requests=(), seed=None, **settings):
    """Let parties request to forget rows; return the result of the run."""
    strategy = removal(parties, folder, model, requests, **settings)
    return simulate(strategy, parties, seed=seed)


def add(parties, folder, model, seed=None):
    """Let parties request to add all new rows; return the result of the run."""
    return simulate(addition(parties, folder, model), parties, seed=seed)


def grown(party, count):
    """Return the party after its data have got rows, among the others."""
    rows = np.random.default_rng(5).uniform(-0.4, 0.4, size=(count, party.X.shape[1]))
    ids = [f"{party.name}.new{i}" for i in range(count)]
    half = len(party.ids) // 2
    X = np.insert(party.X, half, rows, axis=0)
    ids = np.insert(party.ids.astype("U20"), half, ids)
    return Party(X, ids=ids, name=party.name, state_dir=party.state_dir)


def files(*folders):
    """Return the bytes of all files, but those with predictions."""
    paths = [p for f in folders for p in sorted(Path(f).rglob("*")) if p.is_file()]
    return {p: p.read_bytes() for p in paths if "predictions" not in p.name}


def without(party, ids):
    """Return the party after rows were taken out of its data."""
    return party.take(np.flatnonzero(~np.isin(party.ids, list(ids))))


def logged(parties, model, key):
    """Return one value of all entries of each party's log."""
    states = [ClientState(party.state_dir, model) for party in parties]
    return [[entry[key] for entry in state.log()] for state in states]


def ordinary(party, model, count=1):
    """Return ids of rows that are no centroids."""
    drawn = centroid_ids(party, model)
    return [i for i in party.ids.tolist() if i not in drawn][:count]


# -- training --------------------------------------------------------------------------


def global_centers(q, points, settings, seed):
    """Return C_s by lines 5 to 7 of Algorithm 1, or of 5 from (centroids, sizes).

    In the cube.
    """
    rng = stream(seed, "server", "k-means")
    bins = np.array(sorted(q))
    counts = np.array([q[tuple(place)] for place in bins.tolist()])
    top = np.ceil((1 / settings.gamma - 1) / 2 - 1e-9)
    low, high = (
        np.clip(settings.gamma * (bins - top + side), -0.5, 0.5) for side in (-0.5, 0.5)
    )
    if settings.privacy == "none":
        X_s = np.concatenate([centroids for centroids, _ in points])
        weights = np.concatenate([sizes for _, sizes in points]).astype(float)
    elif settings.server_points == "weighted":
        X_s, weights = (low + high) / 2, counts.astype(float)
    else:
        X_s = np.repeat(low, counts, axis=0) + rng.random(
            (counts.sum(), len(bins[0]))
        ) * np.repeat(high - low, counts, axis=0)
        weights = np.ones(len(X_s))
    k = len(initialise(RowBlocks(X_s), settings.n_clusters, rng)[0])
    return weighted_kmeans(X_s, k, weights, rng, settings.n_init)[0]


def reference(parties, settings, seed):
    """Return drawn rows, q, centres, labels and objective by Algorithm 1 on all rows.

    With the draws of the run: the generators of the parties and of the server. Rows
    are scaled by hand, and the centres back to the unit of the data.
    """
    q, drawn, points, own_labels = {}, [], [], []
    scaled = [cube(party.X, settings) for party in parties]
    for index, (party, X) in enumerate(zip(parties, scaled, strict=True)):
        rows, _ = initialise(
            RowBlocks(X), settings.local_clusters, stream(seed, index, "centroids")
        )
        centroids, labels = plain_clusters(X, rows, settings)
        sizes = np.bincount(labels, minlength=len(centroids))
        drawn.append(party.ids[rows].tolist())
        points.append((centroids, sizes))
        own_labels.append(labels)
        for place, count in plain_q(centroids, sizes, settings).items():
            q[place] = q.get(place, 0) + count
    centers = global_centers(q, points, settings, seed)
    labels = [
        nearest(centroids, centers)[mine]
        for (centroids, _), mine in zip(points, own_labels, strict=True)
    ]
    cost = sum(
        ((X - centers[mine]) ** 2).sum() for X, mine in zip(scaled, labels, strict=True)
    )
    lower, upper = settings.lower, settings.upper
    centers = centers * (upper - lower) + (lower + upper) / 2
    return drawn, q, centers, labels, cost


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((20, 11), {}),
        ((20, 11), {"server_points": "weighted"}),
        ((20, 11), {"privacy": "none", "client_training": "full"}),
        ((20, 11, 3), {"field": "paper"}),
        ((20, 11, 3), {"gamma": "auto"}),
        ((20, 30), {"local_clusters": 2, "n_clusters": 5}),
        ((20, 30), {"local_clusters": 6, "n_clusters": 2, "client_training": "full"}),
        ((1, 40, 2, 1), {"n_clusters": 4}),
        ((1, 1), {"n_clusters": 2, "local_clusters": 4}),
        ((9, 1), {"gamma": 1.0, "server_points": "weighted"}),
        ((60, 41), {"min_rows_per_bin": 12, "local_clusters": 6}),
        ((60, 41), {"min_rows_per_bin": 12, "local_clusters": 6, **FULL}),
        ((60, 41), {"min_rows_per_bin": 12, "privacy": "none", "local_clusters": 6}),
        ((20, 11, 1), {"min_rows_per_bin": 20, **FULL}),
        (range(3, 13), {"n_clusters": 4}),
        ((8, 8), {"box": "-1,1;-0.5,2"}),
        ((20, 30), {"box": "-2000,1000;-0.5,2", "client_training": "full"}),
        ((20, 30), {"box": "-2000,1000;-0.5,2", "privacy": "none"}),
        ((20, 30, 9), {"box": "-1e150,1e150;-0.5,2", "server_points": "weighted"}),
    ],
)
def test_training_is_the_pooled_algorithm(tmp_path, folder, sizes, settings):
    """With the same draws: drawn rows, q, centres, labels and objective."""
    parties = federation(tmp_path, sizes)
    result = train(parties, folder, seed=5, **settings)
    model = result.model
    now = ServerState(folder, model.id).load()
    if settings.get("gamma") == "auto":
        assert now.settings.gamma == 1 / np.sqrt(sum(sizes))
    drawn, q, centers, labels, cost = reference(parties, now.settings, 5)
    assert [centroid_ids(party, model.id) for party in parties] == drawn
    assert q_of(now) == q
    far = np.abs([now.settings.lower, now.settings.upper]).max(axis=0)
    assert (abs(model.cluster_centers_ - centers) <= 1e-12 * far).all()
    np.testing.assert_array_equal(now.centers, model.cluster_centers_)
    assert now.sizes.tolist() == model.sizes_.tolist()
    assert now.inertia == model.inertia_
    for mine, expected in zip(model.labels_, labels, strict=True):
        np.testing.assert_array_equal(mine, expected)
    assert model.inertia_ == pytest.approx(cost, rel=1e-9)
    k = len(centers)
    all_labels = np.concatenate(labels)
    assert model.sizes_.tolist() == np.bincount(all_labels, minlength=k).tolist()
    metrics = {"version": 1, "clients": len(sizes), "rows": sum(sizes)}
    metrics |= {"bins": len(q), "small_bins": sum(c < 20 for c in q.values())}
    single = sum(c == 1 for c in q.values())
    metrics |= {"single_bins": single, "inertia": model.inertia_}
    if settings.get("client_training") == "full":  # the centres as means of their rows
        scaled = now.settings.box.scale(centers)
        between = ((scaled[all_labels] - scaled[all_labels].mean(axis=0)) ** 2).sum()
        metrics["explained"] = pytest.approx(between / (between + cost), rel=1e-6)
    assert result.metrics == metrics
    assert result.ledger.round_trips == 3
    check(parties, folder, model.id)
    for party, mine in zip(parties, model.labels_, strict=True):
        assert predicted(party, model.id) == party.ids.tolist()
        lines = (party.state_dir / f"predictions-{model.id}.csv").read_text()
        assert [int(line.split(",")[1]) for line in lines.split()[1:]] == mine.tolist()


@pytest.mark.parametrize(
    ("without_folder", "server"), [([0, 1, 2], True), ([1], True), ([], False)]
)
def test_all_keep_a_state_or_nobody(tmp_path, parties, caplog, without_folder, server):
    """A party that has begun a state is told to drop it."""
    for place in without_folder:
        parties[place].state_dir = None
    model = train(parties, tmp_path / "server" if server else None).model
    assert not model.kept
    assert "cannot forget" in model.note
    assert "this model cannot forget rows" in caplog.text
    assert [len(labels) for labels in model.labels_] == [14, 9, 6]
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert names == [f"predictions-{model.id}.csv"] * (3 - len(without_folder))


def test_a_party_needs_a_name_to_forget_later(tmp_path, parties, folder):
    """By its place it would be another one where the order is another."""
    parties[2].name = None
    failure("party-2", "train", lambda: train(parties, folder), "party-name")
    assert not folder.exists()
    assert not parties[2].state_dir.exists()
    assert not train(parties, None).model.kept
    parties[2].state_dir = None
    assert not train(parties, folder).model.kept


@pytest.mark.parametrize("task", ["unlearn", "status", "forget-client"])
def test_a_party_refuses_the_state_of_another(parties, folder, task, model):
    """It would forget the other's rows, or the other as a whole."""
    south, west = (party.state_dir for party in parties[1:])
    shutil.move(south, folder.parent / "south before")
    shutil.copytree(west, south)
    strategy = {
        "unlearn": lambda: removal(parties, folder, model, {"north": ["north.1"]}),
        "status": lambda: MUFCStatus(model, server_state=folder),
        "forget-client": lambda: departure(parties, folder, model, "south"),
    }[task]()
    before = files(folder, south)
    step = "status" if task == "status" else "forget"
    failure("south", step, lambda: simulate(strategy, parties), "party 'west'")
    assert files(folder, south) == before
    shutil.rmtree(south)
    shutil.move(folder.parent / "south before", south)
    if task == "forget-client":
        request_changes(parties[1], leave=[model])
    simulate(strategy, parties)
    gone = ["north.1"] if task == "unlearn" else []
    check(parties, folder, model, gone, ["south"] if task == "forget-client" else [])


# -- forgetting rows -------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"min_rows_per_bin": 4},
        FULL | {"min_rows_per_bin": 20},
        {"privacy": "none", "local_clusters": 1},
        FULL | {"server_points": "weighted", "field": "paper"} | {"box": "-9,1;-0.5,2"},
    ],
)
def test_rows_go_and_come_in_several_runs(parties, folder, settings):
    """Of several parties, in batches, with blanks in a file and a request twice."""
    model = train(parties, folder, **settings).model.id
    north, south, west = parties
    old = centroid_ids(north, model)
    gone = [*ordinary(north, model, 2), *ordinary(south, model)]
    result = forget(parties, folder, model, gone)
    assert result.metrics.items() >= {"removed": 3, "changed": 1, "version": 2}.items()
    assert (result.metrics["rows"], result.ledger.round_trips) == (26, 3)
    assert centroid_ids(north, model) == old  # no centroid was asked for
    check(parties, folder, model, gone)

    last, first = old[-1], centroid_ids(south, model)[0]
    (west.state_dir / "forget.txt").write_text(f"\n  {ordinary(west, model)[0]} \n\n")
    (north.state_dir / "forget.txt").write_text(f"{last}\n{gone[0]}\n")
    gone += [last, first, *ordinary(west, model)]
    result = forget(parties, folder, model, [first])
    assert result.metrics["removed"] == 3
    assert centroid_ids(north, model)[: len(old) - 1] == old[:-1]
    check(parties, folder, model, gone)
    assert not list(folder.parent.rglob("forget.txt"))
    redrawn = [[True, False, True], [True, False, True], [True, False, False]]
    assert logged(parties, model, "redrawn") == redrawn

    more = [grown(without(north, gone), 8), without(south, gone), grown(west, 1)]
    result = add(more, folder, model, seed=1)
    added = {"added": 9, "rows": 32, "version": 4, "changed": 1}
    assert result.metrics.items() >= added.items()
    assert "removed" not in result.metrics
    assert result.ledger.round_trips == 3
    check(more, folder, model, gone)

    gone += ["north.new3", ordinary(more[0], model)[0]]
    forget(more, folder, model, gone[-2:])
    more = [more[0], grown(more[1], 20), more[2]]
    result = add(more, folder, model, seed=1)
    check(more, folder, model, gone)
    for party, labels in zip(more, result.model.labels_, strict=True):
        stay = [i for i in party.ids.tolist() if i not in gone]
        assert predicted(party, model) == stay
        assert len(labels) == len(stay)
    kinds = [entry["kind"] for entry in ServerState(folder, model).log()]
    assert kinds == ["train", "unlearn", "unlearn", "add", "unlearn", "add"]
    # Some party has got a new row among its centroids.
    assert [i for party in more for i in centroid_ids(party, model) if "new" in i]


@pytest.mark.parametrize("task", ["unlearn", "add"])
@pytest.mark.parametrize(
    "settings", [{"server_points": "weighted"}, {"box": "-2000,1000;-0.5,2"}]
)
def test_results_of_a_later_version(parties, folder, settings, task):
    """Centres by Algorithm 1 from the counts, and labels induced by the centroids."""
    model = train(parties, folder, **settings).model.id
    if task == "add":
        now = [grown(parties[0], 8), *parties[1:]]
        result = add(now, folder, model, seed=9).model
    else:
        gone = [centroid_ids(parties[0], model)[1], *ordinary(parties[1], model)]
        now = [without(party, gone) for party in parties]
        result = forget(parties, folder, model, gone, seed=9).model
    state = ServerState(folder, model).load()
    centers = global_centers(q_of(state), (), state.settings, 9)
    scaled = cube(result.cluster_centers_, state.settings)
    np.testing.assert_allclose(scaled, centers, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(state.centers, result.cluster_centers_)
    cost = 0.0
    for party, labels in zip(now, result.labels_, strict=True):
        X = cube(party.X, state.settings)
        rows = [party.ids.tolist().index(i) for i in centroid_ids(party, model)]
        induced = nearest(X[rows], centers)[nearest(X, X[rows])]
        np.testing.assert_array_equal(labels, induced)
        cost += ((X - centers[induced]) ** 2).sum()
    assert result.inertia_ == pytest.approx(cost, rel=1e-9)
    assert result.sizes_.sum() == {"unlearn": 27, "add": 37}[task]


def test_twice_the_same_request_is_done_already(parties, folder, caplog, model):
    gone = [centroid_ids(parties[0], model)[0], *ordinary(parties[1], model)]
    first = forget(parties, folder, model, gone)
    server = files(folder)
    logs = [ClientState(party.state_dir, model).log() for party in parties]
    (parties[1].state_dir / "forget.txt").write_text(f"{gone[1]}\n")
    again = forget(parties, folder, model, gone)
    assert "forgotten before" in caplog.text
    assert again.ledger.round_trips == 2
    assert again.metrics == first.metrics | {"removed": 0, "changed": 0}
    assert again.metrics["version"] == 2
    assert again.model.sizes_.tolist() == first.model.sizes_.tolist()
    assert np.array_equal(again.model.cluster_centers_, first.model.cluster_centers_)
    assert files(folder) == server
    assert [ClientState(party.state_dir, model).log() for party in parties] == logs
    assert not (parties[1].state_dir / "forget.txt").exists()
    check(parties, folder, model, gone)


@pytest.mark.parametrize("removed", [False, True])
def test_a_server_that_fails_before_the_sizes(parties, folder, monkeypatch, removed):
    """They are asked for by the next request, also where it has nothing to forget."""
    run = partial(train, parties, folder)
    if removed:
        run = partial(forget, parties, folder, run().model.id, ["north.1"])
    with monkeypatch.context() as broken:
        broken.setattr(ServerState, "describe", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run()
    (path,) = folder.glob("*.sqlite")
    status_of = MUFCStatus(path.stem, server_state=folder)
    status = simulate(status_of, parties).model
    assert (status.sizes_.tolist(), np.isnan(status.inertia_)) == ([], True)
    again = forget(parties, folder, path.stem, ["north.1"] if removed else ()).model
    assert again.sizes_.sum() == 29 - removed
    assert np.isfinite(again.inertia_)
    status = simulate(status_of, parties).model
    assert status.sizes_.tolist() == again.sizes_.tolist()
    assert status.inertia_ == again.inertia_


def test_unknown_ids_change_nothing(parties, folder, caplog, model):
    north, south, _ = parties
    requests = {"north": ordinary(north, model), "south": ["south.0", "west.0", "17"]}
    task = removal(parties, folder, model, requests)
    before = files(folder, south.state_dir)
    text = failure("south", "forget", lambda: simulate(task, parties), "ids")
    assert "must belong to training rows" in text
    assert "lines [2, 3] of forget.txt do not name training rows" in caplog.text
    assert files(folder, south.state_dir) == before
    status = simulate(MUFCStatus(model, server_state=folder), parties).metrics
    assert (status["removed"], status["pending"], status["rows"]) == (0, 4, 29)
    check(parties, folder, model)


@pytest.mark.parametrize(
    ("which", "away", "training"),
    [(ordinary, 2, "init"), (ordinary, 1, "full"), (centroid_ids, 2, "init")],
)
def test_rows_may_go_before_the_run(tmp_path, parties, folder, which, away, training):
    """From the data: the state is the same as where they are still in the file."""
    model = train(parties, folder, client_training=training).model.id
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    north, copied = parties[0], federation(copy)
    gone = ordinary(north, model, 2)
    if which is centroid_ids:
        gone = centroid_ids(north, model)[1:2]
    less = [without(north, gone[:away]), *parties[1:]]
    results = [
        forget(group, server, model, gone, seed=4).model.cluster_centers_
        for group, server in ((less, folder), (copied, copy / "server"))
    ]
    check(parties, folder, model, gone)
    check(copied, copy / "server", model, gone)
    np.testing.assert_array_equal(*results)
    assert centroid_ids(north, model) == centroid_ids(copied[0], model)


def test_rows_that_are_gone_unasked_end_the_run(parties, folder, caplog, model):
    """They would be a silent removal."""
    north = parties[0]
    gone = ordinary(north, model, 2)
    less = [without(north, gone), *parties[1:]]
    before = files(folder)
    rule = "each training row that was not forgotten must occur"
    for asked, remaining in ([], 14), (gone[:1], 13):
        failure("north", "forget", partial(forget, less, folder, model, asked), rule)
        line = f"{remaining} training rows were not forgotten .* the data hold 12 of"
        assert re.search(line, caplog.text)
    assert files(folder) == before
    check(parties, folder, model)
    forget(less, folder, model, gone)
    check(parties, folder, model, gone)


def test_lazy_counts_keep_the_centres_where_no_bin_changes(parties, folder):
    """Algorithm 4; the counts are those of the rows that stay."""
    model = train(parties, folder).model
    gone = ordinary(parties[0], model.id)
    lazy = forget(parties, folder, model.id, gone, lazy_counts=True)
    assert lazy.metrics["changed"] == 0
    np.testing.assert_array_equal(lazy.model.cluster_centers_, model.cluster_centers_)
    check(parties, folder, model.id, gone)
    gone += centroid_ids(parties[0], model.id)[:1]
    lazy = forget(parties, folder, model.id, gone, lazy_counts=True)
    assert lazy.metrics["changed"] == 1
    check(parties, folder, model.id, gone)


def test_lazy_counts_of_centroids_in_the_clear(parties, folder):
    """They are no bins, so that it has no effect: said before any message."""
    model = train(parties, folder, privacy="none").model.id
    lazy = removal(parties, folder, model, lazy_counts=True)
    unasked(lazy, parties, "lazy_counts has no effect")


@pytest.mark.parametrize("settings", [{}, {"privacy": "none"}, FULL])
def test_all_rows_of_a_party(parties, folder, settings):
    """It takes part in later runs, with nothing; without it q and C_s are the same."""
    model = train(parties, folder, **settings).model.id
    gone = parties[2].ids.tolist()
    result = forget(parties, folder, model, gone)
    assert len(result.model.labels_[2]) == 0
    assert predicted(parties[2], model) == []
    check(parties, folder, model, gone)
    more = ordinary(parties[0], model)
    forget(parties, folder, model, gone + more)
    check(parties, folder, model, gone + more)
    before = ServerState(folder, model).load()
    last = simulate(departure((), folder, model, "west"), parties[:2])
    after = ServerState(folder, model).load()
    assert q_of(before) == q_of(after)
    if "privacy" not in settings:
        np.testing.assert_array_equal(before.centers, after.centers)
        assert last.metrics["changed"] == 0


def test_all_rows_of_all_parties_are_no_model(parties, folder, model):
    before = files(folder)
    ids = np.concatenate([party.ids for party in parties])
    with pytest.raises(FederationError, match=r"^at least one row must remain"):
        forget(parties, folder, model, ids.tolist())
    assert files(folder) == before
    simulate(MUFCStatus(model, server_state=folder), parties)
    check(parties, folder, model)


def test_status(parties, folder, caplog):
    caplog.set_level(logging.INFO)
    model = train(parties, folder).model
    status = MUFCStatus(model.id, server_state=folder)
    request_changes(parties[0], forget=["north.3"], add=["new"])
    result = simulate(status, parties)
    counts = {"rows": 29, "removed": 0, "added": 0, "pending": 2, "requests": 0}
    assert result.metrics == {"version": 1, "clients": 3} | counts
    assert result.ledger.round_trips == 2
    assert "north: 14 rows, 0 removed, 0 added, 2 pending, 0 requests" in caplog.text
    for name in ("cluster_centers_", "sizes_", "inertia_"):
        np.testing.assert_array_equal(getattr(result.model, name), getattr(model, name))
    forget(parties, folder, model.id)
    counts = {"rows": 28, "removed": 1, "added": 0, "pending": 1, "requests": 1}
    result = simulate(status, parties)
    assert result.metrics == {"version": 2, "clients": 3} | counts


# -- forgetting parties ----------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"privacy": "none"}])
def test_a_connected_party_leaves(parties, folder, settings):
    model = train(parties, folder, **settings).model.id
    assert len(centroid_ids(parties[2], model))
    for party in (parties[0], parties[2]):
        (party.state_dir / "forget.txt").write_text(f"{party.name}.0\n")
    result = simulate(departure(parties, folder, model, " west "), parties)
    check(parties, folder, model, left=["west"])
    assert (result.metrics["clients"], result.metrics["rows"]) == (2, 23)
    (left,) = parties[2].state_dir.iterdir()
    assert left.name == f"{model}.sqlite"  # the audit log
    assert logged(parties, model, "kind") == [["train", "forget-client"]] * 3
    # What others want to forget is for a run that says so.
    requests = parties[0].state_dir / "forget.txt"
    assert requests.read_text() == "north.0\n"
    status = simulate(MUFCStatus(model, server_state=folder), parties[:2]).metrics
    assert (status["rows"], status["version"], status["pending"]) == (23, 2, 1)
    requests.unlink()
    gone = ordinary(parties[0], model)
    forget(parties[:2], folder, model, gone)
    check(parties, folder, model, gone, left=["west"])
    with pytest.raises(FederationError, match="'west' is not one of them"):
        forget(parties, folder, model, gone)


@pytest.mark.parametrize("absent", [False, True])
def test_a_party_is_forgotten_twice(parties, folder, model, absent):
    """An absent one leaves its state too, when it is there again."""
    leave = departure(parties, folder, model, ["west"])
    first = simulate(leave, parties[: 3 - absent])
    assert (first.metrics["rows"], first.metrics["version"]) == (23, 2)
    assert ClientState(parties[2].state_dir, model).left != absent
    check(parties[:2], folder, model)
    for here in (parties, parties[:2]):
        again = simulate(leave, here)
        assert again.metrics["changed"] == 0
        np.testing.assert_array_equal(
            again.model.cluster_centers_, first.model.cluster_centers_
        )
        check(parties, folder, model, left=["west"])


def test_all_but_two_parties_may_leave(tmp_path, folder):
    """The sum over one would show its counts. Nothing is changed, here or there."""
    parties = federation(tmp_path, (8, 7, 6, 5))
    model = train(parties, folder).model.id
    simulate(departure(parties, folder, model, "west,north"), parties)
    check(parties, folder, model, left=["north", "west"])
    before = files(folder, *(party.state_dir for party in parties))
    for leaving in ("north,west,south", "north,west,south,east"):
        strategy = MUFCForgetClient(model, leaving, server_state=folder)
        for here in (parties, parties[1::2]):
            refusal(partial(simulate, strategy, here), "at least 2 parties must remain")
    assert files(folder, *(party.state_dir for party in parties)) == before


# -- choosing the number of clusters ---------------------------------------------------


def best_number(now, seed):
    """Return the K with the best silhouette of the server's bins, by its definition."""
    settings, rng = now.settings, stream(seed, "server", "number of clusters")
    bins, counts = settings.quantizer.centers(now.bins), now.counts.astype(float)
    return number_of_clusters(bins, counts, settings.n_clusters, rng, 2)


@pytest.mark.parametrize("settings", [{}, FULL | {"privacy": "none"}])
def test_the_server_chooses_the_number_of_clusters(tmp_path, folder, settings):
    """In each version anew, from its bins alone; with the messages of 6 clusters."""
    parties = federation(tmp_path, (40, 30, 20))
    chosen = {"n_clusters": 6, "choose_clusters": True} | settings
    result = train(parties, folder, **chosen)
    model = result.model.id
    assert len(result.model.cluster_centers_) == result.metrics["clusters"] == 3
    bounds = [MUFC(k, choose_clusters=True) for k in (6, 3)]
    assert [len(bound.shortfalls(result.metrics)) for bound in bounds] == [0, 1]
    check(parties, folder, model)
    now = ServerState(folder, model).load()
    assert now.settings.n_clusters == now.settings.local_clusters == 6
    assert best_number(now, 1) == 3
    fixed = train(parties, tmp_path / "other", n_clusters=6, **settings)
    assert "clusters" not in fixed.metrics
    for party in parties:
        sent = [r.ledger.entry("mufc_train", party.name) for r in (result, fixed)]
        assert abs(sent[0].bytes_up - sent[1].bytes_up) < 64
    # Without the rows of one of three groups there are two.
    X = np.concatenate([party.X for party in parties])
    labels = nearest(X, result.model.cluster_centers_)
    ids = np.concatenate([party.ids for party in parties])[labels == 0]
    after = forget(parties, folder, model, ids.tolist(), seed=4)
    assert len(after.model.cluster_centers_) == after.metrics["clusters"] == 2
    assert best_number(ServerState(folder, model).load(), 4) == 2
    check(parties, folder, model, ids.tolist())


# -- adding ----------------------------------------------------------------------------


def test_files_that_still_name_forgotten_ids_are_listed(parties, folder, caplog, model):
    gone = ordinary(parties[0], model)
    place = parties[0].state_dir
    (place / "notes.csv").write_text(f"id,text\n{gone[0]},seen in May\n")
    (place / "others.csv").write_text(f"id,text\n{gone[0]}0,seen in May\n")
    forget(parties, folder, model, gone)
    (message,) = [m for m in caplog.messages if "still contain forgotten ids" in m]
    assert message.endswith(": notes.csv")


def test_without_new_rows_nothing_is_added(parties, folder, caplog, model):
    """A row that was forgotten and is still in the data is none."""
    gone = ordinary(parties[0], model)
    before = forget(parties, folder, model, gone)
    contents = files(folder, *(party.state_dir for party in parties))
    result = add(parties, folder, model)
    assert "no party has asked to add rows that the model lacks" in caplog.text
    assert "1 forgotten rows are still in the parties' files" in caplog.text
    assert result.ledger.round_trips == 2
    assert (result.metrics["added"], result.metrics["rows"]) == (0, 28)
    assert result.metrics["version"] == before.metrics["version"] == 2
    assert np.array_equal(result.model.cluster_centers_, before.model.cluster_centers_)
    forget(parties, folder, model, gone)  # drops what was staged
    assert files(folder) == {p: b for p, b in contents.items() if p.parent == folder}
    check(parties, folder, model, gone)


def test_a_party_whose_rows_were_all_forgotten_gets_others(parties, folder, model):
    north = parties[0]
    gone = north.ids.tolist()
    forget(parties, folder, model, gone)
    more = [without(grown(north, 7), gone), *parties[1:]]
    assert add(more, folder, model).metrics["rows"] == 15 + 7
    drawn = centroid_ids(more[0], model)
    assert len(drawn) == 3
    assert all("new" in i for i in drawn)


# -- messages --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return transcripts of three tasks, twice with one seed: training, and two later.

    Of the request: north is not asked, south loses a row, west a centroid, east all.
    Then north gets a row, and south 50.
    """
    folder = tmp_path_factory.mktemp("seen")
    parties = federation(folder, (40, 30, 20, 6), 130)
    server, runs = folder / "server", []
    more = [grown(parties[0], 1), grown(parties[1], 50), *parties[2:]]
    for _ in range(2):
        grids = Recorder(parties), Recorder(parties), Recorder(more)
        training = MUFC(20, 0.01, **PAPER, server_state=server, seed=1)
        model = training.start(grids[0]).model.id
        gone = [*ordinary(parties[1], model), centroid_ids(parties[2], model)[0]]
        gone += parties[3].ids.tolist()
        removal(parties, server, model, gone, seed=1).start(grids[1])
        addition(more, server, model, seed=1).start(grids[2])
        runs.append([grid.transcript for grid in grids])
    return more, runs


@pytest.mark.parametrize(
    ("part", "action", "rows"),
    [(0, "mufc_train", 96), (1, "mufc_forget", 88), (2, "mufc_add", 139)],
)
def test_a_message_is_uniform_in_the_field(seen, part, action, rows):
    """Alone, two, and all but one: ten tests, each with a false-alarm rate of 1e-9.

    Of the highest bits of 61, and of the lowest. Only the sum of all is none.
    """
    messages = replies(seen[1][0][part], action, "message")
    p = np.uint64(2**61 - 1)
    two = (messages[0] + messages[1]) % p
    three = (two + messages[2]) % p
    for elements in (*messages, two, three):
        assert elements.dtype == np.uint64
        assert elements.max() < p
        assert is_uniform(elements << np.uint64(3))
        assert is_uniform(elements << np.uint64(56))
    assert (three[0] + messages[3][0]) % p == rows
    none = np.zeros((0, 60), int), np.zeros(0, int)
    bare = SparseSum(40, 4, 60, 101, bytes(16)).encode(*none)
    assert not is_uniform(bare << np.uint64(3))


def test_all_parties_send_the_same_whatever_they_lose(seen):
    """These names and no others, and the same types, shapes and bytes."""
    sums = {"message", "totals"}
    names = {"mufc_train": sums | {"kept"}, "mufc_forget": sums, "mufc_add": sums}
    names["mufc_commit"] = {"cost", "sizes"}
    for transcript in (part for run in seen[1] for part in run):
        for action in {e.action for e in transcript} - {"hello"}:
            sent = [e for e in transcript if e.up and e.action == action]
            assert len({e.size for e in sent}) == 1, action
            for e in sent:
                assert e.values.keys() == names[action]
                masked = [v for name, v in e.values.items() if name != "kept"]
                assert all(array.dtype == np.uint64 for array in masked)
                shapes = [np.shape(e.values[name]) for name in names[action]]
                assert shapes == [np.shape(sent[0].values[n]) for n in names[action]]


def test_each_run_has_a_key_of_its_own(seen):
    """To hash bins with, told to all: a party cannot look for collisions before."""
    keys = [
        {e.values["key"] for e in transcript if not e.up and "key" in e.values}
        for transcripts in seen[1]
        for transcript in transcripts
    ]
    assert [len(key) for of_run in keys for key in of_run] == [16] * 6
    assert len(set.union(*keys)) == 6
    assert bytes(16) not in set.union(*keys)


def test_no_value_and_no_id_is_in_a_message(seen):
    parties, runs = seen
    values = set().union(*(patterns(party.X[:, :9]) for party in parties))
    ids = {i.encode() for party in parties for i in party.ids.tolist()}
    for transcript in (part for run in runs for part in run):
        assert not actual(values, transcript)
        assert not actual(ids, transcript)


# -- membership ------------------------------------------------------------------------


DEFAULT = {name: values_of(MUFC())[name] for name in PAPER}


def members_and_others(tmp_path, noise=0.04):
    """Return three parties of 1,200 rows, and 20,000 rows of the same law."""
    rng = np.random.default_rng(0)
    middles = rng.uniform(-0.3, 0.3, size=(10, 8))

    def rows(n):
        X = middles[rng.integers(10, size=n)] + rng.normal(0, noise, size=(n, 8))
        return np.clip(X, -0.5, 0.5)

    parties = federation(tmp_path, [1200] * 3)
    for party in parties:
        party.X = rows(1200)
    return parties, rows(20_000)


def sides_to_bins(now, candidates):
    """Return how far candidates are from the nearest bin with a count, 0.5 inside."""
    return distances_to_bins(candidates, now.bins, now.settings.quantizer)


@pytest.mark.parametrize(
    ("settings", "tells"),
    [
        (PAPER, True),
        (PAPER | {"min_rows_per_bin": 20}, True),
        (DEFAULT, False),
        (PAPER | FULL, False),
    ],
    ids=["paper", "merged", "default", "full"],
)
def test_the_server_tells_members_from_others(tmp_path, folder, settings, tells):
    """From the sum of one training, with the rows that parties have drawn.

    A bin of a drawn row has a count. Large clusters do not help; means do: then the
    best of 20 false alarms among 20,000 finds next to none.
    """
    parties, others = members_and_others(tmp_path)
    model = train(parties, folder, n_clusters=10, gamma="auto", **settings).model.id
    now = ServerState(folder, model).load()
    drawn = [np.isin(p.ids, centroid_ids(p, model)) for p in parties]
    members = np.concatenate([p.X[d] for p, d in zip(parties, drawn, strict=True)])
    assert members.shape == (30, 8)
    far, wrong = sides_to_bins(now, members), np.sort(sides_to_bins(now, others))
    assert wrong[0] > 0.5
    if tells:
        assert (far <= 0.5).all()
        assert (far < wrong[20]).all()
    else:
        assert not (far <= 0.5).any()
        assert (far < wrong[20]).sum() <= 2


@pytest.mark.parametrize("training", ["init", "full"])
@pytest.mark.parametrize("least", [1, 20])
def test_the_server_finds_a_row_that_is_far_from_all(tmp_path, folder, training, least):
    """It is a cluster of its own, whose mean it is; merged it is not seen."""
    parties, _ = members_and_others(tmp_path, noise=0.002)
    parties[1].X[7] = far = np.full(8, 0.47)
    settings = {"client_training": training, "min_rows_per_bin": least}
    settings |= {"n_clusters": 10, "local_clusters": 12, "gamma": "auto"}
    result = train(parties, folder, **settings)
    now = ServerState(folder, result.model.id).load()
    assert (sides_to_bins(now, far[None]) <= 0.5).tolist() == [least == 1]
    assert (result.metrics["single_bins"] > 0) == (least == 1)
    assert (result.metrics["small_bins"] > 0) == (least == 1)
    assert now.counts.min() >= least


@pytest.mark.parametrize("training", ["init", "full"])
def test_bins_of_few_rows_are_counted_and_said(parties, folder, training, caplog):
    """Parties of 14, 9 and 6 rows: one bin each, all small, and fewer than clusters."""
    settings = {"client_training": training, "min_rows_per_bin": 20}
    result = train(parties, folder, n_clusters=4, **settings)
    bins = {"bins": 3, "small_bins": 3, "single_bins": 0}
    assert result.metrics.items() >= bins.items()
    assert "3 of 3 bins have fewer than 20 rows, and 0 have one row" in caplog.text
    assert "only 3 bins for 4 clusters" in caplog.text
    assert "lower min_rows_per_bin" in caplog.text
    for _ in range(2):
        gone = parties[2].ids.tolist()[:-1]
        after = forget(parties, folder, result.model.id, gone).metrics
        assert after.items() >= (bins | {"single_bins": 1}).items()


def test_large_bins_are_not_warned_of(tmp_path, folder, caplog):
    parties, _ = members_and_others(tmp_path)
    metrics = simulate(MUFC(10, server_state=folder), parties, seed=1).metrics
    assert (metrics["small_bins"], metrics["single_bins"]) == (0, 0)
    assert metrics["bins"] > 20
    assert "bins have fewer" not in caplog.text
    assert "only" not in caplog.text


class Deployment:
    """Three SuperNodes with CSV files and a server, all in one folder."""

    consent = (
        'two-parties = true\nchanged-parties = ["p1"]\n'
        "[leaves]\ncentroids = true\nrows = true\nrow-sums = true\n"
    )

    def __init__(self, top):
        self.top, self.runs = top, 0
        self.X = np.random.default_rng(8).uniform(-0.5, 0.5, (3, 30, 3)).round(12)
        (top / "files").mkdir()
        for j in range(3):
            self.write(j, range(30))

    def path(self, j):
        return self.top / "files" / f"{j}.csv"

    def state(self, j):
        return self.top / f"state-{j}"

    def write(self, j, rows):
        lines = [[patient(j, i), *self.X[j, i].tolist()] for i in rows]
        write_rows(self.path(j), ["id", "a", "b", "c"], *lines)

    def run(self, **config):
        """Run a task by a run config, as `flwr run` does."""
        self.runs += 1
        config |= {"strategy": "mufc", "mufc.server-state": str(self.top / "server")}
        config |= {"output-dir": str(self.top / f"output{self.runs}")}
        grid = SuperNodes(self.path(0).parent, self.consent, {}, **config)
        main(grid, Context(self.runs, 0, {}, RecordDict(), config))

    def model(self):
        (path,) = (self.top / "server").glob("*.sqlite")
        return path.stem

    def drawn(self, j):
        state = ClientState(self.state(j), self.model())
        tags = state.tag([patient(j, i) for i in range(30)])
        return [tags.index(tag) for tag in state.current().centroids]

    def bin(self, j, i):
        """Return what the bin of a row looks like: integers, and packed."""
        settings = ServerState(self.top / "server", self.model()).load().settings
        ((place, _),) = plain_q(self.X[j, i : i + 1], [1], settings).items()
        B = max(2, 2 * int(np.ceil((1 / settings.gamma - 1) / 2 - 1e-9)) + 1)
        code = SparseSum(1, 1, 3, B, bytes(16))
        bins = np.array([place])
        return [bins.astype("<i8").tobytes(), code._pack(bins).tobytes()]

    def text_of(self, *skip):
        paths = [*self.top.rglob("*")]
        paths = [p for p in paths if not any(p.is_relative_to(s) for s in skip)]
        assert any(p.suffix == ".sqlite" for p in paths)
        return content(paths)


def content(paths):
    return b"\0".join(path.read_bytes() for path in paths if path.is_file())


def patient(j, i):
    return f"patient-{j}-{i:03d}"


def forms(values):
    """Return the bytes of rows as float64, pairs of float32 and decimal text.

    Four bytes, as of a single float32, are in a key now and then.
    """
    rows = np.atleast_2d(values)
    pairs = np.lib.stride_tricks.sliding_window_view(rows.astype("<f4"), 2, axis=-1)
    texts = {repr(v).removeprefix("-").encode() for v in rows.ravel().tolist()}
    return texts | patterns(rows) | {v.tobytes() for v in pairs.reshape(-1, 2)}


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """Return three parties with files, after a training; pages have no figures."""
    monkeypatch.setattr("vfl_flower.app.report.report.figures_of", lambda _: [])
    monkeypatch.setenv("VFL_FLOWER_CACHE", str(tmp_path / "cache"))
    log = logging.getLogger("vfl_flower")
    level, handlers = log.level, list(log.handlers)
    made = Deployment(tmp_path)
    # Fine bins, so that one is not found by chance.
    training = {"task": "train", "mufc.n-clusters": 3, "mufc.gamma": 1e-6}
    # Of the paper's form, in which a bin is that of a row.
    training |= {"mufc.client-training": "init", "mufc.min-rows-per-bin": 1}
    made.run(**training)
    yield made
    log.setLevel(level)
    log.handlers[:] = handlers


@pytest.mark.parametrize(("before", "then"), [(False, []), (True, ["status"])])
def test_no_file_holds_a_forgotten_row(deployment, before, then, caplog, capsys):
    """Of a centroid and of another row.

    They are taken out of the data before the run, or after it and others.
    """
    caplog.set_level(logging.DEBUG)
    X, top, model = deployment.X, deployment.top, deployment.model()
    centroid = deployment.drawn(0)[0]
    # What is looked for is there before: in the cache and the CSV file, or the server.
    text = deployment.text_of()
    assert sum(f in text for f in forms(X[0, centroid])) == 6
    assert deployment.bin(0, centroid)[0] in text
    text = deployment.text_of(top / "files", top / "cache")
    assert not any(f in text for f in forms(X))
    shutil.rmtree(top / "output1")  # centres of before
    gone = {0: centroid, 1: next(i for i in range(30) if i not in deployment.drawn(1))}
    for j, row in gone.items():
        (deployment.state(j) / "forget.txt").write_text(f"{patient(j, row)}\n")

    def take_out():
        for j, row in gone.items():
            deployment.write(j, [i for i in range(30) if i != row])

    if before:
        take_out()
    bins = deployment.bin(0, centroid)
    for task in ["unlearn", *then]:
        deployment.run(task=task, **{"model-id": model})
    # The cache must not have them even where the file of the party still does.
    text = deployment.text_of(top / "files")
    values = forms([X[j, row] for j, row in gone.items()])
    assert [f for f in values if f in text] == []
    if not before:
        take_out()
    captured = capsys.readouterr()
    output = (caplog.text + captured.out + captured.err).encode()
    text = deployment.text_of() + output
    assert [f for f in (*values, *bins) if f in text] == []
    # Ids are in files for the party alone.
    ids = [patient(j, row).encode() for j, row in gone.items()]
    assert not any(i in output for i in ids)
    assert not re.search(rb"patient-\d-", content(top.rglob("*.sqlite")))
    for j, patient_id in enumerate(ids):
        files_of = [deployment.path(j), *deployment.state(j).rglob("*")]
        assert patient_id not in content(files_of)
    assert ids[1] not in content(top.glob("output*/**/*"))


def test_a_party_that_leaves_keeps_no_row(deployment):
    bins = deployment.bin(1, deployment.drawn(1)[0])
    shutil.rmtree(deployment.top / "output1")
    assert bins[0] in deployment.text_of()
    config = {"task": "forget-client", "model-id": deployment.model()}
    (deployment.state(1) / "leave.txt").write_text(f"{config['model-id']}\n")
    deployment.run(**config | {"mufc.clients": "p1"})
    text = deployment.text_of(deployment.top / "files")
    left = *forms(deployment.X[1]), *bins, b"patient-1-"
    assert [f for f in left if f in text] == []


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        *(({name: 0}, "at least 1") for name in ("n_clusters", "n_init")),
        ({"n_clusters": 1, "choose_clusters": True}, "at least 2 with choose_clusters"),
        ({"local_clusters": -1}, "at least 0"),
        ({"n_parties": 1}, "at least 2"),
        ({"min_rows_per_bin": 0}, "at least 1"),
        ({"gamma": 0}, "above 0"),
        ({"gamma": 1.01}, "at most 1"),
        ({"gamma": 2.0**-32}, "a column must have at most 2^32 bins"),
        ({"gamma": 1e-17, "privacy": "none"}, "a column must have at most 2^32 bins"),
        ({"gamma": 5e-324, "field": "paper"}, "a column must have at most 2^32 bins"),
    ],
)
def test_bad_settings(settings, rule):
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"^{name} must .*{re.escape(rule)}") as caught:
        MUFC(**settings)
    assert str(caught.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    "box",
    [
        *("", "1", "0,1,2", "a,b", "1,0", "0,inf", "nan,1", "0,1;", "0,1;2"),
        *((0, 1, 2), ([0, 0], [1]), (1, 0), 3, ([[0]], [[1]])),
        *("0,0", "0,1;7,7", (0, 1e-310), (-1e308, 1e308)),
    ],
)
def test_bad_boxes(box):
    rule = r"^box must be 'lower,upper', or one such pair"
    with pytest.raises(ValueError, match=rule):
        MUFC(box=box)


def test_boxes():
    for box in ("-1,2", (-1, 2), "-1, 2 "):
        assert [float(bound) for bound in parse_box(box)] == [-1, 2]
    for box in ("-1,2;0,5", ([-1, 0], [2, 5]), (np.array([-1, 0]), np.array([2, 5]))):
        assert [bound.tolist() for bound in parse_box(box)] == [[-1, 0], [2, 5]]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *(("clients", c, "name") for c in (5, [5], ["a", None], "", " , ", [])),
        ("server_state", "", "be the folder in which training"),
        ("n_parties", 1, "at least 2"),
    ],
)
def test_bad_settings_of_a_party_that_leaves(name, value, rule):
    with pytest.raises(ValueError, match=rf"^{name} must .*{rule}"):
        MUFCForgetClient(MODEL, **{"clients": "a", "server_state": "/s", name: value})


def refusal(call, *parts, kind=FederationError):
    """Return the sentence, in which these parts are, and no path or stack."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert [part for part in parts if part not in text] == [], text
    assert "\n" not in text
    assert "/" not in text
    assert "unexpectedly" not in text
    return text


def unasked(strategy, parties, rule):
    """Check that a run is refused before any message."""
    grid = Recorder(parties)
    refusal(lambda: strategy.start(grid), rule, kind=ValueError)
    assert not grid.transcript


def failure(party, step, call, *parts):
    """Check the sentence of an error of a step of one party."""
    head = f"party {party!r} failed in 'mufc_{step}': "
    text = refusal(call, *parts, kind=PartyFailed)
    assert text.startswith(head)
    return text.removeprefix(head)


@pytest.mark.parametrize("kind", [MUFCUnlearn, MUFCAdd, MUFCStatus, MUFCForgetClient])
def test_no_model_and_no_state_at_the_server(parties, folder, kind, model):
    more = ["west"] if kind is MUFCForgetClient else []
    create = partial(kind, model, *more)
    refusal(create, "server_state must", "got none", kind=ValueError)
    other = kind(model, *more, server_state=folder / "other")
    unasked(other, parties, f"no state of model {model}")


@pytest.mark.parametrize("kind", [MUFCUnlearn, MUFCAdd, MUFCStatus])
def test_other_parties_than_those_of_the_model(tmp_path, parties, folder, kind, model):
    strategy = kind(model, server_state=folder)
    rule = "the 3 parties of the model, and no others, must take part"
    more = federation(tmp_path, (14, 9, 6, 5))
    renamed = [*parties[:2], more[3]]
    for here, wrong in ((more, "east"), (parties[:2], "west"), (renamed, "west")):
        refusal(partial(simulate, strategy, here), rule, repr(wrong))
    check(parties, folder, model)


def test_parties_to_forget_that_the_model_does_not_have(parties, folder, model):
    leave = MUFCForgetClient(model, "east", server_state=folder)
    refusal(lambda: simulate(leave, parties), "'east' must be one of the 3 parties")
    leave = departure(parties, folder, model, "south")
    refusal(lambda: simulate(leave, parties[:2]), "'west' is missing")


def test_the_field_of_the_paper_is_for_few_columns(tmp_path, folder):
    parties = federation(tmp_path, (8, 8), d=12)
    rule = "field must be 'hash' for 12 columns of 101 bins"
    refusal(lambda: train(parties, folder, field="paper"), rule)
    # Refused before a party is asked: it has begun no state.
    assert not any(party.state_dir.exists() for party in parties)
    # In the clear there is no field.
    assert train(parties, folder, field="paper", privacy="none").model.kept


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda p: {"ids": None, "ids_digest": None}, "the data need an id-column"),
        (lambda p: {"state_dir": p.state_dir.parent / "north"}, "must not be shared"),
        (
            lambda p: {"columns": [*"ab"], "X": p.X * (1, 99)},
            "column 'b' must have values inside the agreed box",
        ),
    ],
)
def test_a_party_that_cannot_train(parties, folder, change, rule):
    vars(parties[1]).update(change(parties[1]))
    failure("south", "train", lambda: train(parties, folder), rule)


def test_settings_that_the_data_do_not_allow(parties, folder):
    box = "0,1;0,1;0,1"
    refusal(lambda: train(parties, folder, box=box), "box must", "2 columns, got 3")
    rule = "n_clusters must be at most 29, the number of rows of all parties, got 30"
    refusal(lambda: train(parties, folder, n_clusters=30), rule)
    assert train(parties, folder, n_clusters=29).model.sizes_.sum() == 29


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, ("centroids",)),
        ({"client_training": "init"}, ("rows", "centroids")),
        ({"min_rows_per_bin": 4}, ("rows", "centroids")),
        ({"privacy": "none"}, ("rows", "centroids")),
    ],
)
def test_rows_leave_where_a_centroid_may_be_one_or_a_mean_of_few(changes, needs):
    assert tuple(MUFC(2, 0.1, box="0,1", **changes).terms.needs) == needs
