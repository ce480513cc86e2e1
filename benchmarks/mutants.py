"""Change one operator, bound or statement at a time, and see whether a test fails.

    python benchmarks/mutants.py --count 60 --seed 0
    python benchmarks/mutants.py --only vfl_flower/numerics/mufc.py --count 10

The draw is even over the folders, and over the files of each folder. A mutant must die
in the test files that mirror its module: the files named after the module or its
algorithm in the tests' folder of the same name, or else all files of that folder. Both
ends of an algorithm share the files in tests/clients and tests/strategies. The tests
run once on the unchanged code, where all must pass, and then for each mutant, the
fastest first, until one test fails.
"""

from __future__ import annotations

import argparse
import ast
import copy
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("numerics", "secure_aggregation", "party", "clients", "strategies")
ENDS = ("clients", "strategies")
TIMES = Path("seconds.json")
"""The seconds of each test, in the folder where the tests run."""

SWAPS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Add},
}


def mutants(tree: ast.Module) -> Iterator[tuple[Any, Any]]:
    """Yield nodes of a module with their replacements; no text, no annotation."""
    silent = (ast.JoinedStr, ast.arguments, ast.Import, ast.ImportFrom, ast.AnnAssign)
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        new: Any = copy.deepcopy(node)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            new.ops[0] = SWAPS[type(node.ops[0])]()
            yield node, new
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            new.op = SWAPS[type(node.op)]()
            yield node, new
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield node, node.operand
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, ast.Constant(node.value + 1)
        elif isinstance(node, ast.Raise) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield node, ast.Pass()
        if not isinstance(node, (*silent, ast.Raise)):
            returns = getattr(node, "returns", None)
            waiting += [c for c in ast.iter_child_nodes(node) if c is not returns]


def mutated(text: str, node: Any, new: Any) -> str:
    """Return the text of a module with one node replaced."""
    source = text.encode()
    ends = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    start = ends[node.lineno - 1] + node.col_offset
    stop = ends[node.end_lineno - 1] + node.end_col_offset
    code = ast.unparse(new)
    code = code if isinstance(new, ast.Pass | ast.Constant) else f"({code})"
    return (source[:start] + code.encode() + source[stop:]).decode()


def files_of(place: Path) -> list[Path]:
    """Return the modules in a folder, or the module at a path, that have mutants."""
    place = ROOT / place
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [
        file.relative_to(ROOT)
        for file in files
        if next(mutants(ast.parse(file.read_text())), None)
    ]


def mirrors(module: Path) -> list[str]:
    """Return the test files that mirror a module, or else their folder."""
    layer, *algorithm = module.parent.relative_to("vfl_flower").parts
    stems = [module.stem.strip("_"), *(name.removesuffix("s") for name in algorithm)]
    files = {
        str(file.relative_to(ROOT))
        for place in (ENDS if layer in ENDS else [layer])
        for stem in stems
        for file in ROOT.joinpath("tests", place).rglob(f"test_{stem}*.py")
    }
    return sorted(files) or [str(Path("tests", layer, *algorithm))]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """As a plugin of pytest, record the duration of each test in the first run."""
    seconds = Counter[str]()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
    if not TIMES.exists():
        TIMES.write_text(json.dumps(seconds))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin of pytest, run the fastest files first, and their fastest tests."""
    seconds = Counter(json.loads(TIMES.read_text()) if TIMES.exists() else {})
    files = Counter[str]()
    for item in items:
        files[str(item.path)] += seconds[item.nodeid]
    items.sort(key=lambda i: (files[str(i.path)], str(i.path), seconds[i.nodeid]))


def failed(tests: Iterable[str], copied: Path, timeout: float, *options: str) -> str:
    """Run tests in a copy; return the first failed test, or ""."""
    command = [sys.executable, "-B", "-m", "pytest", "--tb=no", "-p", "mutants"]
    try:
        done = subprocess.run(
            [*command, *options, *tests],
            cwd=copied,
            env=os.environ | {"PYTHONPATH": f"{copied}:{copied / 'benchmarks'}"},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"more than {timeout:.0f} seconds"
    if done.returncode not in (0, 1, 2, 4):  # 4: conftest cannot be imported
        sys.exit(f"no tests in {tests}: {done.stdout}{done.stderr}")
    names = re.findall(r"(?:FAILED|ERROR) (\S+)", done.stdout)
    return names[0] if names else "collection" * bool(done.returncode)


def main() -> None:
    """Draw mutants, run the tests of each, and print the test that killed it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=Path, help="a module or a folder of modules")
    parser.add_argument(
        "--timeout", type=float, default=120, help="seconds beyond 4 times the usual"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    rng, copies = random.Random(options.seed), SimpleQueue[Path]()
    only = [options.only] if options.only else []
    places = [files_of(p) for p in only or [Path("vfl_flower", f) for f in FOLDERS]]
    if not all(places):
        sys.exit(f"{options.only} has nothing to change")
    drawn = []
    for k in range(options.count):
        module = rng.choice(places[k % len(places)])
        tree = ast.parse((ROOT / module).read_text())
        drawn.append((module, *rng.choice(list(mutants(tree)))))

    def killer_of(module: Path, node: Any, new: Any) -> str:
        copied = copies.get()
        text = (ROOT / module).read_text()
        (copied / module).write_text(mutated(text, node, new))
        tests = mirrors(module)
        usual = sum(s for test, s in seconds.items() if test.startswith(tuple(tests)))
        killer = failed(tests, copied, options.timeout + 4 * usual, "-x")
        (copied / module).write_text(text)
        copies.put(copied)
        return killer

    with tempfile.TemporaryDirectory() as folder:
        first, alive = Path(folder, "0"), 0
        ignored = shutil.ignore_patterns(".git", ".venv", ".*cache", "__pycache__")
        shutil.copytree(ROOT, first, ignore=ignored)
        tests = {test for module, _, _ in drawn for test in mirrors(module)}
        if name := failed(tests, first, 3600, "-n", str(options.jobs)):
            sys.exit(f"{name} fails on the unchanged code")
        seconds: dict[str, float] = json.loads((first / TIMES).read_text())
        copies.put(first)
        for j in range(1, options.jobs):
            copies.put(shutil.copytree(first, Path(folder, str(j))))
        with ThreadPoolExecutor(options.jobs) as pool:
            killers = pool.map(killer_of, *zip(*drawn, strict=True))
            for (module, node, new), killer in zip(drawn, killers, strict=True):
                alive += not killer
                change = f"{ast.unparse(node)[:60]} -> {ast.unparse(new)[:60]}"
                print(
                    f"{module}:{node.lineno}: {change}: {killer or 'ALIVE'}", flush=True
                )
    print(f"{options.count - alive} of {options.count} mutants died")
    sys.exit(alive > 0)


if __name__ == "__main__":
    main()
