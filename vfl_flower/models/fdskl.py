"""The model of FDSKL: a kernel machine whose parts lie at the parties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vfl_flower.models.base import PartedModel
from vfl_flower.numerics.kernel_model import decision_function, probabilities
from vfl_flower.typing import Array


@dataclass
class KernelModel(PartedModel):
    """A kernel machine whose parts lie at the parties.

    See ``numerics/kernel_model.py`` for a part.

    Attributes
    ----------
    id : str
        The run that trained the model, hexadecimal.
    kernel : str
        ``"gaussian"`` or ``"laplacian"``.
    bandwidth : float
        In the unit of the columns.
    n_features : int
        M, the number of random features.
    widths : list of int
        Number of columns of each party.
    kept : bool
        Whether all parties have a ``state-dir`` and have kept their parts in it.
    parts : list of dict, optional
        One a party.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(400, 2))
    >>> parties = [vf.Party(X[:, :1]), vf.Party(X[:, 1:], y=X.sum(axis=1) > 0)]
    >>> strategy = vf.FDSKLDirect(features=64, allow_two_parties=True)
    >>> model = vf.simulate(strategy, parties, seed=0).model
    >>> model.predict([[[2.0], [-2.0]], [[1.0], [-1.0]]]).tolist()
    [True, False]
    """

    kind: ClassVar[str] = "kernel"
    TYPED: ClassVar[set[str]] = {"coef", "intercept", "classes"}

    def _scores(self, parts: list[Any], blocks: list[Array]) -> Array:
        return decision_function(parts, blocks)

    def predict_proba(self, blocks: Sequence[Array]) -> Array:
        """Return the probabilities of the classes of new rows.

        The shape is (n, C), or (n, 2) for two classes. Raises ValueError as
        :meth:`decision_function` does, or if the model has no probabilities: one of
        real numbers, or of another loss than the logistic one.
        """
        scores, holder = self.decision_function(blocks), self.holder
        if holder["target"] == "continuous" or holder.get("loss") != "logistic":
            raise ValueError(
                "the model must be of classes, and of the logistic loss, for "
                f"probabilities, got target {holder['target']!r} and loss "
                f"{holder.get('loss')!r}"
            )
        return probabilities(scores)
