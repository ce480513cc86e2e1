"""All that the server sends and gets, against the tables of who learns what."""

import re
from pathlib import Path

import numpy as np
import pytest
from transcripts import (
    Recorder,
    actual,
    is_uniform,
    leaving,
    our_steps,
    patterns,
    replies,
)

from vfl_flower import Party
from vfl_flower.clients.evaluation import Told
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import vrlr_sensitivities
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.protocol.common import has_own
from vfl_flower.protocol.steps import STEPS
from vfl_flower.secure_aggregation import group
from vfl_flower.strategies import (
    FDSKL,
    CoresetVKMC,
    CoresetVRLR,
    FDSKLPrediction,
    FKKMeans,
)

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


def kernel(solver="direct", **settings):
    size = {"features": 8 if solver == "direct" else 12}
    given = {"target": "continuous", "test_fraction": 0.2, "block_bytes": 1200}
    return FDSKL("square", solver=solver, **{**given, **size, **settings})


FDSKL_STRATEGIES = {
    "direct": kernel,
    "direct, 8 bits": lambda: kernel(bits=8),
    "direct, bandwidth": lambda: kernel(bandwidth=2.0, regularization=0.1),
    "direct, ring": lambda: kernel(topology="ring"),
    "direct, paper": lambda: kernel(topology="tree", masking="paper", block_bytes=6000),
    "doubly": lambda: kernel("doubly-stochastic"),
    "doubly, 32 bits": lambda: kernel(
        "doubly-stochastic", bits=32, test_fraction=0.0, block_bytes=2400
    ),
    "doubly, tree": lambda: kernel("doubly-stochastic", topology="tree"),
    "doubly, paper": lambda: kernel(
        "doubly-stochastic", topology="ring", masking="paper", block_bytes=6000
    ),
}


def names(text=""):
    return set(text.split())


START = "n l2 intercept test_fraction method"
GREETING = "partition plan.kinds plan.seeded plan.parties"
COMMON = "size test_fraction"
CLUSTERING = "clustering.n_clusters clustering.local_clustering clustering.alpha"
CORESET = names("coreset.rows coreset.weights")
DOWN: dict[str, set[str]] = {
    "hello": names(GREETING),
    "coresets_drawn_rows": names("count"),
    "coresets_scores": names("rows pool"),
    "linear_start": names(START),
    "linear_cg": names("residual step_size shrink"),
    "linear_proximal": names("residual l1 momentum"),
    "linear_saga": names("batch change step_size l1"),
    "linear_coefficients": names(),
    "coresets_local_clusters": names("n_clusters local_clustering test_fraction"),
    "coresets_distances": names("centers test_fraction start stop"),
}
UP: dict[str, set[str]] = {
    "hello": names(
        "name index n_parties n_rows n_columns n_labels ids_digest columns "
        "names kinds widths levels_digest gaps version public_key lacks"
    ),
    "coresets_drawn_rows": names("rows"),
    "coresets_pooled_rows": names("X"),
    "linear_cg": names("direction energies"),
    "linear_proximal": names("residual energies"),
    "linear_saga": names("residual"),
    "linear_start": names("residual norms"),
    "linear_coefficients": names("coefficients shift"),
    "coresets_local_clusters": names("centers labels"),
    "coresets_distances": names("distances"),
}
MASKED = {
    "coresets_scores": names("scores"),
    "linear_start": names("residual norms"),
    "linear_cg": names("direction energies"),
    "linear_proximal": names("residual energies"),
    "linear_saga": names("residual"),
    "linear_coefficients": names("shift"),
    "coresets_distances": names("distances"),
}
FRAME = names("session seed private_draws masking round previous parties index digest")


def asked(action, sums):
    """Return the settings by which the server asks for sums."""
    told = has_own(STEPS[action].contract.request) if sums else False
    settings = {f"{kind}.{name}" for kind in ("sum", "bound", "group") for name in sums}
    return settings | (names("blocks salt") if told else set())


def told_up(sums):
    """Return what a reply tells besides its values: what it clipped, under a mask."""
    return names("digest seconds clipped" if sums else "digest seconds")


def down(entry, strategy):
    """Return the names that a message from the server may have, and no others."""
    regression, full = isinstance(strategy, CoresetVRLR), strategy.sampling == "full"
    if entry.action == "coresets_totals":
        return names(COMMON) | names("intercept" if regression else CLUSTERING)
    if entry.action == "coresets_pooled_rows":
        return names("test_fraction labels") | names("start stop" if full else "rows")
    if entry.action in ("linear_start", "coresets_local_clusters"):
        return DOWN[entry.action] | (set() if full else CORESET)
    return DOWN[entry.action]


