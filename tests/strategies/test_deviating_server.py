"""What a server gains that tells the parties of one step different things.

Each attack succeeded once, as its docstring says. The parties are real ones: they run
the code of SuperNodes and insist on masks.
"""

from dataclasses import replace

import numpy as np
import pytest
from consents import distances, letting, limited
from deviating import RealParties, fitted, sums_of
from federations import by_columns

from vfl_flower import CoresetVKMC, CoresetVRLR, FKKMeans, Party, PartyFailed
from vfl_flower.clients.coresets import gram as linear_gram
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.clients.fdskl import angle_sums
from vfl_flower.party.consent import ALLOW_ALL, Limit
from vfl_flower.protocol.frame import Frame
from vfl_flower.protocol.steps import Sum
from vfl_flower.secure_aggregation.limbs import LIMB
from vfl_flower.secure_aggregation.masks import unmask_sum
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties

VICTIM = 1


def rows(n=40, d=4):
    rng = np.random.default_rng(0)
    return [Party(rng.normal(size=(n, d)), name=name) for name in "abc"]


def columns(n=60):
    """Return three parties with other columns of the same rows; the last has labels."""
    X = np.random.default_rng(1).normal(size=(n, 6))
    return by_columns(X, X.sum(axis=1), names="party-{}")


def others_get(**values):
    """Tell the victim the truth, and the others something else."""

    def tamper(_, j, told):
        if j == VICTIM:
            return told
        return {n: values[n](v) if n in values else v for n, v in told.items()}

    return tamper


def as_told(_, __, told):
    return told


def kernel_kmeans(masking):
    settings = {"n_components": 4, "iterations": 1, "gamma": 0.5, "n_features": 20}
    return FKKMeans(3, **settings, masking=masking, eigensolver="lanczos", seed=0)


def error_of(seen, truth):
    """Return the mean error of an attack; that of a guess is about 1."""
    return np.abs(seen - truth).mean() / np.abs(truth).mean()


@pytest.mark.parametrize("tamper", [others_get(vectors=np.zeros_like), as_told])
def test_a_sum_of_different_questions_is_noise(tamper):
    """The error was 1e-16 for the vectors.

    The sum was the victim's addend, and the server can compute what the others add.
    Of one question it is the sum, or this would show nothing.
    """
    attack = "kernel_kmeans_product", tamper
    truth = sums_of(kernel_kmeans("plain"), rows(), *attack, real=False)
    for name, array in sums_of(kernel_kmeans("ring"), rows(), *attack).items():
        # A single number of noise is near the truth by chance: 1e-6 of the time here.
        least = 0.9 if array.size > 100 else 1e-6
        error = error_of(array, truth[name])
        assert error < 1e-4 if tamper is as_told else error > least


@pytest.mark.parametrize("change", [{"n": 59}, {"intercept": False}], ids=str)
def test_what_is_sealed_opens_only_under_the_same_question(monkeypatch, change):
    """The Gram matrix was of columns that their owners had weighted differently."""
    trip = Parties._round_trip

    def tampered(self, step, requests, sums, *blocks):
        if step is linear_gram.columns:
            requests = dict(requests)
            requests[VICTIM] = requests[VICTIM] | change
        return trip(self, step, requests, sums, *blocks)

    strategy = CoresetVRLR(solver="gram", sampling="full")
    strategy.start(RealParties(columns()))
    monkeypatch.setattr(Parties, "_round_trip", tampered)
    with pytest.raises(PartyFailed, match="or the parties' requests differed"):
        strategy.start(RealParties(columns()))


def test_a_party_checks_its_own_digest():
    """Else the server could commit to other inputs than those it tells."""
    asked = Parties(Exchange(RealParties(columns())), seed=0)
    honest = asked._blocks

    def forged(step, told):
        blocks = honest(step, told)
        digests = blocks.digests[:32] + bytes(32) + blocks.digests[64:]
        return replace(blocks, digests=digests)

    asked._blocks = forged
    with pytest.raises(PartyFailed, match="the digest of this party's inputs"):
        distances(asked, 20)


def test_lists_of_digests_that_differ_give_noise(monkeypatch):
    """Each party finds its own inputs in the list, but the lists are not one."""
    truth = distances(Parties(Exchange(RealParties(columns())), seed=0), 20)
    pack = Frame.pack

    def apart(self):
        packed = pack(self)
        if self.index == VICTIM and self.blocks:
            packed["blocks"] = bytes(32) + self.blocks[32:]
        return packed

    monkeypatch.setattr(Frame, "pack", apart)
    monkeypatch.setattr(Parties, "_clipped", lambda *_: 0)
    monkeypatch.setattr(Parties, "_sum_of", lambda self, *sums: unmask_sum(*sums[1:]))
    seen = distances(Parties(Exchange(RealParties(columns())), seed=0), 20)
    assert np.abs(seen - truth).min() > 1e-6


@pytest.mark.parametrize("solver", ["central", "cg"])
def test_test_losses_are_of_no_row(solver):
    """All columns and labels followed to 2e-16 from residuals, and no row was counted.

    The rows held out now count as predictions, and the server sees no residual.
    """
    parties = columns()
    leaves = limited(20).leaves
    few, enough = (leaves | {"predictions": Limit(run=rows)} for rows in (29, 30))
    parties[VICTIM].consent = replace(limited(20), leaves=few)
    strategy = CoresetVRLR(size=20, solver=solver, test_fraction=0.5, seed=0)
    with pytest.raises(PartyFailed, match=r"at most 29 rows .* as pred") as caught:
        strategy.start(RealParties(parties))
    assert caught.value.party == f"party-{VICTIM}"
    parties[VICTIM].consent = replace(limited(20), leaves=enough)
    assert strategy.start(RealParties(parties)).metrics["test_loss"] > 0


