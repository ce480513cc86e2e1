"""Label new rows with a party's local clustering, without a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from vfl_flower.app.config import party_source, with_data
from vfl_flower.app.flwr_internals.config import parse_config_args
from vfl_flower.data import load_party, read_ids
from vfl_flower.models import Model
from vfl_flower.party.parts import is_model_id, load_part, write_predictions
from vfl_flower.strategies import algorithms


def label(
    model: Annotated[str, typer.Argument(help="Id of the model.")],
    node_config: Annotated[
        str, typer.Option(help="The SuperNode's node config, with new rows as data.")
    ],
    output: Annotated[Path, typer.Option(help="CSV file to write.")],
) -> None:
    """Label new rows with a party's local clustering, without a run.

    Nothing leaves the machine. Pass the SuperNode's node config, but with the file of
    the new rows as data.
    """
    logging.basicConfig(format="%(message)s")
    try:
        config = parse_config_args([node_config])
    except Exception:  # Flower's own error, whose base class differs by version
        raise ValueError(
            "node config must be 'key=value key=value', as for a SuperNode, with text "
            "values in double quotes"
        ) from None
    if output.exists() != output.is_file() or not output.absolute().parent.is_dir():
        raise ValueError("output must be a file in an existing folder")
    if "data" not in with_data(config):
        raise ValueError("node config must set 'data' to the new rows' file")
    source = party_source(config, {})
    if source.state_dir is None:
        raise ValueError("node config must set 'state-dir', as in training")
    for place in (Path(source.data), source.state_dir):
        files = place.iterdir() if place.is_dir() else [place]
        if output.exists() and any(output.samefile(f) for f in files if f.exists()):
            raise ValueError(
                "output must not replace the party's data or a file in the state-dir"
            )
    if is_model_id(model) and (source.state_dir / f"{model}.sqlite").exists():
        raise ValueError(
            f"model {model} can forget rows, so labelling new rows needs a run: "
            f"vfl-flower run STRATEGY --task predict --set model-id={model}"
        )
    part = load_part(source.state_dir, model)
    kind = _model_class(part.strategy)
    party = load_party(source, encoding=part.settings["encoding"])
    labels = kind.label_rows({**part.settings, **part.arrays}, party.X)
    ids = read_ids(source)
    write_predictions(output, ids, labels, "the labels", where="the folder of output")


def _model_class(algorithm: str) -> type[Model]:
    """Return the model class of the first strategy that has steps of an algorithm."""
    for strategies in algorithms().values():
        for strategy in strategies:
            if algorithm in {step.algorithm for step in strategy.steps}:
                return strategy.model_class
    raise ValueError(f"the local model needs {algorithm!r}, which is not installed")
