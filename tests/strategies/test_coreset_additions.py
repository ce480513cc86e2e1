"""Coresets of many months, against all of their rows."""

import os
import re
import shutil
from functools import cache

import numpy as np
import pytest
from consents import limited
from deviating import RealParties
from transcripts import Recorder

from vfl_flower import CoresetVKMC, CoresetVRLR, FederationError, Party, PartyFailed
from vfl_flower.clients import coresets as coresets_party
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import (
    cluster_summary,
    coreset_weights,
    leverage_factor,
    leverage_scores,
    merge_level,
    vkmc_sensitivities,
    vrlr_sensitivities,
)
from vfl_flower.numerics.kmeans import assign
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.parts import list_parts, load_part, save_part
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies import (
    CoresetPrediction,
    CoresetVKMCAdd,
    CoresetVLogistic,
    CoresetVRLRAdd,
)

WIDTHS, HOLDER, N = (2, 1, 3), 2, 120


def month(t, n=N):
    """Return the rows of month t, whose columns drift, with heavy tails."""
    rng = np.random.default_rng([7, t])
    X = rng.standard_t(4, size=(n, sum(WIDTHS))) + 0.3 * t
    return X, X @ np.arange(1.0, 7.0) + 5 + rng.normal(size=n)


def parties(folder, t, ids=True, n=N):
    X, y = month(t, n)
    blocks = np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)
    names = np.array([f"{t}-{i}" for i in range(n)]) if ids else None
    return [
        Party(
            block,
            y if j == HOLDER else None,
            names,
            name=f"p{j}",
            columns=[f"x{j}{c}" for c in range(WIDTHS[j])],
            state_dir=folder / f"p{j}",
        )
        for j, block in enumerate(blocks)
    ]


KINDS = {
    "regression": (CoresetVRLR(40, solver="central"), CoresetVRLRAdd),
    "k-means": (CoresetVKMC(3, size=40, n_init=1), CoresetVKMCAdd),
}


def train(folder, kind="regression", seed=1, t=0, **settings):
    """Return the result of the first month."""
    settings = {"keep_coreset": True, "seed": seed} | settings
    strategy = KINDS[kind][0].replace(**settings)
    return strategy.start(InProcessGrid(parties(folder, t)))


def addition(kind, model, seed=1, **settings):
    """Return the strategy that adds a month to a model."""
    first, later = KINDS[kind]
    common = {"size": 40, "seed": seed, "solver": "central"}
    if kind == "k-means":
        common |= {"n_clusters": first.n_clusters, "n_init": 1}
    return later(model=model, **common | settings)


def add(folder, model, t, kind="regression", seed=1, grid=InProcessGrid, **settings):
    """Return the result of a later month."""
    strategy = addition(kind, model, seed, **settings)
    return strategy.start(grid(parties(folder, t)))


def run(folder, months, kind="regression", seed=1, **settings):
    """Return the result of the last of the months, counted from 0."""
    result = train(folder, kind, seed)
    for t in range(1, months):
        result = add(folder, result.model.number, t, kind, seed, **settings)
    return result


def kept(folder, model):
    """Return columns of all parties, labels, weights and levels of the kept rows."""
    parts = [load_part(folder / f"p{j}", model) for j in range(3)]
    arrays = [part.arrays for part in parts]
    X = np.hstack([array["kept_X"] for array in arrays])
    last = arrays[HOLDER]
    return X, last["kept_y"], last["kept_weights"], last["kept_levels"]


def gram(X, y, w):
    """Return the Gram matrix by which the cost of each model follows."""
    A = np.sqrt(w)[:, None] * np.column_stack([X, np.ones(len(X)), y])
    return A.T @ A


# --- weighted rows


