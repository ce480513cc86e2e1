"""A plan costs what the run costs, shows what its steps declare, sends ``hello``."""

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity
from transcripts import our_steps

import vfl_flower as vf
from vfl_flower.app.plan import plan as plans
from vfl_flower.app.plan.learned import who_learns, who_learns_what
from vfl_flower.app.plan.plan import _varying, dry_run, extended, plan
from vfl_flower.app.plan.rehearsal import Shape
from vfl_flower.party.answering import hello
from vfl_flower.party.consent import Consent
from vfl_flower.strategies import ALGORITHMS
from vfl_flower.testing import Recorder

CENTRAL = vf.CoresetVRLR(size=40, solver="central")
CG = vf.CoresetVRLR(size=300, solver="cg", seed=3, allow_two_parties=True)
KERNEL = {"bandwidth": 2.0, "regularization": 0.1}
CLUSTERS = {"n_clusters": 3, "n_components": 3, "iterations": 2, "subspace_tol": 0.0}
CLUSTERS["seed"] = 3
SHAPES = [Shape(400, 2, 0, "a"), Shape(400, 3, 400, "b"), Shape(400, 2, 0, "c")]
WIDE = [shape._replace(n_columns=8) for shape in SHAPES[:2]]
UNEQUAL = [Shape(150, 2, 0, "a"), Shape(300, 2, 0, "b"), Shape(250, 2, 0, "c")]


def parties_of(shapes):
    """Return parties of these shapes, with other rows than those of a rehearsal."""
    rng = np.random.default_rng(7)
    return [
        vf.Party(
            rng.beta(2, 5, size=(n, d)) - 0.4,
            rng.integers(2, size=n) * 2.0 - 1 if labels else None,
            name=name,
        )
        for n, d, labels, name, _ in shapes
    ]


def costs(ledger):
    trips = {action: len(waits) for action, waits in ledger.waits.items()}
    sizes = {key: (e.bytes_down, e.bytes_up) for key, e in ledger.entries.items()}
    return trips, sizes


@pytest.fixture(autouse=True)
def _one_run(monkeypatch):
    """Draw sessions of one length: in each message a shorter one is a byte or two.

    And compare no rehearsals that differ in their rows.
    """
    monkeypatch.setattr("secrets.randbits", lambda bits: 2 ** (bits - 1) + 12345)
    monkeypatch.setattr(plans, "_varying", lambda *_: {})


def check_alike(planned, ran):
    (trips, sizes), (trips_ran, sizes_ran) = costs(planned), costs(ran)
    assert trips == trips_ran
    assert sizes.keys() == sizes_ran.keys()
    for key, actual in sizes.items():
        # The number of rows that a party says may take a byte or two more.
        assert actual == pytest.approx(sizes_ran[key], rel=0, abs=4), key


# -- costs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "shapes"),
    [
        (vf.MUFC(5), UNEQUAL),
        (vf.FDSKLDirect(**KERNEL, budget=100_000, block_bytes=30_000), SHAPES),
        (vf.FDSKL(**KERNEL, features=8, iterations=4, step=0.5), SHAPES),
        (CENTRAL.replace(size=60, sampling="uniform", test_fraction=0.2), SHAPES),
        (CENTRAL.replace(sampling="full"), SHAPES),
    ],
)
def test_a_plan_costs_what_the_run_costs(strategy, shapes):
    planned = plan(strategy, shapes)
    assert not planned.extended
    check_alike(planned.ledger, vf.simulate(strategy, parties_of(shapes)).ledger)


@pytest.mark.parametrize(
    ("strategy", "shapes"),
    [
        (CENTRAL.replace(size=60, seed=3), SHAPES),
        (vf.CoresetVKMC(3, size=40, rounds="paper", seed=3), SHAPES),
        (vf.FKKMeans(**CLUSTERS, passes=4), UNEQUAL),
    ],
)
def test_a_plan_of_a_sample_costs_nearly_what_the_run_costs(strategy, shapes):
    """How many different rows are drawn, and at which party, depends on the values.

    So does when k-means ends; here it takes all its passes.
    """
    planned = plan(strategy, shapes).ledger
    ran = vf.simulate(strategy, parties_of(shapes)).ledger
    assert costs(planned)[0] == costs(ran)[0]
    for action in ran.waits:
        expected = ran.of(action)
        actual = planned.of(action)
        assert actual.bytes_up == pytest.approx(expected.bytes_up, rel=0.05)
        assert actual.bytes_down == pytest.approx(expected.bytes_down, rel=0.05)


