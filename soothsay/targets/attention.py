"""Attention of a few tree nodes over cached rows: the reference and the CPU path.

Shapes, one sequence:  q (H, n, D)   k, v (H, S, D)   bias (n, S) or None   → (H, n, D)
A bias holds 0 where a node may attend and -inf where it may not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend_reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Scaled dot-product attention as PyTorch has it: what every faster path is tested against."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def attend(q: Tensor, k_t: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The same with keys given transposed: k_t (H, D, S), a view or a plane stored that way.

    For n under about 16 the batched products beat PyTorch's fused CPU kernel, which blocks for
    long queries: 0.9 against 2.4 ms for one node over Whisper base's six cross-attention planes.
    """
    if bias is None:
        scores = torch.baddbmm(q.new_empty(()), q, k_t, beta=0, alpha=scale)
    else:
        scores = torch.baddbmm(bias, q, k_t, alpha=scale)
    return torch.bmm(torch.softmax(scores, -1), v)


def tree_bias(mask: Tensor, committed: int, dtype: torch.dtype) -> Tensor:
    """mask: (rows, rows) bool over the new rows → (rows, committed + rows) additive bias."""
    rows = mask.shape[0]
    bias = torch.zeros((rows, committed + rows), dtype=dtype, device=mask.device)
    bias[:, committed:].masked_fill_(~mask, float("-inf"))
    return bias
