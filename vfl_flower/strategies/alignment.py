"""Agree on the rows that all parties hold, and on their order."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients import alignment as party
from vfl_flower.models.alignment import AlignmentModel
from vfl_flower.models.base import Model
from vfl_flower.numerics.alignment import overlaps
from vfl_flower.party.memory import Memory
from vfl_flower.party.row_order import NAME, NAME_RULE
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import each
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.metrics import Metric
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolStrategy, Run
from vfl_flower.strategies.evaluation import record_model
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

SALT_BYTES = 16


@settings
class Alignment(ProtocolStrategy):
    """Private set intersection of the parties' ids, by Diffie-Hellman on X25519.

    ==============  ====================================  ============================
    round trip      party j sends                         the server learns
    ==============  ====================================  ============================
    hello           how many ids it has                   these numbers
    encrypt_ids     its ids as shuffled points under its  nothing
                    key, sealed for party j + 1
    encrypt_points  the list of party j - 1 under one     nothing; from the last one
    (T - 1 times)   more key, sealed for party j + 1;     the size of the intersection
                    the last time for the server          of every subset of parties
    keep_order      whether it has kept the order         all of it
    ==============  ====================================  ============================

    A party learns how many ids each other party has, and which of its own ids all
    parties hold. The server chooses the common order, which is the order of the
    encrypted points, and learns no id. With ``method="keyed"``, each party sends
    keyed hashes instead: whoever has both the key and the hashes can test any id.

    Raises
    ------
    FederationError
        From `start`: no id is held by all parties.
    PartyFailed
        A party has no ids, repeats an id, or does not follow the protocol.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> ids = np.arange(30)
    >>> parties = [vf.Party(np.zeros((25, 1)), ids=ids[j : j + 25]) for j in (0, 5)]
    >>> model = vf.simulate(Alignment("2026-q4"), parties).model
    >>> aligned = [p.take(rows) for p, rows in zip(parties, model.rows_, strict=True)]
    >>> len(aligned[0].ids), list(aligned[0].ids) == list(aligned[1].ids)
    (20, True)
    """

    alignment: str = ""
    """Name of the order, such as "2026-q4"; later runs set `alignment` to this name."""
    method: Literal["ecdh", "keyed"] = "ecdh"
    """"ecdh": Diffie-Hellman on X25519. "keyed": hashes under a secret key of the
    parties. This is faster, but anyone who has the key and sees the hashes can test
    ids."""

    model_class = AlignmentModel
    question = "Which rows do all parties hold?"
    explained: ClassVar[Mapping[str, Metric]] = {
        "common": Metric(
            "Rows that all parties hold",
            "Rows whose ids every party has. Later runs use them in the same order.",
            "higher",
            "count",
        )
    }
    partition = "either"
    steps = (
        party.encrypt_ids,
        party.encrypt_points,
        party.hash_with_key,
        party.keep_order,
    )

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.alignment:
            self.check()

    def check(self) -> None:
        """Raise ``ValueError``, before any message, if the order's name is invalid."""
        if not re.fullmatch(NAME, self.alignment):
            raise ValueError(f"{NAME_RULE}, got {self.alignment[:70]!r}")

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Compare encrypted lists, and send each party its rows in the common order."""
        lists = self._lists(parties, [info.n_rows for info in parties])
        try:
            held, counts, common, positions = overlaps(lists)
        except ValueError as error:
            name = parties[error.args[1]].name
            raise FederationError(
                f"the list of {name!r} repeats a point, but must contain each point "
                "only once: a party did not follow the protocol"
            ) from None
        if not len(common):
            raise FederationError(
                f"no id is held by all {len(parties)} parties: run vfl-flower check at "
                "each party, and compare how the parties write their ids"
            )
        tag = hashlib.sha256(common.tobytes()).digest()
        replies = parties.ask(
            party.keep_order,
            alignment=self.alignment,
            positions=each([where.astype(np.uint32) for where in positions]),
            tag=tag,
        )
        stored = zip(parties, replies.each("kept"), strict=True)
        if names := [info.name for info, is_stored in stored if not is_stored]:
            log.warning("order not stored: no state-dir at %s", ", ".join(names))
        model = AlignmentModel(self.alignment, tag.hex(), held, counts)
        run.warnings += [
            f"at most {low:.0%} of the ids of {parties[place].name!r} overlap with "
            f"another party's ids, while the ids of two other parties overlap by "
            f"{high:.0%}: run vfl-flower check at each party, and compare how ids are "
            "written (case, signs, leading zeros, length)"
            for place, low, high in model.outliers()
        ]
        return record_model(run, model, {"common": len(common)})

    def _lists(self, parties: Parties, sizes: list[int]) -> Sequence[Array]:
        """Return each party's ids, encrypted by every party."""
        if self.method == "keyed":
            salt = parties.checkpoint.token(SALT_BYTES)
            hashed = parties.ask(party.hash_with_key, salt=salt, sizes=sizes)
            lists: list[Array] = hashed.each("hashes")
            makers = list(range(len(parties)))
            asked = hashed.failure
        else:
            # Each list is encrypted for the party that receives it.
            started = parties.ask(party.encrypt_ids, sizes=sizes)
            points: list[bytes] = started.secrets["points"]
            for left in range(len(parties) - 2, -1, -1):
                replies = parties.ask(party.encrypt_points, points=each(points))
                points = replies.secrets["points"] if left else []
            # The list of party j comes back from the party before it.
            makers = [(j - 1) % len(parties) for j in range(len(parties))]
            encrypted = replies.each("encrypted")
            lists, asked = [encrypted[j] for j in makers], replies.failure
        for maker, array, size in zip(makers, lists, sizes, strict=True):
            if array.dtype != np.uint8 or len(array) != size:
                raise asked(maker, f"its reply must have {size} rows of 32 bytes")
        return lists

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add each party's common rows to the model."""
        assert isinstance(model, AlignmentModel)
        rows = [memory.remembered("rows") for memory in memories]
        model.rows_ = [places for places in rows if places is not None]
