"""What was asked, resolved once into what is true on this machine."""

from __future__ import annotations

import ctypes

import torch

from soothsay.types import OptionError

# int8: the products of the layers in int8, everything else in float32.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself; emulated, it is slower than float32."""
    features = torch.cpu.get_capabilities()
    return any(features.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def int8_products() -> bool:
    """Whether this build of PyTorch has FBGEMM, and this CPU the AVX2 it stands on."""
    return (
        "fbgemm" in torch.backends.quantized.supported_engines
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    )


def resolve_dtype(name: str) -> torch.dtype:
    """`auto`, `float32`, `bfloat16` or `int8` → the dtype of the decoder's products.

    auto: float32 from float16 weights where FBGEMM has that kernel, which is faster than bfloat16
    for the few rows of a step even where bfloat16 is native (docs/adr/0004); else as the CPU can.
    """
    if name == "auto":
        return torch.bfloat16 if native_bfloat16() and not int8_products() else torch.float32
    if name not in DTYPES:
        raise OptionError(f"unknown dtype {name!r}: choose auto, {', '.join(DTYPES)}")
    if name == "int8" and not int8_products():
        raise OptionError("int8 needs PyTorch with FBGEMM and a CPU with AVX2: choose float32")
    return DTYPES[name]


def resolve_encoder_dtype(name: str) -> torch.dtype:
    """The same for the encoder, whose 1,500 rows make arithmetic the price: auto is bfloat16 where
    native."""
    return torch.bfloat16 if name == "auto" and native_bfloat16() else resolve_dtype(name)


def keep_freed_memory() -> bool:
    """Let the process keep the memory it frees, where glibc lets us say so → whether it did.

    By default blocks of megabytes go back to the kernel at once and come again page by page: with
    an encoder's activations that is a seventh of its time. For programs to call, not for imports.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
