"""The experiments of the federated kernel k-means paper.

All three tables take about half an hour::

    python -m vfl_flower.simulations.kernel_kmeans recovery floats nmi

========  ==========================================================================
recovery  error of the kernel matrix against iterations, with and without the
          communication mechanism: Figure 1 of [1]
floats    floats an iteration, Lanczos steps and ranks: Figures 2, 4 and 5
nmi       agreement with the true classes against floats and bytes: Figure 3
========  ==========================================================================

Rows are split among five users. What FK k-means is compared with is in
:mod:`vfl_flower.simulations.kernel_baselines`. Digits are scikit-learn's; the others
are npz files with X and y in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``:
mushrooms, mnist, covtype.

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party
from vfl_flower.ledger import Ledger
from vfl_flower.models import KernelKMeansModel
from vfl_flower.numerics.kernel_embedding import bandwidth
from vfl_flower.numerics.kernel_kmeans import (
    eigenpairs,
    feature_range,
    first_features,
    pooled_fkkm,
    recovery_error,
)
from vfl_flower.numerics.kmeans import assign, weighted_kmeans
from vfl_flower.numerics.lanczos import lanczos
from vfl_flower.numerics.random_features import RandomFeatures, features
from vfl_flower.report import markdown_table
from vfl_flower.simulations.experiments import (
    MissingData,
    check_some,
    load_npz,
    new_parser,
    read_options,
    show_tables,
    versions,
    write_results,
)
from vfl_flower.simulations.in_process import simulate
from vfl_flower.simulations.kernel_baselines import (
    KINDS,
    Clustering,
    communication_pca,
    default_gamma,
    plain,
    random_fourier,
    scalable_kernel,
    split_users,
)
from vfl_flower.strategies.kernel_kmeans import FKKMeans
from vfl_flower.typing import Array

USERS = 5
RULES = ("auto", "paper", "oracle")
"""Thresholds: the strategy's two, and the true (s + 1)-th eigenvalue of K."""

SAME = 0.01
"""NMI that a method may be below another and count as equal."""

MATRIX = 2**31
"""Bytes that the upper triangle of a kernel matrix may take, in float32."""

Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Rows:
    """A data set.

    Attributes
    ----------
    name : str
        Of the data set.
    X : Array of float64, shape (n, d)
        Rows of all users.
    y : Array, shape (n,)
        Their classes.
    k, s : int
        Clusters and components.
    coreset : int
        C.
    bound : float or None
        c of the c / t that [1] has beside its error.
    """

    name: str
    X: Array
    y: Array
    k: int
    s: int
    coreset: int = 1000
    bound: float | None = None


SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"k": 10, "s": 20},
    "mushrooms": {"k": 2, "s": 4, "bound": 0.4},
    "mnist-20k": {"k": 10, "s": 20, "bound": 0.03},
    "mnist": {"k": 10, "s": 20},
    "covtype": {"k": 7, "s": 14, "coreset": 4000},
}
"""Data sets, and k, s, C of each; [1] prints s and D in a picture that we have not."""


