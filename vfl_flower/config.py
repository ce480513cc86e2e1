"""The only reader of run config and node config."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UserConfig = Mapping[str, bool | int | float | str]

RUN_DEFAULTS: dict[str, bool | int | float | str] = {
    "strategy": "coreset-vrlr",
    "task": "train",
    "model": "",
    "compare": False,
    "output-dir": "",
    "timeout": 3600.0,
    "seed": -1,
    "n-parties": 0,
    "data": "diabetes",
    "id-column": "",
    "label-column": "",
    "columns": "",
    "standardize": False,
    "one-hot": True,
    "impute": "mean",
    "size": 200,
    "sampling": "coreset",
    "protocol": "fused",
    "solver": "",
    "test-fraction": 0.2,
    "evaluate": "coreset",
    "check-size": 0,
    "allow-two-parties": False,
    "regularizer": "none",
    "alpha": 0.0,
    "l1-ratio": 0.5,
    "fit-intercept": True,
    "max-iter": 200,
    "tol": 1e-6,
    "batch-size": 32,
    "n-clusters": 10,
    "local-clustering": "lloyd",
    "approximation": 2.0,
    "n-init": 0,
    "target": "binary",
    "loss": "logistic",
    "kernel": "gaussian",
    "bandwidth": "median",
    "regularization": "auto",
    "budget": 64_000_000,
    "rows": 0,
    "features": 0,
    "bits": 16,
    "block-bytes": 16_000_000,
    "topology": "star",
    "iterations": 0,
    "block": 64,
    "step": 1.0,
    "schedule": "constant",
    "partition": "",
    "n-components": 20,
    "n-features": 50,
    "gamma": "auto",
    "eigensolver": "gram",
    "threshold": "auto",
    "subspace-tol": 0.01,
    "coreset-size": 1000,
    "degree": 3,
    "offset": 1.0,
    "cem": True,
    "block-size": 8,
    "allow-missing": False,
    "local-clusters": 0,
    "server-points": "uniform",
    "client-training": "init",
    "privacy": "scma",
    "box": "-0.5,0.5",
    "field": "hash",
    "server-state": "",
    "forget": "",
    "lazy-counts": False,
    "clients": "",
}
"""Every key of the run config with its default, as in ``pyproject.toml``."""

_OR_NUMBER = frozenset({"bandwidth", "regularization", "gamma", "threshold"})
"""Keys whose default is a word, and which take a number in its place."""

_OWN = {"solver": "", "partition": "", "iterations": 0, "n_init": 0}
"""Defaults that stand for the strategy's own."""

_SPLIT_ROWS = frozenset({"fk-kmeans", "mufc"})
"""Strategies whose parties hold other rows, unless ``partition`` says otherwise."""

_GENERAL = frozenset(
    {"strategy", "task", "compare", "output-dir", "timeout", "seed", "n-parties"}
    | {"data", "id-column", "label-column", "columns"}
    | {"standardize", "one-hot", "impute"}
)


@dataclass(frozen=True, kw_only=True)
class PartySource:
    """Where the data of one party come from, and how they are read.

    On a SuperNode each field is a key of ``--node-config`` (with dashes); in a
    simulation, where nodes have a partition id and nothing else, the run config gives
    the same to all.

    Attributes
    ----------
    data : str
        A bundled data set (``diabetes``), a generated one (``synthetic`` or
        ``synthetic:n=..,d=..``), the absolute path of a party file (CSV, Parquet,
        Feather/Arrow IPC, NPZ), or the absolute path of a folder that holds one party
        file for each party, taken in natural order of their names: the digits are read
        as numbers, so ``2_y.csv`` comes before ``10_x.csv``.
    index : int or None
        ``partition-id``: the party's place in the order of the run.
    count : int or None
        ``num-partitions``: how many parties share a bundled data set or a folder.
    name : str or None
        ``party-name``; default: the name of the file without its ending.
    id_column : str or None
        ``id-column``: taken out of the features, compared by digest.
    label_column : str or None
        ``label-column``: the labels; in a folder, the one file that has it.
    columns : tuple of str or None
        ``columns``: comma-separated feature columns to use; default all others.
    standardize : bool
        Scale each feature to mean 0 and standard deviation 1, at the party.
    one_hot : bool
        Encode text columns as 0/1 columns; without it a text column is an error.
    impute : str
        ``mean`` or ``median`` of the column for missing values; ``none``: an error.
    share_rows : int or None
        ``share-rows``: how many rows leave the party in one run at most, in the clear
        or as angles.
    state_dir : Path or None
        ``state-dir``: absolute folder in which the party keeps its parts of models.
    rows : bool
        A bundled or generated data set is split by rows, not by columns: party j has
        each ``count``-th row from row j.
    """

    data: str
    index: int | None = None
    count: int | None = None
    name: str | None = None
    id_column: str | None = None
    label_column: str | None = None
    columns: tuple[str, ...] | None = None
    standardize: bool = False
    one_hot: bool = True
    impute: str = "mean"
    share_rows: int | None = None
    state_dir: Path | None = None
    rows: bool = False


_DATA_KEYS = frozenset(
    {"id-column", "label-column", "columns", "standardize", "one-hot", "impute"}
)
_NODE_KEYS = _DATA_KEYS | {
    "data",
    "partition-id",
    "num-partitions",
    "party-name",
    "share-rows",
    "state-dir",
}


