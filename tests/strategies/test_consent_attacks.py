"""What a server that deviates gets out of parties beyond what their consent says.

Each attack succeeded once. Those called open still do, and docs/security.md says so.
The parties are real ones: masks, a consent, a journal in a ``state-dir``.
"""

import functools
import sys
from dataclasses import replace
from types import SimpleNamespace

import forgetting
import numpy as np
import pytest
from deviating import RealParties, angles_of, fitted
from federations import pinned

from vfl_flower import Party, PartyFailed
from vfl_flower.app.client_app import load_from_context
from vfl_flower.clients.coresets import linear
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.clients.fdskl import angle_sums as fdskl
from vfl_flower.clients.fdskl import prediction as fdskl_prediction
from vfl_flower.clients.fdskl.state import SummedRows
from vfl_flower.clients.kernel_kmeans import clustering as kernel_kmeans_clustering
from vfl_flower.clients.kernel_kmeans import training as kernel_kmeans
from vfl_flower.clients.mufc import forgetting as mufc_forgetting
from vfl_flower.clients.mufc import training as mufc
from vfl_flower.numerics.random_features import draw_pairs
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.steps import Sum, each, opened
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.secure_aggregation.limbs import LIMB, PLACES
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties

N = 60
VICTIM = 1
pytestmark = pytest.mark.usefixtures("careless")


def refused(reason):
    """Make a test pass where a party refuses for a reason, and only then."""

    def decorate(test):
        @functools.wraps(test)
        def attacked(*args, **kwargs):
            with pytest.raises(PartyFailed, match=reason):
                test(*args, **kwargs)

        return attacked

    return decorate


def letting(*kinds, **limits):
    """Return a consent with these kinds; a number limits a kind in run and life."""
    leaves = dict.fromkeys(kinds, Limit())
    for kind, most in limits.items():
        leaves[kind.replace("_", "-")] = Limit(most, most)
    return Consent(leaves=leaves)


def made(tmp_path, consent, d=2, n=N, labels=None, same=True):
    """Return three parties of the `same` rows or not, the last one with labels."""
    rng, parties = np.random.default_rng(0), []
    for name in "abc":
        ids = np.array([f"{'' if same else name}{i}" for i in range(n)])
        X, y = rng.uniform(-0.4, 0.4, size=(n, d)), labels if name == "c" else None
        parties.append(Party(X, y, ids=ids, name=name))
    return pinned(parties, tmp_path, consent)


def greet(grid, partition="vertical"):
    return Parties(Exchange(grid), partition=partition)


def horizontal(tmp_path, *kinds, **limits):
    """Return a server that has greeted parties with other rows each."""
    parties = made(tmp_path, letting(*kinds, **limits), same=False)
    return greet(RealParties(parties), "horizontal")


def one(asked, j, step, sums=None, **values):
    """Ask one party alone; return its reply, or None where it refuses."""
    wanted = {
        name: asked._sum_request(spec, asked._round + 1)
        for name, spec in (sums or {}).items()
    }
    last = list(asked._last)
    blocks = asked._blocks(coresets.totals, [])
    try:
        return asked._round_trip(step, {j: values}, {j: wanted}, blocks)[j]
    except PartyFailed as error:
        asked._last = last
        asked.refusal = error.reason
        return None


COINS = np.random.default_rng(3).integers(0, 2, N).astype(float)
"""Labels of two classes."""


# -- linear models: `row-sums` and `coefficients`, no `rows` ---------------------------


def start(asked, l2, residual=2.0, **values):
    """Begin conjugate gradients."""
    return asked.ask(
        linear.start.summing(residual=residual, norms=2.0**12),
        **{"method": "cg", "n": 1, "l2": l2, "intercept": False, "test_fraction": 0.0},
        **values,
    )


