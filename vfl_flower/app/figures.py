"""The figures of a report, drawn from what ``result.json`` has.

The same numbers give the same bytes. Matplotlib draws without its global state. Text
stays text in the SVG, so that it can be read aloud, searched and set in another font.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from vfl_flower.app.units import duration, size
from vfl_flower.protocol.metrics import SPREAD

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

MOST_BARS = 12
"""Most bars of a figure; the others are added up in one more."""

MOST_OF_LABEL = 28
"""Most characters of a label in a figure; the page has the whole name."""

MAIN = ("test_error", "test_loss", "full_train_loss", "full_cost", "check_cost")
"""Metrics, of the same rows, by which a figure compares results: the first that all
of them have."""

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
ElementTree.register_namespace("", _SVG)


@dataclass(frozen=True)
class Figure:
    """A figure with its numbers.

    Attributes
    ----------
    name : str
        Name of its files.
    title, text, alt : str
        Above it; what it shows and how to read it; and what one sees, in words.
    data : dict of str to list
        Its numbers, columns of one length.
    svg, png : bytes
        The picture, on white.
    """

    name: str
    title: str
    text: str
    alt: str
    data: dict[str, list[Any]]
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


def figures_of(results: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """Return the figures that fit the results of a run, the first one foremost.

    Parameters
    ----------
    results : mapping of str to mapping
        ``results`` of ``result.json``.
    """
    first = next(iter(results.values()))
    curves = first.get("curves") or {}
    drawn = [
        _comparison(results),
        *_two_classes(curves),
        _regression(curves),
        _confusion(last(first)),
        _clusters(first),
        _progress(first),
        _counts(first),
        _time_by_party(first),
        _time_by_step(first),
    ]
    return [figure for figure in drawn if figure is not None]


def last(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics of the last iteration of a result."""
    metrics = result["metrics"]
    return metrics[max(metrics, key=int)] if metrics else {}


# -- what each figure shows ------------------------------------------------------------


