"""What one training of MUFC tells about membership, and what hiding it costs.

All data sets take about ten minutes on an idle machine; digits, postures and small
need no file::

    python -m simulations.mufc_privacy

A quarter of the rows of a set, at most 20,000, take no part. The attacker has the
server's view, the summed counts of bins, and candidate rows: up to 30 that the parties
drew as centroids, and those that took no part. It ranks them by their distance to the
nearest bin that has a count, and calls the first ones members.

No messages are sent: see :class:`simulations.mufc.Numerics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.datasets import load_digits

from simulations.experiments import (
    OUTPUT,
    DataDir,
    OutputDir,
    Results,
    load_npz,
    new_app,
    some_of,
    table,
    tell,
)
from simulations.mufc import Numerics
from simulations.mufc_data import LOWER, SplitRows, best_cost, mixture
from vfl_flower.numerics.mufc import Quantizer
from vfl_flower.typing import Array

SMALL = 20
"""A bin of fewer rows is a small one."""

MEMBERS = 30
"""Members among the candidates."""

OTHERS = 20_000
"""Most candidates that are no members."""

FALSE = 0.001
"""Share of the others that the attacker may take for members."""

OPTIONS: dict[str, dict[str, Any]] = {
    "init": {},
    "init, gamma x 4": {"gamma": 4},
    "init, gamma x 16": {"gamma": 16},
    "init, 20 rows": {"min_rows": 20},
    "full": {"method": "MUFC, complete"},
    "full, 5 rows": {"method": "MUFC, complete", "min_rows": 5},
    "full, 20 rows": {"method": "MUFC, complete", "min_rows": 20},
    "full, 20 rows, gamma x 4": {
        **{"method": "MUFC, complete", "min_rows": 20, "gamma": 4}
    },
    "full, 20 rows, 2 K": {
        **{"method": "MUFC, complete", "min_rows": 20, "local_clusters": 2}
    },
}
"""``client-training``, ``min-rows-per-bin``, ``gamma`` and ``local-clusters``: the last
two as multiples of 1 / sqrt(n) and of K."""


FORMS = {
    "init": '"init", 1: the paper',
    "full": '"full", 1',
    "full, 5 rows": '"full", 5: default',
    "full, 20 rows": '"full", 20',
}
"""Options of the short table."""


@dataclass(frozen=True)
class Candidates:
    """Rows of parties, and rows that took no part.

    Attributes
    ----------
    data : SplitRows
        The rows of the parties.
    others : Array, shape (n', d)
        The rows that took no part.
    """

    data: SplitRows
    others: Array


# --- Data ---------------------------------------------------------------------------


def apart(
    name: str, X: Array, k: int, n_parties: int = 4, group: Array | None = None
) -> Candidates:
    """Take a quarter of the rows out, and split the others over parties.

    Parameters
    ----------
    name : str
        Title.
    X : Array, shape (n, d)
        Rows, in the cube.
    k : int
        K.
    n_parties : int
        L; each has as many rows, at random.
    group : Array of int, shape (n,), optional
        Party of each row; default: at random.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(len(X))
    others, stay = np.split(order, [min(len(X) // 4, OTHERS)])
    if group is None:
        parts = np.array_split(stay, n_parties)
    else:
        parts = [stay[group[stay] == g] for g in np.unique(group)]
    best = best_cost(X[stay], k, rng)
    rows = [X[part] for part in parts]
    return Candidates(SplitRows(name, "", rows, k, best), X[others])


def _in_cube(X: Array, common: bool = False) -> Array:
    """Scale columns into the cube: each by its range, or all by one."""
    low, high = X.min(axis=0), X.max(axis=0)
    if common:
        low, high = low.min(), high.max()
    scaled = (X - low) / np.where(high > low, high - low, 1) + LOWER
    return np.asarray(np.clip(scaled, -0.5, 0.5))


def _digits(folder: Path | None) -> Candidates:
    return apart("digits", load_digits().data / 16 + LOWER, 10)


def _postures(folder: Path | None) -> Candidates:
    sizes = (19772, 17340, 15141, 12225, 10497)
    X = mixture(sizes, 15, np.random.default_rng(1))
    return apart("postures (generated)", X / (2 * np.abs(X).max()), 5)


def _celltype(folder: Path | None) -> Candidates:
    return apart("celltype", load_npz(folder, "celltype")[0] + LOWER, 4)


def _hundred(folder: Path | None) -> Candidates:
    X, _ = load_npz(folder, "celltype")
    assert folder is not None
    with np.load(folder / "celltype.npz", allow_pickle=False) as file:
        group = file["group"]
    return apart("celltype, 100 parties", X + LOWER, 4, group=group)


def _small(folder: Path | None) -> Candidates:
    rng = np.random.default_rng(0)
    middles = rng.uniform(-0.35, 0.35, size=(4, 3))
    X = middles[rng.integers(4, size=1600)] + rng.uniform(-0.08, 0.08, size=(1600, 3))
    return apart("small parties (generated)", X, 4, n_parties=20)


def _covtype(folder: Path | None) -> Candidates:
    X = _in_cube(load_npz(folder, "covtype15k")[0], common=True)
    return apart("covtype15k", X, 7)


def _by_columns(name: str, k: int) -> Callable[[Path | None], Candidates]:
    return lambda folder: apart(name, _in_cube(load_npz(folder, name)[0]), k)


DATASETS: dict[str, Callable[[Path | None], Candidates]] = {
    "digits": _digits,
    "postures": _postures,
    "celltype": _celltype,
    "celltype100": _hundred,
    "small": _small,
    "covtype15k": _covtype,
    "pol": _by_columns("pol", 5),
    "protein": _by_columns("protein", 5),
}


# --- The attack ---------------------------------------------------------------------


def distances_to_bins(rows: Array, bins: Array, quantizer: Quantizer) -> Array:
    """Return how far each row is from the nearest of the bins that have a count.

    Parameters
    ----------
    rows : Array, shape (m, d)
        Candidates, in the cube.
    bins : Array of int, shape (m', d)
        The bins that the server sees.
    quantizer : Quantizer
        Their sides.

    Returns
    -------
    Array, shape (m,)
        Largest difference of a coordinate to the middle of the bin, in sides of a bin:
        up to 0.5 inside one.
    """
    nearest = np.full(len(rows), np.inf)
    for middle in quantizer.centers(bins):
        np.minimum(nearest, np.abs(rows - middle).max(axis=1), out=nearest)
    return nearest / quantizer.gamma


def success(members: Array, others: Array, false: float = FALSE) -> tuple[float, float]:
    """Return how well distances tell members from others.

    Parameters
    ----------
    members, others : Array, shape (m,), (n',)
        Distances; a smaller one is evidence of a member.
    false : float
        Share of the others that may be taken for members.

    Returns
    -------
    tpr, auc : float
        Share of the members found, and the probability that a member is nearer than
        another row, ties by half.

    Examples
    --------
    >>> success(np.array([0.1, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]), 0.25)
    (0.5, 0.6875)
    """
    ordered = np.sort(others)
    tpr = float((members < ordered[int(false * len(ordered))]).mean())
    below = np.searchsorted(ordered, members, "left")
    upto = np.searchsorted(ordered, members, "right")
    auc = float((1 - (below + upto) / (2 * len(ordered))).mean())
    return tpr, auc


def measure(
    candidates: Candidates, option: Mapping[str, Any], seed: int, requests: int
) -> dict[str, float]:
    """Train, attack, and remove random rows one by one.

    Returns
    -------
    dict
        ``induced`` and ``nearest``: loss ratios; ``members``: share of the members in a
        bin with a count; ``others``: of the others; ``tpr``, ``auc``, and ``any_auc``
        of rows that were drawn or not; ``bins``; ``small``: bins of fewer than 20 rows;
        ``ones``: of one; ``redrawn``: share of removals that redraw a centroid;
        ``moved``: that change a bin; ``train_ms``; ``party_ms``, ``server_ms``: of a
        removal.
    """
    data = candidates.data
    own = Numerics(
        data,
        option.get("method", "MUFC"),
        seed,
        gamma=option.get("gamma", 1) / math.sqrt(data.n),
        local_clusters=option.get("local_clusters", 1) * data.k,
        min_rows=option.get("min_rows", 1),
    )
    train = sum(own.train())
    induced, nearest = (cost / data.best for cost in own.loss())
    rng = np.random.default_rng(seed)
    drawn = [X[rows] for X, rows in zip(data.rows, own.drawn, strict=True)]
    members = rng.permutation(np.concatenate(drawn))[:MEMBERS]
    bins, q = own.summed()
    near = distances_to_bins(members, bins, own.quantizer)
    far = distances_to_bins(candidates.others, bins, own.quantizer)
    tpr, auc = success(near, far)
    rows = np.concatenate(data.rows)
    some = rows[rng.permutation(len(rows))[: len(far)]]
    _, any_auc = success(distances_to_bins(some, bins, own.quantizer), far)
    redrawn = sum(map(len, own.drawn)) / data.n
    owner = np.repeat(np.arange(len(data.rows)), [len(X) for X in data.rows])
    row = np.concatenate([np.arange(len(X)) for X in data.rows])
    removed, before = [], bins
    for place in rng.permutation(data.n)[:requests]:
        seconds, _, _ = own.remove(int(owner[place]), row[[place]], server=False)
        after, _ = own.summed()
        removed.append((seconds, not np.array_equal(before, after)))
        before = after
    party, moved = np.mean(removed, axis=0).tolist()
    server = own.cluster()
    return {
        "induced": induced,
        "nearest": nearest,
        "members": float((near <= 0.5 + 1e-9).mean()),
        "others": float((far <= 0.5).mean()),
        "tpr": tpr,
        "auc": auc,
        "any_auc": any_auc,
        "bins": float(len(bins)),
        "small": float((q < SMALL).sum()),
        "ones": float((q == 1).sum()),
        "redrawn": redrawn,
        "moved": moved,
        "train_ms": 1e3 * train,
        "party_ms": 1e3 * party,
        "server_ms": 1e3 * server,
    }


def privacy(candidates: Candidates, seeds: int, requests: int) -> dict[str, Any]:
    """Measure all options on one data set; the means over the seeds."""
    data = candidates.data
    measured = {}
    for name, option in OPTIONS.items():
        runs = [measure(candidates, option, seed, requests) for seed in range(seeds)]
        measured[name] = {key: _mean([run[key] for run in runs]) for key in runs[0]}
        tell(data.name, name, {k: round(v, 4) for k, v in measured[name].items()})
    sizes = {"n": data.n, "d": data.d, "K": data.k, "parties": len(data.rows)}
    sizes["others"] = len(candidates.others)
    return {"name": data.name, "sizes": sizes, "options": measured}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def privacy_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a short table of the forms to choose from, and one for each data set."""
    yield "## Membership"
    yield table(
        {
            "data": entry["name"],
            "form": FORMS[name],
            "loss ratio": f"{one['induced']:.2f}",
            "drawn rows in bins": f"{100 * one['members']:.0f} %",
            "other rows in bins": f"{100 * one['others']:.1f} %",
            "small bins": f"{one['small']:.0f} of {one['bins']:.0f}",
            "removals that change bins": f"{100 * one['moved']:.0f} %",
            "removal: party ms": f"{one['party_ms']:.1f}",
            "server ms": f"{one['server_ms']:.0f}",
        }
        for entry in measured
        for name, one in entry["options"].items()
        if name in FORMS
    )
    for entry in measured:
        sizes = ", ".join(f"{key} = {value:,}" for key, value in entry["sizes"].items())
        yield f"### {entry['name']}"
        yield f"{sizes}."
        yield table(
            {
                "party": name,
                "induced": f"{one['induced']:.3f}",
                "nearest": f"{one['nearest']:.3f}",
                "members in bins": f"{100 * one['members']:.0f} %",
                "others in bins": f"{100 * one['others']:.2f} %",
                "found": f"{100 * one['tpr']:.0f} %",
                "AUC": f"{one['auc']:.2f}",
                "AUC of any": f"{one['any_auc']:.2f}",
                "bins": f"{one['bins']:.0f}",
                "below 20": f"{one['small']:.1f}",
                "of 1": f"{one['ones']:.1f}",
                "redrawn": f"{100 * one['redrawn']:.1f} %",
                "bins change": f"{100 * one['moved']:.0f} %",
                "party ms": f"{one['party_ms']:.2f}",
                "server ms": f"{one['server_ms']:.0f}",
                "of training": f"{_share(one):.2f}",
            }
            for name, one in entry["options"].items()
        )


def _share(one: Mapping[str, float]) -> float:
    return (one["party_ms"] + one["server_ms"]) / one["train_ms"]


# --- The command --------------------------------------------------------------------

app = new_app()


@app.command()
def main(
    context: typer.Context,
    datasets: Annotated[
        list[str] | None, some_of(DATASETS, "Data sets; by default all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each option.")] = 3,
    requests: Annotated[int, typer.Option(min=1, help="Removals of each seed.")] = 50,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure loss, membership attack and cost of removals for a party's options."""
    results = Results(context, "mufc_privacy")
    names = datasets or list(DATASETS)
    measured: list[dict[str, Any]] = []
    page = ""
    for name in names:
        with results.skipping(name, names):
            measured.append(privacy(DATASETS[name](data_dir), seeds, requests))
        page = results.write(measured, privacy_page(measured))
    tell(page)
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.mufc_privacy")
