"""Settings of kernel k-means, and its first messages: gamma, scaling and seed.

The module also checks sums over the parties. A wrong sum does not show which party is
at fault.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.kernel_kmeans import clustering
from vfl_flower.clients.kernel_kmeans import training as party
from vfl_flower.numerics.kernel_embedding import Kernel, default_gamma
from vfl_flower.numerics.kernel_kmeans import Subspace, variances
from vfl_flower.numerics.summed_kmeans import LEAST_ROWS
from vfl_flower.protocol.settings import (
    Natural,
    NotNegative,
    Positive,
    check_unused,
    settings,
)
from vfl_flower.protocol.steps import Step, each
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.limbs import LIMB, join_limbs
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.strategies.evaluation import JudgedStrategy
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_ROWS_WITHOUT_CEM = 2**24
"""Maximum number of rows without the communication mechanism. Without the mechanism,
the server holds vectors with one element for each row."""


class FirstMessage(NamedTuple):
    """Values that only the first message of the first iteration carries."""

    setup: party.Setup
    """The kind of features to draw."""
    seed: bytes
    """The seed of the features, encrypted for each party except the first."""


@contextmanager
def decomposed(
    parties: Parties, step: Step[..., Any], space: Subspace
) -> Iterator[None]:
    """Name the parties in an error about a sum from which a subspace is learned."""
    try:
        with np.errstate(all="ignore"):
            yield
    except np.linalg.LinAlgError:
        raise parties.faulty_sum(step, "a matrix that has eigenvalues") from None
    if not len(space.values):
        raise parties.faulty_sum(step, "a matrix with an eigenvalue above 0")


@settings
class KernelClustering(JudgedStrategy):
    """Settings of kernel k-means, and the messages before its iterations."""

    n_clusters: Natural = 10
    """Number of clusters, k."""
    n_components: Annotated[int, Ge(1), Le(party.MOST_COMPONENTS)] = 20
    """Number of eigenvectors of the kernel matrix, s; at least n_clusters."""
    n_features: party.Features = 50
    """Number of random features per iteration, D."""
    iterations: Natural = 20
    """Maximum number of iterations, T."""
    kernel: Kernel = "gaussian"
    """"gaussian": ``exp(-gamma |x-x'|_2^2)``; "laplacian": ``exp(-gamma |x-x'|_1)``."""
    gamma: Positive | Literal["auto"] = "auto"
    """gamma as in scikit-learn. "auto": computed from sums over the parties."""
    eigensolver: Literal["gram", "lanczos"] = "gram"
    """"gram": one Gram matrix per iteration; "lanczos": one message per matrix-vector
    product."""

    _: KW_ONLY
    threshold: Positive | Literal["auto", "paper"] = "auto"
    """lambda: eigenvalues below lambda are not learned. "paper": the (k+2)-th
    eigenvalue of the first iteration; "auto": an estimate of the (s+1)-th
    eigenvalue."""
    subspace_tol: NotNegative = 0.01
    """Stop when an iteration's rotation of the subspace (sine of the largest angle /
    root of the step) is below this value; with 0, run all iterations."""
    clustering: Literal["sums", "coreset"] = "sums"
    """"sums": cluster by sums over the parties; no row of the eigenvectors leaves a
    party. "coreset": the server clusters such rows in the clear."""
    passes: Natural = 20
    """Maximum number of k-means passes with clustering "sums" (one round trip each)."""
    choose_clusters: bool = False
    """Choose k from 2 to n_clusters by a silhouette score; only with clustering
    "sums"."""
    coreset_size: Natural = 1000
    """Number of points that all parties together send for clustering "coreset", besides
    centres. A party with no more rows than its share of these points sends all rows."""
    standardize: bool = False
    """Scale columns by the mean and standard deviation over all parties."""
    cem: bool = True
    """Use the paper's communication mechanism; if false, use Lanczos on all N rows, in
    one process only."""
    n_init: Natural = 30
    """Number of starts of k-means."""
    allow_two_parties: bool = False
    """Allow two parties, although each party can compute the other's sums from the
    eigenvectors."""

    partition = "horizontal"
    fills = True

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.n_components < self.n_clusters:
            raise ValueError(
                f"n_components must be at least n_clusters = {self.n_clusters}, got "
                f"{self.n_components}"
            )
        if self.threshold == "paper" and self.n_features < self.n_clusters + 2:
            raise ValueError(
                f"n_features must be at least n_clusters + 2 = {self.n_clusters + 2} "
                f"with threshold 'paper', got {self.n_features}"
            )
        unused = {"sums": ["coreset_size"], "coreset": ["passes", "choose_clusters"]}
        check_unused(self, unused[self.clustering], f"clustering {self.clustering!r}")
        if self.choose_clusters and self.n_clusters < 2:
            raise ValueError(
                "n_clusters must be at least 2 with choose_clusters, which tries each "
                f"number from 2 to n_clusters, got {self.n_clusters}"
            )
        tried = self.n_clusters * (self.n_clusters - 1 if self.choose_clusters else 1)
        if self._sums and self.n_init * tried > clustering.MOST_CENTERS:
            raise ValueError(
                f"n_init must be at most {clustering.MOST_CENTERS // tried} with "
                f"{self.n_clusters} clusters, got {self.n_init}"
            )
        if not self.cem and (self.eigensolver, self.masking) != ("lanczos", "plain"):
            raise ValueError(
                "cem can be false only with eigensolver 'lanczos' and masking 'plain', "
                f"got {self.eigensolver!r} and {self.masking!r}"
            )

    @property
    def terms(self) -> Terms:
        """Row sums and, with a coreset, embedded rows."""
        if self._sums:
            return Terms(("row-sums",))
        less = "With clustering='sums', the run needs only row-sums"
        return Terms(("embedded-rows", "row-sums"), less=less)

    @property
    def _sums(self) -> bool:
        """Whether k-means runs on sums over the parties."""
        return self.clustering == "sums"

    @property
    def least_parties(self) -> int:
        """Minimum number of parties: 1 without masks, otherwise 2."""
        return 1 if self.masking == "plain" else 2

    def check_sizes(self, parties: Parties) -> None:
        """Raise ``FederationError`` if the parties do not fit the settings."""
        N = parties.n_rows
        if self.n_clusters > N:
            raise FederationError(
                f"n_clusters must be at most {N}, the number of rows of all parties, "
                f"got {self.n_clusters}"
            )
        if self._sums and N < LEAST_ROWS:
            raise FederationError(
                f"clustering 'sums' needs at least {LEAST_ROWS} rows at all parties "
                f"together, got {N}"
            )
        if self.clustering == "coreset" and self.coreset_size < len(parties):
            raise FederationError(
                f"coreset_size must be at least the number of parties, {len(parties)}, "
                f"got {self.coreset_size}"
            )
        if not self.cem and N > MOST_ROWS_WITHOUT_CEM:
            raise FederationError(
                f"cem must be true for more than {MOST_ROWS_WITHOUT_CEM} rows, got {N}"
            )

    def begin(self, parties: Parties, space: Subspace) -> FirstMessage:
        """Request the sums for gamma and the scaling, and the seed.

        Raises FederationError if the columns do not vary, or vary outside the range
        that the kernel can use.
        """
        N = parties.n_rows
        kernel, gamma, standardize = self.kernel, self.gamma, self.standardize
        means = standardize or gamma == "auto"
        squares_by: party.Squares = "total" if means else ""
        if standardize or (gamma == "auto" and kernel == "laplacian"):
            squares_by = "column"
        seed, sum_x, squares, fill = _ask_sums(
            parties, means or parties.gaps, squares_by
        )
        shift: Array | float = 0.0
        if means:
            lost = (variances(N, sum_x, squares) == 0) & (squares > 0)
            if lost.any():  # constant, or far from 0 relative to their spread
                shift = np.where(lost, sum_x / N, 0.0)
                seed, sum_x, squares, fill = _ask_sums(
                    parties, means, squares_by, shift
                )
        moved = scale = None
        if standardize:
            deviation = np.sqrt(variances(N, sum_x, squares, shift))
            if left_out := np.flatnonzero(deviation == 0).tolist():
                log.info(  # no warning: a constant column changes no distance
                    "these columns are ignored, because they are constant or vary too "
                    "little: %s (0 is the first column of the first party's data, "
                    "without ids and labels)",
                    ", ".join(map(str, left_out[:20])),
                )
            moved = shift + sum_x / N
            scale = 1 / np.where(deviation > 0, deviation, math.inf)
            sum_x, squares, shift = 0.0 * sum_x, N * (deviation > 0), 0.0 * shift
        if isinstance(gamma, str):
            gamma = _auto_gamma(kernel, N, sum_x, squares, shift)
        setup = party.Setup(
            kernel=kernel,
            gamma=float(gamma),
            D=space.D,
            D_1=space.D_1,
            fill=fill,
            shift=moved,
            scale=scale,
        )
        return FirstMessage(setup, seed)


def _ask_sums(
    parties: Parties,
    means: bool,
    squares: party.Squares,
    shift: Array | float | None = None,
) -> tuple[bytes, Array, Array, Array | None]:
    """Return the seed for each party, the requested sums (or zeros), and the fill.

    In the sums, each missing value is replaced by the mean of its column. The fill
    consists of these means; it is None if no value is missing.
    """
    names = {"sum_x": means, "sum_squares": bool(squares)}
    wanted: dict[str, float] = {name: LIMB for name, used in names.items() if used}
    if parties.gaps:
        wanted["known"] = float(parties.n_rows)
    replies = parties.ask(
        party.begin.summing(**wanted),
        means=means,
        squares=squares,
        shift=None if shift is None else np.asarray(shift),
        known=parties.gaps,
    )
    sums = {name: replies.sums.get(name, np.zeros((5, 1))) for name in names}
    columns = parties[0].n_columns if squares == "column" else 1
    if sums["sum_squares"].shape[1] != columns:
        raise parties.faulty_sum(party.begin, f"squares of {columns} columns")
    sealed = replies.secrets.get("seed", [None])
    if len(sealed) != len(parties) or sealed[0] is not None:
        sender = sealed.index(None) if len(sealed) == len(parties) else 0
        reason = "the seed of the features must be drawn by the first party alone"
        raise parties.failure(sender, party.begin, reason)
    sum_x, sum_squares = (join_limbs(limbs) for limbs in sums.values())
    if (sum_squares < 0).any():
        raise parties.faulty_sum(party.begin, "squares")
    fill = None
    if parties.gaps:
        N, known = parties.n_rows, np.rint(replies.sums["known"])
        if len(known) != len(sum_x) or not ((known >= 1) & (known <= N)).all():
            raise parties.faulty_sum(party.begin, f"1 to {N} values of each column")
        mean = sum_x / known
        filled = (N - known) * np.square(mean)
        sum_x = N * mean
        sum_squares = sum_squares + (filled if squares == "column" else filled.sum())
        fill = mean + (0.0 if shift is None else shift)
    return each(sealed), sum_x, sum_squares, fill


def _auto_gamma(
    kernel: Kernel, N: int, sum_x: Array, squares: Array, shift: Array | float
) -> float:
    try:
        gamma = default_gamma(kernel, N, sum_x, squares, shift)
    except ValueError as error:
        raise FederationError(str(error)) from None
    if squares.sum() < 2.0**-50:  # the digits of a sum end at 2^-80
        raise FederationError(
            "gamma 'auto' needs columns whose squares add up to at least 1e-15: scale "
            "the columns"
        )
    return gamma
