"""Long audio in windows: 30 s each, one after another, the last as short as it comes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soothsay.audio.features import SAMPLE_RATE, WINDOW_SAMPLES
from soothsay.types import AudioError


@dataclass(frozen=True, slots=True)
class Window:
    """At most 30 s of 16 kHz mono audio, a view. start_seconds from the beginning of the audio."""

    start_seconds: float
    samples: NDArray[np.float32]

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.seconds


def windows(samples: NDArray[np.float32]) -> list[Window]:
    """Cut a waveform. AudioError where there is none."""
    if not len(samples):
        raise AudioError("the audio holds no samples")
    return [
        Window(start / SAMPLE_RATE, samples[start : start + WINDOW_SAMPLES])
        for start in range(0, len(samples), WINDOW_SAMPLES)
    ]
