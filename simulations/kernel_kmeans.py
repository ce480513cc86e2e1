"""The experiments of the federated kernel k-means paper.

All tables take about forty minutes::

    python -m simulations.kernel_kmeans recovery floats nmi clustering number gamma

==========  ========================================================================
recovery    error of the kernel matrix against iterations, with and without the
            communication mechanism: Figure 1 of [1]
floats      floats an iteration, Lanczos steps and ranks: Figures 2, 4 and 5
nmi         agreement with the true classes against floats and bytes: Figure 3
clustering  k-means by sums over the parties beside that of [1], on a coreset
number      the number of clusters that the server chooses, beside pooled criteria
gamma       agreement at the default gamma and at larger ones, beside k-means
==========  ========================================================================

Rows are split among five parties, the *users* of [1]. What FK k-means is compared with
is in :mod:`simulations.kernel_baselines`. Digits are scikit-learn's; the others are npz
files with X and y in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``: mushrooms,
mnist, covtype, covtype15k, celltype. Groups, grid, rings, circles and moons are
generated.

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import click
import numpy as np
import typer

from simulations.experiments import (
    OUTPUT,
    DataDir,
    MissingData,
    OutputDir,
    Results,
    load_npz,
    mean_and_error,
    new_app,
    some_of,
    standardise,
    table,
    tables_of,
    tell,
)
from simulations.kernel_baselines import (
    Kind,
    central_kernel,
    communication_pca,
    kernel_eigenpairs,
    plain,
    random_fourier,
    scalable_kernel,
    split_among,
)
from simulations.kernel_pooled import (
    RowLanczos,
    paper_threshold,
    pooled_draw,
    pooled_fkkm,
    recovery_error,
)
from vfl_flower import Ledger, Party, simulate
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.numerics.kernel_kmeans import first_features
from vfl_flower.numerics.kmeans import (
    assign,
    simplified_silhouettes,
    weighted_kmeans,
)
from vfl_flower.numerics.lanczos import lanczos
from vfl_flower.simulation import SimulatedResult
from vfl_flower.strategies.kernel_kmeans import FKKMeans
from vfl_flower.typing import Array

PARTIES = 5
COUNTS = [20, 50, 100]
"""D in the table of the recovery."""

RULES = ("auto", "paper", "oracle")
"""Thresholds: the strategy's two, and the true (s + 1)-th eigenvalue of K."""

SAME = 0.01
"""How far below another method in NMI a method still counts as equally good."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A data set.

    Attributes
    ----------
    name : str
        Name of the data set.
    X : Array of float64, shape (n, d)
        Rows of all parties.
    y : Array, shape (n,)
        Their classes.
    k, s : int
        Clusters and components.
    coreset : int
        C.
    bound : float or None
        c of the bound c / t that [1] plots beside its error.
    gamma : float or "auto"
        Of the kernel.
    """

    name: str
    X: Array
    y: Array
    k: int
    s: int
    coreset: int = 1000
    bound: float | None = None
    gamma: float | Literal["auto"] = "auto"


SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"k": 10, "s": 20},
    "mushrooms": {"k": 2, "s": 4, "bound": 0.4},
    "mnist-20k": {"k": 10, "s": 20, "bound": 0.03},
    "mnist": {"k": 10, "s": 20},
    "covtype": {"k": 7, "s": 14, "coreset": 4000},
    "covtype15k": {"k": 7, "s": 14, "coreset": 4000},
    "groups-5": {"k": 5, "s": 10},
    "groups-8": {"k": 8, "s": 16},
    "grid-9": {"k": 9, "s": 18},
    "rings-2": {"k": 2, "s": 8, "gamma": 0.5},
    "circles-2": {"k": 2, "s": 20},
    "moons-2": {"k": 2, "s": 20},
    "celltype": {"k": 4, "s": 20},
}
"""Data sets, and k, s, C of each; [1] prints s and D in a picture."""

APPENDIX: dict[str, tuple[int, tuple[int, ...]]] = {
    "mushrooms": (200, (100, 300, 500, 700)),
    "mnist-20k": (800, (100, 300, 500, 700, 900)),
    "mnist": (800, (100, 300, 500, 700, 900)),
    "covtype": (100, (1000, 2000, 3000, 4000, 5000)),
}
"""D and the list of C of RFK in Appendix G of [1]."""

ONLY_HERE = (
    *("covtype15k", "groups-5", "groups-8", "grid-9", "rings-2"),
    *("circles-2", "moons-2", "celltype"),
)
"""Data sets of the tables number and gamma alone, unless they are asked for."""

GENERATED = 3000
"""Rows of the sets that are generated."""


