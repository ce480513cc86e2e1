"""Ridge regression from Gram matrices of two halves."""

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from vfl_flower.numerics import gram_fit
from vfl_flower.numerics.gram_fit import Block, fit_grams

BLOCKS = [Block("signal", 0, 3), Block("noise", 3, 9)]


def grams(F, Y, half):
    """Return the Gram matrices that the label holder opens."""
    table = np.column_stack([F, Y, np.ones(len(F))])
    return [table[half == k].T @ table[half == k] for k in (0, 1)]


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
    return F, Y, rng.permutation(n) % 2


def ridge(F, Y, penalties):
    """Return scikit-learn's fit, whose penalty is the same for all columns."""
    model = Ridge(alpha=len(F)).fit(F / np.sqrt(penalties), Y)
    return np.atleast_2d(model.coef_).T / np.sqrt(penalties)[:, None], model.intercept_


def penalties_of(fit, blocks=BLOCKS):
    sizes = [block.stop - block.start for block in blocks]
    return np.repeat(fit.alpha / fit.block_weights**2, sizes)


def cross_scores(F, Y, half, penalties):
    """Return scores of each row, by the fit on the other half."""
    scores = np.empty(Y.shape)
    for k in (0, 1):
        W, a = ridge(F[half == k], Y[half == k], penalties)
        scores[half != k] = F[half != k] @ W + a
    return scores


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_weights_and_error_are_those_of_ridge_regression_on_rows(classes):
    F, Y, half = table(classes)
    fit = fit_grams(grams(F, Y, half), BLOCKS, "classes" if classes else "continuous")
    penalties = penalties_of(fit)
    W, a = ridge(F, Y, penalties)
    np.testing.assert_allclose(fit.weights, W, atol=1e-9)
    np.testing.assert_allclose(fit.intercept, a, atol=1e-9)
    np.testing.assert_allclose(fit.scores(F), F @ W + a, atol=1e-9)
    scores = cross_scores(F, Y, half, penalties)
    each = [((scores - Y)[half == k] ** 2).mean(axis=0) for k in (0, 1)]
    np.testing.assert_allclose(fit.error, np.mean(each, axis=0))
    se = np.maximum(np.abs(each[0] - each[1]) / 2, fit.error * np.sqrt(2 / len(Y)))
    np.testing.assert_allclose(fit.error_se, se)
    np.testing.assert_allclose(fit.variance, Y.var(axis=0))


def test_three_rows_in_each_half_by_hand():
    """Rows x = -1, 0, 1 with y = 2 x, in both halves alike.

    S = 2 and C = 4 with n = 3 rows, so W = 4 / (2 + 3 d), and the error of the other
    half, (2 - W)^2 2 / 3, grows with d: the smallest penalty allowed is the best one.
    The floor 10 noise mean(x^2) is 1 / 3 for noise = 1 / 20, so W = 4 / 3 and the error
    (2 / 3)^2 2 / 3 = 8 / 27. Both halves together have S = 4, C = 8 and n = 6: the same
    W. The residuals of two alike halves do not differ, so the standard error is that of
    normal ones, 8 / 27 sqrt(2 / 6).
    """
    x = np.array([-1.0, 0.0, 1.0])
    F, y, half = np.tile(x, 2)[:, None], 2 * np.tile(x, 2), np.repeat([0, 1], 3)
    fit = fit_grams(grams(F, y, half), [Block("x", 0, 1)], "continuous", noise=1 / 20)
    assert fit.alpha == pytest.approx(1 / 3)
    assert fit.block_weights.tolist() == [1]
    assert fit.weights == pytest.approx(np.array([[4 / 3]]))
    assert fit.intercept == pytest.approx(0, abs=1e-12)
    assert fit.error == pytest.approx(8 / 27)
    assert fit.error_se == pytest.approx(8 / 27 / np.sqrt(3))
    assert fit.variance == pytest.approx(8 / 3)


@pytest.mark.parametrize("classes", [0, 3])
def test_the_gradient_is_that_of_the_error(classes):
    F, Y, half = table(classes, n=60)
    halves = [gram_fit._about_means(gram, 9) for gram in grams(F, Y, half)]
    search = gram_fit._Search(*halves, np.repeat([0, 1], [3, 6]))
    for logs in ([-3.0, 1.0], [0.5, -5.0]):
        off = check_grad(lambda x: search(x)[0], lambda x: search(x)[1], logs)
        assert off < 1e-6


