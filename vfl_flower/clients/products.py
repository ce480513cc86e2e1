"""A party's side of computing a Gram matrix of private columns for one party.

Two parties compute: the *first*, which opens the Gram matrix, and the *second*. A
dealer, which can read no message between the parties, generates the seeds of the masks
A_0 + A_1 and the triple (:mod:`vfl_flower.secure_aggregation.products.triples`). Each
party opens its own columns under the masks, E = F - A_0 - A_1, only to the two
computing parties (:func:`hide`), and the second party sends its share of the Gram
matrix to the first party. All these messages are encrypted when they pass through the
server. No party knows the *joint* columns: the two computing parties have shares of
them. Each computing party opens its shares under its own mask (:func:`open_joint`), and
both add up the openings.

An algorithm declares a step that computes the columns and calls :func:`hide`. The step
:func:`multiply` follows, and the algorithm's last step calls :func:`opened`. The server
determines the computing parties and the numbers of columns and rows. Each party checks
these choices as far as possible (:func:`check_roles`, :func:`check_rows`).
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, NotRequired, TypedDict

import numpy as np

from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import OWN, PRIVATE, Whole
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.steps import once, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS, SERVER, Computing
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.fixed_point import decode
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.products import shares, triples
from vfl_flower.secure_aggregation.products.dealing import deal_all
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("products")

ROWS_PER_COLUMN = 4
"""Minimum number of rows for each column of an opened Gram matrix."""

MOST_LEVERAGE = 0.5
"""Largest leverage score of a row in the columns of one party."""

MOST_COLUMNS = 2**12
"""Maximum number of columns of a Gram matrix; its triple then takes 64 MB."""

Bytes = Whole("*", 0, 256)

Secrets = Annotated[dict[int, Array], Bytes, PRIVATE]
"""Bytes that parties encrypt for each other, by receiver (in a request, by sender)."""

FromServer = Annotated[Array, Bytes, OWN]
"""Bytes that the server, as the dealer, sends to this party alone."""


@stored_as("vfl_flower.clients.products.ProductState")
class ProductState:
    """A party's state while a Gram matrix is computed."""

    roles: Roles
    dealt: Array
    """The correlated randomness that the party received, unchanged."""
    joint: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """At a computing party: its openings of joint columns, not multiplied yet."""
    multiplied: bool = False
    """Whether :func:`multiply` has run."""
    share: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """At the first party: its own share of the Gram matrix, and the proof."""


class Hidden(TypedDict):
    """Values that :func:`hide` adds to the reply of a step."""

    openings: Secrets
    checks: NotRequired[Secrets]


class Delivered(TypedDict, total=False):
    """Reply of :func:`deal`: a message for each party."""

    delivered: Secrets


class Share(TypedDict, total=False):
    """Reply of :func:`multiply`, from the second party to the first."""

    share: Secrets


# -- what a party refuses --------------------------------------------------------------


