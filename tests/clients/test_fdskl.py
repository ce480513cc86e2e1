"""A party's side of FDSKL, each step alone: worked examples, memory, refusals."""

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from consents import limited

from vfl_flower import Party
from vfl_flower.clients.fdskl import angle_sums, state
from vfl_flower.clients.fdskl import prediction as fdskl_prediction
from vfl_flower.clients.fdskl import training as fdskl
from vfl_flower.clients.fdskl.state import FDSKLState, Rule, ScoredRows, SummedRows
from vfl_flower.numerics.random_features import RandomFeatures
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, structure
from vfl_flower.secure_aggregation.limbs import split_limbs

ROOT = math.sqrt(2)
"""phi at angle 0."""

SETUP = state.Setup("binary", "gaussian", 2.0, n_features=4, holders=[2], block=4)
SQUARE, IMPLICIT = Rule("square", 0.1, 0.5), Rule("logistic", 0.0)
SHARED = state.SharedFeatures(seed="9", widths=[2, 2, 2], kept=[1, 1])


def a_party(index=2, y=None, seed=7, n=12, **attributes):
    X = np.random.default_rng(index).normal(size=(n, 2))
    made = Party(X, y, name=f"party {index}")
    made.index, made.n_parties, made.seed = index, 3, seed
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def labels(n=12):
    return np.where(np.arange(n) % 3 == 0, 7.0, 3.0)


def request(*rows, bits=16, stop=4):
    return state.AngleRequest(np.array(rows, dtype=np.uint32), stop, bits)


def ask(party, rows=(0, 1), bits=16, stop=4, send=None, **settings):
    setup = replace(SETUP, **settings)
    return angle_sums.angles(party, request(*rows, bits=bits, stop=stop), send, setup)


def training(party):
    return party.recall(FDSKLState).training


# -- bandwidth -------------------------------------------------------------------------


def test_distances_count_as_shared_rows():
    """Those of a few rows give the columns up to a rotation."""
    rows = np.array([2, 3, 7, 5, 1, 9])
    for index, y in ((0, None), (2, labels())):  # 2 gets the sum, if the server says so
        party = a_party(index, y, consent=limited(6))
        angle_sums.distances(party, "gaussian", "binary", 2, rows)
        ask(party, rows=rows[:2])  # the same rows
    party = a_party(0, consent=limited(5))
    with pytest.raises(PartyError, match=r"at most 5 rows to leave .* requests 6"):
        angle_sums.distances(party, "gaussian", "binary", 2, rows)


def test_bandwidth_by_hand():
    """Median 8: sqrt(8 / 2), or 8 itself."""
    pairs = split_limbs(np.repeat([2.0, 8.0, 100.0], [499, 2, 499])).ravel()
    assert angle_sums.bandwidth(a_party(), "gaussian", pairs) == {"bandwidth": 2.0}
    assert angle_sums.bandwidth(a_party(), "laplacian", pairs) == {"bandwidth": 8.0}


def test_distances_that_overflow_are_refused_by_the_party():
    party = a_party(0)
    for unit in (1e20, 1e200):
        party.X = a_party(0).X * unit
        with pytest.raises(PartyError, match=r"must be below 2\^120: standardise the"):
            angle_sums.distances(party, "gaussian", "binary", 2)


def test_a_median_near_the_step_of_the_sum_is_refused():
    """Below a million steps; above, the bandwidth is right to 1e-6."""
    party, least = a_party(), 3 * 2.0**-60  # of three parties
    pairs = split_limbs(np.full(1000, least)).ravel()
    assert angle_sums.bandwidth(party, "laplacian", pairs) == {"bandwidth": least}
    message = "'median' needs distances above .*: standardise the columns, or set a"
    for small in (0.999 * least, 0.0):
        pairs = split_limbs(np.full(1000, small)).ravel()
        with pytest.raises(PartyError, match=message):
            angle_sums.bandwidth(party, "gaussian", pairs)


