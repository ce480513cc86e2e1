"""The model of FDSKL: a kernel machine whose parts lie at the parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models.base import NumberedModel, check_blocks, plain
from vfl_flower.numerics.kernel_model import (
    Part,
    answers,
    decision_function,
    probabilities,
)
from vfl_flower.numerics.ridge import features as ridge
from vfl_flower.numerics.ridge import fit as ridge_fit
from vfl_flower.typing import Array, Arrays


@dataclass
class KernelModel(NumberedModel):
    """A kernel model whose parts lie at the parties.

    It holds what the server knows, and the parts themselves only where all parties are
    in one process, as after ``simulate``. A file saved with the parts holds the secrets
    of all parties.

    Attributes
    ----------
    model : str
        Number of the model: the run that trained it, hexadecimal.
    kernel : str
        ``"gaussian"`` or ``"laplacian"``.
    bandwidth : float
        In the unit of the columns.
    n_features : int
        M.
    widths : list of int
        Number of columns of each party.
    kept : bool
        Whether all parties have a ``state-dir`` and have kept their parts in it.
    parts : list of Part, optional
        One a party; see ``numerics/kernel_model.py``.
    """

    kind: ClassVar[str] = "kernel"

    model: str
    kernel: str
    bandwidth: float
    n_features: int
    widths: list[int]
    kept: bool = False
    parts: list[Part] | None = field(default=None, repr=False)

    @property
    def note(self) -> str:
        """Say where the model is."""
        if self.kept:
            return f"model {self.model}: its parts are in the parties' state-dirs"
        return (
            f"model {self.model} cannot predict later: not all parties have a state-dir"
        )

    def decision_function(self, blocks: Sequence[Array]) -> Array:
        """Return the scores f(x) of new rows.

        Parameters
        ----------
        blocks : sequence of Array, shape (n, d_j)
            One array a party, in party order, encoded as in training.

        Returns
        -------
        Array, shape (n, C)
            Scores of the classes (binary: of the second class), or predicted values.

        Raises
        ------
        ValueError
            The blocks are not those of the training parties, or the parts are not here.
        """
        if self.parts is None:
            raise ValueError(
                f"the parts of model {self.model} lie at the parties: predict with a "
                f"run of task 'predict' and model '{self.model}'"
                if self.kept
                else f"the parts of model {self.model} are gone with its run: not all "
                "parties had a state-dir"
            )
        given = check_blocks(blocks, self.widths)
        if "local" in self.parts[0]:
            return ridge.decision_function(self.parts, given)
        return decision_function(self.parts, given)

    def predict(self, blocks: Sequence[Array]) -> Array:
        """Return the predicted labels or values of new rows, shape (n,).

        See :meth:`decision_function`.
        """
        scores, holder = self.decision_function(blocks), self._holder
        return answers(scores, holder["target"], holder["classes"])

    def predict_proba(self, blocks: Sequence[Array]) -> Array:
        """Return the probabilities of the classes of new rows.

        The shape is (n, C), or (n, 2) for two classes. Raises ValueError as
        :meth:`decision_function` does, or if the model has no probabilities: one of
        real numbers, and one of another loss than the logistic one without sums of
        products.
        """
        scores, holder = self.decision_function(blocks), self._holder
        if "slope" in holder:
            calibration = holder["slope"], holder["offset"], holder.get("tail")
            chances = ridge_fit.probabilities(scores, *calibration)
            return (
                np.hstack([1 - chances, chances]) if scores.shape[1] == 1 else chances
            )
        if holder["target"] == "continuous" or holder.get("loss") != "logistic":
            raise ValueError(
                "the model must be of classes, and of the logistic loss, for "
                f"probabilities, got target {holder['target']!r} and loss "
                f"{holder.get('loss')!r}"
            )
        return probabilities(scores)

    @property
    def _holder(self) -> dict[str, Any]:
        """The part of the first label holder."""
        holder = next(part for part in self.parts or [] if "coef" in part)
        return cast(dict[str, Any], holder)

    def arrays(self) -> Arrays:
        """Return the settings and, where they are here, ``part_<j>.<name>``."""
        names = ("model", "kernel", "bandwidth", "n_features", "widths", "kept")
        named = {name: np.array(getattr(self, name)) for name in names}
        for j, part in enumerate(self.parts or []):
            named |= {f"part_{j}.{name}": np.array(v) for name, v in part.items()}
        return named

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        stored = plain(arrays)
        of_type_array = {"coef", "intercept", "classes", "slope", "offset", "tail"}
        of_type_array |= {"bandwidths", "counts", "densities", "relevance"}
        parts: list[dict[str, Any]] = []
        for j in range(len(stored["widths"])):
            head = f"part_{j}."
            part = {k[len(head) :]: v for k, v in stored.items() if k.startswith(head)}
            parts.append(
                {
                    k: v if k in of_type_array or k[:6] == "local_" else v.tolist()
                    for k, v in part.items()
                }
            )
        return cls(
            str(stored["model"]),
            str(stored["kernel"]),
            float(stored["bandwidth"]),
            int(stored["n_features"]),
            [int(width) for width in stored["widths"]],
            bool(stored["kept"]),
            [cast(Part, part) for part in parts] if all(parts) else None,
        )