def load(name: str, folder: Path | None, rows: int) -> Rows:
    """Read a data set, and draw at random at most `rows` rows (mnist-20k: 20,000).

    The columns of covtype are scaled to [0, 1].

    Raises
    ------
    MissingData
        There is no such file.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
    elif "-" in name and name != "mnist-20k":
        X, y = generated(name)
    else:
        X, y = load_npz(folder, name.removesuffix("-20k"))
    if name == "mnist-20k":
        rows = min(rows, 20_000)
    if rows < len(y):
        drawn = np.random.default_rng(0).permutation(len(y))[:rows]
        X, y = X[drawn], y[drawn]
    if name.startswith("covtype"):
        X = (X - X.min(axis=0)) / np.maximum(np.ptp(X, axis=0), 1e-12)
    return Rows(name, X, y, **SETTINGS[name])


def generated(name: str) -> tuple[Array, Array]:
    """Return rows of a known number of clusters, and which.

    ``groups-k``: normal, of variance 1, about k points at random in a cube of side 20
    with 10 columns. ``grid-9``: about the points of a grid, six standard deviations
    apart. ``rings-2``: a circle within a circle. ``circles-2`` and ``moons-2``: those
    of scikit-learn, standardised.
    """
    form, _, count = name.partition("-")
    rng, k = np.random.default_rng(0), int(count)
    if form in ("circles", "moons"):
        from sklearn.datasets import make_circles, make_moons

        make = partial(make_circles, factor=0.4) if form == "circles" else make_moons
        X, y = make(GENERATED, noise=0.06, random_state=0)
        return standardise(X), y
    y = rng.integers(k, size=GENERATED)
    if form == "rings":
        turn = rng.uniform(0, 2 * np.pi, size=GENERATED)
        X = np.column_stack([np.cos(turn), np.sin(turn)]) * (1 + 2 * y)[:, None]
        return X + rng.normal(size=X.shape) / 10, y
    middles = rng.uniform(-10, 10, size=(k, 10))
    if form == "grid":
        side = round(math.sqrt(k))
        middles = 6.0 * np.column_stack(np.divmod(np.arange(k), side))
    return middles[y] + rng.normal(size=(GENERATED, middles.shape[1])), y


# --- Recovery of the kernel matrix --------------------------------------------------


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
    counts: Sequence[int] = COUNTS,
    iterations: int = 50,
    seeds: int = 5,
    without: int = 50,
) -> dict[str, Any]:
    """Compare K_t with the best approximation of K of rank s.

    Parameters
    ----------
    data, counts, iterations, seeds
        All rows, D, T, and the number of runs of each kind.
    without : int
        D of the run without the mechanism, which has threshold "auto" and the features
        of the run with it, so that the two differ in their solvers alone.

    Returns
    -------
    dict
        ``eigenvalues``, the s + 1 largest, and ``curves``, each with ``D``, ``rule``,
        ``cem``, ``errors`` (seeds, T), ``thresholds``, ``slope`` of the mean curve, and
        ``largest``, the largest value of t times the mean error.

    Raises
    ------
    MissingData
        The kernel matrix does not fit.
    """
    values, vectors = kernel_eigenpairs(data.X, data.s + 1)
    oracle, largest = float(values[data.s]), (values[: data.s], vectors[:, : data.s])
    measured: list[dict[str, Any]] = []
    for D, rule in product(counts, RULES):
        if rule == "paper" and data.k + 2 > D:
            continue
        curves: dict[bool, list[list[float]]] = {True: []}
        if rule == "auto" and without == D:
            curves[False] = []
        thresholds = []
        for seed in range(seeds):
            for errors in curves.values():
                errors.append([])
            rows = RowLanczos(len(data.X))
            draw, threshold = start(data, D, rule, seed, oracle)
            steps = pooled_fkkm(draw, iterations, data.s, threshold)
            for t, step in enumerate(steps, start=1):
                curves[True][-1].append(recovery_error(step.H, *largest))
                if False in curves:
                    H, _ = rows.step(draw(t), step.eta, step.threshold, data.s)
                    curves[False][-1].append(recovery_error(H, *largest))
            thresholds.append(step.threshold)
        for cem, errors in curves.items():
            mean = np.mean(errors, axis=0)
            curve = {"D": D, "rule": rule, "cem": cem, "errors": errors}
            curve |= {"thresholds": thresholds, "slope": slope(mean)}
            curve["largest"] = float((mean * np.arange(1, len(mean) + 1)).max())
            measured.append(curve)
            tell(
                f"{data.name}: D = {D}, {rule}, cem {cem}: last {mean[-1]:.2e}, "
                f"slope {curve['slope']:.2f}, t x error {curve['largest']:.3f}"
            )
    shape = dict(n=len(data.X), k=data.k, s=data.s, bound=data.bound)
    return shape | dict(eigenvalues=values.tolist(), curves=measured)


def start(
    data: Rows, D: int, rule: str, seed: int, oracle: float
) -> tuple[Callable[[int], Array], float | None]:
    """Return the features as a function of t, and lambda (None: that of "auto")."""
    D_1 = first_features(D, data.s) if rule == "auto" else D
    draw = lru_cache(maxsize=1)(pooled_draw(data.X, D, D_1, seed))
    if rule == "paper":
        return draw, paper_threshold(draw(1), data.k)
    return draw, oracle if rule == "oracle" else None


def shown(T: int) -> list[int]:
    """Return the iterations up to T that a table shows."""
    return [t for t in (1, 2, 5, 10, 20, 50) if t <= T]


def recovery_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of recovery errors."""
    yield "## Error of the kernel matrix"
    for name, entry in entries.items():
        times = shown(len(entry["curves"][0]["errors"][0]))
        rows = []
        for curve in entry["curves"]:
            errors = np.array(curve["errors"])
            mean, half = errors.mean(axis=0), interval(errors)
            row = {
                "D": str(curve["D"]),
                "threshold": curve["rule"],
                "CEM": "with" if curve["cem"] else "without",
                "lambda": f"{np.mean(curve['thresholds']):.1f}",
                "slope": f"{curve['slope']:.2f}",
                "max t x error": f"{curve['largest']:.3f}",
            }
            for t in times:
                row[f"t = {t}"] = f"{mean[t - 1]:.2g} ({half[t - 1]:.1g})"
            rows.append(row)
        if c := entry["bound"]:
            bounds = {f"t = {t}": f"{c / t:.2g}" for t in times}
            rows.append({"threshold": f"{c:g} / t"} | bounds)
        values, s = entry["eigenvalues"], entry["s"]
        yield f"### {name}"
        yield (
            f"{entry['n']:,} rows, k = {entry['k']}, s = {s}; eigenvalues of K: "
            f"{values[0]:.0f}, {values[1]:.0f} .. the s-th {values[s - 1]:.1f}, the "
            f"next {values[s]:.1f}. {difference(entry)}"
        )
        yield table(rows)


