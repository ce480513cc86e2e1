"""Paths along which a sum is formed: chains, binary trees, and pairs of trees.

Algorithm 3 of [1] adds the hidden terms x_j + b_j along one tree, and then adds the
hiding terms b_j along another tree. Whoever knows sum_S (x_j + b_j) and sum_S b_j for
the same set S of parties also knows sum_S x_j, so the two trees must have no such set
in common.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

_EXHAUSTIVE = 6
"""Maximum number of leaves for which all orders (at most 720) are tried."""

_SHUFFLES = 200
"""Number of orders tried for larger trees; about half of all orders are valid."""


@dataclass(frozen=True)
class Tree:
    """A tree whose leaves are parties and along which their terms are added.

    Each leaf except the root sends one message: its own term plus all terms that it
    received.
    """

    root: int
    """The party that ends up with the sum."""
    hops: tuple[tuple[tuple[int, int], ...], ...]
    """Hop k holds the edges (sender, receiver) that are used at the same time. A sender
    has received the sums of all its children in earlier hops."""

    @property
    def leaves(self) -> frozenset[int]:
        """The parties whose terms are added, the root included."""
        return frozenset([self.root, *(a for hop in self.hops for a, _ in hop)])

    def subtrees(self) -> set[frozenset[int]]:
        """Leaf sets of all sums formed at a party; each set has at least two leaves."""
        return {leaves for _, _, leaves in self._sums()}

    def received(self) -> dict[int, list[frozenset[int]]]:
        """Leaf sets of the messages that each party receives, in order."""
        messages: dict[int, list[frozenset[int]]] = {}
        for receiver, message, _ in self._sums():
            messages.setdefault(receiver, []).append(message)
        return messages

    def _sums(self) -> Iterator[tuple[int, frozenset[int], frozenset[int]]]:
        """Yield each message's receiver and leaves, and the leaves of the new sum."""
        held = {j: frozenset([j]) for j in self.leaves}
        for hop in self.hops:
            for sender, receiver in hop:
                held[receiver] |= held[sender]
                yield receiver, held[sender], held[receiver]


def ring(order: Sequence[int]) -> Tree:
    """Return the chain ``order[0] -> ... -> order[-1]``, which ends at the root."""
    return Tree(order[-1], tuple((edge,) for edge in pairwise(order)))


def binary(order: Sequence[int], root: int | None = None) -> Tree:
    """Return the tree of Figure 2 of [1], with ceil(log2 q) hops for q parties.

    In each hop the parties that still hold a sum are paired in order, and the second
    of each pair sends to the first. A party without a partner waits. The root, by
    default ``order[0]``, receives in each of its pairs, even if it is the second.
    """
    root = order[0] if root is None else root
    hops, waiting = [], list(order)
    while len(waiting) > 1:
        hop = [
            (a, b) if b == root else (b, a)
            for a, b in zip(waiting[::2], waiting[1::2], strict=False)
        ]
        hops.append(tuple(hop))
        senders = {sender for sender, _ in hop}
        waiting = [party for party in waiting if party not in senders]
    return Tree(root, tuple(hops))


def spanning(topology: str, order: Sequence[int], root: int) -> Tree:
    """Return the chain ("ring") or binary tree ("tree") over `order`, ending at `root`.

    A star has no such tree, because the server adds the terms.
    """
    if topology == "tree":
        return binary(order, root)
    return ring([*(party for party in order if party != root), root])


def totally_different(a: Tree, b: Tree) -> bool:
    """Return whether no subtree with more than one leaf belongs to both trees.

    This is Definition 2 of [1]. Subtrees are compared by their sets of leaves, since a
    sum over S is the same in any order.
    """
    return a.subtrees().isdisjoint(b.subtrees())


def exposed(first: Tree, second: Tree) -> set[tuple[int, frozenset[int]]]:
    """Return the sums of x that individual parties learn from two trees.

    Terms x_j + b_j are added along the first tree, and terms b_j along the second. Each
    result is a party p and a smallest set S, p not in S, such that p can compute
    sum_S x_j.

    Definition 2 of [1] does not prevent such sums. It ignores single leaves: a party
    that sends its bare term to the same recipient in both trees reveals
    x_j = (x_j + b_j) - b_j. The definition also ignores that a recipient can add up its
    messages: from the sums over {a} and {b, c} in one tree, and over {a, b} and {c} in
    the other tree, the recipient obtains the sum over {a, b, c}.
    """
    learned: set[tuple[int, frozenset[int]]] = set()
    of_second = second.received()
    for party, messages in first.received().items():
        # The messages of one tree are sums over disjoint sets. If some messages of each
        # tree sum over the same S, S is a union of components of overlapping sets.
        pairs = [(leaves, 1) for leaves in messages]
        pairs += [(leaves, 2) for leaves in of_second.get(party, [])]
        while pairs:
            component, _ = pairs[0]
            while more := [s for s, _ in pairs if s & component and not s <= component]:
                component = component.union(*more)
            inside = [pair for pair in pairs if pair[0] <= component]
            pairs = [pair for pair in pairs if pair not in inside]
            in_first, in_second = (
                frozenset[int]().union(*(s for s, tree in inside if tree == number))
                for number in (1, 2)
            )
            if in_first == component == in_second:
                learned.add((party, component))
    return learned


def different_tree(
    first: Tree, leaves: Sequence[int], root: int, topology: str
) -> Tree | None:
    """Return a tree from `leaves` to `root` that is totally different from `first`.

    The result is T2 of Algorithm 3 of [1] for a given T1 (`first`). The leaves of T1
    are all parties, and T1 ends at l, the root. The leaves of T2 are all parties except
    l'. A tree from which no party alone learns anything (see `exposed`) is preferred.
    The result is None if none of the trees tried is totally different.
    """
    fallback = None
    for order in _orders(leaves):
        tree = spanning(topology, order, root)
        if totally_different(first, tree):
            if not exposed(first, tree):
                return tree
            fallback = fallback or tree
    return fallback


def two_trees(
    topology: str, parties: Sequence[int], root: int, without: int
) -> tuple[Tree, Tree]:
    """Return T1 and T2 of Algorithm 3 of [1] for l (`root`) and l' (`without`).

    The leaves of T1 are all parties, at least two, and the leaves of T2 are all parties
    except l'. Both trees end at l and are totally different. No single party learns a
    sum of x from the two trees (see `exposed`).

    Unlike in [1], the choice of T1 depends on l' (public in any case), because some
    trees T1 have no T2. With four or more parties, these are a chain in which l' sends
    to l, and a binary tree in which all parties except l' are added first. Moreover, if
    l' sends only its own term to l, l can subtract this term and so learn a sum of x.
    """
    leaves = [party for party in parties if party != without]
    for order in _orders(parties):
        first = spanning(topology, order, root)
        second = different_tree(first, leaves, root, topology)
        if second is not None and not exposed(first, second):
            return first, second
    raise ValueError(  # tested for up to 64 parties
        f"no pair of totally different trees was found for the {topology} over "
        f"{len(parties)} parties"
    )


def _orders(leaves: Sequence[int]) -> Iterator[Sequence[int]]:
    if len(leaves) <= _EXHAUSTIVE:
        return permutations(leaves)
    generator = random.Random(0)
    return (generator.sample(leaves, len(leaves)) for _ in range(_SHUFFLES))
