"""The only module that reads run configs and node configs.

The common keys of a run config are the settings of :class:`RunSettings` and
:class:`~vfl_flower.data.options.FileOptions`. Each algorithm also has a section, with
the settings that its strategies declare, such as ``example.size``.
"""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from vfl_flower.data.levels import parse_levels
from vfl_flower.data.options import FileOptions
from vfl_flower.data.source import QUERY, PartySource
from vfl_flower.protocol.names import did_you_mean
from vfl_flower.protocol.settings import Count, Positive, Setting, settings, settings_of
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.strategies import ALGORITHMS, algorithms

UserConfig = Mapping[str, bool | int | float | str]


@settings
class RunSettings:
    """Settings of every run config, whatever the strategy."""

    strategy: str = next(iter(ALGORITHMS))
    """Name of the algorithm and of its section."""
    task: str = "train"
    """"train", or a task on a trained model."""
    model_id: str = ""
    """Id of the trained model, printed by the run that trained it."""
    compare: bool = False
    """Also run the baselines of the strategy."""
    dry_run: bool = False
    """Send only the message `hello`; print the costs, and who would learn which
    values."""
    alignment: str = ""
    """Name of the row order (from "align") that the parties use."""
    output_dir: str = ""
    """Absolute path of the results folder; default: vfl_flower/runs in the data folder
    of the SuperLink's account."""
    timeout: Positive = 3600.0
    """Seconds allowed for each round trip, and for parties to connect."""
    resume: str = ""
    """Folder (in output-dir) of the failed run to resume; only the timeout may be
    changed."""
    seed: Annotated[int, Ge(-1)] = -1
    """Seed for experiments, 0 or more: runs with equal settings then give the same
    model, up to rounding. With -1, each party draws its random numbers in private."""
    n_parties: Count = 0
    """Number of parties to wait for; 0 means all connected parties, but at least
    two."""
    data: str = "diabetes"
    """Data for parties whose node config names no data: a bundled data set,
    "synthetic:n=10000,d=30", or an absolute path."""


_COMMON = (RunSettings, FileOptions)
"""Classes that declare the keys of a run config outside its sections."""

_SAID = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
"""Names of types in errors."""

_OF_THE_RUN = frozenset({"alignment", "model_id", "n_parties", "seed"})
"""Settings of strategies that are common keys of a run config."""

_NOT_IN_SECTIONS = _OF_THE_RUN | {"masking", "angle_masking"}
"""Settings that no section has: those in `_OF_THE_RUN`, and the masking settings, which
apply only to runs in one process, since parties in other runs insist on masks."""

_NODE_KEYS = frozenset(setting.key for setting in settings_of(FileOptions))
"""Keys of the run config that a node config with ``data`` may also have."""

_NODE_ONLY = frozenset(
    {"data", "data-path", "partition-id", "num-partitions", "party-name"}
    | {"alignment", "consent", "state-dir"}
)


@dataclass(frozen=True)
class Key:
    """One key of the run config."""

    name: str
    """For example ``seed``, or ``example.size`` in a section."""
    section: str
    """Name of the algorithm, or "" for a common key."""
    setting: Setting
    default: bool | int | float | str
    """The key's value if the run config does not set it."""


def run_keys() -> dict[str, Key]:
    """Return all keys of the run config: the common keys, then each section's keys."""
    sections: dict[str, tuple[type, ...]] = {"": _COMMON, **algorithms()}
    keys: dict[str, Key] = {}
    for section, kinds in sections.items():
        for setting in chain.from_iterable(map(settings_of, kinds)):
            default = setting.in_run_config
            if default is None or (section and setting.name in _NOT_IN_SECTIONS):
                continue
            name = f"{section}.{setting.key}".removeprefix(".")
            keys.setdefault(name, Key(name, section, setting, default))
    return keys


def check_run_config(run_config: UserConfig) -> dict[str, Any]:
    """Return a run config with its defaults; raise ValueError for an invalid entry."""
    keys = run_keys()
    for name, value in run_config.items():
        if name not in keys:
            hint = did_you_mean(name, list(keys))
            raise ValueError(f"run config has no key {name!r}{hint}")
        kinds = keys[name].setting.kinds
        if type(value) in kinds or (type(value) is int and float in kinds):
            continue
        wanted = " or ".join(_SAID[kind] for kind in kinds)
        hint = "; write it in double quotes" if str in kinds else ""
        raise ValueError(f"run config {name!r} must be {wanted}, got {value!r}{hint}")
    defaults: dict[str, Any] = {name: key.default for name, key in keys.items()}
    return defaults | dict(run_config)