def test_a_row_of_weight_2_scores_as_two_rows():
    """Leverage and k-means sensitivities of weighted rows are sums over copies."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(30, 3)), rng.integers(1, 4, size=30)
    copies = np.repeat(np.arange(30), w)

    def both(blocks, scale, weights, n):
        factor = leverage_factor(scale)
        yield vrlr_sensitivities(leverage_scores(scale, factor), n, weights)
        centers = cluster_summary(RowBlocks(X), 3, np.random.default_rng(1)).centers
        labels, distances = assign(X, centers)
        sizes, costs = np.bincount(labels, w, 3), np.bincount(labels, w * distances, 3)
        summary = type(cluster_summary(blocks, 1, rng))(centers, sizes, costs)
        yield weights * vkmc_sensitivities(next(iter(blocks)), summary)

    weighted = RowBlocks(X, 1.0, scale=np.sqrt(w))
    copied = RowBlocks(X[copies], 1.0)
    for one, each in zip(
        both(RowBlocks(X), weighted, w, w.sum()),
        both(RowBlocks(X[copies]), copied, np.ones(len(copies)), len(copies)),
        strict=True,
    ):
        np.testing.assert_allclose(one, np.bincount(copies, each), rtol=1e-9)


def test_clusters_of_weighted_rows_are_those_of_copies():
    """With one cluster nothing is drawn: sizes and costs are sums of weights."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(30, 3)), rng.integers(1, 4, size=30)
    one = cluster_summary(RowBlocks(X), 1, rng, weights=w.astype(float))
    all_ = cluster_summary(RowBlocks(np.repeat(X, w, axis=0)), 1, rng)
    for name in ("centers", "sizes", "costs"):
        np.testing.assert_allclose(getattr(one, name), getattr(all_, name))


def test_levels_count_as_binary_numbers():
    """After t months there is a coreset of each power of two that is in t."""
    levels = np.zeros(0, dtype=np.uint8)
    for t in range(1, 33):
        level = merge_level(levels)
        levels = np.append(levels[levels > level], level)
        assert (2 ** levels.astype(int)).sum() == t
        assert len(set(levels)) == len(levels) == t.bit_count()


# --- what is drawn


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_month_is_the_coreset_of_today(tmp_path, kind):
    """Keeping its rows changes neither the coreset nor the model."""
    now = train(tmp_path, kind)
    plain = KINDS[kind][0].replace(seed=1).start(InProcessGrid(parties(tmp_path, 0)))
    for name, array in now.model.arrays().items():
        if name != "model":
            np.testing.assert_array_equal(array, plain.model.arrays()[name])
    _, _, w, levels = kept(tmp_path, now.model.number)
    assert w.sum() == pytest.approx(plain.metrics["weight_sum"])
    assert not levels.any()
    assert "kept_X" not in load_part(tmp_path / "p0", plain.model.number).arrays


@pytest.mark.parametrize("rounds", ["fused", "paper"])
def test_weights_of_a_merge_are_those_of_pooled_rows(tmp_path, rounds):
    """Month 2 is drawn from month 1's coreset and its own rows, by weighted scores."""
    first = train(tmp_path)
    X, y, w, _ = kept(tmp_path, first.model.number)
    second = add(tmp_path, first.model.number, 1, rounds=rounds)
    drawn_X, _, drawn_w, levels = kept(tmp_path, second.model.number)
    assert (levels == 1).all()
    X, y = np.vstack([month(1)[0], X]), np.append(month(1)[1], y)
    w = np.append(np.ones(N), w)
    g = np.zeros(len(X))
    for j, block in enumerate(np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)):
        columns = [block - w @ block / w.sum()]
        if j == HOLDER:
            columns += [np.ones((len(X), 1)), y[:, None]]
        U = np.linalg.qr(np.sqrt(w)[:, None] * np.hstack(columns))[0]
        g += (U**2).sum(axis=1) + w / w.sum()
    rows = [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in drawn_X]
    one = w[rows] * coreset_weights(g.sum(), g[rows]) * len(rows) / 40
    times = drawn_w / one
    np.testing.assert_allclose(times, np.round(times), rtol=1e-9)
    assert np.round(times).sum() == 40


def test_solvers_agree_on_the_coresets_of_three_months(tmp_path):
    models = []
    for solver in ("central", "cg", "moments"):
        result = run(tmp_path / solver, 3, solver=solver, size=60, tol=1e-12)
        assert result.metrics["months"] == 3
        assert result.metrics["rows"] == 3 * N
        models.append(np.append(np.concatenate(result.model.coef_), 0))
        models[-1][-1] = result.model.intercept_
    np.testing.assert_allclose(models[1], models[0], rtol=1e-6)
    np.testing.assert_allclose(models[2], models[0], rtol=1e-6)


def test_distdim_clusters_the_coresets_too(tmp_path):
    result = run(tmp_path, 3, "k-means", solver="distdim")
    X = np.vstack([month(t)[0] for t in range(3)])
    centers = np.hstack(result.model.cluster_centers_)
    one = ((X - X.mean(axis=0)) ** 2).sum()
    assert assign(X, centers)[1].sum() < one


