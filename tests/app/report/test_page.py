"""The page of a run: complete, sound, alone, and for whoever reads it."""

import html.parser
import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from results import made_result
from variants import VARIANTS, parties_of

from vfl_flower import CoresetVRLR, Party, report, simulate
from vfl_flower.app.report import drawing, figures, page, page_template, units
from vfl_flower.app.report.figures import figures_of
from vfl_flower.app.report.page import (
    MOST_PARTIES,
    UNEXPLAINED,
    amount,
    page_of,
    times_of,
    verdicts,
)
from vfl_flower.app.report.report import PAGE, RESULT, page_text, record_of, write_page
from vfl_flower.server import metrics as protocol_metrics
from vfl_flower.simulation import InProcessGrid

HOSTILE = "</title><script>alert('1')</script>$\\alpha$<img src=x onerror=y>&amp;\"'"
LARGEST = 2_000_000
VOID = {"meta", "br", "wbr"}

SHOWN = ["gram", "k-means", "ridge", "fkk sums", "mufc", "align"]
"""A variant of each strategy."""


class Checked(html.parser.HTMLParser):
    """Reads a page and fails where a browser would have to guess."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.words, self._open = "", set[str](), list[str]()
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Note an element of an SVG; no other one may end like this."""
        assert "svg" in self._open, tag
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] != ["style"]:
            self.text += data
            self.words |= words_of(data)


def words_of(text):
    return set(re.findall(r"[^\W\d_]{3,}", text))


def of(page, tag):
    return [attributes for name, attributes in page.elements if name == tag]


@pytest.fixture(scope="module", params=SHOWN)
def shown(request):
    """Return the page of a variant as text and as elements, and its result."""
    result = VARIANTS[request.param].start(InProcessGrid(parties_of(request.param, 3)))
    record = record_of({"train": result}, {}, "vfl-flower run x")
    record = json.loads(json.dumps(record))
    text = page_of(record, figures_of(record["results"]))
    return text, Checked(text), record


def text_of(results, settings=None, **more):
    record = json.loads(json.dumps(record_of(results, settings or {}, "")))
    for result in record["results"].values():
        result |= more
    return page_of(record, figures_of(record["results"]))


# -- a sound page ----------------------------------------------------------------------


def test_page_is_sound_html(shown):
    text, page, _ = shown
    assert text.startswith("<!DOCTYPE html>\n")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(headings))
    assert of(page, "html") == [{"lang": "en"}]
    for cell in of(page, "th"):
        assert cell["scope"] in ("row", "col")


