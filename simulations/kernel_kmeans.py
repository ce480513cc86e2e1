"""The experiments of the federated kernel k-means paper.

All tables take hours::

    python -m simulations.kernel_kmeans recovery floats nmi clustering number gamma

==========  ========================================================================
recovery    error of the kernel matrix against iterations, with and without the
            communication mechanism: Figure 1 of [1]
floats      floats per iteration, Lanczos steps and ranks: Figures 2, 4 and 5
nmi         agreement with the true classes against floats and bytes: Figure 3
clustering  k-means by sums over the parties beside k-means on a coreset, as in [1]
number      the number of clusters that the server chooses, beside pooled criteria
gamma       agreement at the default gamma and at larger ones, beside k-means
==========  ========================================================================

Rows are split among five parties, the *users* of [1]. The baselines of FK k-means are
in :mod:`simulations.kernel_baselines`. Digits are in scikit-learn; the other sets are
npz files with X and y in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``: mushrooms,
mnist, covtype, covtype15k, celltype. Groups, grid, rings, circles and moons are
generated.

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
[2] M.-F. Balcan, Y. Liang, L. Song, D. Woodruff, B. Xie, "Communication efficient
    distributed kernel principal component analysis", KDD 2016.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Annotated, Any

import numpy as np
import typer

from simulations.experiments import (
    OUTPUT,
    DataDir,
    MissingData,
    OutputDir,
    Results,
    mean_and_error,
    new_app,
    some_of,
    table,
    tables_of,
    tell,
)
from simulations.kernel_baselines import (
    SETTINGS,
    Rows,
    agreement,
    central_kernel,
    communication_pca,
    federated,
    federated_labels,
    kernel_eigenpairs,
    load,
    plain,
    random_fourier,
    scalable_kernel,
    split_among,
    split_of,
    uploaded,
)
from simulations.kernel_pooled import (
    RowLanczos,
    paper_threshold,
    pooled_draw,
    pooled_fkkm,
    recovery_error,
)
from vfl_flower import Party, simulate
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.numerics.kernel_kmeans import first_features
from vfl_flower.numerics.kmeans import assign, simplified_silhouettes, weighted_kmeans
from vfl_flower.numerics.lanczos import lanczos
from vfl_flower.strategies.kernel_kmeans.training import FKKMeans
from vfl_flower.typing import Array

PARTIES = 5

RULES = ("auto", "paper", "oracle")
"""Thresholds: the strategy's two, and the true (s + 1)-th eigenvalue of K."""

SAME = 0.01
"""Difference in NMI up to which a method still counts as equally good."""

APPENDIX: dict[str, tuple[int, tuple[int, ...]]] = {
    "mushrooms": (200, (100, 300, 500, 700)),
    "mnist-20k": (800, (100, 300, 500, 700, 900)),
    "mnist": (800, (100, 300, 500, 700, 900)),
    "covtype": (100, (1000, 2000, 3000, 4000, 5000)),
}
"""D and the list of C of RFK in Appendix G of [1]."""

# --- Recovery of the kernel matrix --------------------------------------------------


def slope(curve: Array) -> float:
    """Return the slope of log error on log t over t = 2 .. T; nan if T < 3."""
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


def recovery(data: Rows, *, seeds: int = 5, without: int = 50) -> dict[str, Any]:
    """Compare K_t with the best approximation of K of rank s, by D and threshold.

    The run without the mechanism has D = `without`, threshold "auto" and the features
    of the run with it, so that the two runs differ only in their solvers. Each curve
    has ``errors``, (seeds, T). Raises MissingData if the kernel matrix does not fit.
    """
    values, vectors = kernel_eigenpairs(data.X, data.s + 1)
    oracle, largest = float(values[data.s]), (values[: data.s], vectors[:, : data.s])
    measured: list[dict[str, Any]] = []
    for D, rule in product(data.counts, RULES):
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
            steps = pooled_fkkm(draw, data.iterations, data.s, threshold)
            for t, step in enumerate(steps, start=1):
                curves[True][-1].append(recovery_error(step.H, *largest))
                if False in curves:
                    H, _ = rows.step(draw(t), step.eta, step.threshold, data.s)
                    curves[False][-1].append(recovery_error(H, *largest))
            thresholds.append(step.threshold)
        for cem, errors in curves.items():
            curve = {"D": D, "rule": rule, "cem": cem, "errors": errors}
            measured.append(curve | {"thresholds": thresholds})
    shape = dict(n=len(data.X), k=data.k, s=data.s, bound=data.bound)
    return shape | dict(eigenvalues=values.tolist(), curves=measured)


