"""Curves: means of bins of rows, beside the pooled ones, and attacks on the bins."""

import json
import logging

import numpy as np
import pytest
from deviating import RealParties
from faults import LyingGrid
from federations import MODEL, by_columns, hand_out
from sklearn.metrics import confusion_matrix

import vfl_flower as vf
from vfl_flower.app.plan.plan import RunPlan
from vfl_flower.app.plan.rehearsal import Shape
from vfl_flower.app.report.report import write_report
from vfl_flower.clients import evaluation as tellers
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.protocol.messages import pack
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.server import strategy as frame
from vfl_flower.server.parties import Parties
from vfl_flower.strategies import CoresetEvaluation, FDSKLEvaluation
from vfl_flower.strategies import evaluation as judged
from vfl_flower.testing import Recorder

N, HOLDER = 600, 2
NEEDED = ("moments", "angles", "predictions")
SOLVERS = {
    "ridge": {"relevance": False, "joint_features": 16},
    "direct": {"features": 16},
    "doubly-stochastic": {"features": 64, "bits": 16},
}


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    return X, X[:, 0] + np.sin(X[:, 3]) + 0.5 * X[:, 5] + 0.3 * rng.normal(size=n)


def parties(X, y, folder=None):
    return by_columns(X, y, folder=folder, ids=np.arange(len(X)))


def letting(federation, *kinds, curves=()):
    """Give all parties a consent to these kinds, and some of them one to curves."""
    for j, member in enumerate(federation):
        limits = {"curves": dict(curves)[j]} if j in dict(curves) else {}
        leaves = dict.fromkeys(kinds, Limit()) | limits
        member.consent = Consent(leaves=leaves, peers=None)
    return federation


def everyone(limit=None):
    return dict.fromkeys(range(3), limit or Limit())


def strategy(solver="ridge", target="continuous", **settings):
    fixed = {"target": target, "test_fraction": 0.4} | SOLVERS[solver] | settings
    if solver == "ridge":
        return vf.SecureRidge(**fixed)
    loss = "square" if target == "continuous" else "logistic"
    kind = vf.FDSKLDirect if solver == "direct" else vf.FDSKL
    return kind(loss, **fixed)


@pytest.fixture
def seen(monkeypatch):
    """Return what the label holder's numbers are of, once it has told some."""
    kept, measures_of = [], tellers.measures_of

    def spy(party, y, predicted, target, classes, *more, **named):
        kept.append((y, predicted, classes, *more))
        return measures_of(party, y, predicted, target, classes, *more, **named)

    monkeypatch.setattr(tellers, "measures_of", spy)
    return kept


def of_bins(values, scores, count, number=np.mean):
    """Return a number of each of so many bins of rows, in the order of scores."""
    return [number(values[rows]) for rows in np.array_split(np.argsort(scores), count)]


# -- beside the pooled computation -----------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_curves_of_numbers_held_out(solver, seen):
    """They are means over the rows held out, in the order of the predictions."""
    X, y = data()
    result = vf.simulate(strategy(solver), parties(X, y), seed=1)
    ((true, predicted, *_),) = seen
    curves, order = result.curves, (predicted, 12)  # of 240 rows
    assert curves["rows"] == [20] * 12
    np.testing.assert_allclose(curves["true"], of_bins(true, *order))
    np.testing.assert_allclose(curves["true_sd"], of_bins(true, *order, np.std))
    np.testing.assert_allclose(curves["predicted"], of_bins(predicted, *order))
    test = split_rows(N, 0.4, 1)[1]
    np.testing.assert_array_equal(np.sort(true), np.sort(y[test]))
    pooled = result.model.predict(np.array_split(X[test], 3, axis=1))
    # The run has angles of 16 bits.
    np.testing.assert_allclose(np.sort(predicted), np.sort(pooled), atol=0.01)


@pytest.mark.parametrize("solver", ["ridge", "direct"])
def test_curves_of_two_classes_held_out(solver, seen):
    X, y = data()
    result = vf.simulate(strategy(solver, "binary"), parties(X, 1.0 * (y > 0)), seed=1)
    ((true, _, _, scores, own, *_),) = seen
    probability = np.where(true == 1, own, 1 - own)
    assert result.curves["positives"] == of_bins(true, scores, 12, np.sum)
    np.testing.assert_allclose(result.curves["score"], of_bins(probability, scores, 12))
    assert set(result.curves) == {"rows", "positives", "score"}
    named = "test_true_positives", "test_false_negatives"
    assert sum(result.curves["positives"]) == sum(result.metrics[n] for n in named)