@refused("linear_coefficients may be requested only once in a session")
def test_open_coefficients_give_one_row_a_session(tmp_path):
    """Conjugate gradients take the server's residual: e_i and a large l2 give row i."""
    grid = RealParties(made(tmp_path, letting("row-sums", "totals", "coefficients")))
    asked, l2 = greet(grid), 1e12
    start(asked, l2, residual=8.0)
    for i, row in enumerate(grid._parties[1000 + VICTIM].X[:2]):
        question = linear.cg.summing(direction=8.0, energies=8.0)
        asked.ask(question, residual=np.eye(N)[i], step_size=0.0, shrink=0.0)
        asked.ask(question, residual=np.zeros(N), step_size=1.0, shrink=0.0)
        replies = asked.ask(linear.coefficients.summing(shift=8.0))
        assert np.abs(replies[VICTIM]["coefficients"] * l2 - row).max() < 1e-9


@refused("refuses to add up the rows requested")
def test_the_scale_of_labels_does_not_give_labels(tmp_path):
    """`start` says |t| in the clear, and the weights tell the rows in it apart."""
    asked = greet(RealParties(made(tmp_path, letting("row-sums"), labels=COINS)))
    rows = np.arange(30, dtype=np.uint32)
    start(asked, 1.0, coreset=coresets.WeightedRows(rows, 4.0 * 2.0 ** np.arange(30)))


def test_open_the_first_residual_is_the_labels(tmp_path):
    """All other parties start from zero, and with a large l2 so does the holder."""
    y = np.random.default_rng(3).normal(size=N)
    asked = greet(RealParties(made(tmp_path, letting("row-sums"), labels=y)))
    replies = start(asked, 1e30)
    assert np.abs(replies.sums["residual"] * replies[2]["scale"] - y).max() < 1e-9


# -- coresets: `totals` alone ----------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
def test_draws_do_not_tell_the_score_of_each_row(tmp_path, fused):
    """Of 2^22 draws |x| followed for all rows of a column, to 5 % of its range."""
    asked = greet(RealParties(made(tmp_path, letting("totals"), d=1)))
    many, values = 2**22, {"test_fraction": 0.0, "intercept": False}
    if fused:
        assert one(asked, VICTIM, coresets.totals, size=many, **values) is None
    else:
        assert asked.ask(coresets.totals, size=0, **values)
        assert one(asked, VICTIM, coresets.drawn_rows, count=np.array([many])) is None
    assert "more draws would reveal the score of each" in asked.refusal


# -- kernel k-means: an empty consent --------------------------------------------------


def begun(asked):
    """Bring the parties to the first iteration."""
    first = asked.ask(kernel_kmeans.begin.summing())
    given = {"setup": kernel_kmeans.Setup("gaussian", 2.0, 8, 8), "t": 1}
    given |= {"vectors": np.eye(8)[:, :1], "seed": each(first.secrets["seed"])}
    asked.ask(kernel_kmeans.product.summing(product=100.0), **given)


@refused("does not allow row-sums")
@pytest.mark.parametrize(
    ("question", "values"),
    [
        (kernel_kmeans.begin.summing(), {}),
        (kernel_kmeans.gram.summing(gram=100.0), {"t": 1}),
        (kernel_kmeans.product.summing(product=100.0), {"vectors": np.eye(8)[:, :1]}),
    ],
    ids=["begin", "gram", "product"],
)
def test_an_empty_consent_lets_no_features_be_summed(tmp_path, question, values):
    """The server chooses the kernel and the scale of what is summed."""
    asked = horizontal(tmp_path, "row-sums")
    if values:
        begun(asked)
    for party in asked.grid._parties.values():
        party.consent = replace(party.consent, leaves={})
    asked.ask(question, **values)


def test_a_refusal_does_not_tell_a_party_s_part_of_a_sum(tmp_path):
    """Where a product overflowed, fifty vectors told a number of it to 2e-13."""
    asked = horizontal(tmp_path, "row-sums")
    begun(asked)
    question = asked, VICTIM, kernel_kmeans.product, {"product": Sum(1.0)}
    for size in (1e51, 1e308):
        assert one(*question, vectors=np.full((8, 1), size)) is None
        assert "'vectors' must hold numbers from -1e+50 to 1e+50" in asked.refusal
    assert one(*question, vectors=np.full((8, 1), 1e8))


