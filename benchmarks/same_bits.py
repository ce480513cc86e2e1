"""Record the results of many small runs, and compare two records bit for bit.

    cd CHECKOUT && python benchmarks/same_bits.py record OUT.npz
    python benchmarks/same_bits.py compare OLD.npz NEW.npz
    .. record OUT.npz --only REGEX     some settings;  .. list     their names
    .. compare OLD NEW --ignore REGEX  leave out names of arrays on both sides

`record` uses the package in the current folder, never the editable install. `compare`
exits with 1 if bits differ, or if a setting failed or is on one side only; round trips,
units and bytes are shown and may differ.

Values that are random in each run even with a seed are not recorded: the id of the
model, and seconds. Keys and masks are random too, but cancel exactly. Rounding under
the shares of `SecureRidge` differs in each run, so no setting uses this strategy.
"""

from __future__ import annotations

import os
import sys

for _name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):  # before numpy: sums depend on it
    os.environ[f"{_name}_NUM_THREADS"] = "1"
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
sys.dont_write_bytecode = True  # leave checkouts as they are
sys.path.insert(0, os.getcwd())

import argparse
import inspect
import json
import logging
import platform
import re
import subprocess
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

import vfl_flower as vf
from vfl_flower import strategies

RANDOM = re.compile(r"arrays/((part_\d+\.)?model)")
"""Names of arrays that are random in each run."""

LEDGER = ("round_trips", "messages", "units", "bytes_up", "bytes_down")

DROPPED: set[str] = set()
"""Settings that classes of this checkout do not take."""


def made(name, **settings):
    """Return a strategy with the settings that its class takes."""
    cls = getattr(strategies, name)
    taken = inspect.signature(cls).parameters
    DROPPED.update(f"{name}.{key}" for key in settings.keys() - taken.keys())
    return cls(**{key: value for key, value in settings.items() if key in taken})


# -- recorded values -------------------------------------------------------------------


def plain(value):
    """Return an array that needs no pickle."""
    array = value.numpy() if hasattr(value, "numpy") else np.array(value)
    if array.dtype.hasobject:
        return np.array(repr(value))
    return np.ascontiguousarray(array).reshape(array.shape)


def shot(result, extras=None):
    """Return (arrays, ledger) of a result; `extras` are functions without arguments."""
    arrays = {f"arrays/{k}": plain(v) for k, v in result.model.arrays().items()}
    for t, metrics in result.train_metrics_clientapp.items():
        arrays |= {f"metrics/{t}/{k}": plain(v) for k, v in dict(metrics).items()}
    for name, compute in (extras or {}).items():
        try:
            arrays[f"extra/{name}"] = plain(compute())
        except Exception as error:  # a difference then, and not a failed setting
            arrays[f"extra/{name}"] = np.array(f"{type(error).__name__}: {error}")
    arrays = {k: v for k, v in arrays.items() if not RANDOM.fullmatch(k)}
    return arrays, {name: int(getattr(result.ledger, name)) for name in LEDGER}


def files(folder):
    """Return the files in the parties' state-dirs, and remove them."""
    text = []
    for path in sorted(Path(folder).rglob("predictions*.csv")):
        text.append(f"{path.relative_to(folder).parts[0]}\n{path.read_text()}")
        path.unlink()
    return np.array(sorted(text), dtype=str)


def listed(values, name):
    """Return extras: one for each array of a list."""
    return {f"{name}{j}": (lambda v=v: v) for j, v in enumerate(values)}


CASES = {}


def case(name):
    """Register a function that yields (suffix, shot) pairs, or returns one shot."""

    def register(function):
        assert name not in CASES, name
        CASES[name] = function
        return function

    return register


# -- regression on coresets ------------------------------------------------------------

SPLITS = {2: (3, 5), 3: (2, 3, 3), 5: (1, 2, 1, 3, 1)}


def cut(X, count):
    return np.split(X, np.cumsum(SPLITS[count])[:-1], axis=1)


