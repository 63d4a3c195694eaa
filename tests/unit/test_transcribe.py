"""From audio to words on a toy model: windows, language, joining."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures.model_directory import write_toy_model

from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.fallback import Fallback
from soothsay.reference import Reference
from soothsay.targets.load import ModelFiles, resolve
from soothsay.text.tokens import WhisperTokens
from soothsay.transcribe import Options, Recogniser, signs_of
from soothsay.types import AudioError, OptionError, Sampling, SoothsayError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return resolve(write_toy_model(tmp_path_factory.mktemp("toy")))


@pytest.fixture(scope="module")
def recogniser(files: ModelFiles) -> Recogniser:
    return Recogniser(files, dtype="float32", drafter="random", max_sequences=2)


def noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(3).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)


@pytest.mark.parametrize("timestamps", ["none", "segment"])
def test_windows_are_decoded_as_if_alone(
    files: ModelFiles, recogniser: Recogniser, timestamps: str
) -> None:
    """Three and a half windows in an engine of two places, against the slow reference."""
    samples, options = noise(100), Options(timestamps=timestamps, vad=False)
    heard: list[float] = []
    done = recogniser.transcribe(samples, options, heard.append)
    assert len(done.results) == 4
    assert heard == sorted(heard)
    assert heard[-1] == done.audio_seconds == 100.0
    reference = Reference(files)
    for at, result in enumerate(done.results):
        request = recogniser.request(samples[480_000 * at :][:480_000], options)
        assert list(result.tokens) == reference.greedy(
            request.features, request.prompt, request.end_token, request.filters
        )
    segments = done.transcript.segments
    assert done.transcript.text == "".join(s.text for s in segments).strip()
    assert all(0 <= s.start <= s.end <= 100 for s in segments)
    assert [s.start for s in segments] == sorted(s.start for s in segments)


@pytest.mark.parametrize("vad", [True, False])
def test_blocks_are_read_no_further_than_needed(recogniser: Recogniser, vad: bool) -> None:
    """The same text as from the whole array, and only a few windows of audio at a time."""
    clip = read_manifest(CLIPS)[0].samples()
    samples = np.concatenate([clip, np.zeros(60_000, np.float32)] * 24)
    read, ahead, done_seconds = 0, 0.0, 0.0

    def blocks() -> Iterator[np.ndarray]:
        nonlocal read, ahead
        for at in range(0, len(samples), 4_000):
            read += len(samples[at : at + 4_000])
            ahead = max(ahead, read / 16_000 - done_seconds)
            yield samples[at : at + 4_000]

    def progress(seconds: float) -> None:
        nonlocal done_seconds
        done_seconds = seconds

    options = Options(language="en", vad=vad)
    done = recogniser.transcribe(blocks(), options, progress)
    assert done.transcript == recogniser.transcribe(samples, options).transcript
    assert len(done.results) > 4
    assert ahead < 30 * (recogniser.engine.max_sequences + 1) + 5 < len(samples) / 16_000


def test_stats_add_up(recogniser: Recogniser) -> None:
    done = recogniser.transcribe(noise(40), Options(vad=False))
    figures = done.figures()
    assert figures["tokens"] == sum(r.stats.tokens for r in done.results)
    assert figures["target_forwards"] == sum(r.stats.target_forwards for r in done.results)
    assert figures["rtfx"] == pytest.approx(40 / figures["wall_seconds"])


@pytest.mark.parametrize("wanted", [False, True])
def test_segments_carry_their_windows_scores(recogniser: Recogniser, wanted: bool) -> None:
    done = recogniser.transcribe(noise(31), Options(log_probs=wanted, vad=False))
    for segment in done.transcript.segments:
        (result,) = [r for r in done.results if set(segment.tokens) <= set(r.tokens)][:1]
        assert segment.scores.temperature == 0.0
        if wanted:
            mean = sum(result.log_probs) / len(result.log_probs)
            assert segment.scores.avg_logprob == pytest.approx(mean)
        else:
            assert segment.scores.avg_logprob is None


def test_a_seed_repeats_a_file_but_not_a_window(recogniser: Recogniser) -> None:
    twice = np.concatenate([noise(30), noise(30)])
    options = Options(language="en", sampling=Sampling(temperature=1.0, seed=5), vad=False)
    one, other = (recogniser.transcribe(twice, options).results for _ in range(2))
    assert [r.tokens for r in one] == [r.tokens for r in other]
    assert one[0].tokens != one[1].tokens


def test_nothing_to_hear(recogniser: Recogniser) -> None:
    with pytest.raises(AudioError, match="no samples"):
        recogniser.transcribe(np.zeros(0, np.float32))


@pytest.mark.parametrize("language", [None, "en"])
def test_where_nobody_speaks_there_is_no_text(recogniser: Recogniser, language: str | None) -> None:
    done = recogniser.transcribe(noise(40), Options(language=language))
    assert done.results == ()
    assert done.transcript.segments == ()
    assert (done.transcript.text, done.transcript.duration) == ("", 40.0)
    assert done.figures()["tokens"] == 0


def test_pauses_part_windows_and_silence_is_left_out(recogniser: Recogniser) -> None:
    """Two clips of speech, 40 s of silence between them."""
    clips = [clip.samples() for clip in read_manifest(CLIPS)[:2]]
    quiet = np.zeros(40 * 16_000, np.float32)
    done = recogniser.transcribe(np.concatenate([clips[0], quiet, clips[1]]))
    assert len(done.results) == 2
    between = (len(clips[0]) + len(quiet)) / 16_000
    starts = [segment.window_start for segment in done.transcript.segments]
    assert starts[0] == pytest.approx(0.0, abs=0.5)
    assert starts[-1] == pytest.approx(between, abs=0.5)


def test_a_prompt_stands_before_every_window(recogniser: Recogniser) -> None:
    tokens = recogniser.tokens
    wanted = tuple(tokens.encode(" Kowalski"))
    for language in (None, "en"):
        options = Options(prompt=" Kowalski ", language=language, vad=False)
        done = recogniser.transcribe(noise(31), options)
        for result in done.results:
            before, _, _ = "".join(map(chr, result.prompt)).partition(chr(tokens.start))
            assert tuple(map(ord, before)) == (tokens.start_of_previous, *wanted)
    blank = recogniser.request(noise(1), Options(prompt="  ", language="en"))
    assert blank.prompt == recogniser.request(noise(1), Options(language="en")).prompt


def test_a_window_without_speech_has_no_text(recogniser: Recogniser) -> None:
    """What the target itself says of it, whatever it wrote."""
    wanted = Options(language="en", vad=False, log_probs=True)
    sure = Fallback(temperatures=(), no_speech_threshold=0.0, logprob_threshold=None)
    done = recogniser.transcribe(noise(2), replace(wanted, fallback=sure))
    assert done.results[0].tokens
    assert done.transcript.segments == ()
    unsure = replace(sure, no_speech_threshold=1.0)
    segments = recogniser.transcribe(noise(2), replace(wanted, fallback=unsure)).transcript.segments
    assert segments
    assert all(0.0 < s.scores.no_speech_prob < 1.0 for s in segments)


def test_retries_repeat_themselves(recogniser: Recogniser) -> None:
    """The same audio gives the same text, though higher temperatures draw."""
    options = Options(language="en", vad=False, fallback=Fallback())
    one, other = (recogniser.transcribe(noise(40), options).results for _ in range(2))
    assert [r.tokens for r in one] == [r.tokens for r in other]
    assert max(r.attempts for r in one) > 1


def test_the_guard_against_repetition(recogniser: Recogniser) -> None:
    free = recogniser.transcribe(noise(5), Options(language="en", vad=False)).results[0].tokens
    assert len(set(free)) < len(free)
    guarded = Options(language="en", vad=False, no_repeat_ngram=1)
    tokens = recogniser.transcribe(noise(5), guarded).results[0].tokens
    assert len(set(tokens)) == len(tokens)


def test_a_failed_window_is_an_error(
    recogniser: Recogniser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(recogniser.target, "forward_tree", broken)
    with pytest.raises(SoothsayError, match="decoding failed: RuntimeError: no memory"):
        recogniser.transcribe(noise(1), Options(vad=False))
    recogniser.engine.scheduler.check_integrity()


def test_options_are_checked_when_made() -> None:
    with pytest.raises(OptionError, match="unknown task"):
        Options(task="sing")
    with pytest.raises(OptionError, match="no_repeat_ngram"):
        Options(no_repeat_ngram=-1)
    with pytest.raises(OptionError, match="unknown timestamps"):
        Options(timestamps="letter")


def test_signs_of_a_vocabulary() -> None:
    texts = ["a", ".", " Mr.", "?", "..", ". ", ",", "!)", "走。", "吗？", "?!", "।", "؟", ""]
    ids = SimpleNamespace(
        end_of_text=30,
        first_timestamp=40,
        no_timestamps=39,
        translate=35,
        token_bytes=[*(text.encode() for text in texts), b"\x82", b"\xe3\x80", b"\xaf."],
    )
    signs = signs_of(ids)
    assert (signs.end, signs.first_timestamp) == (30, 40)
    assert (signs.no_timestamps, signs.translate) == (39, 35)
    assert signs.stops == {1, 2, 3, 4, 8, 9, 10, 11, 12, 16}


@pytest.mark.slow
def test_signs_of_the_real_vocabulary(base_files: ModelFiles) -> None:
    tokens = WhisperTokens.from_file(base_files.tokenizer_json)
    signs = signs_of(tokens)
    for text in (".", "?", "!", "。"):
        assert tokens.encode(text)[-1] in signs.stops
    for text in (",", " the", "-", ";"):
        assert tokens.encode(text)[-1] not in signs.stops
    assert max(signs.stops) < signs.end < signs.translate < signs.no_timestamps
