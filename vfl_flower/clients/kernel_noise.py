"""Noise in the Gram matrices of a kernel model, of each party that it protects.

Each party but the label holder draws noise of full size for the entries that have its
columns or joint ones (:mod:`vfl_flower.numerics.privacy`), so that it need not trust
the noise of anybody else. The second party adds its own to its share. Any other party
sends both that compute additive shares of its noise, one of them a seed: so whoever
opens the matrices has only their sum, and cannot leave noise out.

The numbers come from a stream under the secret of the run, which is from the operating
system: a party that is asked again sends the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vfl_flower.clients.moments import Elements
from vfl_flower.clients.moments_roles import Roles
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.discrete_gaussian import LEAST, discrete_gaussian
from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.secure_aggregation.masks import derive_key, stream
from vfl_flower.secure_aggregation.shares import SEED_BYTES, Deal, add, pack, subtract
from vfl_flower.typing import Array


def _root(party: Party) -> bytes:
    return derive_key(party.run_secret, [labels.NOISE])


def drawn_noise(party: Party, roles: Roles) -> list[Array]:
    """Return the party's noise, the upper triangle of each Gram matrix.

    Each has columns * (columns + 1) / 2 elements of the ring (uint64), with the
    fraction bits of the Gram matrix.
    """
    index, ends = party.index or 0, np.cumsum(roles.owners)
    places = np.arange(roles.columns)
    mine = (places >= ends[index] - roles.owners[index]) & (places < ends[index])
    mine |= places >= ends[-1]
    rows, others = np.triu_indices(roles.columns)
    noisy = mine[rows] | mine[others]
    twice = noisy & (rows == others)
    made = []
    for deal in roles.deals(party.session):
        take = stream(_root(party), deal.parts("gaussian"))
        sigma = roles.noise * 4.0 ** roles.numbers(deal.rows).fraction
        noise = np.zeros(len(rows), np.int64)
        noise[noisy] = discrete_gaussian(take, sigma, int(noisy.sum()))
        # The sum of two has sqrt(2) times the deviation, up to 2^-100.
        noise[twice] += discrete_gaussian(take, sigma, int(twice.sum()))
        made.append(reduce(noise.view("<u8"), deal.bits))
    return made


def shared_noise(party: Party, roles: Roles) -> dict[int, Array]:
    """Return the shares of the noise of a party that does not compute, for both."""
    seed, sent = derive_key(_root(party), [labels.NOISE_SHARE]), []
    for deal, noise in zip(
        roles.deals(party.session), drawn_noise(party, roles), strict=True
    ):
        rest = subtract(noise, _of_second(deal, seed, len(noise)), deal.bits)
        sent.append(pack(rest, deal.bits))
    return {
        roles.first: np.concatenate(sent),
        roles.second: np.frombuffer(seed, np.uint8),
    }


def _of_second(deal: Deal, seed: bytes, count: int) -> Array:
    return deal.elements(seed, "noise", 0, (count,))


def added_noise(
    party: Party, roles: Roles, shares: Mapping[int, Array] | None
) -> list[Array]:
    """Return what a party that computes adds to its share of each Gram matrix.

    `shares` are what the parties that do not compute have sent. The result has the form
    of :func:`drawn_noise`. Raises PartyError if a party's shares are missing or short.
    """
    computing = {roles.first, roles.second}
    told = shares or {}
    if {*told} != {*range(party.n_parties)} - computing:
        raise PartyError("noise must come from each party that does not compute")
    deals = roles.deals(party.session)
    count = roles.columns * (roles.columns + 1) // 2
    totals = [np.zeros(count, "<u8") for _ in deals]
    second = party.index == roles.second
    if second:
        totals = drawn_noise(party, roles)
    for data in told.values():
        if second and data.shape != (SEED_BYTES,):
            raise PartyError(f"noise must be a seed of {SEED_BYTES} bytes")
        elements = Elements(data)
        try:
            for place, deal in enumerate(deals):
                if second:
                    more = _of_second(deal, data.tobytes(), count)
                else:
                    more = elements.take(deal.bits, (count,))
                totals[place] = add(totals[place], more, bits=deal.bits)
            if not second:
                elements.end()
        except ValueError as error:
            raise PartyError(str(error)) from None
    return totals


def check_noise(roles: Roles, least: float) -> None:
    """Refuse noise that is too small, or that fixed point cannot represent.

    `least` is the standard deviation that this party needs, 0 for none. Raises
    PartyError, which names the rule.
    """
    if roles.noise < least or bool(roles.noise) != bool(least):
        raise PartyError(
            f"noise must have a deviation of {least:.6g}, got {roles.noise:.6g}"
        )
    try:
        numbers = [roles.numbers(rows) for rows in roles.rows]
    except ValueError as error:
        raise PartyError(str(error)) from None
    if least and min(roles.noise * 4.0**n.fraction for n in numbers) < LEAST:
        raise PartyError(f"noise must be wider, got a deviation of {roles.noise:.6g}")
