"""Draft trees: what they hold, what is refused, how they are merged and cut."""

from __future__ import annotations

import math

import pytest
import torch

from soothsay.speculate.tree import DraftTree, InvalidTreeError


def make(tokens: tuple[int, ...], parents: tuple[int, ...]) -> DraftTree:
    n = len(tokens)
    return DraftTree(tokens, parents, (0.0,) * n, (1.0,) * n)


def drawn(tokens: tuple[int, ...], parents: tuple[int, ...], vocab: int) -> DraftTree:
    n = len(tokens)
    q = torch.full((n, vocab), 1 / vocab)
    return DraftTree(tokens, parents, (0.0,) * n, (1.0,) * n, q)


def test_root_only() -> None:
    tree = DraftTree.root_only(7)
    assert (tree.tokens, tree.parents, tree.depths, tree.children()) == ((7,), (-1,), [0], [[]])
    assert tree.ancestor_mask().tolist() == [[True]]
    assert tree.path(0) == []


def test_from_paths_merges_shared_prefixes() -> None:
    tree = DraftTree.from_paths(9, [([1, 2], [0.5, 0.5]), ([1, 3], [0.8, 0.25]), ([4], [0.1])])
    assert tree.tokens == (9, 1, 2, 3, 4)
    assert tree.parents == (-1, 0, 1, 1, 0)
    assert tree.acceptance == pytest.approx((1.0, 0.8, 0.4, 0.2, 0.1))
    assert tree.log_q[2] == pytest.approx(math.log(0.5))
    assert tree.depths == [0, 1, 2, 2, 1]
    assert tree.children() == [[1, 4], [2, 3], [], [], []]
    assert tree.path(3) == [1, 3]


def test_from_paths_without_paths_is_the_root() -> None:
    assert DraftTree.from_paths(9, []).tokens == (9,)


def test_a_path_may_be_impossible() -> None:
    tree = DraftTree.from_paths(9, [([1, 2], [0.0, 0.5])])
    assert tree.log_q[1] == -math.inf
    assert tree.acceptance == (1.0, 0.0, 0.0)


def test_merging_adds_the_probabilities_of_equal_paths() -> None:
    # 1 → 2 twice: 0.3 · 0.9 and 0.2 · 0.8, that is 0.5 · 0.86.
    log_q = tuple(math.log(x) for x in (1.0, 0.3, 0.2, 0.9, 0.8))
    acceptance = (1.0, 0.7, 0.5, 0.6, 0.3)
    tree = DraftTree((9, 1, 1, 2, 2), (-1, 0, 0, 1, 2), log_q, acceptance).merged()
    assert tree.tokens == (9, 1, 2)
    assert tree.parents == (-1, 0, 1)
    assert [math.exp(x) for x in tree.log_q] == pytest.approx([1.0, 0.5, 0.86])
    assert tree.acceptance == pytest.approx((1.0, 1.0, 0.9))  # never above the parent's


def test_a_tree_without_duplicates_is_not_copied() -> None:
    tree = make((9, 1, 2, 1), (-1, 0, 0, 2))
    assert tree.merged() is tree
    assert tree.fitted(root=9, vocab_size=10, max_nodes=4, max_depth=2) is tree


def test_sampled_duplicates_are_refused() -> None:
    with pytest.raises(InvalidTreeError, match="same child twice"):
        drawn((9, 1, 1), (-1, 0, 0), 10).merged()


def test_cuts_keep_the_first_nodes_and_their_q() -> None:
    q = torch.eye(4).roll(1, 0)
    tree = DraftTree((3, 0, 1, 2), (-1, 0, 1, 0), (0.0,) * 4, (1.0,) * 4, q)
    flat = tree.fitted(root=3, vocab_size=4, max_nodes=9, max_depth=1)
    assert flat.tokens == (3, 0, 2)
    assert flat.parents == (-1, 0, 0)
    assert flat.draft_probs is not None
    assert torch.equal(flat.draft_probs, q[[0, 1, 3]])
    assert tree.fitted(root=3, vocab_size=4, max_nodes=2, max_depth=9).tokens == (3, 0)


@pytest.mark.parametrize("max_depth", [0, -1, -5])
def test_without_room_only_the_root_is_left(max_depth: int) -> None:
    tree = make((9, 1, 2), (-1, 0, 1))
    assert tree.fitted(root=9, vocab_size=10, max_nodes=9, max_depth=max_depth).tokens == (9,)


def test_only_keeps_trees_whole() -> None:
    with pytest.raises(KeyError):
        make((9, 1, 2), (-1, 0, 1)).only([0, 2])  # its parent is not kept


def test_lengths_must_agree() -> None:
    with pytest.raises(InvalidTreeError, match="equally long"):
        DraftTree((9, 1), (-1,), (0.0, 0.0), (1.0, 1.0))
    with pytest.raises(InvalidTreeError, match="equally long"):
        DraftTree((), (), (), ())


@pytest.mark.parametrize(
    ("tokens", "parents", "reason"),
    [
        ((9, 1), (0, 0), "root"),
        ((9, 1), (-1, 1), "parent that comes before"),
        ((9, 1, 2), (-1, 2, 0), "parent that comes before"),
        ((9, 1), (-1, -1), "parent that comes before"),
        ((9, 10), (-1, 0), r"0\.\.9"),
        ((9, -1), (-1, 0), r"0\.\.9"),
    ],
)
def test_broken_trees_are_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(InvalidTreeError, match=reason):
        make(tokens, parents).fitted(root=9, vocab_size=10, max_nodes=9, max_depth=9)


def test_another_root_is_refused() -> None:
    with pytest.raises(InvalidTreeError, match="not the committed token 5"):
        make((9, 1), (-1, 0)).fitted(root=5, vocab_size=10, max_nodes=9, max_depth=9)


@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0, math.nan])
def test_q_must_be_a_distribution(factor: float) -> None:
    tree = drawn((3, 1), (-1, 0), 4)
    tree.validate(4)
    assert tree.draft_probs is not None
    tree.draft_probs[0] *= factor
    with pytest.raises(InvalidTreeError, match="sum to 1"):
        tree.validate(4)


def test_q_of_a_leaf_is_not_looked_at() -> None:
    tree = drawn((3, 1), (-1, 0), 4)
    assert tree.draft_probs is not None
    tree.draft_probs[1] = 0.0
    tree.validate(4)


def test_q_must_cover_the_vocabulary() -> None:
    with pytest.raises(InvalidTreeError, match="one row of the vocabulary"):
        drawn((3, 1), (-1, 0), 4).validate(5)
