"""A small run for each variant of a strategy; together they request every step."""

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from federations import MODEL, by_columns, hand_out

from vfl_flower import Party, strategies
from vfl_flower.clients.mufc import training as mufc
from vfl_flower.party.parts import ModelPart, save_part
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.removal import Removal


class GivenUp(strategies.MUFC):
    """A training run at whose end all parties must give up the model.

    A failed run does not wait for this step; here a party's failure in it ends the run.
    """

    def protocol(self, parties, run):
        record = super().protocol(parties, run)
        parties.ask(mufc.abandon, model=f"{parties.session:016x}")
        return record


_two = {"allow_two_parties": True}
_regression = {"size": 12, "test_fraction": 0.25, "seed": 3, "solver": "central"} | _two
_enough = {"solver": "gram", "size": 80}
_lasso = {"regularizer": "lasso", "alpha": 0.2, "solver": "cg", "max_iter": 2}
_kernel = {"loss": "square", "target": "continuous", "regularization": 0.1, "seed": 3}
_kernel |= {"bandwidth": 2.0} | _two
_four = {"features": 4}
_shared = {"target": "continuous", "joint_features": 2, "seed": 3}
_clusters = {"n_clusters": 2, "size": 12, "n_init": 1, "seed": 3}
_embedded = {"n_clusters": 2, "n_components": 2, "n_features": 3, "iterations": 2}
_embedded |= {"threshold": 0.5, "subspace_tol": 0.0, "n_init": 1, "seed": 3}
_summed = _embedded | {"passes": 2} | _two
_embedded |= {"clustering": "coreset", "coreset_size": 5} | _two
_one_by_one = _embedded | {"eigensolver": "lanczos"}
_without = _one_by_one | {"iterations": 1, "cem": False, "masking": "plain"}
VARIANTS: dict[str, ProtocolStrategy] = {
    "fused": strategies.CoresetVRLR(**_regression, evaluate="full"),
    "paper": strategies.CoresetVRLR(**_regression, rounds="paper"),
    "uniform": strategies.CoresetVRLR(**_regression, sampling="uniform"),
    "cg": strategies.CoresetVRLR(**_regression | {"solver": "cg", "max_iter": 2}),
    "proximal": strategies.CoresetVRLR(**_regression | _lasso),
    "saga": strategies.CoresetVRLR(
        **_regression | {"solver": "saga", "batch_size": 6, "max_iter": 1}
    ),
    "gram": strategies.CoresetVRLR(**_regression | _enough, evaluate="full"),
    "gram dealer": strategies.CoresetVRLR(
        **_regression | _enough, sampling="uniform", dealer="airline"
    ),
    "k-means": strategies.CoresetVKMC(**_clusters, evaluate="full"),
    "k-means paper": strategies.CoresetVKMC(**_clusters, rounds="paper"),
    "distdim": strategies.CoresetVKMC(**_clusters, solver="distdim"),
    "fdskl": strategies.FDSKLDirect(
        **_kernel | _four | {"bandwidth": "median"}, block_bytes=96, test_fraction=0.25
    ),
    "fdskl ring": strategies.FDSKLDirect(
        **_kernel, **_four, topology="ring", block_bytes=96, test_fraction=0.25
    ),
    "fdskl paper": strategies.FDSKLDirect(
        **_kernel, **_four, angle_masking="paper", topology="tree"
    ),
    "ridge": strategies.SecureRidge(**_shared, test_fraction=0.25),
    "ridge dealer": strategies.SecureRidge(
        **_shared, test_fraction=0.25, dealer="airline"
    ),
    "fdskl steps": strategies.FDSKL(**_kernel, features=12),
    "fdskl holders": strategies.FDSKL(**_kernel, features=12),
    "k-means kept": strategies.CoresetVKMC(**_clusters),
    "blocks predict": strategies.CoresetPrediction(MODEL, **_two),
    "fdskl predict": strategies.FDSKLPrediction(MODEL, block_bytes=96, **_two),
    "ridge predict": strategies.RidgePrediction(MODEL, dealer="airline"),
    "fkk sums": strategies.FKKMeans(**_summed),
    "fkk chosen": strategies.FKKMeans(
        **_summed | {"n_clusters": 3, "n_components": 3}, choose_clusters=True
    ),
    "fkk rows": strategies.FKKMeans(**_embedded),
    "fkk lanczos": strategies.FKKMeans(**_one_by_one),
    "fkk without cem": strategies.FKKMeans(**_without),
    "fkk predict": strategies.FKKMeansPrediction(MODEL),
    "fkk evaluate": strategies.FKKMeansEvaluation(MODEL),
    "mufc": strategies.MUFC(2, 0.05, box="-9,9", n_init=1, seed=3),
    "mufc paper": strategies.MUFC.paper(
        n_clusters=2, gamma=0.05, box="-9,9", n_init=1, seed=3
    ),
    "mufc given up": GivenUp(2, 0.05, box="-9,9", n_init=1, seed=3),
    "align": strategies.Alignment("q4"),
    "align keyed": strategies.Alignment("q4", method="keyed"),
    "remove": Removal(MODEL),
}

