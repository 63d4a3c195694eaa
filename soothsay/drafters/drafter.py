"""The Drafter protocol. A drafter may be wrong, never unsafe: verification decides alone.

A drafter holds weights only; what it knows of one sequence lives in the state it returns from
`open`, which the scheduler keeps with the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from soothsay.drafters.masks import LookaheadMasks
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price


class Drafter(Protocol):
    """Proposes trees for single sequences."""

    name: str

    def open(self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None) -> Any:
        """Start a sequence → its state.

        `encoded` holds one segment; `prompt` is what the decoder starts from (not output);
        `hint` is an earlier hypothesis of the same audio, if there is one.
        """
        ...

    def propose(self, state: Any, price: Price) -> DraftTree:
        """The tree for the next step. Node 0 is the last committed token (or prompt token)."""
        ...

    def advance(self, state: Any, tokens: Sequence[int]) -> None:
        """These tokens were committed, in order: accepted drafts and the target's own token."""
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """A drafter that wants masks run in the target's forward, behind nodes where a step may end."""

    @property
    def masks(self) -> LookaheadMasks | None:
        """None: no masks after all."""
        ...

    def foresee(self, state: Any, hidden: Tensor, first: int | None = None) -> None:
        """Heard after `advance`. hidden: (J, width), the target's final states at masks that stood
        behind the step's end or behind a node before it; the first of them, which has the number
        `first` in its row, foretells the token behind the new root."""
        ...


def masks_of(drafter: object) -> LookaheadMasks | None:
    """What the drafter wants run in the target's forward, if it does."""
    return drafter.masks if isinstance(drafter, LooksAhead) else None
