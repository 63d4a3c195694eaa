"""The masks' loss against its definition, and that it falls where something is to be learned."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fixtures.examples import END, WIDTH, example
from fixtures.masks import frozen_in_float32, mask_sizes, random_masks
from fixtures.toy import VOCAB, tiny_whisper_files

from soothsay.bench.foretelling import Foretelling
from soothsay.drafters.frozen import FrozenDecoder
from soothsay.drafters.masks import LookaheadMasks
from soothsay.train import lookahead
from soothsay.train.lookahead import FADING, ROOTS, SOFTEN, LookaheadStudent, choose_targets
from soothsay.train.shards import Example

FILES = tiny_whisper_files(3)
POSITIONS, K = 110, 4


def window(seed: int, tokens: int, held_out: bool = False) -> Example:
    """All windows have as many encoder positions, whatever their text's length."""
    made = example(seed, tokens=tokens, held_out=held_out)
    hidden = torch.zeros(POSITIONS, WIDTH, dtype=torch.float16)
    hidden[: len(made.hidden)] = made.hidden
    return replace(made, hidden=hidden)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FrozenDecoder:
    return frozen_in_float32(FILES, monkeypatch)


def drawn(examples: list[Example], seed: int) -> list[list[int]]:
    chance = torch.Generator().manual_seed(seed)
    return [lookahead._draw_roots(e, chance).tolist() for e in examples]


def by_loops(
    masks: LookaheadMasks,
    target: FrozenDecoder,
    vocabulary: list[int],
    examples: list[Example],
    roots: list[list[int]],
) -> float:
    table = target.embedding
    total = weights = 0.0
    for e, ends in zip(examples, roots, strict=True):
        chain = torch.tensor([[*e.prompt, *e.tokens.tolist()]])
        text = e.tokens.tolist()
        memory = target.remember(e.hidden[None], chain)
        for root in ends:
            states = target.foretell(masks, memory, torch.tensor([[root]]))[0, 0]
            for number in range(K):
                # The root's own answer is the next token of the chain; masks begin behind it.
                place = root + 1 + number + 1 - len(e.prompt)
                if place >= len(text) or text[place] not in vocabulary:
                    continue
                state = states[number] + masks.after(masks.before(table[text[place - 1]]))
                log_p = torch.log_softmax(table[vocabulary] @ state, -1)
                loss = -(1 - SOFTEN) * float(log_p[vocabulary.index(text[place])])
                likely = [
                    (token, float(p))
                    for token, p in zip(
                        e.soft_tokens[place].tolist(), e.soft_probs[place], strict=True
                    )
                    if token in vocabulary
                ]
                for token, p in likely:
                    share = p / sum(p for _, p in likely)
                    loss -= SOFTEN * share * float(log_p[vocabulary.index(token)])
                total += FADING**number * loss
                weights += FADING**number
    return total / weights


@torch.no_grad()
def test_the_loss_by_loops(target: FrozenDecoder) -> None:
    """Texts of several lengths, one shorter than the masks reach, and tokens never foretold."""
    masks = random_masks(FILES, seed=1, masks=K)
    examples = [window(1, 12), window(2, 3), window(3, 9), window(4, 0)]
    vocabulary = [*range(1, 31), END]
    assert any(token > 30 for e in examples for token in e.tokens[:-1].tolist())
    student = LookaheadStudent(masks, target, torch.tensor(vocabulary))
    found = student.loss(examples, 0.0, torch.Generator().manual_seed(5))
    wanted = by_loops(masks, target, vocabulary, examples, drawn(examples, 5))
    assert float(found) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("tokens", [0, 1, 2, 5, ROOTS, 40])
def test_roots_are_step_ends_behind_which_something_follows(tokens: int) -> None:
    shown = window(tokens, tokens) if tokens < 14 else example(tokens, tokens=tokens)
    chain = len(shown.prompt) + len(shown.tokens)
    # From the prompt's last token on, and so that the first mask has a token to foretell.
    allowed = set(range(len(shown.prompt) - 1, max(chain - 2, len(shown.prompt))))
    seen: set[int] = set()
    for seed in range(60):
        (roots,) = drawn([shown], seed)
        assert len(roots) == ROOTS
        assert set(roots) <= allowed
        if len(allowed) >= ROOTS:
            assert len(set(roots)) == ROOTS
        seen |= set(roots)
    assert seen == allowed


