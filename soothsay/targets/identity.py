"""The identity of weights: what a head was trained for, whatever file the weights came in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and values.

    Values that float16 holds exactly count as float16, so that one model has one identity in a
    float16 container and in a float32 file.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        half = tensor.half()
        if tensor.dtype != torch.float16 and not half.to(tensor.dtype).equal(tensor):
            half = tensor
        digest.update(f"{name} {tuple(half.shape)} {half.dtype}\n".encode())
        digest.update(half.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
