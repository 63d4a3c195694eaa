"""Segments and transcripts: text with its times, read from a window's tokens."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from soothsay.text.tokens import WhisperTokens
from soothsay.text.words import Word


@dataclass(frozen=True, slots=True)
class Scores:
    """What is known of how a window was decoded; None for what was not measured.

    avg_logprob: mean natural log-probability of the window's tokens.
    no_speech_prob: probability of the no-speech token.
    """

    temperature: float | None = None
    avg_logprob: float | None = None
    no_speech_prob: float | None = None


_UNSCORED = Scores()


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A stretch of text. start, end, window_start: seconds from the beginning of the audio."""

    start: float
    end: float
    tokens: tuple[int, ...]
    text: str
    window_start: float = 0.0
    scores: Scores = _UNSCORED
    words: tuple[Word, ...] = ()


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes it: text that repeats itself, many times."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said in one audio file. duration in seconds; language a code such as en."""

    task: str
    language: str
    duration: float
    segments: tuple[TextSegment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()


def segments_of(
    tokens: Sequence[int],
    vocabulary: WhisperTokens,
    offset: float,
    duration: float,
    scores: Scores = _UNSCORED,
) -> list[TextSegment]:
    """A window's output → its segments; offset and duration of the window in seconds.

    Timestamps stand in pairs around text, the end of one segment beside the start of the next.
    Text that no timestamp closes lasts until the window's end; without any, until its end from its
    beginning. Times never leave the window.
    """
    segments: list[TextSegment] = []
    start = 0.0
    text_tokens: list[int] = []

    def close(end: float) -> None:
        text = vocabulary.decode(text_tokens)
        if text.strip():
            end = min(max(start, end), duration)
            times = (offset + min(start, end), offset + end)
            segments.append(TextSegment(*times, tuple(text_tokens), text, offset, scores))

    for token in tokens:
        seconds = vocabulary.seconds(token)
        if seconds is None:
            text_tokens.append(token)
            continue
        close(seconds)
        start, text_tokens = seconds, []
    close(duration)
    return segments
