"""A party's side of federated kernel k-means (Algorithm 1 of the paper).

Between messages, a party stores B_t, shape (n_m, r), where r is about the number of
components; the map P from the features of all iterations to the embedding; and, for
Lanczos, a Gram matrix of D + r columns. These arrays take a few MB for ten thousand
rows. A_t would be larger, so the party does not store A_t but draws it again from the
seed. The party's local model consists of P, the centres, the seed of the features and
the labels of the party's rows. With this model, the party labels new rows without the
other parties.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, TypedDict, TypeVar, cast

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.numerics import kernel_embedding, kernel_kmeans
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import ClusterSummary
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import COUNTS, IN_SUM, OWN, SECRET, Reals, flat
from vfl_flower.protocol.settings import Natural, Positive
from vfl_flower.protocol.steps import reveals, step_of, sums_over
from vfl_flower.secure_aggregation.limbs import split_limbs
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

step = step_of("kernel_kmeans")

T = TypeVar("T")

CACHE_BYTES = 2**26
"""Maximum size of A_t, in bytes, that a process stores for its next message."""

MOST_FEATURES = 2**12
"""Maximum number of features of an iteration; their Gram matrix then takes 128 MiB."""

MOST_COMPONENTS = MOST_FEATURES // 4 - 5
"""Maximum number of components and of clusters; the first iteration has at least 4 (s +
5) features."""

MOST_OF_VECTOR = 1e50
"""Largest entry of a vector. With larger entries a product could overflow, and the
refusal would reveal the overflow."""

LARGEST_COST = 1e300
"""Largest cost of a party's local centres, so that the sum over parties is finite."""

Squares = Literal["", "column", "total"]

Seed = Annotated[bytes | None, SECRET]

Features = Annotated[int, Ge(1), Le(MOST_FEATURES)]

SmallMatrix = Annotated[Array, Reals("* *")]
"""R_t or R', by which W_t is multiplied."""


@shapes_only
@dataclass(frozen=True)
class Setup:
    """The random features that the parties draw, without their seed."""

    kernel: kernel_embedding.Kernel
    """The kernel."""
    gamma: Positive
    """The parameter of the kernel."""
    D: Features
    """The number of features of each later iteration."""
    D_1: Features
    """The number of features of the first iteration."""
    fill: Annotated[Array, Reals("n_columns")] | None = None
    """Replacements for missing values, of shape (d,): the means over all parties."""
    shift: Annotated[Array, Reals("n_columns")] | None = None
    """If columns are standardized, rows x are replaced by (x - shift) * scale; (d,)."""
    scale: Annotated[Array, Reals("n_columns")] | None = None
    """See `shift`; shape (d,)."""

    def features(self, seed: str) -> kernel_embedding.FeatureSetup:
        """Return the setup with a seed, in hexadecimal digits."""
        columns = {"fill": self.fill, "shift": self.shift, "scale": self.scale}
        known = {
            name: np.asarray(values, dtype=np.float64)
            for name, values in columns.items()
            if values is not None
        }
        setup = {"kernel": self.kernel, "gamma": self.gamma, "seed": seed}
        return cast(kernel_embedding.FeatureSetup, setup | known)


@stored_as("vfl_flower.clients.kernel_kmeans.State")
class State:
    """A party's state between the messages of a run."""

    seed: str = ""
    """Seed of the features, 32 hexadecimal digits. The first party draws the seed; the
    other parties get it with the first iteration."""
    setup: Setup | None = None
    """The random features, known after the first iteration starts."""
    t: int = 0
    """Number of iterations that have started."""
    B: Array | None = None
    """B_t of the party's rows, of shape (n_m, r); None means r = 0."""
    P: Array | None = None
    """Map from the features to B_t and finally to H, shape (features so far, r). None
    without the communication mechanism, since no such map exists then."""
    G: Array | None = None
    """W_t[m]^T W_t[m], for Lanczos, of shape (D + r, D + r)."""
    H: Array | None = None
    """The embedding of the party's rows, of shape (n_m, s)."""
    clusters: ClusterSummary | None = None
    """The party's local clustering of its embedded rows."""

    @property
    def known_setup(self) -> Setup:
        """The setup, which is received with the first iteration."""
        if self.setup is None:
            raise PartyError("the first iteration must come before this step")
        return self.setup

    @property
    def eta(self) -> float:
        """The step size eta_t."""
        return kernel_kmeans.step_size(self.t, self.known_setup.D, self.known_setup.D_1)

    @property
    def n_features(self) -> int:
        """Number of features of iteration t."""
        return self.known_setup.D_1 if self.t == 1 else self.known_setup.D

    @property
    def width(self) -> int:
        """Number of columns of W_t."""
        return self.n_features + (0 if self.B is None else self.B.shape[1])