def check_roles(
    party: Party,
    roles: Roles,
    columns: int | None = None,
    fraction: int = 0,
    *,
    labels: bool = True,
    turn: int | None = None,
) -> None:
    """Refuse roles that this party's consent, its data or the protocol does not allow.

    A `fraction` of 0 bits means that there are no joint columns. With `labels`, the
    first party must be the label holder. `turn` is the required round, if the step
    allows only one round.
    """
    named = roles.first, roles.second, roles.dealer
    places = [place for place in named if place is not None]
    if len(set(places)) < len(places) or max(places) >= party.n_parties:
        raise PartyError(
            "first, second and dealer must be different parties: a dealer that also "
            "computes could recover the rows"
        )
    index = party.index or 0
    if labels and (index == roles.first) != (party.y is not None):
        raise PartyError(
            "the first party, which obtains the Gram matrix, must be the label holder"
        )
    if len(roles.owners) != party.n_parties or min(roles.owners) < 0:
        raise PartyError(f"owners must list {party.n_parties} column counts")
    if columns is not None and roles.owners[index] != columns:
        raise PartyError(
            f"owners must state {columns} columns for this party, got "
            f"{roles.owners[index]}"
        )
    if roles.fraction != fraction or roles.joint % 2 or (roles.joint and not fraction):
        raise PartyError(
            f"fraction must be {fraction}, got {roles.fraction}; joint must be even, "
            f"and 0 if fraction is 0, got {roles.joint}"
        )
    if turn is not None and roles.turn != turn:
        raise PartyError(f"turn must be {turn}, got {roles.turn}")
    if not 1 <= roles.columns <= MOST_COLUMNS:
        raise PartyError(
            f"a Gram matrix must have 1 to {MOST_COLUMNS} columns, got {roles.columns}"
        )
    if not 1 <= roles.rows <= party.n_rows:
        raise PartyError(f"rows must be from 1 to {party.n_rows}, got {roles.rows}")
    if party.consent is not None:
        names = party.names or [""] * party.n_parties
        dealer = SERVER if roles.dealer is None else names[roles.dealer]
        computing = Computing(dealer, names[roles.second])
        others = {*range(party.n_parties)} - {roles.first, roles.dealer}
        first = roles.second == min(others)
        if lines := party.consent.lacks_names(computing, party.n_parties, first):
            raise PartyError(
                f"this party's consent lacks {', '.join(lines)}: the consent must name "
                "the dealer and the party that computes with the label holder, because "
                "any two of these three together can recover the rows"
            )


def withhold(party: Party, rule: str) -> None:
    """Log at the label holder that its labels are unused because they violate a rule.

    The server chooses the rows, so each refusal would reveal information about labels.
    Instead, zeros replace the labels, and the protocol ends with a model that predicts
    a constant. Raises PartyError if all parties are in one process, since the user of
    that process is allowed to know the reason.
    """
    if party.allow_plain:
        raise PartyError(rule)
    what = "this party's labels are not used, and the model will be constant"
    log.error("%s: %s", what, rule)


def check_rows(party: Party, weights: Array | None, rows: int, columns: int) -> None:
    """Refuse a Gram matrix of too few rows.

    There must be at least 20 rows, at least 4 rows for each column, and at least as
    many rows as this party's consent requires.

    Rows with weights w, shape (m,), are equivalent to (sum w)^2 / sum w^2 rows (Kish).
    """
    effective = float(rows)
    if weights is not None and rows:
        relative = weights / weights.sum()
        effective = float(1 / (relative**2).sum())
    least = max(LEAST_ROWS, ROWS_PER_COLUMN * columns)
    limit = party.consent.leaves.get("moments") if party.consent is not None else None
    if limit is not None and limit.rows is not None and effective < limit.rows:
        raise PartyError(
            f"this party's consent requires at least {limit.rows} rows in each Gram "
            f"matrix, but these {rows} rows are equivalent to {effective:.0f} rows: "
            "increase the number of rows (setting size or rows)"
        )
    if effective < least:
        raise PartyError(
            f"a Gram matrix of {columns} columns needs at least {least} rows of "
            f"similar weight ({ROWS_PER_COLUMN} for each column of all parties, and "
            f"{LEAST_ROWS} in total), but the {rows} rows are equivalent to "
            f"{effective:.0f}: increase the number of rows (setting size or rows) or "
            "omit columns"
        )


# -- correlated randomness -------------------------------------------------------------


@step
@sums_over("none", "the step sends only random numbers")
@once
def deal(party: Party, roles: Roles) -> Delivered:
    """Generate the correlated randomness in place of the server.

    The dealer must not collude with a computing party. It neither computes nor holds
    labels.
    """
    check_roles(party, roles)
    if not roles.deals(party.index):
        return {}
    root = derive_key(party.run_secret, [labels.MOMENTS_DEALER])
    dealt = deal_all(roles.deal(party.session), root, roles)
    return {"delivered": dict(enumerate(dealt))}


