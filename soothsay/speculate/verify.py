"""Verification: which drafted path the target keeps, and the one token it adds itself. Pure.

Every rule is a *walk*: a generator that yields the nodes whose target rows it needs next, is sent
those rows, and returns an Acceptance. The caller computes only what is asked for (the output
projection is half of a small decoder's arithmetic) and drives the walks of all sequences in step.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from soothsay.speculate.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Acceptance:
    """path: accepted nodes below the root, top down. token: the target's own next token.

    `token` is None only where the last accepted node is end-of-text: nothing may follow it.
    """

    path: tuple[int, ...]
    token: int | None


GreedyWalk: TypeAlias = Generator[tuple[int, ...], Mapping[int, int], Acceptance]
SampledWalk: TypeAlias = Generator[tuple[int, ...], Mapping[int, Tensor], Acceptance]


class Chooser(Protocol):
    """Where randomness enters: an RNG in the engine, an enumerator of all outcomes in proofs."""

    def draw(self, probs: Tensor) -> int:
        """A token drawn from (V,) probabilities."""
        ...

    def accept(self, probability: float) -> bool:
        """True with that probability."""
        ...


def greedy_walk(tree: DraftTree, end_token: int) -> GreedyWalk:
    """Descend while a child equals the target's choice. Sent rows: node → argmax token."""
    raise NotImplementedError


def draw_walk(tree: DraftTree, end_token: int, chooser: Chooser) -> SampledWalk:
    """Deterministic trees: draw y from the warped target row, descend if y is a child."""
    raise NotImplementedError


def rejection_walk(tree: DraftTree, end_token: int, chooser: Chooser) -> SampledWalk:
    """Sampled trees: accept child x with min(1, p/q), else residuals, without replacement."""
    raise NotImplementedError


def traversal_walk(tree: DraftTree, end_token: int, chooser: Chooser) -> SampledWalk:
    """Sampled trees, leaf to root: accepts at least as much as rejection_walk on average."""
    raise NotImplementedError