@pytest.mark.parametrize("thin", [4, 6])
def test_a_search_that_begins_with_few_features_ends_where_all_do(thin, monkeypatch):
    F, Y, half = table()
    halves = grams(F, Y, half)
    full = fit_grams(halves, BLOCKS, "continuous")
    monkeypatch.setattr(gram_fit, "THIN", thin)
    fit = fit_grams(halves, BLOCKS, "continuous")
    assert fit.error[0] == pytest.approx(full.error[0], rel=0.03)
    assert fit.error[0] != full.error[0]


def test_no_penalties_of_a_grid_are_better_than_those_chosen():
    F, Y, half = table()
    fit = fit_grams(grams(F, Y, half), BLOCKS, "continuous")
    assert fit.block_weights[0] == 1
    assert fit.block_weights[1] < 0.3
    for signal in 10.0 ** np.arange(-4, 3):
        for noise in 10.0 ** np.arange(-4, 3):
            scores = cross_scores(F, Y, half, np.repeat([signal, noise], [3, 6]))
            assert fit.error[0] <= ((scores - Y) ** 2).mean() * (1 + 1e-3)


def test_further_searches_find_a_lower_error(monkeypatch):
    """Of many blocks, whose error has several minima."""
    rng = np.random.default_rng(8)
    F = rng.standard_normal((80, 24)) + rng.standard_normal((80, 1))
    Y = 0.2 * F @ rng.standard_normal(24) + rng.standard_normal(80)
    halves = grams(F, Y, rng.permutation(80) % 2)
    blocks = [Block(str(k), 3 * k, 3 * k + 3) for k in range(8)]
    (least,) = fit_grams(halves, blocks, "continuous").error
    monkeypatch.setattr(gram_fit, "PASSES", 1)
    (first,) = fit_grams(halves, blocks, "continuous").error
    assert least < 0.997 * first


@pytest.mark.parametrize("classes", [2, 3])
def test_weighted_probabilities_are_those_of_discriminant_analysis(classes):
    F, Y, half = table(classes)
    weights = np.ones(classes)
    fit = fit_grams(grams(F, Y, half), BLOCKS, "classes", class_weights=weights)
    scores = cross_scores(F, Y, half, penalties_of(fit))
    labels = (Y[:, 0] > 0) * 1 if classes == 2 else Y.argmax(axis=1)
    # One of K scores follows from the others.
    kept = scores[:, : max(1, classes - 1)]
    model = LinearDiscriminantAnalysis(solver="lsqr").fit(kept, labels)
    expected = model.predict_proba(kept)[:, 1:] if classes == 2 else None
    found = fit.probabilities(scores)
    np.testing.assert_allclose(
        found, model.predict_proba(kept) if expected is None else expected, atol=1e-4
    )
    if classes > 2:
        np.testing.assert_allclose(found.sum(axis=1), 1)


def test_probabilities_are_the_best_line_and_stay_positive():
    F, Y, half = table(2)
    fit = fit_grams(grams(F, Y, half), BLOCKS, "classes")
    scores = cross_scores(F, Y, half, penalties_of(fit))
    slope, offset = np.polyfit(scores[:, 0], (1 + Y[:, 0]) / 2, 1)
    line = slope * scores + offset
    np.testing.assert_allclose(line, scores @ fit.slope + fit.offset, atol=0.01)
    linear = ((fit.tail < line) & (line < 1 - fit.tail)).all(axis=1)
    found = fit.probabilities(scores)
    np.testing.assert_allclose(found[linear], line[linear], atol=0.01)
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
    blocks = [Block("all", 0, 12)]
    Z = np.hstack([F, np.maximum(F, 0), np.maximum(F - 1, 0), np.maximum(F - 2, 0)])
    fit = fit_grams(grams(Z, Y, np.arange(8000) % 2), blocks, "classes")
    found = fit.probabilities(fit.scores(Z))[:, -1]
    for low in np.arange(0, 1, 0.2):
        rows = (low <= found) & (found < low + 0.2)
        if rows.sum() >= 50:
            share = (Y[rows, -1] > 0).mean()
            assert found[rows].mean() == pytest.approx(share, abs=0.12)


