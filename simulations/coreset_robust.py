"""The beta and epsilon of coresets where the assumptions of the coreset paper fail.

Three minutes, ``--quick`` some seconds::

    python -m simulations.coreset_robust
    python -m simulations.coreset_robust --datasets made

By Definition G.1 of [1] a coreset S is (beta, epsilon)-robust if for each cost function
f there is a set O of rows, at most a share beta of all rows and of the draws in S, with
|f(X without O) - f(S without O)| at most epsilon f(X). Here O is one set for all f, as
in the proof of Theorem G.2: the rows with the largest s_i / g_i, where s_i is the
largest share that row i has in the cost of any model, and g_i is its summed score. So
a coreset is robust with the epsilon of these tables, and perhaps with a smaller one,
with another O for each model.

For a regression without a penalty the largest error over *all* models is an eigenvalue.
For k-means the tables have the largest one over 100 sets of centres and those that
k-means finds on the coreset, and s_i is the score of a clustering of all columns.

====================  ==============================================================
made                  regression with columns that two parties share, but for ten
                      rows; k-means of :func:`four_groups`; T = 2
kc_house              ``kc_house.npz`` as in :mod:`simulations.coresets`, and with a
                      column that both parties share, but for 20 rows; T = 2
flights               as in :mod:`simulations.coresets`; T = 3
====================  ==============================================================

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from simulations.coreset_theorems import (
    DELTA,
    EPS,
    FAILURES,
    REPEATS,
    basis_and_scores,
    basis_blocks,
)
from simulations.coresets import LOADERS
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
    tell,
)
from simulations.tables import Experiment
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import (
    cluster_summary,
    coreset_weights,
    draw,
    sigma_min,
    tau,
    uniform,
    vkmc_sensitivities,
)
from vfl_flower.numerics.kmeans import assign, seed_centers, weighted_kmeans
from vfl_flower.typing import Array

BETAS = (0.0, 0.001, 0.01, 0.05)
SIZES, QUICK_SIZES = (250, 500, 1000, 2000, 4000, 8000), (250, 1000)
BETA = 0.01
"""Of the sizes that Theorem G.2 asks for."""
CENTERS = 50
"""How many sets of centres are seeded, and how many are of random rows."""
PAIRS = 100_000
"""Pairs of rows for tau."""


# --- The data -----------------------------------------------------------------------


def shared_columns(n: int, seed: int) -> Columns:
    """Return columns of two parties, of which two are the same but for ten rows.

    Parameters
    ----------
    n : int
        Number of rows.
    seed : int
        Seed of the data.

    Returns
    -------
    Columns
        Six normal columns, three at each party, and at the second party copies of two
        of the first party's, to which ten rows have a normal error; labels are the sum
        of the six columns and normal noise. All of standard deviation 1.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, n]))
    X = rng.standard_normal((n, 6))
    copies = X[:, :2].copy()
    copies[rng.choice(n, 10, replace=False)] += rng.standard_normal((10, 2))
    y = X.sum(axis=1) + rng.standard_normal(n)
    return Columns(np.hstack([X, copies]), (3, 5), y)


def four_groups(n: int, seed: int) -> Columns:
    """Return the example of Theorem 5.1 of [1] with noise.

    Parameters
    ----------
    n : int
        Number of rows.
    seed : int
        Seed of the data.

    Returns
    -------
    Columns
        A column at each of two parties: (0, 0), (0, 1) or (1, 0), and (1, 1) in ten
        rows, with normal noise of standard deviation 0.01. No party sees which rows
        are those of (1, 1).
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
    """Give the second party a column of the first, in which 20 rows are mixed up."""
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
    """Yield what is measured of a data set."""
    if name == "made":
        yield from _made(5000 if quick else 20_000)
        return
    for experiment in LOADERS[name](folder, quick):
        note = experiment.note.partition("; cost")[0]  # the cost is that of all rows
        yield replace(experiment, note=note)
        if experiment.name == "kc_house, plain regression":
            yield _with_shared_column(experiment)


DATASETS = ["made", "kc_house", "flights"]


# --- The errors ---------------------------------------------------------------------


def left_out(ranks: Array, n: int, beta: float) -> int:
    """Return how many rows of an order may be left out, the first ones.

    Parameters
    ----------
    ranks : Array of int, shape (m,)
        The place of each draw of the coreset in the order, sorted.
    n : int
        Number of all rows.
    beta : float
        The share of all rows, and of the draws, that may be left out.

    Returns
    -------
    int
        |O|, where O are the first rows of the order.

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
    """Return the epsilon of a coreset for each beta.

    Parameters
    ----------
    order : Array of int, shape (n,)
        Row numbers; the first ones are left out, as many as a beta lets.
    rows, weights : Array, shape (m,)
        The coreset.
    error : callable
        Of some models.

    Returns
    -------
    list of float
        Each is at most the one before: who may leave out more rows need not.
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

    It is the eigenvalue of U_S^T W U_S - U_X^T U_X farthest from 0, of the rows that
    are not in O.
    """

    def error(rows: Array, weights: Array, outliers: Array) -> float:
        part, out = np.sqrt(weights)[:, None] * U[rows], U[outliers]
        difference = part.T @ part - (np.eye(U.shape[1]) - out.T @ out)
        return float(np.abs(np.linalg.eigvalsh(difference)).max())

    return error


