"""Rows for a strategy: Algorithm 1 of the coreset paper, uniform, or all."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from vfl_flower.numerics.coresets import allocate, coreset_weights, uniform
from vfl_flower.numerics.split import split_rows
from vfl_flower.strategies.base import (
    ProtocolStrategy,
    Run,
    check_choice,
    check_fraction,
    check_whole,
)
from vfl_flower.strategies.exchange import FederationError
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Replies
from vfl_flower.typing import Array, Values

log = logging.getLogger("vfl_flower")

SAMPLINGS = ("coreset", "uniform", "full")
PROTOCOLS = ("fused", "paper")
EVALUATIONS = ("coreset", "full")

MESSAGE_NUMBERS = 2**22
"""Numbers of a party in one message when it sends or evaluates all rows: 32 MB."""


@dataclass(frozen=True)
class Coreset:
    """Rows, their weights, and their values where they were pooled.

    Attributes
    ----------
    rows : Array or None, shape (m,)
        S, with repeats; None: all training rows.
    weights : Array, shape (m,)
        w.
    X : list of Array or None, shape (m, d_j)
        The rows at each party, where the solver pools them.
    y : Array or None, shape (m,)
        Their labels.
    check : Coreset or None
        A second, independent draw.
    """

    rows: Array | None
    weights: Array
    X: list[Array] | None = None
    y: Array | None = None
    check: Coreset | None = None


class CoresetStrategy(ProtocolStrategy):
    """What regression and k-means have in common: Algorithm 1 and the baselines."""

    labelled: bool

    def __init__(
        self,
        *,
        size: int,
        sampling: str,
        solver: str,
        protocol: str,
        check_size: int,
        test_fraction: float,
        evaluate: str,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        check_whole("size", size, 1)
        check_choice("sampling", sampling, SAMPLINGS)
        check_choice("protocol", protocol, PROTOCOLS)
        check_choice("evaluate", evaluate, EVALUATIONS)
        check_fraction("test_fraction", test_fraction)
        check_whole("check_size", check_size, 0)
        if check_size and (sampling, solver) != ("coreset", "central"):
            raise ValueError(
                "check_size must be 0 unless sampling is 'coreset' and solver "
                f"'central', got {check_size}"
            )
        if check_size == 1:
            raise ValueError("check_size must be 0 or at least 2, got 1")
        self.size, self.sampling, self.rounds = size, sampling, protocol
        self.solver, self.check_size = solver, check_size
        self.test_fraction, self.evaluate = test_fraction, evaluate

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments by name."""
        return super().settings() | {"protocol": self.rounds}

    def draw(
        self,
        parties: Parties,
        run: Run,
        bound: float,
        pool: bool,
        request: dict[str, Any],
    ) -> Coreset:
        """Return a coreset (Algorithm 1), a uniform sample, or all rows.

        Parameters
        ----------
        parties, run : Parties, Run
            As given to the protocol.
        bound : float
            Largest score of a row at one party.
        pool : bool
            Whether the values of the rows come to the server.
        request : dict
            What ``coresets_totals`` takes to compute the scores.
        """
        n = self.n_train(parties)
        if self.sampling == "full":
            return self._all_rows(parties, n, pool)
        if self.sampling == "uniform":
            rows, weights = uniform(n, self.size, run.rng("uniform"))
            train = split_rows(parties.n_rows, self.test_fraction, run.seed)[0]
            rows = (rows if train is None else train[rows]).astype(np.uint32)
            if not pool:
                return Coreset(rows, weights)
            return Coreset(rows, weights, *self._pool(parties, rows=rows))
        return self._importance_sample(parties, run, bound, pool, request)

    def _importance_sample(
        self,
        parties: Parties,
        run: Run,
        bound: float,
        pool: bool,
        request: dict[str, Any],
    ) -> Coreset:
        """DIS(m, g), Algorithm 1; and ``check_size`` more rows, drawn apart."""
        fused, m, more = self.rounds == "fused", self.size, self.check_size
        if pool and m >= self.n_train(parties):
            log.warning(
                "size is %d, not below the number of training rows: nearly all "
                "rows come to the server",
                m,
            )
        # Round 1, lines 2-4.
        replies = parties.ask(
            "coresets_totals",
            size=m + more if fused else 0,
            test_fraction=self.test_fraction,
            **request,
        )
        G = np.concatenate(replies.each("total"))
        a = allocate(G, m, run.rng("allocate"))
        b = allocate(G, more, run.rng("check"))
        # Round 2, lines 5-6; fused: each party drew m rows with its total.
        if not fused:
            counts: list[Values] = [{"count": np.array([c])} for c in a + b]
            replies = parties.ask_each("coresets_draw", counts)
        drawn = replies.each("rows")
        S = [rows[: a[j]] for j, rows in enumerate(drawn)]
        S += [rows[a[j] : a[j] + b[j]] for j, rows in enumerate(drawn)]
        rows = np.concatenate(S)
        # Round 3, lines 7-8.
        replies = parties.ask(
            "coresets_scores", sums={"scores": bound}, rows=rows, pool=pool and fused
        )
        g, total = replies.sums["scores"], float(G.sum())
        w = coreset_weights(total, g[:m])
        if not pool:
            return Coreset(rows, w)
        X, y = _pooled(replies) if fused else self._pool(parties, rows=rows)
        check = None
        if more:
            check = Coreset(
                rows[m:],
                coreset_weights(total, g[m:]),
                [block[m:] for block in X],
                None if y is None else y[m:],
            )
        X, y = [block[:m] for block in X], None if y is None else y[:m]
        return Coreset(rows[:m], w, X, y, check)

    def _pool(self, parties: Parties, **which: Any) -> tuple[list[Array], Array | None]:
        """Return rows of all parties, and their labels for regression."""
        replies = parties.ask(
            "coresets_rows",
            test_fraction=self.test_fraction,
            labels=self.labelled,
            **which,
        )
        return _pooled(replies)

    def _all_rows(self, parties: Parties, n: int, pool: bool) -> Coreset:
        if not pool:
            return Coreset(None, np.ones(n))
        block = max(1, MESSAGE_NUMBERS // max(p.n_columns for p in parties))
        parts = [
            self._pool(parties, start=start, stop=min(start + block, n))
            for start in range(0, n, block)
        ]
        X = [np.concatenate([X[j] for X, _ in parts]) for j in range(len(parties))]
        y = [y for _, y in parts if y is not None]
        return Coreset(None, np.ones(n), X, np.concatenate(y) if y else None)

    def n_train(self, parties: Parties) -> int:
        """Return the number of training rows, n.

        Raises
        ------
        FederationError
            There are none, or fewer than a uniform sample needs.
        """
        n = parties.n_rows - self.n_test(parties)
        if n < 1:
            raise FederationError(
                f"test_fraction must leave training rows, got {self.test_fraction} of "
                f"{parties.n_rows} rows"
            )
        if self.sampling == "uniform" and self.size > n:
            raise FederationError(
                f"size must be at most the number of training rows for uniform "
                f"sampling, got {self.size} for {n} rows"
            )
        return n

    def n_test(self, parties: Parties) -> int:
        """Return the number of rows held out."""
        return round(self.test_fraction * parties.n_rows)


def _pooled(replies: Replies) -> tuple[list[Array], Array | None]:
    """Return the rows that came with replies, and the labels where they came."""
    y = next((reply["y"] for reply in replies if "y" in reply), None)
    return replies.each("X"), y
