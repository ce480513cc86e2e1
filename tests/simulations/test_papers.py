"""The command that measures what the papers' pages show, and writes their tables."""

import json
import re
from functools import partial
from types import SimpleNamespace
from xml.sax.saxutils import escape

import click
import measured
import pytest

from simulations import papers
from simulations.experiments import ROOT
from simulations.pictures import Curve, Panel, picture

PAGES = ROOT / "docs" / "papers"
RESULTS = sorted(PAGES.glob("*-results.md"))


run = partial(measured.run, papers.app)


# --- What is committed --------------------------------------------------------------


def in_words(name, title, note, alt, *_, **__):
    """Return a picture that has its words alone: drawing all takes half a minute."""
    words = escape(alt, {'"': "&quot;"})
    return SimpleNamespace(svg=f'<svg aria-label="{words}"/>'.encode())


@pytest.mark.second
def test_the_pages_have_the_figures_that_were_measured(capsys, monkeypatch):
    monkeypatch.setattr(papers.pictures, "make_figure", in_words)
    run("--check", "fdskl-topologies", "--output-dir", PAGES)
    said = capsys.readouterr().out
    assert "fdskl-topologies: 0 differences" in said
    assert "the pages have the figures" in said


def test_every_file_of_figures_is_that_of_a_piece():
    for file in (PAGES / "measured").iterdir():
        results = json.loads(file.read_text())
        assert file.stem in papers.PIECES
        assert {"commit of vfl_flower", "date", "machine"} < set(results["stamp"])
        assert "changes" not in results["stamp"]["commit of vfl_flower"]


def test_every_picture_is_on_a_page_and_has_words():
    pictures = {file.stem: file for file in (PAGES / "img").iterdir()}
    assert all(papers.in_words(file) for file in pictures.values())
    shown = {
        name
        for page in RESULTS
        for name in re.findall(r"\(img/([^)]+)\.svg\)", page.read_text())
    }
    assert shown == set(pictures)


# --- Measuring ----------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    """Put one group in the place of all, whose pieces are measured at once."""

    def page(figures):
        yield "## All"
        yield "Text."
        yield f"| {figures} |"

    pieces = {
        "one-a": papers.Piece("one a", quick="one a --quick"),
        "one-b": papers.Piece("one b", data=("far",)),
    }
    monkeypatch.setattr(papers, "GROUPS", {"one": papers.Group(page, pieces)})
    monkeypatch.setattr(papers, "PIECES", pieces)
    asked = []

    def measure(words, folder, authors):
        asked.append(words)
        stamp = {"date": "today", "machine": "this", "versions": "1"}
        command = f"python -m simulations.{words}"
        return {"command": command, "stamp": stamp, "figures": {words: len(asked)}}

    monkeypatch.setattr(papers, "measure", measure)
    return asked


PAGE = """# Page

<!-- measured: one / All / table 1 -->
<!-- end -->

Prose.
"""


@pytest.fixture
def page(tmp_path):
    """Return a page of a paper that has no table yet."""
    path = tmp_path / "some-results.md"
    path.write_text(PAGE)
    return path


def test_it_goes_on_where_it_was_ended(tiny, page, tmp_path, capsys):
    run("--output-dir", tmp_path, "--data-dir", tmp_path)
    assert tiny == ["one a"]
    assert "one-b: not measured, there is no far.npz" in capsys.readouterr().out
    assert "| {'one a': 1} |" in page.read_text()
    (tmp_path / "far.npz").touch()
    run("--output-dir", tmp_path, "--data-dir", tmp_path)
    assert tiny == ["one a", "one b"]
    text = page.read_text()
    assert "-->\n\n| {'one a': 1, 'one b': 2} |\n\n<!-- end -->\n\nProse." in text
    run("--output-dir", tmp_path, "--data-dir", tmp_path)
    assert len(tiny) == 2
    assert page.read_text() == text
    (tmp_path / "measured" / "one-a.json").unlink()
    run("--output-dir", tmp_path, "--data-dir", tmp_path)
    assert tiny == ["one a", "one b", "one a"]


