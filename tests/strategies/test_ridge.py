"""Kernel models from sums of products under shares: exact, hidden, refused if unsafe.

Masks and dealt numbers come from the operating system, so a test of uniformity has no
fixed seed: each chi-square has a false-alarm rate of 1e-9 on either side, and no test
here makes more than 200 of them.
"""

import dataclasses
from contextlib import nullcontext
from functools import partial, wraps

import numpy as np
import pytest
from deviating import RealParties
from draws import repeated_draws
from federations import by_columns, pinned
from scipy.stats import spearmanr
from transcripts import assert_hidden, is_uniform

from simulations import ridge_pooled
from simulations.ridge_costs import cosine_error, gram_error
from vfl_flower import Party, RidgePrediction, SecureRidge, simulate
from vfl_flower.clients import products
from vfl_flower.clients.ridge import dealing as ridge_dealing
from vfl_flower.clients.ridge import scores as ridge_scores
from vfl_flower.clients.ridge import solving
from vfl_flower.clients.ridge import training as party
from vfl_flower.clients.ridge.state import HEAD, Joint, RidgeState, Task, frequencies_of
from vfl_flower.numerics.ridge.features import pairs, part_angles, unpack_local
from vfl_flower.numerics.ridge.fit import GramFit, fit_gram
from vfl_flower.numerics.ridge.local_columns import local_columns
from vfl_flower.numerics.ridge.relevance import relevance_of
from vfl_flower.numerics.split import split_rows, training_rows
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.protocol.errors import FederationError, PartyError, PartyFailed
from vfl_flower.secure_aggregation.fixed_point import decode, gram_fixed_point
from vfl_flower.secure_aggregation.products import dealing, shares
from vfl_flower.secure_aggregation.products import relevance as ridge_relevance
from vfl_flower.secure_aggregation.products import roles as bounds
from vfl_flower.secure_aggregation.products.dealing import FRACTION, joint_fraction
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.triples import deal_predictions, hide_rows
from vfl_flower.server.parties import Parties
from vfl_flower.strategies.products import ComputingParties
from vfl_flower.strategies.ridge import scoring as server_scoring
from vfl_flower.strategies.ridge import training as server
from vfl_flower.testing import Recorder

N = 400
MANY = 900  # where tests measure the model or an attack


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)) * [1, 10, 0.1, 1, 1, 1] + [0, 5, 0, 0, 3, 0]
    X[:, 4] = rng.integers(3, size=n)
    X[:, 5] = np.exp(X[:, 5])
    y = X[:, 0] ** 2 + np.sin(X[:, 3]) * X[:, 4] + 0.1 * X[:, 1]
    return X, y + 0.3 * rng.normal(size=n)


def parties(count=3, holder=-1, X=None, y=None, folder=None):
    if X is None:
        X, y = data()
    return by_columns(X, y, count, holders=[holder], folder=folder)


def strategy(**settings):
    """One turn, unless `relevance` is given."""
    return SecureRidge(**{"target": "continuous", "relevance": False} | settings)


# -- the model is that of pooled features ----------------------------------------------


def pooled_features(parts, blocks):
    """Return all local columns, and joint features, of rows in one place."""
    columns, turns = [], 0
    for part, X in zip(parts, blocks, strict=True):
        fitted = unpack_local(part)
        columns.append(local_columns(fitted, X))
        turns = turns + part_angles(part, fitted, X, 64)
    return np.hstack(columns), pairs(turns)


def ridge(gram, sizes):
    """Return the fit with one penalty that does not depend on the Gram matrix.

    The best penalties are not determined to the precision of the features.
    """
    M = sum(sizes)
    order = np.r_[0:M, len(gram) - 1]
    A = gram[np.ix_(order, order)] + np.diag([3.0] * M + [0.0])
    weights = np.linalg.solve(A, gram[order, M:-1])
    nothing = np.zeros(weights.shape[1])
    return GramFit(weights[:-1], weights[-1], np.full(1, 3.0), nothing, nothing)


@pytest.mark.parametrize(
    ("count", "holder", "dealer", "target", "n", "share"),
    [
        (2, 0, "server", "continuous", MANY, 0.2),
        (3, 1, "server", "binary", MANY, 0.2),
        (3, 2, "p1", "multiclass", MANY, 0.2),
        (5, 4, "server", "continuous", MANY, 0.2),
        (3, 2, "server", "continuous", 2600, 0.4),  # two blocks of rows, in both sets
    ],
)
def test_the_model_is_that_of_pooled_features(
    monkeypatch, count, holder, dealer, target, n, share
):
    """The Gram matrix to the fixed-point bound, and so the model and the scores.

    The rounding of cosines is another in each run: of 36 runs no score was off by more
    than 0.0005 of the spread, an eighth of the bound.
    """
    X, y = data(n)
    rows = round((1 - share) * n)
    if target != "continuous":
        y = np.digitize(y, np.quantile(y, [0.5] if target == "binary" else [0.3, 0.7]))
    opened = []

    def look(gram, sizes, kind, class_weights):
        opened.append((gram, sizes))
        return ridge(gram, sizes)

    monkeypatch.setattr(solving, "fit_gram", look)
    monkeypatch.setattr(party, "PART_ROWS", 1024)
    training = strategy(target=target, joint_features=24, test_fraction=share)
    training = training.replace(dealer=dealer)
    result = simulate(training, parties(count, holder, X, y), seed=3)
    blocks = np.array_split(X, count, axis=1)
    local, joint = pooled_features(result.model.parts, blocks)
    assert joint.shape[1] == 24
    order = np.r_[0:9, 12:21, 9:12, 21:24]  # pairs of each bandwidth together
    train = training_rows(n, share, rows, 3)
    if target == "continuous":
        Y = (y[:, None] - y[train].mean()) / y[train].std()
    else:
        classes = [1] if target == "binary" else [0, 1, 2]
        Y = np.where(y[:, None] == classes, 1.0, -1.0)
    F = np.hstack([local, joint[:, order], Y, np.ones((n, 1))])
    exact = F[train].T @ F[train]
    ((gram, sizes),) = opened
    M = local.shape[1]
    features = slice(0, F.shape[1] - Y.shape[1] - 1)
    bound = gram_error(rows, 1.0, cosine_error(count, joint_fraction(rows)))
    assert np.abs(gram - exact)[features, features].max() < bound
    assert np.abs(gram - exact)[:M, :M].max() < rows * 2.0 ** (1 - joint_fraction(rows))
    assert gram[-1, -1] == rows
    pooled = ridge(exact, sizes)
    scores = result.model.decision_function(blocks)
    expected = F[:, features] @ pooled.weights + pooled.intercept
    if target == "continuous":
        expected = expected * y[train].std() + y[train].mean()
    assert np.abs(scores - expected).max() < 0.004 * expected.std()
    _check_metrics(result, blocks, y, target, split_rows(n, share, 3)[1])


