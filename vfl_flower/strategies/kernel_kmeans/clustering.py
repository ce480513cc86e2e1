"""K-means on the eigenvectors (Algorithm 1 of [1], lines 16 to 19), at the server.

It also labels new rows by a trained model, of which each party has a map.

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.kernel_kmeans import clustering as party
from vfl_flower.models.base import UsedModel
from vfl_flower.numerics import distributed_kmeans
from vfl_flower.numerics.kernel_kmeans import Subspace
from vfl_flower.numerics.summed_kmeans import (
    Pass,
    Request,
    chosen_kmeans,
    summed_kmeans,
)
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps, each
from vfl_flower.protocol.terms import Terms
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.kernel_kmeans.metrics import NEW_CLUSTERS
from vfl_flower.strategies.later import LaterTask, log_clusters
from vfl_flower.typing import Array

LARGEST_SQUARE = 2.0
"""Largest square of a random feature, sqrt(2) cos(omega^T x + b)."""


def by_sums(
    parties: Parties,
    run: Run,
    space: Subspace,
    R: Array | None,
    H: Array | None,
    *,
    n_clusters: int,
    n_init: int,
    passes: int,
    choose: bool,
) -> tuple[Array, Array, dict[str, Any]]:
    """Lines 16 to 19: return the centres, the sum of the rows of H, and metrics."""
    N, values = parties.n_rows, space.eigenvalues
    s, mass = len(values), float(values.sum())
    # The squares of all rows of H add up to its eigenvalues.
    bound = 2 * math.sqrt(N * mass) + 10 * math.sqrt(mass)
    replies = parties.ask_exactly(party.embed.summing(sum_h=bound), R=R, H=H)
    sum_h = replies.sums["sum_h"]
    if len(sum_h) != s:
        raise parties.faulty_sum(party.embed, f"{s} sums of the embedding")

    def ask(request: Request) -> Pass:
        wanted = {"inertia": 4.0 * LARGEST_SQUARE * N, "sizes": float(N)}
        if request.last is not None:
            wanted |= {"counts": float(N), "sums": bound}
        if request.used is not None:
            wanted["silhouettes"] = 2.0 * N
        sums = parties.ask_exactly(
            party.lloyd.summing(**wanted),
            centers=request.centers,
            last=request.last,
            sizes=request.sizes,
            used=request.used,
        ).sums
        rows = np.rint(sums["sizes"])
        if rows.min() < 0 or (rows.sum(axis=1) != N).any():
            raise parties.faulty_sum(party.lloyd, f"clusters of {N} rows")
        run.trace("inertia", float(sums["inertia"].min()))
        return Pass(**sums)

    mean = sum_h / N
    cluster = chosen_kmeans if choose else summed_kmeans
    clusters = cluster(
        ask,
        n_clusters,
        mean,
        np.diag(values) / N - np.outer(mean, mean),
        run.rng("k-means"),
        n_init,
        passes,
    )
    metrics = {"passes": clusters.passes, "small_share": clusters.small}
    if choose:
        metrics["clusters"] = len(clusters.centers)
    return distributed_kmeans.first_of_equals(clusters.centers), sum_h, metrics


def by_coreset(
    parties: Parties,
    run: Run,
    space: Subspace,
    R: Array | None,
    H: Array | None,
    *,
    n_clusters: int,
    n_init: int,
    size: int,
) -> tuple[Array, Array, dict[str, Any]]:
    """Lines 16 to 19 as in [1]; the points estimate the sum of the rows of H."""
    # Lines 16 and 17.
    replies = parties.ask(party.local, n_clusters=n_clusters, R=R, H=H)
    # Lines 18 and 19.
    shares = distributed_kmeans.split_budget(np.array(replies.each("cost")), size)
    points, weights = _sample(parties, space, shares, n_clusters)
    rng = run.rng("k-means")
    centers = distributed_kmeans.combine(points, weights, n_clusters, rng, n_init)
    return centers, weights @ points, {}


def _sample(
    parties: Parties, space: Subspace, shares: Array, n_clusters: int
) -> tuple[Array, Array]:
    """Line 19: return points of the embedding of all parties, and their weights."""
    counts = [int(share) for share in shares]
    replies = parties.ask(party.sample, count=each(counts))
    width, mass = len(space.eigenvalues), float(space.eigenvalues.sum())
    for j, (info, reply) in enumerate(zip(parties, replies, strict=True)):
        points, weights, n = reply["points"], reply["weights"], info.n_rows
        most = n if counts[j] >= n else counts[j] + min(n, n_clusters)
        if points.shape[1] != width or len(points) > most:
            rule = f"at most {most} points of {width} numbers"
        # The squares of all rows of H add up to its eigenvalues. No weight is above
        # 2 n_m in size, and they add up to n_m.
        elif largest(points) > 4 * math.sqrt(mass):
            rule = "points no larger than all rows of the embedding together"
        elif not weights.max() > 0 or largest(weights) > 3 * n:
            rule = f"weights that can be those of {n} rows"
        else:
            continue
        raise replies.failure(j, f"its reply must have {rule}")
    points = np.concatenate(replies.each("points"))
    return points, np.concatenate(replies.each("weights"))


def largest(values: Array) -> float:
    """Return the largest absolute value, for any type of number."""
    with np.errstate(over="ignore"):
        return float(np.abs(values.astype(np.float64)).max())


@settings
class FKKMeansPrediction(LaterTask):
    """The clusters of new rows, which stay at their parties.

    =============  =====================================  ==========================
    round trip     party m sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digests of column names,  all of it
                   key
    predict        nothing                                nothing
    =============  =====================================  ==========================

    For models of split rows, trained with ``cem``, of which each party has a whole map
    from rows to clusters. Each writes those of its new rows to a file in its
    ``state-dir``; some parties of training are enough.

    Raises
    ------
    PartyFailed
        A party has no part of this model, one without a map, or other columns than in
        training.
    """

    task = "predict"
    question = "In which clusters are new rows?"
    explained = NEW_CLUSTERS
    partition = "horizontal"
    fills = True
    model_class = UsedModel
    steps: ClassVar[Steps] = (party.predict,)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Ask all parties in one round trip."""
        record = UsedModel(self.model_id).to_record()
        run.record(1, record, self.ask(parties))
        return record

    def ask(self, parties: Parties) -> dict[str, Any]:
        """Let the parties label their rows; return metrics."""
        parties.ask(party.predict)
        log_clusters(parties, self.model_id)
        return {"rows": parties.n_rows}


@settings
class FKKMeansEvaluation(FKKMeansPrediction):
    """What the clusters are worth on new rows: their mean squared distance to centres.

    =============  =====================================  ==========================
    round trip     party m sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digests of column names,  all of it
                   key
    evaluate       cost of its rows, masked               the sum over the parties
    =============  =====================================  ==========================

    ``test_loss`` is in the space of the embedding, as the ``inertia`` of training over
    its number of rows. Each party has at least 20 rows, and writes nothing. See
    :class:`FKKMeansPrediction`.
    """

    task = "evaluate"
    question = "How well do the clusters fit new rows?"
    steps: ClassVar[Steps] = (party.evaluate,)

    @property
    def terms(self) -> Terms:
        """The cost, as in training."""
        return Terms(("row-sums",))

    def ask(self, parties: Parties) -> dict[str, Any]:
        """Return the mean over the rows of all parties, as metrics."""
        N = parties.n_rows
        sums = parties.ask_exactly(party.evaluate.summing(cost=4.0 * N)).sums
        if not 0 <= (cost := float(sums["cost"][0])) < math.inf:
            raise parties.faulty_sum(party.evaluate, "a cost")
        return {"test_rows": N, "test_loss": cost / N}
