"""What a model is worth, beside scikit-learn and worked examples."""

import math

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve

from vfl_flower.numerics import evaluation
from vfl_flower.numerics.kernel_model import probabilities

RNG = np.random.default_rng(7)
N = 400
POSITIVE = RNG.random(N) < 0.3
SCORES = np.round(RNG.normal(size=N) + POSITIVE, 1)  # with ties
PROBABILITY = 1 / (1 + np.exp(-SCORES))


def test_two_classes_beside_scikit_learn():
    predicted = SCORES > 0
    told = evaluation.two_classes(POSITIVE, predicted, SCORES, PROBABILITY)
    assert told["auc"] == pytest.approx(metrics.roc_auc_score(POSITIVE, SCORES))
    brier = metrics.brier_score_loss(POSITIVE, PROBABILITY)
    assert told["brier"] == pytest.approx(brier)
    names = "true_negatives", "false_positives", "false_negatives", "true_positives"
    table = metrics.confusion_matrix(POSITIVE, predicted)
    assert [told[name] for name in names] == table.ravel().tolist()
    error = evaluation.wrong(POSITIVE, predicted)["error"]
    assert error == pytest.approx(metrics.zero_one_loss(POSITIVE, predicted))


def test_log_losses_beside_scikit_learn():
    own = np.where(POSITIVE, PROBABILITY, 1 - PROBABILITY)
    expected = metrics.log_loss(POSITIVE, PROBABILITY)
    assert evaluation.log_loss(own)["log_loss"] == pytest.approx(expected)
    assert math.isfinite(evaluation.log_loss(np.zeros(2))["log_loss"])


def test_regression_beside_scikit_learn():
    y = RNG.normal(3, 2, size=N)
    predicted = y + RNG.normal(size=N)
    told = evaluation.regression(y, predicted)
    assert told["loss"] == pytest.approx(metrics.mean_squared_error(y, predicted))
    assert told["mae"] == pytest.approx(metrics.mean_absolute_error(y, predicted))
    assert told["r2"] == pytest.approx(metrics.r2_score(y, predicted))
    squares = (y - predicted) ** 2
    assert told["loss_se"] == pytest.approx(squares.std(ddof=1) / math.sqrt(N))


def test_probabilities_of_one_against_the_rest_beside_scikit_learn():
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    X, y = RNG.normal(size=(60, 2)), np.arange(60) % 3
    model = OneVsRestClassifier(LogisticRegression()).fit(X, y)
    scores = model.decision_function(X)
    np.testing.assert_allclose(probabilities(scores), model.predict_proba(X))
    two = probabilities(np.array([[-800.0], [0.0]]))
    np.testing.assert_array_equal(two, [[1.0, 0.0], [0.5, 0.5]])


def test_the_area_by_hand():
    """Of the pairs (3, 1), (3, 2), (2, 1), (2, 2) three are right and one is a tie.

    The positive rows are above 1 and 3/4 of the negative ones, the negative rows below
    1 and 3/4 of the positive ones: each variance is 1/32, and of its mean 1/64.
    """
    scores = np.array([3.0, 2.0, 1.0, 2.0])
    positive = np.array([True, True, False, False])
    area, error = evaluation.area_under_curve(scores, positive)
    assert area == 7 / 8
    assert error == pytest.approx(math.sqrt(2 / 64))


def test_the_standard_error_of_the_area_is_that_of_repeated_draws():
    """300 draws with 60 rows each: the spread is known to 4 %, to 5 sd 20 %."""
    rng = np.random.default_rng(3)
    positive = np.arange(60) < 20
    draws = (rng.normal(size=60) + positive for _ in range(300))
    pairs = [evaluation.area_under_curve(scores, positive) for scores in draws]
    areas, errors = zip(*pairs, strict=True)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.2)


def test_large_numbers_are_infinite_and_explain_nothing():
    with np.errstate(over="ignore"):
        told = evaluation.regression(np.zeros(3), np.array([1e200, 0.0, 0.0]))
    assert told["loss"] == math.inf
    assert told["mae"] == pytest.approx(1e200 / 3)
    assert told["r2"] == 0.0
    fine = evaluation.regression(np.array([0.0, 1.0]), np.array([1e100, 1e100]))
    assert fine["loss_se"] == 0.0


