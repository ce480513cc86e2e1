"""Label new rows by a party's own part of a clustering, without a run.

``python -m vfl_flower.label MODEL --node-config 'data="/abs/new.csv"
state-dir="/abs/state"' --output labels.csv``: the node config is that of the party's
SuperNode, with the data of the new rows. They are encoded as the rows of training were,
and nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from flwr.common.config import parse_config_args

from vfl_flower.clients.base import PartyError
from vfl_flower.config import party_source
from vfl_flower.data import load_party, read_ids
from vfl_flower.model_parts import load_part, write_predictions


def label(model: str, node_config: str, output: Path) -> None:
    """Write the clusters of a party's new rows to a CSV file.

    Parameters
    ----------
    model : str
        Number of the model, which its training printed.
    node_config : str
        As that of a SuperNode: ``data``, ``state-dir``, and ``id-column`` if any.
    output : Path
        The file, with ``id`` (or ``row``) and ``prediction``; one that exists is
        replaced, unless it is one of the party's.

    Raises
    ------
    PartyError, ValueError
        The node config, the part of the model or the data break a rule.
    """
    from vfl_flower.numerics.kernel_embedding import label_rows

    try:
        config = parse_config_args([node_config])
    except Exception:  # of Flower's command line, whose base differs by version
        raise ValueError(
            "node config must be 'key=value key=value' with text values in double "
            "quotes, as of a SuperNode"
        ) from None
    if output.exists() != output.is_file() or not output.absolute().parent.is_dir():
        raise ValueError("output must be a file in a folder that exists")
    if "data" not in config:
        raise ValueError("node config must name the new rows as 'data'")
    source = party_source(config, {})
    if source.state_dir is None:
        raise ValueError("node config must name the 'state-dir' of training")
    for own in (Path(source.data), source.state_dir):
        files = own.iterdir() if own.is_dir() else [own]
        if output.exists() and any(output.samefile(f) for f in files if f.exists()):
            raise ValueError(
                "output must not be a file of the party: its data, or one that is in "
                "its state-dir already"
            )
    part = load_part(source.state_dir, model, "kernel_kmeans")
    if "P" not in part.arrays:
        raise ValueError(
            f"model {model} labels no new rows: columns were split, or cem was false"
        )
    party = load_party(source, encoding=part.settings["encoding"])
    labels = label_rows({**part.settings, **part.arrays}, party.X)
    ids = read_ids(source)
    write_predictions(output, ids, labels, "the labels", where="the folder of output")


def main(arguments: Sequence[str] | None = None) -> None:
    """Label rows, or exit with 1 and the reason."""
    parser = argparse.ArgumentParser(
        "python -m vfl_flower.label", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("model", help="number of the model")
    parser.add_argument("--node-config", required=True, help="as of the SuperNode")
    parser.add_argument("--output", required=True, type=Path, help="CSV file to write")
    args = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    try:
        label(args.model, args.node_config, args.output)
    except (PartyError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