def test_rows_held_out_are_of_the_new_month(tmp_path):
    result = train(tmp_path, test_fraction=0.25)
    for t in (1, 2):
        result = add(tmp_path, result.model.number, t, test_fraction=0.25)
    assert result.metrics["rows"] == 3 * 90
    ids = {f"2-{i}" for i in range(N)}
    names = load_part(tmp_path / "p0", result.model.number).settings["kept_ids"]
    assert len(ids & set(names)) <= 90
    assert 0 < result.metrics["test_loss"] < month(2)[1].var()


# --- the law


@cache
def streamed(kind):
    """Return the coresets of 3 months, with 60 seeds, as lists of kept rows."""
    import tempfile
    from pathlib import Path

    made = []
    for seed in range(60):
        with tempfile.TemporaryDirectory() as folder:
            result = run(Path(folder), 3, kind, seed, masking="plain")
            made.append(kept(Path(folder), result.model.number))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_costs_of_models_are_unbiased(kind):
    """And the sum of weights: each mean is within 6 standard errors of the truth.

    Student's t of 59 degrees of freedom is beyond 6 with probability 1.3e-7; 5 means.
    """
    X, y = (np.concatenate([month(t)[i] for t in range(3)]) for i in (0, 1))
    rng = np.random.default_rng(3)
    thetas = rng.normal(size=(4, 6)) + np.arange(1.0, 7.0) * rng.integers(
        2, size=(4, 1)
    )
    centers = rng.normal(size=(4, 3, 6))

    def costs(X, y, w):
        yield w.sum()
        for theta, C in zip(thetas, centers, strict=True):
            losses = (X @ theta - y) ** 2 if kind == "regression" else assign(X, C)[1]
            yield w @ losses

    truth = np.array(list(costs(X, y, np.ones(len(X)))))
    found = np.array([list(costs(X, y, w)) for X, y, w, _ in streamed(kind)])
    errors = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - truth) < 6 * errors).all()
    assert (errors < 0.1 * truth).all()  # otherwise the test would say nothing


def test_errors_of_merges_multiply(tmp_path):
    """The cost of each model is within prod(1 + eps) - 1 of that on all rows.

    eps of one reduction is measured over all models at once: by the eigenvalues of the
    Gram matrix after it in terms of that before it.
    """

    def eps(after, before):
        values = np.linalg.eigvals(np.linalg.solve(before, after))
        return float(np.abs(values.real - 1).max())

    bounds, model, truth = {}, None, 0
    for t in range(6):
        before = kept(tmp_path, model) if t else None
        result = add(tmp_path, model, t, size=400) if t else train(tmp_path, size=400)
        model = result.model.number
        truth = truth + gram(*month(t), np.ones(N))
        X, y, w, levels = kept(tmp_path, model)
        new = levels == merge_level(before[3] if t else np.zeros(0, dtype=np.uint8))
        drawn_from = gram(*month(t), np.ones(N))
        merged = [0.0]
        if before is not None:
            old = before[3] < merge_level(before[3])
            drawn_from = drawn_from + gram(*(part[old] for part in before[:3]))
            merged += [bounds.pop(level) for level in set(before[3][old].tolist())]
        here = eps(gram(X[new], y[new], w[new]), drawn_from)
        assert 0 < here < 1
        bounds[int(levels[new][0])] = (1 + here) * (1 + max(merged)) - 1
        assert set(bounds) == set(levels.tolist())
        assert eps(gram(X, y, w), truth) <= max(bounds.values()) * (1 + 1e-9)
    assert len(bounds) == 2


def test_no_more_rows_are_kept_than_levels_hold(tmp_path):
    """And no older model keeps rows: the last two do."""
    result = train(tmp_path)
    models = [result.model.number]
    for t in range(1, 8):
        result = add(tmp_path, models[-1], t)
        models.append(result.model.number)
        _, _, w, levels = kept(tmp_path, models[-1])
        assert len(w) <= 40 * (t + 1).bit_count()
        assert set(levels.tolist()) == {k for k in range(4) if (t + 1) >> k & 1}
    for j in range(3):
        assert sorted(list_parts(tmp_path / f"p{j}")) == sorted(models)
        parts = [load_part(tmp_path / f"p{j}", model) for model in models]
        assert ["kept_X" in part.arrays for part in parts] == 6 * [False] + 2 * [True]
        assert not any("kept_ids" in part.settings for part in parts[:6])
    new = parties(tmp_path, 9)
    for model in (models[0], models[-1]):  # all of them predict
        CoresetPrediction(model).start(InProcessGrid(new))


