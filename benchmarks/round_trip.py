"""Time a round trip on one SuperLink with three SuperNodes, and the ClientApp's import.

Flower's ``send_and_receive`` and the exchange of this package take turns in one run,
on loopback, with empty messages::

    python benchmarks/round_trip.py --repeats 8

The rest of a round trip is Flower's: an idle SuperNode asks for work every 3 s, its
executor every 1 s, and each message starts a process that imports the ClientApp.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from vfl_flower.app.flower_run import (
    Processes,
    start_superlink,
    start_supernodes,
    submit,
)

APP = Path(__file__).parent / "round_trip_app"


def round_trips(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each round trip by kind."""
    with Processes() as processes:
        port = start_superlink(processes)
        nodes = [f"partition-id={index} num-partitions=3" for index in range(3)]
        start_supernodes(processes, port, nodes)
        outcome = submit(processes, APP, run_config={"repeats": str(repeats)})
    line = re.search(r"^ROUND_TRIP (.*)$", outcome.output, re.MULTILINE)
    assert line is not None
    times: dict[str, list[float]] = json.loads(line[1])
    return times


def import_times(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each import in a fresh process, in turn, by module."""
    times: dict[str, list[float]] = {
        "flwr.clientapp": [],
        "vfl_flower.app.client_app": [],
    }
    for _ in range(repeats):
        for module, seconds in times.items():
            code = (
                "from time import perf_counter; start = perf_counter(); "
                f"import {module}; print(perf_counter() - start)"
            )
            out = subprocess.check_output([sys.executable, "-c", code], text=True)
            seconds.append(float(out))
    return times


def show(title: str, times: dict[str, list[float]]) -> None:
    """Print the median and range of each kind and the ratio of the medians."""
    print(f"\n{title}")
    for kind, seconds in times.items():
        low, high = min(seconds), max(seconds)
        print(
            f"  {kind:24} median {median(seconds):6.3f} s of {len(seconds)}"
            f"  (from {low:.3f} to {high:.3f})"
        )
    first, second = (median(seconds) for seconds in times.values())
    print(f"  {'ratio':24} {second / first:13.3f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8)
    repeats = parser.parse_args().repeats
    trips = round_trips(repeats)
    imports = import_times(repeats)
    show("Round trip of an empty message, three SuperNodes on loopback", trips)
    show("Import of the ClientApp in a fresh process", imports)


if __name__ == "__main__":
    main()
