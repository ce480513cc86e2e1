"""All that the server sends and gets, against the tables of who learns what."""

import re
from pathlib import Path

import numpy as np
import pytest
from transcripts import actual, is_uniform, patterns, replies

from vfl_flower import Party
from vfl_flower.clients.evaluation import Told
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import vrlr_sensitivities
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.strategies import (
    FDSKL,
    CoresetVKMC,
    CoresetVRLR,
    FDSKLDirect,
    FDSKLPrediction,
    FKKMeans,
)
from vfl_flower.strategies.fdskl.learning import KernelLearning
from vfl_flower.testing import Recorder

WIDTHS, HOLDER = (2, 1, 3), 2
NAMES = "airline", "weather", "registry"
N = 150


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_t(4, size=(n, sum(WIDTHS)))
    return X, X @ np.arange(1.0, 7.0) + 5 + rng.normal(size=n)


def parties(X, y, labelled=True):
    blocks = np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)
    return [
        Party(block, y if labelled and j == HOLDER else None, name=NAMES[j])
        for j, block in enumerate(blocks)
    ]


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
    "cg, paper": lambda: CoresetVRLR(40, solver="cg", rounds="paper"),
    "cg, uniform": lambda: CoresetVRLR(40, solver="cg", sampling="uniform"),
    "cg, full": lambda: CoresetVRLR(solver="cg", sampling="full"),
    "proximal": lambda: CoresetVRLR(40, "lasso", 0.5, solver="cg", max_iter=5),
    "saga": lambda: CoresetVRLR(40, solver="saga", max_iter=2, batch_size=20),
    "k-means": lambda: CoresetVKMC(3, size=40, evaluate="full"),
    "k-means, checked": lambda: CoresetVKMC(3, size=40, check_size=20),
    "k-means, paper": lambda: CoresetVKMC(3, size=40, rounds="paper"),
    "k-means, uniform": lambda: CoresetVKMC(3, size=40, sampling="uniform"),
    "k-means, full": lambda: CoresetVKMC(3, sampling="full"),
    "distdim": lambda: CoresetVKMC(3, "distdim", size=40, evaluate="full"),
    "distdim, uniform": lambda: CoresetVKMC(3, "distdim", size=40, sampling="uniform"),
    "distdim, full": lambda: CoresetVKMC(3, sampling="full", solver="distdim"),
}
POOLED = [n for n in STRATEGIES if n.startswith(("central", "k-means"))]
AT_HOME = [n for n in STRATEGIES if n not in POOLED]


def kernel(strategy=FDSKLDirect, **settings):
    size = {"features": 8 if strategy is FDSKLDirect else 12}
    given = {"target": "continuous", "test_fraction": 0.2, "block_bytes": 1200}
    return strategy("square", **{**given, **size, **settings})


FDSKL_STRATEGIES = {
    "direct": kernel,
    "direct, ring": lambda: kernel(topology="ring"),
    "doubly": lambda: kernel(FDSKL),
    "doubly, tree": lambda: kernel(FDSKL, topology="tree"),
}


def test_the_server_sees_who_has_drawn_which_row():
    _, transcript = record(STRATEGIES["central, paper"]())
    drawn = [e for e in transcript if e.up and e.action == "coresets_drawn_rows"]
    assert [set(e.values) for e in drawn] == [{"rows"}] * 3
    assert sum(len(e.values["rows"]) for e in drawn) == 40


@pytest.mark.parametrize(
    ("strategy", "lines"),
    [
        (
            CoresetVRLR,
            {
                "hello": "all of it",
                "totals": "each G_j",
                "scores": "only sum_j g_ij",
                ".. with rows": "``central``",
                ".. each step": "only sums",
                "coefficients": "the model",
            },
        ),
        (
            CoresetVKMC,
            {
                "hello": "all of it",
                "totals": "each G_j",
                "scores": "only sum_j g_ij",
                ".. with rows": "``central``",
                "local_clusters": "``distdim``",
                "distances": "only sums",
            },
        ),
        (
            FDSKL,
            {
                "hello": "all of it",
                "distances": "nothing: only the label",
                "bandwidth": "the bandwidth",
                "start": "the rows' numbers",
                "iterate": "nothing",
                "answer": "the mean error",
            },
        ),
        (
            FDSKLDirect,
            {
                "hello": "all of it",
                "distances": "nothing: only the label",
                "bandwidth": "the bandwidth",
                "angles": "nothing",
                "fit": "the score, and lambda",
                "answer": "the mean error",
            },
        ),
        (
            FDSKLPrediction,
            {"hello": "all of it", "part": "all of it", "answer": "nothing"},
        ),
        (
            FKKMeans,
            {
                "hello": "all of it",
                "begin": "the sums over parties",
                "gram": "the sum over parties",
                "local": "all of it",
                "sample": "all of it",
                "assign": "the sums over parties",
            },
        ),
    ],
)
def test_tables_of_the_docstrings_are_those_that_are_tested(strategy, lines):
    """The rows of a docstring's table, that the names above stand for."""
    table = strategy.__doc__
    for line, learned in lines.items():
        assert re.search(
            rf"^ *{re.escape(line)}  .*{re.escape(learned)}", table, re.MULTILINE
        )


