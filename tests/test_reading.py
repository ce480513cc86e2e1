"""The count of lines to read enters what a run calls, each definition once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.second
def test_a_count_has_what_a_run_enters_and_nothing_else():
    form = 'CoresetVRLR(solver="central")'
    command = [sys.executable, "benchmarks/reading.py", form, "--list"]
    printed = subprocess.check_output(command, text=True, cwd=ROOT)
    head, total, *listed = printed.splitlines()
    names = {line.split()[-1] for line in listed}
    methods = {"CoresetVRLR", "CoresetVRLR.protocol", "CoresetStrategy", "scores"}
    assert methods | {"Scores", "vrlr_sensitivities"} <= names
    assert not {"CoresetVKMC", "vkmc_sensitivities"} & names
    assert len(set(listed)) == len(listed)
    counts = [int(n.replace(",", "")) for n in total.removeprefix(form).split()]
    assert counts[6] == sum(counts[:6])
    assert sum(counts[6:]) == sum(int(line.split()[0]) for line in listed)
    assert len(head.split()) == len(counts)
    (place,) = (line for line in listed if line.endswith(" CoresetVRLR.protocol"))
    lines, path, first = re.fullmatch(r" *(\d+) (.*):(\d+) .*", place).groups()
    source = (ROOT / path).read_text().splitlines()[int(first) - 1 :][: int(lines)]
    assert "def protocol" in source[0]
    assert "return" in source[-1]
