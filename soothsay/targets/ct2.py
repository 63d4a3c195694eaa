"""A small reader of CTranslate2's model container, and its names for Whisper's tensors.

Container (little endian): uint32 version, string spec name, uint32 revision, uint32 count, then per
variable: string name, uint8 rank, uint32 dims, uint8 dtype, uint32 bytes, data; then uint32 alias
count and pairs of strings. A string is a uint16 length, zero byte included, and its bytes.
Nothing in a file is trusted: every length is checked against what is left of it, and nothing is
allocated for a size that is only declared.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from soothsay.types import WeightsError

CONTAINER_VERSION = 6
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_MAX_RANK = 4
_MAX_ENTRIES = 20_000  # Whisper large has some 1,300 variables; each costs far more than its bytes
_Take: TypeAlias = Callable[[str], Tensor]

# Variables that describe the architecture; a value other than Whisper's is another model. Which of
# them are written depends on the converter's version.
_WHISPER_FACTS = {
    "decoder/activation": 3,
    "decoder/alibi": 0,
    "decoder/alibi_use_positive_positions": 0,
    "decoder/scale_alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
    "decoder/alignment_layer": -1,
    "decoder/alignment_heads": 1,
}


@dataclass(frozen=True, slots=True)
class Container:
    """What a container holds. Tensors are copies: data in a container is not aligned."""

    spec: str
    variables: dict[str, Tensor]
    aliases: dict[str, str]


class _Cursor:
    def __init__(self, buffer: bytearray) -> None:
        self._buffer, self._at = buffer, 0

    def take(self, length: int) -> memoryview:
        end = self._at + length
        if end > len(self._buffer):
            raise WeightsError(f"it ends at byte {len(self._buffer)}, before byte {end}")
        part = memoryview(self._buffer)[self._at : end]
        self._at = end
        return part

    def count(self, what: str) -> int:
        count = self.number("I")
        if count > _MAX_ENTRIES:
            raise WeightsError(f"it declares {count} {what}")
        return count

    def number(self, code: str) -> int:
        return int(struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0])

    def string(self) -> str:
        raw = bytes(self.take(self.number("H")))
        text = raw.rstrip(b"\0").decode(errors="replace")
        if not text.isascii() or not text.isprintable():  # names go into one-line errors
            raise WeightsError(f"a name before byte {self._at} is not text")
        return text

    @property
    def at_end(self) -> bool:
        return self._at == len(self._buffer)


def read_container(buffer: bytearray) -> Container:
    """Parse a whole container. WeightsError says what is wrong; the caller knows the file."""
    cursor = _Cursor(buffer)
    version = cursor.number("I")
    if version != CONTAINER_VERSION:
        raise WeightsError(f"container version {version} is not {CONTAINER_VERSION}")
    spec = cursor.string()
    cursor.number("I")  # revision of the spec: the strict name map decides what we can read
    variables: dict[str, Tensor] = {}
    for _ in range(cursor.count("variables")):
        name, tensor = _variable(cursor)
        if name in variables:
            raise WeightsError(f"{name} stands in it twice")
        variables[name] = tensor
    aliases = {}
    for _ in range(cursor.count("aliases")):
        alias = cursor.string()
        if alias in aliases:
            raise WeightsError(f"the alias {alias} stands in it twice")
        aliases[alias] = cursor.string()
    if not cursor.at_end:
        raise WeightsError("there are bytes behind its end")
    return Container(spec, variables, aliases)


def _variable(cursor: _Cursor) -> tuple[str, Tensor]:
    name, rank = cursor.string(), cursor.number("B")
    if rank > _MAX_RANK:
        raise WeightsError(f"{name} has rank {rank}")
    dims = [cursor.number("I") for _ in range(rank)]
    code, size = cursor.number("B"), cursor.number("I")
    if code not in _DTYPES:
        raise WeightsError(f"{name} has unknown dtype {code}")
    kind = np.dtype(_DTYPES[code]).newbyteorder("<")
    if 0 in dims:
        raise WeightsError(f"{name} is empty")
    if math.prod(dims) * kind.itemsize != size:
        raise WeightsError(f"{name} has {size} bytes for shape {dims} of {kind}")
    array = np.frombuffer(cursor.take(size), kind).reshape(dims)
    return name, torch.from_numpy(array.astype(_DTYPES[code]))


def whisper_tensors(container: Container) -> tuple[dict[str, Tensor], int, int]:
    """Container → tensors under Transformers' names, encoder heads, decoder heads.

    Fused products are split (q, k, v; in cross-attention k, v). The key projections have no bias
    in Whisper: the container's must be zero, and is dropped. Nothing may be missing or left over.
    """
    if container.spec != "WhisperSpec":
        raise WeightsError(f"it holds a {container.spec}, not a Whisper model")
    left = dict(container.variables)
    for name, value in _WHISPER_FACTS.items():
        if name in left and not left.pop(name).eq(value).all():
            raise WeightsError(f"{name} is not Whisper's")
    aliases = dict(container.aliases)
    if aliases.pop("decoder/projection/weight", None) != "decoder/embeddings/weight" or aliases:
        raise WeightsError("the output projection is not the input embedding")

    def take(name: str) -> Tensor:
        if name not in left:
            raise WeightsError(f"the tensor {name} is missing")
        return left.pop(name)

    heads = [_whole_number(take, f"{side}/num_heads") for side in ("encoder", "decoder")]
    tensors: dict[str, Tensor] = {
        "model.decoder.embed_tokens.weight": take("decoder/embeddings/weight")
    }
    for conv in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            tensors[f"model.encoder.{conv}.{part}"] = take(f"encoder/{conv}/{part}")
    for side in ("encoder", "decoder"):
        encodings = take(f"{side}/position_encodings/encodings")
        tensors[f"model.{side}.embed_positions.weight"] = encodings
        _norm(tensors, f"model.{side}.layer_norm", take, f"{side}/layer_norm")
        layer = 0
        while any(name.startswith(f"{side}/layer_{layer}/") for name in left):
            _layer(tensors, f"model.{side}.layers.{layer}", take, f"{side}/layer_{layer}", side)
            layer += 1
    if left:
        raise WeightsError(f"it holds tensors that Whisper has not: {', '.join(sorted(left))}")
    return tensors, heads[0], heads[1]


def _whole_number(take: _Take, name: str) -> int:
    tensor = take(name)
    if tensor.dim() or tensor.is_floating_point():
        raise WeightsError(f"{name} is not one whole number")
    return int(tensor)


def _layer(tensors: dict[str, Tensor], ours: str, take: _Take, theirs: str, side: str) -> None:
    own = f"{ours}.self_attn"
    _norm(tensors, f"{own}_layer_norm", take, f"{theirs}/self_attention/layer_norm")
    names = [f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj"]
    _linear(tensors, names, take, f"{theirs}/self_attention/linear_0")
    _linear(tensors, [f"{own}.out_proj"], take, f"{theirs}/self_attention/linear_1")
    if side == "decoder":
        cross = f"{ours}.encoder_attn"
        _norm(tensors, f"{cross}_layer_norm", take, f"{theirs}/attention/layer_norm")
        _linear(tensors, [f"{cross}.q_proj"], take, f"{theirs}/attention/linear_0")
        names = [f"{cross}.k_proj", f"{cross}.v_proj"]
        _linear(tensors, names, take, f"{theirs}/attention/linear_1")
        _linear(tensors, [f"{cross}.out_proj"], take, f"{theirs}/attention/linear_2")
    _norm(tensors, f"{ours}.final_layer_norm", take, f"{theirs}/ffn/layer_norm")
    _linear(tensors, [f"{ours}.fc1"], take, f"{theirs}/ffn/linear_0")
    _linear(tensors, [f"{ours}.fc2"], take, f"{theirs}/ffn/linear_1")


def _norm(tensors: dict[str, Tensor], ours: str, take: _Take, theirs: str) -> None:
    tensors[f"{ours}.weight"] = take(f"{theirs}/gamma")
    tensors[f"{ours}.bias"] = take(f"{theirs}/beta")


def _linear(tensors: dict[str, Tensor], ours: list[str], take: _Take, theirs: str) -> None:
    """One fused layer → its parts, in order."""
    weight, bias = take(f"{theirs}/weight"), take(f"{theirs}/bias")
    if weight.dim() != 2 or weight.shape[0] % len(ours) or bias.shape != weight.shape[:1]:
        raise WeightsError(f"{theirs} has shapes {tuple(weight.shape)} and {tuple(bias.shape)}")
    for name, w, b in zip(ours, weight.chunk(len(ours)), bias.chunk(len(ours)), strict=True):
        tensors[f"{name}.weight"] = w
        if not name.endswith("k_proj"):
            tensors[f"{name}.bias"] = b
        elif b.count_nonzero():
            raise WeightsError(f"{theirs} has a key bias, which Whisper has not")
