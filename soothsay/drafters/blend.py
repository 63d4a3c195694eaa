"""One tree from several drafters: each says how the chance that others leave is spent.

Sources stand in order of trust. Where a source gives the children of a node the chances p, a later
source's q count for what is left: p + (1 - Σp) · q. Paths known to one source alone keep its own
chances. The likeliest nodes under the price remain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from soothsay.drafters.drafter import Drafter, LooksAhead
from soothsay.drafters.masks import LookaheadMasks
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

# What one source says below a node: token → (chance, its own node).
_Branches = dict[int, tuple[float, int]]


class BlendDrafter:
    """See the module. A drafter that fails is the engine's business, as everywhere."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)
        self.name = "+".join(drafter.name for drafter in drafters)

    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> list[Any]:
        return [drafter.open(encoded, prompt, hint) for drafter in self.drafters]

    def propose(self, state: list[Any], price: Price) -> DraftTree:
        trees = [d.propose(s, price) for d, s in zip(self.drafters, state, strict=True)]
        speaking = [tree for tree in trees if len(tree.tokens) > 1]
        if len(speaking) < 2:
            return speaking[0] if speaking else trees[0]
        return blend(speaking, price)

    def advance(self, state: list[Any], tokens: Sequence[int]) -> None:
        for drafter, own in zip(self.drafters, state, strict=True):
            drafter.advance(own, tokens)

    @property
    def masks(self) -> LookaheadMasks | None:
        """Of the first that has some: a step runs one kind."""
        return next((m for d in self._looking_ahead() if (m := d.masks) is not None), None)

    def foresee(self, state: list[Any], hidden: Tensor, first: int | None = None) -> None:
        for drafter, own in zip(self.drafters, state, strict=True):
            if isinstance(drafter, LooksAhead) and drafter.masks is self.masks:
                drafter.foresee(own, hidden, first)

    def _looking_ahead(self) -> list[LooksAhead]:
        return [drafter for drafter in self.drafters if isinstance(drafter, LooksAhead)]


def blend(trees: Sequence[DraftTree], price: Price) -> DraftTree:
    """Deterministic trees with one root → the likeliest nodes of them all."""
    below = [_branches(tree) for tree in trees]
    tokens, parents, log_q, acceptance = [trees[0].tokens[0]], [-1], [0.0], [1.0]
    # (-acceptance, parent, token, chance, the sources' own nodes there)
    heap: list[tuple[float, int, int, float, tuple[int, ...]]] = []

    def expand(node: int, places: tuple[int, ...]) -> None:
        left = 1.0
        chances: dict[int, float] = {}
        found: dict[int, list[int]] = {}
        for source, place in enumerate(places):
            branches = below[source][place] if place >= 0 else {}
            for token, (chance, own) in branches.items():
                chances[token] = chances.get(token, 0.0) + left * chance
                found.setdefault(token, [-1] * len(trees))[source] = own
            left = max(0.0, 1.0 - sum(chances.values()))
        for token, chance in chances.items():
            worth = acceptance[node] * min(chance, 1.0)
            if worth >= price.threshold and worth > 0.0:
                heapq.heappush(heap, (-worth, node, token, chance, tuple(found[token])))

    expand(0, (0,) * len(trees))
    while heap and len(tokens) < price.nodes:
        worth, parent, token, chance, places = heapq.heappop(heap)
        tokens.append(token)
        parents.append(parent)
        log_q.append(math.log(min(chance, 1.0)))
        acceptance.append(-worth)
        expand(len(tokens) - 1, places)
    return DraftTree(tuple(tokens), tuple(parents), tuple(log_q), tuple(acceptance))


def _branches(tree: DraftTree) -> list[_Branches]:
    branches: list[_Branches] = [{} for _ in tree.tokens]
    for node in range(1, len(tree.tokens)):
        parent = tree.parents[node]
        above = tree.acceptance[parent]
        chance = tree.acceptance[node] / above if above > 0.0 else 0.0
        known = branches[parent].get(tree.tokens[node])
        if known is None or known[0] < chance:
            branches[parent][tree.tokens[node]] = chance, node
    return branches
