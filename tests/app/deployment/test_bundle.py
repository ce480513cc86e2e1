"""The bundle by which a party knows the package's app, and all else of a release."""

import datetime
import re
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner as ClickRunner
from flwr.cli.build import build_fab_from_disk
from packaging.metadata import Metadata
from typer.testing import CliRunner

from benchmarks import release
from vfl_flower.app.commands.cli import app
from vfl_flower.app.commands.template import write_app
from vfl_flower.app.deployment.bundle import hash_of, hash_of_app, installed_bundle
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
        names = set(archive.namelist())
    assert names == modules() | {"LICENSE", "pyproject.toml", ".info/CONTENT"}
    assert packed["project"]["license"] == {"file": "LICENSE"}
    assert packed["tool"]["flwr"]["app"]["fab-format-version"] == 1
    needed = re.findall(r"'flwr(?:\[\w+\])?>=([\d.]+),", str(packed["project"]))
    assert len(needed) == 2
    assert len({*needed}) == 1


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


def test_a_release_writes_its_version(tmp_path, monkeypatch):
    """If the changelog names it, which gets the date."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "vfl_flower").mkdir()
    files = ("CITATION.cff", "pyproject.toml", "vfl_flower/version.py")
    for file in ("CHANGELOG.md", *files):
        shutil.copy(ROOT / file, tmp_path / file)
    with pytest.raises(SystemExit, match="CHANGELOG"):
        release.write_version("98.7.6")
    (tmp_path / "CHANGELOG.md").write_text("## 98.7.6 (unreleased)")
    release.write_version("98.7.6")
    for file in files:
        text = (ROOT / file).read_text().replace(__version__, "98.7.6")
        assert (tmp_path / file).read_text() == text
    heading = f"## 98.7.6 ({datetime.date.today()})"
    assert (tmp_path / "CHANGELOG.md").read_text() == heading


def test_files_that_others_read_fit_their_schemas():
    for schema, *files in (
        ("citation-file-format", ROOT / "CITATION.cff"),
        ("compose-spec", *ROOT.glob("examples/compose/*.yaml")),
        ("github-workflows", *ROOT.glob(".github/workflows/*.yml")),
    ):
        assert files, schema
        words = "--builtin-schema", f"vendor.{schema}", *map(str, files)
        checked = ClickRunner().invoke(check_jsonschema, words)
        assert checked.exit_code == 0, checked.output


def test_every_folder_of_the_template_gives_the_installed_bundle(tmp_path):
    """Whatever the folder's name, and byte for byte as ``flwr run`` builds it."""
    built, its_hash = installed_bundle()
    for name in ("app", "another-app"):
        write_app(tmp_path / name)
        assert build_fab_from_disk(tmp_path / name) == built
        assert hash_of_app(tmp_path / name) == its_hash == hash_of(built)
        (tmp_path / name / "client.py").write_text("app = 1\n")
        assert hash_of_app(tmp_path / name) != its_hash


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, Path.exists])
def test_a_folder_that_is_no_app_is_one_sentence(tmp_path, make):
    """Its file is a folder, empty, or not there."""
    make(tmp_path / "pyproject.toml")
    ended = CliRunner().invoke(app, ["bundle-hash", str(tmp_path)])
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert "project" in ended.stderr


def test_a_folder_is_not_written_twice(tmp_path):
    write_app(tmp_path / "app")
    before = (tmp_path / "app" / "pyproject.toml").read_text()
    assert tomllib.loads(before)["project"]["name"] == "vfl-flower-app"
    with pytest.raises(ValueError, match="already contains a pyproject"):
        write_app(tmp_path / "app")
    assert (tmp_path / "app" / "pyproject.toml").read_text() == before
