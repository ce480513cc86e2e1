"""Build the parts of a release, or make the release; nothing is pushed or uploaded.

``python benchmarks/release.py`` builds into ``dist/``: the source distribution, the
wheel, the folder ``vfl-flower`` with the app for Flower's Hub, and its bundle. With a
version it first writes and commits that version. Then it runs jobs with the built files
in an empty environment, sets a tag, and prints the commands that publish the release.
"""

import datetime
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.cli.app_cmd.publish import (
    _collect_file_paths,
    _validate_description,
    _validate_files,
)
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
APP = "vfl-flower"  # Flower takes no underscore in the name of an app's folder

PUBLISH = """
v{version} is ready; these commands publish it:

    git push origin HEAD v{version}
    pip install twine && twine upload dist/*.whl dist/*.tar.gz
    flwr login supergrid && flwr app publish dist/vfl-flower"""


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command that must succeed."""
    subprocess.run([*map(str, command)], cwd=cwd, check=True)


def git(*command: str) -> str:
    """Return the output of git."""
    return subprocess.check_output(["git", *command], cwd=ROOT, text=True)


def write_version(version: str) -> None:
    """Write a version, and its date into the changelog, which must name the version."""
    heading = f"## {version} ({datetime.date.today()})"
    for file, pattern, text in (
        ("CHANGELOG.md", rf"^## {re.escape(version)} \(.*\)$", heading),
        ("CITATION.cff", "^version: .*", f"version: {version}"),
        ("pyproject.toml", '^version = ".*"', f'version = "{version}"'),
        ("vfl_flower/version.py", '= ".*"', f'= "{version}"'),
    ):
        old = (ROOT / file).read_text()
        new, count = re.subn(pattern, text, old, count=1, flags=re.MULTILINE)
        if not count:
            sys.exit(f"{file} has no line that matches {pattern}")
        (ROOT / file).write_text(new)


def build(root: Path, dist: Path) -> None:
    """Build all files from a checkout; wheel and app from the source distribution."""
    shutil.rmtree(dist, ignore_errors=True)
    hatchling = (sys.executable, "-m", "hatchling", "build", "-d", dist, "-t")
    run(*hatchling, "sdist", cwd=root)
    (source,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(source, dist, filter="data")
    app = (dist / source.name.removesuffix(".tar.gz")).rename(dist / APP)
    run(*hatchling, "wheel", cwd=app)
    about = Metadata.from_email((app / "PKG-INFO").read_bytes())  # raises if invalid
    _validate_description(about.summary)
    (app / "README.md").write_text(about.description)  # with absolute links
    run(Path(sys.executable).with_name("flwr"), "build", "--app", app, cwd=dist)


def check(dist: Path) -> None:
    """Check the app's files as Flower does before it publishes them; print sizes."""
    _validate_files(_collect_file_paths((dist / APP).resolve()))
    for path in [*dist.glob("*.whl"), *dist.glob("*.fab")]:
        with zipfile.ZipFile(path) as archive:
            sizes = [file.file_size for file in archive.infolist()]
        print(f"{path.name}: {len(sizes)} files, {sum(sizes):,} bytes unpacked")


def try_out(dist: Path) -> None:
    """Run jobs in an empty environment: with the wheel's command, and with the app."""
    (wheel,) = dist.glob("*.whl")
    with TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin/python")
        install = (python, "-m", "pip", "install", "--quiet")
        run(*install, wheel, cwd=folder)
        simulate = (python.with_name("vfl-flower"), "simulate", "coreset-vrlr")
        run(*simulate, "--data=diabetes", f"--set=output-dir={folder}", cwd=folder)
        run(*install, f"vfl-flower[simulation] @ {wheel.as_uri()}", cwd=folder)
        simulate = (python.with_name("vfl-flower"), "simulate-app", dist / APP)
        options = ("--num-supernodes=3", f'--run-config=output-dir="{folder}"')
        run(*simulate, *options, cwd=folder)


def main() -> None:
    """Build and check; release a version if one is given."""
    version, dist = "".join(sys.argv[1:2]), ROOT / "dist"
    if version:
        if git("status", "--porcelain") or git("tag", "--list", f"v{version}"):
            sys.exit("there must be no tag of this version, and no uncommitted change")
        write_version(version)
        run("git", "commit", "--all", "--allow-empty", f"--message=Release {version}")
    build(ROOT, dist)
    check(dist)
    if version:
        try_out(dist)
        run("git", "tag", f"v{version}", f"--message=vfl-flower {version}")
        print(PUBLISH.format(version=version))


if __name__ == "__main__":
    main()