def up(entry, strategy):
    """Return the names that a party's message may have, and no others."""
    regression = isinstance(strategy, CoresetVRLR)
    fused, pooled = strategy.rounds == "fused", strategy.solver == "central"
    labels = names("y") if regression and entry.party == HOLDER else set()
    if entry.action == "coresets_totals":
        return names("total") | (names("rows") if fused else set())
    if entry.action == "coresets_scores":
        rows = names("X") | labels if fused and pooled else set()
        return names("scores") | rows
    if entry.action == "coresets_pooled_rows":
        return UP[entry.action] | labels
    if entry.action == "linear_start" and entry.party == HOLDER:
        return UP[entry.action] | names("scale")
    return UP[entry.action]


@pytest.mark.parametrize("name", STRATEGIES)
def test_messages_have_these_names_and_no_others(name):
    strategy = STRATEGIES[name]()
    _, transcript = record(strategy)
    for entry in transcript:
        expected = (up if entry.up else down)(entry, strategy)
        assert set(entry.values) == expected, entry
        masked = MASKED.get(entry.action, set())
        if entry.up:
            assert set(entry.frame) == told_up(masked)
            for array in masked:
                assert entry.values[array].dtype == np.dtype("<u8"), entry
        elif entry.action == "hello":
            assert set(entry.frame) == {"session", "digest"}
        else:
            peers = names("peers") if entry.frame["round"] == 1 else set()
            sums = asked(entry.action, masked)
            assert set(entry.frame) == FRAME | sums | peers, entry


def test_every_step_of_coresets_is_in_a_transcript():
    """A step that one adds has to be put into the tables above."""
    seen = {e.action for make in STRATEGIES.values() for e in record(make())[1]}
    ours = our_steps("coresets", "linear")
    assert set(ours) <= seen
    assert seen <= set(UP) | {"coresets_totals", "coresets_scores"}
    for action, step in ours.items():
        assert leaving(step, "sum") == MASKED.get(action, set())
        assert not leaving(step, "sealed") | leaving(step, "secret")


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
                "angles": "nothing",
                "fit": "the score, and lambda",
                "start": "the rows' numbers",
                "iterate": "nothing",
                "answer": "the mean error",
                "last of": "all of it",
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
        "prepare": "numbers local mean variance third masked targets",
        "deal": "seeds shares encrypted",
        "multiply": "angles random masked local shares joint Gram",
        "relevance": "frequencies mask mixtures cumulants",
        "rows": "angles local weights",
        "products": "shares",
        "scores": "error number",
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

SETUP = names(
    "setup.target setup.kernel setup.bandwidth setup.n_features setup.holders "
    "setup.block setup.chooses"
)
SHARED = names("setup.shared.seed setup.shared.widths setup.shared.kept")
REQUEST = names("request.rows request.stop request.bits")
PROBLEM = names("problem.loss problem.rows problem.regularization problem.balanced")
SCORED = names("angles at")
FDSKL_DOWN = {
    "hello": (names(GREETING), [names("plan.wants")]),
    "fdskl_distances": (names("kernel target holder"), [names("rows")]),
    "fdskl_bandwidth": (names("kernel"), [names("distances")]),
    "fdskl_angles": (REQUEST, [SETUP, SHARED, names("send")]),
    "fdskl_held_out_angles": (REQUEST | names("send"), []),
    "fdskl_fit": (names(), [PROBLEM, names("offsets")]),
    "fdskl_start": (
        names("test_fraction rule.loss rule.regularization") | SETUP,
        [SHARED, names("rule.step"), names("instances")],
    ),
    "fdskl_iterate": (
        names("columns size learn keep"),
        [REQUEST, SCORED, names("offsets"), names("scores")],
    ),
    "fdskl_answer": (
        names("columns size evaluate last"),
        [REQUEST, SCORED, names("offsets"), names("scores done"), names("curves")],
    ),
    "fdskl_part": (names(), []),
}
"""What each message has, and groups of names of which it may have some."""

FDSKL_UP = {
    "fdskl_bandwidth": names("bandwidth"),
    "fdskl_fit": names("columns multiple regularization converged cv_score"),
    "fdskl_start": names("rows columns scale"),
    "fdskl_answer": set(Told.__annotations__),
}
"""What a label holder sends in the clear; the other parties send nothing."""

