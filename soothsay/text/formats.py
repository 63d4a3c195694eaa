"""Transcripts in the formats people expect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from soothsay.text.timestamps import TextSegment, Transcript, compression_ratio
from soothsay.text.words import Word
from soothsay.types import OptionError


def render(transcript: Transcript, format: str) -> str:
    """`text`, `json` and `verbose_json` (OpenAI's field names), `srt`, `vtt`, or `tsv`
    (openai/whisper: milliseconds)."""
    if format == "text":
        return transcript.text
    if format == "json":
        return json.dumps({"text": transcript.text}, ensure_ascii=False)
    if format == "verbose_json":
        return json.dumps(verbose(transcript), ensure_ascii=False)
    if format == "srt":
        return "\n".join(
            f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{cue.text}\n"
            for number, cue in enumerate(_cues(transcript), start=1)
        )
    if format == "tsv":
        rows = (
            f"{round(1000 * s.start)}\t{round(1000 * s.end)}\t{' '.join(s.text.split())}"
            for s in transcript.segments
        )
        return "\n".join(["start\tend\ttext", *rows])
    if format == "vtt":
        cues = (
            f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{_escaped(cue.text)}\n"
            for cue in _cues(transcript)
        )
        return "\n".join(["WEBVTT\n", *cues])
    raise OptionError(f"unknown format {format!r}")


def verbose(transcript: Transcript) -> dict[str, Any]:
    words = [word for segment in transcript.segments for word in segment.words]
    timed = [
        {"word": w.text.strip(), "start": round(w.start, 3), "end": round(w.end, 3)} for w in words
    ]
    return {
        "task": transcript.task,
        "language": transcript.language,
        "duration": transcript.duration,
        "text": transcript.text,
        "segments": [
            {"id": number, **segment_fields(segment)}
            for number, segment in enumerate(transcript.segments)
        ],
    } | ({"words": timed} if timed else {})


def segment_fields(segment: TextSegment) -> dict[str, Any]:
    """A segment's own fields; times in seconds rounded to a millisecond, `seek` (where its window
    begins) in steps of 10 ms. What was not measured is null."""
    return {
        "seek": round(segment.window_start * 100),
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.scores.temperature,
        "avg_logprob": segment.scores.avg_logprob,
        "compression_ratio": round(compression_ratio(segment.text), 3),
        "no_speech_prob": segment.scores.no_speech_prob,
    } | ({"words": [_word_fields(word) for word in segment.words]} if segment.words else {})


def _word_fields(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "probability": round(word.probability, 3),
    }


@dataclass(frozen=True, slots=True)
class _Cue:
    start: float
    end: float
    text: str


def _cues(transcript: Transcript) -> Iterator[_Cue]:
    """Subtitles, one after another: none begins before the last has ended, none is blank."""
    earliest = 0.0
    for segment in transcript.segments:
        # One line: a blank line, or an arrow, would end or forge a cue.
        text = re.sub("-{2,}>", "->", " ".join(segment.text.split()))
        if text:
            start = max(segment.start, earliest)
            earliest = max(segment.end, start)
            yield _Cue(start, earliest, text)


def _clock(seconds: float, point: str) -> str:
    """HH:MM:SS and milliseconds."""
    total, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(total, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{milliseconds:03}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