@pytest.mark.parametrize("count", [0, 1, 999, 1001])
def test_the_median_of_other_than_1000_distances_is_refused(count):
    """That of one would be the distance of one pair of rows."""
    given = {"kernel": "gaussian", "distances": split_limbs(np.ones(count)).ravel()}
    with pytest.raises(ContractError, match=r"'distances' must have shape \(5000\)"):
        structure(angle_sums.bandwidth.contract.request, given, {})


# -- angles ----------------------------------------------------------------------------


def test_the_seed_is_drawn_once_a_run_from_a_stream_of_its_own():
    def seed_of(party, **values):
        ask(party, **values)
        return training(party).seed

    party = a_party(0)
    first = seed_of(party)
    assert seed_of(party, stop=2) == first == seed_of(a_party(0))
    private = a_party(0, private_draws=True, run_secret=bytes(32))
    for other in (a_party(1), a_party(0, seed=8), private):
        assert seed_of(other) != first
    assert a_party(0).rng("features").bytes(16).hex() == first


def test_consent_counts_rows_once_and_those_of_a_lone_holder():
    party = a_party(0, consent=limited(3))
    ask(party, rows=(0, 1, 0))
    ask(party, rows=(1, 2))
    message = "at most 3 rows to .* as angles in one run, but this run requests 4$"
    with pytest.raises(PartyError, match=message):
        ask(party, rows=(3,))
    with pytest.raises(PartyError, match=message):
        angle_sums.held_out_angles(party, request(3))
    fdskl.fit(party)
    with pytest.raises(PartyError, match=message):
        fdskl_prediction.answer(party, 1, 0, request=request(3))
    assert "shared" not in party.part
    for y, holders in ((labels(), [2]), (labels() == 7.0, [0, 2])):
        with pytest.raises(PartyError, match=r"requests 2$"):
            ask(a_party(2, y, consent=limited(0)), holders=holders)


@pytest.mark.parametrize(
    ("codes", "target", "holders", "good"),
    [
        ((0, 1), "binary", [0, 2], True),
        ((-1, 1), "binary", [0, 2], True),
        ((1, 2), "binary", [0, 2], False),
        ((0, 2), "binary", [0, 2], False),
        ((-1, 0), "binary", [0, 2], False),
        ((1, 2), "binary", [2], True),
        ((1, 2), "continuous", [0, 2], True),
    ],
)
def test_codes_of_classes_at_several_holders(codes, target, holders, good):
    party = a_party(2, np.where(labels() == 7.0, codes[1], codes[0]).astype(float))
    rule = "labels must be 0 and 1, or -1 and 1, if several parties hold labels"
    with nullcontext() if good else pytest.raises(PartyError, match=rule):
        ask(party, target=target, holders=holders)
    assert bool(party.remembered()) is good


def test_only_what_is_to_be_sent_is_computed():
    settings = {"holders": [0, 2], "block": 1, "shared": SHARED}
    party = a_party(1, allow_plain=True)
    reply = ask(party, bits=64, send=["offsets_0"], **settings)
    assert (list(reply["angles"]), list(reply["offsets"])) == ([], [0])
    features = RandomFeatures("gaussian", 2, 2.0, int(training(party).seed, 16))
    b = features.weights(0, 4)[1]
    np.testing.assert_array_equal(reply["offsets"][0], b[::2])
    reply = ask(party, bits=64, send=["angles_2", "offsets_2"], **settings)
    assert (list(reply["angles"]), list(reply["offsets"])) == ([2], [2])
    np.testing.assert_array_equal(reply["offsets"][2], b[1::2])
    fdskl.fit(party)
    assert (party.part["first_column"], party.part["all_columns"]) == (2, 6)
    assert party.part["kept"] == [1, 1]
    assert "widths" not in party.part


def test_shared_features_are_refused_outside_one_process():
    party = a_party(1)
    with pytest.raises(PartyError, match="this party requires private features: if"):
        ask(party, holders=[0, 2], shared=SHARED, bits=64)
    assert not party.remembered()


