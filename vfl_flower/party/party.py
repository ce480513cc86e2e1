"""The party: its data, and its memory of the run."""

from __future__ import annotations

import hashlib
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, dataclass_transform

import numpy as np

from vfl_flower.party.consent import Consent, Releases
from vfl_flower.party.row_order import RowOrder
from vfl_flower.protocol.contract import Sizes, fields_of, flat, restore
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.names import MOST_OF_NAME, is_name
from vfl_flower.protocol.normal import normal_ids, size_fault
from vfl_flower.protocol.terms import Kind
from vfl_flower.rows import Rows, as_rows, check_index, indexed, is_whole, number_array
from vfl_flower.secure_aggregation import labels, masks
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

S = TypeVar("S")

MOST_NUMBERS = 2**22
"""Number of values that every party accepts in one argument; see `Party.afford`."""


@shapes_only
@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of a step, which stay at the party."""

    values: Array  # labels or numbers, shape (m,)
    rows: Array | None = None  # the party's rows with a prediction, (m,); None: all
    model: str = ""  # id of the model that predicted them, unless the run trained it
    more: Mapping[str, Array] = field(default_factory=dict)
    """Further strings or numbers for each row, shape (m,), by name: classes, scores."""


class RowSets(Protocol):
    """The guard that checks each set of rows that the party adds up for others."""

    def check(
        self, rows: Array | None, weights: Array | None, *, by_choice: bool
    ) -> None:
        """Record a set of rows, or refuse it; see :meth:`Party.sum_over`."""


class Source(Protocol):
    """The source of a party's rows."""

    def read_ids(self) -> Sequence[str] | None:
        """Return the ids of the rows as text; None if the rows have no ids."""

    def drop_cache(self) -> None:
        """Remove cached copies of the rows: some rows may have to be forgotten."""


