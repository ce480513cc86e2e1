"""The public names of the package; see :mod:`vfl_flower`."""

from vfl_flower import strategies as strategies
from vfl_flower.app.register import register as register
from vfl_flower.app.report.result_page import report as report
from vfl_flower.party.consent import ALLOW_ALL as ALLOW_ALL
from vfl_flower.party.consent import Consent as Consent
from vfl_flower.party.party import Party as Party
from vfl_flower.party.party import PartyError as PartyError
from vfl_flower.party.row_requests import request_changes as request_changes
from vfl_flower.server.exchange import FederationError as FederationError
from vfl_flower.server.exchange import PartyFailed as PartyFailed
from vfl_flower.server.ledger import Ledger as Ledger
from vfl_flower.simulation import simulate as simulate
from vfl_flower.strategies import *  # noqa: F403, the registry's names