@pytest.mark.parametrize(
    ("y", "target", "message"),
    [
        (np.arange(12.0), "binary", "must be 2 for target 'binary', got 12: set"),
        (np.ones(12), "binary", "must be 2 for target 'binary', got 1$"),
        (np.ones(12), "multiclass", "labels must be from 2 to 100 for target"),
    ],
)
def test_labels_are_looked_at_before_the_first_reply(y, target, message):
    for call in (
        lambda party: ask(party, target=target),
        lambda party: angle_sums.distances(party, "gaussian", target, 2),
        lambda party: fdskl.start(party, 0.0, replace(SETUP, target=target), SQUARE),
    ):
        party = a_party(2, y)
        with pytest.raises(PartyError, match=message):
            call(party)
        assert not party.remembered()


def test_up_to_100_classes():
    many = a_party(2, np.arange(100.0), n=100)
    ask(many, target="multiclass")
    assert training(many).alpha.shape == (0, 100)
    with pytest.raises(PartyError, match="'multiclass', got 101"):
        ask(a_party(2, np.arange(101.0), n=101), target="multiclass")


def test_missing_labels_are_no_class():
    party = a_party(2, np.where(np.arange(12) < 4, np.nan, labels()))
    ask(party)
    assert training(party).classes.tolist() == [3.0, 7.0]


# -- the exact solution ----------------------------------------------------------------


def fitted(y=None, target="continuous", **given):
    party = a_party(2, np.arange(12.0) if y is None else y)
    ask(party, target=target)
    turns = np.random.default_rng(3).random((12, 4))
    reply = fdskl.fit(party, problem(12), **({"angles": {0: turns.ravel()}} | given))
    return party, reply, turns


def problem(n, loss="square"):
    return state.Problem(np.arange(n, dtype=np.uint32), loss, 0.1)


def test_fit_is_ridge_by_hand():
    """Normal equations of mean (z w + b - y)^2 + lambda / 2 |w|^2, with ones in Z."""
    party, reply, turns = fitted()
    Z = np.column_stack([ROOT * np.cos(2 * np.pi * turns) / 2, np.ones(12)])
    penalty = np.diag([0.05 * 12] * 4 + [0])
    w = np.linalg.solve(Z.T @ Z + penalty, Z.T @ np.arange(12.0))
    np.testing.assert_allclose(party.part["coef"][:, 0], w[:4] / 2)  # of phi, not z
    np.testing.assert_allclose(party.part["intercept"], w[4:])
    assert reply == {"columns": 1, "kept": False, "converged": 1, "regularization": 0.1}


def test_whether_a_part_outlives_the_run_is_told(tmp_path):
    """The folder is not; nothing is written here."""
    exact, iterative = (a_party(0, state_dir=tmp_path / "none") for _ in range(2))
    ask(exact)
    assert fdskl.fit(exact) == {"kept": True}
    fdskl.start(iterative, 0.0, SETUP, IMPLICIT)
    assert fdskl.iterate(iterative, 1, 0, keep=True) == {"kept": True}
    assert not list(tmp_path.iterdir())


def test_fit_takes_blocks_in_the_order_of_their_numbers():
    """Eleven of them, so that 10 comes after 2."""
    party, _, turns = fitted()
    blocks = {k: part.ravel() for k, part in enumerate(turns)}
    shuffled = dict(sorted(blocks.items(), key=lambda item: str(item[0])))
    assert list(shuffled)[2] == 10
    other, _, _ = fitted(angles=shuffled)
    np.testing.assert_array_equal(party.part["coef"], other.part["coef"])


def test_fit_of_classes_without_a_row():
    """A refusal told whether some labels of the server's choice are equal."""
    party = a_party(2, np.where(np.arange(12) == 11, 7.0, 3.0))
    ask(party)
    reply = fdskl.fit(party, problem(5), {0: np.random.default_rng(0).random(20)})
    assert (reply["columns"], reply["converged"]) == (1, 0.0)
    assert not party.part["coef"].any()
    assert party.part["intercept"].tolist() == [-1.0]