def regression_rows(n=1100, seed=0, kind="plain"):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8)) @ (np.eye(8) + 0.3 * rng.normal(size=(8, 8)))
    X = X * [1, 10, 0.1, 1, 3, 1, 1, 0.5] + [0, 5, 0, -2, 0, 1, 0, 0]
    X[:20] *= 6  # rows that matter
    if kind == "dependent":
        X[:, 1], X[:, 4] = 2 * X[:, 0], 3.0
    if kind == "float32":
        X = X.astype(np.float32)
    y = X @ np.array([1.0, -0.2, 4, 0, 0.5, 0, 2, -1]) + 7 + rng.normal(size=n)
    return X, y.astype(X.dtype)


def vrlr(name, count=3, holder=-1, kind="plain", seed=11, **settings):
    given = {
        "size": 160,
        "regularizer": "none",
        "alpha": 0.0,
        "sampling": "coreset",
        "solver": "central",
        "rounds": "fused",
        "fit_intercept": True,
        "test_fraction": 0.2,
        "evaluate": "coreset",
        "check_size": 0,
        "masking": "ring",
    } | settings
    if given["solver"] != "central":
        given = {"max_iter": 60, "tol": 1e-8, "allow_two_parties": count == 2} | given
    if given["solver"] == "saga":
        given = given | {"max_iter": 6, "batch_size": 32} | settings
    if given["sampling"] == "full":
        del given["size"]

    @case(f"vrlr {name}")
    def run():
        X, y = regression_rows(kind=kind)
        blocks = cut(X, count)
        parties = [
            vf.Party(block, y=y if j == holder % count else None)
            for j, block in enumerate(blocks)
        ]
        strategy = made("CoresetVRLR", **given)
        result = vf.simulate(strategy, parties, seed=seed)
        new = cut(regression_rows(50, seed=1)[0], count)
        return shot(result, {"predict": lambda: result.model.predict(new)})


RIDGE = {"regularizer": "ridge", "alpha": 30.0}
LASSO = {"regularizer": "lasso", "alpha": 20.0}
NET = {"regularizer": "elasticnet", "alpha": 25.0, "l1_ratio": 2 / 3}

vrlr("central")
vrlr("central paper rounds", rounds="paper")
vrlr("central 2 parties", count=2, allow_two_parties=True)
vrlr("central 5 parties", count=5)
vrlr("central first party has labels", holder=0)
vrlr("central ridge", **RIDGE)
vrlr("central lasso", **LASSO)
vrlr("central elasticnet", **NET)
vrlr("central without intercept", fit_intercept=False)
vrlr("central uniform", sampling="uniform")
vrlr("central full", sampling="full")
vrlr("central full lasso", sampling="full", **LASSO)
vrlr("central check", check_size=90)
vrlr("central check paper rounds", check_size=90, rounds="paper", count=5)
vrlr("central evaluate full", evaluate="full")
vrlr("central no test", test_fraction=0.0, evaluate="full")
vrlr("central plain", masking="plain")
vrlr("central float32", kind="float32")
vrlr("central dependent columns", kind="dependent", **RIDGE)
vrlr("central another seed", seed=2**62 + 12345)
vrlr("cg", solver="cg")
vrlr("cg paper rounds evaluate full", solver="cg", rounds="paper", evaluate="full")
vrlr("cg 5 parties ridge", solver="cg", count=5, **RIDGE)
vrlr("cg 2 parties", solver="cg", count=2)
vrlr("cg without intercept", solver="cg", fit_intercept=False)
vrlr("cg uniform", solver="cg", sampling="uniform")
vrlr("cg full", solver="cg", sampling="full")
vrlr("cg stops early", solver="cg", max_iter=3)
vrlr("cg dependent columns", solver="cg", kind="dependent", **RIDGE)
vrlr("cg lasso", solver="cg", **LASSO)
vrlr("cg lasso full", solver="cg", sampling="full", **LASSO)
vrlr("cg elasticnet", solver="cg", **NET)
vrlr("cg elasticnet without intercept", solver="cg", fit_intercept=False, **NET)
vrlr("saga", solver="saga")
vrlr("saga one row ridge", solver="saga", size=60, batch_size=1, max_iter=2, **RIDGE)
vrlr("saga elasticnet 5 parties", solver="saga", count=5, **NET)
vrlr("saga uniform", solver="saga", sampling="uniform", evaluate="full")
vrlr("saga full lasso", solver="saga", sampling="full", max_iter=2, **LASSO)


