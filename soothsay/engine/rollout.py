"""A new drafter on probation in a running engine: it stays if it drafts as well as the old one.

Output never depends on the drafter, so nothing but speed is at stake.
"""

from __future__ import annotations

import logging

from soothsay.drafters.drafter import Drafter
from soothsay.engine.drafting import Drafting, Installed

SEQUENCES = 50  # finished with each drafter before they are compared
LEAST = 0.98  # of the old drafter's tokens per forward

logger = logging.getLogger(__name__)


class Rollout:
    """Installs a drafter, watches the sequences that finish with it, and takes it back if it does
    worse than the one before. Not for use from two threads."""

    def __init__(
        self,
        drafting: Drafting,
        drafter: Drafter | None,
        sequences: int = SEQUENCES,
        least: float = LEAST,
    ) -> None:
        """sequences: finished with a drafter before it is judged; the old one's are counted from
        where they stand, and waited for as long as it takes."""
        if sequences < 1:
            raise ValueError(f"a drafter is judged by at least one sequence, not {sequences}")
        self._drafting, self._sequences, self._least = drafting, sequences, least
        self._candidate = drafter
        self._old = drafting.current
        self._new: Installed | None = None
        self.kept: bool | None = None  # the decision; None while there is none

    def watch(self) -> bool | None:
        """Take the next step if it is due. To be called between the engine's steps → `kept`."""
        if self.kept is not None:
            return self.kept
        if self._new is None:
            if self._old.sequences >= self._sequences:
                self._drafting.install(self._candidate)
                self._new = self._drafting.current
        elif self._new.sequences >= self._sequences:
            before = self._old.stats.tokens_per_forward
            after = self._new.stats.tokens_per_forward
            self.kept = after >= self._least * before
            if not self.kept and self._drafting.current is self._new:
                self._drafting.install(self._old)
            logger.info(
                "drafter %s: %.2f tokens per forward, %.2f before: %s",
                self._candidate.name if self._candidate else "off",
                after,
                before,
                "kept" if self.kept else "taken back",
            )
        return self.kept
