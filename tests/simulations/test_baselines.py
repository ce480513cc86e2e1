"""The methods that FDSKL is compared with."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC, SVR

from vfl_flower.numerics.random_features import RandomFeatures
from vfl_flower.simulations import baselines
from vfl_flower.simulations.baselines import (
    central_dsg,
    fd_svrg,
    gradient_boosting,
    linear,
    median_squared_distance,
    pp_svmv,
    svc,
    svr,
)

N, N_TEST, WIDTHS = 160, 200, (2, 3, 1)


def split(X):
    return np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)


def draw(binary, seed=0):
    """Return training and test rows of a target that no linear model can fit."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N + N_TEST, sum(WIDTHS)))
    y = X[:, 0] * X[:, 2] + 0.3 * X[:, 5] + 0.1 * rng.normal(size=len(X))
    y = np.where(y > 0, 1.0, -1.0) if binary else y
    return split(X[:N]), y[:N], split(X[N:]), y[N:]


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
    assert median_squared_distance(X) == pytest.approx(9)


@pytest.mark.parametrize("schedule", ["constant", "diminishing"])
def test_dsg_is_the_loop_of_the_paper(values, schedule):
    """Equation 7 of the paper, one instance and one feature a step, by plain sums."""
    X, y, X_test, y_test = values
    T, gamma, lam, s, seed = 40, 0.05, 0.3, 2.0, 3
    rng = np.random.default_rng(seed)
    rows, test = np.hstack(X), np.hstack(X_test)
    omega, b = RandomFeatures("gaussian", rows.shape[1], s, seed).weights(0, T)

    def phi(j, x):
        return np.sqrt(2) * np.cos(omega[j] @ x + 2 * np.pi * b[j])

    alpha = []
    for t in range(T):
        step = gamma / (t + 1) if schedule == "diminishing" else gamma
        (i,) = rng.integers(len(rows), size=1)
        f = sum(a * phi(j, rows[i]) for j, a in enumerate(alpha))
        alpha = [(1 - step * lam) * a for a in alpha]
        alpha.append(-step * 2 * (f - y[i]) * phi(t, rows[i]))
    f = np.array([sum(a * phi(j, x) for j, a in enumerate(alpha)) for x in test])
    found = central_dsg(
        X,
        y,
        X_test,
        y_test,
        loss="square",
        bandwidth=s,
        iterations=T,
        block=1,
        step=gamma,
        schedule=schedule,
        regularization=lam,
        seed=seed,
    )
    assert found.error == pytest.approx(np.mean((f - y_test) ** 2), rel=1e-9)
    assert (found.bytes, found.round_trips) == (None, None)


@pytest.mark.parametrize(
    ("schedule", "step", "most"), [("constant", 10.0, 25), ("diminishing", 100.0, 35)]
)
def test_dsg_with_blocks_learns(classes, schedule, step, most):
    """Half of the labels are +1; measured 13.5 and 27.5 %."""
    settings = {"iterations": 200, "block": 16, "step": step}
    found = central_dsg(*classes, schedule=schedule, **settings)
    assert found.error < most
    assert found.settings == settings


@pytest.mark.parametrize("binary", [True, False])
def test_local_kernel_matrices_make_the_pooled_machine(binary):
    """Both choose among the same four on the same rows."""
    data = draw(binary)
    pooled = (svc if binary else svr)(*data)
    summed = pp_svmv(*data)
    assert summed.error == pytest.approx(pooled.error, rel=1e-6)
    assert summed.settings == pooled.settings


@pytest.mark.parametrize("binary", [True, False])
def test_svm_is_that_of_scikit_learn(binary):
    X, y, X_test, y_test = draw(binary)
    rows, test = np.hstack(X), np.hstack(X_test)
    gamma = 1 / median_squared_distance([block[:100] for block in X])
    errors = [
        baselines.test_error(
            (SVC if binary else SVR)(C=C, gamma=scale * gamma)
            .fit(rows[:100], y[:100])
            .predict(test),
            y_test,
        )
        for C in (1, 10)
        for scale in (1, 4)
    ]
    found = (svc if binary else svr)(X, y, X_test, y_test, max_rows=100)
    assert found.error == min(errors)
    assert found.settings["rows"] == 100


