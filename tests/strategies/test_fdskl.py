"""FDSKL end to end: against pooled references, its costs, refusals, reproducibility."""

import math
import re
from functools import cache, partial, wraps

import numpy as np
import pytest
from draws import stream
from federations import by_columns
from sklearn import metrics
from sklearn.utils.class_weight import compute_sample_weight
from transcripts import Sent

from vfl_flower import PartyFailed
from vfl_flower.clients.fdskl import angle_sums
from vfl_flower.clients.fdskl import prediction as fdskl_prediction
from vfl_flower.clients.fdskl import training as fdskl
from vfl_flower.numerics.fdskl import step_sizes
from vfl_flower.numerics.kernel_bandwidth import MULTIPLES, WIDEST, best_multiple
from vfl_flower.numerics.kernel_model import partial_angles, probabilities
from vfl_flower.numerics.kernel_solvers import fit
from vfl_flower.numerics.random_features import (
    RandomFeatures,
    draw_pairs,
    features,
    median_bandwidth,
    taken,
)
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.server.exchange import Exchange, FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies import FDSKL, FDSKLDirect, FDSKLPrediction
from vfl_flower.strategies.fdskl.angles import row_blocks

DS = {"strategy": FDSKL}
SMALL = DS | {"features": 64}
EXPLICIT = {"step": "explicit"}
PAPER = {"angle_masking": "paper", "topology": "ring"}
MEDIAN = {"bandwidth": "median"}
N, D = 120, 6
SPLITS = {2: (2, 4), 3: (2, 1, 3), 5: (1, 1, 1, 2, 1)}
CLASSES = 3.0, 7.0
"""Labels of the two classes of a lone holder: neither 0 and 1 nor -1 and +1."""
CODES = 0.0, 1.0
"""Labels of the two classes where several parties hold labels."""


@cache
def data(n=N):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, D))
    return X, X[:, 0] * X[:, 3] + X[:, 5] + 0.3 * rng.normal(size=n)


def labels(real, classes=CLASSES):
    return np.where(real > 0, classes[1], classes[0])


def split(X, count=3):
    return np.split(X, np.cumsum(SPLITS[count])[:-1], axis=1)


def parties(y=None, count=3, holders=(-1,), n=N):
    """Return parties of which each of the holders knows every other label."""
    X, real = data(n)
    y = labels(real, CLASSES if len(holders) == 1 else CODES) if y is None else y
    return by_columns(X, y, SPLITS[count], holders=holders, names="party {}")


def run(federation, seed=1, strategy=FDSKLDirect, **settings):
    """Return the result, the parts and the grid; angles have 16 bits by default."""
    bits = {} if {"masking", "angle_masking"} & settings.keys() else {"bits": 16}
    given = {"seed": seed, "bandwidth": 1.5, "allow_two_parties": True}
    made = strategy(**given | bits | settings)
    grid = Sent(federation)
    result = made.start(grid)
    made.complete(result.model, grid.memories())
    return result, result.model.parts, grid


# -- the doubly stochastic form against a pooled one -----------------------------------

DERIVATIVES = {
    "square": lambda u, y: 2 * (u - y),
    "logistic": lambda u, y: -y / (1 + math.exp(y * u)),
    "smooth_hinge": lambda u, y: -y * min(1.0, max(0.0, 1 - y * u)),
}
"""L' of Table 1 of [1], of numbers."""

CURVATURE = {"square": 2.0, "logistic": 0.25, "smooth_hinge": 1.0}
"""By how much L'(u, y) changes at most with u."""


