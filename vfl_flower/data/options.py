"""The options that say how a party file is read, declared once.

Run config, node config and the commands that take a file have a key for each.
"""

from __future__ import annotations

from vfl_flower.data.source import Impute
from vfl_flower.protocol.settings import Count, settings
from vfl_flower.shapes import shapes_only


@shapes_only
@settings
class FileOptions:
    """How a party file is read."""

    id_column: str = ""
    """Column with the row ids."""
    label_column: str = ""
    """Column with the labels; in a folder of files, one file must have it."""
    columns: str = ""
    """Feature columns, "a,b,c"; default: all other columns."""
    standardize: bool = False
    """Parties scale columns to mean 0 and standard deviation 1."""
    one_hot: bool = True
    """true: text columns become 0/1 columns; false: text is an error."""
    impute: Impute = "mean"
    """Replacement for missing values; none: missing values are an error."""
    missing: str = ""
    """Texts that mean a missing value, besides empty cells, "NA,?,-999"; default: NA,
    N/A, NaN, null, None, ?, - and a point, in upper or lower case."""
    max_levels: Count = 0
    """A text column with more levels than this keeps the most frequent ones and
    "other"; 0: with more than 100 levels, it keeps 20."""
    levels: str = ""
    """Levels of text columns, equal at all parties: "sex=f|m;region=north|south", or
    (not in a run config) the absolute path of a TOML file; default: the levels in each
    party's file."""
    delimiter: str = ""
    """CSV separator, one character or "tab"; default: comma, semicolon, tab or bar."""
    encoding: str = ""
    """CSV encoding; default: as its byte order mark says, else UTF-8 if valid, else
    Windows-1252 or Latin-1."""
    header: bool = True
    """The first line of a CSV names its columns; false: x0, x1, ..."""
