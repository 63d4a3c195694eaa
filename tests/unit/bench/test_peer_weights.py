"""Names and files of other engines, read back by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.toy import tiny_whisper_files

from soothsay.audio.features import mel_filters
from soothsay.bench.peer_weights import lay_out, openai_name, write_ggml
from soothsay.text.tokens import WhisperTokens


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("model.encoder.conv1.bias", "encoder.conv1.bias"),
        ("model.encoder.embed_positions.weight", "encoder.positional_embedding"),
        ("model.decoder.embed_tokens.weight", "decoder.token_embedding.weight"),
        ("model.encoder.layer_norm.bias", "encoder.ln_post.bias"),
        ("model.decoder.layer_norm.weight", "decoder.ln.weight"),
        ("model.encoder.layers.3.self_attn.q_proj.bias", "encoder.blocks.3.attn.query.bias"),
        ("model.decoder.layers.10.encoder_attn.out_proj.weight",
         "decoder.blocks.10.cross_attn.out.weight"),
        ("model.decoder.layers.0.self_attn_layer_norm.weight", "decoder.blocks.0.attn_ln.weight"),
        ("model.decoder.layers.0.encoder_attn_layer_norm.bias",
         "decoder.blocks.0.cross_attn_ln.bias"),
        ("model.decoder.layers.0.final_layer_norm.bias", "decoder.blocks.0.mlp_ln.bias"),
        ("model.encoder.layers.1.fc1.weight", "encoder.blocks.1.mlp.0.weight"),
        ("model.encoder.layers.1.fc2.weight", "encoder.blocks.1.mlp.2.weight"),
    ],
)  # fmt: skip
def test_openai_names(ours: str, theirs: str) -> None:
    assert openai_name(ours) == theirs


def test_layout_keeps_every_tensor(tmp_path: Path) -> None:
    files = tiny_whisper_files(0)
    weights = lay_out(files, tmp_path, threads=3)
    assert weights.threads == 3
    assert weights.files.tensors == {}  # what goes through the pipe stays small
    assert not weights.ctranslate2.exists()  # a toy comes in no container
    read = weights.tensors()
    assert read.keys() == files.tensors.keys()
    assert all(read[name].equal(tensor) for name, tensor in files.tensors.items())


def test_ggml_holds_what_whisper_cpp_reads(tmp_path: Path) -> None:
    """Field by field, in the order of whisper.cpp's whisper_model_load."""
    files = tiny_whisper_files(0)
    write_ggml(lay_out(files, tmp_path, 1), tmp_path / "ggml.bin")
    data = (tmp_path / "ggml.bin").read_bytes()
    at = 0

    def numbers(count: int) -> tuple[int, ...]:
        nonlocal at
        at += 4 * count
        return struct.unpack(f"<{count}i", data[at - 4 * count : at])

    def raw(length: int) -> bytes:
        nonlocal at
        at += length
        return data[at - length : at]

    assert raw(4) == b"lmgg"
    assert numbers(11) == (96, 16, 32, 2, 2, 64, 32, 2, 2, 80, 1)
    assert numbers(2) == (80, 201)
    filters = np.frombuffer(raw(4 * 80 * 201), "<f4").reshape(80, 201)
    np.testing.assert_array_equal(filters, mel_filters(80).numpy())
    (count,) = numbers(1)
    texts = [raw(numbers(1)[0]) for _ in range(count)]
    tokens = WhisperTokens.from_file(files.tokenizer_json)
    assert count == tokens.end_of_text
    assert b"".join(texts[:20]).decode() == tokens.decode(range(20))
    names = {openai_name(name): name for name in files.tensors}
    while at < len(data):
        rank, length, kind = numbers(3)
        shape = tuple(reversed(numbers(rank)))
        tensor = files.tensors[names.pop(name := raw(length).decode())]
        assert kind == int(tensor.dim() > 1 and "positional" not in name)
        size = {0: 4, 1: 2}[kind]
        values = np.frombuffer(raw(size * tensor.numel()), {0: "<f4", 1: "<f2"}[kind])
        assert shape == (*tensor.shape, *[1] * ("conv" in name and "bias" in name))
        assert torch.from_numpy(values.astype(np.float32)).equal(tensor.float().flatten())
    assert names == {}
