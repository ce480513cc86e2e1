"""Predictions for new rows: train, keep the parts, load them in another run."""

import csv
import math
import shutil

import numpy as np
import pytest
from federations import by_columns
from transcripts import Sent

from vfl_flower import PartyFailed, RidgePrediction, SecureRidge
from vfl_flower.party.parts import ModelPart, load_part, save_part
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.server.exchange import FederationError
from vfl_flower.simulation import simulate
from vfl_flower.strategies import FDSKL, FDSKLDirect, FDSKLPrediction

N, NEW = 150, 40
SPLITS = {2: (2, 4), 3: (2, 1, 3), 5: (1, 1, 1, 2, 1)}
HOPS = {("ring", 2): 1, ("ring", 3): 2, ("ring", 5): 4, ("tree", 3): 2, ("tree", 5): 3}
"""Round trips in which the angles of a block travel, to however many holders."""


def predicting(model_id, **settings):
    """Return predictions by a model that was trained on angles."""
    bits = {} if {"masking", "angle_masking"} & settings.keys() else {"bits": 16}
    return FDSKLPrediction(**{"model_id": model_id, **bits, **settings})


def data(n=N, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 6))
    return X, X[:, 0] * X[:, 3] + X[:, 5]


def parties_of(X, y, folder, count=3, names=True, holders=(-1,)):
    """Return parties with folders, and names of columns unless they have none."""
    made = by_columns(X, y, SPLITS[count], holders=holders, names="party {}")
    for j, party in enumerate(made):
        party.state_dir = folder / str(j)
        if names:
            party.columns = [f"c{j}.{k}" for k in range(party.X.shape[1])]
    return made


def train(folder, count=3, holders=(2,), *, names=True, size=1.0, **settings):
    """Train; return the result, whose parts are also in a folder a party."""
    given = {"target": "binary", "strategy": FDSKLDirect, "allow_two_parties": True}
    settings = given | {"bandwidth": 2.0, "features": 48} | settings
    (X, real), target = data(), settings["target"]
    classes = (5.0, 2.0) if len(holders) == 1 else (1.0, -1.0)
    y = {"continuous": real * size, "multiclass": np.digitize(real, [-1, 1]) * 2.0}.get(
        target, np.where(real > 0, *classes)
    )
    settings["loss"] = "square" if target == "continuous" else "logistic"
    made = settings.pop("strategy")(**settings)
    return simulate(made, parties_of(X, y, folder, count, names, holders), seed=3)


def new_parties(folder, count=3, names=True, n=NEW):
    """Return the parties with new rows, and the rows of each."""
    made = parties_of(data(n, seed=9)[0], None, folder, count, names)
    return made, [party.X for party in made]


def files(folder):
    return sorted(folder.glob("*/predictions-*"))


