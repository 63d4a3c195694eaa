"""What look-ahead masks see of texts that are known already: measuring them without the engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from soothsay.bench.acceptance import Heard
from soothsay.drafters.frozen import FrozenDecoder
from soothsay.drafters.masks import LookaheadMasks


class Foretelling:
    """What masks see of known texts, computed once each: for measuring without the engine."""

    def __init__(self, masks: LookaheadMasks, target: FrozenDecoder) -> None:
        self._masks, self._target = masks, target
        # With each window itself, or another one could come to have its number.
        self._known: dict[int, tuple[Heard, Tensor]] = {}

    @torch.no_grad()
    def __call__(self, window: Heard) -> Tensor:
        """(n, K, width): the masks' final states if a step ended before each of the n tokens."""
        known = self._known.get(id(window))
        if known is None:
            tokens, hidden = chains([window])
            memory = self._target.remember(hidden, tokens)
            first = len(window.prompt) - 1
            roots = torch.arange(first, first + len(window.tokens))[None]
            states = self._target.foretell(self._masks, memory, roots)[0]
            known = self._known[id(window)] = window, states
        return known[1]


def chains(windows: Sequence[Heard]) -> tuple[Tensor, Tensor]:
    """Prompt and text of each (B, N), padded, and the encoder's states (B, T, width)."""
    chains = [torch.cat([torch.tensor(e.prompt), e.tokens]) for e in windows]
    return padded(chains), torch.stack([e.hidden for e in windows])


def padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
