"""Doubly stochastic steps against arithmetic by hand and a plain pooled loop."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from simulations.fdskl_theorem import theorem4_iterations, theorem4_step
from vfl_flower.numerics.fdskl import base_scores, dsg_update, implicit_step, step_sizes
from vfl_flower.numerics.kernel_solvers import LOSSES


@pytest.mark.parametrize("loss", LOSSES)
def test_one_instance_and_one_feature_is_algorithm_1(loss):
    """50 iterations against the paper's loop over scalars, each coefficient."""
    rng = np.random.default_rng(0)
    T, n, lam, gamma = 50, 12, 0.01, 0.2
    y = rng.choice([-1.0, 1.0], n)
    phi = math.sqrt(2) * np.cos(rng.uniform(0, 2 * np.pi, (n, T)))
    instances = rng.integers(n, size=T)

    expected: list[float] = []
    for t, i in enumerate(instances):
        f = sum(a * phi[i, j] for j, a in enumerate(expected))
        z = y[i] * f
        slope = {
            "square": 2 * (f - y[i]),
            "logistic": -y[i] / (1 + math.exp(z)),
            "smooth_hinge": -y[i] * (0 if z >= 1 else 1 - z if z > 0 else 1),
        }[loss]
        expected = [(1 - gamma * lam) * a for a in expected]
        expected.append(-gamma * slope * phi[i, t])

    alpha = np.zeros((0, 1))
    for t, i in enumerate(instances):
        f, last = phi[i, :t] @ alpha, phi[[i], t : t + 1]
        old, new = dsg_update(alpha, last, f[None], y[[i], None], loss, gamma, lam)
        alpha = np.vstack([old, new])
    np.testing.assert_allclose(alpha[:, 0], expected, rtol=1e-10, atol=1e-14)


def test_a_block_is_the_mean_of_its_single_steps():
    """The new part of f at any x is the mean over all (instance, feature) pairs."""
    rng = np.random.default_rng(1)
    phi, at = rng.normal(size=(3, 4)), rng.normal(size=4)
    f, y = rng.normal(size=(3, 2)), rng.choice([-1.0, 1.0], (3, 2))
    alpha = rng.normal(size=(5, 2))
    old, new = dsg_update(alpha, phi, f, y, "logistic", 0.5, 0.1)
    single = []
    for i in range(3):
        for j in range(4):
            one = phi[[i]][:, [j]], f[[i]], y[[i]], "logistic", 0.5, 0.1
            single.append(at[j] * dsg_update(alpha, *one)[1])
    np.testing.assert_allclose(at @ new, np.mean(single, axis=0)[0], rtol=1e-12)
    np.testing.assert_allclose(old, 0.95 * alpha)


def test_steps_of_several_sizes_are_those_of_each():
    rng = np.random.default_rng(1)
    phi, f = rng.normal(size=(3, 4)), rng.normal(size=(3, 2))
    y, alpha = rng.choice([-1.0, 1.0], (3, 2)), rng.normal(size=(5, 2))
    steps = np.array([0.25, 2.0])
    old, new = dsg_update(alpha, phi, f, y, "logistic", steps, 0.0)
    for k, step in enumerate(steps):
        one = alpha[:, [k]], phi, f[:, [k]], y[:, [k]], "logistic", step, 0.0
        its_old, its_new = dsg_update(*one)
        np.testing.assert_allclose(old[:, [k]], its_old)
        np.testing.assert_allclose(new[:, [k]], its_new)


def test_f_starts_at_the_best_constant():
    """Three of four are +1, and a row more of each class makes them 4 of 6."""
    y = np.array([[1.0], [1.0], [1.0], [-1.0]])
    np.testing.assert_allclose(base_scores(y, "logistic"), [math.log(2)])
    assert base_scores(y, "square").tolist() == [0.5]
    assert np.isfinite(base_scores(np.ones((9, 1)), "logistic")).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_steps_to_choose_from_end_where_a_step_on_the_same_features_diverges(loss):
    """For the square loss: gamma L'' mu_1 = 2 is the last that does not."""
    phi = np.random.default_rng(0).normal(size=(30, 5))
    mu = np.linalg.eigvalsh(phi.T @ phi / phi.size)[-1]
    expected = np.array([1.0, 2.0]) / (LOSSES[loss].curvature * mu)
    np.testing.assert_allclose(step_sizes(phi, loss, (1.0, 2.0)), expected)
    assert len(step_sizes(phi, loss)) == 7


