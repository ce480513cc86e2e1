"""Theorem 4 of the FDSKL paper: the distance of f_t from f_* beside the bound.

::

    python -m simulations.fdskl_theorem --datasets breast_cancer

The minimiser f_* belongs to the kernel itself, on 100 rows: kernel logistic regression
with lambda = 1 / 2, whose dual coefficients L-BFGS finds. Runs with one row and one
feature per iteration, on pooled columns, are Algorithm 1 to the letter; tests show that
the protocol gives the same f_t. breast_cancer is in scikit-learn, and ijcnn1 is an npz
file.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.optimize import minimize

from simulations.experiments import (
    OUTPUT,
    DataDir,
    OutputDir,
    Results,
    load_npz,
    new_app,
    some_of,
    standardise,
    table,
    tell,
)
from vfl_flower.numerics.kernel_solvers import LOSSES
from vfl_flower.numerics.random_features import (
    RandomFeatures,
    draw_pairs,
    median_bandwidth,
    pair_distances,
)
from vfl_flower.typing import Array

DATASETS = ["breast_cancer", "ijcnn1"]

REGULARIZATION = 0.5
"""lambda. The iterations of equation 8 grow nearly as 1 / lambda^4: with 0.1 they are
some 900 times as many."""

EPS = [0.02, 0.01, 0.005]
"""The errors to reach."""

FACTORS = (1, 16, 128, 1024)
"""Multiples of the theorem's step."""

TRAIN, NEW, RUNS = 100, 100, 10
"""Rows to train on, other rows, and runs over which the mean is taken."""

CHUNK = 512
"""Iterations whose features are made together."""

POINTS = 40
"""Maximum number of points of a curve."""


def theorem4_step(
    slope: float, kappa: float, phi: float, regularization: float, eps: float
) -> float:
    r"""Return the largest constant step of Theorem 4; M = `slope`, lambda the next.

    .. math:: \gamma < \min\Big\{\frac1\lambda,
       \frac{\epsilon\lambda}{4 M^2 (\sqrt\kappa + \sqrt\phi)^2}\Big\}

    M bounds \|L'\|; the square loss has no bound, and so no such step.
    """
    spread = (math.sqrt(kappa) + math.sqrt(phi)) ** 2
    return min(1 / regularization, eps * regularization / (4 * slope**2 * spread))


def theorem4_iterations(
    slope: float,
    kappa: float,
    phi: float,
    regularization: float,
    eps: float,
    distance: float,
    theta: float = 1.0,
) -> int:
    r"""Return the number of iterations in Theorem 4 (equation 8); e_1 = `distance`.

    .. math:: t \ge \frac{8\kappa B \log(8\kappa e_1/\epsilon)}
       {\vartheta\epsilon\lambda}, \quad
       B = \Big[\sqrt{G_2^2 + G_1} + G_2\Big]^2, \quad
       G_1 = \frac{2\kappa M^2}{\lambda}, \quad
       G_2 = \frac{\sqrt\kappa M (\sqrt\kappa + \sqrt\phi)}{2\lambda^{3/2}}
    """
    lam, root = regularization, math.sqrt(kappa)
    g1 = 2 * kappa * slope**2 / lam
    g2 = root * slope * (root + math.sqrt(phi)) / (2 * lam * math.sqrt(lam))
    b = (math.sqrt(g2**2 + g1) + g2) ** 2
    log = math.log(8 * kappa * distance / eps)
    return max(0, math.ceil(8 * kappa * b * log / (theta * eps * lam)))


@dataclass(frozen=True)
class Problem:
    """Rows, and the minimiser of equation 1 on the first n rows."""

    X: Array  # n rows to train on, and m other rows
    y: Array  # labels of the n rows
    bandwidth: float
    best: Array  # f_* of all rows
    distance: float  # |f_*|_H^2, which is e_1 of a start at 0


def load(name: str, folder: Path | None) -> tuple[Array, Array]:
    """Return 200 rows of a data set, standardised, and labels of -1 and +1."""
    X, y = load_npz(folder, name)
    rows = np.random.default_rng(0).permutation(len(y))[: TRAIN + NEW]
    return standardise(X[rows], TRAIN), np.where(y[rows] == 1, 1.0, -1.0)


def problem_of(X: Array, y: Array, n: int, regularization: float) -> Problem:
    """Solve equation 1 with the logistic loss and the Gaussian kernel on n rows.

    The minimiser is f = sum_i a_i K(x_i, .); its median distance is the bandwidth.
    """
    pairs = draw_pairs(n, 1000, np.random.default_rng(0))
    bandwidth = median_bandwidth(pair_distances(X[:n], pairs, "gaussian"), "gaussian")
    squared = ((X[:, None] - X[None, :n]) ** 2).sum(axis=2)
    K, y, loss = np.exp(-squared / (2 * bandwidth**2)), y[:n], LOSSES["logistic"]

    def objective(a: Array) -> tuple[float, Array]:
        f = K[:n] @ a
        value = loss.value(f, y).mean() + regularization / 2 * a @ f
        return value, K[:n] @ (loss.derivative(f, y) / n + regularization * a)

    found = minimize(objective, np.zeros(n), jac=True, options={"gtol": 1e-10})
    a = found.x
    return Problem(X, y, bandwidth, K @ a, float(a @ K[:n] @ a))


