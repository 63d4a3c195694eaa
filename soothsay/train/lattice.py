"""Training of the lattice head: what it is shown, and how well it then drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from soothsay.bench.acceptance import measure
from soothsay.drafters.head import LatticeHead
from soothsay.drafters.lattice import LatticeDrafter, Signs
from soothsay.train.loop import JUDGED_NODES
from soothsay.train.losses import Batch, ctc_loss, frame_loss, frames_of
from soothsay.train.shards import Example

CTC_FROM = 0.55  # share of the training after which CTC joins the frame labels
SOFTEN = 0.3  # weight of the target's own distribution beside the token it wrote
DROPOUT = 0.1


def choose_vocabulary(examples: Sequence[Example], end_token: int) -> Tensor:
    """(C,) ascending ids of the tokens that the target wrote, or nearly wrote, in these windows."""
    written: Counter[int] = Counter()
    for example in examples:
        written.update(example.tokens.tolist())
        likely = example.soft_tokens[example.soft_probs > 0.05]
        written.update(likely.tolist())
    return torch.tensor(sorted(token for token in written if token < end_token))


def make_batch(
    examples: Sequence[Example], column_of: Tensor, stride: int, chance: torch.Generator | None
) -> Batch:
    """column_of: (V,) the vocabulary column of every token, -1 outside. With `chance`, hidden
    states are masked in stretches of time and channels (after SpecAugment, Park et al., 2019)."""
    longest = max(len(e.heard) for e in examples)
    longest += -longest % (2 * stride)
    most = max(len(e.tokens) - 1 for e in examples)
    soft_width = examples[0].soft_tokens.shape[1]
    count = len(examples)
    hidden = torch.zeros(count, longest, examples[0].hidden.shape[1])
    batch = Batch(
        hidden=hidden,
        frames=torch.tensor([len(e.heard) // stride for e in examples]),
        tokens=torch.full((count, most), -1),
        at=torch.zeros((count, most), dtype=torch.int64),
        before=torch.zeros((count, most), dtype=torch.int64),
        soft=torch.full((count, most, soft_width), -1),
        soft_probs=torch.zeros((count, most, soft_width)),
    )
    for row, example in enumerate(examples):
        n = len(example.tokens) - 1
        states = example.heard.float()
        hidden[row, : len(states)] = states if chance is None else _masked(states, chance)
        batch.tokens[row, :n] = column_of[example.tokens[:-1]]
        batch.at[row, :n] = frames_of(example, stride).clamp(max=int(batch.frames[row]) - 1)
        batch.before[row, 0] = example.prompt[-1]
        batch.before[row, 1:n] = example.tokens[: n - 1]
        batch.soft[row, :n] = column_of[example.soft_tokens[:-1].long()]
        batch.soft_probs[row, :n] = example.soft_probs[:-1].float()
    return batch


def _masked(states: Tensor, chance: torch.Generator) -> Tensor:
    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=chance))

    states = states.clone()
    for _ in range(len(states) // 150):
        start = draw(len(states))
        states[start : start + draw(16)] = 0.0
    dropped = torch.rand(states.shape[1], generator=chance) < 0.05
    states[:, dropped] = 0.0
    return states * (1.0 + 0.1 * torch.randn((), generator=chance))


class LatticeStudent:
    """A head in training (see loop.Student)."""

    def __init__(
        self,
        head: LatticeHead,
        embedding: Tensor,
        vocabulary: Tensor,
        signs: Signs,
        ctc_from: float = CTC_FROM,
    ) -> None:
        """embedding: (V, width) the target's output embedding; vocabulary: (C,) tokens to learn."""
        self.module, self.ctc_from = head, ctc_from
        self.embedding, self.vocabulary, self.signs = embedding, vocabulary, signs
        self._column_of = torch.full((len(embedding),), -1)
        self._column_of[vocabulary] = torch.arange(len(vocabulary))
        self._kept = embedding[vocabulary].float()

    @property
    def facts(self) -> dict[str, Any]:
        return {
            **asdict(self.module.sizes),
            "vocabulary": len(self.vocabulary),
            "soften": SOFTEN,
            "ctc_from": self.ctc_from,
            "dropout": DROPOUT,
        }

    def loss(self, examples: Sequence[Example], share: float, chance: torch.Generator) -> Tensor:
        batch = make_batch(examples, self._column_of, self.module.sizes.stride, chance)
        gate, features = self.module(batch.hidden)
        classifier = self.module.classifier(self._kept)
        loss = frame_loss(
            self.module, gate, features, classifier, self.embedding, self._kept, batch, SOFTEN
        )
        if share >= self.ctc_from:
            loss = 0.5 * loss + ctc_loss(gate, features, classifier, batch)
        return loss

    def drafter(self, weights: dict[str, Tensor]) -> LatticeDrafter:
        """The head with these weights, as it would draft."""
        head = LatticeHead(self.module.sizes)
        head.load_state_dict(weights)
        head.eval().requires_grad_(False)
        return LatticeDrafter(head, self.vocabulary, self.embedding, self.signs)

    def judge(self, weights: dict[str, Tensor], examples: Sequence[Example]) -> float:
        return measure(self.drafter(weights), examples, JUDGED_NODES).tokens_per_forward