def test_page_asks_nothing_of_any_place(shown):
    text, page, _ = shown
    assert "http:" not in text
    assert "https:" not in text
    assert "//" not in re.sub(r"<pre>.*?</pre>", "", text)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "image"}
    for _, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on") or key == "src"}
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = [m["content"] for m in of(page, "meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert "script-src" not in policy


def test_every_figure_has_a_text_in_its_place(shown):
    _, page, record = shown
    pictures = of(page, "svg")
    assert len(pictures) == len(of(page, "figure"))
    without = ("CoresetVRLR", "SecureRidge", "Alignment")  # they have no curves here
    assert pictures or record["results"]["train"]["strategy"] in without
    for picture in pictures:
        assert picture["role"] == "img"
        assert len(picture["aria-label"]) > 30


def test_every_metric_is_explained(shown):
    _, page, record = shown
    assert UNEXPLAINED not in page.text
    (result,) = record["results"].values()
    metrics = result["metrics"][max(result["metrics"], key=int)]
    for metric in metrics:
        if not metric.endswith("_se"):
            meaning = result["explained"][metric]
            assert meaning["title"] in page.text
            assert " ".join(meaning["text"].split()) in page.text
    assert result["question"] in page.text


# -- hostile texts, many parties -------------------------------------------------------


def test_hostile_names_and_texts_are_text():
    """Of a party, a result, a warning, a step and a setting; the first one first."""
    result = made_result(HOSTILE, warnings=(HOSTILE,))
    learned = {"step": HOSTILE, "values": [HOSTILE], "how": HOSTILE, "who": HOSTILE}
    text = text_of(
        {HOSTILE: result, "b": result},
        learned=[learned | {"kinds": []}],
        question=HOSTILE,
        settings={HOSTILE: HOSTILE},
        note=HOSTILE,
        counts={HOSTILE: 3},
        traces={HOSTILE: {"round_trips": [1, 2], "bytes": [1, 2], "value": [2, 1]}},
    )
    page = Checked(text)
    assert HOSTILE in page.text
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img"}
    assert "<script" not in text
    assert sum(tag == "title" for tag, _ in page.elements) == 1


def test_a_page_of_many_parties_is_small():
    metrics = {f"metric_{k}": float(k) for k in range(100)}
    given = {"metrics": metrics, "warnings": ("x" * 9999,)}
    result = made_result("\U0001f3e5" * 100, count=1000, **given)
    text = text_of({name: result for name in "abcd"}, counts={"x" * 50000: 1})
    assert len(text.encode()) < LARGEST
    page = Checked(text)
    assert f"{1000 - MOST_PARTIES} others" in page.text
    assert f"{40 * (1000 - MOST_PARTIES):,}" in page.text  # rows of these


# -- only what is in the file ----------------------------------------------------------


def test_page_has_no_word_that_is_not_in_the_file(shown):
    """Nor in the sources of pages."""
    _, page_read, record = shown
    known = words_of(json.dumps(record, ensure_ascii=False).replace("\\n", " "))
    for module in (drawing, figures, page, page_template, units, protocol_metrics):
        known |= words_of(Path(module.__file__).read_text(encoding="utf-8"))
    capitals = {word[:1].upper() + word[1:] for word in known}
    assert page_read.words - known - capitals == set()


def test_result_has_no_row_of_a_party(tmp_path):
    """Of the values of the data, which are like no other number, none is in a file."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = X.sum(axis=1) + rng.normal(size=600)
    parties = [Party(X[:, :2], y, name="a"), Party(X[:, 2:], name="b")]
    result = simulate(CoresetVRLR(size=200, test_fraction=0.2), parties, seed=0)
    result.report(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.suffix in (".json", ".html")]
    assert len(files) >= 2
    for path in files:
        text = path.read_text()
        for value in [*X.ravel(), *y]:
            assert repr(float(value))[:12] not in text


# -- figures ---------------------------------------------------------------------------

TWO = {
    "score": [0.1, 0.3, 0.6, 0.9],
    "rows": [50.0, 40.0, 30.0, 20.0],
    "positives": [5.0, 10.0, 20.0, 18.0],
}
NUMBERS = {
    "predicted": [1.0, 2.0, 4.0],
    "true": [1.2, 1.9, 4.4],
    "true_sd": [0.5, 0.4, 0.8],
    "rows": [30.0, 30.0, 20.0],
}


def drawn(**more):
    record = json.loads(json.dumps(record_of({"a": made_result()}, {}, "")))
    record["results"]["a"] |= more
    return {figure.name: figure for figure in figures_of(record["results"])}


@pytest.fixture
def plotted(monkeypatch):
    """Return the axes of the figures of a record by their names."""

    def make(name, *texts, **size):
        canvas = Figure()
        texts[-1](canvas)
        return SimpleNamespace(name=name, axes=canvas.axes[0])

    monkeypatch.setattr(figures, "make_figure", make)
    return lambda **more: {name: each.axes for name, each in drawn(**more).items()}


def test_roc_by_hand(plotted):
    """From the highest score: 18 of 53 positives for 2 of 87 others, then 38 for 12."""
    _, curve = plotted(curves=TWO)["roc"].lines
    rates = np.array([[0, 2, 12, 42, 87], [0, 18, 38, 48, 53]]) / [[87], [53]]
    np.testing.assert_allclose(curve.get_xydata(), rates.T)


def test_calibration_by_hand(plotted):
    """5 of 50 are 0.1, with a standard error of sqrt(0.1 * 0.9 / 50)."""
    (points,) = plotted(curves=TWO)["calibration"].containers
    shares = [0.1, 0.25, 2 / 3, 0.9]
    np.testing.assert_allclose(points[0].get_xydata().T, [TWO["score"], shares])
    low, high = points[2][0].get_segments()[0][:, 1]
    assert (high - low) / 4 == pytest.approx(np.sqrt(0.09 / 50))


def test_curves_that_cannot_be_drawn():
    """Without probabilities the calibration, and of one class any."""
    figures_drawn = drawn(curves={name: TWO[name] for name in ("rows", "positives")})
    assert figures_drawn["roc"].svg == drawn(curves=TWO)["roc"].svg
    assert "calibration" not in figures_drawn
    assert "roc" not in drawn(curves=TWO | {"positives": [0.0] * 4})


def test_curves_of_numbers(plotted):
    axes = plotted(curves=NUMBERS)["predicted-true"]
    places = np.transpose([NUMBERS["predicted"], NUMBERS["true"]])
    np.testing.assert_allclose(axes.lines[1].get_xydata(), places)
    (band,) = axes.collections
    (outline,) = (path.vertices for path in band.get_paths())
    assert outline[:, 1].max() == pytest.approx(4.4 + 0.8)
    assert outline[:, 1].min() == pytest.approx(1.2 - 0.5)


@pytest.mark.parametrize(
    ("more", "cells"),
    [
        ({"curves": {"confusion": [[19, 0, 1], [3, 0, 17], [0, 0, 20]]}}, "2 3 0 17"),
        ({"counts": {"all parties": 1200, "only a": 3}}, "all parties 1,200 only a 3"),
        (
            {
                "metrics": {"1": {"test_loss": 3.0}},
                "beside": {"test_loss": {"pooled": 2.0}, "text": "Who trains alone."},
            },
            "all parties, nothing pooled 3 pooled 2",
        ),
    ],
)
def test_further_tables(more, cells):
    """Of classes, a class that nobody is taken for keeps its empty column."""
    text = text_of({"a": made_result()}, **more)
    assert cells in " ".join(re.sub("<[^>]+>", " ", text).split())


@pytest.mark.parametrize(("sent", "axis"), [([9, 9], ">step<"), ([9, 10], ">MB sent")])
def test_steps_that_send_nothing_are_counted(sent, axis):
    trace = {"round_trips": [1, 1], "bytes": sent, "value": [3.0, 2.0]}
    assert axis in drawn(traces={"moved": trace})["progress"].svg.decode()


@pytest.mark.parametrize("rows", [[3.0, 1.0], []])
def test_clusters(rows, plotted, monkeypatch):
    places = {"x": [1.0, -3.0], "y": [0.0, 0.0], "rows": rows, "shares": [1.0, 0.0]}
    circles, _ = plotted(clusters=places)["clusters"].collections
    np.testing.assert_array_equal(circles.get_offsets(), [[1, 0], [-3, 0]])
    monkeypatch.undo()
    text = drawn(clusters=places)["clusters"].text
    assert ("does not know the clusters" in text) == (not rows)


def test_files_of_a_figure(tmp_path):
    record = record_of({"a": made_result()}, {"strategy": "", "task": ""}, "")
    record["results"]["a"]["curves"] = TWO
    (tmp_path / RESULT).write_text(json.dumps(record))
    write_page(tmp_path)
    folder = tmp_path / "figures"
    files = sorted(path.name for path in folder.glob("calibration.*"))
    assert files == ["calibration.png", "calibration.svg"]
    root = ElementTree.parse(folder / "calibration.svg").getroot()
    assert root.get("aria-label") == drawn(curves=TWO)["calibration"].alt
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")


def test_times_add_up_to_what_the_server_waited():
    """Party b answers after half of the time, of which it computes 0.2 s."""
    entry = {"action": "x", "party": "b"}
    entry |= {"seconds_computed": 0.2, "seconds_answered": 1.0}
    ledger = {"waits": {"x": [0.5, 1.5]}, "entries": [entry]}
    assert times_of(ledger, "a") == [0.0, 0.0, 2.0]  # it was not asked
    assert times_of(ledger, "b") == pytest.approx([0.2, 0.8, 1.0])


# -- words -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (0.83184, "share", "83.2 %"),
        (1234567, "count", "1,234,567"),
        (295.786, "number", "295.8"),
        (31234567890.5, "number", "3.123e+10"),
        ("inf", "number", "inf"),
    ],
)
def test_numbers_as_people_read_them(value, kind, shown):
    assert amount(value, kind) == shown


def test_verdicts_name_the_baseline():
    """With an R^2 of 0.75 and an error of 3, the mean label has twice the error."""
    metrics = {"test_rows": 200, "test_error": 0.1, "test_base_error": 0.4}
    classes, numbers = verdicts(metrics | {"test_r2": 0.75, "test_loss": 9.0}, "days")
    for text in ("On the 200 rows held out", "90.0 %", "60.0 %"):
        assert text in classes
    assert " is 3 days, and the model explains 75.0 %" in numbers
    assert "would give an error of 6." in numbers
    assert verdicts({"test_loss": "inf", "test_r2": "nan"}) == []


def test_a_page_leads_with_label_other_models_and_who_learned_what():
    """And says of what another package does not explain that this is so."""
    made = made_result(count=2, metrics={"test_loss": 9.0, "test_r2": 0.5})
    results, settings = {"coreset": made, "full": made}, {"label-column": "delay"}
    page = Checked(text_of(results, settings, explained={})).text
    for text in (
        "How well does a linear model of all parties' columns predict delay?",
        "is 3 (in the unit of delay), and the model explains 50.0 %",
        "Typical errors of other models: full 3.",
        "The server learned names, sizes and values of single parties.",
        "the run revealed: only sizes and numbers that steps declare.",
        "With two parties, a sum reveals the other party's contribution.",
        UNEXPLAINED,
    ):
        assert text in page


# -- where it is made ------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    parties = [Party(X[:, :2], X.sum(axis=1), name="a"), Party(X[:, 2:], name="b")]
    return simulate(CoresetVRLR(size=200, test_fraction=0.2), parties, seed=3)


def test_report_of_a_result(tmp_path, simulated):
    page = simulated.report(tmp_path / "new" / "folder")
    assert page == tmp_path / "new" / "folder" / PAGE
    record = json.loads((page.parent / RESULT).read_text())
    assert record["command"] == (
        "vf.simulate(vf.CoresetVRLR(size=200, test_fraction=0.2), parties, seed=3)"
    )
    assert report(simulated, tmp_path).read_bytes()[:15] == b"<!DOCTYPE html>"


def test_a_notebook_shows_the_page_in_a_frame(simulated):
    frame = Checked(simulated._repr_html_())
    ((tag, attributes),) = frame.elements
    assert tag == "iframe"
    assert attributes["sandbox"] is None
    framed, alone = (
        re.sub(r"[\d-]{10} \d\d:\d\d UTC", "", text)  # a minute may end in between
        for text in (str(attributes["srcdoc"]), page_text(simulated))
    )
    assert framed == alone


def test_who_learned_what_has_only_what_was_sent(simulated):
    """No step of another solver, and no value that this one has not asked for."""
    record = json.loads(json.dumps(record_of({"a": simulated}, {}, "")))
    learned = record["results"]["a"]["learned"]
    steps = {row["step"] for row in learned}
    assert steps == set(simulated.ledger.waits)
    sent = {value for row in learned for value in row["values"]}
    assert "scores" in sent
    assert "X" not in sent  # rows in the clear, of solver central