# --- what it costs and shows


def test_round_trips_and_numbers(tmp_path):
    """One round trip more than training, and one to pool levels that are not merged."""
    result = train(tmp_path)
    assert result.ledger.round_trips == 4
    for t, round_trips in ((1, 5), (2, 6)):
        result = add(tmp_path, result.model.number, t)
        assert result.ledger.round_trips == round_trips
    *_, w, _ = kept(tmp_path, result.model.number)
    *_, before, _ = kept(tmp_path, load_part_before(tmp_path, result))
    m, K, T, d = 40, len(before), 3, 6
    for action, units in {
        "coreset_additions_kept": 2 * K * T,
        "coresets_totals": T + m * T,
        "coresets_scores": 2 * m * T + m * (d + 1),
        "coresets_pooled_rows": K * (T + d + 1),
        "coreset_predictions_keep": 3 * len(w) * T + d,
    }.items():
        assert result.ledger.of(action).units == units, action


def load_part_before(folder, result):
    """Return the number of the model to which a result was added."""
    return load_part(folder / "p0", result.model.number).settings["before"]


def test_the_server_sees_what_it_has_told_before(tmp_path):
    """What a party says of its kept rows are weights and levels, the same at all."""
    first = train(tmp_path)
    _, _, w, _ = kept(tmp_path, first.model.number)
    grids = []

    def recorder(federation):
        grids.append(Recorder(federation))
        return grids[0]

    add(tmp_path, first.model.number, 1, grid=recorder, solver="cg")
    transcript = grids[0].transcript
    told = [e for e in transcript if e.up and e.action == "coreset_additions_kept"]
    assert len(told) == 3
    for entry in told:
        assert set(entry.values) == {"weights", "levels", "stands_for", "months"}
        np.testing.assert_array_equal(entry.values["weights"], w)
        assert entry.values["stands_for"] == N
    # No row and no label of either month leaves in the clear, nor an id.
    part = load_part(tmp_path / f"p{HOLDER}", first.model.number)
    values = [month(1)[0], month(1)[1], part.arrays["kept_X"], part.arrays["kept_y"]]
    patterns = [np.float64(v).tobytes() for array in values for v in array.ravel()]
    patterns += [name.encode() for name in part.settings["kept_ids"]]
    for entry in transcript:
        assert not any(pattern in entry.data for pattern in patterns)


@pytest.mark.parametrize("fewer", [0, 1])
def test_a_row_that_is_pooled_again_counts_once(tmp_path, fewer):
    """Against the limit for the life of the data, by the ids that are kept."""

    def pooled(folder, life):
        ids = set()
        result = None
        for t in range(3):
            federation = parties(folder, t)
            for party in federation:
                party.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                party.consent = limited(life=life)
            strategy = KINDS["regression"][0].replace(keep_coreset=True, seed=1)
            if result is not None:
                strategy = addition("regression", result.model.number)
            result = strategy.start(RealParties(federation))
            part = load_part(folder / "p0", result.model.number)
            ids |= set(part.settings["kept_ids"])
        return len(ids)

    # Months 1 and 2 are pooled whole, and so is month 3, with the level that stays.
    life = pooled(tmp_path / "any", 10**6)
    if fewer:
        with pytest.raises(PartyFailed, match=f"lets {life - 1} rows leave it as rows"):
            pooled(tmp_path / "fewer", life - 1)
    else:
        assert pooled(tmp_path / "enough", life) == life


# --- what is refused, before any work


class Asked(InProcessGrid):
    """Keeps what the parties are asked for."""

    actions: frozenset[str] = frozenset()

    def push_messages(self, messages):
        """Keep the actions."""
        messages = list(messages)
        kinds = {m.metadata.message_type.partition(".")[2] for m in messages}
        self.actions |= kinds
        return super().push_messages(messages)


