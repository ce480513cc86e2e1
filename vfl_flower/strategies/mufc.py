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
    Quantizer,
    server_centroids,
    server_points,
)
from vfl_flower.secure_aggregation import SparseSum, SparseSumError
from vfl_flower.strategies.base import (
    ProtocolStrategy,
    Run,
    check_choice,
    check_flags,
    check_positive,
    check_whole,
)
from vfl_flower.strategies.exchange import FederationError
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Replies, Sum
from vfl_flower.typing import Array
from vfl_flower.unlearning import ServerState

log = logging.getLogger("vfl_flower")

TRAININGS = ("init", "full")
PRIVACIES = ("scma", "none")
FIELDS = ("hash", "paper")

Box = str | tuple[Any, Any]


class _Task(ProtocolStrategy):
    """What training and the tasks after it have in common."""

    model_class = MUFCModel
    partition = "horizontal"
    evaluation_actions = ()

    model: str
    server_state: str | Path | None

    def _folder(self) -> Path:
        if not self.server_state:
            raise ValueError(
                "server_state must be the folder in which training kept the server's "
                "state, got none"
            )
        return Path(self.server_state)

    def _counted(
        self,
        parties: Parties,
        run: Run,
        replies: Replies,
        settings: Mapping[str, Any],
        key: bytes,
    ) -> tuple[Array, Array, Array]:
        """Lines 4 to 7 of Algorithm 1: return bins, counts and global centroids."""
        quantizer = Quantizer.of(settings)
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
            Quantizer.of(settings).n_bins,
            key,
            str(settings["field"]),
        )

    def _sums(self, parties: Parties, settings: Mapping[str, Any]) -> dict[str, Sum]:
        sums = {"totals": Sum(2.0**40)}
        if settings["privacy"] == "scma":
            sums["message"] = Sum(group="field")
        return sums

    def _scale(self, parties: Parties, settings: Mapping[str, Any]) -> float:
        """Return a bound of the objective: all rows at the box's far corner."""
        lower, upper = (np.asarray(settings[name]) for name in ("lower", "upper"))
        sides = np.broadcast_to(upper - lower, (parties[0].n_columns,))
        return max(float(parties.n_rows * (sides**2).sum()), 1e-200)

    def _commit(
        self,
        parties: Parties,
        run: Run,
        model: MUFCModel,
        scale: float,
        leaving: Sequence[str] = (),
        run_id: str = "",
        **metrics: Any,
    ) -> ArrayRecord:
        """Tell the clients the version that holds, and the centres."""
        found = parties.ask_exactly(
            "mufc_commit",
            {"cost": scale, "sizes": 2.0**40},
            [{"leaves": party.name in leaving} for party in parties],
            model=model.model,
            version=model.version,
            run=run_id or f"{parties.session:016x}",
            centers=model.cluster_centers_,
        )
        model.inertia_ = float(found.sums["cost"][0])
        model.sizes_ = np.rint(found.sums["sizes"]).astype(np.int64)
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

    Parameters
    ----------
    n_clusters : int
        K, global clusters.
    gamma : float or "auto"
        Quantisation step, in (0, 1], in sides of the box; ``"auto"``: 1 / sqrt(n).
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
        ``"lower,upper"`` for all, or one a column, ``"0,1;18,120"``.
    field : {"hash", "paper"}
        How a bin becomes an element of a field: by a hash, or as in [1] by its number,
        for few columns.
    n_init : int
        Starts of k-means at the server.
    server_state : path, optional
        Folder in which the server keeps what it needs to forget later.
    allow_missing, masking, n_parties, seed
        As of :class:`FKKMeans`, and see
        :class:`~vfl_flower.strategies.base.ProtocolStrategy`. A seed makes draws that
        can be foreseen: for experiments.

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
        box: Box = "-0.5,0.5",
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
        try:
            self._code(parties, settings, key)
        except ValueError:
            raise FederationError(
                f"field must be 'hash' for {parties[0].n_columns} columns of "
                f"{Quantizer.of(settings).n_bins} bins: their product is above 2^61"
            ) from None
        replies = parties.ask(
            "mufc_train",
            sums=self._sums(parties, settings),
            model=model,
            n_clients=len(parties),
            key=key,
            **settings,
        )
        bins, counts, centers = self._counted(parties, run, replies, settings, key)
        kept = all(replies.each("kept")) and bool(self.server_state)
        names = [party.name for party in parties]
        if not kept:
            log.warning(
                "this model cannot forget: server_state and the state_dir of each "
                "client must be given for that"
            )
        if kept:
            stored = {k: _listed(v) for k, v in settings.items()}
            state = ServerState.create(self._folder(), model, stored, names)
            state.save(1, bins, counts, centers, names, "train", run=model)
        found = MUFCModel(model, 1, centers, kept=kept, missing=run.missing)
        return self._commit(parties, run, found, self._scale(parties, settings))


