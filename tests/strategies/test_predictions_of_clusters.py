"""Clusters of new rows by models of split rows, against those of the whole model."""

import csv
import dataclasses
import shutil
from functools import cache

import numpy as np
import pytest
from faults import Changed, of_party
from forgetting import departure, removal

from vfl_flower import FederationError, Party, PartyFailed, strategies
from vfl_flower.numerics.kernel_embedding import embed_rows
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import Box
from vfl_flower.party.consent import ALLOW_ALL, Limit
from vfl_flower.party.parts import load_part, save_part
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies.mufc.state import ServerState

NAMES = ("north", "south", "west")
KERNEL = strategies.FKKMeans(3, 4, n_features=20, iterations=3, n_init=2, seed=1)
BOX = "-4,4"
MIDDLES = np.array([[-2.0, -2.0, 0.0], [2.0, -2.0, 1.0], [0.0, 2.0, -1.0]])


def rows(n, seed):
    """Return rows of three clusters."""
    rng = np.random.default_rng(seed)
    X = MIDDLES[rng.integers(3, size=n)] + rng.normal(size=(n, 3)) / 3
    return np.clip(X, -4, 4)


def parties(folder, seed=0, n=40):
    made = []
    for j, name in enumerate(NAMES):
        ids = np.array([f"{name}.{seed}.{row}" for row in range(n)])
        given = {"name": name, "columns": ("a", "b", "c"), "state_dir": folder / name}
        made.append(Party(rows(n, seed + j), ids=ids, **given))
    return made