def check_run_config(run_config: UserConfig) -> dict[str, Any]:
    """Return the run config with defaults filled in.

    Raises
    ------
    ValueError
        A key is unknown, or a value is not of the type of its default.
    """
    for key, value in run_config.items():
        if key not in RUN_DEFAULTS:
            near = difflib.get_close_matches(key, RUN_DEFAULTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"run config has no key {key!r}{hint}")
        if key in _OR_NUMBER and type(value) in (int, float):
            continue
        wanted = type(RUN_DEFAULTS[key])
        if type(value) is not wanted and (type(value), wanted) != (int, float):
            it = "it" if key == "forget" else f'"{value}"'
            hint = f", write {it} in double quotes" if wanted is str else ""
            raise ValueError(
                f"run config {key!r} must be of type {wanted.__name__}, got "
                f"{_shown(key, value)}{hint}"
            )
    return RUN_DEFAULTS | dict(run_config)


def strategy_arguments(config: Mapping[str, Any], strategy: type) -> dict[str, Any]:
    """Return what the constructor of `strategy` takes from a checked run config.

    Raises
    ------
    ValueError
        A key that only another strategy takes was changed: it would be ignored.
    """
    parameters = inspect.signature(strategy).parameters
    for key, value in config.items():
        name = key.replace("-", "_")
        if (
            key not in _GENERAL
            and name not in parameters
            and value != RUN_DEFAULTS[key]
        ):
            hint = "; it needs another task" if key == "model" else ""
            raise ValueError(
                f"run config {key!r} does not apply to strategy "
                f"{config['strategy']!r}, got {_shown(key, value)}{hint}"
            )
    if config["seed"] != -1 and "seed" not in parameters:
        raise ValueError(
            f"seed must be -1 for task {config['task']!r}, which draws nothing, got "
            f"{config['seed']}"
        )
    if rows_split(config) and config["standardize"] and "standardize" not in parameters:
        raise ValueError(
            "standardize must be false for strategy "
            f"{config['strategy']!r}, whose box says the scale of columns"
        )
    known = {key.replace("-", "_"): value for key, value in config.items()}
    if "server_state" in parameters and not known["server_state"]:
        known["server_state"] = str(output_dir(config) / "state")
    known["seed"] = None if known["seed"] == -1 else known["seed"]
    known["standardize"] &= rows_split(config)  # of whole columns by the parties
    return {
        name: known[name]
        for name in parameters
        if name in known and not (name in _OWN and known[name] == _OWN[name])
    }


def _shown(key: str, value: object) -> str:
    """Return a value as an error may have it: ids to forget stay in no log."""
    return type(value).__name__ if key == "forget" else repr(value)


def rows_split(run_config: UserConfig) -> bool:
    """Return whether the parties of a run hold other rows of the same columns."""
    partition = run_config.get("partition", "")
    if partition == "":
        return run_config.get("strategy") in _SPLIT_ROWS
    return partition == "horizontal"


def party_source(node_config: UserConfig, run_config: UserConfig) -> PartySource:
    """Return where a node's data come from.

    A node whose config has ``data`` decides for itself; what the run config says of
    data is for simulated nodes and those without.

    Raises
    ------
    ValueError
        A value is not of the type that its key takes, a key is nearly one of ours, or
        the node says how to read its data and not where they are.
    """
    for key in node_config:
        near = difflib.get_close_matches(key.lower(), _NODE_KEYS, n=1, cutoff=0.8)
        if near and key not in _NODE_KEYS:
            raise ValueError(
                f"node config has no key {key!r}; did you mean {near[0]!r}?"
            )
        if key in _DATA_KEYS and "data" not in node_config:
            raise ValueError(f"node config has {key!r} and must then have 'data'")
    chosen = node_config if "data" in node_config else RUN_DEFAULTS | dict(run_config)

    def text(config: UserConfig, key: str) -> str | None:
        value = config.get(key, "")
        return str(value) if value != "" else None

    def flag(key: str) -> bool:
        value = chosen.get(key, RUN_DEFAULTS[key])
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false, got {value!r}")
        return value

    def number(key: str) -> int | None:
        value = node_config.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(f"{key} must be a whole number from 0, got {value!r}")
        return value

    state_dir = text(node_config, "state-dir")
    if state_dir and not Path(state_dir).is_absolute():
        raise ValueError("state-dir must be an absolute path")
    columns = text(chosen, "columns")
    rows, standardize = rows_split(run_config), flag("standardize")
    if rows and standardize and chosen is node_config:
        raise ValueError(
            "standardize must be in the run config where rows are split: a party knows "
            "mean and deviation of its own rows alone"
        )
    # What is made of all rows of a party would remember those that it must forget.
    forgets = run_config.get("strategy") == "mufc"
    return PartySource(
        data=str(chosen["data"]),
        index=number("partition-id"),
        count=number("num-partitions"),
        name=text(node_config, "party-name"),
        id_column=text(chosen, "id-column"),
        label_column=text(chosen, "label-column"),
        columns=tuple(map(str.strip, columns.split(","))) if columns else None,
        standardize=standardize and not rows,
        one_hot=flag("one-hot") and not forgets,
        impute="none" if forgets else text(chosen, "impute") or "mean",
        share_rows=number("share-rows"),
        state_dir=Path(state_dir) if state_dir else None,
        rows=rows,
    )


def output_dir(config: Mapping[str, Any]) -> Path:
    """Return the absolute folder for the results of runs.

    Raises
    ------
    ValueError
        ``output-dir`` is relative: the server's working directory is not the user's.
    """
    from platformdirs import user_data_path

    if not config["output-dir"]:
        return user_data_path("vfl_flower") / "runs"
    folder = Path(config["output-dir"]).expanduser()
    if not folder.is_absolute():
        raise ValueError(f"output-dir must be absolute, got {config['output-dir']!r}")
    return folder