def test_classes_are_those_of_the_rows_trained_on():
    """Of 3, 5 and 7 the first ten rows have the first and the last."""
    party = a_party(2, np.where(np.arange(12) >= 10, 5.0, labels()))
    ask(party, target="multiclass")
    reply = fdskl.fit(party, problem(10), {0: np.random.default_rng(0).random(40)})
    assert reply["columns"] == 2
    assert party.part["classes"].tolist() == [3.0, 7.0]
    assert party.part["coef"].shape == (4, 2)


def test_fit_of_values_that_are_all_equal():
    party, _, _ = fitted(np.ones(12))
    assert not party.part["coef"].any()
    assert party.part["intercept"].tolist() == [1.0]


def test_a_part_holds_no_label_and_no_feature():
    party, _, _ = fitted(labels(), target="multiclass")
    assert party.part["classes"].tolist() == [3.0, 7.0]
    assert party.part["coef"].shape == (4, 2)
    sizes = {k: v.size for k, v in party.part.items() if isinstance(v, np.ndarray)}
    assert sizes == {"classes": 2, "coef": 8, "intercept": 2}


# -- doubly stochastic -----------------------------------------------------------------


def test_instances_are_known_labels_that_are_not_held_out():
    party = a_party(2, np.where(np.arange(40) % 2 == 0, labels(40), np.nan), n=40)
    expected = set(range(0, 40, 2)) - set(split_rows(40, 0.25, 7)[1].tolist())
    reply = fdskl.start(party, 0.25, SETUP, IMPLICIT, 2 * len(expected))
    rows = reply["rows"]
    assert (rows.dtype, reply["columns"]) == (np.uint32, 1)
    for epoch in np.split(rows, 2):
        assert sorted(epoch.tolist()) == sorted(expected)
    assert fdskl.start(a_party(0, n=40), 0.25, SETUP, IMPLICIT) == {}


@pytest.mark.parametrize(
    ("rule", "target", "message"),
    [
        (Rule("square", 0.5, 3.0), "continuous", r"most 1 .*, got 3\.0 and 0\.5"),
        (Rule("logistic", 0.0), "continuous", "loss must be 'square' for target"),
    ],
)
def test_rules_that_are_refused(rule, target, message):
    party = a_party(2, np.arange(12.0))
    with pytest.raises(PartyError, match=message):
        fdskl.start(party, 0.0, replace(SETUP, target=target), rule, 4)


@pytest.mark.parametrize(
    ("size", "target", "holders", "scale"),
    [
        (1.0, "continuous", [0, 2], 16.0),  # the largest is 11
        (1e9, "continuous", [0, 2], 2.0**34),
        (1e-9, "continuous", [0, 2], 2.0**-26),
        (16 / 11, "continuous", [0, 2], 16.0),
        (-16.001 / 11, "continuous", [0, 2], 32.0),
        (1.0, "binary", [0, 2], 1.0),
        (1e9, "continuous", [2], 1.0),
    ],
)
def test_the_size_of_labels_is_told_to_a_power_of_two(size, target, holders, scale):
    """Only where scores are added up; kept with the part, for predictions."""
    y = np.arange(12.0) * size if target == "continuous" else labels() == 7.0
    party = a_party(2, y)
    setup = replace(SETUP, target=target, holders=holders)
    assert fdskl.start(party, 0.0, setup, SQUARE, 4)["scale"] == scale
    fdskl.iterate(party, 1, 0, keep=True)
    assert party.part["scale"] == fdskl_prediction.part(party)["scale"] == scale


def test_the_size_is_of_labels_that_are_known_and_not_held_out():
    held_out = split_rows(40, 0.25, 7)[1]
    y = np.ones(40)
    y[held_out] = 1e6
    y[np.setdiff1d(np.arange(40), held_out)[0]] = np.nan
    setup = replace(SETUP, target="continuous", holders=[0, 2])
    assert fdskl.start(a_party(2, y, n=40), 0.25, setup, SQUARE, 3)["scale"] == 1.0


def test_a_holder_of_labels_that_are_all_held_out():
    y = np.full(40, np.nan)
    held_out = split_rows(40, 0.25, 7)[1]
    y[held_out] = labels(len(held_out))
    with pytest.raises(PartyError, match="has no label for any training row"):
        fdskl.start(a_party(2, y, n=40), 0.25, SETUP, IMPLICIT, 3)


