"""Transcripts in the formats people expect."""

from __future__ import annotations

import json
import zlib
from typing import Any

from soothsay.text.timestamps import TextSegment, Transcript
from soothsay.types import OptionError


def render(transcript: Transcript, format: str) -> str:
    """`text`, `verbose_json` (OpenAI's field names), `srt` or `vtt`."""
    if format == "text":
        return transcript.text
    if format == "verbose_json":
        return json.dumps(verbose(transcript), ensure_ascii=False)
    if format == "srt":
        return "\n".join(
            f"{number}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_cue(s)}\n"
            for number, s in enumerate(transcript.segments, start=1)
        )
    if format == "vtt":
        cues = (
            f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_escaped(_cue(s))}\n"
            for s in transcript.segments
        )
        return "\n".join(["WEBVTT\n", *cues])
    raise OptionError(f"unknown format {format!r}")


def verbose(transcript: Transcript) -> dict[str, Any]:
    return {
        "task": transcript.task,
        "language": transcript.language,
        "duration": transcript.duration,
        "text": transcript.text,
        "segments": [
            {"id": number, **segment_fields(segment)}
            for number, segment in enumerate(transcript.segments)
        ],
    }


def segment_fields(segment: TextSegment) -> dict[str, Any]:
    """A segment's own fields; times rounded to a millisecond."""
    raw = segment.text.encode()
    return {
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "compression_ratio": round(len(raw) / len(zlib.compress(raw)), 3),
    }


def _clock(seconds: float, point: str) -> str:
    """HH:MM:SS and milliseconds."""
    total, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(total, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{milliseconds:03}"


def _cue(segment: TextSegment) -> str:
    """One line: a blank line, or an arrow, would end or forge a cue."""
    return " ".join(segment.text.split()).replace("-->", "->")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
