"""The strict name map, against Transformers' own list of Whisper's tensors."""

from __future__ import annotations

import pytest
import torch
from fixtures.toy import tiny_whisper_files
from transformers import WhisperConfig, WhisperForConditionalGeneration

from soothsay.targets.names import (
    WhisperSizes,
    check_complete,
    expected_shapes,
    sizes_of_config,
    sizes_of_tensors,
)
from soothsay.types import WeightsError

# All different, so that no size can stand for another.
CONFIG = WhisperConfig(
    vocab_size=97,
    d_model=24,
    encoder_layers=3,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=6,
    encoder_ffn_dim=40,
    decoder_ffn_dim=56,
    num_mel_bins=10,
    max_source_positions=14,
    max_target_positions=18,
    pad_token_id=0,
    bos_token_id=0,
    eos_token_id=0,
    decoder_start_token_id=1,
)
SIZES = WhisperSizes("any", 97, 24, 3, 2, 4, 6, 40, 56, 10, 14, 18)


def state_dict() -> dict[str, torch.Tensor]:
    state = dict(WhisperForConditionalGeneration(CONFIG).state_dict())
    del state["proj_out.weight"]  # tied to the input embedding
    return state


def test_expected_shapes_are_those_of_transformers() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in state_dict().items()}
    assert expected_shapes(SIZES) == shapes


def test_sizes_from_configuration_and_from_tensors_agree() -> None:
    assert sizes_of_config("any", CONFIG.to_dict()) == SIZES
    assert sizes_of_tensors("any", state_dict(), 4, 6) == SIZES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "'bert'"),
        ({"d_model": None}, "d_model"),
        ({"d_model": "24"}, "d_model"),
        ({"encoder_layers": 0}, "encoder_layers"),
        ({"encoder_attention_heads": 5}, "24 cannot be shared by 5 heads"),
        ({"activation_function": "relu"}, "relu"),
        ({"scale_embedding": True}, "scale_embedding"),
    ],
)
def test_a_foreign_configuration_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        sizes_of_config("any", CONFIG.to_dict() | change)


def test_complete_tensors_pass() -> None:
    files = tiny_whisper_files(seed=1)
    check_complete(files.tensors, files.config)


def test_each_fault_names_the_tensor() -> None:
    files = tiny_whisper_files(seed=1)
    name = "model.decoder.layers.1.encoder_attn.v_proj.weight"
    rest = {key: tensor for key, tensor in files.tensors.items() if key != name}
    for tensors, fault in (
        (rest, "missing"),
        (files.tensors | {f"{name}_scale": torch.ones(1)}, "surplus"),
        (rest | {name: torch.zeros(32, 31)}, "misshapen"),
        (rest | {name: torch.zeros(32, 32, dtype=torch.int8)}, "quantised"),
    ):
        with pytest.raises(WeightsError, match=f"^{fault} tensors: {name}"):
            check_complete(tensors, files.config)


def test_an_absurd_number_of_layers_is_refused_at_once() -> None:
    files = tiny_whisper_files(seed=1)
    sizes = sizes_of_config("any", CONFIG.to_dict() | {"decoder_layers": 10**12})
    with pytest.raises(WeightsError, match="layers"):
        check_complete(files.tensors, sizes)


def test_tensors_without_a_layer_have_no_sizes() -> None:
    with pytest.raises(WeightsError, match="embed_tokens"):
        sizes_of_tensors("any", {}, 1, 1)