def omega_and_b(parts, block):
    """Return the pooled omega, shape (M, d), and b in radians, from the seeds alone."""
    M, holders = parts[0]["n_features"], parts[0]["holders"]
    kernel, bandwidth = parts[0]["kernel"], parts[0]["bandwidth"]
    own = [
        RandomFeatures(kernel, p["n_columns"], bandwidth, int(p["seed"], 16))
        for p in parts
    ]
    omegas, phases = zip(*(features.weights(0, M) for features in own), strict=True)
    omega, b = np.hstack(omegas), sum(phases)
    if "shared_seed" in parts[0]:
        seed, kept = int(parts[0]["shared_seed"], 16), parts[0]["kept"]
        pooled = RandomFeatures(kernel, D, bandwidth, seed, orthogonal=False)
        omega = pooled.weights(0, M)[0]
        # Line 8 of Algorithm 3: only the phase of l' stays.
        b = np.array([phases[kept[j // block % len(holders)]][j] for j in range(M)])
    return omega, 2 * np.pi * b


def pooled_dsg(parts, y, rows, loss, step, lam, block=1, error=0.0, rounding=0.0):
    """Return alpha of equation 7 of [1], and a bound of what angles do to each.

    f starts at the sum of the label holders' intercepts, which stay. One number at a
    time, as Algorithm 1 is written. With blocks, the gradient is the mean over the
    instances, and each of the new features has its share.

    The bound: where each feature is wrong by `error` at most and each sum of scores by
    `rounding`, and C bounds L'', by the triangle inequality

        |f~ - f| <= sqrt 2 sum_j e_j + error sum_j |alpha_j| + rounding,
        e_t = gamma (sqrt 2 C |f~ - f| + error |L'|),    e_j <- (1 - gamma lambda) e_j.
    """
    X, _ = data()
    omega, b = omega_and_b(parts, block)
    alpha, e, gamma = [], [], step
    start = sum(parts[j]["intercept"][0] for j in parts[0]["holders"])
    for t in range(len(rows)):
        size = block * len(rows[t])
        new, new_error = np.zeros(block), np.zeros(block)
        for i in rows[t]:
            known = slice((t + 1) * block)
            phi = math.sqrt(2) * np.cos(omega[known] @ X[i] + b[known])
            old, own = phi[: t * block], phi[t * block :]
            f = start + (float(np.dot(alpha, old)) if t else 0.0)
            slope = DERIVATIVES[loss](f, y[i])
            off = math.sqrt(2) * sum(e) + error * np.abs(alpha).sum() + rounding
            new -= gamma * slope * own / size
            wrong = math.sqrt(2) * CURVATURE[loss] * off + error * abs(slope)
            new_error += gamma * wrong / size
        scale = 1 - gamma * lam
        alpha = [*(scale * a for a in alpha), *new]
        e = [*(scale * x for x in e), *new_error]
    return np.array(alpha), np.array(e)


def coefficients(parts, block=1):
    """Return alpha of all features: a holder's turn comes every so many blocks."""
    holders, M = parts[0]["holders"], parts[0]["n_features"]
    alpha = np.full(M, np.nan)
    for place, holder in enumerate(holders):
        mine = np.arange(M) // block % len(holders) == place
        alpha[mine] = parts[holder]["coef"][:, 0]
    return alpha


def instances(grid):
    """Return the rows of each iteration as the server asked for their angles."""
    evaluation = {step.action for step in FDSKL.evaluation_steps}
    rows = {
        values["request.stop"]: values["request.rows"]
        for action, _, values in grid.sent
        if "request.stop" in values and action not in evaluation
    }
    return [rows[stop] for stop in sorted(rows)]


def fitted_rows(grid):
    """Return the rows whose labels the label holder solved for."""
    return next(v["problem.rows"] for _, _, v in grid.sent if "problem.rows" in v)


def pooled_labels(loss):
    real = data()[1]
    return real if loss == "square" else np.where(real > 0, 1.0, -1.0)


def published(iterations=6, block=1, **settings):
    """Return settings of the published update with `block` rows and features a step."""
    size = iterations * block
    given = {"iterations": iterations, "rows": size, "features": size}
    given |= {"step": 0.05, "regularization": 0.1}
    return {"strategy": FDSKL, **given, **settings}


def doubly_stochastic(loss="logistic", holders=(-1,), count=3, **settings):
    y = data()[1] if loss == "square" else None
    target = "continuous" if loss == "square" else "binary"
    given = published(**settings)
    return run(parties(y, count, holders), loss=loss, target=target, **given)


def assert_pooled(actual, loss, tolerance=1e-9, block=1, lam=0.1):
    _, parts, grid = actual
    args = parts, pooled_labels(loss), instances(grid), loss
    alpha, _ = pooled_dsg(*args, 0.05, lam, block)
    error = np.abs(coefficients(parts, block) - alpha).max()
    assert error <= tolerance * np.abs(alpha).max()


def test_algorithm_1_equals_a_pooled_one_in_100_iterations():
    """100 coefficients to 1e-9, without masks: what differs is the order of sums."""
    actual = doubly_stochastic(count=2, holders=[1], masking="plain", iterations=100)
    assert actual[0].metrics == {"rows": 100, "features": 100, "bandwidth": 1.5}
    assert actual[0].ledger.round_trips == 1 + 1 + 100 + 1
    assert_pooled(actual, "logistic")


def circle_error(bits, count):
    """Return the bound of a feature's error: half a unit of a turn from each party."""
    return math.sqrt(2) * 2 * np.pi * count / 2 ** (bits + 1)


@pytest.mark.parametrize(
    ("loss", "bits", "share"),
    [("square", 16, 0.01), ("logistic", 32, 2e-7), ("smooth_hinge", 16, 0.01)],
)
def test_algorithm_1_on_the_circle(loss, bits, share):
    """Each within its bound of `pooled_dsg`, at most a share of the largest.

    In fact much nearer: the bound takes all errors to have one sign.
    """
    _, parts, grid = doubly_stochastic(loss, [0, 2], iterations=8, bits=bits)
    rounding = 1.5 / group("ring", 2.0**32, 3).scale
    args = parts, pooled_labels(loss), instances(grid), loss, 0.05, 0.1
    alpha, bound = pooled_dsg(*args, error=circle_error(bits, 3), rounding=rounding)
    off = np.abs(coefficients(parts) - alpha)
    assert (off <= bound).all()
    assert bound.max() < share * np.abs(alpha).max()
    assert off.max() > 0  # or the angles were not rounded


@pytest.mark.parametrize(
    ("loss", "holders", "count", "settings"),
    [
        ("square", [2], 3, {}),
        ("logistic", [0, 2], 3, {}),
        ("smooth_hinge", [1, 4], 5, {}),
        ("square", [0, 1], 2, {}),
        ("logistic", [0, 1, 2, 3, 4], 5, {}),
        ("square", [2], 3, {"kernel": "laplacian", "iterations": 4, "block": 5}),
        ("square", [0, 2], 3, {"iterations": 4, "block": 5}),
        ("square", [2], 3, {"regularization": "auto"}),
    ],
)
def test_losses_label_holders_and_parties(loss, holders, count, settings):
    """With blocks of instances and features too; lambda is one over the rows."""
    actual = doubly_stochastic(loss, holders, count, masking="plain", **settings)
    lam = 1 / N if "regularization" in settings else 0.1
    assert_pooled(actual, loss, block=settings.get("block", 1), lam=lam)
    coefs = [j for j, part in enumerate(actual[1]) if "coef" in part]
    assert coefs == holders == actual[1][0]["holders"]


@pytest.mark.parametrize(
    ("topology", "holders", "count"),
    [("tree", [0, 2], 3), ("ring", [3], 5), ("tree", [1], 2)],
)
def test_the_papers_masking_equals_the_pooled_form(topology, holders, count):
    """To the fixed point of the scores, 1e-9 each; the phases cancel to rounding."""
    settings = PAPER | {"topology": topology, "iterations": 4}
    actual = doubly_stochastic("square", holders, count, **settings)
    assert_pooled(actual, "square", tolerance=1e-7)
    for place, holder in enumerate(holders):
        assert actual[1][0]["kept"][place] != holder


@pytest.mark.parametrize(
    ("angles", "error"), [({"bits": 32}, circle_error(32, 3)), (PAPER, 0.0)]
)
def test_labels_of_any_size_are_learned_as_well(angles, error):
    """Scores of several holders are added in the unit of the largest label.

    The paper's angles are real numbers, so that all the error is that of the sum of
    scores: half of 1 / 2^44 of the largest label at most from each party.
    """
    settings = published(3, loss="square", **angles)
    real, actual = data()[1], {}
    for size in (1.0, 1e9, 1e-9):
        federation = parties(real * size, holders=[0, 2])
        _, parts, grid = run(federation, target="continuous", **settings)
        args = parts, real * size, instances(grid), "square", 0.05, 0.1
        alpha, bound = pooled_dsg(*args, error=error)
        actual[size] = coefficients(parts) / size
        off = np.abs(coefficients(parts) - alpha).max() / np.abs(alpha).max()
        assert off <= bound.max() / np.abs(alpha).max() + 1e-12 < 1e-7
    largest = np.abs(actual[1.0]).max()
    for size in (1e9, 1e-9):
        assert np.abs(actual[size] - actual[1.0]).max() <= 1e-12 * largest


def test_labels_that_are_all_zero_at_all_holders():
    settings = {"loss": "square", "target": "continuous"}
    for given in (published(4, 2), SMALL):
        _, parts, _ = run(parties(np.zeros(N), holders=[0, 2]), **given, **settings)
        assert not any(parts[j]["coef"].any() for j in (0, 2))


def test_scores_that_grow_over_the_bound_of_their_sum_end_the_run():
    """A step of 100 diverges; 2^16 times the largest label, to a power of two."""
    bound = 2.0**16 * 2.0 ** math.ceil(math.log2(np.abs(data()[1]).max()))
    message = f"absolute scores must be below {bound:.0f} so that label holders"
    with pytest.raises(FederationError, match=message):
        doubly_stochastic("square", [0, 2], step=100.0, regularization="auto")


def test_a_lone_holder_adds_up_no_scores_and_asks_for_no_bound():
    settings = {"step": 100.0, "regularization": "auto"}
    result, parts, grid = doubly_stochastic("square", [2], iterations=12, **settings)
    asked = [values for action, _, values in grid.sent if action == "fdskl_iterate"]
    assert {values["size"] for values in asked} == {0}
    assert not any("scores" in name for values in asked for name in values)
    largest = 1e5 * np.abs(data()[1]).max()  # over any bound in the unit of labels
    assert np.abs(parts[2]["coef"]).max() > largest
    assert result.ledger.clipped == 0


def test_codes_of_classes_mean_the_same_at_all_holders():
    """1 is the second class whether the first is called 0 or -1."""
    y = labels(data()[1], CODES)
    mixed = np.where((np.arange(N) % 2 == 1) & (y == 0), -1.0, y)
    first, second = (run(parties(y, holders=[0, 2]), **SMALL)[1] for y in (y, mixed))
    for j in (0, 2):
        np.testing.assert_array_equal(first[j]["coef"], second[j]["coef"])
    assert [p[2]["classes"].tolist() for p in (first, second)] == [[0, 1], [-1, 1]]


# -- the implicit form, and sizes ------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "holders", "unit", "origin"),
    [
        ("implicit", [2], 1.0, 1e6),
        ("explicit", [2], 1e-6, -1.0),
        (0.5, [0, 2], 1.0, 1e6),
    ],
)
def test_regression_has_an_intercept(unit, origin, holders, step):
    """R^2 was -87 with labels + 100."""
    real = data()[1]

    def predicted(y):
        settings = {"target": "continuous", "loss": "square", "step": step, **DS}
        settings |= {} if step == "implicit" else {"iterations": 4, "features": 32}
        result, _, _ = run(parties(y, holders=holders), bits=32, **settings)
        return result.model.predict(split(data()[0]))

    now, before = predicted(origin + unit * real), predicted(real)
    np.testing.assert_allclose((now - origin) / unit, before, atol=0.02 * real.std())


@pytest.mark.parametrize(
    ("settings", "labels", "batches", "features"),
    [
        ({}, [9000], [6000, 3000], 1500),
        ({}, [10**6], [20833, 10416], 1500),
        ({"bits": 16}, [9000], [6000, 3000], 1500),
        ({}, [600, 300], [400, 200, 200, 100], 1500),
        ({"rows": 300, "features": 99}, [9000], [200, 100], 98),
        ({"budget": 1_000_000}, [9000], [1888, 944], 528),
        ({"block_bytes": 10**6}, [9000], [6000, 3000], 332),
        ({"step": "explicit"}, [9000], [281] * 32, 2048),
        ({"step": 1.0, "rows": 320}, [120], [10] * 32, 2048),
        ({"step": 1.0, "rows": 5, "features": 5, "iterations": 5}, [3], [1] * 5, 5),
    ],
)
def test_rows_of_each_batch_and_features(settings, labels, batches, features):
    """Two thirds of the rows come first; the bytes are at most half of `direct`'s."""
    assert FDSKL(**settings)._batches(labels) == (batches, features)


def test_the_label_holder_alone_chooses_the_published_step():
    """The server says 0, and the model is that of one of seven steps."""
    settings = {"seed": 3, "features": 16, "iterations": 8, **DS, **EXPLICIT}
    _, parts, grid = run(parties(), **settings)
    (step,) = {v["rule.step"] for _, _, v in grid.sent if "rule.step" in v}
    assert step == 0.0
    y, rows = pooled_labels("logistic"), instances(grid)
    omega, b = omega_and_b(parts, 2)
    phi = np.sqrt(2) * np.cos(data()[0][rows[0]] @ omega[:2].T + b[:2])
    models = [
        pooled_dsg(parts, y, rows, "logistic", gamma, 0.0, 2)[0]
        for gamma in step_sizes(phi, "logistic")
    ]
    off = [np.abs(coefficients(parts, 2) - alpha).max() for alpha in models]
    assert min(off) < 1e-3 < sorted(off)[1]


# -- the exact solution ----------------------------------------------------------------


def pooled_angles(parts, rows, bits, count=3):
    """Return the sum of all parties' elements, shape (n, M)."""
    X = data()[0][rows]
    M = parts[0]["n_features"]
    blocks = zip(parts, split(X, count), strict=True)
    total = sum(partial_angles(part, X, M, bits) for part, X in blocks)
    return total % 1.0 if bits == 64 else total


def classes_of(real, count):
    """Return labels 0, 10, 20, .. by equal shares of the rows."""
    edges = np.quantile(real, np.arange(1, count) / count)
    return 10.0 * np.searchsorted(edges, real)


def one_vs_rest(y):
    classes = np.unique(y)
    if len(classes) == 2:
        return np.where(y == classes[1], 1.0, -1.0)[:, None]
    return np.where(y[:, None] == classes, 1.0, -1.0)


MULTICLASS = {"target": "multiclass"}
DIRECT = {
    "logistic": {"loss": "logistic"},
    "hinge": {"loss": "smooth_hinge", "regularization": 1e-3, "kernel": "laplacian"},
    "square": {"loss": "square", "bits": 32},
    "8 bits": {"loss": "square", "bits": 8},
    "plain": {"loss": "square", "masking": "plain"},
    "blocks": {"loss": "square", "block_bytes": 2000},
    "ring": {"loss": "square", "topology": "ring", "block_bytes": 5000},
    "tree": {"loss": "square", "topology": "tree"},
    "multiclass": {"loss": "square", **MULTICLASS},
    "multiclass logistic": {"loss": "logistic", "regularization": 1e-2, **MULTICLASS},
    "continuous": {"loss": "square", "target": "continuous"},
    "auto rows": {"loss": "square", "budget": 4000, "features": 0},
}


@pytest.mark.parametrize("variant", DIRECT)
def test_direct_equals_the_exact_solution_on_pooled_angles(variant):
    """Bit for bit: the same elements, the same order, the same generator."""
    settings = {"features": 32, "test_fraction": 0.25, **DIRECT[variant]}
    real = data()[1]
    y = {"multiclass": classes_of(real, 4), "continuous": real}.get(
        settings.get("target", ""), labels(real)
    )
    result, parts, grid = run(parties(y), **settings)
    train, test = split_rows(N, 0.25, 1)
    rows = fitted_rows(grid)
    assert np.isin(rows, train).all()
    assert (np.diff(rows.astype(int)) > 0).all()
    M = result.metrics["features"]
    assert result.metrics["rows"] == len(rows)
    bits = 64 if settings.get("masking") else settings.get("bits", 16)
    Y = y[:, None] if settings.get("target") == "continuous" else one_vs_rest(y)
    lam = settings.get("regularization")
    rng = stream(1, 2, "cross-validation")
    actual = fit(pooled_angles(parts, rows, bits), Y[rows], settings["loss"], lam, rng)
    np.testing.assert_array_equal(parts[2]["coef"], actual.coef / np.sqrt(M))
    np.testing.assert_array_equal(parts[2]["intercept"], actual.intercept)
    assert result.metrics["regularization"] == actual.regularization
    assert result.metrics.get("cv_score") == actual.cv_score
    # Evaluation is the model that was trained, on the same elements of other rows.
    if settings.get("budget"):
        assert "test_error" in result.metrics
        assert M * len(rows) * 2 <= 4000
        return
    scores = features(pooled_angles(parts, test, bits)) @ parts[2]["coef"]
    scores += parts[2]["intercept"]
    if settings.get("target") == "continuous":
        loss = np.mean((scores[:, 0] - y[test]) ** 2)
        assert result.metrics["test_loss"] == pytest.approx(loss, abs=1e-7)
        return
    classes = np.unique(y)
    index = scores.argmax(axis=1) if len(classes) > 2 else scores[:, 0] > 0
    error = np.mean(classes[index.astype(int)] != y[test])
    assert result.metrics["test_error"] == error


BANDWIDTHS = {
    "bits": {"bits": 32},
    "plain": {"masking": "plain"},
    "paper": {"angle_masking": "paper", "topology": "tree"},
    "multiclass": {"kernel": "laplacian", **MULTICLASS},
    "logistic": {"loss": "logistic"},
}


@pytest.mark.parametrize("variant", BANDWIDTHS)
def test_the_label_holder_chooses_the_bandwidth(variant):
    """In no further message; model, test and a pooled fit are at the same bandwidth."""
    settings = {"loss": "square", "features": 32, "test_fraction": 0.25}
    settings |= BANDWIDTHS[variant]
    y = classes_of(data()[1], 4) if settings.get("target") else None
    medians, _, _ = run(parties(y), bandwidth="median", **settings)
    result, parts, grid = run(parties(y), bandwidth="auto", **settings)
    assert result.ledger.round_trips == medians.ledger.round_trips
    multiple = parts[2]["multiple"]
    assert multiple in MULTIPLES
    assert "multiple" not in parts[0]
    widest = WIDEST * medians.metrics["bandwidth"]
    assert {part["bandwidth"] for part in parts} == {widest}
    assert result.metrics["bandwidth"] == result.model.bandwidth == widest / multiple
    X, real = data()
    y = labels(real) if y is None else y
    test = split_rows(N, 0.25, 1)[1]
    predicted = result.model.predict(split(X[test]))
    assert result.metrics["test_error"] == np.mean(predicted != y[test])
    if "masking" in settings or "angle_masking" in settings:
        return
    rows = fitted_rows(grid)
    bits = settings.get("bits", 16)
    angles = taken(pooled_angles(parts, rows, bits), multiple)
    Y = one_vs_rest(y)[rows]
    rng = stream(1, 2, "cross-validation")
    pooled = fit(angles, Y, settings["loss"], None, rng, folds=5)
    np.testing.assert_array_equal(parts[2]["coef"], pooled.coef / np.sqrt(32))
    tried = pooled_angles(parts, rows, bits)
    assert multiple == best_multiple(tried, Y, stream(1, 2, "bandwidth"))


@pytest.mark.parametrize(
    ("loss", "target"), [("square", "binary"), ("logistic", "multiclass")]
)
def test_rows_of_rare_classes_weigh_more(loss, target):
    """As scikit-learn's weights say, in the fit on pooled angles."""
    X, real = data()
    edges = [1.5] if target == "binary" else [1.2, 2.0]
    y = np.digitize(real, edges) * 10.0
    settings = {"features": 16, "loss": loss, "target": target}
    result, parts, grid = run(parties(y), class_weight="balanced", **settings)
    rows = fitted_rows(grid)
    angles = pooled_angles(parts, rows, 16)
    weights = compute_sample_weight("balanced", y[rows])
    rng = stream(1, 2, "cross-validation")
    pooled = fit(angles, one_vs_rest(y)[rows], loss, None, rng, weights=weights)
    np.testing.assert_array_equal(parts[2]["coef"], pooled.coef / np.sqrt(16))
    alike, _, _ = run(parties(y), **settings)
    balanced, plain = (
        metrics.balanced_accuracy_score(y, made.model.predict(split(X)))
        for made in (result, alike)
    )
    assert balanced > plain


def test_predictions_are_at_the_bandwidth_that_was_chosen(tmp_path):
    X, _ = data()
    federation, new = (
        by_columns(X, y, SPLITS[3], names="party {}", folder=tmp_path)
        for y in (np.sin(2 * X[:, 0]), None)
    )
    given = {"features": 32, "loss": "square", "target": "continuous"}
    result, _, grid = run(federation, bandwidth="auto", **given)
    assert grid.memories()[2].part["multiple"] > 1
    told = FDSKLPrediction(result.model.id).start(InProcessGrid(new))
    assert told.model.bandwidth == result.model.bandwidth
    (path,) = (tmp_path / "party 2").glob("predictions-*.csv")
    values = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1]
    np.testing.assert_allclose(values, result.model.predict(split(X)), atol=1e-3)


@pytest.mark.parametrize(
    ("angle_masking", "topology"), [("circle", "star"), ("paper", "tree")]
)
def test_test_error_is_that_of_the_model_in_process(angle_masking, topology):
    """The model adds real turns; what the circle rounds moves no score over 0 here."""
    settings = {"angle_masking": angle_masking, "topology": topology}
    settings |= {"features": 128, **DS}
    n = 600
    result, _, _ = run(parties(holders=[0, 2], n=n), test_fraction=0.5, **settings)
    test = split_rows(n, 0.5, 1)[1]
    test = test[test % 2 == 0]  # the first holder knows every other label
    X, real = data(n)
    predicted = result.model.predict(split(X[test]))
    assert set(predicted) == set(CODES)
    wrong = predicted != labels(real, CODES)[test]
    assert result.metrics["test_error"] == np.mean(wrong)
    assert result.metrics["test_rows"] == len(test)
    assert 0 < result.metrics["test_error"] < 0.3


TARGETS = {
    "binary": ("logistic", "base_error auc auc_se log_loss brier true_positives"),
    "multiclass": ("logistic", "base_error log_loss"),
    "continuous": ("square", "loss loss_se r2 mae mae_se"),
}
"""What is told of each kind of labels, in part."""


@pytest.mark.parametrize("strategy", [FDSKLDirect, FDSKL])
@pytest.mark.parametrize("target", TARGETS)
def test_what_a_model_says_of_itself(target, strategy):
    """Of the answers and scores of the whole model."""
    loss, names = TARGETS[target]
    X, real = data()
    y = {"binary": labels(real), "multiclass": classes_of(real, 3)}.get(target, real)
    given = {"strategy": strategy, "test_fraction": 0.5, "target": target, "loss": loss}
    features = 64 if strategy is FDSKLDirect else 128
    told = (result := run(parties(y), features=features, **given)[0]).metrics
    assert {f"test_{name}" for name in names.split()} <= set(told)
    test = split_rows(N, 0.5, 1)[1]
    blocks, y = split(X[test]), y[test]
    predicted = result.model.predict(blocks)
    scores = result.model.decision_function(blocks)
    if target == "continuous":
        expected = metrics.mean_absolute_error(y, predicted)
        assert told["test_mae"] == pytest.approx(expected, rel=1e-3)
        return
    expected = metrics.log_loss(y, probabilities(scores))
    assert told["test_log_loss"] == pytest.approx(expected, abs=1e-3)
    if target == "binary":
        area = metrics.roc_auc_score(y == CLASSES[1], scores[:, 0])
        assert told["test_auc"] == pytest.approx(area, abs=1e-3)
        counts = metrics.confusion_matrix(y, predicted)
        assert told["test_true_positives"] == counts[1, 1]


def test_a_model_that_predicts_nothing_positive_says_so():
    """One label in ten is positive at random, so no row is likely to be."""
    n = 800
    y = np.random.default_rng(5).permutation(np.arange(n) % 10 == 0).astype(float)
    result, _, _ = run(parties(y, n=n), features=16, test_fraction=0.5)
    assert result.metrics["test_true_positives"] == 0
    assert [w.partition(":")[0] for w in result.warnings] == [
        "the model is no better than the base rate",
        "the model predicts the second (positive) class for none of the rows held out, "
        "but 30 of them belong to this class",
    ]


@pytest.mark.parametrize("strategy", [FDSKLDirect, FDSKL])
def test_evaluation_has_a_quarter_of_the_budget_and_rows_at_random(strategy):
    """1,024 bytes: 256 for rows of 16 features of 16 bits, 8 of the 30.

    What the budget leaves out, also of the rows to train on, is in a warning.
    """
    settings = {"strategy": strategy, "features": 16, "test_fraction": 0.25}
    result, _, grid = run(parties(), budget=1024, **settings)
    sent = [values for action, _, values in grid.sent if action == "fdskl_answer"]
    asked = [values["request.rows"] for values in sent if "request.rows" in values]
    assert len(asked) == 3
    test = split_rows(N, 0.25, 1)[1]
    assert len(asked[0]) == 8
    assert np.isin(asked[0], test).all()
    assert set(asked[0].tolist()) != set(test[:8].tolist())
    used, n = int(result.metrics["rows"]), N - N // 4
    left = [f"{n - used} of {n} rows to train on", f"{N // 4 - 8} of {N // 4} rows to "]
    assert all(map(str.startswith, result.warnings, left))
    assert len(result.warnings) >= 2
    assert not any("left out" in w for w in run(parties(), **settings)[0].warnings)


def test_bandwidth_is_that_of_the_median_distance_of_pairs():
    """1,000 pairs that all parties draw alike among the rows to train on."""
    X, _ = data()
    for kernel in ("gaussian", "laplacian"):
        settings = {"bandwidth": "median", "kernel": kernel, "features": 8}
        result, parts, grid = run(parties(), **settings)
        asked = [v["request.rows"] for a, _, v in grid.sent if a == "fdskl_angles"]
        rows = np.concatenate(asked[:: len(parts)])
        pairs = draw_pairs(len(rows), 1000, np.random.default_rng([1, 1000]))
        i, j = rows[pairs].astype(int)
        power = 2 if kernel == "gaussian" else 1
        expected = median_bandwidth((np.abs(X[i] - X[j]) ** power).sum(axis=1), kernel)
        assert result.metrics["bandwidth"] == pytest.approx(expected, rel=1e-12)
        assert {part["bandwidth"] for part in parts} == {result.model.bandwidth}
        asked = [to for action, to, _ in grid.sent if action == "fdskl_bandwidth"]
        assert asked == [2]


@pytest.mark.parametrize(
    ("settings", "n", "rows", "M"),
    [
        ({}, 10**6, 16000, 2000),  # 64 MB: eight rows a feature
        ({}, 20000, 16000, 2000),
        ({}, 8000, 8000, 2048),  # no more features than that
        ({}, 500, 500, 2048),
        ({"bits": 32}, 10**6, 11315, 1414),
        ({"masking": "plain"}, 10**6, 8000, 1000),
        ({"budget": 10**9}, 10**6, 244140, 2048),
        ({"budget": 2000}, 10**6, 90, 11),
        ({"rows": 1000}, 10**6, 1000, 2048),
        ({"rows": 10**5}, 10**6, 10**5, 320),
        ({"features": 100}, 10**6, 320000, 100),
        ({"features": 100}, 5000, 5000, 100),
        ({"features": 5000}, 10**6, 6400, 5000),
        ({"rows": 30, "features": 20}, 40, 30, 20),
    ],
)
def test_rows_and_features_within_the_budget(settings, n, rows, M):
    strategy = FDSKLDirect(**settings)
    chosen, actual = strategy._sample(np.arange(n), Run(0))
    assert (len(chosen), actual) == (rows, M)
    assert rows * M * strategy.angle_bits // 8 <= strategy.budget
    assert len(np.unique(chosen)) == rows
    assert (chosen < n).all()


def test_the_trade_names_the_size_and_the_bytes():
    text = FDSKLDirect(bits=16).trade(20_000)
    assert "64 MB: the angles of 16,000 rows with 2,000 features" in text
    # And a quarter of them for 4,000 rows that are held out.
    for fraction, rows in ((0.0, 16_000), (0.25, 21_334), (0.1, 40_000)):
        assert FDSKLDirect(bits=16, test_fraction=fraction).enough_rows == rows
    text = FDSKL().trade(9000)
    assert "9 MB: the angles of 9,000 rows, in 2 batches, with up to 1,500" in text


# -- costs -----------------------------------------------------------------------------


BEFORE = {"hello": 1, "fdskl_distances": 1, "fdskl_bandwidth": 1}
"""Round trips before any angle, with the median bandwidth."""


def trips(result):
    return {action: len(waits) for action, waits in result.ledger.waits.items()}


def test_direct_takes_eight_round_trips_at_the_default_budget():
    """Rows 16,000 x 2,000 features in 2 bytes are four blocks of 16 MB."""
    strategy = FDSKLDirect(bits=16)
    rows, M = strategy._sample(np.arange(10**6), Run(0))
    blocks = list(row_blocks(rows, M, 16, strategy.block_bytes))
    assert len(blocks) == 4
    assert max(map(len, blocks)) * M * 2 <= 16_000_000
    # The same in a thousandth of the budget, run:
    given = {"bandwidth": "median", "budget": 64_000, "block_bytes": 16_000}
    result, _, _ = run(parties(n=600), loss="square", **given)
    assert trips(result) == BEFORE | {"fdskl_angles": 4, "fdskl_fit": 1}
    assert result.ledger.round_trips == 8
    m, M = result.metrics["rows"], result.metrics["features"]
    assert (m, M) == (507, 63)
    for j in range(3):
        name = f"party {j}"
        entry = result.ledger.entry("fdskl_angles", name)
        assert (entry.units_up, entry.messages) == (m * M, 4)
        assert entry.units_down == m
        assert result.ledger.entry("fdskl_distances", name).units_up == 5000  # limbs
        down = result.ledger.entry("fdskl_fit", name).units_down
        assert down == (m * M + m if j == 2 else 0)
    assert result.ledger.entry("fdskl_bandwidth", "party 2").units_down == 5000


@pytest.mark.parametrize("holders", [[2], [0, 2]])
def test_costs_of_the_doubly_stochastic_form(holders):
    """T + 1 round trips, one more with several holders, whose scores are summed.

    Iteration t: block * (t + 1) block angles and, with several holders, block scores.
    """
    T, B = 6, 3
    settings = {"iterations": T, "block": B, "bandwidth": "median"}
    result, _, _ = doubly_stochastic(holders=holders, **settings)
    steps = {"fdskl_start": 1, "fdskl_iterate": T + len(holders)}
    assert trips(result) == BEFORE | steps
    angles = sum(B * (t + 1) * B for t in range(T))
    for j in range(3):
        up = result.ledger.entry("fdskl_iterate", f"party {j}").units_up
        assert up == angles + (T * B if len(holders) > 1 else 0)
        start = result.ledger.entry("fdskl_start", f"party {j}").units_up
        assert start == (T * B // len(holders) if j in holders else 0)


@pytest.mark.parametrize("angle_masking", ["circle", "paper"])
@pytest.mark.parametrize(
    ("topology", "count", "hops"), [("ring", 3, 2), ("tree", 5, 3), ("tree", 2, 1)]
)
def test_hops_of_a_ring_and_a_tree(angle_masking, topology, count, hops):
    settings = {"angle_masking": angle_masking, "topology": topology}
    size = 8 if angle_masking == "paper" else 2
    given = {"features": 4, "loss": "square", "regularization": 0.1}
    federation = parties(count=count)
    result, _, _ = run(federation, block_bytes=4 * size * 60, **given, **settings)
    assert trips(result) == {"hello": 1, "fdskl_angles": 2 * hops, "fdskl_fit": 1}
    settings |= {"holders": [0, count - 1], "count": count, "iterations": 2}
    result, _, _ = doubly_stochastic(**settings)
    # Not times the holders: their trees go at once.
    expected = {"hello": 1, "fdskl_start": 1, "fdskl_angles": 2 * hops}
    assert trips(result) == expected | {"fdskl_iterate": 2 + 1}


@pytest.mark.parametrize("topology", ["star", "ring"])
def test_evaluation_is_counted_apart(topology):
    settings = {"features": 16, "loss": "square", "test_fraction": 0.25}
    result, _, _ = run(parties(), topology=topology, block_bytes=512, **settings)
    blocks = 2  # of 30 rows of 32 bytes
    star = topology == "star"
    actual = trips(result)
    assert actual["fdskl_answer"] == blocks + star
    assert actual.get("fdskl_held_out_angles", 0) == (0 if star else 2 * blocks)
    trained = 1 + actual["fdskl_angles"] + actual["fdskl_fit"]
    evaluated = actual["fdskl_answer"] + actual.get("fdskl_held_out_angles", 0)
    assert result.evaluation.round_trips == evaluated
    assert result.ledger.round_trips == trained + evaluated


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *((name, 0, "above 0") for name in ("bandwidth", "regularization", "step")),
        ("step", "auto", "'implicit', 'explicit'"),
        *((name, 0, "at least 1") for name in ("budget", "block_bytes")),
        *((name, 1, "0 or at least 2") for name in ("rows", "n_parties")),
        *((name, -1, "at least 0") for name in ("rows", "iterations")),
        ("bits", 12, "8, 16, 32"),
        ("test_fraction", 1.0, "below 1"),
    ],
)
def test_settings_that_are_out_of_range(name, value, rule):
    with pytest.raises(ValueError, match=f"^{name} must be .*{rule}.*, got {value!r}$"):
        FDSKL(**{name: value})


PLAIN = {"masking": "plain"}
HALF = {"regularization": 0.5}
WEIGHTED = {"target": "continuous", "loss": "square", "class_weight": "balanced"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bandwidth": "auto"}, "bandwidth must be a number above 0 or 'median', got"),
        ({"target": "continuous"}, "loss must be 'square' for target 'continuous'"),
        (PAPER | {"topology": "star"}, "'paper', topology must be 'ring' or 'tree'"),
        (PLAIN | {"bits": 32}, "bits has no effect with masking 'plain'"),
        (PLAIN | PAPER, "angle_masking has no effect with masking 'plain'"),
        (PAPER | {"bits": 32}, "bits has no effect with angle_masking 'paper'"),
        (HALF | {"step": 3.0}, r"must be at most 1 .*, got 3\.0 and 0\.5"),
        (HALF | EXPLICIT, "regularization has no effect"),
        (WEIGHTED, "class_weight has no effect with target 'continuous'"),
    ],
)
def test_settings_that_do_not_fit_together(settings, message):
    strategy = FDSKLDirect if "target" in settings else FDSKL
    with pytest.raises(ValueError, match=message):
        strategy(**settings)


