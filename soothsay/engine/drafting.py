"""Drafting on behalf of sequences: whatever a drafter does, the sequence goes on.

The drafter can be changed while sequences run: each keeps the one it was opened with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from soothsay.control.budget import Budget
from soothsay.drafters.drafter import Drafter, LooksAhead, masks_of
from soothsay.engine.runner import Verdict
from soothsay.engine.scheduler import SequenceState
from soothsay.speculate.tree import DraftTree
from soothsay.targets.adapters import Adapters
from soothsay.targets.target import Encoded, Target
from soothsay.types import Price, SequenceStats

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Installed:
    """A drafter in use. adapters: of the masks it wants run; stats, sequences: of what finished
    with it, requests for plain decoding not counted."""

    drafter: Drafter | None
    adapters: Adapters | None = None
    stats: SequenceStats = field(default_factory=SequenceStats)
    sequences: int = 0


class Drafting:
    """Owner of the drafter; what it knows of a sequence stays in the sequence's state."""

    def __init__(self, target: Target, budget: Budget, drafter: Drafter | None) -> None:
        self._target, self._budget = target, budget
        self.current = Installed(None)
        self.install(drafter)

    @property
    def mask_rows(self) -> int:
        """Rows a tree may need for masks, whatever drafter comes."""
        return self._budget.max_groups * self._budget.max_masks

    def install(self, drafter: Drafter | Installed | None) -> Installed:
        """Draft new sequences with another drafter, or again with one that was installed before →
        the one in use until now. Running sequences go on with theirs, without its masks: a step
        runs one kind."""
        before = self.current
        if isinstance(drafter, Installed):
            self.current = drafter
        else:
            self.current = Installed(drafter, self._adapters(drafter))
        return before

    def _adapters(self, drafter: Drafter | None) -> Adapters | None:
        masks = masks_of(drafter)
        if masks is None or not self.mask_rows:
            return None
        count = min(masks.sizes.masks, self._budget.max_masks)
        return masks.laid_out(self._target.dtype, self._target.device, count)

    def open(
        self, state: SequenceState, encoded: Encoded, hint: Sequence[int] | None = None
    ) -> None:
        """Let the drafter read what the encoder heard. hint: an earlier attempt, else the request's
        own; a sequence that starts over keeps the drafter it had."""
        if not state.request.speculate:
            return
        state.installed = state.installed or self.current
        drafter: Drafter | None = state.installed.drafter
        if drafter is None:
            return
        started = time.perf_counter()
        choice = state.request.choice if state.choosing else None
        prompt = [*state.prompt, *(choice.then if choice else ())]
        try:
            state.draft_state = drafter.open(encoded, prompt, hint or state.request.hint)
            state.drafting = True
        except Exception:
            self._give_up(state)
        state.stats.draft_seconds += time.perf_counter() - started

    def propose(self, state: SequenceState, price: Price) -> DraftTree:
        """The sequence's tree for the next step, cut to what the engine can take."""
        root = state.pending[-1]
        if not state.drafting or state.choosing or price.safe_mode:
            return DraftTree.root_only(root)
        installed: Installed = state.installed
        started = time.perf_counter()
        try:
            # Position and output limits cut the tree: the target's own token needs room as well.
            drafter: Drafter = installed.drafter  # type: ignore[assignment]
            tree = drafter.propose(state.draft_state, price).fitted(
                root=root,
                vocab_size=self._target.spec.vocab_size,
                max_nodes=price.nodes,
                max_depth=state.remaining(self._target.spec.max_length) - 1,
            )
            if price.groups and installed.adapters and installed is self.current:
                tree = replace(tree, masks=tree.likely_ends(price.groups))
        except Exception:
            self._give_up(state)
            tree = DraftTree.root_only(root)
        state.stats.draft_seconds += time.perf_counter() - started
        return tree

    def advance(self, state: SequenceState, tokens: Sequence[int], verdict: Verdict) -> None:
        """Tell the drafter what was committed, and what its masks foretell of the rest."""
        if not state.drafting:
            return
        drafter: Drafter = state.installed.drafter
        started = time.perf_counter()
        try:
            drafter.advance(state.draft_state, tokens)
            if verdict.ahead is not None and isinstance(drafter, LooksAhead):
                drafter.foresee(state.draft_state, verdict.ahead, verdict.passed)
        except Exception:
            self._give_up(state)
        state.stats.draft_seconds += time.perf_counter() - started

    def finished(self, state: SequenceState) -> None:
        """Count a sequence that ended, for the drafter it was opened with."""
        if state.installed is not None:
            state.installed.stats.add(state.stats)
            state.installed.sequences += 1

    def _give_up(self, state: SequenceState) -> None:
        logger.warning(
            "the drafter failed: sequence %d goes on in safe mode", state.number, exc_info=True
        )
        state.drafting, state.draft_state = False, None