EACH = dict.fromkeys(("fdskl_fit", "fdskl_iterate"), names("kept"))
"""What each party sends in the clear, of these in the last message of training."""

PART = names("index parties n_features holders columns kernel bandwidth kept scale")
"""What each party sends in the clear of its part of a model."""


BLOCKS = "angles_"
"""How names of summed angles begin that the label holder is given in blocks."""


def check_fdskl(transcript, *holders):
    """Hold each message against the tables, and each sum to how it is hidden."""
    requests = {}
    for e in transcript:
        if not e.up:
            requests[e.party] = e
            sealed = {k.removeprefix("sealed.") for k in e.frame if "sealed." in k}
            whole = {v for v in e.values if v.rpartition(".")[0] not in sealed}
            for name in sealed:
                assert f"{name}.0" in e.values
            _check_request(e, whole, sealed, holders)
            continue
        request = requests[e.party]
        sums = {k.removeprefix("sum.") for k in request.frame if k.startswith("sum.")}
        public = set(e.values) - sums
        relayed = any(key.startswith("relay.") for key in request.frame)
        assert set(e.frame) == told_up(() if relayed else sums)
        assert sums <= set(e.values)
        if e.action == "hello":
            assert public - {"keeps", "lets"} == UP["hello"]
        elif e.action == "fdskl_part":
            assert public == PART
        else:
            public -= EACH.get(e.action, set())
            assert e.party in holders or not public
            assert public <= FDSKL_UP.get(e.action, set()), e
        if len(holders) == 1:  # it computes scores itself
            assert not {n for n in {*sums, *request.values} if "scores" in n}
            assert not request.values.get("size")


def _check_request(e, whole, sealed, holders):
    least, groups = FDSKL_DOWN[e.action]
    relayed = {n for n in sealed if f"relay.{n}" in e.frame}
    blocks = {n for n in sealed if n.startswith(BLOCKS)} - relayed
    seen = whole | sealed - relayed - blocks
    assert least <= seen, e
    for group_of in groups:
        assert not group_of & seen or group_of <= seen, e
    assert seen <= least.union(*groups), e
    assert e.party in holders or not sealed - relayed  # sums are opened there alone
    assert not blocks or e.action == "fdskl_fit"
    if e.action == "hello":
        assert set(e.frame) == {"session", "digest"}
        return
    sums = {k.removeprefix("sum.") for k in e.frame if k.startswith("sum.")}
    ways = {k for k in e.frame if k.startswith(("to.", "relay."))}
    assert {w.partition(".")[2] for w in ways} == sums
    assert len(ways) == len(sums)  # each is for a party, none for the server
    peers = names("peers") & set(e.frame)
    rest = {f"sealed.{name}" for name in sealed} | peers | names("model") & set(e.frame)
    assert set(e.frame) == FRAME | asked(e.action, sums) | ways | rest, e


@pytest.mark.parametrize("name", FDSKL_STRATEGIES)
def test_messages_of_fdskl_have_these_names_and_no_others(name):
    _, transcript = record(FDSKL_STRATEGIES[name](), seed=None)
    check_fdskl(transcript, HOLDER)
    if "paper" not in name:
        keys = {k.partition(".")[0] for e in transcript for k in e.values}
        assert "offsets" not in keys
        assert not {k for e in transcript for k in e.values} & SHARED
        assert not any("kept" in e.values for e in transcript if not e.up)
    kept = [e for e in transcript if e.up and "kept" in e.values]
    assert [(e.party, e.values["kept"]) for e in kept] == [(j, False) for j in range(3)]


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
    _, transcript = record(kernel("doubly-stochastic", **settings), federation, None)
    check_fdskl(transcript, 0, HOLDER)
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


def test_messages_of_predictions_have_these_names_and_no_others(tmp_path):
    X, y = data()
    trained = parties(X, y)
    for j, party in enumerate(trained):
        party.state_dir = tmp_path / str(j)
    result, _ = record(kernel(), trained, seed=None)
    new = parties(*data(40, seed=1), labelled=False)
    for party, old in zip(new, trained, strict=True):
        party.state_dir = old.state_dir
    grid = Recorder(new)
    FDSKLPrediction(result.model.model, solver="direct").start(grid)
    check_fdskl(grid.transcript, HOLDER)
    assert {e.action for e in grid.transcript} == {
        "hello",
        "fdskl_part",
        "fdskl_answer",
    }
    answers = [e for e in grid.transcript if e.up and e.action == "fdskl_answer"]
    assert all(set(e.values) <= {"angles_2", "scores"} for e in answers)


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