def test_a_block_holds_the_angles_of_an_iteration():
    """Blocks of 64 rows and 128 features of 16 bits are 16,384 bytes."""
    settings = published(2, 64, block_bytes=64 * 128 * 2)
    run(parties(), **settings)
    with pytest.raises(FederationError, match=r"64 rows of 128 .*, got 16383"):
        run(parties(), **settings | {"block_bytes": 64 * 128 * 2 - 1})


without_labels = partial(by_columns, data()[0], None, SPLITS[3])
one_row = partial(by_columns, np.ones((1, 6)), np.ones(1))
gaps = partial(parties, np.where(np.arange(N) < 2, np.nan, labels(data()[1])))
several = partial(parties, holders=[0, 2])
two = partial(parties, count=2)
WIDE, STEPS = {"features": 100}, DS | EXPLICIT
REFUSED = [
    (without_labels, {}, "a party must hold the labels, but none does"),
    (without_labels, DS, "a party must hold the labels, but none does"),
    (several, {}, "all 120 rows, .*0' with 60 labels, .*: FDSKL accepts several"),
    (several, DS | {"target": "multiclass"}, "single label holder, be.* got party 0"),
    (gaps, {}, "party with the labels of all 120 rows, got 'party 2' with 118 labels"),
    (two, {"allow_two_parties": False}, "use at least three parties"),
    (one_row, {}, "FDSKLDirect needs at least two rows, got one"),
    (parties, {"rows": 121}, "rows must be at most 120, .* training rows, got 121"),
    (parties, {"rows": 19, "features": 4}, "rows must be 0 or at least 20, got 19"),
    (parties, WIDE | {"budget": 399}, "4000 bytes, .* 20 rows with 100 .* got 399"),
    (parties, WIDE | {"rows": 50, "budget": 9999}, "50 rows .*, got 9999"),
    (parties, {"budget": 3}, "budget must be .* 40 bytes, .* of 20 rows with 1 f"),
    (parties, WIDE | {"block_bytes": 199}, "at least 200, .* 1 row of 100 .* got 199"),
    (parties, DS | WIDE | {"bits": 32, "block_bytes": 15999}, "80 rows of 50"),
    (parties, STEPS | {"block_bytes": 95}, "96, .* 3 rows .*, got 95"),
    (parties, DS | {"rows": 121}, "at most 120, .* training labels, got 121"),
    (parties, STEPS | {"iterations": 10**12}, r"iterations must .*, got 10{12}$"),
    (parties, STEPS | {"features": 31}, "and at most 31, .* of features, got 32"),
    (parties, STEPS | {"budget": 100}, "features .* 32, .* iterations, .*; budget"),
    (several, DS | {"iterations": 1, "rows": 4}, "least 2, .* with labels, .*, got 1"),
    (parties, DS | {"step": 121.0}, r"at most 120, .*\(Theorem 4\), got 121\.0"),
    (parties, {"test_fraction": 0.999}, r"least two rows to train on, got 0\.999 w"),
]