def dealt_to(
    dealt: Array | None, delivered: dict[int, Array] | None, roles: Roles
) -> Array:
    """Return the dealer's message; refuse a message from any other party."""
    if dealt is not None and roles.dealer is None:
        return dealt
    sent = delivered or {}
    if dealt is not None or roles.dealer is None or list(sent) != [roles.dealer]:
        raise PartyError("correlated randomness must come from the dealer alone")
    return sent[roles.dealer]


def _parts_of(
    party: Party, roles: Roles, dealt: Array
) -> tuple[shares.Deal, shares.Dealt, shares.Dealt | None]:
    """Return the use of randomness, and the dealer's messages for the party's roles."""
    use, portion = roles.deal(party.session), shares.Portion(dealt)
    of_owner, computing = portion.take(shares.SEED_BYTES), None
    if party.index in (roles.first, roles.second):
        entries = triples.triangle_size(roles.columns + triples.SACRIFICED)
        size = entries * shares.width_of(use.bits) * (party.index == roles.second)
        computing = portion.take(size)
    portion.end()
    return use, of_owner, computing


def _triple(party: Party, state: ProductState) -> triples.GramTriple:
    """Return the triple of a computing party."""
    use, _, computing = _parts_of(party, state.roles, state.dealt)
    assert computing is not None
    return triples.GramTriple(use, int(party.index == state.roles.second), computing)


# -- columns ---------------------------------------------------------------------------


