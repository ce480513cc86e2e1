"""All that the server sends and gets, against the tables of who learns what."""

import numpy as np
import pytest
from federations import by_columns
from transcripts import actual, patterns, replies

from vfl_flower.secure_aggregation.groups import group
from vfl_flower.strategies import FDSKL, CoresetVKMC, CoresetVRLR, FDSKLDirect
from vfl_flower.testing import Recorder

WIDTHS, HOLDER = (2, 1, 3), 2
NAMES = "airline", "weather", "registry"
N = 150


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_t(4, size=(n, sum(WIDTHS)))
    return X, X @ np.arange(1.0, 7.0) + 5 + rng.normal(size=n)


def parties(X, y):
    return by_columns(X, y, WIDTHS, names=NAMES)


def record(strategy, federation=None, seed=6):
    grid = Recorder(federation or parties(*data()))
    strategy.seed = seed
    return strategy.start(grid), grid.transcript


STRATEGIES = {
    "central": lambda: CoresetVRLR(40, solver="central"),
    "central, checked": lambda: CoresetVRLR(40, check_size=20, solver="central"),
    "central, paper": lambda: CoresetVRLR(40, rounds="paper", solver="central"),
    "central, uniform": lambda: CoresetVRLR(40, sampling="uniform", solver="central"),
    "central, full": lambda: CoresetVRLR(sampling="full", solver="central"),
    "cg": lambda: CoresetVRLR(40, solver="cg"),
    "proximal": lambda: CoresetVRLR(40, "lasso", 0.5, solver="cg", max_iter=5),
    "saga": lambda: CoresetVRLR(40, solver="saga", max_iter=2, batch_size=20),
    "k-means": lambda: CoresetVKMC(3, size=40, evaluate="full"),
    "k-means, checked": lambda: CoresetVKMC(3, size=40, check_size=20),
    "distdim": lambda: CoresetVKMC(3, "distdim", size=40, evaluate="full"),
}
POOLED = [n for n in STRATEGIES if n.startswith(("central", "k-means"))]


def kernel(strategy=FDSKLDirect, **settings):
    size = {"features": 8 if strategy is FDSKLDirect else 12}
    given = {"target": "continuous", "test_fraction": 0.2, "block_bytes": 1200}
    return strategy("square", **{**given, **size, **settings})


def test_the_server_sees_who_has_drawn_which_row():
    _, transcript = record(STRATEGIES["central, paper"]())
    drawn = [e for e in transcript if e.up and e.action == "coresets_drawn_rows"]
    assert [set(e.values) for e in drawn] == [{"rows"}] * 3
    assert sum(len(e.values["rows"]) for e in drawn) == 40


# -- messages of FDSKL --------------------------------------------------------------


def test_the_bound_of_scores_tells_all_the_largest_scale_of_labels():
    """Scores of several label holders go through sums; tests/clients has the scales."""
    federation = by_columns(*data(), WIDTHS, holders=(0, HOLDER), names=NAMES)
    _, transcript = record(kernel(FDSKL), federation, None)
    started = [e for e in transcript if e.up and e.action == "fdskl_start"]
    assert [bool(e.values) for e in started] == [True, False, True]
    bounds = {e.frame["bound.scores"] for e in transcript if "bound.scores" in e.frame}
    assert bounds == {2.0**16 * max(e.values["scale"] for e in started if e.values)}


@pytest.mark.parametrize(
    ("strategy", "topology"), [(FDSKLDirect, "ring"), (FDSKL, "tree")]
)
def test_angles_of_held_out_rows_are_asked_as_such(strategy, topology):
    """Those along a ring or a tree; in a star they ride on ``fdskl_answer``."""
    _, transcript = record(kernel(strategy, topology=topology))
    rows = {"fdskl_angles": set(), "fdskl_held_out_angles": set()}
    for e in transcript:
        if not e.up and e.action in rows:
            rows[e.action] |= set(e.values["request.rows"].tolist())
    train, test = rows.values()
    assert len(test) == N // 5
    assert train
    assert not train & test


# -- values of the data -------------------------------------------------------------