def test_local_gram_matrices_make_the_linear_machine(classes):
    X, y, X_test, y_test = classes
    expected = min(
        100
        * np.mean(
            SVC(kernel="linear", C=C).fit(np.hstack(X), y).predict(np.hstack(X_test))
            != y_test
        )
        for C in (1, 10)
    )
    found = pp_svmv(*classes, kernel="linear")
    assert found.error == pytest.approx(expected)
    assert "gamma x median" not in found.settings


def test_kernel_matrices_are_counted(classes):
    """Three parties send 160 * 161 / 2 numbers, up to the server and down again."""
    found = pp_svmv(*classes, grid=[(1.0, 4.0)])
    assert found.bytes == 2 * 3 * 8 * 12_880
    assert found.round_trips == 4
    assert (found.settings["C"], found.settings["gamma x median"]) == (1, 4)


def test_kernel_matrix_beyond_the_memory_is_refused(classes):
    with pytest.raises(
        ValueError,
        match=r"of 160 rows must fit in memory_limit = 204,799 bytes, "
        r"got 8 n\^2 = 204,800 bytes",
    ):
        pp_svmv(*classes, memory_limit=204_799)
    assert pp_svmv(*classes, memory_limit=204_800).bytes


def test_unknown_kernel_is_refused(classes):
    with pytest.raises(ValueError, match="kernel must be gaussian or linear, got 'a'"):
        pp_svmv(*classes, kernel="a")


def test_linear_is_the_pooled_fit(classes, values):
    """A lambda of 0.1 is C = 1 / 16 and alpha = 8 of 160 rows."""
    for data, model in (
        (classes, LogisticRegression(C=1 / 16)),
        (values, Ridge(alpha=8)),
    ):
        X, y, X_test, y_test = data
        model.fit(np.hstack(X), y)
        expected = baselines.test_error(model.predict(np.hstack(X_test)), y_test)
        found = linear(*data, regularization=0.1)
        assert found.error == pytest.approx(expected)


def test_svrg_converges_to_the_linear_model(values, classes):
    exact = linear(*values, regularization=0.1)
    found = fd_svrg(*values, epochs=200, batch=20, regularization=0.1)
    assert found.error == pytest.approx(exact.error, rel=1e-6)
    exact = linear(*classes, regularization=0.1)
    found = fd_svrg(*classes, epochs=200, batch=20, regularization=0.1)
    assert found.error == pytest.approx(exact.error)


def test_svrg_does_not_depend_on_who_has_a_column(values):
    X, y, X_test, y_test = values
    one = fd_svrg([np.hstack(X)], y, [np.hstack(X_test)], y_test, epochs=2)
    three = fd_svrg(*values, epochs=2)
    assert three.error == pytest.approx(one.error, rel=1e-9)
    assert three.bytes == 3 * one.bytes


def test_svrg_counts_each_partial_prediction():
    """Ten rows, three parties, b = 4: an epoch has three steps, so 10 + 3 * 4 rows.

    Twice 22 rows are 44 sums of three scalars, each up and down: 264 scalars. The sums
    take 2 * (1 + 3) round trips, and one more takes the last sum down.
    """
    X, y, X_test, y_test = draw(True)
    few = [block[:10] for block in X]
    found = fd_svrg(few, y[:10], X_test, y_test, epochs=2, batch=4)
    assert found.bytes == 8 * 264
    assert found.round_trips == 9


def test_trees_fit_what_a_line_cannot(classes, values):
    assert gradient_boosting(*classes).error < linear(*classes).error - 5
    assert gradient_boosting(*values).error < 0.8 * linear(*values).error
