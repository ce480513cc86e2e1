"""What the MUFC paper says of cost: its bound, its average speed-up, shifted bins.

All tables take about twenty minutes on an idle machine, of which MNIST takes most::

    python -m simulations.mufc_claims bound shifts speedup sizes

========  ==========================================================================
bound     how often removals redraw, and how many distances they take, beside Lemma
          F.1 and Theorem 5.4 of [1]
shifts    loss ratios with bins that a random shift has moved (Appendix H, footnote)
speedup   speed-up of random removals over all requests: Section 6
sizes     what a removal costs a party, whatever its number of rows
========  ==========================================================================

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from simulations.experiments import (
    OUTPUT,
    DataDir,
    OutputDir,
    Quick,
    Results,
    new_app,
    some_of,
    standard_error,
    table,
    tables_of,
    tell,
)
from simulations.mufc import PATTERNS, Numerics, requests_of
from simulations.mufc_data import DATASETS, SplitRows
from vfl_flower import Party, request_changes
from vfl_flower.clients.mufc import MUFCState, commit, forget, train
from vfl_flower.clients.mufc_state import TrainingSettings
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import (
    Quantizer,
    initialise,
    local_labels,
    server_centroids,
    surviving,
)
from vfl_flower.typing import Array

# --- Theorem 5.4 --------------------------------------------------------------------

DRAWS = 200
"""Initialisations by which the chance of each row to be a centroid is measured."""


def imbalance(X: Array, k: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return epsilon_1 and the smallest epsilon_2 of Assumptions 5.2 and 5.3.

    Parameters
    ----------
    X : Array, shape (n, d)
        Rows.
    k : int
        K.
    rng : numpy.random.Generator
        Source of ten starts of k-means, of which the best stands for the optimum.

    Returns
    -------
    epsilon_1 : float
        n / (K s_min), with the size s_min of the smallest optimal cluster.
    epsilon_2 : float
        The smallest one at least 1 for which no row is an outlier: the largest
        |x - c_j|^2 |C_j| / phi_c(C_j).
    """
    centers = server_centroids(X, np.ones(len(X)), k, rng)
    labels, costs = assign(X, centers)
    sizes = np.bincount(labels, minlength=len(centers))
    means = np.bincount(labels, costs) / np.maximum(sizes, 1)
    far = np.divide(costs, means[labels], where=costs > 0, out=np.ones(len(X)))
    return len(X) / (k * int(sizes[sizes > 0].min())), max(1.0, float(far.max()))


def chances(
    X: Array, k: int, draws: int, rng: np.random.Generator
) -> tuple[Array, float]:
    """Estimate the probability of each row to be a centroid of k-means++.

    P(x in C) = 1 / n + sum_(j=1)^(K-1) E d^2(x, C_j) / phi_c(X; C_j), equations 13 and
    18: the mean is taken over probabilities, and not over draws, so that rare rows
    need no luck.

    Parameters
    ----------
    X : Array, shape (n, d)
        Rows, at least k of them distinct.
    k : int
        K.
    draws : int
        Initialisations.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    chance : Array, shape (n,)
        The mean for each row; they add up to k.
    largest : float
        The largest probability of any row in any draw but the first.
    """
    blocks, largest = RowBlocks(X), 0.0
    chance = np.full(len(X), 1 / len(X))
    for _ in range(draws):
        nearest = np.full(len(X), np.inf)
        for row in initialise(blocks, k, rng)[0][:-1]:
            nearest = np.minimum(nearest, np.square(X - X[row]).sum(axis=1))
            share = nearest / nearest.sum()
            chance += share / draws
            largest = max(largest, float(share.max()))
    return chance, largest


def most_chance(n: int, k: int, e1: float, e2: float) -> float:
    """Return the bound of P(x in C) for any row: equation 18, at most 1."""
    return min(1.0, (1 + 10 * k * (k - 1) * e1 * e2) / n)


