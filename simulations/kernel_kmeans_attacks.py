"""Attacks of the server on the messages of FK k-means, and numbers of iterations.

No table needs a file::

    python -m simulations.kernel_kmeans_attacks sums points iterations

==========  ========================================================================
sums        sums of clusters: differences that equal rows, for whole clusters and with
            the coins and noise of ``clustering="sums"``
points      points of the coreset: distances, and rows up to a rotation
iterations  inertia in excess of 160 iterations, against the movement of the subspace
==========  ========================================================================

The attacks use the data of an honest server: the messages of a run, which
:class:`Watched` keeps. Runs have a seed, so that they can be repeated, but no attack
uses it. Errors of rows are relative to a guess of the mean of all rows, whose error
is 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import sklearn.datasets
import typer
from flwr.app import Message
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist

from simulations.experiments import (
    OUTPUT,
    DataDir,
    OutputDir,
    Results,
    new_app,
    some_of,
    standardise,
    table,
    tables_of,
    tell,
)
from simulations.kernel_baselines import generated
from vfl_flower import FKKMeans, Party, simulate
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.numerics import summed_kmeans
from vfl_flower.numerics.summed_kmeans import LEAST_ROWS
from vfl_flower.protocol.messages import unpack
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.kernel_kmeans.training import MOVING
from vfl_flower.typing import Array

PARTIES = 3

REAL: dict[str, Any] = {"n_features": 50, "iterations": 20, "subspace_tol": 0.01}
"""Settings of the runs that are attacked."""

# --- Data -----------------------------------------------------------------------------

DRAWN = 900
"""Rows of the sets that are drawn here, and of digits when it is attacked."""


def load(name: str, most: int | None = None) -> Array:
    """Return at most `most` rows of a set, without constant columns.

    `name` is a set of scikit-learn, ``exponential`` or ``noise``, whose columns are
    independent, or ``blobs``, five normal groups. All but digits are standardised.
    """
    rng = np.random.default_rng(0)
    if name == "exponential":
        X = rng.exponential(size=(DRAWN, 3))
    elif name == "noise":
        X = rng.normal(size=(DRAWN, 10))
    elif name == "blobs":
        X = generated("groups-5")[0][:DRAWN]
    else:
        X = getattr(sklearn.datasets, f"load_{name}")().data
    X = X[:most, np.ptp(X[:most], axis=0) > 0]
    return X if name == "digits" else standardise(X)


def split(X: Array) -> list[Party]:
    """Return parties that hold every third row each."""
    return [Party(X[m::PARTIES]) for m in range(PARTIES)]


# --- Data of the server --------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """Values of a message to a party and of its reply, as the server sees them.

    `frame` has the settings beside the values of the message, such as bounds of sums.
    """

    action: str
    request: dict[str, Any]
    frame: dict[str, Any]
    reply: dict[str, Any]


class Watched(InProcessGrid):
    """A grid that keeps all messages, in order of creation."""

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        self.exchanges: list[Exchange] = []

    def _push(self, message: Message) -> str:
        number = super()._push(message)
        action = message.metadata.message_type.partition(".")[2]
        reply, _ = unpack(self._replies[number].content)
        self.exchanges.append(Exchange(action, *unpack(message.content), reply))
        return number

    def trips(self, step: str) -> list[list[Exchange]]:
        """Return the exchanges of a step, grouped over all parties."""
        of = [e for e in self.exchanges if e.action == f"kernel_kmeans_{step}"]
        count = len(self._parties)
        return [of[k : k + count] for k in range(0, len(of), count)]


@dataclass(frozen=True, eq=False)
class Seen:
    """Data that an honest server has of a pass that moves centres, in each of a starts.

    The centres, (a, k, s); for each cluster its number of rows in the pass before and
    now, and the number of rows in its sum, (a, k); and the sum over all parties, (a, k,
    s).
    """

    centers: Array
    before: Array
    sizes: Array
    counts: Array
    sums: Array


def passes(grid: Watched) -> list[Seen]:
    """Return the server's data of each pass, by adding the parties' values."""
    seen = []
    for trip in grid.trips("lloyd"):
        request, frame = trip[0].request, trip[0].frame
        if request.get("sizes") is None:  # the first pass moves no centre
            continue
        sizes, counts, sums = (
            group("ring", frame[f"bound.{name}"], len(trip)).decode(
                np.sum([e.reply[name] for e in trip], axis=0)
            )
            for name in ("sizes", "counts", "sums")
        )
        seen.append(Seen(request["centers"], request["sizes"], sizes, counts, sums))
    return seen


def whole_clusters() -> AbstractContextManager[Any]:
    """Sum whole clusters, without coins and noise, within this context."""
    return patch.multiple(summed_kmeans, SHARE=1.0, NOISE=0.0, LEAVERS=0)


# --- Attacks on sums of clusters ------------------------------------------------------

CLUSTERS = 3

FORMS = {"whole clusters, no noise": True, "the default": False}
"""Whether the sums are of whole clusters."""

KNOWN = 30
"""Number of rows that an attacker knows, from which other rows may follow."""

EXACT = 1e-6
"""Largest error of a row that counts as found."""


def watched_sums(
    X: Array, seed: int, *, whole: bool, starts: int = 30
) -> tuple[list[Seen], Array]:
    """Run with ``clustering="sums"``; return the server's data, and H of the rows."""
    grid = Watched(split(X))
    strategy = FKKMeans(CLUSTERS, 20, n_init=starts, seed=seed, **REAL)
    with whole_clusters() if whole else nullcontext():
        model = strategy.start(grid).model
    assert isinstance(model, KernelKMeansModel)
    strategy.complete(model, grid.memories())
    return passes(grid), model.transform(X)


