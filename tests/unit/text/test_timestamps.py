from __future__ import annotations

import json

import pytest
from fixtures.toy import FIRST_TIMESTAMP, TOKENIZER

from soothsay.text import formats
from soothsay.text.timestamps import TextSegment, Transcript, segments_of
from soothsay.text.tokens import WhisperTokens
from soothsay.types import OptionError

TOKENS = WhisperTokens.from_file(TOKENIZER)
A, B = TOKENS.encode("a"), TOKENS.encode("b")


def at(seconds: float) -> list[int]:
    return [FIRST_TIMESTAMP + round(seconds / 0.02)]


def spans(tokens: list[int], duration: float = 30.0) -> list[tuple[float, float, str]]:
    found = segments_of(tokens, TOKENS, offset=60.0, duration=duration)
    return [(round(s.start, 2), round(s.end, 2), s.text) for s in found]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        (A + B, [(60.0, 90.0, "ab")]),
        (at(0.1) + A + at(0.3) + at(0.4) + B + at(0.5), [(60.1, 60.3, "a"), (60.4, 60.5, "b")]),
        (at(0.1) + A + at(0.3) + at(0.3) + B, [(60.1, 60.3, "a"), (60.3, 90.0, "b")]),
        (at(0.1) + A + at(0.3) + B, [(60.1, 60.3, "a"), (60.3, 90.0, "b")]),
        (at(0.1) + at(0.3), []),
        (A + at(0.3), [(60.0, 60.3, "a")]),
    ],
)
def test_segments(tokens: list[int], expected: list[tuple[float, float, str]]) -> None:
    assert spans(tokens) == expected


def test_times_never_leave_the_window() -> None:
    assert spans(at(0.2) + A + at(0.7), duration=0.5) == [(60.2, 60.5, "a")]
    assert spans(at(0.6) + A + at(0.7), duration=0.5) == [(60.5, 60.5, "a")]


TRANSCRIPT = Transcript(
    task="transcribe",
    language="en",
    duration=3725.5,
    segments=(
        TextSegment(0.0, 1.5, (1,), " Hello --> <you>\n& all"),
        TextSegment(3725.0, 3725.4996, (2, 3), " End."),
    ),
)


def test_text_and_json() -> None:
    assert TRANSCRIPT.text == "Hello --> <you>\n& all End."
    body = json.loads(formats.render(TRANSCRIPT, "verbose_json"))
    assert body["task"] == "transcribe"
    assert body["duration"] == 3725.5
    assert [s["id"] for s in body["segments"]] == [0, 1]
    assert body["segments"][1]["tokens"] == [2, 3]


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


def test_unknown_format() -> None:
    with pytest.raises(OptionError, match="unknown format"):
        formats.render(TRANSCRIPT, "doc")
