"""Histograms of shared columns over all parties' bins: a small strategy for tests.

Party 0 has labels and computes with party 1; further parties share their bins with
them. For each task party 0 shares some columns s, and opens the sums of their rows in
each bin of all parties. The server deals. A task takes two round trips: in the first,
party 0 opens the task before and masks its share of s; in the second, party 1
multiplies.
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, NotRequired, TypedDict

import numpy as np

from vfl_flower.models.base import UsedModel
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import OWN, PRIVATE, Whole
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import each, step_of, sums_over
from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.secure_aggregation.products.private import (
    PrivateProduct,
    bin_sums,
    deal_factor,
    deal_matrix,
    hide_matrix,
    one_hot,
)
from vfl_flower.secure_aggregation.products.ring import product
from vfl_flower.secure_aggregation.products.shares import (
    SEED_BYTES,
    Deal,
    Dealt,
    add,
    pack,
    subtract,
    unpack,
)
from vfl_flower.secure_aggregation.products.triples import SACRIFICED
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.typing import Array

step = step_of("histograms")

BITS, BINS, FRACTION, PROOFS = 48, 16, 20, 64
"""Width of the ring; bins of a column; fraction bits; bytes of two proofs."""

TASKS = (1, 2), (2, 8)
"""Number, and columns of s: of one node, and of four."""

DEALT: list[tuple[int, int]] = []
SENT: list[tuple[str, int, int]] = []
"""What the server deals and passes on: receiver (and name, before it), and bytes."""

OPENED: list[Array] = []
"""What party 0 has opened, uint64, (bins of all parties, columns of the task)."""

Dealing = Annotated[dict[int, Array] | None, Whole("*", 0, 256), OWN]
Passed = Annotated[dict[int, Array] | None, Whole("*", 0, 256), PRIVATE]


@stored_as("histograms")
class State:
    """What a computing party stores; matrices are of uint64."""

    shares: Array
    """Its shares of the bins of further parties, one-hot, (n, bins)."""
    opened: Array = field(default_factory=lambda: np.zeros((0, 0), "<u8"))
    """What the other one has opened of its matrix."""
    dealt: dict[int, Array] = field(default_factory=dict)
    """What it was dealt for the task, by the holder of the matrix."""


class Sent(TypedDict):
    """Reply of each step: bytes by their receiver."""

    bin_shares: NotRequired[Passed]
    bin_openings: NotRequired[Passed]
    first_factor: NotRequired[Passed]
    second_factor: NotRequired[Passed]


def uses(session: int, rows: int, columns: list[int]) -> list[Deal]:
    """Return the uses of the matrices of parties 0 and 1, by columns of each party."""
    first, second = (BINS * (own + sum(columns[2:])) for own in columns[:2])
    sizes = (first, (first, 0)), (second, (0, second))
    return [Deal(session, "bins", 0, 0, (rows, k), BITS, owners) for k, owners in sizes]


def factor(X: Array, y: Array, number: int) -> Array:
    """Return indicators u of nodes and their residuals u r, encoded, uint64, (n, m).

    Task 1 has the root, and task 2 four nodes by the first two columns of party 0.
    """
    nodes = (np.asarray(X)[:, :2] >= BINS // 2) @ [2, 1] * (number > 1)
    u = one_hot(nodes[:, None].astype(int), [4 if number > 1 else 1])
    r = np.rint(np.asarray(y) * 2.0**FRACTION).astype("<i8").view("<u8")
    return reduce(np.hstack([u, u * r[:, None]]), BITS)


def further(party: Party, columns: list[int], index: int) -> Deal:
    """Return the use of the shares of a further party's bins."""
    size = BINS * columns[index]
    return Deal(party.session, "share", 0, index, (party.n_rows, size), BITS)


def share_of(use: Deal, seed: bytes) -> Array:
    """Return the share that is expanded from a seed."""
    return use.elements(seed, "share", 0, use.shape)