def start(
    data: Rows, D: int, rule: str, seed: int, oracle: float
) -> tuple[Callable[[int], Array], float | None]:
    """Return the features as a function of t, and lambda (None: as for "auto")."""
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
            largest = (mean * np.arange(1, len(mean) + 1)).max()
            row = {
                "D": str(curve["D"]),
                "threshold": curve["rule"],
                "CEM": "with" if curve["cem"] else "without",
                "lambda": f"{np.mean(curve['thresholds']):.1f}",
                "slope": f"{slope(mean):.2f}",
                "max t x error": f"{largest:.3f}",
            }
            cells = {t: f"{mean[t - 1]:.2g} ({half[t - 1]:.1g})" for t in times}
            rows.append(row | {f"t = {t}": cell for t, cell in cells.items()})
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
    """Return a sentence on the distance of the curves with and without CEM."""
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


# --- Floats per iteration ------------------------------------------------------------

SOLVERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gram": ({}, ["gram"]),
    "lanczos": ({"eigensolver": "lanczos"}, ["product"]),
    "without CEM": (
        {"eigensolver": "lanczos", "cem": False, "masking": "plain"},
        ["project", "expand"],
    ),
}
"""Arguments of the strategy, and the steps of its iterations."""

LEDGER = 10_000
"""Maximum rows of a set that is also clustered with messages."""


def floats(
    data: Rows, *, D: int = 50, iterations: int = 20, parties: int = PARTIES
) -> dict[str, Any]:
    """Count the floats uploaded in each iteration, by formula and by the ledger.

    The result has, by iteration, ``sizes`` (D + r_t), ``ranks`` (of Z_{t+1}), ``Q_0``
    and ``Q_1``, and for each of `SOLVERS` the floats of all iterations. Sets of at most
    10,000 rows are also clustered by the federated algorithm, whose ledger counts.
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
    run = SOLVERS if n <= LEDGER else []
    methods = {name: _counted(data, D, iterations, parties, name) for name in run}
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


def baseline(
    method: Callable[..., tuple[Array, int]],
    data: Rows,
    parts: list[Array],
    seed: int,
    **arguments: Any,
) -> dict[str, Any]:
    """Run a baseline of FK k-means."""
    rng, begin = np.random.default_rng(seed), time.process_time()
    labels, count = method(data.X, parts, data.k, rng, **arguments)
    seconds = time.process_time() - begin
    return {"nmi": agreement(data.y, labels), "floats": count, "seconds": seconds}


def fk(D: int, T: int, **arguments: Any) -> tuple[str, Method]:
    """Return FK k-means with D features and T iterations."""
    return "FK", partial(federated, n_features=D, iterations=T, **arguments)


def rival(family: str, method: Any, **arguments: Any) -> tuple[str, Method]:
    """Return a baseline of FK k-means."""
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

    D of FK k-means is printed in a picture that we do not have, so it is the strategy's
    default. Raises MissingData if the appendix does not have this data set.
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
    """Return the baselines of FK k-means, with these D and C of RFK and D of CE PCA."""
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
    """Return the name of a method on n rows as tables show it."""
    if name == "SK":
        return f"SK, {landmarks(n)} landmarks"
    return name.replace("CE PCA, ", "CE PCA, points as features, ")


def nmi(
    data: Rows,
    *,
    seeds: int = 10,
    parties: int = PARTIES,
    quick: bool = False,
    appendix: bool = False,
) -> dict[str, Any]:
    """Run all methods on a data set, with a different split for each seed.

    `quick` has fewer settings of each method, `appendix` the settings of Appendix G of
    [1]. The result has, for each method, its ``family``, ``nmi`` for each seed, and
    means of ``floats``, ``bytes`` and ``seconds``.
    """
    todo = published(data) if appendix else methods(data, quick)
    try:  # CK computes its eigenpairs once: its seeds matter only to k-means
        pairs = kernel_eigenpairs(data.X, data.s)
        todo["CK"] = "central", partial(baseline, central_kernel, pairs=pairs)
    except MissingData as reason:
        tell(f"{data.name}: no CK, {reason}")
    measured: dict[str, Any] = {}
    for name, (family, method) in todo.items():
        cells = [method(data, split_of(data, parties, s), s) for s in range(seeds)]
        means = {k: float(np.mean([cell[k] for cell in cells])) for k in cells[0]}
        nmi = {"nmi": [cell["nmi"] for cell in cells]}
        measured[name] = {"family": family} | means | nmi
    shape = dict(n=len(data.X), d=data.X.shape[1], k=data.k, s=data.s)
    return shape | dict(parties=parties, methods=measured)


def needed(entry: Mapping[str, Any], name: str, family: str) -> tuple[str, float]:
    """Return the cheapest setting of a family as good as `name`, and its floats.

    A setting is as good if its mean NMI is at most `SAME` lower. Returns "" and
    infinity if there is no such setting.
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
            f"{entry['s']}, {entry['parties']} parties, {seeds} "
            f"{'seeds' if seeds > 1 else 'seed'}."
        )
        yield table(rows)
        yield needed_table(entry)


