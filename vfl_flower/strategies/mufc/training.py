"""Federated clusters that can forget: training. Later tasks are in ``tasks.py``.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Gt, Le
from flwr.app import ArrayRecord

from vfl_flower.clients.mufc import training as party
from vfl_flower.clients.mufc.settings import (
    LEAST_BIN_ROWS,
    PointField,
    Privacy,
    ServerPoints,
    Training,
    TrainingSettings,
)
from vfl_flower.models.base import Model
from vfl_flower.models.mufc import MUFCModel
from vfl_flower.numerics.evaluation import most_chosen
from vfl_flower.numerics.mufc import (
    Quantizer,
    number_of_clusters,
    server_centroids,
    server_points,
)
from vfl_flower.party.memory import Memory
from vfl_flower.protocol.settings import Count, InOutputDir, Natural, settings
from vfl_flower.protocol.steps import Steps, Sum
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.limbs import LIMB, join_limbs
from vfl_flower.secure_aggregation.sparse_sum import SparseSum
from vfl_flower.server.exchange import FederationError, PartyFailed
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import ProtocolStrategy, Run
from vfl_flower.strategies.evaluation import record_model
from vfl_flower.strategies.mufc import box as boxes
from vfl_flower.strategies.mufc.metrics import FORGETTING
from vfl_flower.strategies.mufc.state import ServerState
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

StateFolder = Annotated[str | Path | None, InOutputDir("state")]
"""Folder of the server's states. An empty value means no folder or, in a run config,
the folder ``output-dir``/state."""

Gamma = Annotated[float, Gt(0), Le(1)] | Literal["auto"]

ABANDON = 60.0
"""Maximum seconds to wait for each party when training is abandoned."""

SMALL_BIN = 20
"""Bins with fewer rows are counted in the results and in a warning."""


@contextmanager
def naming_parties(parties: Parties) -> Iterator[None]:
    """Name all parties in an error about their sums: any of them may be at fault."""
    try:
        yield
    except PartyFailed:
        raise
    except FederationError as error:
        names = [info.name for info in parties]
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        listed = ", ".join(names[:10])
        raise FederationError(f"{error} (parties: {listed}{more})") from None


@settings
class MUFCTask(ProtocolStrategy):
    """Base class of training and of the tasks after training."""

    model_class = MUFCModel
    explained = FORGETTING
    partition = "horizontal"
    encodes = False

    @property
    def terms(self) -> Terms:
        """Centroids, accurate to one bin, and the row sums that the objective needs."""
        versions = party.commit in self.steps
        return Terms(("centroids",), ("row-sums",) if versions else ())

    @property
    def leaving(self) -> list[str]:
        """Names of the parties to forget."""
        return []

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add the clusters of each party's rows, if all parties are in this process."""
        labels = [memory.remembered("labels") for memory in memories]
        known = [clusters for clusters in labels if clusters is not None]
        if isinstance(model, MUFCModel) and len(known) == len(labels):
            model.labels_ = known

    def cluster(
        self,
        parties: Parties,
        run: Run,
        replies: Replies[Any],
        agreed: TrainingSettings,
        key: bytes,
    ) -> tuple[Array, Array, Array]:
        """Run lines 4 to 7 of Algorithm 1: cluster the counts in the parties' replies.

        Returns the bins that hold centroids, (m, d); q, the number of rows of each bin,
        (m,); and the centres C_s, (K, d), in the cube of the box.
        """
        rng = run.rng("k-means")
        if agreed.privacy == "none":
            most = agreed.local_clusters
            for j, rows in enumerate(replies.each("sizes")):
                if len(rows) > most:
                    reason = f"it must send at most {most} centroids, got {len(rows)}"
                    raise replies.failure(j, reason)
            points = np.concatenate(replies.each("centroids")).astype(np.float64)
            sizes = np.concatenate(replies.each("sizes")).astype(np.int64)
            if int(sizes.sum()) != _total_rows(replies):
                raise FederationError(
                    "the sum of the parties' cluster sizes is not the sum of their row "
                    "counts: a message was altered"
                )
            bins, counts = agreed.quantizer.count(points, sizes)
            weights = sizes.astype(np.float64)
        else:
            message, code = replies.sums["message"], code_of(parties, agreed, key)
            if message.shape != (code.size,):
                raise replies.failure(0, f"its 'message' must have {code.size} numbers")
            try:
                bins, counts = code.decode(message, _total_rows(replies))
            except ValueError as error:
                raise FederationError(str(error)) from None
            points, weights = server_points(
                agreed.quantizer, bins, counts, rng, agreed.server_points
            )
        if not len(points):
            raise FederationError(
                "at least one row must remain: to forget all rows, remove the model"
            )
        k = agreed.n_clusters
        if agreed.choose_clusters:
            middles = agreed.quantizer.centers(bins), counts.astype(np.float64)
            draws = run.rng("number of clusters")
            k = number_of_clusters(*middles, k, draws, agreed.n_init)
        return bins, counts, server_centroids(points, weights, k, rng, agreed.n_init)

    def commit(
        self,
        parties: Parties,
        run: Run,
        model: MUFCModel,
        agreed: TrainingSettings,
        n_rows: int,
        state: ServerState | None = None,
        run_id: str = "",
        **metrics: Any,
    ) -> ArrayRecord:
        """Run line 9: send the parties the valid version and its centres.

        Sets the sizes of `model` and, if all parties consent, its objective, and adds
        them to the server's `state`. `run_id` is the run that saved the version, by
        default this run.
        """
        cost = parties.let("row-sums", *range(len(parties)))
        sums = {"sizes": Sum(float(party.MOST_ROWS))}
        if cost:
            sums["cost"] = Sum(LIMB)
        replies = parties.ask(
            party.commit.summing(**sums),
            version=model.version,
            run=run_id or parties.session_id,
            centers=model.cluster_centers_,
            kept=model.kept,
            cost=cost,
        )
        with naming_parties(parties):
            if cost:
                model.inertia_ = _inertia(replies, n_rows * parties[0].n_columns)
            model.sizes_ = _sizes(replies, n_rows)
        if state is not None:
            state.describe(model.version, model.sizes_, model.inertia_)
        counted = {
            "version": model.version,
            "clients": sum(info.name not in self.leaving for info in parties),
            "rows": n_rows,
            **worth(model, agreed),
        }
        if agreed.choose_clusters:
            counted["clusters"] = len(model.cluster_centers_)
        return record_model(run, model, counted | metrics)


