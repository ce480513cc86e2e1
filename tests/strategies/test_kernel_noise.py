"""Noise in the Gram matrices of FDSKL: of each party, as large as promised.

The noise comes from the operating system's randomness, so a test of its size has no
fixed seed: each chi-square has a false-alarm rate of 1e-9 on either side, and no test
here makes more than 50 of them.
"""

import dataclasses
import re
from contextlib import suppress

import numpy as np
import pytest
from deviating import RealParties
from scipy.stats import chi2
from transcripts import Recorder, assert_hidden

from vfl_flower import (
    FDSKL,
    CoresetVRLR,
    FederationError,
    Party,
    PartyFailed,
    load_model,
    simulate,
)
from vfl_flower.clients import kernel_moments as party
from vfl_flower.clients import kernel_noise
from vfl_flower.clients.kernel_angles import FRACTION, joint_fraction
from vfl_flower.clients.moments_roles import Roles
from vfl_flower.numerics import privacy
from vfl_flower.numerics.kernel_moments import (
    cumulants,
    joint_angles,
    normal_cumulants,
    pairs,
    unpack_local,
)
from vfl_flower.numerics.local_columns import local_columns, scaled_columns
from vfl_flower.numerics.split import split_halves
from vfl_flower.protocol.consent import Consent, Limit
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.identity import public_identity
from vfl_flower.protocol.party import digest_ids
from vfl_flower.secure_aggregation.fixed_point import decode
from vfl_flower.secure_aggregation.shares import pack, unpack
from vfl_flower.strategies import kernel_moments as server
from vfl_flower.strategies.prediction import FDSKLPrediction

N, A = 900, 8


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)) * [1, 10, 0.1, 1, 1, 1]
    return X, X[:, 0] + X[:, 3] + np.sin(2 * X[:, 4]) + 0.3 * rng.normal(size=n)


def parties(count=3, X=None, y=None):
    if X is None:
        X, y = data()
    return [
        Party(block, y if j == count - 1 else None, name=f"p{j}")
        for j, block in enumerate(np.array_split(X, count, axis=1))
    ]


def strategy(epsilon=1.0, **settings):
    fixed = {"target": "continuous", "features": 2 * A, "relevance": False}
    return FDSKL(epsilon=epsilon, **fixed | settings)


# -- the size of the noise -------------------------------------------------------------


class Opening:
    """Keeps what the label holder opens, in the order of the protocol."""

    def __init__(self, monkeypatch):
        self.grams, self.roles, original = [], None, party.opened

        def look(who, state, shares):
            self.grams, self.roles = original(who, state, shares), state.roles
            return self.grams

        monkeypatch.setattr(party, "opened", look)

    def places(self, index=None):
        """Return which columns are a party's own; without an index, joint ones."""
        ends = np.cumsum([0, *self.roles.owners, self.roles.joint])
        places = np.arange(ends[-1])
        start, stop = ends[-2:] if index is None else ends[index : index + 2]
        return (places >= start) & (places < stop)


def exact_grams(parts, y, seed, count=3, real=True):
    """Return the Gram matrices of pooled features, in the order of the protocol."""
    X, _ = data()
    halves = split_halves(N, 0.0, N, seed)
    columns, turns = [], 0
    weights = privacy.column_weights(A, count, 1, real)
    blocks = zip(parts, np.array_split(X, count, axis=1), strict=True)
    for part, block in blocks:
        fitted = unpack_local(part)
        columns.append(weights[0] * local_columns(fitted, block))
        settings = (part[k] for k in ("bandwidths", "counts", "densities"))
        scaled, key = scaled_columns(fitted, block), int(part["seed"], 16)
        turns = turns + joint_angles(scaled, "gaussian", *settings, key, 64)
    y = np.clip((y - y.mean()) / y.std(), -privacy.MOST_TARGET, privacy.MOST_TARGET)
    columns += [weights[1] * y[:, None], np.full((N, 1), weights[2]), pairs(turns)]
    F = np.hstack(columns)
    assert (F**2).sum(axis=1).max() < privacy.row_bound(A)
    return [F[rows].T @ F[rows] for rows in halves]