def difference(entry: Mapping[str, Any]) -> str:
    """Return, as a sentence, how far the curves with and without CEM are apart."""
    curves = {
        (curve["D"], curve["rule"], curve["cem"]): np.mean(curve["errors"], axis=0)
        for curve in entry["curves"]
    }
    gaps = [
        float(np.abs(curve / curves[D, rule, True] - 1).max())
        for (D, rule, cem), curve in curves.items()
        if not cem
    ]
    return f"With and without CEM: {max(gaps):.1e} apart at most." if gaps else ""


# --- Floats an iteration ------------------------------------------------------------

SOLVERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gram": ({}, ["gram"]),
    "lanczos": ({"eigensolver": "lanczos"}, ["product"]),
    "without CEM": (
        {"eigensolver": "lanczos", "cem": False, "masking": "plain"},
        ["project", "expand"],
    ),
}
"""Arguments of the strategy, and the steps of its iterations."""


def floats(
    data: Rows,
    *,
    D: int = 50,
    iterations: int = 20,
    parties: int = PARTIES,
    ledger: bool = True,
) -> dict[str, Any]:
    """Count the floats uploaded in each iteration, by formula and by the ledger.

    Parameters
    ----------
    data, D, iterations, parties
        All rows, D, T and M.
    ledger : bool
        Whether to run the federated algorithm too, and not only the formulas.

    Returns
    -------
    dict
        By iteration ``sizes`` (D + r_t), ``ranks`` (of Z_{t+1}), ``Q_0`` and ``Q_1``;
        ``methods``: by name ``formula`` and ``ledger``, floats of all iterations, and
        ``round_trips`` of the run.
    """
    draw, _ = start(data, D, "auto", 0, math.nan)
    rng, n = np.random.default_rng(0), len(data.X)
    row_lanczos = RowLanczos(n)
    sizes, counts, Q_0, Q_1 = [], [], [], []
    for t, step in enumerate(pooled_fkkm(draw, iterations, data.s), start=1):
        A = draw(t)
        G, cut = step.W.T @ step.W, step.eta * step.threshold
        # "auto" wants the s + 1 largest eigenpairs of iteration 1.
        least, count = (math.inf, data.s + 1) if t == 1 else (cut, data.s)
        first, multiply = rng.standard_normal(len(G)), partial(np.matmul, G)
        Q_1.append(lanczos(multiply, first, least, rng=rng, at_least=count).steps)
        Q_0.append(row_lanczos.step(A, step.eta, step.threshold, data.s)[1])
        sizes.append(len(G))
        counts.append(A.shape[1])
    ranks = [m - c for m, c in zip(sizes[1:], counts[1:], strict=True)]
    ranks.append(int((step.values > cut).sum()))
    formulas = {
        name: formula(name, parties, n, counts, sizes, products)
        for name, products in {"gram": Q_1, "lanczos": Q_1, "without CEM": Q_0}.items()
    }
    tell(f"{data.name}: {formulas}, Q_0 {np.mean(Q_0):.1f}, Q_1 {np.mean(Q_1):.1f}")
    methods: dict[str, Any] = {}
    for name in SOLVERS if ledger else []:
        methods[name] = _counted(data, D, iterations, parties, name)
        tell(f"{data.name}: {name}: {methods[name]}")
    settings = dict(n=n, D=D, T=iterations, parties=parties, sizes=sizes)
    counted = dict(ranks=ranks, Q_0=Q_0, Q_1=Q_1, pooled=formulas, methods=methods)
    return settings | counted