@pytest.mark.parametrize("classes", [2, 3])
def test_class_weights_are_prior_odds(classes):
    F, Y, half = table(classes)
    halves, counts = grams(F, Y, half), np.arange(1.0, classes + 1)
    plain = fit_grams(halves, BLOCKS, "classes", class_weights=np.ones(classes))
    fit = fit_grams(halves, BLOCKS, "classes", class_weights=counts)
    np.testing.assert_array_equal(fit.weights, plain.weights)
    before = plain.probabilities(plain.scores(F))
    if classes == 2:
        before = np.hstack([1 - before, before])
    after = before * counts
    after /= after.sum(axis=1, keepdims=True)
    after = after[:, 1:] if classes == 2 else after
    np.testing.assert_allclose(fit.probabilities(fit.scores(F)), after, atol=1e-12)


def test_dependent_and_empty_columns_with_errors_of_the_sums_change_little():
    """The errors are as large as `noise` says, and G is not positive definite."""
    F, Y, half = table()
    F = np.hstack([F, F[:, :3], np.zeros((len(F), 2)), np.ones((len(F), 1))])
    blocks = [*BLOCKS, Block("again", 9, 12), Block("nothing", 12, 15)]
    clean = grams(F, Y, half)
    rng, noisy = np.random.default_rng(1), []
    for gram in clean:
        sizes = np.sqrt(np.diag(gram))
        error = rng.uniform(-1e-6, 1e-6, gram.shape) * np.outer(sizes, sizes)
        error[-1, -1] = 0
        noisy.append(gram + error)
    fits = [fit_grams(halves, blocks, "continuous") for halves in (clean, noisy)]
    pooled = Ridge(alpha=1e-9).fit(F[:, :3], Y).predict(F[:, :3]).reshape(-1, 1)
    for fit in fits:
        assert np.std(fit.scores(F) - pooled) < 0.1
    assert np.std(fits[0].scores(F) - fits[1].scores(F)) < 1e-3


def test_without_features_the_model_is_the_mean():
    _, Y, half = table()
    fit = fit_grams(grams(Y[:, :0], Y, half), [], "continuous")
    assert fit.weights.shape == (0, 1)
    np.testing.assert_allclose(fit.intercept, Y.mean(axis=0))


def test_features_without_signal_are_left_out():
    rng = np.random.default_rng(0)
    F, half = rng.standard_normal((300, 9)), rng.permutation(300) % 2
    fit = fit_grams(grams(F, rng.standard_normal(300), half), BLOCKS, "continuous")
    assert np.abs(fit.weights).max() < 0.05
    assert fit.error[0] < 1.02 * fit.variance[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"halves": [np.eye(11)]}, "halves must be 2 Gram matrices, got 1"),
        ({"halves": [np.eye(11), np.eye(12)]}, "halves must be square"),
        ({"halves": [np.eye(10)] * 2}, "halves must be square, of 9 features"),
        ({"halves": [np.full((11, 11), np.nan)] * 2}, "must be of finite sums"),
        ({"halves": [np.eye(11)] * 2}, "at least 2 rows"),
        ({"halves": [9 - 1000 * np.eye(11)[::-1]] * 2}, "none of the fits is one"),
        ({"blocks": [Block("late", 1, 9)]}, "blocks must follow each other"),
        ({"kind": "classes"}, "targets must be -1 and .1"),
        ({"targets": 2, "kind": "classes"}, "one target of -1 and .1, got 2"),
        (
            {"classes": 2, "kind": "classes", "class_weights": np.ones(3)},
            "class_weights must be 2 positive numbers",
        ),
        (
            {"classes": 2, "kind": "classes", "class_weights": np.array([0.0, 1])},
            "class_weights must be 2 positive numbers",
        ),
    ],
)
def test_wrong_arguments_are_named(change, message):
    change = dict(change)
    F, Y, half = table(change.pop("classes", 0))
    Y = np.tile(Y, (1, change.pop("targets", 1)))
    given = {"halves": grams(F, Y, half), "blocks": BLOCKS, "kind": "continuous"}
    given |= change
    halves, blocks, kind = (given.pop(name) for name in ("halves", "blocks", "kind"))
    with pytest.raises(ValueError, match=message):
        fit_grams(halves, blocks, kind, **given)


