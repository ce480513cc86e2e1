"""Federated doubly stochastic kernel learning, and its direct form.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.fdskl import angle_sums, prediction, training
from vfl_flower.clients.fdskl.state import AngleRequest, Problem, Rule, Setup
from vfl_flower.numerics.kernel_bandwidth import WIDEST
from vfl_flower.protocol.settings import Count, Positive, check_unused, settings
from vfl_flower.protocol.steps import Steps, each_of
from vfl_flower.protocol.terms import LEAST_ROWS, Terms
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.fdskl.angles import (
    Angles,
    OverlappedMessage,
    check_block,
    row_blocks,
)
from vfl_flower.strategies.fdskl.learning import MOST_FEATURES, KernelLearning
from vfl_flower.typing import Array

IMPLICIT_FEATURES = 1500
"""Maximum number of features with implicit steps, to send half FDSKLDirect's bytes."""

PUBLISHED_STEPS = 32
"""Default number of iterations of the published update."""


@settings
class FDSKL(KernelLearning):
    """The published algorithm: kernel learning with random features of split columns.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, number of labels, key     all of it
    distances      its contribution to distances between  nothing: only the label
                   rows, masked                           holder can unmask it
    bandwidth      the label holder: their median         the bandwidth
    start          label holders: row numbers of their    the row numbers
                   instances, number of f's columns, and
                   the scale of labels (a power of two)
    iterate        omega_j^T x_j + b_j; with several      nothing
                   label holders, each of them also its
                   contribution to the scores; masked;
                   in the last round trip also whether
                   it keeps its local model
    answer         the same for held-out rows; then the   the mean error, the
                   first label holder: their mean error   curves
                   and number, and curves if it consents
    =============  =====================================  ==========================

    From the summed angles, the label holder also learns the other parties' columns of
    these rows, up to a linear map that it does not know and that is nearly a rotation.
    With several label holders, each learns f(x) for the rows that it picks. If there
    are exactly two label holders, each thereby also learns the other label holder's
    contribution. All parties learn the picked rows and the largest scale.

    Notes
    -----
    Even an object from :meth:`paper` differs from [1] in two ways: 1. It has an
    intercept. 2. With ``angle_masking="paper"``, the party whose phase remains is
    picked once for each label holder, not at each call, because a new phase would make
    a different feature. The defaults differ from [1] in three more ways: 3.
    ``angle_masking="circle"``, with private features; 4. blocks of instances and
    features; 5. ``step="implicit"``.

    Whoever knows the seed of a run knows the features of all parties: give a seed in
    experiments only.

    ``result.model`` can predict if all parties are in one process (``simulate``).
    Otherwise, a run with ``task="predict"`` makes the predictions from the local models
    in the parties' ``state-dir`` folders.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> y = (X**2).sum(axis=1) > 2.4
    >>> parties = [Party(X[:, :1]), Party(X[:, 1:2]), Party(X[:, 2:], y=y)]
    >>> model = simulate(FDSKL(), parties, seed=0).model
    >>> bool((model.predict([X[:, :1], X[:, 1:2], X[:, 2:]]) == y).mean() > 0.9)
    True
    """

    _: KW_ONLY
    regularization: Positive | Literal["auto"] = "auto"
    """lambda in ``mean loss + lambda/2 |f|^2``. "auto": 1/n if `step` is a number;
    chosen by cross-validation for implicit steps. Explicit steps have no lambda."""
    iterations: Count = 0
    """Number of iterations, each with an equal share of the features; 0 means two per
    label holder for implicit steps, and 32 otherwise."""
    step: Positive | Literal["implicit", "explicit"] = "implicit"
    """"implicit": minimise the loss of each batch, with up to 1,500 features. A number:
    the paper's update with this gamma. "explicit": the same update with a gamma that
    the run chooses."""

    steps: ClassVar[Steps] = (
        *(angle_sums.distances, angle_sums.bandwidth, training.start),
        *(angle_sums.angles, training.iterate, prediction.answer),
        angle_sums.held_out_angles,
    )
    auto_bits = 8

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if _number(self.step, 0.0) * _number(self.regularization, 0.0) > 1:
            raise ValueError(
                "step times regularization must be at most 1 (Theorem 4), got "
                f"{self.step} and {self.regularization}"
            )
        if self.step == "explicit":
            check_unused(self, ["regularization"], "step 'explicit'")

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return Algorithm 1 of [1] as published, except for `settings`.

        Each iteration uses one row and one feature, and Algorithm 3 adds up angles
        along trees, in one process only. [1] does not state the number of iterations,
        gamma or lambda. Here there are 1000 iterations, and lambda is 1 / n. gamma is
        0.1, which gives about the lowest test errors among values from 0.016 to 8 on
        six data sets.
        """
        T = settings.get("iterations", 1000)
        published: dict[str, Any] = {"rows": T, "features": T, "iterations": T}
        published |= {"angle_masking": "paper", "topology": "tree", "step": 0.1}
        return cls(**published | settings)

    @property
    def terms(self) -> Terms:
        """Angles and, with several label holders, also predictions."""
        terms = super().terms
        return replace(terms, wants=("predictions", *terms.wants))

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Choose a bandwidth, train, and measure the error on the held-out rows."""
        holders = [parties[j] for j in parties.label_holders]
        if len(holders) > 1 and self.target == "multiclass":
            raise FederationError(
                "target 'multiclass' needs a single label holder, because classes "
                f"can differ between holders, got {', '.join(p.name for p in holders)}"
            )
        lacking = [p.name for p in parties if "predictions" not in p.lets]
        if len(holders) > 1 and lacking:
            raise FederationError(
                "with several label holders, each party must consent to 'predictions', "
                f"but the consent is missing at {', '.join(map(repr, lacking))}"
            )
        train, test = self._split(parties, run)
        n = len(train)
        if self.regularization == "auto" and _number(self.step, 0.0) > n:
            raise FederationError(
                f"with regularization 'auto', step must be at most {n}, the number of "
                f"training rows (Theorem 4), got {self.step}"
            )
        share = n / parties.n_rows
        known = [round(share * info.n_labels) for info in holders]
        batches, M = self._batches(known)
        available, used = sum(known), sum(batches)
        if used >= available - len(batches):  # each batch loses less than a row
            used = available
        self._warn_of_rows(run, used, available)
        bandwidth = self._bandwidth(parties)
        setup = self._setup(parties, run, M, M // len(batches), bandwidth)
        model = self.untrained(parties, run, self.kernel, bandwidth, M)
        angles = self._angles_of(parties, setup)
        step = None if self.step == "implicit" else _number(self.step, 0.0)
        lambda_ = _number(self.regularization, 1 / n if step else 0.0)
        rule = Rule(self.loss, lambda_, step)
        angles, columns, model.kept = self._train(angles, batches, rule, setup)
        metrics = {"rows": sum(batches)}
        return self._finish(model, angles, test, run, columns, metrics)

    def trade(self, n_rows: int) -> str:
        """Describe the bytes that a run sends, and their purpose."""
        n = n_rows - int(n_rows * self.test_fraction)
        try:
            batches, M = self._batches([n])
        except FederationError:
            return ""
        size = self._area(batches) * M // len(batches) * self.angle_bits / 8e6
        return (
            f"In training, a party sends {size:.3g} MB: the angles of {sum(batches):,} "
            f"rows, in {len(batches)} batches, with up to {M:,} features. "
            "To send less, lower `rows`, `features` or `budget`."
        )

    def _batches(self, labels: list[int]) -> tuple[list[int], int]:
        """Return each iteration's number of rows, and M, from the label counts."""
        L, known, size = len(labels), sum(labels), self.angle_bits // 8
        implicit, products = self.step == "implicit", self.budget // size
        T = self.iterations or (2 * L if implicit else PUBLISHED_STEPS)
        m = self.rows or min(known, products // self._first_features(products))
        if implicit and m > known:
            raise FederationError(
                f"rows must be at most {known}, the number of training labels, got {m}"
            )
        most = self.features or (IMPLICIT_FEATURES if implicit else MOST_FEATURES)
        if not L <= T <= most:
            raise FederationError(
                f"iterations must be at least {L}, one for each party with labels, and "
                f"at most {most}, the number of features, got {T}"
            )
        batches = [1] * T
        for j, count in enumerate(labels):
            turns = range(j, T, L)
            # Later implicit batches send more features per row, and so have fewer rows.
            weights = [1 / (t // L + 1) if implicit else 1.0 for t in turns]
            for t, weight in zip(turns, weights, strict=True):
                rows = m * count / known * weight / sum(weights)
                batches[t] = max(1, math.floor(rows + 1e-9))
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
                f"features must be at least {T}, the number of iterations, got {most}; "
                f"budget must be large enough for the angles of {sum(batches)} rows, "
                f"got {self.budget}"
            )
        for t, rows in enumerate(batches):
            check_block((t + 1) * block, self.angle_bits, self.block_bytes, rows)
        return batches, T * block

    @staticmethod
    def _area(batches: list[int]) -> int:
        """Return the number of angles of a run with one new feature per iteration."""
        return sum(rows * (t + 1) for t, rows in enumerate(batches))

    def _train(
        self, angles: Angles, batches: list[int], rule: Rule, setup: Setup
    ) -> tuple[Angles, int, bool]:
        """Run Algorithm 1.

        Return the scaled angles; C, the number of columns of f; and whether all parties
        keep their local models.
        """
        parties, holders, L = angles.parties, angles.holders, len(angles.holders)
        picked = parties.ask(
            training.start,
            test_fraction=self.test_fraction,
            setup=setup,
            rule=rule,
            instances=each_of(
                parties, {j: sum(batches[place::L]) for place, j in enumerate(holders)}
            ),
        )
        instances: dict[int, Array] = {}
        for place, j in enumerate(holders):
            self._check_learned(picked, j, "rows", "scale")
            cuts = np.cumsum(batches[place::L])[:-1]
            turns = range(place, len(batches), L)
            instances |= zip(turns, np.split(picked[j]["rows"], cuts), strict=True)
        columns = picked[holders[0]]["columns"]
        angles = replace(angles, scale=max(picked[j]["scale"] for j in holders))
        requests = [
            AngleRequest(instances[t], (t + 1) * setup.block, angles.bits)
            for t, _ in enumerate(batches)
        ]

        def iterate(message: OverlappedMessage) -> Replies[training.Iterated]:
            scores = {j: rows.scores for j, rows in message.done.items()}
            return angles.ask(
                training.iterate.summing(**message.sums),
                columns=columns,
                size=message.size,
                learn=message.learn,
                scores=each_of(parties, scores),
                at=message.at,
                request=message.request,
                keep=message.last,
            )

        receivers = [holders[t % L] for t, _ in enumerate(requests)]
        replies = angles.overlapped(requests, receivers, angles.relay, iterate)
        return angles, columns, all(replies.each("kept"))


@settings
class FDSKLDirect(KernelLearning):
    """Exact kernel learning from the angles of one sample of rows.

    The features and their angles are the same as in :class:`FDSKL`; the solver is not
    from [1].

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, number of labels, key     all of it
    distances      its contribution to distances between  nothing: only the label
                   rows, masked                           holder can unmask it
    bandwidth      the label holder: their median         the bandwidth
    angles         omega_j^T x_j + b_j, masked            nothing
    fit            the label holder: a cross-validation   the score, and lambda
                   score, lambda, number of classes,
                   bandwidth, whether it converged;
                   each party: whether it keeps its
                   local model
    answer         angles of held-out rows; then the      the mean error, the
                   label holder: their mean error         curves
                   and number, and curves if it consents
    =============  =====================================  ==========================

    From the summed angles, the label holder also learns the other parties' columns of
    these rows, up to a linear map that it does not know and that is nearly a rotation.
    Seeds and predictions work as in :class:`FDSKL`.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> y = (X**2).sum(axis=1) > 2.4
    >>> parties = [vf.Party(X[:, :1]), vf.Party(X[:, 1:2]), vf.Party(X[:, 2:], y=y)]
    >>> strategy = FDSKLDirect(features=64, test_fraction=0.2)
    >>> vf.simulate(strategy, parties, seed=0).metrics["test_error"] < 0.2
    True
    """

    _: KW_ONLY
    class_weight: Literal["none", "balanced"] = "none"
    """"balanced": all classes have equal weight. Rare classes are then found more
    often, but with more false alarms, and probabilities assume classes of equal
    size."""
    bandwidth: Positive | Literal["median", "auto"] = "median"  # type: ignore[assignment]
    """As in FDSKL. "auto": the best of seven bandwidths, from 1/3 to 4 times the
    bandwidth of "median"."""

    steps: ClassVar[Steps] = (
        *(angle_sums.distances, angle_sums.bandwidth, angle_sums.angles, training.fit),
        *(prediction.answer, angle_sums.held_out_angles),
    )

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.target == "continuous":
            check_unused(self, ["class_weight"], "target 'continuous'")

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Choose a bandwidth, solve, and measure the error on the held-out rows."""
        holders = [parties[j] for j in parties.label_holders]
        known = [f"{info.name!r} with {info.n_labels} labels" for info in holders]
        if [info.n_labels for info in holders] != [parties.n_rows]:
            raise FederationError(
                f"FDSKLDirect needs one party with the labels of all {parties.n_rows} "
                f"rows, got {', '.join(known)}: FDSKL accepts several label holders"
            )
        train, test = self._split(parties, run)
        least = min(LEAST_ROWS, parties.n_rows // 2)  # parties refuse fewer
        if 0 < self.rows < least:
            raise FederationError(
                f"with {parties.n_rows} rows in the data, rows must be 0 or at least "
                f"{least}, got {self.rows}"
            )
        rows, M = self._sample(train, run)
        check_block(M, self.angle_bits, self.block_bytes)
        self._warn_of_rows(run, len(rows), len(train))
        bandwidth, chooses = self._bandwidth(parties, rows), self.bandwidth == "auto"
        widest = WIDEST * bandwidth if chooses else bandwidth
        setup = replace(self._setup(parties, run, M, M, widest), chooses=chooses)
        model = self.untrained(parties, run, self.kernel, widest, M)
        angles, holder = self._angles_of(parties, setup), parties.label_holders[0]
        rows = rows.astype(np.uint32)
        blocks, offsets = self._collect(angles, rows, setup)
        lambda_ = _number(self.regularization, 0.0)
        balanced = self.class_weight == "balanced"
        problem = Problem(rows, self.loss, lambda_, balanced)
        fitted = parties.ask(
            training.fit,
            problem=each_of(parties, {holder: problem}),
            angles=each_of(parties, {holder: blocks}),
            offsets=each_of(parties, {holder: offsets}),
        )
        more = ["multiple"] if chooses else []
        self._check_learned(fitted, holder, "regularization", "converged", *more)
        solution = fitted[holder]
        model.kept = all(fitted.each("kept"))
        model.bandwidth /= solution.get("multiple", 1)
        reported = {"regularization", "converged", "cv_score"} & solution.keys()
        metrics = {name: dict(solution)[name] for name in sorted(reported)}
        metrics["rows"] = len(rows)
        return self._finish(model, angles, test, run, solution["columns"], metrics)

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Warn if the solver did not converge, or if the model is useless."""
        reason = (
            "the label holder's solver did not converge, or all training labels are "
            "equal: the model is not the optimum"
        )
        converged = metrics.get("converged", 1.0)
        return [*([] if converged else [reason]), *super().shortfalls(metrics)]

    def trade(self, n_rows: int) -> str:
        """Describe the bytes that a run sends, and their purpose."""
        n = n_rows - int(n_rows * self.test_fraction)
        try:
            rows, M = self._sample(np.arange(n), Run(0))
        except FederationError:
            return ""
        size = len(rows) * M * self.angle_bits / 8e6
        return (
            f"In training, a party sends {size:.3g} MB: the angles of {len(rows):,} "
            f"rows with {M:,} features. To send less, lower `budget`."
        )

    def _sample(self, train: Array, run: Run) -> tuple[Array, int]:
        """Return the rows to train on, and M."""
        size = self.angle_bits // 8
        n, products = len(train), self.budget // size
        M = self._first_features(products)
        m = self.rows or min(n, products // M)
        if m > n:
            raise FederationError(
                f"rows must be at most {n}, the number of training rows, got {m}"
            )
        if not self.features:
            M = max(1, min(MOST_FEATURES, products // max(m, 1)))
        least = self.rows or min(n, LEAST_ROWS)
        if m < least or m * M > products:
            raise FederationError(
                f"budget must be at least {least * M * size} bytes, for the angles of "
                f"{least} rows with {M} features, got {self.budget}"
            )
        rows = run.rng("rows").choice(train, size=m, replace=False, shuffle=False)
        return np.sort(rows), M

    def _collect(
        self, angles: Angles, rows: Array, setup: Setup
    ) -> tuple[dict[int, Array], Array | None]:
        """Collect the angles of all rows in blocks, and the phases to subtract."""
        holder, M = angles.holders[0], setup.n_features
        blocks: dict[int, Array] = {}
        for k, block in enumerate(row_blocks(rows, M, angles.bits, self.block_bytes)):
            request = AngleRequest(block, M, angles.bits)
            if angles.star:
                question = angle_sums.angles.summing(**angles.sums())
                replies = angles.ask(question, request=request, setup=setup)
                summed = angles.summed(block, replies.sealed)
            else:
                summed = angles.relay(request, setup)
            blocks[k] = summed[holder].angles
        return blocks, summed[holder].offsets


def _number(value: float | str, default: float) -> float:
    return default if isinstance(value, str) else float(value)