def test_two_steps_by_hand():
    """Square loss, y = 5, then 3, with a mean of 2, gamma = 1/2, lambda = 1/10.

    Angles of 0 give phi = sqrt 2, of half a turn - sqrt 2. f = 2, so
    alpha_1 = -1/2 * 2 (2 - 5) * sqrt 2 = 3 sqrt 2. Then f = 2 + sqrt 2 alpha_1 = 8, and
    alpha_2 = -1/2 * 2 (8 - 3) * -sqrt 2 = 5 sqrt 2, alpha_1 *= 1 - 1/20.
    """
    party = a_party(2, np.array([5.0, *[1.6] * 4, 3.0, *[1.6] * 6]))
    setup = replace(SETUP, target="continuous", block=1, n_features=2)
    fdskl.start(party, 0.0, setup, SQUARE, 2)

    def iterate(**values):
        return fdskl.iterate(party, 1, values.pop("size", 0), **values)

    first = {"at": SummedRows(np.array([0]), np.array([0.0]))}
    np.testing.assert_allclose(iterate(size=1, **first)["scores"], [[2.0]])
    second = {"at": SummedRows(np.array([5]), np.array([0.0, 0.5]))}
    reply = iterate(size=1, learn=True, scores=np.array([2.0]), **second)
    np.testing.assert_allclose(training(party).alpha, [[3 * ROOT]])
    np.testing.assert_allclose(reply["scores"], [[8.0]])
    assert iterate(learn=True, scores=np.array([8.0]), keep=True) == {"kept": False}
    expected = [[3 * ROOT * 19 / 20], [5 * ROOT]]
    np.testing.assert_allclose(party.part["coef"], expected)
    np.testing.assert_allclose(party.part["intercept"], [2.0])
    assert not {"waiting", "labels", "alpha"} & set(party.part)
    assert training(party).waiting is training(party).labels is None


def test_another_holders_implicit_step_leaves_its_own_coefficients():
    party = a_party(2, labels() == 7.0)
    fdskl.start(party, 0.0, replace(SETUP, holders=[0, 2], block=1), IMPLICIT, 1)
    training(party).alpha = np.array([[2.0]])
    fdskl.iterate(party, 1, 0, learn=True)
    assert training(party).alpha.tolist() == [[2.0]]


# -- prediction ------------------------------------------------------------------------


def test_rows_of_distances_fits_and_errors_are_counted(monkeypatch):
    summed, rows, party = [], np.arange(6), a_party(2, labels(), consent=limited(6))
    monkeypatch.setattr(Party, "sum_over", lambda _, rows: summed.append(list(rows)))
    angle_sums.distances(party, "gaussian", "binary", 2, rows)
    ask(party)
    rule = "6 rows to .* as angles .* requests 12"
    with pytest.raises(PartyError, match=rule):
        fdskl.fit(party, problem(12))
    fdskl.fit(party, problem(6), {0: np.arange(24.0)})
    done = ScoredRows(rows + 6, np.ones(6))
    with pytest.raises(PartyError, match=rule):
        fdskl_prediction.answer(party, 1, 0, done, evaluate=True, last=True)
    assert summed == [list(rows), [*range(12)], list(rows), list(rows + 6)]


def test_a_part_is_told_without_its_secrets():
    party, _, _ = fitted()
    assert fdskl_prediction.part(party) == {
        **{"index": 2, "parties": 3, "holders": [2], "columns": 1, "scale": 1.0},
        **{"n_features": 4, "kernel": "gaussian", "bandwidth": 2.0, "kept": []},
    }


@pytest.mark.parametrize(
    ("trained", "now", "width", "message"),
    [
        ([], None, 3, "must have the 2 training columns in the same order, got 3$"),
        (["a", "b"], ["b", "a"], 2, "in the same order, got 2$"),
        (["a", "b"], ["a", "c"], 2, "in the same order, got 2, without 'b'$"),
        (["a", "b"], None, 1, "got 1$"),
    ],
)
def test_new_rows_with_other_columns(trained, now, width, message):
    party, _, _ = fitted()
    party.part["columns"] = trained
    new = Party(np.zeros((3, width)), columns=now)
    new.part = party.part
    with pytest.raises(PartyError, match=message):
        fdskl_prediction.part(new)


