"""All figures of the papers' pages: measure missing figures, write tables, pictures.

``make papers`` runs this command, and ``make papers QUICK=1`` runs it on few rows::

    python -m simulations.papers
    python -m simulations.papers --quick --output-dir .papers
    python -m simulations.papers --check coresets-kc_house

The figures are measured in *pieces*, each by one command of this package. A piece that
has its file in ``measured/`` with the same command is not measured again, so that an
interrupted run continues where it stopped; delete the file to measure the piece again.
Tables of pages stand between two comments; the first comment names their source::

    <!-- measured: coresets / kc_house, plain regression / table 1 -->
    <!-- end -->

The first part is a group of pieces, the second a heading of the page that the group's
command writes, and the third counts the tables, or the other paragraphs (``text 1``),
below this heading. ``<!-- measured: coresets / made -->`` is the table of the group's
pieces, with commands, commits, dates and machines.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from simulations import (
    coreset_theorems,
    coresets,
    fdskl,
    fdskl_theorem,
    kernel_kmeans,
    kernel_kmeans_attacks,
    mufc,
    pictures,
)
from simulations.experiments import ROOT, DataDir, new_app, table, tell
from vfl_flower.app.report.report import write_text

Figures = Any
Page = Callable[[Figures], Iterator[str]]


@dataclass(frozen=True)
class Piece:
    """The figures that one command measures."""

    words: str  # the command after ``python -m simulations.``, without folders
    data: tuple[str, ...] = ()  # names of the npz files that it needs
    quick: str | None = None  # the command of ``--quick``; None: not in ``--quick``


@dataclass(frozen=True)
class Group:
    """Pieces whose figures make the same tables."""

    page: Page
    pieces: Mapping[str, Piece]


FEW = "--datasets breast_cancer --budgets 40000"
"""A set of scikit-learn, and few bytes."""

TEN = " --seeds 10 --budgets 16000000"
"""Ten splits, and a party's bytes at which ten splits take minutes."""


def _of_sets(words: str, names: Iterable[str], quick: str) -> dict[str, Piece]:
    """Return the pieces of one command for each data set, whose name replaces {}.

    The first piece has the quick command.
    """
    name_of = "-".join(words.split()[:2])
    return {
        f"{name_of}-{name}": Piece(words.format(name), (name,), None if k else quick)
        for k, name in enumerate(names)
    }


