"""A small run for each way that a strategy has: together they ask for every step."""

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from federations import MODEL, by_columns, hand_out

from vfl_flower import Party
from vfl_flower.clients.mufc import training as mufc
from vfl_flower.party.parts import ModelPart, save_part
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies import (
    FDSKL,
    MUFC,
    Alignment,
    CoresetPrediction,
    CoresetVKMC,
    CoresetVRLR,
    FDSKLDirect,
    FDSKLPrediction,
    FKKMeans,
    FKKMeansEvaluation,
    FKKMeansPrediction,
    RidgePrediction,
    SecureRidge,
)
from vfl_flower.strategies.removal import Removal


class GivenUp(MUFC):
    """A training whose model all parties are told to give up at its end.

    That of a failed run is not waited for: here a party that fails in it ends the run.
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
    "fused": CoresetVRLR(**_regression, evaluate="full"),
    "paper": CoresetVRLR(**_regression, rounds="paper"),
    "uniform": CoresetVRLR(**_regression, sampling="uniform"),
    "cg": CoresetVRLR(**_regression | {"solver": "cg", "max_iter": 2}),
    "proximal": CoresetVRLR(**_regression | _lasso),
    "saga": CoresetVRLR(
        **_regression | {"solver": "saga", "batch_size": 6, "max_iter": 1}
    ),
    "gram": CoresetVRLR(**_regression | _enough, evaluate="full"),
    "gram dealer": CoresetVRLR(
        **_regression | _enough, sampling="uniform", dealer="airline"
    ),
    "k-means": CoresetVKMC(**_clusters, evaluate="full"),
    "k-means paper": CoresetVKMC(**_clusters, rounds="paper"),
    "distdim": CoresetVKMC(**_clusters, solver="distdim"),
    "fdskl": FDSKLDirect(
        **_kernel | _four | {"bandwidth": "median"}, block_bytes=96, test_fraction=0.25
    ),
    "fdskl ring": FDSKLDirect(
        **_kernel, **_four, topology="ring", block_bytes=96, test_fraction=0.25
    ),
    "fdskl paper": FDSKLDirect(
        **_kernel, **_four, angle_masking="paper", topology="tree"
    ),
    "ridge": SecureRidge(**_shared, test_fraction=0.25),
    "ridge dealer": SecureRidge(**_shared, test_fraction=0.25, dealer="airline"),
    "fdskl steps": FDSKL(**_kernel, features=12),
    "fdskl holders": FDSKL(**_kernel, features=12),
    "k-means kept": CoresetVKMC(**_clusters),
    "blocks predict": CoresetPrediction(MODEL, **_two),
    "fdskl predict": FDSKLPrediction(MODEL, block_bytes=96, **_two),
    "ridge predict": RidgePrediction(MODEL, dealer="airline"),
    "fkk sums": FKKMeans(**_summed),
    "fkk chosen": FKKMeans(
        **_summed | {"n_clusters": 3, "n_components": 3}, choose_clusters=True
    ),
    "fkk rows": FKKMeans(**_embedded),
    "fkk lanczos": FKKMeans(**_one_by_one),
    "fkk without cem": FKKMeans(**_without),
    "fkk predict": FKKMeansPrediction(MODEL),
    "fkk evaluate": FKKMeansEvaluation(MODEL),
    "mufc": MUFC(2, 0.05, box="-9,9", n_init=1, seed=3),
    "mufc paper": MUFC.paper(n_clusters=2, gamma=0.05, box="-9,9", n_init=1, seed=3),
    "mufc given up": GivenUp(2, 0.05, box="-9,9", n_init=1, seed=3),
    "align": Alignment("q4"),
    "align keyed": Alignment("q4", method="keyed"),
    "remove": Removal(MODEL),
}


NAMES = "airline", "weather", "registry"


@cache
def parties(count: int = 2) -> list[Party]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(24, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=24)
    return by_columns(X, y, count, names=NAMES[:count])


def parts(grid: InProcessGrid) -> list[dict[str, Any]]:
    return [memory.part for memory in grid.memories()]


FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Folders of parties that keep their parts of a model."""


@cache
def trained_parts(variant: str, count: int) -> list[dict[str, Any]]:
    grid = InProcessGrid(parties_of(variant, count))
    VARIANTS[variant].start(grid)
    return parts(grid)


def with_parts(folder: Path, count: int, variant: str = "fdskl ring") -> list[Party]:
    made = []
    trained = trained_parts(variant, count)
    algorithm = VARIANTS[variant].steps[0].algorithm
    columns = 2 if algorithm == "kernel_kmeans" else None
    for party, part in zip(parties(count), trained, strict=True):
        state_dir = folder / str(party.name)
        arrays = {k: v for k, v in part.items() if isinstance(v, np.ndarray)}
        settings = {k: v for k, v in part.items() if k not in arrays}
        settings["encoding"] = party.encoding
        save_part(state_dir, ModelPart(MODEL, algorithm, settings, arrays))
        made.append(Party(party.X[:, :columns], name=party.name, state_dir=state_dir))
    return made


