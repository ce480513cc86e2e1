"""The angles of rows, summed over the parties for those who hold coefficients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vfl_flower.secure_aggregation import TOPOLOGIES, Tree, spanning, two_trees
from vfl_flower.strategies.base import check_choice
from vfl_flower.strategies.exchange import FederationError
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Sealed, Sum
from vfl_flower.typing import Array, Values

MASKINGS = ("circle", "paper", "plain")
"""Angles modulo a turn under masks; Algorithm 3 of the paper; or bare."""

_SCORE_BOUND = 2.0**16
"""Largest score of a row in a sum of several label holders, in their largest label."""

_REAL = Sum(bound=2.0**60, group="plain")


@dataclass(frozen=True)
class Angles:
    """How the angles of rows come to the holders of coefficients (Algorithm 3).

    Attributes
    ----------
    parties : Parties
        All of them.
    holders : list of int
        Parties with coefficients.
    group : str
        Where angles are added: ``"circle16"``, ``"circle32"``, or ``"plain"``.
    topology : {"star", "ring", "tree"}
        How sums travel.
    shared : bool
        Whether the phases are taken off along a second tree, as in the paper.
    kept : tuple of int
        For each holder the party whose phase stays; only where `shared`.
    scale : float
        Size of labels, where several holders add up their scores.
    """

    parties: Parties
    holders: list[int]
    group: str
    topology: str = "star"
    shared: bool = False
    kept: tuple[int, ...] = ()
    scale: float = 1.0

    def scores(self, holder: int) -> dict[str, Sum]:
        """Return the sum of the holders' scores, for one of them."""
        return {"scores": Sum(_SCORE_BOUND * self.scale, to=holder)}

    @property
    def bits(self) -> int:
        """Bits of an angle."""
        return 64 if self.group == "plain" else int(self.group.removeprefix("circle"))

    def ask(
        self,
        action: str,
        each: list[dict[str, Any]],
        sums: Mapping[str, Sum],
        request: Values | None,
        **values: Any,
    ) -> tuple[list[dict[str, Any]], dict[str, Sealed], dict[str, Sealed]]:
        """Ask for a step and, in a star, with it for the angles of a `request`.

        Returns
        -------
        list of dict
            The replies.
        dict of Sealed
            The `sums`.
        dict of Sealed
            The angles, ``angles_l`` for each holder l; none where they travel by hops.
        """
        wanted, asked = dict(sums), {}
        if request is not None and self.topology == "star":
            wanted |= {f"angles_{j}": Sum(1.0, self.group, to=j) for j in self.holders}
            asked = {**request, "bits": self.bits}
        replies = self.parties.ask_each(action, each, sums=wanted, **values, **asked)
        if replies.clipped:
            raise FederationError(
                f"scores must be below {_SCORE_BOUND * self.scale:g} in size for the "
                f"sum of several label holders, {replies.clipped} are not: the steps "
                "are too large, or the labels far apart"
            )
        found = replies.sealed
        angles = {n: found.pop(n) for n in list(found) if n.startswith("angles_")}
        return list(replies), found, angles

    def relay(self, request: Values, action: str = "fdskl_angles") -> dict[str, Sealed]:
        """Let the angles of a `request` travel from party to party: T1, and T2."""
        everyone = list(range(len(self.parties)))
        trees: dict[str, tuple[Sum, Tree]] = {}
        for place, holder in enumerate(self.holders):
            if self.shared:
                kept = self.kept[place]
                first, second = two_trees(self.topology, everyone, holder, kept)
                trees[f"angles_{holder}"] = (_REAL, first)
                trees[f"offsets_{holder}"] = (_REAL, second)
            else:
                tree = spanning(self.topology, everyone, holder)
                trees[f"angles_{holder}"] = (Sum(1.0, self.group), tree)
        return self.parties.relay_sums(action, trees, bits=self.bits, **request)

    def of(self, found: Mapping[str, Sealed], rows: Array) -> list[dict[str, Any]]:
        """Return what each party gets of the angles of `rows`: a holder its own."""
        each: list[dict[str, Any]] = [{} for _ in self.parties]
        for name, sealed in found.items():
            each[sealed.to] = {
                **each[sealed.to],
                name.partition("_")[0]: sealed,
                "at": rows,
            }
        return each

    def answers(
        self,
        rows: Array,
        n_features: int,
        columns: int,
        block_bytes: int,
        evaluate: bool,
    ) -> list[dict[str, Any]]:
        """Algorithm 2 for `rows`, by blocks; return the last replies.

        The first holder receives the scores. In a star two blocks overlap, or three
        with several holders: while angles of one are asked for, scores of the one
        before are, and answers of the one before that come in.
        """
        receiver, alone = self.holders[0], len(self.holders) == 1
        stars = self.topology == "star"
        pending: tuple[Array, dict[str, Sealed]] | None = None
        scored: tuple[Array, Sealed] | None = None
        blocks = list(row_blocks(rows, n_features, self.bits, block_bytes))
        replies: list[dict[str, Any]] = []
        trips = len(blocks) + stars + (not alone)
        for k in range(trips):
            request: Values | None = None
            if k < len(blocks):
                request = {"rows": blocks[k], "stop": n_features}
                if not stars:
                    found = self.relay(request, "fdskl_test_angles")
                    pending, request = (blocks[k], found), None
            each = self.of({}, rows)
            if pending is not None:
                each = self.of(pending[1], pending[0])
            if scored is not None:
                got = {"scores": scored[1], "done": scored[0]}
                each[receiver] = {**each[receiver], **got}
            summed = pending is not None and not alone
            replies, sums, found = self.ask(
                "fdskl_answer",
                each,
                self.scores(receiver) if summed else {},
                request,
                columns=columns,
                size=len(pending[0]) if pending and summed else 0,
                evaluate=evaluate,
                last=k == trips - 1,
            )
            scored = (pending[0], sums["scores"]) if pending and summed else None
            pending = (blocks[k], found) if request is not None else None
        return replies


def row_blocks(rows: Array, M: int, bits: int, block_bytes: int) -> Iterator[Array]:
    """Cut rows into ceil(bytes of their angles / block) pieces of nearly one size.

    So a piece has at most one row more than the block holds.
    """
    check_block(M, bits, block_bytes)
    size = len(rows) * M * bits // 8
    yield from np.array_split(rows, max(1, math.ceil(size / block_bytes)))


def check_block(M: int, bits: int, block_bytes: int, rows: int = 1) -> None:
    """Raise ``FederationError`` unless a block holds the angles of `rows` rows."""
    least = rows * M * bits // 8
    if block_bytes < least:
        raise FederationError(
            f"block_bytes must hold {'one row' if rows == 1 else f'{rows} rows'} of "
            f"{M} features, {least} bytes, got {block_bytes}"
        )


def check_topology(topology: str, masking: str) -> None:
    """Raise ``ValueError`` unless sums under `masking` can travel so."""
    check_choice("topology", topology, TOPOLOGIES)
    if masking == "paper" and topology == "star":
        raise ValueError(
            "topology must be 'ring' or 'tree' with masking 'paper', whose phases "
            "travel along two different trees, got 'star'"
        )