@settings
class MUFC(MUFCTask):
    """Clusters of rows at many parties, from counts of quantised local centroids.

    =============  =====================================  ==========================
    round trip     party l sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digests of column names,  all of it
                   key
    train          power sums of its quantised centroids  the sum: which bins hold
                   and their cluster sizes, masked        centroids, and for how many
                                                          rows; not whose
    commit         induced objective and sizes, masked    the sums over parties
    =============  =====================================  ==========================

    With ``privacy="none"``, the server learns each party's centroids, which are some of
    the party's rows, and the sizes of their clusters.

    Clustering takes place in the cube [-1/2, 1/2]^d. A box scales the rows to this
    cube, so that no column counts more than another because of its unit. Centres are in
    the unit of the data; in the objective, each side of the box has length 1. A seed
    makes the draws predictable: give a seed in experiments only.

    Raises
    ------
    PartyFailed
        A party failed. If it failed in the last round trip, the model is saved, and the
        message contains the model's id.

    Notes
    -----
    With ``client_training="init"``, centroids are rows, and each bin reveals that it
    contains a row of some party. Anyone with candidate rows can find out which of them
    are centroids, however many rows the bin represents. With the defaults of
    `client_training` ("full") and `min_rows_per_bin`, a bin contains a mean of several
    rows of a party. Nothing is differentially private. See ``docs/mufc.md`` for the
    figures.

    The class differs from [1], which calls the parties "clients", in four ways: 1. Bins
    are hashed to points of one field, so that d can be large. 2. A removal updates
    counts. 3. State is kept on disk. 4. Unlike in :meth:`paper`, parties train
    completely and merge small clusters.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)) / 40 + rng.choice([-0.3, 0.3], size=(300, 1))
    >>> parties = [Party(X[m::3]) for m in range(3)]
    >>> model = simulate(MUFC(n_clusters=2), parties, seed=0).model
    >>> int(model.sizes_.sum()), bool(np.ptp(model.predict([[-0.3] * 2, [0.3] * 2])))
    (300, True)
    """

    question = "Which rows belong together, if some must be forgotten later?"
    steps: ClassVar[Steps] = (party.train, party.commit, party.abandon)

    n_clusters: Natural = 4
    """Number of clusters, K."""
    local_clusters: Count = dataclasses.field(default=0, kw_only=True)
    """Maximum number of centroids per party, K'; 0 means K."""
    box: boxes.Bounds = dataclasses.field(default="-0.5,0.5", kw_only=True)
    """Public bounds of the columns, which must not be taken from the rows:
    "lower,upper" for all columns; a pair for each column, "0,1;18,120"; or pairs by
    name, "age=18,120;*=0,1", where "*" stands for all other numeric columns, and
    text columns that are not named get -3.5,4.5. Wider bounds give a column less
    weight. On the command line, "@FILE" reads bounds from a file."""
    gamma: Gamma = "auto"
    """Quantisation step, as a fraction of the box's side; "auto": 1/sqrt(n). With a
    small step, a bin reveals a row, or a mean, to many digits."""
    server_points: ServerPoints = "uniform"
    """How the server represents a bin of q_j rows. "uniform": by q_j points drawn
    uniformly from the bin; "weighted": by its midpoint, with weight q_j."""
    client_training: Training = "full"
    """"full": Lloyd's iteration moves drawn rows to means. "init": rows drawn by
    k-means++ are the centroids. Removals are then cheaper, but the objective is higher,
    and bins reveal which rows are centroids."""
    min_rows_per_bin: Natural = dataclasses.field(default=5, kw_only=True)
    """Minimum number of rows in a party's cluster; smaller clusters are merged into the
    nearest cluster. With 1, a bin can contain a single row."""
    privacy: Privacy = "scma"
    """"scma": the server receives sparse counts, summed under masks. "none": the server
    receives each party's centroids and cluster sizes in the clear."""
    field: PointField = dataclasses.field(default="hash", kw_only=True)
    """Mapping from bins to field elements. "hash": a hash of the bin; "paper": the
    bin's number, for few columns only."""
    n_init: Natural = dataclasses.field(default=10, kw_only=True)
    """Number of starts of the server's k-means."""
    choose_clusters: bool = dataclasses.field(default=False, kw_only=True)
    """Choose K from 2 to `n_clusters` by a silhouette score of the bins, and again
    whenever rows change."""
    server_state: StateFolder = dataclasses.field(default="", kw_only=True)
    """Folder for the state that the server needs to forget rows; each party then needs
    a `state-dir` and a name."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the settings do not fit together."""
        super().__post_init__()
        if not boxes.named_bounds(self.box):
            boxes.parse_box(self.box)
        if not isinstance(self.gamma, str):
            Quantizer(self.gamma)  # at most 2^32 bins
        if self.choose_clusters and self.n_clusters < 2:
            raise ValueError(
                "n_clusters must be at least 2 with choose_clusters, got "
                f"{self.n_clusters}"
            )

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return Algorithms 1 and 2 of [1] as published, except for `settings`.

        Drawn rows are the centroids (line 2), gamma is 1 / sqrt(n), and the server
        represents bins by uniformly drawn points. Bins are hashed, because no data set
        of [1] fits `field` "paper". For Algorithm 4 of [1], use
        ``MUFCUnlearn(lazy_counts=True)``.
        """
        published: dict[str, Any] = {"client_training": "init", "min_rows_per_bin": 1}
        published |= {"gamma": "auto", "server_points": "uniform", "privacy": "scma"}
        return cls(**published | settings)

    @property
    def terms(self) -> Terms:
        """Centroids; also rows, if a centroid can be a row or a mean of few rows."""
        if (
            self.client_training == "full"
            and self.min_rows_per_bin >= LEAST_BIN_ROWS
            and self.privacy == "scma"
        ):
            return super().terms
        less = (
            "With client_training='full' and min_rows_per_bin of at least "
            f"{LEAST_BIN_ROWS}, centroids are means, and the run needs only centroids"
        )
        return replace(super().terms, needs=("rows", "centroids"), less=less)

    @property
    def folder(self) -> Path | None:
        """Folder of the server's data for forgetting rows, or None."""
        return Path(self.server_state) if self.server_state else None

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Warn if there are too few bins, or too few clusters to choose from."""
        if "clusters" in metrics:
            return most_chosen(metrics, self.n_clusters)
        if not 0 < metrics["bins"] < self.n_clusters:
            return []
        return [
            f"there are only {metrics['bins']} bins for {self.n_clusters} clusters, so "
            "some clusters get no rows: if the parties have few rows, lower "
            "min_rows_per_bin or n_clusters"
        ]

    def rehearsed(self) -> Self:
        """Return a strategy for columns without names."""
        named = boxes.named_bounds(self.box)
        return self.replace(box="-0.5,0.5") if named else self.replace()

    def random_rows(
        self, rng: np.random.Generator, n_rows: int, n_columns: int
    ) -> Array:
        """Return rows in the box."""
        box = boxes.parse_box(self.rehearsed().box)
        lower, upper = (np.resize(bound, n_columns) for bound in box)
        return rng.uniform(lower, upper, size=(n_rows, n_columns))

    def agree(self, parties: Parties) -> TrainingSettings:
        """Return the settings to agree on, including settings that depend on data."""
        n = parties.n_rows
        lower, upper = boxes.box_of(parties, self.box)
        if self.n_clusters > n:
            raise FederationError(
                f"n_clusters must be at most {n}, the number of rows of all parties, "
                f"got {self.n_clusters}"
            )
        if n > party.MOST_ROWS:
            raise FederationError(
                f"the parties must have at most 2^40 rows in total, got {n}"
            )
        return TrainingSettings(
            n_clusters=self.n_clusters,
            local_clusters=self.local_clusters or self.n_clusters,
            gamma=1 / math.sqrt(n) if self.gamma == "auto" else self.gamma,
            lower=lower,
            upper=upper,
            server_points=self.server_points,
            client_training=self.client_training,
            privacy=self.privacy,
            field=self.field,
            n_init=self.n_init,
            min_rows_per_bin=self.min_rows_per_bin,
            choose_clusters=self.choose_clusters,
            columns=parties.columns or None,
        )

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Run Algorithm 1."""
        model = parties.session_id
        log.info("model %s", model)
        agreed = self.agree(parties)
        key = new_key(parties, agreed)
        if agreed.privacy == "scma":
            code_of(parties, agreed, key)
        replies = parties.ask(
            party.train.summing(**sums_of(agreed)),
            model=model,
            settings=agreed,
            key=key,
            keep=self.folder is not None,
        )
        with naming_parties(parties):
            bins, counts, centers = self.cluster(parties, run, replies, agreed, key)
        centers = agreed.box.restore(centers)
        few = counted_bins(counts)
        if few["small_bins"]:
            log.warning(
                "%d of %d bins have fewer than %d rows, and %d have one row: the "
                "server can tell whether a row that it knows is in such a bin",
                few["small_bins"],
                few["bins"],
                SMALL_BIN,
                few["single_bins"],
            )
        state = None
        if self.folder is not None and all(replies.each("kept")):
            names = [info.name for info in parties]
            state = ServerState(self.folder, model)
            if not (state.exists and state.version):  # unless a killed run saved it
                state = ServerState.create(self.folder, model, agreed, names)
                state.save(1, bins, counts, centers, names, "train", run=model)
        else:
            log.warning(
                "this model cannot forget rows: forgetting needs server_state, and a "
                "state_dir at each party"
            )
        trained = version_of(model, 1, centers, agreed, stored=state is not None)
        try:
            rows = _total_rows(replies)
            record = self.commit(parties, run, trained, agreed, rows, state, **few)
        except FederationError as error:
            if state is None:
                raise
            saved = f"model {model} is saved, and its next task completes the model"
            if not isinstance(error, PartyFailed):
                raise FederationError(f"{error}; {saved}") from None
            raise PartyFailed(
                error.party, error.action, f"{error.reason}; {saved}", error.nodes
            ) from None
        scaled = agreed.box.scale(trained.cluster_centers_)
        run.warnings += boxes.followed(parties, self.box, scaled, trained.sizes_)
        return record

    def give_up(self, parties: Parties, error: Exception) -> None:
        """Have the parties remove the state of a failed training run."""
        model = parties.session_id
        state = None if self.folder is None else ServerState(self.folder, model)
        saved = state is not None and state.exists and state.version > 0
        asked = parties.ledger.of(party.train.action).messages > 0
        if state is not None and asked and not saved:
            failed = error.nodes if isinstance(error, PartyFailed) else {}
            abandon(parties, model, list(failed))


