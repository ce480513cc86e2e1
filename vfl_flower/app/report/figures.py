"""The figures of a report, from the content of ``result.json``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl_flower.app.extras import reason_missing
from vfl_flower.app.report.drawing import (
    FIRST,
    INK,
    SQUARE,
    Figure,
    diagonal,
    make_figure,
    unit_square,
)
from vfl_flower.typing import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def figures_of(results: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """Return the figures of a run's first result; none without the extra ``report``."""
    if reason_missing("matplotlib"):
        return []
    first = next(iter(results.values()))
    curves = first.get("curves") or {}
    drawn = [*_two_classes(curves), _regression(curves)]
    drawn += [_clusters(first), _progress(first)]
    return [figure for figure in drawn if figure is not None]


def last(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics of the last iteration of a result."""
    metrics = result["metrics"]
    return metrics[max(metrics, key=int)] if metrics else {}


def finite(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def _arrays(curves: Mapping[str, Sequence[float]], *names: str) -> list[Array]:
    return [np.array(curves.get(name, ()), dtype=np.float64) for name in names]


def _two_classes(curves: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Return the ROC and calibration figures, from held-out rows binned by score."""
    if not {"rows", "positives"} <= curves.keys():
        return []
    # Bins are ordered even if there are no probabilities, and therefore no scores.
    rows, positives, score = _arrays(curves, "rows", "positives", "score")
    if not 0 < positives.sum() < rows.sum():
        return []
    roc = _roc(rows, positives)
    return [roc, _calibration(rows, positives, score)] if len(score) else [roc]


def _roc(rows: Array, positives: Array) -> Figure:
    negatives = rows - positives
    tpr, fpr = (  # true and false positive rates, by threshold
        np.concatenate([[0.0], np.cumsum(counts[::-1])]) / counts.sum()
        for counts in (positives, negatives)
    )
    area = float(np.trapezoid(tpr, fpr))

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        unit_square(axes, "guessing")
        axes.plot(fpr, tpr, color=FIRST, marker="o", markersize=4)
        axes.set_xlabel("false alarms among the negative rows")
        axes.set_ylabel("positive rows found")

    return make_figure(
        "roc",
        "How well the model separates the classes",
        "Each point is a threshold above which rows count as positive. Its vertical "
        "position is the share of positive rows found, its horizontal position the "
        "share of negative rows that are false alarms. A curve near the upper left "
        "corner is good; the dashed line shows guessing.",
        f"ROC curve of {int(rows.sum()):,} rows held out, in {len(rows)} groups, with "
        f"an area of about {area:.2f}; guessing gives 0.5.",
        draw,
        **SQUARE,
    )


def _calibration(rows: Array, positives: Array, score: Array) -> Figure:
    share = positives / rows
    spread = np.sqrt(share * (1 - share) / rows)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        unit_square(axes, "as predicted")
        axes.errorbar(
            score, share, yerr=2 * spread, fmt="o", color=FIRST, capsize=3, markersize=5
        )
        axes.set_xlabel("predicted probability of the positive class")
        axes.set_ylabel("share of rows that are positive")

    worst = int(np.abs(share - score).argmax())
    return make_figure(
        "calibration",
        "Whether the predicted probabilities are right",
        "Each point is a group of rows with similar probabilities. On the dashed line, "
        "as many rows are positive as predicted; below it, fewer are. Bars span two "
        "standard errors.",
        f"Predicted probabilities against shares of positive rows, in {len(score)} "
        f"groups; the largest difference is at {score[worst]:.2f}, where "
        f"{share[worst]:.2f} of the rows are positive.",
        draw,
        **SQUARE,
    )


def _regression(curves: Mapping[str, Sequence[float]]) -> Figure | None:
    """Return the figure of true against predicted values, binned by prediction."""
    if not {"predicted", "true", "true_sd", "rows"} <= curves.keys():
        return None
    predicted, true, spread, rows = _arrays(
        curves, "predicted", "true", "true_sd", "rows"
    )
    if not len(predicted):
        return None

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        diagonal(axes, "as predicted", predicted.mean())
        lower, upper = true - spread, true + spread
        axes.fill_between(predicted, lower, upper, color=FIRST, alpha=0.18, linewidth=0)
        axes.plot(predicted, true, color=FIRST, marker="o", markersize=4)
        axes.set_xlabel("prediction")
        axes.set_ylabel("truth")
        axes.locator_params(axis="x", nbins=4)

    off = int(np.abs(true - predicted).argmax())
    return make_figure(
        "predicted-true",
        "Predicted against true",
        "Each point is a group of held-out rows with similar predictions, at their "
        "mean prediction and mean label. On the dashed line both are equal; the band "
        "is one standard deviation of the labels within a group.",
        f"Mean truth against mean prediction in {len(rows)} groups of "
        f"{int(rows.sum()):,} rows, from {predicted.min():.3g} to "
        f"{predicted.max():.3g}; the largest difference between the means is at "
        f"{predicted[off]:.3g}, where the truth is {true[off]:.3g}.",
        draw,
        **SQUARE,
    )


def _clusters(result: Mapping[str, Any]) -> Figure | None:
    """Return the figure of the centres, in the directions in which they differ most."""
    if not (clusters := result.get("clusters")):
        return None
    x, y, rows = _arrays(clusters, "x", "y", "rows")
    shares = clusters["shares"]
    known = len(rows) > 0
    areas = 900 * rows / max(rows.max(), 1) if known else np.full(len(x), 200.0)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.scatter(x, y, s=areas, color=FIRST, alpha=0.35, edgecolors=FIRST)
        axes.scatter(x, y, s=8, color=INK)
        beside = 2 + 0.7 * np.sqrt(areas / np.pi)  # points, from centre to edge
        for k, away in enumerate(beside):
            axes.annotate(
                f"{k + 1}", (x[k], y[k]), (away, away), textcoords="offset points"
            )
        axes.margins(0.2)
        axes.set_xlabel(f"first direction ({shares[0]:.0%} of the differences)")
        axes.set_ylabel(f"second direction ({shares[1]:.0%})")

    what = "The area of a circle shows the number of rows in its cluster."
    if not known:
        what = "The server does not know the clusters' sizes: all circles are equal."
    sizes = f" of {int(rows.min()):,} to {int(rows.max()):,} rows" if known else ""
    return make_figure(
        "clusters",
        "Where the clusters are",
        f"The centres in the two directions in which they differ most. {what} Nearby "
        "circles show similar clusters. The picture shows "
        f"{sum(shares):.0%} of the differences between centres, and no row.",
        f"{len(x)} clusters{sizes} in two directions, which show {sum(shares):.0%} of "
        "the differences between centres.",
        draw,
        height=4.2,
    )


def _progress(result: Mapping[str, Any]) -> Figure | None:
    """Return the figure of an iterative solver's progress, by the bytes sent."""
    traces = {
        name: trace
        for name, trace in (result.get("traces") or {}).items()
        if len(trace["value"]) > 1
    }
    if not traces:
        return None
    titles = {
        name: result["explained"].get(name, {}).get("title", name) for name in traces
    }

    def draw(canvas: Canvas) -> None:
        from matplotlib.ticker import NullLocator

        panels = canvas.subplots(1, len(traces), squeeze=False)[0]
        for axes, (name, trace) in zip(panels, traces.items(), strict=True):
            values = trace["value"]
            sent = len(set(trace["bytes"])) > 1
            steps = np.arange(1, 1 + len(values))
            places = np.array(trace["bytes"]) / 1e6 if sent else steps
            axes.plot(places, values, color=FIRST, marker="o", markersize=4)
            if min(values) > 0 and max(values) > 30 * min(values):
                axes.set_yscale("log")
                axes.yaxis.set_minor_locator(NullLocator())
                axes.yaxis.set_major_formatter("{x:.4g}")
            axes.set_xlabel("MB sent so far" if sent else "step")
            axes.set_title(textwrap.fill(titles[name], 39), loc="left")
            axes.locator_params(axis="x", nbins=4)

    ends = "; ".join(
        f"{titles[name]} from {trace['value'][0]:.3g} to {trace['value'][-1]:.3g} in "
        f"{len(trace['value'])} steps"
        for name, trace in traces.items()
    )
    return make_figure(
        "progress",
        "What each step of the solver gained",
        "One point for each step, at the bytes sent until then in both directions. "
        "Where the line is flat, further steps gained little for their bytes. If steps "
        "send nothing, the axis counts the steps.",
        f"{ends}.",
        draw,
        height=3.1,
    )