def tasks_of(config: Mapping[str, Any]) -> dict[str, type[ProtocolStrategy]]:
    """Return strategies by task; raise ValueError if the algorithm is unknown."""
    known = algorithms()
    if config["strategy"] not in known:
        raise ValueError(
            f"strategy must be one of {', '.join(known)}, got {config['strategy']!r}"
        )
    return {strategy.task: strategy for strategy in known[config["strategy"]]}


def make_strategy(config: Mapping[str, Any]) -> ProtocolStrategy:
    """Return the strategy of a checked run config.

    Raises ValueError if there is no such strategy, a value is invalid, or a key that
    differs from its default would be ignored.
    """
    tasks = tasks_of(config)
    if config["task"] not in tasks:
        raise ValueError(
            f"task must be one of {', '.join(tasks)} for strategy "
            f"{config['strategy']!r}, got {config['task']!r}"
        )
    strategy = tasks[config["task"]]
    taken = {setting.name: setting for setting in settings_of(strategy)}
    arguments: dict[str, Any] = {}
    for name, key in run_keys().items():
        value, setting = config[name], key.setting
        concerned = key.section == config["strategy"] or setting.name in _OF_THE_RUN
        if concerned and setting.name in taken:
            arguments[setting.name] = value
        elif value != key.default and (key.section or setting.name == "model_id"):
            hint = "; set a different task" if concerned else ""
            raise ValueError(
                f"run config {name!r} does not apply to strategy "
                f"{config['strategy']!r} with task {config['task']!r}, got "
                f"{value!r}{hint}"
            )
    if arguments["seed"] == -1:
        arguments["seed"] = None
    for name, setting in taken.items():
        if setting.folder and not arguments[name]:
            arguments[name] = str(output_dir(config) / setting.folder)
    instance = strategy(**arguments)
    if config["standardize"] and instance.partition == "horizontal":
        raise ValueError(_standardize_rule(config["strategy"]))
    return instance


def _standardize_rule(section: str) -> str:
    key = f"{section}.standardize"
    hint = f"; set {key} in the run config" if key in run_keys() else ""
    return (
        "standardize must be false if parties hold different rows, since each party "
        f"knows only the mean and deviation of its own rows{hint}"
    )


def with_data(node_config: UserConfig) -> dict[str, Any]:
    """Return a node config with Flower's ``data-path``, if any, renamed to ``data``."""
    config = dict(node_config)
    path = config.pop("data-path", None)
    if path is not None and config.setdefault("data", path) != path:
        raise ValueError("'data-path' and 'data' of the node config must be equal")
    return config


def party_source(node_config: UserConfig, run_config: UserConfig) -> PartySource:
    """Return the source of a node's data.

    If the node config has ``data``, only the node config describes the data. The run
    config's keys for data apply to all other nodes, such as simulated nodes. Raises
    ValueError for a wrong type, a misspelt key, or file options without ``data``.
    """
    node_config = with_data(node_config)
    _check_node_keys(node_config)
    by_node = "data" in node_config
    declared = chain.from_iterable(map(settings_of, _COMMON))
    chosen: dict[str, Any] = {setting.key: setting.default for setting in declared}
    chosen |= node_config if by_node else run_config
    if not by_node and str(chosen["data"]).startswith(QUERY):
        raise ValueError("data may be a query in a node config, not in a run config")
    partition, encodes, aligns = _data_rules(run_config)
    rows = partition == "horizontal"
    standardize = _flag(chosen, "standardize")
    if rows and standardize and by_node:
        raise ValueError(_standardize_rule(str(run_config.get("strategy", ""))))
    impute = (_text(chosen, "impute") or "mean") if encodes else "none"
    if rows and impute == "median":
        raise ValueError(
            "impute must be mean or none if parties hold different rows, got 'median': "
            "each party knows only the median of its own rows"
        )
    return PartySource(
        data=str(chosen["data"]),
        index=_number(node_config, "partition-id"),
        count=_number(node_config, "num-partitions"),
        name=_text(node_config, "party-name"),
        id_column=_text(chosen, "id-column"),
        label_column=_text(chosen, "label-column"),
        columns=_listed(chosen, "columns"),
        standardize=standardize and not rows,
        one_hot=_flag(chosen, "one-hot") and encodes,
        impute=impute,
        missing=_listed(chosen, "missing"),
        max_levels=_number(chosen, "max-levels") or None,
        levels=parse_levels(_text(chosen, "levels") or "", files=by_node),
        label_optional=aligns,
        delimiter=_delimiter(chosen),
        text_encoding=_encoding(chosen),
        header=_flag(chosen, "header"),
        consent=_path(node_config, "consent"),
        state_dir=_path(node_config, "state-dir"),
        alignment=_alignment(node_config, run_config, partition),
        rows=rows,
    )


