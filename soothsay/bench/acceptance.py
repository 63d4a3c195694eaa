"""How good a drafter is, without running the target: at temperature 0 its text is known already.

A step commits the tree's longest path along the target's own text and one token more, exactly as
verification would, so tokens per forward are the engine's own, at any node budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from soothsay.drafters.drafter import Drafter, LooksAhead
from soothsay.targets.target import Encoded
from soothsay.types import Price

NODE_BUDGETS = (1, 2, 4, 8, 16, 32, 64)


class Heard(Protocol):
    """A window whose text is known. hidden: (T, width) encoder states, of which audio_positions
    hold audio; prompt: decoder tokens before the text; tokens: (n,) the target's own, end-of-text
    last."""

    @property
    def hidden(self) -> Tensor: ...
    @property
    def audio_positions(self) -> int: ...
    @property
    def prompt(self) -> tuple[int, ...]: ...
    @property
    def tokens(self) -> Tensor: ...


@dataclass(slots=True)
class Acceptance:
    """Counts over steps. drafted, accepted: a pair for each depth, index 0 is depth 1."""

    tokens: int = 0
    forwards: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    # (foretold acceptance, whether it was committed) of every node drafted
    outcomes: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0


def follow(
    drafter: Drafter,
    window: Heard,
    price: Price,
    counts: Acceptance,
    ahead: Tensor | None = None,
) -> None:
    """Decode one window along its known text, adding to `counts`.

    ahead: (n, K, width), what masks see if a step ends before each token, for drafters that look;
    masks stand behind price.groups nodes, as in the engine.
    """
    encoded = Encoded(window.hidden[None].float(), (window.audio_positions,))
    state = drafter.open(encoded, window.prompt, None)
    text = window.tokens.tolist()
    done = 0
    while done < len(text):
        tree = drafter.propose(state, price)
        path = tree.along(text[done:])
        counts.forwards += 1
        depths = tree.depths
        for node in range(1, len(depths)):
            depth = depths[node] - 1
            while len(counts.drafted) <= depth:
                counts.drafted.append(0)
                counts.accepted.append(0)
            counts.drafted[depth] += 1
            counts.accepted[depth] += node in path
            counts.outcomes.append((tree.acceptance[node], node in path))
        committed = text[done : done + len(path) + 1]
        drafter.advance(state, committed)
        counts.tokens += len(committed)
        done += len(committed)
        if ahead is not None and done < len(text) and isinstance(drafter, LooksAhead):
            masks = tree.likely_ends(price.groups)
            for passed, node in enumerate(reversed((0, *path[: len(committed) - 1]))):
                if node in masks and passed < ahead.shape[1]:
                    drafter.foresee(state, ahead[done - 1 - passed, passed:], passed)
                    break


def measure(
    drafter: Drafter,
    windows: Sequence[Heard],
    nodes: int,
    foretold: Callable[[Any], Tensor] | None = None,
    groups: int | None = None,
) -> Acceptance:
    """Tokens per forward of the drafter over the windows, at that many drafted nodes a step.

    foretold: what masks see of a window, for drafters that look ahead; groups: nodes behind which
    they stand, every one without it.
    """
    counts = Acceptance()
    for window in windows:
        ahead = foretold(window) if foretold and isinstance(drafter, LooksAhead) else None
        price = Price(0.0, nodes + 1, nodes + 1 if groups is None else groups)
        follow(drafter, window, price, counts, ahead)
    return counts


def reliability(counts: Acceptance, bins: int = 10) -> dict[str, Any]:
    """How foretold chances compare with what happened: a row a bin, and the expected calibration
    error (Guo et al., 2017), the mean distance between the two weighted by counts."""
    rows = []
    error = 0.0
    for index in range(bins):
        inside = [o for o in counts.outcomes if min(int(o[0] * bins), bins - 1) == index]
        if inside:
            foretold = sum(chance for chance, _ in inside) / len(inside)
            happened = sum(kept for _, kept in inside) / len(inside)
            rows.append({"foretold": foretold, "happened": happened, "nodes": len(inside)})
            error += abs(foretold - happened) * len(inside) / len(counts.outcomes)
    return {"bins": rows, "expected_calibration_error": error}
