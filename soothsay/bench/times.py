"""How far times of words are from where speech really begins and ends.

Utterances are joined into windows with half a second of silence between them, so the first word of
each begins, and its last ends, where the utterance's own loudness says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from soothsay.bench.workload import Clip, provenance
from soothsay.text.words import Word
from soothsay.transcribe import SAMPLE_RATE, Options, Recogniser, Samples
from soothsay.types import OptionError

GAP_SECONDS = 0.5
WINDOW_SECONDS = 29.0
LONGEST_SECONDS = 14.0  # of an utterance: two fit
_FRAME = 160  # samples
_BELOW_SPEECH = 30.0  # dB below the loud frames of an utterance: where it begins and ends
_NEAR = 0.3  # seconds that a word's middle may lie outside its utterance


def edges(samples: Samples) -> tuple[float, float]:
    """Seconds at which an utterance begins and ends: its first and last frame of 10 ms that is at
    most 30 dB below its 95th percentile."""
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    level = 10 * np.log10((frames**2).mean(1) + 1e-10)
    loud = np.nonzero(level > np.percentile(level, 95) - _BELOW_SPEECH)[0]
    return loud[0] * _FRAME / SAMPLE_RATE, (loud[-1] + 1) * _FRAME / SAMPLE_RATE


def bench_times(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Errors in milliseconds over utterances of at most 14 s, language by language → the report."""
    starts: list[float] = []
    ends: list[float] = []
    used = 0
    for language in dict.fromkeys(clip.language for clip in clips):
        spoken = []
        for clip in (c for c in clips if c.language == language):
            samples = clip.samples()
            if SAMPLE_RATE // 10 < len(samples) <= LONGEST_SECONDS * SAMPLE_RATE:
                spoken.append(samples)
            progress()
        used += len(spoken)
        wanted = Options(language=options.language or language, timestamps="word")
        for window in _windows(spoken):
            done = recogniser.transcribe(_joined(window), wanted)
            words = [word for segment in done.transcript.segments for word in segment.words]
            begin = 0.0
            for samples in window:
                first, last = (begin + edge for edge in edges(samples))
                if inside := _words_of(words, first, last):
                    starts.append(1e3 * (inside[0].start - first))
                    ends.append(1e3 * (inside[-1].end - last))
                begin += len(samples) / SAMPLE_RATE + GAP_SECONDS
    if not starts:
        raise OptionError("no utterance of at most 14 s with words in it")
    return {
        "utterances": used,
        "with_words": len(starts),
        "start": _errors(starts),
        "end": _errors(ends),
        "provenance": provenance(recogniser),
    }


def _windows(utterances: Sequence[Samples]) -> Iterator[list[Samples]]:
    window: list[Samples] = []
    seconds = 0.0
    for samples in utterances:
        length = len(samples) / SAMPLE_RATE + GAP_SECONDS
        if window and seconds + length > WINDOW_SECONDS:
            yield window
            window, seconds = [], 0.0
        window.append(samples)
        seconds += length
    if window:
        yield window


def _joined(window: Sequence[Samples]) -> Samples:
    gap = np.zeros(round(GAP_SECONDS * SAMPLE_RATE), np.float32)
    return np.concatenate([part for samples in window for part in (samples, gap)])


def _words_of(words: Sequence[Word], first: float, last: float) -> list[Word]:
    return [w for w in words if first - _NEAR < (w.start + w.end) / 2 < last + _NEAR]


def _errors(milliseconds: Sequence[float]) -> dict[str, float]:
    errors = np.array(milliseconds)
    return {
        "median_ms": float(np.median(np.abs(errors))),
        "p90_ms": float(np.percentile(np.abs(errors), 90)),
        "bias_ms": float(np.median(errors)),
        "within_100_ms": float((np.abs(errors) <= 100).mean()),
    }
