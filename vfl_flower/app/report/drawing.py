"""Drawing a report's figures and turning them into files.

The same numbers give the same bytes. Matplotlib draws without its global state. The
SVG keeps text as text, which can be read aloud, searched and set in another font.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, MUTED, GRID, PAPER = "#1f2933", "#56616c", "#d5dbe1", "#ffffff"
FIRST, SECOND, THIRD = "#1d5fa6", "#b3540b", "#7b8794"
COLORS = {INK: "ink", GRID: "grid", PAPER: "paper", FIRST: "first", THIRD: "third"}
"""The colours of a report's figures, on white, and their names in the page."""


@dataclass(frozen=True)
class Figure:
    """A figure of a report."""

    name: str
    title: str
    text: str
    """An explanation of the figure and how to read it."""
    alt: str
    """A description for readers who cannot see the figure."""
    svg: bytes
    png: bytes

    @property
    def inline(self) -> str:
        """The SVG for a page, whose style defines the colours."""
        text = self.svg.decode()
        for color, name in COLORS.items():
            text = text.replace(color, f"var(--{name})")
        # HTML knows the namespace from the element.
        return re.sub(' xmlns="[^"]*"', "", text, count=1)


SQUARE = {"width": 4.6, "height": 4.2}
"""Size in inches of a figure that is shown beside another figure."""

_STYLE: Any = {
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.formatter.limits": (-4, 7),  # no power of ten next to the axis
    "axes.formatter.useoffset": False,
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
    draw: Callable[[Canvas], None],
    width: float = 6.8,
    height: float = 3.4,
) -> Figure:
    """Return a figure that `draw` draws; width and height are in inches."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    svg, png = io.BytesIO(), io.BytesIO()
    nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
    unique_ids = {"svg.hashsalt": name}  # in a page of several figures
    # Hide warnings about letters that the font lacks: the page uses the reader's fonts.
    with rc_context(_STYLE | unique_ids), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(canvas)
        draw(canvas)
        canvas.savefig(svg, format="svg", metadata=nothing)
        canvas.savefig(png, format="png", dpi=150, metadata={"Software": None})
    tidied = _tidied(svg.getvalue().decode(), alt)
    return Figure(name, title, text, alt, tidied.encode(), png.getvalue())


def _tidied(svg: str, alt: str) -> str:
    """Return an SVG as an element of a page, with a description."""
    svg = svg[svg.index("<svg ") :].replace("<use xlink:href=", "<use href=")
    svg = re.sub('<g id="[^"]*"', "<g", svg)  # every figure has the same ids
    label = escape(alt, {'"': "&quot;"})
    svg, replaced = re.subn(
        ' xmlns:xlink="[^"]*" width="[^"]*" height="[^"]*"',
        lambda _: f' role="img" aria-label="{label}"',
        svg,
        count=1,
    )
    assert replaced, "Matplotlib writes the size of an SVG differently"
    return svg


def diagonal(axes: Axes, meaning: str, place: float = 0.0) -> None:
    """Draw the diagonal y = x through (place, place), with a legend."""
    axes.axline((place, place), slope=1, color=THIRD, linestyle="--", label=meaning)
    axes.legend(frameon=False)


def unit_square(axes: Axes, meaning: str) -> None:
    """Show 0 to 1 in both directions, and the diagonal with a legend."""
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    diagonal(axes, meaning)
