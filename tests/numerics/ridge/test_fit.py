"""Ridge regression from one Gram matrix."""

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from vfl_flower.numerics.ridge import fit as ridge_fit
from vfl_flower.numerics.ridge.fit import fit_gram, probabilities

SIZES = [3, 6]
"""Of signal and of noise."""


def gram_of(F, Y):
    table = np.column_stack([F, Y, np.ones(len(F))])
    return table.T @ table


def table(classes=0, n=400, seed=0):
    rng = np.random.default_rng(seed)
    F = rng.standard_normal((n, 9)) + 2
    f = F[:, :3] @ [1.0, -2.0, 0.5] + 3
    Y = (f + rng.standard_normal(n))[:, None]
    if classes == 2:
        Y = np.where(np.quantile(Y, 0.7) < Y, 1.0, -1.0)
    elif classes:
        edges = np.quantile(Y, [0.5, 0.8])
        Y = 2.0 * (np.searchsorted(edges, Y) == np.arange(classes)) - 1
    return F, Y


def ridge(F, Y, penalties):
    """Return scikit-learn's fit, whose penalty is the same for all columns."""
    model = Ridge(alpha=len(F)).fit(F / np.sqrt(penalties), Y)
    return np.atleast_2d(model.coef_).T / np.sqrt(penalties)[:, None], model.intercept_


def penalties_of(fit, sizes=SIZES):
    return np.repeat(fit.penalties, sizes)


def scores_of(fit, F):
    return F @ fit.weights + fit.intercept


def probabilities_of(fit, scores):
    return probabilities(scores, fit.slope, fit.offset, fit.tail)


def scores_without(F, Y, penalties):
    """Return the scores of generalised cross-validation, from the rows."""
    W, a = ridge(F, Y, penalties)
    Z = F - F.mean(axis=0)
    hat = Z @ np.linalg.solve(Z.T @ Z + len(F) * np.diag(penalties), Z.T)
    return Y - (Y - F @ W - a) / (1 - (1 + np.trace(hat)) / len(F))


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_weights_and_error_are_those_of_ridge_regression_on_rows(classes):
    F, Y = table(classes)
    fit = fit_gram(gram_of(F, Y), SIZES, "classes" if classes else "continuous")
    penalties = penalties_of(fit)
    W, a = ridge(F, Y, penalties)
    np.testing.assert_allclose(fit.weights, W, atol=1e-9)
    np.testing.assert_allclose(fit.intercept, a, atol=1e-9)
    np.testing.assert_allclose(scores_of(fit, F), F @ W + a, atol=1e-9)
    errors = ((scores_without(F, Y, penalties) - Y) ** 2).mean(axis=0)
    np.testing.assert_allclose(fit.error, errors)
    np.testing.assert_allclose(fit.variance, Y.var(axis=0))


def test_three_rows_by_hand():
    """Rows x = -1, 0, 1 with y = 2 x: S = 2, C = 4, T = 8, and n = 3.

    The floor is 10 noise mean(x^2) = 1 / 3 for noise = 1 / 20, and the evidence prefers
    the smallest penalty, so W = 4 / (2 + 1) = 4 / 3 and the residuals are 2 x / 3. Of
    the degrees of freedom, 1 + 2 / 3, there are left 1 - 5 / 9, so the error is
    (2 / 3)^2 (2 / 3) / (4 / 9)^2 = 3 / 2.
    """
    x = np.array([-1.0, 0.0, 1.0])
    fit = fit_gram(gram_of(x[:, None], 2 * x), [1], "continuous", noise=1 / 20)
    assert fit.penalties == pytest.approx([1 / 3])
    assert fit.weights == pytest.approx(np.array([[4 / 3]]))
    assert fit.intercept == pytest.approx(0, abs=1e-12)
    assert fit.error == pytest.approx(3 / 2)
    assert fit.variance == pytest.approx(8 / 3)


def evidence_of(F, Y):
    sums = ridge_fit._about_means(gram_of(F, Y), 9)
    return ridge_fit._Evidence(sums, np.repeat([0, 1], SIZES), np.zeros(2))


