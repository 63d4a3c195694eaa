from __future__ import annotations

import pytest
import torch

from soothsay.drafters.probe import AdversarialDrafter, OracleDrafter, RandomDrafter
from soothsay.targets.target import Encoded
from soothsay.types import Price

ENCODED = Encoded(torch.zeros(1, 4, 2), (4,))
VOCAB, END = 50, 0
TRUTH = list(range(1, 40))


def test_the_oracle_is_as_right_as_it_says() -> None:
    drafter = OracleDrafter(0.8, VOCAB, END, seed=5)
    right = total = 0
    for _ in range(300):
        state = drafter.open(ENCODED, [7], TRUTH)
        tree = drafter.propose(state, Price(nodes=11))
        assert tree.parents == tuple(range(-1, 10))
        right += sum(a == b for a, b in zip(tree.tokens[1:], TRUTH, strict=False))
        total += 10
    assert right / total == pytest.approx(0.8 + 0.2 / VOCAB, abs=0.02)


def test_a_perfect_oracle_foretells_the_end() -> None:
    drafter = OracleDrafter(1.0, VOCAB, END)
    state = drafter.open(ENCODED, [7], [1, 2, 3])
    drafter.advance(state, [1, 2])
    assert drafter.propose(state, Price(nodes=6)).tokens == (2, 3, END)
    drafter.advance(state, [3, 4, 5, 6])  # the target went on
    assert drafter.propose(state, Price(nodes=6)).tokens == (6,)


def test_the_oracles_siblings_are_as_right_as_they_say() -> None:
    drafter = OracleDrafter(0.6, VOCAB, END, seed=5, sibling_accuracy=0.5)
    wrong = rescued = 0
    for _ in range(600):
        tree = drafter.propose(drafter.open(ENCODED, [7], TRUTH), Price(nodes=11))
        assert len(tree.tokens) <= 11
        assert tree.merged() is tree
        below = [tree.tokens[child] for child in tree.children()[0]]
        assert len(below) <= 2
        assert max(tree.depths) == 5
        if below[0] != TRUTH[0]:
            wrong += 1
            rescued += TRUTH[0] in below[1:]
    assert wrong / 600 == pytest.approx(0.4, abs=0.06)
    assert rescued / wrong == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("sibling_accuracy", [None, 0.5])
@pytest.mark.parametrize("nodes", range(2, 8))
def test_the_oracle_fills_its_price(nodes: int, sibling_accuracy: float | None) -> None:
    drafter = OracleDrafter(1.0, 10_000, END, sibling_accuracy=sibling_accuracy)
    tree = drafter.propose(drafter.open(ENCODED, [7], TRUTH), Price(nodes=nodes))
    assert len(tree.tokens) == nodes
    deepest = tree.depths.index(max(tree.depths))
    chain = [tree.tokens[node] for node in tree.path(deepest)]
    assert chain == TRUTH[: nodes - 1 if sibling_accuracy is None else nodes // 2]


def test_the_oracle_makes_the_same_mistakes_in_trees_of_any_size() -> None:
    def text(nodes: int) -> list[int]:
        drafter = OracleDrafter(0.5, VOCAB, END, seed=9)
        state = drafter.open(ENCODED, [7], TRUTH)
        drafted: list[int] = []
        while len(drafted) < 30:
            drafted += drafter.propose(state, Price(nodes=nodes)).tokens[1:]
            drafter.advance(state, TRUTH[len(state.tokens) - 1 :][: nodes - 1])
        return drafted[:30]

    assert text(2) == text(5) == text(11)
    assert text(2) != TRUTH[:30]


def test_the_same_seed_repeats() -> None:
    for make in (
        lambda: OracleDrafter(0.5, VOCAB, END, seed=9),
        lambda: RandomDrafter(VOCAB, END, seed=9),
    ):
        one, other = (
            [d.propose(d.open(ENCODED, [1], TRUTH), Price(nodes=9)).tokens for _ in range(5)]
            for d in (make(), make())
        )
        assert one == other
        assert len(set(one)) > 1


def test_random_sampled_trees_are_drawn_from_the_q_they_carry() -> None:
    drafter = RandomDrafter(VOCAB, END, seed=1, sampled=True)
    for _ in range(50):
        tree = drafter.propose(drafter.open(ENCODED, [1], None), Price(nodes=9))
        tree.validate(VOCAB)
        assert tree.merged() is tree
        assert tree.draft_probs is not None
        for node, parent in enumerate(tree.parents[1:], start=1):
            assert tree.draft_probs[parent, tree.tokens[node]] > 0


def test_sampled_trees_never_need_more_children_than_there_are_tokens() -> None:
    drafter = RandomDrafter(2, END, seed=1, sampled=True)
    for _ in range(200):
        tree = drafter.propose(drafter.open(ENCODED, [1], None), Price(nodes=12))
        tree.validate(2)
        assert tree.merged() is tree  # refuses a sampled tree with duplicates


@pytest.mark.parametrize("kind", AdversarialDrafter.KINDS)
def test_adversaries_do_their_worst(kind: str) -> None:
    drafter = AdversarialDrafter(kind, VOCAB, END)
    state = drafter.open(ENCODED, [7], TRUTH)
    if kind == "crash":
        with pytest.raises(RuntimeError):
            drafter.propose(state, Price(nodes=6))
        return
    tree = drafter.propose(state, Price(nodes=6))
    assert {
        "wrong": tree.tokens[1] != TRUTH[0],
        "deep": max(tree.depths) == 5,
        "wide": max(tree.depths) == 1 and len(tree.tokens) == 6,
        "duplicates": len(set(tree.tokens[1:])) == 1 and len(tree.tokens) == 6,
        "oversize": len(tree.tokens) > 6,
        "after-end": tree.tokens[1] == END and len(tree.tokens) > 2,
        "invalid": max(tree.tokens) >= VOCAB,
    }[kind]
