"""Test errors of kernel models from sums of products, beside what users would take.

``VFL_FLOWER_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/kernel_accuracy.py
kc_house a9a``: for each set and seed a line a model, with error (or mean squared error
over the variance), AUC, log loss and seconds. All is tuned on training rows only, on
two halves of them:

- *moments*: ``FDSKL(solver="moments")`` with columns split among ``--parties``: the
  same columns and choices, from pooled rows in the place of shares;
- *linear*: ridge or logistic regression;
- *kernel*: support vectors, or kernel ridge regression, with Gaussian kernels, tuned on
  4,000 rows, then fitted on ``--kernel-rows`` rows;
- *boosting*: scikit-learn's gradient boosting.

Without a folder, or with the name ``generated``: generated rows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from vfl_flower import Party
from vfl_flower.clients import kernel_moments as steps
from vfl_flower.numerics import privacy
from vfl_flower.numerics.gram_fit import GramFit, fit_grams
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.kernel_moments import cumulants, median_of
from vfl_flower.numerics.local_columns import local_columns, scaled_columns
from vfl_flower.numerics.relevance import relevance_of
from vfl_flower.strategies import kernel_moments as server
from vfl_flower.typing import Array

REAL = ("kc_house", "protein", "pol", "generated")
TUNED_ON = 4000
"""Rows on which kernel methods are tuned."""

DELTA = 1e-6
"""Of the noise."""

MODELS = ("moments", "linear", "kernel", "boosting")


def load(
    name: str, seed: int, published: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Return training rows and labels, and test rows and labels.

    Four rows in five of the file are for training, 60,000 of covtype; or all of them
    where the publisher has a file of test rows, and this one is `published`.
    """
    rng = np.random.default_rng(100 + seed)
    folder = os.environ.get("VFL_FLOWER_DATA")
    if folder is None or name == "generated":
        X = rng.standard_t(5, (4000, 8))
        y = np.sin(X[:, 0] + X[:, 1]) + X[:, 2] * (X[:, 3] > 0)
    else:
        file = np.load(Path(folder) / f"{name}.npz")
        X, y = file["X"].astype(float), file["y"].astype(float)
    if name == "covtype":
        rows = rng.permutation(len(y))[:75_000]
        X, y = X[rows], (y[rows] == 2).astype(float)
    if published:
        assert folder is not None
        test = Path(folder) / f"{name}_t.npz"
        file = np.load(test)
        X_test, y_test = file["X"].astype(float), file["y"].astype(float)
    else:
        rows = rng.permutation(len(y))
        train, rest = np.split(rows, [int(0.8 * len(y))])
        X, y, X_test, y_test = X[train], y[train], X[rest], y[rest]
    if name not in REAL:
        y, y_test = np.where(y > 0, 1.0, -1.0), np.where(y_test > 0, 1.0, -1.0)
    return X, y, X_test, y_test


def said(real: bool, y: Array, f: Array, p: Array | None = None) -> str:
    """Return errors in words; `p` are probabilities of +1."""
    if real:
        return f"{np.mean((y - f) ** 2) / y.var():.4f} of the variance"
    from sklearn.metrics import log_loss, roc_auc_score

    text = f"{100 * np.mean((f > 0) != (y > 0)):.2f} %, AUC {roc_auc_score(y, f):.4f}"
    return text if p is None else f"{text}, log loss {log_loss(y, p):.4f}"