NONE_RIGHT = {"test_true_positives": 0, "test_false_positives": 0}
NONE_RIGHT["test_false_negatives"] = 70


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"test_error": 0.1, "test_base_error": 0.2}, []),
        ({"test_error": 0.2, "test_base_error": 0.2}, ["base rate"]),
        ({"test_error": 0.2}, []),
        ({"test_r2": 0.01}, []),
        ({"explained": 0.3, "smallest_cluster": 4}, []),
        ({"explained": -0.3, "smallest_cluster": 0}, ["than a single", "no rows"]),
        ({"test_r2": -0.5}, ["mean of the labels"]),
        (
            {"test_error": 0.07, "test_base_error": 0.07, **NONE_RIGHT},
            ["base rate", "but 70 of them belong"],
        ),
        (NONE_RIGHT | {"test_false_positives": 3}, []),
    ],
)
def test_what_is_no_better_than_a_constant(metrics, words):
    told = evaluation.shortfalls(metrics)
    assert len(told) == len(words)
    for sentence, word in zip(told, words, strict=True):
        assert word in sentence


def test_a_choice_at_its_bound():
    assert evaluation.most_chosen({"clusters": 5}, 6) == []
    assert evaluation.most_chosen({}, 6) == []
    (told,) = evaluation.most_chosen({"clusters": 6}, 6)
    assert told.startswith("6 clusters were chosen, the maximum (n_clusters)")


# -- curves ----------------------------------------------------------------------------


def _untied(n):
    rng = np.random.default_rng(3)
    probability = rng.permutation(np.linspace(0.01, 0.99, n))
    return rng.random(n) < probability, np.log(probability), probability


@pytest.mark.parametrize(("n", "bins"), [(100, 5), (399, 19), (400, 20), (10_007, 20)])
def test_bins_have_nearly_equal_counts(n, bins):
    told = evaluation.two_class_curve(*_untied(n), 20)
    assert len(told["rows"]) == bins
    assert told["rows"].sum() == n
    assert 20 <= told["rows"].min() >= told["rows"].max() - 1


def test_a_curve_of_two_classes_beside_scikit_learn():
    """Calibration as by quantiles; the cumulated counts are points of the ROC curve."""
    positive, scores, probability = _untied(1000)
    told = evaluation.two_class_curve(positive, scores, probability, 20)
    bins = {"n_bins": 20, "strategy": "quantile"}
    true, predicted = calibration_curve(positive, probability, **bins)
    np.testing.assert_allclose(told["score"], predicted)
    np.testing.assert_allclose(told["positives"] / told["rows"], true)
    every = {"drop_intermediate": False}
    fpr, tpr, thresholds = metrics.roc_curve(positive, probability, **every)
    cut = np.sort(probability)[np.cumsum(told["rows"])[:-1]]  # first row above a bin
    at = np.isin(thresholds, cut)
    assert at.sum() == 19
    above = np.cumsum(told["positives"][::-1]), np.cumsum(told["rows"][::-1])
    np.testing.assert_allclose(above[0][:-1] / positive.sum(), tpr[at])
    negative = (above[1] - above[0])[:-1] / (~positive).sum()
    np.testing.assert_allclose(negative, fpr[at])


def test_a_curve_of_numbers_beside_numpy():
    rng = np.random.default_rng(4)
    predicted = rng.normal(size=600)
    y = predicted + rng.normal(size=600)
    told = evaluation.regression_curve(y, predicted, 20)
    bins = np.array_split(np.argsort(predicted), 20)
    np.testing.assert_allclose(told["rows"], [30] * 20)
    np.testing.assert_allclose(told["predicted"], [predicted[b].mean() for b in bins])
    np.testing.assert_allclose(told["true"], [y[b].mean() for b in bins])
    np.testing.assert_allclose(told["true_sd"], [y[b].std() for b in bins])


