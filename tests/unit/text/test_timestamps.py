from __future__ import annotations

import pytest
from fixtures.toy import FIRST_TIMESTAMP, TOKENIZER

from soothsay.text.timestamps import Scores, Transcript, segments_of
from soothsay.text.tokens import WhisperTokens

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


def test_a_segment_knows_its_window() -> None:
    scores = Scores(temperature=0.2, avg_logprob=-0.5)
    first, second = segments_of(A + at(0.3) + B, TOKENS, 60.0, 30.0, scores)
    for segment in (first, second):
        assert segment.window_start == 60.0
        assert segment.scores == scores


def test_a_transcript_joins_its_segments() -> None:
    segments = segments_of(at(0.0) + A + at(0.1) + B, TOKENS, offset=0.0, duration=1.0)
    assert Transcript("transcribe", "en", 1.0, tuple(segments)).text == "ab"
    assert Transcript("transcribe", "en", 1.0, ()).text == ""