def refused(folder, model, federation, rule, kind="regression", **settings):
    """Check that an addition fails with a sentence after ``hello`` and ``kept``."""
    strategy = addition(kind, model, **settings)
    before = {p: p.read_bytes() for p in folder.glob("*/*.npz")}
    grid = Asked(federation)
    with pytest.raises((PartyFailed, FederationError), match=rule):
        strategy.start(grid)
    assert grid.actions <= {"hello", "coreset_additions_kept"}
    assert {p: p.read_bytes() for p in folder.glob("*/*.npz")} == before


@pytest.mark.parametrize("ids", [True, False])
def test_a_month_that_is_sent_twice(tmp_path, ids):
    result = KINDS["regression"][0].replace(keep_coreset=True)
    model = result.start(InProcessGrid(parties(tmp_path, 0, ids))).model.number
    strategy = addition("regression", model)
    model = strategy.start(InProcessGrid(parties(tmp_path, 1, ids))).model.number
    for t in (0, 1):
        rule = rf"'p0'.*are those of month {t + 1} of the 2 that the model has"
        refused(tmp_path, model, parties(tmp_path, t, ids), rule)


def test_a_file_that_grows(tmp_path):
    """Its old rows are in the coreset already."""
    model = train(tmp_path).model.number
    both = parties(tmp_path, 0) + parties(tmp_path, 1)
    grown = []
    for old, new in zip(both[:3], both[3:], strict=True):
        y = None if old.y is None else np.append(old.y, new.y)
        ids = np.append(old.ids, new.ids)
        X = np.vstack([old.X, new.X])
        one = Party(X, y, ids, old.name, old.columns, state_dir=old.state_dir)
        grown.append(one)
    rule = "rows that this party keeps of earlier months are in its data again"
    refused(tmp_path, model, grown, rule)


def test_a_party_without_last_months_state(tmp_path):
    """It is named; the model before goes on."""
    first = train(tmp_path).model.number
    second = add(tmp_path, first, 1).model.number
    (tmp_path / "p1" / f"{second}.npz").unlink()
    refused(tmp_path, second, parties(tmp_path, 2), "'p1' failed.*no part of model")
    assert add(tmp_path, first, 1).metrics["months"] == 2


def test_an_older_model_keeps_no_rows(tmp_path):
    first = train(tmp_path).model.number
    second = add(tmp_path, first, 1).model.number
    add(tmp_path, second, 2)
    refused(tmp_path, first, parties(tmp_path, 3), "keeps no rows")
    plain = train(tmp_path, keep_coreset=False, t=5).model.number
    refused(tmp_path, plain, parties(tmp_path, 6), "keeps no rows")


def test_models_that_are_mixed_up(tmp_path):
    linear, clusters = (train(tmp_path, kind).model.number for kind in KINDS)
    new = parties(tmp_path, 1)
    rule = "is for k-means with 3 clusters, and the run for regression with an"
    refused(tmp_path, clusters, new, rule)
    rule = "is for regression with an intercept, and the run for k-means with 3"
    refused(tmp_path, linear, new, rule, "k-means")
    refused(tmp_path, linear, new, "without an intercept", fit_intercept=False)
    refused(tmp_path, clusters, new, "with 4 clusters", "k-means", n_clusters=4)
    refused(tmp_path, "0" * 16, new, "no part of model")
    # The part of another model under this number.
    other = train(tmp_path, t=4).model.number
    path = tmp_path / "p2" / f"{linear}.npz"
    shutil.copy(tmp_path / "p2" / f"{other}.npz", path)
    refused(tmp_path, linear, new, "'p2'.*was written for model")


def test_parts_that_differ(tmp_path):
    model = train(tmp_path).model.number
    part = load_part(tmp_path / "p1", model)
    part.arrays["kept_weights"] = part.arrays["kept_weights"] * 2
    save_part(tmp_path / "p1", part)
    refused(
        tmp_path, model, parties(tmp_path, 1), "'p1'.*must have the weights of 'p0'"
    )