def counted(data: SplitRows, pattern: str, count: int, seed: int) -> dict[str, Any]:
    """Train, and remove rows request by request; count distances.

    A distance is one of a row to a centroid, d products: a party that redraws takes K
    of each row that stays, and one that does not takes K of each removed row.

    Returns
    -------
    dict
        Of each request ``redrawn`` and ``distances``; by Lemma F.1 the ``chance`` to
        redraw, at most 1, and by Theorem 5.4 the ``bound`` of distances, both with 1
        for the constant of O(.) where [1] has none; ``anew``: the distances of a
        training.
    """
    numerics = Numerics(data, "MUFC, weighted bins", seed)
    numerics.train()
    rng, k = np.random.default_rng([seed, 1]), data.k
    worst = {
        m: imbalance(X, k, np.random.default_rng(m))
        for m, X in enumerate(data.rows if pattern == "adversarial" else ())
    }
    names = ("redrawn", "distances", "chance", "bound", "anew")
    measured: dict[str, list[float]] = {name: [] for name in names}
    for m, rows in requests_of(numerics, pattern, count, k, rng):
        n, drawn, r = int(numerics.stay[m].sum()), len(numerics.drawn[m]), len(rows)
        redrawn = numerics.remove(m, rows)[2]
        if m in worst:
            chance, factor = most_chance(n, k, *worst[m]), k * math.prod(worst[m])
        else:
            chance, factor = r * k / n, 1.0
        figures = (
            float(redrawn),
            (n - r) * drawn if redrawn else r * drawn,
            min(1.0, chance),
            min(r * k**2 * factor, n * k),
            n * k,
        )
        for column, figure in zip(measured.values(), figures, strict=True):
            column.append(figure)
    return measured


