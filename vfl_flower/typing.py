"""Type names that every layer shares."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
"""A NumPy array; each docstring gives its shape, type and unit."""

Arrays = dict[str, Array]
"""Named arrays."""

Scalar = bool | int | float | str | bytes
"""A setting that travels with a message and is no array."""

Values = Mapping[str, Array | Scalar]
"""What one message carries: named arrays and named settings."""