class Computing:
    """A computing party, what it stores, and its part in both products of a task."""

    def __init__(self, party: Party, columns: list[int], number: int = 0) -> None:
        self.index, self.number, self.state = party.index, number, party.recall(State)
        self.deals = uses(party.session, party.n_rows, columns)
        self.bins = np.asarray(party.X, np.uint8)
        self.widths = [BINS] * columns[self.index]
        self.sizes = [BINS * count for count in columns[:2]]
        self.challenge = party.agree(1 - self.index)

    def blocks(self) -> Iterator[slice]:
        """Return the rows of each block."""
        return self.deals[0].blocks()

    def matrix(self) -> Iterator[Array]:
        """Yield the blocks of Z: its own bins, and its shares of those of others."""
        for rows in self.blocks():
            own = one_hot(self.bins[rows], self.widths)
            yield np.hstack([own, self.state.shares[rows]])

    def part(self, holder: int, columns: int) -> PrivateProduct:
        """Return its part in the product with the matrix of one of the two."""
        dealt = Dealt.unpack(self.state.dealt[holder])
        rest = self.index, dealt, self.number, columns
        return PrivateProduct(self.deals[holder], *rest)

    def opening(self, share: Array) -> Array:
        """Return its masked share of s, packed."""
        return pack(self.part(1 - self.index, share.shape[1]).opening(share), BITS)

    def multiply(self, share: Array, opening: Array) -> Array:
        """Return its share of the sums of all bins, and both proofs, packed.

        `opening` is what the other one has masked of s, packed.
        """
        parts = [self.part(holder, share.shape[1]) for holder in (0, 1)]
        # Both its own share and the masked one are multiplied by the same Z.
        values = add(share, unpack(opening, BITS, share.shape), bits=BITS)
        counts = bin_sums(self.bins, self.widths, values, BITS)
        shares = self.state.shares
        terms = (product(shares[r].T, values[r], BITS) for r in self.blocks())
        opened = (self.state.opened[rows] for rows in self.blocks())
        masked = parts[1 - self.index].masked_sums(opened)
        owned, shared, proofs = [], [], b""
        for holder, (part, size) in enumerate(zip(parts, self.sizes, strict=True)):
            holds = holder == self.index
            sums = part.share(np.vstack([counts, sum(terms)]) if holds else masked)
            proofs += part.proof(self.challenge, None if holds else masked)
            owned.append(sums[:size])
            shared.append(sums[size:])
        total = np.vstack([*owned, add(*shared, bits=BITS)])
        return np.concatenate([pack(total, BITS), np.frombuffer(proofs, "u1")])


@step
@sums_over("none", "it sends shares alone")
def share(party: Party, columns: list[int]) -> Sent:
    """Share the bins of a further party."""
    if party.index < 2:
        return {}
    use = further(party, columns, party.index)
    seed = use.seed(party.run_secret, 1)
    bins = one_hot(np.asarray(party.X, np.uint8), [BINS] * columns[party.index])
    first = pack(subtract(bins, share_of(use, seed), BITS), BITS)
    return {"bin_shares": {0: first, 1: np.frombuffer(seed, "u1")}}


@step
@sums_over("none", "it sends masked numbers alone")
def open_bins(
    party: Party, columns: list[int], dealt: Dealing = None, bin_shares: Passed = None
) -> Sent:
    """Open the matrix of a computing party to the other one."""
    if not dealt:
        return {}
    shares = [np.zeros((party.n_rows, 0), "<u8")]
    for index, data in sorted((bin_shares or {}).items()):
        use = further(party, columns, index)
        first = party.index == 0
        shares.append(
            unpack(data, BITS, use.shape) if first else share_of(use, data.tobytes())
        )
    party.remember(State(np.hstack(shares)))
    side, index = Computing(party, columns), party.index
    with refusing():
        matrix, mine = side.matrix(), Dealt.unpack(dealt[index])
        hidden = hide_matrix(side.deals[index], mine, matrix, side.challenge)
        opened = pack(np.concatenate([*hidden]), BITS)
    return {"bin_openings": {1 - index: opened}}


