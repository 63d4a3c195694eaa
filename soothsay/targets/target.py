"""The Target protocol: what the engine needs of a large recogniser, and nothing else.

A target holds weights only. The caches live in the arena and are lent to each call, so any number
of sequences share one target. A target must not know trees' origins, sampling, or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, device, dtype

from soothsay.cache.arena import Arena, ArenaShape
from soothsay.targets.adapters import MaskRows


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The sizes of a target that others must know."""

    name: str
    vocab_size: int
    max_length: int  # decoder positions, prompt included
    parameters: int
    encoder_width: int  # channels of the hidden states drafters read
    encoder_positions: int  # T of one full segment
    mel_bins: int
    weights_sha256: str  # identity of the weights: heads are trained for one


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoder output of B segments. `hidden`: (B, T, encoder_width), read by drafters in place;
    audio_positions: how many of the T positions of each hold audio, padding not counted."""

    hidden: Tensor
    audio_positions: tuple[int, ...]

    def segment(self, index: int) -> Encoded:
        """The view of one segment: B = 1, no copy."""
        return Encoded(self.hidden[index : index + 1], self.audio_positions[index : index + 1])


@dataclass(frozen=True, slots=True)
class TreeSpan:
    """One sequence's share of a TreeBatch: rows [start, stop) of the flattened nodes.

    The first `stop - start - n` rows, where n is the size of the draft tree, are the pending chain
    (at prefill: the prompt without its last token); the rest are the tree, root first.
    Masks stand behind the tree, as further nodes of it.
    """

    start: int
    stop: int
    slot: int  # first slot of the sequence's region in the arena
    committed: int  # rows already cached there: new rows go to slots [slot + committed, ...)
    stream: int  # the sequence's row in the cross-attention cache
    mask: Tensor | None  # (rows, rows) bool, True = may attend; None for a single row


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """All nodes of one step. tokens, positions: (N,) int64; position = committed + depth. masks:
    which rows look ahead; what `tokens` holds there does not count."""

    tokens: Tensor
    positions: Tensor
    spans: tuple[TreeSpan, ...]
    masks: MaskRows | None = None


class Target(Protocol):
    """See the module docstring. All tensors live on `device`."""

    spec: TargetSpec
    device: device
    dtype: dtype

    def arena_shape(self, slots: int, streams: int) -> ArenaShape:
        """The arena this target needs for that many cache rows and encoded segments."""
        ...

    def encode(self, features: Tensor) -> Encoded:
        """features: (B, M, F) log-mel → hidden states; runs the acoustic encoder once."""
        ...

    def write_cross(self, encoded: Encoded, arena: Arena, streams: Sequence[int]) -> None:
        """Write the cross-attention keys and values of each segment to its stream row, once."""
        ...

    def forward_tree(self, batch: TreeBatch, arena: Arena) -> Tensor:
        """Run the decoder over all nodes at once → final hidden states (N, width).

        Every node attends to its sequence's committed rows, its ancestors and itself. The keys and
        values of all nodes are written behind the committed rows of their region. Adapters touch
        the rows of masks alone.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Output projection of chosen rows: (R, width) → (R, V) float32."""
        ...

    @property
    def logit_rows(self) -> int:
        """How many rows `logits` computes for about the price of one; 0 where all are cheap."""
        ...