def differences(seen: Sequence[Seen]) -> Array:
    """Return all differences of two sums of which one has one more row."""
    sums, counts = (
        np.concatenate([getattr(s, name)[s.before >= LEAST_ROWS] for s in seen])
        for name in ("sums", "counts")
    )
    more, less = np.nonzero(np.rint(counts[:, None] - counts) == 1)
    return np.asarray(sums[more] - sums[less])


def averaged(seen: Sequence[Seen]) -> Array:
    """Return differences of sums that are averaged over passes and starts first.

    Clusters of equal size whose nearest final centre is the same count as the same
    cluster; the mean of the sent values, times the size, is about the whole sum.
    """
    places = seen[-1].centers[0]
    means: dict[tuple[int, int], list[Array]] = {}
    for given in seen:
        still = (given.before >= LEAST_ROWS) & (np.rint(given.sizes) == given.before)
        for j, cluster in zip(*np.nonzero(still), strict=True):
            mean = given.sums[j, cluster] / max(given.counts[j, cluster], 1)
            place = int(np.linalg.norm(places - mean, axis=1).argmin())
            key = place, int(given.before[j, cluster])
            means.setdefault(key, []).append(mean)
    totals = {key: key[1] * np.mean(of, axis=0) for key, of in means.items()}
    pairs = [(p, n) for p, n in totals if (p, n + 1) in totals]
    found = [totals[p, n + 1] - totals[p, n] for p, n in pairs]
    return np.array(found).reshape(-1, places.shape[1])


ATTACKS = {"differences": differences, "averaged, then differences": averaged}


def nearest(guesses: Array, H: Array) -> Array:
    """Return each row's distance to its nearest guess over its distance to the mean."""
    if not len(guesses):
        return np.full(len(H), np.inf)
    middle = np.linalg.norm(H - H.mean(axis=0), axis=1)
    return np.asarray(cdist(H, guesses).min(axis=1) / middle)


def blind_draws(H: Array, count: int) -> Array:
    """Return guesses that use only the mean and the covariance of the rows."""
    moments = H.mean(axis=0), np.cov(H.T)
    return np.random.default_rng(0).multivariate_normal(*moments, count)


def follow(points: Array, X: Array, known: Array) -> float:
    """Return the error of rows that follow from their points and from known rows.

    A linear map is fitted to the known rows. The error is the root mean square over the
    other rows, in standard deviations of a column if X is standardised.
    """
    A = np.column_stack([points, np.ones(len(points))])
    ridge = 1e-3 * np.eye(A.shape[1])
    M = np.linalg.solve(A[known].T @ A[known] + ridge, A[known].T @ X[known])
    rest = np.setdiff1d(np.arange(len(X)), known)
    return float(np.sqrt(np.mean((A[rest] @ M - X[rest]) ** 2)))


