"""What two theorems of the federated kernel k-means paper say, beside what happens.

::

    python -m simulations.kernel_theorems schedule loss

========  ==========================================================================
schedule  error of the kernel matrix with the step 2 / t of Theorem 1 of [1], and with
          the step 1 / t of its Algorithm 1
loss      the loss of kernel k-means at the clusters of FK k-means, the smallest that
          kernel k-means on the whole matrix finds, and a lower bound: Theorem 3
========  ==========================================================================

The data sets are those of :mod:`simulations.kernel_kmeans`.

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
[2] I. S. Dhillon, Y. Guan, B. Kulis, "Kernel k-means: spectral clustering and
    normalized cuts", KDD 2004.
[3] C. Ding, X. He, "K-means clustering via principal component analysis", ICML 2004.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any

import numpy as np
import typer

from simulations.experiments import (
    OUTPUT,
    DataDir,
    OutputDir,
    Results,
    new_app,
    some_of,
    table,
    tables_of,
    tell,
)
from simulations.kernel_baselines import default_gamma, kernel_eigenpairs, split_among
from simulations.kernel_kmeans import (
    COUNTS,
    PARTIES,
    SETTINGS,
    Rows,
    federated_labels,
    interval,
    load,
    shown,
    slope,
)
from simulations.kernel_pooled import pooled_draw, pooled_fkkm, recovery_error
from vfl_flower.numerics.kmeans import assign, weighted_kmeans
from vfl_flower.typing import Array

DATASETS = ["digits", "mushrooms"]

# --- The step of Theorem 1 ------------------------------------------------------------

FACTORS = {"1 / t": 1.0, "2 / t": 2.0}
"""Steps of Algorithm 1 and of Theorem 1; the second is 1 at t = 1."""


def schedule(
    data: Rows,
    *,
    counts: Sequence[int] = COUNTS,
    iterations: int = 50,
    seeds: int = 5,
) -> dict[str, Any]:
    """Compare K_t with the best approximation of K of rank s, for both steps.

    Parameters
    ----------
    data, counts, iterations, seeds
        All rows, D, T, and the number of runs of each kind. lambda is the true
        (s + 1)-th eigenvalue, and both steps have the same features.

    Returns
    -------
    dict
        ``curves``, each with ``D``, ``step`` and ``errors`` (seeds, T).
    """
    values, vectors = kernel_eigenpairs(data.X, data.s + 1)
    largest = values[: data.s], vectors[:, : data.s]
    curves = []
    for D, (step, factor) in product(counts, FACTORS.items()):
        errors = []
        for seed in range(seeds):
            draw = pooled_draw(data.X, D, D, seed)
            run = pooled_fkkm(draw, iterations, data.s, float(values[data.s]), factor)
            errors.append([recovery_error(iterate.H, *largest) for iterate in run])
        curves.append({"D": D, "step": step, "errors": errors})
        tell(f"{data.name}: D = {D}, {step}: {np.mean(errors, axis=0)[-1]:.2e}")
    return dict(n=len(data.X), s=data.s, curves=curves)


def schedule_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of both steps."""
    yield "## The step of Theorem 1"
    rows = []
    for name, entry in entries.items():
        for curve in entry["curves"]:
            errors = np.array(curve["errors"])
            mean, half = errors.mean(axis=0), interval(errors)
            t = np.arange(1, len(mean) + 1)
            row = {
                "": name,
                "D": str(curve["D"]),
                "step": curve["step"],
                "slope": f"{slope(mean):.2f}",
                "max t x error": f"{(mean * t).max():.3f}",
            }
            for i in shown(len(mean)):
                row[f"t = {i}"] = f"{mean[i - 1]:.2g} ({half[i - 1]:.1g})"
            rows.append(row)
    yield table(rows)


# --- The loss of Theorem 3 ------------------------------------------------------------

TIMES = (1, 5, 20, 50)
"""T."""

STARTS = 10
"""Of kernel k-means on the whole matrix."""


def loss(data: Rows, *, seeds: int = 3, parties: int = PARTIES) -> dict[str, Any]:
    """Measure f_K at the clusters of FK k-means, for s = k, 2 k, 4 k and several T.

    Parameters
    ----------
    data, seeds, parties
        All rows, of which the kernel matrix must fit, runs of each kind, and M.

    Returns
    -------
    dict
        ``bound``, no larger than any f_K; ``central``, f_K of kernel k-means on the
        whole matrix from each start; ``runs``, each with ``s``, ``T`` and f_K by seed,
        ``losses``.
    """
    K = centred_kernel(data.X)
    bound = lower_bound(K, data.k)
    values, U = largest_pairs(K, data.s)
    H, rng = U * np.sqrt(values), np.random.default_rng(0)
    central = []
    for _ in range(STARTS):
        centers, _ = weighted_kmeans(H, data.k, np.ones(len(H)), rng, n_init=1)
        labels = kernel_lloyd(K, assign(H, centers)[0], data.k)
        central.append(kernel_loss(K, labels, data.k))
    tell(f"{data.name}: at least {bound:.6g}; central {central}")
    runs = []
    for s, T in product((data.k, 2 * data.k, 4 * data.k), TIMES):
        losses = []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, parties])
            parts = split_among(len(data.X), parties, rng)
            labels, _ = federated_labels(
                replace(data, s=s), parts, seed, iterations=T, subspace_tol=0.0
            )
            losses.append(kernel_loss(K, labels, data.k))
        runs.append({"s": s, "T": T, "losses": losses})
        tell(f"{data.name}: s = {s}, T = {T}: {losses}")
    shape = dict(n=len(data.X), k=data.k)
    return shape | dict(bound=bound, central=central, runs=runs)


