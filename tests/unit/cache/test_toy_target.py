"""The toy target's trees, slots and streams against its slow oracle; then the engine on it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fixtures.toy_target import ToyTarget, toy_features, toy_greedy, toy_next_logits

from soothsay.cache.arena import Arena
from soothsay.cache.slots import SlotPool
from soothsay.control.budget import FixedBudget
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.history import HistoryDrafter
from soothsay.drafters.probe import OracleDrafter, RandomDrafter
from soothsay.engine.engine import Engine
from soothsay.engine.request import Request
from soothsay.speculate.filters import NoRepeatNgram, SuppressAtBegin
from soothsay.targets.target import Target, TreeBatch, TreeSpan

VOCAB, END = 17, 14
TOY = ToyTarget()


class Story:
    """One sequence of a random history: what it has said, and where its rows lie."""

    def __init__(self, number: int, chance: random.Random, slot: int, stream: int) -> None:
        self.features = toy_features(number)
        self.text: list[int] = []  # tokens whose rows are cached
        self.slot, self.stream = slot, stream
        self.nodes: list[tuple[int, int]] = []  # (token, parent) of the latest tree, -1 the text
        self._chance = chance

    def grow(self) -> None:
        """A random tree below the text, sometimes with a chain of pending tokens on top."""
        chain = self._chance.choice([1, 1, 2, 4])
        size = chain + self._chance.randrange(7)
        self.nodes = [
            (
                self._chance.randrange(VOCAB),
                at - 1 if at < chain else self._chance.randrange(chain - 1, at),
            )
            for at in range(size)
        ]

    def path(self, node: int) -> list[int]:
        """Nodes from the first one down to `node`."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.nodes[node][1]
        return path[::-1]


def batch_of(stories: list[Story]) -> TreeBatch:
    tokens, positions, spans = [], [], []
    for story in stories:
        start, size = len(tokens), len(story.nodes)
        mask = torch.zeros(size, size, dtype=torch.bool)
        for node, (token, _) in enumerate(story.nodes):
            path = story.path(node)
            tokens.append(token)
            positions.append(len(story.text) + len(path) - 1)
            for seen in path:
                mask[node, seen] = True
        spans.append(
            TreeSpan(
                start=start,
                stop=start + size,
                slot=story.slot,
                committed=len(story.text),
                stream=story.stream,
                mask=mask if size > 1 else None,
            )
        )
    return TreeBatch(torch.tensor(tokens), torch.tensor(positions), tuple(spans))


@pytest.mark.parametrize("seed", range(6))
def test_random_trees_and_commits_are_the_oracles(seed: int) -> None:
    chance = random.Random(seed)
    count, rows = chance.randint(1, 4), 40
    pool = SlotPool(count * (rows + 8))
    stories = []
    streams = chance.sample(range(5), count)
    for number in range(count):
        filler = pool.allocate(chance.randint(1, 8))  # so that regions start anywhere
        region = pool.allocate(rows)
        assert filler is not None
        assert region is not None
        stories.append(Story(number, chance, region.start, streams[number]))
    arena = Arena(TOY.arena_shape(pool.size, 5))
    for tensor in (arena.self_k, arena.self_v, arena.cross_k, arena.cross_v):
        tensor.normal_(std=3.0)  # rows nobody wrote must not be read
    encoded = TOY.encode(torch.stack([story.features for story in stories]))
    TOY.write_cross(encoded, arena, streams)
    for _ in range(4):
        taking_part = chance.sample(stories, chance.randint(1, count))
        for story in taking_part:
            story.grow()
        logits = TOY.logits(TOY.forward_tree(batch_of(taking_part), arena))
        row = 0
        for story in taking_part:
            for node in range(len(story.nodes)):
                said = [story.nodes[at][0] for at in story.path(node)]
                expected = toy_next_logits(TOY, story.features, [*story.text, *said])
                torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
                row += 1
            path = story.path(chance.randrange(len(story.nodes)))
            fresh = story.slot + len(story.text)
            sources = torch.tensor([fresh + node for node in path])
            arena.move_rows(sources, torch.arange(fresh, fresh + len(path)))
            story.text += [story.nodes[node][0] for node in path]


RIGHT = TreeSpan(
    start=0, stop=2, slot=0, committed=3, stream=0, mask=torch.tensor([[1, 0], [1, 1]]).bool()
)


@pytest.mark.parametrize(
    ("span", "positions"),
    [
        (replace(RIGHT, slot=1), (3, 4)),
        (replace(RIGHT, committed=2), (3, 4)),
        (replace(RIGHT, stream=1), (3, 4)),
        (replace(RIGHT, mask=torch.eye(2).bool()), (3, 4)),
        (RIGHT, (3, 5)),
    ],
    ids=["slot", "committed", "stream", "mask", "position"],
)
def test_every_cache_mistake_shows(span: TreeSpan, positions: tuple[int, int]) -> None:
    """Otherwise nothing above, and no engine test on this target, would mean anything."""
    arena = Arena(TOY.arena_shape(12, 2))
    TOY.write_cross(TOY.encode(torch.stack([toy_features(0), toy_features(1)])), arena, [0, 1])

    def run(tokens: list[int], positions: Sequence[int], span: TreeSpan) -> torch.Tensor:
        batch = TreeBatch(torch.tensor(tokens), torch.tensor(positions), (span,))
        return TOY.logits(TOY.forward_tree(batch, arena))[-1]

    text, drafted = [3, 8, 5], [7, 2]
    causal = torch.ones(3, 3).tril().bool()
    run(text, range(3), replace(RIGHT, stop=3, committed=0, mask=causal))
    expected = toy_next_logits(TOY, toy_features(0), text + drafted)
    torch.testing.assert_close(run(drafted, (3, 4), RIGHT), expected, rtol=0, atol=1e-10)
    assert (run(drafted, positions, span) - expected).abs().max() > 0.1


DRAFTERS: dict[str, Drafter | None] = {
    "plain": None,
    "history": HistoryDrafter(),
    "random": RandomDrafter(VOCAB, END, seed=4),
    "oracle": OracleDrafter(0.5, VOCAB, END, seed=4, sibling_accuracy=0.7),
}


@pytest.fixture(scope="module")
def told() -> list[tuple[Request, list[int]]]:
    """Requests with ragged prompts, and what the oracle writes for each."""
    rules = (SuppressAtBegin([END, 6]), NoRepeatNgram(3))
    pairs = []
    for n, prompt in enumerate([(1,), (1, 5, 9), (2, 2), (4, 1, 7, 3), (6,)]):
        features = toy_features(n)
        text = toy_greedy(TOY, features, prompt, END, 20, rules)
        request = Request(features, prompt, END, filters=rules, max_tokens=20, hint=text)
        pairs.append((request, text))
    return pairs


def test_its_texts_are_worth_testing(told: list[tuple[Request, list[int]]]) -> None:
    texts = [text for _, text in told]
    assert len({tuple(text) for text in texts}) == len(texts)
    assert 0 < sum(len(text) < 20 for text in texts) < len(texts)  # by end-of-text and by limit
    assert all(len(set(text)) > 5 for text in texts)


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_engine_needs_the_protocol_alone(
    name: str, told: list[tuple[Request, list[int]]]
) -> None:
    """More requests than places, and accepted paths whose rows lie apart in the arena."""
    target: Target = TOY
    engine = Engine(target, DRAFTERS[name], FixedBudget(9), max_sequences=3)
    results = engine.run([request for request, _ in told])
    assert [list(result.tokens) for result in results] == [text for _, text in told]
    if name == "oracle":
        assert engine.stats.accepted > engine.stats.target_forwards