def formula(
    name: str,
    M: int,
    N: int,
    counts: Sequence[int],
    sizes: Sequence[int],
    products: Sequence[int],
) -> int:
    """Return the floats of all parties in all iterations, for one of `SOLVERS`.

    For each iteration, `counts` has the number of features, `sizes` D + r_t, and
    `products` the number of Lanczos products.
    """
    if name == "gram":
        return M * sum(m * (m + 1) // 2 for m in sizes)
    if name == "without CEM":
        return sum((N + M * c) * q for c, q in zip(counts, products, strict=True))
    return M * sum(m * q for m, q in zip(sizes, products, strict=True))


def _counted(data: Rows, D: int, T: int, M: int, name: str) -> dict[str, Any]:
    """Run the strategy, and return the entry of `floats` for one of `SOLVERS`."""
    arguments, asked = SOLVERS[name]
    arguments = {"clustering": "coreset"} | arguments
    strategy = FKKMeans(data.k, data.s, D, T, subspace_tol=0.0, **arguments)
    parts = split_among(len(data.X), M, np.random.default_rng(0))
    result = simulate(strategy, [Party(data.X[rows]) for rows in parts], seed=0)
    metrics: list[Any] = [result.train_metrics_clientapp[t] for t in range(1, T + 1)]
    products = [int(values["products"]) for values in metrics]
    counts = [first_features(D, data.s)] + [D] * (T - 1)
    ranks = [0] + [int(values["rank"]) for values in metrics]
    sizes = [c + r for c, r in zip(counts, ranks[:-1], strict=True)]
    expected = formula(name, M, len(data.X), counts, sizes, products)
    ledger = result.ledger.of(*(f"kernel_kmeans_{step}" for step in asked))
    return {
        # Each party also sends a trace at t = 1.
        "formula": expected + (M if asked == ["product"] else 0),
        "ledger": uploaded(ledger),
        "bytes_up": ledger.bytes_up,
        "products": float(np.mean(products)),
        "ranks": ranks[1:],
        "round_trips": result.ledger.round_trips,
    }


def uploaded(ledger: Ledger) -> int:
    """Return the floats that parties uploaded."""
    return sum(entry.units_up for entry in ledger.entries.values())


def floats_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of floats, Lanczos steps and ranks."""
    rows, ranks, checks = [], [], []
    for name, entry in entries.items():
        pooled = {k: v / entry["T"] for k, v in entry["pooled"].items()}
        without_cem, by_lanczos, by_gram = (
            pooled[solver] for solver in ("without CEM", "lanczos", "gram")
        )
        rows.append(
            {
                "": name,
                "rows": f"{entry['n']:,}",
                "D": f"{entry['D']}",
                "without CEM": f"{without_cem:,.0f}",
                "Lanczos": f"{by_lanczos:,.0f}",
                "Gram": f"{by_gram:,.0f}",
                "saved by Lanczos in %": f"{100 * (1 - by_lanczos / without_cem):.1f}",
                "by Gram in %": f"{100 * (1 - by_gram / without_cem):.1f}",
                "Q_0": f"{np.mean(entry['Q_0']):.1f}",
                "Q_1": f"{np.mean(entry['Q_1']):.1f}",
            }
        )
        texts = (f"{entry['ranks'][t - 1]} ({t})" for t in shown(entry["T"]))
        ranks.append({"": name, "rank of Z_t+1 (t)": ", ".join(texts)})
        checks += [
            {
                "": name,
                "method": method,
                "floats by formula": f"{figures['formula']:,}",
                "ledger": f"{figures['ledger']:,}",
                "MB up": f"{figures['bytes_up'] / 1e6:.2f}",
                "products": f"{figures['products']:.1f}",
                "round trips": f"{figures['round_trips']:,}",
            }
            for method, figures in entry["methods"].items()
        ]
    yield "## Floats uploaded in an iteration"
    yield from map(table, (rows, ranks, checks))


# --- Clusters against floats --------------------------------------------------------

Method = Callable[[Rows, list[Array], int], dict[str, Any]]


def federated_labels(
    data: Rows, parts: list[Array], seed: int, **arguments: Any
) -> tuple[Array, SimulatedResult]:
    """Run FK k-means, and return the cluster of each row and the result."""
    coreset = {"clustering": "coreset", "coreset_size": data.coreset}
    if arguments.get("clustering") != "sums":
        arguments = coreset | arguments
    strategy = FKKMeans(data.k, data.s, **arguments)
    result = simulate(strategy, [Party(data.X[rows]) for rows in parts], seed=seed)
    assert isinstance(result.model, KernelKMeansModel)
    labels = np.empty(len(data.X), dtype=np.int64)
    for rows, block in zip(parts, result.model.labels_, strict=True):
        labels[rows] = block
    return labels, result


def federated(
    data: Rows, parts: list[Array], seed: int, **arguments: Any
) -> dict[str, Any]:
    """Run FK k-means, and return how good its labels are and what they cost."""
    begin = time.process_time()
    labels, result = federated_labels(data, parts, seed, **arguments)
    seconds = time.process_time() - begin
    assert isinstance(result.model, KernelKMeansModel)
    ledger = result.ledger
    return {
        "nmi": score(labels, data),
        "floats": uploaded(ledger),
        "seconds": seconds,
        "bytes": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        "round_trips": ledger.round_trips,
        "inertia": result.model.inertia_,
        "small_share": result.metrics.get("small_share", math.nan),
    }


def baseline(
    method: Callable[..., tuple[Array, int]],
    data: Rows,
    parts: list[Array],
    seed: int,
    **arguments: Any,
) -> dict[str, Any]:
    """Run a method that FK k-means is compared with."""
    rng, begin = np.random.default_rng(seed), time.process_time()
    labels, count = method(data.X, parts, data.k, rng, **arguments)
    seconds = time.process_time() - begin
    return {"nmi": score(labels, data), "floats": count, "seconds": seconds}


def score(labels: Array, data: Rows) -> float:
    """Return the normalised mutual information with the classes, from 0 to 1."""
    return agreement(data.y, labels)


def fk(D: int, T: int, **arguments: Any) -> tuple[str, Method]:
    """Return FK k-means with D features and T iterations."""
    return "FK", partial(federated, n_features=D, iterations=T, **arguments)


def rival(family: str, method: Any, **arguments: Any) -> tuple[str, Method]:
    """Return a method that FK k-means is compared with."""
    return family, partial(baseline, method, **arguments)


def methods(data: Rows, quick: bool) -> dict[str, tuple[str, Method]]:
    """Return the methods to run on a data set: family and function by name."""
    C = data.coreset
    chosen = {
        "FK k-means, default: D = 50, T = 20": fk(50, 20),
        "FK k-means, D = 50, T = 5": fk(50, 5),
        "FK k-means, D = 100, T = 1": fk(100, 1),
        "FK k-means, D = 50, T = 20, paper's threshold": fk(
            50, 20, threshold="paper", subspace_tol=0.0
        ),
    }
    if not quick:
        chosen |= {
            "FK k-means, D = 100, T = 20": fk(100, 20),
            "FK k-means, D = 20, T = 20": fk(20, 20),
            "FK k-means, D = 50, T = 10": fk(50, 10),
            "FK k-means, D = 50, T = 5, C = 300": fk(50, 5, coreset_size=300),
        }
    rfk = product((50, 100, 200, 400, 800), (300, C))
    return chosen | rivals(data, rfk, (100,) if quick else (20, 50, 100, 200))


def published(data: Rows) -> dict[str, tuple[str, Method]]:
    """Return the methods with the settings of Appendix G of [1], and CE PCA as in [2].

    D of FK k-means is in a picture that we do not have: the strategy's default.

    Raises
    ------
    MissingData
        The appendix does not have this data set.

    References
    ----------
    [2] M.-F. Balcan, Y. Liang, L. Song, D. Woodruff, B. Xie, "Communication efficient
    distributed kernel principal component analysis", KDD 2016.
    """
    if data.name not in APPENDIX:
        raise MissingData(f"Appendix G of the paper has no settings for {data.name}")
    D_rfk, sizes = APPENDIX[data.name]
    C, s = data.coreset, data.s
    chosen = {
        f"FK k-means, D = 50, T = {T}": fk(50, T, subspace_tol=0.0)
        for T in (10, 20, 30, 40, 50)
    }
    chosen |= rivals(data, product((D_rfk,), sizes), (20, 50, 100, 200))
    chosen[f"CE PCA with raw points, D = 200, C = {C}"] = rival(
        "CE PCA, raw points",
        communication_pca,
        n_components=s,
        n_features=200,
        raw_points=True,
        budget=C,
    )
    return chosen


def rivals(
    data: Rows, rfk: Iterable[tuple[int, int]], ce_pca: Sequence[int]
) -> dict[str, tuple[str, Method]]:
    """Return what FK k-means is compared with.

    Parameters
    ----------
    data
        All rows.
    rfk
        D and C of RFK.
    ce_pca
        D of CE PCA.
    """
    C, s = data.coreset, data.s
    chosen = {
        f"RFK, D = {D}, C = {size}": rival(
            "RFK", random_fourier, n_features=D, budget=size
        )
        for D, size in rfk
    }
    for D in ce_pca:
        chosen[f"CE PCA, D = {D}, C = {C}"] = rival(
            "CE PCA", communication_pca, n_components=s, n_features=D, budget=C
        )
    chosen[f"k-means of the columns, C = {C}"] = rival("plain", plain, budget=C)
    count = landmarks(len(data.X))
    chosen["SK"] = rival("central", scalable_kernel, n_components=s, n_landmarks=count)
    return chosen


def landmarks(n: int) -> int:
    """Return c, the number of rows from which SK makes the features of n rows."""
    return 200 if n > 30_000 else 500


def shown_name(name: str, n: int) -> str:
    """Return the name of a method on n rows as tables have it."""
    if name == "SK":
        return f"SK, {landmarks(n)} landmarks"
    return name.replace("CE PCA, ", "CE PCA, points as features, ")


def nmi(
    data: Rows,
    *,
    seeds: int = 10,
    parties: int = PARTIES,
    kind: Kind = "equal",
    quick: bool = False,
    appendix: bool = False,
) -> dict[str, Any]:
    """Run all methods on a data set.

    Parameters
    ----------
    data, parties, kind
        All rows, M, and how they are split by
        :func:`~simulations.kernel_baselines.split_among`.
    seeds : int
        Runs of each method, each with a split of its own.
    quick : bool
        Fewer settings of each method.
    appendix : bool
        The settings of Appendix G of [1] instead; see :func:`published`.

    Returns
    -------
    dict
        ``methods``, by name: ``family``, ``nmi`` of each seed, and means of ``floats``,
        ``bytes`` and ``seconds``.
    """
    todo = published(data) if appendix else methods(data, quick)
    skipped = ""
    try:  # CK computes its eigenpairs once: its seeds matter to k-means alone
        pairs = kernel_eigenpairs(data.X, data.s)
        todo["CK"] = "central", partial(baseline, central_kernel, pairs=pairs)
    except MissingData as reason:
        skipped = str(reason)
    measured: dict[str, Any] = {}
    for name, (family, method) in todo.items():
        cells = []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, parties])
            parts = split_among(len(data.X), parties, rng, kind, data.y)
            cells.append(method(data, parts, seed))
        means = {k: float(np.mean([cell[k] for cell in cells])) for k in cells[0]}
        nmi = {"nmi": [cell["nmi"] for cell in cells]}
        measured[name] = {"family": family} | means | nmi
        tell(
            f"{data.name}: {name}: NMI {means['nmi']:.3f}, "
            f"{means['floats']:,.0f} floats, {means['seconds']:.1f} s"
        )
    shape = dict(n=len(data.X), d=data.X.shape[1], k=data.k, s=data.s)
    return shape | dict(parties=parties, kind=kind, without=skipped, methods=measured)


def needed(entry: Mapping[str, Any], name: str, family: str) -> tuple[str, float]:
    """Return the cheapest setting of a family that is as good as one of FK k-means.

    Parameters
    ----------
    entry, name, family
        What :func:`nmi` returns, a setting of FK k-means, and a rival family.

    Returns
    -------
    name, floats
        The cheapest setting whose mean NMI is at most `SAME` below, and the floats that
        it uploads; "" and infinity if there is none.
    """
    methods = entry["methods"]
    least = float(np.mean(methods[name]["nmi"])) - SAME
    enough = {
        setting: figures["floats"]
        for setting, figures in methods.items()
        if figures["family"] == family and np.mean(figures["nmi"]) >= least
    }
    best = min(enough, key=enough.__getitem__, default="")
    return best, enough.get(best, math.inf)


def nmi_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of NMI against floats and bytes."""
    yield "## Clusters against floats and bytes"
    for name, entry in entries.items():
        rows = []
        for method, figures in entry["methods"].items():
            seeds = len(figures["nmi"])
            trips = figures.get("round_trips")
            rows.append(
                {
                    "": shown_name(method, entry["n"]),
                    "NMI (s.e.)": mean_and_error(figures["nmi"], 3),
                    "floats up": f"{figures['floats']:,.0f}",
                    "MB up": f"{figures.get('bytes', 8 * figures['floats']) / 1e6:.2f}",
                    "round trips": f"{trips:.0f}" if trips else "",
                    "seconds": f"{figures['seconds']:.1f}",
                }
            )
        yield f"### {name}"
        yield (
            f"{entry['n']:,} rows of {entry['d']} columns, k = {entry['k']}, s = "
            f"{entry['s']}, {entry['parties']} parties, split {entry['kind']}, "
            f"{seeds} {'seeds' if seeds > 1 else 'seed'}."
        )
        yield table(rows)
        yield needed_table(entry)


def needed_table(entry: Mapping[str, Any]) -> str:
    """Return what each setting of FK k-means saves at the same NMI."""
    rivals = {
        "RFK": "RFK: floats for the same NMI (saved)",
        "CE PCA": "CE PCA: floats for the same NMI (saved)",
        "CE PCA, raw points": "CE PCA, raw points",
        "plain": "k-means of the columns",
    }
    families = {figures["family"] for figures in entry["methods"].values()}
    rows = []
    for name, figures in entry["methods"].items():
        if figures["family"] != "FK":
            continue
        rows.append({"": name, "floats up": f"{figures['floats']:,.0f}"})
        for family, title in rivals.items():
            if family not in families:
                continue
            best, count = needed(entry, name, family)
            saved = 100 * (1 - figures["floats"] / count)
            best = shown_name(best, entry["n"])
            text = f"{count:,.0f} ({saved:.0f} %): {best}" if best else "not reached"
            rows[-1][title] = text
    return table(rows)


COMPARED = (
    "FK k-means, default: D = 50, T = 20",
    "RFK, D = 800, C = 1000",
    "CE PCA, D = 100, C = 1000",
    "k-means of the columns, C = 1000",
)
"""Methods in the table of splits."""


def splits_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of NMI for parties with other shares of the rows."""
    yield "## Unequal and non-iid parties"
    rows = []
    for name, entry in entries.items():
        row = {"": name, "split": entry["kind"]}
        for method in COMPARED:
            row[shown_name(method, entry["n"])] = mean_and_error(
                entry["methods"][method]["nmi"], 3
            )
        rows.append(row)
    yield table(rows)


# --- k-means by sums ----------------------------------------------------------------


def clustering(
    data: Rows, *, parties: Sequence[int] = (3, 5, 10), seeds: int = 3
) -> dict[str, Any]:
    """Run k-means by sums and on a coreset, on the same splits and features.

    Parameters
    ----------
    data, parties, seeds
        All rows, the numbers of parties M, and the runs of each.

    Returns
    -------
    dict
        ``runs``, each with ``parties``, ``seed``, ``clustering`` and what
        :func:`federated` returns.
    """
    runs = []
    for M, seed, form in product(parties, range(seeds), ("coreset", "sums")):
        rng = np.random.default_rng([seed, M])
        parts = split_among(len(data.X), M, rng, "equal", data.y)
        cell = federated(data, parts, seed, clustering=form)
        runs.append({"parties": M, "seed": seed, "clustering": form} | cell)
        tell(f"{data.name}: M = {M}, {form}: NMI {cell['nmi']:.3f}")
    return dict(n=len(data.X), k=data.k, s=data.s, seeds=seeds, runs=runs)


def clustering_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of both forms of k-means, with means over seeds."""
    yield "## k-means by sums and on a coreset"
    rows = []
    for name, entry in entries.items():
        for M in dict.fromkeys(run["parties"] for run in entry["runs"]):
            row = {"": name, "M": str(M)}
            for form in ("coreset", "sums"):
                cells = [
                    run
                    for run in entry["runs"]
                    if (run["parties"], run["clustering"]) == (M, form)
                ]
                means = {
                    key: float(np.mean([cell[key] for cell in cells]))
                    for key in ("nmi", "inertia", "round_trips", "bytes", "bytes_down")
                }
                row |= {
                    f"NMI, {form}": f"{means['nmi']:.3f}",
                    f"inertia, {form}": f"{means['inertia']:.5g}",
                    f"trips, {form}": f"{means['round_trips']:.1f}",
                    f"MB up, {form}": f"{means['bytes'] / 1e6:.2f}",
                    f"MB down, {form}": f"{means['bytes_down'] / 1e6:.2f}",
                }
            small = np.mean([cell["small_share"] for cell in cells])
            rows.append(row | {"below 20 rows": f"{100 * small:.1f} %"})
    yield table(rows)


# --- The number of clusters -----------------------------------------------------------

MOST_CLUSTERS, CHOICE_COMPONENTS = 15, 20
"""The largest k that is tried, and s."""

CRITERIA = ("simplified", "silhouette", "variance ratio", "gap", "eigenvalues")
"""Pooled criteria, on the same embedding; see `pooled_numbers`."""


def number(data: Rows, *, parties: int = PARTIES, seeds: int = 3) -> dict[str, Any]:
    """Let the server choose k, beside what the rows in one place say.

    Parameters
    ----------
    data, parties, seeds
        All rows, M, and the number of runs.

    Returns
    -------
    dict
        ``runs``: ``chosen``, the pooled choices by criterion, NMI with the classes, and
        costs, also of a run with the given k.
    """
    runs = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, parties])
        parts = split_among(len(data.X), parties, rng, "equal", data.y)
        blocks = [Party(data.X[rows]) for rows in parts]
        cell: dict[str, Any] = {}
        for name, k, chooses in (
            ("chosen", MOST_CLUSTERS, True),
            ("given", min(data.k, CHOICE_COMPONENTS), False),
        ):
            strategy = FKKMeans(
                *(k, CHOICE_COMPONENTS),
                gamma=data.gamma,
                n_init=10,
                choose_clusters=chooses,
            )
            begin = time.perf_counter()
            result = simulate(strategy, blocks, seed=seed)
            seconds = time.perf_counter() - begin
            assert isinstance(result.model, KernelKMeansModel)
            y, labels = data.y[np.concatenate(parts)], result.model.labels_
            cell[name] = {
                "k": len(result.model.cluster_centers_),
                "nmi": agreement(y, np.concatenate(labels)),
                "bytes": result.ledger.bytes_up,
                "bytes_down": result.ledger.bytes_down,
                "round_trips": result.ledger.round_trips,
                "seconds": seconds,
            }
            if chooses:
                H = result.model.transform(data.X)
                cell["pooled"] = pooled_numbers(H, np.random.default_rng(seed))
        runs.append(cell)
        tell(f"{data.name}: k = {cell['chosen']['k']}, pooled {cell['pooled']}")
    return dict(n=len(data.X), k=data.k, seeds=seeds, runs=runs)


