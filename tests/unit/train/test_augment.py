"""Disturbed audio, measured: powers, pitches, spectra."""

from __future__ import annotations

import itertools
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from soothsay.audio.features import SAMPLE_RATE
from soothsay.bench.workload import Clip
from soothsay.train.augment import (
    NOISE,
    SPEED,
    TELEPHONE,
    Disturbance,
    choose_disturbance,
    mixed,
)

Samples = NDArray[np.float32]


def hiss(samples: int, seed: int = 0, level: float = 0.1) -> Samples:
    return (level * np.random.default_rng(seed).normal(size=samples)).astype(np.float32)


def tone(hertz: float, seconds: float = 1.0) -> Samples:
    time = np.arange(int(SAMPLE_RATE * seconds)) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def power(samples: Samples) -> float:
    return float(np.square(samples.astype(np.float64)).mean())


def band(samples: Samples, low: float, high: float) -> float:
    """Energy between two frequencies."""
    spectrum = np.abs(np.fft.rfft(samples.astype(np.float64))) ** 2
    hertz = np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
    return float(spectrum[(hertz >= low) & (hertz < high)].sum())


def clip(name: str, path: Path = Path("nowhere")) -> Clip:
    return Clip(name, path / name, None, None, None)


def recorded(folder: Path, samples: Samples) -> Clip:
    with wave.open(str(folder / "noise.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return clip("noise.wav", folder)


@pytest.mark.parametrize("decibels", [-5.0, 0.0, 7.5, 25.0])
@pytest.mark.parametrize("length", [16_000, 999, 50_000], ids=["as long", "shorter", "longer"])
def test_the_ratio_of_powers_is_what_was_asked(decibels: float, length: int) -> None:
    speech, noise = tone(440.0), hiss(length, seed=1, level=0.01)
    both = mixed(speech, noise, decibels)
    assert both.shape == speech.shape
    assert both.dtype == np.float32
    added = both.astype(np.float64) - speech
    assert 10 * np.log10(power(speech) / power(added)) == pytest.approx(decibels, abs=0.01)
    for start in range(0, 16_000, length):  # it is that noise, again and again
        part = added[start : start + length]
        assert np.corrcoef(part, noise[: len(part)])[0, 1] > 0.999


def test_noise_of_a_clip_is_laid_under(tmp_path: Path) -> None:
    speech, noise = tone(300.0, 2.0), hiss(8_000, seed=2)
    both = Disturbance(noise=recorded(tmp_path, noise), decibels=10.0).apply(speech)
    assert 10 * np.log10(power(speech) / power(both - speech)) == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("speed", [0.88, 0.95, 1.05, 1.12])
def test_speed_changes_length_and_pitch(speed: float) -> None:
    fast = Disturbance(speed=speed).apply(tone(1000.0, 2.0))
    assert abs(len(fast) - 32_000 / speed) <= 2
    assert fast.dtype == np.float32
    spectrum = np.abs(np.fft.rfft(fast))
    found = spectrum.argmax() * SAMPLE_RATE / len(fast)
    assert found == pytest.approx(1000.0 * speed, abs=1.0)
    assert power(fast) == pytest.approx(power(tone(1000.0)), rel=0.02)


def test_a_telephone_lets_nothing_pass_above_four_kilohertz() -> None:
    heard = hiss(32_000, seed=3)
    told = Disturbance(telephone=True).apply(heard)
    assert band(told, 4_000, 8_001) < 1e-3 * band(heard, 4_000, 8_001)
    assert band(told, 100, 3_400) == pytest.approx(band(heard, 100, 3_400), rel=0.05)
    low = tone(700.0)
    assert np.abs(Disturbance(telephone=True).apply(low) - low)[200:-200].max() < 0.01


@pytest.mark.parametrize("samples", [0, 1, 2, 7, 15_999, 16_000, 16_001, 47_777])
def test_only_speed_changes_the_length(samples: int, tmp_path: Path) -> None:
    speech = hiss(samples, seed=4)
    noise = recorded(tmp_path, hiss(500, seed=5))
    for disturbance in (
        Disturbance(),
        Disturbance(noise=noise, decibels=3.0),
        Disturbance(telephone=True),
        Disturbance(noise=noise, telephone=True),
    ):
        found = disturbance.apply(speech)
        assert found.shape == speech.shape
        assert found.dtype == np.float32
        assert np.isfinite(found).all()


DISTURBANCES: dict[str, Callable[[Samples], Samples]] = {
    "speed": Disturbance(speed=1.1).apply,
    "telephone": Disturbance(telephone=True).apply,
    "noise": lambda speech: mixed(speech, hiss(100), 10.0),
    "silent noise": lambda speech: mixed(speech, np.zeros(100, np.float32), 10.0),
    "no noise": lambda speech: mixed(speech, np.zeros(0, np.float32), 10.0),
}


@pytest.mark.parametrize("name", DISTURBANCES)
@pytest.mark.parametrize("samples", [0, 1, 4_000])
def test_silence_stays_silence(name: str, samples: int) -> None:
    found = DISTURBANCES[name](np.zeros(samples, np.float32))
    assert found.dtype == np.float32
    assert not found.any()
    assert len(found) <= samples


def test_without_noise_speech_is_left_alone() -> None:
    for name in ("silent noise", "no noise"):
        assert np.array_equal(DISTURBANCES[name](tone(200.0)), tone(200.0))


def kind(disturbance: Disturbance | None) -> str:
    if disturbance is None:
        return "none"
    names = {
        "speed": disturbance.speed != 1.0,
        "noise": disturbance.noise is not None,
        "telephone": disturbance.telephone,
    }
    (found,) = [name for name, so in names.items() if so]
    return found


def test_shares_of_the_windows() -> None:
    noises = [clip(str(number)) for number in range(3)]
    chances = [(i + 0.25) / 6_000 for i in range(6_000)]
    made = [choose_disturbance(chance, noises) for chance in chances]
    assert made == [choose_disturbance(chance, noises) for chance in chances]
    kinds = [kind(disturbance) for disturbance in made]
    for name, share in (("speed", SPEED), ("noise", NOISE), ("telephone", TELEPHONE)):
        assert kinds.count(name) / 6_000 == pytest.approx(share, abs=0.001)
    fast = [d.speed for d in made if d and d.speed != 1.0]
    assert min(fast) == pytest.approx(0.88, abs=0.01)
    assert max(fast) == pytest.approx(1.12, abs=0.01)
    assert np.mean(fast) == pytest.approx(1.0, abs=0.01)
    loud = [(d.noise.id, d.decibels) for d in made if d and d.noise]
    for noise in noises:  # as often each, at every level
        levels = [decibels for name, decibels in loud if name == noise.id]
        assert len(levels) == pytest.approx(len(loud) / 3, abs=2)
        assert min(levels) == pytest.approx(5.0, abs=0.2)
        assert max(levels) == pytest.approx(25.0, abs=0.2)


def test_without_noises_the_others_stay_what_they_are() -> None:
    noises = [clip("a")]
    for chance in np.linspace(0, 1, 997, endpoint=False).tolist():
        with_noise, without = choose_disturbance(chance, noises), choose_disturbance(chance, [])
        assert without == (None if kind(with_noise) == "noise" else with_noise)


def test_the_ends_of_the_shares() -> None:
    """Where rounding could choose a noise that is not there."""
    ends = [0.0, *itertools.accumulate((SPEED, NOISE, TELEPHONE)), 1.0]
    for end, count in itertools.product(ends, range(1, 12)):
        noises = [clip(str(number)) for number in range(count)]
        for chance in (float(np.nextafter(end, -1)), end, float(np.nextafter(end, 2))):
            if 0.0 <= chance < 1.0:
                made = choose_disturbance(chance, noises)
                assert made is None or 5.0 <= (made.decibels or 5.0) <= 25.0
