"""Figures of the guides, as SVG in docs/img: ``python docs/figures.py`` draws them.

Measured figures come from docs/papers/measured and the table of comparison.md; the
other figures show an example. Each figure has its own background, so that it is legible
on light and on dark pages.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from html import escape
from pathlib import Path

import numpy as np

DOCS = Path(__file__).parent
IMAGES = DOCS / "img"
STYLE = """
text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.b { font-weight: 600 }  .s { fill: #59636e; font-size: 13px }
.ground { fill: #ffffff; stroke: #d0d7de }  .cell { fill: #ffffff; stroke: #8c959f }
.rule { stroke: #59636e; fill: none }  .faint { stroke: #d0d7de; fill: none }
.p0 { fill: #0b7a75 }  .p1 { fill: #c2571a }  .p2 { fill: #6655c9 }
.y { fill: #59636e }
.l0 { stroke: #0b7a75 }  .l1 { stroke: #c2571a }  .l2 { stroke: #6655c9 }
.l0, .l1, .l2 { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }  .s { fill: #9da7b1 }
  .ground { fill: #161b22; stroke: #3d444d }  .cell { fill: #161b22; stroke: #6e7681 }
  .rule { stroke: #9da7b1 }  .faint { stroke: #3d444d }
  .p0 { fill: #35b5ae }  .p1 { fill: #f0883e }  .p2 { fill: #a99bff }
  .y { fill: #9da7b1 }
  .l0 { stroke: #35b5ae }  .l1 { stroke: #f0883e }  .l2 { stroke: #a99bff }
}
"""
PARTIES = "ABC"


def text(x: float, y: float, words: object, look: str = "", anchor: str = "") -> str:
    """Return a line of text."""
    place = f' text-anchor="{anchor}"' if anchor else ""
    start = f'<text x="{x:.4g}" y="{y:.4g}" class="{look}"{place}>'
    return f"{start}{escape(str(words))}</text>"


def box(x: float, y: float, width: float, height: float, look: str) -> str:
    """Return a rectangle."""
    size = f'width="{width:.4g}" height="{height:.4g}"'
    return f'<rect x="{x:.4g}" y="{y:.4g}" {size} class="{look}"/>'


def path(points: list[tuple[float, float]], look: str) -> str:
    """Return a line through points."""
    joined = " ".join(f"{x:.4g},{y:.4g}" for x, y in points)
    return f'<polyline points="{joined}" class="{look}"/>'


def arrow(x: float, y: float, length: float) -> str:
    """Return an arrow to the right."""
    end = x + length
    head = [(end - 7, y - 5), (end, y), (end - 7, y + 5)]
    return path([(x, y), (end, y)], "rule") + path(head, "rule")


def mark(party: int, x: float, y: float, look: str, r: float = 4) -> str:
    """Return a party's mark: a circle, a square or a triangle."""
    if party == 1:
        return box(x - r, y - r, 2 * r, 2 * r, look)
    if party == 2:
        corners = f"{x:.4g},{y - r:.4g} {x - r:.4g},{y + r:.4g} {x + r:.4g},{y + r:.4g}"
        return f'<polygon points="{corners}" class="{look}"/>'
    return f'<circle cx="{x:.4g}" cy="{y:.4g}" r="{r:g}" class="{look}"/>'


def write(name: str, title: str, height: int, *parts: str) -> None:
    """Write a figure 720 pixels wide."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" '
        f'width="720" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
    )
    body = "\n".join([box(1, 1, 718, height - 2, "ground"), *parts])
    (IMAGES / f"{name}.svg").write_text(f"{head}{body}\n</svg>\n")


def columns(x: float, y: float, rows: int, side: float, several: bool) -> list[str]:
    """Return three parties' columns of the same rows, and labels of one, or of two."""
    parts = []
    for party, width in enumerate((2, 3, 2)):
        labels = party == 2 or (several and party == 0)
        for i in range(rows):
            for j in range(width):
                cell = box(x + j * side, y + i * side, side, side, "cell")
                tint = box(x + j * side, y + i * side, side, side, f"p{party}")
                parts += [cell, tint.replace("/>", ' opacity="0.35"/>')]
            if labels:
                left = x + width * side + 3
                parts.append(box(left, y + i * side + 1, side - 2, side - 2, "y"))
        middle = x + width * side / 2
        parts.append(text(middle, y - 8, PARTIES[party], "b", "middle"))
        if labels:
            at = x + width * side + 3 + side / 2
            parts.append(text(at, y - 8, "y", "b", "middle"))
        x += (width + labels) * side + 16
    return parts


def coresets() -> None:
    """Draw scores of eight rows, four draws, and their weights."""
    scores = [
        *[(0.3, 0.4, 0.3), (0.5, 0.3, 0.2), (2.5, 0.5, 1.0), (0.2, 0.4, 0.4)],
        *[(0.6, 1.0, 0.4), (0.3, 0.3, 0.4), (0.8, 3.4, 0.8), (0.4, 0.2, 0.4)],
    ]
    drawn, top, side = (1, 2, 4, 6), 64.0, 24.0
    total = sum(map(sum, scores))
    parts = [
        text(20, 26, "columns of the same rows", "b"),
        text(270, 26, "1. score", "b"),
        text(480, 26, "2. draw", "b"),
        text(570, 26, "3. weight", "b"),
        *columns(20, top, len(scores), side, several=False),
        text(270, 46, "each party in its colour", "s"),
    ]
    for i, row in enumerate(scores):
        y, left = top + i * side, 270.0
        for party, score in enumerate(row):
            parts.append(box(left, y + 4, score * 34, side - 8, f"p{party}"))
            left += score * 34
        parts.append(text(left + 6, y + 17, f"{sum(row):g}", "s"))
        if i in drawn:
            parts += [
                mark(0, 505, y + side / 2, "y", 6),
                text(570, y + 17, f"{total / len(drawn) / sum(row):g}", "b"),
            ]
    y = top + len(scores) * side + 26
    parts.append(text(270, y, f"sum: {total:g}", "s"))
    rule = f"weight = {total:g} / ({len(drawn)} draws x score)"
    parts.append(text(570, y, rule, "s", "middle"))
    write("coresets", "Score, draw, weight", 310, *parts)


class Chart:
    """A chart of errors against megabytes, on a scale of powers of ten."""

    def __init__(self, megabytes: tuple[float, float], highest: float) -> None:
        self.low, self.high = np.log10(megabytes)
        self.highest = highest
        self.parts = list[str]()

    def at(self, megabytes: float, error: float) -> tuple[float, float]:
        """Return where a point is."""
        x = (np.log10(megabytes) - self.low) / (self.high - self.low)
        return 300 + 330 * x, 250 - 190 * error / self.highest

    def axes(
        self, ticks: list[float], errors: list[float], unit: str, sent: str
    ) -> None:
        """Draw the scales."""
        for error in errors:
            _, y = self.at(1, error)
            self.parts.append(path([(300, y), (630, y)], "faint"))
            label = f"{error:g}{unit}"
            self.parts.append(text(292, y + 5, label, "s", "end"))
        for tick in ticks:
            x, _ = self.at(tick, 0)
            self.parts.append(text(x, 270, f"{tick:,g}", "s", "middle"))
        self.parts.append(text(465, 290, sent, "s", "middle"))


def ridge() -> None:
    """Draw the table of comparison.md."""
    page = next(DOCS.rglob("comparison.md")).read_text()
    found = re.findall(r"(?m)^\| (.+) \| (0\.\d+) \| [\d,]+ \| ([\d.,]+) \|$", page)
    chart = Chart((1, 10_000), 0.35)
    sent = "MB that all parties send"
    chart.axes([1, 10, 100, 1000, 10_000], [0, 0.1, 0.2, 0.3], "", sent)
    places = {"all rows": (-30, 22), "SPU": (11, 5), "XGB": (-60, 22)}
    places |= {"Secure": (-50, -12), "split": (-56, 22)}
    for name, error, megabytes in found:
        x, y = chart.at(float(megabytes.replace(",", "")), float(error))
        ours = name.startswith("`")
        dx, dy = next((d for key, d in places.items() if key in name), (-8, -12))
        label = name.replace("`", "").replace(", as in Flower's example", "")
        chart.parts += [
            mark(0 if ours else 1, x, y, "p0" if ours else "y", 5),
            text(x + dx, y + dy, label, "" if ours else "s"),
        ]
    write(
        "ridge",
        "Error against megabytes, of SecureRidge and others",
        305,
        text(20, 26, "columns of the same rows", "b"),
        text(300, 26, "error on house prices, three parties", "b"),
        *columns(20, 70, 8, 20, several=False),
        text(20, 262, "y: the labels", "s"),
        *chart.parts,
    )


def fdskl() -> None:
    """Draw errors of FDSKLDirect with four budgets."""
    chart = Chart((3, 400), 30)
    sent = "MB that all parties send and receive"
    chart.axes([4, 16, 64, 250], [0, 10, 20, 30], " %", sent)
    for k, name in enumerate(("covtype", "cod_rna", "ijcnn1")):
        file = DOCS / "papers" / "measured" / f"fdskl-errors-{name}.json"
        scores = json.loads(file.read_text())["figures"][name]["scores"]
        runs = defaultdict(list)
        for score in scores:
            if re.fullmatch(r"FDSKL direct, \d+ MB", score["name"]):
                runs[score["name"]].append((score["bytes"] / 1e6, score["error"]))
        means = [np.mean(run, axis=0) for run in runs.values()]
        pooled = [s["error"] for s in scores if s["name"] == "SVC, all rows, pooled"]
        points = [chart.at(*mean) for mean in means]
        beside = chart.at(330, float(np.mean(pooled)))
        chart.parts += [path(points, f"l{k}"), mark(2, *beside, "y")]
        chart.parts += [mark(0, *point, f"p{k}") for point in points]
        dy = {"cod_rna": -1, "ijcnn1": 11}.get(name, 5)
        chart.parts.append(text(beside[0] + 10, beside[1] + dy, name))
    write(
        "fdskl",
        "Error of FDSKLDirect against megabytes",
        305,
        text(20, 26, "columns of the same rows", "b"),
        text(300, 26, "wrong classes, FDSKLDirect, three parties", "b"),
        text(300, 46, "triangles: a support vector machine on the pooled rows", "s"),
        *columns(20, 70, 8, 20, several=True),
        text(20, 262, "y: labels, of one party or several", "s"),
        *chart.parts,
    )


def kernel_kmeans() -> None:
    """Draw two rings, and their rows on two eigenvectors of the kernel matrix."""
    rng = np.random.default_rng(1)
    angle, radius = rng.uniform(0, 2 * np.pi, 240), rng.choice([1.0, 3.0], 240)
    X = np.column_stack([np.cos(angle), np.sin(angle)]) * radius[:, None]
    X += rng.normal(size=X.shape) / 10
    squares = np.square(X[:, None] - X).sum(axis=2)
    vectors = np.linalg.eigh(np.exp(-0.5 * squares))[1][:, ::-1]
    H = vectors * np.sign(vectors.sum(axis=0))
    cluster = H[:, 0] < H[:, 0].max() / 2
    H = (H[:, [0, 3]] - H[:, [0, 3]].min(axis=0)) / np.ptp(H[:, [0, 3]], axis=0)
    parts = [
        text(20, 26, "rows, of the same columns", "b"),
        text(400, 26, "two eigenvectors, two clusters", "b"),
        arrow(325, 170, 50),
    ]
    for party, name in enumerate(PARTIES):
        parts += [mark(party, 26 + 50 * party, 44, f"p{party}")]
        parts += [text(36 + 50 * party, 49, name, "s")]
    for i, (row, embedded) in enumerate(zip(X, H, strict=True)):
        party = (0, 1, 2)[i % 3]
        parts.append(mark(party, 170 + 34 * row[0], 180 + 34 * row[1], f"p{party}", 3))
        x, y = 420 + 260 * embedded[0], 60 + 215 * (1 - embedded[1])
        parts.append(mark(party, x, y, "p0" if cluster[i] else "p1", 3))
    parts += [text(550, 300, "first eigenvector", "s", "middle")]
    parts += [text(400, 49, "fourth eigenvector", "s")]
    title = "Rows of three parties, their embedding, and two clusters"
    write("kernel-kmeans", title, 312, *parts)


def mufc() -> None:
    """Draw the bins before and after 20 of 300 rows are forgotten."""
    parts = [
        text(20, 26, "rows, of the same columns", "b"),
        text(250, 26, "bins before", "b"),
        text(500, 26, "bins after", "b"),
        text(250, 46, "300 rows", "s"),
        text(500, 46, "20 rows forgotten: 18 and 2", "s"),
        arrow(185, 150, 45),
        arrow(445, 150, 40),
    ]
    for party, name in enumerate(PARTIES):
        y = 64 + party * 62
        parts.append(text(20, y + 32, name, "b"))
        for i in range(3):
            for j in range(5):
                at = 42 + 26 * j, y + 18 * i
                parts.append(box(*at, 26, 18, "cell"))
                tint = box(*at, 26, 18, f"p{party}")
                parts.append(tint.replace("/>", ' opacity="0.35"/>'))
    before = {(0, 3): 130, (2, 1): 95, (3, 4): 75}
    after = {(0, 2): 112, (2, 1): 95, (3, 4): 73}
    for left, bins in ((250, before), (500, after)):
        for i in range(5):
            for j in range(5):
                at = left + 37 * j, 62 + 37 * i
                parts.append(box(*at, 37, 37, "cell"))
                if (i, j) in bins:
                    tint = box(*at, 37, 37, "p0")
                    parts.append(tint.replace("/>", ' opacity="0.35"/>'))
                    middle = at[0] + 18.5, at[1] + 23
                    parts.append(text(*middle, bins[i, j], "b", "middle"))
    parts.append(text(250, 270, "rows behind the means in each bin, summed", "s"))
    write("mufc", "Bins before and after rows are forgotten", 288, *parts)


def draw() -> None:
    """Draw all figures."""
    for figure in (coresets, ridge, fdskl, kernel_kmeans, mufc):
        figure()


if __name__ == "__main__":
    draw()
