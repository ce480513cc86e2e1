"""The experiments of the MUFC paper: losses, removals, bounds, and what bins show.

All tables take about an hour on an idle machine::

    python -m simulations.mufc loss removal speedup bound settings sizes
    python -m simulations.mufc adding number membership

==========  ========================================================================
loss        loss ratios of MUFC, K-FED and DC-KM: Tables 1 and 2 of [1]
removal     time of removals against retraining, and the loss ratio over removals:
            Figures 3 to 5
speedup     speed-up of random removals over all requests: Section 6
bound       frequency of redraws, and number of distances, of removals, beside Lemma
            F.1 and Theorem 5.4
settings    the quantisation step, the clusters and the centroids of a party: Figure 3
sizes       the cost of a removal to a party, whatever its number of rows
adding      time to add rows against retraining, and the number of rows both show
number      the number of clusters chosen from the bins, by three criteria
membership  membership that one training run reveals, and the cost of hiding it
==========  ========================================================================

No messages are sent: see :mod:`simulations.mufc_federation`. The data are npz files in
``--data-dir`` or the folder ``VFL_FLOWER_DATA``: celltype, covtype15k, pol, protein;
the other sets are generated.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    table,
    tables_of,
    tell,
)
from simulations.mufc_attack import membership, membership_page
from simulations.mufc_federation import (
    METHODS,
    Numerics,
    SplitRows,
    candidates,
    celltype,
    covtype,
    gaussian,
    stand_in,
)
from vfl_flower import Party, request_changes
from vfl_flower.clients.mufc.forgetting import forget
from vfl_flower.clients.mufc.settings import TrainingSettings
from vfl_flower.clients.mufc.training import MUFCState, commit, train
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import (
    initialise,
    local_labels,
    number_of_clusters,
    server_centroids,
    surviving,
)
from vfl_flower.typing import Array

Figures = Sequence[Mapping[str, Any]]
"""The results of a table's function for each data set."""


def _trained(data: SplitRows, method: str, seed: int, **settings: Any) -> Numerics:
    numerics = Numerics(data, method, seed, **settings)
    numerics.train()
    return numerics


def _mean(values: Sequence[float] | Array) -> float:
    return float(np.mean(values))


def _spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{_mean(values):.3f} ± {deviation:.3f}"


# --- Loss ratios --------------------------------------------------------------------


def loss(data: SplitRows, seeds: int, requests: int = 0) -> dict[str, Any]:
    """Train all methods: loss ratios, and seconds of the slowest party and server."""
    methods = {}
    for method in METHODS:
        figures = []
        for seed in range(seeds):
            numerics = Numerics(data, method, seed)
            times = numerics.train()
            figures.append((*times, *(cost / data.best for cost in numerics.loss())))
        names = ("party", "server", "induced", "nearest")
        columns = (list(column) for column in zip(*figures, strict=True))
        methods[method] = dict(zip(names, columns, strict=True))
    published = dict(data.published or {})
    return {"name": data.name, "published": published, "methods": methods}


def loss_page(measured: Figures) -> Iterator[str]:
    """Yield the table of loss ratios."""
    yield "## Loss ratios"
    yield table(
        {
            "data": entry["name"],
            "method": method,
            "induced": _spread(values["induced"]),
            "nearest": _spread(values["nearest"]),
            "printed": f"{p:.2f}" if (p := entry["published"].get(method)) else "",
            "seeds": str(len(values["induced"])),
            "party ms": f"{1000 * _mean(values['party']):.1f}",
            "server ms": f"{1000 * _mean(values['server']):.0f}",
        }
        for entry in measured
        for method, values in entry["methods"].items()
    )


# --- Removal times ------------------------------------------------------------------

PATTERNS = {"random": 1, "adversarial": 1, "batches of 10": 10, "batches of 30": 30}
"""Rows of a request, all of one party: drawn at random, or the worst."""

POINTS = 4
"""Number of loss ratios measured during the removals, besides the one before them."""

RETRAINING = {
    "complete": ("the paper's", "MUFC, complete"),
    "own": ("own", "MUFC"),
    "weighted": ("own, weighted bins", "MUFC, weighted bins"),
}
"""Methods with which removals are compared: title and method."""

