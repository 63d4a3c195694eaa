"""The walks: what they ask for, how they end, and how they bear rounding. Exactness is proven by
enumeration in test_exactness.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from soothsay.speculate.tree import DraftTree
from soothsay.speculate.verify import (
    Acceptance,
    GreedyWalk,
    SampledWalk,
    draw_walk,
    greedy_walk,
    rejection_walk,
    traversal_walk,
)

END, VOCAB = 0, 6
SAMPLED = {"rejection": rejection_walk, "traversal": traversal_walk}
both_rules = pytest.mark.parametrize("rule", SAMPLED)


class Scripted:
    """Accepts as the script says; a certain event always happens. Keeps all it was given."""

    def __init__(self, *script: bool) -> None:
        self.script = list(script)
        self.offered: list[float] = []
        self.drawn_from: list[Tensor] = []

    def draw(self, probs: Tensor) -> int:
        self.drawn_from.append(probs)
        return int(probs.argmax())

    def accept(self, probability: float) -> bool:
        self.offered.append(probability)
        wanted = self.script.pop(0) if self.script else False
        return probability >= 1.0 or (wanted and probability > 0.0)


def tree_of(
    tokens: tuple[int, ...], parents: tuple[int, ...], q: Tensor | None = None
) -> DraftTree:
    n = len(tokens)
    rows = None if q is None else q.expand(n, -1)
    return DraftTree(tokens, parents, (0.0,) * n, (1.0,) * n, rows)


def run_greedy(walk: GreedyWalk, choice: Callable[[int], int]) -> tuple[Acceptance, list[int]]:
    asked: list[int] = []
    try:
        nodes = next(walk)
        while True:
            asked += nodes
            nodes = walk.send({node: choice(node) for node in nodes})
    except StopIteration as stop:
        return stop.value, asked


def run(walk: SampledWalk, row: Tensor) -> tuple[Acceptance, list[tuple[int, ...]]]:
    asked: list[tuple[int, ...]] = []
    try:
        nodes = next(walk)
        while True:
            asked.append(nodes)
            nodes = walk.send({node: row for node in nodes})
    except StopIteration as stop:
        return stop.value, asked


EVEN = torch.full((VOCAB,), 1 / VOCAB)


def test_greedy_descends_along_the_targets_choices_alone() -> None:
    #      5 ┬ 1 ─ 3
    #        └ 2 ┬ 3
    #            └ 4 ─ 1
    tree = tree_of((5, 1, 2, 3, 3, 4, 1), (-1, 0, 0, 1, 2, 2, 5))
    choices = {0: 2, 2: 4, 5: 3}
    acceptance, asked = run_greedy(greedy_walk(tree, END), choices.__getitem__)
    assert acceptance == Acceptance((2, 5), 3)
    assert asked == [0, 2, 5]


def test_greedy_without_a_match_writes_one_token() -> None:
    tree = tree_of((5, 1), (-1, 0))
    assert run_greedy(greedy_walk(tree, END), lambda _: 4) == (Acceptance((), 4), [0])


def test_greedy_of_a_bare_root_is_a_plain_step() -> None:
    assert run_greedy(greedy_walk(DraftTree.root_only(5), END), lambda _: 3)[0].token == 3


def test_greedy_keeps_the_bonus_token_of_a_full_path() -> None:
    tree = tree_of((5, 1, 1), (-1, 0, 1))
    assert run_greedy(greedy_walk(tree, END), lambda _: 1)[0] == Acceptance((1, 2), 1)


def test_greedy_stops_at_a_drafted_end() -> None:
    tree = tree_of((5, 1, END, END), (-1, 0, 1, 2))
    choices = {0: 1, 1: END}
    acceptance, _ = run_greedy(greedy_walk(tree, END), choices.__getitem__)
    assert acceptance == Acceptance((1, 2), None)


def test_the_end_as_the_targets_own_token_is_its_token() -> None:
    assert run_greedy(greedy_walk(tree_of((5, 1), (-1, 0)), END), lambda _: END)[0] == Acceptance(
        (), END
    )


def test_draw_stops_at_a_drafted_end() -> None:
    certain = torch.zeros(VOCAB).index_fill_(0, torch.tensor([END]), 1.0)
    tree = tree_of((5, END, 2), (-1, 0, 1))
    acceptance, asked = run(draw_walk(tree, END, Scripted()), certain)
    assert acceptance == Acceptance((1,), None)
    assert asked == [(0,)]


@both_rules
def test_sampled_walks_stop_at_a_drafted_end(rule: str) -> None:
    tree = tree_of((5, END, 2), (-1, 0, 1), EVEN)
    acceptance, asked = run(SAMPLED[rule](tree, END, Scripted()), EVEN)
    assert acceptance == Acceptance((1,), None)
    assert asked == [(0,)]


@both_rules
def test_sampled_walks_take_a_bare_root(rule: str) -> None:
    acceptance, asked = run(SAMPLED[rule](DraftTree.root_only(5), END, Scripted()), EVEN)
    assert (acceptance, asked) == (Acceptance((), 0), [(0,)])


@both_rules
def test_ranked_trees_are_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="draw_walk"):
        run(SAMPLED[rule](tree_of((5, 1), (-1, 0)), END, Scripted()), EVEN)


BUSHY = ((5, 1, 2, 1, 2, 3), (-1, 0, 0, 1, 1, 2))


def test_rejection_asks_for_the_rows_of_the_kept_path() -> None:
    acceptance, asked = run(rejection_walk(tree_of(*BUSHY, EVEN), END, Scripted()), EVEN)
    assert acceptance.path == (1, 3)
    assert asked == [(0,), (1,), (3,)]


def test_traversal_asks_for_the_first_path_at_once_and_no_other() -> None:
    acceptance, asked = run(traversal_walk(tree_of(*BUSHY, EVEN), END, Scripted()), EVEN)
    assert acceptance.path == (1, 3)
    assert asked == [(0, 1), (3,)]


def test_traversal_asks_for_another_path_once_the_first_is_deleted() -> None:
    p = torch.tensor([0.2, 0.0, 0.5, 0.3, 0.0, 0.0])  # the target never writes 1
    chooser = Scripted(False, False, False, True)
    acceptance, asked = run(traversal_walk(tree_of(*BUSHY, EVEN), END, chooser), p)
    assert chooser.offered[:3] == [0.0, 0.0, 0.0]  # 1 1, 1 2 and 1 are deleted in turn
    assert asked == [(0, 1), (2,), (5,)]
    assert acceptance.path == (2, 5)


@both_rules
def test_a_child_the_target_never_writes_is_never_accepted(rule: str) -> None:
    p = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0, 0.0])
    chooser = Scripted(True)
    acceptance, _ = run(SAMPLED[rule](tree_of((5, 1), (-1, 0), EVEN), END, chooser), p)
    assert acceptance == Acceptance((), 0)
    assert chooser.offered == [0.0]


@both_rules
def test_a_child_that_q_could_not_draw_is_never_accepted(rule: str) -> None:
    q = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0, 0.0])
    acceptance, _ = run(SAMPLED[rule](tree_of((5, 1), (-1, 0), q), END, Scripted(True)), EVEN)
    assert acceptance.path == ()


@both_rules
@pytest.mark.parametrize("seed", range(40))
def test_rounding_leaves_distributions(rule: str, seed: int) -> None:
    """float32 rows, q equal to p but for the last bits, all that can be refused is refused: what
    is drawn from stays a distribution, within the target's support."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(torch.randn(VOCAB, generator=generator) * 8, -1)
    p[seed % VOCAB] = 0.0
    p /= p.sum()
    q = p * (1 + 1e-7 * torch.randn(VOCAB, generator=generator))
    order = p.argsort(descending=True).tolist()
    tokens = (5, *order[:3], *order[:3], *order[:3])
    tree = tree_of(tokens, (-1, 0, 0, 0, 1, 1, 1, 4, 4, 4), q)
    chooser = Scripted()
    run(SAMPLED[rule](tree, -1, chooser), p)
    for probs in chooser.drawn_from:
        assert bool(torch.isfinite(probs).all())
        assert bool((probs >= 0).all())
        assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
        assert float(probs[seed % VOCAB]) == 0.0
    assert all(0.0 <= offered <= 1.0 for offered in chooser.offered)


@both_rules
def test_rows_are_left_as_they_were(rule: str) -> None:
    p = torch.softmax(torch.arange(VOCAB).float(), -1)
    before, q = p.clone(), EVEN.clone()
    run(SAMPLED[rule](tree_of(*BUSHY, q), END, Scripted()), p)
    assert torch.equal(p, before)
    assert torch.equal(q, EVEN)