# -- k-means on coresets ---------------------------------------------------------------


def cluster_rows(n=1000, d=8, seed=0):
    middles = 3 * np.random.default_rng(99).normal(size=(4, d))
    rng = np.random.default_rng(seed)
    return middles[rng.integers(4, size=n)] + rng.normal(size=(n, d))


def vkmc(name, count=3, seed=12, **settings):
    given = {
        "n_clusters": 4,
        "size": 120,
        "sampling": "coreset",
        "solver": "central",
        "rounds": "fused",
        "local_clustering": "lloyd",
        "approximation": 2.0,
        "n_init": 3,
        "evaluate": "coreset",
        "check_size": 0,
        "masking": "ring",
    } | settings
    if given["sampling"] == "full":
        del given["size"]

    @case(f"vkmc {name}")
    def run():
        parties = [vf.Party(block) for block in cut(cluster_rows(), count)]
        strategy = made("CoresetVKMC", **given)
        result = vf.simulate(strategy, parties, seed=seed)
        new = cut(cluster_rows(50, seed=1), count)
        return shot(result, {"predict": lambda: result.model.predict(new)})


vkmc("central")
vkmc("central paper rounds", rounds="paper")
vkmc("central 2 parties", count=2)
vkmc("central 5 parties more clusters", count=5, n_clusters=9)
vkmc("central uniform", sampling="uniform")
vkmc("central full", sampling="full")
vkmc("central seeding", local_clustering="seeding")
vkmc("central approximation", approximation=5.0)
vkmc("central evaluate full", evaluate="full")
vkmc("central check", check_size=80)
vkmc("central check paper rounds", check_size=80, rounds="paper")
vkmc("central plain", masking="plain")
vkmc("distdim", solver="distdim", evaluate="full")
vkmc(
    "distdim paper rounds seeding",
    solver="distdim",
    rounds="paper",
    local_clustering="seeding",
)
vkmc("distdim uniform", solver="distdim", sampling="uniform")
vkmc("distdim full", solver="distdim", sampling="full", evaluate="full")
vkmc("distdim full 5 parties", solver="distdim", sampling="full", count=5)


# -- kernel learning -------------------------------------------------------------------


def kernel_rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8))
    return X, X[:, 0] * X[:, 3] + X[:, 6] + 0.3 * rng.normal(size=n)


def kernel_parties(count=3, holders=(-1,), target="binary", folder=None, new=False):
    """Return parties; each label holder knows some of the labels."""
    X, real = kernel_rows(60, seed=5) if new else kernel_rows()
    y = {
        "continuous": 40 * real,
        "multiclass": 3.0 * np.digitize(real, [-1, 1]),
        "binary": np.where(real > 0, *((5.0, 2.0) if len(holders) == 1 else (1, -1))),
    }[target]
    holders = [j % count for j in holders]
    parties = []
    for j, block in enumerate(cut(X, count)):
        known = np.arange(len(X)) % len(holders) == (
            holders.index(j) if j in holders else -1
        )
        parties.append(
            vf.Party(
                block,
                y=np.where(known, y, np.nan) if j in holders and not new else None,
                name=f"party {j}",
                state_dir=None if folder is None else Path(folder) / str(j),
            )
        )
    return parties


def kernel_settings(count, target, settings):
    """Return the effective settings, with their defaults."""
    ds = settings.get("solver") == "doubly-stochastic"
    given = {
        "loss": "square" if target == "continuous" else "logistic",
        "kernel": "gaussian",
        "solver": "direct",
        "target": target,
        "bandwidth": "median",
        "regularization": "auto",
        "block_bytes": 16_000_000,
        "topology": "star",
        "test_fraction": 0.2,
        "allow_two_parties": count == 2,
        "angle_masking": "circle",
    }
    given |= (
        {"rows": 128, "features": 128} | ({} if "step" in settings else {"step": 0.5})
        if ds
        else {"budget": 64_000_000, "rows": 250, "features": 64}
    )
    if not {"masking", "angle_masking"} & settings.keys():
        given["bits"] = 16
    return given | settings


def kernel_class(settings):
    """Return the class of a solver, which once was a setting of FDSKL."""
    direct = settings["solver"] == "direct" and hasattr(strategies, "FDSKLDirect")
    return "FDSKLDirect" if direct else "FDSKL"