@pytest.mark.parametrize(
    ("strategy", "horizontal"),
    [
        (CENTRAL.replace(size=100, test_fraction=0.2, seed=3), False),
        (CENTRAL.replace(sampling="full"), False),
        (vf.FKKMeans(**CLUSTERS, clustering="coreset", coreset_size=100), True),
        (
            vf.FDSKL(**KERNEL, features=64, test_fraction=0.2, block_bytes=300_000),
            False,
        ),
    ],
)
def test_costs_of_many_rows_follow_from_fewer(strategy, horizontal, monkeypatch):
    """A sixteenth of the rows gives the cost of all of them: bytes to within 5 %."""
    monkeypatch.setattr(plans, "MOST_ROWS", 1000)
    n = 15_999 // (3 if horizontal else 1)
    labels = 0 if horizontal else n
    shapes = [Shape(n, 2, labels, "a"), Shape(n, 2, 0, "b"), Shape(n, 2, 0, "c")]
    planned = plan(strategy, shapes)
    assert (planned.extended, planned.rows) == (True, 1000)
    ran = vf.simulate(strategy, parties_of(shapes)).ledger
    expected = ran.bytes_up + ran.bytes_down
    actual = planned.ledger.bytes_up + planned.ledger.bytes_down
    assert actual == pytest.approx(expected, rel=0.05)
    assert costs(planned.ledger)[0] == costs(ran)[0]


def test_messages_are_no_larger_than_they_can_be(monkeypatch):
    """Where few rows need one message each step, all rows may need several."""
    monkeypatch.setattr(plans, "MOST_ROWS", 1000)
    monkeypatch.setattr(plans, "MESSAGE_BYTES", 50_000)
    shapes = [Shape(8000, 2, 8000), Shape(8000, 2)]
    planned = plan(CENTRAL.replace(sampling="full"), shapes)
    most = max(e.bytes_up for e in planned.ledger.entries.values())
    assert len(planned.ledger.waits["coresets_pooled_rows"]) == -(-most // 50_000) > 2


def test_iterations_are_not_continued():
    """One iteration more on twice the rows says nothing of a million rows."""

    def ledger(trips):
        made = vf.Ledger()
        for _ in range(trips):
            made.round_trip("solve", 1.0)
            made.entry("solve", "a").bytes_up += 50
        return made

    ledgers = [ledger(trips) for trips in (9, 10)]
    planned = plans._extended_ledger(ledgers, 32, {"solve"})
    assert (planned.round_trips, planned.bytes_up) == (10, 500)
    assert plans._extended_ledger(ledgers, 32, {}).round_trips == 10 + 2 * 31


def test_a_budget_that_is_used_up_costs_no_more():
    """Rows beyond those that the budget pays for change nothing."""
    strategy = vf.FDSKLDirect(**KERNEL, budget=40_000, test_fraction=0.2)
    enough = strategy.enough_rows
    assert 400 < enough < 1000
    shapes = [Shape(9000, 2, 9000, "a"), Shape(9000, 2, 0, "b"), Shape(9000, 2, 0, "c")]
    planned = plan(strategy, shapes)
    assert (planned.rows, planned.extended) == (enough, False)
    check_alike(planned.ledger, vf.simulate(strategy, parties_of(shapes)).ledger)


def test_steps_have_enough_rows_too():
    """Beyond 31,250 rows and the quarter of the budget that a test takes."""
    assert vf.FDSKL().enough_rows == 31_250
    assert vf.SecureRidge().enough_rows is None


def test_a_plan_says_what_fewer_bytes_cost():
    strategy = vf.SecureRidge(joint_features=4, relevance=False)
    assert "To send less, lower `joint_features`" in str(plan(strategy, SHAPES))


def test_a_wide_table_is_rehearsed_on_fewer_rows(monkeypatch):
    monkeypatch.setattr(plans, "MOST_NUMBERS", 4000)
    shapes = [Shape(2000, 10, 2000), Shape(2000, 10)]
    assert plan(CENTRAL.replace(size=50), shapes).rows == 200


@pytest.mark.parametrize("cost", [lambda n: 7, lambda n: 5 + 3 * n])
def test_growth_is_continued(cost):
    values = [cost(n) for n in (50, 100)]
    assert extended(values, 1) == cost(100)
    assert extended(values, 70) == cost(7000)
    assert extended([5, 4], 8) == 4  # a cost that has not grown stays


def test_a_plan_says_how_far_round_trips_can_differ(monkeypatch):
    """Between columns that resemble those of other parties, cg takes long."""
    monkeypatch.setattr(plans, "_varying", _varying)
    planned = plan(CG, WIDE)
    assert "linear_cg * |" in str(planned)
    assert "typical of random rows" in str(planned)
    few, many = planned.varying["linear_cg"]
    assert few == len(planned.ledger.waits["linear_cg"])
    assert many > 2 * few
    assert f"`linear_cg` takes {few} and {many} round trips" in str(planned)


def test_time_is_that_of_round_trips_and_of_computing():
    greeted = vf.simulate(vf.MUFC(5), parties_of(UNEQUAL)).ledger.of("hello")
    greeted.waits["hello"] = [6.5]
    for entry in greeted.entries.values():
        entry.seconds_computed = 0.5
    planned = plan(vf.MUFC(5), UNEQUAL, greeted)
    assert planned.round_trip == 6
    assert planned.ledger.round_trips == 3
    assert 18.5 <= planned.seconds == 18 + planned.computing < 60
    assert "3 round trips of 6.00 s, as measured by `hello`" in str(planned)


# -- what cannot be rehearsed ----------------------------------------------------------


def test_a_later_task_has_a_table_and_no_costs():
    planned = plan(vf.FDSKLPrediction("0123456789abcdef"), SHAPES)
    assert planned.ledger is None
    assert planned.seconds is None
    assert "costs for training only" in str(planned)
    assert "| `fdskl_answer` |" in str(planned)


def test_a_strategy_that_fails_says_why(caplog, monkeypatch):
    monkeypatch.setattr(plans, "_varying", _varying)
    unlabelled = [shape._replace(n_labels=0) for shape in SHAPES]
    planned = plan(vf.FDSKLDirect(), unlabelled)
    assert planned.ledger is None
    assert "must hold the labels" in planned.reason
    assert planned.reason.count("\n") == 0
    assert "| `fdskl_angles` |" in str(planned)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("strategy", "shapes"),
    [
        (vf.MUFC(3, box="0,1;18,120"), UNEQUAL),
        (vf.FKKMeans(**CLUSTERS, kernel="laplacian", clustering="coreset"), UNEQUAL),
        (vf.FDSKLDirect(target="multiclass", features=8), SHAPES),
        (vf.FDSKL(features=8), [Shape(90, 2, 40), Shape(90, 2, 50), Shape(90, 1)]),
    ],
)
def test_random_rows_suit_the_settings(strategy, shapes):
    assert plan(strategy, shapes).reason == ""


