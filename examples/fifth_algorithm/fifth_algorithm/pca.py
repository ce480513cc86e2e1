"""The server's side of principal components.

=============  =====================================  ==========================
round trip     party j sends                          the server learns
=============  =====================================  ==========================
moments        X^T X and the sum of its rows, masked  the sums over the parties
=============  =====================================  ==========================
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord

from fifth_algorithm import pca_party as party
from vfl_flower.models.base import Model, Stored
from vfl_flower.protocol.settings import Natural, settings
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolStrategy, Run
from vfl_flower.typing import Array


@dataclass
class PCAModel(Model):
    """Principal components, named as in scikit-learn.

    Attributes
    ----------
    mean_ : Array, shape (d,)
    components_ : Array, shape (k, d)
    explained_variance_ : Array, shape (k,)
    """

    kind: ClassVar[str] = "pca"
    stored: ClassVar[Stored] = {
        "mean": ("mean_", np.asarray),
        "components": ("components_", np.asarray),
        "explained_variance": ("explained_variance_", np.asarray),
    }

    mean_: Array
    components_: Array
    explained_variance_: Array

    def transform(self, X: Array) -> Array:
        """Return the coordinates of rows, shape (n, k)."""
        return np.asarray((X - self.mean_) @ self.components_.T)


@settings
class FederatedPCA(ProtocolStrategy):
    """Principal components of rows that several parties hold."""

    n_components: Natural = 2
    """Number of components, at most the number of columns."""

    model_class = PCAModel
    partition = "horizontal"
    steps = (party.moments,)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Sum the moments, and take the eigenvectors of the covariance."""
        n, d = parties.n_rows, parties[0].n_columns
        if self.n_components > d:
            raise FederationError(
                f"n_components must be at most the {d} columns, got {self.n_components}"
            )
        question = party.moments.summing(gram=2.0**20, total=2.0**20)
        sums = parties.ask_exactly(question).sums
        mean = sums["total"] / n
        covariance = (sums["gram"] - n * np.outer(mean, mean)) / (n - 1)
        values, vectors = np.linalg.eigh(covariance)
        largest = slice(None, -self.n_components - 1, -1)
        model = PCAModel(mean, vectors.T[largest], values[largest])
        run.record(1, model.to_record(), {"variance": float(values[largest].sum())})
        return model.to_record()
