"""The nouns that cross layers. Frozen, small, and free of models, caches and files.

Axis letters used throughout the package:
    B sequences (or segments) in a batch      N tree nodes of all sequences, flattened
    n nodes of one tree (root included)       V vocabulary
    L layers, H heads, D head width           T encoder positions, F mel frames, M mel bins
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # the target wrote end-of-text
    LENGTH = "length"  # the target's maximum length, or the request's own limit
    ABORT = "abort"  # the caller withdrew it
    ERROR = "error"  # it failed; other sequences went on


class SoothsayError(Exception):
    """Base of every error a user can meet; its text is one clear line that says what to do."""


class AudioError(SoothsayError):
    """Audio that cannot be read."""


class WeightsError(SoothsayError):
    """Weights that are missing, damaged, or of another model."""


class OptionError(SoothsayError):
    """A parameter out of range, unknown, or impossible in this combination."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's own token is chosen.

    temperature 0 is greedy (first index on ties). `top_k` 0 and `top_p` 1 switch those cuts off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 10.0:
            raise OptionError(f"temperature must lie in 0..10, not {self.temperature}")
        if self.top_k < 0:
            raise OptionError(f"top_k must be 0 (off) or positive, not {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise OptionError(f"top_p must lie in (0, 1], not {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise OptionError(f"a seed must lie in 0..2^63-1, not {self.seed}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """What a node must be worth to be verified in this step (DESIGN: one price for all streams).

    A drafter may add a node only if its estimated acceptance is at least `threshold`, and never
    more than `nodes` in all, the root included. `nodes == 1` is safe mode: plain decoding. Masks
    may stand behind at most `groups` nodes.
    """

    threshold: float = 0.0
    nodes: int = 1
    groups: int = 0

    @property
    def safe_mode(self) -> bool:
        return self.nodes <= 1


@dataclass(slots=True)
class SequenceStats:
    """Counters of one sequence, or of several added together. Times in seconds."""

    tokens: int = 0  # committed tokens, end-of-text included
    target_forwards: int = 0  # decoder forwards this sequence took part in
    drafted: int = 0  # nodes proposed, roots not counted
    accepted: int = 0  # drafted nodes that were committed
    accepted_per_depth: list[int] = field(default_factory=list)  # [0] is depth 1
    drafted_per_depth: list[int] = field(default_factory=list)
    encode_seconds: float = 0.0  # the encoder and the cross-attention cache
    cross_seconds: float = 0.0  # of these, writing the cross-attention cache
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0  # inside the target's forward and its output projection

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.target_forwards if self.target_forwards else 0.0

    def count_tree(self, depths: Sequence[int], accepted: int, committed: int) -> None:
        """One step: the depths of the tree's nodes, how many were accepted, tokens committed."""
        deepest = max(depths)
        for counts in (self.drafted_per_depth, self.accepted_per_depth):
            counts.extend([0] * (deepest - len(counts)))
        for depth in depths:
            if depth:
                self.drafted_per_depth[depth - 1] += 1
        for depth in range(accepted):
            self.accepted_per_depth[depth] += 1
        self.drafted += len(depths) - 1
        self.accepted += accepted
        self.tokens += committed

    def add(self, other: SequenceStats) -> None:
        """Add the counters of `other` to this one."""
        self.tokens += other.tokens
        self.target_forwards += other.target_forwards
        self.drafted += other.drafted
        self.accepted += other.accepted
        for mine, theirs in (
            (self.accepted_per_depth, other.accepted_per_depth),
            (self.drafted_per_depth, other.drafted_per_depth),
        ):
            mine.extend([0] * (len(theirs) - len(mine)))
            for depth, count in enumerate(theirs):
                mine[depth] += count
        self.encode_seconds += other.encode_seconds
        self.cross_seconds += other.cross_seconds
        self.draft_seconds += other.draft_seconds
        self.verify_seconds += other.verify_seconds