GROUPS: dict[str, Group] = {
    "coresets": Group(
        coresets.page,
        {
            "coresets-kc_house": Piece("coresets --datasets kc_house", ("kc_house",)),
            "coresets-flights": Piece("coresets --datasets flights --tasks regression"),
            "coresets-flights-kmeans": Piece(
                "coresets --datasets flights --tasks k-means"
            ),
            "coresets-covtype": Piece(
                "coresets --datasets covtype --sizes 1000 --sizes 3000 --sizes 6000",
                ("covtype",),
            ),
            **{
                f"coresets-generated-{task.replace('-', '')}": Piece(
                    f"coresets --datasets generated --tasks {task}",
                    quick=f"coresets --datasets generated --tasks {task} --quick "
                    "--repeats 1",
                )
                for task in coresets.TASKS
            },
        },
    ),
    "coresets-published": Group(
        coresets.published_page,
        {
            "coresets-published": Piece(
                "coresets published --authors AUTHORS", ("AUTHORS",)
            )
        },
    ),
    "coresets-theorems": Group(
        coreset_theorems.sizes_page,
        {
            "coresets-theorems": Piece(
                "coreset_theorems sizes",
                ("kc_house", "covtype"),
                quick="coreset_theorems sizes --datasets generated --quick",
            )
        },
    ),
    "coresets-robust": Group(
        coreset_theorems.robust_page,
        {
            "coresets-robust": Piece(
                "coreset_theorems robust",
                ("kc_house",),
                quick="coreset_theorems robust --datasets made --quick",
            )
        },
    ),
    **{
        f"fdskl-{name}": Group(
            fdskl.TABLES[name][1],
            _of_sets(f"fdskl {name} --datasets {{}}{more}", of, f"fdskl {name} {few}"),
        )
        for name, of, more, few in (
            ("errors", fdskl.DATASETS, "", f"{FEW} --seeds 1"),
            ("splits", fdskl.DATASETS, TEN, f"{FEW} --seeds 2"),
            ("whole", fdskl.LARGER, TEN, f"{FEW} --seeds 1"),
            ("defaults", fdskl.OF_DEFAULTS, "", f"{FEW} --seeds 1"),
        )
    },
    "fdskl-forms": Group(
        fdskl.forms_page,
        {
            "fdskl-forms": Piece(
                "fdskl forms --datasets default_credit --datasets give_credit "
                "--datasets a9a --datasets cod_rna --datasets pol",
                ("default_credit", "give_credit", "a9a", "cod_rna", "pol"),
                quick="fdskl forms --datasets breast_cancer",
            )
        },
    ),
    "fdskl-theorem": Group(
        fdskl_theorem.page,
        {
            "fdskl-theorem-bundled": Piece(
                "fdskl_theorem --datasets breast_cancer",
                quick="fdskl_theorem --datasets breast_cancer --eps 0.1",
            ),
            "fdskl-theorem-ijcnn1": Piece(
                "fdskl_theorem --datasets ijcnn1", ("ijcnn1",)
            ),
        },
    ),
    "fdskl-regression": Group(
        fdskl.regression_page,
        {
            "fdskl-regression": Piece(
                "fdskl regression",
                fdskl.NUMBERS,
                quick="fdskl regression --datasets diabetes --seeds 1",
            )
        },
    ),
    "fdskl-topologies": Group(
        fdskl.topologies_page,
        {"fdskl-topologies": Piece("fdskl topologies", quick="fdskl topologies")},
    ),
    "fdskl-scaling": Group(
        fdskl.scaling_page,
        {
            "fdskl-scaling": Piece(
                "fdskl scaling --datasets covtype --sizes 1000 --sizes 5000 "
                "--sizes 500000",
                ("covtype",),
            )
        },
    ),
    "kernel_kmeans-recovery": Group(
        kernel_kmeans.recovery_page,
        {
            "kernel_kmeans-recovery-small": Piece(
                "kernel_kmeans recovery --datasets digits --datasets mushrooms",
                ("mushrooms",),
                quick="kernel_kmeans recovery --datasets digits --quick --seeds 2",
            ),
            "kernel_kmeans-recovery-mnist": Piece(
                "kernel_kmeans recovery --datasets mnist-20k", ("mnist",)
            ),
        },
    ),
    "kernel_kmeans-floats": Group(
        kernel_kmeans.floats_page,
        {
            "kernel_kmeans-floats": Piece(
                "kernel_kmeans floats",
                ("mushrooms", "mnist"),
                quick="kernel_kmeans floats --datasets digits --quick",
            )
        },
    ),
    "kernel_kmeans-nmi": Group(
        kernel_kmeans.nmi_page,
        {
            "kernel_kmeans-nmi-small": Piece(
                "kernel_kmeans nmi --datasets digits --datasets mushrooms",
                ("mushrooms",),
                quick="kernel_kmeans nmi --datasets digits --quick --seeds 1",
            ),
            "kernel_kmeans-nmi-mnist-20k": Piece(
                "kernel_kmeans nmi --datasets mnist-20k --quick", ("mnist",)
            ),
            "kernel_kmeans-nmi-mnist": Piece(
                "kernel_kmeans nmi --datasets mnist --quick", ("mnist",)
            ),
            "kernel_kmeans-nmi-covtype": Piece(
                "kernel_kmeans nmi --datasets covtype --quick --seeds 3", ("covtype",)
            ),
        },
    ),
    "kernel_kmeans-appendix": Group(
        kernel_kmeans.nmi_page,
        {
            f"kernel_kmeans-appendix-{name}": Piece(
                f"kernel_kmeans nmi --datasets {name} --appendix --seeds {seeds}",
                (name.removesuffix("-20k"),),
            )
            for name, seeds in (
                ("mushrooms", "10"),
                ("mnist-20k", "10"),
                ("mnist", "10"),
                ("covtype", "3 --rows 600000"),
            )
        },
    ),
    "kernel_kmeans-clustering": Group(
        kernel_kmeans.clustering_page,
        {
            "kernel_kmeans-clustering": Piece(
                "kernel_kmeans clustering",
                ("mushrooms", "mnist"),
                quick="kernel_kmeans clustering --datasets digits --seeds 1",
            )
        },
    ),
    "kernel_kmeans-number": Group(
        kernel_kmeans.number_page,
        {
            "kernel_kmeans-number-made": Piece(
                "kernel_kmeans number",
                quick="kernel_kmeans number --datasets groups-5 --rows 600 --seeds 1",
            ),
            "kernel_kmeans-number-read": Piece(
                "kernel_kmeans number --datasets mushrooms --datasets covtype15k "
                "--datasets mnist-20k --rows 3000",
                ("mushrooms", "covtype15k", "mnist"),
            ),
        },
    ),
    "kernel_kmeans-gamma": Group(
        kernel_kmeans.gamma_page,
        {
            "kernel_kmeans-gamma": Piece(
                "kernel_kmeans gamma",
                ("mushrooms", "covtype15k", "celltype"),
                quick="kernel_kmeans gamma --datasets circles-2 --rows 300 --seeds 1",
            )
        },
    ),
    **{
        f"kernel_kmeans-attacks-{name}": Group(
            page,
            {
                f"kernel_kmeans-attacks-{name}": Piece(
                    f"kernel_kmeans_attacks {name}",
                    quick=f"kernel_kmeans_attacks {name} {few} --seeds 1",
                )
            },
        )
        for name, page, few in (
            ("sums", kernel_kmeans_attacks.sums_page, "--datasets wine"),
            ("points", kernel_kmeans_attacks.points_page, "--datasets wine"),
            ("iterations", kernel_kmeans_attacks.iterations_page, "--datasets iris"),
        )
    },
    **{
        f"mufc-{name}": Group(
            one.page,
            {
                f"mufc-{name}": Piece(
                    f"mufc {name}",
                    tuple(n for n in one.datasets if n in mufc.FILES),
                    quick=f"mufc {name} --datasets {one.smallest} --quick --seeds 1 "
                    "--requests 5",
                )
            },
        )
        for name, one in mufc.TABLES.items()
    },
}
"""All tables between comments in the pages."""

