"""Models as other tools write them, and a cache of each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixtures.huggingface import transformers_config
from fixtures.toy import TOKENIZER, tiny_whisper_files
from transformers import WhisperForConditionalGeneration


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOOTHSAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model() -> WhisperForConditionalGeneration:
    torch.manual_seed(0)
    return WhisperForConditionalGeneration(transformers_config(tiny_whisper_files(0).config))


@pytest.fixture
def saved(model: WhisperForConditionalGeneration, tmp_path: Path) -> Path:
    """A directory as Transformers writes it."""
    folder = tmp_path / "saved"
    model.generation_config.suppress_tokens = [1, 2, 95]
    model.generation_config.begin_suppress_tokens = [5]
    model.generation_config.alignment_heads = [[0, 1], [1, 0]]
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    return folder
