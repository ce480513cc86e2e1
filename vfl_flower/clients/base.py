"""The party: its data, its memory of the run, and the steps it answers."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.typing import Array, Values


class PartyError(Exception):
    """A party refuses a step, with a sentence that is safe to send to the server.

    Its text names the rule, the argument or a column, never a value of the data, a
    path or a stack: it is the only exception whose text leaves the party.
    """


@dataclass(eq=False)
class Party:
    """The data of one organisation, and what it remembers during a run.

    Parameters
    ----------
    X : Array, shape (n, d)
        The party's columns; row i is the same entity at every party. Real, finite.
    y : Array, shape (n,), optional
        Labels, at the label holders only. Real and finite, or NaN for the rows of
        which this party does not know the label.
    ids : Array, shape (n,), optional
        Identifiers of the rows, distinct. Parties compare a digest of them.
    name : str, optional
        What reports and errors call this party; default ``party-<index>``.
    columns : sequence of str, optional
        Names of the columns of `X`; default: those of a DataFrame, or none.
    index : int, optional
        Place of the party in the run's order, from 0.
    ids_digest : str, optional
        Digest of `ids` where it is known already; computed from `ids` otherwise.
    state_dir : path, optional
        Folder, private to the party, in which its parts of models are kept; without
        one they are gone with the run.
    checked : bool
        Skip the checks: the loader did them when it wrote its cache.

    Attributes
    ----------
    seed, n_parties : int
        Seed of the run, and number of parties T; set before each step.
    secret : int
        The party's own part of the seed of its streams; 0 where the run repeats.
    share_rows : int or None
        Of how many rows it sends the values, or what is nearly as good, in one run at
        most; None: any number.
    allow_plain : bool
        Whether the party takes part in protocols that do not protect it.
    encoding : dict or None
        How the columns of its file became those of `X`; kept with its part of a model.
    cache : dict
        What a step computes for the next one of the same process, to be computed again
        where it is not there.
    part : dict
        The party's part of a model: what a training step leaves in it is kept, and is
        here again when the model predicts.
    state : dict
        What the steps of one run remember from message to message: small, since it
        crosses a process with each of them. It stays in the SuperNode's memory.
    predictions : Array or None, shape (m,)
        What a step leaves here is written to a file in `state_dir`.
    predicted : Array of int or None, shape (m,)
        Rows that they are of; None: all.
    model : str
        Number of the model that they are by, if it is not that of the run.
    drop_cache : callable or None
        Removes the cached copy of its file, which has rows that it must forget.
    row_ids : callable or None
        Returns the ids of the rows where they are not in memory.

    Raises
    ------
    ValueError
        `X` is not a non-empty real matrix, a value is missing or infinite, `y` or
        `ids` has another length, or an id stands twice.
    """

    X: Array
    y: Array | None = None
    ids: Array | None = None
    name: str | None = None
    columns: Sequence[str] | None = None
    index: int | None = None
    ids_digest: str | None = None
    state_dir: Path | None = None
    checked: InitVar[bool] = False
    n_parties: int = field(default=0, init=False)
    seed: int = field(default=0, init=False)
    secret: int = field(default=0, init=False, repr=False)
    share_rows: int | None = field(default=None, init=False)
    allow_plain: bool = field(default=False, init=False)
    encoding: dict[str, Any] | None = field(default=None, init=False, repr=False)
    cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    part: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    state: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    predictions: Array | None = field(default=None, init=False, repr=False)
    predicted: Array | None = field(default=None, init=False, repr=False)
    model: str = field(default="", init=False, repr=False)
    drop_cache: Callable[[], None] | None = field(default=None, init=False, repr=False)
    row_ids: Callable[[], Sequence[str] | None] | None = field(
        default=None, init=False, repr=False
    )

    def __post_init__(self, checked: bool) -> None:
        """Check the data once, when the party is made."""
        if not checked:
            self._check()
        if self.state_dir is not None:
            self.state_dir = Path(self.state_dir)
        if self.ids is not None and self.ids_digest is None:
            self.ids_digest = digest_ids(self.ids)

    def _check(self) -> None:
        who = f"party {self.name!r}" if self.name else "the party"
        if self.columns is None and hasattr(self.X, "columns"):  # a DataFrame
            self.columns = self.X.columns
        if self.columns is not None:
            self.columns = [str(name) for name in self.columns]
        self.X = np.asarray(self.X)
        if self.X.ndim != 2 or 0 in self.X.shape:
            raise ValueError(
                f"X of {who} must be a matrix with at least one row and one column, "
                f"got shape {self.X.shape}"
            )
        _check_real(self.X, f"X of {who}")
        if self.y is not None:
            self.y = np.asarray(self.y)
            if self.y.shape != (len(self.X),):
                raise ValueError(
                    f"y of {who} must have one label for each of the {len(self.X)} "
                    f"rows, got shape {self.y.shape}"
                )
            _check_labels(self.y, f"y of {who}")
        if self.ids is not None:
            self.ids = np.asarray(self.ids)
            if self.ids.shape != (len(self.X),):
                raise ValueError(
                    f"ids of {who} must have one id for each of the {len(self.X)} "
                    f"rows, got shape {self.ids.shape}"
                )
            repeated = len(self.ids) - len(np.unique(self.ids))
            if repeated:
                raise ValueError(
                    f"ids of {who} must be distinct, {repeated} rows repeat an id"
                )
        if self.columns is not None and len(self.columns) != self.X.shape[1]:
            raise ValueError(
                f"columns of {who} must name each of the {self.X.shape[1]} columns of "
                f"X, got {len(self.columns)} names"
            )

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""
        return len(self.X)

    @property
    def n_labels(self) -> int:
        """Number of rows whose label this party knows."""
        return 0 if self.y is None else int(np.count_nonzero(~np.isnan(self.y)))

    def share(self, rows: Array) -> None:
        """Count rows of which more than sums leaves the party in this run.

        Raises
        ------
        PartyError
            They are more than `share_rows`.
        """
        if self.share_rows is None:
            return
        packed = self.state.get("shared", np.zeros(-(-self.n_rows // 8), np.uint8))
        shared = np.unpackbits(packed, count=self.n_rows)
        shared[rows] = 1
        if shared.sum() > self.share_rows:
            raise PartyError(
                f"this party's share-rows lets {self.share_rows} rows leave it in one "
                f"run, this one asks for {shared.sum()}"
            )
        self.state["shared"] = np.packbits(shared)

    def rng(self, stream: str) -> np.random.Generator:
        """Return the generator of one named stream of this party in this run.

        It depends on (seed, party, stream) alone, and where the run has no seed on a
        secret of the party: a step that is asked twice draws the same, in process, in
        Ray and on a SuperNode.
        """
        if self.index is None:
            raise RuntimeError("a party has a generator only inside a step of a run")
        entropy = [self.seed, self.index, zlib.crc32(stream.encode())]
        entropy += [self.secret] if self.secret else []
        return np.random.default_rng(np.random.SeedSequence(entropy))


StepFunction = Callable[..., Values]


@dataclass(frozen=True)
class Step:
    """A function that a party runs when the server asks for `action`.

    Attributes
    ----------
    action : str
        The name that the server asks for.
    function : callable
        Takes the party and the values of the message by name; returns values.
    sums : tuple of str
        Names in the reply that leave the party only under a mask. The party's code
        says so, not the server. ``angles_*`` stands for all that begin so.
    sealed : tuple of str
        Those of them of which only a party may learn the sum, not the server.
    secrets : tuple of str
        Bytes in the reply for all other parties, which leave it encrypted for each; or
        in the message, which another party has encrypted.
    """

    action: str
    function: StepFunction
    sums: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def hides(self, name: str) -> bool:
        """Return whether `name` leaves the party only under a mask."""
        return any(fnmatchcase(name, pattern) for pattern in self.sums + self.sealed)

    def seals(self, name: str) -> bool:
        """Return whether the sum called `name` is not for the server."""
        return any(fnmatchcase(name, pattern) for pattern in self.sealed)


STEPS: dict[str, Step] = {}


def step(
    action: str,
    *,
    sums: Sequence[str] = (),
    sealed: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> Callable[[StepFunction], StepFunction]:
    """Register a plain function as the client's side of `action`.

    Parameters
    ----------
    action : str
        A Python identifier, prefixed by the algorithm: ``coresets_totals``.
    sums : sequence of str
        Real arrays in the reply of which the server may learn the sum over all
        parties and nothing else.
    sealed : sequence of str
        Arrays in the reply of which one party may learn the sum, and the server not
        even that.
    secrets : sequence of str
        Bytes in the reply for all other parties, or in the message from one of them,
        and not for the server.

    Examples
    --------
    >>> @step("example_mean", sums=("total",))
    ... def mean(party):
    ...     return {"total": party.X.mean(axis=1)}
    """

    def register(function: StepFunction) -> StepFunction:
        if action in STEPS:
            raise ValueError(f"action {action!r} has a step already")
        STEPS[action] = Step(
            action, function, tuple(sums), tuple(sealed), tuple(secrets)
        )
        return function

    return register


def _check_real(values: Array, what: str) -> None:
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{what} must hold real numbers, got dtype {values.dtype}")
    # One pass without a mask of n x d: a sum is finite only if each value is, and
    # where it is not (it may have overflowed) the rows are looked at in blocks.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):
            return
    missing = sum(
        int((~np.isfinite(values[start : start + 65536])).sum())
        for start in range(0, len(values), 65536)
    )
    if missing:
        raise ValueError(
            f"{what} must have no missing or infinite value, {missing} found"
        )


def _check_labels(y: Array, what: str) -> None:
    if y.dtype.kind == "f":
        if np.isnan(y).all():
            raise ValueError(f"{what} must have at least one label, all are missing")
        y = y[~np.isnan(y)]
    _check_real(y, what)


def digest_ids(ids: Array) -> str:
    """Return the SHA-256 of the ids in their order, as text, so that 7 equals "7".

    Parameters
    ----------
    ids : Array, shape (n,)
        Integers or strings.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    sha = hashlib.sha256()
    for value in ids.tolist():
        text = str(value).encode()
        sha.update(b"%d:%b" % (len(text), text))
    return sha.hexdigest()


__all__ = ["STEPS", "Party", "PartyError", "Step", "digest_ids", "step"]
