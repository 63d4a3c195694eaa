from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from soothsay.audio.decode import decode
from soothsay.audio.features import log_mel, log_mel_batch, mel_filters
from soothsay.types import AudioError

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("mel_bins", [80, 128])
@pytest.mark.parametrize("length", [1, 150, 399, 400, 16_000, 479_999, 480_000])
def test_equal_to_transformers_extractor(mel_bins: int, length: int) -> None:
    samples = np.random.default_rng(length).normal(0, 0.2, length).astype(np.float32)
    extractor = transformers.WhisperFeatureExtractor(feature_size=mel_bins)
    expected = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features[0]
    found = log_mel(samples, mel_bins)
    assert found.shape == (mel_bins, 3000)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_equal_to_transformers_extractor_on_speech(speech: Path) -> None:
    clips = sorted((speech / "dev").rglob("*.flac"))[:5]
    assert clips
    for clip in clips:
        samples = decode(clip).samples[:480_000]
        extractor = transformers.WhisperFeatureExtractor()
        expected = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features[0]
        torch.testing.assert_close(log_mel(samples), expected, atol=1e-5, rtol=0)


def test_filters_equal_transformers() -> None:
    from transformers.audio_utils import mel_filter_bank

    expected = mel_filter_bank(201, 80, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(80).numpy(), expected.T, atol=1e-7)


def test_company_changes_nothing() -> None:
    random = np.random.default_rng(0)
    windows = [random.normal(0, s, n).astype(np.float32) for s, n in ((1, 9_000), (0.01, 400_000))]
    batch = log_mel_batch(windows)
    for row, window in zip(batch, windows, strict=True):
        torch.testing.assert_close(row, log_mel(window))


def test_silence_is_finite() -> None:
    assert bool(log_mel(np.zeros(100, np.float32)).isfinite().all())


def test_more_than_a_window_is_refused() -> None:
    with pytest.raises(AudioError, match="480000"):
        log_mel(np.zeros(480_001, np.float32))