SAID = {
    "coresets": {
        "hello": "name index row column labels SHA-256 version key",
        "totals": "G_j row numbers",
        "drawn_rows": "row numbers",
        "scores": "S masked",
        "pooled_rows": "columns labels",
        "start": "labels masked lengths deviation",
        "cg": "directions masked scalars",
        "saga": "predictions masked",
        "coefficients": "theta_j masked",
        "local_clusters": "centres cluster",
        "held_out": "masked label",
        "errors": "errors",
        "keep": "keeps",
        "part": "size places",
        "addends": "masked receiver",
        "answer": "errors numbers",
        "distances": "distances masked",
    },
    "fdskl": {
        "hello": "name index row column labels SHA-256 version key",
        "distances": "distances 1,000 masked",
        "bandwidth": "bandwidth",
        "angles": "masked",
        "fit": "lambda score converged classes part",
        "start": "instances columns scale",
        "iterate": "angles masked part",
        "held_out_angles": "angles masked",
        "answer": "mean rows",
        "part": "place parties kernel bandwidth features holders columns scale phase",
    },
    "ridge": {
        "hello": "name index row column labels SHA-256 version key",
        "prepare": "numbers local mean variance third masked targets",
        "deal": "seeds shares encrypted",
        "hide_rows": "angles random masked local triple frequencies cumulants",
        "open_joint": "shares joint masks",
        "multiply": "share Gram",
        "relevance": "mask mixtures",
        "fit": "penalty error constant keeps",
        "rows": "angles local weights",
        "products": "shares",
        "scores": "error number curves",
        "part": "place parties holder columns features kernel bandwidth dealing",
    },
    "kernel_kmeans": {
        "hello": "name index row column digest version key",
        "begin": "sums columns squares masked seed encrypted",
        "gram": "W_t masked",
        "product": "W_t masked trace",
        "local": "cost",
        "sample": "points weights",
        "assign": "inertia sizes masked keeps",
    },
}
"""Words of the tables of the papers' pages for what is sent, by the step."""


@pytest.mark.parametrize("page", SAID)
def test_tables_of_the_pages_say_what_is_sent(page):
    path = Path(__file__).parents[2] / f"docs/papers/{page}.md"
    rows = [line.split("|")[1:] for line in path.read_text().splitlines()]
    sent = {
        step: cells[1]
        for cells in rows
        if len(cells) >= 5
        for step in re.findall(r"`(\w+)`", cells[0].partition("(")[0])
    }
    for step, words in SAID[page].items():
        missing = [word for word in words.split() if word not in sent[step]]
        assert not missing, (step, missing)


# -- messages of FDSKL --------------------------------------------------------------


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("target", ["continuous", "binary"])
def test_messages_of_several_label_holders(topology, target):
    """Their scores go through sums, whose bound tells all the largest scale."""
    X, y = data()
    y = y if target == "continuous" else np.sign(y)
    federation = parties(X, y, labelled=False)
    first = np.arange(N) % 4 == 0  # of so few that fewer than 20 are held out
    for j, mine in ((0, first), (HOLDER, ~first)):
        federation[j] = Party(federation[j].X, np.where(mine, y, np.nan))
    settings = {"topology": topology, "target": target}
    _, transcript = record(kernel(FDSKL, **settings), federation, None)
    picked = {e.party: e for e in transcript if e.up and e.action == "fdskl_start"}
    for j in (0, HOLDER):
        held = np.unique(picked[j].values["rows"])
        labels = np.abs(federation[j].y)
        assert not np.isnan(labels[held]).any()
        scale = picked[j].values["scale"]
        assert np.log2(scale) % 1 == 0
        # Of all labels to train on, of which the picked ones are some.
        assert labels[held].max() <= scale < 2 * np.nanmax(labels)
    largest = max(picked[j].values["scale"] for j in (0, HOLDER))
    bounds = {e.frame["bound.scores"] for e in transcript if "bound.scores" in e.frame}
    assert bounds == {2.0**16 * largest}
    assert picked[1].values == {}
    last = [e for e in transcript if e.up and e.action == "fdskl_answer"][-3:]
    told = [set(e.values) & set(Told.__annotations__) for e in last]
    # The first holder alone, and of few labels no error.
    assert told == [{"test_rows"}, set(), set()]