@pytest.mark.parametrize(("federation", "settings", "message"), REFUSED)
def test_what_the_server_refuses_after_the_greeting(federation, settings, message):
    """By default the bandwidth would be the first question."""
    grid = Sent(federation())
    given = {"allow_two_parties": True, "seed": 0, **settings}
    with pytest.raises(FederationError, match=message):
        given.pop("strategy", FDSKLDirect)(**given).start(grid)
    assert grid.actions == ["hello"]


def test_numbers_that_are_plus_and_minus_one_are_no_classes():
    """The unit of numbers to be predicted does not matter."""
    y = np.sign(data()[1])
    settings = {"target": "continuous", "loss": "square", "features": 32}
    one, two = (run(parties(unit * y), **settings)[0].metrics for unit in (1.0, 2.0))
    for name in ("cv_score", "regularization"):
        assert one[name] == pytest.approx(two[name], rel=1e-9)
    classes = run(parties(y), loss="square", features=32)[0].metrics
    assert classes["cv_score"] * N == pytest.approx(round(classes["cv_score"] * N))
    assert one["cv_score"] * N != pytest.approx(round(one["cv_score"] * N), abs=1e-3)


def test_labels_whose_scores_no_sum_can_hold():
    federation = parties(data()[1], holders=[0, 2])
    federation[2].y = federation[2].y * 1e300  # past the checks of a Party
    with pytest.raises(PartyFailed, match=r"labels must be .* 2\^800") as caught:
        run(federation, target="continuous", loss="square", **DS)
    assert (caught.value.party, caught.value.action) == ("party 2", "fdskl_start")