@pytest.mark.parametrize("noise", [0.0, 1e-14])
def test_equal_predictions_are_in_one_bin(noise):
    """Whatever the order of the rows, and whatever rounding has left between them."""
    rng = np.random.default_rng(5)
    predicted = rng.integers(5, size=500) + 3.0
    y = rng.normal(size=500)
    told = evaluation.regression_curve(y, predicted + noise * rng.normal(size=500), 20)
    np.testing.assert_allclose(told["predicted"], [3, 4, 5, 6, 7])
    np.testing.assert_allclose(told["rows"], np.bincount(predicted.astype(int) - 3))
    order = rng.permutation(500)
    again = evaluation.regression_curve(y[order], predicted[order], 20)
    for name, of_bins in again.items():
        np.testing.assert_allclose(of_bins, told[name], rtol=1e-9)


def test_a_bin_between_many_equal_predictions_has_rows_enough():
    """Two large groups, and 19 rows between them, which join one of them."""
    predicted = np.repeat([0.0, 1.0, 2.0], [60, 19, 60])
    told = evaluation.regression_curve(np.arange(139.0), predicted, 20)
    assert sorted(told["rows"].tolist()) == [60, 79]


@pytest.mark.parametrize(
    "predicted", [np.linspace(0, 1, 99), np.zeros(500), np.arange(500) == 7]
)
def test_no_curve_of_few_rows_or_of_equal_predictions(predicted):
    y = np.arange(float(len(predicted)))
    assert evaluation.regression_curve(y, predicted * 1.0, 20) == {}
    assert evaluation.two_class_curve(y > 50, predicted * 1.0, None, 20) == {}


def _table(y, predicted, count=3):
    labels, answers = np.asarray(y, float), np.asarray(predicted, float)
    return evaluation.confusion(labels, answers, np.arange(float(count)), 20)


def test_a_table_of_classes_beside_scikit_learn():
    y, predicted = np.random.default_rng(0).integers(0, 4, (2, 400))
    table = _table(y, predicted, 4)["confusion"]
    np.testing.assert_array_equal(table, metrics.confusion_matrix(y, predicted))


def test_a_table_has_no_class_of_few_rows():
    """Neither is a class of few rows, nor are few taken for it; but none may be."""
    y = np.repeat([0, 1, 2], [60, 40, 20])
    named = np.repeat([0, 2], [80, 40])
    table = [[60, 0, 0], [20, 0, 20], [0, 0, 20]]
    assert _table(y, named)["confusion"].tolist() == table
    assert _table(y, y) != {}
    assert _table(np.repeat([0, 1, 2], [60, 41, 19]), named) == {}
    assert _table(y, np.repeat([0, 1, 2], [60, 41, 19])) == {}


def test_no_table_of_few_rows_other_labels_two_classes_or_many():
    y = np.repeat([0, 1, 2], 34)
    assert _table(y[:-2], y[:-2]) != {}
    assert _table(y[1:-2], y[1:-2]) == {}
    assert _table(np.append(y, 3), np.append(y, 2)) == {}
    assert _table(y % 2, y % 2, 2) == {}
    y = np.repeat(np.arange(21), 20)
    assert _table(y, y, 21) == {}
    assert len(_table(y[:400], y[:400], 20)["confusion"]) == 20


def test_curves_of_large_numbers_do_not_overflow():
    y = np.linspace(1, 1.7, 200) * 1e308
    told = evaluation.regression_curve(y, y, 20)
    assert all(np.isfinite(of_bins).all() for of_bins in told.values())
    assert told["true"][0] == pytest.approx(y[9], rel=0.01)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([5.0], (5, 0)), ([0.0, 0.0], (0, 0)), ([1e200, 3e200], (2e200, 1e200))],
)
def test_a_mean_and_its_standard_error_by_hand(losses, expected):
    """Of two losses at 1 from their mean: the deviation 2^(1/2) over 2^(1/2)."""
    assert evaluation.mean_and_error(np.array(losses)) == pytest.approx(expected)