@refused("must be a power of two")
def test_the_number_of_clipped_values_does_not_tell_parts_of_a_sum(tmp_path):
    """Bound after bound it gave the largest numbers of single parties, to 2e-13."""
    asked = horizontal(tmp_path, "row-sums")
    begun(asked)
    spec = Sum()
    object.__setattr__(spec, "bound", 3.0)  # a server's own package does not round
    asked.ask(kernel_kmeans.product.summing(product=spec), vectors=np.eye(8)[:, :1])


def agreed(**changes):
    """Return the settings of a training in the box from -1 to 1."""
    box = {"lower": np.array(-1.0), "upper": np.array(1.0), "gamma": 0.1}
    given = {"n_clusters": 2, "local_clusters": 2, "server_points": "weighted"}
    given |= {"client_training": "full", "min_rows_per_bin": 5}
    return forgetting.agreed(**box | given | changes)


COUNTS = {"totals": Sum(2.0**40), "message": Sum(group="field")}
"""Sums of what a training tells."""


def train(asked, sums=COUNTS, **changes):
    """Ask one party to train; return its reply, or None where it refuses."""
    given = {"model": f"{asked.session:016x}", "settings": agreed(**changes)}
    given |= {"key": bytes(16)} if "message" in sums else {}
    return one(asked, VICTIM, mufc.train, sums, keep=False, **given)


def trained(asked):
    """Ask all to train; return the id of the model."""
    model, given = f"{asked.session:016x}", {"settings": agreed(), "key": bytes(16)}
    asked.ask(mufc.train.summing(**COUNTS), model=model, **given)
    return model


def committed(asked, run, version, centers):
    """Return the sums of sizes and costs for centres of the server's choice."""
    sums = mufc.commit.summing(cost=Sum(LIMB), sizes=Sum(2.0**40))
    given = {"version": version, "run": run, "centers": centers}
    return asked.secure_sum(sums, **given, cost=True)


def test_open_a_box_tells_the_largest_value_of_a_column(tmp_path):
    """A run each: half of them are refused, and refusals run out after 100."""
    parties = made(tmp_path, letting("centroids"), same=False)
    low, high = 0.0, 1.0
    for _ in range(45):
        middle = (low + high) / 2
        asked = greet(RealParties(parties), "horizontal")
        answered = train(asked, lower=-np.ones(2), upper=np.array([middle, 1.0]))
        low, high = (middle, high) if answered is None else (low, middle)
    assert abs(high - parties[VICTIM].X[:, 0].max()) < 1e-9


def test_centroids_leave_rounded_and_in_a_sum(tmp_path):
    """With `privacy` none they leave in the clear, exact, by party."""
    asked = horizontal(tmp_path, "centroids")
    sums = {"totals": COUNTS["totals"]}
    assert train(asked, sums, privacy="none", local_clusters=12) is None
    assert "does not allow rows" in asked.refusal


def test_counted_rows_of_centroids_are_those_of_the_means(tmp_path):
    """A limit of rows counts the rows that were drawn, not the rows of the means."""
    asked = horizontal(tmp_path, centroids=5)
    assert train(asked, local_clusters=5) is None
    assert "at most 5 rows to leave the party as centroids" in asked.refusal


@refused("does not allow row-sums")
def test_an_objective_does_not_give_rows_over_many_sessions(tmp_path):
    """Boxes and centres of the server's choice gave rows to 1e-12, in 125 sessions."""
    asked = horizontal(tmp_path, "centroids")
    assert "cost" not in committed(asked, trained(asked), 1, np.zeros((1, 2)))


@refused("mufc_commit may be requested only once in a session")
def test_forgetting_a_row_does_not_give_the_row_in_one_session(tmp_path):
    """The cost of `commit` is exact, and the server asks for it at any centre.

    The costs at three centres, before the row is forgotten and after, gave the row.
    """
    asked = horizontal(tmp_path, "centroids", "row-sums")
    model = trained(asked)
    for center in (0.0, 0.5):
        committed(asked, model, 1, np.full((1, 2), center))


