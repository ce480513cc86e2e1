"""Shared by tests of clusters that can forget: parties, and q by definition."""

import csv
import dataclasses
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np

from vfl_flower import MUFCAdd, MUFCForgetClient, MUFCUnlearn, Party, request_changes
from vfl_flower.clients.mufc.settings import TrainingSettings
from vfl_flower.clients.mufc.state import ClientState, PartyClusters, _tags
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.mufc import complete
from vfl_flower.strategies.mufc.state import ServerState

SETTINGS = TrainingSettings(
    n_clusters=3,
    local_clusters=3,
    gamma=0.01,
    lower=np.array(-0.5),
    upper=np.array(0.5),
    server_points="uniform",
    client_training="init",
    privacy="scma",
    field="hash",
    n_init=1,
)


def agreed(**changes):
    return dataclasses.replace(SETTINGS, **changes)


NAMES = [*("north", "south", "west", "east"), *(f"clinic{i}" for i in range(6))]


def federation(folder, sizes=(14, 9, 6), d=2, seed=0):
    """Return parties with rows near three points, ids such as ``north.0``."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-0.4, 0.4, size=(3, d))
    actual = []
    for name, n in zip(NAMES, sizes, strict=False):
        X = middles[rng.integers(3, size=n)] + rng.uniform(-0.08, 0.08, size=(n, d))
        ids = np.array([f"{name}.{i}" for i in range(n)])
        actual.append(Party(X, ids=ids, name=name, state_dir=Path(folder) / name))
    return actual


def first_rows(parties, counts):
    """Return the parties before their data had more than these numbers of rows."""
    return [
        Party(p.X[:n], ids=p.ids[:n], name=p.name, state_dir=p.state_dir)
        for p, n in zip(parties, counts, strict=True)
    ]


def staged_by(state, run=""):
    """Return the clusters that a run has staged at a party, if any."""
    query = "SELECT version, centroids, sizes FROM staged WHERE run = ?"
    with closing(sqlite3.connect(state._path)) as db:
        row = db.execute(query, (run,)).fetchone()
    if row is None:
        return None
    sizes = np.frombuffer(row[2], "<i8")
    return PartyClusters(row[0], _tags(row[1]), sizes)


def removal(parties, folder, model, requests=(), **settings):
    """Return the task that forgets rows, after parties have requested it.

    `requests` are ids such as ``north.0``, or ids by the name of their party.
    """
    if not isinstance(requests, dict):
        names = [party.name for party in parties]
        requests = {n: [i for i in requests if i.split(".")[0] == n] for n in names}
    for party in parties:
        if ids := requests.get(party.name):
            request_changes(party, forget=ids)
    return MUFCUnlearn(model, server_state=folder, **settings)


def departure(parties, folder, model, clients, **settings):
    for party in parties:
        if party.name in clients:
            request_changes(party, leave=[model])
    return MUFCForgetClient(model, clients, server_state=folder, **settings)


def addition(parties, folder, model, **settings):
    """Return the task that adds rows, after parties have requested all new rows."""
    for party in parties:
        request_new_rows(party, model)
    return MUFCAdd(model, server_state=folder, **settings)


def request_new_rows(party, model):
    state = ClientState(party.state_dir, model)
    known = state.known(state.tag(party.ids))
    request_changes(party, add=party.ids[~known].tolist())


def centroid_ids(party, model):
    state = ClientState(party.state_dir, model)
    names = dict(zip(state.tag(party.ids), party.ids.tolist(), strict=True))
    return [names[tag] for tag in state.current().centroids]


def nearest(X, centroids):
    """Return the first of each row's nearest centroids, shape (n,)."""
    if not len(centroids):
        return np.zeros(0, int)
    return ((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)


def plain_clusters(X, drawn, settings):
    """Return a party's centroids and the clusters of its rows, by definition.

    Of the rows X in the cube that stay, and its drawn rows, by numbers.
    """
    centroids, labels = X[drawn], nearest(X, X[drawn])
    if settings.client_training == "full":
        centroids, labels = complete(RowBlocks(X), drawn)
    names = list(range(len(centroids)))
    while len(names) > 1:
        rows = [np.count_nonzero(labels == name) for name in names]
        small = max(i for i, count in enumerate(rows) if count == min(rows))
        if rows[small] >= settings.min_rows_per_bin:
            break
        name = names.pop(small)
        far = [((centroids[name] - centroids[i]) ** 2).sum() for i in names]
        labels = np.where(labels == name, names[far.index(min(far))], labels)
    if settings.client_training == "full" and settings.min_rows_per_bin > 1 and names:
        means = np.array([X[labels == name].mean(axis=0) for name in names])
    else:
        means = centroids[names]
    return means, np.searchsorted(names, labels)


def cube(points, settings):
    lower, upper = settings.lower, settings.upper
    return (points - (lower + upper) / 2) / (upper - lower)


def plain_bins(y, settings):
    """Return the bins of points in the cube, as in Appendix H of the paper."""
    gamma = settings.gamma
    top = int(np.ceil((1 / gamma - 1) / 2 - 1e-9))
    return np.clip(np.rint(y / gamma), -top, top).astype(int) + top


def plain_q(points, sizes, settings):
    q = Counter()
    for place, size in zip(plain_bins(points, settings), sizes, strict=True):
        q[tuple(place.tolist())] += int(size)
    return q


def q_of(state):
    rows = zip(state.bins.tolist(), state.counts.tolist(), strict=True)
    return {tuple(place): count for place, count in rows}


def check(parties, folder, model, gone=(), left=()):
    """Raise unless all have one version, and q is computed from the rows that stay.

    Sizes and q are recomputed from the parties' drawn rows.
    """
    now, q = ServerState(folder, model).load(), Counter()
    for party in parties:
        state = ClientState(party.state_dir, model)
        if party.name in left:
            assert state.left, f"{party.name} has not left"
            continue
        clusters, ids = state.current(), party.ids.tolist()
        assert clusters.version == now.version, f"{party.name}: {clusters.version}"
        removed = [i for i in gone if i.split(".")[0] == party.name]
        assert state.removed() == set(state.tag(removed)), party.name
        stay = state.keep(state.tag(ids))
        assert not set(removed) & set(np.array(ids)[stay])
        X, places = cube(party.X[stay], now.settings), np.array(ids)[stay].tolist()
        drawn = np.array([places.index(i) for i in centroid_ids(party, model)], int)
        assert len(set(drawn.tolist())) == len(drawn)
        sizes = np.bincount(nearest(X, X[drawn]), minlength=len(drawn))
        assert clusters.sizes.tolist() == sizes.tolist(), f"{party.name}: other sizes"
        centroids, labels = plain_clusters(X, drawn, now.settings)
        sizes = np.bincount(labels, minlength=len(centroids))
        q += plain_q(centroids, sizes, now.settings)
    assert q_of(now) == dict(q), "q is not that of the centroids"
    stay = [p.name for p in parties if p.name not in left]
    assert now.parties == stay, f"parties are {now.parties}"


def predicted(party, model):
    path = party.state_dir / f"predictions-{model}.csv"
    if not path.exists():  # it has left
        return []
    with path.open(newline="") as file:
        return [row[0] for row in csv.reader(file)][1:]
