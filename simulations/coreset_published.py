"""What others measured with coresets: Table 1 of the paper, and its authors' files.

The authors publish the figures of each of their runs as ``res/**/*.npy`` in
https://github.com/haoyuzhao123/coreset-vfl-codes. This command reads a clone::

    python -m simulations.coreset_published FOLDER

The files hold what the published code computed on YearPredictionMSD and kc_house, 20
runs each. Table 1 prints the means of some of them.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from simulations.experiments import (
    OUTPUT,
    MissingData,
    OutputDir,
    Results,
    new_app,
    table,
    tell,
)
from simulations.tables import SIZES

KC_SIZES = (100, 200, 300, 400, 500, 600)

FILES: dict[str, tuple[str, str, tuple[int, ...], tuple[str, ...]]] = {
    "YearPredictionMSD, ridge, T = 3": (
        *("regression", "ridge-res/ridge-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "YearPredictionMSD, ridge, T = 5": (
        *("regression", "ridge/ridge-{solver}{drawn}5p-test.npy", SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "YearPredictionMSD, linear, T = 3": (
        *("regression", "lr/lr-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "YearPredictionMSD, lasso, T = 3": (
        *("regression", "lasso/lasso-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL",),
    ),
    "YearPredictionMSD, elastic net, T = 3": (
        *("regression", "en/en-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL",),
    ),
    **{
        f"YearPredictionMSD, k-means, k = {k}, T = {T}": (
            *("k-means", f"{folder}/{{solver}}{{drawn}}-{k}c{{size}}{end}.npy", SIZES),
            ("KMEANS++", "DISTDIM"),
        )
        for k, T, folder, end in (
            (10, 3, "kmeans-res", ""),
            (10, 5, "kmeans", "5p"),
            (5, 3, "kmeans", ""),
            (15, 3, "kmeans", ""),
        )
    },
    "kc_house, linear, T = 2 (training rows)": (
        *("regression", "ridge-kc/ridge-{solver}{drawn}-train.npy", KC_SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "kc_house, k-means, k = 5, T = 2": (
        *("k-means", "kmeans/kc-{solver}{drawn}-5c{size}.npy", KC_SIZES),
        ("KMEANS++", "DISTDIM"),
    ),
}
"""The task, the names of files, the sizes m and the solvers of each table."""

NAMES = {
    **{"CENTRAL": "centralized", "SAGA": "saga"},
    **{"KMEANS++": "kmeans", "DISTDIM": "distkmeans"},
}

PRINTED: dict[str, dict[tuple[str, str], tuple[float, ...]]] = {
    "YearPredictionMSD, ridge, T = 3": {
        ("CENTRAL", "full"): (90.45,),
        ("CENTRAL", "coreset"): (100.50, 95.01, 93.39, 92.73, 92.42, 91.97),
        ("CENTRAL", "uniform"): (108.79, 99.65, 96.68, 95.32, 94.08, 93.54),
        ("SAGA", "coreset"): (105.93, 99.55, 97.13, 95.90, 94.75, 94.83),
        ("SAGA", "uniform"): (110.43, 102.96, 100.64, 99.10, 97.64, 96.88),
    },
    "YearPredictionMSD, k-means, k = 10, T = 3": {
        ("KMEANS++", "full"): (71.65,),
        ("KMEANS++", "coreset"): (73.76, 72.68, 72.23, 72.14, 71.97, 71.92),
        ("KMEANS++", "uniform"): (74.91, 73.52, 73.25, 72.74, 72.54, 72.57),
        ("DISTDIM", "full"): (74.89,),
        ("DISTDIM", "coreset"): (77.75, 76.82, 75.52, 75.49, 75.27, 75.32),
        ("DISTDIM", "uniform"): (78.87, 78.13, 77.85, 76.70, 76.38, 76.44),
    },
}
"""Means in Table 1 of [1], in the order of the sizes."""


def file_of(task: str, pattern: str, solver: str, sampling: str, m: int | None) -> str:
    """Return the name of the authors' file of a cell, below ``res``.

    Examples
    --------
    >>> _, pattern, _, _ = FILES["YearPredictionMSD, ridge, T = 3"]
    >>> file_of("regression", pattern, "SAGA", "uniform", 2000)
    'ridge-res/ridge-saga-u2000s-test.npy'
    >>> _, pattern, _, _ = FILES["YearPredictionMSD, k-means, k = 10, T = 5"]
    >>> file_of("k-means", pattern, "DISTDIM", "coreset", 1000)
    'kmeans/distkmeans-coreset-10c1000s5p.npy'
    """
    if task == "regression":
        drawn, size = f"-{sampling[0]}{m}s" if m else "", ""
    else:
        drawn, size = f"-{sampling}" if m else "", f"{m}s" if m else ""
    return pattern.format(solver=NAMES[solver], drawn=drawn, size=size)


def figures_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return mean, sample standard deviation and runs of each cell, by table.

    ``printed`` is the mean in Table 1 of [1], or None. A cell without a file is left
    out.
    """
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, (task, pattern, sizes, solvers) in FILES.items():
        figures[name] = []
        for solver in solvers:
            for sampling in ("full", "coreset", "uniform"):
                printed = PRINTED.get(name, {}).get((solver, sampling), ())
                for i, m in enumerate(sizes if sampling != "full" else [None]):
                    file = folder / file_of(task, pattern, solver, sampling, m)
                    if not file.is_file():
                        continue
                    values = np.load(file, allow_pickle=False)
                    figures[name].append(
                        {
                            **{"solver": solver, "sampling": sampling, "size": m},
                            "mean": float(values.mean()),
                            "std": float(values.std(ddof=1).round(9)),
                            "runs": len(values),
                            "printed": printed[i] if printed else None,
                        }
                    )
    return figures


def page(figures: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield a table of each set and task."""
    yield "## What the paper prints, and the authors' files"
    for name, cells in figures.items():
        yield f"### {name}"
        rows: dict[tuple[str, int | None], dict[str, str]] = {}
        for cell in cells:
            row = rows.setdefault(
                (cell["solver"], cell["size"]),
                {"solver": cell["solver"], "m": str(cell["size"] or "full")},
            )
            letter = "U" if cell["sampling"] == "uniform" else "C"
            row[f"authors' files {letter} (std)"] = (
                f"{cell['mean']:.5g} ({cell['std']:.2g})"
            )
            if cell["printed"] is not None:
                row[f"printed {letter}"] = f"{cell['printed']:.2f}"
        yield table(rows.values())


app = new_app()


@app.command()
def main(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Clone of the authors' repository.")],
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Write what the authors' files hold, beside what the paper prints."""
    if not (folder / "res").is_dir():
        raise MissingData(f"there is no folder res in {folder}")
    results = Results(context, "coreset_published")
    figures = figures_of(folder / "res")
    results.write(figures, page(figures))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.coreset_published")
