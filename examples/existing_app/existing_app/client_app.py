"""The ClientApp of the hospitals: FedAvg as before, and the steps of vfl_flower."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from existing_app.task import descend, load_data, probabilities
from vfl_flower import ALLOW_ALL, Consent, Party, PartyError, register

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Improve the common model on the rows of this hospital."""
    X, y = load_data(context)
    weights, bias = message.content.array_records["arrays"].to_numpy_ndarrays()
    config = context.run_config
    rate, steps = float(config["learning-rate"]), int(config["local-steps"])
    arrays = ArrayRecord(list(descend(X, y, weights, bias, rate, steps)))
    content = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": len(y)})}
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the accuracy of the common model on this hospital's rows."""
    X, y = load_data(context)
    weights, bias = message.content.array_records["arrays"].to_numpy_ndarrays()
    right = (probabilities(X, weights, bias) > 0.5) == y
    metrics = MetricRecord({"num-examples": len(y), "accuracy": float(np.mean(right))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


# -- new: the steps of vfl_flower ------------------------------------------------------


def load(context: Context) -> Party:
    """Return the same rows as a party of vfl_flower, with its consent."""
    X, _ = load_data(context)
    config = context.node_config
    # Only a simulation, in which all rows are on one machine, runs in Ray.
    if "ray" in sys.modules and config.keys() <= {"partition-id", "num-partitions"}:
        return Party(X, consent=ALLOW_ALL)
    for key in ("party-name", "consent", "state-dir", "data-path"):
        if not config.get(key):
            raise PartyError(f"a SuperNode needs {key!r} in its node config")
    return Party(
        X,
        name=str(config["party-name"]),
        consent=Consent.load(str(config["consent"])),
        state_dir=Path(str(config["state-dir"])),
    )


register(app, load)
