"""Proof by enumeration: draft + verify writes exactly the target's own distribution."""

from __future__ import annotations

import pytest
import torch
from fixtures.enumeration import (
    END,
    EnumeratingChooser,
    History,
    Table,
    Walk,
    branches,
    decide,
    difference,
    drawn_tree,
    grow,
    plain,
    random_table,
    written,
)
from torch import Tensor

from soothsay.speculate.tree import DraftTree
from soothsay.speculate.verify import draw_walk, rejection_walk, traversal_walk

SAMPLED: dict[str, Walk] = {"rejection": rejection_walk, "traversal": traversal_walk}
both_rules = pytest.mark.parametrize("rule", SAMPLED)


def one_hot(vocab: int, token: int) -> Tensor:
    row = torch.zeros(vocab, dtype=torch.float64)
    row[token] = 1.0
    return row


def adversary(name: str, target: Table, vocab: int) -> Table:
    def worst(history: History) -> Tensor:
        """Zero where the target is likely."""
        p = target(history)
        q = torch.where(p < p.median(), 1.0, 0.0).double()
        return q / q.sum()

    return {
        "random": random_table(vocab, 999),
        "equal": target,
        "one hot": lambda history: one_hot(vocab, len(history) % vocab),
        "zero where likely": worst,
        "sharp": random_table(vocab, 5, sharp=6.0),
    }[name]


@both_rules
@pytest.mark.parametrize("q_name", ["random", "equal", "one hot", "zero where likely", "sharp"])
@pytest.mark.parametrize(
    ("vocab", "shape"),
    [(3, (1, 1, 1)), (3, (2, 1)), (3, (1, 2)), (3, (3,)), (4, (2,)), (3, (2, 2)), (5, (3,))],
)
def test_sampled_trees_are_exact(
    rule: str, q_name: str, vocab: int, shape: tuple[int, ...]
) -> None:
    target = random_table(vocab, 1)
    q = adversary(q_name, target, vocab)
    length = len(shape) + 1
    got = written(drawn_tree(q, shape, vocab), SAMPLED[rule], target, length)
    assert difference(got, plain(target, vocab, length)) < 1e-12


@both_rules
@pytest.mark.parametrize("shape", [(1,), (2,), (2, 2)])
def test_disjoint_support_is_exact(rule: str, shape: tuple[int, ...]) -> None:
    """The target never writes what the drafter proposes: top-k or rules have removed it."""
    vocab, whole = 4, random_table(4, 7)
    odd = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)

    def target(history: History) -> Tensor:
        return whole(history) * odd / (whole(history) * odd).sum()

    def q(history: History) -> Tensor:
        return (1 - odd) / 2

    got = written(drawn_tree(q, shape, vocab), SAMPLED[rule], target, len(shape) + 1)
    assert difference(got, plain(target, vocab, len(shape) + 1)) < 1e-12


@both_rules
def test_shapes_that_depend_on_earlier_draws_are_exact(rule: str) -> None:
    """A drafter may stop, or spend more, wherever what it has drawn so far says so."""
    vocab, target, q = 3, random_table(3, 3), random_table(3, 40)

    def widths(path: History, drawn: tuple[int, ...]) -> int:
        return (len(drawn) + sum(drawn)) % 3 if path else 2

    got = written(grow(q, vocab, widths, 2), SAMPLED[rule], target, 3)
    assert difference(got, plain(target, vocab, 3)) < 1e-12


@both_rules
@pytest.mark.parametrize(("max_nodes", "max_depth"), [(2, 9), (3, 9), (4, 9), (9, 1), (9, 0)])
def test_cut_sampled_trees_stay_exact(rule: str, max_nodes: int, max_depth: int) -> None:
    vocab, target, q = 3, random_table(3, 4), random_table(3, 41)
    whole = drawn_tree(q, (2, 1), vocab)

    def cut(chooser: EnumeratingChooser) -> DraftTree:
        return whole(chooser).fitted(vocab - 1, vocab, max_nodes, max_depth)

    got = written(cut, SAMPLED[rule], target, 3)
    assert difference(got, plain(target, vocab, 3)) < 1e-12


