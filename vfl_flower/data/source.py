"""The source of one party's data, and the options for reading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

QUERY = "duckdb:"
"""Prefix of a query that is given instead of a file path."""

BUNDLED = {
    "breast_cancer": "load_breast_cancer",
    "california_housing": "fetch_california_housing",
    "covtype": "fetch_covtype",
    "diabetes": "load_diabetes",
    "digits": "load_digits",
    "iris": "load_iris",
    "wine": "load_wine",
}
"""Functions that load scikit-learn's data sets; ``fetch_`` functions download them."""

Impute = Literal["mean", "median", "none"]
"""Replacement for missing values; none: they are an error."""

MISSING = ("NA", "N/A", "#N/A", "NaN", "-NaN", "null", "None", "?", "-", ".")
"""Strings that, like "", mark a missing value; also in upper or lower case."""


@dataclass(frozen=True, kw_only=True)
class PartySource:
    """The source of one party's data, and the options for reading them.

    On a SuperNode, the fields are keys of ``--node-config``, with dashes instead of
    underscores; in a simulation, the run config gives all nodes the same fields.
    :class:`vfl_flower.data.options.FileOptions` describes the fields that have no
    description here; None means the default.
    """

    data: str
    """A bundled data set (``diabetes``), a generated one (``synthetic`` or
    ``synthetic:n=..,d=..``), a query, or the absolute path of a party file or of a
    folder with one file for each party, in the natural order of the file names."""
    index: int | None = None
    """``partition-id``: the party's position in the run, from 0."""
    count: int | None = None
    """``num-partitions``: number of parties that share a bundled set or a folder."""
    name: str | None = None
    """``party-name``; default: the name of the file without its extension."""
    id_column: str | None = None
    label_column: str | None = None
    columns: tuple[str, ...] | None = None
    standardize: bool = False
    one_hot: bool = True
    impute: str = "mean"
    missing: tuple[str, ...] | None = None
    max_levels: int | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    label_optional: bool = False
    """Whether the file may lack the label column, as for new rows."""
    delimiter: str | None = None
    text_encoding: str | None = None
    """``encoding``: the encoding of a CSV file."""
    header: bool = True
    consent: Path | None = None
    """``consent``: absolute path of the party's consent file."""
    state_dir: Path | None = None
    """``state-dir``: absolute path of the folder with the party's local models."""
    alignment: str | None = None
    """``alignment``: name of a row order in `state_dir`; the party then uses only the
    rows of this order, in this order."""
    rows: bool = False
    """Whether parties hold different rows of the same columns. A bundled or generated
    data set is then split by rows: party j has every ``count``-th row, starting with
    row j. A missing value in a file stays NaN until the run fills it with the mean over
    all parties."""

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown value of `impute`."""
        if self.impute not in (words := get_args(Impute)):
            raise ValueError(
                f"impute must be one of {', '.join(words)}, got {self.impute!r}"
            )

    @property
    def who(self) -> str:
        """The party's name in errors."""
        if self.name:
            return f"party {self.name!r}"
        return "the party" if self.index is None else f"party-{self.index}"

    @property
    def markers(self) -> frozenset[str]:
        """The strings that mark a missing value."""
        if self.missing is not None:
            return frozenset({"", *self.missing})
        forms = str, str.upper, str.lower
        return frozenset({"", *(form(text) for text in MISSING for form in forms)})

    @property
    def filled_later(self) -> bool:
        """Whether missing values stay NaN until the mean over all parties is known."""
        return self.rows and self.impute == "mean"
