"""Rendered transcripts, against text written by hand."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soothsay.text import formats
from soothsay.text.timestamps import Scores, TextSegment, Transcript
from soothsay.types import OptionError

TRANSCRIPT = Transcript(
    task="transcribe",
    language="en",
    duration=3725.5,
    segments=(
        TextSegment(0.0, 1.5, (1,), " Hello --> <you>\n& all"),
        TextSegment(3725.0, 3725.4996, (2, 3), " End.", 3720.0, Scores(0.4, -0.25, 0.125)),
    ),
)


def test_text() -> None:
    assert formats.render(TRANSCRIPT, "text") == "Hello --> <you>\n& all End."


def test_json() -> None:
    assert json.loads(formats.render(TRANSCRIPT, "json")) == {"text": "Hello --> <you>\n& all End."}


def test_verbose_json_has_openai_fields() -> None:
    body = json.loads(formats.render(TRANSCRIPT, "verbose_json"))
    first, second = body.pop("segments")
    assert body == {
        "task": "transcribe",
        "language": "en",
        "duration": 3725.5,
        "text": "Hello --> <you>\n& all End.",
    }
    assert second == {
        "id": 1,
        "seek": 372_000,
        "start": 3725.0,
        "end": 3725.5,
        "text": " End.",
        "tokens": [2, 3],
        "temperature": 0.4,
        "avg_logprob": -0.25,
        "compression_ratio": round(5 / len(zlib.compress(b" End.")), 3),
        "no_speech_prob": 0.125,
    }
    assert list(first) == list(second)
    assert first["avg_logprob"] is None  # not measured, so not made up


def test_other_scripts_stay_readable() -> None:
    chinese = Transcript("transcribe", "zh", 1.0, (TextSegment(0.0, 1.0, (), "你好"),))
    for format in ("json", "verbose_json", "srt", "vtt"):
        assert "你好" in formats.render(chinese, format)


def test_srt() -> None:
    assert formats.render(TRANSCRIPT, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello -> <you> & all\n\n"
        "2\n01:02:05,000 --> 01:02:05,500\nEnd.\n"
    )


def test_vtt_escapes_markup() -> None:
    assert formats.render(TRANSCRIPT, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello -&gt; &lt;you&gt; &amp; all\n\n"
        "01:02:05.000 --> 01:02:05.500\nEnd.\n"
    )


def test_nothing_said() -> None:
    empty = Transcript("transcribe", "en", 1.0, ())
    assert [formats.render(empty, f) for f in ("text", "srt", "vtt")] == ["", "", "WEBVTT\n"]


def test_unknown_format() -> None:
    with pytest.raises(OptionError, match="unknown format"):
        formats.render(TRANSCRIPT, "doc")


def seconds(clock: str) -> float:
    hours, minutes, rest = clock.split(":")
    assert len(hours) >= 2
    assert len(minutes) == 2
    assert len(rest) == 6
    return int(hours) * 3600 + int(minutes) * 60 + float(rest.replace(",", "."))


TIMES = st.floats(0, 100_000, allow_nan=False)
WORDS = st.text(st.sampled_from("ab ->\n\r<&你"), max_size=12)


@given(st.lists(st.tuples(TIMES, TIMES, WORDS), max_size=5))
def test_subtitles_are_well_formed_whatever_is_said(
    spoken: list[tuple[float, float, str]],
) -> None:
    segments = tuple(TextSegment(start, end, (), text) for start, end, text in spoken)
    transcript = Transcript("transcribe", "en", 100_000.0, segments)
    said = [segment for segment in segments if segment.text.strip()]
    for format in ("srt", "vtt"):
        blocks = formats.render(transcript, format).removeprefix("WEBVTT\n\n").split("\n\n")
        if not said:
            assert blocks in ([""], ["WEBVTT\n"])
            continue
        assert len(blocks) == len(said)
        last = 0.0
        for number, block in enumerate(blocks, start=1):
            *name, times, text = block.rstrip("\n").split("\n")
            assert name == ([str(number)] if format == "srt" else [])
            start, end = map(seconds, times.split(" --> "))
            assert last <= start <= end
            last = end
            assert text.strip()
            assert "-->" not in text
            assert format == "srt" or "<" not in text