def test_a_plan_warns_of_sums_that_hide_nothing():
    assert "reveals the other party's contribution" in str(plan(CENTRAL, SHAPES[:2]))
    assert "all contributions" in str(plan(CENTRAL.replace(masking="plain"), SHAPES))


def test_a_plan_leaves_the_run_around_it_alone():
    Recorder(parties_of(SHAPES))
    before = TaskIdentity.run_id
    plan(vf.MUFC(2), UNEQUAL)
    assert TaskIdentity.run_id == before


# -- who learns what -------------------------------------------------------------------


def test_each_value_is_in_one_row_of_who_learns_it_as_declared():
    steps = our_steps()
    listed = [
        ((row.step, value), row)
        for row in who_learns(steps.values())
        for value in row.values
        if row.how != "sent by the server"
    ]
    rows = dict(listed)
    assert len(rows) == len(listed)
    assert len(rows) == sum(len(step.contract.reply) for step in steps.values())
    for step in steps.values():
        for name, declared in step.contract.reply.items():
            row = rows[step.action, name]
            way = declared.leaves and declared.leaves.how
            assert ("in the clear" in row.how) == (way is None)
            assert ("only the sum" in row.who) == (way in ("sum", "sealed"))
            assert row.who.endswith("not the server") == (
                way in ("sealed", "secret", "next", "private")
            )
    assert rows["coresets_scores", "X"].kinds == (
        "rows (with pool)",
        "row-sums (without pool)",
    )


def test_a_plan_shows_what_its_settings_send():
    def learned(strategy):
        rows = plan(strategy, UNEQUAL).learned
        return {v: row for row in rows for v in row.values if row.step == "mufc_train"}

    assert "centroids" not in learned(vf.MUFC(3))
    assert learned(vf.MUFC(3))["message"].kinds == ("centroids",)
    assert learned(vf.MUFC(3, privacy="none"))["centroids"].how == "in the clear"


def test_a_plan_shows_the_kinds_of_its_requests():
    def kinds(**settings):
        rows = plan(vf.CoresetVRLR(size=40, seed=3, **settings), SHAPES).learned
        return {kind for row in rows for kind in row.kinds}

    kinds_of_sums = {"totals", "row-sums", "coefficients"}
    assert kinds() == kinds_of_sums | {"moments"}
    assert kinds(solver="central") == {"totals", "rows"}
    greeting = plan(CENTRAL, SHAPES).learned[0]
    assert greeting.step == "hello"
    assert "signature" in greeting.values  # which rehearsed parties do not send
    assert kinds(solver="cg", max_iter=2) == kinds_of_sums


def test_the_table_of_all_strategies_has_every_step(capsys):
    who_learns_what()
    table = capsys.readouterr().out
    for name, tasks in ALGORITHMS.items():
        for strategy in tasks:
            section = table.split(f"`{name}`, task `{strategy.task}`:")[1]
            section = section.split("task `")[0]
            assert all(f"| `{step.action}` |" in section for step in strategy.steps)


# -- dry runs --------------------------------------------------------------------------


def test_a_dry_run_shows_refusals(tmp_path):
    parties = parties_of(SHAPES)
    parties[0].consent, parties[0].state_dir = Consent(), tmp_path
    grid = Recorder(parties)
    with pytest.raises(vf.FederationError, match=r"1 of 3 parties refuse.*rows = true"):
        dry_run(grid, {"a": CENTRAL}, 60)
    assert {entry.action for entry in grid.transcript} == {hello.action}
