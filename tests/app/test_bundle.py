"""The bundle by which a party knows the installed package's app."""

import subprocess
import sys

import pytest
from flwr.cli.build import build_fab_from_disk

from vfl_flower.app.bundle import bundle_hash, hash_of, installed_bundle
from vfl_flower.app.template import write_app

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own


def test_every_folder_of_the_template_gives_the_installed_bundle(tmp_path):
    """Whatever the folder's name, and byte for byte as ``flwr run`` builds it."""
    bundle, its_hash = installed_bundle()
    for name in ("app", "another-app"):
        write_app(tmp_path / name)
        assert build_fab_from_disk(tmp_path / name) == bundle
        assert bundle_hash(tmp_path / name) == its_hash == hash_of(bundle)


def test_a_changed_folder_gives_another_hash(tmp_path):
    write_app(tmp_path / "app")
    (tmp_path / "app" / "client.py").write_text("app = 1\n")
    assert bundle_hash(tmp_path / "app") != bundle_hash()


def test_the_command_prints_the_hash(tmp_path):
    command = [sys.executable, "-m", "vfl_flower.app.bundle"]
    assert subprocess.check_output(command, text=True).strip() == bundle_hash()
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pyproject.toml" in done.stderr
