"""Ridge regression on columns that are not pooled, from sums of products only.

[1] D. Beaver, "Commodity-based cryptography", STOC 1997.
[2] P. Mohassel, Y. Zhang, "SecureML: A System for Scalable Privacy-Preserving Machine
    Learning", IEEE S&P 2017.
[3] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.evaluation import Measures, curves_of, metrics_of
from vfl_flower.clients.products import MOST_COLUMNS, ROWS_PER_COLUMN, multiply
from vfl_flower.clients.ridge import dealing, scores, solving
from vfl_flower.clients.ridge import training as party
from vfl_flower.clients.ridge.state import MOST_MULTIPLE, Bandwidth, Joint, Task
from vfl_flower.models.ridge import RidgeModel
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.random_features import Kernel, median_bandwidth
from vfl_flower.numerics.ridge.features import median_of
from vfl_flower.protocol.settings import Count, Fraction, check_unused, settings
from vfl_flower.protocol.steps import Steps, each, each_of
from vfl_flower.protocol.terms import LEAST_ROWS, Kind, Terms
from vfl_flower.secure_aggregation.products.dealing import (
    joint_fraction,
    training_angles,
)
from vfl_flower.secure_aggregation.products.relevance import deal_relevance
from vfl_flower.secure_aggregation.products.roles import MOST_NUMBERS, Roles
from vfl_flower.secure_aggregation.products.shares import SEED_BYTES
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.strategies import products
from vfl_flower.strategies.evaluation import PartedStrategy, left_out, record_model
from vfl_flower.strategies.ridge.scoring import (
    Dealing,
    row_roles,
    score_rows,
    summed_angles,
    sums_of_angles,
)
from vfl_flower.typing import Array

FEW_ROWS = 2000
"""With fewer training rows, a run warns that its error can exceed the error of methods
that see rows, because it has only one feature for every four rows."""

NARROW = 0.75
"""Share of the joint features with half the bandwidth of the median distance; the
other features have the full bandwidth."""

DENSITY, LEAST_COLUMNS = 0.3, 4
"""Probability with which an angle uses a column, and the minimum number of columns that
an angle uses on average; the probability is raised to reach this minimum."""

WIDE = 16.0
"""Bandwidth of joint features if columns are scaled by their relevance. Angles are
then multiplied to reach the bandwidth of the median distance."""

RELEVANT = ((0.7, DENSITY), (0.3, 0.5), (0.3, 1.0))
"""Bandwidths of the joint features of scaled columns, as multiples of `WIDE`, and their
minimum densities; each pair has an equal share of the features."""

MOST_PILOT = 384
"""Maximum number of angles in the round that determines the columns' relevance."""

MOST_FEATURES = 2048
"""Maximum number of joint features if the number is not given."""

COLUMNS = 2048
"""Number of columns assumed when `MOST_NUMBERS` limits the rows."""

TARGETS = 16
"""Columns reserved for targets and the constant, if `joint_features` is given."""

MOST_LOCAL = 512
"""Maximum number of local columns of a party."""

MOST_SHARE, MANY_ROWS = 0.5, 12_000
"""Maximum share of local columns, and the number of rows at which the share would reach
1: with 6,000 rows or more, half of the columns are local."""

_BOUND = 2.0**40
"""First bound at which the cumulants of a party's distances are clipped."""


