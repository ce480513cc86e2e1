"""What the boundary of a party costs: digests of what is common, journal, consent.

Run ``OMP_NUM_THREADS=1 python benchmarks/boundary.py``. A party among three answers a
step that adds 10^6 numbers into a sum; each part of the boundary is taken out in turn,
and the ratio is of the medians of interleaved runs.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, TypedDict
from unittest.mock import patch

import numpy as np

from vfl_flower import Party
from vfl_flower.app.register import make_client_app
from vfl_flower.protocol import answering, sums
from vfl_flower.protocol.consent import Consent, Limit
from vfl_flower.protocol.contract import IN_SUM, Reals
from vfl_flower.protocol.journal import journal_of
from vfl_flower.protocol.ledger import Ledger
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.steps import step
from vfl_flower.simulation import InProcessGrid
from vfl_flower.typing import Array

SIZE, REPEATS = 10**6, 21


class Addend(TypedDict):
    """Reply of :func:`add`."""

    total: Annotated[Array, Reals("*"), IN_SUM]


@step
def add(party: Party, values: Annotated[Array, Reals("*")]) -> Addend:
    """Add a million numbers of the party into a sum."""
    return {"total": party.X[:, 0] + values.sum()}


class Timed(InProcessGrid):
    """Parties as on SuperNodes; the first one's answers are timed."""

    def __init__(self, folder: Path, consent: Consent) -> None:
        rng = np.random.default_rng(0)
        super().__init__(
            [
                Party(
                    rng.normal(size=(SIZE, 1)),
                    name=name,
                    state_dir=folder / name,
                    consent=consent,
                )
                for name in "abc"
            ]
        )
        app = make_client_app(lambda context: self._parties[context.node_id])
        self.seconds: list[float] = []

        def timed(message, context):  # type: ignore[no-untyped-def]
            start = perf_counter()
            reply = app(message, context)
            if context.node_id == 1000:
                self.seconds.append(perf_counter() - start)
            return reply

        self._app = timed  # type: ignore[assignment]


@contextmanager
def without(part: str) -> Iterator[None]:
    """Take one part of the boundary out."""
    with ExitStack() as stack:
        if part == "digest":
            stack.enter_context(patch.object(sums, "common_digest", lambda *_: b""))
        if part == "journal":
            stack.enter_context(patch.object(answering, "journal_of", _no_journal))
        yield


@contextmanager
def _no_journal(*_: object) -> Iterator[None]:
    yield None


def measure(size: int) -> None:
    """Print what the parts cost where the request has so many numbers."""
    consent = Consent(peers=None)
    parts = ("", "digest", "journal")
    with tempfile.TemporaryDirectory() as folder:
        grids = {part: Timed(Path(folder) / (part or "all"), consent) for part in parts}
        asked = {}
        for part, grid in grids.items():
            with without(part):
                asked[part] = Parties(grid, Ledger(), seed=0, private_draws=True)
        values = np.ones(size)
        for _ in range(REPEATS):
            for part in parts:
                with without(part):
                    asked[part].secure_sum(add.summing(total=16.0), values=values)
    times = {part: np.median(grid.seconds[2:]) for part, grid in grids.items()}
    print(f"a sum of {SIZE} numbers, a request of {size}: {1e3 * times['']:.1f} ms")
    for part in parts[1:]:
        ratio = times[""] / times[part]
        print(f"  with / without {part}: {ratio:.3f}")


def write(rows: int) -> None:
    """Print how long the journal takes to be read and written."""
    party = Party(np.ones((max(rows, 1), 1)), ids=np.arange(max(rows, 1)))
    party.consent = Consent(leaves={"rows": Limit(None, 10**9)}, peers=None)

    def once(folder: Path, run: int) -> None:
        with journal_of(folder, run) as line:
            line.greet(run)
            line.shared = {"rows": bytes(rows // 8)} if rows else {}
            line.released = {"rows": np.arange(rows, dtype=np.uint64)} if rows else {}

    with tempfile.TemporaryDirectory() as folder:
        times = _times(lambda run: once(Path(folder), run))
    median, late = np.quantile(times, [0.5, 0.95])
    what = f"{rows} tags of rows" if rows else "a round"
    print(f"journal, {what}: {1e3 * median:.2f} ms, 95 % below {1e3 * late:.2f} ms")


def _times(work: Callable[[int], None]) -> list[float]:
    times = []
    for run in range(REPEATS * 5):
        start = perf_counter()
        work(run)
        times.append(perf_counter() - start)
    return times


if __name__ == "__main__":
    for numbers in (1, SIZE):
        measure(numbers)
    for tags in (0, 10_000, 1_000_000):
        write(tags)