def _check_metrics(result, blocks, y, target, test):
    answered = result.model.predict([block[test] for block in blocks])
    assert result.metrics["test_rows"] == len(test)
    if target == "continuous":
        loss = ((answered - y[test]) ** 2).mean()
        assert result.metrics["test_loss"] == pytest.approx(loss, rel=1e-2)
        assert loss < 0.5 * y.var()
    else:
        error = (answered != y[test]).mean()
        # Rounding moves rows whose two best scores are nearly the same.
        assert abs(result.metrics["test_error"] - error) < 8.5 / len(test)
        assert error < (0.35 if target == "binary" else 0.5)


@pytest.mark.parametrize("target", ["binary", "multiclass"])
def test_balanced_classes_move_the_threshold_and_nothing_else(monkeypatch, target):
    """To where discriminant analysis has it for classes of the same size."""
    X, y = data(MANY)
    y = np.digitize(y, np.quantile(y, [0.9] if target == "binary" else [0.8, 0.9]))
    solved = []

    def look(gram, sizes, kind, class_weights):
        plain = fit_gram(gram, sizes, kind, class_weights=np.ones(len(class_weights)))
        solved.append((plain, class_weights))
        return fit_gram(gram, sizes, kind, class_weights=class_weights)

    monkeypatch.setattr(solving, "fit_gram", look)
    training = strategy(target=target, joint_features=24, test_fraction=0.2)
    federation = parties(3, -1, X, y.astype(float))
    result = simulate(training.replace(class_weight="balanced"), federation, seed=3)
    ((plain, weights),) = solved
    counts = np.bincount(y[training_rows(MANY, 0.2, 720, 3)])
    np.testing.assert_allclose(weights * counts, 1.0, rtol=1e-4)
    part = next(part for part in result.model.parts if "coef" in part)
    slope, offset = plain.slope, plain.offset - np.log(counts)
    if target == "binary":
        offset = plain.offset - np.log(counts[1] / counts[0])
    else:  # up to a constant a row
        slope = slope - slope.mean(axis=1, keepdims=True)
        offset = offset - offset.mean()
    np.testing.assert_allclose(
        np.sort(part["coef"], axis=0), np.sort(plain.weights @ slope, axis=0)
    )
    wanted = plain.intercept @ slope + offset
    np.testing.assert_allclose(part["intercept"], wanted, atol=1e-3)
    np.testing.assert_array_equal(part["slope"], np.eye(len(offset)))
    predicted = result.model.predict(np.array_split(X, 3, axis=1))
    found = [(predicted[y == c] == c).mean() for c in np.unique(y)]
    assert min(found) > 0.4, found
    test = split_rows(MANY, 0.2, 3)[1]
    error = (predicted[test] != y[test]).mean()
    assert abs(result.metrics["test_error"] - error) < 8.5 / len(test)


def test_round_trips_and_bytes():
    """What a party sends for each feature and row: 16 bytes at most."""
    plain = simulate(strategy(joint_features=24), parties(), seed=0)
    assert plain.ledger.round_trips == 6
    local, rows = plain.metrics["local_columns"], N
    steps = "ridge_hide_rows", "ridge_open_joint", "products_multiply"
    sent = plain.ledger.of(*steps).bytes_up
    columns = local + 2 + 24
    sent -= 4 * columns * (columns + 1)  # the share of the Gram matrix
    # Columns: 8 bytes for both that compute, of 2 more at the label holder, and 40 to
    # check the triples at both; joint ones of these two; angles of 2 bytes for both.
    expected = rows * (16 * columns + 2 * 8 * 40 + 3 * 2 * 2 * 12)
    assert expected < sent < expected + 15_000


def test_rows_that_do_not_fit_are_in_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(server, "MOST_NUMBERS", 200 * 48)
    result = simulate(strategy(joint_features=24, rows=300), parties(), seed=0)
    assert result.metrics["rows"] == 200
    warning, few = result.warnings
    assert few.startswith("200 training rows allow only few features")
    assert warning.startswith("100 of 300 rows to train on")
    assert "9,600 numbers" in warning
    assert warning in caplog.text
    monkeypatch.setattr(server, "FEW_ROWS", 200)
    (warning,) = simulate(strategy(joint_features=24), parties(), seed=0).warnings
    assert warning.startswith("200 of 400 rows to train on")


def senders(grid, start):
    """Return the parties that have sent values whose names start so."""
    sent = [(e.party, name) for e in grid.transcript if e.up for name in e.values]
    return {party for party, name in sent if name.startswith(start)}


def test_another_party_computes(tmp_path):
    """In training, of one turn since a party deals, and then in predictions."""
    X, y = data(400)
    chosen = {"dealer": "p1", "computes": "p2"}
    settings = {"joint_features": 4, "test_fraction": 0.2, "relevance": True}
    training = strategy(**settings, **chosen)
    grid = Recorder(parties(4, 3, X, y, tmp_path))
    with repeated_draws(0):  # how much rounding changes scores hangs on the features
        model = training.start(grid).model
    training.complete(model, grid.memories())
    assert "relevance" not in model.parts[0]
    for name in ("share_", "products_"):
        assert senders(grid, name) >= {2}
        assert 0 not in senders(grid, name)
    grid = Recorder(by_columns(X[:40], None, 4, folder=tmp_path))
    RidgePrediction(model.id, **chosen).start(grid)
    assert senders(grid, "products") == {2}
    (path,) = (tmp_path / "p3").glob("predictions-*.csv")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    scores = model.decision_function(np.array_split(X[:40], 4, axis=1))[:, 0]
    # Rounding, which is not fixed, gives 0.012 to 0.019; a score too many or too few 1.
    assert np.abs(table[:, 1] - scores).max() < 0.1 * y.std()


@pytest.mark.parametrize("angles", [1, 2, 3, 1000])
@pytest.mark.parametrize("density", [0.3, 0.8, 1.0])
def test_relevant_features_have_at_least_the_density_of_the_pilot(angles, density):
    """And about as many angles of each kind, the sparsest one at the largest width."""
    joint = server._relevant(Joint([2.0], [angles], [density], 16))
    kinds = min(angles, 3)
    assert joint.relevant
    assert joint.angles == angles
    assert max(joint.counts) - min(joint.counts) <= 1
    assert joint.densities == [max(density, least) for least in (0.3, 0.5, 1.0)][:kinds]
    widths = [width / server.WIDE for width in joint.bandwidths]
    assert widths == pytest.approx([0.7, 0.3, 0.3][:kinds])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    X, y = data()
    federation = parties(3, 2, X, (y > 1) + 1.0, folder)
    result = simulate(strategy(target="binary", joint_features=24), federation, seed=1)
    assert result.model.kept
    return result, folder