def test_the_evidence_is_the_density_of_the_targets():
    """Up to a constant, with the variance of the residuals that makes it largest."""
    F, Y = table(n=40)
    evidence = evidence_of(F, Y)
    n, Z, y = len(F), F - F.mean(axis=0), Y[:, 0] - Y.mean()
    # An orthonormal basis of what is left about the mean.
    basis = np.linalg.svd(np.eye(n) - 1 / n)[0][:, : n - 1]
    differences = []
    for logs in ([-3.0, 1.0], [0.5, -2.0], [-1.0, -1.0]):
        d = np.repeat(np.exp(logs) * evidence.units, [3, 6])
        K = basis.T @ (np.eye(n) + Z / (n * d) @ Z.T) @ basis
        t = basis.T @ y
        variance = t @ np.linalg.solve(K, t) / (n - 1)
        density = multivariate_normal(cov=variance * K).logpdf(t)
        differences.append(evidence(np.array(logs))[0] + density)
    np.testing.assert_allclose(differences, differences[0])


@pytest.mark.parametrize("classes", [0, 3])
def test_the_gradient_is_that_of_the_evidence(classes):
    evidence = evidence_of(*table(classes, n=60))
    for logs in ([-3.0, 1.0], [0.5, -5.0]):
        off = check_grad(lambda x: evidence(x)[0], lambda x: evidence(x)[1], logs)
        assert off < 1e-4


def test_no_penalties_of_a_grid_have_more_evidence_than_those_chosen():
    F, Y = table()
    fit = fit_gram(gram_of(F, Y), SIZES, "continuous")
    assert fit.penalties[1] > 10 * fit.penalties[0]
    evidence = evidence_of(F, Y)
    chosen = evidence(np.log(fit.penalties / evidence.units))[0]
    for signal in np.arange(-6.0, 3.0):
        for noise in np.arange(-6.0, 3.0):
            other = evidence(np.log(10.0) * np.array([signal, noise]))[0]
            assert chosen <= other + 1e-3


@pytest.mark.parametrize("thin", [4, 6])
def test_a_search_that_begins_with_few_features_ends_where_all_do(thin, monkeypatch):
    F, Y = table()
    full = fit_gram(gram_of(F, Y), SIZES, "continuous")
    monkeypatch.setattr(ridge_fit, "THIN", thin)
    monkeypatch.setattr(ridge_fit, "POLISH", 0)
    fit = fit_gram(gram_of(F, Y), SIZES, "continuous")
    assert fit.error[0] == pytest.approx(full.error[0], rel=0.03)
    assert fit.error[0] != full.error[0]
    assert fit.penalties[1] > 10 * fit.penalties[0]


@pytest.mark.parametrize("classes", [2, 3])
def test_weighted_probabilities_are_those_of_discriminant_analysis(classes):
    F, Y = table(classes)
    fit = fit_gram(gram_of(F, Y), SIZES, "classes", class_weights=np.ones(classes))
    scores = scores_without(F, Y, penalties_of(fit))
    labels = (Y[:, 0] > 0) * 1 if classes == 2 else Y.argmax(axis=1)
    # One of K scores follows from the others.
    kept = scores[:, : max(1, classes - 1)]
    model = LinearDiscriminantAnalysis(solver="lsqr").fit(kept, labels)
    expected = model.predict_proba(kept)[:, 1 if classes == 2 else 0 :]
    found = probabilities_of(fit, scores)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    if classes > 2:
        np.testing.assert_allclose(found.sum(axis=1), 1)


def test_probabilities_are_the_best_line_and_stay_positive():
    F, Y = table(2)
    fit = fit_gram(gram_of(F, Y), SIZES, "classes")
    scores = scores_without(F, Y, penalties_of(fit))
    slope, offset = np.polyfit(scores[:, 0], (1 + Y[:, 0]) / 2, 1)
    line = slope * scores + offset
    np.testing.assert_allclose(line, scores @ fit.slope + fit.offset)
    linear = ((fit.tail < line) & (line < 1 - fit.tail)).all(axis=1)
    found = probabilities_of(fit, scores)
    np.testing.assert_allclose(found[linear], line[linear])
    order = np.argsort(scores, axis=0)[:, 0]
    assert (np.diff(found[order], axis=0) > 0).all()
    assert 0 < found.min() < found.max() < 1