def test_answers_of_all_rows_in_order_name_no_rows():
    party, _, _ = fitted(labels(), target="binary")
    done = ScoredRows(np.arange(12, dtype=np.uint8), np.ones(12))
    fdskl_prediction.answer(party, 1, 0, done, last=True)
    assert party.predictions.values.tolist() == [7.0] * 12
    assert party.predictions.rows.tolist() == [*range(12)]


def test_errors_are_of_rows_with_labels_and_told_once_a_run():
    """Of rows 0 to 7 row 1 has no label; row 5, of label 3, is answered 7."""
    party, _, _ = fitted(labels(), target="binary")
    party.y = np.where(np.arange(12) == 1, np.nan, labels())
    scores = np.where(labels()[:8] == 7.0, 1.0, -1.0)
    scores[5] = 2.0
    done = ScoredRows(np.arange(8, dtype=np.uint32), scores)
    reply = fdskl_prediction.answer(party, 1, 0, done, evaluate=True, last=True)
    assert reply == {
        "test_error": pytest.approx(1 / 7),
        "test_error_se": pytest.approx(math.sqrt(1 / 7 * 6 / 7 / 6)),
        "test_rows": 7,
    }
    assert party.predictions is None
    # The errors of two sets of rows that differ by one give its label.
    done = ScoredRows(np.array([1], dtype=np.uint32), scores[:1])
    with pytest.raises(PartyError, match="errors of its predictions only once"):
        fdskl_prediction.answer(party, 1, 0, done, evaluate=True, last=True)
    party.remember(FDSKLState())
    reply = fdskl_prediction.answer(party, 1, 0, done, evaluate=True, last=True)
    assert reply == {"test_rows": 0}


# -- requests that are malformed, or out of order --------------------------------------


def started(y=None, **settings):
    """Return a label holder that has picked its instances, in blocks of two."""
    party = a_party(2, np.arange(12.0) if y is None else y)
    setup = replace(SETUP, **{"target": "continuous", "block": 2} | settings)
    fdskl.start(party, 0.0, setup, SQUARE, 4)
    return party


def other():
    party = a_party(0)
    ask(party)
    return party


def unlabelled():
    party = a_party(0)
    fdskl.start(party, 0.0, SETUP, SQUARE)
    return party


def predicting():
    party = a_party(2, part=fitted()[0].part)
    fdskl_prediction.part(party)
    return party


def iterate(party, size=0, learn=True, **values):
    return fdskl.iterate(party, 1, size, learn, **values)


def one_unknown():
    return started(np.where(np.arange(12) == 1, np.nan, np.arange(12)))


AT, ANGLES, LARGE = np.array([0, 1]), np.zeros(4), np.full(48, 1e308)
MANY = np.zeros(2**21 + 1, np.uint8)
MUCH = SummedRows(MANY[: 2**20 + 1], np.zeros(4 * (2**20 + 1), np.uint8))
ALL = {0: np.zeros(48)}
"""Angles of the four features in all rows."""
FIT = r"size and columns must be \d+ and \d+, as in the scores"
LOGISTIC = problem(12, "logistic")


@pytest.mark.parametrize(
    "call",
    [
        lambda party: angle_sums.angles(party, request(0)),
        lambda party: angle_sums.held_out_angles(party, request(0)),
        lambda party: fdskl.fit(party),
        lambda party: iterate(party),
        lambda party: fdskl_prediction.part(party),
        lambda party: fdskl_prediction.answer(party, 1, 0),
    ],
)
def test_steps_that_are_asked_too_early(call):
    party = a_party(2, labels())
    with pytest.raises(PartyError, match=r"an earlier step|has no model"):
        call(party)
    assert not party.remembered()