def written(folder):
    """Return the header and the two columns of the only file of predictions."""
    (path,) = files(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    names, values = zip(*rows, strict=True)
    return header, list(names), np.array(values, dtype=float)


def score_bound(model, bits, count):
    """Return by how much the circle and the fixed point move a score at most.

    Half a unit of a turn from each party in each feature, and half a unit of the fixed
    point from each.
    """
    coefs = sum(np.abs(p["coef"]).sum(axis=0) for p in model.parts if "coef" in p)
    angle = math.sqrt(2) * 2 * np.pi * count / 2 ** (bits + 1)
    return coefs.max() * angle + count / 2 / group("ring", 2.0**32, count).scale


def assert_written(folder, result, blocks, bits=16, holder=2):
    """Check the only file of predictions against the model with all parts together."""
    (path,) = files(folder)
    assert path.parent.name == str(holder)
    header, rows, actual = written(folder)
    assert header == ["row", "prediction"]
    assert rows == [str(i) for i in range(len(blocks[0]))]
    model = result.model
    bound = score_bound(model, bits, len(blocks))
    scores, expected = model.decision_function(blocks), model.predict(blocks)
    target = next(p for p in model.parts if "coef" in p)["target"]
    if target == "continuous":
        assert np.abs(actual - expected).max() <= bound < 0.01
        assert len(np.unique(actual)) == len(actual)
        return
    margin = np.abs(scores[:, 0])
    if target == "multiclass":
        margin = np.diff(np.sort(scores, axis=1)[:, -2:], axis=1)[:, 0] / 2
    clear = margin > bound
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(actual[clear], expected[clear])
    assert len(np.unique(actual)) > 1


DS = {"strategy": FDSKL}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    return folder, train(folder).model


@pytest.fixture
def trained(stored, tmp_path):
    """Return a folder with parts, predictions with them, parties and the model."""
    shutil.copytree(stored[0], tmp_path, dirs_exist_ok=True)
    parties, _ = new_parties(tmp_path)
    return tmp_path, predicting(stored[1].id), parties, stored[1]


@pytest.mark.parametrize(
    ("training", "prediction"),
    [
        ({}, {"block_bytes": 480}),
        ({"target": "continuous", "kernel": "laplacian"}, {"bits": 32}),
        ({"target": "multiclass"}, {"block_bytes": 2000}),
        ({"count": 5, "topology": "tree"}, {"topology": "ring"}),
        ({"count": 5, "holders": (1,)}, {"topology": "tree", "block_bytes": 1000}),
        ({"count": 2, "holders": (0,)}, {"topology": "ring"}),
        ({"masking": "plain"}, {"masking": "plain"}),
        ({**DS, "holders": (0, 1, 2), "target": "continuous"}, {"block_bytes": 2000}),
        ({**DS, "holders": (0, 2)}, {"topology": "tree", "block_bytes": 2000}),
        (
            {**DS, "angle_masking": "paper", "topology": "tree", "holders": (0, 2)},
            {"angle_masking": "paper", "topology": "ring", "block_bytes": 8000},
        ),
    ],
)
def test_the_label_holder_gets_predictions(tmp_path, training, prediction):
    """In a new grid, from parties without labels; the others write nothing."""
    settings = {"target": "binary", "count": 3, "holders": (2,), **training}
    if settings["count"] == 2 or settings["target"] == "continuous":
        settings["regularization"] = 0.01
    result = train(tmp_path, **settings)
    assert not files(tmp_path)
    parties, blocks = new_parties(tmp_path, settings["count"])
    strategy = predicting(result.model.id, allow_two_parties=True, **prediction)
    actual = simulate(strategy, parties)
    bits = prediction.get("bits", 16)
    assert_written(tmp_path, result, blocks, bits, settings["holders"][0])
    assert actual.metrics == {"rows": NEW}
    assert (actual.model.id, actual.model.bandwidth) == (result.model.id, 2.0)
    assert actual.model.parts is None
    star = prediction.get("topology", "star") == "star"
    size = 8 if {"masking", "angle_masking"} & prediction.keys() else bits // 8
    count = math.ceil(NEW * 48 * size / prediction.get("block_bytes", 16_000_000))
    trips = {action: len(waits) for action, waits in actual.ledger.waits.items()}
    hops = 0 if star else trips.pop("fdskl_held_out_angles") / count
    assert hops == (0 if star else HOPS[prediction["topology"], settings["count"]])
    answers = count + star + (len(settings["holders"]) > 1)
    assert trips == {"hello": 1, "fdskl_part": 1, "fdskl_answer": answers}


LARGER = np.where(np.arange(N) % 2, 1e6, 1.0)
"""The labels of the second of two holders are a million times those of the first."""


@pytest.mark.parametrize("size", [1e9, 1e-9, LARGER])
def test_labels_of_any_size_are_predicted_as_well(tmp_path, size):
    """To the angles of 32 bits, 3e-9 of a turn: the sum of scores is no coarser."""
    settings = {"holders": (0, 2), "target": "continuous", "bits": 32, **DS}
    result = train(tmp_path, size=size, **settings)
    parties, blocks = new_parties(tmp_path)
    simulate(predicting(result.model.id, bits=32), parties)
    actual, expected = written(tmp_path)[2], result.model.predict(blocks)
    assert np.abs(actual - expected).max() <= 1e-8 * np.abs(expected).max()
    assert np.abs(expected).max() > 0.1 * np.max(size)


@pytest.mark.parametrize("ridge", [False, True])
def test_classes_are_written_as_the_file_has_them(tmp_path, ridge):
    """As text that no spreadsheet runs or splits."""
    encoding = {"columns": [], "classes": ["=left; gone", "stayed"]}
    X, real = data()
    members = parties_of(X, (real > 0) * 1.0, tmp_path, names=False)
    new, _ = new_parties(tmp_path, names=False)
    members[2].encoding = new[2].encoding = encoding
    strategy = SecureRidge() if ridge else FDSKLDirect(features=48)
    model = simulate(strategy, members, seed=3).model.id
    task = RidgePrediction if ridge else FDSKLPrediction
    simulate(task(model), new)
    (path,) = files(tmp_path)
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    more = ["score", "probability"] if ridge else []
    assert header == ["row", "prediction", "class", *more]
    named = {"0.0": "'=left; gone", "1.0": "stayed"}
    assert [row[2] for row in rows] == [named[row[1]] for row in rows]
    assert {row[2] for row in rows} == set(named.values())
    assert '"\'=left; gone"' in path.read_text()


def test_one_row_in_a_block_that_just_holds_it(trained):
    folder, strategy, _, model = trained
    parties, blocks = new_parties(folder, n=1)
    simulate(strategy.replace(block_bytes=96), parties)
    np.testing.assert_array_equal(written(folder)[2], model.predict(blocks))
    rule = "block_bytes must be at least 96, to hold 1 row of 48 features, got 95"
    assert_refused(parties, strategy.replace(block_bytes=95), rule)


def test_names_of_columns_may_be_missing_in_training_or_now(tmp_path):
    for names in (True, False):
        folder = tmp_path / str(names)
        result = train(folder, names=names)
        parties, blocks = new_parties(folder, names=not names)
        simulate(predicting(result.model.id), parties)
        assert_written(folder, result, blocks)


# -- refusals --------------------------------------------------------------------------


def assert_refused(parties, strategy, message, party=None):
    """Check that a run ends at a sentence before anybody sends an angle."""
    grid = Sent(parties)
    kind = PartyFailed if party else FederationError
    with pytest.raises(kind, match=message) as caught:
        strategy.start(grid)
    assert set(grid.actions) <= {"hello", "fdskl_part"}
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, PartyFailed):
        assert caught.value.party == party
        assert caught.value.action == "fdskl_part"


