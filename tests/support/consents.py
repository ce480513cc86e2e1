"""Consents of parties in tests."""

from collections.abc import Iterable
from typing import Any, get_args

import numpy as np

from vfl_flower import Party
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.party.consent import ALLOW_ALL, Consent, Limit
from vfl_flower.protocol.steps import each
from vfl_flower.protocol.terms import Kind
from vfl_flower.server.parties import Parties
from vfl_flower.typing import Array


def limited(run: int | None = None, life: int | None = None) -> Consent:
    """Return the consent of a party that lets this many rows of each kind leave."""
    leaves = dict.fromkeys(get_args(Kind), Limit(run, life))
    for kind in ("totals", "coefficients"):
        leaves[kind] = Limit()
    return Consent(min_parties=1, allow_seed=True, leaves=leaves, peers=None)


def letting(*kinds: Kind, **rules: Any) -> Consent:
    """Return a consent that lets kinds leave, without limit; keys are not checked."""
    return Consent(leaves=dict.fromkeys(kinds, Limit()), peers=None, **rules)


def free(party: Party) -> Party:
    """Return a party of a grid, as a loader without a consent file does."""
    if party.consent in (None, Consent()):
        party.consent = ALLOW_ALL
    return party


def pool(parties: Parties, rows: Iterable[int]) -> Any:
    """Ask all parties for rows in the clear."""
    numbers = np.asarray(rows, dtype=np.uint32)
    step = coresets.pooled_rows
    return parties.ask(step, test_fraction=0.0, labels=False, rows=numbers)


def distances(
    parties: Parties,
    stop: int,
    start: int = 0,
    center: float = 0.0,
    bound: float = 2.0**20,
) -> Array:
    """Return masked sums of the squared distances of rows to one centre."""
    question = coresets.distances.summing(distances=bound)
    centers = each([np.full((1, p.n_columns), center) for p in parties])
    given = {"test_fraction": 0.0, "start": start, "stop": stop}
    return parties.secure_sum(question, centers=centers, **given)["distances"][:, 0]
