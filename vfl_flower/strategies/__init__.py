"""The server's side: one Flower strategy for each algorithm."""

from vfl_flower.strategies.coresets import CoresetVKMC, CoresetVRLR

STRATEGIES = {"coreset-vrlr": CoresetVRLR, "coreset-vkmc": CoresetVKMC}
"""The strategies by the name that the run config gives them."""

__all__ = ["STRATEGIES", "CoresetVKMC", "CoresetVRLR"]
