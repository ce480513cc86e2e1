"""Models of ``SecureRidge`` from the pooled columns of all parties.

Their sums of products are computed from float32 numbers in one place instead of shares.
All choices and columns are made by the functions of the strategy and of its steps, so a
test error equals the error of a run, in a fraction of its time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulations.baselines import Fitted, is_binary
from vfl_flower import Party
from vfl_flower.clients.ridge import solving, state, training
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.ridge.features import cumulants
from vfl_flower.numerics.ridge.fit import GramFit, fit_gram, probabilities
from vfl_flower.numerics.ridge.local_columns import local_columns, scaled_columns
from vfl_flower.numerics.ridge.relevance import relevance_of
from vfl_flower.strategies.ridge import training as server
from vfl_flower.strategies.ridge.training import SecureRidge
from vfl_flower.typing import Array


@dataclass(frozen=True)
class Pooled:
    """A model of ``SecureRidge`` from pooled columns.

    All choices and columns are made by the functions of the strategy and of its steps;
    only sums of products are computed from float32 numbers in one place, instead of
    shares.
    """

    parties: list[Party]
    fitted: list[state.OwnColumns]
    states: list[state.RidgeState]
    joint: state.Joint
    multiple: int
    fit: GramFit
    shift: float
    scale: float

    def __call__(self, X: Array) -> Array:
        """Return the scores of rows, shape (rows,)."""
        blocks = np.split(X, np.cumsum([f.X.shape[1] for f in self.fitted])[:-1], 1)
        scores = []
        for rows in np.array_split(np.arange(len(X)), -(-len(X) // 4096)):
            parts = [
                replace(f, X=b[rows]) for f, b in zip(self.fitted, blocks, strict=True)
            ]
            F = columns(self.parties, parts, self.states, self.joint, self.multiple)
            scores.append((F @ self.fit.weights + self.fit.intercept)[:, 0])
        return self.scale * np.concatenate(scores) + self.shift


def columns(
    parties: list[Party],
    fitted: list[state.OwnColumns],
    states: list[state.RidgeState],
    joint: state.Joint,
    multiple: int,
) -> Array:
    """Return all features of the rows of `fitted`: local, and joint per bandwidth."""
    parts = [local_columns(f.local, f.X) for f in fitted]
    each = [
        state.angles_of(p, s, joint, f, slice(None))
        for p, f, s in zip(parties, fitted, states, strict=True)
    ]
    angles = np.sum(each, axis=0, dtype=each[0].dtype)
    angles = angles * angles.dtype.type(multiple)
    turned = angles * np.float32(2 * np.pi * 2.0**-joint.bits)
    for part in np.split(turned, np.cumsum(joint.counts)[:-1], axis=1):
        parts += [np.cos(part), np.sin(part)]
    return np.hstack(parts, dtype=np.float32)


def pooled(parties: list[Party], y: Array, strategy: SecureRidge, seed: int) -> Pooled:
    """Train a model of two classes, -1 and +1, or of numbers."""
    for j, member in enumerate(parties):
        member.index, member.n_parties, member.seed = j, len(parties), seed
    d = sum(member.X.shape[1] for member in parties)
    task = strategy._task(len(y), len(parties), d)
    rows = state.training_rows(parties[0], task)
    fitted = [state.own_columns(member, task) for member in parties]
    states = [state.RidgeState(task) for _ in parties]
    sizes = [size for f in fitted for size in f.local.sizes]

    def scaled(relevant: bool) -> Array:
        parts = zip(parties, fitted, states, strict=True)
        of_party = [
            cumulants(
                scaled_columns(f.local, f.X) * (s.relevance if relevant else 1.0),
                task.kernel,
                member.rng("pairs"),
            )
            for member, f, s in parts
        ]
        return np.asarray(np.sum(of_party, axis=0))

    joint = strategy._joint(task, d, scaled(False), sum(sizes) + 2)
    assert joint is not None
    real = task.target == "continuous"
    shift, scale = (y[rows].mean(), y[rows].std()) if real else (0.0, 1.0)
    target = (y[rows] - shift) / scale
    muted = training.muted_columns(fitted[-1], target[:, None])
    fitted[-1] = replace(fitted[-1], local=replace(fitted[-1].local, muted=muted))

    def turn(joint: state.Joint, multiple: int) -> tuple[Array, GramFit]:
        M = sum(sizes) + 2 * joint.angles
        gram = np.zeros((M + 2, M + 2))
        for part in np.array_split(np.arange(len(rows)), -(-len(rows) // 4096)):
            of_part = [replace(f, X=f.X[part]) for f in fitted]
            F = columns(parties, of_part, states, joint, multiple)
            F = np.column_stack([F, target[part], np.ones(len(part))])
            F = F.astype(np.float32)
            gram += F.T @ F
        of_all = [*sizes, *(2 * c for c in joint.counts)]
        return gram, fit_gram(gram, of_all, "continuous" if real else "classes")

    multiple = 1
    if strategy._scales:
        pilot = server._pilot(joint)
        gram, solved = turn(pilot, 1)
        holder = parties[-1]
        B = solving.drawn_probes(gram, solved, pilot, holder.rng("probes"))
        for member, f, own in zip(parties, fitted, states, strict=True):
            omega = state.frequencies_of(member, own, pilot, f.X.shape[1])
            own.relevance = np.sqrt(relevance_of(omega.T @ B))
        joint = server._relevant(joint)
        multiple = server._multiple(task.kernel, scaled(True))
    _, fit = turn(joint, multiple)
    return Pooled(parties, fitted, states, joint, multiple, fit, shift, scale)


def secure_ridge(
    X: Array,
    y: Array,
    parties: int,
    seed: int,
    *,
    features: int = 0,
    relevance: bool = True,
) -> Fitted:
    """Fit as ``SecureRidge`` does if the last party has the labels."""
    blocks = np.array_split(X, parties, axis=1)
    members = [
        Party(block, y if j == parties - 1 else None, name=f"p{j}")
        for j, block in enumerate(blocks)
    ]
    target: Target = "binary" if is_binary(y) else "continuous"
    strategy = SecureRidge(target=target, joint_features=features, relevance=relevance)
    model = pooled(members, y, strategy, seed)
    settings = {
        "rows": model.states[0].task.rows,
        "columns": len(model.fit.weights),
        "cv_score": float(model.fit.error[0] / model.fit.variance[0]),
    }

    def score(new: Array) -> tuple[Array, Array | None]:
        f = model(new)
        if target == "continuous":
            return f, None
        fit = model.fit
        assert fit.slope is not None
        assert fit.offset is not None
        return f, probabilities(f[:, None], fit.slope, fit.offset, fit.tail)[:, 0]

    return score, settings
