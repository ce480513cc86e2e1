"""Certificates and keys that flwr takes, and what its SuperLink does not check."""

import pytest
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.config_loader import load_control_authn_plugin

from vfl_flower.app.deployment.certificates import (
    write_certificates,
    write_supernode_key,
)


def test_no_key_is_overwritten(tmp_path):
    write_certificates(tmp_path, ["127.0.0.1"])
    write_supernode_key(tmp_path / "a.key")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FileExistsError):
        write_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(FileExistsError):
        write_supernode_key(tmp_path / "a.key")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_installed_superlink_has_no_accounts(monkeypatch):
    """As docs/deploy.md says under "Who can start a run"."""
    plugin = load_control_authn_plugin()
    assert isinstance(plugin, NoOpControlAuthnPlugin)
    assert plugin.validate_tokens_in_metadata([])[0]
    monkeypatch.setenv("FLWR_OIDC_ENABLED", "1")
    with pytest.raises(SystemExit, match="OIDC account authentication is unavailable"):
        load_control_authn_plugin()
