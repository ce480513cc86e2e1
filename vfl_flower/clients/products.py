"""A party's side of a Gram matrix of all parties' columns, which one party opens.

Two parties compute: the *first*, who holds the labels and opens the Gram matrix, and
the *second*. A dealer, who sees none of what they exchange, gives the seeds of masks
A_0 + A_1 and the triple (:mod:`vfl_flower.secure_aggregation.products.triples`). Each
party opens its own columns under the masks, E = F - A_0 - A_1, to these two alone, and
the second sends its share of the Gram matrix to the first. All of it passes the server
encrypted. *Joint* columns, which no party knows and the two that compute have shares
of, each of them opens under its own mask, and both add up what they have opened.

An algorithm declares a step of its own that makes the columns and calls
:func:`hide`, asks for :func:`gram`, and opens the result in a last step
(:func:`opened`). Who computes and what a party refuses is in
:mod:`vfl_flower.clients.products_roles`.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NotRequired, TypedDict

import numpy as np

from vfl_flower.clients.products_roles import Roles, check_roles
from vfl_flower.protocol.contract import PRIVATE, Whole
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.steps import once, step, sums_over
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.fixed_point import decode
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.products.shares import (
    SEED_BYTES,
    Deal,
    Dealt,
    add,
    pack,
    unpack,
)
from vfl_flower.secure_aggregation.products.triples import (
    SACRIFICED,
    GramTriple,
    deal_gram,
    deal_owner,
    hide_columns,
    open_gram,
    owner_digest,
    seed_digest,
)
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

_HEAD, _TAIL = 64, 32
"""Bytes of seed and tag before a correction, and of a proof behind a share."""

Bytes = Whole("*", 0, 256)


@shapes_only
@dataclass
class MomentsState:
    """What a party stores of the Gram matrices."""

    roles: Roles
    """Who does what."""
    dealt: Array
    """The correlated randomness that it received, unchanged."""
    shares: Array | None = None
    """At the first party its own shares of the Gram matrices, and the proofs."""
    y_mean: float = 0.0
    """At the first party the weighted mean of its labels, or 0."""
    y_sizes: Array = field(default_factory=lambda: np.ones(0))
    """The length of its labels in each Gram matrix, shape (matrices,)."""
    joint: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """At a computing party, its openings of joint columns, not yet multiplied."""
    sums: Array = field(default_factory=lambda: np.zeros((0, 0), np.uint64))
    """At a computing party, the products so far, uint64, shape (Gram matrices, columns
    * (columns + 1) / 2); empty before there are any."""
    proofs: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """At a computing party, those of the triples."""
    constant: bool = False
    """Whether the first party has zeros in the place of its labels."""
    clip: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """How a linear model takes the party's rows; see ``numerics/row_clip.py``."""


class Delivered(TypedDict):
    """Reply of :func:`deal`: for each party."""

    delivered: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Shares(TypedDict):
    """Reply of :func:`gram`: of the second party, for the first."""

    shares: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


def deal_all(deals: Sequence[Deal], root: bytes, roles: Roles) -> list[Array]:
    """Return what a dealer sends to each party, as bytes.

    `deals` are the uses of the triples, and `root` is the dealer's secret, 32 bytes.
    """
    parts: list[list[Array]] = [[] for _ in roles.owners]
    for deal in deals:
        for owner, sent in enumerate(parts):
            sent.append(deal_owner(deal, root, owner).pack())
        first, second = deal_gram(deal, root)
        parts[roles.first].append(first.pack())
        parts[roles.second].append(second.pack())
    return [np.concatenate(sent) for sent in parts]


class Portion:
    """Reads what one party was dealt, message by message."""

    def __init__(self, data: Array) -> None:
        self._left = data

    def take(self, more: int = 0) -> Dealt:
        """Return the next message, whose correction has so many bytes."""
        part, self._left = np.split(self._left, [_HEAD + more])
        return Dealt.unpack(part)

    def end(self) -> None:
        """Raise ``ValueError`` if there is more."""
        if len(self._left):
            raise ValueError(
                f"what was dealt must end there, got {len(self._left)} bytes more"
            )