def test_real_targets_have_no_probabilities():
    F, Y, half = table()
    fit = fit_grams(grams(F, Y, half), BLOCKS, "continuous")
    with pytest.raises(ValueError, match="probabilities must be of classes"):
        fit.probabilities(fit.scores(F))


def noisy(halves, deviation, M, seed=0):
    """Return Gram matrices with noise in all entries that have features."""
    rng, made = np.random.default_rng(seed), []
    for half in halves:
        drawn = np.triu(rng.normal(0, deviation, half.shape), 1)
        drawn += drawn.T + np.sqrt(2) * np.diag(rng.normal(0, deviation, len(half)))
        drawn[M:, M:] = 0
        made.append(half + drawn)
    return made


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_fit_under_noise_is_no_worse_than_the_mean_by_much(classes):
    """And nearly as good as without noise, where there is little."""
    F, Y, half = table(classes, n=4000)
    kind = "classes" if classes else "continuous"
    errors = []
    for deviation in (1.0, 30.0, 300.0):
        halves = noisy(grams(F, Y, half), deviation, 9)
        fit = fit_grams(halves, BLOCKS, kind, deviation=deviation)
        assert (fit.alpha * len(F) / 2 * np.sqrt(2) >= deviation * np.sqrt(9) / 2).all()
        scores = fit.scores(F)
        if classes:
            right = fit.probabilities(scores)
            right = (right > 0.5) if classes == 2 else right == right.max(1)[:, None]
            errors.append((right != (Y > 0)).any(axis=1).mean())
        else:
            errors.append(((scores - Y) ** 2).mean() / Y.var())
    base = 1.0 if not classes else {2: 0.3, 3: 0.5}[classes]
    exact = fit_grams(grams(F, Y, half), BLOCKS, kind).error[0] / Y[:, 0].var()
    if not classes:
        assert errors[0] < 1.05 * exact
    assert errors[0] < 0.75 * base
    assert max(errors) < 1.2 * base
    assert errors[2] > errors[0]


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_under_noise_are_log_odds(classes):
    F, Y, half = table(classes, n=2000)
    halves = grams(F, Y, half)
    plain = fit_grams(halves, BLOCKS, "classes", class_weights=np.ones(classes))
    fit = fit_grams(halves, BLOCKS, "classes", deviation=1e-6)
    expected = plain.probabilities(plain.scores(F))
    # Penalties of the whole are less by sqrt(2).
    np.testing.assert_allclose(fit.probabilities(fit.scores(F)), expected, atol=0.02)
    logits = fit.scores(F)
    p = 1 / (1 + np.exp(-logits[:, 0]))
    if classes == 2:
        np.testing.assert_allclose(p, fit.probabilities(logits)[:, 0])


def test_the_gradient_is_that_of_the_error_under_noise():
    F, Y, half = table(3)
    halves = (gram_fit._about_means(gram, 9) for gram in grams(F, Y, half))
    search = gram_fit._Search(*halves, np.repeat([0, 1], [3, 6]), 0.1, (3.0, 7.0))
    logs = np.array([-1.0, -2.0])
    error = check_grad(lambda x: search(x)[0], lambda x: search(x)[1], logs)
    assert error < 1e-6 * np.abs(search(logs)[1]).max()


def test_noise_alone_gives_the_mean():
    """In each of a hundred draws, and not a fit that noise makes look good."""
    rng = np.random.default_rng(0)
    blocks, errors = [Block("few", 0, 2), Block("empty", 2, 2), Block("all", 2, 9)], []
    for draw in range(100):
        F, y = rng.normal(size=(160, 9)) / 3, rng.normal(size=(160, 1))
        halves = noisy(grams(F, y, np.arange(160) % 2), 100.0, 9, seed=draw)
        fit = fit_grams(halves, blocks, "continuous", deviation=100.0)
        assert fit.error[0] > 0
        errors.append(((fit.scores(F) - y) ** 2).mean() / y.var())
    assert np.quantile(errors, 0.9) < 1.5
