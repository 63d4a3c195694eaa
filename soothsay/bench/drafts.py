"""How good a drafter is at every node budget, as a tree and as a chain, without timing anything.

The target writes each clip once, plainly; what it heard and wrote decides the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from soothsay.audio.features import WINDOW_SAMPLES
from soothsay.bench.acceptance import NODE_BUDGETS, Acceptance, measure, reliability
from soothsay.bench.foretelling import Foretelling
from soothsay.bench.workload import Clip, provenance
from soothsay.drafters.blend import BlendDrafter
from soothsay.drafters.drafter import Drafter, masks_of
from soothsay.drafters.frozen import FrozenDecoder
from soothsay.drafters.fuse import FusedDrafter
from soothsay.drafters.grow import Option, Source, grow
from soothsay.drafters.probe import ListeningDrafter
from soothsay.speculate.tree import DraftTree
from soothsay.transcribe import Options, Recogniser
from soothsay.types import OptionError, Price

SHOWN_NODES = 8


@dataclass(frozen=True, slots=True)
class Window:
    """A clip's first window as the target heard and wrote it (see acceptance.Heard)."""

    hidden: Tensor
    audio_positions: int
    prompt: tuple[int, ...]
    tokens: Tensor


class Chain:
    """A drafter that follows the likeliest token alone: what breadth is measured against."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def foresee(self, state: Any, hidden: Tensor, first: int | None = None) -> None:
        self._drafter.foresee(state, hidden, first)

    def options(self, state: Any, place: Any, least: float) -> list[Option]:
        found: list[Option] = self._drafter.options(state, place, least)
        return [max(found, key=lambda option: option[1])] if found else []

    def propose(self, state: Any, price: Price) -> DraftTree:
        root = self._drafter.propose(state, Price()).tokens[0]
        return grow(self, state, root, price)


def curves(
    drafter: Drafter,
    windows: Sequence[Any],
    foretold: Callable[[Any], Tensor] | None = None,
    groups: int | None = None,
) -> dict[str, Any]:
    """Tokens per forward by node budget, as a tree and as a chain; acceptance by depth, and how
    honest the foretold chances are, at SHOWN_NODES. foretold, groups: see acceptance.measure."""
    counts = {nodes: measure(drafter, windows, nodes, foretold, groups) for nodes in NODE_BUDGETS}
    figures: dict[str, Any] = {
        "tokens_per_forward": {n: c.tokens_per_forward for n, c in counts.items()}
    }
    if isinstance(drafter, Source):
        chain = Chain(drafter)
        figures["chain_tokens_per_forward"] = {
            n: measure(chain, windows, n, foretold, groups).tokens_per_forward for n in NODE_BUDGETS
        }
    shown: Acceptance = counts[SHOWN_NODES]
    return figures | {
        "acceptance_by_depth": [
            kept / drafted for kept, drafted in zip(shown.accepted, shown.drafted, strict=True)
        ],
        "reliability": reliability(shown),
    }


def bench_drafts(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The curves of the recogniser's drafter, and of each of its sources alone, over the clips."""
    drafter = recogniser.engine.drafter
    if drafter is None:
        raise OptionError("there is nothing to measure without a drafter: give --drafter")
    drafters = [drafter]
    for several in drafters:  # grows while it is walked
        if isinstance(several, BlendDrafter):
            drafters += several.drafters
        elif isinstance(several, FusedDrafter):
            drafters += [several.look, several.lattice]
    masks, budget = masks_of(drafter), recogniser.engine.budget
    foretold: Callable[[Any], Tensor] | None = None
    if masks is not None and budget.max_groups:
        known = Foretelling(masks, FrozenDecoder(recogniser.files))
        foretold = lambda window: known(window)[:, : budget.max_masks]  # noqa: E731
    windows = hear(recogniser, clips, options, progress)
    return {
        "clips": len(clips),
        "tokens": sum(len(window.tokens) for window in windows),
        "drafters": {d.name: curves(d, windows, foretold, budget.max_groups) for d in drafters},
        "provenance": provenance(recogniser),
    }


def hear(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None] = lambda: None,
) -> list[Window]:
    """Decode the first window of every clip plainly → what was heard and written."""
    engine, listener = recogniser.engine, ListeningDrafter()
    end = recogniser.tokens.end_of_text
    windows = []
    drafter, engine.drafter = engine.drafter, listener
    try:
        for clip in clips:
            wanted = replace(options, language=options.language or clip.language)
            samples = clip.samples()[:WINDOW_SAMPLES]
            (result,) = recogniser.run([recogniser.request(samples, wanted, hint=(0,))])
            written = torch.tensor([*result.tokens, end])
            heard = listener.heard.pop(0)
            windows.append(
                Window(heard.hidden[0], heard.audio_positions[0], result.prompt, written)
            )
            progress()
    finally:
        engine.drafter = drafter
    return windows
