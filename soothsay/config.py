"""What was asked, resolved once into what is true on this machine."""

from __future__ import annotations

import torch

from soothsay.types import OptionError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself; emulated, it is slower than float32."""
    features = torch.cpu.get_capabilities()
    return any(features.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def resolve_dtype(name: str) -> torch.dtype:
    """`auto`, `float32` or `bfloat16` → the dtype of arithmetic. auto: bfloat16 where native."""
    if name == "auto":
        return torch.bfloat16 if native_bfloat16() else torch.float32
    if name not in DTYPES:
        raise OptionError(f"unknown dtype {name!r}: choose auto, {', '.join(DTYPES)}")
    return DTYPES[name]
