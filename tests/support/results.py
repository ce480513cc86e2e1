"""Results without a run, and figures without a picture."""

from typing import Any

import numpy as np
from flwr.app import MetricRecord

from vfl_flower import CoresetVRLR, Ledger
from vfl_flower.app.report.drawing import Figure
from vfl_flower.models.coresets import LinearModel
from vfl_flower.server.replies import PartyInfo
from vfl_flower.server.strategy import ProtocolResult


def made_result(name="airline", *, count=1, metrics=None, **more):
    """Return a result of parties that have each answered three steps."""
    ledger = Ledger()
    names = [name] + [f"{name[:90]} {j}" for j in range(1, count)]
    for step, size in (("hello", 10), ("solve", 2000), ("test", 300)):
        for party in names:
            entry = ledger.entry(step, party)
            entry.messages, entry.bytes_up, entry.bytes_down = 1, size, 2 * size
            entry.units_up, entry.units_down = size // 10, size // 20
            entry.seconds_computed, entry.seconds_answered = 0.1, 0.25
        ledger.round_trip(step, 0.5)
    model = LinearModel([np.array([1.0])], 1.0)
    given = {
        "arrays": model.to_record(),
        "train_metrics_clientapp": {1: MetricRecord(metrics or {"train_loss": 1.5})},
        "model": model,
        "ledger": ledger,
        "evaluation": ledger.of("test"),
        "seed": 4,
        "strategy": CoresetVRLR(size=200),
        "parties": tuple(PartyInfo(j, n, 40, 2, 40) for j, n in enumerate(names)),
    }
    return ProtocolResult(**given | more)


def undrawn(name: str, title: str, text: str, alt: str, *_: Any, **__: Any) -> Figure:
    """Return a figure without a picture; tests/app/report draws pictures."""
    return Figure(name, title, text, alt, b"<svg/>", b"")