def as_large(values, deviation):
    """Return whether independent normal numbers have this deviation."""
    statistic = ((values / deviation) ** 2).sum()
    n = len(values)
    return chi2.isf(1 - 1e-9, n) < statistic < chi2.isf(1e-9, n)


def triangle(noise, first, second):
    """Return the entries between columns, each once, in units of the diagonal's."""
    units = np.where(np.eye(len(noise), dtype=bool), np.sqrt(2), 1.0)
    both = np.triu(np.outer(first, second) | np.outer(second, first))
    return (noise / units)[both]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_noise_is_as_large_as_promised(monkeypatch, count):
    """Of all parties in joint columns, of one in its own, and none elsewhere."""
    opening, (_, y) = Opening(monkeypatch), data()
    result = simulate(strategy(), parties(count), seed=3)
    exact = exact_grams(result.model.parts, y, 3, count)
    s = privacy.noise_deviation(1.0, 1e-6, A)
    assert opening.roles.noise == pytest.approx(s, rel=1e-5)
    joint, holder = opening.places(), opening.places(count - 1)
    for opened, pooled in zip(opening.grams, exact, strict=True):
        np.testing.assert_array_equal(opened, opened.T)
        noise = opened - pooled
        # Fixed point alone: the label holder's own columns, and the ones exactly.
        assert np.abs(noise[np.ix_(holder, holder)]).max() < 0.1
        all_joint = triangle(noise, joint, joint)
        assert as_large(all_joint, s * np.sqrt(count - 1))
        for j in range(count - 1):
            own = opening.places(j)
            assert as_large(triangle(noise, own, own), s)
            assert as_large(noise[np.ix_(own, holder)].ravel(), s)
            # Joint columns have the noise of all, also beside a party's own ones.
            beside = noise[np.ix_(own, joint)].ravel()
            assert as_large(beside, s * np.sqrt(count - 1))
    first, second = (
        triangle(opened - pooled, joint, joint)
        for opened, pooled in zip(opening.grams, exact, strict=True)
    )
    assert as_large(first - second, s * np.sqrt(2 * (count - 1)))


def test_noise_on_the_diagonal_has_twice_the_variance():
    """Of one party, under a fixed secret: this passes each time, or never."""
    who, joint = parties()[0], 1000
    who.index, who.session, who.run_secret = 0, 7, bytes(32)
    roles = Roles(2, 0, [0, 0, 0], [N], joint=joint, fraction=16, noise=500.0)
    (drawn,), (deal,) = kernel_noise.drawn_noise(who, roles), roles.deals(7)
    noise = decode(drawn, deal.bits, 2 * roles.fraction)
    diagonal = np.equal(*np.triu_indices(joint))
    assert as_large(noise[~diagonal], roles.noise)
    assert as_large(noise[diagonal], roles.noise * np.sqrt(2))


@pytest.mark.parametrize("silent", [0, 1])
def test_the_noise_of_each_party_is_there(monkeypatch, silent):
    """Without that of one, of the two with noise, the variance is half of it."""
    opening, (_, y) = Opening(monkeypatch), data()
    original = kernel_noise.drawn_noise

    def drawn(who, roles):
        noise = original(who, roles)
        return [0 * part for part in noise] if who.index == silent else noise

    monkeypatch.setattr(kernel_noise, "drawn_noise", drawn)
    result = simulate(strategy(), parties(), seed=3)
    exact = exact_grams(result.model.parts, y, 3)
    s, joint = privacy.noise_deviation(1.0, 1e-6, A), opening.places()
    noise = opening.grams[0] - exact[0]
    assert as_large(triangle(noise, joint, joint), s)
    own = opening.places(silent)
    assert np.abs(noise[np.ix_(own, own)]).max() < 0.1


def test_noise_is_another_in_each_run(monkeypatch):
    """Also with the same seed, or who knows two runs would have the difference."""
    opening, seen = Opening(monkeypatch), []
    for _ in range(2):
        simulate(strategy(), parties(), seed=3)
        seen.append(opening.grams[0])
    s, joint = privacy.noise_deviation(1.0, 1e-6, A), opening.places()
    assert as_large(triangle(seen[0] - seen[1], joint, joint), 2 * s)