def fdskl(name, count=3, holders=(-1,), target="binary", seed=13, **settings):
    given = kernel_settings(count, target, settings)

    @case(f"fdskl {name}")
    def run():
        strategy = made(kernel_class(given), **given)
        result = vf.simulate(
            strategy, kernel_parties(count, holders, target), seed=seed
        )
        new = cut(kernel_rows(50, seed=1)[0], count)
        return shot(
            result,
            {
                "predict": lambda: result.model.predict(new),
                "scores": lambda: result.model.decision_function(new),
            },
        )


DS = {"solver": "doubly-stochastic"}
ONE = {"rows": 30, "features": 30}
PAPER = {"angle_masking": "paper", "topology": "ring"}

fdskl("direct")
fdskl("direct smooth hinge", loss="smooth_hinge")
fdskl("direct square", loss="square")
fdskl("direct laplacian", kernel="laplacian")
fdskl("direct laplacian square", kernel="laplacian", loss="square", bandwidth=6.0)
fdskl("direct bandwidth given", bandwidth=2.5, regularization=0.01)
fdskl("direct multiclass", target="multiclass")
fdskl("direct multiclass smooth hinge", target="multiclass", loss="smooth_hinge")
fdskl("direct continuous", target="continuous")
fdskl("direct bits 32", bits=32)
fdskl("direct 2 parties", count=2)
fdskl("direct 5 parties first has labels", count=5, holders=(0,))
fdskl("direct by budget", rows=0, features=0, budget=40_000)
fdskl("direct blocks", block_bytes=3000)
fdskl("direct no test", test_fraction=0.0)
fdskl("direct ring", topology="ring")
fdskl("direct ring blocks bits 32", topology="ring", block_bytes=20_000, bits=32)
fdskl("direct tree 5 parties", topology="tree", count=5)
fdskl("direct paper ring", **PAPER)
fdskl("direct paper tree 5 parties", angle_masking="paper", topology="tree", count=5)
fdskl("direct paper ring blocks", block_bytes=60_000, **PAPER)
fdskl("direct plain", masking="plain")
fdskl(
    "direct plain ring laplacian", masking="plain", topology="ring", kernel="laplacian"
)
fdskl("ds", **DS)
fdskl("ds one row", iterations=30, **ONE | DS)
fdskl("ds implicit", step="implicit", **DS)
fdskl("ds explicit", step="explicit", **DS)
fdskl("ds smooth hinge laplacian", loss="smooth_hinge", kernel="laplacian", **DS)
fdskl("ds multiclass", target="multiclass", regularization=0.001, **DS)
fdskl("ds continuous", target="continuous", **DS)
fdskl("ds blocks bits 32", block_bytes=20_000, bits=32, **DS)
fdskl("ds ring", topology="ring", **DS)
fdskl("ds tree 5 parties", topology="tree", count=5, **DS)
fdskl("ds paper ring", **DS, **PAPER)
fdskl("ds plain", masking="plain", **DS)
fdskl("ds 2 holders", holders=(0, 2), **DS)
fdskl("ds 2 holders blocks", holders=(0, 2), block_bytes=5000, **DS)
fdskl("ds 3 holders continuous", holders=(0, 1, 2), target="continuous", **DS)
fdskl("ds 2 holders of 5 ring", holders=(1, 3), count=5, topology="ring", **DS)
fdskl("ds 2 holders tree", holders=(0, 2), topology="tree", **DS)
fdskl(
    "ds 2 holders paper tree",
    holders=(0, 2),
    angle_masking="paper",
    topology="tree",
    **DS,
)
fdskl("ds 2 holders plain", holders=(0, 1), masking="plain", **DS)