def pooled_numbers(H: Array, rng: np.random.Generator) -> dict[str, int]:
    """Return the k from 2 to 15 that criteria choose from all rows of an embedding.

    ``simplified``: the simplified silhouette that the server has of sums, here of all
    rows. ``silhouette``: of Rousseeuw (1987), on 2,000 rows. ``variance ratio``: of
    Calinski and Harabasz (1974). ``gap``: of Tibshirani, Walther and Hastie (2001),
    with five uniform references along the principal axes. ``eigenvalues``: the largest
    ratio of an eigenvalue of the kernel matrix to the next one, from the second on.
    """
    from sklearn.metrics import calinski_harabasz_score, silhouette_score

    n, ones = len(H), np.ones(len(H))
    mean = H.mean(axis=0)
    _, _, axes = np.linalg.svd(H - mean, full_matrices=False)
    projected = (H - mean) @ axes.T
    low, high = projected.min(axis=0), projected.max(axis=0)
    references = [rng.uniform(low, high, size=H.shape) for _ in range(5)]
    scores: dict[str, list[float]] = {name: [] for name in CRITERIA[:3]}
    gaps, errors = [], []
    for k in range(1, MOST_CLUSTERS + 1):
        centers, inertia = weighted_kmeans(H, k, ones, rng, 10)
        logs = [
            math.log(weighted_kmeans(rows, k, ones, rng, 1)[1]) for rows in references
        ]
        gaps.append(float(np.mean(logs)) - math.log(inertia))
        errors.append(float(np.std(logs)) * math.sqrt(1 + 1 / len(references)))
        if k == 1:
            continue
        labels = assign(H, centers)[0]
        scores["simplified"].append(float(simplified_silhouettes(H, centers).mean()))
        some = rng.permutation(n)[:2000]
        scores["silhouette"].append(float(silhouette_score(H[some], labels[some])))
        scores["variance ratio"].append(float(calinski_harabasz_score(H, labels)))
    chosen = {name: 2 + int(np.argmax(values)) for name, values in scores.items()}
    enough = [
        k
        for k in range(1, MOST_CLUSTERS)
        if gaps[k - 1] >= gaps[k] - errors[k]  # of k and of k + 1
    ]
    values = (H**2).sum(axis=0)
    ratios = values[1:-1] / values[2:]
    more = {"gap": min(enough, default=MOST_CLUSTERS)}
    return chosen | more | {"eigenvalues": 2 + int(np.argmax(ratios[:14]))}