@cache
def folder_of(function: str, count: int) -> Path:
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    FOLDERS.append(folder)
    return Path(folder.name)


def keeping_parties(count: int = 2) -> list[Party]:
    folder = Path(tempfile.mkdtemp(dir=folder_of("keeping_parties", count)))
    made = []
    for party in parties(count):
        state_dir = folder / str(party.name)
        state_dir.mkdir(mode=0o700)
        made.append(Party(party.X, party.y, name=party.name, state_dir=state_dir))
    return made


@cache
def parties_with_blocks(count: int = 2) -> list[Party]:
    folder = folder_of("parties_with_blocks", count)
    made = [
        Party(party.X, name=party.name, state_dir=folder / str(party.name))
        for party in parties(count)
    ]
    return hand_out(made, np.ones(6))


@cache
def new_parties(count: int = 2) -> list[Party]:
    return with_parts(folder_of("new_parties", count), count)


@cache
def new_row_parties(count: int = 2) -> list[Party]:
    return with_parts(folder_of("new_row_parties", count), count, "fkk sums")


@cache
def new_parties_of_sums() -> list[Party]:
    return with_parts(folder_of("sums", 3), 3, "ridge dealer")


def removing_parties(count: int = 2) -> list[Party]:
    """Return such parties whose parts, which runs remove, are written anew."""
    return with_parts(folder_of("removing_parties", count), count)


@cache
def holders(count: int = 2) -> list[Party]:
    y = parties(count)[-1].y
    return [Party(party.X, y, name=party.name) for party in parties(count)]


@cache
def gram_parties(count: int = 2, interaction: float = 0.0) -> list[Party]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(160, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=160)
    y += interaction * X[:, 0] * X[:, 5]
    return by_columns(X, y, count, names=NAMES[:count])


@cache
def row_parties(count: int = 2) -> list[Party]:
    X = np.hstack([party.X for party in parties(3)])[:12, :2]
    blocks = zip(parties(count), np.split(X, [5, 9][: count - 1]), strict=True)
    return [Party(block, name=party.name) for party, block in blocks]


@cache
def many_row_parties(count: int = 2) -> list[Party]:
    X = np.hstack([party.X for party in parties(3)])[:, :2]
    blocks = zip(parties(count), np.split(X, [11, 19][: count - 1]), strict=True)
    return [Party(block, name=party.name) for party, block in blocks]


@cache
def differing_parties(count: int = 2) -> list[Party]:
    """Return parties of which each lacks some rows, with a key that they share."""
    folder, made = folder_of("differing_parties", count), []
    for j, party in enumerate(parties(count)):
        state_dir = folder / str(party.name)
        state_dir.mkdir(mode=0o700)
        (state_dir / "alignment.key").touch(mode=0o600)
        (state_dir / "alignment.key").write_bytes(bytes(range(32)))
        rows = np.delete(np.arange(24), j)
        ids = np.array([f"flight-{row}" for row in rows])
        made.append(Party(party.X[rows], ids=ids, name=party.name, state_dir=state_dir))
    return made


def unaligned_parties(count: int = 2) -> list[Party]:
    """Return parties that keep no order, since none is ever replaced."""
    made = differing_parties(count)
    for party in made:
        for path in party.state_dir.glob("alignment-*.*"):
            path.unlink()
    return made


def parties_of(variant: str, count: int = 2) -> list[Party]:
    made = {"fdskl predict": new_parties, "fdskl holders": holders}
    made |= {"k-means kept": keeping_parties, "blocks predict": parties_with_blocks}
    made |= {"remove": removing_parties}
    made |= {"align": unaligned_parties, "align keyed": unaligned_parties}
    rows = [v for v in VARIANTS if v.startswith(("fkk", "mufc")) and v != "fkk columns"]
    made |= dict.fromkeys(rows, row_parties)
    made |= dict.fromkeys(("fkk sums", "fkk chosen"), many_row_parties)
    made |= dict.fromkeys(("fkk predict", "fkk evaluate"), new_row_parties)
    of_gram = [v for v in VARIANTS if v.startswith("gram")]
    made |= dict.fromkeys(of_gram, gram_parties)
    # Without it, joint features would have weights that rounding decides.
    interacting = partial(gram_parties, interaction=3.0)
    made["ridge"] = interacting
    made["ridge predict"] = lambda count: new_parties_of_sums()
    made["gram dealer"] = lambda count: gram_parties(3)  # who deals is one
    made["ridge dealer"] = lambda count: interacting(3)
    return made.get(variant, parties)(count)