def rows_of(folder):
    (file,) = (folder / "p2").glob("predictions-*.csv")
    header, *lines = file.read_text().splitlines()
    file.unlink()
    return header, np.array([line.split(",") for line in lines], dtype=float)


@pytest.mark.parametrize(
    ("dealer", "rows", "trips"), [("server", 100, 5), ("server", 51, 8), ("p1", 51, 9)]
)
def test_new_rows_are_predicted(trained, monkeypatch, dealer, rows, trips):
    """By the label holder alone, all at once or in blocks of so many rows."""
    result, folder = trained
    X, _ = data(100, seed=5)
    features = sum(part["local"] for part in result.model.parts) + 24
    monkeypatch.setattr(ridge_dealing, "ROW_NUMBERS", rows * features)
    predicting = RidgePrediction(result.model.id, dealer=dealer)
    predicted = predicting.start(RealParties(by_columns(X, folder=folder)))
    assert predicted.ledger.round_trips == trips
    header, table = rows_of(folder)
    assert header == "row,prediction,score,probability"
    scores = result.model.decision_function(np.array_split(X, 3, axis=1))[:, 0]
    assert np.abs(table[:, 2] - scores).max() < 0.02
    assert np.array_equal(table[:, 1], 1.0 + (table[:, 2] > 0))
    assert ((table[:, 3] > 0) & (table[:, 3] < 1)).all()
    assert np.corrcoef(table[:, 2], table[:, 3])[0, 1] > 0.9
    assert not list((folder / "p0").glob("predictions-*"))


# -- what is seen ----------------------------------------------------------------------


PRIVATE_NAMES = (*("openings", "checks", "joint"), *("weights", "hidden"))
SCORING = ridge_scores.rows, ridge_scores.products, ridge_scores.scores
ALL = {"outputs": 1, "bits": 16, "numbers": np.arange(100)}


class Listening:
    """Keeps what the two that compute open of what others have sent."""

    def __init__(self, monkeypatch):
        self.angles, self.elements = [], []
        for step in (products.multiply, party.open_joint, *SCORING[1:]):
            self._listen(monkeypatch, step)

    def _listen(self, monkeypatch, step):
        original = step.function

        @wraps(original)
        def listen(who, **told):
            for name in PRIVATE_NAMES:
                for sender, packed in (told.get(name) or {}).items():
                    if sender != who.index and len(packed):
                        self.elements.append((step.action, name, packed))
            if told.get("angles") is not None:
                self.angles.append(told["angles"])
            return original(who, **told)

        monkeypatch.setattr(step, "function", listen)