def test_quick_needs_no_data_and_leaves_pages_alone(tiny, page, tmp_path):
    run("--quick", "--output-dir", tmp_path)
    assert tiny == ["one a --quick"]
    assert page.read_text() == PAGE
    assert "| {'one a --quick': 1} |" in (tmp_path / "tables.md").read_text()


def test_check_finds_other_figures(tiny, page, tmp_path):
    run("--output-dir", tmp_path)
    run("--check", "--output-dir", tmp_path)
    with pytest.raises(click.ClickException, match="one a: was 1, is 2"):
        run("--check", "one-a", "--output-dir", tmp_path)
    page.write_text(page.read_text().replace("one a", "one z"))
    with pytest.raises(click.ClickException, match=r"some-results\.md: its tables"):
        run("--check", "--output-dir", tmp_path)
    with pytest.raises(click.ClickException, match="one-b was not measured yet"):
        run("--check", "one-b", "--output-dir", tmp_path)


def test_check_finds_another_command(tiny, tmp_path):
    run("--output-dir", tmp_path)
    file = tmp_path / "measured" / "one-a.json"
    file.write_text(file.read_text().replace("one a", "one z"))
    with pytest.raises(click.ClickException, match=r"measured with '.*\.one z'"):
        run("--check", "--output-dir", tmp_path)


def test_check_measures_all_that_can_be_measured(tiny, tmp_path, capsys):
    far = tmp_path / "far.npz"
    far.touch()
    run("--output-dir", tmp_path, "--data-dir", tmp_path)
    far.unlink()
    with pytest.raises(click.ClickException, match="one a: was 1, is 3"):
        run("--check", "all", "--output-dir", tmp_path, "--data-dir", tmp_path)
    assert tiny == ["one a", "one b", "one a"]
    assert "one-b: not measured, there is no far.npz" in capsys.readouterr().out


def test_check_finds_other_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(papers.pictures, "make_figure", in_words)
    every = papers.all_figures(PAGES / "measured")
    figures = {"fdskl-topologies": every["fdskl-topologies"]}
    (name,) = papers.pictures.draw(figures, tmp_path)
    assert not [*papers.other_pictures(figures, tmp_path)]
    svg = tmp_path / f"{name}.svg"
    svg.write_text(svg.read_text().replace("aria-label=", "aria-label=1"))
    assert [*papers.other_pictures(figures, tmp_path)] == [name]
    svg.rename(tmp_path / "earlier.svg")
    assert [*papers.other_pictures(figures, tmp_path)] == [name, "earlier"]


def test_a_comment_that_names_no_table_is_refused():
    with pytest.raises(click.ClickException, match="no table 'one / All / table 2'"):
        papers.with_tables(
            PAGE.replace("table 1", "table 2"), {"one / All / table 1": "| |"}
        )


def test_a_command_that_fails_is_named(tmp_path):
    with pytest.raises(click.ClickException, match="nothing at all ended with exit"):
        papers.measure("nothing at all", None, None)


# --- Comparing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "places"),
    [
        ({"a": 1.0}, {"a": 1.01}, []),
        ({"a": 1.0}, {"a": 1.03}, ["a: was 1, is 1.03"]),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        ({"a": float("nan")}, {"a": 1.0}, ["a: was nan, is 1"]),
        ({"seconds": 1.0, "b_ms": 1}, {"seconds": 9.0, "b_ms": 7}, []),
        ({"a": "x"}, {"a": "y"}, ["a: was 'x', is 'y'"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a: was [1, 2], is [1]"]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a.b[1]: was 2, is 3"]),
        ({"a": 1}, {}, ["a: was 1, is None"]),
        ({"a": 0.0}, {"a": 1e-13}, []),
    ],
)
def test_differences_beyond_the_tolerance_are_found(before, now, places):
    assert list(papers.differences(before, now)) == places


def test_a_picture_says_what_it_shows():
    curves = [Curve("ours", [1, 2], [3, 0.5], [1, 1]), Curve("theirs", (), [2])]
    svg = picture("some", [Panel("digits", "t", "error", curves, "xy")]).decode()
    alt = "digits: error against t; ours from 3 to 0.5; theirs 2."
    assert f'aria-label="{alt}"' in svg
    assert "mathdefault" not in svg
