"""Parties of one table: by its columns, and as on SuperNodes, with pinned peers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower import Party
from vfl_flower.party.consent import Consent
from vfl_flower.party.identity import public_identity
from vfl_flower.party.parts import ModelPart, save_part
from vfl_flower.party.party import digest_ids
from vfl_flower.typing import Array


def by_columns(
    X: Array,
    y: Array | None = None,
    widths: int | Sequence[int] = 3,
    *,
    holders: Sequence[int] = (-1,),
    names: str | Sequence[str] = "p{}",
    folder: Path | None = None,
    **given: Any,
) -> list[Party]:
    """Return a party for each block of columns; `holders` know the labels.

    `widths` are the widths of the blocks, or their number. Several holders share the
    labels in turn. With a folder, each party has a ``state-dir`` below it.
    """
    if isinstance(widths, int):
        blocks = np.array_split(X, widths, axis=1)
    else:
        blocks = np.split(X, np.cumsum(widths)[:-1], axis=1)
    if isinstance(names, str):
        names = [names.format(j) for j in range(len(blocks))]
    turn, known = np.arange(len(X)) % len(holders), [None] * len(blocks)
    for k, holder in enumerate(holders if y is not None else ()):
        known[holder] = y if len(holders) == 1 else np.where(turn == k, y, np.nan)
    return [
        Party(b, y, name=n, state_dir=folder and folder / n, **given)
        for b, y, n in zip(blocks, known, names, strict=True)
    ]


MODEL = "0123456789abcdef"


def hand_out(
    parties: list[Party], weights: Array, intercept: float = 0.0
) -> list[Party]:
    """Give parties the blocks of a linear model; the last party holds the labels."""
    last = len(parties) - 1
    ends = np.cumsum([party.X.shape[1] for party in parties])[:-1]
    for j, block in enumerate(np.split(weights, ends)):
        party = parties[j]
        settings = {"kind": "linear", "intercept": intercept * (j == last)}
        settings |= {"receiver": last, "index": j, "n_parties": last + 1, "columns": []}
        settings["encoding"] = party.encoding
        arrays = {"weights": block[None]}
        part = ModelPart(MODEL, "coreset_predictions", settings, arrays)
        save_part(party.state_dir, part)
    return parties


def pinned(parties: list[Party], folder: Path, consent: Consent) -> list[Party]:
    """Give parties folders and any missing ids, and pin the other parties' keys."""
    for party in parties:
        party.state_dir = folder / party.name
        if party.ids is None:
            party.ids = np.arange(party.n_rows)
            party.ids_digest = digest_ids(party.ids)
    peers = {party.name: public_identity(party.state_dir) for party in parties}
    for party in parties:
        party.consent = replace(consent, peers=peers)
    return parties