def test_the_party_whose_phase_stays_is_drawn():
    """Line 6 of Algorithm 3: any other than the holder."""
    greeted = Parties(Exchange(InProcessGrid(parties(count=5))))
    strategy = FDSKLDirect(angle_masking="paper", topology="ring")
    actual = [
        strategy._setup(greeted, Run(seed), 2, 1, 1.0).shared.kept for seed in range(40)
    ]
    # Each of four is missed with probability 4 (3/4)^40 < 1e-4; the seeds are fixed.
    assert set(np.ravel(actual).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("factor", [10.0, 100.0])
@pytest.mark.parametrize("strategy", [FDSKLDirect, FDSKL])
def test_scales_that_one_bandwidth_cannot_fit_are_warned_of(caplog, strategy, factor):
    """At the party that has them: it alone knows."""
    federation = parties()
    first = federation[0].X
    federation[0].X = np.column_stack([factor * first[:, 1], first[:, 1:]])
    strategy(seed=0, bandwidth=1.0).start(InProcessGrid(federation))
    told = re.findall(r"columns differ by a factor of (\S+),", caplog.text)
    assert list(map(float, told)) == pytest.approx([factor] if factor > 30 else [])


def test_what_a_party_or_who_knows_the_seed_learns_is_warned_of(caplog):
    run(parties(count=2), features=4, loss="square")
    assert caplog.text.count("with only two parties, each sum") == 1
    assert "'party 1' learns nearly all of the 2 columns" in caplog.text
    assert "laplacian" not in caplog.text
    caplog.clear()
    run(parties(), features=4, loss="square", kernel="laplacian")
    assert "the other parties' columns to the label holder one by one" in caplog.text
    assert "nearly all" not in caplog.text  # of three
    assert "whoever knows it knows all parties' features" in caplog.text  # the seed
    caplog.clear()
    run(parties(), seed=None, features=4, loss="square")
    assert not caplog.text


# -- replies that are not what they must be --------------------------------------------


def alter(monkeypatch, asked, party, change):
    """Let one party's replies to a step be changed before they are sent."""
    function = asked.function

    @wraps(function)
    def altered(own, *args, **values):
        reply = function(own, *args, **values)
        return {**reply, **change} if own.index == party else reply

    monkeypatch.setattr(asked, "function", altered)


@pytest.mark.parametrize(
    ("settings", "asked", "party", "change"),
    [
        (DS, fdskl.start, 2, {"rows": None}),
        (DS, fdskl.start, 2, {"rows": np.zeros(95, dtype=np.uint32)}),
        (DS, fdskl.start, 2, {"rows": np.full(96, 120, dtype=np.uint32)}),
        (DS, fdskl.start, 2, {"columns": 2}),
        (DS, fdskl.start, 2, {"scale": 1e300}),
        (DS, fdskl.iterate, 1, {"kept": 1}),
        ({}, fdskl.fit, 2, {"columns": 101}),
        ({}, fdskl.fit, 2, {"columns": 3}),
        ({}, fdskl.fit, 2, {"regularization": 0.0}),
        ({}, fdskl.fit, 2, {"multiple": 0}),
        ({}, fdskl.fit, 2, {"cv_score": math.nan}),
        ({}, fdskl_prediction.answer, 2, {"test_error": None}),
        ({}, fdskl_prediction.answer, 2, {"test_error": 1.5}),
        ({}, fdskl_prediction.answer, 1, {"test_rows": -1}),
        (MEDIAN, angle_sums.bandwidth, 2, {"bandwidth": 0.0}),
    ],
)
def test_a_reply_that_is_not_as_declared(monkeypatch, settings, asked, party, change):
    alter(monkeypatch, asked, party, change)
    given = {"features": 8, "loss": "square"}
    with pytest.raises(PartyFailed, match="its reply") as caught:
        run(parties(), test_fraction=0.2, **settings, **given)
    assert caught.value.party == f"party {party}"
    assert caught.value.action == asked.action


def test_errors_that_another_party_tells_are_not_reported(monkeypatch):
    alter(monkeypatch, fdskl_prediction.answer, 0, {"test_error": 1.0, "test_rows": 7})
    result, _, _ = run(parties(), features=8, loss="square", test_fraction=0.2)
    assert result.metrics["test_rows"] == 24
    assert result.metrics["test_error"] < 0.9


def test_without_a_seed_no_feature_comes_twice():
    seeds, coefs = set(), set()
    steps = {**DS, "iterations": 2}
    for settings in ({"features": 8}, {"features": 8}, steps, steps):
        _, parts, grid = run(parties(), seed=None, **settings)
        assert len({part["seed"] for part in parts}) == 3
        seeds |= {part["seed"] for part in parts}
        coefs.add(parts[2]["coef"].tobytes())
        sent = repr([values for _, _, values in grid.sent])
        assert not any(part["seed"] in sent for part in parts)
    assert (len(seeds), len(coefs)) == (12, 4)


def test_several_label_holders_need_predictions_before_any_step():
    federation = parties(holders=[0, 2])
    for party in federation:
        party.consent = Consent(leaves={"angles": Limit()}, peers=None)
    grid = Sent(federation)
    rule = "'predictions', but the consent is missing at 'party 0', "
    with pytest.raises(FederationError, match=rule):
        FDSKL("square", target="continuous").start(grid)
    assert grid.actions == ["hello"]
