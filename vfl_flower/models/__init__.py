"""Trained models: arrays with a ``predict`` method, saved and loaded without pickle."""

from vfl_flower.models.base import Model

__all__ = ["Model"]