class MUFCUnlearn(_Task):
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
        Keep the centres where the counts change and no bin does (Algorithm 4).
    server_state : path
        The folder of training.
    masking, n_parties, seed
        As of :class:`MUFC`.

    Raises
    ------
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

    def shown(self) -> dict[str, Any]:
        """Return the arguments without the ids, which would stay in a log."""
        requests = parse_requests(self.forget)
        counts = {name: len(ids) for name, ids in requests.items()}
        return super().shown() | {"forget": counts}

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
        state = ServerState(self._folder(), self.model)
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
        )
        bins, counts, centers = self._counted(parties, run, replies, settings, key)
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
            model = MUFCModel(self.model, before.version, before.centers, kept=True)
            scale = self._scale(parties, settings)
            # A run that was killed has left clients without their clusters, or one that
            # was forgotten did not hear of it.
            if behind or set(leaving) & set(names):
                done = {"removed": 0, "changed": 0}
                return self._commit(
                    parties, run, model, scale, leaving, before.run, **done
                )
            found = {"version": before.version, "clients": len(parties)}
            found |= {"rows": int(before.counts.sum()), "removed": 0, "changed": 0}
            run.record(1, record := model.to_record(), found)
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
        model = MUFCModel(self.model, before.version + 1, centers, kept=True)
        scale = self._scale(parties, settings)
        return self._commit(
            parties, run, model, scale, leaving, removed=removed, changed=int(changed)
        )


class MUFCForgetClient(MUFCUnlearn):
    """Forget whole clients of a trained model, connected or not.

    A connected one removes its state; without one that is gone the others' counts do.

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
        super().__init__(
            model,
            server_state=server_state,
            masking=masking,
            n_parties=n_parties,
            seed=seed,
        )
        if not isinstance(clients, str) and not hasattr(clients, "__iter__"):
            raise ValueError(f"clients must be their names, got {clients!r}")
        listed = clients.split(",") if isinstance(clients, str) else list(clients)
        self.clients = clients
        self._leaving = [name.strip() for name in listed if name.strip()]
        if not self._leaving:
            raise ValueError("clients must name those to forget, got none")

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Let their counts become 0."""
        return self._forget(parties, run, {}, self._leaving)


class MUFCStatus(_Task):
    """Say how much of a model was forgotten; bring clients up to date after a crash.

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

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Ask each client, in one round trip."""
        now = ServerState(self._folder(), self.model).load()
        names = [party.name for party in parties]
        _check_clients(names, now.clients, (), (), ())
        replies = parties.ask(
            "mufc_status", model=self.model, version=now.version, before=now.run
        )
        for party, reply in zip(parties, replies, strict=True):
            log.info(
                "%s: %s", party.name, ", ".join(f"{v} {k}" for k, v in reply.items())
            )
        model = MUFCModel(self.model, now.version, now.centers, kept=True)
        sums = {
            name: sum(replies.each(name))
            for name in ("rows", "removed", "pending", "requests")
        }
        record = model.to_record()
        run.record(1, record, {"version": now.version, "clients": len(parties)} | sums)
        return record


def parse_box(box: Box) -> tuple[Array, Array]:
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
        Quantizer(lower, upper, 1.0)
    except (ValueError, TypeError):
        raise ValueError(
            "box must be 'lower,upper', or one such pair a column with ';' between, "
            f"lower at most upper and finite, got {box!r}"
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
                    f"forget must have a list of ids for {name!r}, got {ids!r}"
                )
        return {name: [str(value) for value in ids] for name, ids in forget.items()}
    found: dict[str, list[str]] = {}
    for part in filter(None, (part.strip() for part in forget.split(";"))):
        name, _, ids = part.partition(":")
        listed = [value.strip() for value in ids.split(",") if value.strip()]
        if not name.strip() or not listed:
            raise ValueError(
                f"forget must be 'client:id,id' with ';' between clients, got {part!r}"
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