def abandon(parties: Parties, model: str, failed: Sequence[int]) -> None:
    """Have parties remove the state of a failed training run; log where it may remain.

    A party that refused has written nothing; other `failed` nodes are not asked.
    """
    parties.hurry(ABANDON)
    left = []
    for j, info in enumerate(parties):
        done = parties.refused(j, party.train)
        if not done and info.node_id not in failed:
            with suppress(FederationError):
                parties.ask_one(j, party.abandon, model=model)
                done = True
        # A party answers one message at a time: its refusal may arrive only now.
        if not done and not parties.refused(j, party.train):
            left.append(info.name)
    if left:
        log.warning(
            "model %s is abandoned, but %s could not be reached: run vfl-flower models "
            "remove %s there",
            model,
            ", ".join(left),
            model,
        )


def new_key(parties: Parties, agreed: TrainingSettings) -> bytes:
    """Return a key for the hash of bins; empty if they are not hashed."""
    return parties.checkpoint.token(16) if agreed.field == "hash" else b""


def sums_of(agreed: TrainingSettings) -> dict[str, Sum]:
    """Return the sums that the server requests together with the counts."""
    sums = {"totals": Sum(float(party.MOST_ROWS))}
    if agreed.privacy == "scma":
        sums["message"] = Sum(group="field")
    return sums