@settings
class SecureRidge(products.ComputingParties, PartedStrategy):
    """Ridge regression and classification on columns that are not pooled.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, number of labels, key     all of it
    prepare        cumulants of distances, masked; how    the sums, and these numbers
                   many columns it derives from its own
    hide_rows      its own columns and angles, masked,    nothing
                   for the two computing parties
    open_joint     these two: shares of joint features,   nothing
                   masked, for each other
    multiply       a share of the sums of products, for   nothing
                   the label holder
    relevance      each party: its frequencies, masked;   nothing
                   the label holder: mixtures of
                   derivatives, masked, for each party
    fit            the label holder: an estimate of the   the error, and lambda
                   error, and lambda; each party:
                   whether it keeps its local model
    scores         for held-out rows, in three round      the metrics, the
                   trips: masked as above; then the       curves
                   label holder: metrics, and curves if
                   it consents
    =============  =====================================  ==========================

    Values of a row leave a party only under masks. The label holder learns the model,
    the sums of products of all features, and f(x) for the held-out rows. With
    `relevance`, each party learns how much the model changes with each of its own
    columns. A dealer that colludes with one of the two computing parties can recover
    the features of all rows.

    Notes
    -----
    Products of shares with a dealer's randomness follow [1], products of matrices
    follow [2], and random features over split columns follow [3]. Three elements are
    new: the shares of cosines of angles that nobody knows, the single Gram matrix that
    a party reconstructs, and the rules that keep this matrix from identifying a row.

    Whoever knows the seed of a run knows the features of all parties: give a seed in
    experiments only. Two runs with the same seed differ slightly, since shares are
    rounded by private draws.

    ``result.model`` can predict if all parties are in one process (``simulate``).
    Otherwise, a run with ``task="predict"`` makes the predictions from the local models
    in the parties' ``state-dir`` folders.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> y = (X**2).sum(axis=1) > 2.4
    >>> parties = [Party(X[:, :1]), Party(X[:, 1:2]), Party(X[:, 2:], y=y)]
    >>> result = simulate(SecureRidge(joint_features=64), parties, seed=0)
    >>> bool((result.model.predict([X[:, :1], X[:, 1:2], X[:, 2:]]) == y).mean() > 0.95)
    True
    """

    features: Literal["kernel", "linear"] = "kernel"
    """"kernel": features of each party's columns, and random features of all columns
    together, for interactions. "linear": each party's columns alone, in half the round
    trips and with far fewer bytes."""
    _: KW_ONLY
    target: Target = "binary"
    """"binary": two values. "multiclass": up to 100 values, each learned against the
    rest. "continuous": real numbers."""
    class_weight: Literal["none", "balanced"] = "none"
    """"balanced": all classes have equal weight. Rare classes are then found more
    often, but with more false alarms, and probabilities assume classes of equal
    size."""
    kernel: Kernel = "gaussian"
    """"gaussian": ``exp(-|x-x'|^2 / (2 bandwidth^2))``. "laplacian": ``exp(-|x-x'|_1 /
    bandwidth)``."""
    bandwidth: Bandwidth | Literal["median"] = "median"
    """Bandwidth in the unit of the scaled columns. "median": several bandwidths, 0.3 to
    1 times the bandwidth of the median heuristic."""
    joint_features: Count = 0
    """Number of random features computed from all columns together. 0 means the largest
    number, up to 2,048, that leaves four rows for each of these features and each local
    column."""
    relevance: bool = True
    """Solve twice, in four more round trips: each party learns how sensitive the
    model is, on average, to each of its columns, and scales the columns accordingly.
    Skipped if a party is the dealer or the bandwidth is given."""
    rows: Count = 0
    """Number of rows to train on; 0 means as many as about 67 million feature values
    allow."""
    bits: Literal[16, 32] = 16
    """Bits per angle."""
    test_fraction: Fraction = 0.0
    """Share of rows to hold out; this adds three round trips."""

    model_class = RidgeModel
    question = "How well does a model of all parties' columns predict {label}?"
    steps: ClassVar[Steps] = (
        *(party.prepare, dealing.deal, party.hide_rows, party.open_joint),
        *(multiply, solving.relevance, solving.fit),
        *(scores.rows, scores.products, scores.scores),
    )
    evaluation_steps = (scores.rows, scores.products, scores.scores)

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if self.rows == 1:
            raise ValueError("rows must be 0 or at least 2, got 1")
        if self.target == "continuous":
            check_unused(self, ["class_weight"], "target 'continuous'")
        if self.features == "linear":
            unused = ["kernel", "bandwidth", "joint_features", "relevance", "bits"]
            check_unused(self, unused, "features 'linear'")

    @property
    def terms(self) -> Terms:
        """Sums of products and, with held-out rows, the curves."""
        wants: tuple[Kind, ...] = ("curves",) if self.test_fraction else ()
        return Terms(("moments",), wants, computing=self.computing)

    @property
    def repeats(self) -> bool:
        """False, because shares are rounded by private draws."""
        return False

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Train, and measure the error on the held-out rows."""
        holder = parties.label_holder
        train, test = self.split(parties, run, self.test_fraction)
        n = len(train)
        if self.rows > n:
            raise FederationError(
                f"rows must be at most {n}, the number of training rows, got "
                f"{self.rows}"
            )
        model = self.untrained(parties, run, self.kernel, 1.0, 0)
        columns = sum(model.widths)
        task = self._task(n, len(parties), columns)
        kinds, outputs, cumulants = self._prepare(parties, task)
        local = [sum(of_party) for of_party in kinds]
        owners = [size + (outputs + 1) * (j == holder) for j, size in enumerate(local)]
        joint = self._joint(task, columns, cumulants, sum(owners))
        roles = self.roles(
            *(parties, owners, task.rows),
            joint=2 * joint.angles if joint is not None else 0,
            fraction=joint_fraction(task.rows),
        )
        flat = [size for of_party in kinds for size in of_party]
        more: dict[str, Any] = {}
        if joint is not None and self._scales and roles.served:
            more = self._relevance(parties, roles, joint, flat, outputs)
            joint, roles = _relevant(joint), replace(roles, turn=1)
        of_rows = row_roles(roles, local, len(test)) if len(test) else None
        dealt = Dealing.of(parties, self.bits, outputs, roles, of_rows)
        share, multiple, _ = self._gram(parties, roles, joint, dealt, **more)
        share = each_of(parties, {holder: share})
        fitted = parties.ask(solving.fit, kinds=flat, share=share)
        metrics: dict[str, Any] = {
            "features": roles.joint,
            "local_columns": sum(local),
            "rows": task.rows,
        }
        for name in ("regularization", "cv_score"):
            if name not in fitted[holder]:
                raise fitted.failure(holder, f"its reply lacks {name!r}")
            metrics[name] = fitted[holder][name]
        if joint is not None:
            metrics["bandwidth"] = max(joint.bandwidths) / multiple
            model.bandwidth, model.n_features = metrics["bandwidth"], roles.joint
        products.warn_of_constant(fitted[holder].get("constant", False))
        if of_rows is not None:
            curves = parties.let("curves", holder)
            reply: Measures = score_rows(
                parties, of_rows, test, dealt, evaluate=True, curves=curves
            )
            metrics |= metrics_of(reply)
            run.curves = curves_of(reply)
        model.kept = all(fitted.each("kept"))
        self._warn(run, task.rows, self.rows or n)
        return record_model(run, model, metrics)

    def _prepare(
        self, parties: Parties, task: Task
    ) -> tuple[list[list[int]], int, Array]:
        """Return each party's column counts, K (the number of targets) and cumulants.

        Columns are counted by kind. The cumulants of distances are summed over parties.
        """
        replies = parties.ask_exactly(
            party.prepare.summing(distances=_BOUND), task=task
        )
        outputs = replies[parties.label_holder].get("outputs", 0)
        if (outputs > 1) != (self.target == "multiclass") or not outputs:
            reason = f"its reply must have outputs that fit target {self.target!r}"
            raise replies.failure(parties.label_holder, reason)
        kinds: list[list[int]] = replies.each("columns")
        if task.linear and not any(map(any, kinds)):
            raise FederationError(
                f"no party has a column in which at least {LEAST_ROWS} rows differ "
                "from the most frequent value: a linear model would be constant"
            )
        return kinds, outputs, replies.sums["distances"]

    def _warn(self, run: Run, used: int, available: int) -> None:
        """Add warnings about rows left out and about too few rows."""
        limit = (
            f"the features can hold at most {MOST_NUMBERS:,} numbers; to use more "
            "rows, lower the number of features"
        )
        run.warnings += left_out("to train on", used, available, limit)
        if used < FEW_ROWS and self.features == "kernel":
            run.warnings.append(
                f"{used:,} training rows allow only few features: with fewer than "
                f"{FEW_ROWS:,} rows, the error can be several times the error of "
                "FDSKLDirect (which reveals more to the label holder), especially if "
                "columns of different parties interact"
            )

    @property
    def _scales(self) -> bool:
        return self.relevance and self.bandwidth == "median"

    def _task(self, n: int, count: int, columns: int) -> Task:
        """Return the targets, rows (few enough for every message) and local columns.

        If `joint_features` is given, the remaining columns can be local; otherwise, a
        share of the columns that the rows allow. With few rows, joint features are
        worth more than local columns, except for value columns.
        """
        linear = self.features == "linear"
        # In a linear model, a column may have an indicator of its missing values.
        wide = 2 * columns + TARGETS if linear else 2 * self.joint_features or COLUMNS
        rows = min(self.rows or n, MOST_NUMBERS // wide)
        room = rows // ROWS_PER_COLUMN
        if self.joint_features > room:
            raise FederationError(
                f"joint_features must leave at least {ROWS_PER_COLUMN} rows for each "
                f"feature, got {self.joint_features:,} features and only {rows:,} rows "
                "to train on: lower joint_features or use more rows"
            )
        left, values = int(room * min(MOST_SHARE, rows / MANY_ROWS)), 3 * room // 4
        if linear:
            most = values = MOST_COLUMNS
        else:
            if self.joint_features:
                room = min(room, MOST_NUMBERS // rows)
                left = values = max(0, room - self.joint_features - TARGETS)
            most, values = (min(MOST_LOCAL, size // count) for size in (left, values))
        return Task(
            *(self.target, self.kernel, self.test_fraction, rows, most, values),
            balanced=self.class_weight == "balanced",
            linear=linear,
        )

    def _joint(
        self, task: Task, columns: int, cumulants: Array, others: int
    ) -> Joint | None:
        """Return the joint features, by default as many as the rows allow."""
        if task.linear and ROWS_PER_COLUMN * others > task.rows:
            raise FederationError(
                f"rows must be at least {ROWS_PER_COLUMN * others}, that is, "
                f"{ROWS_PER_COLUMN} for each of {others} columns (including targets "
                f"and the constant), got {task.rows}: use more rows or fewer columns"
            )
        if task.linear:
            return None
        density = min(1.0, max(DENSITY, LEAST_COLUMNS / columns))
        rows, given = task.rows, self.joint_features
        room = min(rows // ROWS_PER_COLUMN, MOST_COLUMNS, MOST_NUMBERS // rows)
        count = given // 2 or min(MOST_FEATURES, room - others) // 2
        if others + 2 * count > room or count < 1:
            columns = others + max(2, 2 * count)
            raise FederationError(
                f"joint_features must leave at least {ROWS_PER_COLUMN} rows for each "
                f"column, that is, {ROWS_PER_COLUMN * columns} rows for {columns} "
                f"columns ({others} of single parties and the labels, and "
                f"{columns - others} of all parties together), got {rows} rows: lower "
                "joint_features, or use more rows or fewer columns"
            )
        if self.bandwidth != "median":
            return Joint([self.bandwidth], [count], [density], self.bits)
        try:
            middle = median_bandwidth(np.array([median_of(cumulants)]), task.kernel)
        except ValueError as error:
            raise FederationError(str(error)) from None
        few = min(count - 1, round(NARROW * count))
        counts = {0.5 * middle: few, middle: count - few}
        sizes = {bandwidth: size for bandwidth, size in counts.items() if size}
        densities = [density] * len(sizes)
        return Joint([*sizes], [*sizes.values()], densities, self.bits)

    def _relevance(
        self,
        parties: Parties,
        roles: Roles,
        joint: Joint,
        kinds: Sequence[int],
        outputs: int,
    ) -> dict[str, Any]:
        """Have parties learn the relevance of their columns, in four round trips."""
        joint = _pilot(joint)
        roles = replace(roles, joint=2 * joint.angles)
        first, root = roles.first, parties.checkpoint.token(SEED_BYTES)
        widths = [info.n_columns for info in parties]
        others, of_holder = deal_relevance(parties.session, root, roles, widths)
        dealt = Dealing.of(parties, self.bits, outputs, roles)
        share, _, frequencies = self._gram(
            parties, roles, joint, dealt, triple=each(others)
        )
        replies = parties.ask(
            solving.relevance,
            kinds=list(kinds),
            widths=widths,
            counted=sum(widths) - widths[first],
            share=each_of(parties, {first: share}),
            frequencies=frequencies,
            triples=each_of(parties, {first: np.concatenate([*of_holder.values()])}),
        )
        return {"probes": products.passed_on(replies, "probes")}

    def _gram(
        self,
        parties: Parties,
        roles: Roles,
        joint: Joint | None,
        dealt: Dealing,
        **more: Any,
    ) -> tuple[dict[int, Array], int, dict[int, Array]]:
        """Have two parties compute the Gram matrix; return the label holder's share.

        Also return the factor of the angles, and frequencies for the label holder.
        """
        sums = sums_of_angles(roles, self.bits)
        if joint is not None and joint.relevant:
            sums["distances"] = _BOUND
        hidden = parties.ask(
            party.hide_rows.summing(**sums),
            roles=roles,
            counted=roles.columns,
            joint=joint,
            **dealt.turn,
            **more,
        )
        dealt.turn.clear()  # the parties have these matrices now
        if joint is None:
            return products.multiply(parties, roles, hidden), 1, {}
        multiple = 1
        if joint.relevant:
            multiple = _multiple(self.kernel, hidden.sums["distances"])
        use = training_angles(roles, parties.session)
        opened = parties.ask(
            party.open_joint,
            angles=summed_angles(parties, roles, hidden, roles.first, roles.second),
            multiple=multiple,
            **dealt.cosines(parties, roles, use, hidden, "turn_cosines", multiple),
        )
        frequencies = products.passed_on(hidden, "frequencies")
        return products.multiply(parties, roles, hidden, opened), multiple, frequencies

    def trade(self, n_rows: int) -> str:
        """Explain how the number of bytes sent by a run grows."""
        if self.features == "linear":
            return "The number of bytes grows as rows times columns."
        return (
            "The number of bytes grows as rows times features. To send less, lower "
            "`joint_features`, at a higher error, or set `relevance=false`, which "
            "skips the first of two rounds."
        )


def _pilot(joint: Joint) -> Joint:
    """Return the joint features of the round that determines columns' relevance."""
    share = min(1.0, MOST_PILOT / joint.angles)
    counts = [max(1, int(share * count)) for count in joint.counts]
    return replace(joint, counts=counts)


def _relevant(joint: Joint) -> Joint:
    """Return the same number of joint features, for columns scaled by relevance."""
    few = min(joint.angles, len(RELEVANT))
    counts = [len(part) for part in np.array_split(np.arange(joint.angles), few)]
    bandwidths = [factor * WIDE for factor, _ in RELEVANT[:few]]
    densities = [max(share, joint.densities[0]) for _, share in RELEVANT[:few]]
    return Joint(bandwidths, counts, densities, joint.bits, relevant=True)


def _multiple(kernel: Kernel, cumulants: Array) -> int:
    """Return the factor that scales angles from `WIDE` to the median bandwidth."""
    median = median_of(cumulants)
    if not median > 0:
        return 1
    middle = median_bandwidth(np.array([median]), kernel)
    return int(np.clip(np.rint(WIDE / middle), 1, MOST_MULTIPLE))