def test_a_model_without_probabilities_has_no_score():
    X, y = data()
    hinge = vf.FDSKLDirect("smooth_hinge", features=16, test_fraction=0.4)
    result = vf.simulate(hinge, parties(X, 1.0 * (y > 0)), seed=1)
    assert set(result.curves) == {"rows", "positives"}


@pytest.mark.parametrize("solver", ["ridge", "doubly-stochastic"])
def test_which_of_several_classes_are_taken_for_which(solver, seen):
    """Of labels 7, 3 and -2 that are named by their numbers; beside scikit-learn."""
    X, y = data(300)
    labels = np.array([-2.0, 3.0, 7.0])[np.digitize(y, [-0.8, 0.8])]
    several = strategy(solver, "multiclass")
    result = vf.simulate(several, parties(X, labels), seed=1)
    ((true, predicted, *_),) = seen
    assert set(result.curves) == {"confusion"}
    assert result.curves["confusion"] == confusion_matrix(true, predicted).tolist()
    wrong = 1 - np.trace(result.curves["confusion"]) / len(true)
    assert result.metrics["test_error"] == pytest.approx(wrong)
    refused = several.start(RealParties(letting(parties(X, labels), *NEEDED)))
    assert "test_error" in refused.metrics
    assert refused.curves == {}


@pytest.mark.parametrize("solver", ["ridge", "direct"])
def test_curves_of_new_rows_that_kernels_evaluate(solver, tmp_path, seen):
    """As of rows held out, in as many round trips as without."""
    training = strategy(solver, test_fraction=0.0)
    number = vf.simulate(training, parties(*data(200), tmp_path), seed=1).model.id
    seen.clear()
    new, labels = data(150, seed=5)
    labels[:30] = np.nan
    trips = []
    for curves in ({HOLDER: Limit()}, {0: Limit(), 1: Limit()}):
        asked = letting(parties(new, labels, tmp_path), *NEEDED, curves=curves)
        task = vf.RidgeEvaluation if solver == "ridge" else FDSKLEvaluation
        result = task(number).start(RealParties(asked))
        trips.append(result.ledger.round_trips)
        assert result.metrics["test_rows"] == 120
        assert not list(tmp_path.glob("*/predictions-*"))
        if HOLDER not in curves:
            assert result.curves == {}
            continue
        np.testing.assert_allclose(result.curves["true"], of_bins(*seen[0][:2], 6))
    assert trips[0] == trips[1]


def test_curves_of_new_rows_that_a_linear_model_predicts(tmp_path):
    linear = vf.CoresetVRLR(sampling="full")
    model = vf.simulate(linear, parties(*data(), tmp_path), seed=1).model
    new, labels = data(200, seed=5)
    grid = RealParties(parties(new, labels, tmp_path))
    result = CoresetEvaluation(model.id).start(grid)
    predicted = model.predict(np.array_split(new, 3, axis=1))
    assert result.curves["rows"] == [20] * 10
    for name, of_rows in (("predicted", predicted), ("true", labels)):
        means = of_bins(of_rows, predicted, 10)
        np.testing.assert_allclose(result.curves[name], means, rtol=1e-6)


# -- what it costs, and who is asked ---------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "target", "kind", "names"),
    [
        ("ridge", "binary", "moments", {"rows", "positives", "score"}),
        ("direct", "continuous", "angles", {"rows", "predicted", "true", "true_sd"}),
    ],
)
def test_curves_cost_no_round_trip_and_few_bytes(solver, target, kind, names):
    """One reply of the label holder has them, and no message is more."""
    X, y = data(300)
    y = y if target == "continuous" else 1.0 * (y > 0)
    sizes, trips = [], []
    for curves in ({HOLDER: Limit()}, {}):
        grid = Recorder(letting(parties(X, y), kind, curves=curves))
        result = strategy(solver, target).start(grid)
        trips.append({a: len(waits) for a, waits in result.ledger.waits.items()})
        replies = [e for e in grid.transcript if "test_rows" in e.values]
        assert [(e.up, e.party) for e in replies] == [(True, HOLDER)]
        sizes.append(replies[0].size)
        wanted = {f"curve_{name}" for name in names} if curves else set()
        for entry in grid.transcript:
            sent = {n for n in entry.values if n.startswith("curve_")}
            assert sent == (wanted if entry is replies[0] else set())
    assert trips[0] == trips[1]
    assert 0 < sizes[0] - sizes[1] < 1500