@step
@sums_over("none", "it sends masked numbers alone")
def first(
    party: Party,
    columns: list[int],
    number: int,
    dealt: Dealing = None,
    bin_openings: Passed = None,
    second_factor: Passed = None,
) -> Sent:
    """Open the task before this one at party 0, and mask its share of this one.

    Before the first task both that compute store what the other has opened.
    """
    for sender, data in (bin_openings or {}).items():
        deal = uses(party.session, party.n_rows, columns)[sender]
        shape = party.n_rows, deal.shape[1] + SACRIFICED
        party.recall(State).opened = unpack(data, BITS, shape)
    if party.index != 0:
        return {}
    with refusing():
        if second_factor:
            side = Computing(party, columns, number - 1)
            mine, _ = _shared(party, number - 1)
            opening, theirs = np.split(second_factor[1], [BITS // 8 * mine.size])
            made = side.multiply(mine, opening)
            if (made[-PROOFS:] != theirs[-PROOFS:]).any():
                raise PartyError("the dealer must deal the product of its masks")
            shape = -1, mine.shape[1]
            OPENED.append(_sum(made[:-PROOFS], theirs[:-PROOFS]).reshape(shape))
        if not dealt:
            return {}
        side, (mine, seed) = Computing(party, columns, number), _shared(party, number)
        side.state.dealt = dealt
        opened = side.opening(mine)
    return {"first_factor": {1: np.concatenate([np.frombuffer(seed, "u1"), opened])}}


@step
@sums_over("none", "it sends shares alone")
def second(
    party: Party,
    columns: list[int],
    number: int,
    dealt: Dealing = None,
    first_factor: Passed = None,
) -> Sent:
    """Multiply at party 1, and mask its share of s."""
    if party.index != 1:
        return {}
    side = Computing(party, columns, number)
    side.state.dealt = dealt
    seed, opening = np.split(first_factor[0], [SEED_BYTES])
    shape = party.n_rows, len(opening) // (BITS // 8 * party.n_rows)
    mine = share_of(_use(party, number, shape), seed.tobytes())
    with refusing():
        sent = side.opening(mine), side.multiply(mine, opening)
    return {"second_factor": {0: np.concatenate(sent)}}


def _use(party: Party, number: int, shape: tuple[int, ...]) -> Deal:
    return Deal(party.session, "factor", number, 0, shape, BITS)


def _shared(party: Party, number: int) -> tuple[Array, bytes]:
    """Return the share of party 0 of s, and the seed of that of party 1."""
    whole = factor(np.asarray(party.X), party.y, number)
    use = _use(party, number, whole.shape)
    seed = use.seed(party.run_secret, 1)
    return subtract(whole, share_of(use, seed), BITS), seed


def _sum(*packed: Array) -> Array:
    shape = (len(packed[0]) // (BITS // 8),)
    return add(*(unpack(data, BITS, shape) for data in packed), bits=BITS)


@settings
class Histograms(ProtocolStrategy):
    """Open the histograms of both tasks to party 0."""

    model_class = UsedModel
    steps = (share, open_bins, first, second)

    def protocol(self, parties, run):
        columns = [info.n_columns for info in parties]
        deals = uses(parties.session, parties.n_rows, columns)
        root = parties.checkpoint.token(SEED_BYTES)
        dealt = [{j: deal_matrix(deal, root)} for j, deal in enumerate(deals)]
        replies = parties.ask(share, columns=columns)
        replies = parties.ask(
            open_bins,
            columns=columns,
            dealt=_each(parties, dealt),
            bin_shares=_passed(replies, "bin_shares"),
        )
        openings, factors = _passed(replies, "bin_openings"), None
        for number, size in TASKS:
            of_use = [deal_factor(deal, root, number, size) for deal in deals]
            dealt = [{j: pair[i] for j, pair in enumerate(of_use)} for i in (0, 1)]
            task = {"columns": columns, "number": number}
            task["dealt"] = _each(parties, dealt)
            replies = parties.ask(
                first, **task, bin_openings=openings, second_factor=factors
            )
            factors, openings = _passed(replies, "first_factor"), None
            replies = parties.ask(second, **task, first_factor=factors)
            factors = _passed(replies, "second_factor")
        parties.ask(first, columns=columns, number=number + 1, second_factor=factors)
        model = UsedModel("0").to_record()
        run.record(1, model, {})
        return model


def _each(parties, dealt):
    """Give each computing party what it is dealt."""
    packed = [{j: one.pack() for j, one in of.items()} for of in dealt]
    DEALT.extend((i, len(d)) for i, of in enumerate(packed) for d in of.values())
    return each([*packed, *[None] * (len(parties) - 2)])


def _passed(replies, name):
    """Pass on what parties have sent, and note how long it is, without its tag."""
    received = replies.secrets.get(name, [{}] * len(replies))
    for receiver, sent in enumerate(received):
        SENT.extend((name, receiver, len(s.parts[0]) - 16) for s in sent.values())
    return each([sent or None for sent in received])