def agreement(y: Array, labels: Array) -> float:
    """Return the normalised mutual information of classes and labels."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(y, labels))


def number_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of the numbers of clusters, and of what choosing costs."""
    yield "## Number of clusters"
    chosen, costs = [], []
    for name, entry in entries.items():
        runs = entry["runs"]

        def listed(numbers: list[int]) -> str:
            return ", ".join(map(str, numbers))

        row = {"": name, "K": str(entry["k"])}
        row["chosen"] = listed([run["chosen"]["k"] for run in runs])
        for criterion in CRITERIA:
            row[criterion] = listed([run["pooled"][criterion] for run in runs])
        chosen.append(row)
        row = {"": name}
        for form in ("chosen", "given"):
            means = {
                key: float(np.mean([run[form][key] for run in runs]))
                for key in ("nmi", "bytes", "bytes_down", "round_trips", "seconds")
            }
            row |= {
                f"NMI, {form}": f"{means['nmi']:.3f}",
                f"trips, {form}": f"{means['round_trips']:.1f}",
                f"MB up, {form}": f"{means['bytes'] / 1e6:.2f}",
                f"MB down, {form}": f"{means['bytes_down'] / 1e6:.2f}",
                f"seconds, {form}": f"{means['seconds']:.1f}",
            }
        costs.append(row)
    yield from map(table, (chosen, costs))