class Elements:
    """Reads packed elements of a ring, block by block."""

    def __init__(self, data: Array) -> None:
        self._data, self._place = data, 0

    def take(self, bits: int, shape: tuple[int, ...]) -> Array:
        """Return the next elements; ``ValueError`` if there are too few."""
        start = self._place
        self._place += math.prod(shape) * width_of(bits)
        return unpack(self._data[start : self._place], bits, shape)

    def end(self) -> None:
        """Raise ``ValueError`` if there is more."""
        if self._place != len(self._data):
            raise ValueError("openings must end there, got more bytes")


def width_of(bits: int) -> int:
    """Return the bytes of an element of a ring."""
    return -(-bits // 8)


def _taken(
    party: Party, roles: Roles, dealt: Array
) -> Iterator[tuple[Deal, Dealt, Dealt | None]]:
    """Yield each use, what its owner was dealt, and what a computing party was."""
    portion = Portion(dealt)
    for deal in roles.deals(party.session):
        of_owner, computing = portion.take(32), None
        if party.index in (roles.first, roles.second):
            size = _triangle(roles.columns + SACRIFICED) * width_of(deal.bits)
            computing = portion.take(size * (party.index == roles.second))
        yield deal, of_owner, computing
    portion.end()


def _triples(
    party: Party, state: MomentsState, part: Sequence[range]
) -> Iterator[tuple[int, GramTriple, range]]:
    """Yield the number of each Gram matrix of a part, its triple, and its blocks."""
    place = int(party.index == state.roles.second)
    taken = _taken(party, state.roles, state.dealt)
    for half, ((deal, _, computing), blocks) in enumerate(
        zip(taken, part, strict=True)
    ):
        assert computing is not None
        if blocks:
            sums = state.sums[half] if len(state.sums) else None
            yield half, GramTriple(deal, place, computing, sums), blocks


def _triangle(columns: int) -> int:
    return columns * (columns + 1) // 2


def dealt_to(
    dealt: Array | None, delivered: dict[int, Array] | None, roles: Roles
) -> Array:
    """Return what the dealer, be it the server or a party, has dealt to this party.

    Raises PartyError if it comes from anybody else, or not at all.
    """
    if dealt is not None and roles.dealer is None:
        return dealt
    sent = delivered or {}
    if dealt is not None or roles.dealer is None or list(sent) != [roles.dealer]:
        raise PartyError(
            "what is dealt must come from the dealer, and from nobody else"
        )
    return sent[roles.dealer]


def hide(
    party: Party,
    roles: Roles,
    blocks: Sequence[Array],
    dealt: Array,
    part: Sequence[range] | None = None,
) -> dict[int, Array]:
    """Return the party's columns under the masks, for each of the two that compute.

    Digests of the seeds of that party's masks, one for each Gram matrix, come with
    them, which exposes a dealer that gives this party other ones. Each block has shape
    (rows, owned columns); `part` says which blocks of rows they are, by default all.
    Raises PartyError if the correlated randomness is of another use, short or changed.
    """
    index, openings = party.index or 0, list[Array]()
    digests: dict[int, list[bytes]] = {roles.first: [], roles.second: []}
    with refusing():
        for (deal, of_owner, _), block, numbers in zip(
            _taken(party, roles, dealt), blocks, part or roles.whole, strict=True
        ):
            # Callers see to it that no number is clipped: a refusal would tell of it.
            elements, _ = roles.numbers(deal.rows).encode(block)
            hidden = hide_columns(deal, index, of_owner, elements, numbers.start)
            openings.append(pack(hidden, deal.bits))
            seeds = of_owner.seed, of_owner.correction.tobytes()
            for of_receiver, seed in zip(digests.values(), seeds, strict=True):
                of_receiver.append(seed_digest(deal, index, seed))
    return {
        receiver: np.concatenate([np.frombuffer(b"".join(head), np.uint8), *openings])
        for receiver, head in digests.items()
    }


def checks_of(party: Party, roles: Roles, dealt: Array) -> Array | None:
    """Return what checks the triples, of a computing party for the other one.

    Raises PartyError as :func:`hide` does.
    """
    if party.index not in (roles.first, roles.second):
        return None
    state, checks = MomentsState(roles, dealt), []
    with refusing():
        for _, triple, _ in _triples(party, state, roles.whole):
            combined = triple.sacrifice(challenge_of(party, roles))
            checks += [pack(part, triple.deal.bits) for part in combined]
    return np.concatenate(checks)


def open_joint(
    party: Party,
    state: MomentsState,
    shares: Sequence[Iterator[Array]],
    part: Sequence[range],
) -> Array:
    """Return what a computing party opens of the joint columns, for the other one.

    `shares` are, of each Gram matrix, the blocks of its share of the joint columns,
    uint64, shape (b, joint), and `part` says which blocks these are. Raises PartyError
    as :func:`hide` does.
    """
    owner, sent = len(state.roles.owners), []
    with refusing():
        for half, triple, blocks in _triples(party, state, part):
            for block, share in zip(blocks, shares[half], strict=True):
                opening = triple.opening(share, block, owner)
                sent.append(pack(opening, triple.deal.bits))
    return np.concatenate(sent)


def challenge_of(party: Party, roles: Roles) -> bytes:
    """Return what the two computing parties know and the dealer does not."""
    assert party.agree is not None
    other = roles.second if party.index == roles.first else roles.first
    return party.agree(other)


@step
@sums_over("none", "it sends random numbers alone")
@once
def deal(party: Party, roles: Roles) -> Delivered:
    """Deal, at the party that deals in the place of the server.

    It must not compute, hold labels, or work with either of the two that compute.
    """
    check_roles(party, roles)
    if party.index != roles.dealer:
        return {}
    root = derive_key(party.run_secret, [labels.MOMENTS_DEALER])
    dealt = deal_all(roles.deals(party.session), root, roles)
    return {"delivered": dict(enumerate(dealt))}


@step
@sums_over("earlier")
@once
def gram(
    party: Party,
    openings: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    checks: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Shares:
    """Multiply what all parties have opened, at the two that compute.

    The second one sends its shares to the first, each with the proof of its triple.
    """
    if not openings:
        return {}
    state = party.recall(MomentsState)
    add_products(party, state, openings, state.roles.whole)
    prove(party, state, checks)
    return shares_of(party, state)


def add_products(
    party: Party,
    state: MomentsState,
    openings: Mapping[int, Array],
    part: Sequence[range],
    joint: Mapping[int, Array] | None = None,
) -> None:
    """Multiply what all have opened of a part of the rows, at a computing party.

    `joint` is what the other computing party has opened of the joint columns. Raises
    PartyError if anything is missing, short, or of anybody else.
    """
    roles = state.roles
    other = other_of(party, roles)
    if sorted(openings) != list(range(party.n_parties)):
        raise PartyError("gram must have the openings of all parties")
    if list(joint or {}) != [other] * bool(roles.joint):
        raise PartyError("gram must have what the other one has opened of joint ones")
    of_owners = _of_right_seeds(party, state, openings)
    pair = [Elements(data) for data in (state.joint, *(joint or {}).values())]
    sums = np.zeros((len(roles.rows), _triangle(roles.columns)), "<u8")
    if len(state.sums):
        sums[:] = state.sums
    with refusing():
        for half, triple, blocks in _triples(party, state, part):
            use = triple.deal
            rows_of = list(use.blocks())
            for block in blocks:
                count = rows_of[block].stop - rows_of[block].start
                parts = [
                    elements.take(use.bits, (count, width))
                    for elements, width in zip(of_owners, roles.owners, strict=True)
                ]
                if roles.joint:
                    taken = (e.take(use.bits, (count, roles.joint)) for e in pair)
                    parts.append(add(*taken, bits=use.bits))
                triple.add(np.hstack(parts), block)
            sums[half] = triple.sums()
        for elements in (*of_owners, *pair):
            elements.end()
    state.sums, state.joint = sums, state.joint[:0]


def _of_right_seeds(
    party: Party, state: MomentsState, openings: Mapping[int, Array]
) -> list[Elements]:
    """Return what each owner has opened; refuse openings under other seeds than these.

    Such a seed would make this party multiply F + Delta; the dealer knows Delta.
    """
    with refusing():
        uses = list(_taken(party, state.roles, state.dealt))
    made = []
    for owner in range(party.n_parties):
        head, rest = np.split(openings[owner], [SEED_BYTES * len(uses)])
        right = b"".join(
            owner_digest(deal, owner, computing.seed)
            for deal, _, computing in uses
            if computing is not None
        )
        check_seeds(party, [owner], head.tobytes(), right)
        made.append(Elements(rest))
    return made


def check_seeds(party: Party, owners: Sequence[int], sent: bytes, right: bytes) -> None:
    """Refuse columns that are hidden by other seeds than those of the masks.

    owners: places of the parties whose columns they are.
    sent, right: digests of the seeds that the owners have, and of those of the masks.

    Raises PartyError, which blames the dealer, if they differ.
    """
    if not hmac.compare_digest(sent, right):
        who = (party.names[j] if party.names else f"party {j}" for j in owners)
        raise PartyError(
            f"the dealer must give {' and '.join(who)} the seeds of the masks that the "
            "computing parties have, and has not: it would multiply columns that it "
            "has changed"
        )


def prove(
    party: Party, state: MomentsState, checks: Mapping[int, Array] | None
) -> None:
    """Make the proofs of the triples, at a computing party.

    `checks` is what the other one has opened to check the triples. Raises PartyError if
    it is missing, short, or of anybody else.
    """
    roles = state.roles
    other = other_of(party, roles)
    if list(checks or {}) != [other]:
        raise PartyError("gram must have what the other computing party has sent")
    assert checks is not None
    check, challenge, proofs = Elements(checks[other]), challenge_of(party, roles), []
    with refusing():
        for _, triple, _ in _triples(party, state, roles.whole):
            pair = [
                np.concatenate([*triple.sacrifice(challenge)]),
                check.take(triple.deal.bits, (triple.deal.rows, SACRIFICED)),
            ]
            if party.index == roles.second:
                pair.reverse()
            proofs.append(triple.proof(challenge, (pair[0], pair[1])))
        check.end()
    state.proofs = np.frombuffer(b"".join(proofs), np.uint8)


def shares_of(party: Party, state: MomentsState) -> Shares:
    """Return the shares of the second party; the first one stores its own.

    The computing party has all products and the proofs.
    """
    roles, made = state.roles, []
    proofs = np.split(state.proofs, len(roles.rows))
    for half, triple, _ in _triples(party, state, roles.whole):
        made += [pack(triple.share(), 64), proofs[half]]
    sent = np.concatenate(made)
    if party.index == roles.second:
        return {"shares": {roles.first: sent}}
    state.shares = sent
    return {}


def other_of(party: Party, roles: Roles) -> int:
    """Return the other one of the two parties that compute."""
    computes = [roles.first, roles.second]
    if party.index not in computes:
        raise PartyError("gram must be of the two parties that compute")
    return sum(computes) - party.index


def opened(
    party: Party, state: MomentsState, shares: Mapping[int, Array]
) -> list[Array]:
    """Return the Gram matrices, at the first party, in the units of the hidden columns.

    Each has shape (columns, columns). `shares` is what the second party has sent in
    :func:`gram`. Raises PartyError if a triple was not what its dealer had to deal, or
    if a share is short.
    """
    roles = state.roles
    if state.shares is None or list(shares) != [roles.second]:
        raise PartyError("a Gram matrix is opened with the shares of the second party")
    mine, theirs = state.shares, shares[roles.second]
    if len(mine) != len(theirs):
        raise PartyError(f"shares must have {len(mine)} bytes, got {len(theirs)}")
    grams, count = [], _triangle(roles.columns)
    size = 8 * count
    for use in roles.deals(party.session):
        proofs = [part[size : size + _TAIL].tobytes() for part in (mine, theirs)]
        if not hmac.compare_digest(*proofs):
            raise PartyError(
                "the triple of the dealer must be right, and is not: the Gram matrix "
                "would be another one"
            )
        pair = [unpack(part[:size], 64, (count,)) for part in (mine, theirs)]
        with refusing():
            total = open_gram(pair[0], pair[1], use)
        grams.append(decode(total, use.bits, 2 * roles.numbers(use.rows).fraction))
        mine, theirs = mine[size + _TAIL :], theirs[size + _TAIL :]
    return grams
