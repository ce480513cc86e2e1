"""The experiments of the MUFC paper: loss ratios, removal times, settings.

All tables take about twenty minutes on an idle machine::

    python -m simulations.mufc loss removal adding number runs settings

==========  ========================================================================
loss        loss ratios of MUFC, K-FED and DC-KM: Tables 1 and 2 of [1]; bytes and
            round trips of a run
removal     time to remove rows against retraining, and the loss ratio over removals:
            Figures 3 to 5
adding      time to add rows against training anew, and how many rows both show
number      the number of clusters chosen from the bins, by four criteria
runs        removal and retraining as whole runs: in one process by
            :func:`~vfl_flower.simulation.simulate`, and by ``flwr run`` on SuperNodes
settings    the quantisation step, the clusters and the centroids of a party: Figure 3
==========  ========================================================================

A run of 100 parties in one process takes seconds, nearly all for keys and messages. So
all tables but ``runs`` call the same numerics without messages (:class:`Numerics`). At
the same seed these give exactly the centres of a run, which ``loss`` checks in one run
of each method.

The data are npz files in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``: celltype,
covtype15k, mnist; the others are generated.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

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
from simulations.mufc_baselines import (
    KFED,
    DCKMeans,
    dckm_centroids,
    kfed_centroids,
)
from simulations.mufc_data import DATASETS, SplitRows, best_cost, gaussian
from vfl_flower import Ledger, Party, request_changes, simulate
from vfl_flower.app.flower_run import (
    Processes,
    start_superlink,
    start_supernodes,
    submit,
)
from vfl_flower.app.identity import line_for_peers
from vfl_flower.clients.mufc_state import ServerPoints, Training
from vfl_flower.models.mufc import MUFCModel
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import (
    Box,
    Quantizer,
    contributions,
    induced_labels,
    local_clusters,
    local_labels,
    merge_small,
    merged_sizes,
    number_of_clusters,
    seed_centroids,
    server_centroids,
    server_points,
    surviving,
)
from vfl_flower.protocol.requests import FORGET
from vfl_flower.protocol.strategy import ProtocolStrategy, Run
from vfl_flower.secure_aggregation import SparseSum
from vfl_flower.strategies.mufc import MUFC
from vfl_flower.strategies.mufc_tasks import MUFCUnlearn
from vfl_flower.typing import Array

METHODS = {
    "MUFC": ("init", "uniform"),
    "MUFC, weighted bins": ("init", "weighted"),
    "MUFC, complete": ("full", "uniform"),
    "K-FED": ("full", "k-fed"),
    "DC-KM": ("full", "dc-km"),
}
"""How a party trains, and what the server clusters."""

CUBE = Box(np.array(-0.5), np.array(0.5))
"""The box of all data sets."""

# --- The numerics without messages --------------------------------------------------


class Numerics:
    """The numerics of a federation: what steps and strategy compute, without messages.

    It draws what :func:`~vfl_flower.simulation.simulate` draws at the same seed.

    Parameters
    ----------
    data : SplitRows
        The rows of the parties; not changed.
    method : str
        One of `METHODS`.
    seed : int
        Seed of all draws.
    gamma : float, optional
        Quantisation step; default: 1 / sqrt(n).
    local_clusters : int
        K', the largest number of centroids of a party; 0: K.
    min_rows : int
        Fewest rows of a local cluster that is counted.

    Attributes
    ----------
    centers : Array, shape (K, d)
        C_s.
    stay : list of Array of bool, shapes (n^(l),)
        Rows that were not removed.
    drawn : list of Array of int, shapes (k',)
        Row numbers of the centroids of each party, in the order drawn.
    sizes : list of Array of int, shapes (k',)
        Rows of the local cluster of each drawn centroid.
    centroids, counts : list of Array, shapes (k'', d), and of int, shapes (k'',)
        What each party gives into the sum, before quantisation.
    """

    def __init__(
        self,
        data: SplitRows,
        method: str = "MUFC",
        seed: int = 0,
        *,
        gamma: float | None = None,
        local_clusters: int = 0,
        min_rows: int = 1,
    ) -> None:
        training, self._server = METHODS[method]
        self._full, self._oneshot = training == "full", "-" in self._server
        self._data, self._seed = data, seed
        self._local, self._least = local_clusters or data.k, min_rows
        self.quantizer = Quantizer(gamma or 1 / math.sqrt(data.n))
        self._parties = [Party(X, index=m) for m, X in enumerate(data.rows)]
        for party in self._parties:
            party.seed = seed
        self.stay = [np.ones(len(X), dtype=bool) for X in data.rows]
        nobody = np.zeros(0, dtype=np.int64)
        self.drawn, self.sizes = [nobody] * len(data.rows), [nobody] * len(data.rows)
        self.counts = [nobody] * len(data.rows)
        self.centroids = [np.zeros((0, data.d))] * len(data.rows)
        self._changes = 0
        self._costs: dict[int, Array] = {}

    def train(self) -> tuple[float, float]:
        """Train on the rows that stay.

        Returns
        -------
        party, server : float
            Seconds of the slowest party, as parties work at the same time, and of the
            server.
        """
        slowest = 0.0
        for m in range(len(self.stay)):
            start = time.process_time()
            self._draw(m, "centroids")
            slowest = max(slowest, time.process_time() - start)
        return slowest, self.cluster()

    def remove(
        self, m: int, rows: Array, lazy: bool = True, server: bool = True
    ) -> tuple[float, float, bool]:
        """Remove rows of one party (Algorithms 3 and 4); a baseline retrains the party.

        Parameters
        ----------
        m : int
            The party.
        rows : Array of int, shape (r,)
            Rows to remove, which have not been removed before.
        lazy : bool
            Keep C_s where no centroid is removed, as in [1]; if False, the counts are
            sent again and the server clusters anew.
        server : bool
            False: leave the server's part out, and C_s as it is.

        Returns
        -------
        party, server : float
            Seconds of each.
        redrawn : bool
            Whether a centroid was drawn again.
        """
        start = time.process_time()
        self.stay[m][rows] = False
        drawn = self.drawn[m]
        prefix = drawn[:0] if self._oneshot else surviving(drawn, rows)
        redrawn = len(prefix) < len(drawn)
        if again := redrawn or self._full:
            self._changes += 1
        if redrawn:
            self._draw(m, f"redraw {self._changes}", prefix)
        else:
            X = self._data.rows[m]
            gone = local_labels(X[rows], X[drawn])
            self.sizes[m] = self.sizes[m] - np.bincount(gone, minlength=len(drawn))
            self._count(m)
        seconds = time.process_time() - start
        waits = self.cluster() if server and (again or not lazy) else 0.0
        if m in self._costs:
            self._costs[m][rows] = 0
        return seconds, waits, redrawn

    def add(self, m: int, rows: Array) -> tuple[float, float, bool]:
        """Add rows of one party that take no part yet.

        Parameters
        ----------
        m : int
            The party.
        rows : Array of int, shape (r,)
            Rows to add.

        Returns
        -------
        party, server : float
            Seconds of the slowest party, and of the server.
        redrawn : bool
            Whether a new row has taken the place of a centroid.
        """
        start, before = time.process_time(), self.drawn[m]
        new = np.zeros(len(self.stay[m]), dtype=bool)
        new[rows] = True
        self.stay[m] = self.stay[m] | new
        self._changes += 1
        self._draw(m, f"add {self._changes}", before, new)
        slowest = time.process_time() - start
        for other in range(len(self.stay)) if self._full else ():
            start = time.process_time()  # a party computes its means in each run
            self._count(other)
            slowest = max(slowest, time.process_time() - start)
        return slowest, self.cluster(), not np.array_equal(before, self.drawn[m])

    def loss(self) -> tuple[float, float]:
        """Return the objective with induced clusters, and with the nearest centres."""
        parties = range(len(self.stay))
        nearest = (
            np.concatenate([assign(b, self.centers)[1] for b in self._blocks(m)[0]])
            for m in parties
            if self.stay[m].any()
        )
        return (
            sum(float(self.costs(m).sum()) for m in parties),
            sum(float(costs.sum()) for costs in nearest),
        )

    def costs(self, m: int) -> Array:
        """Return what each row of a party adds to phi_f, 0 for the removed ones."""
        if m not in self._costs:
            blocks, places = self._blocks(m)
            labels = induced_labels(
                *local_clusters(blocks, places, self._full, self._least), self.centers
            )
            self._costs[m] = np.zeros(len(self.stay[m]))
            self._costs[m][self.stay[m]] = contributions(blocks, self.centers, labels)
        return self._costs[m]

    def worst(self, count: int) -> tuple[int, Array]:
        """Return the party of the costliest row now, and its `count` worst rows."""
        m = max(range(len(self.stay)), key=lambda m: float(self.costs(m).max()))
        rows = np.argsort(-self.costs(m), kind="stable")[:count]
        return m, rows[self.stay[m][rows]]

    def remaining(self) -> Array:
        """Return all rows that stay."""
        pairs = zip(self._data.rows, self.stay, strict=True)
        return np.concatenate([X[stay] for X, stay in pairs])

    def _draw(
        self,
        m: int,
        stream: str,
        prefix: Array | None = None,
        added: Array | None = None,
    ) -> None:
        """Draw the centroids of a party after those of the prefix that stay."""
        X, rng = self._data.rows[m], self._parties[m].rng(stream)
        self.drawn[m], self.sizes[m] = seed_centroids(
            X, CUBE, self._local, rng, self.stay[m], prefix, added
        )
        self._count(m)

    def _count(self, m: int) -> None:
        """Set what a party gives into the sum."""
        if self._full:
            blocks, places = self._blocks(m)
            self.centroids[m], labels = local_clusters(
                blocks, places, True, self._least
            )
            self.counts[m] = np.bincount(labels, minlength=len(self.centroids[m]))
        else:
            drawn = self._data.rows[m][self.drawn[m]]
            remain, merged = merge_small(drawn, self.sizes[m], self._least)
            self.centroids[m] = drawn[remain]
            self.counts[m] = merged_sizes(self.sizes[m], merged)

    def _blocks(self, m: int) -> tuple[RowBlocks, Array]:
        """Return a party's rows that stay, and the places of centroids among them."""
        rows = np.flatnonzero(self.stay[m])
        blocks = RowBlocks(self._data.rows[m], rows=rows)
        return blocks, np.searchsorted(rows, self.drawn[m])

    def summed(self) -> tuple[Array, Array]:
        """Return the bins and counts that the server learns."""
        return self.quantizer.count(
            np.concatenate(self.centroids), np.concatenate(self.counts)
        )

    def cluster(self) -> float:
        """Set C_s and return the seconds it took."""
        start = time.process_time()
        data, rng = self._data, Run(self._seed).rng("k-means")
        points = np.concatenate(self.centroids)
        if self._server == "k-fed":
            self.centers = kfed_centroids(self.centroids, data.k)
        elif self._server == "dc-km":
            self.centers = dckm_centroids(points, data.k, rng, data.n_init)
        else:
            bins, q = self.summed()
            X_s, weights = server_points(self.quantizer, bins, q, rng, self._server)
            self.centers = server_centroids(X_s, weights, data.k, rng, data.n_init)
        self._costs.clear()
        return time.process_time() - start


def strategy(
    data: SplitRows, method: str, server_state: Path | None = None
) -> ProtocolStrategy:
    """Return a method as a strategy."""
    if method == "K-FED":
        return KFED(data.k)
    if method == "DC-KM":
        return DCKMeans(data.k, n_init=data.n_init)
    training, points = METHODS[method]
    return MUFC(
        data.k,
        client_training=cast(Training, training),
        server_points=cast(ServerPoints, points),
        min_rows_per_bin=1,
        n_init=data.n_init,
        server_state=server_state,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{_mean(values):.3f} ± {deviation:.3f}"


# --- Loss ratios --------------------------------------------------------------------


def message_bytes(data: SplitRows) -> int:
    """Return the bytes of a party's sums: 8 (2 K L + K L ceil(d bits / 60))."""
    quantizer = Quantizer(1 / math.sqrt(data.n))
    code = SparseSum(data.k, len(data.rows), data.d, quantizer.n_bins, bytes(16))
    return 8 * code.size


def whole_run(data: SplitRows, method: str, seed: int = 0) -> dict[str, Any]:
    """Run a method once with its messages, and compare it with :class:`Numerics`.

    Returns
    -------
    dict
        ``equal``: whether the centres are the same; ``round_trips``; ``bytes`` that a
        party sends in the training step; ``formula``: see :func:`message_bytes`;
        ``seconds`` of the run.
    """
    numerics = Numerics(data, method, seed)
    numerics.train()
    start = time.process_time()
    result = simulate(strategy(data, method), [Party(X) for X in data.rows], seed)
    seconds = time.process_time() - start
    assert isinstance(result.model, MUFCModel)
    step = result.ledger.of("mufc_train")
    return {
        "method": method,
        "equal": bool(np.array_equal(numerics.centers, result.model.cluster_centers_)),
        "round_trips": result.ledger.round_trips,
        "bytes": step.bytes_up / len(data.rows),
        "formula": message_bytes(data),
        "seconds": seconds,
    }


def loss(data: SplitRows, seeds: int, runs: Sequence[str] = ()) -> dict[str, Any]:
    """Train all methods on a data set.

    Parameters
    ----------
    data : SplitRows
        The data set.
    seeds : int
        Number of seeds, from 0; fewer if the data set allows fewer.
    runs : sequence of str
        Methods that are also run once with their messages.

    Returns
    -------
    dict
        ``methods``: for each the loss ratios ``induced`` and ``nearest``, and seconds
        of the slowest ``party`` and the ``server``; ``runs``.
    """
    measured: dict[str, dict[str, list[float]]] = {}
    for method in METHODS:
        figures: list[tuple[float, ...]] = []
        for seed in range(min(seeds, data.seeds)):
            numerics = Numerics(data, method, seed)
            times = numerics.train()
            figures.append((*times, *(cost / data.best for cost in numerics.loss())))
        names = ("party", "server", "induced", "nearest")
        columns = (list(column) for column in zip(*figures, strict=True))
        measured[method] = dict(zip(names, columns, strict=True))
        means = (f"{k} {_mean(v):.4f}" for k, v in measured[method].items())
        tell(f"{data.name}: {method}: {', '.join(means)}")
    return {
        **{"name": data.name, "note": data.note, "n": data.n, "d": data.d},
        **{"k": data.k, "parties": len(data.rows), "methods": measured},
        "published": dict(data.published or {}),
        "runs": [whole_run(data, method) for method in runs],
    }


def loss_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of loss ratios, of the paper's sets and others, and of runs."""
    own = [entry for entry in measured if entry["published"]]
    stand_ins = [entry for entry in measured if not entry["published"]]
    for title, entries in (
        ("Loss ratios", own),
        ("Loss ratios of stand-ins", stand_ins),
    ):
        if not entries:
            continue
        yield f"## {title}"
        yield "\n".join(
            f"- **{entry['name']}**: n = {entry['n']:,}, d = {entry['d']}, "
            f"K = {entry['k']}; {entry['note']}."
            for entry in entries
        )
        yield table(
            {
                "data": entry["name"],
                "method": method,
                "induced": _spread(values["induced"]),
                "nearest": _spread(values["nearest"]),
            }
            | (
                {"printed": f"{p:.2f}" if (p := entry["published"].get(method)) else ""}
                if entry["published"]
                else {}
            )
            | {
                "seeds": str(len(values["induced"])),
                "party ms": f"{1000 * _mean(values['party']):.1f}",
                "server ms": f"{1000 * _mean(values['server']):.0f}",
            }
            for entry in entries
            for method, values in entry["methods"].items()
        )
    runs = [(entry["name"], run) for entry in measured for run in entry["runs"]]
    if runs:
        yield "## Whole runs of the same, at seed 0"
        yield table(
            {
                "data": name,
                "method": run["method"],
                "centres": "the same" if run["equal"] else "other",
                "round trips": str(run["round_trips"]),
                "kB a party": f"{run['bytes'] / 1000:.1f}",
                "formula": f"{run['formula'] / 1000:.1f}"
                if run["method"].startswith("MUFC")
                else "",
                "seconds": f"{run['seconds']:.1f}",
            }
            for name, run in runs
        )


# --- Removal times ------------------------------------------------------------------

PATTERNS = {"random": 1, "adversarial": 1, "batches of 10": 10, "batches of 30": 30}
"""Rows of a request, all of one party: drawn at random, or the worst."""

POINTS = 4
"""How often the loss ratio is measured during the removals, besides before them."""


def requests_of(
    numerics: Numerics, pattern: str, count: int, k: int, rng: np.random.Generator
) -> Iterator[tuple[int, Array]]:
    """Yield requests: a random party that keeps at least K rows, and rows of it."""
    size = PATTERNS[pattern]
    for _ in range(count):
        if pattern == "adversarial":
            yield numerics.worst(size)
            continue
        able = [m for m, stay in enumerate(numerics.stay) if stay.sum() >= size + k]
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

    Returns
    -------
    dict
        ``party`` and ``server`` seconds and ``redrawn`` of each request; ``ratio``:
        pairs of requests done and loss ratio, induced, on the rows that stay.
    """
    numerics = Numerics(data, method, seed)
    numerics.train()
    measured: dict[str, list[Any]] = {"party": [], "server": [], "redrawn": []}
    ratio: list[Any] = []

    def look(done: int) -> None:
        if ratios:
            rng = np.random.default_rng(0)
            best = best_cost(numerics.remaining(), data.k, rng, data.n_init)
            ratio.append([done, numerics.loss()[0] / best])

    look(0)
    rng = np.random.default_rng([seed, 1])
    every = max(1, count // POINTS)
    requests = requests_of(numerics, pattern, count, data.k, rng)
    for done, (m, rows) in enumerate(requests, 1):
        figures = numerics.remove(m, rows, lazy)
        for column, figure in zip(measured.values(), figures, strict=True):
            column.append(figure)
        if done % every == 0:
            look(done)
    return {**measured, "ratio": ratio}


def removal(
    data: SplitRows, seeds: int, count: int = 100, few: int = 10
) -> dict[str, Any]:
    """Measure removals against retraining.

    Parameters
    ----------
    data : SplitRows
        The data set.
    seeds : int
        Seeds of each pattern.
    count : int
        Requests for each seed.
    few : int
        Requests of the methods whose server clusters at each request: MUFC with counts
        sent again, and DC-KM.

    Returns
    -------
    dict
        ``retraining``: seconds of ``complete``, as the paper counts (Lloyd's iteration
        at the slowest party, and the server), of ``own``, what is trained here, and of
        ``weighted``, the same with weighted bins;
        ``patterns``: for each a list of what :func:`removals` gives, a seed each.
    """
    methods = {
        "complete": "MUFC, complete",
        "own": "MUFC",
        "weighted": "MUFC, weighted bins",
    }
    retraining = {
        name: [sum(Numerics(data, method, seed).train()) for seed in range(3)]
        for name, method in methods.items()
    }
    plans: dict[str, dict[str, Any]] = {
        pattern: {"pattern": pattern} for pattern in PATTERNS
    }
    fewer = {"pattern": "random", "count": few, "ratios": False}
    again = fewer | {"lazy": False}
    plans |= {
        "random, counts sent again": again,
        "random, counts sent again, weighted bins": again
        | {"method": methods["weighted"]},
        "random, DC-KM": fewer | {"method": "DC-KM"},
    }
    measured = {}
    for name, plan in plans.items():
        repeats = seeds if plan.get("ratios", True) else min(seeds, 2)
        runs = [
            removals(data, **{"count": count, "seed": seed} | plan)
            for seed in range(repeats)
        ]
        if not all(run["party"] for run in runs):
            continue  # no party has so many rows
        measured[name] = runs
        tell(f"{data.name}: {name} {1000 * _per_request(runs):.3f} ms a request")
    return {
        **{"name": data.name, "note": data.note, "n": data.n, "k": data.k},
        **{"retraining": retraining, "patterns": measured},
    }


def _all(runs: Sequence[Mapping[str, Any]], name: str) -> Array:
    return np.concatenate([np.asarray(run[name]) for run in runs])


def _per_request(runs: Sequence[Mapping[str, Any]]) -> float:
    return float((_all(runs, "party") + _all(runs, "server")).mean())


def removal_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tables of removal times and of the loss ratio over removals."""
    seconds = [
        {name: float(np.median(v)) for name, v in entry["retraining"].items()}
        for entry in measured
    ]
    titles = {
        "complete": "the paper's",
        "own": "own",
        "weighted": "own, weighted bins",
    }
    yield "## Retraining, ms"
    yield table(
        {"data": entry["name"]}
        | {title: f"{1000 * times[name]:.1f}" for name, title in titles.items()}
        for entry, times in zip(measured, seconds, strict=True)
    )
    runs_of = [
        (entry["name"], name, runs, times)
        for entry, times in zip(measured, seconds, strict=True)
        for name, runs in entry["patterns"].items()
    ]
    yield "## Removals"
    yield table(
        {"data": data, "requests": name} | _removal_cells(name, runs, times)
        for data, name, runs, times in runs_of
    )
    yield "## Loss ratio over removals"
    yield table(
        {
            "data": data,
            "requests": name,
            "requests done: loss ratio, induced": _ratios(runs),
        }
        for data, name, runs, _ in runs_of
        if runs[0]["ratio"]
    )


def _removal_cells(
    name: str, runs: Sequence[Mapping[str, Any]], retraining: Mapping[str, float]
) -> dict[str, str]:
    party, redrawn = _all(runs, "party"), _all(runs, "redrawn")
    mean = _per_request(runs)
    # MUFC is compared with a training of the same settings.
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


def _ratios(runs: Sequence[Mapping[str, Any]]) -> str:
    fewest = min(len(run["ratio"]) for run in runs)
    looks = np.array([run["ratio"][:fewest] for run in runs]).mean(axis=0).tolist()
    return ", ".join(f"{done:.0f}: {ratio:.3f}" for done, ratio in looks)


# --- Adding rows --------------------------------------------------------------------

ADDED = (1, 10, 30)
"""Rows that a party gets at a time."""

LATER = 0.3
"""Share of each party's rows that come later."""


def additions(
    data: SplitRows, method: str, size: int, count: int, seed: int
) -> dict[str, Any]:
    """Train on 70 % of the rows; then add others, and train anew beside it.

    Parameters
    ----------
    data : SplitRows
        The data set.
    method : str
        One of MUFC's in `METHODS`.
    size : int
        Rows that a random party gets at a time.
    count : int
        How often.
    seed : int
        Seed of all draws.

    Returns
    -------
    dict
        Of each addition: ``redrawn``; seconds ``party`` and ``server``, and
        ``party anew`` and ``server anew`` of a training on the same rows. At the end,
        and with ``anew`` of the trainings: ``shown``, the number of rows that have been
        drawn as centroids since before the first addition, and ``ratio``, the loss
        ratio, induced.
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
    best = best_cost(numerics.remaining(), data.k, np.random.default_rng(0), 10)
    measured |= {"shown": len(shown), "ratio": numerics.loss()[0] / best}
    measured |= {"shown anew": len(shown_anew), "ratio anew": anew.loss()[0] / best}
    return measured


def adding(data: SplitRows, seeds: int, count: int) -> dict[str, Any]:
    """Measure additions against training anew, `count` for each seed.

    Returns
    -------
    dict
        ``cells``: by method and size, a list of what :func:`additions` gives.
    """
    cells = []
    for method in [name for name in METHODS if name.startswith("MUFC")]:
        for size in ADDED:
            runs = [additions(data, method, size, count, seed) for seed in range(seeds)]
            if not all(run["party"] for run in runs):
                continue  # no party has so many rows
            cells.append({"method": method, "size": size, "runs": runs})
            tell(f"{data.name}: {method}, {size}: {_adding_cells(runs)}")
    return {"name": data.name, "note": data.note, "cells": cells}


def _adding_cells(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    cells = {
        "number": str(len(_all(runs, "party"))),
        "redrawn %": f"{100 * _all(runs, 'redrawn').mean():.0f}",
    }
    for name in ("party", "party anew", "server", "server anew"):
        cells[f"{name} ms"] = f"{1000 * np.median(_all(runs, name)):.1f}"
    for name in ("shown", "shown anew"):
        cells[name] = f"{_mean([run[name] for run in runs]):.0f}"
    for name in ("ratio", "ratio anew"):
        cells[name] = f"{_mean([run[name] for run in runs]):.3f}"
    return cells


def adding_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of additions."""
    yield "## Adding rows"
    yield table(
        {"data": entry["name"], "method": cell["method"], "rows": str(cell["size"])}
        | _adding_cells(cell["runs"])
        for entry in measured
        for cell in entry["cells"]
    )


# --- The number of clusters ---------------------------------------------------------

MOST = 15
"""The largest K, and K'."""

SAMPLE = 2_000
"""Rows of all parties by which K is chosen with all data in one place."""


def chosen(points: Array, weights: Array, rng: np.random.Generator) -> dict[str, int]:
    """Return the K that each criterion chooses from 2 to `MOST`.

    ``silhouette``: :func:`~vfl_flower.numerics.mufc.number_of_clusters`; ``variance
    ratio``: of T. Calinski and J. Harabasz, 1974, with the points for n, and ``of
    rows`` with the rows; ``BIC``: of spherical clusters of one variance, of D. Pelleg
    and A. Moore, 2000, with the points for n.
    """
    n, (m, d) = float(weights.sum()), points.shape
    total = float(weights @ ((points - weights @ points / n) ** 2).sum(axis=1))
    best = {"silhouette": number_of_clusters(points, weights, MOST, rng, 3)}
    scores: dict[str, list[float]] = {"variance ratio": [], "of rows": [], "BIC": []}
    sizes = range(2, min(MOST, m // 2) + 1)
    for k in sizes:
        centers = server_centroids(points, weights, k, rng, 3)
        within = float(weights @ assign(points, centers)[1])
        ratio = (total - within) / (k - 1) / within
        scores["variance ratio"].append(ratio * (m - k))
        scores["of rows"].append(ratio * (n - k))
        scores["BIC"].append(-m * d * math.log(within / n) - k * (d + 1) * math.log(m))
    best |= {name: sizes[int(np.argmax(values))] for name, values in scores.items()}
    return best


def number(data: SplitRows, seeds: int) -> dict[str, Any]:
    """Choose K from the bins of parties, and from rows of all of them in one place.

    Returns
    -------
    dict
        ``bins`` and ``pooled``: a list of what :func:`chosen` gives, a seed each.
    """
    rows = np.concatenate(data.rows)
    measured: dict[str, list[dict[str, int]]] = {"bins": [], "pooled": []}
    for seed in range(min(seeds, data.seeds)):
        numerics = Numerics(
            data, "MUFC, complete", seed, local_clusters=MOST, min_rows=5
        )
        numerics.train()
        rng, (bins, q) = np.random.default_rng([seed, 3]), numerics.summed()
        middles = numerics.quantizer.centers(bins)
        measured["bins"].append(chosen(middles, q.astype(float), rng))
        some = rng.choice(len(rows), min(len(rows), SAMPLE), replace=False)
        measured["pooled"].append(chosen(rows[some], np.ones(len(some)), rng))
    tell(f"{data.name}: {measured}")
    return {"name": data.name, "note": data.note, "k": data.k, **measured}


def number_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
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


# --- Whole runs ---------------------------------------------------------------------


def _slowest(ledger: Ledger) -> float:
    """Return the sum over actions of the slowest party's seconds."""
    slowest: dict[str, float] = {}
    for entry in ledger.entries.values():
        seconds = max(slowest.get(entry.action, 0.0), entry.seconds_computed)
        slowest[entry.action] = seconds
    return sum(slowest.values())


def in_process(data: SplitRows, batch: int = 30) -> list[dict[str, Any]]:
    """Train, remove one row, remove a batch and train again, each as a whole run.

    Returns
    -------
    list of dict
        ``what``; ``seconds`` of the run, parties one after another; ``slowest``:
        seconds of the slowest party in each step, added up; ``round_trips``; ``bytes``
        that a party sends.
    """
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parties, server = data.parties(folder), folder / "server"
        largest = max(parties, key=lambda party: party.n_rows)
        ids = [str(i) for i in range(min(batch, largest.n_rows - data.k - 1) + 1)]

        def whole(what: str, task: ProtocolStrategy) -> str:
            start = time.process_time()
            result = simulate(task, parties, seed=len(measured))
            seconds, ledger = time.process_time() - start, result.ledger
            measured.append(
                {
                    "what": what,
                    "seconds": seconds,
                    "slowest": _slowest(ledger),
                    "round_trips": ledger.round_trips,
                    "bytes": ledger.bytes_up / len(parties),
                }
            )
            tell(f"{data.name}: {measured[-1]}")
            return result.model.number or ""

        train = strategy(data, "MUFC", server)
        model = whole("train", train)

        def forget(rows: Sequence[str]) -> MUFCUnlearn:
            request_changes(largest, forget=rows)
            return MUFCUnlearn(model, server_state=server)

        whole("remove one row", forget(ids[:1]))
        whole(f"remove {len(ids) - 1} rows of one party", forget(ids[1:]))
        whole("train again", train)
    return measured


def on_supernodes(
    data: SplitRows, project: Path, nodes: int = 3
) -> list[dict[str, Any]]:
    """Train, remove one row and train again by ``flwr run`` on SuperNodes on loopback.

    Parameters
    ----------
    data : SplitRows
        The data set; its parties are merged into `nodes` of them.
    project : Path
        Folder of ``pyproject.toml``.
    nodes : int
        SuperNodes.

    Returns
    -------
    list of dict
        ``what``; ``seconds`` of ``flwr run``; ``round_trips`` and ``bytes`` as for
        :func:`in_process`.
    """
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, Processes() as processes:
        folder = Path(name)
        configs = []
        consent = folder / "consent.toml"
        consent.write_text(
            "allow-seed = true\n[leaves]\ncentroids = true\nrows = true\n[peers]\n"
            + "".join(
                f"{line_for_peers(folder / f'state-{j}', f'node-{j}')}\n"
                for j in range(nodes)
            )
        )
        for j in range(nodes):
            X = np.concatenate(data.rows[j::nodes])
            path = folder / f"node-{j}.csv"
            header = ",".join(["id", *(f"x{c}" for c in range(data.d))])
            rows = np.column_stack([np.arange(len(X)), X])
            formats = ["%d"] + ["%.17g"] * data.d
            np.savetxt(path, rows, formats, ",", header=header, comments="")
            config = {"partition-id": j, "data": str(path), "party-name": f"node-{j}"}
            config |= {"id-column": "id", "state-dir": str(folder / f"state-{j}")}
            config |= {"consent": str(consent)}
            pairs = (f"{key}={json.dumps(value)}" for key, value in config.items())
            configs.append(" ".join(pairs))
        start_supernodes(processes, start_superlink(processes), configs)

        def whole(what: str, settings: Mapping[str, Any]) -> str:
            output = folder / f"out-{len(measured)}"
            config = {"strategy": "mufc", "n-parties": nodes, "seed": len(measured)}
            config |= {"output-dir": str(output), **settings}
            config |= {"mufc.server-state": str(folder / "server")}
            start = time.perf_counter()
            texts = {key: json.dumps(value) for key, value in config.items()}
            submit(processes, project, run_config=texts, timeout=300)
            seconds = time.perf_counter() - start
            (report,) = output.glob("*/result.json")
            result = next(iter(json.loads(report.read_text())["results"].values()))
            ledger = result["ledger"]
            measured.append(
                {
                    "what": what,
                    "seconds": seconds,
                    "round_trips": ledger["round_trips"],
                    "bytes": ledger["bytes_up"] / nodes,
                }
            )
            tell(f"{data.name} on SuperNodes: {measured[-1]}")
            return str(result["model"])

        train = {"mufc.n-clusters": data.k, "mufc.n-init": data.n_init}
        model = whole("train", train)
        (folder / "state-0" / FORGET).write_text("7\n")
        whole("remove one row", {"task": "unlearn", "model": model})
        whole("train again", train)
    return measured


def runs_page(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the table of whole runs."""
    yield "## Whole runs"
    yield table(
        {
            "where": where,
            "what": run["what"],
            "seconds": f"{run['seconds']:.1f}",
            "slowest party ms": f"{1000 * run['slowest']:.0f}"
            if "slowest" in run
            else "",
            "round trips": str(run["round_trips"]),
            "kB a party": f"{run['bytes'] / 1000:.1f}",
        }
        for where, runs in measured.items()
        for run in runs
    )


# --- Settings -----------------------------------------------------------------------

GAMMAS = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Over 1 / sqrt(n), the default."""


def settings(
    sets: Sequence[SplitRows], spread: Sequence[SplitRows], seeds: int
) -> dict[str, list[dict[str, Any]]]:
    """Train with other steps and other numbers of clusters.

    Parameters
    ----------
    sets : sequence of SplitRows
        Data sets for gamma, and for the centroids of a party.
    spread : sequence of SplitRows
        The same rows with other K', whose notes say so.
    seeds : int
        Seeds of each setting.

    Returns
    -------
    dict
        ``gamma``, ``centroids``, ``clusters``: lists of ``data``, ``value``, and the
        loss ratios ``induced`` and ``nearest`` of each seed.
    """
    measured: dict[str, list[dict[str, Any]]]
    measured = {"gamma": [], "centroids": [], "clusters": []}

    def cell(name: str, data: SplitRows, value: str, **changed: Any) -> None:
        ratios = []
        for seed in range(min(seeds, data.seeds)):
            numerics = Numerics(data, "MUFC", seed, **changed)
            numerics.train()
            ratios.append([cost / data.best for cost in numerics.loss()])
        induced, nearest = (list(column) for column in zip(*ratios, strict=True))
        ratio_lists = {"induced": induced, "nearest": nearest}
        measured[name].append({"data": data.name, "value": value} | ratio_lists)
        tell(f"{data.name}: {name} {value} {_mean(induced):.4f} {_mean(nearest):.4f}")

    for data in sets:
        for factor in GAMMAS:
            gamma = min(1.0, factor / math.sqrt(data.n))
            cell("gamma", data, f"{gamma:.4f}", gamma=gamma)
        for count in dict.fromkeys(
            [max(1, round(math.sqrt(data.k))), data.k, 2 * data.k, 4 * data.k]
        ):
            cell("centroids", data, str(count), local_clusters=count)
    for data in spread:
        cell("clusters", data, data.note.rpartition("K' = ")[2].split()[0])
    return measured


def settings_page(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the tables of settings."""
    titles = {
        "gamma": "Quantisation step gamma, in sides of the box",
        "centroids": "Centroids of a party (`local_clusters`)",
        "clusters": "Clusters K' of which a party has rows",
    }
    for name, title in titles.items():
        if measured[name]:
            yield f"## {title}"
        yield table(
            {
                "data": entry["data"],
                name: entry["value"],
                "induced": _spread(entry["induced"]),
                "nearest": _spread(entry["nearest"]),
                "seeds": str(len(entry["induced"])),
            }
            for entry in measured[name]
        )


# --- The command --------------------------------------------------------------------

app = new_app()
TABLES = ("loss", "removal", "adding", "number", "runs", "settings")
REMOVED = ["celltype", "gaussian"]
"""Data sets of all tables but ``loss`` and ``number``; ``runs`` takes the first."""
NUMBERED = [*REMOVED, "covtype15k", "tcga", "postures"]
"""Data sets of ``number``."""


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(TABLES)],
    datasets: Annotated[
        list[str] | None,
        some_of(DATASETS, "Data sets; of loss all, of others celltype and gaussian."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="From 0. By default 20 of loss, 5 of the others."),
    ] = None,
    requests: Annotated[
        int, typer.Option(min=1, help="Of each seed of removal; a tenth of adding.")
    ] = 100,
    quick: Quick = False,
    project: Annotated[
        Path | None,
        typer.Option(help="Folder of pyproject.toml: runs also starts SuperNodes."),
    ] = None,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Reproduce the experiments of the MUFC paper.

    The page is written after each data set, whole or not at all.
    """
    few = max(1, requests // 10)
    for name in tables:
        results = Results(context, "mufc", name)
        number_of_seeds = seeds or (20 if name == "loss" else 5)
        others = {"loss": list(DATASETS), "number": NUMBERED}
        names = datasets or others.get(name, REMOVED)
        loaded: list[SplitRows] = []
        measured: list[dict[str, Any]] = []
        page = ""
        for dataset in names:
            with results.skipping(dataset, names):
                data = DATASETS[dataset](data_dir, quick)
                loaded.append(data)
                if name == "loss":
                    # Whole runs where messages are small: of all methods on the first
                    # data set, and of MUFC alone on the others.
                    small = message_bytes(data) * len(data.rows) < 20e6
                    runs = list(METHODS)[: 1 if measured else None] if small else []
                    measured.append(loss(data, number_of_seeds, runs))
                    page = results.write(measured, loss_page(measured))
                elif name == "removal":
                    measured.append(removal(data, number_of_seeds, requests, few))
                    page = results.write(measured, removal_page(measured))
                elif name == "adding":
                    measured.append(adding(data, number_of_seeds, few))
                    page = results.write(measured, adding_page(measured))
                elif name == "number":
                    measured.append(number(data, number_of_seeds))
                    page = results.write(measured, number_page(measured))
            if name == "runs" and loaded:
                break
        if name == "runs":
            (data,) = loaded
            title = f"{data.name}, {len(data.rows)} parties in process"
            whole_runs = {title: in_process(data)}
            if project is not None:
                title = f"{data.name}, flwr run on 3 SuperNodes"
                whole_runs[title] = on_supernodes(data, project)
            page = results.write(whole_runs, runs_page(whole_runs))
        elif name == "settings":
            values = (1, 2, 3, 5, 7, 10) if "gaussian" in names else ()
            spread = [gaussian(data_dir, quick, k_prime=k) for k in values]
            cells = settings(loaded, spread, number_of_seeds)
            page = results.write(cells, settings_page(cells))
        elif results.skipped:
            pages = {"loss": loss_page, "removal": removal_page, "adding": adding_page}
            pages["number"] = number_page
            page = results.write(measured, pages[name](measured))
        tell(page)
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.mufc")