def test_rows_of_distances_count_as_rows_that_leave():
    parties = columns()
    parties[VICTIM].consent = limited(20)
    with pytest.raises(PartyFailed, match="consent allows at most 20 rows"):
        CoresetVKMC(3, size=20, evaluate="full", seed=0).start(RealParties(parties))


# -- rows as centres, pairs, labels ----------------------------------------------------


def centres(asked, k, rows=None):
    """Ask all parties for the centres of their own clusters; return the victim's."""
    coreset = None
    if rows is not None:
        rows = np.asarray(rows, dtype=np.uint32)
        coreset = coresets.WeightedRows(rows, np.ones(len(rows)))
    given = {"local_clustering": "lloyd", "test_fraction": 0.0, "coreset": coreset}
    return asked.ask(coresets.local_clusters, n_clusters=k, **given)[VICTIM]["centers"]


def asking(parties, *kinds):
    """Return real parties that let these kinds leave, and a server that asks them."""
    for party in parties:
        party.consent = letting(*kinds)
    return Parties(Exchange(RealParties(parties)))


def test_centres_of_clusters_are_rows():
    """A single row came back exactly, and 0.37 of the centres for k = 20 and m = 50.

    Draws are the party's own. Of 150 runs the share was 0.2 to 0.45, with a standard
    deviation of 0.05.
    """
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3))
    parties = [Party(X[:, [j]] if j != VICTIM else X, name="abc"[j]) for j in range(3)]
    asked = asking(parties, "rows")
    np.testing.assert_array_equal(centres(asked, 1, [17]), X[[17]])
    found = centres(asked, 20, rng.choice(200, size=50, replace=False))
    same = (np.abs(found[:, None] - X).max(axis=2) < 1e-12).any(axis=1)
    assert 0 < same.mean() < 0.75
    asked = asking(parties, "row-sums", "totals")
    with pytest.raises(PartyFailed, match="does not allow rows"):
        centres(asked, 1, [17])
    for j, party in enumerate(parties):
        party.consent = limited(20) if j == VICTIM else ALLOW_ALL
    asked = Parties(Exchange(RealParties(parties)))
    with pytest.raises(PartyFailed, match="at most 20 rows to leave the party as rows"):
        centres(asked, 5)


def test_bounds_of_sums_do_not_find_an_addend():
    """Forty bounds gave each addend to a relative error of 1e-12."""
    parties = columns()
    told: list[int] = []

    class Watching(Parties):
        def _clipped(self, step, replies):
            told.append(int.from_bytes(replies[VICTIM].clipped, "little"))
            return super()._clipped(step, replies)

    asked = Watching(Exchange(RealParties(parties)), seed=0)
    low, high = 0.0, 64.0
    for _ in range(40):
        bound = (low + high) / 2
        distances(asked, 1, bound=bound)
        low, high = (bound, high) if told[-1] else (low, bound)
    truth = float((parties[VICTIM].X[0] ** 2).sum())
    assert abs(low - truth) / truth > 0.5
    assert len(set(told)) == 40  # 64 random bits each


def test_a_bound_does_not_find_the_largest_score():
    """Forty bounds gave the largest score of a row, to a factor of two."""
    asked = asking(columns(), "totals", "row-sums")
    asked.ask(coresets.totals, size=0, test_fraction=0.0, intercept=False)
    question = coresets.scores.summing(scores=1.0)
    with pytest.raises(PartyFailed, match=r"bound of the sum .* at least 2, got 1"):
        asked.ask(question, rows=np.array([5], dtype=np.uint32), pool=False)


def labelled(n=60):
    parties = columns(n)
    parties[2].y = (np.random.default_rng(5).random(n) < 0.5).astype(float)
    return parties


def test_a_fit_on_two_rows_says_nothing_of_their_labels():
    """It was refused exactly when they were equal: all 200 labels followed."""
    parties = labelled()
    y = parties[2].y
    for row in (np.flatnonzero(y == y[0])[1], np.flatnonzero(y != y[0])[0]):
        with pytest.raises(PartyFailed, match="at least 20 rows, all distinct, got 2"):
            fitted(asking(parties, "angles"), [0, row])


def test_a_fit_on_many_rows_is_not_refused_for_their_labels():
    """Of nineteen known rows and a twentieth it would tell the last label."""
    parties = labelled()
    y = parties[2].y
    same, other = np.flatnonzero(y == 1.0), np.flatnonzero(y == 0.0)
    for last in (same[19], other[0]):
        assert fitted(asking(parties, "angles"), [*same[:19], last])["kept"] is False


def test_distances_are_summed_once_a_run():
    """Medians of other pairs would add up."""
    asked = asking(labelled(), "angles")
    question = angle_sums.distances.summing(distances=Sum(LIMB, to=2))
    given = {"kernel": "gaussian", "target": "binary", "holder": 2}
    asked.ask(question, **given, rows=np.arange(30, dtype=np.uint32))
    with pytest.raises(PartyFailed, match="fdskl_distances may be requested only once"):
        asked.ask(question, **given, rows=np.arange(1, 31, dtype=np.uint32))