def test_every_step_of_fdskl_is_in_the_tables():
    ours = our_steps("fdskl")
    assert set(ours) == set(FDSKL_DOWN) - {"hello"}
    seen = {e.action for make in FDSKL_STRATEGIES.values() for e in record(make())[1]}
    assert seen == set(FDSKL_DOWN) - {"fdskl_part"}  # that is of predictions
    for step in ours.values():  # all of its sums are for a party
        assert not leaving(step, "sum") | leaving(step, "secret")


# -- messages of federated kernel k-means ---------------------------------------------

KERNEL = names("setup.kernel setup.gamma setup.degree setup.offset setup.D setup.D_1")
SCALING = names("setup.shift setup.scale")
KERNEL_DOWN = {
    "kernel_kmeans_begin": (names("means squares known"), [names("shift")]),
    "kernel_kmeans_gram": (names("t"), [KERNEL, SCALING, names("R")]),
    "kernel_kmeans_product": (
        names("vectors"),
        [names("t"), KERNEL, SCALING, names("R"), names("trace_wanted")],
    ),
    "kernel_kmeans_project": (names("c t"), [KERNEL, SCALING]),
    "kernel_kmeans_expand": (names("g"), []),
    "kernel_kmeans_local": (names("n_clusters"), [names("R"), names("H")]),
    "kernel_kmeans_sample": (names("count"), []),
    "kernel_kmeans_embed": (set(), [names("R"), names("H")]),
    "kernel_kmeans_lloyd": (names("centers"), [names("last sizes")]),
    "kernel_kmeans_assign": (names("centers"), []),
    "kernel_kmeans_predict": (set(), []),
    "kernel_kmeans_evaluate": (set(), []),
}
"""What each message has, and groups of names of which it may have some."""

KERNEL_UP = {
    "kernel_kmeans_expand": names("rows"),
    "kernel_kmeans_local": names("cost"),
    "kernel_kmeans_sample": names("points weights"),
    "kernel_kmeans_assign": names("kept"),
    "kernel_kmeans_predict": names("done"),
}
"""What a party sends in the clear."""

KERNEL_SUMS = {
    "kernel_kmeans_begin": names("sum_x sum_squares known"),
    "kernel_kmeans_gram": names("gram"),
    "kernel_kmeans_product": names("product trace"),
    "kernel_kmeans_project": names("projected"),
    "kernel_kmeans_embed": names("sum_h"),
    "kernel_kmeans_lloyd": names("inertia sizes counts sums silhouettes"),
    "kernel_kmeans_assign": names("inertia sizes"),
    "kernel_kmeans_evaluate": names("cost"),
}
"""What goes only into sums over all, which the server learns."""


def clustering(**settings):
    size = {"n_features": 8, "iterations": 3, "subspace_tol": 0, "n_init": 1}
    if settings.get("clustering") != "sums":
        size |= {"clustering": "coreset", "coreset_size": 20}
    return FKKMeans(2, 3, **{**size, **settings})


CLUSTERINGS = {
    "gram": clustering,
    "sums": lambda: clustering(clustering="sums"),
    "sums without cem": lambda: clustering(
        eigensolver="lanczos", masking="plain", cem=False, clustering="sums"
    ),
    "gamma": lambda: clustering(gamma=0.1),
    "standardized": lambda: clustering(standardize=True, gamma=0.1),
    "laplacian": lambda: clustering(kernel="laplacian"),
    "polynomial": lambda: clustering(kernel="polynomial"),
    "far": clustering,
    "lanczos": lambda: clustering(eigensolver="lanczos"),
    "paper": lambda: clustering(eigensolver="lanczos", threshold="paper"),
    "without cem": lambda: clustering(
        eigensolver="lanczos", masking="plain", cem=False, iterations=2
    ),
}


def row_parties(offset=0.0):
    X = data()[0] + offset
    return [Party(X[m::3], name=NAMES[m]) for m in range(3)]


