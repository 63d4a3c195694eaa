from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from soothsay.drafters.history import HistoryDrafter, HistoryState
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

ENCODED = Encoded(torch.zeros(1, 4, 2), (4,))
DRAFTER = HistoryDrafter()


def opened(hint: list[int] | None = None, written: tuple[int, ...] = ()) -> HistoryState:
    state = DRAFTER.open(ENCODED, [100, 101], hint)
    DRAFTER.advance(state, written)
    return state


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    leaves = [node for node, below in enumerate(tree.children()) if not below and node]
    return {tuple(tree.tokens[i] for i in tree.path(node)) for node in leaves}


def children(state: HistoryState) -> dict[int, float]:
    """The tokens below the root and the chance each is given."""
    tree = DRAFTER.propose(state, Price(nodes=16))
    return {tree.tokens[child]: tree.acceptance[child] for child in tree.children()[0]}


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


def test_what_followed_more_often_is_likelier() -> None:
    (once,) = children(opened(written=(1, 2, 5, 1, 2))).values()
    (twice,) = children(opened(written=(1, 2, 5, 8, 1, 2, 5, 9, 1, 2))).values()
    split = children(opened(written=(1, 2, 5, 8, 1, 2, 6, 9, 1, 2)))
    most = children(opened(written=(1, 2, 5, 8, 1, 2, 5, 7, 1, 2, 6, 9, 1, 2)))
    assert split.keys() == most.keys() == {5, 6}
    assert split[5] == split[6] < once < twice
    assert most[6] < split[6] < most[5] < twice


def test_repeats_share_what_the_hint_leaves() -> None:
    hinted = children(opened([1, 2, 3, 1, 2, 4], (1, 2, 3, 1, 2)))
    alone = children(opened(written=(1, 2, 3, 1, 2)))
    assert hinted.keys() == {3, 4}
    assert hinted[4] > 0.5 > alone[3] > hinted[3]


def test_the_hint_alone_foretells_what_both_know() -> None:
    tree = DRAFTER.propose(opened([1, 2, 3, 1, 2, 3, 7], (1, 2, 3, 1, 2)), Price(nodes=16))
    assert paths(tree) == {(3, 7)}


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
    for node, below in enumerate(tree.children()):
        assert sum(tree.acceptance[child] for child in below) <= tree.acceptance[node] + 1e-12


@given(st.lists(st.integers(0, 2), max_size=40))
def test_repeats_are_what_a_plain_search_finds(written: list[int]) -> None:
    """Oracle: read the whole text again for the longest tail that something followed."""
    text = [101, *written]
    found: list[int] = []
    for n in range(1, 5):
        followed = [
            text[i + n]
            for i in range(len(text) - n)
            if n <= len(text) and text[i:][:n] == text[-n:]
        ]
        found = followed or found
    drafted = children(opened(written=tuple(written)))
    assert drafted.keys() <= set(found)
    assert len(drafted) == min(len(set(found)), 2)
    for token, chance in drafted.items():
        assert chance == pytest.approx((found.count(token) - 0.8) / len(found))
    for other in set(found) - drafted.keys():
        assert found.count(other) <= min(found.count(token) for token in drafted)
