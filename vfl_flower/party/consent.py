"""A party's consent: rules, in its own file, for the values that may leave the party.

Sums over three or more parties, and the few numbers that each step declares, may always
leave a party. Every other value belongs to a kind in
:data:`~vfl_flower.protocol.terms.KINDS`, and the party's ``consent.toml`` must name
that kind. This file can also limit the number of different rows that leave in one run
and over the life of the data. A request for a kind without consent is refused before
the step starts; a request for too many rows is refused inside the step, when it calls
``party.share``.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Ge

from vfl_flower.protocol.contract import ContractError, fields_of, restore, structure
from vfl_flower.protocol.errors import PartyError, refusing, refusing_files
from vfl_flower.protocol.settings import Count, Natural
from vfl_flower.protocol.terms import (
    KINDS,
    LEAST_PARTIES,
    LEAST_ROWS,
    SERVER,
    Computing,
    Kind,
    Terms,
)
from vfl_flower.secure_aggregation.keys import parse_key
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

_WITHOUT_ROWS = frozenset({"totals", "coefficients", "moments", "curves"})
"""Kinds that do not describe single rows: limits count how often they leave."""

MOST_BYTES = 2**20  # maximum size of a ``consent.toml``, in bytes


@dataclass(frozen=True)
class Limit:
    """Bounds on rows, columns or disclosures of one kind; None: no bound."""

    run: Count | None = None  # in one run
    life: Count | None = None  # in all runs, over the life of the data
    rows: Natural | None = None
    """For `moments`: minimum number of rows of a Gram matrix; None: 4 for each column,
    but at least 20."""


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """The keys of a ``consent.toml`` that are not in a table."""

    strategies: list[str] | None = None
    tasks: list[str] | None = None
    dealers: list[str] | None = None
    computes: list[str] | None = None
    changed_parties: list[str] | None = None
    min_parties: Annotated[int, Ge(LEAST_PARTIES)] = LEAST_PARTIES
    two_parties: bool = False
    allow_seed: bool = False
    trust_on_first_use: bool = False
    column_names: bool = False
    max_round_trips: Natural | None = None
    max_bytes: Natural | None = None
    max_refusals: Natural = 100
    min_changed_rows: Natural = LEAST_ROWS
    most_row_sets: Natural | None = None
    accept_alignments: list[Literal["server"]] | None = None


@dataclass(frozen=True, kw_only=True)
class Consent(_Rules):
    """The runs that a party takes part in, and the values that may leave the party.

    Attributes
    ----------
    strategies, tasks : list of str or None
        Strategies and tasks that the party takes part in, by their names in the run
        config; None means all.
    dealers : list of str or None
        Names of parties, or "server", that may generate the correlated randomness for
        products of secret shares. None means the server, in runs of three or more
        parties.
    computes : list of str or None
        Names of the parties that may compute such products together with the label
        holder. None means the first party other than the label holder and the dealer.
    changed_parties : list of str or None
        Names of parties that may join or leave between sums over the same rows: the
        difference between two such sums reveals the contribution of the named party.
    min_parties : int
        Minimum number of parties in a run.
    two_parties : bool
        Whether to take part in runs with only one other party. The other party can then
        compute this party's contribution to each sum that the other party learns.
    allow_seed : bool
        Whether to take part in runs whose seed the server knows.
    trust_on_first_use : bool
        Whether to pin a peer's key, if `peers` does not list it, on the first run with
        that peer.
    column_names : bool
        Whether to send the server the column names, not only their digests, if parties
        hold different rows.
    max_round_trips, max_bytes : int or None
        Maximum number of messages answered in one run, and maximum size of the replies
        in bytes.
    max_refusals : int
        Number of refused messages, over all runs, after which the party answers no more
        messages.
    min_changed_rows : int
        Minimum number of rows by which the row sets of two sums must differ, unless the
        sets are equal.
    most_row_sets : int or None
        Maximum number of different row sets whose sums may leave the party, over the
        life of the data; None means a twentieth of the number of rows, but at least 30.
    accept_alignments : list of str or None
        ``["server"]``: the server may accept a row order, as may the party's operator.
        None means that only the operator may accept a row order.
    leaves : mapping of str to Limit
        The kinds of values, from :data:`KINDS`, that may leave the party.
    peers : mapping of str to str, or None
        Public keys of the other parties by their names; None means that keys are not
        checked.

    Examples
    --------
    >>> table = {"min-parties": 4, "leaves": {"moments": {"life": 600}}}
    >>> consent = Consent.parse(table)  # consent.toml
    >>> consent.min_parties, consent.leaves["moments"].life
    (4, 600)
    >>> sorted(set(ALLOW_ALL.leaves) - set(consent.leaves))[:2]
    ['angles', 'centroids']
    """

    leaves: Mapping[str, Limit] = field(default_factory=dict)
    peers: Mapping[str, str] | None = field(default_factory=dict)

    def takes_part(self, strategy: str, task: str) -> bool:
        """Return whether the party takes part in a task of a strategy."""
        rules = (strategy, self.strategies), (task, self.tasks)
        return all(names is None or name in names for name, names in rules)

    def lacks_names(
        self, computing: Computing, parties: int, first: bool = False
    ) -> list[str]:
        """Return the lines that the consent lacks for the computing roles of a run.

        `parties` is the number of parties of the run; `first` states whether the
        computing party is the first party other than the label holder and the dealer.
        """
        served = computing.dealer == SERVER and parties >= LEAST_PARTIES
        lines = []
        for key, names, name, usual in (
            ("dealers", self.dealers, computing.dealer, served),
            ("computes", self.computes, computing.computes, first),
        ):
            unnamed = usual or self.peers is None  # a run in one process
            accepted = unnamed if names is None else name in names
            if name is not None and not accepted:
                lines.append(f"{key} = [{json.dumps(name, ensure_ascii=False)}]")
        return lines

    def accepts_change_of(self, name: str) -> bool:
        """Return whether a party may join or leave between sums over the same rows."""
        return self.peers is None or name in (self.changed_parties or ())

    @property
    def least_parties(self) -> int:
        """Minimum number of parties in a run; 2 if `two_parties` is true."""
        return 2 if self.two_parties else self.min_parties

    @classmethod
    def load(cls, path: str | Path) -> Consent:
        """Read a ``consent.toml``.

        Raises
        ------
        PartyError
            The file does not exist, is too large, is writable by other users, or has an
            invalid key or value. The message names neither path nor value.
        """
        path = Path(path)
        what = "the consent file cannot be read"
        with refusing_files(what, path), path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise PartyError(f"the consent file must have at most {MOST_BYTES} bytes")
        with refusing("the consent file must be TOML: "):
            tables = tomllib.loads(content.decode("utf-8-sig"))
        writers = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if writers or status.st_uid not in (os.geteuid(), 0):
            raise PartyError(
                "the consent file must belong to the user who runs the SuperNode, and "
                "no other user may have write access to it (chmod 600)"
            )
        return cls.parse(tables)

    @classmethod
    def parse(cls, tables: Mapping[str, Any]) -> Consent:
        """Return the consent that the tables of a ``consent.toml`` describe.

        Raises
        ------
        PartyError
            A key or a value is invalid.
        """
        rules = dict(tables)
        leaves, peers = rules.pop("leaves", {}), rules.pop("peers", {})
        keys = {name.replace("_", "-"): f for name, f in fields_of(_Rules).items()}
        with refusing("consent: "):
            for key in tables:
                if "_" in key:
                    raise ContractError(f"{key!r} must be written with '-', not '_'")
            if rules.pop("parties-may-leave", False) is not False:  # an old key
                raise ContractError(
                    "'parties-may-leave' must be false or left out, since every run "
                    "needs all of its parties until the end"
                )
            given = structure(keys, rules, {})
            if not isinstance(leaves, Mapping):
                raise ContractError("'leaves' must be a table")
            named = {kind: _limit(kind, value) for kind, value in leaves.items()}
            if not isinstance(peers, Mapping) or {*map(type, peers.values())} - {str}:
                raise ContractError("'peers' must be a table of names and keys")
            for text in peers.values():
                parse_key(text)
            if given.get("two-parties") and given.get("min-parties", 0) > LEAST_PARTIES:
                raise ContractError(
                    "'two-parties' must be false if 'min-parties' is above "
                    f"{LEAST_PARTIES}, got min-parties = {given['min-parties']}"
                )
        plain = {key.replace("-", "_"): value for key, value in given.items()}
        limits = {kind: limit for kind, limit in named.items() if limit is not None}
        return cls(**plain, leaves=limits, peers=dict(peers))

    def limit(self, kind: Kind) -> Limit:
        """Return the limit of a kind; raise PartyError if the kind may not leave."""
        if kind not in self.leaves:
            raise PartyError(
                f"this party's consent does not allow {kind} ({KINDS[kind]}): add "
                f"'{kind} = true' or a limit to [leaves] in its consent.toml"
            )
        return self.leaves[kind]

    def lacks(self, terms: Terms) -> list[str]:
        """Return the lines that a ``consent.toml`` lacks for a run, possibly none."""
        lines = []
        if terms.parties < self.least_parties:
            two = terms.parties == 2 and self.min_parties == LEAST_PARTIES
            least = f"min-parties = {terms.parties}"
            lines.append("two-parties = true" if two else least)
        if terms.seeded and not self.allow_seed:
            lines.append("allow-seed = true")
        if terms.computing is not None:
            lines += self.lacks_names(terms.computing, terms.parties)
        leaves = [f"{kind} = true" for kind in terms.needs if kind not in self.leaves]
        return [*lines, *(["[leaves]"] if leaves else []), *leaves]


ALLOW_ALL = Consent(
    min_parties=1,
    allow_seed=True,
    column_names=True,
    leaves=dict.fromkeys(get_args(Kind), Limit()),
    peers=None,
)
"""The consent of simulated parties, whose data need no protection."""


def _limit(kind: str, value: object) -> Limit | None:
    if kind not in KINDS:
        rule = f"may have only the keys {', '.join(KINDS)}"
        raise ContractError(f"[leaves] {rule}, got {kind[:60]!r}")
    if isinstance(value, bool):
        return Limit() if value else None
    if not isinstance(value, Mapping) or not value:
        rule = "must be true, false or a table with 'run' and 'life'"
        raise ContractError(f"{kind} {rule}")
    limit = restore(Limit, value, {}, f"{kind}: ")
    if limit.rows is not None and kind != "moments":
        raise ContractError(f"{kind} must not have 'rows': only 'moments' can have it")
    return limit


def pack_rows(rows: Array) -> bytes:
    """Return a mask of rows, bool of shape (n,), packed as one bit for each row."""
    return np.packbits(rows).tobytes()


def unpack_rows(packed: bytes, n_rows: int) -> Array:
    """Return the mask of rows that :func:`pack_rows` packed."""
    bits = np.frombuffer(packed, dtype=np.uint8)
    return np.unpackbits(bits, count=n_rows).astype(bool)


@shapes_only
@dataclass(eq=False)
class Releases:
    """The rows that have left a party, by kind: in this run, and in all runs."""

    consent: Consent
    run: dict[str, Array]
    """Masks of the rows of this run, of shape (n,), changed in place."""
    n_rows: int
    life: Callable[[str], Array] | None = None
    """With a journal: maps a kind to the sorted tags of all rows that have left."""
    tags: Callable[[Array], Array] | None = None
    """With a journal: maps rows to their tags."""
    added: dict[str, Array] = field(default_factory=dict)
    """All tags of the kinds that this message reveals."""

    def count(self, kind: Kind, number: int = 1) -> None:
        """Count disclosures of a kind; raise PartyError above a limit.

        Kinds that describe single rows are counted in :meth:`add` instead.
        """
        limit = self.consent.limit(kind)
        if kind not in _WITHOUT_ROWS or limit.run is limit.life is None:
            return
        times = self._in_run(kind).copy()
        count = int(np.count_nonzero(times))  # one bit for each disclosure, as for rows
        ever = self._ever(kind, limit)
        most = len(times) if limit.run is None else min(limit.run, len(times))
        each = " (one for each column)" if kind == "moments" else ""
        for before, bound, when in (
            (count, most, "in a run"),
            (len(ever), limit.life, "over the life of its data"),
        ):
            if bound is not None and before + number > bound:
                raise PartyError(
                    f"this party's consent allows at most {bound} disclosures of {kind}"
                    f" {when}{each}; with this step, the total is {before + number}"
                )
        times[count : count + number] = True
        self.run[kind] = times
        new = np.frombuffer(secrets.token_bytes(8 * number), dtype="<u8")
        self.added[kind] = np.union1d(ever, new)

    def _in_run(self, kind: Kind) -> Array:
        return self.run.get(kind, np.zeros(self.n_rows, dtype=bool))

    def _ever(self, kind: Kind, limit: Limit) -> Array:
        if kind in self.added:
            return self.added[kind]
        if self.life is not None:
            return self.life(kind)
        if limit.life is not None:
            raise PartyError(
                f"state-dir must be set to limit {kind} over the life of the data"
            )
        return np.zeros(0, dtype="<u8")

    def add(self, kind: Kind, rows: Array) -> None:
        """Count rows that leave the party; raise PartyError above a limit."""
        limit = self.consent.limit(kind)
        if limit == Limit():
            return
        before = self._in_run(kind)
        after = before.copy()
        after[rows] = True
        count = np.count_nonzero(after)
        if limit.run is not None and count > limit.run:
            raise PartyError(
                f"this party's consent allows at most {limit.run} rows to leave the "
                f"party as {kind} in one run, but this run requests {count}"
            )
        if limit.life is not None:
            ever, new = self._ever(kind, limit), np.flatnonzero(after & ~before)
            if len(new):
                assert self.tags is not None  # always set together with `life`
                ever = np.union1d(ever, self.tags(new))
            if len(ever) > limit.life:
                raise PartyError(
                    f"this party's consent allows at most {limit.life} rows to leave "
                    f"the party as {kind} over the life of its data; with this run, "
                    f"the total is {len(ever)}"
                )
            self.added[kind] = ever
        self.run[kind] = after