def hide(party: Party, state: ProductState, columns: Iterable[Array]) -> Hidden:
    """Return the party's columns under the masks, for each computing party.

    A digest of the seed of the receiving party's masks is added; it exposes a dealer
    that has sent this party a different seed. A computing party also adds its message
    for the check of the triple. `columns` yields whole blocks of rows.
    """
    roles, index, openings, block = state.roles, party.index or 0, list[Array](), 0
    with refusing():
        use, of_owner, computing = _parts_of(party, roles, state.dealt)
        for part in columns:
            # Callers ensure that no number is clipped, because a refusal would reveal
            # the clipping.
            elements, _ = roles.numbers.encode(part)
            hidden = triples.hide_columns(use, index, of_owner, elements, block)
            openings.append(shares.pack(hidden, use.bits))
            block += -(-len(part) // shares.BLOCK_ROWS)
        seeds = of_owner.seed, of_owner.correction.tobytes()
        reply: Hidden = {"openings": {}}
        for receiver, seed in zip((roles.first, roles.second), seeds, strict=True):
            head = np.frombuffer(triples.seed_digest(use, index, seed), np.uint8)
            reply["openings"][receiver] = np.concatenate([head, *openings])
        if computing is not None:
            combined = _triple(party, state).sacrifice(challenge_of(party, roles))
            check = np.concatenate([shares.pack(part, use.bits) for part in combined])
            reply["checks"] = {other_of(party, roles): check}
    return reply


def open_joint(party: Party, state: ProductState, blocks: Iterator[Array]) -> Array:
    """Return the openings of a party's shares of joint columns; allowed only once."""
    if len(state.joint) or state.multiplied:
        raise PartyError("joint columns must be masked and sent only once")
    with refusing():
        triple, owner = _triple(party, state), len(state.roles.owners)
        openings = [
            shares.pack(triple.opening(share, block, owner), triple.deal.bits)
            for block, share in enumerate(blocks)
        ]
    state.joint = np.concatenate(openings)
    return state.joint


def challenge_of(party: Party, roles: Roles) -> bytes:
    """Return a secret that the two computing parties share and the dealer lacks."""
    assert party.agree is not None
    return party.agree(other_of(party, roles))


def other_of(party: Party, roles: Roles) -> int:
    """Return the place of the other computing party."""
    computing = [roles.first, roles.second]
    if party.index not in computing:
        raise PartyError("only the two computing parties may run this step")
    return sum(computing) - party.index


# -- products --------------------------------------------------------------------------


@step
@sums_over("earlier")
def multiply(
    party: Party,
    openings: Secrets | None = None,
    joint: Secrets | None = None,
    checks: Secrets | None = None,
) -> Share:
    """Multiply the opened columns of all parties, at the two computing parties.

    The second party sends its share, with the proof of its triple, to the first party.
    `joint` and `checks` are the other party's openings of joint columns and of its
    triple.
    """
    state = party.recall(ProductState)
    roles = state.roles
    if state.multiplied:
        raise PartyError("the Gram matrix has already been computed")
    if party.index not in (roles.first, roles.second):
        state.multiplied = True
        return {}
    other = other_of(party, roles)
    openings, joint, checks = openings or {}, joint or {}, checks or {}
    if sorted(openings) != list(range(party.n_parties)):
        raise PartyError("openings must include an opening from each party")
    if list(joint) != [other] * bool(roles.joint) or list(checks) != [other]:
        raise PartyError("joint and checks must come from the other computing party")
    with refusing():
        triple = _triple(party, state)
        bits, challenge = triple.deal.bits, challenge_of(party, roles)
        both = [state.joint, *joint.values()] if roles.joint else []
        of_owners = _of_right_seeds(party, state, openings)
        triple.add_all(of_owners, [*map(shares.Elements, both)])
        check = shares.Elements(checks[other])
        combined = [
            np.concatenate([*triple.sacrifice(challenge)]),
            check.take(bits, (triple.deal.rows, triples.SACRIFICED)),
        ]
        check.end()
        if party.index == roles.second:
            combined.reverse()
        proof = triple.proof(challenge, (combined[0], combined[1]))
        packed = shares.pack(triple.share(), 64)
        sent = np.concatenate([packed, np.frombuffer(proof, "u1")])
    state.joint, state.multiplied = state.joint[:0], True
    if party.index == roles.second:
        return {"share": {roles.first: sent}}
    state.share = sent
    return {}


def _of_right_seeds(
    party: Party, state: ProductState, openings: Mapping[int, Array]
) -> list[shares.Elements]:
    """Return each owner's openings; refuse openings under the wrong masks."""
    use, _, computing = _parts_of(party, state.roles, state.dealt)
    assert computing is not None
    made = []
    for owner in range(party.n_parties):
        head, rest = np.split(openings[owner], [shares.SEED_BYTES])
        right = triples.owner_digest(use, owner, computing.seed)
        check_seeds(party, [owner], head.tobytes(), right)
        made.append(shares.Elements(rest))
    return made


def check_seeds(party: Party, owners: Sequence[int], sent: bytes, right: bytes) -> None:
    """Raise PartyError unless `sent`, the owners' digests of seeds, equals `right`.

    With a wrong seed, this party would multiply F + Delta, where the dealer knows
    Delta.
    """
    if not hmac.compare_digest(sent, right):
        who = (party.names[j] if party.names else f"party {j}" for j in owners)
        raise PartyError(
            f"the seeds that the dealer sent to {' and '.join(who)} do not match the "
            "computing parties' masks: the Gram matrix would belong to columns that "
            "the dealer has changed"
        )


def opened(party: Party, state: ProductState, share: Mapping[int, Array]) -> Array:
    """Return the Gram matrix at the first party; refuse it if the triple is wrong."""
    roles = state.roles
    if not len(state.share) or list(share) != [roles.second]:
        raise PartyError("computing the Gram matrix requires the second party's share")
    pair, use = [state.share, share[roles.second]], roles.deal(party.session)
    if len(pair[0]) != len(pair[1]):
        raise PartyError(f"share must have {len(pair[0])} bytes, got {len(pair[1])}")
    size = 8 * triples.triangle_size(roles.columns)
    if not hmac.compare_digest(*(part[size:].tobytes() for part in pair)):
        raise PartyError(
            "the dealer's triple failed the check: the Gram matrix would be wrong"
        )
    with refusing():
        halves = [shares.unpack(part[:size], 64, (size // 8,)) for part in pair]
        total = triples.open_gram(halves[0], halves[1], use)
    return decode(total, use.bits, 2 * roles.numbers.fraction)
