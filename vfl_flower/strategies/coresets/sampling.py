"""The rows to train on: all rows, a uniform sample or a coreset (Algorithm 1)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.coresets import sampling as party
from vfl_flower.numerics.coresets import allocate, coreset_weights, uniform
from vfl_flower.numerics.split import split_rows
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps, each
from vfl_flower.protocol.terms import Kind, Terms, in_order
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import ProtocolStrategy, Run
from vfl_flower.strategies.evaluation import JudgedStrategy
from vfl_flower.typing import Array

MESSAGE_NUMBERS = 2**22
"""Maximum number of values in a message from a party that sends or evaluates all rows.

These values occupy 32 MB.
"""


@dataclass(frozen=True)
class Coreset:
    """Rows, their weights and, if the rows were pooled, their values."""

    rows: Array | None
    """S, with repeats, of shape (m,); None means all training rows."""
    weights: Array
    """W, of shape (m,)."""
    X: list[Array] | None = None
    """The rows at each party, of shape (m, d_j), if the solver pools rows."""
    y: Array | None = None
    """The labels of the rows, of shape (m,), if the solver pools rows."""
    check: Coreset | None = None
    """A second, independent draw."""

    @property
    def weighted(self) -> party.WeightedRows | None:
        """Rows and weights as sent to the parties; None means all training rows."""
        if self.rows is None:
            return None
        return party.WeightedRows(self.rows, self.weights)


AUTO_ROWS, AUTO_PER_COLUMN = 2000, 50
"""Rows of a coreset of size "auto": the minimum number, and the number per column.

