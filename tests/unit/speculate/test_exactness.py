"""Proof by enumeration: draft + verify writes exactly the target's own distribution.

The toy target is a table: a distribution over V tokens for every history. Every random choice, of
the drafter and of the verifier alike, is explored with its probability; nothing is sampled.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from soothsay.speculate.tree import DraftTree
from soothsay.speculate.verify import (
    Acceptance,
    Chooser,
    SampledWalk,
    draw_walk,
    rejection_walk,
    traversal_walk,
)

END = 0
Walk = Callable[[DraftTree, int, Chooser], SampledWalk]
Table = Callable[[tuple[int, ...]], Tensor]


class EnumeratingChooser:
    """Follows one script of choices; `branches` runs a function once for every script there is."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script, self.taken, self.options = script, [], []
        self.probability = 1.0

    def _choose(self, weights: list[float]) -> int:
        at = len(self.taken)
        possible = [i for i, w in enumerate(weights) if w > 0]
        choice = self.script[at] if at < len(self.script) else possible[0]
        self.taken.append(choice)
        self.options.append(possible)
        self.probability *= weights[choice]
        return choice

    def draw(self, probs: Tensor) -> int:
        return self._choose(probs.tolist())

    def accept(self, probability: float) -> bool:
        return self._choose([1 - probability, probability]) == 1


def branches(run: Callable[[EnumeratingChooser], object]) -> Iterator[tuple[object, float]]:
    script: tuple[int, ...] | None = ()
    while script is not None:
        chooser = EnumeratingChooser(script)
        yield run(chooser), chooser.probability
        script = None
        for at in reversed(range(len(chooser.taken))):
            later = [o for o in chooser.options[at] if o > chooser.taken[at]]
            if later:
                script = (*chooser.taken[:at], later[0])
                break


def random_table(vocab: int, seed: int, sharp: float = 1.0) -> Table:
    def table(history: tuple[int, ...]) -> Tensor:
        code = seed
        for token in history:
            code = code * 31 + token + 1
        generator = torch.Generator().manual_seed(code)
        logits = torch.randn(vocab, generator=generator, dtype=torch.float64) * sharp
        return torch.softmax(logits, -1)

    return table


def decide(walk: SampledWalk, tree: DraftTree, target: Table) -> Acceptance:
    asked = next(walk)
    try:
        while True:
            rows = {n: target(tuple(tree.tokens[i] for i in tree.path(n))) for n in asked}
            asked = walk.send(rows)
    except StopIteration as stop:
        return stop.value


def outcome(tree: DraftTree, decision: Acceptance) -> tuple[int, ...]:
    tokens = tuple(tree.tokens[node] for node in decision.path)
    return tokens if decision.token is None else (*tokens, decision.token)


def written(
    draft: Callable[[EnumeratingChooser], DraftTree], walk: Walk, target: Table, length: int
) -> dict[tuple[int, ...], float]:
    """Exact distribution over texts of `length` tokens (END absorbs): one speculative step, and
    the target's own plain sampling for whatever is missing."""
    total: dict[tuple[int, ...], float] = defaultdict(float)

    def one(chooser: EnumeratingChooser) -> tuple[int, ...]:
        tree = draft(chooser)
        text = outcome(tree, decide(walk(tree, END, chooser), tree, target))
        assert END not in text[:-1], "a token was committed behind the end"
        while len(text) < length and END not in text:
            text = (*text, chooser.draw(target(text)))
        return text[:length]

    for text, probability in branches(one):
        total[text] += probability  # type: ignore[index]
    return total


def plain(target: Table, vocab: int, length: int) -> dict[tuple[int, ...], float]:
    total: dict[tuple[int, ...], float] = {}
    for size in range(1, length + 1):
        for text in itertools.product(range(vocab), repeat=size):
            if END in text[:-1] or (size < length and text[-1] != END):
                continue
            probability = 1.0
            for at, token in enumerate(text):
                probability *= float(target(text[:at])[token])
            total[text] = probability
    return total


def difference(one: dict, other: dict) -> float:
    return max(abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in one.keys() | other.keys())


