"""Audio as services meet it, made from clean audio: other speeds, noise, telephone lines.

The target listens to the disturbed audio as well, so its labels stay its own output there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import soxr

from soothsay.audio.features import SAMPLE_RATE
from soothsay.bench.workload import Clip
from soothsay.transcribe import Samples

SPEED, NOISE, TELEPHONE = 0.15, 0.15, 0.12  # shares of the windows; the rest stays as it is
TELEPHONE_RATE = 8_000


@dataclass(frozen=True, slots=True)
class Disturbance:
    """speed: above 1 is faster; noise: laid under the speech, `decibels` below it;
    telephone: nothing above 4 kHz is left."""

    speed: float = 1.0
    noise: Clip | None = None
    decibels: float = 0.0
    telephone: bool = False

    def apply(self, samples: Samples) -> Samples:
        """(n,) → disturbed, as long as before but for the speed."""
        if self.speed != 1.0:
            samples = soxr.resample(samples, SAMPLE_RATE, SAMPLE_RATE / self.speed)
        if self.noise is not None:
            samples = mixed(samples, self.noise.samples(), self.decibels)
        if self.telephone:
            narrow = soxr.resample(samples, SAMPLE_RATE, TELEPHONE_RATE)
            samples = soxr.resample(narrow, TELEPHONE_RATE, SAMPLE_RATE)[: len(samples)]
        return samples.astype(np.float32)


def choose_disturbance(chance: float, noises: Sequence[Clip]) -> Disturbance | None:
    """chance: in [0, 1), a window's own fixed number; the same number always does the same."""
    for name, share in (("speed", SPEED), ("noise", NOISE), ("telephone", TELEPHONE)):
        if chance < share:
            inside = chance / share
            if name == "speed":
                return Disturbance(speed=0.88 + 0.24 * inside)
            if name == "telephone":
                return Disturbance(telephone=True)
            if not noises:
                return None
            place = inside * len(noises)
            return Disturbance(noise=noises[int(place)], decibels=5.0 + 20.0 * (place % 1.0))
        chance -= share
    return None


def mixed(speech: Samples, noise: Samples, decibels: float) -> Samples:
    """Noise, repeated as often as needed, under speech: `decibels` is the ratio of their powers."""
    if not len(noise) or not len(speech):
        return speech
    noise = np.resize(noise, len(speech))
    power = float(np.square(noise).mean())
    if power <= 0.0:
        return speech
    wanted = float(np.square(speech).mean()) / 10 ** (decibels / 10)
    return speech + noise * np.float32(np.sqrt(wanted / power))
