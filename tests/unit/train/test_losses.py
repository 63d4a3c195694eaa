"""Losses against their definitions, written as loops and as an enumeration of paths."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from fixtures.examples import END, SPOKEN, VOCAB, WIDTH, example
from fixtures.heads import toy_sizes

from soothsay.drafters.head import LatticeHead
from soothsay.train.lattice import make_batch
from soothsay.train.losses import ctc_loss, frame_loss, frames_of

VOCABULARY = torch.arange(1, 40)
COLUMNS = torch.full((96,), -1)
COLUMNS[VOCABULARY] = torch.arange(len(VOCABULARY))


def test_frames_of_tokens() -> None:
    shown = replace(
        example(0, tokens=4),
        # the first after long silence, two in one frame, one before a pause
        starts=torch.tensor([0, 60, 62, 63, 120, 140]),
    )
    assert frames_of(shown, 2).tolist() == [(44 + 8) // 2, 61 // 2, 62 // 2, (63 + 8) // 2]
    alone = replace(example(0, tokens=1), starts=torch.tensor([0, 10, 12]))
    assert frames_of(alone, 2).tolist() == [2]


@torch.no_grad()
def test_frame_loss_by_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = LatticeHead(toy_sizes(WIDTH)).eval()
    batch = make_batch([example(1), example(2, tokens=7)], COLUMNS, 2, None)
    gate, features = head(batch.hidden)
    classifier = head.classifier(SPOKEN[VOCABULARY])
    monkeypatch.setattr(torch, "multinomial", lambda p, n, replacement: torch.ones(n).long())
    loss = frame_loss(
        head, gate, features, classifier, SPOKEN, SPOKEN[VOCABULARY], batch, soften=0.3
    )
    heard, frames, which, joint, tokens = 0.0, 0, 0.0, 0.0, 0
    for row in range(2):
        placed = {int(at) for at, t in zip(batch.at[row], batch.tokens[row], strict=True) if t >= 0}
        for frame in range(int(batch.frames[row])):
            p = float(torch.sigmoid(gate[row, frame]))
            heard -= math.log(p if frame in placed else 1 - p)
            frames += 1
        for place, token in enumerate(batch.tokens[row].tolist()):
            if token < 0:
                continue
            tokens += 1
            logits = classifier @ features[row, batch.at[row, place]]
            before = SPOKEN[batch.before[row, place]][None]
            behind = head.bigram(before, SPOKEN[VOCABULARY])[0]
            total = sum(
                float(q)
                for c, q in zip(batch.soft[row, place], batch.soft_probs[row, place], strict=True)
                if c >= 0
            )
            assert total > 0
            for name, scores in (("which", logits), ("joint", logits + behind)):
                log_p = torch.log_softmax(scores, -1)
                value = -0.7 * float(log_p[token])
                for c, q in zip(batch.soft[row, place], batch.soft_probs[row, place], strict=True):
                    if c >= 0:
                        value -= 0.3 * float(q) / total * float(log_p[c])
                which += value if name == "which" else 0.0
                joint += value if name == "joint" else 0.0
    wanted = 10 * heard / frames + which / tokens + joint / tokens
    assert float(loss) == pytest.approx(wanted, rel=1e-4)


@torch.no_grad()
def test_ctc_is_the_sum_over_all_paths() -> None:
    torch.manual_seed(1)
    shown = example(3, tokens=2, stretch=2)
    batch = make_batch([shown], COLUMNS, 2, None)
    frames = int(batch.frames[0])
    gate = torch.randn(1, frames) + 1.0  # open everywhere, or tokens there count for nothing
    gate.clamp_(min=-2.0)
    features = torch.randn(1, frames, 8)
    classifier = torch.randn(len(VOCABULARY), 8)
    which = torch.softmax(features[0] @ classifier.T, -1)
    opened = torch.sigmoid(gate[0])
    text = batch.tokens[0].tolist()
    total = 0.0
    blank = len(VOCABULARY)
    for path in itertools.product([*set(text), blank], repeat=frames):
        collapsed = [c for c, _ in itertools.groupby(path) if c != blank]
        if collapsed == text:
            total += math.prod(
                float(1 - opened[t]) if c == blank else float(opened[t] * which[t, c])
                for t, c in enumerate(path)
            )
    loss = ctc_loss(gate, features, classifier, batch)
    assert float(loss) == pytest.approx(-math.log(total) / len(text), rel=1e-4)


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    torch.manual_seed(2)
    head = LatticeHead(toy_sizes(WIDTH)).eval()
    classifier = head.classifier(SPOKEN[VOCABULARY])
    short, long = example(4, tokens=5), example(5, tokens=15)
    values = []
    for together in ([short], [short, long]):
        batch = make_batch(together, COLUMNS, 2, None)
        gate, features = head(batch.hidden)
        assert int(batch.frames[0]) == len(short.heard) // 2
        only = replace(
            batch, **{n: getattr(batch, n)[:1] for n in ("hidden", "frames", "tokens", "at")}
        )
        values.append(float(ctc_loss(gate[:1], features[:1], classifier, only)))
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_a_batch_holds_what_is_taught() -> None:
    shown = example(6, tokens=4)
    batch = make_batch([shown, example(7, tokens=9)], COLUMNS, 2, None)
    assert batch.tokens[0].tolist() == [*(shown.tokens[:-1] - 1).tolist(), *[-1] * 5]
    assert batch.before[0, :4].tolist() == [shown.prompt[-1], *shown.tokens[:3].tolist()]
    assert END not in batch.tokens
    assert batch.hidden.shape[1] % 4 == 0
    assert int(batch.soft.max()) < VOCAB


def test_masks_are_drawn_and_leave_labels_alone() -> None:
    plain = make_batch([example(8, tokens=40)], COLUMNS, 2, None)
    one, two, other = (
        make_batch([example(8, tokens=40)], COLUMNS, 2, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one.hidden, two.hidden)
    assert not torch.equal(one.hidden, other.hidden)
    assert not torch.equal(one.hidden, plain.hidden)
    assert torch.equal(one.tokens, plain.tokens)
