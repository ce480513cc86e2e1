"""A party's side of the linear solvers whose rows never leave it.

Party j holds A_j = V X_j on the rows of the coreset, V = diag(sqrt(w / n)); the label
holder has a column of ones as its last and t = V y / s with s such that ``|t| = 1``.
With an intercept X_j is taken about its weighted mean, so that no party's columns
resemble the ones; the means come back in the intercept, as a sum over parties.
The server knows the residuals r = t - sum_j A_j theta_j and sends them to all;
coefficients stay with their party until :func:`coefficients` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vfl_flower.clients.base import Party, step
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.linear import Penalty, proximal_block, soft_threshold, whiten
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
        self.free = None  # column of the intercept
        extra: tuple[float, ...] = ()
        if party.y is not None and state["intercept"]:
            self.free, extra = party.X.shape[1], (1.0,)
        self.rows = state["rows"] if "rows" in state else _training_rows(party)
        self.blocks = RowBlocks(party.X, *extra, rows=self.rows)
        m, d = self.shape = self.blocks.shape
        self.root = state.get("root", np.full(m, 1 / np.sqrt(state["n"])))
        self.mean = state.get("mean", np.zeros(d))
        self.l2 = np.full(d, state["l2"])
        if self.free is not None:
            self.l2[self.free] = 0.0

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        """Yield slices of 0 .. m - 1 and the rows of A_j in them."""
        start = 0
        for block in self.blocks:
            part = slice(start, start + len(block))
            yield part, self.root[part, None] * (block - self.mean)
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
        rows = self.blocks.take(positions) - self.mean
        return np.asarray(self.root[positions, None] * rows)


def _training_rows(party: Party) -> Array | None:
    return split_rows(party.n_rows, party.state["test_fraction"], party.seed)[0]


def _labels(party: Party, block: Block) -> Array:
    """Return t at the label holder and zeros elsewhere, shape (m,)."""
    if party.y is None:
        return np.zeros(block.shape[0])
    y = party.y if block.rows is None else party.y[block.rows]
    return np.asarray(block.root * y / party.state.get("scale", 1.0))


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
        "intercept": intercept,
        "test_fraction": test_fraction,
    }
    if rows is not None and weights is not None:
        party.state |= {"rows": rows, "root": np.sqrt(weights / n)}
    block = Block(party)
    if intercept:
        mean = block.dot_transposed(block.root) / (block.root @ block.root)
        if block.free is not None:
            mean[block.free] = 0.0
        party.state["mean"] = mean
        block = Block(party)
    m, d = block.shape
    reply: dict[str, Array | Scalar] = {"norms": np.zeros(0)}
    if party.y is not None:
        scale = float(np.linalg.norm(_labels(party, block))) or 1.0
        party.state["scale"] = reply["scale"] = scale
    residual, gram = _labels(party, block), block.gram()
    if method == "cg":
        F = whiten(gram, block.l2)
        # The label holder starts from its own solution, so that the server's first
        # residual is not the labels themselves; all others start from zero.
        phi = F.T @ block.dot_transposed(residual)
        residual = residual - block.dot(F @ phi) if party.y is not None else residual
        party.state |= {"F": F, "phi": phi, "p": np.zeros(len(phi))}
    elif method == "proximal":
        F = whiten(gram, np.zeros(d))
        party.state |= {"F": F, "R": F.T @ gram, "x": np.zeros(d), "v": np.zeros(d)}
    else:
        D = np.sqrt(np.diag(gram) + block.l2)
        D[D == 0] = 1.0
        norms = [((rows / D) ** 2).sum(axis=1) for _, rows in block]
        reply["norms"] = np.concatenate(norms) + (block.l2 / D**2).max() / m
        party.state |= {"D": D, "x": np.zeros(d), "average": np.zeros(d)}
    return reply | {"residual": residual}


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
    s = F.T @ (block.dot_transposed(residual) - block.l2 * (F @ phi))
    Fs, Fp = F @ s, F @ p
    party.state |= {"phi": phi, "p": p, "s": s}
    energies = [s @ s, Fs @ (block.l2 * Fs), Fs @ (block.l2 * Fp)]
    return {"direction": block.dot(Fs), "energies": np.array(energies)}


@step("linear_proximal", sums=("residual", "energies"))
def proximal(party: Party, residual: Array, l1: float, momentum: float) -> Values:
    """Take one accelerated proximal step in the metric of the party's own block.

    The step is exact in the block and majorises across blocks, so its speed depends on
    how much the columns of different parties overlap, not on the scale of the columns.
    """
    assert party.n_parties is not None
    state, block = party.state, Block(party)
    F, R, x, v = state["F"], state["R"], state["x"], state["v"]
    target = R @ v + F.T @ block.dot_transposed(residual) / party.n_parties
    penalty = Penalty(l1, state["l2"])
    new = proximal_block(R, target, party.n_parties, penalty, block.free)
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

    Columns are scaled by D to ``|A_j e_l| = 1``. The gradient of row i is
    2 m r_i a_i; the server keeps the table of r_i and sends their changes.
    """
    state, block = party.state, Block(party)
    m, _ = block.shape
    x, D = state["x"], state["D"]
    if len(change):
        gradient = change @ (block.take(state["batch"]) / D)
        mean = 2 * m / len(change) * gradient + state["average"]
        x = x - step_size * (mean + 2 * block.l2 / D**2 * x)
        threshold = np.where(np.arange(len(x)) == block.free, 0.0, step_size * l1 / D)
        x = soft_threshold(x, threshold)
        party.state["average"] = state["average"] + 2 * gradient
    party.state |= {"x": x, "batch": batch}
    residual = block.take(batch) @ (x / D) - _labels(party, block)[batch]
    return {"residual": residual}


@step("linear_coefficients", sums=("shift",))
def coefficients(party: Party) -> Values:
    """Send the party's block of the solution, in units of the label scale s.

    The intercept at the columns' means, less the sum of ``mean_j theta_j`` over the
    parties, is the intercept at the origin.
    """
    state = party.state
    if "phi" in state:
        theta = state["F"] @ state["phi"]
    else:
        theta = state["x"] / state.get("D", 1.0)
    return {"coefficients": theta, "shift": np.array([Block(party).mean @ theta])}


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
