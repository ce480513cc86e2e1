"""The options for reading a party file, declared once.

The run config, the node config and the commands that read a file have a key for each
option.
"""

from __future__ import annotations

from vfl_flower.data.source import Impute
from vfl_flower.protocol.settings import Count, settings
from vfl_flower.shapes import shapes_only


@shapes_only
@settings
class FileOptions:
    """Options for reading a party file."""

    id_column: str = ""
    """Column with the row ids."""
    label_column: str = ""
    """Column with the labels; in a folder of files, one file must contain this
    column."""
    columns: str = ""
    """Feature columns, as in "a,b,c"; default: all other columns."""
    standardize: bool = False
    """Each party scales its columns to mean 0 and standard deviation 1."""
    one_hot: bool = True
    """Convert text columns to 0/1 columns; if false, text is an error."""
    impute: Impute = "mean"
    """Replacement for missing values; with "none", missing values are an error."""
    missing: str = ""
    """Texts that mark a missing value, besides empty cells, as in "NA,?,-999".
    Default: NA, N/A, NaN, null, None, "?", "-" and ".", in upper or lower case."""
    max_levels: Count = 0
    """Maximum number of levels of a text column. If there are more, the most frequent
    are kept, and the rest become "other". With 0, a column with more than 100 levels
    keeps 20."""
    levels: str = ""
    """Levels of text columns, the same at all parties: "sex=f|m;region=north|south", or
    (not in a run config) the absolute path of a TOML file. Default: the levels in each
    party's file."""
    delimiter: str = ""
    """CSV separator, one character or "tab". By default, comma, semicolon, tab or
    vertical bar is detected."""
    encoding: str = ""
    """CSV encoding. Default: the encoding of the byte order mark, else UTF-8 if valid,
    else Windows-1252 or Latin-1."""
    header: bool = True
    """The first line of a CSV file names the columns; if false, their names are x0, x1,
    ..."""
