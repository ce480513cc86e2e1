"""Rules about labels: what breaks them stays at the party that has the labels."""

import ast
import inspect
import logging
import textwrap

import numpy as np
import pytest
from deviating import RealParties
from federations import by_columns
from transcripts import our_steps

import vfl_flower as vf
from vfl_flower.clients.ridge.state import Joint
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.protocol.contract import ContractError, fields_of, structure
from vfl_flower.testing import Recorder

N = 400


class Grid(Recorder, RealParties):
    """Parties as on SuperNodes, and what the server sees of them."""


def columns():
    return np.random.default_rng(0).normal(size=(N, 6))


def parties(y, X=None):
    return by_columns(columns() if X is None else X, y, checked=True)


def view(strategy, y, X=None):
    """Return the actions, shapes and sizes of what the server gets, and the run."""
    grid = Grid(parties(y, X))
    result = strategy.replace(seed=1).start(grid)
    seen = [
        (e.action, e.party, {n: np.shape(v) for n, v in e.values.items()})
        for e in grid.transcript
        if e.up and e.action != "hello"
    ]
    sizes = [e.size for e in grid.transcript if e.up and e.action != "hello"]
    return (seen, np.array(sizes)), result


def numbers():
    return columns() @ np.arange(1.0, 7.0) + 1.0


def changed(rows, value):
    y = numbers()
    y[rows] = value
    return y


def signs(rows):
    return (np.arange(N) < rows).astype(float)


def rarely(value=1.0):
    """Return labels that differ from one value in 19 rows."""
    return np.where(np.arange(N) < 19, numbers(), value)


def bursts():
    """Return columns, and labels, that are large in the same rows."""
    rng = np.random.default_rng(0)
    scale = np.exp(1.5 * rng.normal(size=(N, 1)))
    return scale * rng.normal(size=(N, 30)), (scale * rng.normal(size=(N, 1)))[:, 0]


def thirds(rare):
    y = np.arange(N) % 2.0
    y[:rare] = -1.0
    return y


LINEAR = vf.CoresetVRLR(solver="gram", sampling="full", test_fraction=0.3)
THROUGH_ZERO = LINEAR.replace(fit_intercept=False)
KERNEL = vf.SecureRidge(target="continuous", joint_features=8, relevance=False)
RELEVANCE = KERNEL.replace(relevance=True)
CLASSES = KERNEL.replace(target="binary")
BALANCED = CLASSES.replace(class_weight="balanced")
THREE = CLASSES.replace(target="multiclass")

BROKEN = {
    "linear, an outlier": (LINEAR, numbers(), changed(4, 1e9)),
    "linear, few of a class": (LINEAR, numbers(), signs(3)),
    "linear, 19 other labels": (LINEAR, numbers(), signs(19)),
    "linear, too large": (LINEAR, numbers(), changed(4, 1e300)),
    "linear, no intercept": (THROUGH_ZERO, numbers(), changed(4, 1e9)),
    "kernel, few other labels": (KERNEL, numbers(), rarely()),
    "kernel, too large": (KERNEL, numbers(), changed(np.s_[:100], 1e300)),
    "kernel, relevance": (RELEVANCE, numbers(), rarely()),
    "kernel, few of a class": (CLASSES, np.arange(N) % 2.0, signs(19)),
    "kernel, a rare class": (THREE, thirds(100), thirds(19)),
    "kernel, the last class is rare": (THREE, thirds(100), -thirds(19)),
    "kernel, balanced": (BALANCED, np.arange(N) % 2.0, signs(19)),
}
USUAL = {}


def usual_view(strategy, y, X=None):
    """Return a view that several tests need, recorded once."""
    key = repr(strategy), X is None
    if key not in USUAL:
        USUAL[key] = view(strategy, y, X)
    return USUAL[key]


@pytest.mark.parametrize("classes", [["left", "stayed"], ["a", "b", "c"], None])
@pytest.mark.parametrize(
    "strategy",
    [
        vf.CoresetVRLR(),
        LINEAR,
        KERNEL,
        vf.FDSKLDirect("square", target="continuous", features=8),
        vf.FDSKL("square", target="continuous", features=8),
    ],
)
def test_a_regression_refuses_labels_that_are_categories(strategy, classes):
    """Those of two classes too, which would be 0 and 1."""
    given = parties(np.arange(N) % 2.0)
    given[2].encoding = {"classes": classes}
    with pytest.raises(vf.PartyFailed, match=r"'p2' .* labels must be numbers"):
        vf.simulate(strategy, given)


@pytest.mark.parametrize(("strategy", "good", "bad"), BROKEN.values(), ids=BROKEN)
def test_the_server_sees_the_same_messages_whether_or_not_labels_break_a_rule(
    caplog, strategy, good, bad
):
    """The same steps, names and sizes, and no refusal; the party's log says why."""
    (usual, sizes), result = usual_view(strategy, good)
    assert "party's labels are not used" not in caplog.text
    with caplog.at_level(logging.ERROR):
        (seen, other_sizes), constant = view(strategy, bad)
    assert seen == usual
    assert np.abs(other_sizes - sizes).max() <= 8  # a number in a few bytes more
    assert "this party's labels are not used, and the model will be" in caplog.text
    if isinstance(strategy, vf.CoresetVRLR):
        assert not np.concatenate(constant.model.coef_).any()
        assert np.concatenate(result.model.coef_).all()
    with pytest.raises(vf.PartyFailed, match=r"labels? must"):
        vf.simulate(strategy, parties(bad), seed=1)  # one process: the user may know