def prediction(name, count=3, holders=(-1,), target="binary", then=(), **settings):
    """Train with state-dirs, then predict new rows in separate runs."""
    given = kernel_settings(count, target, {"solver": "direct", **settings})
    asked = {
        "solver": given["solver"],
        "block_bytes": 16_000_000,
        "topology": "star",
        "allow_two_parties": count == 2,
        **{key: given[key] for key in ("masking", "angle_masking") if key in given},
    }
    if "bits" in given:
        asked["bits"] = 16

    @case(f"fdskl prediction {name}")
    def run():
        with tempfile.TemporaryDirectory() as folder:
            strategy = made(kernel_class(given), **given)
            parties = kernel_parties(count, holders, target, folder)
            trained = vf.simulate(strategy, parties, seed=13)
            yield "train", shot(trained)
            for what, more in then:
                strategy = made(
                    "FDSKLPrediction", model_id=trained.model.id, **asked | more
                )
                parties = kernel_parties(count, holders, target, folder, new=True)
                # Prediction draws nothing, and takes no seed.
                result = vf.simulate(strategy, parties)
                yield what, shot(result, {"files": lambda: files(folder)})


prediction(
    "direct",
    then=[
        ("star", {}),
        ("bits 32", {"bits": 32}),
        ("blocks", {"block_bytes": 1500}),
        ("ring", {"topology": "ring"}),
        ("tree blocks", {"topology": "tree", "block_bytes": 3000}),
    ],
)
prediction("multiclass", target="multiclass", then=[("star", {})])
prediction("continuous 2 parties", count=2, target="continuous", then=[("star", {})])
prediction("paper", then=[("tree", {"topology": "tree"})], **PAPER)
prediction("plain", masking="plain", then=[("star", {})])
prediction(
    "ds 2 holders",
    holders=(0, 2),
    target="continuous",
    then=[
        ("star blocks", {"block_bytes": 4000}),
        ("ring", {"topology": "ring", "bits": 32}),
    ],
    **DS,
)


# -- kernel k-means --------------------------------------------------------------------

PARTY_ROWS = {1: (300,), 2: (140, 160), 3: (120, 100, 80), 4: (90, 60, 1, 149)}


def fkk(name, count=3, seed=14, maps=True, folder=False, scaled=False, **settings):
    given = {
        "n_clusters": 4,
        "n_components": 6,
        "n_features": 30,
        "iterations": 5,
        "kernel": "gaussian",
        "gamma": "auto",
        "threshold": "auto",
        "subspace_tol": 0.0,
        "n_init": 4,
        "masking": "ring",
        "eigensolver": "gram",
        "clustering": "coreset",
        "coreset_size": 120,
        "standardize": False,
        "cem": True,
        "allow_two_parties": count == 2,
    }
    if settings.get("clustering") == "sums":
        del given["coreset_size"]
        given["passes"] = 20
    given |= settings

    @case(f"fkkmeans {name}")
    def run():
        X, new = cluster_rows(300), cluster_rows(50, seed=1)
        if scaled:
            X = X * 10.0 ** np.arange(-3, 5) + [0, 1, 1e3, 0, -5, 0, 1e6, 0]
            X[:, 3] = 4.0  # constant: it takes no part
            new = X[::7]
        with tempfile.TemporaryDirectory() as state:
            blocks = np.split(X, np.cumsum(PARTY_ROWS[count])[:-1])
            parties = [
                vf.Party(
                    block,
                    name=f"user {j}",
                    state_dir=Path(state) / str(j) if folder else None,
                )
                for j, block in enumerate(blocks)
            ]
            strategy = made("FKKMeans", **given)
            result = vf.simulate(strategy, parties, seed=seed)
            extras = listed(result.model.labels_, "labels_")
            if maps:  # without cem: no map for new rows
                extras["predict"] = lambda: result.model.predict(new)
                extras["transform"] = lambda: result.model.transform(new)
            if folder:
                extras["files"] = lambda: files(state)
            return shot(result, extras)


LANCZOS = {"eigensolver": "lanczos"}
WITHOUT = {"cem": False, "masking": "plain", "maps": False, **LANCZOS}