def test_a_cost_of_its_own_clusters_needs_consent(tmp_path):
    """`local` says in the clear a party's own part of a sum: R^T G R about the mean."""
    asked = horizontal(tmp_path, "row-sums")
    begun(asked)
    values = {"n_clusters": 1, "R": np.eye(8)[:, :1]}
    assert one(asked, VICTIM, kernel_kmeans_clustering.local, **values) is None
    assert "does not allow embedded-rows" in asked.refusal


# -- FDSKL -----------------------------------------------------------------------------


def evaluate(grid, number, rows, at):
    """Let the label holder evaluate a model at rows, by angles of some."""
    asked = Parties(Exchange(grid), model=number)
    asked.ask(fdskl_prediction.part)
    sealed = angles_of(asked, fdskl_prediction.answer, rows, columns=1, size=0)
    summed = SummedRows(at, opened(sealed))
    given = {"columns": 1, "size": 0, "evaluate": True, "last": True}
    return asked.ask_one(2, fdskl_prediction.answer, at=summed, **given)


def test_open_the_median_is_the_distance_of_one_pair(tmp_path):
    """A pad is no seal: the server adds to all distances but those of one pair."""
    grid = RealParties(made(tmp_path, letting("angles"), labels=COINS))
    X = np.concatenate([p.X for p in grid._parties.values()], axis=1)
    rows = np.arange(20, dtype=np.uint32)
    pairs = rows[draw_pairs(20, 1000, np.random.default_rng([0, 1000]))]
    pairs.sort(axis=0)
    errors = []
    for wanted in ((0, 1), (2, 5), (3, 4)):  # a greeting each, in one run
        asked = greet(grid)
        asked._seed = 0  # from which all draw the pairs
        question = fdskl.distances.summing(distances=Sum(LIMB, to=2))
        given = {"kernel": "gaussian", "target": "binary", "holder": 2, "rows": rows}
        sealed = asked.ask(question, **given).sealed["distances"]
        others = np.flatnonzero(~(np.array(wanted) == pairs.T).all(axis=1))
        up = others[: len(others) // 2]
        shift = np.zeros((len(PLACES), 1000))
        shift[0, up] = 64.0
        shift[0, np.setdiff1d(others, up)] = -64.0
        adding, part = group("ring", LIMB, 3), sealed.parts[0]
        total = adding.add(part, adding.encode(shift)[0].reshape(part.shape))
        changed = opened(type(sealed)(2, (total,), sealed.seals))
        given = {"kernel": "gaussian", "distances": changed}
        got = asked.ask_one(2, fdskl.bandwidth, **given)["bandwidth"]
        errors.append(abs(2 * got**2 - ((X[wanted[0]] - X[wanted[1]]) ** 2).sum()))
    assert max(errors) < 1e-9


def test_the_party_that_gets_distances_is_the_one_named(tmp_path):
    """A party that is told that it is the holder counts no rows; the sum goes on."""
    asked = greet(RealParties(made(tmp_path, letting(angles=2), labels=COINS)))
    sums = {"distances": Sum(LIMB, to=2)}
    values = {"kernel": "gaussian", "target": "binary", "holder": VICTIM, "rows": None}
    assert one(asked, VICTIM, fdskl.distances, sums, **values) is None
    assert "at most 2 rows to leave the party as angles" in asked.refusal


@refused("at most 25 rows to leave the party as angles")
def test_labels_of_rows_without_angles_count_too(tmp_path):
    """They were fitted to angles of other rows, and all labels followed."""
    asked = greet(RealParties(made(tmp_path, letting(angles=25), labels=COINS)))
    fitted(asked, range(25, 50), of=range(25))


@refused("at most 25 rows to leave the party as angles")
def test_an_evaluation_of_rows_without_angles_counts_too(tmp_path):
    """Their labels were compared with answers for other rows."""
    grid = RealParties(made(tmp_path, letting(angles=25), labels=COINS))
    asked, rows = greet(grid), np.arange(25, dtype=np.uint32)
    fitted(asked, rows)
    evaluate(grid, f"{asked.session:016x}", rows, rows + 25)


@pytest.mark.parametrize("times", [1, 100])
def test_the_error_of_one_answer_does_not_tell_a_label(tmp_path, times):
    """It told 39 of 39 labels, in a session each.

    Of a row alone, or a hundred times among others: the mean is that of the one.
    """
    grid = RealParties(made(tmp_path, letting("angles"), labels=COINS))
    asked = greet(grid)
    fitted(asked, range(25))
    told = []
    for row in range(5):
        others = [] if times == 1 else range(20)
        at = np.array([row] * times + [*others], dtype=np.uint32)
        try:
            told.append(evaluate(grid, f"{asked.session:016x}", at, at))
        except PartyFailed as error:
            told.append(error.reason)
    if times == 1:
        assert told == [{"test_rows": 0}] * 5
    else:
        assert all("each row only once" in str(reply) for reply in told), told


def test_open_row_sums_give_the_distances_of_all_rows(tmp_path):
    """With the residual e_i the direction is row i of the Gram matrix of all rows."""
    grid = RealParties(made(tmp_path, letting("row-sums")))
    X = np.concatenate([p.X for p in grid._parties.values()], axis=1)
    asked = greet(grid)
    l2, gram = 1e6, []
    start(asked, l2, residual=8.0)
    for i in range(5):
        question = linear.cg.summing(direction=2.0, energies=2.0)
        given = {"residual": np.eye(N)[i] * 1e6, "step_size": 0.0, "shrink": 0.0}
        gram.append(asked.secure_sum(question, **given)["direction"] * l2 / 1e6)
    assert np.abs(np.array(gram) - X[:5] @ X.T).max() < 1e-3


@refused("at least 3 parties must remain, so that a sum")
def test_a_sum_has_as_many_parties_as_the_consent_says(tmp_path):
    """`min-parties` did not hold for those that stay: a pair each, and none leaves."""
    asked = horizontal(tmp_path, "centroids")
    model = trained(asked)
    sizes = mufc.commit.summing(sizes=Sum(2.0**40))
    asked.ask(sizes, version=1, run=model, centers=np.zeros((1, 2)))
    asked = greet(asked.grid, "horizontal")
    leave = {"leaving": [0], "kind": "forget-client", "settings": agreed()}
    given = {"model": model, "before": model, "run": model, "key": bytes(16)}
    asked.ask(mufc_forgetting.forget.summing(**COUNTS), version=1, **given, **leave)


# -- the file and the journal ----------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "rule"),
    [
        ({"leaves": {"rows": {}}}, "rows must be true, false or a table"),
        ({"min-parties": 5, "min_parties": 3}, "must be written with '-'"),
    ],
    ids=["an empty limit", "a key in two spellings"],
)
def test_a_file_that_lets_more_than_it_says(tables, rule):
    with pytest.raises(PartyError, match=rule):
        Consent.parse(tables)


