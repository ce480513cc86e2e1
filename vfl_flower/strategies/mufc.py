"""Federated clusters that can forget rows and clients.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
    federated clusters", ICLR 2023.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models import MUFCModel
from vfl_flower.numerics.mufc import (
    POINTS,
    Box,
    Quantizer,
    server_centroids,
    server_points,
)
from vfl_flower.secure_aggregation import (
    LIMB,
    SparseSum,
    SparseSumError,
    join_limbs,
)
from vfl_flower.strategies.base import (
    ProtocolStrategy,
    Run,
    check_choice,
    check_flags,
    check_positive,
    check_whole,
)
from vfl_flower.strategies.exchange import FederationError, PartyFailed
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Replies, Sum
from vfl_flower.typing import Array
from vfl_flower.unlearning import GlobalClusters, ServerState

log = logging.getLogger("vfl_flower")

TRAININGS = ("init", "full")
PRIVACIES = ("scma", "none")
FIELDS = ("hash", "paper")

Bounds = str | tuple[Any, Any]


class _Task(ProtocolStrategy):
    """What training and the tasks after it have in common."""

    model_class = MUFCModel
    partition = "horizontal"
    evaluation_actions = ()

    model: str
    server_state: str | Path | None

    def _counted(
        self,
        parties: Parties,
        run: Run,
        replies: Replies,
        settings: Mapping[str, Any],
        key: bytes,
    ) -> tuple[Array, Array, Array]:
        """Lines 4 to 7 of Algorithm 1: return bins, counts and global centroids.

        The centroids are in the cube of the box.
        """
        quantizer = Quantizer(float(settings["gamma"]))
        rng = run.rng("k-means")
        k, n_init = int(settings["n_clusters"]), int(settings["n_init"])
        if settings["privacy"] == "none":
            points = np.concatenate(replies.each("centroids"))
            sizes = np.concatenate(replies.each("sizes"))
            centers = _clusters(points, sizes.astype(np.float64), k, rng, n_init)
            bins, which = np.unique(quantizer.bins(points), axis=0, return_inverse=True)
            counts = np.zeros(len(bins), dtype=np.int64)
            np.add.at(counts, which.ravel(), sizes)
            return bins, counts, centers
        code = self._code(parties, settings, key)
        rows = int(replies.sums["totals"][0])
        if not 0 <= rows <= 2**40:
            raise FederationError(
                "the rows of the clients must add up to a number from 0 to 2^40: a "
                "message is changed"
            )
        try:
            bins, counts = code.decode(replies.sums["message"], rows)
        except SparseSumError as error:
            raise FederationError(str(error)) from None
        points, weights = server_points(
            quantizer, bins, counts, rng, str(settings["server_points"])
        )
        return bins, counts, _clusters(points, weights, k, rng, n_init)

    def _code(
        self, parties: Parties, settings: Mapping[str, Any], key: bytes
    ) -> SparseSum:
        """Return the code of Algorithm 2."""
        return SparseSum(
            int(settings["local_clusters"]),
            len(parties),
            parties[0].n_columns,
            Quantizer(float(settings["gamma"])).n_bins,
            key,
            str(settings["field"]),
        )

    def _sums(self, parties: Parties, settings: Mapping[str, Any]) -> dict[str, Sum]:
        sums = {"totals": Sum(2.0**40)}
        if settings["privacy"] == "scma":
            sums["message"] = Sum(group="field")
        return sums

    def _model(
        self, model: str, version: int, centers: Array, settings: Mapping[str, Any]
    ) -> MUFCModel:
        """Return a version of a model, with centres in the unit of the data."""
        box = Box.of(settings)
        return MUFCModel(
            model, version, centers, kept=True, lower=box.lower, upper=box.upper
        )

    def _known(self, now: GlobalClusters) -> MUFCModel:
        """Return the version of the model that the server has."""
        model = self._model(self.model, now.version, now.centers, now.settings)
        model.sizes_, model.inertia_ = now.sizes, now.inertia
        return model

    def _commit(
        self,
        parties: Parties,
        run: Run,
        model: MUFCModel,
        leaving: Sequence[str] = (),
        run_id: str = "",
        **metrics: Any,
    ) -> ArrayRecord:
        """Tell the clients the version that holds, and the centres."""
        found = parties.ask_each(
            "mufc_commit",
            [{"leaves": party.name in leaving} for party in parties],
            sums={"cost": Sum(LIMB), "sizes": Sum(2.0**40)},
            model=model.model,
            version=model.version,
            run=run_id or f"{parties.session:016x}",
            centers=model.cluster_centers_,
            kept=model.kept,
        )
        model.inertia_ = float(join_limbs(found.sums["cost"])[0])
        model.sizes_ = np.rint(found.sums["sizes"]).astype(np.int64)
        if model.kept and self.server_state:
            state = ServerState(Path(self.server_state), model.model)
            state.describe(model.version, model.sizes_, model.inertia_)
        record = model.to_record()
        here = [party.name for party in parties if party.name not in leaving]
        counted = {
            "version": model.version,
            "clients": len(here),
            "rows": int(model.sizes_.sum()),
            "inertia": model.inertia_,
        }
        run.record(1, record, counted | metrics)
        return record


class _Later(_Task):
    """What the tasks after training have in common: a state at the server."""

    def check(self) -> None:
        """Raise before any message where the server has no such model."""
        super().check()
        self._state().load()

    def _state(self) -> ServerState:
        return ServerState(_folder(self.server_state), self.model)


class MUFC(_Task):
    """Clusters of rows of many clients, from the counts of quantised centroids.

    =============  =====================================  ==========================
    round trip     client l sends                         the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digest of column names,   all of it
                   key
    train          power sums of its quantised centroids  the sum: which bins hold
                   and their cluster sizes, masked        centroids, and of how many
                                                          rows; not of whom
    commit         induced objective and sizes, masked    the sums over clients
    =============  =====================================  ==========================

    With ``privacy="none"`` the server learns each client's centroids, which are rows of
    it, and sizes.

    Rows are scaled by a box to the cube [-1/2, 1/2]^d, in which all is clustered: no
    column counts more than another because of its unit. Centres are in the unit of the
    data, the objective in sides of the box squared.

    Parameters
    ----------
    n_clusters : int
        K, global clusters.
    gamma : float or "auto"
        Quantisation step, in sides of the box, in (0, 1] and at least about 2^-32;
        ``"auto"``: 1 / sqrt(n). With a small one a bin shows a row.
    server_points : {"uniform", "weighted"}
        What a bin of q_j rows becomes: q_j uniform points, or its middle of weight q_j.
    client_training : {"init", "full"}
        Clients draw centroids by k-means++ among their rows, or go on with Lloyd's
        iteration to means (Appendix M.3), which runs anew at each removal.
    privacy : {"scma", "none"}
        Sums of sparse counts under masks (Algorithm 2), or all in the clear (5).
    local_clusters : int
        K', centroids of a client at most; 0: K.
    box : str or (lower, upper)
        Bounds of the columns, agreed and public and not taken from the rows: one pair
        ``"lower,upper"`` for all, or one a column, ``"0,1;18,120"``. They set the scale
        of each column.
    field : {"hash", "paper"}
        How a bin becomes an element of a field: by a hash, or as in [1] by its number,
        for few columns.
    n_init : int
        Starts of k-means at the server.
    server_state : path, optional
        Folder in which the server keeps what it needs to forget later. Each client
        needs a ``state-dir`` and a name of its own for that.
    allow_missing : bool
        Begin again without a client that fails before the server has the sum. After it
        the run ends: a second sum without that client would show its counts.
    masking, n_parties, seed
        See :class:`~vfl_flower.strategies.base.ProtocolStrategy`. A seed makes draws
        that can be foreseen: for experiments.

    Raises
    ------
    PartyFailed
        A client failed. Where that was in the last round trip, the model is saved, and
        its number is in the text.

    Notes
    -----
    Differs from [1] in: 1. bins are hashed to points of one field, so that d can be
    large; 2. counts are updated by a removal; 3. state on disk.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulations import simulate
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)) / 40 + rng.choice([-0.3, 0.3], size=(300, 1))
    >>> clients = [Party(X[m::3]) for m in range(3)]
    >>> model = simulate(MUFC(n_clusters=2), clients, seed=0).model
    >>> int(model.sizes_.sum()), bool(np.ptp(model.predict([[-0.3] * 2, [0.3] * 2])))
    (300, True)
    """

    def __init__(
        self,
        n_clusters: int = 4,
        gamma: float | str = "auto",
        server_points: str = "uniform",
        client_training: str = "init",
        privacy: str = "scma",
        *,
        local_clusters: int = 0,
        box: Bounds = "-0.5,0.5",
        field: str = "hash",
        n_init: int = 10,
        server_state: str | Path | None = None,
        allow_missing: bool = False,
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(masking=masking, n_parties=n_parties, seed=seed)
        check_whole("n_clusters", n_clusters, 1)
        check_whole("local_clusters", local_clusters, 0)
        check_whole("n_init", n_init, 1)
        check_positive("gamma", gamma, "auto")
        if gamma != "auto" and float(gamma) > 1:
            raise ValueError(f"gamma must be 'auto' or in (0, 1], got {gamma}")
        if gamma != "auto":
            Quantizer(float(gamma))  # at most 2^32 bins
        check_choice("server_points", server_points, POINTS)
        check_choice("client_training", client_training, TRAININGS)
        check_choice("privacy", privacy, PRIVACIES)
        check_choice("field", field, FIELDS)
        parse_box(box)
        self.n_clusters, self.gamma, self.server_points = (
            n_clusters,
            gamma,
            server_points,
        )
        self.client_training, self.privacy = client_training, privacy
        self.local_clusters, self.box, self.field = local_clusters, box, field
        self.n_init, self.server_state = n_init, server_state
        self.allow_missing = allow_missing
        check_flags(self, "allow_missing")

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Algorithm 1."""
        model = f"{parties.session:016x}"
        log.info("model %s", model)
        lower, upper = parse_box(self.box)
        d = parties[0].n_columns
        if lower.ndim and len(lower) != d:
            raise FederationError(
                "box must have one pair of bounds, or one for each of the "
                f"{d} columns, got {len(lower)}"
            )
        if self.n_clusters > parties.n_rows:
            raise FederationError(
                f"n_clusters must be at most the {parties.n_rows} rows of all clients, "
                f"got {self.n_clusters}"
            )
        gamma = self.gamma
        settings: dict[str, Any] = {
            "n_clusters": self.n_clusters,
            "local_clusters": self.local_clusters or self.n_clusters,
            "gamma": 1 / math.sqrt(parties.n_rows) if gamma == "auto" else float(gamma),
            "lower": lower,
            "upper": upper,
            "server_points": self.server_points,
            "client_training": self.client_training,
            "privacy": self.privacy,
            "field": self.field,
            "n_init": self.n_init,
        }
        key = _new_key(settings)
        if self.privacy == "scma":
            try:
                self._code(parties, settings, key)
            except ValueError:
                raise FederationError(
                    f"field must be 'hash' for {d} columns of "
                    f"{Quantizer(settings['gamma']).n_bins} bins: their product is "
                    "above 2^61"
                ) from None
        abandoned = list(run.begun)
        run.begun.append(model)
        replies = parties.ask(
            "mufc_train",
            sums=self._sums(parties, settings),
            model=model,
            n_clients=len(parties),
            key=key,
            keep=bool(self.server_state),
            abandoned=abandoned,
            **settings,
        )
        # The server has q: with a second one of all but one it would know the one's.
        run.final = True
        bins, counts, centers = self._counted(parties, run, replies, settings, key)
        centers = Box.of(settings).restore(centers)
        kept = all(replies.each("kept"))
        names = [party.name for party in parties]
        if not kept:
            log.warning(
                "this model cannot forget: server_state and the state_dir of each "
                "client must be given for that"
            )
        if kept:
            stored = {k: _listed(v) for k, v in settings.items()}
            state = ServerState.create(_folder(self.server_state), model, stored, names)
            state.save(1, bins, counts, centers, names, "train", run=model)
        found = self._model(model, 1, centers, settings)
        found.kept, found.missing = kept, run.missing
        try:
            return self._commit(parties, run, found)
        except PartyFailed as failure:
            if not kept:
                raise
            raise PartyFailed(
                failure.party,
                failure.action,
                f"{failure.reason}; model {model} is saved, and its next task "
                "completes it",
                failure.nodes,
            ) from None


