"""What the figures of a report show: each is made from what ``result.json`` has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl_flower.app.drawing import (
    FIRST,
    INK,
    MUTED,
    SECOND,
    SQUARE,
    THIRD,
    Figure,
    draw_bars,
    floats,
    in_lines,
    make_figure,
    mark_few,
    note,
    tick,
    unit_square,
)
from vfl_flower.app.units import size
from vfl_flower.protocol.metrics import SPREAD

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_BARS = 12
"""Most bars of a figure; the others are added up in one more."""

MAIN = ("test_error", "test_loss", "full_train_loss", "full_cost", "check_cost")
"""Metrics, of the same rows, by which a figure compares results: the first that all
of them have."""

TOGETHER = "all parties, nothing pooled"
"""The model of a run, beside those of parties alone."""


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
        _confusion(last(first), curves),
        _clusters(first),
        _progress(first),
        _counts(first),
    ]
    return [figure for figure in drawn if figure is not None]


def last(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics of the last iteration of a result."""
    metrics = result["metrics"]
    return metrics[max(metrics, key=int)] if metrics else {}


def finite(value: object) -> bool:
    """Return whether a value is a number that is neither infinite nor NaN."""
    return isinstance(value, int | float) and math.isfinite(value)


# -- what each figure shows ------------------------------------------------------------