With d columns and m rows, the expected loss is about 1 + d / m times the loss with
all rows.
"""


@dataclass(frozen=True)
class Scoring:
    """Parameters with which a party computes its scores."""

    bound: float
    """Maximum score of a row at one party."""
    intercept: bool | None = None
    """For regression: whether the model has an intercept."""
    clustering: party.Clustering | None = None
    """For k-means: how a party clusters its columns."""


@settings
class CoresetStrategy(JudgedStrategy):
    """Base class of regression and k-means: Algorithm 1 and its baselines."""

    _: KW_ONLY
    size: party.Size | Literal["auto"] = "auto"
    """Number of draws, m. "auto" means 50 draws for each column of each party, but at
    least 2,000; if there are no more rows than that, all rows are used."""
    sampling: Literal["coreset", "uniform", "full"] = "coreset"
    """"coreset": draw rows by score; "uniform": draw uniformly, without repeats;
    "full": use all rows."""
    rounds: Literal["fused", "paper"] = "fused"
    """"fused": fewer round trips; "paper": the round trips of Algorithm 1, which give
    the same coreset."""
    evaluate: Literal["coreset", "full"] = "coreset"
    """"coreset": evaluate on the coreset, at no cost; "full": also evaluate on all
    training rows, by secure sums."""
    check_size: Annotated[int, Ge(0), Le(party.MOST_ROWS)] = 0
    """Number of further rows to pool for an estimate of the loss on all training
    rows."""

    steps: ClassVar[Steps] = (
        party.totals,
        party.drawn_rows,
        party.scores,
        party.pooled_rows,
    )
    test_fraction = 0.0
    solver = "central"

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.check_size and not (self.sampling == "coreset" and self.pools):
            raise ValueError(
                "check_size must be 0 unless sampling is 'coreset' and solver is "
                f"'central', got {self.check_size}"
            )
        if self.check_size == 1:
            raise ValueError("check_size must be 0 or at least 2, got 1")

    @property
    def pools(self) -> bool:
        """Whether the server receives the values of the rows."""
        return self.solver == "central"

    @property
    def terms(self) -> Terms:
        """Rows, or sums for single rows; for a coreset, also totals and drawn rows."""
        kinds: set[Kind] = {"rows"} if self.pools else {"row-sums"}
        if self.sampling == "coreset":
            kinds.add("totals")
            if self.rounds == "paper":
                kinds.add("row-sums")
        return Terms(in_order(kinds))

    @property
    def variant(self) -> str:
        """The sampling method, which a report compares with other methods."""
        return self.sampling

    def baselines(self) -> dict[str, ProtocolStrategy]:
        """Return this strategy with each of the other sampling methods."""
        return {  # `check_size` is 0 unless this is the coreset itself
            name: self.replace(sampling=name, check_size=0)
            for name in ("coreset", "uniform", "full")
            if name != self.sampling
        }

    def sample_size(self, parties: Parties, n: int) -> int:
        """Return m, the size of a coreset of n rows to train on."""
        if self.size != "auto":
            return self.size
        columns = sum(info.n_columns for info in parties)
        return min(n, max(AUTO_ROWS, AUTO_PER_COLUMN * columns))

    def draw(self, parties: Parties, run: Run, scoring: Scoring) -> Coreset:
        """Return a coreset (Algorithm 1), a uniform sample, or all rows."""
        n = self.n_train(parties)
        if self.sampling == "full" or (
            self.size == "auto" and self.sample_size(parties, n) == n
        ):
            return self._all_rows(parties, n)
        if self.sampling == "uniform":
            m = self.sample_size(parties, n)
            rows, weights = uniform(n, m, run.rng("uniform"))
            train = split_rows(parties.n_rows, self.test_fraction, run.seed)[0]
            rows = (rows if train is None else train[rows]).astype(np.uint32)
            if not self.pools:
                return Coreset(rows, weights)
            return Coreset(rows, weights, *self._pool(parties, rows))
        return self._importance_sample(parties, run, n, scoring)

    def _importance_sample(
        self, parties: Parties, run: Run, n: int, scoring: Scoring
    ) -> Coreset:
        """Run DIS(m, g), Algorithm 1; independently draw ``check_size`` more rows."""
        fused, more = self.rounds == "fused", self.check_size
        m = self.sample_size(parties, n)
        if m >= n:
            anyway = "; the server sees most rows anyway" if self.pools else ""
            run.warnings.append(
                f"size is {m:,}, and there are {n:,} training rows: using all of them "
                "(sampling 'full', or size 'auto') takes fewer round trips and has no "
                f"sampling error{anyway}"
            )
        # Round 1, lines 2-4.
        replies = parties.ask(
            party.totals,
            size=m + more if fused else 0,
            test_fraction=self.test_fraction,
            intercept=scoring.intercept,
            clustering=scoring.clustering,
        )
        G = np.concatenate(replies.each("total"))
        for j, total in enumerate(G):
            if total > 1.01 * (most := scoring.bound * n):
                raise replies.failure(j, f"its 'total' must be at most {most:g}")
        a = allocate(G, m, run.rng("allocate"))
        b = allocate(G, more, run.rng("check"))
        # Round 2, lines 5-6; fused: each party sent its rows with its total.
        if fused:
            drawn = replies.each("rows")
        else:
            counts = a + b
            asked = parties.ask(
                party.drawn_rows, count=each([np.array([c]) for c in counts])
            )
            drawn = asked.each("rows")
            for j, (rows, count) in enumerate(zip(drawn, counts, strict=True)):
                if len(rows) != count:
                    raise asked.failure(j, f"its reply must have {count} drawn rows")
        S = [rows[: a[j]] for j, rows in enumerate(drawn)]
        S += [rows[a[j] : a[j] + b[j]] for j, rows in enumerate(drawn)]
        rows = np.concatenate(S).astype(np.uint32)
        # Round 3, line 7.
        scored = parties.ask(
            party.scores.summing(scores=scoring.bound),
            rows=rows,
            pool=self.pools and fused,
        )
        g, total = scored.sums["scores"], float(G.sum())
        if not (g > 0).all():
            raise parties.faulty_sum(party.scores, "scores above 0")
        if not self.pools:
            return Coreset(rows, coreset_weights(total, g))  # line 8
        if fused:
            X, y = self._pooled(parties, scored, len(rows))
        else:
            X, y = self._pool(parties, rows)

        def part(chosen: slice) -> Coreset:
            return Coreset(
                rows[chosen],
                coreset_weights(total, g[chosen]),  # line 8
                [block[chosen] for block in X],
                None if y is None else y[chosen],
            )

        check = part(slice(m, None)) if more else None
        return replace(part(slice(m)), check=check)

    def _pool(
        self, parties: Parties, rows: Array | range
    ) -> tuple[list[Array], Array | None]:
        """Request rows (listed, or a range of training rows) and labels if needed."""
        ends = (rows.start, rows.stop) if isinstance(rows, range) else (None, None)
        replies = parties.ask(
            party.pooled_rows,
            test_fraction=self.test_fraction,
            labels=self.labelled,
            rows=None if isinstance(rows, range) else rows,
            start=ends[0],
            stop=ends[1],
        )
        return self._pooled(parties, replies, len(rows))

    def _pooled(
        self,
        parties: Parties,
        replies: Replies[party.Scores] | Replies[party.Pooled],
        count: int,
    ) -> tuple[list[Array], Array | None]:
        """Return the rows in the replies, and their labels if needed."""
        for j, X_j in enumerate(replies.each("X")):
            if len(X_j) != count:
                raise replies.failure(j, f"its reply must have {count} rows")
        X = [np.asarray(X_j, dtype=np.float64) for X_j in replies.each("X")]
        if not self.labelled:
            return X, None
        holder = parties.label_holder
        if "y" not in replies[holder]:
            raise replies.failure(holder, "its reply lacks 'y', the labels of the rows")
        return X, np.asarray(replies[holder]["y"], dtype=np.float64)

    def _all_rows(self, parties: Parties, n: int) -> Coreset:
        if not self.pools:
            return Coreset(None, np.ones(n))
        block = max(1, MESSAGE_NUMBERS // max(p.n_columns for p in parties))
        blocks = (range(k, min(k + block, n)) for k in range(0, n, block))
        parts = [self._pool(parties, rows) for rows in blocks]
        X = [np.concatenate([X[j] for X, _ in parts]) for j in range(len(parties))]
        y = [y for _, y in parts if y is not None]
        return Coreset(None, np.ones(n), X, np.concatenate(y) if y else None)

    def n_train(self, parties: Parties) -> int:
        """Return n, the number of training rows, or raise FederationError."""
        n = parties.n_rows - self.n_test(parties)
        if n < 1:
            raise FederationError(
                "test_fraction must leave at least one training row, got "
                f"{self.test_fraction} with {parties.n_rows} rows"
            )
        if self.sampling == "uniform" and self.size != "auto" and self.size > n:
            raise FederationError(
                f"with sampling 'uniform', size must be at most {n}, the number of "
                f"training rows, got {self.size}"
            )
        return n

    def n_test(self, parties: Parties) -> int:
        """Return the number of rows held out."""
        return round(self.test_fraction * parties.n_rows)