def test_a_model_is_trained_once_in_a_run_and_not_where_it_predicts():
    starts = ask, lambda party: fdskl.start(party, 0.0, SETUP, IMPLICIT)
    for party, calls in ((fitted()[0], (*starts, fdskl.fit)), (predicting(), starts)):
        for call in calls:
            with pytest.raises(PartyError, match="already has its model"):
                call(party)
    for call in (fdskl.fit, iterate):
        with pytest.raises(PartyError, match="this run only predicts"):
            call(predicting())


@pytest.mark.parametrize(
    ("setup", "rule"),
    [
        ({"holders": [2, 2]}, "holders must name .* without dupl"),
        ({"holders": [2, 3]}, "holders must name parties of the run"),
        ({"holders": [0]}, "holders must be the parties that hold labels"),
        ({"shared": replace(SHARED, seed="")}, r"shared\.seed must be"),
        ({"shared": replace(SHARED, seed="-1")}, r"shared\.seed must be"),
        ({"shared": replace(SHARED, seed="f" * 33)}, r"shared\.seed must be"),
        ({"shared": replace(SHARED, widths=[2, 2])}, r"shared\.widths must list"),
        ({"shared": replace(SHARED, widths=[2, 2, 3])}, r"shared\.widths must list"),
        ({"shared": replace(SHARED, kept=[])}, r"shared\.kept must name"),
        ({"shared": replace(SHARED, kept=[2])}, r"shared\.kept must name"),
        ({"shared": replace(SHARED, kept=[3])}, r"shared\.kept must name"),
    ],
)
def test_a_setup_that_does_not_fit_the_party(setup, rule):
    party = a_party(2, labels(), allow_plain=True)
    with pytest.raises(PartyError, match=rule):
        ask(party, bits=64, **setup)
    assert not party.remembered()


@pytest.mark.parametrize("change", [{"bandwidth": 3.0}, {"n_features": 8}])
def test_the_setup_is_the_same_in_the_whole_run(change):
    """With another one the same features would show more of the same rows."""
    party = other()
    with pytest.raises(PartyError, match="setup must be the same throughout the run"):
        ask(party, **change)


@pytest.mark.parametrize(
    ("stop", "bits", "send", "settings", "rule"),
    [
        (5, 16, None, {}, "stop must be at most 4, the number .*, got 5"),
        (4, 16, ["offsets_2"], {}, "offsets must be requested only with"),
        (4, 16, None, {"holders": [0, 2]}, "holders must be the parties that hold"),
        (2**20, 16, None, {"n_features": 2**20}, "angles must take at most .* bytes"),
        (4, 16, None, {"bandwidth": 1e-320}, "cannot compute its angles"),
        (4, 16, None, {"shared": replace(SHARED, kept=[1])}, "bits must be 64 with"),
    ],
)
def test_requests_for_other_angles(stop, bits, send, settings, rule):
    party = a_party(0, allow_plain=True)
    with pytest.raises(PartyError, match=rule):
        ask(party, tuple(range(12)) * 10, bits, stop, send, **settings)


@pytest.mark.parametrize("rows", [[1], [1, 4], [1, 4] * 20, [*range(6), 0]])
def test_the_distance_of_one_pair_is_no_median(rows):
    """The median of pairs of two rows was their distance, to the last bit."""
    values = {"kernel": "gaussian", "target": "binary", "holder": 2}
    fields = angle_sums.distances.contract.request
    with pytest.raises(ContractError, match="'rows' must hold at least 6 rows, all"):
        structure(fields, values | {"rows": np.array(rows)}, {"n_rows": 12})


