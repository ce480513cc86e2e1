"""Federated doubly stochastic kernel learning.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
[2] F. Provost, D. Jensen, T. Oates, "Efficient Progressive Sampling", KDD 1999.
[3] A. Rudi, L. Rosasco, "Generalization Properties of Learning with Random Features",
    NeurIPS 2017.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import pydantic
from flwr.app import ArrayRecord

from vfl_flower.clients import fdskl as party
from vfl_flower.clients.evaluation import curves_of, metrics_of
from vfl_flower.models.base import Model
from vfl_flower.models.fdskl import KernelModel
from vfl_flower.numerics import evaluation
from vfl_flower.numerics.kernel_bandwidth import WIDEST
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.kernel_solvers import LossName
from vfl_flower.numerics.random_features import Kernel
from vfl_flower.numerics.split import split_rows
from vfl_flower.protocol.consent import LEAST_ROWS, Kind, Terms
from vfl_flower.protocol.exchange import FederationError
from vfl_flower.protocol.memory import Memory
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.replies import Replies
from vfl_flower.protocol.seals import Sealed
from vfl_flower.protocol.settings import (
    Count,
    Fraction,
    Natural,
    Positive,
    check_unused,
    settings,
)
from vfl_flower.protocol.steps import Steps, Sum, opened
from vfl_flower.protocol.strategy import ProtocolStrategy, Run
from vfl_flower.secure_aggregation import LIMB
from vfl_flower.strategies.angles import (
    Angles,
    Bits,
    Masking,
    SummedAngles,
    Topology,
    bits_of,
    check_block,
    check_topology,
    row_blocks,
)
from vfl_flower.strategies.evaluation import KERNEL, left_out
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_FEATURES = 2048
"""Most features to spend the budget on: the solver's time grows with their cube."""

IMPLICIT_FEATURES = 1500
"""The same with implicit steps: half of the bytes of the direct solver."""

PUBLISHED_STEPS = 32
"""Iterations of the published update for each label holder."""


@dataclass(frozen=True)
class _Trained:
    """What training tells the server."""

    columns: int  # C
    kept: bool  # whether all parties keep their parts of the model
    scale: float = 1.0  # of the labels of several label holders
    metrics: dict[str, float] = field(default_factory=dict)
    multiple: int = 1  # of the angles, which divides the bandwidth


