from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from soothsay.drafters.history import HistoryDrafter, HistoryState
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

ENCODED = Encoded(torch.zeros(1, 4, 2))
DRAFTER = HistoryDrafter()


def opened(hint: list[int] | None = None, written: tuple[int, ...] = ()) -> HistoryState:
    state = DRAFTER.open(ENCODED, [100, 101], hint)
    DRAFTER.advance(state, written)
    return state


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    leaves = [node for node, below in enumerate(tree.children()) if not below and node]
    return {tuple(tree.tokens[i] for i in tree.path(node)) for node in leaves}


def test_nothing_is_known_at_first() -> None:
    assert DRAFTER.propose(opened(), Price(nodes=8)).tokens == (101,)


def test_a_hint_is_followed() -> None:
    state = opened([1, 2, 3, 4, 5])
    assert paths(DRAFTER.propose(state, Price(nodes=4))) == {(1, 2, 3)}
    DRAFTER.advance(state, [1, 2])
    assert paths(DRAFTER.propose(state, Price(nodes=4))) == {(3, 4, 5)}


def test_a_hint_is_found_again_after_a_substitution_an_insertion_and_a_deletion() -> None:
    hint = list(range(1, 20))
    for written in ((1, 2, 99, 4, 5), (1, 2, 98, 99, 3, 4, 5), (1, 4, 5)):
        state = opened(hint, written)
        assert (6, 7, 8) in paths(DRAFTER.propose(state, Price(nodes=4)))


def test_the_nearest_of_several_places_is_taken() -> None:
    state = opened([1, 2, 3, 50, 1, 2, 3, 60], (1, 2, 3, 50, 99, 2, 3))
    assert DRAFTER.propose(state, Price(nodes=2)).tokens == (3, 60)


def test_repeated_text_is_foretold() -> None:
    state = opened(written=(1, 2, 3, 4, 9, 1, 2, 3))
    assert (4, 9, 1) in paths(DRAFTER.propose(state, Price(nodes=4)))


def test_two_continuations_are_siblings_the_newest_first() -> None:
    state = opened(written=(1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3))
    tree = DRAFTER.propose(state, Price(nodes=16))
    assert [tree.tokens[child] for child in tree.children()[0]] == [8, 7]


@given(
    st.lists(st.integers(0, 3), max_size=20),
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(1, 12),
    st.floats(0, 1),
)
def test_any_history_gives_a_tree_within_the_price(
    hint: list[int], written: list[int], nodes: int, threshold: float
) -> None:
    state = opened(hint, tuple(written))
    tree = DRAFTER.propose(state, Price(threshold=threshold, nodes=nodes))
    tree.validate(vocab_size=102)
    assert len(tree.tokens) <= nodes
    assert tree.tokens[0] == (written[-1] if written else 101)
    assert all(a >= threshold for a in tree.acceptance[1:])
    assert tree.merged() is tree
