"""What no log of a federation may have."""

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd


def nothing_leaks(
    logs: Mapping[str, str],
    private: Mapping[str, str],
    keys: set[str],
    data: pd.DataFrame,
) -> None:
    """Look for values, ids (the index) and keys in the logs, which have their names.

    A text that is `private` to a log must not be in another one, but for that of the
    coordinator, whose owner types all commands of the tests.
    """
    ids = set(map(str, data.index))
    numbers = data.select_dtypes("float").to_numpy().ravel()
    # Shorter ones stand in sizes and times too.
    values = {f"{v!r}" for v in numbers.tolist() if len(f"{v!r}") > 6}
    for log, text in logs.items():
        words = set(re.split(r"[\s,;:=()\[\]'\"]+", text))
        assert not words & (ids | values), log
        assert not [key for key in keys if key in text], log
        others = {path for path, owner in private.items() if owner != log}
        assert log == "coordinator" or not [p for p in others if p in text], log


def key_texts(*files: Path) -> set[str]:
    """Return a piece of each private key, and look that there are as many."""
    texts = {path.read_text().split("-----")[2].strip()[-40:] for path in files}
    assert len(texts) == len(files) > 0
    return texts
