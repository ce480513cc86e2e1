"""How a report's figures are drawn: their look, their files, and parts of them.

The same numbers give the same bytes. Matplotlib draws without its global state. Text
stays text in the SVG, so that it can be read aloud, searched and set in another font.
"""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, MUTED, GRID = "#1f2933", "#56616c", "#d5dbe1"
FIRST, SECOND, THIRD = "#1d5fa6", "#b3540b", "#7b8794"
PAPER = "#ffffff"
COLORS = {
    **{INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"},
    **{FIRST: "--first", SECOND: "--second", THIRD: "--third"},
}
"""The colours that figures have, on white, and the page's names of them."""

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
ElementTree.register_namespace("", _SVG)


@dataclass(frozen=True)
class Figure:
    """A figure with its numbers."""

    name: str
    title: str
    text: str
    """What it shows and how to read it."""
    alt: str
    """What can be seen in it, in words."""
    data: dict[str, list[Any]]
    """Its numbers, columns of one length."""
    svg: bytes
    png: bytes

    @property
    def inline(self) -> str:
        """The SVG for a page, whose style sets the colours."""
        text = self.svg.decode()
        for color, name in COLORS.items():
            text = text.replace(color, f"var({name})")
        # A parser of HTML knows the namespace by the element.
        return text.replace(f' xmlns="{_SVG}"', "")

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the figure's files: their names and contents."""
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(self.data)
        writer.writerows(zip(*self.data.values(), strict=True))
        numbers = {"title": self.title, "text": self.text, "data": self.data}
        yield f"{self.name}.svg", self.svg
        yield f"{self.name}.png", self.png
        yield f"{self.name}.json", (json.dumps(numbers, indent=1) + "\n").encode()
        yield f"{self.name}.csv", table.getvalue().encode()


SQUARE = {"width": 4.6, "height": 4.2}
"""Inches of a figure beside which another one stands."""

_STYLE: Any = {
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "figure.facecolor": PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.labelcolor": INK,
    "lines.linewidth": 2,
    "svg.fonttype": "none",
    "svg.hashsalt": "vfl-flower",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


def make_figure(
    name: str,
    title: str,
    text: str,
    alt: str,
    data: Mapping[str, ArrayLike],
    draw: Callable[[Canvas], None],
    width: float = 6.8,
    height: float = 3.4,
) -> Figure:
    """Return a figure that a function draws, of a width and a height in inches."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    svg, png = io.BytesIO(), io.BytesIO()
    # A letter that the font lacks: the page has the name, in fonts of the reader.
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(canvas)
        draw(canvas)
        canvas.savefig(svg, format="svg", metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=150, metadata={"Software": None})
    columns = {key: np.asarray(column).tolist() for key, column in data.items()}
    tidied = _tidied(svg.getvalue(), name, alt)
    return Figure(name, title, text, alt, columns, tidied, png.getvalue())


def _tidied(svg: bytes, name: str, alt: str) -> bytes:
    """Return an SVG with a text in place of the picture, and ids unique in a page."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    used = set(re.findall(r"url\(#([^)]+)\)", ElementTree.tostring(root, "unicode")))
    used |= {element.get(_LINK, "")[1:] for element in root.iter()}
    names = {
        element.get("id", ""): f"{name}-{place}"
        for place, element in enumerate(root.iter())
        if element.get("id") in used
    }
    for element in root.iter():
        if new := names.get(element.attrib.pop("id", "")):
            element.set("id", new)
        for key, value in list(element.attrib.items()):
            pointed = re.sub(
                r"url\(#([^)]+)\)", lambda m: f"url(#{names[m[1]]})", value
            )
            if key == _LINK:
                del element.attrib[key]
                key, pointed = "href", f"#{names[value[1:]]}"
            element.set(key, pointed)
    for key in ("width", "height"):
        root.attrib.pop(key)
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    root.set("role", "img")
    root.set("aria-label", alt)
    return bytes(ElementTree.tostring(root, encoding="utf-8")) + b"\n"


def in_lines(text: str) -> str:
    """Return a title in lines of some forty characters."""
    return textwrap.fill(text, 39, break_long_words=False, break_on_hyphens=False)


def note(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    offset: tuple[float, float],
    color: str = INK,
    ha: str = "center",
) -> None:
    """Write a text at a place of the axes, moved by so many points."""
    axes.annotate(
        text, place, xytext=offset, textcoords="offset points", color=color, ha=ha
    )


def mark_few(axes: Axes) -> None:
    """Mark few places of the lower axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(tick)


def tick(value: float, place: float) -> str:
    """Return the number of a mark, without a power of ten beside the axis."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def unit_square(axes: Axes, meaning: str) -> None:
    """Show all from 0 to 1, in both directions alike, and what the diagonal means."""
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    diagonal(axes, 0, 1, meaning)


def diagonal(axes: Axes, low: float, high: float, meaning: str) -> None:
    """Draw the line of equal coordinates, and say beside it what it means."""
    axes.plot([low, high], [low, high], color=THIRD, linestyle="--")
    place = low + 0.62 * (high - low)
    note(axes, meaning, (place, place), (8, -12), color=MUTED, ha="left")
