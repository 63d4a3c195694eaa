"""Dense layers laid out for a few rows at a time, where reading the weights is the whole cost.

A decoder step multiplies a handful of rows by every weight, so the bytes of the weights set its
time. Published Whisper weights are float16: kept as float16 in memory and widened in registers,
they give float32 arithmetic on the very same values for half the bytes. FBGEMM has that kernel
(float16 weights, float32 activations and accumulation; AVX2 or AVX-512), and one for int8.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

# Bound once: a look-up by name at every call costs as much as a small product.
_packed_product = torch.ops.quantized.linear_dynamic_fp16.default
_int8_product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

# Rows that FBGEMM's float16 micro-kernels take in one pass over the weights.
_FBGEMM_ROWS = {"AVX2": 6, "AVX512": 14}
# Rows of an int8 product before arithmetic outweighs reading the weights: 1 to 4 cost the same.
_INT8_ROWS = 4
_BLOCK = 256  # inputs that are added in one go where there are many rows

# Without VNNI the int8 kernel adds pairs of unsigned activation × signed weight in 16 bits, and
# saturates. PyTorch's `reduce_range` answers with activations of 7 bits; Whisper's activations have
# outliers and need all 8, so the weights are the ones cut: 2 × 255 × 64 < 2¹⁵. The same levels
# everywhere, VNNI or not: the text must not depend on the CPU.
_WEIGHT_LEVELS = 64
_ACTIVATION_LEVELS = 127
_ZERO_POINT = 128  # activations are stored unsigned


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

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, pack: bool = True
    ) -> None:
        """pack: False where a layer is used too few times for packing to pay."""
        self.weight = self.packed = None
        self.bias = None if bias is None else bias.to(dtype)
        if pack and dtype == torch.float32 and packed_rows() and _exact_in_float16(weight):
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), self.bias)
        else:
            self.weight = weight.to(dtype).contiguous()

    @property
    def cheap_rows(self) -> int:
        """How many rows cost about as much as one; 0 where every row is cheap."""
        return packed_rows() if self.packed is not None else 0

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., in) → (..., out)."""
        if self.packed is not None:
            return _packed_product(x, self.packed)  # type: ignore[no-any-return]
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)


class BlockedLinear:
    """y = x Wᵀ + b for many rows in float32, the sum over inputs taken in blocks.

    FBGEMM adds all inputs of a row in one go; with AVX-512 that left Whisper base's encoder twice
    as far from the exact result as blocks of 256 do (8e-4 against 4e-4), which for 1,500 rows cost
    no time. A step's few rows would pay for the calls.
    """

    __slots__ = ("parts",)

    cheap_rows = 0

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        blocks = torch.split(weight, _BLOCK, 1)
        self.parts = [
            Linear(block, None if index else bias, torch.float32)
            for index, block in enumerate(blocks)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., in) → (..., out)."""
        first, *rest = zip(self.parts, torch.split(x, _BLOCK, -1), strict=True)
        y = first[0](first[1])
        for part, inputs in rest:
            y += part(inputs)
        return y


class Int8Linear:
    """y = x Wᵀ + b in int8: weights rounded once per output channel, activations per row.

    Each row is scaled by its own largest magnitude, and integers are added without error, so a
    row's result is the same bits whatever other rows stand in the batch. FBGEMM's dynamic product
    scales the whole batch at once: there, a tree would change the root's own result.

    `loudness`: (in,) positive, how large each input channel tends to be. A few loud channels would
    leave the others one or two of the 127 levels; half of the spread (its square root) is moved
    into the weights, as SmoothQuant does (Xiao et al., 2023, with alpha = 0.5).
    """

    __slots__ = ("bias", "packed", "quieting")

    cheap_rows = _INT8_ROWS

    def __init__(self, weight: Tensor, bias: Tensor | None, loudness: Tensor | None = None) -> None:
        self.quieting = None if loudness is None else loudness.float().rsqrt()
        even = weight.float() if self.quieting is None else weight.float() / self.quieting
        self.packed = _pack_int8(even)
        self.bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., in) float32 → (..., out) float32."""
        if self.quieting is not None:
            x = x * self.quieting
        scale = x.abs().amax(-1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny)
        y: Tensor = _int8_product(x / scale, 1 / _ACTIVATION_LEVELS, _ZERO_POINT, self.packed)
        return y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)


def lay_out(
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    loudness: Tensor | None = None,
    many_rows: bool = False,
) -> Linear | BlockedLinear | Int8Linear:
    """The layer that computes in `dtype`; torch.int8 means int8 products of float32 rows.
    many_rows: hundreds at a time, as in an encoder."""
    if dtype == torch.int8:
        return Int8Linear(weight, bias, loudness)
    if many_rows and dtype == torch.float32 and packed_rows() and _exact_in_float16(weight):
        return BlockedLinear(weight, bias)
    return Linear(weight, bias, dtype)


def _pack_int8(weight: Tensor) -> torch.ScriptObject:
    """weight: (out, in) float32 → FBGEMM's packed matrix, symmetric per output channel."""
    scales = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / _WEIGHT_LEVELS
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"  # the default one may pack for oneDNN instead
    try:
        with warnings.catch_warnings():
            # PyTorch means to drop quantised tensors; packing takes its weights as nothing else.
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
            zeros = torch.zeros(len(scales), dtype=torch.int64)
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(rounded, None)
    finally:
        torch.backends.quantized.engine = engine
    return packed


def _exact_in_float16(weight: Tensor) -> bool:
    if weight.device.type != "cpu":
        return False
    return weight.dtype == torch.float16 or bool((weight.half().float() == weight).all())
