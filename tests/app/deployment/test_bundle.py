"""The bundle by which a party knows the installed package's app."""

import csv
import io
import re
import shutil
import tomllib
import zipfile
from pathlib import Path

import hatchling.build
import pytest
import typer
from flwr.cli.build import build, build_fab_from_disk, build_fab_from_files
from flwr.cli.utils import collect_files, filter_paths_for_publish
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES

from vfl_flower.app.commands.template import write_app
from vfl_flower.app.deployment import bundle
from vfl_flower.app.deployment.bundle import bundle_hash, hash_of, installed_bundle
from vfl_flower.version import __version__

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Return a copy of the checkout with what is in git, in a folder of any name."""
    folder = tmp_path_factory.mktemp("checkout") / "vfl-flower"
    made = {"__pycache__", "build", "dist", *(p.name for p in ROOT.glob("*.egg-info"))}
    hidden = {path.name for path in ROOT.glob(".*")} - {".gitignore"}
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*made, *hidden))
    return folder


def test_flwr_build_makes_a_bundle_of_format_1(checkout, tmp_path, monkeypatch):
    """With its licence, the version of Flower it was made for, and all modules."""
    monkeypatch.chdir(tmp_path)
    build(checkout)
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(r"vfl-flower\.vfl-flower\.[\d-]+\.\w{8}\.fab", file.name)
    with zipfile.ZipFile(file) as archive:
        packed = tomllib.loads(archive.read("pyproject.toml").decode())
        assert archive.read("LICENSE") == (ROOT / "LICENSE").read_bytes()
        text = archive.read(".info/CONTENT").decode()
        listed = {row[0] for row in csv.reader(io.StringIO(text))}
    modules = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("vfl_flower/**/*.py")}
    assert listed == modules | {"LICENSE", "pyproject.toml"}
    assert packed["project"]["license"] == {"file": "LICENSE"}
    app = packed["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1

    _, metadata = build_fab_from_files(collect_files(checkout))
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_target == app["flwr-version-target"]
    (least,) = re.findall(r"flwr\[simulation\]>=([\d.]+),", str(packed["project"]))
    assert metadata.flwr_version_min == least


def test_the_checkout_keeps_the_limits_of_flower_hub(checkout):
    """In the number of files and their sizes; all are UTF-8."""
    files = filter_paths_for_publish(collect_files(checkout))
    sizes = [path.stat().st_size for path in files.values()]
    assert 200 < len(sizes) <= MAX_FILE_COUNT
    assert max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) <= MAX_TOTAL_BYTES
    for path in files.values():
        path.read_text(encoding="utf-8")
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert 0 < len(project["description"]) <= 200


def test_wheel_and_source_distribution(checkout, tmp_path, monkeypatch):
    """A wheel made of the source distribution has the whole package and its licence."""

    def build(kind, place):
        monkeypatch.chdir(place)
        (tmp_path / kind).mkdir()
        name = getattr(hatchling.build, f"build_{kind}")(str(tmp_path / kind))
        return tmp_path / kind / name

    shutil.unpack_archive(build("sdist", checkout), tmp_path / "source", filter="data")
    (unpacked,) = (tmp_path / "source").iterdir()
    wheel = build("wheel", unpacked)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = {p for p in ROOT.glob("vfl_flower/**/*") if p.suffix in {".py", ".typed"}}
    assert {p.relative_to(ROOT).as_posix() for p in tracked} <= names
    about = f"vfl_flower-{__version__}.dist-info"
    assert f"{about}/licenses/LICENSE" in names
    assert {name.partition("/")[0] for name in names} == {"vfl_flower", about}


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
