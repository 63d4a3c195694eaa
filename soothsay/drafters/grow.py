"""Best-first growth of a draft tree from a source of continuations."""

from __future__ import annotations

import heapq
import math
from typing import Any, Protocol, runtime_checkable

from soothsay.speculate.tree import DraftTree
from soothsay.types import Price

Option = tuple[int, float]  # a token, and its chance given the path before it


@runtime_checkable
class Source(Protocol):
    """Says what follows a node. A place is whatever the source needs to know of a node."""

    def start(self, state: Any) -> Any:
        """The place of the root, the last committed token."""
        ...

    def follow(self, state: Any, place: Any, token: int) -> Any:
        """The place of a child."""
        ...

    def options(self, state: Any, place: Any, least: float) -> list[Option]:
        """Continuations whose chance is at least `least`; an ended text has none."""
        ...


def grow(source: Source, state: Any, root: int, price: Price) -> DraftTree:
    """The likeliest nodes the price allows: a child is never likelier than its parent, so the
    best are found by always taking the best that hangs below what was taken."""
    tokens, parents, log_q, acceptance = [root], [-1], [0.0], [1.0]
    places = [source.start(state)]
    heap: list[tuple[float, int, int, float]] = []  # (-acceptance, parent, token, chance)

    def expand(node: int) -> None:
        worth = acceptance[node]
        if worth <= 0.0:
            return
        for token, chance in source.options(state, places[node], price.threshold / worth):
            if chance > 0.0 and worth * chance >= price.threshold:
                heapq.heappush(heap, (-worth * min(chance, 1.0), node, token, chance))

    if not price.safe_mode:
        expand(0)
    while heap:
        worth, parent, token, chance = heapq.heappop(heap)
        tokens.append(token)
        parents.append(parent)
        log_q.append(math.log(min(chance, 1.0)))
        acceptance.append(-worth)
        if len(tokens) >= price.nodes:
            break
        places.append(source.follow(state, places[parent], token))
        expand(len(tokens) - 1)
    return DraftTree(tuple(tokens), tuple(parents), tuple(log_q), tuple(acceptance))
