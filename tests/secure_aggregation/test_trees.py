"""Trees: every term arrives once, and two of them show no sum that they hide."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from draws import law
from hypothesis import given
from hypothesis import strategies as st

from vfl_flower.secure_aggregation import trees

KINDS = ("ring", "tree")


def _sets(*sets):
    return {frozenset(one) for one in sets}


def _walk(tree, terms):
    """Send values along the edges, hop by hop; return what the root has."""
    held = dict(terms)
    for hop in tree.hops:
        messages = [(receiver, held.pop(sender)) for sender, receiver in hop]
        for receiver, message in messages:
            held[receiver] += message
    (root,) = held
    assert root == tree.root
    return held[root]


def _all_cases(largest):
    """Yield each kind, T1 and l' for up to `largest` parties; l is 0."""
    for kind, q in product(KINDS, range(2, largest + 1)):
        firsts = {trees.spanning(kind, order, 0) for order in permutations(range(q))}
        for first, without in product(firsts, range(1, q)):
            yield kind, first, q, without


def test_ring_worked_by_hand():
    tree = trees.ring([3, 0, 2, 1])
    assert tree == trees.Tree(1, (((3, 0),), ((0, 2),), ((2, 1),)))
    assert tree.subtrees() == _sets([3, 0], [3, 0, 2], [3, 0, 2, 1])
    assert tree.received() == {0: [{3}], 2: [{0, 3}], 1: [{0, 2, 3}]}


def test_binary_is_figure_2_of_the_paper():
    """1 adds 2's while 3 adds 4's; then 1 adds the sum of 3."""
    tree = trees.binary([1, 2, 3, 4])
    assert tree == trees.Tree(1, (((2, 1), (4, 3)), ((3, 1),)))
    assert tree.subtrees() == _sets([1, 2], [3, 4], [1, 2, 3, 4])
    assert trees.binary([1, 2, 3]) == trees.Tree(1, (((2, 1),), ((3, 1),)))


def test_binary_root_receives_wherever_it_stands():
    assert trees.binary([1, 2, 3, 4], 4) == trees.Tree(4, (((2, 1), (3, 4)), ((1, 4),)))
    assert trees.binary([1, 2, 3], 3) == trees.Tree(3, (((2, 1),), ((1, 3),)))


@law
@given(st.data(), st.integers(1, 70), st.sampled_from(KINDS))
def test_every_term_arrives_once(data, q, kind):
    order = data.draw(st.permutations(range(q)))
    root = data.draw(st.sampled_from(order))
    tree = trees.spanning(kind, order, root)
    terms = {j: 1 << j for j in range(q)}
    assert _walk(tree, terms) == 2**q - 1
    assert tree.leaves == set(range(q))
    assert sum(map(len, tree.hops)) == q - 1
    hops = q - 1 if kind == "ring" else math.ceil(math.log2(q))
    assert len(tree.hops) == hops
    assert all(len(hop) == 1 for hop in tree.hops) or kind == "tree"


def test_subtrees_of_several_messages_in_one_hop():
    """A receiver adds them one after another."""
    tree = trees.Tree(0, (((1, 0), (2, 0)),))
    assert tree.subtrees() == _sets([0, 1], [0, 1, 2])


def test_totally_different_worked_by_hand():
    """Figure 2 of the paper: {1, 2} and {3, 4} in T1, so T2 may not begin with them."""
    first = trees.binary([1, 2, 3, 4])
    assert trees.totally_different(first, trees.binary([1, 3, 2]))
    assert not trees.totally_different(first, trees.binary([1, 2, 3]))
    assert not trees.totally_different(first, trees.Tree(1, (((4, 3),), ((3, 1),))))
    # The order inside does not matter: {3, 4} again.
    assert not trees.totally_different(first, trees.Tree(1, (((3, 4),), ((4, 1),))))
    assert trees.totally_different(first, trees.Tree(1, ()))


def test_exposed_worked_by_hand():
    """The trees of Definition 2 still show single terms, and sums of messages."""
    first = trees.binary([1, 2, 3, 4])  # 1 receives {2}, then {3, 4}
    assert trees.exposed(first, trees.binary([1, 3, 2])) == {(1, frozenset([2]))}
    assert trees.exposed(first, trees.Tree(1, (((2, 3),), ((3, 1),)))) == set()
    # 0 has {1}, {4}, {2, 3} and {3}, {1, 2}: no set twice, but {1, 2, 3} is a union.
    first = trees.Tree(0, (((1, 0), (3, 2)), ((4, 0),), ((2, 0),)))
    second = trees.Tree(0, (((2, 1), (3, 0)), ((1, 0),)))
    assert trees.totally_different(first, second)
    assert trees.exposed(first, second) == {(0, frozenset([1, 2, 3]))}