@pytest.mark.parametrize("name", ["direct, ring", "doubly, tree"])
def test_angles_of_held_out_rows_are_asked_as_such(name):
    """Those along a ring or a tree; in a star they ride on ``fdskl_answer``."""
    _, transcript = record(FDSKL_STRATEGIES[name]())
    rows = {"fdskl_angles": set(), "fdskl_held_out_angles": set()}
    for e in transcript:
        if not e.up and e.action in rows:
            rows[e.action] |= set(e.values["request.rows"].tolist())
    train, test = rows.values()
    assert len(test) == N // 5
    assert train
    assert not train & test


# -- federated kernel k-means ---------------------------------------------------------


def clustering(**settings):
    size = {"n_features": 8, "iterations": 3, "subspace_tol": 0, "n_init": 1}
    return FKKMeans(2, 3, clustering="coreset", coreset_size=20, **size, **settings)


CLUSTERINGS = {"gram": clustering, "lanczos": lambda: clustering(eigensolver="lanczos")}


def row_parties():
    X = data()[0]
    return [Party(X[m::3], name=NAMES[m]) for m in range(3)]


# -- what sums hide -----------------------------------------------------------------


@pytest.fixture(scope="module")
def scored():
    """Return scores, bound and masked arrays of 4,000 draws.

    Masks come from the operating system, not from a seed.
    """
    X, y = data(600)
    _, transcript = record(CoresetVRLR(4000, solver="central"), parties(X, y))
    (request,) = [
        e
        for e in transcript
        if e.action == "coresets_scores" and not e.up and not e.party
    ]
    S, true = request.values["rows"], []
    for j, block in enumerate(np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)):
        blocks = RowBlocks(block, 1.0, *([y] if j == HOLDER else []))
        g = leverage_scores(blocks, leverage_factor(blocks))
        g = vrlr_sensitivities(g - (1 / 600 if j != HOLDER else 0), 600)
        true.append(g[S])
    masked = replies(transcript, "coresets_scores", "scores")
    return true, masked, group("ring", request.frame["bound.scores"], 3)


def test_scores_of_a_party_look_uniform(scored):
    """Six tests, each with a false-alarm rate of 1e-9: alone, and less one party."""
    _, masked, _ = scored
    for j in range(3):
        assert is_uniform(masked[j])
        assert is_uniform(masked[j] + masked[(j + 1) % 3])  # wraps modulo 2^64


def test_scores_of_a_party_do_not_correlate_with_what_it_sends(scored):
    """|r| < 6.2 / sqrt(4000) for each party and sum of two: 6e-10 false alarms each."""
    true, masked, ring = scored
    for j in range(3):
        both = ring.decode(masked[j] + masked[(j + 1) % 3])
        for seen in (ring.decode(masked[j]), both):
            assert abs(np.corrcoef(seen, true[j])[0, 1]) < 6.2 / np.sqrt(4000)


def test_only_the_sum_of_all_scores_is_right(scored):
    """Noise in [-8, 8) is next to one of 12,000 scores, to 1e-11, with chance 2e-8."""
    true, masked, ring = scored
    total = ring.decode(masked[0] + masked[1] + masked[2])
    np.testing.assert_allclose(total, sum(true), rtol=1e-9)
    for j in range(3):
        assert np.abs(ring.decode(masked[j]) - true[j]).min() > 1e-11


def test_the_checks_see_scores_without_masks():
    """With masking="plain" each of them must fail, or they would show nothing."""
    _, transcript = record(
        CoresetVRLR(4000, masking="plain", solver="central"), parties(*data(600))
    )
    plain = replies(transcript, "coresets_scores", "scores")[0]
    assert plain.dtype == np.float64
    encoded, _ = group("ring", 2.0, 3).encode(plain)
    assert not is_uniform(encoded)


@pytest.mark.parametrize(
    ("made", "action", "array"),
    [
        (lambda: CoresetVRLR(2000, solver="cg"), "linear_start", "residual"),
        (lambda: CoresetVRLR(2000, solver="cg"), "linear_cg", "direction"),
        (
            lambda: CoresetVRLR(2000, "lasso", 0.5, solver="cg", max_iter=2),
            "linear_proximal",
            "residual",
        ),
        (
            lambda: CoresetVRLR(2000, solver="saga", max_iter=1, batch_size=2000),
            "linear_saga",
            "residual",
        ),
        (
            lambda: CoresetVRLR(2000, solver="saga", max_iter=1, batch_size=2000),
            "linear_start",
            "norms",
        ),
        (
            lambda: CoresetVKMC(4, size=50, evaluate="full"),
            "coresets_distances",
            "distances",
        ),
    ],
)
def test_addends_look_uniform(made, action, array):
    """Each party's, and each sum of two: six at 1e-9; also those that are all zero."""
    _, transcript = record(made(), parties(*data(1500)))
    rounds = len(
        {e.frame["round"] for e in transcript if e.action == action and not e.up}
    )
    sent = [e for e in transcript if e.up and e.action == action]
    assert len(sent) == 3 * rounds
    first = [next(e for e in sent if e.party == j).values[array] for j in range(3)]
    for j in range(3):
        assert is_uniform(first[j])
        assert is_uniform(first[j] + first[(j + 1) % 3])


