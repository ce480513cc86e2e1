"""Runs in one process, and the experiments of the papers."""

from vfl_flower.simulations.in_process import InProcessGrid, simulate

__all__ = ["InProcessGrid", "simulate"]
