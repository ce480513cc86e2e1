"""Coresets of many months: the rows of a new one are added to a model's coresets.

[2] J. L. Bentley and J. B. Saxe, "Decomposable searching problems I:
    static-to-dynamic transformation", Journal of Algorithms 1(4), 1980.
[3] S. Har-Peled and S. Mazumdar, "On coresets for k-means and k-median clustering",
    STOC 2004.
"""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import numpy as np

from vfl_flower.clients import coreset_additions as party
from vfl_flower.protocol.exchange import FederationError
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.parts import check_model
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps
from vfl_flower.protocol.strategy import ProtocolStrategy
from vfl_flower.strategies.coresets import CoresetVKMC, CoresetVRLR
from vfl_flower.strategies.sampling import CoresetStrategy, Earlier, Scoring

log = logging.getLogger("vfl_flower")


@settings
class Addition(CoresetStrategy):
    """What regression and k-means have in common when they add a month."""

    _: KW_ONLY
    model: str
    """The number of the model to which the rows are added, as its training, or the last
    addition, reported it."""
    # These are no settings here: the rows of earlier months are no longer there.
    sampling: ClassVar[Literal["coreset"]] = "coreset"  # type: ignore[misc]
    evaluate: ClassVar[Literal["coreset"]] = "coreset"  # type: ignore[misc]
    check_size: ClassVar[int] = 0  # type: ignore[misc]
    keep_coreset: ClassVar[bool] = True  # type: ignore[misc]

    task = "add"
    adds = True

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where settings do not fit together."""
        super().__post_init__()
        check_model(self.model)

    @property
    def works_with(self) -> str:
        """Number of the model whose parts the parties load."""
        return self.model

    def baselines(self) -> dict[str, ProtocolStrategy]:
        """Return none: other samplings have no rows of earlier months."""
        return {}

    def earlier(self, parties: Parties, scoring: Scoring) -> Earlier:
        """Return the coresets that the parties keep, before any work.

        Raises
        ------
        FederationError
            A party has no place for the new ones.
        PartyFailed
            A party does not keep these coresets, or has no new month for them.
        """
        super().earlier(parties, scoring)
        replies = parties.ask(
            party.kept, intercept=scoring.intercept, clustering=scoring.clustering
        )
        first = replies[0]
        for j, reply in enumerate(replies):
            for name in ("weights", "levels", "stands_for", "months"):
                if not np.array_equal(reply[name], first[name]):
                    reason = f"its part must have the {name} of {parties[0].name!r}"
                    raise replies.failure(j, reason)
        w = np.asarray(first["weights"], dtype=np.float64)
        if not (len(w) == len(first["levels"]) > 0 and 0 < w.min() <= w.max() <= 1e100):
            raise FederationError(
                "the parts of the parties must have weights above 0 for the rows of "
                "the coreset: they are damaged"
            )
        parties.n_kept = len(w)
        levels = np.asarray(first["levels"], dtype=np.uint8)
        return Earlier(w, levels, first["stands_for"], first["months"])


@settings
class CoresetVRLRAdd(Addition, CoresetVRLR):
    """Linear regression on the coresets of earlier months and of new rows.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          as in training                         all of it
    kept           weights and levels of the rows that    all of it, which it has told
                   it keeps                               before
    totals, ..     as in training, of new rows and of     as in training
                   those kept
    keep           nothing                                nothing
    =============  =====================================  ==========================

    The parties' data are the rows of the new month. Merge and reduce [2, 3]: a coreset
    of level l stands for 2^l months, and there is at most one of each level. A new one
    is drawn by Algorithms 1 and 2 from the new rows and the kept rows of the levels
    that it merges, each as often as its weight says. The model is trained on all levels
    together, by any solver.

    Notes
    -----
    Differs from [2, 3] in: all levels that a month merges are reduced at once, and with
    the month's own rows: so there are no more messages than in training but ``kept``,
    and a row is drawn from at most log2(months) + 1 times. If each reduction keeps the
    cost of all models within a share eps, the whole keeps it within (1 + eps)^L - 1,
    L = floor(log2(months)) + 1. For each model the expected cost on the coresets is
    its cost on all rows of all months.

    Raises
    ------
    FederationError
        A party has no ``state-dir``.
    PartyFailed
        A party has no part of this model, other columns than in training, or a month
        that the model has. Nothing is changed then.
    """

    question = "Which few rows of all months give nearly their linear model?"
    steps: ClassVar[Steps] = (party.kept, *CoresetVRLR.steps)


@settings
class CoresetVKMCAdd(Addition, CoresetVKMC):
    """k-means on the coresets of earlier months and of new rows.

    The same messages as of :class:`CoresetVRLRAdd`, with the scores of Algorithm 3
    for weighted rows.
    """

    question = "Which few rows of all months give nearly their clusters?"
    steps: ClassVar[Steps] = (party.kept, *CoresetVKMC.steps)