def needed_table(entry: Mapping[str, Any]) -> str:
    """Return a table of the savings of each setting of FK k-means at the same NMI."""
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


# --- k-means by sums ----------------------------------------------------------------


def clustering(
    data: Rows, *, parties: Sequence[int] = (3, 5, 10), seeds: int = 3
) -> dict[str, Any]:
    """Run k-means by sums and on a coreset, on the same splits and features."""
    runs = []
    for M, seed, form in product(parties, range(seeds), ("coreset", "sums")):
        cell = federated(data, split_of(data, M, seed), seed, clustering=form)
        runs.append({"parties": M, "seed": seed, "clustering": form} | cell)
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
    """Choose k by the server, and by pooled criteria on all rows of its embedding."""
    runs = []
    for seed in range(seeds):
        blocks = [Party(data.X[rows]) for rows in split_of(data, parties, seed)]
        strategy = FKKMeans(
            *(MOST_CLUSTERS, CHOICE_COMPONENTS),
            gamma=data.gamma,
            n_init=10,
            choose_clusters=True,
        )
        model = simulate(strategy, blocks, seed=seed).model
        assert isinstance(model, KernelKMeansModel)
        pooled = pooled_numbers(model.transform(data.X), np.random.default_rng(seed))
        runs.append({"chosen": len(model.cluster_centers_)} | pooled)
    return dict(n=len(data.X), k=data.k, seeds=seeds, runs=runs)


def pooled_numbers(H: Array, rng: np.random.Generator) -> dict[str, int]:
    """Return the k from 2 to 15 that criteria choose for all rows of an embedding.

    ``simplified``: the simplified silhouette that the server computes from sums, here
    from all rows. ``silhouette``: Rousseeuw (1987), on 2,000 rows. ``variance ratio``:
    Calinski and Harabasz (1974). ``gap``: Tibshirani, Walther and Hastie (2001), with
    five uniform references along the principal axes. ``eigenvalues``: the largest ratio
    of an eigenvalue of the kernel matrix to the next eigenvalue, from the second on.
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


def number_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of chosen numbers of clusters."""
    yield "## Number of clusters"
    yield table(
        {"": name, "K": str(entry["k"])}
        | {
            criterion: ", ".join(str(run[criterion]) for run in entry["runs"])
            for criterion in ("chosen", *CRITERIA)
        }
        for name, entry in entries.items()
    )


