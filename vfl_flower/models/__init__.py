"""Trained models: arrays with a ``predict``, saved and loaded without pickle."""

from vfl_flower.models.base import Model, load_model

__all__ = ["Model", "load_model"]
