"""The Drafter protocol. A drafter may be wrong, never unsafe: verification decides alone.

A drafter holds weights only; what it knows of one sequence lives in the state it returns from
`open`, which the scheduler keeps with the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

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