# --- The width of the kernel ----------------------------------------------------------

TIMES = (1, 2, 5, 20)
"""Factors by which the default gamma is multiplied."""


def gamma(data: Rows, *, parties: int = PARTIES, seeds: int = 3) -> dict[str, Any]:
    """Cluster with multiples of the default gamma, beside pooled k-means.

    ``scores`` are adjusted Rand indices with the classes in each run, by ``"k-means"``
    and the multiples.
    """
    from sklearn.cluster import KMeans

    data, default = replace(data, s=CHOICE_COMPONENTS), 0.0
    scores: dict[str, list[float]] = {}
    for seed in range(seeds):
        k_means = KMeans(data.k, n_init=10, random_state=seed).fit_predict(data.X)
        scores.setdefault("k-means", []).append(rand(data.y, k_means))
        parts = split_of(data, parties, seed)
        for times in TIMES:
            wide: dict[str, Any] = {} if times == 1 else {"gamma": times * default}
            labels, result = federated_labels(
                data, parts, seed, clustering="sums", **wide
            )
            default = float(result.metrics["gamma"]) / times
            scores.setdefault(str(times), []).append(rand(data.y, labels))
    shape = dict(n=len(data.X), k=data.k, seeds=seeds)
    return shape | dict(gamma=default, scores=scores)


def rand(y: Array, labels: Array) -> float:
    """Return the adjusted Rand index of classes and labels."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(y, labels))


def gamma_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of scores, with standard errors over seeds."""
    yield "## Width of the kernel"
    yield table(
        {"": name, "K": str(entry["k"]), "default gamma": f"{entry['gamma']:.3g}"}
        | {
            key if key == "k-means" else f"{key} x": mean_and_error(runs, 3)
            for key, runs in entry["scores"].items()
        }
        for name, entry in entries.items()
    )


# --- The command --------------------------------------------------------------------

NAMES = ("digits", "mushrooms", "mnist-20k", "mnist", "covtype")


@dataclass(frozen=True)
class Table:
    """The functions that measure a data set and write the page, and the defaults."""

    measure: Callable[..., dict[str, Any]]
    page: Callable[[Any], Iterator[str]]
    datasets: tuple[str, ...] = NAMES[:3]
    seeds: int = 3


TABLES = {
    "recovery": Table(recovery, recovery_page, seeds=5),
    "floats": Table(floats, floats_page),
    "nmi": Table(nmi, nmi_page, NAMES, seeds=10),
    "clustering": Table(clustering, clustering_page),
    "number": Table(
        number, number_page, ("groups-5", "groups-8", "grid-9", "rings-2", "digits")
    ),
    "gamma": Table(
        gamma,
        gamma_page,
        ("circles-2", "moons-2", "digits", "mushrooms", "covtype15k", "celltype"),
    ),
}
app = new_app()


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(TABLES)],
    datasets: Annotated[
        list[str] | None, some_of([*SETTINGS], "Data sets; by default some.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=100, help="Of each data set at most.")
    ] = 100_000,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer settings and iterations.")
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
    for name in tables:
        one = TABLES[name]
        results, entries = Results(context, "kernel_kmeans", name), {}
        more: dict[str, Any] = {"seeds": seeds or one.seeds}
        if name == "floats":
            more = {"iterations": 5 if quick else 20}
        elif name == "nmi":
            more |= {"quick": quick, "appendix": appendix}
        names = datasets or one.datasets
        for dataset in names:
            with results.skipping(dataset, names):
                data = load(dataset, data_dir, rows)
                if quick:
                    data = replace(data, counts=(50,), iterations=5)
                entries[dataset] = one.measure(data, **more)
                tell(f"{name}: {dataset}")
            page = results.write(entries, one.page(entries))
        tell(page)
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.kernel_kmeans")
