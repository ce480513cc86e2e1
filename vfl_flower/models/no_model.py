"""What a run leaves that has used or removed a model: the number of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vfl_flower.models.base import Model, Stored


@dataclass
class RemovedModel(Model):
    """The number of a model of which the parties have removed their local models."""

    kind: ClassVar[str] = "removed"
    stored: ClassVar[Stored] = {"model": ("model", str)}

    model: str
    """Number of the model."""

    @property
    def note(self) -> str:
        """Say that the parties have removed the model."""
        return f"model {self.model} is removed at all parties of the run"


@dataclass
class UsedModel(RemovedModel):
    """The number of a model whose local models the parties have predicted with."""

    kind: ClassVar[str] = "used"

    @property
    def note(self) -> str:
        """Say where the model is."""
        return f"model {self.model}: its parts are in the parties' state-dirs"