# -- an attack -------------------------------------------------------------------------


def reading(monkeypatch, epsilon, size, row=5):
    """Return a row of p0's columns, as a label holder that deviates reads it.

    Its first column has one number, in that row: up to the weight of its local columns
    as its program has it, or a larger one, which it adds to what it opens.
    """
    honest = simulate(strategy(epsilon), parties(), seed=3)
    opening, original = Opening(monkeypatch), party.hide

    def chosen(who, roles, blocks, dealt, part=None):
        if who.index != 2:
            return original(who, roles, blocks, dealt, part)
        changed = [block.copy() for block in blocks]
        for block in changed:
            block[:, 0] = 0.0
        sent = original(who, roles, changed, dealt, part)
        bits, width = roles.numbers(roles.rows[0]).bits, roles.owners[2]
        for receiver, data in sent.items():
            head, data = np.split(data, [2 * 32])
            rows = unpack(data, bits, (sum(roles.rows), width))
            rows[row, 0] += np.uint64(round(size * 2**roles.fraction))
            data = pack(rows & np.uint64(2**bits - 1), bits)
            sent[receiver] = np.concatenate([head, data])
        return sent

    monkeypatch.setattr(party, "hide", chosen)
    with suppress(PartyFailed):  # it need not make a model of them
        simulate(strategy(epsilon), parties(), seed=3)
    weight = privacy.column_weights(A, 3, 1, True)[0] if epsilon else 1.0
    own, place = opening.places(0), np.flatnonzero(opening.places(2))[0]
    guess = opening.grams[0][place, own] / (size * weight)
    fitted = unpack_local(honest.model.parts[0])
    true = local_columns(fitted, data()[0][:, :2])[split_halves(N, 0.0, N, 3)[0]]
    return np.abs(guess - true[row]).max() / true.std(axis=0).max()


def test_a_label_holder_reads_a_row_without_noise(monkeypatch):
    assert reading(monkeypatch, 0.0, 1.0) < 0.01


def test_a_label_holder_reads_noise_with_epsilon(monkeypatch):
    """With the largest number that its program lets it have in a row.

    Some 20 standard deviations of the column away; as near as one only with a
    probability below 1e-9 for the largest of 18 numbers.
    """
    weight = privacy.column_weights(A, 3, 1, True)[0]
    assert reading(monkeypatch, 1.0, weight) > 1.0


def test_noise_does_not_hold_back_numbers_above_the_bound(monkeypatch):
    """Nobody can check them: the documentation says so."""
    assert reading(monkeypatch, 1.0, 2.0**15) < 0.1


# -- what a party refuses --------------------------------------------------------------

TASK = party.Task("continuous", "gaussian", 0.0, N, 5, epsilon=1.0, delta=1e-6)
JOINT = party.Joint([1.0], [4], [1.0], 16)


def lone(task=TASK):
    made = Party(data()[0][:, :2], name="p", index=1)
    made.n_parties, made.session, made.run_secret = 3, 5, bytes(32)
    made.agree = lambda other: bytes(32)
    width = sum(party.prepare(made, task=task)["columns"])
    noise = privacy.noise_deviation(1.0, 1e-6, 4)
    owners, rows = [5, width, 7], [450, 450]
    return made, Roles(2, 0, owners, rows, None, 8, FRACTION, noise=noise)


@pytest.mark.parametrize(
    ("changes", "joint", "reason"),
    [
        ({"noise": 0.0}, {}, "noise must have a deviation of"),
        ({"noise": 0.99}, {}, "noise must have a deviation of"),
        ({"turn": 1}, {}, "turn must be the next one, 0, and below 1"),
        ({"noise": 1e12}, {}, "fraction must be at most"),
        ({}, {"counts": [8]}, "a cosine and a sine"),
    ],
)
def test_roles_that_a_party_refuses(changes, joint, reason):
    made, roles = lone()
    if 0 < changes.get("noise", 0) < 1:
        changes = {"noise": changes["noise"] * roles.noise}
    roles = dataclasses.replace(roles, **changes)
    with pytest.raises(PartyError, match=reason):
        party._check_turn(
            made,
            made.recall(party.KernelState),
            roles,
            dataclasses.replace(JOINT, **joint),
        )


