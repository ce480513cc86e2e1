"""The server's side in Flower: run config -> strategy -> start -> report or plan."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from vfl_flower.app.commands.reports import remove_files
from vfl_flower.app.config import check_run_config, make_strategy, output_dir, run_keys
from vfl_flower.app.deployment.federation import DATABASE, HOME
from vfl_flower.app.plan.plan import dry_run
from vfl_flower.app.plan.progress import Reporter
from vfl_flower.app.report.report import write_page, write_report
from vfl_flower.protocol.names import printable
from vfl_flower.server.checkpoint import FILE, Checkpoint
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.strategy import ProtocolStrategy

log = logging.getLogger("vfl_flower")

app = ServerApp()

RESUME = "to resume this run:"
"""Text before the command that resumes a run."""


class RunEnded(FederationError):
    """A run cannot continue; the text states the reason in a sentence.

    The error has no traceback, because Flower would log it after the sentence, which
    would then not be the last line of the run's output.
    """

    __traceback__ = property(lambda error: None, lambda error, stack: None)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run and report, or plan, as the run config says; raise RunEnded on failure."""
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    try:
        execute(grid, context)
    except (FederationError, ValueError, OSError) as error:
        log.debug("the run ends", exc_info=True)
        text = printable(" ".join(str(error).split()))
        raise RunEnded(text or type(error).__name__) from None


def execute(grid: Grid, context: Context, more: Sequence[str] = ()) -> None:
    """Run as the run config specifies, with parties of any kind; see :func:`main`.

    `more` contains further words of the command that started the run. Raises
    FederationError, ValueError or OSError, which :func:`main` turns into a sentence.
    """
    config = check_run_config(context.run_config)
    strategies = make_strategies(config)
    results_in = output_dir(config)
    if config["dry-run"]:
        print(dry_run(grid, strategies, config["timeout"]), flush=True)
        return
    if config["task"] == "remove":
        (strategy,) = strategies.values()
        strategy.watched_by(Reporter()).start(grid, timeout=config["timeout"])
        for file in remove_files(config["model-id"], results_in):
            log.info("the server: %s was removed", file)
        return
    folder = run_folder(results_in, config["resume"], context.run_id)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # fails now, not after the run
    except OSError as error:
        raise ValueError(
            f"output-dir must be a writable folder, but {results_in} is not "
            f"({error.strerror}): choose a different folder"
        ) from None
    without_resume = config | {"resume": ""}
    results, text = {}, ""
    with checkpoint_of(folder, without_resume, strategies, more) as checkpoint:
        for name, strategy in strategies.items():
            results[name] = strategy.watched_by(Reporter()).start(
                grid, timeout=config["timeout"], checkpoint=checkpoint
            )
            again = command_of(without_resume, len(results[name].parties), more)
            text = write_report(folder, results, without_resume, again)
    print(f"{text}\nreport: {write_page(folder)}", flush=True)


def command_of(
    config: Mapping[str, Any],
    n_parties: int,
    more: Sequence[str] = (),
    federation: Path | None = None,
) -> str:
    """Return the command that repeats a run from its run config, or resumes it.

    `more` contains further options of a run on this machine, such as party files.
    `federation` is the coordinator's folder; default: this SuperLink's folder.
    """
    keys = run_keys()
    named = ["strategy", "task", "data"]
    named += ["resume", "output-dir"] * (not config["resume"])
    changed = {k: v for k, v in config.items() if v != keys[k].default}
    data = ["--data", str(config["data"])] if "data" in changed else []
    if data and not more:
        more = ["--parties", str(n_parties)]
    words = ["vfl-flower", "simulate" if more else "run", str(config["strategy"])]
    words += ["--task", str(config["task"])] if "task" in changed else []
    home = Path(os.environ.get("FLWR_HOME", ""))
    if federation is None and home.name == HOME and (home / DATABASE).exists():
        federation = home.parent
    words += [] if federation is None or more else ["--federation", str(federation)]
    words += [*data, *more]
    for key, value in changed.items():
        if key not in named:
            text = str(value).lower() if isinstance(value, bool) else value
            words += ["--set", f"{key}={text}"]
    return shlex.join(words)


@contextmanager
def checkpoint_of(
    folder: Path,
    config: dict[str, Any],
    strategies: dict[str, ProtocolStrategy],
    more: Sequence[str] = (),
) -> Iterator[Checkpoint]:
    """Keep a checkpoint until the run is complete; remove the folder if it is empty."""
    same = {k: v for k, v in config.items() if k not in ("timeout", "output-dir")}
    resumable = all(strategy.resumable for strategy in strategies.values())
    checkpoint = Checkpoint(folder / FILE if resumable else None, same)
    try:
        yield checkpoint
        checkpoint.remove()
    except BaseException:
        if checkpoint.held < 2:  # it holds ``hello`` at most
            checkpoint.remove()
            if not any(folder.iterdir()):
                folder.rmdir()
        else:
            checkpoint.end()
            n_parties = next(iter(strategies.values())).n_parties or 3
            again = command_of(config | {"resume": folder.name}, n_parties, more)
            log.error("%s %s", RESUME, again)
        raise


def run_folder(results_in: Path, resume: str, run_id: int) -> Path:
    """Return the folder of a run; raise ValueError if there is no run to resume."""
    if not resume:
        return results_in / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{run_id}"
    folder = results_in / resume
    if Path(resume).name != resume or not (folder / FILE).is_file():
        raise ValueError(
            "resume must be the name of an incomplete run's folder in output-dir, got "
            f"{resume!r}"
        )
    return folder


def make_strategies(config: dict[str, Any]) -> dict[str, ProtocolStrategy]:
    """Return a run config's strategies by variant; raise ValueError if none fits."""
    strategy = make_strategy(config)
    strategies = {strategy.variant: strategy}
    if config["compare"]:
        strategies |= strategy.baselines()
        if len(strategies) == 1:
            raise ValueError(
                f"compare must be false, since strategy {config['strategy']!r} has no "
                "baselines"
            )
    return strategies
