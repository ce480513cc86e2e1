"""A party's side of the linear solvers whose rows never leave it.

Party j holds A_j = V X_j on the rows of the coreset, V = diag(sqrt(w / n)), and the
label holder t = V y / s with s such that ``|t| = 1``. With an intercept X_j and y are
taken about their weighted means, so that no column resembles the ones: the best
intercept is then 0, and that at the origin follows from the means, as a sum over
parties. The server knows the residuals r = t - sum_j A_j theta_j and sends them to all;
coefficients stay with their party until :func:`coefficients` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vfl_flower.clients.base import Party, step
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.linear import (
    Penalty,
    constant_noise,
    proximal_block,
    soft_threshold,
    whiten,
)
from vfl_flower.numerics.split import split_rows
from vfl_flower.typing import Array, Scalar, Values


class Block:
    """A_j of one party, read block by block.

    Parameters
    ----------
    party : Party
        With the rows, weights and settings of :func:`start` in its state.
    """

    def __init__(self, party: Party) -> None:
        state = party.state
        self.rows = state["rows"] if "rows" in state else _training_rows(party)
        self.blocks = RowBlocks(party.X, rows=self.rows)
        m, d = self.shape = self.blocks.shape
        self.root = state.get("root", np.full(m, 1 / np.sqrt(state["n"])))
        self.mean = state.get("mean", np.zeros(d))
        self.used = state.get("used", np.ones(d))  # 0: a constant column

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        """Yield slices of 0 .. m - 1 and the rows of A_j in them."""
        start = 0
        for block in self.blocks:
            part = slice(start, start + len(block))
            yield part, self.root[part, None] * (block - self.mean) * self.used
            start = part.stop

    def dot(self, theta: Array) -> Array:
        """Return A theta, shape (m,)."""
        return np.concatenate([block @ theta for _, block in self])

    def dot_transposed(self, residual: Array) -> Array:
        """Return A^T r, shape (d,)."""
        return sum((residual[part] @ block for part, block in self), np.zeros(1))

    def gram(self) -> Array:
        """Return A^T A, shape (d, d)."""
        return sum((block.T @ block for _, block in self), np.zeros((1, 1)))

    def take(self, positions: Array) -> Array:
        """Return some rows of A, shape (b, d)."""
        rows = (self.blocks.take(positions) - self.mean) * self.used
        return np.asarray(self.root[positions, None] * rows)

    def center(self) -> None:
        """Take the columns about their weighted mean; zero those that are constant.

        What rounding leaves of a constant column is not mistaken for a direction.
        """
        mass = self.root @ self.root
        self.mean = self.dot_transposed(self.root) / mass
        spread = np.sqrt(np.diag(self.gram()) / mass)
        noise = constant_noise(self.mean, self.shape[0])
        self.used = (spread > noise).astype(np.float64)


def _training_rows(party: Party) -> Array | None:
    return split_rows(party.n_rows, party.state["test_fraction"], party.seed)[0]


def _labels(party: Party, block: Block) -> Array:
    """Return t at the label holder and zeros elsewhere, shape (m,)."""
    if party.y is None:
        return np.zeros(block.shape[0])
    y = party.y if block.rows is None else party.y[block.rows]
    mean, scale = party.state.get("y_mean", 0.0), party.state.get("scale", 1.0)
    return np.asarray(block.root * (y - mean) / scale)


@step("linear_start", sums=("residual", "norms"))
def start(
    party: Party,
    method: str,
    n: int,
    l2: float,
    intercept: bool,
    test_fraction: float,
    rows: Array | None = None,
    weights: Array | None = None,
) -> Values:
    """Keep the rows and weights; send the first residual and, for SAGA, |a_i|^2.

    Without `rows` the coreset is all training rows, with weights 1.
    """
    party.state = {
        "n": n,
        "l2": l2,
        "test_fraction": test_fraction,
    }
    if rows is not None and weights is not None:
        party.state |= {"rows": rows, "root": np.sqrt(weights / n)}
    block = Block(party)
    if intercept:
        block.center()
        party.state |= {"mean": block.mean, "used": block.used}
    m, d = block.shape
    reply: dict[str, Array | Scalar] = {"norms": np.zeros(0)}
    if party.y is not None:
        if intercept:
            t = _labels(party, block)
            party.state["y_mean"] = float(block.root @ t / (block.root @ block.root))
        scale = float(np.linalg.norm(_labels(party, block))) or 1.0
        party.state["scale"] = reply["scale"] = scale
    residual, gram = _labels(party, block), block.gram()
    # The label holder starts from its own solution, so that the server's first residual
    # is not the labels themselves; all others start from zero.
    l2_own = l2 if method == "cg" else 0.0
    F = whiten(gram, np.full(d, l2_own))
    phi = F.T @ block.dot_transposed(residual)
    x = F @ phi
    if method == "cg":
        party.state |= {"F": F, "phi": phi, "p": np.zeros(len(phi))}
    elif method == "proximal":
        party.state |= {"F": F, "R": F.T @ gram, "x": x, "v": x}
    else:
        D = np.sqrt(np.diag(gram) + l2)
        D[D == 0] = 1.0
        norms = [((rows / D) ** 2).sum(axis=1) for _, rows in block]
        reply["norms"] = np.concatenate(norms) + l2 / (D**2).min() / m
        party.state |= {"D": D, "x": D * x, "average": np.zeros(d)}
    # SAGA learns its residuals batch by batch.
    first = np.zeros(0) if method == "saga" else residual - block.dot(x)
    return reply | {"residual": first}


@step("linear_cg", sums=("direction", "energies"))
def conjugate_gradient(
    party: Party, residual: Array, step_size: float, shrink: float
) -> Values:
    """Take the last step of conjugate gradients, then send the next direction.

    In the coordinates theta_j = F_j phi_j in which the party's own normal matrix is
    the identity: s_j = F_j^T (A_j^T r - l2 theta_j), and the server needs A_j F_j s_j,
    |s_j|^2 and the energy of the penalty.
    """
    state, block = party.state, Block(party)
    F, phi, p = state["F"], state["phi"], state["p"]
    if "s" in state:
        p = state["s"] + shrink * p
        phi = phi + step_size * p
    l2 = state["l2"]
    s = F.T @ (block.dot_transposed(residual) - l2 * (F @ phi))
    Fs, Fp = F @ s, F @ p
    party.state |= {"phi": phi, "p": p, "s": s}
    energies = [s @ s, l2 * Fs @ Fs, l2 * Fs @ Fp]
    return {"direction": block.dot(Fs), "energies": np.array(energies)}


@step("linear_proximal", sums=("residual", "energies"))
def proximal(party: Party, residual: Array, l1: float, momentum: float) -> Values:
    """Take one accelerated proximal step in the metric of the party's own block.

    The step is exact in the block and majorises across blocks, so its speed depends on
    how much the columns of different parties overlap, not on the scale of the columns.
    """
    state, block = party.state, Block(party)
    F, R, x, v = state["F"], state["R"], state["x"], state["v"]
    target = R @ v + F.T @ block.dot_transposed(residual) / party.n_parties
    penalty = Penalty(l1, state["l2"])
    new = proximal_block(R, target, party.n_parties, penalty)
    change = R @ (new - x)
    energies = [R @ (v - new) @ change, change @ change]
    v = new + momentum * (new - x)
    party.state |= {"x": new, "v": v}
    reply = _labels(party, block) - block.dot(v)
    return {"residual": reply, "energies": np.array(energies)}


@step("linear_saga", sums=("residual",))
def saga(
    party: Party, batch: Array, change: Array, step_size: float, l1: float
) -> Values:
    """Apply SAGA's step for the last batch, then predict the rows of the next.

    Columns are scaled by D, D_l^2 = |A_j e_l|^2 + l2. The gradient of row i is
    2 m r_i a_i; the server keeps the table of r_i and sends their changes.
    """
    state, block = party.state, Block(party)
    m, _ = block.shape
    x, D = state["x"], state["D"]
    if len(change):
        gradient = change @ (block.take(state["batch"]) / D)
        mean = 2 * m / len(change) * gradient + state["average"]
        x = x - step_size * (mean + 2 * state["l2"] / D**2 * x)
        x = soft_threshold(x, step_size * l1 / D)
        party.state["average"] = state["average"] + 2 * gradient
    party.state |= {"x": x, "batch": batch}
    residual = block.take(batch) @ (x / D) - _labels(party, block)[batch]
    return {"residual": residual}


@step("linear_coefficients", sums=("shift",))
def coefficients(party: Party) -> Values:
    """Send the party's block of the solution, in units of the label scale s.

    The intercept at the origin is the mean of y less the sum over parties of
    ``mean_j theta_j``.
    """
    state = party.state
    if "phi" in state:
        theta = state["F"] @ state["phi"]
    else:
        theta = state["x"] / state.get("D", 1.0)
    theta = theta * state.get("used", 1.0)
    shift = state.get("y_mean", 0.0) / state.get("scale", 1.0)
    shift -= state.get("mean", np.zeros(len(theta))) @ theta
    return {"coefficients": theta, "shift": np.array([shift])}


@step("linear_residuals", sums=("residual",))
def residuals(
    party: Party,
    coefficients: Array,
    intercept: float,
    test_fraction: float,
    test: bool,
    start: int,
    stop: int,
) -> Values:
    """Send X_j theta_j, less y at the label holder, for rows `start` to `stop`.

    Rows are counted among the test rows or the training rows.
    """
    train, held_out = split_rows(party.n_rows, test_fraction, party.seed)
    chosen = held_out if test else train
    rows = slice(start, stop) if chosen is None else chosen[start:stop]
    residual = np.asarray(party.X[rows] @ coefficients, dtype=np.float64)
    if party.y is not None:
        residual = residual + intercept - party.y[rows]
    return {"residual": residual}
