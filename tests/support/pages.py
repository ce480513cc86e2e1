"""The pages of the documentation, and the code and commands in them."""

import re
import shlex
import textwrap
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md"))]
}
"""Every document by its path."""


def examples(page: str, heading: str = "") -> list[str]:
    """Return the Python code of a page, or of one section of it."""
    text = PAGES[page].split(f"\n{heading}\n", 1)[1] if heading else PAGES[page]
    text = text.split("\n## ", 1)[0] if heading else text
    fenced = re.findall(r"(?ms)^( *)```python\n(.*?)^\1```", text)
    return [textwrap.dedent(code) for _, code in fenced]


def commands(program: str) -> dict[str, list[str]]:
    """Return the words of each command of a program, by page and place."""
    actual = {}
    for page, text in PAGES.items():
        joined = re.sub(r"\\\n *", "", text)
        for k, line in enumerate(re.findall(rf"(?m)^ {{4,}}({program} .*)$", joined)):
            actual[f"{page}-{k}"] = shlex.split(line.partition(" > ")[0], comments=True)
    return actual


def options(words: list[str], option: str) -> list[str]:
    """Return the values that a command gives for an option."""
    return [value for name, value in pairwise(words) if name == option]