def test_curves_of_a_linear_model_stay_where_one_consent_lacks_them(tmp_path, caplog):
    few = {0: Limit(), 2: Limit()}
    federation = parties(*data(), tmp_path)
    letting(hand_out(federation, np.ones(6)), "moments", "predictions", curves=few)
    with caplog.at_level(logging.INFO, "vfl_flower"):
        result = CoresetEvaluation(MODEL).start(RealParties(federation))
    assert result.curves == {}
    assert "test_loss" in result.metrics
    said = "the run has no curves: the consent.toml of 'p1' would need 'curves = true'"
    assert said in caplog.text


@pytest.mark.parametrize("solver", ["ridge", "direct"])
def test_a_limit_leaves_the_curves_out_and_the_run_goes_on(solver, tmp_path, caplog):
    """That the limit of something that is not needed is used up fails no run."""
    had, twice = [], everyone(Limit(life=2))
    for _ in range(3):
        federation = parties(*data(300), tmp_path)
        letting(federation, "moments", "angles", curves=twice)
        result = strategy(solver).start(RealParties(federation))
        assert "test_loss" in result.metrics
        had.append(bool(result.curves))
    assert had == [True, True, False]
    assert "at most 2 disclosures of curves over the life" in caplog.text


@pytest.mark.parametrize(
    ("name", "lie", "reason"),
    [
        ("rows", np.full(12, 19), "at least 20"),
        ("rows", np.full(21, 20), "length 20 or less"),
        ("true", np.zeros(11), r"shape \(12\)"),
        ("true", np.full(12, np.nan), "finite"),
        ("score", np.full((12, 2), 0.5), "shape"),
    ],
)
def test_a_reply_with_other_bins_is_refused(name, lie, reason):
    def changed(_, values, frame):
        del frame["digest"]
        return pack(values | {f"curve_{name}": lie}, frame)

    grid = LyingGrid(parties(*data()), "fdskl_answer", HOLDER, changed, place=1)
    with pytest.raises(vf.PartyFailed, match=f"malformed: .*{reason}"):
        strategy("direct").start(grid)


# -- attacks ---------------------------------------------------------------------------


def evaluated(federation):
    return CoresetEvaluation(MODEL).start(RealParties(federation)).curves


def test_two_curves_that_differ_by_a_row_tell_its_label(tmp_path, monkeypatch):
    """From two runs whose rows held out the server chooses; a limit ends it, as above.

    The means of bins tell the sum over all rows.
    """
    X, y = data()
    sums = []
    for count in (120, 121):
        chosen = np.arange(count, N), np.arange(count)
        monkeypatch.setattr(judged, "split_rows", lambda *_, c=chosen: c)
        federation = letting(parties(X, y, tmp_path), "angles", curves=everyone())
        curves = strategy("direct", bandwidth=2.0).start(RealParties(federation)).curves
        sums.append(np.dot(curves["rows"], curves["true"]))
    assert sums[1] - sums[0] == pytest.approx(y[120], abs=1e-9)


class Shifted(Parties):
    """A server that adds to the sealed sums of predictions what it likes."""

    order: np.ndarray

    def ask_exactly(self, question, *args, **values):
        """Ask, and shift the sums."""
        replies = super().ask_exactly(question, *args, **values)
        for sealed in replies.sealed.values():
            bound, size = sealed.seals[0].bound, 1e4
            shift, _ = group("ring", bound, len(self)).encode(size * self.order)
            sealed.parts[0][...] += shift.reshape(sealed.parts[0].shape)
        return replies


@pytest.mark.parametrize("life", [None, 1])
def test_sums_that_a_server_shifts_choose_the_bins(life, tmp_path, monkeypatch):
    """Two curves then tell how two labels differ; a limit ends it."""
    X, y = data(100)
    monkeypatch.setattr(frame, "Parties", Shifted)
    means = []
    for swapped in ([3, 50], [50, 3]):
        Shifted.order = np.arange(100.0)
        Shifted.order[[3, 50]] = swapped
        federation, limits = parties(X, y, tmp_path), everyone(Limit(life=life))
        letting(federation, "predictions", "moments", curves=limits)
        told = evaluated(hand_out(federation, np.zeros(6)))
        means.append(np.array(told.get("true", ())))
    np.testing.assert_allclose(means[0], y.reshape(5, 20).mean(axis=1))
    if life is None:
        assert 20 * (means[0] - means[1])[0] == pytest.approx(y[3] - y[50], abs=1e-9)
    else:
        assert not len(means[1])