def test_columns_and_places_that_changed(tmp_path):
    model = train(tmp_path).model.number

    def changed(j, **values):
        federation = parties(tmp_path, 1)
        for name, value in values.items():
            setattr(federation[j], name, value)
        return federation

    refused(tmp_path, model, changed(0, columns=["x00", "z"]), "'p0'.*2 names are in")
    wider = changed(1, X=np.ones((N, 2)), columns=["x10", "x11"])
    refused(tmp_path, model, wider, "'p1'.*must have the 1 columns of training")
    swapped = parties(tmp_path, 1)
    swapped[0].state_dir, swapped[1].state_dir = (
        swapped[1].state_dir,
        swapped[0].state_dir,
    )
    refused(tmp_path, model, swapped, "columns of training|must have place")
    unnamed = parties(tmp_path, 1, ids=False)
    refused(tmp_path, model, unnamed, "'p0'.*must have ids, as those of training")
    refused(
        tmp_path, model, changed(2, y=None), "must have labels|must hold the labels"
    )
    refused(tmp_path, model, parties(tmp_path, 1)[:2], "columns|place|labels")


def test_settings_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match="keep_coreset must be False unless sampling"):
        CoresetVRLR(sampling="uniform", keep_coreset=True)
    with pytest.raises(ValueError, match="model must be the number"):
        CoresetVRLRAdd(model="")
    with pytest.raises(ValueError, match=r"model must be 8 to 32 .* got 'xyz'"):
        CoresetVRLRAdd(model="xyz")
    for name in ("sampling", "evaluate", "check_size", "keep_coreset"):
        with pytest.raises(TypeError, match=f"takes no argument '{name}'"):
            CoresetVRLRAdd(model="0" * 16, **{name: "full"})
    with pytest.raises(TypeError, match="takes no argument 'keep_coreset'"):
        CoresetVLogistic(keep_coreset=True)
    ridge = {"regularizer": "ridge", "alpha": 0.1, "scores": "ridge"}
    for made, more in (
        (CoresetVRLR, {"keep_coreset": True}),
        (CoresetVRLRAdd, {"model": "0" * 16}),
    ):
        with pytest.raises(ValueError, match="scores must be 'leverage' for a coreset"):
            made(**ridge, **more)
    federation = parties(tmp_path, 0)
    federation[1].state_dir = None
    keeping = KINDS["regression"][0].replace(keep_coreset=True)
    with pytest.raises(FederationError, match="'p1' must have a state-dir"):
        keeping.start(InProcessGrid(federation))


@pytest.mark.parametrize("asked", [{"l2": 0.1}, {"classes": True}])
def test_a_party_refuses_other_scores_with_kept_rows(tmp_path, monkeypatch, asked):
    """Also where the server asks for what no strategy offers."""
    model = train(tmp_path).model.number
    ask = Parties.ask

    def deviating(self, which, *args, **kwargs):
        more = asked if which is coresets_party.totals else {}
        return ask(self, which, *args, **kwargs | more)

    monkeypatch.setattr(Parties, "ask", deviating)
    with pytest.raises(PartyFailed, match="l2 must be 0 and classes False"):
        add(tmp_path, model, 1)


# --- a run that is killed


class Killed(BaseException):
    """Ends a run as a kill does: nothing catches it."""


def test_a_run_that_is_killed_at_any_write(tmp_path, monkeypatch):
    """All parties still have the model before; the run, repeated, gives the same."""
    first = train(tmp_path / "whole").model.number
    second = add(tmp_path / "whole", first, 1).model.number
    whole = add(tmp_path / "whole", second, 2)
    told = kept(tmp_path / "whole", whole.model.number)
    shutil.rmtree(tmp_path / "whole")

    replace, killed = os.replace, 0
    for k in range(1, 20):
        folder = tmp_path / str(k)
        first = train(folder).model.number
        second = add(folder, first, 1).model.number
        left = [k]

        def counted(*args, left=left, **kwargs):
            for before in (True, False):
                left[0] -= 1
                if not left[0]:
                    raise Killed
                if before:
                    replace(*args, **kwargs)

        monkeypatch.setattr(os, "replace", counted)
        try:
            add(folder, second, 2)
        except Killed:
            killed += 1
        monkeypatch.setattr(os, "replace", replace)
        assert left[0] >= 0 or k == 1 or killed
        result = add(folder, second, 2)
        for one, other in zip(told, kept(folder, result.model.number), strict=True):
            np.testing.assert_array_equal(one, other)
        if left[0] > 0:
            break
    assert killed == 12  # two writes of three parties, before and after each


def test_errors_have_no_id_and_no_path(tmp_path):
    model = train(tmp_path).model.number
    with pytest.raises(PartyFailed) as caught:
        add(tmp_path, model, 0)
    assert not re.search(rf"0-\d|{tmp_path}", str(caught.value))
