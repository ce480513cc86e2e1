"""Test errors of kernel models from sums of products, beside what users would take.

``VFL_FLOWER_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/kernel_accuracy.py
kc_house a9a``: for each set and seed a line a model, with error (or mean squared error
over the variance), AUC, log loss and seconds. All is tuned on training rows only:

- *moments*: local and joint features of columns split among ``--parties``, fitted from
  the Gram matrices of two halves, all in one process;
- *linear*: ridge or logistic regression, by cross-validation;
- *kernel*: support vectors, or kernel ridge regression, with Gaussian kernels, by
  cross-validation on 4,000 rows, then fitted on ``--kernel-rows`` rows;
- *boosting*: scikit-learn's gradient boosting, by cross-validation.

Without a folder, or with the name ``generated``: generated rows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vfl_flower.numerics.gram_fit import Block, fit_grams
from vfl_flower.numerics.local_columns import (
    fit_local_columns,
    local_columns,
    scaled_columns,
)
from vfl_flower.numerics.random_features import RandomFeatures
from vfl_flower.typing import Array

REAL = ("kc_house", "protein", "pol", "generated")
FACTORS = {0.5: 0.75, 1.0: 0.25}
"""Bandwidths of the joint features, times the one of the median distance, and shares of
the features."""

TUNED_ON = 4000
"""Rows on which kernel methods are tuned."""

MODELS = ("moments", "linear", "kernel", "boosting")


def load(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return training rows and labels, and test rows and labels.

    The split is the publisher's where there is one, else four rows in five are for
    training; 60,000 of covtype.
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
    if folder is not None and (test := Path(folder) / f"{name}_t.npz").exists():
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


def moments(
    real: bool, X: Array, y: Array, parties: int, features: int, seed: int
) -> Callable[[Array], tuple[Array, Array | None, str]]:
    """Fit, and return the function that scores rows."""
    rng = np.random.default_rng(seed)
    n, d = X.shape
    halves = rng.permutation(n) % 2
    columns = np.array_split(np.arange(d), parties)
    room = min(features, n // 8 - 2, 4094)
    fitted = [
        fit_local_columns(X[:, own], halves, most=room // 2 // parties, rng=rng)
        for own in columns
    ]
    sizes = [b.stop - b.start for local in fitted for b in local.blocks]
    density = min(1.0, max(0.3, 4 / d))
    Z = np.hstack(
        [scaled_columns(f, X[:, own]) for f, own in zip(fitted, columns, strict=True)]
    )
    first, second = rng.permutation(n)[: min(n, 4000) // 2 * 2].reshape(2, -1)
    middle = np.sqrt(np.median(((Z[first] - Z[second]) ** 2).sum(axis=1)) / 2)
    counts = [int((room - sum(sizes)) * share) // 2 for share in FACTORS.values()]
    joint = [
        [
            RandomFeatures(
                "gaussian",
                len(own),
                middle * factor,
                int(rng.integers(2**62)),
                orthogonal=True,
                density=density,
            )
            for own in columns
        ]
        for factor in FACTORS
    ]
    sizes += [2 * count for count in counts]

    def made(rows: Array) -> Array:
        parts = [rows[:, own] for own in columns]
        blocks = [local_columns(f, x) for f, x in zip(fitted, parts, strict=True)]
        scaled = [scaled_columns(f, x) for f, x in zip(fitted, parts, strict=True)]
        for count, party_parts in zip(counts, joint, strict=True):
            angles = sum(
                part.angles(z, 0, count, 64).astype(np.float32)
                for part, z in zip(party_parts, scaled, strict=True)
            )
            turned = np.float32(2 * np.pi) * angles
            blocks += [np.cos(turned), np.sin(turned)]
        return np.hstack(blocks, dtype=np.float32)

    scale = y.std() if real else 1.0
    shift = y.mean() if real else 0.0
    M = sum(sizes)
    grams = [np.zeros((M + 2, M + 2)) for _ in range(2)]
    for half, gram in enumerate(grams):
        rows = np.flatnonzero(halves == half)
        for part in np.array_split(rows, -(-len(rows) // 4096)):
            y_part = (y[part] - shift) / scale
            F = np.column_stack([made(X[part]), y_part, np.ones(len(part))])
            F = F.astype(np.float32)
            gram += F.T @ F
    stops = np.cumsum(sizes).tolist()
    blocks = [
        Block(str(k), stop - size, stop)
        for k, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]
    fit = fit_grams(grams, blocks, "continuous" if real else "classes")
    told = f"{M} columns, halves {fit.error[0] / fit.variance[0]:.4f}"

    def score(rows: Array) -> tuple[Array, Array | None, str]:
        parts = np.array_split(rows, -(-len(rows) // 4096))
        f = np.concatenate([fit.scores(made(part))[:, 0] for part in parts])
        if real:
            return scale * f + shift, None, told
        p = fit.probabilities(f[:, None])[:, 0]
        by_p = 100 * np.mean((p > 0.5) != (f > 0))
        return f, p, f"{told}, {by_p:.2f} % others by probability"

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
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler
    from sklearn.svm import SVC

    rng, rows = np.random.default_rng(seed), len(y)
    scoring = "neg_mean_squared_error" if real else "accuracy"
    if name == "boosting":
        kind = HistGradientBoostingRegressor if real else HistGradientBoostingClassifier
        model = kind(
            max_iter=600, early_stopping=True, n_iter_no_change=20, random_state=seed
        )
        grid = {"learning_rate": [0.05, 0.1], "max_leaf_nodes": [31, 127]}
        search = GridSearchCV(model, grid, cv=3, scoring=scoring).fit(X, y)
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
        search = GridSearchCV(pipe, grid, cv=3, scoring=scoring)
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
    parser.add_argument("--features", type=int, default=4094, help="most columns")
    parser.add_argument("--kernel-rows", type=int, default=20_000)
    options = parser.parse_args()
    for name in options.names:
        real = name in REAL
        for seed in options.seeds:
            X, y, X_test, y_test = load(name, seed)
            for model in options.models:
                for parties in options.parties if model == "moments" else [1]:
                    start = time.perf_counter()
                    if model == "moments":
                        filled = np.nan_to_num(X, nan=np.nan)
                        score = moments(
                            real, filled, y, parties, options.features, seed
                        )
                    else:
                        score = other(model, real, X, y, seed, options.kernel_rows)
                    f, p, told = score(X_test)
                    print(
                        f"{name} {seed} {model} {f'of {parties} ' * (parties > 1)}"
                        f"{said(real, y_test, f, p)}; {told}; "
                        f"{time.perf_counter() - start:.0f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
