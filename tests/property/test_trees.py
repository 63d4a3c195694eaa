"""Random trees against nested-loop oracles, and the walks on random distributions."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from fixtures.enumeration import END, History, Walk, difference, grow, path_tokens, plain, written
from hypothesis import given, settings
from hypothesis import strategies as st

from soothsay.speculate.tree import DraftTree
from soothsay.speculate.verify import Acceptance, greedy_walk, rejection_walk, traversal_walk

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

VOCAB = 5
ROOT = 4


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 24) -> DraftTree:
    """Any tree a drafter may give, duplicate children and end-of-text inside included."""
    n = draw(st.integers(1, max_nodes))
    parents = (-1, *(draw(st.integers(0, node - 1)) for node in range(1, n)))
    tokens = (ROOT, *(draw(st.integers(0, VOCAB - 1)) for _ in range(1, n)))
    q = [1.0, *(draw(st.floats(0.0, 1.0)) for _ in range(1, n))]
    acceptance = list(q)
    for node in range(1, n):
        acceptance[node] *= acceptance[parents[node]]
    log_q = tuple(math.log(x) if x > 0 else -math.inf for x in q)
    return DraftTree(tokens, parents, log_q, tuple(acceptance))


def paths(tree: DraftTree) -> set[History]:
    return {path_tokens(tree, node) for node in range(len(tree.tokens))}


def path_probabilities(tree: DraftTree) -> dict[History, float]:
    total: dict[History, float] = defaultdict(float)
    for node in range(len(tree.tokens)):
        probability, at = 1.0, node
        while at > 0:
            probability *= math.exp(tree.log_q[at])
            at = tree.parents[at]
        total[path_tokens(tree, node)] += probability
    return total


@given(trees())
def test_ancestor_mask_is_the_nested_loops(tree: DraftTree) -> None:
    mask = tree.ancestor_mask()
    n = len(tree.tokens)
    assert mask.dtype == torch.bool
    assert mask.shape == (n, n)
    for node in range(n):
        seen, at = set(), node
        while at != -1:
            seen.add(at)
            at = tree.parents[at]
        for other in range(n):
            assert bool(mask[node, other]) == (other in seen)


@given(trees())
def test_depth_children_and_path_agree_with_parents(tree: DraftTree) -> None:
    for node in range(len(tree.tokens)):
        path = tree.path(node)
        assert len(path) == tree.depths[node]
        assert tuple(tree.tokens[i] for i in path) == path_tokens(tree, node)
        expected = [i for i, parent in enumerate(tree.parents) if parent == node]
        assert tree.children()[node] == expected


@given(trees())
def test_merging_keeps_the_distribution_of_paths(tree: DraftTree) -> None:
    merged = tree.merged()
    merged.validate(VOCAB)
    assert len(paths(merged)) == len(merged.tokens)  # no duplicates are left
    before, after = path_probabilities(tree), path_probabilities(merged)
    assert before.keys() == after.keys()
    for path, probability in before.items():
        assert after[path] == pytest.approx(probability, rel=1e-9, abs=1e-300)


@given(trees())
def test_merging_keeps_children_below_their_parents(tree: DraftTree) -> None:
    merged = tree.merged()
    for node in range(1, len(merged.tokens)):
        assert merged.acceptance[node] <= merged.acceptance[merged.parents[node]] + 1e-12


@given(trees(), st.integers(1, 30), st.integers(-1, 8))
def test_fitting_cuts_and_keeps_a_tree(tree: DraftTree, max_nodes: int, max_depth: int) -> None:
    fitted = tree.fitted(ROOT, VOCAB, max_nodes, max_depth)
    fitted.validate(VOCAB)
    kept, room = paths(fitted), max(max_depth, 0)
    assert len(kept) == len(fitted.tokens) <= max_nodes
    assert all(path[:-1] in kept for path in kept)
    allowed = {path for path in paths(tree) if len(path) <= room}
    assert kept <= allowed
    assert len(kept) == min(max_nodes, len(allowed))  # no more is cut than must be


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, VOCAB - 1), st.floats(0.0, 1.0)), max_size=5), max_size=6
    )
)
def test_from_paths_is_the_prefix_closure(given_paths: list[list[tuple[int, float]]]) -> None:
    split = [([t for t, _ in path], [q for _, q in path]) for path in given_paths]
    tree = DraftTree.from_paths(ROOT, split)
    tree.validate(VOCAB)
    expected = {tuple(tokens[:i]) for tokens, _ in split for i in range(len(tokens) + 1)} | {()}
    assert paths(tree) == expected
    assert len(tree.tokens) == len(expected)
    for node in range(1, len(tree.tokens)):
        assert tree.acceptance[node] <= tree.acceptance[tree.parents[node]]


@given(st.data(), trees())
def test_greedy_keeps_the_longest_match(data: st.DataObject, tree: DraftTree) -> None:
    """The target writes one text, which leaves the tree somewhere, up to its end-of-text."""
    tree = tree.merged()
    start = data.draw(st.sampled_from(sorted(paths(tree))))
    rest = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=30, max_size=30))
    text = [*start, *rest, END]
    del text[text.index(END) + 1 :]
    walk = greedy_walk(tree, END)
    asked = next(walk)
    try:
        while True:
            asked = walk.send({node: text[tree.depths[node]] for node in asked})
    except StopIteration as stop:
        acceptance: Acceptance = stop.value
    # Oracle: the longest prefix of the text that stands anywhere in the tree.
    longest = max(len(path) for path in paths(tree) if list(path) == text[: len(path)])
    assert [tree.tokens[node] for node in acceptance.path] == text[:longest]
    assert acceptance.token == (text[longest] if longest < len(text) else None)


def _rows(vocab: int) -> st.SearchStrategy[torch.Tensor]:
    """Distributions with zeros and ties."""
    weights = st.lists(st.integers(0, 4), min_size=vocab, max_size=vocab).filter(any)
    return weights.map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


@settings(max_examples=60)
@given(
    st.sampled_from([rejection_walk, traversal_walk]),
    st.lists(_rows(3), min_size=4, max_size=4),
    st.lists(_rows(3), min_size=4, max_size=4),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
)
def test_sampled_walks_are_exact_on_any_distribution(
    walk: Walk, p: list[torch.Tensor], q: list[torch.Tensor], sizes: list[int]
) -> None:
    """p and q depend on the last token; each node's width on its place and the draws before."""

    def widths(path: History, drawn: tuple[int, ...]) -> int:
        return sizes[(len(drawn) + sum(drawn)) % 5]

    def row(table: list[torch.Tensor], history: History) -> torch.Tensor:
        return table[history[-1] + 1 if history else 0]

    got = written(grow(lambda h: row(q, h), 3, widths, 2), walk, lambda h: row(p, h), 3)
    assert difference(got, plain(lambda h: row(p, h), 3, 3)) < 1e-12
