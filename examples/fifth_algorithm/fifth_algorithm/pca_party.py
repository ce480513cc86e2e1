"""A party's side of principal components."""

from typing import Annotated, TypedDict

import numpy as np

from vfl_flower.party.party import Party
from vfl_flower.protocol.contract import IN_SUM, Reals
from vfl_flower.protocol.steps import step_of
from vfl_flower.typing import Array

step = step_of("pca")


class Moments(TypedDict):
    """Reply of :func:`moments`: nothing leaves a party except in a sum over all."""

    gram: Annotated[Array, Reals("n_columns n_columns"), IN_SUM]
    total: Annotated[Array, Reals("n_columns"), IN_SUM]


@step
def moments(party: Party) -> Moments:
    """Return X^T X and the sum of the rows."""
    X = np.asarray(party.X, dtype=np.float64)
    return {"gram": X.T @ X, "total": X.sum(axis=0)}
