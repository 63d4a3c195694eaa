"""Where masks stand behind a tree, against loops and enumeration on random trees."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soothsay.speculate.tree import DraftTree

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

VOCAB = 4


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 10) -> DraftTree:
    """Siblings are distinct and exclude each other: their chances add up to at most one."""
    n = draw(st.integers(1, max_nodes))
    tokens, parents, acceptance = [VOCAB], [-1], [1.0]
    taken: dict[int, list[int]] = {0: []}
    left = {0: 1.0}
    for node in range(1, n):
        roomy = [above for above in range(node) if len(taken[above]) < VOCAB]
        above = draw(st.sampled_from(roomy))
        token = draw(st.sampled_from([t for t in range(VOCAB) if t not in taken[above]]))
        share = draw(st.floats(0.05, 0.95))
        taken[above].append(token)
        tokens.append(token)
        parents.append(above)
        acceptance.append(left[above] * share)
        left[above] -= acceptance[node]
        taken[node], left[node] = [], acceptance[node]
    log_q = [0.0]
    log_q += [math.log(acceptance[i] / acceptance[parents[i]]) for i in range(1, n)]
    return DraftTree(tuple(tokens), tuple(parents), tuple(log_q), tuple(acceptance))


def end_chances(tree: DraftTree) -> list[float]:
    """Of each node, that the walk stops there: down its path, then into none of its children."""
    chances = []
    for node in range(len(tree.tokens)):
        chance, at = 1.0, node
        while at:
            chance *= math.exp(tree.log_q[at])
            at = tree.parents[at]
        goes_on = 0.0
        for other in range(len(tree.tokens)):
            if tree.parents[other] == node:
                goes_on += math.exp(tree.log_q[other])
        chances.append(chance * (1.0 - goes_on))
    return chances


@given(trees(), st.integers(0, 12))
def test_likely_ends_are_the_best_choice_of_all(tree: DraftTree, count: int) -> None:
    chances = end_chances(tree)
    assert sum(chances) == pytest.approx(1.0)
    found = tree.likely_ends(count)
    assert len(set(found)) == len(found) == min(count, len(chances))
    assert list(found) == sorted(found)
    best = max(
        sum(chances[node] for node in chosen)
        for chosen in itertools.combinations(range(len(chances)), len(found))
    )
    assert sum(chances[node] for node in found) == pytest.approx(best, abs=1e-9)


def test_likely_ends_by_hand() -> None:
    chain = DraftTree((9, 1, 2, 3), (-1, 0, 1, 2), (0.0,) * 4, (1.0, 0.9, 0.6, 0.5))
    # Ends: 0.1, 0.3, 0.1, 0.5; of equals the one that comes first.
    assert [chain.likely_ends(count) for count in range(5)] == [
        (),
        (3,),
        (1, 3),
        (0, 1, 3),
        (0, 1, 2, 3),
    ]
    assert DraftTree.root_only(9).likely_ends(4) == (0,)


@given(trees(), st.integers(1, 4), st.data())
def test_masks_stand_in_rows_behind_their_nodes(
    tree: DraftTree, count: int, data: st.DataObject
) -> None:
    n = len(tree.tokens)
    behind = tuple(data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=4)))
    asked = DraftTree(tree.tokens, tree.parents, tree.log_q, tree.acceptance, masks=behind)
    whole = asked.with_masks(count)
    whole.validate(VOCAB + 1)
    assert len(whole.tokens) == n + count * len(behind)
    assert (whole.tokens[:n], whole.parents[:n]) == (tree.tokens, tree.parents)
    assert (whole.log_q[:n], whole.acceptance[:n]) == (tree.log_q, tree.acceptance)
    assert not any(whole.acceptance[n:])
    depths, seen = whole.depths, whole.ancestor_mask()
    for row in range(n):  # ordinary nodes see no mask
        assert seen[row, :n].tolist() == tree.ancestor_mask()[row].tolist()
        assert not seen[row, n:].any()
    for group, node in enumerate(behind):
        above = {0, *tree.path(node)}
        for number in range(count):
            row = n + group * count + number
            before = {n + group * count + earlier for earlier in range(number + 1)}
            assert set(seen[row].nonzero().flatten().tolist()) == above | before
            assert depths[row] == len(tree.path(node)) + number + 1
            assert whole.parents[row] == (row - 1 if number else node)


def test_no_masks_change_nothing() -> None:
    tree = DraftTree((9, 1), (-1, 0), (0.0, -0.5), (1.0, 0.6))
    assert tree.with_masks(3) == tree


@given(trees(), st.lists(st.integers(0, VOCAB), max_size=8))
def test_along_is_the_longest_agreeing_path(tree: DraftTree, text: list[int]) -> None:
    agreeing = [
        tree.path(node)
        for node in range(len(tree.tokens))
        if [tree.tokens[i] for i in tree.path(node)] == text[: len(tree.path(node))]
    ]
    assert tree.along(text) == max(agreeing, key=len)


@given(trees(), st.data())
def test_along_a_path_of_the_tree_is_all_of_it(tree: DraftTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(tree.tokens) - 1))
    text = [tree.tokens[i] for i in tree.path(node)]
    assert tree.along([*text, VOCAB]) == tree.path(node)  # no child is called like the root
