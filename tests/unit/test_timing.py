"""Times of words on a toy: always in order and inside; and on a real clip: where they are said."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from fixtures.model_directory import write_toy_model

from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.targets.load import ModelFiles, resolve
from soothsay.text.formats import render
from soothsay.text.words import Word
from soothsay.timing import _as_loud, _inside, _without_pauses, loud_frames
from soothsay.transcribe import Options, Recogniser


def word(start: float, end: float, text: str = " a") -> Word:
    return Word(start, end, text, 1.0)


def test_words_stay_inside_and_in_order() -> None:
    found = _inside([word(0.0, 1.0), word(0.8, 2.0), word(5.0, 4.0), word(9.0, 9.5)], 0.5, 6.0)
    assert [(w.start, w.end) for w in found] == [(0.5, 1.0), (1.0, 2.0), (5.0, 5.0), (6.0, 6.0)]


def test_pauses_leave_words_at_sentence_edges() -> None:
    spoken = [
        word(0, 3),
        word(3, 3.3),
        word(3.3, 3.6),
        word(3.6, 8.0, " b."),
        word(8, 10),
        word(10, 10.3),
    ]
    found = _without_pauses(spoken)
    longest = 2 * 0.7
    assert (found[0].start, found[0].end) == (pytest.approx(3 - longest), 3)
    assert (found[3].start, found[3].end) == (3.6, pytest.approx(3.6 + longest))
    assert (found[4].start, found[4].end) == (pytest.approx(10 - longest), 10)
    assert _without_pauses([]) == []


def test_words_begin_and_end_where_it_is_loud() -> None:
    """Attention says 0 to 0.1 s and 0.1 to 0.5 s; sound says 0.05 to 0.2 s and 0.3 to 0.6 s."""
    loud = np.zeros(100, bool)
    loud[5:20] = loud[30:55] = True
    audible = loud.copy()
    audible[55:60] = True
    spoken = [word(7.0, 7.1), word(7.25, 7.5), word(7.8, 7.9)]
    found = _as_loud(spoken, loud, audible, 7.0)
    assert [round(w.start, 2) for w in found] == [7.05, 7.3, 7.8]
    assert [round(w.end, 2) for w in found] == [7.2, 7.6, 7.9]


def test_loud_is_what_is_near_the_level_of_speech() -> None:
    features = torch.full((80, 3000), -1.0)
    features[:, 100:200] = 1.0
    features[:, 200:210] = 0.6
    assert np.nonzero(loud_frames(features, 0.5))[0].tolist() == list(range(100, 210))
    assert np.nonzero(loud_frames(features, 0.3))[0].tolist() == list(range(100, 200))
    assert not loud_frames(torch.zeros(80, 3000), 0.5).any()


@pytest.mark.parametrize("seconds", [0.4, 7.0, 45.0])
def test_a_toys_words_are_all_there(
    tmp_path_factory: pytest.TempPathFactory, seconds: float
) -> None:
    recogniser = Recogniser(resolve(write_toy_model(tmp_path_factory.mktemp("toy"))), drafter="off")
    samples = np.random.default_rng(0).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
    options = Options(timestamps="word", vad=False)
    done = recogniser.transcribe(samples, options)
    plain = recogniser.transcribe(samples, Options(timestamps="segment", vad=False))
    assert done.transcript.text == plain.transcript.text
    for segment in done.transcript.segments:
        assert "".join(w.text for w in segment.words) == segment.text
        times = [t for w in segment.words for t in (w.start, w.end)]
        assert times == sorted(times)
        assert segment.start <= times[0]
        assert times[-1] <= segment.end
        assert all(0.0 <= w.probability <= 1.0 for w in segment.words)
    body = json.loads(render(done.transcript, "verbose_json"))
    spoken = [w.text.strip() for s in done.transcript.segments for w in s.words]
    assert [w["word"] for w in body["words"]] == spoken
    assert "words" not in json.loads(render(plain.transcript, "verbose_json"))


@pytest.mark.slow
def test_a_known_silence_lies_between_words(base_files: ModelFiles) -> None:
    """Two clips with two seconds of silence between: the words around keep to their own clip."""
    one, other = [clip.samples() for clip in read_manifest(CLIPS)[:2]]
    quiet = np.zeros(32_000, np.float32)
    recogniser = Recogniser(base_files)
    options = Options(language="en", timestamps="word")
    done = recogniser.transcribe(np.concatenate([one, quiet, other]), options)
    words = [w for segment in done.transcript.segments for w in segment.words]
    assert all(a.end <= b.start for a, b in pairwise(words))
    before, after = max(pairwise(words), key=lambda pair: pair[1].start - pair[0].end)
    edge = len(one) / 16_000
    assert before.end == pytest.approx(edge, abs=0.5)
    assert after.start == pytest.approx(edge + 2.0, abs=0.5)
