"""Membership that one training run of MUFC reveals, and the cost of hiding it.

A quarter of the rows of a set, at most 20,000, take no part. The attacker has the
server's view, the summed counts of bins, and candidate rows: up to 30 rows that the
parties drew as centroids, and the rows that took no part. The attacker ranks candidates
by their distance to the nearest bin with a count, and calls the first candidates
members. ``python -m simulations.mufc membership`` measures the attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simulations.experiments import table
from simulations.mufc_federation import Numerics, SplitRows
from vfl_flower.numerics.mufc import Quantizer
from vfl_flower.typing import Array

SMALL = 20
"""A bin of fewer rows is small."""

MEMBERS = 30
"""Maximum number of members among candidates: rows drawn as centroids."""

FALSE = 0.001
"""Share of the non-members that the attacker may take for members."""

OPTIONS: dict[str, dict[str, Any]] = {
    "init": {},
    "init, gamma x 4": {"gamma": 4},
    "init, gamma x 16": {"gamma": 16},
    "init, 20 rows": {"min_rows": 20},
    "full": {"method": "MUFC, complete"},
    "full, 5 rows": {"method": "MUFC, complete", "min_rows": 5},
    "full, 20 rows": {"method": "MUFC, complete", "min_rows": 20},
}
"""``client-training``, ``gamma`` as a multiple of 1 / sqrt(n), ``min-rows-per-bin``."""


def distances_to_bins(rows: Array, bins: Array, quantizer: Quantizer) -> Array:
    """Return the distance of rows, (m, d), from the nearest bin with a count.

    The distance, (m,), is the largest difference of a coordinate from the middle of the
    bin, in units of the bin's side: up to 0.5 inside a bin.
    """
    nearest = np.full(len(rows), np.inf)
    for middle in quantizer.centers(bins):
        np.minimum(nearest, np.abs(rows - middle).max(axis=1), out=nearest)
    return nearest / quantizer.gamma


def success(members: Array, others: Array, false: float = FALSE) -> tuple[float, float]:
    """Return the share of members found, and the AUC: how often a member is nearer.

    A smaller distance is evidence of a member; ties count by half.

    >>> success(np.array([0.1, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]), 0.25)
    (0.5, 0.6875)
    """
    ordered = np.sort(others)
    tpr = float((members < ordered[int(false * len(ordered))]).mean())
    below = np.searchsorted(ordered, members, "left")
    upto = np.searchsorted(ordered, members, "right")
    return tpr, float((1 - (below + upto) / (2 * len(ordered))).mean())


def attacked(
    data: SplitRows, option: Mapping[str, Any], seed: int, requests: int
) -> dict[str, float]:
    """Train, attack, and remove random rows one by one.

    ``members`` and ``others`` are the shares of these rows in a bin with a count,
    ``small`` counts bins of fewer than 20 rows, ``moved`` removals that change a bin;
    milliseconds are means per removal.
    """
    changed = dict(option)
    changed["gamma"] = changed.get("gamma", 1) / math.sqrt(data.n)
    numerics = Numerics(data, changed.pop("method", "MUFC"), seed, **changed)
    numerics.train()
    induced = numerics.loss()[0] / data.best
    rng = np.random.default_rng(seed)
    drawn = [X[rows] for X, rows in zip(data.rows, numerics.drawn, strict=True)]
    members = rng.permutation(np.concatenate(drawn))[:MEMBERS]
    bins, q = numerics.summed()
    assert data.others is not None
    near = distances_to_bins(members, bins, numerics.quantizer)
    far = distances_to_bins(data.others, bins, numerics.quantizer)
    tpr, auc = success(near, far)
    rng.permutation(data.n)  # so that removals are the same as for the measured figures
    places = [(m, [i]) for m, X in enumerate(data.rows) for i in range(len(X))]
    removed, before = [], bins
    for place in rng.permutation(data.n)[:requests]:
        m, row = places[place]
        seconds, _, _ = numerics.remove(m, np.array(row), server=False)
        after, _ = numerics.summed()
        removed.append((seconds, not np.array_equal(before, after)))
        before = after
    party, moved = np.mean(removed, axis=0).tolist()
    return {
        "induced": induced,
        "members": float((near <= 0.5 + 1e-9).mean()),
        "others": float((far <= 0.5).mean()),
        "tpr": tpr,
        "auc": auc,
        "bins": float(len(bins)),
        "small": float((q < SMALL).sum()),
        "moved": moved,
        "party_ms": 1e3 * party,
        "server_ms": 1e3 * numerics.cluster(),
    }


def membership(data: SplitRows, seeds: int, requests: int) -> dict[str, Any]:
    """Measure all options; return means over the seeds."""
    measured = {}
    for name, option in OPTIONS.items():
        runs = [attacked(data, option, seed, requests) for seed in range(seeds)]
        measured[name] = {
            key: float(np.mean([run[key] for run in runs])) for key in runs[0]
        }
    return {"name": data.name, "options": measured}


def membership_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of all options."""
    yield "## Membership"
    yield table(
        {
            "data": entry["name"],
            "party": name,
            "loss ratio": f"{one['induced']:.3f}",
            "members in bins": f"{100 * one['members']:.0f} %",
            "others in bins": f"{100 * one['others']:.2f} %",
            "found": f"{100 * one['tpr']:.0f} %",
            "AUC": f"{one['auc']:.2f}",
            "small bins": f"{one['small']:.0f} of {one['bins']:.0f}",
            "bins change": f"{100 * one['moved']:.0f} %",
            "party ms": f"{one['party_ms']:.2f}",
            "server ms": f"{one['server_ms']:.0f}",
        }
        for entry in measured
        for name, one in entry["options"].items()
    )