def _comparison(results: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Return what each result of a comparison is worth, and what it has cost.

    A result may have ``beside``: a metric of models of no run, by their names, and a
    ``text`` that says what they are.
    """
    metrics = {name: last(result) for name, result in results.items()}
    shared = [m for m in MAIN if all(finite(v.get(m)) for v in metrics.values())]
    first = next(iter(results.values()))
    others = first.get("beside", {})
    beside = others.get(shared[0], {}) if shared else {}
    if len(results) + len(beside) < 2 or not shared:
        return None
    main = shared[0]
    title = first["explained"].get(main, {}).get("title", main)
    values = [float(of[main]) for of in metrics.values()] + [*beside.values()]
    spreads = [float(of.get(f"{main}{SPREAD}", 0.0)) for of in metrics.values()]
    spreads += [0.0] * len(beside)
    sent = [result["ledger"]["bytes_up"] for result in results.values()]
    names = [*([TOGETHER] if beside and len(results) == 1 else results), *beside]
    text = f"{title}; lower is better, and bars start at 0"
    if any(spreads):
        text += (
            ". A line spans two standard errors to each side: results whose lines "
            "overlap do not differ for certain"
        )
    text += f". {others['text']}" if beside else ". Right: what it cost in bytes."
    panels: list[Any] = [(values, FIRST, in_lines(title), "{:,.4g}".format)]
    if not beside:
        panels.append((sent, SECOND, "bytes that all parties sent", size))

    def draw(canvas: Canvas) -> None:
        row = canvas.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        lengths = 2 * np.array(spreads)
        for axes, (bars, color, label, shown) in zip(row, panels, strict=True):
            draw_bars(axes, names, bars, color)
            ends = np.add(bars, lengths) if bars is values else bars
            for place, (bar, end) in enumerate(zip(bars, ends, strict=True)):
                at = (end, len(bars) - 1 - place)
                note(axes, shown(bar), at, (4, -4), ha="left")
            axes.set_xlim(0, 1.25 * max(ends) or 1)
            axes.set_xticks([0])
            axes.set_xlabel(label)
        if any(spreads):
            places = np.arange(len(names))[::-1]
            row[0].errorbar(
                values, places, xerr=lengths, fmt="none", color=INK, capsize=4
            )

    listed = "; ".join(
        f"{name} {value:,.4g}" for name, value in zip(names, values, strict=True)
    )
    costs = ", ".join(map(size, sent))
    return make_figure(
        "comparison",
        "Beside each party alone" if beside else "Beside its baselines",
        text,
        f"{title} of each result: {listed}. Bytes that the parties sent: {costs}.",
        {"result": names, main: values, "standard_error": spreads}
        | ({} if beside else {"bytes_up": sent}),
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
        unit_square(axes)
        axes.plot([0, 1], [0, 1], color=THIRD, linestyle="--")
        axes.plot(alarms, found, color=FIRST, marker="o", markersize=4)
        note(axes, "guessing", (0.62, 0.62), (8, -12), color=MUTED, ha="left")
        axes.set_xlabel("false alarms among the negative rows")
        axes.set_ylabel("positive rows found")

    def calibration(canvas: Canvas) -> None:
        axes = canvas.subplots()
        unit_square(axes)
        axes.plot([0, 1], [0, 1], color=THIRD, linestyle="--")
        axes.errorbar(
            score, share, yerr=2 * spread, fmt="o", color=FIRST, capsize=3, markersize=5
        )
        note(axes, "as predicted", (0.62, 0.62), (8, -12), color=MUTED, ha="left")
        axes.set_xlabel("predicted probability of the positive class")
        axes.set_ylabel("share of rows that are positive")

    total = int(rows.sum())
    figures = [
        make_figure(
            "roc",
            "How well it separates the classes",
            "Each point is a threshold: rows with a higher score count as positive. "
            "Up: how many of the positive rows are found; to the right: how many of "
            "the others are false alarms. The nearer to the upper left corner, the "
            "better; the dashed line is guessing.",
            f"ROC curve of {total:,} rows held out in {len(rows)} groups, with an "
            f"area of about {area:.2f}; the line of guessing has 0.5.",
            {
                "false_positive_rate": floats(alarms),
                "true_positive_rate": floats(found),
            },
            roc,
            **SQUARE,
        ),
    ]
    if not len(score):
        return figures
    worst = int(np.abs(share - score).argmax())
    return [
        *figures,
        make_figure(
            "calibration",
            "Whether its probabilities are right",
            "Each point is a group of rows with similar probabilities. On the dashed "
            "line as many rows are positive as predicted; below it the model promises "
            "too much. Bars span two standard errors.",
            f"Predicted probabilities against what happened, in {len(score)} groups of "
            f"rows; the largest difference is at {score[worst]:.2f}, where "
            f"{share[worst]:.2f} of the rows are positive.",
            {
                "predicted": floats(score),
                "share_positive": floats(share),
                "standard_error": floats(spread),
                "rows": [int(n) for n in rows],
            },
            calibration,
            **SQUARE,
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
        note(axes, "as predicted", (middle, middle), (8, -12), color=MUTED, ha="left")
        axes.set_xlabel("prediction")
        axes.set_ylabel("truth")
        mark_few(axes)
        axes.yaxis.set_major_formatter(tick)

    off = int(np.abs(true - predicted).argmax())
    return make_figure(
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
            "predicted": floats(predicted),
            "true": floats(true),
            "true_sd": floats(spread),
            "rows": [int(n) for n in rows],
        },
        draw,
        **SQUARE,
    )


_CELLS = "true_positives", "false_negatives", "false_positives", "true_negatives"


def _confusion(
    metrics: Mapping[str, Any], curves: Mapping[str, Sequence[Any]]
) -> Figure | None:
    """Return how many rows held out of each class are taken for which."""
    cells = [metrics.get(f"test_{cell}") for cell in _CELLS]
    if several := curves.get("confusion"):
        counts = np.array(several, dtype=np.int64)
        classes = [f"{k}" for k in range(1, len(counts) + 1)]
        which = "Classes are numbered in the ascending order of their labels. "
    elif None not in cells:
        counts = np.array(cells, dtype=np.int64).reshape(2, 2)
        classes, which = ["positive", "negative"], ""
    else:
        return None
    held = counts.sum(axis=1)
    shares = counts / np.maximum(held, 1)[:, None]
    many = len(counts) > 2

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for row, column in np.ndindex(counts.shape):
            share, text = float(shares[row, column]), f"{counts[row, column]:,}"
            axes.fill_between(
                [column, column + 1],
                row,
                row + 1,
                color=FIRST if row == column else SECOND,
                alpha=0.1 + 0.3 * share if share else 0,
                linewidth=0,
            )
            text += "" if many else f"\n{share:.0%} of these"
            if share or not many:
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center")
        places = np.arange(len(counts)) + 0.5
        axes.set_xticks(places, classes)
        axes.set_yticks(places, classes)
        axes.set_xlabel("class that the model names")
        axes.set_ylabel("class that is right")
        axes.set_xlim(0, len(counts))
        axes.set_ylim(len(counts), 0)
        axes.tick_params(length=0)
        axes.grid(False)

    found = "; ".join(
        f"of {of:,} rows of class {name} {right:,} are named right"
        for name, of, right in zip(classes, held, counts.diagonal(), strict=True)
    )
    return make_figure(
        "confusion",
        "Which rows it takes for which",
        "Rows held out by the class that they are of (lines) and the class that the "
        f"model names (columns). {which}Blue boxes are right, the others wrong; the "
        "darker a box, the larger its share of the line.",
        f"Table of classes: {found}.",
        {
            "is": [name for name in classes for _ in classes],
            "called": classes * len(classes),
            "rows": counts.ravel().tolist(),
        },
        draw,
        height=1.9 + 0.3 * len(counts) if many else 2.7,
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
        beside = 2 + 0.7 * np.sqrt(areas / np.pi)  # points, from centre to edge
        for k, away in enumerate(beside):
            note(axes, f"{k + 1}", (x[k], y[k]), (away, away), ha="left")
        axes.margins(0.2)
        axes.set_xlabel(f"first direction ({shares[0]:.0%} of how the centres differ)")
        axes.set_ylabel(f"second direction ({shares[1]:.0%})")

    what = "The area of a circle is the number of rows of its cluster."
    if not known:
        what = "The numbers of rows are not known to the server, so all are alike."
    sizes = f" of {int(rows.min()):,} to {int(rows.max()):,} rows" if known else ""
    return make_figure(
        "clusters",
        "Where the clusters are",
        "The centres, seen in the two directions in which they differ most, as far as "
        f"the model alone tells. {what} Near circles are like clusters; the picture "
        f"shows {sum(shares):.0%} of how the centres differ, and no row.",
        f"{len(x)} clusters{sizes} in two directions, which show {sum(shares):.0%} of "
        "how their centres differ.",
        {
            "cluster": list(range(1, len(x) + 1)),
            "x": floats(x),
            "y": floats(y),
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
            sent = len(set(trace["bytes"])) > 1
            places = (
                np.array(trace["bytes"]) / 1e6 if sent else 1 + np.arange(len(values))
            )
            axes.plot(places, values, color=FIRST, marker="o", markersize=4)
            if min(values) > 0 and max(values) > 30 * min(values):
                axes.set_yscale("log")
                axes.yaxis.set_minor_locator(NullLocator())
                axes.yaxis.set_major_formatter(tick)
            axes.set_xlabel("MB sent so far" if sent else "step")
            axes.set_title(in_lines(told[name]), loc="left")
            mark_few(axes)

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
    return make_figure(
        "progress",
        "What each step of the solver gained",
        "One point for each step, at the bytes that had been sent by then in both "
        "directions. Where the line is flat, further steps gained little for their "
        "bytes. Steps that send nothing are counted instead.",
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
        draw_bars(axes, shown_names, shown, FIRST)
        axes.set_xlim(0, 1.15 * max(max(shown), 1))
        axes.set_xticks([])
        for place, value in enumerate(shown):
            at = (value, len(shown) - 1 - place)
            note(axes, f"{value:,}", at, (4, -4), ha="left")

    listed = "; ".join(
        f"{name}: {value:,}" for name, value in zip(shown_names, shown, strict=True)
    )
    return make_figure(
        "counts",
        "How many there are",
        "What the run has counted. The server knows these numbers, and not which rows "
        "or texts they count.",
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


def _largest(names: list[str], values: list[int]) -> tuple[list[str], list[int]]:
    """Return the largest values, and the sum of the others under a name for them."""
    order = sorted(range(len(values)), key=lambda k: -values[k])
    first, rest = order[:MOST_BARS], order[MOST_BARS:]
    others = [f"{len(rest)} others"] if rest else []
    total = [sum(values[k] for k in rest)] if rest else []
    return [names[k] for k in first] + others, [values[k] for k in first] + total