@both_rules
def test_dropping_what_was_drawn_because_it_is_unlikely_is_biased(rule: str) -> None:
    """The proof can fail: whether a node exists must be decided before it is drawn."""
    vocab, target, q = 3, random_table(3, 1), random_table(3, 999)
    whole = drawn_tree(q, (1,), vocab)

    def picky(chooser: EnumeratingChooser) -> DraftTree:
        tree = whole(chooser)
        return tree if q(())[tree.tokens[1]] > 0.3 else DraftTree.root_only(vocab - 1)

    got = written(picky, SAMPLED[rule], target, 2)
    assert difference(got, plain(target, vocab, 2)) > 1e-3


@both_rules
def test_ratio_rule_on_ranked_children_is_biased(rule: str) -> None:
    """The proof can fail: min(1, p/q) on a child chosen by rank changes the distribution."""
    vocab, target, q = 3, random_table(3, 1), random_table(3, 999)

    def ranked(_: EnumeratingChooser) -> DraftTree:
        row = q(())
        rows = torch.stack([row, torch.zeros(vocab, dtype=torch.float64)])
        return DraftTree((2, int(row.argmax())), (-1, 0), (0.0, 0.0), (1.0, 1.0), rows)

    got = written(ranked, SAMPLED[rule], target, 2)
    assert difference(got, plain(target, vocab, 2)) > 1e-3


def fixed_tree(name: str, vocab: int) -> DraftTree:
    last = vocab - 1
    tokens, parents = {
        "root": ((last,), (-1,)),
        "chain": ((last, 1, 2, 1), (-1, 0, 1, 2)),
        "end inside": ((last, 1, END, 2), (-1, 0, 1, 2)),
        "wide": ((last, *range(vocab)), (-1, *[0] * vocab)),
        "bushy": ((last, 1, 2, 1, END, 2), (-1, 0, 0, 1, 1, 3)),
        "duplicates": ((last, 1, 1, 2, 3), (-1, 0, 0, 1, 2)),
    }[name]
    n = len(tokens)
    return DraftTree(tokens, parents, (-0.1,) * n, (0.9,) * n)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("name", ["root", "chain", "end inside", "wide", "bushy", "duplicates"])
def test_deterministic_trees_are_exact(name: str, fitted: bool) -> None:
    vocab, length = 4, 4
    target = random_table(vocab, 2)
    tree = fixed_tree(name, vocab)
    if fitted:
        tree = tree.fitted(vocab - 1, vocab, max_nodes=4, max_depth=2)
    got = written(lambda _: tree, draw_walk, target, length)
    assert difference(got, plain(target, vocab, length)) < 1e-12


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1), (2, 2)])
def test_traversal_accepts_at_least_as_much(seed: int, shape: tuple[int, ...]) -> None:
    vocab = 3
    target, q = random_table(vocab, seed), random_table(vocab, seed + 50)
    means = {}
    for rule, walk in SAMPLED.items():

        def count(chooser: EnumeratingChooser, walk: Walk = walk) -> int:
            tree = drawn_tree(q, shape, vocab)(chooser)
            return len(decide(walk(tree, END, chooser), tree, target).path)

        means[rule] = sum(n * p for n, p in branches(count))
    assert means["traversal"] >= means["rejection"] - 1e-12


def test_traversal_accepts_more_where_a_later_token_makes_up_for_an_earlier() -> None:
    """Sun et al. 2024, section 2: p = (1/3, 2/3), q = (2/3, 1/3), two tokens. Token by token 10/9
    are accepted on average, as a block 11/9."""
    p = torch.tensor([0.0, 1 / 3, 2 / 3], dtype=torch.float64)
    q = torch.tensor([0.0, 2 / 3, 1 / 3], dtype=torch.float64)
    means = {}
    for rule, walk in SAMPLED.items():

        def count(chooser: EnumeratingChooser, walk: Walk = walk) -> int:
            tree = drawn_tree(lambda _: q, (1, 1), 3)(chooser)
            return len(decide(walk(tree, END, chooser), tree, lambda _: p).path)

        means[rule] = sum(n * chance for n, chance in branches(count))
    assert means["rejection"] == pytest.approx(10 / 9, abs=1e-12)
    assert means["traversal"] == pytest.approx(11 / 9, abs=1e-12)