def load(name: str, folder: Path | None, rows: int) -> Rows:
    """Read a data set.

    Parameters
    ----------
    name : str
        One of `SETTINGS`.
    folder : Path or None
        Where its file is.
    rows : int
        At most so many, drawn at random; of mnist-20k at most 20,000. The columns of
        covtype are scaled to [0, 1].

    Raises
    ------
    MissingData
        There is no such file.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
    else:
        X, y = load_npz(folder, name.removesuffix("-20k"))
    if name == "mnist-20k":
        rows = min(rows, 20_000)
    if rows < len(y):
        drawn = np.random.default_rng(0).permutation(len(y))[:rows]
        X, y = X[drawn], y[drawn]
    if name == "covtype":
        X = (X - X.min(axis=0)) / np.maximum(np.ptp(X, axis=0), 1e-12)
    return Rows(name, X, y, **SETTINGS[name])


def kernel_eigenpairs(X: Array, s: int, max_bytes: int = MATRIX) -> tuple[Array, Array]:
    """Return the s largest eigenvalues of the Gaussian kernel matrix of all rows.

    By Lanczos (SciPy's `eigsh`) on the upper triangle of K in float32, 2 n^2 bytes:
    0.8 GB for 20,000 rows.

    Parameters
    ----------
    X : Array, shape (n, d)
        Rows; gamma is `default_gamma`.
    s : int
        Number of eigenpairs.
    max_bytes : int
        Of the triangle.

    Returns
    -------
    values : Array of float64, shape (s,)
        Descending; the rounding of K moves each by at most 1e-7 n.
    vectors : Array of float64, shape (n, s)
        Orthonormal.

    Raises
    ------
    MissingData
        The triangle does not fit.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    n, gamma = len(X), default_gamma(X)
    if 2 * n**2 > max_bytes:
        raise MissingData(f"the kernel matrix of {n:,} rows takes {n**2 / 5e8:.1f} GB")
    rows = (X - X.mean(axis=0)).astype(np.float32)  # small numbers, small rounding
    squares = np.einsum("ij,ij->i", rows, rows)
    edges = list(range(0, n, 1000))
    blocks = []
    for a in edges:
        K = rows[a : a + 1000] @ rows[a:].T
        K *= 2
        K -= squares[a : a + 1000, None]
        K -= squares[a:]
        np.minimum(K, 0, out=K)
        K *= np.float32(gamma)
        blocks.append(np.exp(K, out=K))

    def multiply(c: Array) -> Array:
        c = c.ravel().astype(np.float32)
        product = np.zeros(n)
        for a, K in zip(edges, blocks, strict=True):
            b = a + len(K)
            product[a:b] += K @ c[a:]
            product[b:] += c[a:b] @ K[:, b - a :]
        return product

    start = np.random.default_rng(0).standard_normal(n)
    operator = LinearOperator((n, n), matvec=multiply, dtype=np.float64)
    values, vectors = eigsh(operator, s, which="LA", v0=start, tol=1e-6)
    return values[::-1], vectors[:, ::-1]


# --- Recovery of the kernel matrix --------------------------------------------------


def pooled_draw(X: Array, D: int, D_1: int, seed: int) -> Callable[[int], Array]:
    """Return t to A_t, the features that a federated run with this secret seed has."""
    d = X.shape[1]
    width = bandwidth("gaussian", default_gamma(X))
    draws = RandomFeatures("gaussian", d, width, seed, orthogonal=True)

    def draw(t: int) -> Array:
        return features(draws.angles(X, *feature_range(t, D, D_1), 64))

    return draw


def paper_threshold(A: Array, k: int) -> float:
    """Return the (k + 2)-th eigenvalue of A_1 A_1^T / D."""
    values, _ = eigenpairs(A.T @ A / A.shape[1], math.inf, k + 2)
    return float(values[k + 1]) if len(values) > k + 1 else 0.0


class RowLanczos:
    """DSPGD without the mechanism: Lanczos on the n rows (section 4.1 of [1])."""

    def __init__(self, n: int) -> None:
        self.B, self.rng = np.empty((n, 0)), np.random.default_rng(0)

    def step(self, A: Array, eta: float, lam: float, s: int) -> tuple[Array, int]:
        """Return H, were this the last iteration, and Q_0, the number of products.

        Parameters
        ----------
        A : Array of float64, shape (n, D)
            A_t.
        eta, lam : float
            eta_t and lambda.
        s : int
            Number of components.
        """
        B = self.B

        def multiply(c: Array) -> Array:
            kept = (1 - eta) * (B @ (B.T @ c))
            return np.asarray(kept + eta / A.shape[1] * (A @ (A.T @ c)))

        start = self.rng.standard_normal(len(A))
        found = lanczos(multiply, start, eta * lam, rng=self.rng, at_least=s)
        values, U = found.values, found.vectors
        kept = values > eta * lam
        self.B = U[:, kept] * np.sqrt(values[kept] - eta * lam)
        H = U[:, :s] * np.sqrt(values[:s] + (1 - eta) * lam)
        return np.asarray(H), found.steps


def slope(curve: Array) -> float:
    """Return the slope of log error on log t over t = 2 .. T; nan where T < 3."""
    if len(curve) < 3:
        return math.nan
    t = np.arange(2, len(curve) + 1)
    return float(np.polyfit(np.log(t), np.log(curve[1:]), 1)[0])


def interval(values: Array) -> Array:
    """Return half the width of the 95 % confidence interval of the mean, by column."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], math.nan)
    return np.asarray(t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n))


def recovery(
    data: Rows,
    *,
    counts: Sequence[int] = (20, 50, 100),
    iterations: int = 50,
    seeds: int = 5,
    without: int = 50,
    tell: Tell = print,
) -> dict[str, Any]:
    """Compare K_t with the best approximation of K of rank s.

    Parameters
    ----------
    data : Rows
        All rows.
    counts : sequence of int
        D.
    iterations, seeds : int
        T, and runs of each kind.
    without : int
        D of the run without the mechanism, with threshold "auto", on the features of
        those with it: the difference is that of the solvers alone.
    tell : callable
        Called with one line a curve.

    Returns
    -------
    dict
        ``eigenvalues``, the s + 1 largest, and ``curves``, each with ``D``, ``rule``,
        ``cem``, ``errors`` (seeds, T), ``thresholds``, ``slope`` of the mean curve, and
        ``largest``: of t times the mean error.

    Raises
    ------
    MissingData
        The kernel matrix does not fit.
    """
    values, vectors = kernel_eigenpairs(data.X, data.s + 1)
    oracle, largest = float(values[data.s]), (values[: data.s], vectors[:, : data.s])
    found = []
    for D in counts:
        for rule in RULES:
            if rule == "paper" and data.k + 2 > D:
                continue
            pair = rule == "auto" and without == D
            curves: dict[bool, list[list[float]]] = {True: [], False: []}
            thresholds = []
            for seed in range(seeds):
                rows = RowLanczos(len(data.X))
                draw, threshold = start(data, D, rule, seed, oracle)
                with_cem, by_rows = [], []
                for t, one in enumerate(
                    pooled_fkkm(draw, iterations, data.s, threshold), start=1
                ):
                    with_cem.append(recovery_error(one.H, *largest))
                    if pair:
                        H, _ = rows.step(draw(t), one.eta, one.threshold, data.s)
                        by_rows.append(recovery_error(H, *largest))
                thresholds.append(one.threshold)
                curves[True].append(with_cem)
                curves[False] += [by_rows] if pair else []
            for cem, errors in curves.items():
                if not errors:
                    continue
                mean = np.mean(errors, axis=0)
                line = {"D": D, "rule": rule, "cem": cem, "errors": errors}
                line |= {"thresholds": thresholds, "slope": slope(mean)}
                line["largest"] = float((mean * np.arange(1, len(mean) + 1)).max())
                found.append(line)
                tell(
                    f"{data.name}: D = {D}, {rule}, cem {cem}: last {mean[-1]:.2e}, "
                    f"slope {line['slope']:.2f}, t x error {line['largest']:.3f}"
                )
    return {
        "n": len(data.X),
        "k": data.k,
        "s": data.s,
        "bound": data.bound,
        "eigenvalues": values.tolist(),
        "curves": found,
    }


def start(
    data: Rows, D: int, rule: str, seed: int, oracle: float
) -> tuple[Callable[[int], Array], float | None]:
    """Return the features by iteration, and lambda (None: that of "auto")."""
    D_1 = first_features(D, data.s) if rule == "auto" else D
    draw = lru_cache(maxsize=1)(pooled_draw(data.X, D, D_1, seed))
    if rule == "paper":
        return draw, paper_threshold(draw(1), data.k)
    return draw, oracle if rule == "oracle" else None


def recovery_page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of recovery errors."""
    lines = ["## Error of the kernel matrix"]
    for name, entry in found.items():
        T = len(entry["curves"][0]["errors"][0])
        times = [t for t in (1, 2, 5, 10, 20, 50) if t <= T]
        header = ["D", "threshold", "CEM", "lambda", "slope", "max t x error"]
        header += [f"t = {t}" for t in times]
        rows = []
        for one in entry["curves"]:
            errors = np.array(one["errors"])
            mean, half = errors.mean(axis=0), interval(errors)
            rows.append(
                [
                    str(one["D"]),
                    one["rule"],
                    "with" if one["cem"] else "without",
                    f"{np.mean(one['thresholds']):.1f}",
                    f"{one['slope']:.2f}",
                    f"{one['largest']:.3f}",
                    *(f"{mean[t - 1]:.2g} ({half[t - 1]:.1g})" for t in times),
                ]
            )
        if entry["bound"]:
            c = entry["bound"]
            rows.append(["", f"{c:g} / t", *[""] * 4, *(f"{c / t:.2g}" for t in times)])
        values, s = entry["eigenvalues"], entry["s"]
        lines += [
            "",
            f"### {name}",
            "",
            f"{entry['n']:,} rows, k = {entry['k']}, s = {s}; eigenvalues of K: "
            f"{values[0]:.0f}, {values[1]:.0f} .. the s-th {values[s - 1]:.1f}, the "
            f"next {values[s]:.1f}. {difference(entry)}",
            "",
            markdown_table(header, rows),
        ]
    return "\n".join(lines)


def difference(entry: Mapping[str, Any]) -> str:
    """Return, as a sentence, how far the curves with and without CEM are apart."""
    without = [one for one in entry["curves"] if not one["cem"]]
    gaps = []
    for one in without:
        (other,) = (
            c
            for c in entry["curves"]
            if c["cem"] and (c["D"], c["rule"]) == (one["D"], one["rule"])
        )
        a, b = (np.mean(c["errors"], axis=0) for c in (one, other))
        gaps.append(float(np.abs(a / b - 1).max()))
    return f"With and without CEM: {max(gaps):.1e} apart at most." if gaps else ""


# --- Floats an iteration ------------------------------------------------------------


def floats(
    data: Rows,
    *,
    D: int = 50,
    iterations: int = 20,
    users: int = USERS,
    ledger: bool = True,
    tell: Tell = print,
) -> dict[str, Any]:
    """Count the floats uploaded in each iteration, by formula and by the ledger.

    Parameters
    ----------
    data : Rows
        All rows.
    D, iterations : int
        D and T.
    users : int
        M.
    ledger : bool
        Whether to run the federated algorithm, and not the formulas alone.
    tell : callable
        Called with one line a method.

    Returns
    -------
    dict
        By iteration ``sizes`` (D + r_t), ``ranks`` (of Z_{t+1}), ``Q_0`` and ``Q_1``;
        ``methods``: by name ``formula`` and ``ledger``, floats of all iterations, and
        ``round_trips`` of the run.
    """
    draw, _ = start(data, D, "auto", 0, math.nan)
    rng, n = np.random.default_rng(0), len(data.X)
    by_rows = RowLanczos(n)
    sizes, counts, Q_0, Q_1 = [], [], [], []
    for t, one in enumerate(pooled_fkkm(draw, iterations, data.s), start=1):
        A = draw(t)
        G, cut = one.W.T @ one.W, one.eta * one.threshold
        # "auto" wants the s + 1 largest eigenpairs of iteration 1.
        wanted = (math.inf, data.s + 1) if t == 1 else (cut, data.s)
        first = rng.standard_normal(len(G))
        Q_1.append(
            lanczos(
                partial(np.matmul, G), first, wanted[0], rng=rng, at_least=wanted[1]
            ).steps
        )
        Q_0.append(by_rows.step(A, one.eta, one.threshold, data.s)[1])
        sizes.append(len(G))
        counts.append(A.shape[1])
    ranks = [m - c for m, c in zip(sizes[1:], counts[1:], strict=True)]
    ranks.append(int((one.values > cut).sum()))
    formulas = {
        "gram": users * sum(m * (m + 1) // 2 for m in sizes),
        "lanczos": users * sum(m * q for m, q in zip(sizes, Q_1, strict=True)),
        "without CEM": sum(
            (n + users * c) * q for c, q in zip(counts, Q_0, strict=True)
        ),
    }
    found: dict[str, Any] = {
        "n": n,
        "D": D,
        "T": iterations,
        "users": users,
        "sizes": sizes,
        "ranks": ranks,
        "Q_0": Q_0,
        "Q_1": Q_1,
        "pooled": formulas,
        "methods": {},
    }
    tell(f"{data.name}: {formulas}, Q_0 {np.mean(Q_0):.1f}, Q_1 {np.mean(Q_1):.1f}")
    if ledger:
        found["methods"] = {
            name: _counted(data, D, iterations, users, name) for name in SOLVERS
        }
        for name, of in found["methods"].items():
            tell(f"{data.name}: {name}: {of}")
    return found


SOLVERS: dict[str, dict[str, Any]] = {
    "gram": {},
    "lanczos": {"eigensolver": "lanczos"},
    "block-lanczos": {"eigensolver": "block-lanczos"},
    "without CEM": {"eigensolver": "lanczos", "cem": False, "masking": "plain"},
}
"""Arguments of the strategy."""

ASKED = {
    "gram": ("gram",),
    "lanczos": ("product",),
    "block-lanczos": ("product",),
    "without CEM": ("project", "expand"),
}
"""Steps of the iterations."""


def _counted(data: Rows, D: int, T: int, M: int, name: str) -> dict[str, Any]:
    """Run the strategy, and return floats by formula, by the ledger, and the rest."""
    strategy = FKKMeans(data.k, data.s, D, T, subspace_tol=0.0, **SOLVERS[name])
    parts = split_users(len(data.X), M, np.random.default_rng(0))
    result = simulate(strategy, [Party(data.X[rows]) for rows in parts], seed=0)
    of: list[dict[str, Any]] = [
        dict(result.train_metrics_clientapp[t]) for t in range(1, T + 1)
    ]
    steps = [int(metrics["products"]) for metrics in of]
    counts = [first_features(D, data.s)] + [D] * (T - 1)
    ranks = [0] + [int(metrics["rank"]) for metrics in of]
    sizes = [c + r for c, r in zip(counts, ranks[:-1], strict=True)]
    if name == "gram":
        formula = M * sum(m * (m + 1) // 2 for m in sizes)
    elif name == "without CEM":
        N = len(data.X)
        formula = sum((N + M * c) * q for c, q in zip(counts, steps, strict=True))
    else:
        width = strategy.block_size if name == "block-lanczos" else 1
        # The last block of a small matrix may be narrower; one trace a user at t = 1.
        formula = M * sum(
            m * min(width * q, m) for m, q in zip(sizes, steps, strict=True)
        )
        formula += M
    actions = [f"kernel_kmeans_{step}" for step in ASKED[name]]
    return {
        "formula": formula,
        "ledger": uploaded(result.ledger.of(*actions)),
        "bytes_up": result.ledger.of(*actions).bytes_up,
        "products": float(np.mean(steps)),
        "ranks": ranks[1:],
        "round_trips": result.ledger.round_trips,
    }


def uploaded(ledger: Ledger) -> int:
    """Return the floats that users uploaded."""
    return sum(entry.units_up for entry in ledger.entries.values())


def floats_page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of floats, Lanczos steps and ranks."""
    rows, ranks, checks = [], [], []
    for name, entry in found.items():
        T, pooled = entry["T"], entry["pooled"]
        a_step = {k: v / T for k, v in pooled.items()}
        saved = 1 - a_step["lanczos"] / a_step["without CEM"]
        rows.append(
            [
                name,
                f"{entry['n']:,}",
                f"{entry['D']}",
                *(f"{a_step[k]:,.0f}" for k in ("without CEM", "lanczos", "gram")),
                f"{100 * saved:.1f}",
                f"{100 * (1 - a_step['gram'] / a_step['without CEM']):.1f}",
                f"{np.mean(entry['Q_0']):.1f}",
                f"{np.mean(entry['Q_1']):.1f}",
            ]
        )
        times = [t for t in (1, 2, 5, 10, 20, 50) if t <= T]
        ranks.append([name, ", ".join(f"{entry['ranks'][t - 1]} ({t})" for t in times)])
        for method, of in entry["methods"].items():
            checks.append(
                [
                    name,
                    method,
                    f"{of['formula']:,}",
                    f"{of['ledger']:,}",
                    f"{of['bytes_up'] / 1e6:.2f}",
                    f"{of['products']:.1f}",
                    f"{of['round_trips']:,}",
                ]
            )
    header = [
        "",
        "rows",
        "D",
        "without CEM",
        "Lanczos",
        "Gram",
        "saved by Lanczos in %",
    ]
    lines = ["## Floats uploaded in an iteration", ""]
    lines += [markdown_table([*header, "by Gram in %", "Q_0", "Q_1"], rows), ""]
    lines += [markdown_table(["", "rank of Z_t+1 (t)"], ranks)]
    if checks:
        header = ["", "method", "floats by formula", "ledger", "MB up", "products"]
        lines += ["", markdown_table([*header, "round trips"], checks)]
    return "\n".join(lines)


# --- Clusters against floats --------------------------------------------------------

Method = Callable[[Rows, list[Array], int], dict[str, Any]]


def federated(
    data: Rows, users: list[Array], seed: int, **arguments: Any
) -> dict[str, Any]:
    """Run FK k-means and return its labels and what it cost."""
    arguments = {"coreset_size": data.coreset} | arguments
    strategy = FKKMeans(data.k, data.s, **arguments)
    begin = time.perf_counter()
    result = simulate(strategy, [Party(data.X[rows]) for rows in users], seed=seed)
    seconds = time.perf_counter() - begin
    assert isinstance(result.model, KernelKMeansModel)
    labels = np.empty(len(data.X), dtype=np.int64)
    for rows, own in zip(users, result.model.labels_, strict=True):
        labels[rows] = own
    ledger = result.ledger
    one = Clustering("FK k-means", labels, uploaded(ledger), seconds)
    more = {"bytes": ledger.bytes_up, "bytes_down": ledger.bytes_down}
    more["round_trips"] = ledger.round_trips
    return _cell(one, data) | more


def baseline(
    method: Callable[..., Clustering],
    data: Rows,
    users: list[Array],
    seed: int,
    **arguments: Any,
) -> dict[str, Any]:
    """Run what FK k-means is compared with."""
    one = method(data.X, users, data.k, np.random.default_rng(seed), **arguments)
    return _cell(one, data)


def _cell(one: Clustering, data: Rows) -> dict[str, Any]:
    nmi = one.nmi(data.y)
    return {"nmi": nmi, "floats": one.floats, "seconds": one.seconds}


def methods(data: Rows, quick: bool) -> dict[str, tuple[str, Method]]:
    """Return what is run on a data set: by name, the family and the function.

    Parameters
    ----------
    data : Rows
        All rows.
    quick : bool
        Fewer settings.
    """
    found: dict[str, tuple[str, Method]] = {}

    def add(name: str, family: str, method: Any, **arguments: Any) -> None:
        found[name] = (family, partial(method, **arguments))

    def fk(name: str, **arguments: Any) -> None:
        add(f"FK k-means, {name}", "FK", federated, **arguments)

    C = data.coreset
    fk("default: D = 50, T = 20", n_features=50, iterations=20)
    fk("D = 50, T = 5", n_features=50, iterations=5)
    fk("D = 100, T = 1", n_features=100, iterations=1)
    paper = {"threshold": "paper", "subspace_tol": 0.0, "iterations": 20}
    fk("D = 50, T = 20, paper's threshold", n_features=50, **paper)
    if not quick:
        fk("D = 100, T = 20", n_features=100, iterations=20)
        fk("D = 20, T = 20", n_features=20, iterations=20)
        fk("D = 50, T = 10", n_features=50, iterations=10)
        fk("D = 50, T = 5, C = 300", n_features=50, iterations=5, coreset_size=300)
    for D in (50, 100, 200, 400, 800):
        for size in (300, C):
            add(
                f"RFK, D = {D}, C = {size}",
                "RFK",
                partial(baseline, random_fourier),
                n_features=D,
                budget=size,
            )
    for D in (100,) if quick else (20, 50, 100, 200):
        settings = {"n_components": data.s, "n_features": D, "budget": C}
        add(
            f"CE PCA, D = {D}, C = {C}",
            "CE PCA",
            partial(baseline, communication_pca),
            **settings,
        )
    add(f"k-means of the columns, C = {C}", "plain", partial(baseline, plain), budget=C)
    landmarks = 200 if len(data.X) > 30_000 else 500
    settings = {"n_components": data.s, "n_landmarks": landmarks}
    add("SK", "central", partial(baseline, scalable_kernel), **settings)
    return found


def central(data: Rows) -> Method:
    """Return CK, whose eigenpairs are found once; its seeds are those of k-means.

    Raises
    ------
    MissingData
        The kernel matrix does not fit.
    """
    values, U = kernel_eigenpairs(data.X, data.s)
    H = U * np.sqrt(values)

    def run(data: Rows, users: list[Array], seed: int) -> dict[str, Any]:
        begin, rng = time.perf_counter(), np.random.default_rng(seed)
        centers, _ = weighted_kmeans(H, data.k, np.ones(len(H)), rng, n_init=30)
        labels = assign(H, centers)[0]
        seconds = time.perf_counter() - begin
        return _cell(Clustering("CK", labels, data.X.size, seconds), data)

    return run


def nmi(
    data: Rows,
    *,
    seeds: int = 10,
    users: int = USERS,
    kind: str = "equal",
    quick: bool = False,
    tell: Tell = print,
) -> dict[str, Any]:
    """Run all methods on a data set.

    Parameters
    ----------
    data : Rows
        All rows.
    seeds : int
        Runs of each method, each with a split of its own.
    users, kind
        M, and how the rows are split; see
        :func:`~vfl_flower.simulations.kernel_baselines.split_users`.
    quick : bool
        Fewer settings of each method.
    tell : callable
        Called with one line a method.

    Returns
    -------
    dict
        ``methods``, by name: ``family``, ``nmi`` of each seed, and means of ``floats``,
        ``bytes`` and ``seconds``.
    """
    todo = methods(data, quick)
    skipped = ""
    try:
        todo["CK"] = ("central", central(data))
    except MissingData as reason:
        skipped = str(reason)
    found: dict[str, Any] = {}
    for name, (family, method) in todo.items():
        cells = []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, users])
            parts = split_users(len(data.X), users, rng, kind, data.y)
            cells.append(method(data, parts, seed))
        means = {
            what: float(np.mean([cell[what] for cell in cells]))
            for what in cells[0]
            if what != "nmi"
        }
        found[name] = {"family": family, "nmi": [c["nmi"] for c in cells]} | means
        tell(
            f"{data.name}: {name}: NMI {np.mean(found[name]['nmi']):.3f}, "
            f"{means['floats']:,.0f} floats, {means['seconds']:.1f} s"
        )
    return {
        "n": len(data.X),
        "d": data.X.shape[1],
        "k": data.k,
        "s": data.s,
        "users": users,
        "kind": kind,
        "without CK": skipped,
        "methods": found,
    }


def needed(entry: Mapping[str, Any], name: str, family: str) -> tuple[str, float]:
    """Return the cheapest setting of a family that is as good as one of FK k-means.

    Parameters
    ----------
    entry : mapping
        From :func:`nmi`.
    name, family : str
        A setting of FK k-means, and what it is compared with.

    Returns
    -------
    name : str
        The setting whose mean NMI is at most `SAME` below; "" if there is none.
    floats : float
        That it uploads; infinite if there is none.
    """
    found = entry["methods"]
    least = float(np.mean(found[name]["nmi"])) - SAME
    enough = {
        other: of["floats"]
        for other, of in found.items()
        if of["family"] == family and np.mean(of["nmi"]) >= least
    }
    best = min(enough, key=enough.__getitem__, default="")
    return best, enough.get(best, math.inf)


def nmi_page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of NMI against floats and bytes."""
    lines = ["## Clusters against floats and bytes"]
    for name, entry in found.items():
        rows = []
        for method, of in entry["methods"].items():
            scores = np.array(of["nmi"])
            error = (
                scores.std(ddof=1) / math.sqrt(len(scores)) if len(scores) > 1 else 0
            )
            rows.append(
                [
                    method,
                    f"{scores.mean():.3f} ({error:.3f})",
                    f"{of['floats']:,.0f}",
                    f"{of.get('bytes', 8 * of['floats']) / 1e6:.2f}",
                    f"{of['round_trips']:.0f}" if "round_trips" in of else "",
                    f"{of['seconds']:.1f}",
                ]
            )
        header = ["", "NMI (s.e.)", "floats up", "MB up", "round trips", "seconds"]
        seeds = len(next(iter(entry["methods"].values()))["nmi"])
        lines += [
            "",
            f"### {name}",
            "",
            f"{entry['n']:,} rows of {entry['d']} columns, k = {entry['k']}, s = "
            f"{entry['s']}, {entry['users']} users, split {entry['kind']}, {seeds} "
            f"seeds.",
            "",
            markdown_table(header, rows),
            "",
            needed_table(entry),
        ]
    return "\n".join(lines)


def needed_table(entry: Mapping[str, Any]) -> str:
    """Return what each setting of FK k-means saves at the same NMI."""
    rows = []
    for name, of in entry["methods"].items():
        if of["family"] != "FK":
            continue
        row = [name, f"{of['floats']:,.0f}"]
        for family in ("RFK", "CE PCA", "plain"):
            best, count = needed(entry, name, family)
            saved = 100 * (1 - of["floats"] / count)
            row += [f"{count:,.0f} ({saved:.0f} %): {best}" if best else "not reached"]
        rows.append(row)
    rivals = [f"{f}: floats for the same NMI (saved)" for f in ("RFK", "CE PCA")]
    return markdown_table(["", "floats up", *rivals, "k-means of the columns"], rows)


# --- The command --------------------------------------------------------------------

TABLES = ("recovery", "floats", "nmi")


def run(
    table: str,
    output: Path,
    data_dir: Path | None,
    *,
    names: Sequence[str] = tuple(SETTINGS),
    rows: int = 100_000,
    seeds: int | None = None,
    counts: Sequence[int] = (20, 50, 100),
    iterations: int | None = None,
    users: int = USERS,
    kind: str = "equal",
    quick: bool = False,
    tell: Tell = print,
) -> str:
    """Make one table, write ``kernel_kmeans-<table>`` (json and md), return its page.

    Both are written after each data set, whole or not at all.

    Parameters
    ----------
    table : {"recovery", "floats", "nmi"}
        Which.
    output : Path
        Folder of the files, made where it does not exist.
    data_dir : Path or None
        Folder of the npz files.
    names : sequence of str
        Data sets.
    rows : int
        Of each at most.
    seeds : int, optional
        Runs; default 5 of ``recovery``, 10 of ``nmi``.
    counts : sequence of int
        D of ``recovery``; without the mechanism the middle one runs.
    iterations : int, optional
        T; default 50 of ``recovery``, 20 of ``floats``.
    users, kind, quick
        As of :func:`nmi`.
    tell : callable
        Called with one line a figure.
    """
    output.mkdir(parents=True, exist_ok=True)
    settings = {"table": table, "datasets": list(names), "rows": rows, "seeds": seeds}
    settings |= {"counts": list(counts), "iterations": iterations, "users": users}
    settings |= {"kind": kind, "quick": quick}
    skipped: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name in names:
        try:
            data = load(name, data_dir, rows)
            if table != "recovery" and users > (most := min(len(data.X), 300)):
                # of rows, and of points in the smallest coreset
                raise MissingData(f"--users must be at most {most}, got {users}")
            if table == "recovery":
                found[name] = recovery(
                    data,
                    counts=counts,
                    iterations=iterations or 50,
                    seeds=seeds or 5,
                    without=counts[len(counts) // 2],
                    tell=tell,
                )
            elif table == "floats":
                found[name] = floats(
                    data,
                    iterations=iterations or 20,
                    users=users,
                    ledger=len(data.X) <= 10_000,
                    tell=tell,
                )
            else:
                found[name] = nmi(
                    data,
                    seeds=seeds or 10,
                    users=users,
                    kind=kind,
                    quick=quick,
                    tell=tell,
                )
        except MissingData as reason:
            skipped[name] = str(reason)
            check_some(skipped, names)
        page = {"recovery": recovery_page, "floats": floats_page, "nmi": nmi_page}[
            table
        ](found)
        for other, why in skipped.items():
            page += f"\n\n**{other}** was skipped: {why}."
        results = {"settings": settings, "versions": versions(), "skipped": skipped}
        stem = output / f"kernel_kmeans-{table}"
        write_results(results | {table: found}, page + "\n", stem)
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    parser = new_parser(
        "kernel_kmeans", "the federated kernel k-means paper", SETTINGS, TABLES
    )
    parser.add_argument(
        "--rows", type=int, default=100_000, help="of each data set at most"
    )
    parser.add_argument("--seeds", type=int, help="runs (default: 5 or 10)")
    parser.add_argument(
        "--counts",
        nargs="+",
        type=int,
        default=[20, 50, 100],
        metavar="D",
        help="random features of recovery",
    )
    parser.add_argument("--iterations", type=int, help="T of recovery and floats")
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--split", choices=KINDS, default="equal")
    parser.add_argument("--quick", action="store_true", help="fewer settings of nmi")
    least = {"rows": 100, "seeds": 1, "iterations": 1, "users": 3, "counts": 1}
    args = read_options(parser, arguments, least)
    if args.iterations and "nmi" in args.tables:
        parser.error("--iterations must not be given for nmi, which has its own")
    make = partial(
        run,
        output=args.output_dir,
        data_dir=args.data_dir,
        names=args.datasets,
        rows=args.rows,
        seeds=args.seeds,
        counts=args.counts,
        iterations=args.iterations,
        users=args.users,
        kind=args.split,
        quick=args.quick,
    )
    show_tables(parser, args, make)


if __name__ == "__main__":
    main()
