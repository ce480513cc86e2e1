"""The bundle by which a party knows the installed package's app."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from flwr.cli.build import build_fab_from_disk

from vfl_flower.app import bundle
from vfl_flower.app.bundle import bundle_hash, hash_of, installed_bundle
from vfl_flower.app.template import write_app

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own


def test_every_folder_of_the_template_gives_the_installed_bundle(tmp_path):
    """Whatever the folder's name, and byte for byte as ``flwr run`` builds it."""
    built, its_hash = installed_bundle()
    for name in ("app", "another-app"):
        write_app(tmp_path / name)
        assert build_fab_from_disk(tmp_path / name) == built
        assert bundle_hash(tmp_path / name) == its_hash == hash_of(built)


def test_a_changed_folder_gives_another_hash(tmp_path):
    write_app(tmp_path / "app")
    (tmp_path / "app" / "client.py").write_text("app = 1\n")
    assert bundle_hash(tmp_path / "app") != bundle_hash()


def test_the_command_prints_the_hash(tmp_path):
    command = [sys.executable, "-m", "vfl_flower.app.bundle"]
    assert subprocess.check_output(command, text=True).strip() == bundle_hash()


def test_flower_knows_a_bundle_by_its_sha256():
    """The example of FIPS 180-2."""
    first, last = "ba7816bf8f01cfea414140de5dae2223", "b00361a396177a9cb410ff61f20015ad"
    assert hash_of(b"abc") == first + last


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, Path.exists])
def test_a_folder_that_is_no_app_is_one_sentence(tmp_path, capsys, make):
    """Its file is a folder, empty, or not there."""
    make(tmp_path / "pyproject.toml")
    with pytest.raises(typer.Exit) as ended:
        bundle.main(tmp_path)
    assert ended.value.exit_code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "project" in err


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, capsys, monkeypatch):
    def build(folder):
        raise PermissionError(13, "Permission denied", "client.py")

    monkeypatch.setattr(bundle, "build_fab_from_disk", build)
    with pytest.raises(typer.Exit):
        bundle.main(tmp_path)
    assert capsys.readouterr().err == "[Errno 13] Permission denied: 'client.py'\n"