def code_of(parties: Parties, agreed: TrainingSettings, key: bytes) -> SparseSum:
    """Return the code of Algorithm 2, or raise FederationError."""
    try:
        return agreed.code(len(parties), parties[0].n_columns, key)
    except ValueError as error:
        raise FederationError(str(error)) from None


def version_of(
    model: str, version: int, centers: Array, agreed: TrainingSettings, stored: bool
) -> MUFCModel:
    """Return a version of a model, with centres in the unit of the data."""
    return MUFCModel(
        model, version, centers, kept=stored, lower=agreed.lower, upper=agreed.upper
    )


def worth(model: MUFCModel, agreed: TrainingSettings) -> dict[str, float]:
    """Return the objective and, if centres are means, the share of spread explained.

    The server computes both without asking the parties. If each centre is the mean of
    its n_k rows, the total sum of squares is the sum between clusters, sum_k n_k |c_k -
    c|^2, plus the objective. With client_training "full" each centre is such a mean,
    except for the quantisation; with "init" it is a mean of drawn rows instead.
    """
    if math.isnan(model.inertia_):
        return {}
    metrics = {"inertia": model.inertia_}
    if agreed.client_training == "full":
        centers = agreed.box.scale(model.cluster_centers_)
        mean = model.sizes_ @ centers / model.sizes_.sum()
        between = float(model.sizes_ @ ((centers - mean) ** 2).sum(axis=1))
        if (total := between + model.inertia_) > 0:
            metrics["explained"] = between / total
    return metrics


