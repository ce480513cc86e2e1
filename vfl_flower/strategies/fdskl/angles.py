"""The angles of rows, summed over the parties for the label holders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from vfl_flower.clients.fdskl import angle_sums, prediction, state
from vfl_flower.protocol.seals import Sealed
from vfl_flower.protocol.settings import Natural, check_unused, settings
from vfl_flower.protocol.steps import P, Question, R, Sum, each_of, opened
from vfl_flower.secure_aggregation.trees import Tree, spanning, two_trees
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.typing import Array

AngleMasking = Literal["circle", "paper"]
"""How angles are hidden: by masks modulo a full turn, or by Algorithm 3."""

CircleBits = Literal[8, 16, 32]
"""Number of bits of an angle in a sum under masks."""

Bits = CircleBits | Literal["auto"]
"""The setting: "auto" means 8 if rows are sent in batches, and 16 otherwise."""

Topology = Literal["star", "ring", "tree"]
"""The route of sums: to the server, along a chain of parties, or along a tree."""

_SCORE_BOUND = 2.0**16
"""Maximum score per row in the label holders' sum, relative to their largest label."""

_REAL = Sum(bound=2.0**60, group="plain")

SummedAngles = dict[int, state.SummedRows]
"""For each label holder, rows with summed angles that only this holder can unmask."""


class OverlappedMessage(NamedTuple):
    """One message of :meth:`Angles.overlapped`."""

    request: state.AngleRequest | None  # the angles to send
    sums: dict[str, Sum]  # over the replies
    at: state.SummedRows  # rows to score
    done: dict[int, state.ScoredRows]  # rows whose scores have arrived, by receiver
    size: int  # number of rows whose scores are to be added up
    last: bool
    learn: bool  # whether a label holder has complete scores of some rows


@dataclass(frozen=True)
class Angles:
    """How the label holders receive the angles of rows (Algorithm 3)."""

    parties: Parties
    holders: list[int]
    """Indices of the parties that hold labels."""
    bits: state.Bits
    """Bits of each angle and sum on the circle; 64: float64 turns, without masks."""
    topology: Topology = "star"
    phase_parties: tuple[int, ...] = ()
    """For each label holder, the party whose phase remains, if features are shared and
    a second tree removes the phases, as in the paper; otherwise empty."""
    scale: float = 1.0
    """Scale of the labels, if several label holders add up their scores."""

    @property
    def star(self) -> bool:
        """Whether angles are sent with the messages of other steps."""
        return self.topology == "star"

    @property
    def alone(self) -> bool:
        """Whether there is only one label holder, which then has complete scores."""
        return len(self.holders) == 1

    def sums(self) -> dict[str, Sum]:
        """Return the sums of angles to request in a star, one for each label holder."""
        return {f"angles_{j}": Sum(1.0, self._group, to=j) for j in self.holders}

    def scores(self, holder: int) -> dict[str, Sum]:
        """Return the sum of the label holders' scores to request for `holder`."""
        return {"scores": Sum(_SCORE_BOUND * self.scale, to=holder)}

    def ask(
        self, question: Question[P, R], *args: P.args, **values: P.kwargs
    ) -> Replies[R]:
        """Request a step; raise FederationError if a score is too large."""
        replies = self.parties.ask(question, *args, **values)
        if replies.clipped:
            raise FederationError(
                f"absolute scores must be below {_SCORE_BOUND * self.scale:g} so that "
                f"label holders can add them up, but {replies.clipped} scores are not: "
                "the steps are too large, or the labels are too far apart"
            )
        return replies

    def summed(self, rows: Array, sealed: Mapping[str, Sealed]) -> SummedAngles:
        """Return the summed angles of `rows` from the sums of a round trip."""
        summed: SummedAngles = {}
        for j in self.holders:
            offsets = opened(sealed[f"offsets_{j}"]) if self.phase_parties else None
            summed[j] = state.SummedRows(rows, opened(sealed[f"angles_{j}"]), offsets)
        return summed

    def relay(
        self, request: state.AngleRequest, setup: state.Setup | None = None
    ) -> SummedAngles:
        """Send training angles from party to party, along T1 and T2."""
        sealed = self.parties.relay_sums(
            angle_sums.angles, self._trees(), request=request, setup=setup
        )
        return self.summed(request.rows, sealed)

    def _relay_held_out(self, request: state.AngleRequest) -> SummedAngles:
        sealed = self.parties.relay_sums(
            angle_sums.held_out_angles, self._trees(), request=request
        )
        return self.summed(request.rows, sealed)

    @property
    def _group(self) -> str:
        return "plain" if self.bits == 64 else f"circle{self.bits}"

    def _trees(self) -> dict[str, tuple[Sum, Tree]]:
        everyone = list(range(len(self.parties)))
        trees: dict[str, tuple[Sum, Tree]] = {}
        for place, holder in enumerate(self.holders):
            if self.phase_parties:
                phase_party = self.phase_parties[place]
                first, second = two_trees(self.topology, everyone, holder, phase_party)
                trees[f"angles_{holder}"] = (_REAL, first)
                trees[f"offsets_{holder}"] = (_REAL, second)
            else:
                tree = spanning(self.topology, everyone, holder)
                trees[f"angles_{holder}"] = (Sum(1.0, self._group), tree)
        return trees

    def overlapped(
        self,
        requests: Sequence[state.AngleRequest],
        receivers: Sequence[int],
        relay: Callable[[state.AngleRequest], SummedAngles],
        ask: Callable[[OverlappedMessage], Replies[R]],
    ) -> Replies[R]:
        """Send `receivers` the scores of the requested rows; return the last replies.

        In a star, each message requests angles and the scores for the previous request,
        and delivers the scores for the request before that. In other topologies,
        `relay` sends the angles first.
        """
        pending: SummedAngles = {}
        done: dict[int, state.ScoredRows] = {}
        round_trips = len(requests) + self.star + (not self.alone)
        for k in range(round_trips):
            request = requests[k] if k < len(requests) else None
            if request is not None and not self.star:
                pending, request = relay(request), None
            sums = self.sums() if request is not None else {}
            summed, size, learn = pending, 0, bool(done)
            if summed and self.alone:
                learn = True
            elif summed:
                receiver = receivers[k - self.star]
                size = len(summed[receiver].rows)
                sums |= self.scores(receiver)
            at, last = each_of(self.parties, summed), k == round_trips - 1
            message = OverlappedMessage(request, sums, at, done, size, last, learn)
            replies = ask(message)
            done, pending = {}, {}
            if size:
                scores = opened(replies.sealed["scores"])
                done = {receiver: state.ScoredRows(summed[receiver].rows, scores)}
            if request is not None:
                pending = self.summed(request.rows, replies.sealed)
        return replies

    def answers(
        self,
        rows: Array,
        M: int,
        columns: int,
        block_bytes: int,
        evaluate: bool,
        curves: bool = False,
    ) -> prediction.KernelAnswer:
        """Run Algorithm 2 for `rows`, in blocks; return the receiver's last reply.

        The first label holder receives the scores.
        """
        receiver = self.holders[0]

        def answer(message: OverlappedMessage) -> Replies[prediction.KernelAnswer]:
            with_curves = {receiver: True} if curves and message.last else {}
            return self.ask(
                prediction.answer.summing(**message.sums),
                columns=columns,
                size=message.size,
                done=each_of(self.parties, message.done),
                at=message.at,
                request=message.request,
                evaluate=evaluate,
                last=message.last,
                curves=each_of(self.parties, with_curves),
            )

        blocks = row_blocks(rows, M, self.bits, block_bytes)
        requests = [state.AngleRequest(block, M, self.bits) for block in blocks]
        receivers = [receiver] * len(requests)
        replies = self.overlapped(requests, receivers, self._relay_held_out, answer)
        return replies[receiver]


