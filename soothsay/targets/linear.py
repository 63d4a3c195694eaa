"""Dense layers laid out for a few rows at a time, where reading the weights is the whole cost.

A decoder step multiplies a handful of rows by every weight, so the bytes of the weights set its
time. Published Whisper weights are float16: kept as float16 in memory and widened in registers,
they give float32 arithmetic on the very same values for half the bytes. FBGEMM has that kernel
(float16 weights, float32 activations and accumulation; AVX2 or AVX-512).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Bound once: a look-up by name at every call costs as much as a small product.
_packed_product = torch.ops.quantized.linear_dynamic_fp16.default

# Rows that FBGEMM's float16 micro-kernels take in one pass over the weights.
_FBGEMM_ROWS = {"AVX2": 6, "AVX512": 14}


def packed_rows() -> int:
    """Rows per pass over packed weights on this CPU; 0 where the packed kernel is missing."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return 0
    return _FBGEMM_ROWS.get(torch.backends.cpu.get_cpu_capability(), 0)


class Linear:
    """y = x Wᵀ + b. `weight`: (out, in); `bias`: (out,) or None. Weights only, no gradients.

    On the CPU in float32, weights that float16 represents exactly are packed for FBGEMM; all
    others stay a plain matrix of `dtype`.
    """

    __slots__ = ("bias", "packed", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.weight = self.packed = None
        self.bias = None if bias is None else bias.to(dtype)
        if dtype == torch.float32 and packed_rows() and _exact_in_float16(weight):
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), self.bias)
        else:
            self.weight = weight.to(dtype).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., in) → (..., out)."""
        if self.packed is not None:
            return _packed_product(x, self.packed)  # type: ignore[no-any-return]
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)


def _exact_in_float16(weight: Tensor) -> bool:
    if weight.device.type != "cpu":
        return False
    return weight.dtype == torch.float16 or bool((weight.half().float() == weight).all())
