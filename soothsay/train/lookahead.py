"""Training of the look-ahead masks: every position of the target's text may be a step's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from soothsay.bench.acceptance import measure
from soothsay.bench.foretelling import Foretelling, chains, padded
from soothsay.drafters.frozen import FrozenDecoder
from soothsay.drafters.lookahead import LookaheadDrafter
from soothsay.drafters.masks import LookaheadMasks
from soothsay.train.loop import JUDGED_NODES
from soothsay.train.shards import Example

ROOTS = 16  # step ends taught in each window
FADING = 0.85  # weight of a mask's loss relative to that of the one before: it is reached less
SOFTEN = 0.3  # weight of the target's own distribution beside the token it wrote


class LookaheadStudent:
    """Masks in training (see loop.Student)."""

    def __init__(
        self,
        masks: LookaheadMasks,
        target: FrozenDecoder,
        vocabulary: Tensor,
        end: int | None = None,
    ) -> None:
        """vocabulary: (C,) tokens to foretell, end-of-text and timestamps included; end: the token
        behind which nothing comes."""
        self._end = end
        self.module, self.target, self.vocabulary = masks, target, vocabulary
        self._column_of = torch.full((len(target.embedding),), -1)
        self._column_of[vocabulary] = torch.arange(len(vocabulary))
        self._kept = target.embedding[vocabulary]

    @property
    def facts(self) -> dict[str, Any]:
        sizes = asdict(self.module.sizes)
        return sizes | {"vocabulary": len(self.vocabulary), "roots": ROOTS, "fading": FADING}

    def loss(self, examples: Sequence[Example], share: float, chance: torch.Generator) -> Tensor:
        tokens, hidden = chains(examples)
        count = self.module.sizes.masks
        roots = torch.stack([_draw_roots(e, chance) for e in examples])
        memory = self.target.remember(hidden, tokens)
        states = self.target.foretell(self.module, memory, roots)  # (B, R, K, width)
        first = torch.tensor([len(e.prompt) for e in examples])
        # Root i foretells by itself the token of index i - first + 1; its first mask the next one.
        index = roots[..., None] - first[:, None, None] + 2 + torch.arange(count)
        text = padded([e.tokens for e in examples])
        inside = index < torch.tensor([len(e.tokens) for e in examples])[:, None, None]
        index = torch.where(inside, index, 0)
        rows = torch.arange(len(examples))[:, None, None].expand_as(index)
        label = self._column_of[text[rows, index]]
        known = inside & (label >= 0)
        before = text[rows, (index - 1).clamp(min=0)][known]
        states = states[known] + self._bigram(before)
        log_probs = torch.log_softmax((states @ self._kept.T).float(), -1)
        hard = log_probs.gather(1, label[known][:, None]).squeeze(1)
        soft = self._column_of[padded([e.soft_tokens.long() for e in examples])[rows, index][known]]
        probs = padded([e.soft_probs.float() for e in examples])[rows, index][known]
        probs = torch.where(soft >= 0, probs, 0.0)
        probs = probs / probs.sum(-1, keepdim=True).clamp_min(1e-6)
        softly = (log_probs.gather(1, soft.clamp(min=0)) * probs).sum(-1)
        weight = (FADING ** torch.arange(count)).expand_as(index)[known]
        if not len(weight):  # texts that end at once: nothing is left to foretell
            return states.sum() * 0.0
        return -(((1 - SOFTEN) * hard + SOFTEN * softly) * weight).sum() / weight.sum()

    def _bigram(self, before: Tensor) -> Tensor:
        """before: (A,) token ids → (A, width), what the bigram adds to the states."""
        sides = F.embedding(before, self.target.embedding).float()
        added: Tensor = self.module.after(self.module.before(sides)).to(self._kept.dtype)
        return added

    def drafter(self, weights: dict[str, Tensor]) -> LookaheadDrafter:
        masks = LookaheadMasks(self.module.sizes)
        masks.load_state_dict(weights)
        masks.eval().requires_grad_(False)
        return LookaheadDrafter(masks, self.vocabulary, self.target.embedding, self._end)

    def judge(self, weights: dict[str, Tensor], examples: Sequence[Example]) -> float:
        drafter = self.drafter(weights)
        foretold = Foretelling(drafter.masks, self.target)
        return measure(drafter, examples, JUDGED_NODES, foretold).tokens_per_forward


def choose_targets(examples: Sequence[Example]) -> Tensor:
    """(C,) ascending ids of all tokens that the target wrote, or nearly wrote."""
    written: set[int] = set()
    for example in examples:
        written.update(example.tokens.tolist())
        written.update(example.soft_tokens[example.soft_probs > 0.05].tolist())
    return torch.tensor(sorted(written))


def _draw_roots(example: Example, chance: torch.Generator) -> Tensor:
    """(ROOTS,) indices in the chain, from the prompt's last token on; the end is no root, nor is
    the token before it, behind which nothing is to be foretold."""
    first = len(example.prompt) - 1
    choices = max(len(example.tokens) - 1, 1)
    if choices >= ROOTS:
        return first + torch.randperm(choices, generator=chance)[:ROOTS]
    return first + torch.randint(choices, (ROOTS,), generator=chance)
