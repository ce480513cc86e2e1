"""Change one operator, bound or statement at a time, and see whether a test fails.

    python benchmarks/mutants.py --count 60 --seed 0
    python benchmarks/mutants.py --only vfl_flower/numerics/mufc.py --count 10

The draw is even over the folders, and over the files of each. A mutant dies in the test
files that mirror its module: those named after it or its folder, or else all those of
the tests' folder of the same name. They run once on the unchanged code, where all pass.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = ("numerics", "secure_aggregation", "party", "clients", "strategies")
SWAPS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Add},
}


def mutants(tree: ast.Module) -> Iterator[tuple[Any, Any]]:
    """Yield nodes of a module with what takes their place; no text, no annotation."""
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
    """Return the text of a module with another node in the place of one."""
    source = text.encode()
    ends = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    start = ends[node.lineno - 1] + node.col_offset
    stop = ends[node.end_lineno - 1] + node.end_col_offset
    code = ast.unparse(new)
    code = code if isinstance(new, ast.Pass | ast.Constant) else f"({code})"
    return (source[:start] + code.encode() + source[stop:]).decode()


def files_of(place: Path) -> list[Path]:
    """Return the modules of a folder, or the one at a path, that have mutants."""
    place = ROOT / place
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [
        file.relative_to(ROOT)
        for file in files
        if next(mutants(ast.parse(file.read_text())), None)
    ]


def mirrors(module: Path) -> list[str]:
    """Return the test files that mirror a module, or the folder that has them."""
    layer, *folder = module.parent.relative_to("vfl_flower").parts
    tests = Path("tests", layer)
    same = tests.joinpath(*folder)
    for place, stem in ((same, module.stem), (tests, [*folder, module.stem][0])):
        if files := sorted((ROOT / place).glob(f"test_{stem}*.py")):
            return [str(file.relative_to(ROOT)) for file in files]
    return [str(same if (ROOT / same).is_dir() else tests)]


def killer_of(module: Path, copied: Path, timeout: float) -> str:
    """Run the tests of a module in a copy; return which one has failed, or ""."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "--tb=no", *mirrors(module)]
    try:
        done = subprocess.run(
            command,
            cwd=copied,
            env=os.environ | {"PYTHONPATH": str(copied)},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"more than {timeout:g} seconds"
    if done.returncode not in (0, 1, 2, 4):  # 4: where conftest cannot be imported
        sys.exit(f"no tests of {module}: {done.stdout}{done.stderr}")
    names = re.findall(r"(?:FAILED|ERROR) (\S+)", done.stdout)
    return names[0] if names else "collection" * bool(done.returncode)


def main() -> None:
    """Draw mutants, run the tests of each, and print what has killed it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=Path, help="a module or a folder of modules")
    parser.add_argument("--timeout", type=float, default=600)
    options = parser.parse_args()
    rng, alive, passed = random.Random(options.seed), 0, set[tuple[str, ...]]()
    only = [options.only] if options.only else []
    places = [files_of(p) for p in only or [Path("vfl_flower", f) for f in FOLDERS]]
    if not all(places):
        sys.exit(f"{options.only} has nothing to change")
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".git", ".venv", ".*cache", "__pycache__")
        shutil.copytree(ROOT, copied, ignore=ignored)
        for k in range(options.count):
            module = rng.choice(places[k % len(places)])
            text = (ROOT / module).read_text()
            if (tests := tuple(mirrors(module))) not in passed:
                if killer := killer_of(module, copied, options.timeout):
                    sys.exit(f"{killer} fails on the unchanged code")
                passed.add(tests)
            node, new = rng.choice(list(mutants(ast.parse(text))))
            (copied / module).write_text(mutated(text, node, new))
            killer = killer_of(module, copied, options.timeout)
            (copied / module).write_text(text)
            alive += not killer
            change = f"{ast.unparse(node)[:60]} -> {ast.unparse(new)[:60]}"
            print(f"{module}:{node.lineno}: {change}: {killer or 'ALIVE'}", flush=True)
    print(f"{options.count - alive} of {options.count} mutants died")
    sys.exit(alive > 0)


if __name__ == "__main__":
    main()