def sums(name: str, *, seeds: int = 3, starts: int = 30) -> dict[str, Any]:
    """Attack sums of clusters in several runs with `starts` starts of k-means each.

    Each attack has, by run, ``guesses``, ``exact`` (rows found), ``nearest`` and
    ``median`` (errors of the rows), and ``blind_nearest`` and ``blind_median`` for the
    same number of normal draws. ``known`` has the errors of the rows that follow, by
    the substitute for the points of the rows.
    """
    X = load(name)
    cells: dict[tuple[str, str], list[dict[str, float]]] = {}
    known: dict[str, list[float]] = {}
    for seed in range(seeds):
        for form, whole in FORMS.items():
            seen, H = watched_sums(X, seed, whole=whole, starts=starts)
            for attack, of in ATTACKS.items():
                guesses = of(seen)
                errors = nearest(guesses, H)
                blind = nearest(blind_draws(H, len(guesses)), H)
                cell = {
                    "guesses": len(guesses),
                    "exact": int((errors < EXACT).sum()),
                    "nearest": float(errors.min()),
                    "median": float(np.median(errors)),
                    "blind_nearest": float(blind.min()),
                    "blind_median": float(np.median(blind)),
                }
                cells.setdefault((form, attack), []).append(cell)
        # H and the seen data now belong to the default, which is the last form.
        chosen = np.random.default_rng(seed).choice(len(X), KNOWN, replace=False)
        guesses = np.concatenate([of(seen) for of in ATTACKS.values()])
        blind = blind_draws(H, len(guesses))
        stands = {"the points of the coreset": watched_points(X, 20, seed)[0]}
        stands["the nearest differences"] = guesses[cdist(H, guesses).argmin(axis=1)]
        stands["the nearest normal draws"] = blind[cdist(H, blind).argmin(axis=1)]
        for what, points in stands.items():
            known.setdefault(what, []).append(follow(points, X, chosen))
    attacks = [
        {"form": form, "attack": attack}
        | {key: [cell[key] for cell in of] for key in of[0]}
        for (form, attack), of in cells.items()
    ]
    return {"rows": len(X), "attacks": attacks, "known": known}


def span(values: Sequence[float], form: str = ".2f") -> str:
    """Return the smallest and the largest value.

    >>> span([0.5, 0.25, 1]), span([1000, 1000], ",d")
    ('0.25 to 1.00', '1,000')
    """
    ends = [format(end, form) for end in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def sums_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield two tables for each data set."""
    yield "## Attacks on sums of clusters"
    for entry in entries.values():
        yield table(
            {
                "sums": one["form"],
                "attack": one["attack"],
                "guesses": span(one["guesses"], ",d"),
                f"rows found, of {entry['rows']}": span(one["exact"], "d"),
                "nearest": f"below {EXACT:g}"
                if max(one["nearest"]) < EXACT
                else span(one["nearest"]),
                "median": span(one["median"]),
                "nearest of draws": span(one["blind_nearest"]),
                "median of draws": span(one["blind_median"]),
            }
            for one in entry["attacks"]
        )
        yield table(
            {f"{KNOWN} rows known, and": what, "error of the others": span(errors)}
            for what, errors in entry["known"].items()
        )


# --- Attacks on the points of the coreset ---------------------------------------------

POINTS = ["wine", "breast_cancer", "digits", "exponential"]

COMPONENTS = (5, 20)
"""s."""


def watched_points(X: Array, s: int, seed: int) -> tuple[Array, float]:
    """Run with ``clustering="coreset"`` and all rows in the coreset.

    Returns the points that the parties sent, (n, s), in the order of the rows, and the
    kernel's gamma, as the server sends it to the parties.
    """
    grid = Watched(split(X))
    settings = REAL | {"clustering": "coreset", "coreset_size": PARTIES * len(X)}
    FKKMeans(CLUSTERS, s, n_init=1, seed=seed, **settings).start(grid)
    points = np.empty((len(X), s))
    (trip,) = grid.trips("sample")
    for m, exchange in enumerate(trip):
        points[m::PARTIES] = exchange.reply["points"]
    return points, float(grid.trips("gram")[0][0].request["setup.gamma"])


def squared_distances(points: Array, gamma: float) -> Array:
    """Return |x - x'|^2 by cosines of the points, which are about exp(-gamma ..)."""
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(-np.log(np.clip(unit @ unit.T, 1e-3, 1)) / gamma)


def scaling(squares: Array, d: int) -> Array:
    """Return rows with these distances (classical scaling)."""
    n = len(squares)
    J = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-J @ squares @ J / 2)
    return np.asarray(vectors[:, -d:] * np.sqrt(np.maximum(values[-d:], 0)))


