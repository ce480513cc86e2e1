"""Federated learning over split columns, or split rows, with Flower."""

from vfl_flower import strategies
from vfl_flower.app.register import register
from vfl_flower.app.report.result_page import report
from vfl_flower.party.consent import ALLOW_ALL, Consent
from vfl_flower.party.party import Party
from vfl_flower.party.row_requests import request_changes
from vfl_flower.server.exchange import FederationError, PartyFailed
from vfl_flower.server.ledger import Ledger
from vfl_flower.simulation import simulate
from vfl_flower.strategies import *  # noqa: F403, the registry's names
from vfl_flower.version import __version__

__all__ = [
    "ALLOW_ALL",
    "Consent",
    "FederationError",
    "Ledger",
    "Party",
    "PartyFailed",
    "__version__",
    "register",
    "report",
    "request_changes",
    "simulate",
]
__all__ += strategies.__all__