class Begin(TypedDict, total=False):
    """Reply of :func:`begin`."""

    sum_x: Annotated[Array, Reals("5 n_columns"), IN_SUM]
    sum_squares: Annotated[Array, Reals("5 *"), IN_SUM]
    known: Annotated[Array, Reals("n_columns"), COUNTS]
    seed: Annotated[bytes, SECRET]


class Gram(TypedDict):
    """Reply of :func:`gram`."""

    gram: Annotated[Array, Reals("*"), IN_SUM]


class Product(TypedDict):
    """Reply of :func:`product`."""

    product: Annotated[Array, Reals("m b"), IN_SUM]
    trace: NotRequired[Annotated[Array, Reals("1"), IN_SUM]]


class Projection(TypedDict):
    """Reply of :func:`project`."""

    projected: Annotated[Array, Reals("*"), IN_SUM]


class Expansion(TypedDict):
    """Reply of :func:`expand`."""

    rows: Annotated[Array, Reals("n_rows")]


@contextmanager
def within_memory() -> Iterator[None]:
    """Refuse requests that do not fit in memory; the caller checks for overflow."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except MemoryError:
        raise PartyError("the request needs more memory than this party has") from None


# -- the kernel -----------------------------------------------------------------------


@step
@sums_over("session")
@reveals("row-sums")
def begin(
    party: Party,
    means: bool = False,
    squares: Squares = "",
    shift: Annotated[Array, Reals("n_columns")] | None = None,
    known: bool = False,
) -> Begin:
    """Return sums for gamma and scaling; the first party also sends the features' seed.

    With `means`, the reply contains the sums of the columns; with `squares`, it
    contains the sums of squares, for each ``"column"`` or in ``"total"``. A repeated
    request can contain `shift`, which is subtracted from the rows before they are
    summed. With `known`, the reply also contains the number of non-missing values in
    each column, and only these values are summed. The server chooses the sums in the
    steps that follow, so all rows count as leaving the party.
    """
    if party.remembered() and party.recall(State).t:
        raise PartyError("this step must come before the iterations")
    party.share(np.arange(party.n_rows), "row-sums")
    state, reply = State(), Begin()
    if party.index == 0:
        state.seed = party.secret_bytes("features", 16).hex()
        reply["seed"] = state.seed.encode()
    party.remember(state)
    if means or squares:
        _, sum_x, sum_squares = kernel_kmeans.moments(
            party.rows, 0.0 if shift is None else shift
        )
        if squares:
            total = squares == "total"
            with np.errstate(over="ignore"):  # refused by `_limbs`
                sums = sum_squares.sum(keepdims=True) if total else sum_squares
            reply["sum_squares"] = _limbs(sums)
        if means:
            reply["sum_x"] = _limbs(sum_x)
    if known:
        counts = sum((~np.isnan(rows)).sum(axis=0) for rows in RowBlocks(party.X))
        reply["known"] = np.asarray(counts, dtype=np.float64)
    return reply


def _limbs(values: Array) -> Array:
    try:
        return split_limbs(values)
    except ValueError:
        raise PartyError(
            "sums of squares of columns must be below 2^120: scale the columns"
        ) from None


# -- iterations (lines 6 to 15) -------------------------------------------------------


def _reduce(
    party: Party,
    state: State,
    f: Callable[[slice, Array], T],
    add: Callable[[T, T], T],
    zero: T,
) -> T:
    """Return a total over blocks of A_t (line 7); a small A_t is stored for reuse."""
    setup, rows = state.known_setup, party.rows
    start, stop = kernel_kmeans.feature_range(state.t, setup.D, setup.D_1)
    features = setup.features(state.seed)
    size = kernel_embedding.feature_block_rows(features, rows, start, stop)

    def of_block(part: slice, X: Array) -> T:
        return f(part, kernel_embedding.features_of(features, X, start, stop))

    total, done = zero, 0
    try:
        if 8 * len(rows) * (stop - start) > CACHE_BYTES:
            return rows.map_reduce(of_block, add, zero, size)
        settings = [np.asarray(value).tobytes() for value in flat(setup).values()]
        key = (state.t, state.seed, *settings)
        last_key, last_X, blocks = party.cache.get("kernel_kmeans", (None, None, []))
        if last_key != key or last_X is not party.X:
            blocks = list(kernel_embedding.feature_blocks(features, rows, start, stop))
            party.cache["kernel_kmeans"] = key, party.X, blocks
    except ValueError:
        raise PartyError(
            "the features must be finite: choose another gamma or scale the columns"
        ) from None
    for A in blocks:
        total = add(total, f(slice(done, done + len(A)), A))
        done += len(A)
    return total


def _per_row(party: Party, state: State, f: Callable[[slice, Array], Array]) -> Array:
    """Return the values of `f` for the rows of A_t."""
    parts: list[Array] = []
    return np.concatenate(
        _reduce(party, state, lambda part, A: [f(part, A)], operator.add, parts)
    )


def _W(state: State, part: slice, A: Array) -> Array:
    """Return rows of W_t from rows of A_t (line 8)."""
    B = np.zeros((len(A), 0)) if state.B is None else state.B[part]
    return kernel_kmeans.stack(A, B, state.eta)


@within_memory()
def _gram(party: Party, state: State) -> Array:
    """Return W_t[m]^T W_t[m]."""

    def gram_of(part: slice, A: Array) -> Array:
        W = _W(state, part, A)
        return np.asarray(W.T @ W)

    return _reduce(party, state, gram_of, np.add, np.zeros((1, 1)))


@within_memory()
def times(party: Party, state: State, R: Array) -> Array:
    """Return W_t[m] R, which is B_{t+1} or H, and update the map P."""
    if len(R) != state.width or not 1 <= R.shape[1] <= len(R):
        raise PartyError(
            f"R must have {state.width} rows and 1 to {state.width} columns, got shape "
            f"{R.shape}"
        )
    R = np.asarray(R, dtype=np.float64)
    product = _per_row(party, state, lambda part, A: _W(state, part, A) @ R)
    check_size("R", product)
    if state.P is not None:
        state.P = kernel_kmeans.compose(state.P, R, state.eta)
        check_size("R", state.P)
    return product


def check_size(name: str, matrix: Array) -> None:
    """Refuse a matrix whose sum of squares would overflow."""
    if not float(np.square(matrix).sum()) <= LARGEST_COST / 1e10:
        raise PartyError(f"{name} must be small enough for its squares to be finite")


def _advance(
    party: Party,
    t: int,
    R: Array | None,
    setup: Setup | None,
    seed: bytes | None,
    *,
    mechanism: bool,
) -> State:
    """Use the eigenpairs of iteration t - 1 (lines 12 and 13), or the setup at t = 1.

    `R`, shape (D_{t-1} + r_{t-1}, r_t), is R_{t-1}. This matrix is given from t = 2 on,
    and only with the communication `mechanism`. If `t` is requested again, the state
    does not change.
    """
    state = party.recall(State)
    if state.H is not None:
        raise PartyError("the iterations are finished: the embedding has been computed")
    if t not in (state.t, state.t + 1):
        raise PartyError(f"t must be {state.t} or {state.t + 1}, got {t}")
    if state.t and mechanism != (state.P is not None):
        raise PartyError("the communication mechanism must not change during a run")
    if state.t == t:  # requested again, with a wider bound or for another product
        return state
    if (R is not None) != (mechanism and t > 1):
        raise PartyError("R must be given if and only if cem is true and t > 1")
    if (setup is not None) != (t == 1):
        raise PartyError("the setup must be given if and only if t is 1")
    if setup is not None:
        if (setup.shift is None) != (setup.scale is None):
            raise PartyError("shift and scale must be given together")
        if party.gaps and setup.fill is None:
            raise PartyError("fill must be given if a party has missing values")
        state.seed, state.setup = state.seed or _seed(seed), setup
        state.P = np.zeros((0, 0)) if mechanism else None
    if R is not None:
        state.B = times(party, state, R)
    state.t, state.G = t, None
    return state


def _seed(seed: bytes | None) -> str:
    """Return the seed that the first party sent, 16 bytes in hexadecimal digits."""
    text = (seed or b"").decode("ascii", "replace")
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
        raise PartyError("the seed of the features must be 32 hexadecimal digits")
    return text


@step
@sums_over("session")
@reveals("row-sums", counted=False)
def gram(
    party: Party,
    t: Natural,
    R: SmallMatrix | None = None,
    setup: Setup | None = None,
    seed: Seed = None,
) -> Gram:
    """Line 10 in one message: the upper triangle of W_t[m]^T W_t[m]."""
    state = _advance(party, t, R, setup, seed, mechanism=True)
    G = _gram(party, state)
    return {"gram": G[np.triu_indices(len(G))]}


@step
@sums_over("session")
@reveals("row-sums", counted=False)
def product(
    party: Party,
    vectors: Annotated[Array, Reals("m b", -MOST_OF_VECTOR, MOST_OF_VECTOR)],
    t: Natural | None = None,
    R: SmallMatrix | None = None,
    trace_wanted: bool = False,
    setup: Setup | None = None,
    seed: Seed = None,
) -> Product:
    """Line 10 by Lanczos: W_t[m]^T W_t[m] c. A request with `t` starts an iteration."""
    if t is None:
        state = party.recall(State)
    else:
        state = _advance(party, t, R, setup, seed, mechanism=True)
        state.G = _gram(party, state)
    G = state.G
    if G is None:
        raise PartyError("the first product request of an iteration must include t")
    if len(vectors) != len(G) or vectors.shape[1] > len(G):
        raise PartyError(
            f"vectors must have {len(G)} rows and at most {len(G)} columns, got shape "
            f"{vectors.shape}"
        )
    with within_memory():
        reply: Product = {"product": G @ np.asarray(vectors, dtype=np.float64)}
    if trace_wanted:
        reply["trace"] = np.array([G.trace()])
    return reply


# -- without the communication mechanism (section 4.1) ---------------------------------


def _check_without_mechanism(party: Party) -> None:
    if not party.allow_plain:
        raise PartyError("cem must be true: otherwise the server would see single rows")


@step
@sums_over("session", "only in one process")
def project(
    party: Party,
    c: Annotated[Array, Reals("n_rows"), OWN],
    t: Natural,
    setup: Setup | None = None,
    seed: Seed = None,
) -> Projection:
    """Step 2 of section 4.1: A_t[m]^T c[m].

    If `c` is nonzero in only one row, the result is a multiple of this row's features,
    so this product is allowed only in a run in one process.
    """
    _check_without_mechanism(party)
    state = _advance(party, t, None, setup, seed, mechanism=False)
    with within_memory():
        numbers = np.asarray(c, dtype=np.float64)
        projected = _reduce(
            party,
            state,
            lambda part, A: A.T @ numbers[part],
            np.add,
            np.zeros(state.n_features),
        )
    return {"projected": projected}


@step
@sums_over("none", "only in one process")
def expand(party: Party, g: Annotated[Array, Reals("*")]) -> Expansion:
    """Step 4: A_t[m] A_t^T c.

    Each entry is a function of a single row, so this product is allowed only in a run
    in one process.
    """
    _check_without_mechanism(party)
    state = party.recall(State)
    if len(g) != state.n_features:
        raise PartyError(
            f"g must have a number for each of the {state.n_features} features of the "
            f"iteration, got {len(g)}"
        )
    with within_memory():
        numbers = np.asarray(g, dtype=np.float64)
        rows = _per_row(party, state, lambda _, A: A @ numbers)
    if not np.isfinite(rows).all():
        raise PartyError("g must be small enough for its products to be finite")
    return {"rows": rows}
