"""Lines, and lines of code, by folder, as a measure of the reading.

Lines of code are those without blanks, comments and docstrings.
"""

import ast
import io
import subprocess
import tokenize
from collections import defaultdict
from pathlib import Path

_SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Return the number of lines of code of a module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):  # docstrings, also of fields
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def main() -> None:
    """Print a table of the files that git knows, two folders deep in the package."""
    found = subprocess.check_output(["git", "ls-files", "*.py"], text=True).split()
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path in filter(Path.exists, map(Path, found)):
        text = path.read_text()
        top, *rest = path.parts
        names = [top]
        if top == "vfl_flower":
            names.append(f"{top}/{rest[0]}" if len(rest) > 1 else f"{top}/*.py")
        for name in names:
            for place, more in enumerate((1, text.count("\n"), code_lines(text))):
                totals[name][place] += more
    print(f"{'':32}{'files':>8}{'lines':>8}{'code':>8}")
    for name, (files, lines, code) in sorted(totals.items()):
        print(f"{name:32}{files:>8,}{lines:>8,}{code:>8,}")


if __name__ == "__main__":
    main()