# --- The width of the kernel ----------------------------------------------------------

TIMES = (1, 2, 5, 20)
"""What the default gamma is multiplied by."""


def gamma(data: Rows, *, parties: int = PARTIES, seeds: int = 3) -> dict[str, Any]:
    """Cluster with multiples of the default gamma, beside pooled k-means.

    Parameters
    ----------
    data, parties, seeds
        All rows, M, and the number of runs of each.

    Returns
    -------
    dict
        ``gamma``, the default one, and ``scores``: NMI and adjusted Rand index with the
        classes in each run, by ``"k-means"`` and the multiples.
    """
    from sklearn.cluster import KMeans

    data, default = replace(data, s=CHOICE_COMPONENTS), 0.0
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        k_means = KMeans(data.k, n_init=10, random_state=seed).fit_predict(data.X)
        scores.setdefault("k-means", []).append(agreements(data.y, k_means))
        rng = np.random.default_rng([seed, parties])
        parts = split_among(len(data.X), parties, rng, "equal", data.y)
        for times in TIMES:
            wide: dict[str, Any] = {} if times == 1 else {"gamma": times * default}
            labels, result = federated_labels(
                data, parts, seed, clustering="sums", **wide
            )
            default = float(result.metrics["gamma"]) / times
            scores.setdefault(str(times), []).append(agreements(data.y, labels))
    tell(f"{data.name}: gamma {default:.3g}, {scores}")
    shape = dict(n=len(data.X), k=data.k, seeds=seeds)
    return shape | dict(gamma=default, scores=scores)