def test_noise_where_there_is_no_epsilon_is_refused():
    made, roles = lone(dataclasses.replace(TASK, epsilon=0.0))
    roles = dataclasses.replace(roles, fraction=joint_fraction(N))
    with pytest.raises(PartyError, match="noise must have a deviation of 0"):
        party._check_turn(made, made.recall(party.KernelState), roles, JOINT)


def test_noise_of_few_numbers_is_refused():
    """So narrow in fixed point that it would not be nearly normal."""
    _, roles = lone()
    with pytest.raises(PartyError, match="noise must be wider"):
        kernel_noise.check_noise(dataclasses.replace(roles, noise=1e-5), 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1 / N, 0.9])
def test_a_delta_that_a_party_refuses(delta):
    with pytest.raises(PartyError, match="delta must be above 0 and below 1 / 900"):
        lone(dataclasses.replace(TASK, delta=delta))


def test_a_second_set_of_matrices_is_refused():
    made, roles = lone()
    state = made.recall(party.KernelState)
    state.turns = 1
    with pytest.raises(PartyError, match="turn must be the next one, 1, and below 1"):
        party._check_turn(made, state, dataclasses.replace(roles, turn=1), JOINT)


def test_a_party_sends_the_same_noise_again():
    made, roles = lone()
    first, second = (kernel_noise.shared_noise(made, roles) for _ in range(2))
    for place in (0, 2):
        np.testing.assert_array_equal(first[place], second[place])
    later = dataclasses.replace(roles, owners=[6, roles.owners[1], 6])
    assert (kernel_noise.shared_noise(made, later)[2] != first[2]).any()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sent: {}, "noise must come from each party"),
        (lambda sent: {0: sent}, "noise must come from each party"),
        (lambda sent: {1: sent[:-1]}, "must"),
        (lambda sent: {1: np.append(sent, sent[:1])}, "must"),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_noise_that_is_missing_or_cut_is_refused(place, change, reason):
    made, roles = lone()
    sent = kernel_noise.shared_noise(made, roles)[place]
    computing = dataclasses.replace(made, index=place)
    computing.n_parties, computing.session = 3, 5
    computing.run_secret = bytes([1]) * 32
    whole = kernel_noise.added_noise(computing, roles, {1: sent})
    assert [len(part) for part in whole] == [len(whole[0])] * 2
    with pytest.raises(PartyError, match=reason):
        kernel_noise.added_noise(computing, roles, change(sent))


def test_a_server_that_drops_noise_ends_the_run(monkeypatch):
    original = server._told
    monkeypatch.setattr(
        server,
        "_told",
        lambda federation, replies, name: original(
            federation, replies, "frequencies" if name == "noise" else name
        ),
    )
    with pytest.raises(PartyFailed, match="noise must come from each party"):
        simulate(strategy(), parties(), seed=0)


def test_shares_of_noise_are_uniform():
    """Also where they are a seed; and noise takes no further round trip."""
    runs = []
    for _ in range(2):
        grid = Recorder(parties(4))
        assert strategy(seed=0).start(grid).ledger.round_trips == 6
        runs.append(
            [
                value
                for entry in grid.transcript
                if entry.up and entry.action == "kernel_moments_multiply"
                for name, value in entry.values.items()
                if name.startswith("noise")
            ]
        )
    large = [value for value in runs[0] if value.size > 6000]
    assert len(large) == 2  # of p1 and p2, for the label holder
    assert_hidden(runs)


