"""One arena per device: every cache tensor, allocated once and lent by slot index.

Layout (CPU and GPU alike): head-major, so that one head's rows lie together and attention reads a
sequence's region as a view, without gathering.
    self_k, self_v    (L, H, slots, D)      one row a cached token; a sequence owns one region
    cross_k           (L, streams, H, D, T) one plane a segment, keys transposed (see attention.py)
    cross_v           (L, streams, H, T, D) both written once a segment and never rolled back
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """Sizes of an arena. `encoder_positions` 0 means a target without cross-attention."""

    layers: int
    heads: int
    head_width: int
    slots: int
    streams: int
    encoder_positions: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        row = self.layers * self.heads * self.head_width * self.dtype.itemsize * 2
        return row * (self.slots + self.streams * self.encoder_positions)


@dataclass(frozen=True, slots=True)
class SequenceViews:
    """One sequence's part of the arena in one step: views, one a layer, nothing copied."""

    fresh_k: tuple[Tensor, ...]  # (H, n, D): where the rows of this step go
    fresh_v: tuple[Tensor, ...]
    keys_t: tuple[Tensor, ...]  # (H, D, committed + n), transposed
    values: tuple[Tensor, ...]  # (H, committed + n, D)
    cross_keys_t: tuple[Tensor, ...]  # (H, D, T)
    cross_values: tuple[Tensor, ...]  # (H, T, D)


class Arena:
    """The tensors. Who may write which slot is the scheduler's business, not the arena's."""

    def __init__(self, shape: ArenaShape) -> None:
        self.shape = shape
        rows = (shape.layers, shape.heads, shape.slots, shape.head_width)
        planes = (shape.layers, shape.streams, shape.heads)
        width, positions = shape.head_width, shape.encoder_positions

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=shape.dtype, device=shape.device)

        self.self_k, self.self_v = zeros(*rows), zeros(*rows)
        self.cross_k = zeros(*planes, width, positions)
        self.cross_v = zeros(*planes, positions, width)

    def views(self, slot: int, committed: int, rows: int, stream: int) -> SequenceViews:
        """Slots [slot, slot + committed) are cached, [slot + committed, ... + rows) are fresh."""
        fresh, end = slot + committed, slot + committed + rows
        return SequenceViews(
            fresh_k=self.self_k[:, :, fresh:end].unbind(),
            fresh_v=self.self_v[:, :, fresh:end].unbind(),
            keys_t=self.self_k[:, :, slot:end].transpose(2, 3).unbind(),
            values=self.self_v[:, :, slot:end].unbind(),
            cross_keys_t=self.cross_k[:, stream].unbind(),
            cross_values=self.cross_v[:, stream].unbind(),
        )

    def move_rows(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy self-attention rows between slots: (R,) → (R,) int64, all layers at once.

        Sources are read before destinations are written, so the two may overlap.
        """
        self.self_k[:, :, destinations] = self.self_k[:, :, sources]
        self.self_v[:, :, destinations] = self.self_v[:, :, sources]