fkk("gram")
fkk("gram 4 users state-dir", count=4, folder=True)
fkk("gram 2 users", count=2)
fkk("gram stops early", subspace_tol=1.0, iterations=20)
fkk("gram given gamma", gamma=0.02, coreset_size=30)
fkk("gram all rows in the coreset", coreset_size=1000)
fkk("sums", clustering="sums")
fkk("gram laplacian", kernel="laplacian")
fkk("gram laplacian standardize", kernel="laplacian", standardize=True)
fkk("gram standardize", standardize=True, scaled=True)
fkk("gram standardize given gamma", standardize=True, scaled=True, gamma=0.05)
fkk("gram threshold paper", threshold="paper")
fkk("gram threshold number", threshold=2.0)
fkk("gram plain one user", count=1, masking="plain")
fkk("lanczos", **LANCZOS)
fkk("lanczos threshold paper", threshold="paper", **LANCZOS)
fkk("without cem", iterations=3, **WITHOUT)
fkk("without cem threshold number", iterations=3, threshold=2.0, **WITHOUT)
fkk(
    "without cem one user laplacian",
    iterations=3,
    count=1,
    kernel="laplacian",
    **WITHOUT,
)


# -- clusters that can forget ----------------------------------------------------------

CLINICS = {"north": 90, "south": 60, "west": 45, "east": 30}
CENTROID = {"north": "north.17", "west": "west.20"}
"""A row of each clinic that is drawn with seed 15 and 4 or 7 local clusters."""
ORDINARY = {"north": "north.7", "south": "south.5", "west": "west.2"}
"""Rows that were not drawn."""


def clinics(folder, d=3, names=tuple(CLINICS)):
    rng = np.random.default_rng(0)
    middles = rng.uniform(-0.4, 0.4, size=(4, d))
    parties = []
    for name, n in CLINICS.items():
        X = middles[rng.integers(4, size=n)] + rng.uniform(-0.08, 0.08, size=(n, d))
        ids = np.array([f"{name}.{i}" for i in range(n)])
        state = None if folder is None else Path(folder) / name
        if name in names:
            parties.append(vf.Party(X, ids=ids, name=name, state_dir=state))
    return parties


def mufc_settings(settings):
    return {
        "n_clusters": 4,
        "gamma": 0.02,
        "server_points": "uniform",
        "client_training": "init",
        "min_rows_per_bin": 1,
        "privacy": "scma",
        "local_clusters": 0,
        "box": "-0.5,0.5",
        "field": "hash",
        "n_init": 3,
        "masking": "ring",
    } | settings


def mufc_shot(result, parties, folder=None):
    extras = listed(result.model.labels_ or [], "labels_")
    extras["predict"] = lambda: result.model.predict(parties[0].X[:50])
    if folder is not None:
        extras["files"] = lambda: files(folder)
    return shot(result, extras)


def mufc(name, d=3, seed=15, **settings):
    given = mufc_settings(settings)

    @case(f"mufc {name}")
    def run():
        parties = clinics(None, d)
        result = vf.simulate(made("MUFC", **given), parties, seed=seed)
        return mufc_shot(result, parties)


mufc("uniform")
mufc("weighted", server_points="weighted")
mufc("full training", client_training="full")
mufc("full training weighted", client_training="full", server_points="weighted")
mufc("full training merged", client_training="full", min_rows_per_bin=5)
mufc("merged", min_rows_per_bin=20)
mufc("none", privacy="none")
mufc("none full training", privacy="none", client_training="full")
mufc("field paper", field="paper", gamma=0.1)
mufc("gamma auto", gamma="auto")
mufc("fewer local clusters", local_clusters=2, n_clusters=5)
mufc("more local clusters", local_clusters=9, n_clusters=3, client_training="full")
mufc("box a column", box="-1,1;-0.5,2;-3,0.5")
mufc("wide box", box="-20,10")
mufc("many columns", d=40, local_clusters=6)
mufc("plain", masking="plain")


