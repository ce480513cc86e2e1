"""The server's side of the mean squared error of a linear model, which it learns."""

from __future__ import annotations

import logging
from typing import Any

from vfl_flower.clients import linear_losses as party
from vfl_flower.clients.moments_roles import ROWS_PER_COLUMN
from vfl_flower.protocol.consent import LEAST_ROWS
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.steps import each
from vfl_flower.strategies.moments import dealt_here, passed_on, roles_of, secret
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

TEST, TRAIN = "test_loss", "full_train_loss"
"""Names of the errors on the rows held out and on all training rows."""


def squared_errors(
    parties: Parties,
    sets: dict[str, int],
    *,
    coefficients: list[Array] | None,
    intercept: float,
    scale: float,
    test_fraction: float,
    dealer: str,
    computes: str,
) -> dict[str, Any]:
    """Return the mean squared errors by name, and R^2 on the rows held out.

    Parameters
    ----------
    parties : Parties
        One of them holds the labels.
    sets : dict of str to int
        Numbers of rows, by the names `TEST` and `TRAIN`.
    coefficients : list of Array or None
        Those of each party; None: each has solved for its own in this run.
    intercept : float
        In the unit of y.
    scale : float
        With own coefficients their unit, in the unit of y.
    test_fraction : float
        Share of the rows that is held out.
    dealer : str
        Who deals correlated randomness.
    computes : str
        Who computes with the label holder; "": the first of the others.
    """
    least = max(LEAST_ROWS, ROWS_PER_COLUMN * len(parties))
    for name, rows in sets.items():
        if 0 < rows < least:
            log.warning(
                "there is no %s: a Gram matrix of %d columns must be of at least %d "
                "rows, there are %d",
                *(name, len(parties), least, rows),
            )
    sets = {name: rows for name, rows in sets.items() if rows >= least}
    if not sets:
        return {}
    unit = scale if coefficients is None else 1.0
    roles = roles_of(
        *(parties, [1] * len(parties), list(sets.values()), dealer),
        computes=computes,
        turn=party.TURN,
    )
    if roles.dealer is None:
        dealt = dealt_here(parties, roles)
    else:
        delivered = parties.ask(party.deal, roles=roles)
        dealt = {"loss_delivered": passed_on(parties, delivered, "loss_delivered")}
    replies = parties.ask(
        party.parts,
        roles=roles,
        counted=len(parties) * len(sets),
        test_fraction=test_fraction,
        evaluated=party.Evaluated(TEST in sets, TRAIN in sets),
        intercept=intercept / unit,
        coefficients=None if coefficients is None else each(coefficients),
        **dealt,
    )
    shares = parties.ask(
        party.gram,
        loss_openings=passed_on(parties, replies, "loss_openings"),
        loss_checks=passed_on(parties, replies, "loss_checks"),
    )
    reply = parties.ask_one(
        roles.first,
        party.losses,
        loss_units=secret(replies, "loss_units", len(parties))[roles.first],
        loss_shares=secret(shares, "loss_shares", len(parties))[roles.first],
        scale=unit,
    )
    if reply["standing_out"]:
        return {"standing_out": reply["standing_out"]}
    errors, explained = reply["losses"], reply["explained"]
    if not len(errors) == len(explained) == len(sets):
        reason = f"its reply must have {len(sets)} losses and as many shares explained"
        raise parties.failure(roles.first, party.losses, reason)
    metrics = {name: float(e) for name, e in zip(sets, errors, strict=True)}
    r2 = dict(zip(sets, explained, strict=True))
    return metrics | ({"test_r2": float(r2[TEST])} if TEST in r2 else {})