@pytest.mark.parametrize("classes", [2, 3])
def test_rare_classes_get_probabilities_that_hold(classes):
    """Log odds of one covariance claim 0.98 where 0.72 are of the class."""
    rng = np.random.default_rng(0)
    F = rng.standard_normal((8000, 3))
    logits = np.column_stack([np.zeros(8000), 2 * F[:, 0] - 3, 2 * F[:, 1] - 3])
    logits = logits[:, :classes] + rng.gumbel(size=(8000, classes))
    Y = 2.0 * (logits.argmax(axis=1)[:, None] == np.arange(classes)) - 1
    Y = Y[:, 1:] if classes == 2 else Y
    Z = np.hstack([F, np.maximum(F, 0), np.maximum(F - 1, 0), np.maximum(F - 2, 0)])
    fit = fit_gram(gram_of(Z, Y), [12], "classes")
    found = probabilities_of(fit, scores_of(fit, Z))[:, -1]
    for low in np.arange(0, 1, 0.2):
        rows = (low <= found) & (found < low + 0.2)
        if rows.sum() >= 50:
            share = (Y[rows, -1] > 0).mean()
            assert found[rows].mean() == pytest.approx(share, abs=0.12)


@pytest.mark.parametrize("classes", [2, 3])
def test_class_weights_are_prior_odds(classes):
    F, Y = table(classes)
    gram, counts = gram_of(F, Y), np.arange(1.0, classes + 1)
    plain = fit_gram(gram, SIZES, "classes", class_weights=np.ones(classes))
    fit = fit_gram(gram, SIZES, "classes", class_weights=counts)
    np.testing.assert_array_equal(fit.weights, plain.weights)
    before = probabilities_of(plain, scores_of(plain, F))
    if classes == 2:
        before = np.hstack([1 - before, before])
    after = before * counts
    after /= after.sum(axis=1, keepdims=True)
    after = after[:, 1:] if classes == 2 else after
    actual = probabilities_of(fit, scores_of(fit, F))
    np.testing.assert_allclose(actual, after, atol=1e-12)


def test_dependent_and_empty_columns_with_errors_of_the_sums_change_little():
    """The errors are as large as `noise` says, and G is not positive definite."""
    F, Y = table()
    F = np.hstack([F, F[:, :3], np.zeros((len(F), 2)), np.ones((len(F), 1))])
    blocks = [*SIZES, 3, 3]  # signal, noise, signal again, nothing
    clean, rng = gram_of(F, Y), np.random.default_rng(1)
    sizes = np.sqrt(np.diag(clean))
    error = rng.uniform(-1e-6, 1e-6, clean.shape) * np.outer(sizes, sizes)
    error[-1, -1] = 0
    fits = [fit_gram(gram, blocks, "continuous") for gram in (clean, clean + error)]
    pooled = Ridge(alpha=1e-9).fit(F[:, :3], Y).predict(F[:, :3]).reshape(-1, 1)
    for fit in fits:
        assert np.std(scores_of(fit, F) - pooled) < 0.1
    assert np.std(scores_of(fits[0], F) - scores_of(fits[1], F)) < 2e-3 * Y.std()


def test_targets_that_features_explain_wholly_are_learned():
    F, _ = table()
    fit = fit_gram(gram_of(F, F[:, :3] @ [1.0, -2.0, 0.5]), SIZES, "continuous")
    assert fit.error[0] < 1e-6 * fit.variance[0]


def test_features_without_signal_are_left_out():
    """In each of twenty draws; with four rows a column, as the fewest are."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        F, y = rng.standard_normal((40, 9)), rng.standard_normal(40)
        fit = fit_gram(gram_of(F, y), SIZES, "continuous")
        assert fit.error[0] < 1.2 * fit.variance[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gram": 9 - 1000 * np.eye(11)[::-1]}, "no penalty yields a fit"),
        ({"kind": "classes"}, "targets must be -1 and .1"),
    ],
)
def test_sums_of_no_rows_are_refused(change, message):
    given = {"gram": gram_of(*table()), "kind": "continuous"} | change
    with pytest.raises(ValueError, match=message):
        fit_gram(given["gram"], SIZES, given["kind"])