def error(guess: Array, true: Array) -> float:
    """Return the error relative to a guess of the mean, whose error is 1."""
    guess, true = guess - guess.mean(axis=0), true - true.mean(axis=0)
    return float(np.linalg.norm(guess - true) / np.linalg.norm(true))


def up_to_rotation(guess: Array, true: Array) -> float:
    """Return the error after the best rotation of the guess."""
    guess, true = guess - guess.mean(axis=0), true - true.mean(axis=0)
    return error(guess @ orthogonal_procrustes(guess, true)[0], true)


def up_to_linear(guess: Array, true: Array) -> float:
    """Return the error after the best linear map of the guess."""
    guess, true = guess - guess.mean(axis=0), true - true.mean(axis=0)
    return error(guess @ np.linalg.lstsq(guess, true)[0], true)


def correlations(guess: Array, true: Array) -> Array:
    """Return the |correlation| of columns of a guess (by row) with true columns."""
    d = guess.shape[1]
    return np.asarray(np.abs(np.corrcoef(guess.T, true.T)[:d, d:]))


def components(values: Array) -> Array:
    """Return the independent components of rows."""
    from sklearn.decomposition import FastICA

    model = FastICA(whiten="unit-variance", random_state=0, max_iter=1000)
    with warnings.catch_warnings():  # it does not converge if there is nothing
        warnings.simplefilter("ignore")
        return np.asarray(model.fit_transform(values))


def points(name: str, *, seeds: int = 3, most: int = DRAWN) -> dict[str, Any]:
    """Attack the points of the coreset in several runs, without the features' seed.

    The result has by run ``kernel``, the root mean squared error of kernel values of
    two rows; ``distances``, the correlation with true squared distances; ``rotation``,
    the error of rows found from these distances up to a rotation; ``linear``, the error
    of rows found from points up to a linear map; and ``column``, the median
    |correlation| of a column with its nearest independent component.
    """
    X = load(name, most)
    d, above = X.shape[1], np.triu_indices(len(X), 1)
    true = cdist(X, X, "sqeuclidean")
    runs = []
    for s in COMPONENTS:
        cells = []
        for seed in range(seeds):
            H, gamma = watched_points(X, s, seed)
            missed = (H @ H.T - np.exp(-gamma * true))[above]
            squares = squared_distances(H, gamma)
            rows = scaling(squares, d)
            # Distances of points have no more useful dimensions.
            found = components(scaling(squares, min(d, s)))
            cells.append(
                {
                    "kernel": float(np.sqrt(np.mean(missed**2))),
                    "distances": float(np.corrcoef(squares[above], true[above])[0, 1]),
                    "rotation": up_to_rotation(rows, X),
                    "linear": up_to_linear(H, X),
                    "column": float(np.median(correlations(found, X).max(axis=0))),
                }
            )
        runs.append({"s": s} | {key: [c[key] for c in cells] for key in cells[0]})
    return {"rows": len(X), "columns": d, "runs": runs}