def test_training_rows_have_no_scores(monkeypatch):
    """In their session: scores have no noise."""
    original = server.score_rows

    def of_others(federation, roles, rows, *args, **how):
        rows = np.setdiff1d(np.arange(N), rows)[: len(rows)]
        return original(federation, roles, rows, *args, **how)

    ran = simulate(strategy(test_fraction=0.2), parties(), seed=0)
    assert "test_loss" in ran.metrics
    monkeypatch.setattr(server, "score_rows", of_others)
    with pytest.raises(PartyFailed, match="must be of rows that were not trained on"):
        simulate(strategy(test_fraction=0.2), parties(), seed=0)


# -- consent ---------------------------------------------------------------------------


def real(folder, leaves, X=None, y=None):
    """Return parties as on SuperNodes, each with a consent that pins the others."""
    federation = parties(3, X, y)
    for member in federation:
        member.state_dir = folder / member.name
        member.ids = np.arange(len(member.X))
        member.ids_digest = digest_ids(member.ids)
    peers = {member.name: public_identity(member.state_dir) for member in federation}
    for member in federation:
        member.consent = Consent(leaves={"moments": leaves}, peers=peers)
    return federation


def test_a_party_asks_for_noise_in_its_consent(tmp_path):
    federation = real(tmp_path, Limit(epsilon=1.0))
    for epsilon, line in ((0.0, "true"), (1.5, "{ epsilon = 1.5 }")):
        needs = f"need [leaves], moments = {line} (it has epsilon = 1)"
        with pytest.raises(FederationError, match=re.escape(needs)):
            strategy(epsilon).start(RealParties(federation))
    result = strategy(1.0, test_fraction=0.1).start(RealParties(federation))
    assert result.metrics["epsilon"] == 1.0
    X, _ = data(60, seed=4)
    new = real(tmp_path, Limit(epsilon=1.0), X, None)
    predicting = FDSKLPrediction(result.model.model, solver="moments")
    predicting.start(RealParties(new))
    assert list((tmp_path / "p2").glob("predictions-*.csv"))


@pytest.mark.parametrize("epsilon", [0.0, 1.5])
def test_a_party_asks_for_noise_whatever_the_server_says(
    tmp_path, monkeypatch, epsilon
):
    federation = real(tmp_path, Limit(epsilon=1.0))
    monkeypatch.setattr(FDSKL, "gram_epsilon", 1.0)
    with pytest.raises(PartyFailed, match="noise of epsilon 1 or less"):
        strategy(epsilon).start(RealParties(federation))


def test_a_limit_of_epsilon_is_read():
    read = Consent.parse({"leaves": {"moments": {"epsilon": 2, "life": 500}}})
    assert read.leaves["moments"] == Limit(life=500, epsilon=2.0)
    for leaves, rule in (
        ({"moments": {"epsilon": 0}}, "epsilon"),
        ({"rows": {"epsilon": 1.0}}, "'moments' alone"),
    ):
        with pytest.raises(PartyError, match=rule):
            Consent.parse({"leaves": leaves})


@pytest.mark.parametrize(
    ("solver", "action"),
    [("moments", "linear_moments_columns"), ("central", "linear_losses_parts")],
)
def test_gram_matrices_of_other_strategies_have_no_noise(
    tmp_path, monkeypatch, solver, action
):
    """Neither those that a linear model is solved from nor those that test it."""
    federation = real(tmp_path, Limit(epsilon=1.0))
    for member in federation:
        for kind in ("totals", "row-sums", "rows", "coefficients"):
            member.consent.leaves[kind] = Limit()
    run = CoresetVRLR(size=100, solver=solver, test_fraction=0.2)
    with pytest.raises(FederationError, match=r"moments = true \(it has epsilon = 1\)"):
        run.start(RealParties(federation))
    monkeypatch.setattr(CoresetVRLR, "gram_epsilon", 1.0)  # what the server says
    with pytest.raises(PartyFailed, match="this run has no noise") as failed:
        run.start(RealParties(federation))
    assert failed.value.action == action


# -- settings and use ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"delta": 1e-3}, "delta has no effect with epsilon 0"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must be above 0"),
        ({"epsilon": 1.0, "solver": "direct"}, "epsilon has no effect with solver"),
    ],
)
def test_settings_that_do_not_fit(settings, rule):
    with pytest.raises(ValueError, match=rule):
        FDSKL(**settings)