def cluster(name, seed=None):
    offset = 1e9 if name == "far" else 0.0
    return record(CLUSTERINGS[name](), row_parties(offset), seed)


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_messages_of_clusterings_have_these_names_and_no_others(name):
    _, transcript = cluster(name)
    plain, requests = CLUSTERINGS[name]().masking == "plain", {}
    for e in transcript:
        if e.action == "hello":
            assert set(e.values) == (UP if e.up else DOWN)["hello"]
            frame = names("digest seconds") if e.up else names("session digest")
            assert set(e.frame) == frame
        elif e.up:
            _check_reply(e, requests[e.party], plain)
        else:
            requests[e.party] = e
            _check_message(e)
    seeds = {k for e in transcript for k in e.values if k.startswith("seed")}
    assert seeds == names("seed.0 seed.1 seed.2")
    begins = [e for e in transcript if e.action == "kernel_kmeans_begin" and not e.up]
    assert ["shift" in e.values for e in begins[3:]] == [True] * (len(begins) - 3)
    assert (len(begins) == 6) == (name == "far")
    sizes = {(e.party, e.values["n_rows"]) for e in transcript if "n_rows" in e.values}
    assert len(sizes) == 3


def _check_message(e):
    least, groups = KERNEL_DOWN[e.action]
    sealed = {k.removeprefix("sealed.") for k in e.frame if k.startswith("sealed.")}
    assert sealed <= names("seed")
    assert not sealed or e.party > 0
    seen = set(e.values) - {f"{name}.0" for name in sealed}
    assert least <= seen, e
    for group_of in groups:
        assert not group_of & seen or group_of <= seen, e
    assert seen <= least.union(*groups), e
    sums = {k.removeprefix("sum.") for k in e.frame if k.startswith("sum.")}
    assert sums <= KERNEL_SUMS.get(e.action, set())
    peers = names("peers") if e.frame["round"] == 1 else set()
    rest = {f"sealed.{name}" for name in sealed}
    assert set(e.frame) == FRAME | asked(e.action, sums) | peers | rest, e


def _check_reply(e, request, plain):
    sums = {k.removeprefix("sum.") for k in request.frame if k.startswith("sum.")}
    assert sums <= set(e.values)
    assert set(e.frame) == told_up(sums)
    for name in sums:
        assert e.values[name].dtype == ("<f8" if plain else "<u8"), (e, name)
    public = set(e.values) - sums
    if e.action == "kernel_kmeans_begin":
        sealed = names("seed.1 seed.2") if e.party == 0 else set()
        assert public == sealed
        for name in sealed:
            assert e.values[name].dtype == np.uint8
            assert len(e.values[name]) == 32 + 16  # hexadecimal, and a tag
    else:
        assert public == KERNEL_UP.get(e.action, set()), e


def test_every_step_of_clusterings_is_in_the_tables():
    ours = our_steps("kernel_kmeans")
    assert set(ours) == set(KERNEL_DOWN)
    for action, step in ours.items():
        assert leaving(step, "sum") == KERNEL_SUMS.get(action, set())
        assert not leaving(step, "sealed")
        begins = action == "kernel_kmeans_begin"
        assert leaving(step, "secret") == (names("seed") if begins else set())
        took = {n for n, declared in step.contract.request.items() if declared.leaves}
        iterates = action.rpartition("_")[2] in ("gram", "product", "project")
        assert took == (names("seed") if iterates else set())


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
def test_two_runs_of_a_seed_share_no_mask_and_give_the_same_model(made, federation):
    (first, one), (second, two) = (
        record(made(), federation and federation()) for _ in range(2)
    )
    if not isinstance(made(), FDSKL | FKKMeans):  # whose model has its own number
        assert first.arrays.object_id == second.arrays.object_id
    assert first.metrics == second.metrics
    for a, b in zip(one, two, strict=True):
        assert (a.action, a.party, a.up) == (b.action, b.party, b.up)
        masked = (MASKED | KERNEL_SUMS).get(
            a.action, names("angles_2 scores distances")
        )
        for array in (masked | names("seed.1 seed.2")) & set(a.values) if a.up else ():
            both = a.values[array], b.values[array]
            assert not both[0].size or not np.array_equal(*both)
        for array in KERNEL_UP.get(a.action, set()) if a.up else ():
            np.testing.assert_array_equal(a.values[array], b.values[array])
    keys = [
        [e.values["public_key"] for e in t if "public_key" in e.values]
        for t in (one, two)
    ]
    assert len(set(keys[0] + keys[1])) == 6


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


@pytest.mark.parametrize(
    "made", [STRATEGIES[name] for name in AT_HOME] + list(FDSKL_STRATEGIES.values())
)
def test_no_value_of_the_data_is_in_a_message(made):
    """No 8 bytes of a message are a number of X or y."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(N, 6)), rng.normal(size=N)
    _, transcript = record(made(), parties(X, y))
    assert len(patterns(X)) == X.size
    assert not actual(patterns(X) | patterns(y), transcript)


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
