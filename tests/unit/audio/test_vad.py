"""Speech detection against the released detector's own figures, and however audio comes."""

from __future__ import annotations

import numpy as np
import pytest

from soothsay.audio.decode import decode
from soothsay.audio.vad import Region, RegionFinder, SpeechDetector, SpeechRule
from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.types import OptionError

FROZEN_FRAMES = [
    0,
    9,
    18,
    27,
    36,
    45,
    54,
    63,
    72,
    81,
    90,
    99,
    108,
    117,
    126,
    135,
    144,
    153,
    162,
    171,
    180,
    189,
    198,
    207,
    216,
    225,
    234,
    243,
    252,
    261,
    270,
    279,
    288,
    297,
    306,
    315,
    324,
    333,
    342,
    351,
]
FROZEN = [
    0.00349,
    0.99957,
    0.99993,
    0.99998,
    0.98951,
    0.99988,
    0.99999,
    0.9998,
    0.99997,
    0.9973,
    0.00858,
    0.99994,
    0.99438,
    1.0,
    0.99965,
    0.99996,
    0.99998,
    0.99997,
    0.99995,
    0.99994,
    0.99998,
    0.99998,
    0.9995,
    0.99998,
    0.99996,
    0.17973,
    0.28947,
    0.99999,
    0.99977,
    1.0,
    0.99991,
    0.99999,
    0.99993,
    0.99999,
    0.99994,
    0.99998,
    0.99999,
    0.99998,
    0.99999,
    0.99648,
]


def heard(samples: np.ndarray) -> np.ndarray:
    detector = SpeechDetector()
    return np.concatenate([detector.push(samples), detector.flush()])


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return decode(sorted(clip.audio for clip in read_manifest(CLIPS))[0]).samples


def test_probabilities_are_those_of_the_released_network(speech: np.ndarray) -> None:
    """Frozen values of silero_vad.jit of silero-vad 6.2.3, called frame by frame."""
    found = heard(speech)
    assert found[FROZEN_FRAMES] == pytest.approx(FROZEN, abs=2e-4)


@pytest.mark.parametrize("size", [1, 100, 512, 5_000])
def test_blocks_of_any_length_are_heard_alike(speech: np.ndarray, size: int) -> None:
    short = speech[: 40 * max(size, 100) + 77]
    detector = SpeechDetector()
    blocks = [detector.push(short[at : at + size]) for at in range(0, len(short), size)]
    assert np.concatenate([*blocks, detector.flush()]) == pytest.approx(heard(short), abs=1e-5)


def test_silence_noise_and_a_tone_are_no_speech() -> None:
    generator = np.random.default_rng(0)
    tone = np.sin(np.arange(80_000) * 0.2).astype(np.float32) * 0.3
    noise = generator.normal(0, 0.1, 80_000).astype(np.float32)
    for samples in (np.zeros(80_000, np.float32), tone, noise):
        assert heard(samples)[10:].max() < 0.35


def regions(probabilities: list[float], **rule: float) -> list[Region]:
    finder = RegionFinder(SpeechRule(**{"min_silence_duration_ms": 96} | rule))
    found = [finder.push(p) for p in probabilities]
    return [region for region in [*found, finder.flush()] if region]


def test_regions_have_two_thresholds() -> None:
    """A dip between the two does not end a region; below both, three frames do."""
    loud, dip, low = [0.9] * 8, [0.3] * 8, [0.0] * 8
    assert regions(low + loud + dip + loud + low) == [Region(8, 32)]
    assert regions(low + loud + [0.0] * 2 + loud) == [Region(8, 26)]
    assert regions(low + loud + low + loud) == [Region(8, 16), Region(24, 32)]
    assert regions(low + dip + low) == []
    assert regions(low + loud + dip + low, neg_threshold=0.34) == [Region(8, 16)]


def test_clicks_are_no_speech() -> None:
    assert regions([0.0] * 5 + [0.9] * 3 + [0.0] * 5) == []
    assert regions([0.0] * 5 + [0.9] * 3 + [0.0] * 5, min_speech_duration_ms=0) == [Region(5, 8)]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"threshold": 0.0}, "threshold must lie"),
        ({"neg_threshold": 1.5}, "neg_threshold must lie"),
        ({"speech_pad_ms": -1}, "speech_pad_ms must not be negative"),
    ],
)
def test_rules_are_checked(facts: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SpeechRule(**facts)
