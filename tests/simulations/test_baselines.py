"""The methods that FDSKL is compared with."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC, SVR

from simulations import baselines
from simulations.experiments import Columns
from vfl_flower.numerics.random_features import RandomFeatures

N, N_TEST, WIDTHS = 160, 200, (2, 3, 1)


def draw(binary, seed=0):
    """Return training and test rows of a target that no linear model can fit."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N + N_TEST, sum(WIDTHS)))
    y = X[:, 0] * X[:, 2] + 0.3 * X[:, 5] + 0.1 * rng.normal(size=len(X))
    y = np.where(y > 0, 1.0, -1.0) if binary else y
    return Columns(X[:N], WIDTHS, y[:N], test=(X[N:], y[N:]))


@pytest.fixture(scope="module")
def classes():
    return draw(True)


@pytest.fixture(scope="module")
def values():
    return draw(False)


def test_error_is_percent_of_labels_or_mean_square():
    """Of the scores (2, -1, 0) with labels +1, +1, +1 one is wrong: 0 counts as +1."""
    error = baselines.test_error
    assert error(np.array([2.0, -1.0, 0.0]), np.ones(3)) == pytest.approx(100 / 3)
    assert error(np.array([2.0, -1.0]), np.array([2.5, -1.0])) == pytest.approx(0.125)


def test_median_distance_adds_up_over_the_parties():
    """Two rows make one pair: |(0, 0, 0) - (1, 2, 2)|^2 = 9."""
    X = [np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([[0.0], [2.0]])]
    assert baselines.median_squared_distance(X) == pytest.approx(9)


def test_dsg_is_the_loop_of_the_paper(values):
    """Equation 7 of the paper, one instance and one feature a step, by plain sums.

    f starts at the mean of the labels.
    """
    rows, y, test, y_test = values.train_and_test()
    T, gamma, lam, s, seed = 40, 0.05, 0.3, 2.0, 3
    rng = np.random.default_rng(seed)
    omega, b = RandomFeatures("gaussian", rows.shape[1], s, seed).weights(0, T)

    def phi(j, x):
        return np.sqrt(2) * np.cos(omega[j] @ x + 2 * np.pi * b[j])

    alpha = []
    for t in range(T):
        (i,) = rng.integers(len(rows), size=1)
        f = y.mean() + sum(a * phi(j, rows[i]) for j, a in enumerate(alpha))
        alpha = [(1 - gamma * lam) * a for a in alpha]
        alpha.append(-gamma * 2 * (f - y[i]) * phi(t, rows[i]))
    f = np.array([sum(a * phi(j, x) for j, a in enumerate(alpha)) for x in test])
    f += y.mean()
    given = {"loss": "square", "bandwidth": s, "iterations": T, "block": 1}
    given |= {"step": gamma, "regularization": lam, "seed": seed}
    score = baselines.central_dsg(values, **given)
    assert score.error == pytest.approx(np.mean((f - y_test) ** 2), rel=1e-9)
    assert (score.bytes, score.round_trips) == (None, None)


@pytest.mark.parametrize("binary", [True, False])
def test_local_kernel_matrices_make_the_pooled_machine(binary):
    """Both choose among the same four on the same rows."""
    data = draw(binary)
    pooled, summed = baselines.svm(data), baselines.pp_svmv(data)
    assert summed.error == pytest.approx(pooled.error, rel=1e-6)
    assert summed.settings == pooled.settings


@pytest.mark.parametrize(("binary", "make"), [(True, SVC), (False, SVR)])
def test_svm_is_that_of_scikit_learn(binary, make):
    data = draw(binary)
    rows, y, test, y_test = data.train_and_test()
    rows, y = rows[:100], y[:100]
    gamma = 1 / baselines.median_squared_distance(data.split(rows))
    errors = [
        baselines.test_error(
            make(C=C, gamma=scale * gamma).fit(rows, y).predict(test), y_test
        )
        for C in (1, 10)
        for scale in (1, 4)
    ]
    score = baselines.svm(data, max_rows=100)
    assert score.error == min(errors)
    assert score.settings["rows"] == 100
    assert score.name == f"{make.__name__}, pooled"


def test_kernel_matrices_are_counted(classes):
    """Three parties send 160 * 161 / 2 numbers, up to the server and down again."""
    score = baselines.pp_svmv(classes, grid=[(1.0, 4.0)])
    assert score.bytes == 2 * 3 * 8 * 12_880
    assert score.round_trips == 4
    assert (score.settings["C"], score.settings["gamma x median"]) == (1, 4)


def test_kernel_matrix_beyond_the_memory_is_refused(classes):
    with pytest.raises(ValueError, match=r"memory_limit = 204,799 .* got .* 204,800"):
        baselines.pp_svmv(classes, memory_limit=204_799)
    assert baselines.pp_svmv(classes, memory_limit=204_800).bytes


@pytest.mark.parametrize(
    ("binary", "model"), [(True, LogisticRegression(C=1 / 16)), (False, Ridge(alpha=8))]
)
def test_linear_is_the_pooled_fit(binary, model):
    """A lambda of 0.1 is C = 1 / 16 and alpha = 8 of 160 rows."""
    data = draw(binary)
    X, y, X_test, y_test = data.train_and_test()
    expected = baselines.test_error(model.fit(X, y).predict(X_test), y_test)
    assert baselines.linear(data, regularization=0.1).error == pytest.approx(expected)


@pytest.mark.parametrize(("binary", "rel"), [(True, 1e-12), (False, 1e-6)])
def test_svrg_converges_to_the_linear_model(binary, rel):
    data = draw(binary)
    exact = baselines.linear(data, regularization=0.1)
    score = baselines.fd_svrg(data, epochs=200, batch=20, regularization=0.1)
    assert score.error == pytest.approx(exact.error, rel=rel)


def test_svrg_counts_each_partial_prediction(classes):
    """Ten rows, three parties, b = 4: an epoch has three steps, so 10 + 3 * 4 rows.

    Twice 22 rows are 44 sums of three scalars, each up and down: 264 scalars. The sums
    take 2 * (1 + 3) round trips, and one more takes the last sum down.
    """
    few = replace(classes, X=classes.X[:10], y=classes.y[:10])
    score = baselines.fd_svrg(few, epochs=2, batch=4)
    assert score.bytes == 8 * 264
    assert score.round_trips == 9


@pytest.mark.parametrize("binary", [True, False])
def test_models_are_tuned_on_training_rows_alone(binary):
    """Labels with a mean of 100 are fitted as well, and a linear model fits neither."""
    X, y, X_test, y_test = draw(binary).train_and_test()
    shift = 0 if binary else 100
    errors, told = {}, {}
    for name in ("linear", "kernel", "boosting"):
        score, told[name] = baselines.tuned_alike(name, X, y + shift, 0)
        f, p = score(X_test)
        errors[name] = baselines.test_error(f - shift, y_test)
        assert told[name]["rows"] == N
        assert (p is None) == (not binary or name == "kernel")
        if p is not None:
            np.testing.assert_array_equal(p > 0.5, f > 0)
    assert errors["kernel"] < 0.8 * errors["linear"]
    assert errors["boosting"] < errors["linear"]
    kernel = {"C", "gamma"} if binary else {"alpha", "gamma"}
    assert set(told["kernel"]["chosen"]) == kernel
    assert set(told["boosting"]["chosen"]) == {"learning_rate", "max_leaf_nodes"}
