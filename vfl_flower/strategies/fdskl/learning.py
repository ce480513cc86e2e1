"""Base class of both kinds of kernel learning from summed angles."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, Literal, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.evaluation import curves_of, metrics_of
from vfl_flower.clients.fdskl import angle_sums, prediction, state
from vfl_flower.models.base import PartedModel
from vfl_flower.models.fdskl import KernelModel
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.kernel_solvers import LossName
from vfl_flower.numerics.random_features import Kernel
from vfl_flower.protocol.settings import Count, Fraction, Natural, Positive, settings
from vfl_flower.protocol.steps import Sum, opened
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.limbs import LIMB
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.evaluation import PartedStrategy, left_out, record_model
from vfl_flower.strategies.fdskl.angles import Angles, AngleStrategy
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_FEATURES = 2048
"""Default maximum number of features: the time to fit grows with its cube."""


@settings
class KernelLearning(AngleStrategy, PartedStrategy):
    """Kernel learning with random features over split columns."""

    loss: LossName = "logistic"
    """Loss function; "square" for a continuous target."""
    kernel: Kernel = "gaussian"
    """"gaussian": ``exp(-|x-x'|^2 / (2 bandwidth^2))``. "laplacian": ``exp(-|x-x'|_1 /
    bandwidth)``."""
    _: KW_ONLY
    target: Target = "binary"
    """"binary": two values. "multiclass": up to 100 values, each learned against the
    rest. "continuous": real numbers."""
    bandwidth: Positive | Literal["median"] = "median"
    """Bandwidth in the unit of the columns. scikit-learn's gamma is
    ``1/(2 bandwidth^2)``, or ``1/bandwidth`` for "laplacian". "median": the median
    distance in 1,000 pairs of rows (for "gaussian", divided by the square root of 2),
    computed in two more round trips."""
    regularization: Positive | Literal["auto"] = "auto"
    """lambda in ``mean loss + lambda/2 |f|^2``; "auto": chosen by cross-validation at
    the label holder."""
    budget: Natural = 64_000_000
    """Maximum bytes of angles that a party sends in training."""
    rows: Count = 0
    """Number of rows to train on; 0 means as many as the budget allows, with eight rows
    per feature."""
    features: Count = 0
    """Number of random features; 0 means one per eight rows, or more if the budget
    allows, but at most 2,048."""
    test_fraction: Fraction = 0.0
    """Share of rows to hold out. The error is estimated on as many of these rows as a
    quarter of the budget allows, in extra round trips."""

    model_class = KernelModel
    question = "How well does a kernel model of all parties' columns predict {label}?"
    evaluation_steps = (prediction.answer, angle_sums.held_out_angles)

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.rows == 1:
            raise ValueError("rows must be 0 or at least 2, got 1")
        if self.target == "continuous" and self.loss != "square":
            raise ValueError(
                f"loss must be 'square' for target 'continuous', got {self.loss!r}"
            )

    @property
    def terms(self) -> Terms:
        """Angles and, with held-out rows, the curves."""
        return Terms(("angles",), ("curves",) if self.test_fraction else ())

    @property
    def enough_rows(self) -> int | None:
        """Number of rows with which training and testing use up the budget."""
        products = 8 * self.budget // self.angle_bits
        M = self._first_features(products)
        train = self.rows or max(1, products // M)
        enough = math.ceil(train / (1 - self.test_fraction))
        if self.test_fraction:
            test = max(1, products // (4 * M))
            enough = max(enough, math.ceil(test / self.test_fraction))
        return enough

    def scaled(self, share: float) -> Self:
        """Scale the blocks, but not below the minimum size that a run accepts."""
        least = (self.features or MOST_FEATURES) * self.angle_bits // 8
        block_bytes = max(least, round(share * self.block_bytes))
        return self.replace(block_bytes=min(block_bytes, self.block_bytes))

    def _first_features(self, products: int) -> int:
        """Return M for a budget of `products` angles, if there are enough rows."""
        return self.features or max(1, min(MOST_FEATURES, math.isqrt(products // 8)))

    def _split(self, parties: Parties, run: Run) -> tuple[Array, Array]:
        """Check the parties; return the training rows and the held-out rows."""
        name = type(self).__name__
        parties.refuse_two(name, self.allow_two_parties)
        self._warn(parties)
        train, test = self.split(parties, run, self.test_fraction)
        if parties.n_rows < 2:
            raise FederationError(f"{name} needs at least two rows, got one")
        if len(train) < 2:
            raise FederationError(
                "test_fraction must leave at least two rows to train on, got "
                f"{self.test_fraction} with {parties.n_rows} rows"
            )
        return train, test

    def _warn(self, parties: Parties) -> None:
        """Warn if the label holder learns more than linearly mixed columns."""
        if self.seed is not None:
            log.warning(
                "the run has a seed: whoever knows it knows all parties' features"
            )
        if self.kernel == "laplacian":
            log.warning(
                "the angles of the laplacian kernel reveal the other parties' columns "
                "to the label holder one by one"
            )
        for holder in parties.label_holders:
            n_columns = sum(p.n_columns for j, p in enumerate(parties) if j != holder)
            if n_columns < 3:
                log.warning(
                    "%r learns nearly all of the %d columns of the other parties",
                    parties[holder].name,
                    n_columns,
                )

    def _warn_of_rows(self, run: Run, used: int, available: int) -> None:
        """Add a warning if rows are left out although no setting requests it."""
        if not self.rows:
            larger = "to use more, raise budget or lower features"
            run.warnings += left_out("to train on", used, available, larger)

    def _bandwidth(self, parties: Parties, rows: Array | None = None) -> float:
        """Return the bandwidth: as given, or from the median distance between `rows`.

        If the run also requests the angles of `rows`, this choice uses no other rows.
        """
        if not isinstance(self.bandwidth, str):
            return self.bandwidth
        holder = parties.label_holders[0]
        sealed = parties.ask(
            angle_sums.distances.summing(distances=Sum(LIMB, to=holder)),
            kernel=self.kernel,
            target=self.target,
            holder=holder,
            rows=None if rows is None else rows.astype(np.uint32),
        ).sealed["distances"]
        reply = parties.ask_one(
            holder, angle_sums.bandwidth, kernel=self.kernel, distances=opened(sealed)
        )
        return float(reply["bandwidth"])

    def _setup(
        self, parties: Parties, run: Run, M: int, block: int, bandwidth: float
    ) -> state.Setup:
        shared, holders = None, parties.label_holders
        if self.angle_masking == "paper":
            rng = run.rng("kept")
            widths, places = [info.n_columns for info in parties], range(len(parties))
            others = ([j for j in places if j != holder] for holder in holders)
            kept = [int(rng.choice(of_holder)) for of_holder in others]
            shared = state.SharedFeatures(f"{run.seed:x}", widths, kept)
        return state.Setup(
            target=self.target,
            kernel=self.kernel,
            bandwidth=bandwidth,
            n_features=M,
            holders=holders,
            block=block,
            shared=shared,
        )

    def _angles_of(self, parties: Parties, setup: state.Setup) -> Angles:
        kept = setup.shared.kept if setup.shared else ()
        return self.angles(parties, setup.holders, kept)

    def _check_learned(self, replies: Replies[Any], j: int, *names: str) -> None:
        """Raise unless label holder j sends the named values and valid `columns`."""
        for name in ("columns", *names):
            if name not in replies[j]:
                raise replies.failure(j, f"its reply lacks {name!r}")
        columns = replies[j]["columns"]
        if (columns > 1) != (self.target == "multiclass"):
            reason = f"its reply must fit target {self.target!r}, got {columns} columns"
            raise replies.failure(j, reason)

    def _finish(
        self,
        model: PartedModel,
        angles: Angles,
        test: Array,
        run: Run,
        columns: int,
        metrics: Mapping[str, Any],
    ) -> ArrayRecord:
        """Measure the error on the held-out rows, and record the model."""
        M = model.n_features
        metrics = {**metrics, "features": M, "bandwidth": model.bandwidth}
        if len(test):
            most = max(1, self.budget // 4 // (M * self.angle_bits // 8))
            order = run.rng("test rows").permutation(len(test))
            larger = "to use more, raise budget"
            run.warnings += left_out("to test", most, len(test), larger)
            rows = np.sort(test[order[:most]]).astype(np.uint32)
            parties, receiver = angles.parties, angles.holders[0]
            curves = parties.let("curves", receiver)
            reply = angles.answers(rows, M, columns, self.block_bytes, True, curves)
            least = "test_loss" if self.target == "continuous" else "test_error"
            if reply.get("test_rows") != 0 and not {"test_rows", least} <= reply.keys():
                reason = f"its reply lacks test_rows or {least}"
                raise parties.failure(receiver, prediction.answer, reason)
            metrics |= metrics_of(reply)
            run.curves = curves_of(reply)
        return record_model(run, model, metrics)
