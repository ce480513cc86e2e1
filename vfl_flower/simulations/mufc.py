"""The experiments of the MUFC paper: loss ratios, removal times, settings.

All four tables take about a quarter of an hour on an idle machine::

    python -m vfl_flower.simulations.mufc loss removal runs settings

==========  ========================================================================
loss        loss ratios of MUFC, K-FED and DC-KM: Tables 1 and 2 of [1]; bytes and
            round trips of a run
removal     time to remove rows against retraining, and the loss ratio over removals:
            Figures 3 to 5
runs        the same as whole runs: of :func:`~vfl_flower.simulations.simulate`, and of
            ``flwr run`` on SuperNodes
settings    the quantisation step, the clusters and the centroids of a client: Figure 3
==========  ========================================================================

A run of 100 clients in one process takes seconds, nearly all for keys and messages. So
all but ``runs`` call the same numerics without messages (:class:`Memory`), which at an
equal seed give the very centres of a run; ``loss`` runs each method once and says so.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party
from vfl_flower.ledger import Ledger
from vfl_flower.models import MUFCModel
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.mufc import (
    Quantizer,
    best_cost,
    complete,
    contributions,
    induced_labels,
    initialise,
    local_labels,
    server_centroids,
    server_points,
    surviving,
)
from vfl_flower.report import markdown_table
from vfl_flower.secure_aggregation import SparseSum
from vfl_flower.simulations.experiments import (
    MissingData,
    check_some,
    new_parser,
    read_options,
    show_tables,
    versions,
    write_results,
)
from vfl_flower.simulations.flower_run import (
    Processes,
    start_superlink,
    start_supernodes,
    submit,
)
from vfl_flower.simulations.in_process import simulate
from vfl_flower.simulations.mufc_baselines import (
    KFED,
    DCKMeans,
    dckm_centroids,
    kfed_centroids,
)
from vfl_flower.simulations.mufc_data import (
    DATASETS,
    Clients,
    gaussian,
)
from vfl_flower.strategies.base import Run
from vfl_flower.strategies.mufc import MUFC, MUFCUnlearn
from vfl_flower.typing import Array

METHODS = {
    "MUFC": ("init", "uniform"),
    "MUFC, weighted bins": ("init", "weighted"),
    "MUFC, complete": ("full", "uniform"),
    "K-FED": ("full", "k-fed"),
    "DC-KM": ("full", "dc-km"),
}
"""What a client does, and what the server clusters."""

Tell = Callable[[str], None]

# --- The numerics without messages --------------------------------------------------


class Memory:
    """A federation whose state is in memory: the numerics of a run, without messages.

    It draws what :func:`~vfl_flower.simulations.simulate` draws at the same seed.

    Parameters
    ----------
    data : Clients
        The clients; not changed.
    method : str
        One of `METHODS`.
    seed : int
        Of all draws.
    gamma : float, optional
        Quantisation step; default: 1 / sqrt(n).
    local_clusters : int
        K', centroids of a client at most; 0: K.

    Attributes
    ----------
    centers : Array, shape (K, d)
        C_s.
    kept : list of Array of bool, shapes (n^(l),)
        Rows that were not removed.
    drawn : list of Array of int, shapes (k',)
        Centroids of each client as row numbers, in the order drawn.
    sizes : list of Array of int, shapes (k',)
        Rows of each local cluster.
    """

    def __init__(
        self,
        data: Clients,
        method: str = "MUFC",
        seed: int = 0,
        *,
        gamma: float | None = None,
        local_clusters: int = 0,
    ) -> None:
        self._training, self._server = METHODS[method]
        self._data, self._seed = data, seed
        self._local = local_clusters or data.k
        self._quantizer = Quantizer(gamma or 1 / math.sqrt(data.n))
        self._parties = [Party(X, index=m) for m, X in enumerate(data.rows)]
        for party in self._parties:
            party.seed = seed
        self.kept = [np.ones(len(X), dtype=bool) for X in data.rows]
        self._changes = 0
        none = np.zeros(0, dtype=np.int64)
        self.drawn, self.sizes = [none] * len(data.rows), [none] * len(data.rows)
        self._centroids = [np.zeros((0, data.d))] * len(data.rows)
        self._costs: dict[int, Array] = {}

    def train(self) -> tuple[float, float]:
        """Train on the rows that are kept.

        Returns
        -------
        client, server : float
            Seconds of the slowest client, as clients work at the same time, and of the
            server.
        """
        slowest = 0.0
        for m, party in enumerate(self._parties):
            start = time.perf_counter()
            self._draw(m, party.rng("centroids"))
            slowest = max(slowest, time.perf_counter() - start)
        return slowest, self._cluster()

    def remove(
        self, m: int, rows: Array, lazy: bool = True
    ) -> tuple[float, float, bool]:
        """Remove rows of one client (Algorithms 3 and 4); a baseline trains it again.

        Parameters
        ----------
        m : int
            The client.
        rows : Array of int, shape (r,)
            Rows that are kept.
        lazy : bool
            Keep C_s where no centroid is removed, as [1]; else the counts are sent
            again and the server clusters anew.

        Returns
        -------
        client, server : float
            Seconds of each.
        redrawn : bool
            Whether a centroid was drawn again.
        """
        X = self._data.rows[m]
        start = time.perf_counter()
        self.kept[m][rows] = False
        baseline = self._server in ("k-fed", "dc-km")
        prefix = self.drawn[m][:0] if baseline else surviving(self.drawn[m], rows)
        redrawn = len(prefix) < len(self.drawn[m])
        if redrawn or self._training == "full":
            self._changes += 1
            self._draw(m, self._parties[m].rng(f"redraw {self._changes}"), prefix)
        else:
            out = local_labels(X[rows], self._centroids[m])
            self.sizes[m] = self.sizes[m] - np.bincount(
                out, minlength=len(self.drawn[m])
            )
        client = time.perf_counter() - start
        again = redrawn or self._training == "full" or not lazy
        server = self._cluster() if again else 0.0
        if m in self._costs:
            self._costs[m][rows] = 0
        return client, server, redrawn

    def loss(self) -> tuple[float, float]:
        """Return the objective with induced clusters, and with the nearest centres."""
        induced = sum(float(self._cost(m).sum()) for m in range(len(self.kept)))
        nearest = sum(
            float(contributions(blocks, self.centers).sum())
            for blocks in map(self._blocks, range(len(self.kept)))
        )
        return induced, nearest

    def worst(self, count: int) -> tuple[int, Array]:
        """Return the client of the row that costs most now, and its `count` worst."""
        m = max(range(len(self.kept)), key=lambda m: float(self._cost(m).max()))
        rows = np.argsort(-self._cost(m), kind="stable")[:count]
        return m, rows[self.kept[m][rows]]

    def remaining(self) -> Array:
        """Return all rows that are kept."""
        pairs = zip(self._data.rows, self.kept, strict=True)
        return np.concatenate([X[kept] for X, kept in pairs])

    def _draw(
        self, m: int, rng: np.random.Generator, prefix: Array | None = None
    ) -> None:
        numbers = np.flatnonzero(self.kept[m])
        places = None if prefix is None else np.searchsorted(numbers, prefix)
        blocks = self._blocks(m)
        drawn, labels = initialise(blocks, self._local, rng, places)
        centroids = blocks.take(drawn)
        self.drawn[m] = numbers[drawn]
        if self._training == "full":
            centroids, labels = complete(blocks, drawn)
        self._centroids[m] = centroids
        self.sizes[m] = np.bincount(labels, minlength=len(centroids))

    def _cluster(self) -> float:
        """Set C_s and return the seconds."""
        start = time.perf_counter()
        data, rng = self._data, Run(self._seed).rng("k-means")
        if self._server == "k-fed":
            self.centers = kfed_centroids(self._centroids, data.k)
        elif self._server == "dc-km":
            points = np.concatenate(self._centroids)
            self.centers = dckm_centroids(points, data.k, rng, data.n_init)
        else:
            bins = self._quantizer.bins(np.concatenate(self._centroids))
            bins, which = np.unique(bins, axis=0, return_inverse=True)
            counts = np.zeros(len(bins), dtype=np.int64)
            np.add.at(counts, which.ravel(), np.concatenate(self.sizes))
            bins, counts = bins[counts > 0], counts[counts > 0]
            points, weights = server_points(
                self._quantizer, bins, counts, rng, self._server
            )
            self.centers = server_centroids(points, weights, data.k, rng, data.n_init)
        self._costs.clear()
        return time.perf_counter() - start

    def _blocks(self, m: int) -> RowBlocks:
        X = self._data.rows[m]
        if self.kept[m].all():
            return RowBlocks(X)
        return RowBlocks(X, rows=np.flatnonzero(self.kept[m]))

    def _cost(self, m: int) -> Array:
        """Return what each row of a client adds to phi_f, 0 for the removed ones."""
        if m not in self._costs:
            blocks, numbers = self._blocks(m), np.flatnonzero(self.kept[m])
            places = np.searchsorted(numbers, self.drawn[m])
            if self._training == "full":
                centroids, labels = complete(blocks, places)
            else:
                rng = np.random.default_rng(0)  # nothing is drawn
                centroids = blocks.take(places)
                _, labels = initialise(blocks, len(places), rng, places)
            labels = induced_labels(centroids, labels, self.centers)
            costs = np.zeros(len(self.kept[m]))
            costs[numbers] = contributions(blocks, self.centers, labels)
            self._costs[m] = costs
        return self._costs[m]


def strategy(data: Clients, method: str, **more: Any) -> MUFC:
    """Return a method as a strategy."""
    if method == "K-FED":
        return KFED(data.k, **more)
    if method == "DC-KM":
        return DCKMeans(data.k, n_init=data.n_init, **more)
    training, points = METHODS[method]
    more |= {"server_points": points, "client_training": training}
    return MUFC(data.k, n_init=data.n_init, **more)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


# --- Loss ratios --------------------------------------------------------------------


def message_bytes(data: Clients) -> int:
    """Return the bytes of a client's sums: 8 (2 K L + K L ceil(d bits / 60))."""
    quantizer = Quantizer(1 / math.sqrt(data.n))
    code = SparseSum(data.k, len(data.rows), data.d, quantizer.n_bins, bytes(16))
    return 8 * code.size


def whole_run(data: Clients, method: str, seed: int = 0) -> dict[str, Any]:
    """Run a method once with its messages, and compare it with :class:`Memory`.

    Returns
    -------
    dict
        ``equal``: whether the centres are the same; ``round_trips``, ``bytes``: that a
        client sends for the step of training, ``formula``: see :func:`message_bytes`,
        ``seconds`` of the run.
    """
    memory = Memory(data, method, seed)
    memory.train()
    start = time.perf_counter()
    result = simulate(strategy(data, method), [Party(X) for X in data.rows], seed)
    seconds = time.perf_counter() - start
    assert isinstance(result.model, MUFCModel)
    step = result.ledger.of("mufc_train")
    return {
        "method": method,
        "equal": bool(np.array_equal(memory.centers, result.model.cluster_centers_)),
        "round_trips": result.ledger.round_trips,
        "bytes": step.bytes_up / len(data.rows),
        "formula": message_bytes(data),
        "seconds": seconds,
    }


def loss(
    data: Clients, seeds: int, runs: Sequence[str] = (), tell: Tell = print
) -> dict[str, Any]:
    """Train all methods on a data set.

    Parameters
    ----------
    data : Clients
        The data set.
    seeds : int
        0 .. seeds - 1, or fewer if the data set says so.
    runs : sequence of str
        Methods that are run once with their messages too.
    tell : callable
        Called with one line a method.

    Returns
    -------
    dict
        ``methods``: for each the loss ratios ``induced`` and ``nearest``, and seconds
        of the slowest ``client`` and the ``server``; ``runs``.
    """
    found: dict[str, Any] = {}
    for method in METHODS:
        one: dict[str, list[float]] = {}
        for seed in range(min(seeds, data.seeds)):
            memory = Memory(data, method, seed)
            times = memory.train()
            ratios = (value / data.best for value in memory.loss())
            for name, value in zip(
                ("client", "server", "induced", "nearest"),
                (*times, *ratios),
                strict=True,
            ):
                one.setdefault(name, []).append(value)
        found[method] = one
        tell(
            f"{data.name}: {method} induced {_mean(one['induced']):.4f} nearest "
            f"{_mean(one['nearest']):.4f} server {_mean(one['server']):.3f} s"
        )
    return {
        **{"name": data.name, "note": data.note, "n": data.n, "d": data.d},
        **{"k": data.k, "clients": len(data.rows), "methods": found},
        "published": dict(data.published or {}),
        "runs": [whole_run(data, method) for method in runs],
    }


def loss_page(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of loss ratios and of whole runs."""
    rows, whole, notes = [], [], []
    for one in found:
        notes.append(
            f"- **{one['name']}**: n = {one['n']:,}, d = {one['d']}, K = {one['k']}; "
            f"{one['note']}."
        )
        for method, values in one["methods"].items():
            printed = one["published"].get(method)
            rows.append(
                [
                    one["name"],
                    method,
                    *(
                        f"{_mean(values[kind]):.3f} ± {_std(values[kind]):.3f}"
                        for kind in ("induced", "nearest")
                    ),
                    f"{printed:.2f}" if printed else "",
                    str(len(values["induced"])),
                    f"{1000 * _mean(values['client']):.1f}",
                    f"{1000 * _mean(values['server']):.0f}",
                ]
            )
        whole += [
            [
                one["name"],
                run["method"],
                "the same" if run["equal"] else "other",
                str(run["round_trips"]),
                f"{run['bytes'] / 1000:.1f}",
                f"{run['formula'] / 1000:.1f}" if run["method"] in _SUMMED else "",
                f"{run['seconds']:.1f}",
            ]
            for run in one["runs"]
        ]
    header = ["data", "method", "induced", "nearest", "printed", "seeds"]
    page = "## Loss ratios\n\n" + "\n".join(notes) + "\n\n"
    page += markdown_table([*header, "client ms", "server ms"], rows)
    if whole:
        header = ["data", "method", "centres", "round trips", "kB a client"]
        page += "\n\n## Whole runs of the same, at seed 0\n\n"
        page += markdown_table([*header, "formula", "seconds"], whole)
    return page


_SUMMED = [name for name in METHODS if name.startswith("MUFC")]

# --- Removal times ------------------------------------------------------------------

PATTERNS = {"random": 1, "adversarial": 1, "batches of 10": 10, "batches of 30": 30}
"""Rows of a request; those of one client, drawn at random or the worst."""

POINTS = 4
"""How often the loss ratio is looked at over the removals, besides before them."""


def requests_of(
    memory: Memory, pattern: str, count: int, k: int, rng: np.random.Generator
) -> Iterator[tuple[int, Array]]:
    """Yield requests: a random client with more than K rows to keep, and rows of it."""
    size = PATTERNS[pattern]
    for _ in range(count):
        if pattern == "adversarial":
            yield memory.worst(size)
            continue
        there = [m for m, kept in enumerate(memory.kept) if kept.sum() >= size + k]
        if not there:
            return
        m = int(rng.choice(there))
        rows = np.flatnonzero(memory.kept[m])
        yield m, rng.choice(rows, size, replace=False)


def removals(
    data: Clients,
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
        ``client`` and ``server`` seconds and ``redrawn`` of each request; ``ratio``:
        pairs of requests done and loss ratio, induced, on the rows that remain.
    """
    memory = Memory(data, method, seed)
    memory.train()
    found: dict[str, Any] = {"client": [], "server": [], "redrawn": [], "ratio": []}

    def look(done: int) -> None:
        if ratios:
            rng = np.random.default_rng(0)
            best = best_cost(memory.remaining(), data.k, rng, data.n_init)
            found["ratio"].append([done, memory.loss()[0] / best])

    look(0)
    rng = np.random.default_rng([seed, 1])
    every = max(1, count // POINTS)
    for done, (m, rows) in enumerate(
        requests_of(memory, pattern, count, data.k, rng), 1
    ):
        client, server, redrawn = memory.remove(m, rows, lazy)
        for name, value in (("client", client), ("server", server)):
            found[name].append(value)
        found["redrawn"].append(redrawn)
        if done % every == 0:
            look(done)
    return found


def removal(
    data: Clients, seeds: int, count: int = 100, few: int = 10, tell: Tell = print
) -> dict[str, Any]:
    """Measure removals against retraining.

    Parameters
    ----------
    data : Clients
        The data set.
    seeds : int
        Of each pattern.
    count : int
        Requests of a seed.
    few : int
        Requests of what the server clusters for at each: MUFC with counts sent again,
        and DC-KM.
    tell : callable
        Called with one line a pattern.

    Returns
    -------
    dict
        ``retraining``: seconds of ``complete``, as the paper counts (Lloyd's iteration
        at the slowest client, and the server), of ``own``, what is trained here, and of
        ``weighted``, the same with weighted bins;
        ``patterns``: for each a list of what :func:`removals` gives, a seed each.
    """
    retraining: dict[str, list[float]] = {"complete": [], "own": [], "weighted": []}
    for seed in range(3):
        full, _ = Memory(data, "MUFC, complete", seed).train()
        client, server = Memory(data, "MUFC", seed).train()
        retraining["complete"].append(full + server)
        retraining["own"].append(client + server)
        weighted = Memory(data, "MUFC, weighted bins", seed).train()
        retraining["weighted"].append(sum(weighted))
    plans: dict[str, dict[str, Any]] = {
        pattern: {"pattern": pattern} for pattern in PATTERNS
    }
    fewer = {"pattern": "random", "count": few, "ratios": False}
    plans |= {
        "random, counts sent again": fewer | {"lazy": False},
        "random, counts sent again, weighted bins": fewer
        | {"lazy": False, "method": "MUFC, weighted bins"},
        "random, DC-KM": fewer | {"method": "DC-KM"},
    }
    found = {}
    for name, plan in plans.items():
        repeats = seeds if plan.get("ratios", True) else min(seeds, 2)
        runs = [
            removals(data, **{"count": count, "seed": seed} | plan)
            for seed in range(repeats)
        ]
        if not all(one["client"] for one in runs):
            continue  # no client has so many rows
        found[name] = runs
        tell(f"{data.name}: {name} {1000 * _per_request(found[name]):.3f} ms a request")
    return {
        **{"name": data.name, "note": data.note, "n": data.n, "k": data.k},
        **{"retraining": retraining, "patterns": found},
    }


def _all(runs: Sequence[Mapping[str, Any]], name: str) -> Array:
    return np.concatenate([np.asarray(run[name]) for run in runs])


def _per_request(runs: Sequence[Mapping[str, Any]]) -> float:
    return float((_all(runs, "client") + _all(runs, "server")).mean())


def removal_page(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of removal times and of the loss ratio over removals."""
    retraining, times, ratios = [], [], []
    for one in found:
        seconds = {n: float(np.median(v)) for n, v in one["retraining"].items()}
        cells = (f"{1000 * value:.1f}" for value in seconds.values())
        retraining.append([one["name"], *cells])
        for name, runs in one["patterns"].items():
            client, redrawn = _all(runs, "client"), _all(runs, "redrawn")
            every = _per_request(runs)
            # MUFC is compared with a training of the same settings.
            own = seconds["weighted" if "weighted" in name else "own"]
            both = [seconds["complete"], *([] if "DC-KM" in name else [own])]
            untouched = ["", "", ""]
            if not redrawn.all() and "counts" not in name:
                least = float(np.median(client[~redrawn]))
                untouched = [f"{1e6 * least:.0f}", *(_times(t / least) for t in both)]
            of = [f"{1000 * every:.2f}", *(_times(t / every) for t in both)]
            share = f"{100 * redrawn.mean():.1f}"
            row = [one["name"], name, str(len(client)), share, *of]
            times.append([*row, *[""] * (2 - len(both)), *untouched])
            if runs[0]["ratio"]:
                least_looks = min(len(run["ratio"]) for run in runs)
                looks = np.array([run["ratio"][:least_looks] for run in runs])
                pairs = looks.mean(axis=0).tolist()
                text = ", ".join(f"{done:.0f}: {ratio:.3f}" for done, ratio in pairs)
                ratios.append([one["name"], name, text])
    header = ["data", "the paper's", "own", "own, weighted bins"]
    page = "## Retraining, ms\n\n" + markdown_table(header, retraining)
    header = ["data", "requests", "number", "redrawn %", "ms", "faster: the paper's"]
    header += ["own", "untouched, us", "faster: the paper's", "own"]
    page += "\n\n## Removals\n\n" + markdown_table(header, times)
    header = ["data", "requests", "requests done: loss ratio, induced"]
    return page + "\n\n## Loss ratio over removals\n\n" + markdown_table(header, ratios)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


# --- Whole runs ---------------------------------------------------------------------


def _slowest(ledger: Ledger) -> float:
    """Return the sum over actions of the slowest party's seconds."""
    slowest: dict[str, float] = {}
    for entry in ledger.entries.values():
        seconds = max(slowest.get(entry.action, 0.0), entry.seconds_computed)
        slowest[entry.action] = seconds
    return sum(slowest.values())


def in_process(data: Clients, batch: int = 30, tell: Tell = print) -> list[Any]:
    """Train, remove one row, remove a batch and train again, each as a whole run.

    Returns
    -------
    list of dict
        ``what``; ``seconds`` of the run, parties one after another; ``slowest``:
        seconds of the slowest party in each step, added up; ``round_trips``; ``bytes``
        that a client sends.
    """
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parties, server = data.parties(folder), folder / "server"
        of = max(parties, key=lambda party: party.n_rows)
        ids = [str(i) for i in range(min(batch, of.n_rows - data.k - 1) + 1)]

        def whole(what: str, one: Any) -> Any:
            start = time.perf_counter()
            result = simulate(one, parties, seed=len(found))
            seconds, ledger = time.perf_counter() - start, result.ledger
            found.append(
                {
                    "what": what,
                    "seconds": seconds,
                    "slowest": _slowest(ledger),
                    "round_trips": ledger.round_trips,
                    "bytes": ledger.bytes_up / len(parties),
                }
            )
            tell(f"{data.name}: {found[-1]}")
            return result.model

        train = strategy(data, "MUFC", server_state=server)
        model = whole("train", train).model

        def forget(rows: Sequence[str]) -> MUFCUnlearn:
            return MUFCUnlearn(model, {str(of.name): rows}, server_state=server)

        whole("remove one row", forget(ids[:1]))
        whole(f"remove {len(ids) - 1} rows of one client", forget(ids[1:]))
        whole("train again", train)
    return found


def on_supernodes(
    data: Clients, project: Path, nodes: int = 3, tell: Tell = print
) -> list[Any]:
    """Train, remove one row and train again by ``flwr run`` on SuperNodes on loopback.

    Parameters
    ----------
    data : Clients
        Its clients are put together into `nodes` of them.
    project : Path
        Folder of ``pyproject.toml``.
    nodes : int
        SuperNodes.
    tell : callable
        Called with one line a run.

    Returns
    -------
    list of dict
        ``what``; ``seconds`` of ``flwr run``; ``round_trips`` and ``bytes`` as of
        :func:`in_process`.
    """
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as name, Processes() as processes:
        folder = Path(name)
        configs = []
        for j in range(nodes):
            X = np.concatenate(data.rows[j::nodes])
            path = folder / f"node-{j}.csv"
            header = ",".join(["id", *(f"x{c}" for c in range(data.d))])
            table = np.column_stack([np.arange(len(X)), X])
            formats = ["%d"] + ["%.17g"] * data.d
            np.savetxt(path, table, formats, ",", header=header, comments="")
            config = {"partition-id": j, "data": str(path), "party-name": f"node-{j}"}
            config |= {"id-column": "id", "state-dir": str(folder / f"state-{j}")}
            pairs = (f"{key}={json.dumps(value)}" for key, value in config.items())
            configs.append(" ".join(pairs))
        start_supernodes(processes, start_superlink(processes), configs)

        def whole(what: str, **more: Any) -> str:
            config = {"strategy": "mufc", "n-parties": nodes, "seed": len(found)}
            config |= {"output-dir": str(folder / f"out-{len(found)}")}
            config |= {"server-state": str(folder / "server")} | more
            start = time.perf_counter()
            pairs = [f"{key}={json.dumps(value)}" for key, value in config.items()]
            submit(processes, project, run_config=pairs, timeout=300)
            seconds = time.perf_counter() - start
            (report,) = (folder / f"out-{len(found)}").glob("*/result.json")
            result = next(iter(json.loads(report.read_text())["results"].values()))
            ledger = result["ledger"]
            found.append(
                {
                    "what": what,
                    "seconds": seconds,
                    "round_trips": ledger["round_trips"],
                    "bytes": ledger["bytes_up"] / nodes,
                }
            )
            tell(f"{data.name} on SuperNodes: {found[-1]}")
            return str(result["model"])

        train = {"n-clusters": data.k, "n-init": data.n_init}
        model = whole("train", **train)
        whole("remove one row", task="unlearn", model=model, forget="node-0:7")
        whole("train again", **train)
    return found


def runs_page(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of whole runs."""
    rows = [
        [
            where,
            one["what"],
            f"{one['seconds']:.1f}",
            f"{1000 * one['slowest']:.0f}" if "slowest" in one else "",
            str(one["round_trips"]),
            f"{one['bytes'] / 1000:.1f}",
        ]
        for where, runs in found.items()
        for one in runs
    ]
    header = ["where", "what", "seconds", "slowest party ms", "round trips"]
    return "## Whole runs\n\n" + markdown_table([*header, "kB a client"], rows)


# --- Settings -----------------------------------------------------------------------

GAMMAS = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Over 1 / sqrt(n), the default."""


def settings(
    sets: Sequence[Clients], spread: Sequence[Clients], seeds: int, tell: Tell = print
) -> dict[str, Any]:
    """Train with other steps and other numbers of clusters.

    Parameters
    ----------
    sets : sequence of Clients
        For gamma, and for the centroids of a client.
    spread : sequence of Clients
        The same rows with other K', whose names say so.
    seeds : int
        Of each.
    tell : callable
        Called with one line a cell.

    Returns
    -------
    dict
        ``gamma``, ``centroids``, ``clusters``: lists of ``data``, ``value``, and the
        loss ratios ``induced`` and ``nearest`` of each seed.
    """
    found: dict[str, list[Any]] = {"gamma": [], "centroids": [], "clusters": []}

    def cell(table: str, data: Clients, value: str, **more: Any) -> None:
        ratios = []
        for seed in range(min(seeds, data.seeds)):
            memory = Memory(data, "MUFC", seed, **more)
            memory.train()
            ratios.append([part / data.best for part in memory.loss()])
        induced, nearest = (list(column) for column in zip(*ratios, strict=True))
        one = {"data": data.name, "value": value}
        found[table].append(one | {"induced": induced, "nearest": nearest})
        tell(f"{data.name}: {table} {value} {_mean(induced):.4f} {_mean(nearest):.4f}")

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
    return found


def settings_page(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the tables of settings."""
    titles = {
        "gamma": "Quantisation step gamma, in sides of the box",
        "centroids": "Centroids of a client (`local_clusters`)",
        "clusters": "Clusters K' of which a client has rows",
    }
    parts = []
    for table, title in titles.items():
        rows = [
            [
                one["data"],
                one["value"],
                *(
                    f"{_mean(one[kind]):.3f} ± {_std(one[kind]):.3f}"
                    for kind in ("induced", "nearest")
                ),
                str(len(one["induced"])),
            ]
            for one in found[table]
        ]
        if rows:
            header = ["data", table, "induced", "nearest", "seeds"]
            parts.append(f"## {title}\n\n" + markdown_table(header, rows))
    return "\n\n".join(parts)


# --- The command --------------------------------------------------------------------

TABLES = ("loss", "removal", "runs", "settings")
REMOVED = ("celltype", "gaussian")
"""Data sets of ``removal`` and ``settings``; ``runs`` takes the first."""


def run(
    table: str,
    output: Path,
    data_dir: Path | None,
    *,
    names: Sequence[str] = (),
    seeds: int = 20,
    requests: int = 100,
    quick: bool = False,
    project: Path | None = None,
) -> str:
    """Make one table, write ``mufc-<table>.json`` and ``.md``, and return its page.

    Parameters
    ----------
    table : {"loss", "removal", "runs", "settings"}
        Which.
    output : Path
        Folder of the files, made where it does not exist.
    data_dir : Path or None
        Folder of the npz files.
    names : sequence of str
        Data sets; default: all of ``loss``, those of `REMOVED` otherwise.
    seeds : int
        Of ``loss``; a quarter of it of the others, at least one.
    requests : int
        Of each seed and pattern.
    quick : bool
        Take few rows.
    project : Path, optional
        Folder of ``pyproject.toml``, to run on SuperNodes too.
    """
    output.mkdir(parents=True, exist_ok=True)
    names = list(names) or list(DATASETS if table == "loss" else REMOVED)
    skipped: dict[str, str] = {}
    fewer = max(1, seeds // 4)

    def write(found: Any, page: str) -> str:
        for name, reason in skipped.items():
            page += f"\n\n**{name}** was skipped: {reason}."
        options = {"table": table, "datasets": names, "seeds": seeds}
        options |= {"requests": requests, "quick": quick}
        results = {"settings": options, "versions": versions(), "skipped": skipped}
        write_results(results | {table: found}, page + "\n", output / f"mufc-{table}")
        return page

    def sets() -> Iterator[Clients]:
        for name in names:
            try:
                yield DATASETS[name](data_dir, quick)
            except MissingData as reason:
                skipped[name] = str(reason)
                check_some(skipped, names)

    if table in ("loss", "removal"):
        found: list[Any] = []
        make = loss_page if table == "loss" else removal_page
        for data in sets():
            if table == "loss":
                too = list(METHODS)[: 1 if found else None]
                small = message_bytes(data) * len(data.rows) < 20e6
                found.append(loss(data, seeds, too if small else ()))
            else:
                found.append(removal(data, fewer, requests, max(1, requests // 10)))
            # After each data set: what was measured is kept.
            write(found, make(found))
        return write(found, make(found))
    if table == "settings":
        spread = []
        if "gaussian" in names:
            values = (1, 2, 3, 5, 7, 10)
            spread = [gaussian(data_dir, quick, k_prime=k) for k in values]
        cells = settings(list(sets()), spread, fewer)
        return write(cells, settings_page(cells))
    whole: dict[str, Any] = {}
    for data in sets():
        whole[f"{data.name}, {len(data.rows)} clients in process"] = in_process(data)
        if project is not None:
            whole[f"{data.name}, flwr run on 3 SuperNodes"] = on_supernodes(
                data, project
            )
        break
    return write(whole, runs_page(whole))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    parser = new_parser("mufc", "the MUFC paper", DATASETS, TABLES)
    parser.set_defaults(datasets=[])  # it depends on the table
    parser.add_argument("--seeds", type=int, default=20, help="of loss; others fewer")
    parser.add_argument("--requests", type=int, default=100, help="of removal")
    parser.add_argument("--quick", action="store_true", help="take few rows")
    parser.add_argument(
        "--project",
        type=Path,
        default=None,
        help="folder of pyproject.toml: table runs also starts SuperNodes",
    )
    least = {"seeds": 1, "requests": 1}
    args = read_options(parser, arguments, least)
    make = partial(
        run,
        output=args.output_dir,
        data_dir=args.data_dir,
        names=args.datasets,
        seeds=args.seeds,
        requests=args.requests,
        quick=args.quick,
        project=args.project,
    )
    show_tables(parser, args, make)


if __name__ == "__main__":
    main()