def test_a_sum_that_a_server_shifts_tells_the_label_of_its_row(tmp_path, monkeypatch):
    """The mean squared error is then of that row's residual; a limit counts it."""
    X, y = data(100)
    monkeypatch.setattr(frame, "Parties", Shifted)
    monkeypatch.setattr(Shifted, "order", np.eye(100)[7], raising=False)
    federation = letting(parties(X, y, tmp_path), "predictions")
    for member in federation:
        member.consent.leaves["moments"] = Limit(life=1)
    hand_out(federation, np.zeros(6))
    told = CoresetEvaluation(MODEL).start(RealParties(federation)).metrics
    shift = 1e4
    # (y - shift)^2 and the squares of the other rows, which are small beside it.
    found = (shift**2 - 100 * told["test_loss"]) / (2 * shift)
    assert found == pytest.approx(y[7], abs=0.02)
    with pytest.raises(vf.PartyFailed, match="moments"):
        evaluated(federation)


@pytest.mark.parametrize("consents", [True, False])
def test_a_model_of_one_column_tells_its_means(consents, tmp_path, monkeypatch):
    """Of any party, so all are asked, also where the server says that nobody minds."""
    X, y = data(200)
    curves = everyone() if consents else {0: Limit(), HOLDER: Limit()}
    federation = letting(parties(X, y, tmp_path), *NEEDED, curves=curves)
    hand_out(federation, np.eye(6)[3])
    monkeypatch.setattr(Parties, "let", lambda *_: True)
    if consents:
        means = np.sort(X[:, 3]).reshape(10, 20).mean(axis=1)
        np.testing.assert_allclose(evaluated(federation)["predicted"], means, atol=1e-6)
        return
    with pytest.raises(vf.PartyFailed, match="does not allow curves"):
        evaluated(federation)


@pytest.mark.parametrize("refused", [True, False])
def test_a_server_that_asks_the_label_holder_alone(refused, tmp_path, monkeypatch):
    """The others' columns are under masks that then do not cancel, or it refuses."""
    X, y = data(200)
    federation = letting(parties(X, y, tmp_path), *NEEDED, curves={HOLDER: Limit()})
    original = Parties._round_trip
    lies = ("answer",) if refused else ("answer", "addends")

    def deviate(self, step, requests, *rest):
        if step.action.endswith(lies):
            requests[HOLDER]["curves"] = True
        return original(self, step, requests, *rest)

    monkeypatch.setattr(Parties, "_round_trip", deviate)
    monkeypatch.setattr(Parties, "_clipped", lambda *_: 0)
    hand_out(federation, np.eye(6)[3])
    if refused:
        rule = "curves must be the same as in the req"
        with pytest.raises(vf.PartyFailed, match=rule):
            evaluated(federation)
    else:
        assert np.abs(evaluated(federation)["predicted"]).max() > 100 * np.abs(X).max()


def test_the_label_holder_is_not_asked_again_for_curves(tmp_path, monkeypatch):
    """First all without curves, then it alone with them: the sums are the first."""
    original = Parties.ask_exactly

    def twice(self, question, *args, **values):
        first = original(self, question, *args, **values | {"curves": False})
        self._ask(question.step, question.sums, values | {"curves": True})
        return first

    federation = letting(parties(*data(200), tmp_path), *NEEDED, curves=everyone())
    monkeypatch.setattr(Parties, "ask_exactly", twice)
    with pytest.raises(vf.PartyFailed, match="curves must be the same as in the req"):
        evaluated(hand_out(federation, np.eye(6)[3]))


def test_what_the_report_has_of_curves(tmp_path):
    X, y = data()
    results = {
        "a": vf.simulate(strategy("direct"), parties(X, y), seed=1),
        "b": vf.simulate(strategy("direct", test_fraction=0.0), parties(X, y), seed=1),
    }
    write_report(tmp_path, results, {})
    written = json.loads((tmp_path / "result.json").read_text())["results"]
    assert written["a"]["curves"] == results["a"].curves
    assert "curves" not in written["b"]


def test_a_plan_says_which_line_of_a_consent_a_run_can_do_without():
    said = [
        str(RunPlan(strategy(test_fraction=share), (Shape(N, 2),) * 3, []))
        for share in (0.4, 0.0)
    ]
    wanted = "If a consent also permits `curves` (means of labels and predictions"
    assert [wanted in text for text in said] == [True, False]
    assert all("must permit these kinds: `moments`" in text for text in said)