@pytest.fixture(params=["fk-kmeans", "mufc"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that trains once, and copies what is left into a folder."""

    @cache
    def stored(kind):
        folder = tmp_path_factory.mktemp("stored")
        mufc = strategies.MUFC(3, n_init=2, box=BOX, server_state=folder / "server")
        strategy = KERNEL if kind == "fk-kmeans" else mufc
        return folder, simulate(strategy, parties(folder), seed=1).model

    def copied(kind, folder):
        before, model = stored(kind)
        shutil.copytree(before, folder, dirs_exist_ok=True)
        return model

    return copied


@pytest.fixture
def model(kind, trained, tmp_path):
    return trained(kind, tmp_path)


@pytest.fixture
def new(tmp_path):
    return parties(tmp_path, seed=50)


def later(kind, task, model, folder):
    state = {"server_state": folder / "server"} if kind == "mufc" else {}
    algorithm = "FKKMeans" if kind == "fk-kmeans" else "MUFC"
    return getattr(strategies, f"{algorithm}{task}")(model.id, **state)


def written(party, model):
    """Return what the last run wrote at a party: ids and clusters."""
    (path,) = party.state_dir.glob(f"predictions-{model.id}-*.csv")
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    return [row["id"] for row in table], [int(row["prediction"]) for row in table]


def cost(kind, model, X):
    """Return the mean squared distance of rows to the nearest centre."""
    if kind == "fk-kmeans":
        return assign(embed_rows(model.parts[0], X), model.cluster_centers_)[1].mean()
    box = Box(model.lower, model.upper)
    return assign(box.scale(X), box.scale(model.cluster_centers_))[1].mean()


def test_each_party_has_the_clusters_of_its_rows(kind, tmp_path, model, new, caplog):
    """The columns in another order at one of them; those of training stay as well."""
    before = (new[0].state_dir / f"predictions-{model.id}.csv").read_bytes()
    turned = dataclasses.replace(
        new[1], X=new[1].X[:, [2, 0, 1]], columns=("c", "a", "b")
    )
    grid = InProcessGrid([new[0], turned, new[2]])
    with caplog.at_level("INFO", "vfl_flower"):
        result = later(kind, "Prediction", model, tmp_path).start(grid)
    assert f"the clusters are in predictions-{model.id}-" in caplog.text
    assert result.metrics["rows"] == 120
    assert result.ledger.round_trips == 2
    for party in new:
        ids, clusters = written(party, model)
        assert ids == list(party.ids)
        assert clusters == model.predict(party.X).tolist()
    assert (new[0].state_dir / f"predictions-{model.id}.csv").read_bytes() == before


def test_two_parties_of_three_are_enough(kind, tmp_path, model):
    new = parties(tmp_path, seed=50)[1:]
    simulate(later(kind, "Prediction", model, tmp_path), new)
    assert written(new[1], model)[1] == model.predict(new[1].X).tolist()


def test_what_clusters_are_worth_on_new_rows(kind, tmp_path, model, new):
    result = simulate(later(kind, "Evaluation", model, tmp_path), new)
    expected = cost(kind, model, np.concatenate([party.X for party in new]))
    assert result.metrics["test_rows"] == 120
    assert result.metrics["test_loss"] == pytest.approx(expected, rel=1e-9)
    assert not list(tmp_path.glob("*/predictions-*-*.csv"))
    action = "mufc_evaluate" if kind == "mufc" else "kernel_kmeans_evaluate"
    shifted = dict.fromkeys(("cost", "totals"), lambda masked: masked - 2**60)
    grid = Changed(new, action, of_party(1, **shifted))
    with pytest.raises(FederationError, match=r"add up to a cost|not valid numbers"):
        later(kind, "Evaluation", model, tmp_path).start(grid)


def test_fewer_than_twenty_rows_of_a_party_tell_no_cost(kind, tmp_path, model, new):
    few = dataclasses.replace(new[2], X=new[2].X[:19], ids=new[2].ids[:19])
    few.ids_digest = None
    with pytest.raises(PartyFailed, match="at least 20 rows"):
        simulate(later(kind, "Evaluation", model, tmp_path), [*new[:2], few])
    simulate(later(kind, "Prediction", model, tmp_path), [*new[:2], few])
    assert len(written(few, model)[1]) == 19


def test_rows_too_far_from_the_box_tell_no_cost(trained, tmp_path):
    """It would be infinite."""
    model = trained("mufc", tmp_path)
    new = parties(tmp_path, seed=50)
    new[1].X[3, 0] = 1e200
    with pytest.raises(PartyFailed, match="close enough to the box"):
        simulate(later("mufc", "Evaluation", model, tmp_path), new)


def test_other_columns_or_no_model(kind, tmp_path, model, new):
    strategy = later(kind, "Prediction", model, tmp_path)
    for change, rule in (
        (lambda p: {"columns": ("a", "b", "x")}, "training columns"),
        (lambda p: {"X": p.X[:, :2], "columns": None}, "training columns"),
        (lambda p: {"state_dir": None}, "has no (state-dir|local model, since)"),
    ):
        made = [dataclasses.replace(p, **change(p)) for p in new]
        with pytest.raises(FederationError, match=rule):
            simulate(strategy, made)


def test_a_model_without_a_map_is_refused_before_any_row_is_read(tmp_path):
    made = parties(tmp_path)
    settings = {"cem": False, "eigensolver": "lanczos", "masking": "plain"}
    strategy = strategies.FKKMeans(
        3, 3, n_features=8, iterations=1, passes=1, **settings
    )
    model = simulate(strategy, made, seed=1).model
    with pytest.raises(PartyFailed, match="only a model trained with cem"):
        simulate(strategies.FKKMeansPrediction(model.id), made)


def test_a_part_of_a_kernel_that_there_is_no_more_is_refused(trained, tmp_path):
    model = trained("fk-kmeans", tmp_path)
    for party in (made := parties(tmp_path, seed=50)):
        part = load_part(party.state_dir, model.id)
        settings = part.settings | {"kernel": "polynomial"}
        save_part(party.state_dir, dataclasses.replace(part, settings=settings))
    rule = "kernel of a model must be one of .*, got 'polynomial'$"
    with pytest.raises(PartyFailed, match=rule):
        simulate(strategies.FKKMeansPrediction(model.id), made)


def test_a_server_that_chooses_centres_gets_a_row_by_row_sums(trained, tmp_path):
    """One centre near a row that stands out, moved by a little in each run after."""
    model = trained("mufc", tmp_path)
    new = parties(tmp_path, seed=50)
    new[1].X[5] = [3.5, 3.7, -3.1]

    @dataclasses.dataclass(repr=False)
    class Attack(strategies.MUFCEvaluation):
        def ask(self, grid_parties, now):
            moved = dataclasses.replace(now, centers=np.vstack([MIDDLES, center]))
            return super().ask(grid_parties, moved)

    def total():
        attack = Attack(model.id, server_state=tmp_path / "server")
        return 120 * simulate(attack, new).metrics["test_loss"]

    guess, step, read = np.array([3.0, 3.0, -3.0]), 0.01, []
    center = guess
    first = total()
    for place in range(3):
        center = guess + step * np.eye(3)[place]
        change = (total() - first) * 64  # a side of the box is 8
        read.append(guess[place] + (step**2 - change) / (2 * step))
    np.testing.assert_allclose(read, new[1].X[5], atol=1e-6)
    new[1].consent = dataclasses.replace(ALLOW_ALL, leaves={"centroids": Limit()})
    with pytest.raises(FederationError, match="row-sums = true"):
        total()


def test_rows_that_are_forgotten_take_no_part(trained, tmp_path):
    model = trained("mufc", tmp_path)
    old = parties(tmp_path)
    gone = [f"south.0.{row}" for row in (3, 7)]
    now = simulate(removal(old, tmp_path / "server", model.id, gone), old).model
    assert now.version == 2
    simulate(later("mufc", "Prediction", model, tmp_path), old)
    ids, clusters = written(old[1], model)
    stay = np.array([i for i in range(40) if i not in (3, 7)])
    assert ids == old[1].ids[stay].tolist()
    assert clusters == now.predict(old[1].X[stay]).tolist()
    metrics = simulate(later("mufc", "Evaluation", model, tmp_path), old).metrics
    X = np.concatenate([old[0].X, old[1].X[stay], old[2].X])
    assert metrics["test_rows"] == 118
    assert metrics["test_loss"] == pytest.approx(cost("mufc", now, X), rel=1e-9)


def test_a_party_that_has_left_the_model_gets_no_clusters(trained, tmp_path):
    model = trained("mufc", tmp_path)
    three = parties(tmp_path)
    simulate(departure(three, tmp_path / "server", model.id, "west"), three)
    strategy = later("mufc", "Prediction", model, tmp_path)
    with pytest.raises(FederationError, match="'west' is not one of them"):
        simulate(strategy, three)
    simulate(strategy, three[:2])


def test_a_killed_removal_is_settled_first(trained, tmp_path):
    """A party that was killed before it took the version of the server takes it now."""
    model = trained("mufc", tmp_path)
    old = parties(tmp_path)

    class Killed(InProcessGrid):
        def _push(self, message):
            if message.metadata.message_type.endswith("mufc_commit"):
                raise KeyboardInterrupt
            return super()._push(message)

    with pytest.raises(KeyboardInterrupt):
        removal(old, tmp_path / "server", model.id, ["south.0.3"]).start(Killed(old))
    assert ServerState(tmp_path / "server", model.id).version == 2
    simulate(later("mufc", "Prediction", model, tmp_path), old)
    assert "south.0.3" not in written(old[1], model)[0]


def test_the_share_that_is_explained_needs_no_more_than_the_server_has(tmp_path):
    """With means for centroids it is near the true one, otherwise far too high."""
    federation = parties(tmp_path, n=200)
    X = np.concatenate([party.X for party in federation])
    strategy = strategies.MUFC(
        3, 0.01, n_init=2, box=BOX, server_state=tmp_path / "server"
    )
    trained = simulate(strategy, federation, seed=1)
    model, explained = trained.model, trained.metrics["explained"]
    total = (((X - X.mean(axis=0)) / 8) ** 2).sum()
    assert explained == pytest.approx(1 - model.inertia_ / total, abs=0.01)
    request = removal(federation, tmp_path / "server", model.id)
    assert simulate(request, federation).metrics["explained"] == explained
    rows = strategy.replace(client_training="init", min_rows_per_bin=1)
    assert "explained" not in simulate(rows, federation, seed=2).metrics
