"""The angles of all rows where columns are split, for federated kernel k-means."""

from __future__ import annotations

import numpy as np

from vfl_flower.clients import kernel_kmeans as party
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.steps import Sum
from vfl_flower.strategies.kernel_kmeans_setup import check_sum
from vfl_flower.typing import Array


class AngleColumns:
    """Angles of all rows, feature by feature, in as few messages as can hold them.

    Parameters
    ----------
    parties : Parties
        Each adds the part of its columns.
    kernel, gamma : {"gaussian", "laplacian"}, float
        The kernel of the features.
    bits : {16, 32, 64}
        Bits of an angle; 64 only without masks.
    block_bytes : int
        Bytes of angles that a party sends in one message.
    most : int
        Most features that the run asks for.
    """

    def __init__(
        self,
        parties: Parties,
        kernel: party.AngleKernel,
        gamma: float,
        bits: party.AngleBits,
        block_bytes: int,
        most: int,
    ) -> None:
        self._parties, self._most = parties, most
        self._kernel, self._gamma, self._bits = kernel, gamma, bits
        plain = bits == 64
        self._sum = Sum(2.0**60, "plain") if plain else Sum(1.0, f"circle{bits}")
        self._block = max(1, block_bytes * 8 // (bits * parties.n_rows))
        self._asked = 0
        self._left: Array | None = None

    def take(self, count: int) -> Array:
        """Return the angles of the next features, shape (N, count)."""
        while self._left is None or self._left.shape[1] < count:
            block = self._ask()
            self._left = block if self._left is None else np.hstack([self._left, block])
        taken, self._left = self._left[:, :count], self._left[:, count:]
        return taken

    def _ask(self) -> Array:
        count = min(self._block, self._most - self._asked)
        angles = self._parties.secure_sum(
            party.angles.summing(angles=self._sum),
            start=self._asked,
            count=count,
            bits=self._bits,
            kernel=self._kernel,
            gamma=self._gamma,
        )["angles"]
        if self._bits == 64:  # turns, below 1 at each party
            check_sum(self._parties, party.angles, angles, 1.0)
        self._asked += count
        return angles
