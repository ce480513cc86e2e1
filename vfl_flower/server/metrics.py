"""Explanations of the metrics of a result, for readers who must act on them."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """The meaning of one metric of a result."""

    title: str  # its name in plain words
    text: str
    """Explanation in a sentence or two, for readers who do not know the method."""
    better: Literal["higher", "lower", ""] = ""  # which values are better
    kind: Literal["number", "share", "count"] = "number"
    """The format in which the value is shown: for example, a share of 0.25 as 25 %."""


CONVERGED = Metric(
    "Solver finished",
    "1 if the solver reached its goal, and 0 if it stopped earlier: the model is then "
    "not the best possible for these data.",
    "higher",
    "count",
)
"""Metric of every iterative solver."""

SPREAD = "_se"
"""Suffix of the name of a standard error, after the name of its metric."""

OF_SPREAD = (
    "The figure after ±. It measures the random error of the number before ±: in "
    "nineteen of twenty cases, the error is at most twice this figure."
)
"""Explanation of every standard error."""
