"""The bundle by which a party knows the installed package's app."""

import csv
import io
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
import typer
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.cli.utils import collect_files
from packaging.metadata import Metadata

from benchmarks import release
from vfl_flower.app.commands.template import write_app
from vfl_flower.app.deployment import bundle
from vfl_flower.app.deployment.bundle import bundle_hash, hash_of, installed_bundle
from vfl_flower.version import __version__

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Build all that a release consists of."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    release.build(ROOT, folder)
    return folder


def modules() -> set[str]:
    return {p.relative_to(ROOT).as_posix() for p in ROOT.glob("vfl_flower/**/*.py")}


def test_the_bundle_has_format_1(dist):
    """With its licence, the version of Flower it was made for, and all modules."""
    (file,) = dist.glob("*.fab")
    assert re.fullmatch(r"vfl-flower\.vfl-flower\.[\d-]+\.\w{8}\.fab", file.name)
    with zipfile.ZipFile(file) as archive:
        packed = tomllib.loads(archive.read("pyproject.toml").decode())
        assert archive.read("LICENSE") == (ROOT / "LICENSE").read_bytes()
        text = archive.read(".info/CONTENT").decode()
        listed = {row[0] for row in csv.reader(io.StringIO(text))}
    assert listed == modules() | {"LICENSE", "pyproject.toml"}
    assert packed["project"]["license"] == {"file": "LICENSE"}
    app = packed["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1

    _, metadata = build_fab_from_files(collect_files(dist / release.APP))
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_target == app["flwr-version-target"]
    (least,) = re.findall(r"flwr\[simulation\]>=([\d.]+),", str(packed["project"]))
    assert metadata.flwr_version_min == least


def test_flower_hub_takes_the_folder_of_the_app(dist):
    """It has the package, no tests and no benchmarks; links lead to the repository."""
    release.check(dist)
    app = dist / release.APP
    assert not {"tests", "benchmarks", "docs"} & {path.name for path in app.iterdir()}
    assert not re.search(r"\]\((?!https://)", (app / "README.md").read_text())


def test_wheel_and_source_distribution(dist):
    """The wheel has the package, with an SPDX expression; the other makes a wheel."""
    (wheel,) = dist.glob("*.whl")
    about = f"vfl_flower-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = Metadata.from_email(archive.read(f"{about}/METADATA"))
    assert modules() | {"vfl_flower/py.typed", f"{about}/licenses/LICENSE"} <= names
    assert {name.partition("/")[0] for name in names} == {"vfl_flower", about}
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description == (dist / release.APP / "README.md").read_text()


def test_every_folder_of_the_template_gives_the_installed_bundle(tmp_path):
    """Whatever the folder's name, and byte for byte as ``flwr run`` builds it."""
    built, its_hash = installed_bundle()
    for name in ("app", "another-app"):
        write_app(tmp_path / name)
        assert build_fab_from_disk(tmp_path / name) == built
        assert bundle_hash(tmp_path / name) == its_hash == hash_of(built)
        (tmp_path / name / "client.py").write_text("app = 1\n")
        assert bundle_hash(tmp_path / name) != its_hash


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


def test_a_folder_is_not_written_twice(tmp_path):
    write_app(tmp_path / "app")
    before = (tmp_path / "app" / "pyproject.toml").read_text()
    assert tomllib.loads(before)["project"]["name"] == "vfl-flower-app"
    with pytest.raises(ValueError, match="no pyproject"):
        write_app(tmp_path / "app")
    assert (tmp_path / "app" / "pyproject.toml").read_text() == before