def chain(name, *, leave="apart", lazy=False, **settings):
    """Train, forget rows in several ways, forget a party, and ask for the status."""
    given = mufc_settings(settings)

    @case(f"mufc chain {name}")
    def run():
        with tempfile.TemporaryDirectory() as folder:
            home, server = Path(folder) / "clients", Path(folder) / "server"
            everyone = clinics(home)
            base = {"masking": given["masking"], "server_state": server}
            strategy = made("MUFC", server_state=server, **given)
            trained = vf.simulate(strategy, everyone, seed=15)
            model = trained.model.id
            yield "1 train", mufc_shot(trained, everyone, home)

            def later(cls, present, seed=None, **more):
                strategy = made(cls, model_id=model, **base, **more)
                result = vf.simulate(strategy, present, seed=seed)
                return mufc_shot(result, present, home)

            def unlearn(requests, seed):
                for party in everyone:
                    if party.name in requests:
                        text = "".join(f"{row}\n" for row in requests[party.name])
                        (party.state_dir / "forget.txt").write_text(text)
                return later("MUFCUnlearn", everyone, seed, lazy_counts=lazy)

            yield "2 ordinary row", unlearn({"north": [ORDINARY["north"]]}, 21)
            yield "3 centroid row", unlearn({"north": [CENTROID["north"]]}, 22)
            requests = {"west": [CENTROID["west"], ORDINARY["west"]]}
            requests |= {"south": [ORDINARY["south"]]}
            yield "4 two parties", unlearn(requests, 23)
            yield "5 nothing", unlearn({}, 24)
            # Nothing is drawn, and no seed is taken.
            yield "6 status", later("MUFCStatus", everyone)
            stay = [party for party in everyone if party.name != "south"]
            here = stay if leave == "apart" else everyone
            (everyone[1].state_dir / "leave.txt").write_text(f"{model}\n")
            yield (
                f"7 client leaves {leave}",
                later("MUFCForgetClient", here, 25, clients="south"),
            )
            yield "8 status", later("MUFCStatus", stay)


chain("uniform")
chain(
    "weighted full training",
    server_points="weighted",
    client_training="full",
    leave="connected",
)
chain("none", privacy="none")
chain("field paper lazy", field="paper", gamma=0.1, lazy=True, leave="connected")
chain("local clusters", local_clusters=7, n_clusters=3)
chain("plain", masking="plain", leave="connected")


# -- record and compare ----------------------------------------------------------------


def record(target, only):
    package = Path(vf.__file__).resolve().parent
    if package.parent != Path.cwd().resolve():
        sys.exit(f"vfl_flower is {package}: run it in a checkout")
    logging.disable(logging.CRITICAL)
    print(f"vfl_flower: {package}")
    arrays, names, ledgers, seconds, errors = [], {}, {}, {}, {}

    def keep(name, shot):
        assert name not in names, name
        values, ledgers[name] = shot
        names[name] = {k: f"a{len(arrays) + i}" for i, k in enumerate(values)}
        arrays.extend(values.values())

    begin = time.perf_counter()
    for name, function in CASES.items():
        if not re.search(only, name):
            continue
        start = time.perf_counter()
        try:
            if inspect.isgeneratorfunction(function):
                for suffix, shot in function():
                    keep(f"{name} > {suffix}", shot)
            else:
                keep(name, function())
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            print(f"FAILED {name}: {errors[name]}")
        seconds[name] = time.perf_counter() - start
    total = time.perf_counter() - begin
    git = subprocess.run(
        ["git", "-C", str(package.parent), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    about = {
        "package": str(package),
        "commit": git,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpu": cpu(),
        "seconds": round(total, 1),
        "dropped": sorted(DROPPED),
    }
    index = {"about": about, "names": names, "ledgers": ledgers, "errors": errors}
    stored = {f"a{i}": array for i, array in enumerate(arrays)}
    np.savez_compressed(target, index=np.array(json.dumps(index)), **stored)
    slow = sorted(seconds, key=seconds.get, reverse=True)[:5]
    print("slowest:", ", ".join(f"{name} {seconds[name]:.1f} s" for name in slow))
    if DROPPED:
        print("settings that the classes no longer take:", sorted(DROPPED))
    print(
        f"{len(names)} settings, {len(arrays)} arrays, {len(errors)} failed, "
        f"{total:.1f} s: {target}"
    )
    return 1 if errors or not names else 0


def cpu():
    try:
        text = Path("/proc/cpuinfo").read_text()
        return re.search(r"model name\s*:\s*(.*)", text)[1]
    except (OSError, TypeError):
        return platform.machine()


def load(path):
    with np.load(path, allow_pickle=False) as file:
        index = json.loads(str(file["index"]))
        index["arrays"] = {
            name: {k: file[place] for k, place in places.items()}
            for name, places in index["names"].items()
        }
    return index


def difference(a, b):
    """Return "" if two arrays have the same bits (NaN is NaN), or the difference."""
    if a.dtype != b.dtype and a.dtype.kind == b.dtype.kind == "U":
        a, b = (x.astype(max(a.dtype, b.dtype)) for x in (a, b))  # else only a length
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
    if a.tobytes() == b.tobytes():
        return ""
    if a.dtype.kind == "U":
        at = np.flatnonzero((a != b).ravel())[0]
        return f"{str(a.ravel()[at])[:60]!r} and {str(b.ravel()[at])[:60]!r}"
    bits = [np.frombuffer(x.tobytes(), f"V{x.itemsize}") for x in (a, b)]
    differs = (bits[0] != bits[1]).reshape(a.shape)
    if a.dtype.kind == "f":
        differs &= ~(np.isnan(a) & np.isnan(b))
    if not differs.any():
        return ""
    x, y = a[differs].astype(np.float64), b[differs].astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(x - y).max()
        share = (np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))).max()
    return (
        f"{differs.sum()} of {a.size} values, by {size:.3g} at most, relative "
        f"{share:.3g}; the first {x[0]!r} and {y[0]!r}"
    )