LIKE = ("fused", "uniform", "k-means paper", "fdskl steps", "fkk sums", "fkk rows")
LIKE += ("mufc paper",)
"""Other variants of the same strategy request these steps and further steps."""


NAMES = "airline", "weather", "registry"
HOME = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


@cache
def parties(count: int = 2, n: int = 24, interaction: float = 0.0) -> list[Party]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=n)
    y += interaction * X[:, 0] * X[:, 5]
    return by_columns(X, y, count, names=NAMES[:count])


@cache
def row_parties(
    count: int = 2, n: int = 12, ends: tuple[int, ...] = (5, 9)
) -> list[Party]:
    X = np.hstack([party.X for party in parties(3)])[:n, :2]
    blocks = zip(parties(count), np.split(X, ends[: count - 1]), strict=True)
    return [Party(block, name=party.name) for party, block in blocks]


@cache
def holders(count: int = 2) -> list[Party]:
    y = parties(count)[-1].y
    return [Party(party.X, y, name=party.name) for party in parties(count)]


def on_disk(count: int = 2, labels: bool = True) -> list[Party]:
    """Return parties, each with a new, empty folder."""
    home, made = Path(tempfile.mkdtemp(dir=HOME.name)), []
    for party in parties(count):
        folder = home / str(party.name)
        folder.mkdir(mode=0o700)
        y = party.y if labels else None
        made.append(Party(party.X, y, name=party.name, state_dir=folder))
    return made


def parts(grid: InProcessGrid) -> list[dict[str, Any]]:
    return [memory.part for memory in grid.memories()]


@cache
def trained_parts(variant: str, count: int) -> list[dict[str, Any]]:
    grid = InProcessGrid(parties_of(variant, count))
    VARIANTS[variant].start(grid)
    return parts(grid)


def with_parts(variant: str, count: int = 2) -> list[Party]:
    """Return parties with their local models of another variant's model."""
    algorithm = VARIANTS[variant].steps[0].algorithm
    made = on_disk(count, labels=False)
    for party, part in zip(made, trained_parts(variant, count), strict=True):
        arrays = {k: v for k, v in part.items() if isinstance(v, np.ndarray)}
        settings = {k: v for k, v in part.items() if k not in arrays}
        settings["encoding"] = party.encoding
        save_part(party.state_dir, ModelPart(MODEL, algorithm, settings, arrays))
        if algorithm == "kernel_kmeans":  # of rows with two columns
            party.X = party.X[:, :2]
    return made


def with_blocks(count: int = 2) -> list[Party]:
    return hand_out(on_disk(count, labels=False), np.ones(6))


def differing_parties(count: int = 2) -> list[Party]:
    """Return parties that each lack some rows, with a shared key."""
    made = on_disk(count, labels=False)
    for j, party in enumerate(made):
        key = party.state_dir / "alignment.key"
        key.touch(mode=0o600)
        key.write_bytes(bytes(range(32)))
        rows = np.delete(np.arange(24), j)
        ids = np.array([f"flight-{row}" for row in rows])
        folder = party.state_dir
        made[j] = Party(party.X[rows], ids=ids, name=party.name, state_dir=folder)
    return made


# Without it, joint features would have weights that rounding decides.
_interacting = partial(parties, n=160, interaction=3.0)
_gram = partial(parties, n=160)
_many_rows = partial(row_parties, n=24, ends=(11, 19))
PARTIES: dict[str, Callable[[int], list[Party]]] = {
    "gram": _gram,
    "gram dealer": lambda count: _gram(3),  # the dealer is one
    "k-means kept": on_disk,
    "ridge": _interacting,
    "ridge dealer": lambda count: _interacting(3),
    "fdskl holders": holders,
    "blocks predict": with_blocks,
    "fdskl predict": partial(with_parts, "fdskl ring"),
    "ridge predict": lambda count: with_parts("ridge dealer", 3),
    "fkk sums": _many_rows,
    "fkk chosen": _many_rows,
    "fkk predict": partial(with_parts, "fkk sums"),
    "fkk evaluate": partial(with_parts, "fkk sums"),
    "align": differing_parties,
    "align keyed": differing_parties,
    "remove": partial(with_parts, "fdskl ring"),
}
"""Makers of a variant's parties, if these do not hold only columns or only rows."""


def parties_of(variant: str, count: int = 2) -> list[Party]:
    split_rows = variant.startswith(("fkk", "mufc"))
    return PARTIES.get(variant, row_parties if split_rows else parties)(count)