@pytest.mark.parametrize(
    ("made", "federation"),
    [(STRATEGIES[name], None) for name in AT_HOME]
    + [(FDSKL_STRATEGIES[name], None) for name in ("direct", "doubly", "doubly, tree")]
    + [(CLUSTERINGS[name], row_parties) for name in ("gram", "lanczos")],
)
def test_two_runs_of_a_seed_have_new_keys_and_the_same_model(made, federation):
    (first, one), (second, two) = (
        record(made(), federation and federation()) for _ in range(2)
    )
    if not isinstance(made(), KernelLearning | FKKMeans):  # its model has a number
        assert first.arrays.object_id == second.arrays.object_id
    assert first.metrics == second.metrics
    sent = [e.values for e in [*one, *two]]
    assert len({values["public_key"] for values in sent if "public_key" in values}) == 6


def test_no_mask_is_used_twice():
    """Messages of one party differ also where its values are the same, here zeros."""
    X, y = data()
    X[:, :2] = 0
    strategy = CoresetVRLR(40, solver="saga", max_iter=3, batch_size=40)
    _, transcript = record(strategy, parties(X, y))
    sent = [
        e.values["residual"].tobytes()
        for e in transcript
        if e.up and e.party == 0 and "residual" in e.values
    ]
    assert len(sent) == 5 - 1  # start and three batches
    assert len(set(sent)) == len(sent)


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
    others = np.setdiff1d(np.arange(N), rows)
    assert actual(patterns(X[rows]), transcript) == patterns(X[rows])
    assert not actual(patterns(X[others]), transcript)
    regression = isinstance(strategy, CoresetVRLR)
    labels = patterns(y[rows]) if regression else set()
    assert actual(patterns(y), transcript) == labels


def test_k_means_does_not_ask_who_has_labels():
    """The bytes are the same with and without labels but for ``hello``."""
    X, y = data()
    for made in (STRATEGIES["k-means"], STRATEGIES["distdim"]):
        results = [
            record(made(), parties(X, y, labelled)) for labelled in (True, False)
        ]
        (with_y, one), (without, two) = results
        assert with_y.arrays.object_id == without.arrays.object_id
        for a, b in zip(one, two, strict=True):
            if a.action != "hello":
                assert set(a.values) == set(b.values)


def test_what_goes_to_one_party_does_not_depend_on_another():
    """Requests differ between parties only in the party's own block of the model."""
    own = {"coefficients", "centers", "count"}
    for made in STRATEGIES.values():
        _, transcript = record(made())
        rounds = {}
        for e in transcript:
            if not e.up and e.action != "hello":
                rounds.setdefault(e.frame["round"], []).append(e)
        for requests in rounds.values():
            assert [e.party for e in requests] == [0, 1, 2]
            for name in set(requests[0].values) - own:
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
    strategy = CoresetVRLR(40, regularizer, alpha, solver="cg", max_iter=2)
    _, transcript = record(strategy)
    request = next(e for e in transcript if e.action == "linear_start" and not e.up)
    S = request.values["coreset.rows"].astype(int)
    w = request.values["coreset.weights"]
    ring = group("ring", request.frame["bound.residual"], 3)
    seen = ring.decode(sum(replies(transcript, "linear_start", "residual")))
    root = np.sqrt(w / N)
    t = root * (y[S] - w @ y[S] / w.sum())
    (scale,) = (
        e.values["scale"]
        for e in transcript
        if e.action == "linear_start" and e.up and e.party == HOLDER
    )
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


def test_coefficients_are_the_model_and_shifts_are_masked():
    result, transcript = record(STRATEGIES["cg"]())
    scale = next(e.values["scale"] for e in transcript if "scale" in e.values)
    sent = replies(transcript, "linear_coefficients", "coefficients")
    for block, coef in zip(sent, result.model.coef_, strict=True):
        np.testing.assert_allclose(block * scale, coef)


def test_distdim_with_seeding_sends_no_rows():
    """The seeds of k-means++ are rows; one step of Lloyd's makes them means."""
    X, y = data()
    strategy = CoresetVKMC(3, "distdim", "seeding", size=100)
    _, transcript = record(strategy, parties(X, y))
    assert not actual(patterns(X), transcript)
