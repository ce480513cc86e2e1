"""Type names that every layer shares."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
"""A NumPy array; each docstring states its shape, type and unit."""

Arrays = dict[str, Array]
"""Named arrays."""

Scalar = bool | int | float | str | bytes
"""A setting that is sent with a message and is not an array."""

Values = Mapping[str, Array | Scalar]
"""The content of one message: named arrays and named settings."""
