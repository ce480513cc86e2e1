"""The documentation as a site: it builds without a warning, and loads nothing."""

import re
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from mkdocs.__main__ import cli
from pages import PAGES, ROOT

import vfl_flower as vf

pytestmark = pytest.mark.second


class Loads(HTMLParser):
    """Collects what a browser loads for a page, and the classes and ids in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded, self.classes, self.ids = list[str](), set[str](), set[str]()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        """Note what a tag has."""
        given = {name: value or "" for name, value in attributes}
        self.classes |= set(given.get("class", "").split())
        self.ids.add(given.get("id", ""))
        names = ["src", "srcset", "data", "poster"]
        names += ["href"] if tag in ("link", "image", "use") else []
        self.loaded += [given[name] for name in names if name in given]


def build(site: Path) -> None:
    """Build the site as ``make docs`` does; what mkdocs warns of is an error."""
    command = ["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python, about the code of plugins
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        built = CliRunner().invoke(cli, [*command, "--site-dir", str(site)])
    assert built.exit_code == 0, built.output


def test_every_page_and_name_is_there_and_nothing_is_loaded_from_elsewhere(tmp_path):
    """What the theme's script could load it loads only where a page asks for it."""
    build(site := tmp_path)
    pages = {path for path in PAGES if path.startswith("docs/")}
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    expected = {re.sub(r"^docs/(.*)\.md$", r"\1.html", page) for page in pages}
    assert expected <= made
    assert not list(site.rglob("*.py"))
    index = (site / "search" / "search_index.js").read_text()  # for pages of a folder
    assert {"mufc"} == {"mufc", "papers"} & {*re.findall(r'"location":"(\w+)', index)}
    ids = Loads(site / "api.html").ids
    for name in set(vf.__all__) - {"__version__"}:
        assert f"vfl_flower.{name}" in ids, name
    loads = {path: Loads(path) for path in site.rglob("*.html")}
    assert len(loads) > 20
    for path, page in loads.items():
        outside = [one for one in page.loaded if re.match(r"(\w+:)?//", one)]
        assert not outside, path
        assert not page.classes & {"mermaid", "md-source"}, path  # the first two below
    for path in site.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(\w+:)?//", path.read_text()), path
    scripts = "".join(path.read_text() for path in site.rglob("*.js"))
    urls = set(re.findall(r"[\"'`](https?://[^\"'`]+)", scripts))
    assert {re.sub(r"[@?#$].*", "", url) for url in urls} <= {
        "https://unpkg.com/mermaid",
        "https://",  # any GitLab, as these two
        "https://api.github.com/repos/",
        "https://api.github.com/users/",
        "https://unpkg.com/resize-observer-polyfill",  # in browsers of before 2020
        "http://www.w3.org/2000/svg",
    }
