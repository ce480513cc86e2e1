"""The model of FDSKL: a kernel machine whose local models are at the parties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vfl_flower.models.base import PartedModel
from vfl_flower.numerics.kernel_model import decision_function, probabilities
from vfl_flower.typing import Array


@dataclass
class KernelModel(PartedModel):
    """A kernel machine whose local models are at the parties.

    See ``numerics/kernel_model.py`` for a local model.

    Attributes
    ----------
    id : str
        Id of the run that trained the model, in hexadecimal.
    kernel : str
        ``"gaussian"`` or ``"laplacian"``.
    bandwidth : float
        Bandwidth of the kernel, in the unit of the columns.
    n_features : int
        M, the number of random features.
    widths : list of int
        Number of columns of each party.
    kept : bool
        Whether all parties have a ``state-dir`` with their local models.
    parts : list of dict, optional
        Local models, one per party.

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

        The shape is (n, C), or (n, 2) for two classes. Raises ValueError in the same
        cases as :meth:`decision_function`, or if the model has no probabilities because
        it predicts real numbers or was not trained with the logistic loss.
        """
        scores, holder = self.decision_function(blocks), self.holder
        if holder["target"] == "continuous" or holder.get("loss") != "logistic":
            raise ValueError(
                "probabilities need a classifier trained with the logistic "
                f"loss, got target {holder['target']!r} and loss {holder.get('loss')!r}"
            )
        return probabilities(scores)
