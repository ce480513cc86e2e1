"""The server's side on Flower: run config -> strategy -> start -> report."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from vfl_flower.config import check_run_config, output_dir, strategy_arguments
from vfl_flower.report import write_report
from vfl_flower.strategies import STRATEGIES
from vfl_flower.strategies.base import ProtocolStrategy
from vfl_flower.strategies.sampling import SAMPLINGS, CoresetStrategy

log = logging.getLogger("vfl_flower")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says, and report."""
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    config = check_run_config(context.run_config)
    strategies = make_strategies(config)
    started = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{context.run_id}"
    folder = output_dir(config) / started
    folder.mkdir(parents=True, exist_ok=True)  # fails now, not after the work
    results, text = {}, ""
    # Ids of rows to forget stay in no file.
    shown = config | ({"forget": "(not kept)"} if config["forget"] else {})
    try:
        for name, strategy in strategies.items():
            results[name] = strategy.start(grid, timeout=config["timeout"])
            text = write_report(folder, results, shown)
    finally:
        if not results:
            folder.rmdir()  # nothing was written
    print(text, flush=True)


def make_strategies(config: dict[str, Any]) -> dict[str, ProtocolStrategy]:
    """Return the strategies of a checked run config, by their sampling or task.

    Raises
    ------
    ValueError
        The strategy is unknown, or does not take a value.
    """
    if config["strategy"] not in STRATEGIES:
        raise ValueError(
            f"strategy must be one of {', '.join(STRATEGIES)}, got "
            f"{config['strategy']!r}"
        )
    tasks = STRATEGIES[config["strategy"]]
    if config["task"] not in tasks:
        raise ValueError(
            f"task must be one of {', '.join(tasks)} for strategy "
            f"{config['strategy']!r}, got {config['task']!r}"
        )
    strategy = tasks[config["task"]]
    arguments = strategy_arguments(config, strategy)
    samples = issubclass(strategy, CoresetStrategy)
    if not config["compare"]:
        return {config["sampling" if samples else "task"]: strategy(**arguments)}
    if not samples:
        raise ValueError(
            "compare compares samplings of coresets, and must be false for strategy "
            f"{config['strategy']!r}"
        )
    samplings = dict.fromkeys([config["sampling"], *SAMPLINGS])
    return {
        name: strategy(
            **arguments
            | {"sampling": name}
            | ({} if name == "coreset" else {"check_size": 0})
        )
        for name in samplings
    }
