"""CPU seconds of the tests by folder: ``pytest --cpu``, or ``make test-times``.

They include the processes that a test has waited for.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

_NAME = "CPU seconds"


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


class CpuTimes:
    """Measure each test in its process, and add the tests up in the reporting one."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Add the time of the whole test to its last report."""
        item.stash[START] = _cpu()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_NAME, _cpu() - item.stash[START]))
        return report

    def pytest_terminal_summary(self, terminalreporter):
        """Print the folders, the costliest first."""
        folders: dict[str, list[float]] = defaultdict(list)
        for reports in terminalreporter.stats.values():
            for report in reports:
                for name, seconds in getattr(report, "user_properties", ()):
                    if name == _NAME and report.when == "teardown":
                        folder = Path(report.nodeid.partition("::")[0]).parent
                        folders[str(folder)].append(seconds)
        terminalreporter.section(f"{_NAME} by folder")
        rows = sorted(folders.items(), key=lambda row: -sum(row[1]))
        everything = [second for _, seconds in rows for second in seconds]
        for folder, seconds in [*rows, ("all", everything)]:
            terminalreporter.line(
                f"{folder:44}{len(seconds):8,} tests{sum(seconds):9.1f} s"
            )


START = pytest.StashKey[float]()
