"""The model of ridge regression without pooled columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vfl_flower.models.base import PartedModel
from vfl_flower.numerics.ridge.features import decision_function
from vfl_flower.numerics.ridge.fit import probabilities
from vfl_flower.typing import Array


@dataclass
class RidgeModel(PartedModel):
    """A ridge model whose local models are at the parties.

    Attributes
    ----------
    id : str
        Id of the run that trained the model, in hexadecimal.
    kernel : str
        ``"gaussian"`` or ``"laplacian"``.
    bandwidth : float
        Bandwidth of the kernel, in the unit of the scaled columns.
    n_features : int
        Number of joint random features; 0 in a linear model.
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
    >>> model = vf.simulate(vf.SecureRidge(features="linear"), parties).model
    >>> model.predict([[[2.0], [-2.0]], [[1.0], [-1.0]]]).tolist()
    [True, False]
    """

    kind: ClassVar[str] = "ridge"
    TYPED: ClassVar[set[str]] = {
        *("coef", "intercept", "classes", "slope", "offset", "tail"),
        *("bandwidths", "counts", "densities", "relevance"),
    }

    def _scores(self, parts: list[Any], blocks: list[Array]) -> Array:
        return decision_function(parts, blocks)

    def predict_proba(self, blocks: Sequence[Array]) -> Array:
        """Return the probabilities of the classes of new rows.

        The shape is (n, C), or (n, 2) for two classes. Raises ValueError in the same
        cases as :meth:`decision_function`, or if the model predicts real numbers.
        """
        scores, holder = self.decision_function(blocks), self.holder
        if "slope" not in holder:
            raise ValueError("probabilities need a classifier")
        calibration = holder["slope"], holder["offset"], holder.get("tail")
        chances = probabilities(scores, *calibration)
        return np.hstack([1 - chances, chances]) if scores.shape[1] == 1 else chances
