"""Federated learning over split columns, or split rows, with Flower."""

__version__ = "0.1.0"

from vfl_flower.clients.base import Party
from vfl_flower.ledger import Ledger
from vfl_flower.strategies.exchange import FederationError, PartyFailed

__all__ = ["FederationError", "Ledger", "Party", "PartyFailed", "__version__"]
