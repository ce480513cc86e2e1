"""A user's side of federated kernel k-means (Algorithm 1).

Between messages a user keeps B_t, shape (n_m, r) with r about the number of components,
for Lanczos a Gram matrix of D + r columns, and the map P from the features of all
iterations to the embedding: a few MB for ten thousand rows. A_t is drawn again from
the seed when it is needed again, since it would be larger. In the end its part of the
model is P, the centres, the seed of the features and the labels of its rows; it labels
new rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party, PartyError, step
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import ClusterSummary
from vfl_flower.numerics.distributed_kmeans import local_solution, sample
from vfl_flower.numerics.kernel_embedding import bandwidth, feature_blocks
from vfl_flower.numerics.kernel_kmeans import (
    compose,
    feature_range,
    moments,
    stack,
    step_size,
    variances,
)
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.random_features import RandomFeatures
from vfl_flower.secure_aggregation import split_limbs
from vfl_flower.typing import Array, Values

CACHE_BYTES = 2**26
"""Largest A_t that is kept for the next message of the same process."""

# -- the kernel -----------------------------------------------------------------------


@step("kernel_kmeans_begin", sums=("sum_x", "sum_squares"), secrets=("seed",))
def begin(
    party: Party, means: bool = False, squares: str = "", shift: Array | float = 0.0
) -> Values:
    """Return sums that give gamma; the first user also the seed of the features.

    `means`: the sums of the columns; `squares`: of their squares, by ``"column"`` or in
    ``"total"``. Less `shift`, where they are asked for again.
    """
    reply: dict[str, Any] = {}
    if party.index == 0:
        party.state["seed"] = party.rng("features").bytes(16).hex()
        reply["seed"] = party.state["seed"].encode()
    if squares:
        _, sum_x, sum_squares = moments(party.X, shift)
        if squares == "total":
            sum_squares = sum_squares.sum(keepdims=True)
        reply["sum_squares"] = _limbs(sum_squares)
        if means:
            reply["sum_x"] = _limbs(sum_x)
    return reply


def _limbs(values: Array) -> Array:
    try:
        return split_limbs(values)
    except ValueError:
        raise PartyError(
            "sums of the columns' squares must be below 2^120: scale the columns"
        ) from None


# -- iterations (lines 6 to 15) -------------------------------------------------------


def _features(party: Party, t: int) -> Iterator[Array]:
    """Yield A_t of this user by blocks (line 7); two messages need it."""
    own, X = party.state, party.X
    start, stop = feature_range(t, own["D"], own["D_1"])
    key = (t, *(np.asarray(own[n]).tobytes() for n in _SETUP if n in own))
    if party.cache.get("key") == key and party.cache["X"] is X:
        yield from party.cache["A"]
        return
    small, kept = 8 * len(X) * (stop - start) <= CACHE_BYTES, []
    for A in feature_blocks(own, X, start, stop):
        if small:
            kept.append(A)
        yield A
    if small:
        party.cache.update(key=key, X=X, A=kept)


def _W(party: Party, t: int) -> Iterator[Array]:
    """Yield W_t of this user by blocks of rows (line 8)."""
    own, done = party.state, 0
    eta = step_size(t, own["D"], own["D_1"])
    B = own.get("B", np.zeros((party.n_rows, 0)))
    for A in _features(party, t):
        yield stack(A, B[done : done + len(A)], eta)
        done += len(A)


def _gram(party: Party, t: int) -> Array:
    """Return W_t[m]^T W_t[m]."""
    return np.asarray(sum(W.T @ W for W in _W(party, t)))


def _advance(party: Party, t: int, R: Array | None, setup: dict[str, Any]) -> None:
    """Take the eigenpairs of iteration t - 1 (lines 12 and 13), and the setup."""
    own = party.state
    if own.get("t") == t:  # asked again, with a wider bound
        return
    if setup:
        seed = setup.pop("seed", None)
        own |= setup | {"P": np.zeros((0, 0))}
        own.setdefault("seed", (seed or b"").decode())
    if R is not None:
        own["B"] = np.concatenate([W @ R for W in _W(party, t - 1)])
        own["P"] = compose(own["P"], R, step_size(t - 1, own["D"], own["D_1"]))
    own["t"] = t


@step("kernel_kmeans_gram", sums=("gram",), secrets=("seed",))
def gram(party: Party, t: int, R: Array | None = None, **setup: Any) -> Values:
    """Line 10 in one message: the upper triangle of W_t[m]^T W_t[m]."""
    _advance(party, t, R, setup)
    G = _gram(party, t)
    return {"gram": G[np.triu_indices(len(G))]}


@step("kernel_kmeans_product", sums=("product", "trace"), secrets=("seed",))
def product(
    party: Party,
    vectors: Array,
    t: int = 0,
    R: Array | None = None,
    trace_wanted: bool = False,
    **setup: Any,
) -> Values:
    """Line 10 by Lanczos: W_t[m]^T W_t[m] c; `t` begins an iteration."""
    if t:
        _advance(party, t, R, setup)
        party.state["G"] = _gram(party, t)
    G = party.state["G"]
    reply = {"product": G @ vectors}
    return reply | ({"trace": np.array([G.trace()])} if trace_wanted else {})


# -- without the communication mechanism (section 4.1) ---------------------------------


@step("kernel_kmeans_project", sums=("projected",), secrets=("seed",))
def project(party: Party, c: Array, t: int, **setup: Any) -> Values:
    """Step 2 of section 4.1: A_t[m]^T c[m]."""
    _advance(party, t, None, setup)
    projected, done = np.zeros(0), 0
    for A in _features(party, t):
        part = A.T @ c[done : done + len(A)]
        projected = projected + part if done else part
        done += len(A)
    return {"projected": projected}


@step("kernel_kmeans_expand")
def expand(party: Party, g: Array) -> Values:
    """Step 4: A_t[m] A_t^T c, of which the server makes one vector.

    Raises
    ------
    PartyError
        The run is not in one process: these are functions of the user's single rows.
    """
    if not party.allow_plain:
        raise PartyError("cem must be true: without it single rows reach the server")
    A = _features(party, party.state["t"])
    return {"rows": np.concatenate([block @ g for block in A])}


# -- k-means (lines 16 to 20) ---------------------------------------------------------


@step("kernel_kmeans_local")
def local(
    party: Party, n_clusters: int, R: Array | None = None, H: Array | None = None
) -> Values:
    """Lines 16 to 19: the embedding H[m], and the cost of this user's own centres."""
    own = party.state
    if R is not None:
        t = own["t"]
        H = np.concatenate([W @ R for W in _W(party, t)])
        own["P"] = compose(own["P"], R, step_size(t, own["D"], own["D_1"]))
        own.pop("B", None)
    else:  # without the mechanism no map of features gives H
        own.pop("P")
    if H is None:
        raise PartyError("the embedding must come as R or as H")
    own.pop("G", None)
    party.cache.clear()
    found = local_solution(RowBlocks(H), n_clusters, party.rng("local"))
    own |= {
        "H": H,
        "local_centers": found.centers,
        "local_sizes": found.sizes,
        "local_costs": found.costs,
    }
    return {"cost": float(found.costs.sum())}