def agreements(y: Array, labels: Array) -> tuple[float, float]:
    """Return NMI and adjusted Rand index of classes and labels."""
    from sklearn.metrics import adjusted_rand_score

    return agreement(y, labels), float(adjusted_rand_score(y, labels))


def gamma_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of both scores, with standard errors over seeds."""
    yield "## Width of the kernel"
    for place in range(2):
        yield table(
            {"": name, "K": str(entry["k"]), "default gamma": f"{entry['gamma']:.3g}"}
            | {
                key if key == "k-means" else f"{key} x": mean_and_error(
                    [run[place] for run in runs], 3
                )
                for key, runs in entry["scores"].items()
            }
            for name, entry in entries.items()
        )


# --- The command --------------------------------------------------------------------

app = new_app()
NAMES = [name for name in SETTINGS if name not in ONLY_HERE]


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[
        list[str],
        tables_of(("recovery", "floats", "nmi", "clustering", "number", "gamma")),
    ],
    datasets: Annotated[list[str], some_of([*SETTINGS], "Data sets.")] = NAMES,
    rows: Annotated[
        int, typer.Option(min=100, help="Of each data set at most.")
    ] = 100_000,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs; default 5, of nmi 10, of clustering and later ones 3."
        ),
    ] = None,
    counts: Annotated[
        list[int],
        typer.Option(
            min=1,
            help="Random features of recovery; the middle number is run without the "
            "mechanism too.",
        ),
    ] = COUNTS,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, help="T; default 50 of recovery, 20 of floats."),
    ] = None,
    parties: Annotated[int, typer.Option(min=3, help="Who share the rows.")] = PARTIES,
    split: Annotated[
        Kind, typer.Option(click_type=click.Choice(get_args(Kind)), help="Of the rows.")
    ] = "equal",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer settings of nmi.")
    ] = False,
    appendix: Annotated[
        bool,
        typer.Option("--appendix", help="The settings of Appendix G of [1] in nmi."),
    ] = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Reproduce the experiments of the federated kernel k-means paper.

    The page is written after each data set, whole or not at all.
    """
    if iterations and "nmi" in tables:
        raise typer.BadParameter(
            "--iterations must not be given for nmi, which has its own"
        )

    def measure(name: str, data: Rows) -> dict[str, Any]:
        if name == "recovery":
            return recovery(
                data,
                counts=counts,
                iterations=iterations or 50,
                seeds=seeds or 5,
                without=counts[len(counts) // 2],
            )
        if name == "clustering":
            return clustering(data, seeds=seeds or 3)
        if name == "number":
            return number(data, parties=parties, seeds=seeds or 3)
        if name == "gamma":
            return gamma(data, parties=parties, seeds=seeds or 3)
        limit = min(len(data.X), 300)  # rows, and points of the smallest coreset
        if parties > limit:
            raise MissingData(f"--parties must be at most {limit}, got {parties}")
        if name == "floats":
            ledger = len(data.X) <= 10_000
            return floats(
                data, iterations=iterations or 20, parties=parties, ledger=ledger
            )
        return nmi(
            data,
            seeds=seeds or 10,
            parties=parties,
            kind=split,
            quick=quick,
            appendix=appendix,
        )

    pages = {
        "recovery": recovery_page,
        "floats": floats_page,
        "nmi": nmi_page,
        "clustering": clustering_page,
        "number": number_page,
        "gamma": gamma_page,
    }
    for name in tables:
        results, entries = Results(context, "kernel_kmeans", name), {}
        for dataset in datasets:
            with results.skipping(dataset, datasets):
                entries[dataset] = measure(name, load(dataset, data_dir, rows))
            page = results.write(entries, pages[name](entries))
        tell(page)
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.kernel_kmeans")
