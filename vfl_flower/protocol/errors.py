"""The only error whose text leaves a party, and the two errors of the server."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("vfl_flower")


class PartyError(Exception):
    """A party refuses a step, with a sentence that is safe to send to the server.

    The text names the rule, the argument or a column, but never a data value, a path or
    a stack trace. No other exception's text leaves the party.

    Examples
    --------
    >>> def load(context):  # for `register`
    ...     if "data-path" not in context.node_config:
    ...         raise PartyError("data-path must be in the node config")
    """


@contextmanager
def refusing(what: str = "") -> Iterator[None]:
    """Turn a ``ValueError``, which names a rule and no value, into a refusal."""
    try:
        yield
    except ValueError as error:
        raise PartyError(f"{what}{error}") from None


@contextmanager
def refusing_files(what: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` about a file into a refusal; only the log shows the path."""
    try:
        yield
    except OSError as error:
        log.error("%s: %s: %s", what, path, error.strerror)
        raise PartyError(f"{what}: {error.strerror}") from None


class FederationError(RuntimeError):
    """The parties are incompatible, or do not meet the requirements of the strategy.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> parties = [vf.Party(np.zeros((20, 1)), ids=range(j, j + 20)) for j in (0, 50)]
    >>> try:
    ...     vf.simulate(vf.Alignment("rows"), parties)
    ... except FederationError as error:
    ...     print(str(error).partition(":")[0])
    no id is held by all 2 parties
    """


class PartyFailed(FederationError):
    """One party did not answer a step.

    Attributes
    ----------
    party, action, reason : str
        The party, the step and the reason.
    nodes : dict of int to str
        Names of the nodes that failed, by Flower's node ids.

    Examples
    --------
    >>> error = PartyFailed("clinic", "hello", "it has no ids")
    >>> error.party, error.reason, isinstance(error, FederationError)
    ('clinic', 'it has no ids', True)
    """

    def __init__(
        self,
        party: str,
        action: str,
        reason: str,
        nodes: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(f"party {party!r} failed in {action!r}: {reason}")
        self.party, self.action, self.reason = party, action, reason
        self.nodes = dict(nodes or {})

    def __reduce__(self) -> tuple[type[PartyFailed], tuple[Any, ...]]:
        """Pickle the error, so that it can reach other processes, as in a pool."""
        return type(self), (self.party, self.action, self.reason, self.nodes)