def test_parties_that_compute_see_uniform_numbers(monkeypatch):
    """Of columns that are far from uniform, and the same in half of the rows."""
    runs, seen = [], []
    X = np.tile(np.arange(2.0), (6, N // 2)).T + 1e-3 * data()[0]
    for _ in range(2):
        listening = Listening(monkeypatch)
        federation = parties(4, 3, X, data()[1])
        simulate(strategy(joint_features=32, test_fraction=0.4), federation, seed=0)
        seen.append([*listening.angles])
        runs.append(
            [  # the matrices are in a ring of 63 bits
                packed.reshape(-1, 8)[:, :7].ravel() if "multiply" in action else packed
                for action, _, packed in listening.elements
            ]
        )
    # Of both, for training and for test rows.
    assert len(listening.angles) == 4
    assert all(is_uniform(angles.view("u1")) for angles in listening.angles)
    assert {name for _, name, _ in listening.elements} == {*PRIVATE_NAMES}
    assert_hidden(runs)
    # No mask is used for two values: neither in two turns nor in two runs.
    for first, second in zip(*seen, strict=True):
        assert is_uniform((first - second).view("u1"))


def left_singular(values, d):
    """Return the best linear guess of columns from values of some known rows."""
    U, s, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    return U[:, :d] * s[:d]


def test_the_attack_by_known_rows_is_no_better_than_the_mean(monkeypatch):
    """Rank-d factors of the angles, and a map from rows that the attacker knows.

    It reads the columns of others to 0.1 sd from what ``direct`` gives a label holder
    (the sums of angles, here without whole turns), and nothing from what it has now:
    its guess is as bad as the mean of the known rows. Four columns that have nothing to
    do with a column beat its mean by 3 % with a probability below 1e-7.
    """
    listening = Listening(monkeypatch)
    X = np.random.default_rng(0).normal(size=(MANY, 6))
    # With this bandwidth no angle passes a turn.
    training = strategy(target="binary", joint_features=48, bandwidth=6.0)
    result = simulate(training, parties(3, 2, X, X.sum(axis=1) > 0), seed=7)
    rows = training_rows(MANY, 0.0, MANY, 7)
    others, known = X[rows, :4], np.arange(200)

    def guess(values, d=4):
        factors = np.column_stack([left_singular(values, d), np.ones(len(rows))])
        map_ = np.linalg.lstsq(factors[known], others[known], rcond=None)[0]
        return off_by(factors @ map_) / off_by(others[known].mean(axis=0))

    def off_by(guessed):
        return np.sqrt((np.delete(guessed - others, known, axis=0) ** 2).mean(axis=0))

    angles = []
    for part, block in zip(result.model.parts[:2], (X[:, :2], X[:, 2:4]), strict=True):
        angles.append(part_angles(part, unpack_local(part), block[rows], 64))
    assert guess((sum(angles) - sum(angles).mean(axis=0) + 0.5) % 1.0).max() < 0.1
    seen = listening.angles[-1].reshape(len(rows), -1) / 2.0**16
    assert guess(seen).min() > 0.97
    assert guess(np.cos(2 * np.pi * seen)).min() > 0.97


# -- what a party refuses --------------------------------------------------------------

ROLES = Roles(2, 0, [5, 3, 7], N, None, 8, joint_fraction(N))
JOINT = Joint([1.0], [4], [1.0], 16)
SHORT = [
    Joint([1.0, 0.5], [2, 2], [1.0], 16),
    Joint([1.0, 0.5], [4], [1.0, 1.0], 16),
    Joint([1.0], [2, 2], [1.0, 1.0], 16),
]
TASK = Task("continuous", "gaussian", 0.0, N, 5, 5)


def lone(index=1, labels=False, part=None):
    X, y = data()
    made = Party(X[:, :2], y if labels else None, name="p", index=index)
    made.n_parties, made.session, made.run_secret = 3, 5, bytes(32)
    made.agree = lambda other: bytes(32)
    made.part = part or made.part
    return made


def prepared(index=1):
    """Return a party that knows the task, and the roles of its first turn."""
    made, owners = lone(index), [5, 3, 7]
    owners[index] = sum(party.prepare(made, task=TASK)["columns"])
    return made, dataclasses.replace(ROLES, owners=owners)


def asked(made, roles, **changes):
    dealt = dealing.deal_turn(5, bytes(32), roles)
    values = {"counted": roles.columns, "joint": JOINT, "dealt": dealt[made.index]}
    return party.hide_rows(made, roles=roles, **values | changes)


@pytest.mark.parametrize(
    ("roles", "values", "reason"),
    [
        ({}, {"counted": 3}, "counted must be the number of columns of the"),
        ({"rows": N - 1}, {}, "rows must be the number of training rows"),
        ({"turn": 1}, {}, "after 0 turns, got turn 1"),
        ({"joint": 10}, {}, "for a cosine and a sine of each"),
        *(({}, {"joint": joint}, "a density for each bandwidth") for joint in SHORT),
        ({"fraction": FRACTION}, {}, "fraction must be 26"),
        ({"fraction": 24}, {}, "fraction must be 26"),
        ({"owners": [5, 9, 7]}, {}, "columns for this party"),
        ({"owners": [500, 4, 8]}, {}, "needs at least 2080 rows"),
        ({}, {"dealt": np.zeros(64 * 4, np.uint8)}, "96 surplus bytes"),
    ],
)
def test_a_turn_that_a_party_refuses(roles, values, reason):
    made, right = prepared()
    with pytest.raises(PartyError, match=reason):
        asked(made, dataclasses.replace(right, **roles), **values)


@pytest.mark.parametrize("rows", [20, 295, dealing.FEW_ROWS - 1])
def test_few_rows_have_the_finest_features_that_a_ring_holds(rows):
    finest = joint_fraction(rows)
    assert finest > FRACTION
    assert finest % 2 == 0
    room = {"bound": bounds.LARGEST, "square_sum": bounds.MOST_MEAN_SQUARE * rows}
    assert gram_fixed_point(rows, fraction=finest, **room).bits == 63
    with pytest.raises(ValueError, match="fraction must be at most"):
        gram_fixed_point(rows, fraction=finest + 2, **room)
    assert joint_fraction(dealing.FEW_ROWS) == FRACTION
    assert ROLES.numbers.bits == 63
    many = dataclasses.replace(ROLES, rows=dealing.FEW_ROWS, fraction=FRACTION)
    assert many.numbers.bits == 48


def test_a_party_deals_for_no_roles_that_it_refuses(trained):
    """One that computes too would read the rows of all others."""
    made = lone()
    roles = dataclasses.replace(ROLES, dealer=1)
    of_rows = dataclasses.replace(
        roles, owners=[5, 3, 0], rows=10, fraction=dealing.NEW_ROWS.fraction
    )
    dealt = ridge_dealing.deal(made, roles=roles, row_roles=of_rows)
    assert sorted(dealt) == ["row_parts", "turn_parts"]
    for name, right in (("roles", roles), ("row_roles", of_rows)):
        for changes, rule in (
            ({"second": 1}, "must be different parties"),
            ({"fraction": FRACTION}, "fraction must be 2[68]"),
            ({"rows": 0}, "(fraction|rows) must be"),
        ):
            wrong = dataclasses.replace(right, **changes)
            with pytest.raises(PartyError, match=rule):
                ridge_dealing.deal(made, **{name: wrong})
    made.part = trained[0].model.parts[1]
    assert "first_rows" in ridge_dealing.part(made, 1, 0)
    with pytest.raises(PartyError, match="must be different parties"):
        ridge_dealing.part(made, 1, 1)


def test_a_party_takes_two_turns_and_each_once():
    made, first = prepared()
    for turn in range(2):
        roles = dataclasses.replace(first, turn=turn)
        asked(made, roles)
        with pytest.raises(PartyError, match=f"after {turn + 1} turns, got"):
            asked(made, roles)
    with pytest.raises(PartyError, match="below 2: after 2 turns, got"):
        asked(made, dataclasses.replace(roles, turn=2))


# -- a second turn, of columns that are scaled by their relevance ----------------------


@pytest.mark.parametrize(
    ("relevance", "target"), [(False, "binary"), (True, "continuous")]
)
def test_published_figures_are_of_the_same_model(monkeypatch, relevance, target):
    """The same columns and relevances, and scores to the precision of the features.

    Of twelve runs no score was off by more than 0.0038 of the spread.
    """
    X, y = data()
    if target == "binary":
        y = np.where(y > np.median(y), 1.0, -1.0)
    for module in (solving, ridge_pooled):
        monkeypatch.setattr(module, "fit_gram", lambda g, b, kind, **_: ridge(g, b))
    training = strategy(target=target, relevance=relevance, joint_features=64)
    result = simulate(training, parties(3, 2, X, y), seed=3)
    blocks = np.array_split(X, 3, axis=1)
    model = ridge_pooled.pooled(parties(3, 2, X, y), y, training, 3)
    both = zip(result.model.parts, model.fitted, model.states, strict=True)
    for part, fitted, state in both:
        np.testing.assert_array_equal(unpack_local(part).lows, fitted.local.lows)
        assert part["multiple"] == model.multiple
        np.testing.assert_allclose(part["bandwidths"], model.joint.bandwidths)
        if relevance:
            np.testing.assert_allclose(part["relevance"], state.relevance, rtol=0.02)
    assert (model.multiple > 1) == relevance
    scores = result.model.decision_function(blocks)[:, 0]
    assert np.abs(scores - model(X)).max() < 0.02 * scores.std()


def test_relevance_takes_four_round_trips_more():
    """And gives the columns that matter the higher frequencies."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 6))
    y = np.sin(2 * X[:, 0] + X[:, 4]) + 0.1 * rng.normal(size=N)
    result = simulate(strategy(relevance=True), parties(3, 2, X, y), seed=0)
    assert result.ledger.round_trips == 10
    relevance = np.concatenate([part["relevance"] for part in result.model.parts])
    assert {*np.argsort(relevance)[-2:]} == {0, 4}
    plain = simulate(strategy(), parties(3, 2, X, y), seed=0)
    assert result.metrics["cv_score"] < plain.metrics["cv_score"]


def test_angles_are_taken_once_where_rows_have_no_distance():
    assert server._multiple("gaussian", np.zeros(3)) == 1


@pytest.mark.parametrize(
    ("unit", "relevance", "most"),
    [(1e-20, False, 1e-3), (1e15, False, 1e-3), (1.0, True, 0.02)],
)
def test_new_rows_in_any_unit_and_after_two_turns(tmp_path, unit, relevance, most):
    X, y = data()
    training = strategy(relevance=relevance, joint_features=24)
    model = simulate(training, parties(3, 2, X, unit * y, tmp_path), seed=1).model
    new, _ = data(70, seed=9)
    simulate(RidgePrediction(model.id), by_columns(new, folder=tmp_path))
    _, table = rows_of(tmp_path)
    expected = model.predict(np.array_split(new, 3, axis=1))
    assert np.abs(table[:, 1] - expected).max() < most * expected.std()


SECOND = {"joint": dataclasses.replace(JOINT, relevant=True)}


def pilot():
    """Return a party after the turn that tells the relevance, and the roles of both.

    And what the label holder was dealt, and what the party has sent.
    """
    made, roles = prepared()
    others, of_holder = ridge_relevance.deal_relevance(5, bytes(32), roles, [2, 2, 2])
    reply = asked(made, roles, triple=others[1])
    return made, (roles, dataclasses.replace(roles, turn=1)), of_holder, reply


def test_a_party_opens_the_products_of_its_frequencies_alone():
    made, (roles, again), of_holder, reply = pilot()
    opening = reply["frequencies"][2]
    deal = ridge_relevance.relevance_deal(roles, 5, 1, 2)
    B = np.random.default_rng(0).normal(size=deal.shape[1:])
    sent = ridge_relevance.hidden_probes(deal, of_holder[1], opening, B, bytes(32))
    asked(made, again, **SECOND, probes={2: sent})
    state = made.recall(RidgeState)
    expected = np.sqrt(relevance_of(frequencies_of(made, state, JOINT, 2).T @ B))
    np.testing.assert_allclose(state.relevance, expected, rtol=1e-4)


def test_frequencies_and_probes_are_hidden_by_uniform_numbers():
    """Whatever they are: zeros here, of which the party knows its products."""
    deal = shares.Deal(5, "relevance", 0, 1, (40, 50, ridge_relevance.PROBES), 63)
    first, second = (dealt.pack() for dealt in deal_predictions(deal, bytes(32)))
    omega, B = np.zeros((50, 40)), np.zeros((50, ridge_relevance.PROBES))
    opening = ridge_relevance.hidden_frequencies(deal, second, omega, bytes(32))
    sent = ridge_relevance.hidden_probes(deal, first, opening, B, bytes(32))
    for seen in (opening[32:], sent):  # after a proof
        assert is_uniform(seen.reshape(-1, 8)[:, :7])  # the last byte has seven bits
    assert not ridge_relevance.opened_relevance(deal, second, sent).any()


@pytest.mark.parametrize(
    ("probes", "reason"),
    [
        (None, "probes must come from the label holder alone"),
        ({0: np.zeros(8, np.uint8)}, "probes must come from the label holder alone"),
        ({2: np.zeros(8, np.uint8)}, "elements must be"),
    ],
)
def test_probes_that_a_party_refuses(probes, reason):
    made, (_, again), _, _ = pilot()
    with pytest.raises(PartyError, match=reason):
        asked(made, again, **SECOND, probes=probes)


def test_what_was_dealt_for_another_party_or_turn_is_refused():
    """So that a server cannot have two sets of angles under the same random ones."""
    made, roles = prepared()
    owners = {"owners": [6, roles.owners[1], 6]}
    for session, change in (5, owners), (5, {"turn": 1}), (6, {}):
        other = dataclasses.replace(roles, **change)
        dealt = dealing.deal_turn(session, bytes(32), other)[1]
        with pytest.raises(PartyError, match="has a wrong tag: it was altered"):
            asked(made, roles, dealt=dealt)
    angles = np.append(dealt[:HEAD], dealing.deal_turn(5, bytes(32), roles)[1][HEAD:])
    others, _ = ridge_relevance.deal_relevance(5, bytes(32), roles, [2, 2, 2])
    for wrong in ({"triple": others[0]}, {"dealt": angles}):
        with pytest.raises(PartyError, match="has a wrong tag: it was altered"):
            asked(prepared()[0], roles, **wrong)


def astray(sums_of_angles, roles, bits):
    """Let a party open sums that a server that deals reads together with it."""
    sums, first = sums_of_angles(roles, bits), f"angles_{roles.first}"
    return sums | {first: dataclasses.replace(sums[first], to=1)}


def travelling(sum_request, parties, spec, number):
    """Let sums go from party to party: each shows the next one the angles before it."""
    wanted = sum_request(parties, spec, number)
    return wanted if spec.to is None else dataclasses.replace(wanted, relay=1)


def twice_but_one(score_rows, federation, roles, rows, dealing, **how):
    """Ask for two errors that would tell whether the one left out is right."""
    score_rows(federation, roles, rows, dealing, **how)
    roles = dataclasses.replace(roles, turn=1, rows=len(rows) - 1)
    dealing = server.Dealing.of(federation, 16, 1, of_rows=roles)
    return score_rows(federation, roles, rows[1:], dealing, **how)


def one_repeated(score_rows, federation, roles, rows, dealing, **how):
    """Ask for an error that would be that of one row, were it often among others."""
    rows = np.append(rows, rows[:1])
    roles = dataclasses.replace(roles, rows=len(rows))
    dealing = server.Dealing.of(federation, 16, 1, of_rows=roles)
    return score_rows(federation, roles, rows, dealing, **how)


def others_in_one_turn(score_rows, federation, roles, rows, dealing, **how):
    """Ask for rows under the same masks, which differ by what the masks hide."""
    score_rows(federation, roles, rows, dealing, **how)
    return score_rows(federation, roles, rows[::-1], dealing, evaluate=False)


def of_another(row_roles, *args, **more):
    """Let another party than the one with the weights open scores."""
    return dataclasses.replace(row_roles(*args, **more), first=0, second=1)


def wrong_triple(deal_predictions, deal, root):
    """Deal, with a right tag, other products than those of what was dealt."""
    first, second = deal_predictions(deal, root)
    changed = second.correction.copy()
    changed[0] ^= 1
    return first, shares.Dealt.of(deal, 1, second.seed, changed)


ALONE = "'angles_3' must be for the party it names"


@pytest.mark.parametrize(
    ("module", "name", "deviating", "rule"),
    [
        (server, "sums_of_angles", astray, ALONE),
        (server_scoring, "sums_of_angles", astray, ALONE),
        (Parties, "_sum_request", travelling, "must be for the party it names"),
        (server, "score_rows", twice_but_one, "errors of its predictions only once"),
        (server, "score_rows", one_repeated, "evaluated on each row only once"),
        (server, "score_rows", others_in_one_turn, "turn must be 1, got 0"),
        (server, "row_roles", of_another, "must be sent to the party with the"),
        (dealing, "deal_predictions", wrong_triple, "dealer's triple failed the check"),
    ],
)
def test_a_server_that_deviates_is_refused(monkeypatch, module, name, deviating, rule):
    original = getattr(module, name)

    def deviate(*given, **named):
        return deviating(original, *given, **named)

    monkeypatch.setattr(module, name, deviate)
    training = strategy(joint_features=16, test_fraction=0.2, seed=0)
    with pytest.raises(PartyFailed, match=rule):
        training.start(RealParties(parties(4)))


def read_local_columns(trained):
    """Return local columns of a party's rows, as a label holder that deals reads them.

    It knows both masks: what hides zeros.
    """
    one, roles = scoring(trained, 0)
    roles, part = dataclasses.replace(roles, dealer=2), one.part
    dealt = dealing.deal_rows(5, bytes(32), roles, 1)[0]
    reply = ridge_scores.rows(one, roles=roles, row_parts={2: dealt}, **ALL)
    deal = dealing.row_deal(roles, 5, 1)
    seed = shares.Portion(dealt[HEAD:]).take()
    masks = hide_rows(deal, 0, seed, np.zeros((100, part["local"]), np.uint64))
    opened = shares.unpack(reply["hidden"][2][32:], deal.bits, masks.shape)
    elements = shares.subtract(opened, masks, deal.bits)
    true = local_columns(unpack_local(part), one.X)
    return decode(elements, deal.bits, dealing.NEW_ROWS.fraction), true


def test_a_label_holder_that_deals_reads_no_row_that_is_scored(trained, monkeypatch):
    with monkeypatch.context() as careless:
        careless.setattr(ridge_scores, "check_roles", lambda *_, **__: None)
        read, true = read_local_columns(trained)
        np.testing.assert_allclose(read, true, rtol=0, atol=1e-3)
    with pytest.raises(PartyError, match="must be different parties"):
        read_local_columns(trained)


def scoring(trained, index):
    """Return a party with its part of a model, and the roles to score 100 rows."""
    parts = trained[0].model.parts
    made = lone(index)
    made.X, made.part = data(100)[0][:, 2 * index : 2 * index + 2], parts[index]
    widths = [parts[0]["local"], parts[1]["local"], 0]
    joint = parts[0]["n_features"]
    return made, Roles(2, 1, widths, 100, None, joint, dealing.NEW_ROWS.fraction)


@pytest.mark.parametrize(
    ("index", "changes", "values", "rule"),
    [
        (0, {"joint": 22}, {}, "joint must match the model, and rows"),
        (0, {"rows": 99}, {}, "joint must match the model, and rows"),
        (2, {}, {"outputs": 2}, "outputs must be 1, as in the model, got 2"),
    ],
)
def test_scores_are_those_of_the_model(trained, index, changes, values, rule):
    made, roles = scoring(trained, index)
    roles = dataclasses.replace(roles, **changes)
    with pytest.raises(PartyError, match=rule):
        ridge_scores.rows(made, roles=roles, **ALL | values)


@pytest.mark.parametrize("weights", [{}, {0: np.zeros(8, np.uint8)}])
def test_scores_follow_rows_and_need_the_weights(trained, weights):
    made, roles = scoring(trained, 1)
    made.remember(ridge_scores.ScoresState())
    asked = {"outputs": 1, "bits": 16, "angles": np.zeros(8, "u2")}
    with pytest.raises(PartyError, match="must run only once, after the step rows"):
        ridge_scores.products(made, **asked, weights={2: np.zeros(8, np.uint8)})
    dealt = dealing.deal_rows(5, bytes(32), roles, 1)[1]
    ridge_scores.rows(made, roles=roles, dealt=dealt, **ALL)
    with pytest.raises(PartyError, match="sent by the first party to the second"):
        ridge_scores.products(made, **asked, weights=weights)


def test_a_linear_model_of_few_rows_is_refused_before_any_column_is_hidden():
    rng = np.random.default_rng(0)
    grid = Recorder(parties(3, 2, rng.normal(size=(60, 18)), rng.normal(size=60)))
    with pytest.raises(FederationError, match=r"must be at least \d+, that is, 4 for"):
        SecureRidge("linear", target="continuous", seed=0).start(grid)
    assert {e.action for e in grid.transcript} == {"hello", "ridge_prepare"}


@pytest.mark.parametrize(("share", "warned"), [(0.02, False), (1e-5, True)])
def test_few_test_rows_have_no_error(caplog, share, warned):
    """And a run that holds out no row at all warns of it."""
    training = strategy(joint_features=8, test_fraction=share)
    metrics = simulate(training, parties(), seed=0).metrics
    assert metrics.get("test_rows") == (None if warned else 0)
    assert "test_loss" not in metrics
    assert ("no row is held out: test_fraction is" in caplog.text) == warned


def test_cumulants_beyond_their_bound_are_asked_for_again(monkeypatch):
    monkeypatch.setattr(server, "_BOUND", 1.0)
    result = simulate(strategy(joint_features=24), parties(), seed=0)
    assert result.ledger.round_trips == 7


def hiding(index=1):
    """Return a party that has hidden its columns; 0 is of the two that compute."""
    made, roles = prepared(index)
    asked(made, roles)
    return made


MODELLED = partial(lone, part={"kind": "moments"})
WIDER = partial(lone, part={"local": 1, "n_columns": 3, "columns": []})
ANGLES = np.zeros((N, 4), "u2")
NEW = {"roles": ROLES, "outputs": 1, "bits": 16, "numbers": np.arange(10)}
BARE = {"of_rows": ridge_scores.RowsState(ROLES, np.zeros(64, np.uint8), np.arange(N))}
BARE |= {"angles": None, "bits": 16}


@pytest.mark.parametrize(
    ("made", "step", "values", "rule"),
    [
        (lambda: prepared()[0], party.open_joint, {}, "an earlier step"),
        (lambda: prepared()[0], products.multiply, {}, "an earlier step"),
        (lone, solving.fit, {"kinds": [1] * 9}, "an earlier step, but"),
        (lone, ridge_scores.rows, NEW, "no model for this strategy"),
        (hiding, solving.fit, {"kinds": [1] * 9}, "must follow the step multiply"),
        (hiding, party.open_joint, {"angles": ANGLES}, "angles must be sent"),
        (lambda: hiding(0), party.open_joint, {}, "angles must be sent"),
        (lambda: hiding(0), products.multiply, {}, "must include an opening"),
        (MODELLED, party.prepare, {"task": TASK}, "already has its model"),
        (WIDER, ridge_dealing.part, {}, "must have the 3 training columns"),
        (
            lambda: lone(0),
            ridge_scores._joint_shares,
            BARE,
            "angles must be given if and only if",
        ),
    ],
)
def test_steps_that_a_party_refuses_at_that_time(made, step, values, rule):
    """They are out of order, or what the party needs from others is missing."""
    with pytest.raises(PartyError, match=rule):
        step(made(), **values)


def test_joint_features_are_opened_once_a_turn_and_products_made_once():
    """Another multiple, say, would show two values under one mask: for any caller."""
    made = hiding()
    party.open_joint(made, multiple=2)
    with pytest.raises(PartyError, match="joint features must be sent only once, aft"):
        party.open_joint(made, multiple=3)
    products.multiply(made)
    with pytest.raises(PartyError, match="the Gram matrix has already been computed"):
        products.multiply(made)
    for done in ({"joint": np.ones(1, np.uint8)}, {"multiplied": True}):
        state = products.ProductState(ROLES, np.zeros(0, np.uint8), **done)
        with pytest.raises(PartyError, match="must be masked and sent only once"):
            products.open_joint(lone(0), state, iter(()))


@pytest.mark.parametrize(
    ("label", "task", "rule"),
    [
        (np.nan, {}, "all training rows must have a label"),
        (1.0, {"target": "multiclass"}, "must have at least three values"),
    ],
)
def test_labels_that_do_not_fit_the_target(label, task, rule):
    made = lone(index=2, labels=True)
    made.y, made.allow_plain = np.where(np.arange(N) % 2, label, 0.0), True
    with pytest.raises(PartyError, match=rule):
        party.prepare(made, task=dataclasses.replace(TASK, **task))


def longer(sent):
    """Return a message, or those of several senders, with a byte too many."""
    if isinstance(sent, dict):
        return {sender: longer(message) for sender, message in sent.items()}
    return np.append(sent, sent[:1])


@pytest.mark.parametrize(
    ("step", "index", "changes", "rule"),
    [
        (party.hide_rows, 2, SECOND, "before the step relevance"),
        (solving.relevance, 2, {"kinds": [1] * 9}, "kinds must list the number of"),
        (solving.relevance, 2, {"counted": 3}, "must be the number of the other part"),
        (solving.fit, 2, {"kinds": [1] * 9}, "kinds must list the number of local"),
        (solving.relevance, 2, {"triples": longer}, "1 surplus bytes"),
        (ridge_scores.rows, 0, {"dealt": longer}, "1 surplus bytes"),
        (ridge_scores.products, 0, {"weights": longer}, "too many bytes"),
        (ridge_scores.scores, 2, {"products": longer}, "too many bytes"),
        (ridge_scores.scores, 2, {"hidden": longer}, "too many bytes"),
        (ridge_scores.scores, 2, {"hidden": lambda h: {**h, 0: h[0] ^ 1}}, "seeds"),
    ],
)
def test_other_requests_than_the_protocols(monkeypatch, step, index, changes, rule):
    original, ((name, change),) = step.function, changes.items()

    @wraps(original)
    def deviate(who, **told):
        if who.index == index:
            told[name] = change(told[name]) if callable(change) else change
        return original(who, **told)

    monkeypatch.setattr(step, "function", deviate)
    how = {"test_fraction": 0.1} if step in SCORING else {"relevance": True}
    with pytest.raises(PartyFailed, match=rule):
        simulate(strategy(joint_features=8, **how), parties(), seed=0)


@pytest.mark.parametrize(
    "label",
    [
        lambda signal: np.exp(4 * signal),
        lambda signal: np.where(np.arange(len(signal)) == 7, 1e12, signal),
    ],
    ids=["lognormal", "one outlier"],
)
def test_labels_that_stand_out_are_clipped(label, caplog):
    """At what five rows reach: the model still follows the order."""
    X = np.random.default_rng(0).normal(size=(N, 6))
    signal = X[:, 0] + X[:, 5]
    federation = parties(3, 2, X, label(signal))
    result = simulate(strategy(joint_features=16), federation, seed=0)
    assert "labels are clipped at values that 5 rows reach" in caplog.text
    predicted = result.model.predict(np.array_split(X, 3, axis=1))
    assert spearmanr(predicted, signal)[0] > 0.6


def test_columns_that_stand_out_beside_labels_are_zeros():
    """As in the set gas: columns and labels are large in the same rows."""
    rng, n = np.random.default_rng(0), 400
    scale = np.exp(1.5 * rng.normal(size=(n, 1)))
    Z = rng.normal(size=(n, 4))
    X = Z @ rng.normal(size=(4, 36)) + scale * rng.normal(size=(n, 36))
    y = Z[:, 0] + 0.3 * scale[:, 0] * rng.normal(size=n)
    result = simulate(strategy(joint_features=16), parties(3, 2, X, y), seed=0)
    holder = unpack_local(result.model.parts[2])
    columns = local_columns(holder, X[:, 24:])
    assert len(holder.muted) > 0
    assert not columns[:, holder.muted].any()
    both = np.column_stack([columns, y])
    both = both[:, both.any(axis=0)] - both[:, both.any(axis=0)].mean(axis=0)
    assert (np.linalg.qr(both)[0] ** 2).sum(axis=1).max() <= 0.5 + 1e-6


def test_features_leave_four_rows_each():
    for features in (N // 4, 9_999_999, 10**9):
        with pytest.raises(FederationError, match="must leave at least 4 rows for"):
            simulate(strategy(joint_features=features), parties(), seed=0)
    result = simulate(strategy(), parties(), seed=0)
    assert result.metrics["features"] + result.metrics["local_columns"] + 2 <= N // 4
    assert result.metrics["local_columns"] <= 3 * 5  # of few rows, a small share


def test_the_values_of_columns_come_before_joint_features_of_few_rows():
    X = np.random.default_rng(0).normal(size=(160, 9))
    y = X @ np.arange(1.0, 10.0)
    model = simulate(strategy(), parties(3, 2, X[:60], y[:60]), seed=0).model
    predicted = model.predict(np.array_split(X[60:], 3, axis=1))
    assert np.mean((predicted - y[60:]) ** 2) < 0.2 * y.var()


# -- consent ---------------------------------------------------------------------------


def real(folder, count, X=None, **changes):
    """Return parties of the data with labels, or of new rows without."""
    federation = parties(count) if X is None else by_columns(X, None, count)
    given = {"two_parties": count == 2, "leaves": {"moments": Limit()}}
    return pinned(federation, folder, Consent(**given | changes))


@pytest.mark.parametrize(
    ("count", "dealer", "accepted", "trips"),
    [(2, "server", ["server"], 9), (3, "server", None, 9), (3, "p0", ["p0"], 10)],
)
def test_strict_parties_let_one_kind_leave(tmp_path, count, dealer, accepted, trips):
    """In training and predictions: no angles, rows or predictions of single rows."""
    training = strategy(joint_features=16, test_fraction=0.1, dealer=dealer)
    with repeated_draws(0):
        result = training.start(RealParties(real(tmp_path, count, dealers=accepted)))
    assert result.ledger.round_trips == trips
    assert result.metrics["test_loss"] < 0.6 * data()[1].var()
    X, _ = data(60, seed=4)
    predicting = RidgePrediction(result.model.id, dealer=dealer)
    predicting.start(RealParties(real(tmp_path, count, X, dealers=accepted)))
    (file,) = (tmp_path / f"p{count - 1}").glob("predictions-*.csv")
    assert len(file.read_text().splitlines()) == 61


def test_of_two_parties_one_may_run_the_server(tmp_path, monkeypatch):
    """So no dealer is safe: consent must name one, also where the terms name none."""
    monkeypatch.setattr(ComputingParties, "computing", None)
    training = strategy(joint_features=16)
    with pytest.raises(PartyFailed, match=r"consent lacks dealers = ..server"):
        training.start(RealParties(real(tmp_path / "a", 2)))
    accepted = real(tmp_path / "b", 2, dealers=["server"])
    model = training.start(RealParties(accepted)).model.id
    with pytest.raises(PartyFailed, match=r"consent lacks dealers = ..server"):
        RidgePrediction(model).start(RealParties(real(tmp_path / "b", 2)))


def test_consent_counts_columns_and_scores(tmp_path):
    """Of the Gram matrix, and one for each score that is opened of rows."""
    training = strategy(joint_features=16, test_fraction=0.1, seed=0)
    local = 55  # columns of the 360 rows to train on
    columns = local + 2 + 16 + 1  # and the training
    for limit, rule in (
        (Limit(life=columns), f"at most {columns} disclosures of moments over the"),
        # On few rows the label holder can compute columns of 0 and 1 of the others.
        (Limit(rows=361), "at least 361 rows in each Gram matrix"),
        (Limit(life=columns + 1, rows=360), ""),
    ):
        folder = tmp_path / f"{limit.life}-{limit.rows}"
        federation = real(folder, 3, leaves={"moments": limit}, allow_seed=True)
        with pytest.raises(PartyFailed, match=rule) if rule else nullcontext():
            result = training.start(RealParties(federation))
    assert result.metrics["local_columns"] == local


def test_consent_of_the_label_holder_counts_the_columns_that_it_tells_of(tmp_path):
    """The four of the others, those of both turns, alike here, and the training."""
    training = strategy(joint_features=16, seed=0, relevance=True)
    local = 65  # columns of the data
    columns = 2 * (local + 2 + 16) + 1
    refused = pytest.raises(PartyFailed, match=r"'p2'.* disclosures of moments over")
    for more, outcome in ((3, refused), (4, nullcontext())):
        federation = real(tmp_path / str(more), 3, allow_seed=True)
        for member, of_holder in zip(federation, (0, 0, more), strict=True):
            most = {"moments": Limit(life=columns + of_holder)}
            member.consent = dataclasses.replace(member.consent, leaves=most)
        with outcome:
            result = training.start(RealParties(federation))
    assert result.metrics["local_columns"] == local


# -- settings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"rows": 1}, "rows must be 0 or at least 2"),
        ({"n_parties": 1}, "n_parties must be 0 or at least 2"),
        ({"bits": 8}, "bits must be one of 16, 32"),
        ({"class_weight": "balanced"}, "class_weight has no effect with target"),
        ({"features": "linear", "joint_features": 4}, "joint_features has no effect"),
        # A party would refuse these.
        *(({"bandwidth": size}, "bandwidth must be") for size in (1e-300, 1e300)),
    ],
)
def test_settings_that_do_not_fit(settings, rule):
    with pytest.raises(ValueError, match=rule):
        strategy(**settings)


def test_32_bits_and_a_given_bandwidth():
    """Which gives one turn, of the columns in their own units."""
    settings = {"bits": 32, "bandwidth": 2.0, "joint_features": 16, "relevance": True}
    result = simulate(strategy(test_fraction=0.2, **settings), parties(), seed=0)
    assert "relevance" not in result.model.parts[0]
    assert result.metrics["bandwidth"] == 2.0
    assert result.metrics["test_loss"] < 0.6 * data()[1].var()


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"features": "linear"}, "no party has a column in which at least 20"),
        ({"rows": N + 1}, "rows must be at most 400, .* training rows, got 401"),
    ],
)
def test_runs_that_cannot_train_are_refused(settings, rule):
    constant = parties(3, 2, np.zeros((N, 6)), data()[1])
    with pytest.raises(FederationError, match=rule):
        simulate(strategy(relevance=True, **settings), constant, seed=0)


def test_what_is_dealt_for_ridge_hides_no_other_columns():
    """A linear model and a coreset can have as many rows and columns, and as many bits.

    Under one mask the difference of both would be open to the two that compute.
    """
    ridge_roles = Roles(2, 0, [5, 3, 7], N, fraction=joint_fraction(N))
    coreset = dataclasses.replace(ridge_roles, fraction=0)
    uses = [roles.deal(5) for roles in (ridge_roles, coreset)]
    assert uses[0].bits == uses[1].bits
    dealt = dealing.deal_all(uses[0], bytes(32), ridge_roles)[1]
    columns = [np.zeros((N, 3))]
    products.hide(lone(), products.ProductState(ridge_roles, dealt), columns)
    with pytest.raises(PartyError, match="has a wrong tag: it was altered"):
        products.hide(lone(), products.ProductState(coreset, dealt), columns)