def test_fewer_features_with_a_small_epsilon():
    counts = [
        simulate(strategy(e, features=0), parties(), seed=0).metrics["features"]
        for e in (0.5, 4.0)
    ]
    assert counts == [2 * privacy.private_angles(N, e) for e in (0.5, 4.0)]


@pytest.mark.parametrize("target", ["continuous", "binary", "multiclass"])
def test_a_model_with_noise_predicts(target):
    """With so much epsilon that little noise is left: the weights undo all scales."""
    X, y = data(4000)
    if target != "continuous":
        y = np.digitize(y, np.quantile(y, [0.5] if target == "binary" else [0.3, 0.7]))
    training = strategy(500.0, target=target, features=64, test_fraction=0.2)
    result = simulate(training, parties(3, X, y), seed=0)
    blocks = np.array_split(X, 3, axis=1)
    if target == "continuous":
        assert result.metrics["test_loss"] < 0.2 * y.var()
        assert ((result.model.predict(blocks) - y) ** 2).mean() < 0.2 * y.var()
    else:
        assert result.metrics["test_error"] < 0.2
        assert (result.model.predict(blocks) != y).mean() < 0.2


def test_a_kept_model_predicts_new_rows(tmp_path):
    """Its rows of local columns are as long as those of training."""
    X, y = data()
    federation = parties(3, X, y)
    for member in federation:
        member.state_dir = tmp_path / member.name
    result = simulate(strategy(100.0), federation, seed=1)
    new, _ = data(70, seed=9)
    receiving = parties(3, new, None)
    for member in receiving:
        member.state_dir = tmp_path / member.name
    simulate(FDSKLPrediction(result.model.model, solver="moments"), receiving)
    (file,) = (tmp_path / "p2").glob("predictions-*.csv")
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    expected = result.model.predict(np.array_split(new, 3, axis=1))
    answered = np.array(rows, dtype=float)[:, 1]
    assert np.abs(answered - expected).max() < 0.02 * expected.std()
    result.model.save(tmp_path / "model.npz")
    again = load_model(tmp_path / "model.npz").predict(np.array_split(new, 3, axis=1))
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("dealer", ["server", "p1"])
def test_a_turn_alone_with_any_dealer(dealer):
    training = strategy(8.0, relevance=True, dealer=dealer)
    result = simulate(training, parties(4), seed=0)
    assert result.ledger.round_trips == 6 + (dealer == "p1")
    assert "relevance" not in result.model.parts[0]


def test_too_much_noise_is_said(monkeypatch):
    def none(*grams, **noise):
        raise ValueError("halves must be Gram matrices: none of the fits is one")

    monkeypatch.setattr(party, "fit_grams", none)
    with pytest.raises(PartyFailed, match="epsilon must be larger, or the rows more"):
        simulate(strategy(), parties(), seed=0)
    monkeypatch.setattr(server, "noise_deviation", lambda *values: 1e12)
    with pytest.raises(FederationError, match="widest ring"):
        simulate(strategy(), parties(), seed=0)


@pytest.mark.parametrize(
    ("kernel", "mean"), [("gaussian", 2 * 0.36), ("laplacian", 0.6 * 2 / np.pi**0.5)]
)
def test_the_bandwidth_does_not_depend_on_rows(kernel, mean):
    """Other rows of as many columns give the same; those of normal ones are theirs."""
    told = []
    for seed in (0, 1):
        made = Party(data(seed=seed)[0][:, :2], name="p", index=1)
        made.n_parties, made.session, made.run_secret = 3, 5, bytes(32)
        task = dataclasses.replace(TASK, kernel=kernel)
        told.append(party.prepare(made, task=task)["distances"])
    np.testing.assert_array_equal(*told)
    assert told[0][0] == pytest.approx(2 * mean)
    X = np.random.default_rng(0).normal(size=(200_000, 2))
    measured = cumulants(X, kernel, np.random.default_rng(1))
    np.testing.assert_allclose(normal_cumulants(2, kernel), measured, rtol=0.05)