def theorem_step(eps: float, iterations: int, distance: float, lam: float) -> float:
    """Return the step of equation 8: log(8 e_1 / eps) / (t lambda), kappa = 1.

    It is eps theta / (8 kappa B), with t = 8 kappa B log(8 kappa e_1 / eps) / (theta
    eps lambda).
    """
    return math.log(8 * distance / eps) / (iterations * lam)


def errors_of_runs(
    problem: Problem,
    step: float,
    iterations: int,
    regularization: float,
    *,
    runs: int = RUNS,
    seed: int = 0,
) -> Iterator[tuple[int, Array]]:
    """Yield t and the mean over runs of (f_t(x) - f_*(x))^2 for all rows.

    Equation 7 with one row and one feature: f becomes (1 - gamma lambda) f - gamma
    L'(f(x_i), y_i) phi(x_i) phi.
    """
    X, y, n = problem.X, problem.y, len(problem.y)
    derivative = LOSSES["logistic"].derivative
    rng, every = np.random.default_rng(seed), np.arange(runs)
    draws = [
        RandomFeatures("gaussian", X.shape[1], problem.bandwidth, seed * runs + r)
        for r in every.tolist()
    ]
    told = set(np.geomspace(1, iterations, POINTS).round().astype(int).tolist())
    f = np.zeros((runs, len(X)))
    for start in range(0, iterations, CHUNK):
        stop = min(start + CHUNK, iterations)
        phi = np.empty((stop - start, runs, len(X)))
        for r, features in enumerate(draws):
            omega, b = features.weights(start, stop)
            phi[:, r] = np.sqrt(2) * np.cos(omega @ X.T + 2 * np.pi * b[:, None])
        instances = rng.integers(n, size=(stop - start, runs))
        for t, (new, i) in enumerate(zip(phi, instances, strict=True), start + 1):
            alpha = -step * derivative(f[every, i], y[i]) * new[every, i]
            f *= 1 - step * regularization
            f += alpha[:, None] * new
            if t in told:
                yield t, ((f - problem.best) ** 2).mean(axis=0)


def rate(
    name: str,
    folder: Path | None,
    *,
    eps: Sequence[float] = EPS,
    factors: Sequence[int] = FACTORS,
) -> dict[str, Any]:
    """Return the iterations that the theorem asks for, and the measured errors.

    With c times the step a run has 1/c of the iterations, so that (1 - gamma lambda)^t
    stays the same.
    """
    X, y = load(name, folder)
    problem = problem_of(X, y, TRAIN, REGULARIZATION)
    cells = []
    for one in eps:
        asked = theorem4_iterations(1, 1, 2, REGULARIZATION, one, problem.distance)
        step = theorem_step(one, asked, problem.distance, REGULARIZATION)
        for c in factors:
            T = -(-asked // c)
            curve = [
                (t, float(e[:TRAIN].mean()), float(e[TRAIN:].mean()), float(e.max()))
                for t, e in errors_of_runs(problem, c * step, T, REGULARIZATION)
            ]
            names = ("t", "mean", "new", "largest")
            points = dict(zip(names, map(list, zip(*curve, strict=True)), strict=True))
            cells.append({"eps": one, "factor": c, "step": c * step} | points)
            tell(f"{name}, eps {one}, {c} times the step: {curve[-1]}")
    return {
        "start": float((problem.best[:TRAIN] ** 2).mean()),
        "distance": problem.distance,
        "cells": cells,
    }


# --- The page -------------------------------------------------------------------------


def page(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of the theorem."""
    yield "## Theorem 4"
    rows = []
    for name, entry in figures.items():
        for cell in entry["cells"]:
            rows.append(
                {
                    "": name if cell is entry["cells"][0] else "",
                    "epsilon": f"{cell['eps']:g}",
                    "step": f"{cell['step']:.2g}",
                    "times that of the theorem": f"{cell['factor']:,}",
                    "iterations": f"{cell['t'][-1]:,}",
                    "rows of training": f"{cell['mean'][-1]:.2g}",
                    "other rows": f"{cell['new'][-1]:.2g}",
                    "largest of a row": f"{cell['largest'][-1]:.2g}",
                }
            )
    yield table(rows)
    starts = (
        f"{name} {entry['start']:.3f} and {entry['distance']:.3f}"
        for name, entry in figures.items()
    )
    yield "E|f_*(x)|^2 of the training rows, and |f_*|^2: " + ", ".join(starts) + "."


# --- The command ----------------------------------------------------------------------

app = new_app()


@app.command()
def main(
    context: typer.Context,
    datasets: Annotated[list[str], some_of(DATASETS, "Data sets.")] = DATASETS,
    eps: Annotated[list[float], typer.Option(help="Errors to reach.")] = EPS,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure the rate of Theorem 4."""
    results = Results(context, "fdskl_theorem")
    figures: dict[str, Any] = {}
    for name in datasets:
        with results.skipping(name, datasets):
            figures[name] = rate(name, data_dir, eps=eps)
    tell(results.write(figures, page(figures)))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.fdskl_theorem")