# -- the implicit step -----------------------------------------------------------------


def a_batch(n=400, F=30, seed=0):
    """Return turns of new features, their phi, an earlier f, and labels."""
    rng = np.random.default_rng(seed)
    X, omega = rng.normal(size=(n, 2)), rng.normal(size=(2, F + 1)) / (2 * math.pi)
    turns = (X @ omega + rng.uniform(size=F + 1)) % 1
    phi = math.sqrt(2) * np.cos(2 * math.pi * turns)
    return turns[:, :F], phi[:, :F], phi[:, F:], X[:, :1] * X[:, 1:]


@pytest.mark.parametrize("loss", LOSSES)
def test_an_implicit_step_minimises_the_proximal_objective(loss):
    """Against a solver that knows nothing of axes, at gamma = 100."""
    turns, phi, earlier, real = a_batch()
    y, gamma, F = np.sign(real) if loss != "square" else real, 100.0, phi.shape[1]
    scores = 0.3 + 2 * earlier

    def objective(x):
        f = scores + phi @ x[:F, None] + x[F] * earlier + x[F + 1]
        return LOSSES[loss].value(f, y).mean() + F / (2 * gamma) * x[:F] @ x[:F]

    rng = np.random.default_rng(0)
    given = turns, scores, earlier, y, loss, 1 / gamma, rng, loss != "square"
    s, new, shift = implicit_step(*given)
    x = np.concatenate([new[:, 0], s - 1, shift])
    best = minimize(objective, x, options={"gtol": 1e-8}).fun
    assert objective(x) <= best * (1 + 1e-5)
    assert abs(s[0] - 1) > 0.1


def test_labels_of_any_origin_and_unit_have_the_same_implicit_step():
    turns, _, earlier, y = a_batch()

    def step(unit, origin):
        given = origin + unit * earlier, unit * earlier, origin + unit * y
        rng = np.random.default_rng(0)
        return implicit_step(turns, *given, "square", None, rng, False)

    s, new, shift = step(1.0, 0.0)
    for unit, origin in ((1.0, 1e6), (1e-6, 0.0), (1e6, -1e8)):
        its_s, its_new, its_shift = step(unit, origin)
        np.testing.assert_allclose(its_s, s, rtol=1e-4)
        np.testing.assert_allclose(its_new / unit, new, atol=1e-4)
        np.testing.assert_allclose(its_shift / unit, shift, atol=1e-4)


def test_noise_is_hardly_ever_learned():
    """In 20 draws the median of the largest coefficient is 0; that of labels 0.2."""
    turns, _, earlier, real = a_batch()

    def largest(y, seed):
        given = turns, 0 * earlier, 0 * earlier, y, "logistic", None
        return np.abs(implicit_step(*given, np.random.default_rng(seed), True)[1]).max()

    noise = np.repeat([-1.0, 1.0], 200)[:, None]
    draws = [np.random.default_rng(seed).permutation(noise) for seed in range(20)]
    assert np.median([largest(y, seed) for seed, y in enumerate(draws)]) < 1e-3
    assert largest(np.sign(real), 0) > 0.1


@pytest.mark.parametrize("loss", LOSSES)
def test_a_class_that_a_batch_lacks_keeps_its_scores(loss):
    turns, _, earlier, real = a_batch()
    y = np.hstack([np.sign(real), -np.sign(real), np.full_like(real, -1.0)])
    before = np.hstack([earlier, earlier, earlier])
    rng = np.random.default_rng(0)
    given = turns, before, before, y, loss, None, rng, True
    s, new, shift = implicit_step(*given)
    assert (s[2], shift[2], np.abs(new[:, 2]).max()) == (1, 0, 0)
    assert np.abs(new[:, :2]).max() > 0.01
    alike = implicit_step(turns, before, before, np.full_like(y, -1.0), *given[4:])
    assert not alike[1].any()


