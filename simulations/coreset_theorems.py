"""Sizes that the theorems of the coreset paper require, and errors of coresets.

::

    python -m simulations.coreset_theorems sizes
    python -m simulations.coreset_theorems robust --datasets made

======  ==============================================================================
sizes   the draws of Theorems 3.1, 4.2 and 5.2 beside the draws that are enough
robust  the beta and epsilon of coresets if Assumptions 4.1 and 5.1 fail
======  ==============================================================================

The data sets come from :mod:`simulations.coresets`. For a regression without a
penalty the cost of a model is a quadratic form, so that the epsilon of a coreset, the
largest relative error over *all* models, is an eigenvalue and can be measured.

By Definition G.1 of [1] a coreset S is (beta, epsilon)-robust if for each cost function
f there is a set O of rows, at most a share beta of all rows and of the draws in S, with
|f(X without O) - f(S without O)| at most epsilon f(X). Here O is one set for all f, as
in the proof of Theorem G.2: the rows with the largest s_i / g_i, where s_i is the
largest share that row i has in the cost of any model, and g_i is its summed score. So
a coreset is robust with the epsilon of these tables, and perhaps with a smaller epsilon
if O differs between models. For k-means the tables show the largest error over 100 sets
of centres and the centres that k-means finds on the coreset, and s_i is the score of a
clustering of all columns.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from simulations.coresets import LOADERS, Experiment
from simulations.experiments import (
    OUTPUT,
    Columns,
    DataDir,
    OutputDir,
    Quick,
    Results,
    new_app,
    some_of,
    table,
    tables_of,
    tell,
)
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import (
    cluster_summary,
    coreset_weights,
    sigma_min,
    tau,
    uniform,
    vkmc_sensitivities,
    vrlr_sensitivities,
)
from vfl_flower.numerics.kmeans import assign, draw, seed_centers, weighted_kmeans
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.typing import Array

EPS = DELTA = 0.1
REPEATS, FAILURES = 20, 2
"""A size is enough if at most 2 of 20 draws have a larger epsilon: delta = 0.1."""

BETAS = (0.0, 0.001, 0.01, 0.05)
SIZES, QUICK_SIZES = (250, 500, 1000, 2000, 4000, 8000), (250, 1000)
BETA = 0.01
"""Share beta in the sizes that Theorem G.2 asks for."""
CENTERS = 50
"""Number of sets of centres that are seeded, and number that are random rows."""
PAIRS = 100_000
"""Pairs of rows for tau."""


# --- Sizes that the theorems ask for --------------------------------------------------

Constants = Literal["one", "proof"]
"""For the constants that Theorems 4.2 and 5.2 leave out: 1 for each O(.), or the bounds
of zeta and G in the proof, and 1 for the O(.) of Theorem 3.1."""


def theorem31_size(
    total: float, dimension: float, eps: float = EPS, delta: float = DELTA
) -> float:
    """Return the size of an epsilon-coreset by Theorem 3.1, with 1 for its O(.).

    It is m = zeta G (D log(zeta G) + log(1 / delta)) / eps^2, with zeta G = `total`, at
    least 1, and D = `dimension`: d^2 for regression, d k for k-means. The constant is
    that of a framework (Theorem D.1) that gives none.
    """
    if math.isinf(total):
        return math.inf
    m = total * (dimension * math.log(total) + math.log(1 / delta)) / eps**2
    return float(math.ceil(m))


def theorem42_size(
    gamma: float,
    d: int,
    n_parties: int,
    eps: float = EPS,
    delta: float = DELTA,
    constants: Constants = "one",
) -> float:
    """Return the size that Theorem 4.2 asks for, for regression.

    m = O(eps^-2 gamma^-2 d (d^2 log(gamma^-2 d) + log(1 / delta))); by the proof zeta
    is at most 1 / gamma^2 (Lemma E.2) and G at most d + T + 1. Infinite at gamma = 0.
    """
    G = d if constants == "one" else d + n_parties + 1
    total = G / gamma**2 if gamma**2 > 0 else math.inf
    return theorem31_size(total, d**2, eps, delta)


def theorem52_size(
    tau: float,
    d: int,
    k: int,
    n_parties: int,
    eps: float = EPS,
    delta: float = DELTA,
    alpha: float = 2.0,
    constants: Constants = "one",
) -> float:
    """Return the size that Theorem 5.2 asks for, for k-means.

    m = O(eps^-2 alpha tau k T (d k log(alpha tau k T) + log(1 / delta))); by the proof
    zeta is at most 4 tau and G = 2 (k + 1) alpha T (Lemma F.2).
    """
    rate = k if constants == "one" else 8 * (k + 1)
    return theorem31_size(alpha * tau * rate * n_parties, d * k, eps, delta)


# --- What is enough -------------------------------------------------------------------


def basis_blocks(data: Columns) -> list[Array]:
    """Return the columns of each party less their means, and at the holder 1 and y.

    These are the columns whose bases the parties take in ``CoresetVRLR``.
    """
    assert data.y is not None
    blocks = [X - X.mean(axis=0) for X in data.split(data.X)]
    y = data.y
    blocks[data.holder] = np.column_stack([blocks[data.holder], np.ones(len(y)), y])
    return blocks


def basis_and_scores(blocks: Sequence[Array]) -> tuple[Array, Array]:
    """Return an orthonormal basis U of all columns, and each row's sum_j g_i^(j).

    |u_i|^2 is the largest share that row i has in the cost of any model.
    """
    n = len(blocks[0])
    scores = np.zeros(n)
    for X in blocks:
        one = RowBlocks(X)
        scores += vrlr_sensitivities(leverage_scores(one, leverage_factor(one)), n)
    every = RowBlocks(np.hstack(blocks))
    factor = leverage_factor(every)
    return np.vstack([X @ factor for X in every]), scores


def measured_eps(U: Array, rows: Array, weights: Array) -> float:
    """Return the epsilon of a coreset for regression without a penalty.

    The largest |cost on the coreset / cost on all rows - 1| over all models |U v|^2 is
    the eigenvalue of U_S^T W U_S - 1 farthest from 0.
    """
    part = np.sqrt(weights)[:, None] * U[rows]
    values = np.linalg.eigvalsh(part.T @ part)
    return float(np.abs(values - 1).max())


def enough(
    U: Array, scores: Array | None, eps: float, rng: np.random.Generator
) -> int | None:
    """Return the first of 125, 250, .. draws that is enough; None if none below n."""
    n, size = len(U), 125
    while size < n:
        failures = 0
        for _ in range(REPEATS):
            if scores is None:
                coreset = uniform(n, size, rng)
            else:
                rows = draw(scores, size, rng)
                coreset = rows, coreset_weights(float(scores.sum()), scores[rows])
            failures += measured_eps(U, *coreset) > eps
            if failures > FAILURES:
                break
        else:
            return size
        size *= 2
    return None


def sizes_of_regression(
    name: str, n: int, d: int, T: int, gamma: float
) -> dict[str, Any]:
    """Return the size that Theorem 4.2 asks for."""
    known = {"name": name, "n": n, "d": d, "T": T, "gamma": gamma}
    theorem = theorem42_size(gamma, d, T)
    return known | {
        "theorem": theorem,
        "proof": theorem42_size(gamma, d, T, constants="proof"),
    }


def sizes_of_clustering(
    name: str, n: int, d: int, T: int, k: int, tau: float
) -> dict[str, Any]:
    """Return the size that Theorem 5.2 asks for."""
    known = {"name": name, "n": n, "d": d, "T": T, "k": k, "tau": tau}
    return known | {
        "theorem": theorem52_size(tau, d, k, T),
        "proof": theorem52_size(tau, d, k, T, constants="proof"),
        "tau = 1": theorem52_size(1.0, d, k, T),
    }


def sizes(experiment: Experiment, seed: int, pairs: int) -> dict[str, Any]:
    """Return sizes that theorems ask for; for regression also a size that is enough."""
    data, rng = experiment.data, np.random.default_rng(seed)
    (n, d), T = data.X.shape, len(data.widths)
    if experiment.task == "k-means":
        lower = tau(data.split(data.X), rng, pairs)
        k = experiment.arguments["n_clusters"]
        return sizes_of_clustering(experiment.name, n, d, T, k, lower)
    d += 1  # with the intercept
    blocks = basis_blocks(data)
    U, scores = basis_and_scores(blocks)
    gamma = sigma_min(blocks, np.ones(n))
    zeta = float(((U**2).sum(axis=1) / scores).max())
    return sizes_of_regression(experiment.name, n, d, T, gamma) | {
        "zeta": zeta,
        "G": float(scores.sum()),
        "measured zeta G": theorem31_size(zeta * scores.sum(), d**2),
        "enough": {str(eps): enough(U, scores, eps, rng) for eps in (0.1, 0.3, 0.5)},
        "enough, uniform": enough(U, None, EPS, rng),
    }


def paper_s_set() -> dict[str, list[dict[str, Any]]]:
    """Return the sizes for the set of [1] at the best possible gamma and tau."""
    name, d, T = "YearPredictionMSD, at best", 90, 3
    return {
        "regression": [sizes_of_regression(name, 463_715, d, T, 1.0)],
        "k-means": [sizes_of_clustering(name, 515_345, d, T, 10, 1.0)],
    }


def asked(figures: Mapping[str, Any], name: str) -> str:
    """Return a size, also as a multiple of the number of rows in the set."""
    size = figures.get(name)
    if size is None:
        return ""
    if math.isinf(size):
        return "none"
    times = size / figures["n"]
    return f"{size:.2g} ({times:,.{0 if times >= 100 else 1}f} n)"


def drawn(size: int | None) -> str:
    """Return a measured size, or say that no size below n is enough."""
    return "n or more" if size is None else f"{size:,}"


def sizes_page(figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the two tables."""
    yield "### Regression without a penalty"
    rows = []
    for one in figures["regression"]:
        row = {
            "": one["name"],
            "n": f"{one['n']:,}",
            "d": str(one["d"]),
            "T": str(one["T"]),
            "gamma": f"{one['gamma']:.2g}",
            "Theorem 4.2": asked(one, "theorem"),
            "proof": asked(one, "proof"),
            "measured zeta G": asked(one, "measured zeta G"),
        }
        if "enough" in one:
            row |= {f"enough, {e}": drawn(m) for e, m in one["enough"].items()}
            row["uniform: enough, 0.1"] = drawn(one["enough, uniform"])
        rows.append(row)
    yield table(rows)
    yield "### k-means"
    yield table(
        {
            "": one["name"],
            "n": f"{one['n']:,}",
            "d": str(one["d"]),
            "T": str(one["T"]),
            "k": str(one["k"]),
            "tau": f"{one['tau']:.3g}",
            "Theorem 5.2": asked(one, "theorem"),
            "proof": asked(one, "proof"),
            "Theorem 5.2 at tau = 1": asked(one, "tau = 1"),
        }
        for one in figures["k-means"]
    )