# -- what the node config decides ------------------------------------------------------


TABLE = "a,b\n1.0,0.0\n0.0,1.0\n"


def loaded(node, run=None):
    return load_from_context(SimpleNamespace(node_config=node, run_config=run or {}))


@pytest.mark.parametrize(
    ("key", "absolute"), [("data", True), ("data", False), ("data-path", True)]
)
def test_a_party_of_a_file_is_strict(tmp_path, monkeypatch, key, absolute):
    """A relative path made it one that lets anything leave."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    data = str(tmp_path / "table.csv") if absolute else "table.csv"
    node = {key: data, "party-name": "a"}
    with pytest.raises(PartyError, match="state-dir must be set"):
        loaded(node)
    node["state-dir"] = str(tmp_path / "state")
    assert loaded(node).consent == Consent()


def test_a_run_does_not_name_a_file_of_a_node(tmp_path, monkeypatch):
    (tmp_path / "table.csv").write_text(TABLE)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(PartyError, match="must be set as 'data' in the node config"):
        loaded({"party-name": "a"}, {"data": str(tmp_path / "table.csv")})
    node = {"partition-id": 0, "num-partitions": 3, "state-dir": str(tmp_path)}
    assert loaded(node, {"data": "diabetes"}).consent == Consent()  # it may hold models
