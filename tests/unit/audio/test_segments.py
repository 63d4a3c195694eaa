"""Windows of long audio: nothing lost, nothing twice, the same however the audio comes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soothsay.audio import recording
from soothsay.audio.segments import Window, windows
from soothsay.audio.vad import FRAME, SpeechRule
from soothsay.types import AudioError

RULE = SpeechRule(
    threshold=0.5, min_speech_duration_ms=100, min_silence_duration_ms=200, speech_pad_ms=100
)
PAD = 1_600


class LoudIsSpeech:
    """A detector for tests: the first sample of a frame says how likely speech is."""

    def __init__(self) -> None:
        self.rest = np.zeros(0, np.float32)

    def push(self, block: np.ndarray) -> np.ndarray:
        samples = np.concatenate([self.rest, block])
        whole = len(samples) // FRAME * FRAME
        self.rest = samples[whole:]
        return samples[:whole:FRAME]

    def flush(self) -> np.ndarray:
        return self.rest[:1]


@pytest.fixture
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "SpeechDetector", LoudIsSpeech)


def made(stretches: list[tuple[float, float]]) -> np.ndarray:
    """(seconds, probability) in turn → samples whose values count up within each frame."""
    return np.concatenate(
        [
            np.full(round(seconds * 16_000 / FRAME) * FRAME, p, np.float32)
            for seconds, p in stretches
        ]
    )


def in_blocks(samples: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (samples[at : at + size] for at in range(0, len(samples), size))


def spans(cuts: list[Window]) -> list[tuple[int, int]]:
    starts = [round(cut.start_seconds * 16_000) for cut in cuts]
    return [(at, at + len(cut.samples)) for at, cut in zip(starts, cuts, strict=True)]


@pytest.mark.parametrize("length", [1, 479_999, 480_000, 480_001, 1_500_000])
@pytest.mark.parametrize("size", [1_000, 2_000_000])
def test_without_a_rule_windows_join_to_the_whole(length: int, size: int) -> None:
    samples = np.arange(length, dtype=np.float32)
    cuts = list(windows(in_blocks(samples, size)))
    assert np.array_equal(np.concatenate([cut.samples for cut in cuts]), samples)
    assert all(len(cut.samples) == 480_000 for cut in cuts[:-1])
    assert [cut.start_seconds for cut in cuts] == [30.0 * n for n in range(len(cuts))]
    assert cuts[-1].end_seconds == pytest.approx(length / 16_000)


@pytest.mark.parametrize("rule", [None, RULE])
def test_nothing_has_no_windows(rule: SpeechRule | None) -> None:
    with pytest.raises(AudioError, match="no samples"):
        list(windows([], rule))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.05, 45.0), st.sampled_from([0.0, 0.4, 0.6, 0.9])),
        min_size=1,
        max_size=12,
    ),
    st.integers(300, 100_000),
)
def test_all_speech_lies_in_one_window(stretches: list[tuple[float, float]], size: int) -> None:
    samples = made(stretches)
    if not len(samples):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "SpeechDetector", LoudIsSpeech)
        cuts = list(windows([samples], RULE))
        again = list(windows(in_blocks(samples, size), RULE))
    assert spans(cuts) == spans(again)
    last = 0
    covered = np.zeros(len(samples), bool)
    for (start, end), cut in zip(spans(cuts), cuts, strict=True):
        assert last <= start < end <= start + 480_000
        assert np.array_equal(cut.samples, samples[start:end])
        covered[start:end] = True
        last = end
    # Speech of 100 ms and less may be none; longer stretches are covered whole.
    at = 0
    for seconds, probability in stretches:
        length = round(seconds * 16_000 / FRAME) * FRAME
        if probability >= RULE.threshold and length > 1_600:
            assert covered[at : at + length].all()
        at += length


@pytest.mark.usefixtures("loud")
def test_short_audio_stays_whole_or_is_silence() -> None:
    samples = made([(20.0, 0.0), (1.0, 0.9), (5.0, 0.0)])
    assert spans(list(windows([samples], RULE))) == [(0, len(samples))]
    assert list(windows([made([(29.0, 0.1)])], RULE)) == []


@pytest.mark.usefixtures("loud")
def test_regions_are_taken_together_while_they_fit() -> None:
    samples = made([(10.0, 0.9), (2.0, 0.0), (10.0, 0.9), (2.0, 0.0), (10.0, 0.9)])
    (first, second) = spans(list(windows([samples], RULE)))
    assert first == (0, pytest.approx(22 * 16_000 + PAD, abs=2 * FRAME))
    assert second == (pytest.approx(24 * 16_000 - PAD, abs=2 * FRAME), len(samples))


@pytest.mark.usefixtures("loud")
def test_speech_without_a_pause_is_cut_where_it_is_least_likely() -> None:
    samples = made([(8.0, 0.9), (0.1, 0.6), (14.0, 0.9), (0.1, 0.7), (20.0, 0.9)])
    (first, second) = spans(list(windows([samples], RULE)))
    assert first[1] == second[0]
    assert first[1] / 16_000 == pytest.approx(22.15, abs=0.1)


@pytest.mark.usefixtures("loud")
def test_silence_does_not_fill_the_memory() -> None:
    hour = (made([(60.0, 0.0)]) for _ in range(60))
    kept = recording.Recording(hour, RULE)
    most = 0
    while kept.next_frame()[0]:
        kept.forget(kept.frame * FRAME)
        most = max(most, len(kept._held))
    assert most < 10 * 16_000