def test_a_window_without_words_is_no_harm(target: FrozenDecoder) -> None:
    """Of a text that ends at once masks have nothing to foretell: beside others, or alone."""
    masks = LookaheadMasks(mask_sizes(FILES, K))
    student = LookaheadStudent(masks, target, torch.tensor([1, 2, END]))
    loss = student.loss([window(1, 0)] * 2, 0.0, torch.Generator().manual_seed(0))
    assert math.isfinite(float(loss.detach()))
    loss.backward()
    for parameter in masks.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


def test_it_learns(target: FrozenDecoder) -> None:
    torch.manual_seed(0)
    examples = [window(seed, 8) for seed in range(3)]
    masks = LookaheadMasks(mask_sizes(FILES, masks=3, rank=8))
    student = LookaheadStudent(masks, target, choose_targets(examples))
    before = student.judge(masks.state_dict(), examples)
    optimizer = torch.optim.Adam(masks.parameters(), 2e-2)
    losses = []
    for step in range(50):
        loss = student.loss(examples, step / 50, torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    assert student.judge(masks.state_dict(), examples) > before + 0.5
    assert all(p.grad is not None and bool(p.grad.any()) for p in masks.parameters())
    assert not any(tensor.requires_grad for tensor in target.tensors.values())


@torch.no_grad()
def test_foretelling_is_what_the_student_sees(target: FrozenDecoder) -> None:
    masks = random_masks(FILES, seed=2, masks=K)
    foretelling = Foretelling(masks, target)
    for shown in (window(1, 12), window(2, 3), window(3, 0)):
        found = foretelling(shown)
        assert found.shape == (len(shown.tokens), K, WIDTH)
        chain = torch.tensor([[*shown.prompt, *shown.tokens.tolist()]])
        for done in range(len(shown.tokens)):  # a step ended before that token, and it came
            end = len(shown.prompt) + done - 1
            known = chain[:, : end + 1]  # masks cannot have seen more
            memory = target.remember(shown.hidden[None], known)
            wanted = target.foretell(masks, memory, torch.tensor([[end]]))[0, 0]
            torch.testing.assert_close(found[done], wanted, atol=1e-4, rtol=1e-4)
        assert foretelling(shown) is found  # computed once


@torch.no_grad()
def test_windows_that_are_gone_are_not_mixed_up(target: FrozenDecoder) -> None:
    """Each window is dropped as soon as it was seen, so that the next may lie in its place."""
    masks = random_masks(FILES, seed=2, masks=K)
    foretelling = Foretelling(masks, target)
    for seed in range(8):
        found = foretelling(window(seed, 4))
        wanted = Foretelling(masks, target)(window(seed, 4))
        torch.testing.assert_close(found, wanted)


def test_a_drafter_is_a_copy_of_the_weights(target: FrozenDecoder) -> None:
    masks = LookaheadMasks(mask_sizes(FILES, K))
    student = LookaheadStudent(masks, target, torch.tensor([2, 3, END]))
    drafter = student.drafter({name: t.clone() for name, t in masks.state_dict().items()})
    kept = drafter.masks.embedding.clone()
    with torch.no_grad():
        masks.embedding.add_(1.0)
    assert torch.equal(drafter.masks.embedding, kept)
    assert not any(p.requires_grad for p in drafter.masks.parameters())
    assert student.facts["vocabulary"] == 3


def test_targets_are_what_was_written_or_nearly() -> None:
    shown = window(1, 3)
    likely, tokens = shown.soft_probs.clone(), shown.soft_tokens.clone()
    tokens[0, 5], likely[0, 5] = 45, 0.2
    tokens[0, 6], likely[0, 6] = 44, 0.04
    found = choose_targets([replace(shown, soft_probs=likely, soft_tokens=tokens)]).tolist()
    assert found == sorted({*shown.tokens.tolist(), 45})
    assert END in found
    assert max(found) < VOCAB
