"""Count the lines that a reader must read to follow a form of a strategy.

    python benchmarks/reading.py                      # all of FORMS
    python benchmarks/reading.py 'FKKMeans(seed=1)' --list

Each form runs once on small data, with its parties in this process. Each definition
that the run enters counts once: all lines of a function; the settings of a class and
the methods that were entered; and, with a step, the class of its reply. Docstrings are
included. Column `path` is the sum of the columns to its left; `protocol`, `party` and
`server` are shared by all strategies, and `others` is the code that plays the parties
in this process.
"""

from __future__ import annotations

import argparse
import ast
import logging
import os
import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

ROOT = Path(__file__).parents[1] / "vfl_flower"

FORMS = (
    *('CoresetVRLR(solver="central")', "CoresetVRLR()", "CoresetVKMC()"),
    *("FDSKL()", "FDSKLDirect()", "SecureRidge()", "FKKMeans()", "MUFC()"),
)

PATH = (
    *("strategies", "clients", "numerics", "models", "secure_aggregation"),
    "secure_aggregation/products",
)
SHARED = ("protocol", "party", "server")


class Definition(NamedTuple):
    """A unit of reading; the `lines` of a class exclude its methods."""

    path: str
    name: str
    span: range
    lines: int
    reply: str  # the return type of a function


@cache
def definitions(path: Path) -> list[Definition]:
    """Return the functions, classes and methods of a module."""
    kinds, made = (ast.FunctionDef, ast.ClassDef), []

    def visit(body: list[ast.stmt], prefix: str = "") -> None:
        for part in body:
            if not isinstance(part, kinds):
                continue
            first = min(node.lineno for node in (part, *part.decorator_list))
            span = range(first, (part.end_lineno or 0) + 1)
            lines, reply = len(span), ast.unparse(getattr(part, "returns", None) or [])
            if isinstance(part, ast.ClassDef):
                visit(part.body, f"{prefix}{part.name}.")
                fields = [field for field in part.body if not isinstance(field, kinds)]
                lines = part.body[0].lineno - first
                lines += sum(f.end_lineno - f.lineno + 1 for f in fields)
            name = str(path.relative_to(ROOT))
            made.append(Definition(name, prefix + part.name, span, lines, reply))

    visit(ast.parse(path.read_text()).body)
    return made


def entered(codes: set[CodeType], classes: set[type]) -> set[Definition]:
    """Return the definitions that were called, and the classes of created objects."""
    names: dict[Path, set[str]] = defaultdict(set)
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT) and code.co_name != "<module>":
            around = [d for d in definitions(path) if code.co_firstlineno in d.span]
            names[path].update(name for d in around for name in (d.name, d.reply))
    for kind in classes:
        path = Path(getattr(sys.modules[kind.__module__], "__file__", None) or "")
        if path.is_relative_to(ROOT):
            names[path].add(kind.__qualname__)
    return {d for path in names for d in definitions(path) if d.name in names[path]}


def read(form: str) -> set[Definition]:
    """Return the definitions that a small run enters, in a process without caches."""
    import vfl_flower.api as vf

    logging.disable()
    rng = np.random.default_rng(0)
    centres = rng.integers(3, size=(2100, 1)) / 4 - 0.25
    X = centres + rng.uniform(-0.2, 0.2, (2100, 9))
    labels = (X[:, 0] + X[:, 3] > rng.normal(0, 0.1, 2100)).astype(int)
    strategy = eval(form, vars(vf))
    if strategy.partition == "vertical":
        first, *others = np.split(X, 3, axis=1)
        parties = [*map(vf.Party, others), vf.Party(first, y=labels)]
    else:
        parties = [*map(vf.Party, np.split(X, 3))]
    codes: set[CodeType] = set()
    classes: set[type] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename != "<string>":
            codes.add(frame.f_code)
        elif event == "call" and "self" in frame.f_locals:  # a generated method
            classes.update(type(frame.f_locals["self"]).__mro__)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        vf.simulate(strategy, parties, seed=0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return entered(codes, classes)


def column(definition: Definition) -> str:
    """Return the column of the table to which a definition belongs."""
    folder = str(Path(definition.path).parent)
    columns = (*PATH[::-1], *SHARED)  # products before the folder around it
    return next((name for name in columns if folder.startswith(name)), "others")


def main() -> None:
    """Print the table and, with --list, the definitions of each form."""
    parser = argparse.ArgumentParser()
    parser.add_argument("forms", nargs="*", default=FORMS, help="calls of strategies")
    parser.add_argument("--list", action="store_true", help="print each definition")
    options = parser.parse_args()
    heads = (*(name.split("/")[-1][:10] for name in PATH), "path", *SHARED, "others")
    print(f"{'':34}", *(f"{head:>11}" for head in heads), sep="")
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for form, read_lines in zip(
            options.forms, pool.map(read, options.forms), strict=True
        ):
            totals: Counter[str] = Counter()
            for definition in read_lines:
                totals[column(definition)] += definition.lines
            counts = [totals[name] for name in PATH]
            counts += [sum(counts), *(totals[name] for name in (*SHARED, "others"))]
            print(f"{form:34}", *(f"{count:>11,}" for count in counts), sep="")
            for d in sorted(read_lines, key=lambda d: d[:2]) if options.list else ():
                print(f"  {d.lines:5} {ROOT.name}/{d.path}:{d.span[0]} {d.name}")


if __name__ == "__main__":
    main()