def of_centers(costs: Array) -> Error:
    """Return the error over some sets of centres, given what each row costs with each.

    Parameters
    ----------
    costs : Array, shape (sets, n)
        Squared distances to the closest centre.
    """
    of_all = costs.sum(axis=1)

    def error(rows: Array, weights: Array, outliers: Array) -> float:
        kept = of_all - costs[:, outliers].sum(axis=1)
        return float((np.abs(costs[:, rows] @ weights - kept) / of_all).max())

    return error


def some_centers(X: Array, k: int, rng: np.random.Generator) -> Iterator[Array]:
    """Yield `CENTERS` sets of k centres by k-means++ seeding, and of random rows."""
    blocks = RowBlocks(X)
    for _ in range(CENTERS):
        yield seed_centers(blocks, k, rng)
        yield X[rng.choice(len(X), k, replace=False)]


def theorem_g2_size(
    shares: float, total: float, T: int, dimension: int, beta: float
) -> float:
    """Return the draws that Theorem G.2 asks for, with 1 for its O(.).

    Parameters
    ----------
    shares, total : float
        The sum of all s_i, and G.
    T : int
        Number of parties.
    dimension : int
        d^2 for regression, d k for k-means.
    beta : float
        Above 0; epsilon and delta are `EPS` and `DELTA`.

    Examples
    --------
    c = 2 * 2 / (0.5 * 4) = 2, so c^2 G^2 / epsilon^2 = 400 G^2:

    >>> math.isclose(theorem_g2_size(2, 3, 4, 9, 0.5), 3600 * (9 + math.log(10)))
    True
    """
    c = 2 * shares / (beta * T)
    return c**2 * total**2 / EPS**2 * (dimension + math.log(1 / DELTA))


def measure(experiment: Experiment, sizes: Sequence[int], seed: int) -> dict[str, Any]:
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
    """Return the scores of Algorithm 3; of all columns they are bounds of all s_i."""
    return vkmc_sensitivities(X, cluster_summary(RowBlocks(X), k, rng))


# --- The page -----------------------------------------------------------------------


def kept_by_most(errors: Sequence[Sequence[float]]) -> list[float]:
    """Return of each beta the epsilon that 18 of 20 coresets keep.

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


def page(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how to read the tables, and each."""
    yield (
        "Each cell is the epsilon that 18 of 20 coresets of m draws (C), or uniform "
        "samples of m rows (U), keep where a share beta of all rows and of the draws "
        "may be left out; beta = 0 is that of a coreset as the theorems before have it."
    )
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


# --- The command --------------------------------------------------------------------

app = new_app()


@app.command()
def main(
    context: typer.Context,
    datasets: Annotated[list[str], some_of(DATASETS, "Data sets.")] = DATASETS,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure the epsilon of coresets of which some rows may be left out."""
    title = "Robust coresets"
    results = Results(context, "coreset_robust", title=title, seeds=f"seed {seed}")
    measured: list[dict[str, Any]] = []
    for name in datasets:
        with results.skipping(name, datasets):
            for experiment in experiments(name, data_dir, quick):
                sizes = QUICK_SIZES if quick else SIZES
                measured.append(measure(experiment, sizes, seed))
                tell(f"{experiment.name}: done")
    results.write(measured, page(measured))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.coreset_robust")
