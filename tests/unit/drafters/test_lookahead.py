"""What masks say, read by hand, and the trees that come of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fixtures.masks import random_masks
from fixtures.toy_whisper import SIZES, VOCAB, toy_files
from torch import Tensor

from soothsay.drafters.drafter import LooksAhead, masks_of
from soothsay.drafters.lookahead import CANDIDATES, LookaheadDrafter, LookaheadState
from soothsay.targets.target import Encoded
from soothsay.types import Price

FILES = toy_files(3)
K, WIDTH = 3, SIZES.width
MASKS = random_masks(FILES, seed=4, masks=K)
EMBEDDING = FILES.tensors["model.decoder.embed_tokens.weight"]
VOCABULARY = torch.tensor([2, 3, 5, 7, 11, 13, 17, 19, 23])
PROMPT = (1, 4)


def drafter(vocabulary: Tensor = VOCABULARY, embedding: Tensor = EMBEDDING) -> LookaheadDrafter:
    return LookaheadDrafter(MASKS, vocabulary, embedding)


def opened(ours: LookaheadDrafter) -> LookaheadState:
    return ours.open(Encoded(torch.zeros(1, 4, WIDTH), (4,)), PROMPT, None)


def states(rows: int = K, seed: int = 0) -> Tensor:
    return 0.4 * torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def by_hand(state: Tensor, before: int | None = None) -> dict[int, float]:
    """Chances of all tokens of the vocabulary, the bigram added where `before` is in it."""
    scores = {}
    for token in VOCABULARY.tolist():
        row = EMBEDDING[token].float()
        scores[token] = sum(float(a * b) for a, b in zip(state, row, strict=True))
        if before is not None and before in VOCABULARY.tolist():
            mapped = MASKS.after(MASKS.before(EMBEDDING[before].float()))
            scores[token] += sum(float(a * b) for a, b in zip(mapped, row, strict=True))
    top = max(scores.values())
    total = sum(math.exp(score - top) for score in scores.values())
    return {token: math.exp(score - top) / total for token, score in scores.items()}


def test_read_is_the_softmax_of_each_mask() -> None:
    for rows in range(1, K + 1):
        hidden = states(rows)
        said = drafter().read(hidden)
        assert [foretold.number for foretold in said] == list(range(K - rows, K))  # the last ones
        for foretold, state in zip(said, hidden, strict=True):
            wanted = by_hand(state)
            assert foretold.tokens.tolist() == sorted(wanted, key=lambda token: -wanted[token])
            chances = np.exp(foretold.log_probs).tolist()
            assert chances == pytest.approx(sorted(wanted.values(), reverse=True), rel=1e-4)
            assert foretold.other == pytest.approx(0.0, abs=1e-5)


def test_only_the_likeliest_are_kept_and_the_rest_is_counted() -> None:
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(200, WIDTH, generator=generator)
    vocabulary = torch.randperm(200, generator=generator)[:150].sort().values
    ours = drafter(vocabulary, embedding)
    (foretold,) = ours.read(states(1))
    chances = torch.softmax(embedding[vocabulary] @ states(1)[0], -1)
    order = chances.argsort(descending=True)
    assert len(foretold.tokens) == CANDIDATES
    assert foretold.tokens.tolist() == vocabulary[order[:CANDIDATES]].tolist()
    rest = float(chances[order[CANDIDATES:]].sum())
    assert rest > 0.05
    assert foretold.other == pytest.approx(rest, abs=1e-5)
    state = opened(ours)
    ours.foresee(state, states(1))
    unknown = next(token for token in range(200) if token not in vocabulary.tolist())
    state.root = unknown  # no bigram: the chances are those of the softmax
    found = dict(ours.options(state, ours.start(state), 0.0))
    for column in order[:CANDIDATES].tolist():
        assert found[int(vocabulary[column])] == pytest.approx(float(chances[column]), rel=1e-4)


def test_the_bigram_ties_a_token_to_the_one_before() -> None:
    ours = drafter()
    state = opened(ours)
    ours.foresee(state, states())
    differ = []
    for root in (1, *VOCABULARY.tolist()):  # 1 is no token of the vocabulary
        state.root = root
        found = dict(ours.options(state, ours.start(state), 0.0))
        assert found == pytest.approx(by_hand(states()[0], root), rel=1e-3)
        differ.append(found[7])
    assert max(differ) - min(differ) > 0.01
    place = ours.follow(state, ours.follow(state, ours.start(state), 5), 7)
    wanted = by_hand(states()[2], before=7)
    assert dict(ours.options(state, place, 0.0)) == pytest.approx(wanted, rel=1e-3)


def test_options_are_a_distribution_cut_at_the_least() -> None:
    ours = drafter()
    state = opened(ours)
    for seed in range(20):
        ours.foresee(state, 3.0 * states(seed=seed))
        place = ours.start(state)
        while found := ours.options(state, place, 0.0):
            assert sum(chance for _, chance in found) <= 1.0 + 1e-5
            assert ours.options(state, place, 0.2) == [o for o in found if o[1] >= 0.2]
            place = ours.follow(state, place, found[0][0])
        assert place.depth == K


def test_before_the_first_masks_nothing_is_foretold() -> None:
    ours = drafter()
    assert isinstance(ours, LooksAhead)
    assert masks_of(ours) is MASKS
    state = opened(ours)
    assert state.root == PROMPT[-1]
    assert ours.options(state, ours.start(state), 0.0) == []
    assert ours.propose(state, Price(0.0, 9)).tokens == (PROMPT[-1],)


def test_advancing_brings_old_masks_nearer() -> None:
    ours = drafter()
    state = opened(ours)
    ours.foresee(state, states())
    ours.advance(state, [])
    assert state.root == PROMPT[-1]
    ours.advance(state, [5])
    assert state.root == 5
    assert [foretold.number for foretold in state.ahead] == [1, 2]
    for foretold, old in zip(state.ahead, ours.read(states())[1:], strict=True):
        assert foretold.tokens.tolist() == old.tokens.tolist()
    found = dict(ours.options(state, ours.start(state), 0.0))
    assert found == pytest.approx(by_hand(states()[1], before=5), rel=1e-3)
    ours.advance(state, [7, 11, 2])
    assert (state.root, state.ahead) == (2, [])


def test_new_masks_replace_the_old_ones() -> None:
    ours = drafter()
    state = opened(ours)
    ours.foresee(state, states())
    ours.advance(state, [5, 7])
    ours.foresee(state, states(2, seed=8))
    assert [foretold.number for foretold in state.ahead] == [1, 2]
    found = dict(ours.options(state, ours.start(state), 0.0))
    assert found == pytest.approx(by_hand(states(2, seed=8)[0], before=7), rel=1e-3)


def test_a_tree_goes_no_deeper_than_the_masks() -> None:
    ours = drafter()
    state = opened(ours)
    ours.foresee(state, states())
    tree = ours.propose(state, Price(0.0, 300))
    tree.validate(VOCAB)
    assert max(tree.depths) == K
    for node in range(1, len(tree.tokens)):  # each node is worth what its masks say by hand
        before = tree.tokens[tree.parents[node]]
        chance = by_hand(states()[tree.depths[node] - 1], before)[tree.tokens[node]]
        assert math.exp(tree.log_q[node]) == pytest.approx(chance, rel=1e-3)
    assert list(tree.acceptance) == sorted(tree.acceptance, reverse=True)


def test_states_may_be_of_another_dtype() -> None:
    """A target in bfloat16 hands over its own."""
    said = drafter().read(states().bfloat16())
    for foretold, exact in zip(said, drafter().read(states().bfloat16().float()), strict=True):
        assert np.array_equal(foretold.log_probs, exact.log_probs)
