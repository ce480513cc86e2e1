"""What the numbers of a result mean, in words for whoever has to decide by them."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """What one number of a result means."""

    title: str  # its name in plain words
    text: str
    """What it says, in a sentence or two, for people who do not know the method."""
    better: Literal["higher", "lower", ""] = ""  # which values are; "": neither
    kind: Literal["number", "share", "count"] = "number"
    """How it is shown: a share of 0.25 as 25 %."""


CONVERGED = Metric(
    "Solver finished",
    "1 if the solver reached its goal, and 0 if it stopped before: the model is then "
    "not the best one for these data.",
    "higher",
    "count",
)
"""Of whatever iterates."""

SPREAD = "_se"
"""How the name of a standard error ends: it stands beside the number that it is of."""

OF_SPREAD = (
    "The figure after ± is the standard error: with other rows held out, the number "
    "would be within two of them nineteen times in twenty."
)
"""What every standard error means."""