PIECES = {
    name: piece for group in GROUPS.values() for name, piece in group.pieces.items()
}


# --- Measuring ----------------------------------------------------------------------


def missing(piece: Piece, folder: Path | None, authors: Path | None) -> str:
    """Return the reason why a piece cannot be measured, or ""."""
    for name in piece.data:
        if name == "AUTHORS":
            if authors is None:
                return "--authors must name a clone of the authors' repository"
        elif folder is None or not (folder / f"{name}.npz").is_file():
            return f"there is no {name}.npz in the folder of VFL_FLOWER_DATA"
    return ""


def measure(words: str, folder: Path | None, authors: Path | None) -> dict[str, Any]:
    """Run a command in a separate process, and return the figures that it writes."""
    with tempfile.TemporaryDirectory() as written:
        command = [sys.executable, "-m"]
        command += f"simulations.{words}".replace("AUTHORS", str(authors)).split()
        command += ["--output-dir", written]
        if folder is not None and "AUTHORS" not in words:
            command += ["--data-dir", str(folder)]
        try:
            code = subprocess.run(command, cwd=ROOT).returncode
        except KeyboardInterrupt:
            tell(
                f"{words} was interrupted; pieces that were measured before are kept, "
                "and the same command continues from this piece"
            )
            raise typer.Exit(130) from None
        if code:
            raise click.ClickException(f"{words} ended with exit code {code}")
        (file,) = Path(written).glob("*.json")
        return adopted(json.loads(file.read_text()), words)


def adopted(results: Mapping[str, Any], words: str) -> dict[str, Any]:
    """Return the figures of a command's file, with its words and its stamp."""
    others = {"command", "options", "stamp", "skipped"}
    (name,) = results.keys() - others
    return {
        "command": f"python -m simulations.{words}",
        "stamp": results["stamp"],
        "figures": rounded(results[name]),
    }