def counted_bins(counts: Array) -> dict[str, Any]:
    """Return the number of bins, of bins with few rows, and of bins with one row."""
    return {
        "bins": len(counts),
        "small_bins": int((counts < SMALL_BIN).sum()),
        "single_bins": int((counts == 1).sum()),
    }


def _total_rows(replies: Replies[Any]) -> int:
    """Return the number of rows of all parties."""
    rows, behind = replies.sums["totals"][:2].tolist()
    if not (0 <= rows <= party.MOST_ROWS and 0 <= behind <= len(replies)):
        raise FederationError(
            "the sum of the parties' row counts is not between 0 and 2^40: a message "
            "was altered"
        )
    return int(rows)


def _inertia(replies: Replies[Any], most: float) -> float:
    """Return the objective; raise if it is too large for rows in the cube."""
    inertia = float(join_limbs(replies.sums["cost"])[0])
    if not 0 <= inertia <= 1.01 * most:
        raise FederationError(
            "no rows in the box can have this objective: a message was altered"
        )
    return inertia


def _sizes(replies: Replies[Any], n_rows: int) -> Array:
    """Return the number of rows in each cluster, as an array of shape (K,)."""
    sizes = np.rint(replies.sums["sizes"])
    if not (sizes >= 0).all() or sizes.sum() != n_rows:
        raise FederationError(
            f"the sizes of the clusters do not add up to {n_rows}, the number of rows: "
            "a message was altered"
        )
    return sizes.astype(np.int64)
