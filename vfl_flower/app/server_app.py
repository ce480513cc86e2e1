"""The server's side on Flower: run config -> strategy -> start -> report, or a plan."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from vfl_flower.app.config import (
    check_run_config,
    make_strategy,
    output_dir,
    without_secrets,
)
from vfl_flower.app.plan import dry_run
from vfl_flower.app.report import write_report
from vfl_flower.protocol.strategy import ProtocolStrategy

log = logging.getLogger("vfl_flower")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says, and report; or with ``dry-run`` print a plan."""
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    config = check_run_config(context.run_config)
    strategies = make_strategies(config)
    results_in = output_dir(config)
    if config["dry-run"]:
        print(dry_run(grid, strategies, config["timeout"]), flush=True)
        return
    started = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{context.run_id}"
    folder = results_in / started
    folder.mkdir(parents=True, exist_ok=True)  # fails now, not after the work
    results, text = {}, ""
    try:
        for name, strategy in strategies.items():
            results[name] = strategy.start(grid, timeout=config["timeout"])
            text = write_report(folder, results, without_secrets(config))
    finally:
        if not results:
            folder.rmdir()  # nothing was written
    print(text, flush=True)


def make_strategies(config: dict[str, Any]) -> dict[str, ProtocolStrategy]:
    """Return the strategies of a checked run config, by what the report calls them.

    Raises
    ------
    ValueError
        The strategy is unknown, does not take a value, or has nothing to compare with.
    """
    strategy = make_strategy(config)
    strategies = {strategy.variant: strategy}
    if config["compare"]:
        strategies |= strategy.baselines()
        if len(strategies) == 1:
            raise ValueError(
                "compare must be false, since there is nothing that strategy "
                f"{config['strategy']!r} is compared with"
            )
    return strategies