def drawn_tree(
    q: Table, shape: tuple[int, ...], vocab: int
) -> Callable[[EnumeratingChooser], DraftTree]:
    """Children drawn from q without replacement: shape[d] of them at every node of depth d."""

    def draft(chooser: EnumeratingChooser) -> DraftTree:
        tokens, parents, rows = [vocab - 1], [-1], []
        level = [(0, ())]
        for width in shape:
            below = []
            for node, path in level:
                row = q(path)
                while len(rows) <= node:
                    rows.append(torch.zeros(vocab, dtype=torch.float64))
                rows[node] = row
                left = row.clone()
                for _ in range(width):
                    if float(left.sum()) <= 0:
                        break
                    token = chooser.draw(left / left.sum())
                    left[token] = 0.0
                    tokens.append(token)
                    parents.append(node)
                    below.append((len(tokens) - 1, (*path, token)))
            level = below
        while len(rows) < len(tokens):
            rows.append(torch.zeros(vocab, dtype=torch.float64))
        n = len(tokens)
        return DraftTree(tuple(tokens), tuple(parents), (0.0,) * n, (1.0,) * n, torch.stack(rows))

    return draft


def one_hot(vocab: int, token: int) -> Tensor:
    row = torch.zeros(vocab, dtype=torch.float64)
    row[token] = 1.0
    return row


def adversaries(target: Table, vocab: int) -> dict[str, Table]:
    def worst(history: tuple[int, ...]) -> Tensor:
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
    }


SAMPLED = {"rejection": rejection_walk, "traversal": traversal_walk}


@pytest.mark.parametrize("rule", SAMPLED)
@pytest.mark.parametrize("q_name", ["random", "equal", "one hot", "zero where likely", "sharp"])
@pytest.mark.parametrize(
    ("vocab", "shape"), [(3, (1, 1, 1)), (3, (2, 1)), (3, (3,)), (4, (2,)), (3, (2, 2)), (5, (3,))]
)
def test_sampled_trees_are_exact(
    rule: str, q_name: str, vocab: int, shape: tuple[int, ...]
) -> None:
    target = random_table(vocab, 1)
    q = adversaries(target, vocab)[q_name]
    length = len(shape) + 1
    got = written(drawn_tree(q, shape, vocab), SAMPLED[rule], target, length)
    assert difference(got, plain(target, vocab, length)) < 1e-12


def fixed_trees(vocab: int) -> dict[str, DraftTree]:
    last = vocab - 1

    def tree(tokens: tuple[int, ...], parents: tuple[int, ...]) -> DraftTree:
        n = len(tokens)
        return DraftTree(tokens, parents, (-0.1,) * n, (0.9,) * n)

    return {
        "root": DraftTree.root_only(last),
        "chain": tree((last, 1, 2, 1), (-1, 0, 1, 2)),
        "end inside": tree((last, 1, END, 2), (-1, 0, 1, 2)),
        "wide": tree((last, *range(vocab)), (-1, *[0] * vocab)),
        "bushy": tree((last, 1, 2, 1, END, 2), (-1, 0, 0, 1, 1, 3)),
    }


@pytest.mark.parametrize("name", ["root", "chain", "end inside", "wide", "bushy"])
def test_deterministic_trees_are_exact(name: str) -> None:
    vocab, length = 4, 4
    target = random_table(vocab, 2)
    tree = fixed_trees(vocab)[name]
    got = written(lambda _: tree, draw_walk, target, length)
    assert difference(got, plain(target, vocab, length)) < 1e-12


def test_ratio_rule_on_ranked_children_is_biased() -> None:
    """The proof can fail: min(1, p/q) on a child chosen by rank changes the distribution."""
    vocab, target, q = 3, random_table(3, 1), random_table(3, 999)

    def ranked(_: EnumeratingChooser) -> DraftTree:
        row = q(())
        best = int(row.argmax())
        rows = torch.stack([row, torch.zeros(vocab, dtype=torch.float64)])
        return DraftTree((2, best), (-1, 0), (0.0, 0.0), (1.0, 1.0), rows)

    got = written(ranked, rejection_walk, target, 2)
    assert difference(got, plain(target, vocab, 2)) > 1e-3


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

        means[rule] = sum(n * p for n, p in branches(count))  # type: ignore[operator]
    assert means["traversal"] >= means["rejection"] - 1e-12
