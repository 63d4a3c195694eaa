"""Logit rules and warping. Pure: each row is filtered on its own node's own path.

One chain of filters serves plain and speculative decoding alike, so a rule can never apply to the
drafter alone (a published library suppressed end-of-text in its drafter and gained a "Thank you.").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from soothsay.types import Sampling


class LogitFilter(Protocol):
    """A rule over logits, stateless: everything it depends on is in the row's history."""

    def apply(self, logits: Tensor, histories: Sequence[Sequence[int]]) -> None:
        """logits: (R, V) float32, changed in place. histories[r]: the tokens decoded before the
        row's prediction (prompt not included), committed ones and the node's path alike."""
        ...


def warp(logits: Tensor, sampling: Sampling) -> Tensor:
    """(R, V) filtered logits → (R, V) probabilities after temperature, top-k and top-p."""
    raise NotImplementedError
