"""The party's side in Flower: the ready-made ClientApp, and its access to data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from flwr.app import Context

from vfl_flower.app.config import has_encoding, party_source, with_data
from vfl_flower.app.register import make_client_app
from vfl_flower.data import StoredRows, is_file, load_party
from vfl_flower.data.source import PartySource
from vfl_flower.party.consent import ALLOW_ALL, Consent
from vfl_flower.party.journal import check_refusals
from vfl_flower.party.parts import check_folder, load_part
from vfl_flower.party.party import Party, PartyError


def load_from_context(context: Context) -> Party:
    """Load the party described by the node config or, if simulated, the run config."""
    try:
        source = party_source(context.node_config, context.run_config)
    except ValueError as error:
        name = context.node_config.get("party-name")
        raise PartyError(f"party {name!r}: {error}" if name else str(error)) from None
    # Simulated parties hold parts of a bundled data set or of a folder.
    real = _is_real(source, "data" in with_data(context.node_config))
    if real and source.state_dir is None:
        raise PartyError(
            f"{source.who}: state-dir must be set in the node config: the party stores "
            "its replies there, so that no mask is used twice"
        )
    party = load(source, context.run_config)
    party.n_parties = source.count or 0
    if source.consent is None:
        party.consent = Consent() if real or source.state_dir else ALLOW_ALL
    return party


def _is_real(source: PartySource, by_node: bool) -> bool:
    """Return whether the data need protection; refuse a file from a run config."""
    if not is_file(source):
        return False
    # Flower simulates with Ray, which a SuperNode does not import.
    if not by_node and "ray" not in sys.modules:
        raise PartyError(
            f"{source.who}: a data file must be set as 'data' in the node config, "
            "not in a run config"
        )
    return by_node


def load(source: PartySource, run_config: Mapping[str, Any]) -> Party:
    """Return a party; for predictions, new rows are encoded as in training.

    Raises PartyError for a fault in the state-dir, local model, consent or data.
    """
    try:
        encoding = _stored_encoding(source, run_config)
        consent = Consent.load(source.consent) if source.consent else None
        if consent is not None and source.state_dir is not None:
            check_refusals(source.state_dir, consent)  # refusals on loading count too
    except PartyError as error:  # before ``hello`` the server does not know the name
        raise PartyError(f"{source.who}: {error}") from None
    party = load_party(source, encoding=encoding)
    party.state_dir, party.source = source.state_dir, StoredRows(source)
    if consent is not None:
        party.consent = consent
    return party


def _stored_encoding(source: PartySource, run_config: Mapping[str, Any]) -> Any:
    """Check the ``state-dir``; for predictions, return the encoding of the new rows."""
    if source.state_dir is not None:
        check_folder(source.state_dir)
    if not has_encoding(run_config):
        return None
    if source.state_dir is None:
        raise PartyError("state-dir (--state-dir) is needed: it holds the local model")
    part = load_part(source.state_dir, str(run_config.get("model-id", "")))
    return part.settings["encoding"]


app = make_client_app(load_from_context)