def rounded(figures: Any) -> Any:
    """Return figures rounded to seven digits, which halves the files."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [rounded(value) for value in figures]
    return float(f"{figures:.7g}") if isinstance(figures, float) else figures


def merged(parts: Sequence[Any]) -> Any:
    """Return the figures of several pieces as one command would return them."""
    if isinstance(parts[0], list):
        return [figure for part in parts for figure in part]
    return {name: figure for part in parts for name, figure in part.items()}


# --- Pages --------------------------------------------------------------------------

MARK = re.compile(r"(<!-- measured: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def blocks(parts: Iterator[str]) -> dict[str, str]:
    """Return tables and paragraphs by the heading above them and their number.

    Examples
    --------
    >>> sorted(blocks(iter(["## One", "Some text.", "| a |", "| b |"])))
    ['One / table 1', 'One / table 2', 'One / text 1']
    """
    found: dict[str, str] = {}
    heading, counts = "", {"table": 0, "text": 0}
    for part in parts:
        if part.startswith("#"):
            heading, counts = part.lstrip("# "), {"table": 0, "text": 0}
        elif part:
            kind = "table" if part.startswith("|") else "text"
            counts[kind] += 1
            found[f"{heading} / {kind} {counts[kind]}"] = part
    return found


def made(pieces: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of how pieces were measured."""
    return table(
        {
            "command": f"`{results['command']}`",
            **{k: v for k, v in results["stamp"].items() if k != "versions"},
        }
        for results in pieces.values()
    )


def all_figures(folder: Path) -> dict[str, Any]:
    """Return the figures of every group with measured pieces."""
    measured = {name: read(folder, group.pieces) for name, group in GROUPS.items()}
    return {
        name: merged([results["figures"] for results in pieces.values()])
        for name, pieces in measured.items()
        if pieces
    }


def all_blocks(folder: Path) -> dict[str, str]:
    """Return every table with figures, by the text of its comment."""
    found: dict[str, str] = {}
    for name, figures in all_figures(folder).items():
        found[f"{name} / made"] = made(read(folder, GROUPS[name].pieces))
        for place, text in blocks(GROUPS[name].page(figures)).items():
            found[f"{name} / {place}"] = text
    return found