# --- Robust coresets: the data --------------------------------------------------------


def shared_columns(n: int, seed: int) -> Columns:
    """Return columns of two parties; two pairs of columns are equal but for ten rows.

    Six normal columns, three at each party, and at the second party copies of two of
    the first party's; labels are the sum of the six and normal noise.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, n]))
    X = rng.standard_normal((n, 6))
    copies = X[:, :2].copy()
    copies[rng.choice(n, 10, replace=False)] += rng.standard_normal((10, 2))
    y = X.sum(axis=1) + rng.standard_normal(n)
    return Columns(np.hstack([X, copies]), (3, 5), y)


def four_groups(n: int, seed: int) -> Columns:
    """Return the example of Theorem 5.1 of [1] with noise.

    A column at each of two parties: (0, 0), (0, 1) or (1, 0), and (1, 1) in ten rows.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, n]))
    corners = np.array([[0.0, 0], [0, 1], [1, 0]])[rng.integers(3, size=n)]
    corners[rng.choice(n, 10, replace=False)] = 1
    return Columns(corners + 0.01 * rng.standard_normal((n, 2)), (1, 1))


def _made(n: int) -> Iterator[Experiment]:
    yield Experiment(
        "made, shared columns",
        "normal columns, and two that both parties have, but for ten rows",
        "regression",
        shared_columns(n, seed=0),
        {},
        {},
    )
    yield Experiment(
        "made, four groups, k = 3",
        "the example of Theorem 5.1 with noise; ten rows are at (1, 1)",
        "k-means",
        four_groups(n, seed=0),
        {"n_clusters": 3},
        {},
    )


