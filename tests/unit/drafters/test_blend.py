"""One tree of several: the arithmetic by hand, and its limits on random trees."""

from __future__ import annotations

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
