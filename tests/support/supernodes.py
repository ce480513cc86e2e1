"""Nodes in one process that read party files, as SuperNodes do."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vfl_flower import Party
from vfl_flower.app.client_app import load_from_context
from vfl_flower.app.register import make_client_app
from vfl_flower.simulation import InProcessGrid


def write_rows(path: Path, *rows: Sequence[str]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


class SuperNodes(InProcessGrid):
    """Three nodes that reload their files for each message."""

    def __init__(
        self, folder: Path, consent: str, node: Mapping[str, object], **run: object
    ) -> None:
        super().__init__([Party(np.ones((1, 1)))] * 3)
        self._app = make_client_app(load_from_context)
        for m, context in enumerate(self._contexts.values()):
            state = folder.parent / f"state-{m}"
            state.mkdir(mode=0o700, exist_ok=True)
            rules = state / "consent.toml"
            rules.write_text(f"allow-seed = true\ntrust-on-first-use = true\n{consent}")
            rules.chmod(0o600)
            context.node_config = {
                "data": str(folder / f"{m}.csv"),
                "party-name": f"p{m}",
                "partition-id": m,
                "id-column": "id",
                "state-dir": str(state),
                "consent": str(rules),
                **node,
            }
            context.run_config = run