def test_distdim_shows_the_row_of_a_cluster_of_one():
    """Local centres are means of rows: of a row far from all others, the row."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(N, 6)), rng.normal(size=N)
    X[7] += 1e3
    strategy = CoresetVKMC(3, sampling="full", solver="distdim")
    _, transcript = record(strategy, parties(X, y))
    assert actual(patterns(X), transcript) == patterns(X[7])


@pytest.mark.parametrize("name", POOLED)
def test_only_rows_of_the_coreset_are_in_messages(name):
    """As a control of the search: with ``central`` they are, and no others."""
    X, y = data()
    strategy = STRATEGIES[name]()
    _, transcript = record(strategy)
    rows = next(
        (e.values["rows"] for e in transcript if not e.up and "rows" in e.values),
        np.arange(N),
    )
    assert actual(patterns(X[rows]), transcript) == patterns(X[rows])
    assert not actual(patterns(X[np.setdiff1d(np.arange(N), rows)]), transcript)
    labels = patterns(y[rows]) if isinstance(strategy, CoresetVRLR) else set()
    assert actual(patterns(y), transcript) == labels


def test_k_means_does_not_ask_who_has_labels():
    """The bytes are the same with and without labels but for ``hello``."""
    X, y = data()
    for made in (STRATEGIES["k-means"], STRATEGIES["distdim"]):
        with_y, one = record(made(), parties(X, y))
        without, two = record(made(), parties(X, None))
        assert with_y.arrays.object_id == without.arrays.object_id
        for a, b in zip(one, two, strict=True):
            if a.action != "hello":
                assert set(a.values) == set(b.values)


def test_what_goes_to_one_party_does_not_depend_on_another():
    """Requests differ between parties only in the party's own block of the model."""
    for made in STRATEGIES.values():
        _, transcript = record(made())
        rounds = {}
        for e in transcript:
            if not e.up and e.action != "hello":
                rounds.setdefault(e.frame["round"], []).append(e)
        for requests in rounds.values():
            assert [e.party for e in requests] == [0, 1, 2]
            for name in set(requests[0].values) - {"coefficients", "centers", "count"}:
                first, *others = (e.values[name] for e in requests)
                assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("regularizer", ["none", "lasso"])
def test_first_residual_is_not_the_labels(regularizer):
    """It is what is left of t on the label holder's own columns, known by the sum.

    t = sqrt(w / n) (y - mean) / s with |t| = 1; the best fit of X_T and ones to it is
    taken off.
    """
    X, y = data()
    alpha = 0.0 if regularizer == "none" else 0.5
    _, transcript = record(CoresetVRLR(40, regularizer, alpha, solver="cg", max_iter=2))
    request = next(e for e in transcript if e.action == "linear_start" and not e.up)
    S = request.values["coreset.rows"].astype(int)
    w = request.values["coreset.weights"]
    masked = replies(transcript, "linear_start", "residual")
    seen = group("ring", request.frame["bound.residual"], 3).decode(sum(masked))
    root = np.sqrt(w / N)
    t = root * (y[S] - w @ y[S] / w.sum())
    (scale,) = (e.values["scale"] for e in transcript if "scale" in e.values)
    assert scale == 2 ** np.ceil(np.log2(np.linalg.norm(t)))
    A = root[:, None] * np.column_stack([X[S, 3:], np.ones(40)])
    own = t - A @ np.linalg.lstsq(A, t)[0]
    np.testing.assert_allclose(seen * scale, own, atol=1e-9)
    assert np.abs(seen * scale - t).max() > 0.1


def test_first_residuals_of_saga_are_not_the_labels():
    """They are what is left on the label holder's own columns, batch by batch."""
    X, y = data()
    strategy = CoresetVRLR(solver="saga", sampling="full", batch_size=N, max_iter=1)
    _, transcript = record(strategy)
    request = next(e for e in transcript if e.action == "linear_saga" and not e.up)
    batch = request.values["batch"].astype(int)
    ring = group("ring", request.frame["bound.residual"], 3)
    seen = ring.decode(sum(replies(transcript, "linear_saga", "residual")[:3]))
    A = np.column_stack([X[:, 3:], np.ones(N)])
    own = A @ np.linalg.lstsq(A, y)[0] - y
    scale = 2 ** np.ceil(np.log2(np.std(y))) * np.sqrt(N)
    np.testing.assert_allclose(seen * scale, own[batch], atol=1e-9)


def test_distdim_with_seeding_sends_no_rows():
    """The seeds of k-means++ are rows; one step of Lloyd's makes them means."""
    X, y = data()
    strategy = CoresetVKMC(3, "distdim", "seeding", size=100)
    _, transcript = record(strategy, parties(X, y))
    assert not actual(patterns(X), transcript)
