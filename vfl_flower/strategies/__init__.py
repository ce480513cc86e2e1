"""The server's side: one Flower strategy for each algorithm."""

from vfl_flower.strategies.base import ProtocolStrategy
from vfl_flower.strategies.coresets import CoresetVKMC, CoresetVRLR
from vfl_flower.strategies.fdskl import FDSKL
from vfl_flower.strategies.kernel_kmeans import FKKMeans
from vfl_flower.strategies.mufc import MUFC, MUFCForgetClient, MUFCStatus, MUFCUnlearn
from vfl_flower.strategies.prediction import FDSKLPrediction

STRATEGIES: dict[str, dict[str, type[ProtocolStrategy]]] = {
    "coreset-vrlr": {"train": CoresetVRLR},
    "coreset-vkmc": {"train": CoresetVKMC},
    "fdskl": {"train": FDSKL, "predict": FDSKLPrediction},
    "fk-kmeans": {"train": FKKMeans},
    "mufc": {
        "train": MUFC,
        "unlearn": MUFCUnlearn,
        "forget-client": MUFCForgetClient,
        "status": MUFCStatus,
    },
}
"""The strategies by the name and the task that the run config gives them."""

__all__ = [
    "FDSKL",
    "MUFC",
    "STRATEGIES",
    "CoresetVKMC",
    "CoresetVRLR",
    "FDSKLPrediction",
    "FKKMeans",
    "MUFCForgetClient",
    "MUFCStatus",
    "MUFCUnlearn",
]
