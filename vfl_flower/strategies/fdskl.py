"""Federated doubly stochastic kernel learning.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models import KernelModel
from vfl_flower.numerics.fdskl import SCHEDULES, step_sizes
from vfl_flower.numerics.kernel_solvers import LOSSES
from vfl_flower.numerics.random_features import KERNELS
from vfl_flower.numerics.split import split_rows
from vfl_flower.secure_aggregation import LIMB
from vfl_flower.strategies.angles import (
    MASKINGS,
    Angles,
    check_block,
    check_topology,
    row_blocks,
)
from vfl_flower.strategies.base import (
    ProtocolStrategy,
    Run,
    check_bits,
    check_choice,
    check_flags,
    check_fraction,
    check_positive,
    check_unchanged,
    check_whole,
)
from vfl_flower.strategies.exchange import FederationError
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Sealed, Sum
from vfl_flower.typing import Array, Values

log = logging.getLogger("vfl_flower")

SOLVERS = ("direct", "doubly-stochastic")
TARGETS = ("binary", "multiclass", "continuous")

LEAST_ROWS = 20
"""Rows below which a budget is refused rather than spent."""

MOST_FEATURES = 2048
"""Features that the budget is spent on at most: the solver takes their third power."""


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
                   whether it converged
    start          label holders: numbers of their        the rows' numbers
                   instances, columns of f, and the
                   scale of labels (a power of two)
                   (``doubly-stochastic``)
    iterate        angles; of several label holders its   nothing
                   part of scores; masked
    answer         the same for rows held out; then the   the mean error
                   first label holder: their mean error
                   and number
    last of        whether it keeps its part              all of it
    training
    =============  =====================================  ==========================

    The label holder learns the model, and from the summed angles the other parties'
    columns of these rows up to a linear map that it does not know: nearly a rotation.
    Of several label holders each learns f(x) of the rows that it picks, so of exactly
    two the other's part of it; all parties learn the picked rows and the largest scale.

    Parameters
    ----------
    loss : {"logistic", "smooth_hinge", "square"}
        L, Table 1 of [1].
    kernel : {"gaussian", "laplacian"}
        ``exp(-|x - x'|^2 / (2 bandwidth^2))`` or ``exp(-|x - x'|_1 / bandwidth)``.
    solver : {"direct", "doubly-stochastic"}
        ``"direct"``: angles of a sample of rows once, and the exact solution at the
        label holder. ``"doubly-stochastic"``: Algorithm 1 of [1], for one or several
        label holders, each of whom knows other rows' labels.
    target : {"binary", "multiclass", "continuous"}
        What the labels are: two values; up to 100 values, one against the rest; or
        real numbers, for the square loss.
    bandwidth : float or "median"
        In the unit of the columns; ``"median"`` takes the median distance of 1,000
        pairs of rows, for two round trips more: gamma = 1 / median(distance^2).
    regularization : float or "auto"
        lambda of ``mean loss + lambda / 2 |f|^2``. ``"auto"``: by cross-validation at
        the label holder, from what it has; ``doubly-stochastic``: 1 / n.
    budget : int
        Bytes of angles that a party sends to train the direct solver.
    rows, features : int
        Rows and random features of the direct solver; 0: chosen within the budget,
        eight rows a feature or, where that leaves some, more features, at most 2,048.
    bits : {16, 32}
        Of an angle, with ``masking="circle"``.
    block_bytes : int
        Bytes of angles that a party sends in one round trip, to within a row.
    topology : {"star", "ring", "tree"}
        How sums travel. In Flower each hop is a round trip, so a star is the fastest;
        in the others parties encrypt their messages to each other.
    iterations : int
        Iterations of the doubly stochastic solver.
    block : int
        New instances and new features in one of its iterations; 1 is [1]'s.
    step : float
        gamma, its step size.
    schedule : {"constant", "diminishing"}
        ``step``, or ``step / t`` at iteration t.
    test_fraction : float
        Share of the rows held out. As many of them as fit into a quarter of the budget
        (of ``doubly-stochastic``: all) estimate the error, in round trips of their own.
    allow_two_parties : bool
        Train with two parties, where the label holder gets the other's angles.
    masking : {"circle", "paper", "plain"}
        ``"circle"``: each party's features are its secret, and angles are summed under
        masks modulo a turn. ``"paper"``: Algorithm 3 of [1], all know omega, phases
        hide the sums along two totally different trees; the label holder can compute
        differences of the others' columns. ``"plain"``: no masks, angles in float64.
        Parties take part in the last two in one process only, for comparison.
    n_parties, seed
        See :class:`~vfl_flower.strategies.base.ProtocolStrategy`. Who knows the seed
        knows all features: give one to experiments only.

    Notes
    -----
    Differs from [1] in: 1. ``solver="direct"``; 2. ``masking="circle"``, private
    features; 3. an intercept in the direct solver; 4. blocks of instances and
    features; 5. with ``masking="paper"`` the party whose phase stays is picked once a
    holder, not at each call: a feature whose phase changes is another feature.

    ``result.model`` predicts where all parts are in one process (``simulate``);
    otherwise a run with ``task="predict"`` does, from the parties' ``state-dir``.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulations import simulate
    >>> X = np.random.default_rng(0).normal(size=(600, 3))
    >>> y = (X**2).sum(axis=1) > 2.4
    >>> parties = [Party(X[:, :1]), Party(X[:, 1:2]), Party(X[:, 2:], y=y)]
    >>> result = simulate(FDSKL(features=256), parties, seed=0)
    >>> bool((result.model.predict([X[:, :1], X[:, 1:2], X[:, 2:]]) == y).mean() > 0.95)
    True
    """

    model_class = KernelModel
    maskings = MASKINGS
    evaluation_actions = ("fdskl_answer", "fdskl_test_angles")

    def __init__(
        self,
        loss: str = "logistic",
        kernel: str = "gaussian",
        solver: str = "direct",
        *,
        target: str = "binary",
        bandwidth: float | str = "median",
        regularization: float | str = "auto",
        budget: int = 64_000_000,
        rows: int = 0,
        features: int = 0,
        bits: int = 16,
        block_bytes: int = 16_000_000,
        topology: str = "star",
        iterations: int = 32,
        block: int = 64,
        step: float = 1.0,
        schedule: str = "constant",
        test_fraction: float = 0.0,
        allow_two_parties: bool = False,
        masking: str = "circle",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(masking=masking, n_parties=n_parties, seed=seed)
        check_choice("loss", loss, LOSSES)
        check_choice("kernel", kernel, KERNELS)
        check_choice("solver", solver, SOLVERS)
        check_choice("target", target, TARGETS)
        check_choice("schedule", schedule, SCHEDULES)
        check_positive("bandwidth", bandwidth, "median")
        check_positive("regularization", regularization, "auto")
        check_positive("step", step)
        for name, value, least in (
            ("budget", budget, 1),
            ("rows", rows, 0),
            ("features", features, 0),
            ("block_bytes", block_bytes, 1),
            ("iterations", iterations, 1),
            ("block", block, 1),
        ):
            check_whole(name, value, least)
        if rows == 1:
            raise ValueError("rows must be 0 or at least 2, got 1")
        check_bits(bits)
        check_fraction("test_fraction", test_fraction)
        if target == "continuous" and loss != "square":
            raise ValueError(
                f"loss must be 'square' for target 'continuous', got {loss!r}"
            )
        check_topology(topology, masking)
        given: dict[str, dict[str, Any]] = {
            "doubly-stochastic": {
                "iterations": iterations,
                "block": block,
                "step": step,
                "schedule": schedule,
            },
            "direct": {"budget": budget, "rows": rows, "features": features},
        }
        for other in set(SOLVERS) - {solver}:
            check_unchanged(FDSKL, given[other], f"solver {solver!r}")
        if masking != "circle":
            check_unchanged(FDSKL, {"bits": bits}, f"masking {masking!r}")
        if (
            solver == "doubly-stochastic"
            and regularization != "auto"
            and step * float(regularization) > 1
        ):
            raise ValueError(
                "step times regularization must be at most 1 (Theorem 4), got "
                f"{step} and {regularization}"
            )
        self.loss, self.kernel, self.solver, self.target = loss, kernel, solver, target
        self.bandwidth, self.regularization = bandwidth, regularization
        self.budget, self.rows, self.features = budget, rows, features
        self.bits, self.block_bytes, self.topology = bits, block_bytes, topology
        self.iterations, self.block, self.step = iterations, block, step
        self.schedule, self.test_fraction = schedule, test_fraction
        self.allow_two_parties = allow_two_parties
        check_flags(self, "allow_two_parties")

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Choose a bandwidth, train, and measure the error on rows held out."""
        direct = self.solver == "direct"
        holders = parties.label_holders
        if direct and [parties[j].n_labels for j in holders] != [parties.n_rows]:
            raise FederationError(
                "solver 'direct' needs one party with the labels of all "
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
        M = self.iterations * self.block
        if direct:
            train, M = self._sample(train, run)
        bits = self.bits if self.masking == "circle" else 64
        check_block(M, bits, self.block_bytes, 1 if direct else self.block)
        if not direct and self.step * _number(self.regularization, 1 / len(train)) > 1:
            raise FederationError(
                f"step must be at most the {len(train)} rows to train on with "
                f"regularization 'auto' (Theorem 4), got {self.step}"
            )
        bandwidth = self._bandwidth(parties, holders[0], train if direct else None)
        setup = self._setup(parties, run, holders, M, bandwidth)
        model = KernelModel(
            f"{parties.session:016x}",
            self.kernel,
            bandwidth,
            M,
            [party.n_columns for party in parties],
        )
        run.record(0, model.to_record())
        log.info("model %s", model.number)
        angles = self._angles(parties, holders, setup)
        if direct:
            metrics = self._direct(angles, train, setup)
            metrics["rows"] = len(train)
        else:
            metrics = self._doubly_stochastic(angles, len(train), setup)
        columns, model.kept = int(metrics.pop("columns")), bool(metrics.pop("kept"))
        angles = replace(angles, scale=metrics.pop("scale", 1.0))
        metrics |= {"features": M, "bandwidth": model.bandwidth}
        if len(test):
            if direct:
                most = max(1, self.budget // 4 // (M * bits // 8))
                order = run.rng("test rows").permutation(len(test))
                test = np.sort(test[order[:most]])
            for reply in angles.answers(
                test.astype(np.uint32), M, columns, self.block_bytes, True
            ):
                metrics |= reply
        run.record(1, model.to_record(), metrics)
        return model.to_record()

    # -- settings --------------------------------------------------------------------

    def _warn(self, parties: Parties, holders: list[int]) -> None:
        """Say where the label holder learns more than columns mixed by a linear map."""
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
            others = sum(p.n_columns for j, p in enumerate(parties) if j != holder)
            if others < 3:
                log.warning(
                    "%r learns nearly all of the %d columns of the other parties",
                    parties[holder].name,
                    others,
                )

    def _setup(
        self,
        parties: Parties,
        run: Run,
        holders: list[int],
        M: int,
        bandwidth: float,
    ) -> dict[str, Any]:
        """Return what parties must know to make their features."""
        setup: dict[str, Any] = {
            "target": self.target,
            "kernel": self.kernel,
            "bandwidth": bandwidth,
            "n_features": M,
            "holders": holders,
            "block": M if self.solver == "direct" else self.block,
        }
        if self.masking == "paper":
            rng = run.rng("kept")
            setup |= {
                "shared_seed": f"{run.seed:x}",
                "widths": [party.n_columns for party in parties],
                "kept": [
                    int(rng.choice([j for j in range(len(parties)) if j != holder]))
                    for holder in holders
                ],
            }
        return setup

    def _angles(
        self, parties: Parties, holders: list[int], setup: Mapping[str, Any]
    ) -> Angles:
        circle = self.masking == "circle"
        return Angles(
            parties,
            holders,
            f"circle{self.bits}" if circle else "plain",
            self.topology,
            shared=self.masking == "paper",
            kept=tuple(setup.get("kept", ())),
        )

    def _bandwidth(self, parties: Parties, holder: int, rows: Array | None) -> float:
        """Return the bandwidth: given, or of the median distance of pairs of rows.

        Of `rows`, those whose angles are asked for, so that none leaves besides; in
        the doubly stochastic form these are not known yet.
        """
        if self.bandwidth != "median":
            return float(self.bandwidth)
        given = {} if rows is None else {"rows": rows.astype(np.uint32)}
        sealed = parties.ask(
            "fdskl_distances",
            sums={"distances": Sum(LIMB, to=holder)},
            kernel=self.kernel,
            target=self.target,
            holder=holder,
            **given,
        ).sealed["distances"]
        reply = parties.ask_one(
            holder,
            "fdskl_bandwidth",
            kernel=self.kernel,
            distances=sealed,
        )
        return float(reply["bandwidth"])

    def _sample(self, train: Array, run: Run) -> tuple[Array, int]:
        """Return the rows to train on, and the number of features."""
        size = (self.bits if self.masking == "circle" else 64) // 8
        n, products = len(train), self.budget // size
        M = self.features or max(1, min(MOST_FEATURES, math.isqrt(products // 8)))
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

    # -- solvers ---------------------------------------------------------------------

    def _direct(
        self, angles: Angles, rows: Array, setup: dict[str, Any]
    ) -> dict[str, float]:
        """Collect the angles of the rows in blocks; solve at the label holder."""
        holder, M = angles.holders[0], int(setup["n_features"])
        found: dict[str, Sealed] = {}
        rows = rows.astype(np.uint32)
        for k, block in enumerate(row_blocks(rows, M, angles.bits, self.block_bytes)):
            request: dict[str, Any] = {"rows": block, "stop": M, **setup}
            if self.topology == "star":
                each: list[dict[str, Any]] = [{} for _ in angles.parties]
                sealed = angles.ask("fdskl_angles", each, {}, request)[2]
            else:
                sealed = angles.relay(request)
            found[f"angles_{k}"] = sealed[f"angles_{holder}"]
            if f"offsets_{holder}" in sealed:
                found["offsets"] = sealed[f"offsets_{holder}"]
        given: dict[str, Any] = {
            "loss": self.loss,
            "rows": rows,
            "regularization": _number(self.regularization, 0.0),
            **found,
        }
        each = [given if j == holder else {} for j in range(len(angles.parties))]
        replies = angles.parties.ask_each("fdskl_fit", each)
        return {**replies[holder], "kept": all(replies.each("kept"))}

    def _doubly_stochastic(
        self, angles: Angles, n: int, setup: dict[str, Any]
    ) -> dict[str, float]:
        """Algorithm 1, the label holders taking turns.

        In a star iterations overlap, one a round trip: the angles of iteration t are
        asked for together with the step of t - 1; with several holders with the scores
        of t - 1 and the step of t - 2.
        """
        parties, holders = angles.parties, angles.holders
        alone = len(holders) == 1
        picked = parties.ask(
            "fdskl_start",
            iterations=self.iterations,
            test_fraction=self.test_fraction,
            **setup,
        )
        columns = int(picked[holders[0]]["columns"])
        scale = max(picked[holder]["scale"] for holder in holders)
        angles = replace(angles, scale=scale)
        step = step_sizes(self.step, self.schedule)
        regularization = _number(self.regularization, 1 / n)
        pending: tuple[int, Array, dict[str, Sealed]] | None = None
        scored: tuple[int, Sealed] | None = None
        replies: list[dict[str, Any]] = []
        stars = self.topology == "star"
        trips = self.iterations + stars + (not alone)
        for t in range(trips):
            request: Values | None = None
            rows = np.zeros(0)
            if t < self.iterations:
                rows = picked[holders[t % len(holders)]]["rows"][t]
                request = {"rows": rows, "stop": (t + 1) * self.block}
                if not stars:
                    pending, request = (t, rows, angles.relay(request)), None
            each = angles.of(pending[2], pending[1]) if pending else angles.of({}, rows)
            if scored:
                active = holders[scored[0] % len(holders)]
                each[active] = {**each[active], "scores": scored[1]}
            sums, learned = {}, scored[0] if scored else None
            if pending and alone:
                learned = pending[0]
            elif pending:
                active = holders[pending[0] % len(holders)]
                sums = angles.scores(active)
            replies, found_scores, found = angles.ask(
                "fdskl_iterate",
                each,
                sums,
                request,
                columns=columns,
                size=len(pending[1]) if pending and sums else 0,
                loss=self.loss,
                regularization=regularization,
                update=0.0 if learned is None else step(learned + 1),
                keep=t == trips - 1,
            )
            scored = (pending[0], found_scores["scores"]) if pending and sums else None
            pending = (t, rows, found) if request is not None else None
        kept = all(reply["kept"] for reply in replies)
        return {"columns": columns, "scale": scale, "kept": kept}


def _number(value: float | str, default: float) -> float:
    return default if isinstance(value, str) else float(value)