@pytest.mark.parametrize(
    ("places", "rule"),
    [
        ([1, 0, 2], "'party 1' must have the same index as in training, 1, "),
        ([0, 1], "3 parties .* must take part, and no others; this run has 2 parties"),
    ],
)
def test_parties_in_another_order_or_too_few(trained, places, rule):
    """Also where all have as many columns, the place in the part tells."""
    _, strategy, parties, _ = trained
    strategy = strategy.replace(allow_two_parties=True)
    assert_refused([parties[place] for place in places], strategy, rule)


def test_two_parties(tmp_path, caplog):
    strategy = predicting(train(tmp_path, count=2, holders=(1,)).model.id)
    parties, _ = new_parties(tmp_path, count=2)
    rule = "use at least three parties, or set allow_two_parties"
    assert_refused(parties, strategy, rule)
    caplog.clear()
    simulate(strategy.replace(allow_two_parties=True), parties)
    assert "with only two parties, each sum reveals the other party's" in caplog.text


def test_another_masking_than_in_training(trained):
    """Angles with phases that nobody takes off would give other scores in silence."""
    folder, _, parties, model = trained
    paper = {"angle_masking": "paper", "topology": "ring"}
    message = "angle_masking must be '{}', as in training, got '{}'"
    strategy = predicting(train(folder, **paper).model.id)
    assert_refused(parties, strategy, message.format("paper", "circle"))
    strategy = predicting(model.id, **paper)
    assert_refused(parties, strategy, message.format("circle", "paper"))


@pytest.mark.parametrize(
    ("spoiled", "change", "rule"),
    [
        ([1], {"n_features": 49}, "must have the same n_features as 'party 0'"),
        ([1], {"holders": [1]}, "must have the same holders as 'party 0'"),
        ([1], {"kernel": "laplacian"}, "must have the same kernel as 'party 0'"),
        ([1], {"bandwidth": 3.0}, "must have the same bandwidth as 'party 0'"),
        ([1], {"n_parties": 4}, "must have the same parties as 'party 0'"),
        ([1], {"kept": [0]}, "must have the same kept as 'party 0'"),
        ([2], {"intercept": np.zeros(0)}, "must have a label holder's coeff"),
        ([1], {"bandwidth": 0.0}, "'bandwidth' must be a number above 0"),
        (range(3), {"holders": [7]}, "must name distinct label holders of"),
        (range(3), {"holders": [2, 2]}, "must name distinct label holders of"),
        (range(3), {"holders": []}, "'holders' must be"),
        (range(3), {"kept": [2]}, "must name another party for each label holder"),
        (range(3), {"kept": [0, 1]}, "must name another party for each label holder"),
        (range(3), {"kept": [3]}, "must name another party for each label holder"),
    ],
)
def test_a_part_that_was_changed_by_hand(trained, spoiled, change, rule):
    """In spite of its right number: it differs from the others, or all are wrong."""
    folder, strategy, parties, model = trained
    arrays = {k: v for k, v in change.items() if isinstance(v, np.ndarray)}
    settings = {k: v for k, v in change.items() if k not in arrays}
    for j in spoiled:
        part = load_part(folder / str(j), model.id)
        content = part.settings | settings, part.arrays | arrays
        save_part(folder / str(j), ModelPart(model.id, "fdskl", *content))
    assert_refused(parties, strategy, rule, f"party {spoiled[0]}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 64}, "bits must be one of 8, 16, 32 or .auto., got 64"),
        ({"angle_masking": "paper"}, "'paper', topology must be 'ring' or 'tree'"),
        ({"masking": "plain", "bits": 32}, "bits has no effect with .*, got 32"),
    ],
)
def test_settings_that_are_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        predicting(**{"model_id": "0123456789abcdef", **settings})