class MUFCUnlearn(_Later):
    """Forget rows of a trained model.

    =============  =====================================  ==========================
    round trip     client l sends                         the server learns
    =============  =====================================  ==========================
    hello          as in training                         all of it
    forget         as in training; number of rows, and    the sums over clients: of
                   whether its file of clusters is        counts after the removal,
                   missing, masked                        so the rows removed
    commit         as in training                         the sums over clients
    =============  =====================================  ==========================

    A client whose rows are not asked for, one that loses rows and one that loses a
    centroid send messages of one form and size. The server has the counts before and
    after, thus their difference: forget several rows in one run.

    Parameters
    ----------
    model : str
        Number of the model, which its training gave.
    forget : str or mapping of str to sequence of str
        Ids to forget by the name of their client, ``"clinic-a:17,23;clinic-b:4"``.
        Clients forget besides what stands in ``forget.txt`` in their ``state-dir``,
        which nobody else sees.
    lazy_counts : bool
        Keep the centres where the counts change and no bin does (Algorithm 4); not with
        ``privacy="none"``, where centroids are no bins.
    server_state : path
        The folder of training.
    masking, n_parties, seed
        As of :class:`MUFC`.

    Raises
    ------
    ValueError
        From `start`, before any message: the folder has no state of that model, or
        `lazy_counts` has no effect.
    FederationError
        Other clients than those of the model take part.
    PartyFailed
        An id is not of a row of training, or rows of training are gone from the data
        and were not forgotten. Then nothing is changed.
    """

    def __init__(
        self,
        model: str,
        forget: str | Mapping[str, Sequence[str]] = "",
        *,
        lazy_counts: bool = False,
        server_state: str | Path | None = None,
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(masking=masking, n_parties=n_parties, seed=seed)
        self.model, self.forget, self.lazy_counts = _named(model), forget, lazy_counts
        self.server_state = server_state
        check_flags(self, "lazy_counts")
        parse_requests(forget)
        _folder(server_state)

    def shown(self) -> dict[str, Any]:
        """Return the arguments without the ids, which would stay in a log."""
        requests = parse_requests(self.forget)
        counts = {name: len(ids) for name, ids in requests.items()}
        return super().shown() | {"forget": counts}

    def check(self) -> None:
        """Raise before any message where the server has no such model."""
        super().check()
        if self.lazy_counts and self._state().load().settings["privacy"] == "none":
            raise ValueError("lazy_counts has no effect with privacy='none', got True")

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Algorithms 3 and 4."""
        requests = parse_requests(self.forget)
        return self._forget(parties, run, requests, ())

    def _forget(
        self,
        parties: Parties,
        run: Run,
        requests: Mapping[str, Sequence[str]],
        leaving: Sequence[str],
    ) -> ArrayRecord:
        state = self._state()
        before, run_id = state.load(), f"{parties.session:016x}"
        names = [party.name for party in parties]
        # A client that was forgotten may not have heard of it.
        past = {
            name
            for entry in state.log()
            if entry["kind"] == "forget-client"
            for name in entry["clients"]
        }
        _check_clients(names, before.clients, requests, leaving, past)
        if len(set(before.clients) - set(leaving)) < self.least_parties:
            raise FederationError(
                f"at least {self.least_parties} clients must stay, whose sum hides "
                "each: remove the model instead"
            )
        settings, key = before.settings, _new_key(before.settings)
        replies = parties.ask_each(
            "mufc_forget",
            [
                {"leaves": True, **{k: _packed(v) for k, v in settings.items()}}
                if name in leaving
                else {"ids": list(requests.get(name, ()))}
                for name in names
            ],
            sums=self._sums(parties, settings),
            model=self.model,
            version=before.version,
            before=before.run,
            run=run_id,
            n_clients=len(parties),
            key=key,
            kind="forget-client" if leaving else "unlearn",
        )
        bins, counts, centers = self._counted(parties, run, replies, settings, key)
        centers = Box.of(settings).restore(centers)
        removed = int(before.counts.sum() - counts.sum())
        changed = not np.array_equal(bins, before.bins)
        if not self.lazy_counts:
            changed |= not np.array_equal(counts, before.counts)
        if settings["privacy"] == "none":
            changed = bool(removed or leaving)
        if not changed:  # line 4 of Algorithm 4: C_s stays
            centers = before.centers
        behind = int(replies.sums["totals"][1])
        if not removed and not set(leaving) & set(before.clients):
            log.warning("nothing to forget was asked for, or it was forgotten before")
            model = self._known(before)
            # A run that was killed has left clients without their clusters or the
            # server without their sizes, or one that was forgotten did not hear of it.
            done = {"removed": 0, "changed": 0}
            if behind or not len(before.sizes) or set(leaving) & set(names):
                return self._commit(parties, run, model, leaving, before.run, **done)
            found = {"version": before.version, "clients": len(parties)}
            found |= {"rows": int(before.counts.sum())} | done
            kept = {"inertia": before.inertia}
            run.record(1, record := model.to_record(), found | kept)
            return record
        stay = [name for name in before.clients if name not in leaving]
        state.save(
            before.version + 1,
            bins,
            counts,
            centers,
            stay,
            "forget-client" if leaving else "unlearn",
            named=list(leaving or requests),
            run=run_id,
        )
        model = self._model(self.model, before.version + 1, centers, settings)
        return self._commit(
            parties, run, model, leaving, removed=removed, changed=int(changed)
        )


class MUFCForgetClient(MUFCUnlearn):
    """Forget whole clients of a trained model, connected or not.

    A connected one removes its state; without one that is gone the others' counts do.
    Rows that the others want to forget wait for :class:`MUFCUnlearn`.

    Parameters
    ----------
    model : str
        Number of the model, which its training gave.
    clients : str or sequence of str
        Their names, ``"clinic-a,clinic-b"``; at least two others must stay.
    server_state, masking, n_parties, seed
        As of :class:`MUFCUnlearn`.
    """

    def __init__(
        self,
        model: str,
        clients: str | Sequence[str] = "",
        *,
        server_state: str | Path | None = None,
        masking: str = "ring",
        n_parties: int = 0,
        seed: int | None = None,
    ) -> None:
        _named(model)
        listed: Any = clients.split(",") if isinstance(clients, str) else clients
        if not isinstance(listed, Iterable) or not all(
            isinstance(name, str) for name in listed
        ):
            raise ValueError(f"clients must be their names, got {clients!r}")
        self.clients = clients
        self._leaving = [name.strip() for name in listed if name.strip()]
        if not self._leaving:
            raise ValueError("clients must name those to forget, got none")
        super().__init__(
            model,
            server_state=server_state,
            masking=masking,
            n_parties=n_parties,
            seed=seed,
        )

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Let their counts become 0."""
        return self._forget(parties, run, {}, self._leaving)


class MUFCStatus(_Later):
    """Say how much of a model was forgotten; bring clients up to date after a crash.

    The centres, sizes and objective are those that the server has kept.

    Parameters
    ----------
    model : str
        Number of the model.
    server_state, masking, n_parties
        As of :class:`MUFCUnlearn`.
    """

    def __init__(
        self,
        model: str,
        *,
        server_state: str | Path | None = None,
        masking: str = "ring",
        n_parties: int = 0,
    ) -> None:
        super().__init__(masking=masking, n_parties=n_parties)
        self.model, self.server_state = _named(model), server_state
        _folder(server_state)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Ask each client, in one round trip."""
        now = self._state().load()
        names = [party.name for party in parties]
        _check_clients(names, now.clients, (), (), ())
        replies = parties.ask(
            "mufc_status", model=self.model, version=now.version, before=now.run
        )
        for party, reply in zip(parties, replies, strict=True):
            log.info(
                "%s: %s", party.name, ", ".join(f"{v} {k}" for k, v in reply.items())
            )
        sums = {
            name: sum(replies.each(name))
            for name in ("rows", "removed", "pending", "requests")
        }
        record = self._known(now).to_record()
        run.record(1, record, {"version": now.version, "clients": len(parties)} | sums)
        return record


def parse_box(box: Bounds) -> tuple[Array, Array]:
    """Return lower and upper bounds, one each or one a column.

    Raises
    ------
    ValueError
        It is none.
    """
    try:
        if isinstance(box, str):
            pairs = [[float(v) for v in pair.split(",")] for pair in box.split(";")]
            lower, upper = np.array(pairs, dtype=np.float64).T
            if len(lower) == 1:
                lower, upper = lower[0], upper[0]
        else:
            lower, upper = (np.asarray(bound, dtype=np.float64) for bound in box)
        lower, upper = np.asarray(lower), np.asarray(upper)
        Box(lower, upper)
    except (ValueError, TypeError):
        raise ValueError(
            "box must be 'lower,upper', or one such pair a column with ';' between, "
            f"lower below upper and their difference a finite number, got {box!r}"
        ) from None
    return lower, upper


def parse_requests(
    forget: str | Mapping[str, Sequence[str]],
) -> dict[str, list[str]]:
    """Return the ids to forget by the name of their client.

    Raises
    ------
    ValueError
        A part has no name or no id.
    """
    if not isinstance(forget, str):
        if not isinstance(forget, Mapping):
            raise ValueError(
                "forget must be text or a mapping of clients to lists of ids, got "
                f"{type(forget).__name__}"
            )
        for name, ids in forget.items():
            if isinstance(ids, str) or not hasattr(ids, "__iter__"):
                raise ValueError(
                    f"forget must have a list of ids for {name!r}, got "
                    f"{type(ids).__name__}"
                )
        return {name: [str(value) for value in ids] for name, ids in forget.items()}
    found: dict[str, list[str]] = {}
    parts = [part.strip() for part in forget.split(";")]
    for place, part in enumerate(parts, start=1):
        if not part:
            continue
        name, _, ids = part.partition(":")
        listed = [value.strip() for value in ids.split(",") if value.strip()]
        if not name.strip() or not listed:
            raise ValueError(
                "forget must be 'client:id,id' with ';' between clients, and part "
                f"{place} of {len(parts)} is not"
            )
        found.setdefault(name.strip(), []).extend(listed)
    return found


def _check_clients(
    here: Sequence[str],
    clients: Sequence[str],
    asked: Iterable[str],
    leaving: Sequence[str],
    past: Iterable[str],
) -> None:
    """Raise unless those of the model take part, but for those who leave."""
    for name in [*asked, *(set(leaving) - set(past))]:
        if name not in clients:
            raise FederationError(
                f"{name!r} must be one of the {len(clients)} clients of the model"
            )
    missing = [name for name in clients if name not in here and name not in leaving]
    others = [name for name in here if name not in clients and name not in leaving]
    if missing or others:
        wrong = f"{missing[0]!r} does not" if missing else f"{others[0]!r} does too"
        raise FederationError(
            f"the {len(clients)} clients of the model, and no others, must take part: "
            f"{wrong}"
        )


def _clusters(
    points: Array, weights: Array, k: int, rng: np.random.Generator, n_init: int
) -> Array:
    if not len(points):
        raise FederationError(
            "at least one row must stay: forgetting all needs no model"
        )
    return server_centroids(points, weights, k, rng, n_init)


def _folder(server_state: str | Path | None) -> Path:
    if not server_state:
        raise ValueError(
            "server_state must be the folder in which training kept the server's "
            "state, got none"
        )
    return Path(server_state)


def _new_key(settings: Mapping[str, Any]) -> bytes:
    return secrets.token_bytes(16) if settings["field"] == "hash" else b""


def _packed(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _named(model: str) -> str:
    if not isinstance(model, str) or not model:
        got = "none" if model == "" else type(model).__name__
        raise ValueError(f"model must be the number of a trained model, got {got}")
    if not re.fullmatch("[0-9a-f]{8,32}", model):
        raise ValueError(
            "model must be 8 to 32 lower-case hexadecimal digits, as its training "
            f"printed them (result.model.model), got {model!r}"
        )
    return model