def likeliest(data: SplitRows, seed: int = 0) -> dict[str, Any]:
    """Measure the chance of the likeliest row, with all rows at one party and split.

    Returns
    -------
    dict
        ``n``, ``k``, ``e1``, ``e2``; ``chance`` of the likeliest row, which half of the
        draws choose and the other half measure, and its ``bound``, equation 18;
        ``step``, the largest probability in a draw, and its bound ``step bound``,
        equation 17. ``parties``: a list of ``chance`` and ``bound`` of each.
    """
    rng, k = np.random.default_rng([seed, 5]), data.k

    def one(X: Array, draws: int) -> dict[str, Any]:
        e1, e2 = imbalance(X, k, rng)
        row = int(chances(X, k, draws // 2, rng)[0].argmax())
        chance, step = chances(X, k, draws // 2, rng)
        return {
            **{"n": len(X), "k": k, "e1": e1, "e2": e2},
            **{"chance": float(chance[row]), "bound": most_chance(len(X), k, e1, e2)},
            **{"step": step, "step bound": min(1.0, 10 * k * e1 * e2 / len(X))},
        }

    parties = [one(X, DRAWS // 4) for X in data.rows if len(X) > k]
    few = [{name: party[name] for name in ("chance", "bound")} for party in parties]
    return one(np.concatenate(data.rows), DRAWS) | {"parties": few}


def bound(data: SplitRows, seeds: int, count: int) -> dict[str, Any]:
    """Measure all patterns, and the likeliest row."""
    patterns = {}
    for pattern in PATTERNS:
        runs = [counted(data, pattern, count, seed) for seed in range(seeds)]
        columns = {
            name: np.concatenate([run[name] for run in runs]) for name in runs[0]
        }
        if not len(columns["redrawn"]):
            continue  # no party has so many rows
        patterns[pattern] = {name: float(v.mean()) for name, v in columns.items()}
        patterns[pattern]["number"] = len(columns["redrawn"])
        tell(f"{data.name}: {pattern}: {patterns[pattern]}")
    row = likeliest(data)
    tell(f"{data.name}: the likeliest row {row['chance']:.4f}, {row['bound']:.4f}")
    return {"name": data.name, "k": data.k, "patterns": patterns, "likeliest": row}


def bound_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of removals and of the likeliest row."""
    yield "## The bound of Theorem 5.4"
    yield table(
        {
            "data": entry["name"],
            "requests": pattern,
            "number": f"{one['number']:,}",
            "redrawn %": f"{100 * one['redrawn']:.1f}",
            "Lemma F.1 %": f"{100 * one['chance']:.1f}",
            "distances": f"{one['distances']:,.0f}",
            "Theorem 5.4": f"{one['bound']:,.0f}",
            "training": f"{one['anew']:,.0f}",
        }
        for entry in measured
        for pattern, one in entry["patterns"].items()
    )
    yield "## The likeliest row"
    rows = []
    for entry in measured:
        one, parties = entry["likeliest"], entry["likeliest"]["parties"]
        useful = sum(party["bound"] < 1 for party in parties)
        rows.append(
            {
                "data": entry["name"],
                "n": f"{one['n']:,}",
                "K": str(one["k"]),
                "epsilon 1": f"{one['e1']:.2f}",
                "epsilon 2": f"{one['e2']:.1f}",
                "likeliest row %": f"{100 * one['chance']:.2f}",
                "equation 18 %": f"{100 * one['bound']:.0f}",
                "in one draw %": f"{100 * one['step']:.2f}",
                "equation 17 %": f"{100 * one['step bound']:.1f}",
                "at a party %": f"{100 * _mean(parties, 'chance'):.0f}",
                "parties whose equation 18 is below 1": f"{useful} of {len(parties)}",
            }
        )
    yield table(rows)


def _mean(entries: Sequence[Mapping[str, float]], name: str) -> float:
    return float(np.mean([entry[name] for entry in entries]))


# --- Shifted bins -------------------------------------------------------------------

FACTORS = (1, 16, 32)
"""gamma, over 1 / sqrt(n)."""


@dataclass(frozen=True, eq=False)
class Shifted(Quantizer):
    """Bins about gamma (j + u), as Ginart et al. (2019) shift those of centroids.

    Parameters
    ----------
    shift : Array, shape (d,)
        gamma u: uniform in [-gamma / 2, gamma / 2], and the same for all parties.
    """

    shift: Array

    @property
    def _top(self) -> int:
        return super()._top + 1  # a bin more on each side, as all have moved

    def bins(self, points: Array) -> Array:
        """Return the bin of each point."""
        return np.rint((points - self.shift) / self.gamma).astype(np.int64) + self._top

    def _extent(self, bins: Array) -> tuple[Array, Array]:
        middle = self.gamma * (bins - self._top) + self.shift
        low = np.maximum(middle - self.gamma / 2, -0.5)
        return low, np.minimum(middle + self.gamma / 2, 0.5) - low


def shifts(data: SplitRows, seeds: int) -> list[dict[str, Any]]:
    """Train with and without a shift, with the same draws of parties.

    Returns
    -------
    list of dict
        ``data``, ``factor``, ``gamma``, and the induced loss ratios ``plain`` and
        ``shifted`` of each seed.
    """
    measured = []
    for factor in FACTORS:
        gamma = min(1.0, factor / math.sqrt(data.n))
        ratios: dict[str, list[float]] = {"plain": [], "shifted": []}
        for seed in range(seeds):
            u = np.random.default_rng([seed, 4]).uniform(-0.5, 0.5, data.d)
            quantizers = Quantizer(gamma), Shifted(gamma, gamma * u)
            for name, quantizer in zip(ratios, quantizers, strict=True):
                numerics = Numerics(data, "MUFC", seed)
                numerics.quantizer = quantizer
                numerics.train()
                ratios[name].append(numerics.loss()[0] / data.best)
        measured.append({"data": data.name, "factor": factor, "gamma": gamma} | ratios)
        tell(measured[-1])
    return measured


def shifts_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of shifts."""
    yield "## Shifted bins"
    rows = []
    for entry in measured:
        change = np.subtract(entry["shifted"], entry["plain"])
        error = standard_error(change)
        rows.append(
            {
                "data": entry["data"],
                "gamma": f"{entry['gamma']:.4f}",
                "over the default": str(entry["factor"]),
                "without": f"{np.mean(entry['plain']):.3f}",
                "with a shift": f"{np.mean(entry['shifted']):.3f}",
                "difference": f"{np.mean(change):+.3f} ± {error:.3f}",
                "seeds": str(len(change)),
            }
        )
    yield table(rows)


# --- Average speed-up ---------------------------------------------------------------

UNTOUCHED = 100
"""Removals of rows that are no centroids, for each seed."""


def speed_up(data: SplitRows, seeds: int, redraws: int) -> dict[str, Any]:
    """Measure the expected time of a random removal against retraining.

    A request is for a random row of a random party, as in Section 6. It redraws with a
    probability that the present centroids give exactly, so each of the two cases is
    measured by itself: the mean over all requests has no noise from their number.

    Returns
    -------
    dict
        ``name``; ``printed``, whether [1] has the set; of each seed
        ``complete_seconds`` and ``own_seconds`` of a training, as in
        :func:`simulations.mufc.removal`, and the ``chance`` to redraw; of each request
        ``redraw_seconds`` or ``untouched_seconds``.
    """
    measured: dict[str, Any] = {"name": data.name, "printed": bool(data.published)}
    names = ("complete", "own", "redraw", "untouched")
    measured |= {"chance": [], **{f"{name}_seconds": [] for name in names}}
    for seed in range(min(seeds, data.seeds)):
        complete = Numerics(data, "MUFC, complete", seed)
        measured["complete_seconds"].append(sum(complete.train()))
        numerics = Numerics(data, "MUFC", seed)
        measured["own_seconds"].append(sum(numerics.train()))
        measured["chance"].append(float(hits(numerics, data.k)[1].mean()))
        rng = np.random.default_rng([seed, 6])
        for name, count in (("redraw", redraws), ("untouched", UNTOUCHED)):
            for _ in range(count):
                able, chance = hits(numerics, data.k)
                if not len(able):
                    break
                weights = chance if name == "redraw" else 1 - chance
                m = int(rng.choice(able, p=weights / weights.sum()))
                rows = numerics.drawn[m]
                if name == "untouched":
                    rows = np.setdiff1d(np.flatnonzero(numerics.stay[m]), rows)
                party, server, redrawn = numerics.remove(m, rng.choice(rows, 1))
                assert redrawn == (name == "redraw")
                measured[f"{name}_seconds"].append(party + server)
    tell(f"{data.name}: {_speed_cells(measured)}")
    return measured


def hits(numerics: Numerics, k: int) -> tuple[Array, Array]:
    """Return the parties that keep K rows, and their shares of rows drawn."""
    able = [m for m, stay in enumerate(numerics.stay) if stay.sum() > k]
    share = [len(numerics.drawn[m]) / numerics.stay[m].sum() for m in able]
    return np.array(able), np.array(share)


def _speed_ups(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the seconds of a request, and the speed-up over the two trainings."""
    chance = np.mean(entry["chance"])
    redraw, untouched = (
        float(np.mean(entry[f"{name}_seconds"])) for name in ("redraw", "untouched")
    )
    seconds = float(chance * redraw + (1 - chance) * untouched)
    complete, own = (
        float(np.median(entry[f"{name}_seconds"])) for name in ("complete", "own")
    )
    return seconds, complete / seconds, own / seconds


def _speed_cells(entry: Mapping[str, Any]) -> dict[str, str]:
    mean, paper, own = _speed_ups(entry)
    complete = float(np.median(entry["complete_seconds"]))
    return {
        "redrawn %": f"{100 * np.mean(entry['chance']):.1f}",
        "untouched, us": f"{1e6 * np.mean(entry['untouched_seconds']):.0f}",
        "redraw, ms": f"{1e3 * np.mean(entry['redraw_seconds']):,.1f}",
        "mean, ms": f"{1e3 * mean:,.2f}",
        "the paper's training, ms": f"{1e3 * complete:,.1f}",
        "own, ms": f"{1e3 * np.median(entry['own_seconds']):,.1f}",
        "faster than the paper's": f"{paper:.1f}",
        "faster than own": f"{own:.1f}",
    }


def speedup_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of speed-ups, of the paper's sets and others, with means."""
    for title, printed in (
        ("Average speed-up", True),
        ("Average speed-up of stand-ins", False),
    ):
        entries = [entry for entry in measured if entry["printed"] == printed]
        if not entries:
            continue
        yield f"## {title}"
        means = np.mean([_speed_ups(entry)[1:] for entry in entries], axis=0)
        last = {
            "data": "mean",
            "faster than the paper's": f"{means[0]:.1f}",
            "faster than own": f"{means[1]:.1f}",
        }
        yield table(
            [*({"data": e["name"]} | _speed_cells(e) for e in entries), last],
        )


# --- Parties of all sizes -----------------------------------------------------------

SIZES = (1_000, 10_000, 100_000, 1_000_000)
D, K = 10, 10
MODEL = "0123456789abcdef"


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return float(np.median(times))


def in_memory(X: Array, drawn: Array, labels: Array) -> float:
    """Return the seconds of a removal in memory that redraws nothing."""
    kept = np.ones(len(X), dtype=bool)
    sizes = np.bincount(labels, minlength=K)
    centroids = X[drawn]
    row = np.setdiff1d(np.arange(2 * K), drawn)[:1]

    def remove() -> None:
        assert len(surviving(drawn, row)) == K
        kept[row] = False
        sizes[local_labels(X[row], centroids)] -= 1

    return seconds(remove, 1000)


def step(X: Array, folder: Path) -> float:
    """Return the seconds of the step that a party runs when rows are removed."""
    party = Party(X, ids=np.arange(len(X)), name="a", index=0, state_dir=folder)
    party.seed, party.n_parties = 1, 3
    settings = TrainingSettings(
        n_clusters=K,
        local_clusters=K,
        gamma=1 / len(X) ** 0.5,
        lower=np.asarray(-0.5),
        upper=np.asarray(0.5),
        server_points="uniform",
        client_training="init",
        privacy="scma",
        field="hash",
        n_init=10,
    )
    key, centers = bytes(16), np.zeros((1, D))
    train(party, MODEL, settings, key)
    commit(party, 1, MODEL, centers)
    drawn = party.recall(MUFCState).drawn
    rows = np.setdiff1d(np.arange(10 * K), drawn)[:3].tolist()
    models = [MODEL, *(f"{version:016x}" for version in (1, 2, 3))]
    times = []
    for version, (before, after) in enumerate(pairwise(models), 1):
        party.resume({})  # each run begins with nothing
        request_changes(party, forget=[rows[version - 1]])
        start = time.process_time()
        forget(party, MODEL, version, before, after, key)
        times.append(time.process_time() - start)
        commit(party, version + 1, after, centers)
    return float(np.median(times))


def sized(n: int) -> dict[str, Any]:
    """Measure a party of n uniform rows, d = 10 and K = 10.

    Returns
    -------
    dict
        ``n``; ``untouched_seconds``: what the algorithm needs where nothing is redrawn,
        a check that no centroid is removed, and the subtraction of the row from the
        size of its cluster; ``redraw_seconds``: a whole initialisation;
        ``step_seconds``: the whole step of the protocol, which tags all ids of the
        data, to check that all training rows are there, reads and writes SQLite, and
        encodes counts for a sum over 3 parties.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, (n, D))
    blocks = RowBlocks(X)
    drawn, labels = initialise(blocks, K, rng)
    with tempfile.TemporaryDirectory() as folder:
        step_seconds = step(X, Path(folder))
    measured = {
        "n": n,
        "untouched_seconds": in_memory(X, drawn, labels),
        "redraw_seconds": seconds(lambda: initialise(blocks, K, rng), 5),
        "step_seconds": step_seconds,
    }
    tell(measured)
    return measured


def sizes_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of parties of all sizes."""
    yield "## What a party pays, whatever its rows"
    rows = []
    for one in measured:
        chance, untouched = K / one["n"], one["untouched_seconds"]
        mean = chance * one["redraw_seconds"] + (1 - chance) * untouched
        rows.append(
            {
                "n": f"{one['n']:,}",
                "untouched, us": f"{1e6 * untouched:,.1f}",
                "redraw, us": f"{1e6 * one['redraw_seconds']:,.0f}",
                "redrawn %": f"{100 * chance:g}",
                "mean, us": f"{1e6 * mean:,.1f}",
                "step, ms": f"{1e3 * one['step_seconds']:,.1f}",
            }
        )
    yield table(rows)


# --- The command --------------------------------------------------------------------

app = new_app()
OWN = ["celltype", "gaussian", "covtype15k"]
"""Sets of the paper that we have."""
PAGES: dict[str, Callable[[Any], Iterator[str]]] = {
    "bound": bound_page,
    "shifts": shifts_page,
    "speedup": speedup_page,
    "sizes": sizes_page,
}


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(PAGES)],
    datasets: Annotated[list[str], some_of(DATASETS, "Data sets.")] = OWN,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each set.")] = 5,
    requests: Annotated[
        int,
        typer.Option(min=1, help="Of each seed of bound; a tenth redraw in speedup."),
    ] = 100,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Compare what the MUFC paper says of cost with what we measure."""
    for name in tables:
        results = Results(context, "mufc_claims", name)
        measured: list[Any] = []
        if name == "sizes":
            measured = [sized(n) for n in (SIZES[:2] if quick else SIZES)]
        for dataset in datasets if name != "sizes" else ():
            with results.skipping(dataset, datasets):
                data = DATASETS[dataset](data_dir, quick)
                if name == "bound":
                    measured.append(bound(data, seeds, requests))
                elif name == "shifts":
                    measured += shifts(data, seeds)
                else:
                    measured.append(speed_up(data, seeds, max(1, requests // 10)))
        tell(results.write(measured, PAGES[name](measured)))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.mufc_claims")
