"""Masks laid out for a step: what stands in their rows, and what is added to products there.

Rows of masks alone are touched: every other row of a product is what it would be without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


class Adapters:
    """Low-rank additions to the target's products, by the name of the module (LoRA, Hu et al.,
    2021), and the K embeddings that stand in mask rows instead of a token's."""

    def __init__(
        self,
        embedding: Tensor,
        factors: Mapping[str, tuple[Tensor, Tensor]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """embedding: (K, width); factors: (rank, inputs) and (outputs, rank) of each product."""
        self.embedding = embedding.detach().to(device, dtype)
        self._factors = {
            name: (
                down.detach().to(device, dtype).T.contiguous(),
                up.detach().to(device, dtype).T.contiguous(),
            )
            for name, (down, up) in factors.items()
        }

    @property
    def count(self) -> int:
        """How many masks stand behind a node."""
        return len(self.embedding)

    def add(self, name: str, x: Tensor, y: Tensor, rows: slice | Tensor) -> None:
        """x: (N, inputs), y: (N, outputs) → y with the addition in the mask rows, in place."""
        factors = self._factors.get(name)
        if factors is None:
            return
        down, up = factors
        if isinstance(rows, slice):
            y[rows].addmm_(x[rows] @ down, up)
        else:
            y.index_add_(0, rows, x[rows] @ down @ up)


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Which rows of a batch are masks, and which of the K stands in each, (M,)."""

    rows: slice | Tensor
    numbers: Tensor
    adapters: Adapters