def test_theorem_4_by_hand():
    """M = 2, kappa = 1, phi = 4, lambda = 1/4: (1 + 2)^2 = 9 and 4 M^2 = 16.

    The step for eps = 0.1 is 0.1 / 4 / 144. G_1 = 2 * 4 * 4 = 32, G_2 = 2 * 3 / (2 / 8)
    = 24, B = (sqrt 608 + 24)^2; t = 8 B log(8 * 3 / 0.1) / (0.5 * 0.1 / 4).
    """
    assert theorem4_step(2, 1, 4, 0.25, 0.1) == pytest.approx(0.1 / 4 / 144)
    assert theorem4_step(1e-9, 1, 2, 4, 0.1) == 0.25
    b = (math.sqrt(608) + 24) ** 2
    t = 8 * b * math.log(240) / 0.0125
    assert theorem4_iterations(2, 1, 4, 0.25, 0.1, 3, 0.5) == math.ceil(t)
    assert theorem4_iterations(1, 1, 2, 1, 0.1, 1e-3) == 0


def test_theorem_4_says_nothing_of_the_square_loss():
    """|L'| = 2 |u - y| has no bound M; those of the other two losses are at most 1."""
    u, y = np.array([[1e9]]), np.array([[1.0]])
    for loss, holds in (("square", False), ("logistic", True), ("smooth_hinge", True)):
        slope = LOSSES[loss].slope
        assert (np.abs(LOSSES[loss].derivative(-u, y)).item() <= 1) == holds
        assert math.isfinite(slope) == holds
        if not holds:
            assert theorem4_step(slope, 1, 2, 0.1, 0.1) == 0


def test_theorem_4_holds_on_a_small_set():
    """Its step and its iterations bring E|f_t - f_*|^2 under eps, which 0 is not.

    Six rows that are close together, all of class +1, lambda = 1, logistic loss: M = 1,
    kappa = 1 and phi = 2. f_* is the minimiser with the kernel itself. Means of four
    runs of 4,851 iterations of one row and one feature. The theorem is far from tight:
    the measured error is 0.0001, and must be below a twentieth of eps.
    """
    rng, lam, eps, gamma = np.random.default_rng(0), 1.0, 0.05, 0.02
    X, y = rng.normal(size=(6, 2)), np.ones(6)
    K = np.exp(-gamma * ((X[:, None] - X) ** 2).sum(axis=2))

    def objective(a):
        f = K @ a
        return np.logaddexp(0, -y * f).mean() + lam / 2 * a @ f

    a = minimize(objective, np.zeros(6), tol=1e-12).x
    best, distance = K @ a, a @ K @ a
    assert (best**2).max() > 2 * eps
    T = theorem4_iterations(1, 1, 2, lam, eps, distance)
    g2 = (1 + math.sqrt(2)) / 2
    step = eps / (8 * (math.sqrt(g2**2 + 2) + g2) ** 2)
    assert step < theorem4_step(1, 1, 2, lam, eps)
    assert 2000 < T < 6000
    errors = []
    for _ in range(4):
        omega = rng.normal(scale=math.sqrt(2 * gamma), size=(2, T))
        phi = math.sqrt(2) * np.cos(X @ omega + rng.uniform(0, 2 * math.pi, T))
        f = np.zeros((6, 1))
        for t, i in enumerate(rng.integers(6, size=T)):
            at = phi[:, [t]]
            row = at[[i]], f[[i]], y[[i], None]
            f, alpha = dsg_update(f, *row, "logistic", step, lam)
            f = f + at @ alpha
        errors.append((f[:, 0] - best) ** 2)
    assert np.mean(errors, axis=0).max() < eps / 20


def test_bad_input():
    alpha, one = np.zeros((0, 1)), np.ones((1, 1))
    for step, lam in ((0, 1), (-1, 1), (1, -1), (2, 1), (math.nan, 1)):
        with pytest.raises(ValueError, match="product"):
            dsg_update(alpha, one, one, one, "square", step, lam)
