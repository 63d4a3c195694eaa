"""The budget: one price for all running sequences, asked for once a step.

It sees counts, never tensors, so that every decision can be replayed from a trace.
"""

from __future__ import annotations

from typing import Protocol

from soothsay.types import Price


class Budget(Protocol):
    """Decides how much drafting is worth at this moment."""

    # No price ever grants a sequence more: arena rows are reserved for them.
    max_nodes: int
    max_groups: int
    max_masks: int

    def price(self, sequences: int) -> Price:
        """The price of the next step, with that many sequences running."""
        ...


class FixedBudget:
    """The same price in every step: at most `nodes` a tree, none less likely than `threshold`, and
    a row of `masks` behind at most `groups` of them."""

    def __init__(self, nodes: int, threshold: float = 0.0, groups: int = 0, masks: int = 4) -> None:
        if nodes < 1:
            raise ValueError(f"a tree has at least its root: nodes must be positive, not {nodes}")
        self.max_nodes = nodes
        self.max_groups = groups if nodes > 1 and masks > 0 else 0
        self.max_masks = masks
        self._price = Price(threshold, nodes, self.max_groups)

    def price(self, sequences: int) -> Price:
        return self._price
