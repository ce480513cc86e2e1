"""A dealer that gives an owner of columns other seeds than those of the masks."""

import numpy as np
import pytest
from federations import by_columns

from vfl_flower import CoresetVRLR, PartyFailed, SecureRidge, simulate
from vfl_flower.clients.ridge import solving
from vfl_flower.secure_aggregation.products import dealing, triples
from vfl_flower.secure_aggregation.products import relevance as ridge_relevance
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import Dealt

N = 400
OTHER = bytes(range(32))
"""Another root than that of the masks."""


def parties():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 6))
    return by_columns(X, X.sum(axis=1) + rng.normal(size=N))


def nothing_is_multiplied(monkeypatch, triple, name, party):
    """Fail where a party multiplies what it should refuse."""
    original = getattr(triple, name)

    def multiply(self, *args):
        assert self.party != party, "multiplied what a false seed hides"
        return original(self, *args)

    monkeypatch.setattr(triple, name, multiply)


LINEAR = {
    "model": CoresetVRLR(solver="gram", sampling="full"),
    "party deals": CoresetVRLR(solver="gram", sampling="full", dealer="p1"),
    "kernel": SecureRidge(target="continuous", joint_features=8, relevance=False),
}


@pytest.mark.parametrize(
    ("name", "owner", "which"),
    [
        *(("model", owner, which) for owner in range(3) for which in (0, 1)),
        *(("party deals", 1, 0), ("kernel", 0, 1), ("kernel", 2, 0)),
    ],
)
def test_a_false_seed_of_columns_is_refused(monkeypatch, name, owner, which):
    """By the party that has the mask, before it multiplies; and the dealer is named."""

    def false(deal, root, place):
        """Deal a false seed of one of an owner's masks, under a right tag."""
        right, wrong = (triples.deal_owner(deal, key, place) for key in (root, OTHER))
        if place != owner:
            return right
        first, second = (wrong, right) if which == 0 else (right, wrong)
        return Dealt.of(deal, place, first.seed, second.correction, triples.OWNER)

    monkeypatch.setattr(dealing, "deal_owner", false)
    nothing_is_multiplied(monkeypatch, triples.GramTriple, "add", which)
    refuses = ("p2", "p0")[which]
    rule = rf"'{refuses}'.*the seeds that the dealer sent to party {owner} do not"
    with pytest.raises(PartyFailed, match=rule):
        simulate(LINEAR[name], parties(), seed=0)


@pytest.mark.parametrize("owner", [0, 1])
def test_a_false_seed_of_rows_that_are_scored_is_refused(monkeypatch, owner):
    def false(deal, root, place):
        return triples.deal_row_owner(deal, OTHER if place == owner else root, place)

    monkeypatch.setattr(dealing, "deal_row_owner", false)
    nothing_is_multiplied(monkeypatch, triples.PredictionTriple, "share_of_weights", 0)
    rule = "'p2'.*the seeds that the dealer sent to party 0 and party 1 do"
    with pytest.raises(PartyFailed, match=rule):
        simulate(LINEAR["kernel"].replace(test_fraction=0.3), parties(), seed=0)


@pytest.mark.parametrize("place", [0, -1])
def test_a_false_triple_of_relevance_is_refused(monkeypatch, place):
    """It would shift what a party learns of its columns by what the dealer knows."""
    right = triples.deal_predictions

    def false(deal, root):
        first, second = right(deal, root)
        changed = second.correction.copy()
        changed[place] ^= 1
        return first, Dealt.of(deal, 1, second.seed, changed)

    monkeypatch.setattr(ridge_relevance.triples, "deal_predictions", false)
    rule = "'p2'.*the dealer's triple failed the check: the relevance"
    with pytest.raises(PartyFailed, match=rule):
        simulate(LINEAR["kernel"].replace(relevance=True), parties(), seed=0)


def test_a_digest_is_of_one_seed_owner_and_use():
    roles = Roles(2, 0, [2, 2, 3], N)
    uses = [roles.deal(1), roles.deal(2)]
    digests = {
        triples.owner_digest(use, owner, seed)
        for use in uses
        for owner in range(3)
        for seed in (bytes(32), OTHER)
    }
    assert len(digests) == 2 * 3 * 2
    dealt = triples.deal_owner(uses[0], bytes(32), 1)
    for j, seed in enumerate((dealt.seed, dealt.correction.tobytes())):
        right = triples.owner_digest(uses[0], 1, uses[0].seed(bytes(32), j))
        assert triples.seed_digest(uses[0], 1, seed) == right
        assert seed not in right


def test_open_a_dealer_of_false_angles_is_not_found_out(monkeypatch):
    """It deals the cosines too, and nobody else knows the sum of all random angles.

    With a bandwidth that leaves nothing of the columns the joint features are the
    cosines of what it has dealt, and it gets the error of a model of them.
    """
    original = dealing._deal_angles

    def false(use_of, session, root, roles):
        dealt = original(use_of, session, root, roles)
        wrong = original(use_of, session, OTHER, roles)
        return [wrong[0], *dealt[1:]]

    spreads, fit = [], solving.fit_gram

    def look(gram, *args, **more):
        first = gram / gram[-1, -1]
        spreads.append(np.diag(first)[-10:-2] - first[-10:-2, -1] ** 2)
        return fit(gram, *args, **more)

    monkeypatch.setattr(solving, "fit_gram", look)
    strategy = LINEAR["kernel"].replace(bandwidth=1e9)
    simulate(strategy, parties(), seed=0)
    monkeypatch.setattr(dealing, "_deal_angles", false)
    simulate(strategy, parties(), seed=0)
    assert np.abs(spreads[0]).max() < 1e-3
    assert np.abs(spreads[1] - 0.5).max() < 0.1