@step("kernel_kmeans_sample")
def sample_rows(party: Party, count: int) -> Values:
    """Draw this user's share of the coreset of Balcan et al. (2013)."""
    own = party.state
    found = ClusterSummary(own["local_centers"], own["local_sizes"], own["local_costs"])
    points, weights = sample(RowBlocks(own["H"]), found, count, party.rng("sample"))
    # Centres too, which are rows where a cluster has one; the run sends no others.
    party.share(np.arange(min(len(points), party.n_rows)))
    return {"points": points, "weights": weights}


@step("kernel_kmeans_assign", sums=("inertia", "sizes"))
def label(party: Party, centers: Array) -> Values:
    """Line 20: label this user's rows, which stay here."""
    own = party.state
    found = [assign(rows, centers) for rows in RowBlocks(own["H"])]
    labels = np.concatenate([part[0] for part in found])
    party.part = {name: own[name] for name in (*_SETUP, "P") if name in own}
    party.part |= {"centers": centers, "labels": labels.astype(np.int32)}
    party.predictions = labels
    return {
        "inertia": np.array([sum(part[1].sum() for part in found)]),
        "sizes": np.bincount(labels, minlength=len(centers)).astype(np.float64),
        "kept": party.state_dir is not None,
    }


_SETUP = ("kernel", "gamma", "degree", "offset", "D", "D_1", "seed", "shift", "scale")
"""What says which features, and stays in the part of the model."""


# -- split columns --------------------------------------------------------------------


@step("kernel_kmeans_spread", sums=("spread",))
def spread(party: Party, kernel: str) -> Values:
    """Return the sum of the variances or (Laplacian) deviations of the columns."""
    _, sum_x, _ = moments(party.X)
    mean = sum_x / party.n_rows
    found = variances(*moments(party.X, mean), mean)
    if kernel == "laplacian":
        found = np.sqrt(found)
    return {"spread": _limbs(np.array([found.sum()]))}


@step("kernel_kmeans_angles", sums=("angles",))
def angles(
    party: Party, start: int, stop: int, bits: int, kernel: str, gamma: float
) -> Values:
    """Return this party's part of the angles of its rows, features start to stop - 1.

    The server learns their sum of all rows.
    """
    party.share(np.arange(party.n_rows))
    seed = int.from_bytes(party.rng("features").bytes(16))
    draws = RandomFeatures(kernel, party.X.shape[1], bandwidth(kernel, gamma), seed)
    return {"angles": draws.angles(party.X, start, stop, bits)}


@step("kernel_kmeans_labels")
def take_labels(party: Party, labels: Array) -> Values:
    """Keep the labels that the server found."""
    if labels.shape != (party.n_rows,):
        raise PartyError(
            f"labels must be those of the {party.n_rows} rows, got {labels.size}"
        )
    party.part = {"labels": labels}
    party.predictions = labels
    return {"kept": party.state_dir is not None}
