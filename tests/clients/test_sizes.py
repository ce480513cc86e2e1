"""What a deviating server makes a party compute: never out of proportion to its rows.

Each request once took a party of 1,000 rows of 10 columns from 2 to more than 100
seconds, or from 0.5 to 8 GB; some cost the server a few bytes.
"""

import tracemalloc
from functools import partial

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.clients.coresets import linear
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.clients.fdskl import angle_sums as fdskl
from vfl_flower.clients.fdskl import prediction as fdskl_prediction
from vfl_flower.clients.fdskl import state
from vfl_flower.clients.fdskl import training as fdskl_training
from vfl_flower.clients.kernel_kmeans import training as kernel_kmeans
from vfl_flower.clients.mufc import training as mufc
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, flatten, structure

N, D = 1000, 10
MANY = np.zeros(2**22, dtype=np.uint8)
"""One row, again and again."""


def party(index=0, labels=False):
    X = np.random.default_rng(0).normal(size=(N, D))
    asked = Party(X, y=np.sign(X[:, 0]) if labels else None, index=index)
    asked.n_parties = 3
    return asked


def ask(step, asked, **values):
    """Ask as a server does: the declaration is checked before the step runs."""
    rows, columns = asked.X.shape
    sizes = {"n_rows": rows, "n_columns": columns, "n_parties": asked.n_parties}
    step(asked, **structure(step.contract.request, flatten(values), sizes))


def weighted(rows):
    return coresets.WeightedRows(rows, np.ones(len(rows)))


def scored():
    asked = party()
    coresets.totals(asked, size=0, test_fraction=0.0, intercept=True)
    return asked


def solving():
    asked = party(labels=True)
    linear.start(asked, "saga", N, 1.0, False, 0.0)
    return asked


def setup(features, holders=(0,)):
    return state.Setup("binary", "gaussian", 1.0, features, list(holders), 64)


def trained(index):
    asked = party(index, labels=index == 0)
    training = state.begin(asked, setup(64))
    state.keep_part(asked, training, np.zeros((64, 1)) if index == 0 else None)
    asked.remember(state.FDSKLState())
    return asked


def training(index=1):
    asked = party(index, labels=index == 0)
    fdskl_training.start(asked, 0.0, setup(256), state.Rule("logistic", 0.0))
    return asked


def begun():
    asked = party()
    kernel_kmeans.begin(asked)
    return asked


second, labelled = partial(party, 1), partial(training, 0)
holder, other = partial(trained, 0), partial(trained, 1)

LINEAR = {"method": "cg", "n": N, "l2": 1.0, "intercept": True, "test_fraction": 0.0}
ALL = {"test_fraction": 0.0}
FOUR = ALL | {"start": 0, "stop": 4}
DISTDIM = ALL | {"local_clustering": "lloyd"}
ONE = state.AngleRequest(MANY[:1], 64, 16)
OF_64 = {"setup": setup(64)}
MOST = state.AngleRequest(MANY[:1], 2**20, 16)
WIDE = np.zeros((2**20, D), np.float16)
COUNT, ANGLES = np.array([2**25]), {0: np.zeros(256 * (N + 1), np.uint16)}
CLUSTERING = coresets.Clustering(1025, "lloyd", 2.0)
PREDICTED = state.SummedRows(MANY[: 2**20], np.zeros(2**26, np.uint16))
EMBEDDING = kernel_kmeans.Setup("gaussian", gamma=0.1, D=20, D_1=2**12 + 1)
CENTERS = np.zeros((2**12 + 1, D))

ATTACKS = [
    (coresets.totals, party, "size", ALL | {"size": 2**25, "intercept": True}),
    (coresets.drawn_rows, scored, "count", {"count": COUNT}),
    (coresets.totals, party, "n_clusters", ALL | {"size": 0, "clustering": CLUSTERING}),
    (coresets.scores, scored, "rows", {"rows": MANY, "pool": False}),
    (coresets.pooled_rows, party, "rows", ALL | {"rows": MANY, "labels": False}),
    *(
        (coresets.local_clusters, party, name, DISTDIM | values)
        for name, values in (
            ("rows", {"n_clusters": 1000, "coreset": weighted(MANY[: 2**13])}),
            ("n_clusters", {"n_clusters": 1025}),
        )
    ),
    (coresets.distances, party, "centers", FOUR | {"centers": WIDE}),
    (linear.start, party, "rows", LINEAR | {"coreset": weighted(MANY)}),
    (
        *(linear.saga, solving, "batch"),
        {"batch": MANY, "change": np.zeros(0), "step_size": 0.1, "l1": 0.1},
    ),
    (fdskl.angles, second, "n_features", {"setup": setup(2**20 + 1), "request": MOST}),
    (
        *(fdskl.angles, second, "angles"),
        {"setup": setup(2**20), "request": state.AngleRequest(np.arange(N), 2**20, 16)},
    ),
    (fdskl.angles, second, "rows", OF_64 | {"request": state.AngleRequest(MANY, 1, 8)}),
    (
        *(fdskl_training.fit, labelled, "rows"),
        {"problem": state.Problem(MANY[: N + 1], "logistic", 0.0), "angles": ANGLES},
    ),
    (fdskl_training.iterate, training, "size", {"columns": 16, "size": 2**24}),
    (fdskl_prediction.answer, other, "size", {"columns": 16, "size": 2**24}),
    (fdskl_prediction.answer, holder, "at", {"columns": 1, "size": 0, "at": PREDICTED}),
    (fdskl.angles, second, "send", OF_64 | {"send": ["x"] * 5000, "request": ONE}),
    (kernel_kmeans.gram, begun, "D_1", {"t": 1, "setup": EMBEDDING}),
    (mufc.commit, party, "centers", {"version": 1, "run": "a", "centers": CENTERS}),
]


@pytest.mark.parametrize(
    ("step", "made", "name", "values"),
    ATTACKS,
    ids=[f"{step.action} {name}" for step, _, name, _ in ATTACKS],
)
def test_a_party_refuses_work_out_of_proportion(step, made, name, values):
    asked = made()
    tracemalloc.start()
    try:
        with pytest.raises((PartyError, ContractError), match=rf"\b{name}\b.* must"):
            ask(step, asked, **values)
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("rows", "width"), [(2 * N, 2**40), (2**22, 1), (2**21, 2)])
def test_what_a_party_affords(rows, width):
    party().afford("rows", rows, width)
    with pytest.raises(PartyError, match=rf"rows must have at most {rows} rows"):
        party().afford("rows", rows + 1, width)