@settings
class FDSKL(ProtocolStrategy):
    """Kernel learning with random features over split columns.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, number of labels, key     all of it
    distances      its part of distances between rows,    nothing: only the label
                   masked                                 holder can open the sum
    bandwidth      the label holder: their median         the bandwidth
    angles         omega_j^T x_j + b_j, masked            nothing
    fit            the label holder: a cross-validation   the score, and lambda
                   score, lambda, number of classes,
                   whether it converged; with
                   ``bandwidth="auto"`` the bandwidth
    start          label holders: numbers of their        the rows' numbers
                   instances, columns of f, and the
                   scale of labels (a power of two)
                   (``doubly-stochastic``)
    iterate        angles; one of several label holders   nothing
                   also its part of the scores; masked
    answer         the same for rows held out; then the   the mean error, the
                   first label holder: their mean error   curves
                   and number, and curves if it consents
    last of        whether it keeps its part              all of it
    training
    =============  =====================================  ==========================

    From the summed angles the label holder also learns the other parties' columns of
    these rows up to a linear map that it does not know, nearly a rotation. With several
    label holders each learns f(x) of the rows that it picks, so with exactly two the
    other's part of it; all parties learn the picked rows and the largest scale.

    Notes
    -----
    Differs from [1] in: 1. ``solver="direct"``; 2. ``masking="circle"``, with private
    features; 3. an intercept; 4. blocks of instances and features; 5.
    ``step="implicit"``; 6. with ``masking="paper"`` the party whose phase stays is
    picked once for each label holder, not at each call: a feature whose phase changes
    is another one.

    Whoever knows the seed of a run knows the features of all parties: give a seed in
    experiments only.

    ``result.model`` predicts where all parts are in one process (``simulate``).
    Otherwise a run with ``task="predict"`` does, from the parties' ``state-dir``.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> y = (X**2).sum(axis=1) > 2.4
    >>> parties = [Party(X[:, :1]), Party(X[:, 1:2]), Party(X[:, 2:], y=y)]
    >>> result = simulate(FDSKL(), parties, seed=0)
    >>> bool((result.model.predict([X[:, :1], X[:, 1:2], X[:, 2:]]) == y).mean() > 0.95)
    True
    """

    loss: LossName = "logistic"
    """The loss L, from Table 1 of the paper."""
    kernel: Kernel = "gaussian"
    """"gaussian": ``exp(-|x - x'|^2 / (2 bandwidth^2))``. "laplacian":
    ``exp(-|x - x'|_1 / bandwidth)``."""
    solver: Literal["direct", "doubly-stochastic"] = "direct"
    """"direct": the label holder gets the angles of a sample of rows once, and solves
    exactly. "doubly-stochastic": the paper's Algorithm 1, for one or several label
    holders."""
    _: KW_ONLY
    target: Target = "binary"
    """What the labels are. "binary": two values. "multiclass": up to 100 values, each
    learned against the rest. "continuous": real numbers, with the square loss only."""
    class_weight: Literal["none", "balanced"] = pydantic.Field(
        default="none", kw_only=True
    )
    """"balanced": every class counts as much as any other, so that a rare one is found
    more often, at more false alarms; probabilities are then those of classes of the
    same size. With ``direct`` alone."""
    bandwidth: Positive | Literal["median", "auto"] = "median"
    """Bandwidth of the kernel, in the unit of the columns. "median": gamma = 1 /
    median(distance^2), from 1,000 pairs of rows in two more round trips. "auto", with
    ``direct`` alone: the best of seven from 4 times to a third of the median one, by
    the labels."""
    regularization: Positive | Literal["auto"] = "auto"
    """lambda in ``mean loss + lambda / 2 |f|^2``. "auto": chosen by cross-validation at
    the label holder; 1 / n with a number as `step`. With implicit steps it is 1 /
    gamma; "explicit" steps have none."""
    budget: Natural = 64_000_000
    """Most bytes of angles that a party sends to train."""
    rows: Count = 0
    """Rows to train on; 0: as many as the budget pays for, eight for each feature."""
    features: Count = 0
    """Random features in all; 0: one for every eight rows, and more if the budget pays
    for them, up to 2,048, or 1,500 with implicit steps. The doubly stochastic solver
    takes a multiple of `iterations`."""
    bits: Bits = "auto"
    """Bits of an angle on the circle. "auto": 16, and 8 with ``doubly-stochastic``."""
    block_bytes: Natural = 16_000_000
    """Bytes of angles that a party sends in one round trip, to within one row."""
    topology: Topology = "star"
    """How sums travel. "star": to the server. "ring", "tree": from party to party,
    encrypted between them, in more round trips."""
    iterations: Count = 0
    """Iterations of the doubly stochastic solver, each with an equal share of the
    features. 0: two for each label holder with implicit steps, otherwise 32. As many as
    `rows` and `features` is the paper's Algorithm 1."""
    step: Positive | Literal["implicit", "explicit"] = "implicit"
    """How the doubly stochastic solver learns from a batch. "implicit": coefficients
    that minimise the loss of the batch, with a penalty by cross-validation. A number:
    the published update, with this gamma. "explicit": the published update with the
    best of seven gammas, or with several label holders one that is sure to converge."""
    test_fraction: Fraction = 0.0
    """Share of the rows held out. As many of them as a quarter of the budget pays for
    serve to estimate the error, in extra round trips."""
    allow_two_parties: bool = False
    """Allow two parties, although the label holder then gets the other's angles."""
    # Not the words of the base class, which masks sums with any word but "plain".
    masking: Masking = pydantic.Field(default="circle", kw_only=True)  # type: ignore[assignment]
    """"circle": each party's features are its secret, and angles are summed under masks
    modulo a turn. "paper": the paper's Algorithm 3, in which all parties know omega,
    and phases hide the sums along two totally different trees; the label holder can
    compute differences between rows of the others' columns. "plain": no masks, angles
    in float64. The last two are for comparison, and run in one process only."""

    labelled = True
    model_class = KernelModel
    question = "What is a good nonlinear classifier or regression?"
    explained = KERNEL
    steps: ClassVar[Steps] = (
        *(party.distances, party.bandwidth, party.angles, party.fit),
        party.start,
        *(party.iterate, party.answer, party.held_out_angles),
    )
    evaluation_steps = (*(party.answer, party.held_out_angles),)

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where settings do not fit together."""
        super().__post_init__()
        if self.rows == 1:
            raise ValueError("rows must be 0 or at least 2, got 1")
        if self.target == "continuous" and self.loss != "square":
            raise ValueError(
                f"loss must be 'square' for target 'continuous', got {self.loss!r}"
            )
        check_topology(self.topology, self.masking)
        unused = ["iterations", "step"] if self.solver == "direct" else ["class_weight"]
        check_unused(self, unused, f"solver {self.solver!r}")
        if self.bandwidth == "auto" and self.solver != "direct":
            raise ValueError(
                "bandwidth must be a number or 'median' with solver "
                f"{self.solver!r}, got 'auto'"
            )
        if self.target == "continuous":
            check_unused(self, ["class_weight"], "target 'continuous'")
        if self.masking != "circle":
            check_unused(self, ["bits"], f"masking {self.masking!r}")
        if (
            self.solver == "doubly-stochastic"
            and _number(self.step, 0.0) * _number(self.regularization, 0.0) > 1
        ):
            raise ValueError(
                "step times regularization must be at most 1 (Theorem 4), got "
                f"{self.step} and {self.regularization}"
            )
        if self.step == "explicit":
            check_unused(self, ["regularization"], "step 'explicit'")

    @property
    def terms(self) -> Terms:
        """Angles; with rows held out the curves; predictions of several holders."""
        curves: tuple[Kind, ...] = ("curves",) if self.test_fraction else ()
        several = self.solver == "doubly-stochastic"
        return Terms(("angles",), ("predictions", *curves) if several else curves)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Choose a bandwidth, train, and measure the error on the rows held out."""
        holders, direct = parties.label_holders, self.solver == "direct"
        labels = [parties[j].n_labels for j in holders]
        if self.solver != "doubly-stochastic" and labels != [parties.n_rows]:
            raise FederationError(
                f"solver {self.solver!r} needs one party with the labels of all "
                f"{parties.n_rows} rows, got "
                + ", ".join(
                    f"{parties[j].name!r} with {parties[j].n_labels}" for j in holders
                )
                + ": 'doubly-stochastic' takes several"
            )
        if len(holders) > 1 and self.target == "multiclass":
            raise FederationError(
                "target 'multiclass' needs one label holder, since each would have its "
                f"own classes: got {', '.join(parties[j].name for j in holders)}"
            )
        lacking = [p.name for p in parties if "predictions" not in p.lets]
        if len(holders) > 1 and lacking:
            raise FederationError(
                "with several label holders all parties must consent to 'predictions', "
                f"but {', '.join(map(repr, lacking))} do not"
            )
        parties.refuse_two("FDSKL", self.allow_two_parties)
        self._warn(parties, holders)
        train, test = split_rows(parties.n_rows, self.test_fraction, run.seed)
        train = np.arange(parties.n_rows) if train is None else train
        if parties.n_rows < 2:
            raise FederationError("FDSKL needs at least two rows, got one")
        if len(train) < 2:
            raise FederationError(
                "test_fraction must leave at least two rows to train on, got "
                f"{self.test_fraction} of {parties.n_rows} rows"
            )
        if self.test_fraction and not len(test):
            log.warning(
                "test_fraction holds out no row: %g of %d rows",
                self.test_fraction,
                parties.n_rows,
            )
        least = min(LEAST_ROWS, parties.n_rows // 2)  # a party insists on it
        if direct and 0 < self.rows < least:
            raise FederationError(
                f"rows must be 0 or at least {least} of {parties.n_rows} rows, got "
                f"{self.rows}"
            )
        batches: list[int] = []
        if direct:
            n = len(train)
            train, M = self._sample(train, run)
            used = len(train)
            check_block(M, self._bits, self.block_bytes)
        else:
            if self.regularization == "auto" and _number(self.step, 0.0) > len(train):
                raise FederationError(
                    f"step must be at most the {len(train)} rows to train on with "
                    f"regularization 'auto' (Theorem 4), got {self.step}"
                )
            share = len(train) / parties.n_rows
            known = [round(share * count) for count in labels]
            batches, M = self._batches(known)
            n, used = sum(known), sum(batches)
            if used >= n - len(batches):  # each batch loses less than a row
                used = n
        if not self.rows:
            larger = "a larger budget, or fewer features, takes more"
            run.warnings += left_out("to train on", used, n, larger)
        bandwidth = self._bandwidth(parties, holders[0], train if direct else None)
        block = M // max(1, len(batches))
        setup = self._setup(parties, run, holders, M, block, bandwidth)
        model = self._untrained(parties, run, bandwidth, M)
        kept = tuple(setup.shared.kept) if setup.shared else ()
        angles = Angles(parties, holders, self._bits, self.topology, kept)
        if direct:
            trained = self._direct(angles, train, setup)
            bandwidth = model.bandwidth = bandwidth / trained.multiple
        else:
            trained = self._doubly_stochastic(angles, batches, len(train), setup)
        model.kept = trained.kept
        metrics = trained.metrics | {"features": M, "bandwidth": bandwidth}
        if len(test):
            most = max(1, self.budget // 4 // (M * self._bits // 8))
            order = run.rng("test rows").permutation(len(test))
            larger = "a larger budget takes more"
            run.warnings += left_out("to test", most, len(test), larger)
            test = np.sort(test[order[:most]])
            reply = self._evaluate(
                replace(angles, scale=trained.scale), test, M, trained.columns
            )
            metrics |= metrics_of(reply)
            run.curves = curves_of(reply)
        run.record(1, model.to_record(), metrics)
        return model.to_record()

    def _untrained(
        self, parties: Parties, run: Run, bandwidth: float, M: int
    ) -> KernelModel:
        """Return the model without its parts, and record it."""
        number, widths = f"{parties.session:016x}", [p.n_columns for p in parties]
        model = KernelModel(number, self.kernel, bandwidth, M, widths)
        run.record(0, model.to_record())
        log.info("model %s", number)
        return model

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return whether the solver has converged, and whether the model is any use."""
        told = evaluation.shortfalls(metrics)
        if metrics.get("converged", 1.0):
            return told
        return [
            "the label holder's solver did not converge, or the labels of the rows to "
            "train on are equal: the model is not the optimum",
            *told,
        ]

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add the parts of the model if all parties are in this process."""
        assert isinstance(model, KernelModel)
        model.complete([m.part for m in memories if m.run == model.model])

    # -- settings --------------------------------------------------------------------

    @property
    def enough_rows(self) -> int | None:
        """Where training and test use up the budget."""
        size = self._bits // 8
        products = self.budget // size
        M = self._first_features(products)
        train = self.rows or max(1, products // M)
        enough = math.ceil(train / (1 - self.test_fraction))
        if self.test_fraction:
            test = max(1, self.budget // 4 // (M * size))
            enough = max(enough, math.ceil(test / self.test_fraction))
        return enough

    def trade(self, n_rows: int) -> str:
        """Say how many bytes a run sends, and for what."""
        n = n_rows - int(n_rows * self.test_fraction)
        try:
            if self.solver == "direct":
                rows, M = self._sample(np.arange(n), Run(0))
            else:
                batches, M = self._batches([n])
        except FederationError:
            return ""
        if self.solver != "direct":
            size = self._area(batches) * M // len(batches) * self._bits / 8e6
            return (
                f"For training a party sends the angles of {sum(batches):,} rows, in "
                f"{len(batches)} batches, with up to {M:,} features, {size:.3g} MB. "
                "Fewer `rows` or `features`, or a smaller `budget`, send less."
            )
        size = len(rows) * M * self._bits / 8e6
        return (
            f"For training a party sends the angles of {len(rows):,} rows with {M:,} "
            f"features, {size:.3g} MB. A smaller `budget` sends less."
        )

    def scaled(self, share: float) -> Self:
        """Scale the blocks, down to the least that the solver takes."""
        least = (self.features or MOST_FEATURES) * self._bits // 8
        block_bytes = max(least, round(share * self.block_bytes))
        return self.replace(block_bytes=min(block_bytes, self.block_bytes))

    def _warn(self, parties: Parties, holders: list[int]) -> None:
        """Warn where the label holder learns more than linearly mixed columns."""
        if self.seed is not None:
            log.warning(
                "the run has a seed: who knows it knows the features of all parties"
            )
        if self.kernel == "laplacian":
            log.warning(
                "the angles of the laplacian kernel give the label holder the other "
                "parties' columns one by one"
            )
        for holder in holders:
            n_columns = sum(p.n_columns for j, p in enumerate(parties) if j != holder)
            if n_columns < 3:
                log.warning(
                    "%r learns nearly all of the %d columns of the other parties",
                    parties[holder].name,
                    n_columns,
                )

    @property
    def _balanced(self) -> bool:
        return self.class_weight == "balanced"

    @property
    def _bits(self) -> party.Bits:
        auto: Literal[8, 16] = 8 if self.solver == "doubly-stochastic" else 16
        return bits_of(self.bits, self.masking, auto)

    def _setup(
        self,
        parties: Parties,
        run: Run,
        holders: list[int],
        M: int,
        block: int,
        bandwidth: float,
    ) -> party.Setup:
        shared = None
        if self.masking == "paper":
            rng = run.rng("kept")
            shared = party.SharedFeatures(
                seed=f"{run.seed:x}",
                widths=[info.n_columns for info in parties],
                kept=[
                    int(rng.choice([j for j in range(len(parties)) if j != holder]))
                    for holder in holders
                ],
            )
        return party.Setup(
            target=self.target,
            kernel=self.kernel,
            bandwidth=bandwidth,
            n_features=M,
            holders=holders,
            block=block,
            shared=shared,
            chooses=self.bandwidth == "auto",
        )

    def _bandwidth(self, parties: Parties, holder: int, rows: Array | None) -> float:
        """Return the bandwidth: as given, or from the median distance between rows.

        The pairs are among `rows`, whose angles are asked for too, so that no other row
        is shared. The doubly stochastic form does not know its rows yet: None.
        """
        if self.bandwidth not in ("median", "auto"):
            return float(self.bandwidth)
        sealed = parties.ask(
            party.distances.summing(distances=Sum(LIMB, to=holder)),
            kernel=self.kernel,
            target=self.target,
            holder=holder,
            rows=None if rows is None else rows.astype(np.uint32),
        ).sealed["distances"]
        reply = parties.ask_one(
            holder, party.bandwidth, kernel=self.kernel, distances=opened(sealed)
        )
        widest = WIDEST if self.bandwidth == "auto" else 1
        return widest * float(reply["bandwidth"])

    def _first_features(self, products: int) -> int:
        """Return M for a budget in angles where there are rows enough."""
        return self.features or max(1, min(MOST_FEATURES, math.isqrt(products // 8)))

    def _sample(self, train: Array, run: Run) -> tuple[Array, int]:
        """Return the rows to train on, and M."""
        size = self._bits // 8
        n, products = len(train), self.budget // size
        M = self._first_features(products)
        m = self.rows or min(n, products // M)
        if m > n:
            raise FederationError(
                f"rows must be at most the {n} rows to train on, got {m}"
            )
        if not self.features:
            M = max(1, min(MOST_FEATURES, products // max(m, 1)))
        least = self.rows or min(n, LEAST_ROWS)
        if m < least or m * M > products:
            raise FederationError(
                f"budget must pay for the angles of {least} rows with {M} features, "
                f"{least * M * size} bytes, got {self.budget}"
            )
        rows = run.rng("rows").choice(train, size=m, replace=False, shuffle=False)
        return np.sort(rows), M

    def _batches(self, labels: list[int]) -> tuple[list[int], int]:
        """Return the rows of each iteration, and M, by what label holders know."""
        L, known, size = len(labels), sum(labels), self._bits // 8
        implicit, products = self.step == "implicit", self.budget // size
        T = self.iterations or (2 * L if implicit else PUBLISHED_STEPS)
        m = self.rows or min(known, products // self._first_features(products))
        if implicit and m > known:
            raise FederationError(
                f"rows must be at most the {known} labels to train on, got {m}"
            )
        batches = [1] * T
        for j, count in enumerate(labels):
            turns = range(j, T, L)
            weights = [1 / (t // L + 1) if implicit else 1.0 for t in turns]
            for t, weight in zip(turns, weights, strict=True):
                rows = m * count / known * weight / sum(weights)
                batches[t] = max(1, math.floor(rows + 1e-9))
        most = self.features or (IMPLICIT_FEATURES if implicit else MOST_FEATURES)
        if not self.features:
            largest = max(rows * (t + 1) for t, rows in enumerate(batches))
            most = min(
                most,
                T * (products // self._area(batches)),
                T * max(1, self.block_bytes // size // largest),
            )
        block = most // T
        if not block or self._area(batches) * block > products:
            raise FederationError(
                f"features must be at least the {T} iterations, and budget must pay "
                f"for the angles of {sum(batches)} rows with them, got {most} features "
                f"and {self.budget}"
            )
        for t, rows in enumerate(batches):
            check_block((t + 1) * block, self._bits, self.block_bytes, rows)
        return batches, T * block

    @staticmethod
    def _area(batches: list[int]) -> int:
        """Return the angles of a run for each feature of an iteration."""
        return sum(rows * (t + 1) for t, rows in enumerate(batches))

    # -- solvers ---------------------------------------------------------------------

    def _direct(self, angles: Angles, rows: Array, setup: party.Setup) -> _Trained:
        """Collect the angles of rows; solve at the label holder."""
        holder, regularization = angles.holders[0], _number(self.regularization, 0.0)
        rows = rows.astype(np.uint32)
        blocks, offsets = self._collect(angles, rows, setup)
        problem = party.Problem(rows, self.loss, regularization, self._balanced)
        fitted = angles.parties.ask(
            party.fit,
            problem=angles.each({holder: problem}),
            angles=angles.each({holder: blocks}),
            offsets=angles.each(offsets),
        )
        solution = fitted[holder]
        self._check_learned(fitted, holder, "regularization", "converged")
        metrics = {
            "regularization": solution["regularization"],
            "converged": solution["converged"],
            "rows": len(rows),
        }
        if "cv_score" in solution:
            metrics["cv_score"] = solution["cv_score"]
        kept = all(fitted.each("kept"))
        if setup.chooses:
            self._check_learned(fitted, holder, "multiple")
        multiple = solution.get("multiple", 1)
        return _Trained(solution["columns"], kept, metrics=metrics, multiple=multiple)

    def _collect(
        self, angles: Angles, rows: Array, setup: party.Setup
    ) -> tuple[dict[int, Array], dict[int, Array]]:
        """Collect the angles of all rows in blocks, and the phases to subtract."""
        holder, M = angles.holders[0], setup.n_features
        blocks: dict[int, Array] = {}
        offsets: dict[int, Array] = {}
        for k, block in enumerate(row_blocks(rows, M, angles.bits, self.block_bytes)):
            request = party.AngleRequest(block, M, angles.bits)
            if angles.star:
                question = party.angles.summing(**angles.sums())
                replies = angles.ask(question, request=request, setup=setup)
                summed = angles.summed(block, replies.sealed)
            else:
                summed = angles.relay(request, setup)
            blocks[k] = opened(summed.angles[holder])
            if holder in summed.offsets:
                offsets[holder] = opened(summed.offsets[holder])
        return blocks, offsets

    def _doubly_stochastic(
        self, angles: Angles, batches: list[int], n: int, setup: party.Setup
    ) -> _Trained:
        """Algorithm 1, with the label holders taking turns.

        In a star the iterations overlap, one to a round trip: a message asks for the
        angles of iteration t and the step of t - 1, or with several label holders for
        the angles of t, the scores of t - 1 and the step of t - 2.
        """
        parties, holders, L = angles.parties, angles.holders, len(angles.holders)
        step = {"implicit": None, "explicit": 0.0}.get(str(self.step), self.step)
        automatic = 1 / n if isinstance(self.step, float) else 0.0
        rule = party.Rule(
            self.loss,
            _number(self.regularization, automatic),
            cast(float | None, step),
        )
        picked = parties.ask(
            party.start,
            test_fraction=self.test_fraction,
            setup=setup,
            rule=rule,
            instances=angles.each(
                {j: sum(batches[place::L]) for place, j in enumerate(holders)}
            ),
        )
        instances: dict[int, Array] = {}
        for place, j in enumerate(holders):
            self._check_learned(picked, j, "rows", "scale")
            cuts = np.cumsum(batches[place::L])[:-1]
            turns = range(place, len(batches), L)
            instances |= zip(turns, np.split(picked[j]["rows"], cuts), strict=True)
        columns = picked[holders[0]]["columns"]
        scale = max(picked[j]["scale"] for j in holders)
        angles = replace(angles, scale=scale)
        pending: SummedAngles | None = None
        turn = 0  # the iteration of `pending`
        scored: tuple[int, Sealed] | None = None
        T = len(batches)
        trips = T + angles.star + (not angles.alone)
        for t in range(trips):
            request: party.AngleRequest | None = None
            if t < T:
                stop = (t + 1) * setup.block
                request = party.AngleRequest(instances[t], stop, angles.bits)
                if not angles.star:
                    pending, turn, request = angles.relay(request), t, None
            at, summed, offsets = angles.delivered(pending)
            sums = angles.sums() if request is not None else {}
            size, learn = 0, scored is not None
            if pending is not None and angles.alone:
                learn = True
            elif pending is not None:
                sums |= angles.scores(holders[turn % L])
                size = len(pending.rows)
            scores = {}
            if scored is not None:
                scores[holders[scored[0] % L]] = opened(scored[1])
            replies = angles.ask(
                party.iterate.summing(**sums),
                columns=columns,
                size=size,
                learn=learn,
                scores=angles.each(scores),
                at=at,
                angles=summed,
                offsets=offsets,
                request=request,
                keep=t == trips - 1,
            )
            scored = (turn, replies.sealed["scores"]) if size else None
            pending = None
            if request is not None:
                pending, turn = angles.summed(request.rows, replies.sealed), t
        return _Trained(
            columns, all(replies.each("kept")), scale, {"rows": sum(batches)}
        )

    def _evaluate(
        self, angles: Angles, test: Array, M: int, columns: int
    ) -> party.Answered:
        """Return what the model is worth on the rows held out."""
        parties, receiver = angles.parties, angles.holders[0]
        rows, curves = test.astype(np.uint32), parties.let("curves", receiver)
        reply = angles.answers(rows, M, columns, self.block_bytes, True, curves)
        least = "test_loss" if self.target == "continuous" else "test_error"
        count = reply.get("test_rows")
        if count is None or (count and least not in reply):
            reason = f"its reply lacks test_rows or {least}"
            raise parties.failure(receiver, party.answer, reason)
        return reply

    def _check_learned(self, replies: Replies[Any], j: int, *names: str) -> None:
        """Raise unless label holder j gives these values and as many columns as fit."""
        for name in ("columns", *names):
            if name not in replies[j]:
                raise replies.failure(j, f"its reply lacks {name!r}")
        columns = replies[j]["columns"]
        if (columns > 1) != (self.target == "multiclass"):
            reason = f"its reply must have columns of {self.target!r}, got {columns}"
            raise replies.failure(j, reason)


def _number(value: float | str, default: float) -> float:
    return default if isinstance(value, str) else float(value)