def _check_node_keys(node_config: UserConfig) -> None:
    """Raise ValueError for a misspelt key, or for file options without ``data``."""
    known = _NODE_KEYS | _NODE_ONLY
    for key in node_config:
        near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.8)
        if near and key not in known:
            raise ValueError(
                f"node config has no key {key!r}; did you mean {near[0]!r}?"
            )
        if key in _NODE_KEYS and "data" not in node_config:
            raise ValueError(f"node config key {key!r} requires 'data'")


def _text(config: UserConfig, key: str) -> str | None:
    value = config.get(key, "")
    return str(value) if value != "" else None


def _listed(config: UserConfig, key: str) -> tuple[str, ...] | None:
    value = _text(config, key)
    return tuple(map(str.strip, value.split(","))) if value else None


def _flag(config: UserConfig, key: str) -> bool:
    if not isinstance(value := config[key], bool):
        raise ValueError(f"{key} must be true or false, got {value!r}")
    return value


def _number(config: UserConfig, key: str) -> int | None:
    if (value := config.get(key)) is None:
        return None
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} must be a whole number of at least 0, got {value!r}")
    return value


def _path(config: UserConfig, key: str) -> Path | None:
    value = _text(config, key)
    if value and not Path(value).is_absolute():
        raise ValueError(f"{key} must be an absolute path")
    return Path(value) if value else None


def _delimiter(config: UserConfig) -> str | None:
    delimiter = _text(config, "delimiter")
    if delimiter in ("tab", "\\t"):
        return "\t"
    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"delimiter must be one character or 'tab', got {delimiter!r}")
    return delimiter


def _encoding(config: UserConfig) -> str | None:
    encoding = _text(config, "encoding")
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        raise ValueError(
            f"encoding must be a text encoding of Python, got {encoding!r}"
        ) from None
    return encoding


def has_encoding(run_config: UserConfig) -> bool:
    """Return whether new rows use the encoding stored with the party's local model."""
    later = run_config.get("task") in ("predict", "evaluate")
    return later and _data_rules(run_config)[1]


def _alignment(
    node_config: UserConfig, run_config: UserConfig, partition: str
) -> str | None:
    """Return the name of the row order that a node uses, or None.

    The party's own setting has priority; a run that names a different order is refused.
    """
    pinned, wanted = (str(c.get("alignment", "")) for c in (node_config, run_config))
    if pinned and wanted and pinned != wanted:
        raise ValueError(
            f"alignment must be {pinned!r}, as in this party's node config, got "
            f"{wanted!r}"
        )
    if wanted and partition == "horizontal":
        raise ValueError(
            f"alignment must be empty if parties hold different rows, got {wanted!r}"
        )
    return (pinned or wanted or None) if partition == "vertical" else None


def _data_rules(run_config: UserConfig) -> tuple[str, bool, bool]:
    """Return the partition, whether columns are encoded, and whether rows are aligned.

    The run config may belong to another app, with a strategy that this package lacks.
    """
    name = str(run_config.get("strategy", ""))
    tasks = algorithms().get(name, ())
    for strategy in tasks[:1]:
        given = run_config.get("task", strategy.task)
        task = next((kind for kind in tasks if kind.task == given), strategy)
        return strategy.partition, strategy.encodes, task.partition == "either"
    return "vertical", True, False


def output_dir(config: Mapping[str, Any]) -> Path:
    """Return the folder for results; raise ValueError if ``output-dir`` is relative."""
    from platformdirs import user_data_path

    if not config["output-dir"]:
        return user_data_path("vfl_flower") / "runs"
    folder = Path(config["output-dir"]).expanduser()
    if not folder.is_absolute():
        raise ValueError(f"output-dir must be absolute, got {config['output-dir']!r}")
    return folder
