"""The line by which peers pin a party's key."""

import stat
import subprocess
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from vfl_flower.app.commands import identity
from vfl_flower.app.commands.cli import app
from vfl_flower.app.deployment.foreground import program
from vfl_flower.party.identity import FILE, load_identity
from vfl_flower.secure_aggregation.keys import encode_key, parse_key


def run(folder, name="airline"):
    words = ["identity-key", "--state-dir", str(folder), "--name", name]
    return CliRunner().invoke(app, words)


def test_the_command_prints_a_line_and_says_what_to_do_with_it(tmp_path):
    folder = tmp_path / "state"
    options = ["--state-dir", str(folder), "--name", "airline"]
    done = subprocess.run(
        [*program(), "identity-key", *options],
        check=True,
        capture_output=True,
        text=True,
    )
    key = load_identity(folder).public_key().public_bytes_raw()
    assert done.stdout == f'airline = "{encode_key(key)}"\n'
    assert "under [peers] in its consent file" in done.stderr
    assert "contains a new key of this party" in done.stderr
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert "PRIVATE" not in done.stdout + done.stderr


PRINTABLE = st.characters(exclude_categories=("C", "Z")) | st.just(" ")
NAMES = st.text(PRINTABLE, min_size=1, max_size=100)


@given(NAMES)
def test_any_name_of_a_party_is_text_of_toml(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "state-of-names"
    line = identity.line_for_peers(folder, name)
    ((read, key),) = tomllib.loads(f"[peers]\n{line}\n")["peers"].items()
    assert read == name
    assert parse_key(key) == load_identity(folder).public_key().public_bytes_raw()


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 101])
def test_what_is_no_name(tmp_path, name):
    done = run(tmp_path / "state", name)
    assert done.exit_code == 1
    assert "name must be 1 to 100 printable characters" in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "state").exists()