def _with_shared_column(experiment: Experiment) -> Experiment:
    """Give the second party a column of the first party, with 20 rows permuted."""
    data = experiment.data
    rng = np.random.default_rng(0)
    copy = data.X[:, 3].copy()
    rows = rng.choice(len(copy), 20, replace=False)
    copy[rows] = np.roll(copy[rows], 1)
    first, second = data.widths
    return replace(
        experiment,
        name="kc_house, a shared column, plain regression",
        note="both parties have the area of the plot, but in 20 rows the second party "
        "has that of another house",
        data=replace(
            data, X=np.column_stack([data.X, copy]), widths=(first, second + 1)
        ),
    )


def experiments(name: str, folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """Yield the experiments on a data set."""
    if name == "made":
        yield from _made(5000 if quick else 20_000)
        return
    for experiment in LOADERS[name](folder, quick):
        note = experiment.note.partition("; cost")[0]  # the cost is that of all rows
        yield replace(experiment, note=note)
        if experiment.name == "kc_house, plain regression":
            yield _with_shared_column(experiment)


ROBUST = ["made", "kc_house", "flights"]


# --- The errors ---------------------------------------------------------------------


def left_out(ranks: Array, n: int, beta: float) -> int:
    """Return the number of first rows of an order that may be left out.

    Examples
    --------
    Ten rows, of which those at places 0, 4, 4 and 7 were drawn. One draw of four may be
    left out, so the row at place 4, which was drawn twice, must stay:

    >>> left_out(np.array([0, 4, 4, 7]), 10, 0.25), left_out(np.array([0, 4]), 10, 0.2)
    (2, 0)
    """
    rows, draws = (int(beta * count + 1e-9) for count in (n, len(ranks)))
    return min(rows, int(ranks[draws]))


Error = Callable[[Array, Array, Array], float]
"""The epsilon of some models, of the rows and weights of S without O, and of O."""


def errors(order: Array, rows: Array, weights: Array, error: Error) -> list[float]:
    """Return the epsilon of a coreset for each beta; the first of `order` are left out.

    Each epsilon is at most the epsilon before: one may, but need not, leave out more.
    """
    place = np.argsort(order)[rows]
    found = []
    for beta in BETAS:
        count = left_out(np.sort(place), len(order), beta)
        kept = place >= count
        found.append(error(rows[kept], weights[kept], order[:count]))
    return list(itertools.accumulate(found, min))


def of_every_linear_model(U: Array) -> Error:
    """Return the error over all models without a penalty, where f(X) = |U v|^2.

    It is the eigenvalue of U_S^T W U_S - U_X^T U_X farthest from 0, over the rows
    that are not in O.
    """

    def error(rows: Array, weights: Array, outliers: Array) -> float:
        part, out = np.sqrt(weights)[:, None] * U[rows], U[outliers]
        difference = part.T @ part - (np.eye(U.shape[1]) - out.T @ out)
        return float(np.abs(np.linalg.eigvalsh(difference)).max())

    return error


def of_centers(costs: Array) -> Error:
    """Return the error over sets of centres; `costs` of rows with each, (sets, n)."""
    of_all = costs.sum(axis=1)

    def error(rows: Array, weights: Array, outliers: Array) -> float:
        kept = of_all - costs[:, outliers].sum(axis=1)
        return float((np.abs(costs[:, rows] @ weights - kept) / of_all).max())

    return error


def some_centers(X: Array, k: int, rng: np.random.Generator) -> Iterator[Array]:
    """Yield `CENTERS` sets of k centres by k-means++ seeding and by random rows."""
    blocks = RowBlocks(X)
    for _ in range(CENTERS):
        yield seed_centers(blocks, k, rng)
        yield X[rng.choice(len(X), k, replace=False)]


def theorem_g2_size(
    shares: float, total: float, T: int, dimension: int, beta: float
) -> float:
    """Return the draws that Theorem G.2 asks for, with 1 for its O(.).

    Examples
    --------
    c = 2 * 2 / (0.5 * 4) = 2, so c^2 G^2 / epsilon^2 = 400 G^2:

    >>> math.isclose(theorem_g2_size(2, 3, 4, 9, 0.5), 3600 * (9 + math.log(10)))
    True
    """
    c = 2 * shares / (beta * T)
    return c**2 * total**2 / EPS**2 * (dimension + math.log(1 / DELTA))


def robust(experiment: Experiment, sizes: Sequence[int], seed: int) -> dict[str, Any]:
    """Return the epsilon of 20 coresets and samples of each size, for each beta."""
    data, regression = experiment.data, experiment.task == "regression"
    (n, d), T = data.X.shape, len(data.widths)
    rng = np.random.default_rng(seed)
    if regression:
        d += 1  # with the intercept
        blocks = basis_blocks(data)
        U, scores = basis_and_scores(blocks)
        shares = (U**2).sum(axis=1)
        every = of_every_linear_model(U)
        dimension = d**2
        assumption = {"gamma": sigma_min(blocks, np.ones(n))}
    else:
        k = experiment.arguments["n_clusters"]
        parts = data.split(data.X)
        scores = np.sum([_clustering_scores(X, k, rng) for X in parts], axis=0)
        shares = _clustering_scores(data.X, k, rng)
        sets = some_centers(data.X, k, rng)
        every = of_centers(np.array([assign(data.X, C)[1] for C in sets]))
        dimension = d * k
        assumption = {"tau": tau(parts, rng, PAIRS)}

    def epsilons(order: Array, rows: Array, weights: Array) -> list[float]:
        if regression:
            return errors(order, rows, weights, every)
        own = weighted_kmeans(data.X[rows], k, weights, rng, n_init=1)[0]
        one = of_centers(assign(data.X, own)[1][None])
        return errors(order, rows, weights, lambda *S: max(every(*S), one(*S)))

    G = float(scores.sum())
    orders = np.argsort(-shares / scores), np.argsort(-shares)
    found: dict[str, dict[str, list[list[float]]]] = {"coreset": {}, "uniform": {}}
    for m in sizes:
        drawn = [draw(scores, m, rng) for _ in range(REPEATS)]
        found["coreset"][str(m)] = [
            epsilons(orders[0], rows, coreset_weights(G, scores[rows]))
            for rows in drawn
        ]
        found["uniform"][str(m)] = [
            epsilons(orders[1], *uniform(n, m, rng)) for _ in range(REPEATS)
        ]
    total = float(shares.sum())
    return {
        "name": experiment.name,
        "note": experiment.note,
        "n": n,
        "d": d,
        "T": T,
        **assumption,
        "asked": theorem_g2_size(total, G, T, dimension, BETA),
        "asked, uniform": theorem_g2_size(total, T, T, dimension, BETA),
        "errors": found,
    }


def _clustering_scores(X: Array, k: int, rng: np.random.Generator) -> Array:
    """Return the scores of Algorithm 3; for all columns they are bounds on all s_i."""
    return vkmc_sensitivities(X, cluster_summary(RowBlocks(X), k, rng))


def kept_by_most(errors: Sequence[Sequence[float]]) -> list[float]:
    """Return, for each beta, the epsilon that 18 of 20 coresets do not exceed.

    Examples
    --------
    >>> kept_by_most([[float(i), 0.0] for i in range(20)])
    [17.0, 0.0]
    """
    return [sorted(of)[-1 - FAILURES] for of in zip(*errors, strict=True)]


def table_of(result: Mapping[str, Any]) -> str:
    """Return the epsilon of coresets and samples by m and beta."""
    rows = []
    for m in result["errors"]["coreset"]:
        row = {"m": f"{int(m):,}"}
        for letter, sampling in (("C", "coreset"), ("U", "uniform")):
            kept = kept_by_most(result["errors"][sampling][m])
            for beta, eps in zip(BETAS, kept, strict=True):
                row[f"{letter}, beta = {beta:g}"] = f"{eps:.3f}"
        rows.append(row)
    return table(rows)


def robust_page(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table for each set."""
    for result in results:
        name, value = next(
            (name, result[name]) for name in ("gamma", "tau") if name in result
        )
        yield f"### Robust: {result['name']}"
        yield (
            f"n = {result['n']:,}, d = {result['d']}, T = {result['T']}; "
            f"{result['note']}. {name} is {value:.2g}. For beta = {BETA} and epsilon = "
            f"{EPS} Theorem G.2 asks for {result['asked']:.1g} draws, and for "
            f"{result['asked, uniform']:.1g} uniform ones."
        )
        yield table_of(result)


# --- The command ----------------------------------------------------------------------

app = new_app()
TABLES = ("sizes", "robust")


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(TABLES)],
    datasets: Annotated[
        list[str] | None,
        some_of(dict.fromkeys(["made", *LOADERS]), "Data sets; default: of a table."),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of rows for tau.")] = PAIRS,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure the sizes that theorems ask for, and the epsilon of robust coresets."""
    for name in tables:
        results = Results(context, "coreset_theorems", name, seeds=f"seed {seed}")
        figures: Any = paper_s_set() if name == "sizes" else []
        chosen = datasets or (list(LOADERS) if name == "sizes" else ROBUST)
        for dataset in chosen:
            with results.skipping(dataset, chosen):
                if name == "robust":
                    ms = QUICK_SIZES if quick else SIZES
                    for experiment in experiments(dataset, data_dir, quick):
                        figures.append(robust(experiment, ms, seed))
                        tell(f"{experiment.name}: done")
                    continue
                for experiment in LOADERS[dataset](data_dir, quick):
                    if "regularizer" not in experiment.arguments:
                        measured = sizes(experiment, seed, pairs)
                        figures[experiment.task].append(measured)
                        tell(f"{measured}")
        page = sizes_page if name == "sizes" else robust_page
        tell(results.write(figures, page(figures)))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.coreset_theorems")
