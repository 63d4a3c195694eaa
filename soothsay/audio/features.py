"""Log-mel features, equal to Transformers' WhisperFeatureExtractor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soothsay.types import AudioError

SAMPLE_RATE = 16_000
WINDOW_SECONDS = 30
WINDOW_SAMPLES = SAMPLE_RATE * WINDOW_SECONDS
FFT = 400  # samples a frame: 25 ms
HOP = 160  # samples a step: 10 ms


def log_mel(samples: NDArray[np.float32], mel_bins: int = 80) -> Tensor:
    """One window of at most 30 s, mono at 16 kHz → (M, 3000) float32, silence behind its end."""
    return log_mel_batch([samples], mel_bins)[0]


def log_mel_batch(windows: Sequence[NDArray[np.float32]], mel_bins: int = 80) -> Tensor:
    """B windows → (B, M, 3000) float32. Each is scaled by its own maximum."""
    padded = torch.zeros(len(windows), WINDOW_SAMPLES)
    for row, samples in zip(padded, windows, strict=True):
        if len(samples) > WINDOW_SAMPLES:
            raise AudioError(f"a window holds {WINDOW_SAMPLES} samples, not {len(samples)}")
        row[: len(samples)] = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    spectrum = torch.stft(padded, FFT, HOP, window=_hann(), return_complex=True)
    power = spectrum[..., :-1].abs() ** 2
    mel = torch.clamp(mel_filters(mel_bins) @ power, min=1e-10).log10()
    floor = mel.amax((1, 2), keepdim=True) - 8.0
    return (torch.maximum(mel, floor) + 4.0) / 4.0


@cache
def _hann() -> Tensor:
    return torch.hann_window(FFT)


@cache
def mel_filters(mel_bins: int) -> Tensor:
    """(M, 201) triangular filters on Slaney's mel scale, each of unit area.

    Slaney, Auditory Toolbox (1998): linear below 1 kHz, logarithmic above; as librosa has it.
    """
    edges = _mel_to_hertz(np.linspace(0.0, _hertz_to_mel(SAMPLE_RATE / 2), mel_bins + 2))
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, FFT // 2 + 1)
    slopes = edges[:, None] - frequencies[None, :]
    widths = np.diff(edges)[:, None]
    rising, falling = -slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]
    filters = np.maximum(0.0, np.minimum(rising, falling))
    filters *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return torch.from_numpy(filters.astype(np.float32))


_BREAK_HERTZ, _BREAK_MEL = 1000.0, 15.0  # 200/3 Hz a mel below
_LOG_STEP = np.log(6.4) / 27.0


def _hertz_to_mel(hertz: float) -> float:
    if hertz < _BREAK_HERTZ:
        return hertz * 3.0 / 200.0
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HERTZ) / _LOG_STEP)


def _mel_to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mel * 200.0 / 3.0
    curved = _BREAK_HERTZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, linear, curved)
