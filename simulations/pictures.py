"""Pictures of the papers' pages, drawn from the figures that were measured.

They follow the papers' own figures, if there are any. The same figures give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.coreset_theorems import BETAS, kept_by_most
from simulations.experiments import standard_error
from vfl_flower.app.report.drawing import FIRST, MUTED, SECOND, THIRD, make_figure
from vfl_flower.app.report.report import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

COLORS = (FIRST, SECOND, THIRD, "#5b3c88", "#2f7d4f", "#8c2f39", "#8a6d00")
MARKERS = "osD^vP*"
FEW = 30
"""Maximum number of marked points of a curve."""


@dataclass(frozen=True)
class Curve:
    """One curve of a panel."""

    label: str
    x: Sequence[float]  # a single point is a mark; none: a line from left to right
    y: Sequence[float]
    error: Sequence[float] = ()  # half the length of each bar
    dashed: bool = False  # a curve for comparison, not measured by us


@dataclass(frozen=True)
class Panel:
    """Curves in one pair of axes."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]  # equal labels have equal colours in all panels
    log: str = ""  # axes with a logarithmic scale: "", "x", "y" or "xy"


def picture(name: str, panels: Sequence[Panel]) -> bytes:
    """Return panels as an SVG, at most three side by side."""
    from matplotlib.ticker import LogLocator, NullFormatter

    across = 2 if len(panels) == 4 or len(panels) > 9 else min(3, len(panels))
    down = -(-len(panels) // across)
    labels = list(dict.fromkeys(c.label for panel in panels for c in panel.curves))
    ncols = min(across + 1, len(labels))

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(down, across, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            for curve in panel.curves:
                place = labels.index(curve.label)
                color = COLORS[place % len(COLORS)]
                if not len(curve.x):
                    axes.axhline(
                        curve.y[0], color=color, linestyle=":", label=curve.label
                    )
                    continue
                axes.errorbar(
                    curve.x,
                    curve.y,
                    yerr=curve.error if len(curve.error) else None,
                    color=color,
                    linestyle="--" if curve.dashed else "-",
                    linewidth=1.4,
                    marker=MARKERS[place % len(MARKERS)]
                    if len(curve.x) <= FEW and not curve.dashed
                    else "",
                    markersize=3.5,
                    elinewidth=0.8,
                    label=curve.label,
                )
            axes.set_title(panel.title)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(panel.y)
            for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
                if letter in panel.log:
                    axes.set(**{f"{letter}scale": "log"})
                    low, high = axis.get_view_interval()
                    marked = (1.0,) if high > 100 * low else (1.0, 2.0, 5.0)
                    axis.set_major_locator(LogLocator(subs=marked))
                    axis.set_major_formatter(lambda value, _: _short(value))
                    axis.set_minor_formatter(NullFormatter())
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        handles = {
            label: handle
            for axes in grid.flat[: len(panels)]
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        canvas.legend(
            [handles[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=ncols,
            frameon=False,
            labelcolor=MUTED,
        )

    alt = " ".join(
        f"{panel.title}: {panel.y} against {panel.x}; "
        + "; ".join(_in_words(curve) for curve in panel.curves)
        + "."
        for panel in panels
    )
    height = 2.8 * down + 0.26 * -(-len(labels) // ncols) + 0.2
    width = max(5.5, 3.3 * across + 0.3)
    return make_figure(name, "", "", alt, draw, width=width, height=height).svg


def _short(value: float) -> str:
    """Return 200k for 200,000 and 3M for three million, as a label of an axis."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"


def _in_words(curve: Curve) -> str:
    if len(curve.y) == 1:
        return f"{curve.label} {curve.y[0]:.4g}"
    return f"{curve.label} from {curve.y[0]:.4g} to {curve.y[-1]:.4g}"


# --- The coreset paper --------------------------------------------------------------


def coresets(experiments: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield cost against m and units, a picture for each data set, T and task."""
    pictured: dict[str, list[Panel]] = {}
    for one in experiments:
        name = f"{one['name'].split(',')[0]}-{one['task']}-{len(one['widths'])}-parties"
        for x, label, log in (("size", "m", ""), ("units", "units sent", "x")):
            curves = []
            for solver in one["solvers"]:
                for sampling, letter in (("coreset", "C"), ("uniform", "U")):
                    cells = [
                        cell
                        for cell in one["cells"]
                        if (cell["solver"], cell["sampling"]) == (solver, sampling)
                    ]
                    if cells:
                        curves.append(
                            Curve(
                                f"{letter}-{solver}",
                                [cell[x] for cell in cells],
                                [cell["ratio"] for cell in cells],
                                [cell["ratio_error"] for cell in cells],
                            )
                        )
            panel = Panel(one["name"], label, "cost / cost of all rows", curves, log)
            pictured.setdefault(f"coresets-{name}", []).append(panel)
    yield from pictured.items()


def coresets_robust(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield epsilon against m, of coresets and samples, with and without outliers."""
    panels = []
    for one in results:
        curves = []
        for sampling, of_size in one["errors"].items():
            x = [int(m) for m in of_size]
            for i, beta in enumerate(BETAS):
                if beta in (0.0, 0.01):
                    y = [kept_by_most(errors)[i] for errors in of_size.values()]
                    curves.append(Curve(f"{sampling}, beta = {beta:g}", x, y))
        panels.append(Panel(one["name"], "m", "epsilon", curves, "xy"))
    yield "coresets-robust", panels


# --- The FDSKL paper ----------------------------------------------------------------


def fdskl_errors(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield test error against bytes, round trips and seconds: Figures 3 and 6."""
    axes = {
        "bytes": ("MB of all parties", 1e-6),
        "round_trips": ("round trips", 1.0),
        "seconds": ("seconds", 1.0),
    }
    pooled = {
        "SVC, pooled": "SVC, 8,000 rows, pooled",
        "linear, pooled": "linear, pooled",
        "gradient boosting, pooled": "boosted trees, pooled",
    }
    for key, (label, unit) in axes.items():
        panels = []
        for name, entry in entries.items():
            of: dict[str, list[Mapping[str, Any]]] = {}
            for score in entry["scores"]:
                of.setdefault(score["name"], []).append(score)
            curves = []
            for family in ("direct", "doubly stochastic"):
                runs = [
                    scores
                    for method, scores in of.items()
                    if method.startswith(f"FDSKL {family}, ") and "square" not in method
                ]
                x = [unit * np.mean([run[key] for run in scores]) for scores in runs]
                errors = [[run["error"] for run in scores] for scores in runs]
                y = [float(np.mean(some)) for some in errors]
                spread = [float(np.std(some)) for some in errors]
                curves.append(Curve(f"FDSKL {family}", x, y, spread))
            for method, title in (("FD-SVRG", "FD-SVRG"), ("PP-SVMV", "PP-SVMV")):
                if method in of:
                    x = [unit * np.mean([run[key] for run in of[method]])]
                    y = [float(np.mean([run["error"] for run in of[method]]))]
                    curves.append(Curve(title, x, y))
            for method, title in pooled.items():
                y = [float(np.mean([run["error"] for run in of[method]]))]
                curves.append(Curve(title, (), y))
            panels.append(Panel(name, label, "test error, %", curves, "x"))
        yield f"fdskl-errors-{key}", panels


def fdskl_topologies(
    measured: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, Any]]:
    """Yield round trips and megabytes against the number of parties, as in Figure 4."""
    panels = []
    for title, keys, unit in (
        ("round trips", ("round_trips",), 1.0),
        ("MB up and down", ("bytes_up", "bytes_down"), 1e-6),
    ):
        curves = []
        for topology in dict.fromkeys(run["topology"] for run in measured):
            runs = [run for run in measured if run["topology"] == topology]
            y = [unit * sum(run[key] for key in keys) for run in runs]
            curves.append(Curve(topology, [run["parties"] for run in runs], y))
        panels.append(Panel(title, "parties", title, curves))
    yield "fdskl-topologies", panels


def fdskl_scaling(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield seconds of training against rows, as in Figure 5."""
    panels = []
    for dataset, measured in entries.items():
        curves = []
        for key, name in (("fdskl", "FDSKL direct"), ("pp_svmv", "PP-SVMV")):
            runs = [line for line in measured if isinstance(line[key], dict)]
            x, y = [run["n"] for run in runs], [run[key]["seconds"] for run in runs]
            curves.append(Curve(name, x, y))
        panels.append(Panel(dataset, "training rows", "seconds", curves, "xy"))
    yield "fdskl-scaling", panels


def fdskl_theorem(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield E|f_t - f_*|^2 against t beside equation 8, for the smallest epsilon."""
    panels = []
    for name, entry in entries.items():
        cells = entry["cells"]
        least = min(cell["eps"] for cell in cells)
        curves = [
            Curve(f"{cell['factor']:,} times the step", cell["t"], cell["mean"])
            for cell in cells
            if cell["eps"] == least
        ]
        asked = {c["t"][-1]: c["eps"] for c in cells if c["factor"] == 1}
        bound = Curve("equation 8", list(asked), list(asked.values()), (), True)
        y = "E|f(x) - f*(x)|², training rows"
        panels.append(Panel(name, "t", y, [*curves, bound], "xy"))
    yield "fdskl-theorem", panels


# --- The paper on kernel k-means ----------------------------------------------------


def recovery(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the error of the kernel matrix against t, as in Figure 1."""
    panels = []
    for name, entry in entries.items():
        curves = []
        for one in entry["curves"]:
            if one["D"] != 50:
                continue
            y = np.mean(one["errors"], axis=0).tolist()
            cem = "" if one["cem"] else ", without CEM"
            t = range(1, len(y) + 1)
            curves.append(Curve(f"threshold {one['rule']}{cem}", t, y))
        if c := entry["bound"]:
            curves.append(Curve("drawn in the paper", t, [c / i for i in t], (), True))
        panels.append(Panel(f"{name}, D = 50", "t", "error", curves, "xy"))
    yield "kernel_kmeans-recovery", panels


def uploaded(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield rank and Lanczos steps against t, as in Figures 2 and 5."""
    panels = []
    for name, entry in entries.items():
        t = range(1, len(entry["ranks"]) + 1)
        curves = [
            Curve("rank of Z", t, entry["ranks"]),
            Curve("steps without CEM, Q_0", t, entry["Q_0"]),
            Curve("steps with CEM, Q_1", t, entry["Q_1"]),
        ]
        panels.append(Panel(name, "t", "number", curves))
    yield "kernel_kmeans-floats", panels


def nmi(
    entries: Mapping[str, Any], name: str = "kernel_kmeans-nmi"
) -> Iterator[tuple[str, Any]]:
    """Yield NMI, with standard errors, against uploaded floats, as in Figure 3."""
    names = {
        "FK": "FK k-means",
        "RFK": "RFK",
        "CE PCA": "CE PCA",
        "plain": "k-means of the columns",
        "CE PCA, raw points": "CE PCA, raw points",
    }
    panels = []
    for data, entry in entries.items():
        curves = []
        for family, title in names.items():
            of = [
                (one["floats"], np.mean(one["nmi"]), standard_error(one["nmi"]))
                for one in entry["methods"].values()
                if one["family"] == family
            ]
            if of:
                x, y, error = zip(*sorted(of), strict=True)
                curves.append(Curve(title, x, y, error))
        if central := entry["methods"].get("CK"):
            y = (float(np.mean(central["nmi"])),)
            curves.append(Curve("kernel k-means, pooled", (), y))
        panels.append(Panel(data, "floats uploaded", "NMI", curves, "x"))
    yield name, panels


# --- The MUFC paper -----------------------------------------------------------------


def removals(measured: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield accumulated time and loss ratio over removals, as in Figures 4 and 5."""
    times, ratios = [], []
    for entry in measured:
        retraining = float(np.median(entry["retraining"]["complete"]))
        slow, flat = [], []
        for name, runs in entry["patterns"].items():
            if not runs[0]["ratio"]:
                continue
            seconds = np.mean(
                [np.add(run["party"], run["server"]).cumsum() for run in runs], axis=0
            )
            x = range(1, len(seconds) + 1)
            slow.append(Curve(name, x, seconds.tolist()))
            fewest = min(len(run["ratio"]) for run in runs)
            looks = np.mean([run["ratio"][:fewest] for run in runs], axis=0)
            flat.append(Curve(name, looks[:, 0].tolist(), looks[:, 1].tolist()))
        again = [retraining * i for i in x]
        slow.append(Curve("training anew each time", x, again, (), True))
        times.append(Panel(entry["name"], "requests", "seconds, in all", slow, "xy"))
        ratios.append(Panel(entry["name"], "requests", "loss ratio", flat))
    yield "mufc-removal-seconds", times
    yield "mufc-removal-ratio", ratios


def mufc_settings(measured: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the loss ratio against gamma, centroids and clusters, as in Figure 3."""
    titles = {
        "gamma": "gamma",
        "centroids": "centroids of a party",
        "clusters": "clusters K' of a party",
    }
    panels = []
    for name, label in titles.items():
        curves = []
        for data in dict.fromkeys(cell["data"] for cell in measured[name]):
            cells = [cell for cell in measured[name] if cell["data"] == data]
            x = [float(cell["value"]) for cell in cells]
            y = [float(np.mean(cell["induced"])) for cell in cells]
            spread = [float(np.std(cell["induced"])) for cell in cells]
            curves.append(Curve(data.partition(",")[0], x, y, spread))
        if curves:
            log = "x" if name == "gamma" else ""
            panels.append(Panel(label, label, "loss ratio, induced", curves, log))
    yield "mufc-settings", panels


PICTURES: dict[str, Callable[[Any], Iterator[tuple[str, Sequence[Panel]]]]] = {
    "coresets": coresets,
    "coresets-robust": coresets_robust,
    "fdskl-errors": fdskl_errors,
    "fdskl-topologies": fdskl_topologies,
    "fdskl-scaling": fdskl_scaling,
    "fdskl-theorem": fdskl_theorem,
    "kernel_kmeans-recovery": recovery,
    "kernel_kmeans-floats": uploaded,
    "kernel_kmeans-nmi": nmi,
    "kernel_kmeans-appendix": partial(nmi, name="kernel_kmeans-appendix"),
    "mufc-removal": removals,
    "mufc-settings": mufc_settings,
}
"""The functions, by the group of pieces whose figures they draw."""


def draw(groups: Mapping[str, Any], folder: Path) -> list[str]:
    """Draw the pictures of all groups that were measured, and return their names."""
    names = []
    for group, panels_of in PICTURES.items():
        if group in groups:
            for name, panels in panels_of(groups[group]):
                name = name.replace(" ", "_")
                folder.mkdir(parents=True, exist_ok=True)
                write_text(folder / f"{name}.svg", picture(name, panels).decode())
                names.append(name)
    return names