@dataclass(eq=False, repr=False)
class Party:
    """The data of one organisation, and its state during a run.

    Parameters
    ----------
    X : Array or Rows, shape (n, d)
        The party's columns, real and finite; row i is the same entity at every party.
        The rows need not be in memory.
    y : Array, shape (n,), optional
        Labels, at the label holders only. Real and finite, or NaN for rows whose label
        this party does not know.
    ids : Array, shape (n,), optional
        Distinct identifiers of the rows. Parties compare a digest of them.
    name : str, optional
        Name of this party in reports and errors; default ``party-<index>``.
    columns : sequence of str, optional
        Names of the columns of `X`; default: the column names of a DataFrame, or none.
    index : int, optional
        Position of the party in the order of the run, starting at 0.
    ids_digest : str, optional
        Digest of `ids`, if already known; otherwise computed from `ids`.
    state_dir : path, optional
        Private folder in which the party stores its local models; without this folder,
        the models are lost when the run ends.
    consent : Consent, optional
        The values that may leave the party besides sums over three or more parties;
        default: no values, or all values if the run takes place in one process.
    checked : bool
        Whether to skip the checks, as the loader does for data from its cache.

    Attributes
    ----------
    seed, n_parties : int
        Seed of the run, and number of parties; set before each step.
    session : int
        Number of the run.
    names : sequence of str
        Names of the parties in the order of the run, as the parties have signed them;
        empty if the parties sign nothing.
    run_secret : bytes
        Random bytes from which this party derives keys in this run, independent of the
        seed and unchanged if a step is repeated. Values that leave the party may depend
        on them only through a key.
    part : dict
        The party's local model: if a training step assigns a new local model, it is
        stored, and is available here again when the model predicts.
    predictions : Predictions or None
        If a step assigns predictions, they are written to a file in `state_dir`.
    cache : dict
        Results that a step stores for later steps in the same process; later steps
        compute them again if they are missing.

    Raises
    ------
    ValueError
        `X` is not a non-empty real matrix; a value is missing, masked or infinite; `y`
        or `ids` differs from `X` in length or pandas index; or an id is missing or
        repeated.

    Examples
    --------
    >>> import numpy as np
    >>> party = Party(np.eye(3), y=[0.0, 1.0, 1.0], ids=["a", "b", "c"], name="clinic")
    >>> party.take(np.array([2, 0])).y.tolist()
    [1.0, 0.0]
    """

    X: Array | Rows
    y: Array | None = None
    ids: Array | None = None
    name: str | None = None
    columns: Sequence[str] | None = None
    index: int | None = None
    ids_digest: str | None = None
    state_dir: Path | None = None
    consent: Consent | None = None
    checked: InitVar[bool] = False
    n_parties: int = field(default=0, init=False)
    seed: int = field(default=0, init=False)
    private_draws: bool = field(default=False, init=False)
    """Whether `run_secret` determines the random streams, as in runs without a seed."""
    run_secret: bytes = field(default=b"", init=False)
    session: int = field(default=0, init=False)
    keys_digest: bytes = field(default=b"", init=False)
    """Digest of all parties' public keys, which are new in each session."""
    names: Sequence[str] = field(default=(), init=False)
    agree: Callable[[int], bytes] | None = field(default=None, init=False)
    """Maps a peer's index to 32 bytes that only that peer and this party know."""
    allow_plain: bool = field(default=False, init=False)
    """Whether the party takes part in protocols that do not protect its data."""
    encoding: dict[str, Any] | None = field(default=None, init=False)
    """The conversion of the file's columns to the columns of `X`; stored with local
    models."""
    cache: dict[str, Any] = field(default_factory=dict, init=False)
    part: dict[str, Any] = field(default_factory=dict, init=False)
    predictions: Predictions | None = field(default=None, init=False)
    new_order: tuple[RowOrder, bool] | None = field(default=None, init=False)
    """A row order to store in `state_dir`, and whether runs may use it at once."""
    source: Source | None = field(default=None, init=False)
    """The source of the rows; None if the caller passed the rows."""
    shared: dict[str, Array] = field(default_factory=dict, init=False)
    """Rows that :meth:`share` has counted in the run, by kind; bool, shape (n,)."""
    releases: Releases | None = field(default=None, init=False)
    row_sets: RowSets | None = field(default=None, init=False)  # None in one process
    order_key: str | None = field(default=None, init=False)
    """Text that depends on the row order, if the parties have aligned their rows."""
    row_labels: Any = field(default=None, init=False)  # index of a DataFrame
    _states: dict[str, Any] = field(default_factory=dict, init=False)
    _stored: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    def __post_init__(self, checked: bool) -> None:
        """Check the data once, when the party is created."""
        if not checked:
            self._check()
        if self.state_dir is not None:
            self.state_dir = Path(self.state_dir)
        if self.ids is not None and self.ids_digest is None:
            self.ids_digest = digest_ids(self.ids)

    def __repr__(self) -> str:
        """Return the party's name and the sizes of its data, without any value."""
        named = "" if self.name is None else f"{self.name!r}: "
        labels = "" if self.y is None else f", {self.n_labels} labels"
        rows, columns = self.X.shape
        ids = ", ids" if self.ids_digest is not None else ""
        return f"Party({named}{rows} rows, {columns} columns{labels}{ids})"

    def _check(self) -> None:
        if self.name is not None and not is_name(self.name):
            raise ValueError(
                f"name must be 1 to {MOST_OF_NAME} printable characters, got "
                f"{str(self.name)[:40]!r}"
            )
        who = f"party {self.name!r}" if self.name else "the party"
        if self.index is not None and not (is_whole(self.index) and self.index >= 0):
            raise ValueError(f"index of {who} must be a whole number, 0 or more")
        if self.consent is not None and not isinstance(self.consent, Consent):
            raise ValueError(f"consent of {who} must be a Consent or None")
        for name in ("X", "y", "ids"):  # of Arrow or Polars
            if hasattr(value := getattr(self, name), "to_pandas"):
                setattr(self, name, value.to_pandas())
        if self.columns is None and hasattr(self.X, "columns"):  # a DataFrame
            self.columns = self.X.columns
        if self.columns is not None:
            if isinstance(self.columns, str | set | frozenset):
                raise ValueError(f"columns of {who} must be a list of names")
            self.columns = [str(name) for name in self.columns]
            if len(set(self.columns)) < len(self.columns):
                raise ValueError(f"columns of {who} must be distinct names")
        self.row_labels = getattr(indexed([self.X]), "index", None)
        check_index(self.X, self.y, f"y of {who}")
        check_index(self.X, self.ids, f"ids of {who}")
        if not isinstance(self.X, Rows):
            self.X = number_array(self.X, f"X of {who}")
        if len(self.X.shape) != 2 or 0 in self.X.shape:
            raise ValueError(
                f"X of {who} must be a matrix with at least one row and one column, "
                f"got shape {self.X.shape}"
            )
        if isinstance(self.X, Rows):
            _check_finite(self.X, f"X of {who}")
        else:
            _check_real(self.X, f"X of {who}")
        if self.y is not None:
            self.y = number_array(self.y, f"y of {who}")
            self._check_length(self.y, f"y of {who} must have one label")
            _check_labels(self.y, f"y of {who}")
        if self.ids is not None:
            if np.ma.is_masked(self.ids):
                raise ValueError(f"ids of {who} must have no masked value")
            given, self.ids = np.asarray(self.ids, object), np.asarray(self.ids)
            self._check_length(self.ids, f"ids of {who} must have one id")
            texts, fault = normal_ids(given)
            if fault:
                raise ValueError(f"ids of {who} {fault}")
            if self.ids.dtype.kind == "O":
                self.ids = np.array([str(value) for value in given.tolist()])
            if repeated := len(texts) - len(set(texts)):
                rule = f"must be distinct, got {repeated} repeated"
                raise ValueError(f"ids of {who} {rule}")
        if self.columns is not None and len(self.columns) != self.X.shape[1]:
            raise ValueError(
                f"columns of {who} must name each of the {self.X.shape[1]} columns of "
                f"X, got {len(self.columns)} names"
            )

    def _check_length(self, values: Array, rule: str) -> None:
        if values.shape != (len(self.X),):
            raise ValueError(
                f"{rule} for each of the {len(self.X)} rows, got shape {values.shape}"
            )

    def take(self, rows: Array) -> Party:
        """Return a party in memory with some of this party's rows, in the order given.

        Parameters
        ----------
        rows : Array of int, shape (m,)
            Row numbers, from 0.
        """
        return replace(
            self,
            X=self.rows.take(rows),
            y=None if self.y is None else self.y[rows],
            ids=None if self.ids is None else self.ids[rows],
            ids_digest=None,
        )

    @property
    def rows(self) -> Rows:
        """The rows of `X`, which steps read in blocks, by row number, or as sums."""
        return as_rows(self.X)

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""
        return len(self.X)

    @property
    def columns_digest(self) -> str:
        """A digest of the column names; "" if the columns have no names."""
        return digest_ids(np.array(self.columns)) if self.columns else ""

    @property
    def sizes(self) -> Sizes:
        """The sizes that the contract of a step can name."""
        rows, columns = self.X.shape
        return {"n_rows": rows, "n_columns": columns, "n_parties": self.n_parties}

    @property
    def order_name(self) -> str | None:
        """Text that depends on the row ids and their order; None without ids."""
        return self.order_key or self.ids_digest

    @property
    def n_labels(self) -> int:
        """Number of rows whose label this party knows."""
        return 0 if self.y is None else int(np.count_nonzero(~np.isnan(self.y)))

    @property
    def gaps(self) -> bool:
        """Whether `X` has missing values, which a run must fill first."""
        entries = (self.encoding or {}).get("columns", ())
        return any(entry.get("later") for entry in entries)

    def lets(self, kind: Kind) -> bool:
        """Return whether the party's consent lets a kind of value leave the party."""
        return self.consent is None or kind in self.consent.leaves

    def reveal(self, kind: Kind, again: bool = False, times: int = 1) -> None:
        """Check that a kind may leave, before a step reveals it, and count the kind.

        `again` states that the kind was counted before. Raises PartyError if the
        consent does not allow this kind to leave, or to leave this often.
        """
        if (counter := self._counter()) is None:
            return
        if again:
            counter.consent.limit(kind)
        else:
            counter.count(kind, times)

    def share(self, rows: Array, kind: Kind) -> None:
        """Count the rows whose values leave; raise PartyError above the limit."""
        if (counter := self._counter()) is not None:
            counter.add(kind, rows)

    def _counter(self) -> Releases | None:
        """Return the counter of releases; None if the party has no consent."""
        if self.releases is None and self.consent is not None:
            self.releases = Releases(self.consent, self.shared, self.n_rows)
        return self.releases

    def sum_over(
        self,
        rows: Array | None = None,
        weights: Array | None = None,
        *,
        by_choice: bool = False,
    ) -> None:
        """Raise PartyError unless a step may add up these rows for others.

        rows: row numbers, shape (m,), possibly repeated; default: all session rows.
        weights: weights of these rows, shape (m,); default: 1.
        by_choice: whether the party itself has removed or added rows; the set is then
            recorded, and may differ from an earlier set by only a few rows.

        Raises PartyError, with details in the log, if there are too few rows, if too
        few of them differ from the rows of an earlier sum, or if the parties changed.
        """
        if self.row_sets is not None:
            chosen = None if rows is None else rows.astype(np.intp)
            self.row_sets.check(chosen, weights, by_choice=by_choice)

    def tags(self, rows: Array, key: bytes) -> Array:
        """Return the sorted tags (uint64) that identify rows over the life of the data.

        They are hashes of ids under `key`, which only the party knows. Raises
        PartyError if the rows have no ids.
        """
        ids = self.read_ids()
        if ids is None:
            raise PartyError(
                "a limit over the life of the data needs ids (id-column), which "
                "identify this party's rows in later runs"
            )
        texts = (str(ids[row]).encode() for row in rows.tolist())
        hashes = [hashlib.blake2b(t, digest_size=8, key=key).digest() for t in texts]
        return np.unique(np.frombuffer(b"".join(hashes), dtype="<u8"))

    def afford(self, name: str, rows: int, width: int) -> None:
        """Refuse disproportionate work: it costs a sender little to repeat rows.

        `name` is the argument that holds the rows; each row has `width` numbers.
        Raises PartyError if `rows` is more than twice the number of the party's rows,
        and `rows` times `width` is above `MOST_NUMBERS`.
        """
        most = max(2 * self.n_rows, MOST_NUMBERS // max(width, 1))
        if rows > most:
            raise PartyError(
                f"{name} must have at most {most} rows (twice as many as the party "
                f"has, or 2^22 numbers if this is more), got {rows} rows with {width} "
                "numbers each"
            )

    def remember(self, state: object) -> None:
        """Store a state for later steps, replacing an earlier state of the same class.

        The state should be small, since each message carries it between processes.
        Raises TypeError if the class is not declared with :func:`stored_as`, or has a
        field that no message can carry.
        """
        name = _name_of(type(state))
        fields_of(type(state))
        self._states[name] = state

    def recall(self, kind: type[S], first: S | None = None) -> S:
        """Return the state that an earlier step stored; in-place changes are stored.

        Raises PartyError if no step has stored an instance of `kind`, unless `first` is
        given: then `first` is stored.
        """
        name = _name_of(kind)
        if name not in self._states:
            if name in self._stored:
                entries = {k: v for k, v in self._stored[name].items() if k}
                self._states[name] = restore(kind, entries)
            elif first is not None:
                self._states[name] = first
            else:
                raise PartyError(
                    "this step needs the state of an earlier step, but the server has "
                    "not requested that step"
                )
        state: S = self._states[name]
        return state

    def forget(self, kind: type) -> None:
        """Remove the stored state of a class."""
        name = _name_of(kind)
        self._states.pop(name, None)
        self._stored.pop(name, None)

    def resume(self, stored: dict[str, Any]) -> None:
        """Restore the states that :meth:`remembered` returned after an earlier step."""
        self._states, self._stored = {}, {}
        for place, value in stored.items():
            name, _, key = place.partition("/")
            self._stored.setdefault(name, {})[key] = value

    def remembered(self) -> dict[str, Any]:
        """Return the states that steps have stored: arrays and scalars by kind/name."""
        stored = {n: v for n, v in self._stored.items() if n not in self._states}
        stored |= {n: {"": True} | flat(state) for n, state in self._states.items()}
        return {f"{n}/{key}": v[key] for n, v in stored.items() for key in v}

    def read_ids(self) -> Sequence[Any] | Array | None:
        """Return the row ids, from the data file if there is one."""
        return self.ids if self.source is None else self.source.read_ids()

    def rng(self, stream: str) -> np.random.Generator:
        """Return the random generator of one named stream of this party in this run.

        The draws depend only on (seed, party, stream), or on a key of the stream if the
        run has no seed, so a repeated step draws the same numbers.
        """
        if self.index is None:
            raise RuntimeError("rng must be called inside a step of a run")
        entropy = [self.seed, self.index, zlib.crc32(stream.encode())]
        if self.private_draws:
            parts = [labels.RANDOM_STREAM, stream.encode()]
            entropy = [int.from_bytes(masks.derive_key(self.run_secret, parts))]
        return np.random.default_rng(np.random.SeedSequence(entropy))

    def secret_bytes(self, stream: str, size: int) -> bytes:
        """Return secret bytes from one named stream, the same at each call.

        If the run has no seed, the bytes come from a cipher, and the draws of
        :meth:`rng` do not reveal them.
        """
        if self.index is None or not self.private_draws:
            return self.rng(stream).bytes(size)
        parts = [labels.SECRET_DRAW, stream.encode()]
        return masks.stream(self.run_secret, parts)(size)


_NAMES: dict[type, str] = {}
"""The names under which classes of states are stored."""


@dataclass_transform(field_specifiers=(field,))
def stored_as(name: str) -> Callable[[type[S]], type[S]]:
    """Turn a class into a dataclass that :meth:`Party.remember` stores under a name.

    Keep the name if the class moves: a journal may contain a state of an older version.
    Raises ValueError for a name with "/", or for the name of a different class.
    """
    if "/" in name or name in _NAMES.values():
        raise ValueError(f"name must be unused and contain no '/', got {name!r}")

    def declare(cls: type[S]) -> type[S]:
        _NAMES[cls] = name
        return shapes_only(dataclass(cls))

    return declare


def _name_of(kind: type) -> str:
    if kind not in _NAMES:
        raise TypeError(f"a state's class must be declared with stored_as, got {kind}")
    return _NAMES[kind]


def _check_real(values: Array, what: str) -> None:
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{what} must hold real numbers, got dtype {values.dtype}")
    # One pass without a mask of n x d: a sum is finite only if each value is. An
    # infinite sum may also be an overflow, so the rows are then checked in blocks.
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(values.sum(dtype=np.float64))
    if not finite:
        _check_finite(as_rows(values.reshape(len(values), -1)), what)
    if values.dtype.kind == "f" and values.size:
        largest = np.maximum(values.max(axis=0), -values.min(axis=0))
        if fault := size_fault(largest):
            raise ValueError(f"{what} {fault}")


def _check_finite(rows: Rows, what: str) -> None:
    def count(_: slice, values: Array) -> int:
        return int((~np.isfinite(values)).sum())

    if missing := rows.map_reduce(count, operator.add, 0):
        rule = "must have no missing or infinite value"
        raise ValueError(f"{what} {rule}, {missing} found")


def _check_labels(y: Array, what: str) -> None:
    if y.dtype.kind == "f":
        if np.isnan(y).all():
            raise ValueError(f"{what} must have at least one label, got none")
        y = y[~np.isnan(y)]
    _check_real(y, what)


def digest_ids(ids: Array) -> str:
    """Return the hexadecimal SHA-256 of ids as text, in order: 7 equals "7"."""
    sha = hashlib.sha256()
    for value in ids.tolist():
        text = str(value).encode()
        sha.update(b"%d:%b" % (len(text), text))
    return sha.hexdigest()


__all__ = ["Party", "PartyError", "Predictions", "digest_ids", "stored_as"]
