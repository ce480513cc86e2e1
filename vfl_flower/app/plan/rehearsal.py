"""A run on random rows in this process: a strategy's costs and messages."""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from vfl_flower.party.party import Party
from vfl_flower.server.ledger import Ledger
from vfl_flower.server.replies import PartyInfo
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid, apart
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")


class Shape(NamedTuple):
    """The size of a party's data."""

    n_rows: int
    n_columns: int
    n_labels: int = 0
    """The number of rows whose label the party knows."""
    name: str = ""
    """Default: ``party-<index>``."""
    keeps: bool = False
    """Whether the party can store its local model."""

    @classmethod
    def of(cls, info: PartyInfo) -> Self:
        """Return the size of a party's data from its reply to ``hello``."""
        return cls(info.n_rows, info.n_columns, info.n_labels, info.name, info.keeps)


@dataclass(frozen=True)
class Rehearsal:
    """The costs of a rehearsal."""

    ledger: Ledger
    """The run's costs by step and party, and the values that were sent."""
    seconds: float
    """Seconds that the server spent computing."""


_LABELS: tuple[Callable[[np.random.Generator, int], Array], ...] = (
    lambda rng, n: rng.normal(size=n),
    lambda rng, n: rng.integers(10, size=n).astype(np.float64),
    lambda rng, n: rng.integers(2, size=n).astype(np.float64),
)
"""Labels to try in this order: numbers, ten classes, two classes."""


def rehearse(
    strategy: ProtocolStrategy,
    shapes: Sequence[Shape],
    rows: int | None = None,
    clusters: bool = False,
    grid: Callable[[Sequence[Party]], InProcessGrid] = InProcessGrid,
) -> Rehearsal:
    """Run a strategy on `rows` random rows; None: as many rows as the parties have.

    With `clusters`, the rows are five points plus a little noise.
    """
    share = 1.0 if rows is None else rows / n_rows_of(strategy, shapes)
    labelled = any(shape.n_labels for shape in shapes)
    draws = _LABELS if labelled else _LABELS[:1]
    for last, draw in enumerate(draws, start=1 - len(draws)):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        rng = np.random.default_rng(0)
        parties, known = [], 0
        for index, shape in enumerate(shapes):
            n = max(1, round(shape.n_rows * share))
            X = strategy.random_rows(rng, n, shape.n_columns)
            if clusters:
                # A row is in the same cluster at all parties.
                which = np.random.default_rng(1).integers(min(5, n), size=n)
                X = 0.99 * X[which] + 0.01 * X
            y = None
            if shape.n_labels:
                # Label holders have labels for different rows, where possible.
                count = min(n, max(1, round(shape.n_labels * share)))
                y = np.full(n, np.nan)
                y[np.arange(known, known + count) % n] = draw(rng, count)
                known += count
            ids = np.arange(n) if strategy.partition == "either" else None
            place = Path(folder.name, f"{index}") if shape.keeps else None
            parties.append(Party(X, y, ids, shape.name or None, state_dir=place))
        with apart(), folder:
            start = time.perf_counter()
            try:
                # The rehearsed copy has no Watch.
                ledger = strategy.rehearsed().start(grid(parties)).ledger
            except Exception:
                if last == 0:
                    raise
                continue
            seconds = time.perf_counter() - start - ledger.seconds_waited
            return Rehearsal(ledger, max(0.0, seconds))
    raise AssertionError  # unreachable: the last labels return or raise


def n_rows_of(strategy: ProtocolStrategy, shapes: Sequence[Shape]) -> int:
    """Return the number of rows of a run."""
    counts = [shape.n_rows for shape in shapes]
    return sum(counts) if strategy.partition == "horizontal" else max(counts)


@contextmanager
def quietly() -> Iterator[None]:
    """Hide the log and the warnings of a rehearsal or a check."""
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
