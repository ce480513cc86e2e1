"""Predictions for new rows by a model whose parts lie at the parties."""

from __future__ import annotations

import logging

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models import KernelModel
from vfl_flower.strategies.angles import MASKINGS, Angles, check_topology
from vfl_flower.strategies.base import (
    ProtocolStrategy,
    Run,
    check_bits,
    check_flags,
    check_whole,
)
from vfl_flower.strategies.exchange import FederationError
from vfl_flower.strategies.parties import Parties
from vfl_flower.typing import Values

log = logging.getLogger("vfl_flower")


class FDSKLPrediction(ProtocolStrategy):
    """Predictions for new rows by a model whose parts lie at the parties.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, key                       all of it
    part           place, kernel, bandwidth, sizes,       all of it
                   label holders, scale of labels
    answer         angles; of several label holders its   nothing
                   part of scores; masked
    =============  =====================================  ==========================

    The first holder of coefficients, in party order, writes the predictions to a file
    in its ``state-dir``.

    Parameters
    ----------
    model : str
        The number of the model, which its training gave: ``result.model.model``.
    bits, topology, block_bytes, allow_two_parties, masking, n_parties
        As of :class:`FDSKL`.

    Raises
    ------
    FederationError
        A party has another place than in training.
    PartyFailed
        A party has no part of this model, or one of another, or other columns.
    """

    model_class = KernelModel
    maskings = MASKINGS

    def __init__(
        self,
        model: str,
        *,
        bits: int = 16,
        block_bytes: int = 16_000_000,
        topology: str = "star",
        allow_two_parties: bool = False,
        masking: str = "circle",
        n_parties: int = 0,
    ) -> None:
        super().__init__(masking=masking, n_parties=n_parties)
        check_topology(topology, masking)
        check_whole("block_bytes", block_bytes, 1)
        check_bits(bits)
        if not model:
            raise ValueError("model must be the number of a trained model, got none")
        self.model, self.bits, self.block_bytes = model, bits, block_bytes
        self.topology, self.allow_two_parties = topology, allow_two_parties
        check_flags(self, "allow_two_parties")

    def frame(self) -> Values:
        """Return what every message tells: of which model the parties need parts."""
        return {"model": self.model}

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Look at the parts, then answer for all rows in blocks."""
        parties.refuse_two("FDSKL", self.allow_two_parties)
        replies = parties.ask("fdskl_part")
        for j, reply in enumerate(replies):
            if reply["index"] != j:
                raise FederationError(
                    f"{parties[j].name!r} must have the place of training, "
                    f"{reply['index']}, got {j}: set partition-id"
                )
        first = replies[0]
        holders, M = list(first["holders"]), int(first["n_features"])
        if first["parties"] != len(parties):
            raise FederationError(
                f"the {first['parties']} parties of training must take part, "
                f"{len(parties)} do"
            )
        shared = bool(first["kept"])
        if shared != (self.masking == "paper"):
            raise FederationError(
                f"masking must be {'paper' if shared else 'circle or plain'} as in "
                f"training, got {self.masking!r}"
            )
        angles = Angles(
            parties,
            holders,
            f"circle{self.bits}" if self.masking == "circle" else "plain",
            self.topology,
            shared=shared,
            kept=tuple(first["kept"]),
            scale=max(float(replies[j]["scale"]) for j in holders),
        )
        rows = np.arange(parties.n_rows, dtype=np.uint32)
        columns = int(replies[holders[0]]["columns"])
        angles.answers(rows, M, columns, self.block_bytes, False)
        log.info(
            "%d predictions are at %r, in predictions-%s-%016x.csv of its state-dir",
            len(rows),
            parties[holders[0]].name,
            self.model,
            parties.session,
        )
        model = KernelModel(
            self.model,
            str(first["kernel"]),
            float(first["bandwidth"]),
            M,
            [party.n_columns for party in parties],
            kept=True,
        )
        run.record(1, model.to_record(), {"rows": parties.n_rows})
        return model.to_record()