_AGAIN = {"pattern": "random", "lazy": False, "ratios": False}
PLANS: dict[str, dict[str, Any]] = {
    **{pattern: {"pattern": pattern} for pattern in PATTERNS},
    "random, counts sent again": _AGAIN,
    "random, counts sent again, weighted bins": _AGAIN
    | {"method": "MUFC, weighted bins"},
    "random, DC-KM": {"pattern": "random", "method": "DC-KM", "ratios": False},
}
"""Arguments of `removals`. Plans without ratios cluster at each request, so they have a
tenth of the requests, and two seeds."""


def requests_of(
    numerics: Numerics, pattern: str, count: int, rng: np.random.Generator
) -> Iterator[tuple[int, Array]]:
    """Yield requests: a random party that keeps at least K rows, and rows of it."""
    size = PATTERNS[pattern]
    for _ in range(count):
        if pattern == "adversarial":
            yield numerics.worst(size)
            continue
        least = size + numerics.data.k
        able = [m for m, stay in enumerate(numerics.stay) if stay.sum() >= least]
        if not able:
            return
        m = int(rng.choice(able))
        rows = np.flatnonzero(numerics.stay[m])
        yield m, rng.choice(rows, size, replace=False)


def removals(
    data: SplitRows,
    pattern: str,
    method: str = "MUFC",
    *,
    lazy: bool = True,
    count: int = 100,
    seed: int = 0,
    ratios: bool = True,
) -> dict[str, Any]:
    """Train, and remove rows request by request.

    Returns, for each request, ``party`` and ``server`` seconds and ``redrawn``, and
    also ``ratio``: pairs of the number of requests done and the induced loss ratio of
    the rows that stay.
    """
    numerics = _trained(data, method, seed)
    measured: dict[str, list[Any]] = {"party": [], "server": [], "redrawn": []}
    ratio = [[0, numerics.ratio()]] if ratios else []
    rng, every = np.random.default_rng([seed, 1]), max(1, count // POINTS)
    for done, (m, rows) in enumerate(requests_of(numerics, pattern, count, rng), 1):
        figures = numerics.remove(m, rows, lazy)
        for column, figure in zip(measured.values(), figures, strict=True):
            column.append(figure)
        if ratios and done % every == 0:
            ratio.append([done, numerics.ratio()])
    return {**measured, "ratio": ratio}


def removal(data: SplitRows, seeds: int, requests: int) -> dict[str, Any]:
    """Measure removals by all `PLANS`, and the seconds of three training runs each."""
    retraining = {
        name: [sum(Numerics(data, method, seed).train()) for seed in range(3)]
        for name, (_, method) in RETRAINING.items()
    }
    measured = {}
    for name, plan in PLANS.items():
        few = not plan.get("ratios", True)
        count = max(1, requests // 10) if few else requests
        runs = [
            removals(data, count=count, seed=seed, **plan)
            for seed in range(min(seeds, 2) if few else seeds)
        ]
        if all(run["party"] for run in runs):  # else no party has so many rows
            measured[name] = runs
    return {"name": data.name, "retraining": retraining, "patterns": measured}


def _all(runs: Figures, name: str) -> Array:
    return np.concatenate([np.asarray(run[name]) for run in runs])


def removal_page(measured: Figures) -> Iterator[str]:
    """Yield the tables of removal times and of the loss ratio over removals."""
    seconds = {
        entry["name"]: {k: float(np.median(v)) for k, v in entry["retraining"].items()}
        for entry in measured
    }
    yield "## Retraining, ms"
    yield table(
        {"data": data}
        | {title: f"{1000 * times[k]:.1f}" for k, (title, _) in RETRAINING.items()}
        for data, times in seconds.items()
    )
    runs_of = [
        ({"data": entry["name"], "requests": name}, runs)
        for entry in measured
        for name, runs in entry["patterns"].items()
    ]
    yield "## Removals"
    yield table(
        cells | _removal_cells(cells["requests"], runs, seconds[cells["data"]])
        for cells, runs in runs_of
    )
    yield "## Loss ratio over removals"
    yield table(
        cells | {"requests done: loss ratio, induced": _ratios(runs)}
        for cells, runs in runs_of
        if runs[0]["ratio"]
    )


def _removal_cells(
    name: str, runs: Figures, retraining: Mapping[str, float]
) -> dict[str, str]:
    party, redrawn = _all(runs, "party"), _all(runs, "redrawn")
    mean = _mean(party + _all(runs, "server"))
    # MUFC is compared with a training run with the same settings.
    against = {"the paper's": retraining["complete"]}
    if "DC-KM" not in name:
        against["own"] = retraining["weighted" if "weighted" in name else "own"]
    cells = {
        "number": str(len(party)),
        "redrawn %": f"{100 * redrawn.mean():.1f}",
        "ms": f"{1000 * mean:.2f}",
    }
    cells |= {f"faster than {what}": _times(t / mean) for what, t in against.items()}
    if not redrawn.all() and "counts" not in name:
        least = float(np.median(party[~redrawn]))
        cells["untouched, us"] = f"{1e6 * least:.0f}"
        for what, t in against.items():
            cells[f"untouched: faster than {what}"] = _times(t / least)
    return cells


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _ratios(runs: Figures) -> str:
    fewest = min(len(run["ratio"]) for run in runs)
    looks = np.array([run["ratio"][:fewest] for run in runs]).mean(axis=0).tolist()
    return ", ".join(f"{done:.0f}: {ratio:.3f}" for done, ratio in looks)


# --- Average speed-up ---------------------------------------------------------------

UNTOUCHED = 100
"""Number of removals of rows that are not centroids, for each seed."""


def speedup(data: SplitRows, seeds: int, requests: int) -> dict[str, Any]:
    """Measure the expected time of a random removal against retraining.

    A request is for a random row of a random party, as in Section 6. It redraws with a
    probability that the present centroids determine exactly, so each of the two cases
    is measured separately: the mean over all requests has no noise from their number.
    """
    names = ("complete", "own", "redraw", "untouched")
    measured: dict[str, Any] = {"chance": [], **{f"{n}_seconds": [] for n in names}}
    for seed in range(seeds):
        complete = Numerics(data, "MUFC, complete", seed)
        measured["complete_seconds"].append(sum(complete.train()))
        numerics = Numerics(data, "MUFC", seed)
        measured["own_seconds"].append(sum(numerics.train()))
        measured["chance"].append(float(hits(numerics)[1].mean()))
        rng = np.random.default_rng([seed, 6])
        for name, count in (("redraw", requests), ("untouched", UNTOUCHED)):
            for _ in range(count):
                able, chance = hits(numerics)
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
    return {"name": data.name} | measured


def hits(numerics: Numerics) -> tuple[Array, Array]:
    """Return the parties that keep K rows, and their shares of rows drawn."""
    k = numerics.data.k
    able = [m for m, stay in enumerate(numerics.stay) if stay.sum() > k]
    share = [len(numerics.drawn[m]) / numerics.stay[m].sum() for m in able]
    return np.array(able), np.array(share)


def speedup_page(measured: Figures) -> Iterator[str]:
    """Yield the table of speed-ups and their means."""
    yield "## Average speed-up"
    rows, ratios = [], []
    for entry in measured:
        chance = _mean(entry["chance"])
        redraw, untouched = (
            _mean(entry[f"{name}_seconds"]) for name in ("redraw", "untouched")
        )
        complete, own = (
            float(np.median(entry[f"{name}_seconds"])) for name in ("complete", "own")
        )
        seconds = chance * redraw + (1 - chance) * untouched
        ratios.append((complete / seconds, own / seconds))
        rows.append(
            {
                "data": entry["name"],
                "redrawn %": f"{100 * chance:.1f}",
                "untouched, us": f"{1e6 * untouched:.0f}",
                "redraw, ms": f"{1e3 * redraw:,.1f}",
                "mean, ms": f"{1e3 * seconds:,.2f}",
                "the paper's training, ms": f"{1e3 * complete:,.1f}",
                "own, ms": f"{1e3 * own:,.1f}",
            }
        )
    rows.append({"data": "mean"})
    ratios.append(tuple(np.mean(ratios, axis=0)))
    yield table(
        row | {"faster than the paper's": f"{paper:.1f}", "faster than own": f"{a:.1f}"}
        for row, (paper, a) in zip(rows, ratios, strict=True)
    )


# --- Lemma F.1 and Theorem 5.4 ------------------------------------------------------


def imbalance(X: Array, k: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return epsilon_1 and the smallest epsilon_2 of Assumptions 5.2 and 5.3.

    epsilon_1 is n / (K s_min), where s_min is the size of the smallest optimal cluster;
    epsilon_2 is the largest |x - c_j|^2 |C_j| / phi_c(C_j), at least 1, for which no
    row is an outlier. The best of ten starts of k-means stands for the optimum.
    """
    centers = server_centroids(X, np.ones(len(X)), k, rng)
    labels, costs = assign(X, centers)
    sizes = np.bincount(labels, minlength=len(centers))
    means = np.bincount(labels, costs) / np.maximum(sizes, 1)
    far = np.divide(costs, means[labels], where=costs > 0, out=np.ones(len(X)))
    return len(X) / (k * int(sizes[sizes > 0].min())), max(1.0, float(far.max()))


def most_chance(n: int, k: int, e1: float, e2: float) -> float:
    """Return the bound on P(x in C) for any row: equation 18, at most 1."""
    return min(1.0, (1 + 10 * k * (k - 1) * e1 * e2) / n)


def counted(data: SplitRows, pattern: str, count: int, seed: int) -> dict[str, Any]:
    """Train, and remove rows request by request; count distances.

    A distance is between a row and a centroid, d products: a party that redraws
    computes K distances for each row that stays, and a party that does not redraw K for
    each removed row. The result has, for each request, ``redrawn`` and ``distances``;
    the ``chance`` to redraw by Lemma F.1, at most 1; the ``bound`` on distances by
    Theorem 5.4 (both with 1 for the constant of O(.) if [1] has none); and ``anew``,
    the distances of a training run.
    """
    numerics = _trained(data, "MUFC, weighted bins", seed)
    rng, k = np.random.default_rng([seed, 1]), data.k
    worst = {
        m: imbalance(X, k, np.random.default_rng(m))
        for m, X in enumerate(data.rows if pattern == "adversarial" else ())
    }
    names = ("redrawn", "distances", "chance", "bound", "anew")
    measured: dict[str, list[float]] = {name: [] for name in names}
    for m, rows in requests_of(numerics, pattern, count, rng):
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


def bound(data: SplitRows, seeds: int, requests: int) -> dict[str, Any]:
    """Measure all patterns."""
    patterns = {}
    for pattern in PATTERNS:
        runs = [counted(data, pattern, requests, seed) for seed in range(seeds)]
        if number := len(_all(runs, "redrawn")):  # else no party has so many rows
            means = {name: _mean(_all(runs, name)) for name in runs[0]}
            patterns[pattern] = means | {"number": number}
    return {"name": data.name, "patterns": patterns}


def bound_page(measured: Figures) -> Iterator[str]:
    """Yield the table of removals."""
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


# --- Settings -----------------------------------------------------------------------

GAMMAS = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Multiples of 1 / sqrt(n), the default."""

SETTINGS = {
    "gamma": "Quantisation step gamma, in sides of the box",
    "centroids": "Centroids of a party (`local_clusters`)",
    "clusters": "Clusters K' of which a party has rows",
}


def settings(
    data: SplitRows, seeds: int, requests: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Train with different steps and numbers of clusters, by the keys of `SETTINGS`.

    Each cell has ``data``, ``value``, and the loss ratio ``induced`` for each seed.
    """
    k = data.k
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in SETTINGS}

    def cell(name: str, value: str, rows: SplitRows = data, **changed: Any) -> None:
        runs = [_trained(rows, "MUFC", seed, **changed) for seed in range(seeds)]
        induced = [run.loss()[0] / rows.best for run in runs]
        measured[name].append({"data": data.name, "value": value, "induced": induced})

    for factor in GAMMAS:
        gamma = min(1.0, factor / math.sqrt(data.n))
        cell("gamma", f"{gamma:.4f}", gamma=gamma)
    for count in dict.fromkeys([max(1, round(math.sqrt(k))), k, 2 * k, 4 * k]):
        cell("centroids", str(count), local_clusters=count)
    for k_prime in (1, 2, 3, 5, 7, 10) if data.spread else ():
        assert data.spread
        cell("clusters", str(k_prime), data.spread(k_prime))
    return measured


def settings_page(measured: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the tables of settings."""
    for name, title in SETTINGS.items():
        if measured[name]:
            yield f"## {title}"
            yield table(
                {
                    "data": entry["data"],
                    name: entry["value"],
                    "induced": _spread(entry["induced"]),
                    "seeds": str(len(entry["induced"])),
                }
                for entry in measured[name]
            )


# --- Parties of all sizes -----------------------------------------------------------

D, K = 10, 10
MODEL = "0123456789abcdef"


def _seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return float(np.median(times))


def in_memory(X: Array, drawn: Array, labels: Array) -> float:
    """Return the seconds of an in-memory removal that redraws nothing."""
    stay = np.ones(len(X), dtype=bool)
    sizes = np.bincount(labels, minlength=K)
    centroids = X[drawn]
    row = np.setdiff1d(np.arange(2 * K), drawn)[:1]

    def remove() -> None:
        assert len(surviving(drawn, row)) == K
        stay[row] = False
        sizes[local_labels(X[row], centroids)] -= 1

    return _seconds(remove, 1000)


def step(X: Array, folder: Path) -> float:
    """Return the seconds of the step that a party runs when rows are removed."""
    party = Party(X, ids=np.arange(len(X)), name="a", index=0, state_dir=folder)
    party.seed, party.n_parties = 1, 3
    agreed = TrainingSettings(
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
    train(party, MODEL, agreed, key)
    commit(party, 1, MODEL, centers)
    drawn = party.recall(MUFCState).drawn
    rows = np.setdiff1d(np.arange(10 * K), drawn)[:3].tolist()
    models = [MODEL, *(f"{version:016x}" for version in (1, 2, 3))]
    times = []
    for version, (before, after) in enumerate(pairwise(models), 1):
        party.resume({})  # each run starts without a state
        request_changes(party, forget=[rows[version - 1]])
        start = time.process_time()
        forget(party, MODEL, version, before, after, key)
        times.append(time.process_time() - start)
        commit(party, version + 1, after, centers)
    return float(np.median(times))


def sizes(n: int, seeds: int = 1, requests: int = 0) -> dict[str, Any]:
    """Measure a party of n uniform rows, d = 10 and K = 10.

    ``untouched_seconds`` is the time of the algorithm if nothing is redrawn: a check
    that no centroid is removed, and the subtraction of the row from the size of its
    cluster. ``redraw_seconds`` is the time of a whole initialisation, and
    ``step_seconds`` the time of the whole step of the protocol, which tags all ids of
    the data to check that all training rows are present, reads and writes SQLite, and
    encodes counts for a sum over 3 parties.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.5, 0.5, (n, D))
    blocks = RowBlocks(X)
    drawn, labels = initialise(blocks, K, rng)
    with tempfile.TemporaryDirectory() as folder:
        step_seconds = step(X, Path(folder))
    return {
        "n": n,
        "untouched_seconds": in_memory(X, drawn, labels),
        "redraw_seconds": _seconds(lambda: initialise(blocks, K, rng), 5),
        "step_seconds": step_seconds,
    }


def sizes_page(measured: Figures) -> Iterator[str]:
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


# --- Adding rows --------------------------------------------------------------------

ADDED = (1, 10, 30)
"""Number of rows that a party gets at a time."""

LATER = 0.3
"""Share of each party's rows that come later."""


def additions(
    data: SplitRows, method: str, size: int, count: int, seed: int
) -> dict[str, Any]:
    """Train on 70 % of the rows; add `size` rows `count` times, and also retrain.

    Returns, for each addition, ``redrawn``, the seconds ``party`` and ``server``, and
    ``party anew`` and ``server anew`` of a training run on the same rows. At the end,
    for additions and (with ``anew``) for the training runs: ``shown``, the number of
    rows that have been drawn as centroids since before the first addition, and the
    induced loss ``ratio``.
    """
    rng, numerics = np.random.default_rng([seed, 2]), Numerics(data, method, seed)
    for stay in numerics.stay:
        stay[rng.choice(len(stay), int(LATER * len(stay)), replace=False)] = False
    numerics.train()

    def drawn(of: Numerics) -> set[tuple[int, int]]:
        return {(m, int(row)) for m, rows in enumerate(of.drawn) for row in rows}

    names = ("party", "server", "redrawn", "party anew", "server anew")
    measured: dict[str, Any] = {name: [] for name in names}
    shown, shown_anew, anew = drawn(numerics), drawn(numerics), numerics
    for done in range(1, count + 1):
        able = [m for m, s in enumerate(numerics.stay) if (~s).sum() >= size]
        if not able:
            break
        m = int(rng.choice(able))
        rows = rng.choice(np.flatnonzero(~numerics.stay[m]), size, replace=False)
        figures = numerics.add(m, rows)
        anew = Numerics(data, method, 1_000 * (seed + 1) + done)
        anew.stay = [stay.copy() for stay in numerics.stay]
        for name, figure in zip(names, (*figures, *anew.train()), strict=True):
            measured[name].append(figure)
        shown |= drawn(numerics)
        shown_anew |= drawn(anew)
    measured |= {"shown": len(shown), "ratio": numerics.ratio()}
    return measured | {"shown anew": len(shown_anew), "ratio anew": anew.ratio()}


def adding(data: SplitRows, seeds: int, requests: int) -> dict[str, Any]:
    """Measure additions against retraining, in both forms of MUFC."""
    cells = []
    for method in ("MUFC", "MUFC, complete"):
        for size in ADDED:
            runs = [
                additions(data, method, size, requests, seed) for seed in range(seeds)
            ]
            if all(run["party"] for run in runs):  # else no party has so many rows
                cells.append({"method": method, "size": size, "runs": runs})
    return {"name": data.name, "cells": cells}


def adding_page(measured: Figures) -> Iterator[str]:
    """Yield the table of additions."""
    yield "## Adding rows"
    rows = []
    for entry in measured:
        for cell in entry["cells"]:
            runs = cell["runs"]
            row = {"data": entry["name"], "method": cell["method"]}
            row |= {
                "rows": str(cell["size"]),
                "number": str(len(_all(runs, "party"))),
                "redrawn %": f"{100 * _all(runs, 'redrawn').mean():.0f}",
            }
            for name in ("party", "party anew", "server", "server anew"):
                row[f"{name} ms"] = f"{1000 * np.median(_all(runs, name)):.1f}"
            for name, digits in (("shown", 0), ("ratio", 3)):
                for key in (name, f"{name} anew"):
                    row[key] = f"{_mean([run[key] for run in runs]):.{digits}f}"
            rows.append(row)
    yield table(rows)


# --- The number of clusters ---------------------------------------------------------

MOST = 15
"""The largest K, and K'."""

SAMPLE = 2_000
"""Number of rows of all parties from which K is chosen with pooled data."""


def chosen(points: Array, weights: Array, rng: np.random.Generator) -> dict[str, int]:
    """Return the K that each criterion chooses from 2 to `MOST`.

    ``silhouette``: :func:`~vfl_flower.numerics.mufc.number_of_clusters`; ``variance
    ratio``: by T. Calinski and J. Harabasz, 1974, with the number of points for n;
    ``BIC``: for spherical clusters of equal variance, by D. Pelleg and A. Moore, 2000,
    with the same n.
    """
    n, (m, d) = float(weights.sum()), points.shape
    total = float(weights @ ((points - weights @ points / n) ** 2).sum(axis=1))
    best = {"silhouette": number_of_clusters(points, weights, MOST, rng, 3)}
    scores: dict[str, list[float]] = {"variance ratio": [], "BIC": []}
    tried = range(2, min(MOST, m // 2) + 1)
    for k in tried:
        centers = server_centroids(points, weights, k, rng, 3)
        within = float(weights @ assign(points, centers)[1])
        scores["variance ratio"].append((total - within) / (k - 1) / within * (m - k))
        scores["BIC"].append(-m * d * math.log(within / n) - k * (d + 1) * math.log(m))
    return best | {name: tried[int(np.argmax(v))] for name, v in scores.items()}


def number(data: SplitRows, seeds: int, requests: int = 0) -> dict[str, Any]:
    """Choose K from the bins of parties, and from pooled rows of all parties."""
    rows = np.concatenate(data.rows)
    measured: dict[str, list[dict[str, int]]] = {"bins": [], "pooled": []}
    for seed in range(seeds):
        more = {"local_clusters": MOST, "min_rows": 5}
        numerics = _trained(data, "MUFC, complete", seed, **more)
        rng, (bins, q) = np.random.default_rng([seed, 3]), numerics.summed()
        middles = numerics.quantizer.centers(bins)
        measured["bins"].append(chosen(middles, q.astype(float), rng))
        some = rng.choice(len(rows), min(len(rows), SAMPLE), replace=False)
        measured["pooled"].append(chosen(rows[some], np.ones(len(some)), rng))
    return {"name": data.name, "k": data.k, **measured}


def number_page(measured: Figures) -> Iterator[str]:
    """Yield the table of chosen numbers of clusters."""
    yield "## Number of clusters"
    yield table(
        {"data": entry["name"], "K": str(entry["k"]), "chosen from": source}
        | {
            name: ", ".join(str(run[name]) for run in entry[source])
            for name in entry[source][0]
        }
        for entry in measured
        for source in ("bins", "pooled")
    )


# --- The command --------------------------------------------------------------------

LOADERS: dict[str, Callable[[Path | None, bool], SplitRows]] = {
    "celltype": celltype,
    "gaussian": gaussian,
    "covtype15k": covtype,
    "tcga": partial(stand_in, "tcga"),
    "postures": partial(stand_in, "postures"),
}
PAPERS = ("celltype", "gaussian", "covtype15k")
"""Available sets of the paper."""
CANDIDATES = (
    *("digits", "postures", "celltype", "celltype100", "small"),
    *("covtype15k", "pol", "protein"),
)
"""Sets of the table of membership."""
FILES = ("celltype", "covtype15k", "pol", "protein")
"""Sets that are read from files."""


@dataclass(frozen=True)
class Table:
    """The functions that measure a data set, write the page and read a set; defaults.

    `smallest` is the data set of a quick run.
    """

    measure: Callable[[Any, int, int], Any]
    page: Callable[[Any], Iterator[str]]
    datasets: tuple[str, ...] = PAPERS
    seeds: int = 3
    requests: int = 10
    smallest: str = "gaussian"
    load: Callable[[str, Path | None, bool], Any] = lambda name, folder, quick: LOADERS[
        name
    ](folder, quick)


TABLES = {
    "loss": Table(loss, loss_page, seeds=20),
    "removal": Table(removal, removal_page, PAPERS[:2], requests=100),
    "speedup": Table(speedup, speedup_page, seeds=5),
    "bound": Table(bound, bound_page, seeds=10, requests=100),
    "settings": Table(settings, settings_page, PAPERS[:2], seeds=5),
    "sizes": Table(
        sizes,
        sizes_page,
        ("1000", "10000", "100000", "1000000"),
        smallest="1000",
        load=lambda name, folder, quick: int(name),
    ),
    "adding": Table(adding, adding_page, PAPERS[:2], seeds=2),
    "number": Table(number, number_page, tuple(LOADERS)),
    "membership": Table(
        membership,
        membership_page,
        CANDIDATES,
        requests=50,
        smallest="small",
        load=candidates,
    ),
}
NAMES = dict.fromkeys(name for one in TABLES.values() for name in one.datasets)
app = new_app()


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(TABLES)],
    datasets: Annotated[
        list[str] | None,
        some_of(NAMES, "Data sets, or rows for sizes; by default all of the table."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="From 0.")] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Removals or additions of each seed.")
    ] = None,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Reproduce the experiments of the MUFC paper.

    The page is written after each data set, whole or not at all.
    """
    for name in tables:
        one = TABLES[name]
        results, measured, page = Results(context, "mufc", name), [], ""
        names = [n for n in datasets or one.datasets if n in one.datasets]
        if not names:
            raise typer.BadParameter(f"{name} has none of these data sets")
        for dataset in names:
            with results.skipping(dataset, names):
                data = one.load(dataset, data_dir, quick)
                measured.append(
                    one.measure(data, seeds or one.seeds, requests or one.requests)
                )
                tell(f"{name}: {dataset}")
            if measured:
                figures: Any = measured
                if name == "settings":
                    figures = {k: [c for m in measured for c in m[k]] for k in SETTINGS}
                page = results.write(figures, one.page(figures))
        tell(page)
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.mufc")
