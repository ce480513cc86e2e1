"""The ServerApp: FedAvg as before, and then kernel k-means on the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from vfl_flower import FKKMeans

app = ServerApp()

COLUMNS = 30


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the common model, and then (this is new) find segments of the rows."""
    config = context.run_config
    start = ArrayRecord([np.zeros(COLUMNS), np.zeros(1)])
    averaged = FedAvg(min_available_nodes=3).start(
        grid, start, num_rounds=int(config["num-server-rounds"])
    )
    accuracy = averaged.evaluate_metrics_clientapp[int(config["num-server-rounds"])]

    # New: another strategy on the same grid.
    segments = FKKMeans(n_clusters=int(config["segments"]), n_parties=3).start(grid)

    report = {
        "accuracy": accuracy["accuracy"],
        "inertia": segments.metrics["inertia"],
        "round_trips": segments.ledger.round_trips,
    }
    print(json.dumps(report))
    if config["output"]:
        Path(str(config["output"])).write_text(json.dumps(report))
