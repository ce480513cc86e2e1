"""A rule in words completes "the value must be .."."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Interval, Le, Len, Lt, MinLen

from vfl_flower.protocol.rules import describe
from vfl_flower.protocol.settings import Fraction, Natural, Positive, Seed


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "a whole number"),
        (float, "a number"),
        (bool, "True or False"),
        (str, "text"),
        (Natural, "a whole number of at least 1"),
        (Seed, "a whole number of at least 0 and below 2^63"),
        (Positive, "a number above 0"),
        (Fraction, "a number of at least 0 and below 1"),
        (Literal[16, 32], "one of 16, 32"),
        (Annotated[float, Ge(0), Le(1)], "a number of at least 0 and at most 1"),
        (Annotated[float, Interval(gt=0, le=1)], "a number above 0 and at most 1"),
        (Annotated[int, Lt(1000)], "a whole number below 1000"),
        (Annotated[str, Len(1, 9)], "text of length 1 or more and length 9 or less"),
        (Literal["ring"], "'ring'"),
        (Literal["ring", "plain"], "one of 'ring', 'plain'"),
        (Positive | Literal["median"], "a number above 0 or 'median'"),
        (float | Literal["auto", "paper"], "a number or one of 'auto', 'paper'"),
        (Fraction | None, "a number of at least 0 and below 1, or None"),
        (Path, "a path"),
        (str | Path | None, "text or a path or None"),
        (list[str], "a list of text"),
        (tuple[float, ...], "a tuple of numbers"),
        (Sequence[int], "a sequence of whole numbers"),
        (Annotated[list[str], MinLen(1)], "a list of text of length 1 or more"),
        (list[dict[str, int]], "a list"),
        (dict[str, list[int]], "a dictionary"),
        (Mapping[str, int], "a dictionary"),
        (complex, "of type complex"),
    ],
)
def test_rules_in_words(annotation, words):
    assert describe(annotation) == words
