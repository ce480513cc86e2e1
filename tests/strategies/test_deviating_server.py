"""What a server gains that tells the parties of one step different things.

Each attack succeeded once, as its docstring says. The parties are real ones: they run
the code of SuperNodes and insist on masks.
"""

from dataclasses import replace

import numpy as np
import pytest
from consents import limited
from deviating import RealParties, sums_of

from vfl_flower import MUFC, CoresetVKMC, CoresetVRLR, FKKMeans, Party, PartyFailed
from vfl_flower.clients import linear
from vfl_flower.protocol.frame import Frame
from vfl_flower.protocol.ledger import Ledger
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.steps import each
from vfl_flower.strategies import MUFCUnlearn

VICTIM = 1


def rows(n=40, d=4):
    """Return three parties with other rows of the same columns."""
    rng = np.random.default_rng(0)
    return [Party(rng.normal(size=(n, d)), name=name) for name in "abc"]


def columns(n=60):
    """Return three parties with other columns of the same rows; the last has labels."""
    rng = np.random.default_rng(1)
    blocks = np.hsplit(rng.normal(size=(n, 6)), 3)
    y = np.hstack(blocks).sum(axis=1)
    return [Party(B, y=y if j == 2 else None) for j, B in enumerate(blocks)]


def others_get(**values):
    """Tell the victim the truth, and the others something else."""

    def tamper(_, j, told):
        if j == VICTIM:
            return told
        return {n: values[n](v) if n in values else v for n, v in told.items()}

    return tamper


def as_told(_, __, told):
    return told


def kernel_kmeans(masking, **settings):
    common = {"n_components": 4, "iterations": 1, "gamma": 0.5, "n_features": 20}
    return FKKMeans(3, **common, masking=masking, seed=0, **settings)


ATTACKS = {
    "vectors of zeros": (
        lambda masking: kernel_kmeans(masking, eigensolver="lanczos"),
        rows,
        "kernel_kmeans_product",
        others_get(vectors=np.zeros_like),
    ),
    "a constant kernel": (
        lambda masking: kernel_kmeans(masking, partition="vertical"),
        lambda: [Party(party.X) for party in columns()],
        "kernel_kmeans_angles",
        others_get(gamma=lambda gamma: gamma * 1e-12),
    ),
}


def error_of(seen, truth):
    """Return the mean error of an attack; that of a guess is about 1."""
    if seen.dtype.kind == "u":  # fractions of a turn
        turns = seen / 2.0 ** (8 * seen.itemsize) - truth
        return np.abs(turns - np.round(turns)).mean() / 0.25
    return np.abs(seen - truth).mean() / np.abs(truth).mean()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_sum_of_different_questions_is_noise(attack):
    """The error was 1e-16 for the vectors, and 3e-5, that of 16 bits, for the kernel.

    The sum was the victim's addend, and the server can compute what the others add.
    """
    strategy, parties, action, tamper = ATTACKS[attack]
    truth = sums_of(strategy("plain"), parties(), action, tamper, real=False)
    seen = sums_of(strategy("ring"), parties(), action, tamper)
    for name, array in seen.items():
        # A single number of noise is near the truth by chance: 1e-6 of the time here.
        least = 0.9 if array.size > 100 else 1e-6
        assert error_of(array, truth[name]) > least


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_sum_of_one_question_is_the_sum(attack):
    """Or the tests above would show nothing."""
    strategy, parties, action, _ = ATTACKS[attack]
    truth = sums_of(strategy("plain"), parties(), action, as_told, real=False)
    seen = sums_of(strategy("ring"), parties(), action, as_told)
    for name, array in seen.items():
        assert error_of(array, truth[name]) < 1e-4


def residuals(asked, blocks=None):
    """Ask for residuals of the first row; return their sum."""
    if blocks is not None:
        asked._blocks = blocks
    return asked.secure_sum(
        linear.residuals.summing(residual=16.0),
        coefficients=each([np.ones(party.n_columns) for party in asked]),
        intercept=0.0,
        test_fraction=0.0,
        test=False,
        trained=False,
        start=0,
        stop=20,
    )["residual"]