def _comparison(results: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Return what each result of a comparison is worth, and what it has cost."""
    metrics = {name: last(result) for name, result in results.items()}
    shared = [m for m in MAIN if all(_finite(v.get(m)) for v in metrics.values())]
    if len(results) < 2 or not shared:
        return None
    main, first = shared[0], next(iter(results.values()))
    title = first["explained"].get(main, {}).get("title", main)
    values = [float(of[main]) for of in metrics.values()]
    spreads = [float(of.get(f"{main}{SPREAD}", 0.0)) for of in metrics.values()]
    sent = [result["ledger"]["bytes_up"] for result in results.values()]
    names = list(results)
    bars = ""
    if any(spreads):
        bars = (
            ". A line spans two standard errors to each side: results whose lines "
            "overlap do not differ for certain"
        )

    def draw(canvas: Canvas) -> None:
        value, cost = canvas.subplots(1, 2, sharey=True)
        places = np.arange(len(names))[::-1]
        lines = 2 * np.array(spreads) if any(spreads) else None
        value.errorbar(values, places, xerr=lines, fmt="o", color=FIRST, capsize=4)
        _room(value, [*np.subtract(values, spreads), *np.add(values, spreads)])
        for place, number in zip(places, values, strict=True):
            _note(value, f"{number:.4g}", (number, place), (0, 9))
        value.set_xlabel(_line(title))
        value.set_yticks(places, [_label(name) for name in names])
        value.set_ylim(-0.6, len(names) - 0.4)
        for axes in (value, cost):
            axes.grid(False, axis="y")
            axes.tick_params(axis="y", length=0)
        cost.barh(places, sent, height=0.5, color=SECOND)
        cost.set_xlabel("bytes that all parties sent")
        cost.set_xlim(0, 1.25 * max(sent, default=1))
        cost.set_xticks([])
        for place, count in zip(places, sent, strict=True):
            _note(cost, size(count), (count, place), (4, -4), ha="left")

    listed = "; ".join(
        f"{name} {value:.4g} for {size(count)}"
        for name, value, count in zip(names, values, sent, strict=True)
    )
    return _figure(
        "comparison",
        "Beside its baselines",
        f"Left: {title[0].lower()}{title[1:]}; lower is better{bars}. Right: what it "
        "cost in bytes.",
        f"{title} and bytes of each result: {listed}.",
        {
            "result": names,
            main: values,
            "standard_error": spreads,
            "bytes_up": sent,
        },
        draw,
        height=1.1 + 0.55 * len(names),
    )


def _two_classes(curves: Mapping[str, Sequence[float]]) -> list[Figure]:
    """ROC and calibration, from bins of the rows held out in the order of scores."""
    if not {"rows", "positives"} <= curves.keys():
        return []
    rows, positives = (
        np.array(curves[name], dtype=np.float64) for name in ("rows", "positives")
    )
    # Without probabilities there is no score, and the bins still have their order.
    score = np.array(curves.get("score", ()), dtype=np.float64)
    if not 0 < positives.sum() < rows.sum():
        return []
    found = np.concatenate([[0.0], np.cumsum(positives[::-1])]) / positives.sum()
    negatives = (rows - positives)[::-1]
    alarms = np.concatenate([[0.0], np.cumsum(negatives)]) / negatives.sum()
    area = float(np.trapezoid(found, alarms))
    share = positives / rows
    spread = np.sqrt(share * (1 - share) / rows)

    def roc(canvas: Canvas) -> None:
        axes = canvas.subplots()
        _square(axes)
        axes.plot([0, 1], [0, 1], color=THIRD, linestyle="--")
        axes.plot(alarms, found, color=FIRST, marker="o", markersize=4)
        _note(axes, "guessing", (0.62, 0.62), (8, -12), color=MUTED, ha="left")
        axes.set_xlabel("false alarms among the negative rows")
        axes.set_ylabel("positive rows found")

    def calibration(canvas: Canvas) -> None:
        axes = canvas.subplots()
        _square(axes)
        axes.plot([0, 1], [0, 1], color=THIRD, linestyle="--")
        axes.errorbar(
            score, share, yerr=2 * spread, fmt="o", color=FIRST, capsize=3, markersize=5
        )
        _note(axes, "as predicted", (0.62, 0.62), (8, -12), color=MUTED, ha="left")
        axes.set_xlabel("predicted probability of the positive class")
        axes.set_ylabel("share of rows that are positive")

    total = int(rows.sum())
    figures = [
        _figure(
            "roc",
            "How well it separates the classes",
            "Each point is a threshold: rows with a higher score count as positive. "
            "Up: how many of the positive rows are found; to the right: how many of "
            "the others are false alarms. The nearer to the upper left corner, the "
            "better; the dashed line is guessing.",
            f"ROC curve of {total:,} rows held out in {len(rows)} groups, with an "
            f"area of about {area:.2f}; the line of guessing has 0.5.",
            {
                "false_positive_rate": _floats(alarms),
                "true_positive_rate": _floats(found),
            },
            roc,
            **_SQUARE,
        ),
    ]
    if not len(score):
        return figures
    worst = int(np.abs(share - score).argmax())
    return [
        *figures,
        _figure(
            "calibration",
            "Whether its probabilities are right",
            "Each point is a group of rows with similar probabilities. On the dashed "
            "line as many rows are positive as predicted; below it the model promises "
            "too much. Bars span two standard errors.",
            f"Predicted probabilities against what happened, in {len(score)} groups of "
            f"rows; the largest difference is at {score[worst]:.2f}, where "
            f"{share[worst]:.2f} of the rows are positive.",
            {
                "predicted": _floats(score),
                "share_positive": _floats(share),
                "standard_error": _floats(spread),
                "rows": [int(n) for n in rows],
            },
            calibration,
            **_SQUARE,
        ),
    ]


def _regression(curves: Mapping[str, Sequence[float]]) -> Figure | None:
    """Predicted against true, in bins of rows in the order of their predictions."""
    if not {"predicted", "true", "true_sd", "rows"} <= curves.keys():
        return None
    predicted, true, spread, rows = (
        np.array(curves[name], dtype=np.float64)
        for name in ("predicted", "true", "true_sd", "rows")
    )
    if not len(predicted):
        return None

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        low, high = min(predicted.min(), true.min()), max(predicted.max(), true.max())
        axes.plot([low, high], [low, high], color=THIRD, linestyle="--")
        axes.fill_between(
            predicted,
            true - spread,
            true + spread,
            color=FIRST,
            alpha=0.18,
            linewidth=0,
        )
        axes.plot(predicted, true, color=FIRST, marker="o", markersize=4)
        middle = low + 0.62 * (high - low)
        _note(axes, "as predicted", (middle, middle), (8, -12), color=MUTED, ha="left")
        axes.set_xlabel("prediction")
        axes.set_ylabel("truth")
        _sparse(axes)
        axes.yaxis.set_major_formatter(_tick)

    off = int(np.abs(true - predicted).argmax())
    return _figure(
        "predicted-true",
        "Predicted against true",
        "Each point is a group of rows held out with similar predictions, at the mean "
        "of what was predicted and of what is true. On the dashed line the model is "
        "right on the mean; the band is one standard deviation of the truth within a "
        "group: how far single rows are off.",
        f"Mean truth against mean prediction in {len(rows)} groups of "
        f"{int(rows.sum()):,} rows, from {predicted.min():.3g} to "
        f"{predicted.max():.3g}; the largest difference of the means is at "
        f"{predicted[off]:.3g}, where the truth is {true[off]:.3g}.",
        {
            "predicted": _floats(predicted),
            "true": _floats(true),
            "true_sd": _floats(spread),
            "rows": [int(n) for n in rows],
        },
        draw,
        **_SQUARE,
    )


_CELLS = "true_positives", "false_negatives", "false_positives", "true_negatives"


def _confusion(metrics: Mapping[str, Any]) -> Figure | None:
    """Return how many rows held out of each class are taken for which."""
    cells = [metrics.get(f"test_{cell}") for cell in _CELLS]
    if any(cell is None for cell in cells):
        return None
    counts = np.array(cells, dtype=np.int64).reshape(2, 2)
    classes = ["positive", "negative"]

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        for row in range(2):
            for column in range(2):
                share = float(shares[row, column])
                axes.fill_between(
                    [column, column + 1],
                    1 - row,
                    2 - row,
                    color=FIRST if row == column else SECOND,
                    alpha=0.06 + 0.3 * share,
                    linewidth=0,
                )
                text = f"{counts[row, column]:,}\n{share:.0%} of these"
                axes.text(column + 0.5, 1.5 - row, text, ha="center", va="center")
        axes.set_xticks([0.5, 1.5], [f"called {name}" for name in classes])
        axes.set_yticks([1.5, 0.5], [f"is {name}" for name in classes])
        axes.set_xlim(0, 2)
        axes.set_ylim(0, 2)
        axes.tick_params(length=0)
        axes.grid(False)

    hit, missed, alarms, right = counts.ravel().tolist()
    return _figure(
        "confusion",
        "Which rows it takes for which",
        "Rows held out by what they are (lines) and by what the model calls them "
        "(columns). The darker a box, the larger its share of the line.",
        f"Of {hit + missed:,} positive rows {hit:,} are found and {missed:,} missed; "
        f"of {alarms + right:,} negative ones {alarms:,} are false alarms.",
        {
            "is": ["positive", "positive", "negative", "negative"],
            "called": classes * 2,
            "rows": counts.ravel().tolist(),
        },
        draw,
        height=2.7,
    )


def _clusters(result: Mapping[str, Any]) -> Figure | None:
    """Return the centres in the two directions in which they differ most."""
    if not (clusters := result.get("clusters")):
        return None
    x, y = np.array(clusters["x"]), np.array(clusters["y"])
    rows, shares = np.array(clusters["rows"], dtype=np.float64), clusters["shares"]
    known = len(rows) > 0
    areas = 900 * rows / max(rows.max(), 1) if known else np.full(len(x), 200.0)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.scatter(x, y, s=areas, color=FIRST, alpha=0.35, edgecolors=FIRST)
        axes.scatter(x, y, s=8, color=INK)
        for k, place in enumerate(zip(x, y, strict=True), start=1):
            _note(axes, f"{k}", place, (6, 5), ha="left")
        axes.margins(0.2)
        axes.set_xlabel(f"first direction ({shares[0]:.0%} of how the centres differ)")
        axes.set_ylabel(f"second direction ({shares[1]:.0%})")

    what = "The area of a circle is the number of rows of its cluster."
    if not known:
        what = "The numbers of rows are not known to the server, so all are alike."
    sizes = f" of {int(rows.min()):,} to {int(rows.max()):,} rows" if known else ""
    return _figure(
        "clusters",
        "Where the clusters are",
        "The centres, seen in the two directions in which they differ most, as far as "
        f"the model alone tells. {what} Near circles are like clusters; the picture "
        f"shows {sum(shares):.0%} of how the centres differ, and no row.",
        f"{len(x)} clusters{sizes} in two directions, which show {sum(shares):.0%} of "
        "how their centres differ.",
        {
            "cluster": list(range(1, len(x) + 1)),
            "x": _floats(x),
            "y": _floats(y),
            "rows": [float(n) for n in rows] if known else [""] * len(x),
        },
        draw,
        height=4.2,
    )


def _progress(result: Mapping[str, Any]) -> Figure | None:
    """Return how far an iterative solver was, by the bytes that it had cost."""
    traces = {
        name: trace
        for name, trace in (result.get("traces") or {}).items()
        if len(trace["value"]) > 1
    }
    if not traces:
        return None
    told = {
        name: result["explained"].get(name, {}).get("title", name) for name in traces
    }

    def draw(canvas: Canvas) -> None:
        from matplotlib.ticker import NullLocator

        panels = canvas.subplots(1, len(traces), squeeze=False)[0]
        for axes, (name, trace) in zip(panels, traces.items(), strict=True):
            values = trace["value"]
            megabytes = np.array(trace["bytes"]) / 1e6
            axes.plot(megabytes, values, color=FIRST, marker="o", markersize=4)
            if min(values) > 0 and max(values) > 30 * min(values):
                axes.set_yscale("log")
                axes.yaxis.set_minor_locator(NullLocator())
                axes.yaxis.set_major_formatter(_tick)
            axes.set_xlabel("MB sent so far")
            axes.set_title(_line(told[name]), loc="left")
            _sparse(axes)

    ends = "; ".join(
        f"{told[name]} from {trace['value'][0]:.3g} to {trace['value'][-1]:.3g} in "
        f"{len(trace['value'])} steps"
        for name, trace in traces.items()
    )
    rows = [
        (name, *point)
        for name, trace in traces.items()
        for point in zip(
            trace["round_trips"], trace["bytes"], trace["value"], strict=True
        )
    ]
    columns = zip(*rows, strict=True)
    return _figure(
        "progress",
        "What each step of the solver gained",
        "One point for each step, at the bytes that had been sent by then in both "
        "directions. Where the line is flat, further steps gained little for their "
        "bytes.",
        f"{ends}.",
        dict(
            zip(
                ("metric", "round_trips", "bytes", "value"),
                map(list, columns),
                strict=True,
            )
        ),
        draw,
        height=3.1,
    )


def _counts(result: Mapping[str, Any]) -> Figure | None:
    """Return what was counted, the largest first."""
    if not (counts := result.get("counts")):
        return None
    names, values = list(counts), [int(n) for n in counts.values()]
    shown_names, shown = _largest(names, values)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        _bars(axes, shown_names, [shown], [FIRST])
        axes.set_xlim(0, 1.15 * max(max(shown), 1))
        axes.set_xticks([])
        for place, value in enumerate(shown):
            at = (value, len(shown) - 1 - place)
            _note(axes, f"{value:,}", at, (4, -4), ha="left")

    listed = "; ".join(
        f"{name}: {value:,}" for name, value in zip(shown_names, shown, strict=True)
    )
    return _figure(
        "counts",
        "How many there are",
        "The numbers that the run was for; the server knows these numbers and not "
        "which rows or texts they count.",
        f"The numbers as bars. {listed}.",
        {"of": names, "count": values},
        draw,
        height=0.7 + 0.34 * len(shown),
    )


DOING = ("computing", "sending and starting", "waiting for others")
"""What a party's time goes into."""


def times_of(
    result: Mapping[str, Any],
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return the seconds of each party in each step: computing, sending, waiting.

    The three add up to the time that the server waited in the step. Sending is what is
    between a request and its reply and is not computing: the network, Flower's queues,
    and the start of a process for the step. A party waits until the slowest one has
    answered, and where only others are asked.

    Parameters
    ----------
    result : mapping
        One of ``results`` of ``result.json``.
    """
    ledger = result["ledger"]
    entries = {(e["action"], e["party"]): e for e in ledger["entries"]}
    names = [party["name"] for party in result["parties"]]
    times: dict[str, dict[str, tuple[float, float, float]]] = {}
    for step, waits in ledger["waits"].items():
        wait = sum(waits)
        times[step] = {}
        for name in names:
            entry = entries.get((step, name), {})
            computed = min(wait, entry.get("seconds_computed", 0.0))
            answered = min(wait, max(computed, entry.get("seconds_answered", 0.0)))
            times[step][name] = computed, answered - computed, wait - answered
    return times


def _time_by_party(result: Mapping[str, Any]) -> Figure | None:
    """Return what each party's time went into."""
    times = times_of(result)
    names = [party["name"] for party in result["parties"]]
    if not times or not names:
        return None
    server = max(0.0, result["seconds"] - result["ledger"]["seconds_waited"])
    parts = [
        [sum(of_step[name][k] for of_step in times.values()) for name in names]
        for k in range(3)
    ]
    parts[2] = [waited + server for waited in parts[2]]
    slowest = int(np.argmax(parts[0]))
    return _time(
        "time-parties",
        "Where the time went, by party",
        names,
        parts,
        "The whole run from the view of each party. Sending and starting is all that "
        "lies between a request and its reply and is not computing: the network, "
        "Flower's queues, and the start of a process for each step. A party waits for "
        "slower parties and for the server; where all parties ran in one process, one "
        "after the other, also while the others compute.",
        f"{names[slowest]} computed most, {duration(parts[0][slowest])} of "
        f"{duration(sum(part[slowest] for part in parts))}.",
        "party",
    )


def _time_by_step(result: Mapping[str, Any]) -> Figure | None:
    """Return what the time of a step went into, on the mean over the parties."""
    times = times_of(result)
    if not times or not result["parties"]:
        return None
    parts = [
        [
            float(np.mean([of[k] for of in of_step.values()]))
            for of_step in times.values()
        ]
        for k in range(3)
    ]
    total = [sum(part) for part in zip(*parts, strict=True)]
    longest = int(np.argmax(total))
    return _time(
        "time-steps",
        "Where the time went, by step",
        list(times),
        parts,
        "Each line is a step that the server asked the parties for; the time is the "
        "mean over the parties. Many short round trips show as sending; a long bar of "
        "waiting says that one party is slower than the others.",
        f"The longest of {len(times)} steps is {list(times)[longest]} with "
        f"{duration(total[longest])}.",
        "step",
    )


def _time(
    name: str,
    title: str,
    names: Sequence[str],
    parts: Sequence[Sequence[float]],
    text: str,
    alt: str,
    what: str,
) -> Figure:
    total = [sum(part) for part in zip(*parts, strict=True)]
    order = sorted(range(len(names)), key=lambda k: -total[k])[:MOST_BARS]
    order.sort()  # as in the run
    rest = [k for k in range(len(names)) if k not in order]
    labels = [names[k] for k in order] + [f"{len(rest)} others"] * bool(rest)
    shown = [
        [part[k] for k in order] + [sum(part[k] for k in rest)] * bool(rest)
        for part in parts
    ]

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        _bars(axes, labels, shown, [FIRST, SECOND, THIRD], DOING)
        axes.set_xlabel("seconds")
        canvas.legend(loc="outside upper left", ncols=3, frameon=False)

    return _figure(
        name,
        title,
        text,
        f"Seconds of {', '.join(DOING)} for each {what}. {alt}",
        {what: list(names)}
        | {
            doing.replace(" ", "_"): [float(second) for second in part]
            for doing, part in zip(DOING, parts, strict=True)
        },
        draw,
        height=1.25 + 0.34 * len(labels),
    )


# -- how they are drawn ----------------------------------------------------------------

_SQUARE = {"width": 4.6, "height": 4.2}

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


def _figure(
    name: str,
    title: str,
    text: str,
    alt: str,
    data: dict[str, list[Any]],
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
    return Figure(
        name, title, text, alt, data, _tidied(svg.getvalue(), name, alt), png.getvalue()
    )


def _tidied(svg: bytes, name: str, alt: str) -> bytes:
    """Return an SVG with a text for readers who do not see it, and with few ids.

    Several figures are in one page, where an id must be there once.
    """
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r"url\(#([^)]+)\)", text))
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


def _floats(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float]:
    return [float(value) for value in values]


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _label(name: str) -> str:
    """Return a name as a figure can show it."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return shown if len(shown) <= MOST_OF_LABEL else f"{shown[: MOST_OF_LABEL - 1]}…"


def _line(text: str) -> str:
    """Return a title in lines of some forty characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 38:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _largest(names: list[str], values: list[int]) -> tuple[list[str], list[int]]:
    """Return the largest values, and the sum of the others under a name for them."""
    order = sorted(range(len(values)), key=lambda k: -values[k])
    first, rest = order[:MOST_BARS], order[MOST_BARS:]
    others = [f"{len(rest)} others"] if rest else []
    total = [sum(values[k] for k in rest)] if rest else []
    return [names[k] for k in first] + others, [values[k] for k in first] + total


def _bars(
    axes: Axes,
    names: Sequence[str],
    parts: Sequence[Sequence[float]],
    colors: Sequence[str],
    labels: Sequence[str] = ("",),
) -> None:
    """Draw bars to the right, the first on top, of parts one after the other."""
    places, left = np.arange(len(names))[::-1], np.zeros(len(names))
    for part, color, label in zip(parts, colors, labels, strict=False):
        axes.barh(
            places,
            part,
            left=left,
            height=0.62,
            color=color,
            label=label,
            edgecolor=PAPER,
            linewidth=0.8,
        )
        left += np.array(part)
    axes.set_yticks(places, [_label(name) for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def _note(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    offset: tuple[float, float],
    color: str = INK,
    ha: str = "center",
) -> None:
    axes.annotate(
        text, place, xytext=offset, textcoords="offset points", color=color, ha=ha
    )


def _room(axes: Axes, values: Sequence[float]) -> None:
    """Leave room beside values for their numbers, and mark few of them."""
    low, high = min(values), max(values)
    room = 0.35 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set_xlim(low - room, high + room)
    _sparse(axes)


def _sparse(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(_tick)


def _tick(value: float, place: float) -> str:
    """Return the number of a mark, without a power of ten beside the axis."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def _square(axes: Axes) -> None:
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.set_aspect("equal")