@dataclass(frozen=True)
class Pooled:
    """A model of ``FDSKL(solver="moments")`` from pooled columns.

    All choices and columns are made by the functions of the strategy and of its steps;
    sums of products alone are those of float32 numbers in one place, in the place of
    shares.

    Attributes
    ----------
    parties : list of Party
        With a place each.
    fitted : list
        Their columns of the training rows, and how local ones are made.
    state : list of KernelState
        Their relevances.
    joint : Joint
        The joint features, and how many times their angles are taken.
    multiple : int
        See there.
    fit : GramFit
        In units of the scaled targets.
    shift, scale : float
        Of the targets.
    """

    parties: list[Party]
    fitted: list[steps._Fitted]
    states: list[steps.KernelState]
    joint: steps.Joint
    multiple: int
    fit: GramFit
    shift: float
    scale: float

    def __call__(self, X: Array) -> Array:
        """Return the scores of rows, shape (rows,)."""
        blocks = np.split(X, np.cumsum([f.X.shape[1] for f in self.fitted])[:-1], 1)
        scores = []
        for rows in np.array_split(np.arange(len(X)), -(-len(X) // 4096)):
            parts = [
                replace(f, X=b[rows]) for f, b in zip(self.fitted, blocks, strict=True)
            ]
            F = columns(self.parties, parts, self.states, self.joint, self.multiple)
            scores.append(self.fit.scores(F)[:, 0])
        return self.scale * np.concatenate(scores) + self.shift


def columns(
    parties: list[Party],
    fitted: list[steps._Fitted],
    states: list[steps.KernelState],
    joint: steps.Joint,
    multiple: int,
) -> Array:
    """Return all features of the rows of `fitted`: local, and joint by bandwidth."""
    parts = [local_columns(f.local, f.X) for f in fitted]
    angles = sum(
        steps._angles(p, s, joint, f.local, f.X)
        for p, f, s in zip(parties, fitted, states, strict=True)
    )
    angles = angles * angles.dtype.type(multiple)
    turned = angles * np.float32(2 * np.pi * 2.0**-joint.bits)
    for part in np.split(turned, np.cumsum(joint.counts)[:-1], axis=1):
        parts += [np.cos(part), np.sin(part)]
    return np.hstack(parts, dtype=np.float32)


def noise_of(
    sizes: list[int], parties: int, M: int, deviation: float, rng: np.random.Generator
) -> Array:
    """Return the sum of the parties' noise in a Gram matrix, symmetric.

    Parameters
    ----------
    sizes : list of int
        Numbers of local columns of each kind, of each party; the last one opens it.
    parties, M : int
        Numbers of parties, and of all features; one target and the ones follow.
    deviation : float
        Of one party's noise beside the diagonal.
    rng : numpy.random.Generator
        Source of the draw: that of the protocol is another one.
    """
    kinds, place = len(sizes) // parties, np.arange(M + 2)
    total = np.zeros((M + 2, M + 2))
    for j in range(parties - 1):
        start = sum(sizes[: j * kinds])
        stop = start + sum(sizes[j * kinds : (j + 1) * kinds])
        mine = (place >= start) & (place < stop)
        mine |= (place >= sum(sizes)) & (place < M)
        drawn = rng.normal(0.0, deviation, total.shape)
        noise = np.triu(drawn, 1)
        noise += noise.T + np.sqrt(2) * np.diag(np.diag(drawn))
        total += noise * (mine[:, None] | mine)
    return total


def pooled(parties: list[Party], y: Array, solver: server.Solver, seed: int) -> Pooled:
    """Train a model of two classes, -1 and +1, or of numbers.

    Parameters
    ----------
    parties : list of Party
        Those of a run of the strategy without rows held out.
    y : Array, shape (n,)
        The labels.
    solver : Solver
        How.
    seed : int
        Of the run.
    """
    for j, member in enumerate(parties):
        member.index, member.n_parties, member.seed = j, len(parties), seed
    task = server._task(solver, len(parties))
    half = steps._halves(parties[0], task)
    rows = np.concatenate(half)
    fitted = [steps._fitted(member, task) for member in parties]
    states = [steps.KernelState(task) for _ in parties]
    sizes = [b.stop - b.start for f in fitted for b in f.local.blocks]

    def scaled() -> Array:
        parts = zip(parties, fitted, states, strict=True)
        return np.sum(
            [
                cumulants(
                    scaled_columns(f.local, f.X) * s.relevance,
                    task.kernel,
                    member.rng("pairs"),
                )
                for member, f, s in parts
            ],
            axis=0,
        )

    d = sum(f.X.shape[1] for f in fitted)
    density = min(1.0, max(server.DENSITY, server.LEAST_COLUMNS / d))
    others = sum(sizes) + 2
    told = [steps._distances(p, task, f) for p, f in zip(parties, fitted, strict=True)]
    median = median_of(np.sum(told, axis=0))
    joint = server._joint(solver, task, median, density, others)
    real = task.target == "continuous"
    shift, scale = (y[rows].mean(), y[rows].std()) if real else (0.0, 1.0)
    target = (y[rows] - shift) / scale
    if solver.epsilon and real:
        target = np.clip(target, -privacy.MOST_TARGET, privacy.MOST_TARGET)

    def turn(joint: steps.Joint, multiple: int) -> tuple[list[Array], GramFit]:
        M = sum(sizes) + 2 * joint.angles
        grams = [np.zeros((M + 2, M + 2)) for _ in half]
        ends = np.cumsum([0, *map(len, half)])
        for gram, start, stop in zip(grams, ends, ends[1:], strict=False):
            for part in np.array_split(np.arange(start, stop), -(-stop // 4096)):
                of_part = [replace(f, X=f.X[part]) for f in fitted]
                F = columns(parties, of_part, states, joint, multiple)
                more = target[part], np.ones(len(part))
                F = np.column_stack([F, *more]).astype(np.float32)
                gram += F.T @ F
        more = {}
        if solver.epsilon:
            angles, count = joint.angles, len(parties)
            weights = privacy.column_weights(angles, count, 1, real)
            units = np.repeat(
                [weights[0], 1.0, *weights[1:]], [sum(sizes), 2 * angles, 1, 1]
            )
            deviation = privacy.noise_deviation(solver.epsilon, solver.delta, angles)
            rng = np.random.default_rng([seed, 77])
            for gram in grams:
                gram *= np.outer(units, units)
                gram += noise_of(sizes, count, M, deviation, rng)
                units[:M] = 1.0
                gram /= np.outer(units, units)
                units[: sum(sizes)] = weights[0]
            more["deviation"] = deviation * np.sqrt(count - 1)
            more["target_deviation"] = more["deviation"] / weights[1]
        fit = fit_grams(
            grams,
            steps.blocks_of([*sizes, *(2 * c for c in joint.counts)]),
            "continuous" if real else "classes",
            **more,
        )
        if solver.epsilon:
            fit.weights[: sum(sizes)] *= weights[0]
        return grams, fit

    multiple = 1
    if solver.relevance and solver.bandwidth is None and not solver.epsilon:
        pilot = server._pilot(joint)
        grams, solved = turn(pilot, 1)
        holder = parties[-1]
        B = steps.drawn_probes(grams, solved, pilot, holder.rng("probes"))
        for member, f, state in zip(parties, fitted, states, strict=True):
            omega = steps._frequencies(member, state, pilot, f.X.shape[1])
            state.relevance = np.sqrt(relevance_of(omega.T @ B))
        joint = server._relevant(joint)
        multiple = server._multiple(task.kernel, scaled())
    _, fit = turn(joint, multiple)
    return Pooled(parties, fitted, states, joint, multiple, fit, shift, scale)


def moments(
    real: bool,
    X: Array,
    y: Array,
    parties: int,
    seed: int,
    relevance: bool = True,
    epsilon: float = 0.0,
) -> Callable[[Array], tuple[Array, Array | None, str]]:
    """Fit as ``FDSKL(solver="moments")`` does, and return what scores rows."""
    blocks = np.array_split(X, parties, axis=1)
    members = [
        Party(block, y if j == parties - 1 else None, name=f"p{j}")
        for j, block in enumerate(blocks)
    ]
    target: Target = "continuous" if real else "binary"
    settings = target, "gaussian", 0.0, len(y), 0, None, "server", 16, relevance
    solver = server.Solver(*settings, epsilon=epsilon, delta=DELTA)  # type: ignore[arg-type]
    model = pooled(members, y, solver, seed)
    rows, M = steps._task(model.states[0]).rows, len(model.fit.weights)
    error = model.fit.error[0] / model.fit.variance[0]
    told = f"{rows} rows, {M} columns, halves {error:.4f}"

    def score(new: Array) -> tuple[Array, Array | None, str]:
        f = model(new)
        if real:
            return f, None, told
        return f, model.fit.probabilities(f[:, None])[:, 0], told

    return score


def other(
    name: str, real: bool, X: Array, y: Array, seed: int, kernel_rows: int
) -> Callable[[Array], tuple[Array, Array | None, str]]:
    """Fit one of scikit-learn's, and return the function that scores rows."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler
    from sklearn.svm import SVC

    rng, rows = np.random.default_rng(seed), len(y)
    scoring = "neg_mean_squared_error" if real else "accuracy"
    halves = KFold(2, shuffle=True, random_state=seed)
    if name == "boosting":
        kind = HistGradientBoostingRegressor if real else HistGradientBoostingClassifier
        model = kind(
            max_iter=600, early_stopping=True, n_iter_no_change=20, random_state=seed
        )
        grid = {"learning_rate": [0.05, 0.1], "max_leaf_nodes": [31, 127]}
        search = GridSearchCV(model, grid, cv=halves, scoring=scoring).fit(X, y)
        best, told = search.best_estimator_, str(search.best_params_)
    else:
        if name == "linear":
            last = Ridge() if real else LogisticRegression(max_iter=1000)
            strength = 10.0 ** (np.arange(-2, 5) if real else np.arange(-3, 3))
            grid = {
                f"{type(last).__name__.lower()}__{'alpha' if real else 'C'}": (strength)
            }
        elif real:
            last = KernelRidge(kernel="rbf")
            grid = {
                "kernelridge__alpha": [1e-3, 1e-2, 1e-1],
                "kernelridge__gamma": np.array([0.1, 0.3, 1, 3]) / X.shape[1],
            }
        else:
            last = SVC(cache_size=500)
            grid = {
                "svc__C": [1.0, 10.0, 100.0],
                "svc__gamma": np.array([0.3, 1, 3, 10]) / X.shape[1],
            }
        clip = FunctionTransformer(np.clip, kw_args={"a_min": -8, "a_max": 8})
        pipe = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), clip)
        pipe.steps.append((type(last).__name__.lower(), last))
        tuned = rng.permutation(rows)[: TUNED_ON if name == "kernel" else rows]
        search = GridSearchCV(pipe, grid, cv=halves, scoring=scoring)
        search.fit(X[tuned], (y[tuned] - y.mean() * real))
        rows = min(rows, kernel_rows if name == "kernel" else rows)
        chosen = rng.permutation(len(y))[:rows]
        best = search.best_estimator_.fit(X[chosen], y[chosen] - y.mean() * real)
        told = f"{rows} rows, {search.best_params_}"

    def score(new: Array) -> tuple[Array, Array | None, str]:
        if real:
            return best.predict(new) + y.mean() * (name != "boosting"), None, told
        p = best.predict_proba(new)[:, 1] if name != "kernel" else None
        return best.decision_function(new), p, told

    return score


def main() -> None:
    """Parse the command line and print one line for each set, seed and model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["generated"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parties", type=int, nargs="+", default=[3])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--kernel-rows", type=int, default=20_000)
    parser.add_argument("--one-turn", action="store_true", help="no relevance")
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[0.0], help="noise of moments"
    )
    parser.add_argument("--published", action="store_true", help="publisher's split")
    options = parser.parse_args()
    for name in options.names:
        real = name in REAL
        for seed in options.seeds:
            X, y, X_test, y_test = load(name, seed, options.published)
            for model in options.models:
                ours = model == "moments"
                for parties, epsilon in product(
                    options.parties if ours else [1], options.epsilons if ours else [0]
                ):
                    start = time.perf_counter()
                    if ours:
                        two = not options.one_turn
                        score = moments(real, X, y, parties, seed, two, epsilon)
                    else:
                        score = other(model, real, X, y, seed, options.kernel_rows)
                    f, p, told = score(X_test)
                    noisy = f"with epsilon {epsilon:g} " * bool(epsilon)
                    print(
                        f"{name} {seed} {model} {f'of {parties} ' * (parties > 1)}"
                        f"{noisy}{said(real, y_test, f, p)}; {told}; "
                        f"{time.perf_counter() - start:.0f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