def centred_kernel(X: Array) -> Array:
    """Return C K C, shape (n, n), with C = I - 1 1^T / n; gamma is that of [1]."""
    from sklearn.metrics.pairwise import rbf_kernel

    K = np.asarray(rbf_kernel(X, gamma=default_gamma(X)))
    means = K.mean(axis=0)
    K -= means
    K -= means[:, None]
    K += means.mean()
    return K


def largest_pairs(K: Array, count: int) -> tuple[Array, Array]:
    """Return the largest eigenvalues of K, ascending, and their eigenvectors."""
    from scipy.sparse.linalg import eigsh

    start = np.random.default_rng(0).standard_normal(len(K))
    values, vectors = eigsh(K, count, which="LA", v0=start)
    return values, vectors


def lower_bound(K: Array, k: int) -> float:
    """Return a number that no f_K of k clusters is below.

    Parameters
    ----------
    K : Array, shape (n, n)
        As `centred_kernel` returns it.
    k : int
        Number of clusters.

    Notes
    -----
    The bound follows [3]. With P = Y L Y^T the projection on the indicators of the
    clusters, f_K = tr K - tr P K. P contains the constant vector, on which the centred
    K is 0, and k - 1 further dimensions, on which tr P K is at most the sum of its
    k - 1 largest eigenvalues.
    """
    return float(K.trace() - largest_pairs(K, k - 1)[0].sum())


def kernel_loss(K: Array, labels: Array, k: int) -> float:
    """Return f_K of equation 1: tr K - sum_c 1_c^T K 1_c / N_c, of clusters c < k."""
    Y = np.eye(k)[labels]
    within = ((K @ Y) * Y).sum(axis=0)
    return float(K.trace() - (within / np.maximum(Y.sum(axis=0), 1)).sum())


def kernel_lloyd(K: Array, labels: Array, k: int) -> Array:
    """Return the clusters at which kernel k-means [2] stops, from these ones."""
    for _ in range(300):
        Y = np.eye(k)[labels]
        sizes = np.maximum(Y.sum(axis=0), 1)
        products = K @ Y / sizes
        squares = (products * Y).sum(axis=0) / sizes
        new = np.argmin(squares - 2 * products, axis=1)
        if (new == labels).all():
            break
        labels = new
    return labels


def loss_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence and a table for each data set."""
    yield "## The loss of Theorem 3"
    for name, entry in entries.items():
        bound, central, k = entry["bound"], entry["central"], entry["k"]
        yield f"### {name}"
        yield (
            f"{entry['n']:,} rows, k = {k}. No clusters have a loss below {bound:.5g}. "
            f"Kernel k-means on the whole matrix comes to {min(central):.5g} at best "
            f"and {max(central):.5g} at worst of {len(central)} starts: "
            f"{min(central) / bound:.4f} and {max(central) / bound:.4f} of the bound."
        )
        rows = []
        for run in entry["runs"]:
            losses = np.array(run["losses"])
            rows.append(
                {
                    "s": str(run["s"]),
                    "T": str(run["T"]),
                    "loss": f"{losses.mean():.5g}",
                    "of the best start": f"{losses.mean() / min(central):.4f}",
                    "of the lower bound": f"{losses.mean() / bound:.4f}",
                    "at most": f"{losses.max() / bound:.4f}",
                    "1 + k / s": f"{1 + k / run['s']:.4f}",
                }
            )
        yield table(rows)


# --- The command ----------------------------------------------------------------------

app = new_app()


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(("schedule", "loss"))],
    datasets: Annotated[list[str], some_of([*SETTINGS], "Data sets.")] = DATASETS,
    rows: Annotated[
        int, typer.Option(min=100, help="Of each data set at most.")
    ] = 10_000,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs; default 5, of loss 3.")
    ] = None,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure what Theorems 1 and 3 of the paper are about."""
    for name in tables:
        results, entries = Results(context, "kernel_theorems", name), {}
        for dataset in datasets:
            with results.skipping(dataset, datasets):
                data = load(dataset, data_dir, rows)
                if name == "schedule":
                    entries[dataset] = schedule(data, seeds=seeds or 5)
                else:
                    entries[dataset] = loss(data, seeds=seeds or 3)
        page = schedule_page(entries) if name == "schedule" else loss_page(entries)
        tell(results.write(entries, page))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.kernel_theorems")