@pytest.mark.parametrize(
    ("party", "angles", "given", "rule"),
    [
        (other, ALL, {}, "holds no labels"),
        (started, None, {}, "angles must be one or more blocks of a single"),
        (started, {}, {}, "angles must be one or more blocks of a single"),
        (started, {0: np.zeros(24), 1: np.zeros(24, "u2")}, {}, "of a single type"),
        (started, {0: np.zeros(48, dtype=np.float32)}, {}, "must be integers of 8, 16"),
        (started, {0: np.zeros(47)}, {}, "features in each of the 12 rows, got 47"),
        (started, {0: np.zeros(36)}, {}, "cover the 4 features of the .*, got 3"),
        (started, ALL, {"offsets": np.zeros(3)}, "offsets must hold one"),
        (started, {0: LARGE}, {"offsets": -LARGE[:4]}, "angles must be finite"),
        (one_unknown, ALL, {}, "a label for each requested row"),
        (started, ALL, {"problem": LOGISTIC}, "loss must be 'square'"),
    ],
)
def test_problems_that_cannot_be_solved(party, angles, given, rule):
    party = party()
    with pytest.raises(PartyError, match=rule):
        fdskl.fit(party, **{"problem": problem(12), "angles": angles, **given})
    assert not party.part


@pytest.mark.parametrize(
    ("party", "values", "rule"),
    [
        (other, {}, "instances must be picked before"),
        (unlabelled, {"at": SummedRows(AT, ANGLES)}, "holds no coefficients"),
        (started, {"scores": np.zeros(2)}, "scores must be for instances of"),
        (started, {"at": SummedRows(AT, np.zeros(3))}, "same number of features in"),
        (started, {"at": SummedRows(AT, np.zeros(6))}, "must cover the 0 .*got 3"),
        (started, {"at": SummedRows(AT, np.zeros(0))}, "instances of this party's own"),
        (started, {"at": SummedRows(AT, ANGLES), "size": 3}, FIT),
        (unlabelled, {"size": 2**40}, "size must have at most .* rows"),
        (unlabelled, {"request": state.AngleRequest(MANY, 1, 8)}, "rows must have at"),
        (started, {"at": MUCH}, "at must have at most 1048576 rows"),
        (one_unknown, {"at": SummedRows(AT, ANGLES)}, "a label for each requested row"),
    ],
)
def test_iterations_that_do_not_fit(party, values, rule):
    with pytest.raises(PartyError, match=rule):
        iterate(party(), **values)


def test_scores_of_other_instances_than_those_of_the_last_message():
    party = started(holders=[0, 2])
    iterate(party, size=2, at=SummedRows(AT, ANGLES))
    with pytest.raises(PartyError, match="scores must hold 2 numbers, got 3"):
        iterate(party, scores=np.zeros(3))


@pytest.mark.parametrize(
    ("party", "step", "summed"),
    [
        (lambda: started(holders=[0, 2]), fdskl.iterate, ANGLES),
        (predicting, fdskl_prediction.answer, np.zeros(8)),
    ],
)
def test_rows_whose_scores_leave_in_part_are_counted(party, step, summed):
    """A label holder that deviates could ask for its choice of rows without end."""
    party = party()
    party.consent = Consent(leaves={"predictions": Limit(run=1)}, peers=None)
    with pytest.raises(PartyError, match=r"at most 1 rows to .* as predictions"):
        step(party, 1, 2, at=SummedRows(AT, summed))


DONE = ScoredRows(AT, np.zeros(2))


def without_coefficients():
    party = other()
    fdskl.fit(party)
    return party


@pytest.mark.parametrize(
    ("party", "values", "rule"),
    [
        (without_coefficients, {"at": SummedRows(AT, ANGLES)}, "holds no coefficients"),
        (without_coefficients, {"done": DONE}, "holds no coefficients"),
        (predicting, {"done": ScoredRows(AT, np.zeros(3))}, "must hold 2 numbers"),
        (predicting, {"at": SummedRows(AT, np.zeros(6))}, "the 4 features .* got 3"),
        (predicting, {"at": SummedRows(AT, np.zeros(8)), "size": 1}, FIT),
        (without_coefficients, {"size": 2**40}, "size must have at most .* rows"),
        (predicting, {"at": MUCH}, "at must have at most 1048576 rows"),
        (predicting, {"done": DONE, "evaluate": True, "last": True}, "holds no labels"),
    ],
)
def test_answers_that_do_not_fit(party, values, rule):
    with pytest.raises(PartyError, match=rule):
        fdskl_prediction.answer(party(), 1, values.pop("size", 0), **values)
