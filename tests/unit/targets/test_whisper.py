"""How much of a segment is audio: encoder positions that hold sound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixtures.toy import tiny_whisper_files

from soothsay.audio.features import log_mel, log_mel_batch
from soothsay.targets.whisper import WhisperTarget

FRAMES, FLOOR = 32, -0.7
TARGET = WhisperTarget(tiny_whisper_files(0, mel_bins=4))
LONG = WhisperTarget(tiny_whisper_files(0, source_positions=1500))


def features(*sounding: int) -> torch.Tensor:
    """(M, F): one bin above the floor in those frames."""
    mel = torch.full((4, FRAMES), FLOOR)
    for frame in sounding:
        mel[frame % 4, frame] = FLOOR + 0.1
    return mel


@pytest.mark.parametrize(
    ("sounding", "positions"),
    [
        ((), 0),
        ((0,), 1),
        ((1,), 1),
        ((2,), 2),
        ((0, 6), 4),
        ((3, 12, 13), 7),
        ((31,), 16),  # silence inside the audio is counted
    ],
)
def test_positions_up_to_the_last_sound(sounding: tuple[int, ...], positions: int) -> None:
    assert TARGET.encode(features(*sounding)[None]).audio_positions == (positions,)


def test_each_segment_counts_its_own() -> None:
    louder = features(4, 9) + 1.5  # each window is scaled by its own maximum
    batch = torch.stack([features(30), louder, features(), features(0)])
    encoded = TARGET.encode(batch)
    assert encoded.audio_positions == (16, 5, 0, 1)
    assert encoded.hidden.shape[:2] == (4, 16)
    assert encoded.segment(1).audio_positions == (5,)


def noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(2).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)


def test_padding_and_digital_silence_behind_the_end_are_no_audio() -> None:
    """Twenty milliseconds a position, and one more that the last sample's window touches."""
    silence = np.zeros(32_000, np.float32)
    windows = [
        noise(2),
        np.concatenate([noise(2), silence]),
        np.concatenate([silence, noise(2)]),
        np.concatenate([noise(0.5), silence, noise(0.5)]),
        noise(30),
        silence,
    ]
    found = LONG.encode(log_mel_batch(windows)).audio_positions
    for positions, seconds in zip(found, (2, 2, 4, 3, 30, 0), strict=True):
        assert 0 <= positions - 50 * seconds <= 1
    assert found[0] == found[1]
    assert found[-2:] == (1500, 0)


def test_faint_sound_is_audio_until_it_drowns() -> None:
    """The floor lies 80 dB below the loudest bin."""
    loud = noise(1)
    for level, seconds in ((1e-2, 2), (1e-6, 1)):
        mel = log_mel(np.concatenate([loud, level * loud]))
        (positions,) = LONG.encode(mel[None]).audio_positions
        assert 0 <= positions - 50 * seconds <= 1
