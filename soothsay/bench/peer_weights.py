"""Our tensors as other engines name and store them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from soothsay.audio.features import mel_filters
from soothsay.targets.load import ModelFiles, ctranslate2_directory
from soothsay.text.tokens import WhisperTokens

# Transformers' parts of names → openai/whisper's (model.py there); the longer ones come first.
_OPENAI_PARTS = (
    ("model.", ""),
    (".layers.", ".blocks."),
    ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("self_attn", "attn"),
    ("encoder_attn", "cross_attn"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("embed_tokens", "token_embedding"),
    ("embed_positions.weight", "positional_embedding"),
)
_GGML_MAGIC = 0x67676D6C
_GGML_F32, _GGML_F16 = 0, 1


@dataclass(frozen=True, slots=True)
class PeerWeights:
    """What a peer's process is told: the model without its tensors, the folder that holds them,
    and how many threads to use. Small, because it is sent through a pipe."""

    files: ModelFiles
    folder: Path
    threads: int

    @property
    def ctranslate2(self) -> Path:
        """The folder in CTranslate2's format, which exists where our weights came in it."""
        return self.folder / "ctranslate2"

    def tensors(self) -> dict[str, Tensor]:
        """The tensors under Transformers' names."""
        return load_file(self.folder / "model.safetensors")


def lay_out(files: ModelFiles, folder: Path, threads: int) -> PeerWeights:
    """Write the weights into `folder` for the peers' processes."""
    weights = PeerWeights(replace(files, tensors={}), folder, threads)
    save_file(files.tensors, folder / "model.safetensors")
    if files.container:
        weights.ctranslate2.mkdir()
        ctranslate2_directory(files, weights.ctranslate2)
    return weights


def openai_name(name: str) -> str:
    """Transformers' name of a tensor → openai/whisper's."""
    for ours, theirs in _OPENAI_PARTS:
        name = name.replace(ours, theirs)
    return name


def write_ggml(weights: PeerWeights, path: Path) -> None:
    """whisper.cpp's model file in float16, as its models/convert-pt-to-ggml.py writes it.

    All int32 or float32, little endian: magic, sizes, mel filters, the text tokens' bytes, then
    each tensor: rank, length of its name, type, dims from the innermost, name, data. Biases, norms
    and positions are float32.
    """
    sizes = weights.files.config
    filters = mel_filters(sizes.mel_bins)
    header = (
        _GGML_MAGIC,
        sizes.vocab_size,
        sizes.max_source_positions,
        sizes.width,
        sizes.encoder_heads,
        sizes.encoder_layers,
        sizes.max_target_positions,
        sizes.width,
        sizes.decoder_heads,
        sizes.decoder_layers,
        sizes.mel_bins,
        _GGML_F16,
        *filters.shape,
    )
    tokens = WhisperTokens.from_file(weights.files.tokenizer_json).token_bytes
    with path.open("wb") as file:
        file.write(struct.pack(f"<{len(header)}i", *header))
        file.write(_bytes(filters, torch.float32))
        file.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<i", len(token)) + token)
        for ours, tensor in weights.tensors().items():
            name = openai_name(ours)
            if "conv" in name and name.endswith("bias"):
                tensor = tensor[:, None]  # it is added to (channels, frames)
            half = tensor.dim() >= 2 and name.endswith("weight")
            encoded, kind = name.encode(), _GGML_F16 if half else _GGML_F32
            facts = (tensor.dim(), len(encoded), kind, *reversed(tensor.shape))
            file.write(struct.pack(f"<{len(facts)}i", *facts) + encoded)
            file.write(_bytes(tensor, torch.float16 if half else torch.float32))


def _bytes(tensor: Tensor, dtype: torch.dtype) -> bytes:
    return np.ascontiguousarray(tensor.to(dtype).numpy()).tobytes()