def test_a_party_checks_its_own_digest():
    """Else the server could commit to other inputs than those it tells."""
    asked = Parties(RealParties(columns()), Ledger(), seed=0)
    honest = asked._blocks

    def forged(step, told):
        blocks = honest(step, told)
        digests = blocks.digests[:32] + bytes(32) + blocks.digests[64:]
        return replace(blocks, digests=digests)

    with pytest.raises(PartyFailed, match="the digest of what this party is told"):
        residuals(asked, forged)


def test_lists_of_digests_that_differ_give_noise(monkeypatch):
    """Each party finds its own inputs in the list, but the lists are not one."""
    truth = residuals(Parties(RealParties(columns()), Ledger(), seed=0))
    pack = Frame.pack

    def apart(self):
        packed = pack(self)
        if self.index == VICTIM and self.blocks:
            packed["blocks"] = bytes(32) + self.blocks[32:]
        return packed

    monkeypatch.setattr(Frame, "pack", apart)
    monkeypatch.setattr(Parties, "_clipped", lambda *_: 0)
    seen = residuals(Parties(RealParties(columns()), Ledger(), seed=0))
    assert np.abs(seen - truth).min() > 1e-6


@pytest.mark.parametrize("solver", ["central", "cg"])
def test_rows_of_residuals_count_as_rows_that_leave(solver):
    """All columns and labels followed to 2e-16, and no row was counted."""
    parties = columns()
    parties[VICTIM].consent = limited(20)
    strategy = CoresetVRLR(size=20, solver=solver, test_fraction=0.5, seed=0)
    with pytest.raises(PartyFailed, match="consent lets 20 rows") as caught:
        strategy.start(RealParties(parties))
    assert caught.value.party == f"party-{VICTIM}"


def test_rows_of_distances_count_as_rows_that_leave():
    parties = columns()
    parties[VICTIM].consent = limited(20)
    strategy = CoresetVKMC(3, size=20, evaluate="full", seed=0)
    with pytest.raises(PartyFailed, match="consent lets 20 rows"):
        strategy.start(RealParties(parties))


def test_all_parties_but_one_leave(tmp_path, monkeypatch):
    """Its counts were the sum: each of its centroids to a quantisation step."""
    parties = rows()
    for party in parties:
        party.ids = np.array([f"{party.name}-{i}" for i in range(party.n_rows)])
        party.state_dir = tmp_path / party.name
    server = tmp_path / "server"
    settings = {"n_clusters": 2, "box": (-5.0, 5.0), "server_state": server}
    grid = RealParties(parties)
    model = MUFC(**settings).start(grid).model.model
    ask = Parties.ask

    def others_leave(self, question, **values):
        if question.step.action == "mufc_forget":
            values |= {"leaving": [j for j in range(3) if j != VICTIM]}
        return ask(self, question, **values)

    monkeypatch.setattr(Parties, "ask", others_leave)
    unlearn = MUFCUnlearn(model, {"b": ["b-0"]}, server_state=server)
    with pytest.raises(PartyFailed, match="at least 2 parties"):
        unlearn.start(grid)


def test_bounds_of_sums_do_not_find_an_addend():
    """Forty bounds gave each addend to a relative error of 1e-12."""
    parties = columns()
    told: list[int] = []

    class Watching(Parties):
        def _clipped(self, step, replies):
            told.append(int.from_bytes(replies[VICTIM].clipped, "little"))
            return super()._clipped(step, replies)

    asked = Watching(RealParties(parties), Ledger(), seed=0)
    coefficients = [np.ones(party.X.shape[1]) for party in parties]
    low, high = 0.0, 16.0
    for _ in range(40):
        bound = (low + high) / 2
        asked.ask(
            linear.residuals.summing(residual=bound),
            coefficients=each(coefficients),
            intercept=0.0,
            test_fraction=0.0,
            test=False,
            trained=False,
            start=0,
            stop=1,
        )
        low, high = (bound, high) if told[-1] else (low, bound)
    truth = abs(float(parties[VICTIM].X[0].sum()))
    assert abs(low - truth) / truth > 0.5
    assert len(set(told)) == 40  # 64 random bits each