def shown(old, new, name, ratio=False):
    a, b = old[name], new[name]
    if a == b:
        return f"{a:,}"
    return f"{a:,} > {b:,}" + (f" x{b / a:.3f}" if ratio and a else "")


def compare(first, second, ignore):
    old, new = load(first), load(second)
    for which, index in (("old", old), ("new", new)):
        print(f"{which}: {index['about']}")
    for name in ("cpu", "numpy", "python"):
        if old["about"][name] != new["about"][name]:
            print(f"WARNING: another {name}: bits may differ for that alone")
    header = ["setting", "bits", *(name.replace("_", " ") for name in LEDGER)]
    rows, wrong, total, failed = [], [], dict.fromkeys(("old", "new"), None), 0
    sums = {which: dict.fromkeys(LEDGER, 0) for which in total}
    for name in dict.fromkeys([*old["names"], *new["names"]]):
        sides = [index["arrays"].get(name) for index in (old, new)]
        if None in sides:
            failed += 1
            missing = "old" if sides[0] is None else "new"
            rows.append([name, f"NOT IN {missing.upper()}", *[""] * len(LEDGER)])
            continue
        a, b = (
            {k: v for k, v in side.items() if not (ignore and re.search(ignore, k))}
            for side in sides
        )
        lines = [f"{k}: only in old" for k in a if k not in b]
        lines += [f"{k}: only in new" for k in b if k not in a]
        lines += [f"{k}: {d}" for k in a if k in b and (d := difference(a[k], b[k]))]
        ledgers = old["ledgers"][name], new["ledgers"][name]
        for which, ledger in zip(sums, ledgers, strict=True):
            for key in LEDGER:
                sums[which][key] += ledger[key]
        cells = [shown(*ledgers, key, key.startswith("bytes")) for key in LEDGER]
        rows.append([name, "DIFFER" if lines else "equal", *cells])
        if lines:
            failed += 1
            wrong += [f"{name}:", *(f"    {line}" for line in lines[:12])]
            wrong += [f"    and {len(lines) - 12} more"] if len(lines) > 12 else []
    cells = [shown(sums["old"], sums["new"], k, k.startswith("bytes")) for k in LEDGER]
    rows.append(["all in both", f"{failed} not", *cells])
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
    if wrong:
        print("\n" + "\n".join(wrong))
    errors = 0
    for which, index in (("old", old), ("new", new)):
        for name, text in index["errors"].items():
            errors += 1
            print(f"FAILED in {which}: {name}: {text}")
        if index["about"]["dropped"]:
            print(f"{which}: settings not taken: {index['about']['dropped']}")
    print(f"\n{len(rows) - 1} settings, {failed} not equal, {errors} failed to run")
    return 1 if failed or errors or len(rows) == 1 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("list")
    task = tasks.add_parser("record")
    task.add_argument("out")
    task.add_argument("--only", default="")
    task = tasks.add_parser("compare")
    task.add_argument("old")
    task.add_argument("new")
    task.add_argument("--ignore", default="")
    given = parser.parse_args()
    if given.task == "record":
        return record(given.out, given.only)
    if given.task == "compare":
        return compare(given.old, given.new, given.ignore)
    print("\n".join(CASES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
