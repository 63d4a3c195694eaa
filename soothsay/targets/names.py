"""Whisper's strict name map: every tensor a Whisper of given sizes has, and its shape.

Names are those of Transformers' WhisperForConditionalGeneration, less the output projection, which
is the input embedding. A model with a tensor more, less, or of another shape is another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from soothsay.types import WeightsError

_NAMED_IN_ERROR = 4


@dataclass(frozen=True, slots=True)
class WhisperSizes:
    """The sizes of one Whisper."""

    name: str
    vocab_size: int
    width: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_ffn: int
    decoder_ffn: int
    mel_bins: int
    max_source_positions: int
    max_target_positions: int

    def __post_init__(self) -> None:
        for heads in (self.encoder_heads, self.decoder_heads):
            if heads < 1 or self.width % heads:
                raise WeightsError(f"width {self.width} cannot be shared by {heads} heads")


def sizes_of_config(name: str, config: dict[str, Any]) -> WhisperSizes:
    """From Transformers' config.json. WeightsError where it describes another architecture."""
    if config.get("model_type") != "whisper":
        raise WeightsError(f"it describes a model of type {config.get('model_type')!r}, no Whisper")
    for key, value in (("activation_function", "gelu"), ("scale_embedding", False)):
        if config.get(key, value) != value:
            raise WeightsError(f"{key} {config[key]!r} is not supported, only {value!r}")

    def size(key: str) -> int:
        value = config.get(key)
        if not isinstance(value, int) or value < 1:
            raise WeightsError(f"{key} must be a positive whole number, not {value!r}")
        return value

    return WhisperSizes(
        name=name,
        vocab_size=size("vocab_size"),
        width=size("d_model"),
        encoder_layers=size("encoder_layers"),
        decoder_layers=size("decoder_layers"),
        encoder_heads=size("encoder_attention_heads"),
        decoder_heads=size("decoder_attention_heads"),
        encoder_ffn=size("encoder_ffn_dim"),
        decoder_ffn=size("decoder_ffn_dim"),
        mel_bins=size("num_mel_bins"),
        max_source_positions=size("max_source_positions"),
        max_target_positions=size("max_target_positions"),
    )


def sizes_of_tensors(
    name: str, tensors: Mapping[str, Tensor], encoder_heads: int, decoder_heads: int
) -> WhisperSizes:
    """Read the sizes off the tensors themselves, for sources that state no others."""

    def shape(of: str, rank: int) -> tuple[int, ...]:
        if of not in tensors or tensors[of].dim() != rank:
            raise WeightsError(f"the tensor {of} is missing or misshapen")
        return tuple(tensors[of].shape)

    def layers(side: str) -> int:
        return sum(n.startswith(f"model.{side}.") and n.endswith(".fc1.weight") for n in tensors)

    vocab_size, width = shape("model.decoder.embed_tokens.weight", 2)
    return WhisperSizes(
        name=name,
        vocab_size=vocab_size,
        width=width,
        encoder_layers=layers("encoder"),
        decoder_layers=layers("decoder"),
        encoder_heads=encoder_heads,
        decoder_heads=decoder_heads,
        encoder_ffn=shape("model.encoder.layers.0.fc1.weight", 2)[0],
        decoder_ffn=shape("model.decoder.layers.0.fc1.weight", 2)[0],
        mel_bins=shape("model.encoder.conv1.weight", 3)[1],
        max_source_positions=shape("model.encoder.embed_positions.weight", 2)[0],
        max_target_positions=shape("model.decoder.embed_positions.weight", 2)[0],
    )


def expected_shapes(sizes: WhisperSizes) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Whisper of these sizes."""
    width = sizes.width
    shapes: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (width, sizes.mel_bins, 3),
        "model.encoder.conv1.bias": (width,),
        "model.encoder.conv2.weight": (width, width, 3),
        "model.encoder.conv2.bias": (width,),
        "model.encoder.embed_positions.weight": (sizes.max_source_positions, width),
        "model.decoder.embed_positions.weight": (sizes.max_target_positions, width),
        "model.decoder.embed_tokens.weight": (sizes.vocab_size, width),
    }

    def linear(name: str, out: int, into: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (out, into)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    for side, layers, ffn, attentions in (
        ("encoder", sizes.encoder_layers, sizes.encoder_ffn, ("self_attn",)),
        ("decoder", sizes.decoder_layers, sizes.decoder_ffn, ("self_attn", "encoder_attn")),
    ):
        norm(f"model.{side}.layer_norm")
        for layer in (f"model.{side}.layers.{i}" for i in range(layers)):
            for attention in attentions:
                norm(f"{layer}.{attention}_layer_norm")
                for product in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{layer}.{attention}.{product}", width, width, product != "k_proj")
            norm(f"{layer}.final_layer_norm")
            linear(f"{layer}.fc1", ffn, width)
            linear(f"{layer}.fc2", width, ffn)
    return shapes


def check_complete(tensors: Mapping[str, Tensor], sizes: WhisperSizes) -> None:
    """WeightsError unless the tensors are exactly those of these sizes, in floating point."""
    if sizes.encoder_layers + sizes.decoder_layers > len(tensors):  # before listing them all
        raise WeightsError(f"{len(tensors)} tensors cannot fill the layers of its configuration")
    expected = expected_shapes(sizes)
    both = expected.keys() & tensors.keys()
    faults = {
        "missing": expected.keys() - tensors.keys(),
        "surplus": tensors.keys() - expected.keys(),
        "misshapen": {n for n in both if tuple(tensors[n].shape) != expected[n]},
        "quantised": {n for n in both if not tensors[n].is_floating_point()},
    }
    for fault, names in faults.items():
        if names:
            listed = ", ".join(sorted(names)[:_NAMED_IN_ERROR])
            more = f" and {len(names) - _NAMED_IN_ERROR} more" * (len(names) > _NAMED_IN_ERROR)
            raise WeightsError(f"{fault} tensors: {listed}{more}")