def _exposed_by_rank(first, second):
    """Return who finds a sum of messages in which all b cancel and some x does not."""
    actual, q = set(), len(first.leaves)
    for party in first.leaves:
        messages = [(1, leaves) for leaves in first.received().get(party, [])]
        messages += [(0, leaves) for leaves in second.received().get(party, [])]
        x_part, b_part = np.zeros((2, len(messages), q))
        for row, (has_x, leaves) in enumerate(messages):
            x_part[row, [*leaves]] = has_x
            b_part[row, [*leaves]] = 1
        view = np.hstack([x_part, b_part])
        if np.linalg.matrix_rank(view) > np.linalg.matrix_rank(b_part):
            actual.add(party)
    return actual


def test_exposed_is_all_that_linear_algebra_finds():
    """Reference: more independent messages than their b-parts have, for each party."""
    for kind, first, q, without in _all_cases(4):
        leaves = [j for j in range(q) if j != without]
        for order in permutations(leaves):
            second = trees.spanning(kind, order, 0)
            actual = {party for party, _ in trees.exposed(first, second)}
            assert actual == _exposed_by_rank(first, second)


def test_different_trees_exhaustively_for_up_to_five_parties():
    """One exists unless, in T1, all but l' (and, in a chain, l) are a subtree.

    And one that shows nobody anything, unless somebody sends l its bare term in T1.
    """
    for kind, first, q, without in _all_cases(5):
        leaves = [j for j in range(q) if j != without]
        inner = frozenset(leaves) - ({0} if kind == "ring" else set())
        second = trees.different_tree(first, leaves, 0, kind)
        if len(inner) > 1 and inner in first.subtrees():
            assert second is None
            continue
        assert trees.totally_different(first, second)
        assert (second.root, second.leaves) == (0, frozenset(leaves))
        if trees.exposed(first, second):
            assert kind == "tree"
            assert 1 in map(len, first.received()[0])


def test_three_parties_exhaustively():
    """In a chain always; in a binary tree only if l does not begin with the other."""
    for without, other in [(1, 2), (2, 1)]:
        for order in permutations(range(3)):
            first = trees.ring([*(j for j in order if j), 0])
            second = trees.different_tree(first, [0, other], 0, "ring")
            assert second == trees.ring([other, 0])
            assert not trees.exposed(first, second)
        first = trees.binary([0, other, without])
        assert trees.different_tree(first, [0, other], 0, "tree") is None
        # Definition 2 is kept, and l still has x of the other.
        first = trees.binary([0, without, other])
        second = trees.different_tree(first, [0, other], 0, "tree")
        assert trees.exposed(first, second) == {(0, frozenset([other]))}
        first = trees.binary([other, without, 0], 0)
        second = trees.different_tree(first, [0, other], 0, "tree")
        assert not trees.exposed(first, second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q", range(2, 7))
def test_two_trees_exhaustively_for_up_to_six_parties(kind, q):
    for root, without in permutations(range(q), 2):
        first, second = trees.two_trees(kind, range(q), root, without)
        assert (first.root, second.root) == (root, root)
        assert first.leaves == set(range(q))
        assert second.leaves == set(range(q)) - {without}
        assert trees.totally_different(first, second)
        assert not trees.exposed(first, second)
        assert (first, second) == trees.two_trees(kind, range(q), root, without)


def test_algorithm_3_with_numbers():
    """sum_j (x_j + b_j) along T1 minus the b along T2 is sum_j x_j + b_l'."""
    x, b = np.random.default_rng(0).uniform(0, 6, (2, 6))
    for kind, (root, without) in product(KINDS, permutations(range(6), 2)):
        first, second = trees.two_trees(kind, range(6), root, without)
        xi = _walk(first, dict(enumerate(x + b)))
        removed = _walk(second, {j: b[j] for j in range(6) if j != without})
        assert xi - removed == pytest.approx(x.sum() + b[without], rel=1e-12)