def read(folder: Path, names: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the measured figures of some pieces."""
    files = {name: folder / f"{name}.json" for name in names}
    return {
        name: json.loads(file.read_text())
        for name, file in files.items()
        if file.is_file()
    }


def pages_in(folder: Path) -> list[Path]:
    """Return the pages of papers, which may have tables."""
    return sorted(folder.glob("*.md"))


def with_tables(text: str, found: Mapping[str, str]) -> str:
    """Return a page with the current tables between its comments."""

    def place(match: re.Match[str]) -> str:
        if match[2] not in found:
            raise click.ClickException(f"there is no table {match[2]!r}")
        return f"{match[1]}\n{found[match[2]]}\n\n{match[3]}"

    return MARK.sub(place, text)


def other_pictures(figures: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield the names of pictures that do not match the figures.

    The texts for readers who do not see a picture are compared, which have the ends of
    all curves: another version of matplotlib draws the same figures with different
    bytes.
    """
    with tempfile.TemporaryDirectory() as drawn:
        names = pictures.draw(figures, Path(drawn))
        for name in names:
            before, now = folder / f"{name}.svg", Path(drawn) / f"{name}.svg"
            if not before.is_file() or in_words(before) != in_words(now):
                yield name
    yield from sorted({file.stem for file in folder.glob("*.svg")}.difference(names))


def in_words(picture: Path) -> str:
    """Return the text for readers who do not see a picture."""
    found = re.search(r'aria-label="([^"]*)"', picture.read_text())
    return found[1] if found else ""


# --- Checking -----------------------------------------------------------------------

TOLERANCE = 0.02
"""Relative difference allowed when a figure is measured again."""

NOT_COMPARED = re.compile(
    r"seconds|_ms$|_us$|^party|^server|^slowest$|^retraining$|^stamp$"
)
"""Names of times, which depend on the machine."""


def differences(before: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yield the places at which two measurements differ by more than the tolerance.

    Numbers may differ by `TOLERANCE` of the larger number, and everything else must be
    equal; times are not compared.

    Examples
    --------
    >>> list(differences({"cost": [10.0, 1.0], "seconds": 1}, {"cost": [10.1, 2.0]}))
    ['cost[1]: was 1, is 2']
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before.keys() | now.keys():
            if not NOT_COMPARED.search(name):
                there = f"{place}.{name}".lstrip(".")
                yield from differences(before.get(name), now.get(name), there)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from differences(a, b, f"{place}[{i}]")
    elif isinstance(before, int | float) and isinstance(now, int | float):
        both_nan = math.isnan(before) and math.isnan(now)
        if not both_nan and not math.isclose(
            before, now, rel_tol=TOLERANCE, abs_tol=1e-12
        ):
            yield f"{place}: was {before:.6g}, is {now:.6g}"
    elif before != now:
        yield f"{place}: was {before!r}, is {now!r}"


# --- The command --------------------------------------------------------------------

app = new_app()


@app.command()
def main(
    pieces: Annotated[
        list[str] | None,
        typer.Argument(
            click_type=click.Choice(["all", *PIECES]),
            metavar="[PIECE]...",
            help="Only these; 'all' with --check: all that were measured.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows and repeats: does it work?")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Measure again, and compare; without PIECE: what is in the folder.",
        ),
    ] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Measure nothing; write the pages.")
    ] = False,
    authors: Annotated[
        Path | None, typer.Option(help="Clone of the coreset paper's code.")
    ] = None,
    data_dir: DataDir = None,
    output_dir: Annotated[
        Path, typer.Option(help="Folder of pages, and of measured/ and img/.")
    ] = ROOT / "docs" / "papers",
) -> None:
    """Measure missing figures, and write tables and pictures."""
    folder = output_dir / "measured"
    if check:
        check_(pieces or [], folder, output_dir, data_dir, authors)
        return
    skipped: dict[str, str] = {}
    for name, piece in PIECES.items():
        words = piece.quick if quick else piece.words
        if pages or words is None or name not in (pieces or PIECES):
            continue
        earlier = read(folder, {name: piece}).get(name)
        if earlier and earlier["command"] == f"python -m simulations.{words}":
            tell(f"{name}: there already")
        elif not quick and (reason := missing(piece, data_dir, authors)):
            skipped[name] = reason
        else:
            tell(f"{name}: python -m simulations.{words}")
            results = measure(words, data_dir, authors)
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / f"{name}.json", json.dumps(results) + "\n")
    found = all_blocks(folder)
    if quick:
        text = "\n\n".join(f"### {place}\n\n{block}" for place, block in found.items())
        write_text(output_dir / "tables.md", text + "\n")
    else:
        for page in pages_in(output_dir):
            write_text(page, with_tables(page.read_text(), found))
    drawn = pictures.draw(all_figures(folder), output_dir / "img")
    tell(f"{len(found)} tables and {len(drawn)} pictures in {output_dir.absolute()}")
    for name, reason in skipped.items():
        tell(f"{name}: not measured, {reason}")


def check_(
    pieces: Sequence[str],
    folder: Path,
    output_dir: Path,
    data_dir: Path | None,
    authors: Path | None,
) -> None:
    """Compare pages and pictures with the figures, and some figures with new ones.

    Pieces that cannot be measured here are named and left out.
    """
    found = all_blocks(folder)
    faults = [
        f"{page.name}: its tables are not those of measured/"
        for page in pages_in(output_dir)
        if with_tables(page.read_text(), found) != page.read_text()
    ]
    faults += [
        f"img/{name}.svg is not the picture of measured/"
        for name in other_pictures(all_figures(folder), output_dir / "img")
    ]
    measured = read(folder, PIECES)
    faults += [
        f"{name}: measured with {results['command']!r}"
        for name, results in measured.items()
        if results["command"] != f"python -m simulations.{PIECES[name].words}"
    ]
    for name in measured if "all" in pieces else pieces:
        before = measured.get(name)
        if before is None:
            raise click.ClickException(f"{name} was not measured yet")
        if reason := missing(PIECES[name], data_dir, authors):
            if "all" not in pieces:
                raise click.ClickException(f"{name} cannot be measured: {reason}")
            tell(f"{name}: not measured, {reason}")
            continue
        now = measure(PIECES[name].words, data_dir, authors)
        found_here = [*differences(before["figures"], now["figures"])]
        tell(f"{name}: {len(found_here)} differences")
        faults += [f"{name}: {difference}" for difference in found_here]
    if faults:
        raise click.ClickException("not as measured:\n" + "\n".join(faults))
    tell("the pages have the figures that were measured")


if __name__ == "__main__":
    app(prog_name="python -m simulations.papers")