def row_blocks(rows: Array, M: int, bits: int, block_bytes: int) -> Iterator[Array]:
    """Cut rows into ceil(bytes of their angles / block) pieces of nearly equal size.

    A piece has at most one row more than fits in `block_bytes`.
    """
    check_block(M, bits, block_bytes)
    size = len(rows) * M * bits // 8
    yield from np.array_split(rows, max(1, math.ceil(size / block_bytes)))


def check_block(M: int, bits: int, block_bytes: int, rows: int = 1) -> None:
    """Raise ``FederationError`` unless the angles of `rows` rows fit in a block."""
    least = rows * M * bits // 8
    if block_bytes < least:
        raise FederationError(
            f"block_bytes must be at least {least}, to hold {rows} "
            f"row{'s' * (rows > 1)} of {M} features, got {block_bytes}"
        )


@settings
class AngleStrategy(ProtocolStrategy):
    """Settings of all tasks in which label holders receive angles."""

    _: KW_ONLY
    bits: Bits = "auto"
    """Bits per angle. "auto": 8 in training with FDSKL, otherwise 16."""
    block_bytes: Natural = 16_000_000
    """Maximum bytes of angles per party and round trip."""
    topology: Topology = "star"
    """The path of the sums. "star": to the server; "ring" and "tree": between parties,
    encrypted, in more round trips."""
    allow_two_parties: bool = False
    """Allow two parties, although the label holder learns the other party's angles."""
    angle_masking: AngleMasking = "circle"
    """"circle": each party's features are its secret, and angles are summed under masks
    modulo a turn. "paper": the paper's Algorithm 3, in which all parties know omega,
    and phases hide the sums along two totally different trees; the label holder can
    compute differences between rows of the other parties' columns. "paper" is for
    comparison, and runs in one process only, as does `masking` "plain", which uses
    angles in float64. A model that was trained with "paper" must predict with "paper",
    and no other model may do so."""

    auto_bits: ClassVar[CircleBits] = 16
    """Number of bits for ``bits="auto"``."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.masking == "plain":
            check_unused(self, ["angle_masking", "bits"], "masking 'plain'")
        if self.angle_masking == "paper":
            check_unused(self, ["bits"], "angle_masking 'paper'")
            if self.topology == "star":
                raise ValueError(
                    "with angle_masking 'paper', topology must be 'ring' or 'tree', "
                    "got 'star': phases travel along two different trees"
                )

    @property
    def angle_bits(self) -> state.Bits:
        """Number of bits of an angle, from the settings."""
        if self.masking == "plain" or self.angle_masking == "paper":
            return 64
        return self.auto_bits if self.bits == "auto" else self.bits

    def angles(
        self,
        parties: Parties,
        holders: list[int],
        phase_parties: Sequence[int],
        scale: float = 1.0,
    ) -> Angles:
        """Return the :class:`Angles` of these label holders."""
        return Angles(
            parties,
            holders,
            self.angle_bits,
            self.topology,
            phase_parties=tuple(phase_parties),
            scale=scale,
        )
