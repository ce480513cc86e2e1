"""Every step of every algorithm on one ClientApp."""

from __future__ import annotations

from flwr.clientapp import ClientApp

from vfl_flower.party.answering import Load, serve
from vfl_flower.protocol.steps import STEPS
from vfl_flower.strategies import uses_of_steps


def make_client_app(load: Load, *, allow_plain: bool = False) -> ClientApp:
    """Return a ClientApp that answers every step; see :func:`register`."""
    app = ClientApp()
    register(app, load, allow_plain=allow_plain)
    return app


def register(app: ClientApp, load: Load, *, allow_plain: bool = False) -> None:
    """Add every step of every algorithm to a ClientApp, as ``train.<action>``.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        The app.
    load : callable
        Returns the party's data for a Flower context. It is called for each message,
        so it should be quick: cache slow results, or map a file into memory. A party
        without an index gets the ``partition-id`` of its node; if the node has none,
        parties are ordered by name.
    allow_plain : bool
        Answer a server even if it asks for sums without masks, or for a protocol that
        does not protect the party. Use it only for tests and comparisons.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> app = ClientApp()
    >>> register(app, lambda context: Party(np.zeros((3, 2)), name="clinic"))
    """
    serve(app, load, STEPS.values(), uses=uses_of_steps(), allow_plain=allow_plain)