def points_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of attacks on points."""
    yield "## What the points of the coreset show"
    yield table(
        {
            "": f"{name}, {entry['rows']} x {entry['columns']}"
            if run is entry["runs"][0]
            else "",
            "s": str(run["s"]),
            **{
                what: f"{np.mean(run[what]):.{digits}f}"
                for what, digits in (
                    ("kernel", 3),
                    ("distances", 3),
                    ("rotation", 2),
                    ("linear", 2),
                    ("column", 2),
                )
            },
        }
        for name, entry in entries.items()
        for run in entry["runs"]
    )


# --- Iterations, and how far the subspace moves ---------------------------------------

SETS = {"digits": 10, "wine": 3, "iris": 3, "breast_cancer": 2, "blobs": 5, "noise": 4}
"""Data sets and k; s is 2 k."""

TIMES = (2, 5, 10, 20, 40)
"""T."""

LONG = 160
"""T of the run with which the others are compared."""

BANDS = {"1 or more": (MOVING, np.inf), "0.3 to 1": (0.3, MOVING), "0 to 0.3": (0, 0.3)}
"""Movement of the subspace."""


def iterations(
    name: str, *, times: Sequence[int] = TIMES, long: int = LONG, seeds: int = 4
) -> dict[str, Any]:
    """Run with several numbers T of iterations, and with many.

    ``above`` is the share by which the inertia exceeds the inertia of the longest run
    with the same seed.
    """
    parties, k = split(load(name)), SETS[name]
    runs: dict[int, dict[str, Any]] = {t: {"T": t} for t in times}
    for seed, t in product(range(seeds), [long, *times]):
        strategy = FKKMeans(k, 2 * k, iterations=t, seed=seed, subspace_tol=0)
        metrics = simulate(strategy, parties).metrics
        inertia = float(metrics["inertia"])
        if t == long:
            least = inertia
            continue
        cell = {"moved": float(metrics["moved"]), "inertia": inertia}
        for key, value in (cell | {"above": inertia / least - 1}).items():
            runs[t].setdefault(key, []).append(value)
    return {"runs": list(runs.values())}


def iterations_page(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield tables by the movement and by the iterations."""
    yield "## Iterations"
    runs = [run for entry in entries.values() for run in entry["runs"]]
    by_time: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        pairs = zip(run["moved"], run["above"], strict=True)
        by_time.setdefault(run["T"], []).extend(pairs)
    cells = [pair for of in by_time.values() for pair in of]
    yield table(
        {"the subspace moved by": band, **_above(within)}
        for band, (low, high) in BANDS.items()
        if (within := [above for moved, above in cells if low <= moved < high])
    )
    yield table(
        {
            "T": str(t),
            "moved, median": f"{np.median([moved for moved, _ in pairs]):.2f}",
            "1 or more": f"{sum(moved >= MOVING for moved, _ in pairs)} "
            f"of {len(pairs)}",
            **_above([above for _, above in pairs]),
        }
        for t, pairs in by_time.items()
    )


def _above(values: Sequence[float]) -> dict[str, str]:
    return {
        "runs": str(len(values)),
        f"inertia above that of {LONG}, mean": f"{100 * np.mean(values):.1f} %",
        "least": f"{100 * min(values):.1f} %",
        "most": f"{100 * max(values):.1f} %",
    }


# --- The command ----------------------------------------------------------------------

TABLES: dict[str, tuple[Any, Any, list[str], int]] = {
    "sums": (sums, sums_page, ["wine"], 3),
    "points": (points, points_page, POINTS, 3),
    "iterations": (iterations, iterations_page, [*SETS], 4),
}
"""Measuring function, page function, data sets, and number of runs."""

app = new_app()


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(TABLES)],
    datasets: Annotated[
        list[str] | None,
        some_of(dict.fromkeys([*POINTS, *SETS]), "Data sets; by default all."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs; default 3, of iterations 4.")
    ] = None,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Attack the messages of FK k-means, and compare numbers of iterations.

    No data set is read from the folder of the npz files.
    """
    for name in tables:
        measure, page, known, runs = TABLES[name]
        results = Results(context, "kernel_kmeans_attacks", name)
        entries = {
            dataset: measure(dataset, seeds=seeds or runs)
            for dataset in known
            if datasets is None or dataset in datasets
        }
        tell(results.write(entries, page(entries)))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.kernel_kmeans_attacks")