@pytest.mark.parametrize(
    ("y", "X", "text"),
    [
        (changed(4, 1e9), None, "of 400 labels are clipped"),
        (changed(4, 1e300), None, "of 400 labels are clipped"),
        (bursts()[1], bursts()[0], "local columns of this party are set to 0"),
    ],
    ids=["an outlier", "too large", "beside columns"],
)
def test_the_server_sees_the_same_messages_where_labels_are_clipped_or_columns_muted(
    caplog, y, X, text
):
    """And the same number of columns, of which some are zeros."""
    (usual, _), _ = usual_view(KERNEL, numbers(), X)
    caplog.clear()
    caplog.set_level(logging.INFO)
    (seen, _), result = view(KERNEL, y, X)
    assert seen == usual
    assert text in caplog.text
    assert "are not used" not in caplog.text
    assert result.metrics["cv_score"] > 0


@pytest.mark.parametrize("intercept", [True, False])
def test_the_constant_model_is_of_all_labels_whatever_rows_are_asked_for(intercept):
    """So that it tells of the rows only that their labels break a rule."""
    errors = []
    for test_fraction in (0.2, 0.4):
        strategy = LINEAR.replace(test_fraction=test_fraction, fit_intercept=intercept)
        y = signs(3)
        _, result = view(strategy, y)
        assert result.model.intercept_ == pytest.approx(y.mean() * intercept)
        error = np.square(y - y.mean() * intercept).mean()
        assert result.metrics["train_loss"] == pytest.approx(error)
        errors.append(result.metrics["train_loss"])
    assert errors[0] == errors[1]


def test_the_constant_model_of_a_kernel_is_of_all_labels():
    y = rarely()
    _, result = view(KERNEL, y)
    assert result.metrics["cv_score"] == pytest.approx(y.var())
    assert result.metrics["regularization"] == 1.0


@pytest.mark.parametrize("value", [1e120, 1e200, 1e300])
def test_columns_that_overflow_are_left_out_and_nothing_is_refused(value):
    """The server chooses the rows, so it would find where a party has them."""
    X = columns()
    X[::2, 0] = value
    (usual, _), _ = usual_view(LINEAR, numbers())
    (seen, _), result = view(LINEAR, numbers(), X)
    assert seen == usual
    assert result.metrics["left_out"] == 1
    assert result.model.coef_[0][0] == 0


@pytest.mark.parametrize("bandwidth", [5e-324, 1e-51, 1e51])
def test_a_bandwidth_with_which_an_angle_may_overflow_is_malformed(bandwidth):
    """Whatever the columns are."""
    joint = {"bandwidths": [bandwidth], "counts": [4], "densities": [1.0], "bits": 16}
    joint["relevant"] = False
    with pytest.raises(ContractError, match="bandwidths"):
        structure(fields_of(Joint), joint, {})


# -- kinds -----------------------------------------------------------------------------


def test_a_training_counts_its_columns_and_one_more():
    """Without end, the counts of local columns would tell these columns."""

    def asked(limit):
        federation = parties(np.arange(N) % 2.0)
        for party in federation:
            leaves = {"moments": limit}
            party.consent = Consent(allow_seed=True, leaves=leaves, peers=None)
        return CLASSES.replace(seed=1).start(RealParties(federation))

    local = 72  # columns of the data
    counted = local + 2 + 8 + 1
    assert asked(Limit(run=counted)).metrics["local_columns"] == local
    with pytest.raises(vf.PartyFailed, match="disclosures of moments in a"):
        asked(Limit(run=counted - 1))


def reads_labels(function, seen):
    """Return whether a function, or one of clients/ that it names, reads labels."""
    if function in seen:
        return False
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    nodes, known = list(ast.walk(tree)), function.__globals__
    local = {node.arg for node in nodes if isinstance(node, ast.arg)}
    local |= {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    presence = {  # `party.y is None` says who holds labels, as the greeting does
        node.left
        for node in nodes
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
    }
    for node in nodes:
        named = None
        if isinstance(node, ast.Name) and node.id not in local:
            named = known.get(node.id)
        elif isinstance(node, ast.Attribute):
            if node.attr in ("y", "n_labels") and node not in presence:
                return True
            module = known.get(getattr(node.value, "id", ""))
            if inspect.ismodule(module):
                named = getattr(module, node.attr, None)
        named = getattr(named, "function", named)  # of a step
        if (
            inspect.isfunction(named)
            and named.__module__.startswith("vfl_flower.clients")
            and reads_labels(named, seen)
        ):
            return True
    return False


WITHOUT_A_KIND = {
    "ridge_fit": "follows multiply; numbers of the model that are declared",
    "ridge_scores": "follows rows; errors of the model that are declared",
}
"""Steps that read labels and ask for no kind, and why."""


def test_each_step_that_reads_labels_asks_for_a_kind():
    steps = {
        action
        for action, step in our_steps().items()
        if step.function.__module__.startswith("vfl_flower.clients")
        and all(r.optional for r in step.reveals)
        and reads_labels(step.function, set())
    }
    assert steps == set(WITHOUT_A_KIND)
