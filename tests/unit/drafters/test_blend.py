"""One tree of several: the arithmetic by hand, and its limits on random trees."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from soothsay.drafters.blend import BlendDrafter, blend
from soothsay.drafters.history import HistoryDrafter
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

FREE = Price(0.0, 50)


def acceptances(tree: DraftTree) -> dict[tuple[int, ...], float]:
    return {
        tuple(tree.tokens[n] for n in tree.path(node)): tree.acceptance[node]
        for node in range(1, len(tree.tokens))
    }


def test_a_later_source_spends_what_is_left() -> None:
    one = DraftTree.from_paths(9, [([1, 2], [0.6, 0.5]), ([3], [0.2])])
    two = DraftTree.from_paths(9, [([1, 2], [0.5, 0.4]), ([4], [0.3])])
    assert acceptances(blend([one, two], FREE)) == pytest.approx(
        {
            (1,): 0.6 + 0.2 * 0.5,
            (3,): 0.2,
            (4,): 0.2 * 0.3,
            (1, 2): 0.7 * (0.5 + 0.5 * 0.4),
        }
    )


def test_a_path_known_to_one_keeps_its_chances() -> None:
    one = DraftTree.from_paths(9, [([1], [0.5])])
    two = DraftTree.from_paths(9, [([4, 5], [0.5, 0.8])])
    assert acceptances(blend([one, two], FREE)) == pytest.approx(
        {(1,): 0.5, (4,): 0.25, (4, 5): 0.25 * 0.8}
    )


def test_three_sources_by_hand() -> None:
    """Below the root: 1 by the first, 2 by two, 3 by all; the third knows 3 4 alone."""
    trees = [
        DraftTree.from_paths(9, [([1], [0.3]), ([3], [0.2])]),
        DraftTree.from_paths(9, [([2], [0.4]), ([3], [0.2])]),
        DraftTree.from_paths(9, [([2], [0.1]), ([3, 4], [0.5, 0.7])]),
    ]
    two, three = 0.5 * 0.4, 0.2 + 0.5 * 0.2  # of 0.5 that the first left; then 0.2 is left
    two, three = two + 0.2 * 0.1, three + 0.2 * 0.5
    blended = blend(trees, FREE)
    assert acceptances(blended) == pytest.approx(
        {(1,): 0.3, (2,): two, (3,): three, (3, 4): three * 0.7}
    )
    assert blended.tokens == (9, 3, 1, 4, 2)  # likeliest first
    assert blended.log_q == pytest.approx([0.0, *map(math.log, (three, 0.3, 0.7, two))])


def test_a_source_that_is_sure_leaves_nothing() -> None:
    sure = DraftTree.from_paths(9, [([1], [0.7]), ([2], [0.3])])
    other = DraftTree.from_paths(9, [([1], [0.5]), ([3], [0.5])])
    assert acceptances(blend([sure, other], FREE)) == pytest.approx({(1,): 0.7, (2,): 0.3})
    boastful = DraftTree.from_paths(9, [([1], [0.9]), ([2], [0.8])])  # 1.7 in all
    assert acceptances(blend([boastful, other], FREE)) == pytest.approx({(1,): 0.9, (2,): 0.8})


class Says(HistoryDrafter):
    """Always the same tree."""

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree

    def propose(self, state: object, price: Price) -> DraftTree:
        return self.tree


def test_a_silent_source_changes_nothing() -> None:
    tree = DraftTree.from_paths(9, [([1, 2], [0.6, 0.5]), ([3], [0.2])])
    for trees in ([None, tree], [tree, None], [None, tree, None]):
        sources = [Says(t or DraftTree.root_only(9)) for t in trees]
        assert BlendDrafter(sources).propose([None] * len(trees), FREE) == tree


def test_price() -> None:
    one = DraftTree.from_paths(9, [([1, 2, 3], [0.9, 0.8, 0.1])])
    two = DraftTree.from_paths(9, [([4], [0.9])])
    assert set(acceptances(blend([one, two], Price(0.2, 50)))) == {(1,), (1, 2)}
    assert set(acceptances(blend([one, two], Price(0.0, 2)))) == {(1,)}


def random_tree(chance: random.Random) -> DraftTree:
    paths = []
    for _ in range(chance.randint(0, 4)):
        length = chance.randint(1, 4)
        tokens = [chance.randint(1, 3) for _ in range(length)]
        paths.append((tokens, [chance.random() for _ in range(length)]))
    return DraftTree.from_paths(9, paths)


@given(st.integers(0, 100_000), st.integers(1, 8), st.integers(2, 3))
def test_the_blend_is_a_tree_within_its_price(seed: int, nodes: int, sources: int) -> None:
    chance = random.Random(seed)
    price = Price(chance.random() / 4, nodes)
    tree = blend([random_tree(chance) for _ in range(sources)], price)
    tree.validate(10)
    assert tree.merged() is tree
    assert len(tree.tokens) <= nodes
    for node in range(1, len(tree.tokens)):
        assert price.threshold <= tree.acceptance[node] <= tree.acceptance[tree.parents[node]]


def test_as_a_drafter_silent_sources_cost_nothing() -> None:
    blended = BlendDrafter([HistoryDrafter(), HistoryDrafter()])
    assert blended.name == "history+history"
    state = blended.open(Encoded(torch.zeros(1, 4, 2), (4,)), [9], None)
    assert blended.propose(state, FREE) == DraftTree.root_only(9)
    blended.advance(state, [1, 2, 1])
    assert acceptances(blended.propose(state, FREE)) == pytest.approx(
        {(2,): 0.2 + 0.8 * 0.2, (2, 1): (0.2 + 0.8 * 0.2) * (0.4 + 0.6 * 0.4)}
    )
