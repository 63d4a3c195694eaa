"""Packing: nothing lost, nothing mixed that must stay apart."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soothsay.train.augment import NOISE, SPEED, TELEPHONE, Disturbance
from soothsay.train.windows import ALONE, GAP_SECONDS, TIMED, plan_windows
from soothsay.types import AudioError, OptionError


def manifest(folder: Path, name: str, rows: list[dict]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(name: str, count: int, languages: tuple[str, ...] = ("en",)) -> list[dict]:
    return [
        {
            "audio": f"{name}-{i}.wav",
            "lang": languages[i % len(languages)],
            "speaker": f"{name}-s{i % 40}",
            "duration": 2.0 + i % 11,
        }
        for i in range(count)
    ]


@pytest.fixture
def manifests(tmp_path: Path) -> list[Path]:
    return [
        manifest(tmp_path, "one", rows("one", 200)),
        manifest(tmp_path, "two", rows("two", 90, ("de", "fr"))),
    ]


def test_every_clip_is_in_one_window_of_its_language(manifests: list[Path]) -> None:
    windows = plan_windows(manifests)
    clips = [clip.id for window in windows for clip in window.clips]
    assert len(clips) == len(set(clips)) == 290
    for window in windows:
        assert len({clip.language for clip in window.clips}) == 1
        seconds = sum(clip.duration or 0 for clip in window.clips)
        assert seconds + GAP_SECONDS * (len(window.clips) - 1) <= 30
    packed = [window for window in windows if len(window.clips) > 1]
    seconds = sum(clip.duration or 0 for window in packed for clip in window.clips)
    assert seconds / len(packed) > 20  # of 30: the longest clips have 12 and find no room
    assert len(windows) < 290 * 7.5 / 30 * 1.35 / (1 - ALONE)


def test_no_voice_is_on_both_sides(manifests: list[Path]) -> None:
    windows = plan_windows(manifests)
    sides = [
        {clip.speaker for window in windows if window.held_out == held for clip in window.clips}
        for held in (False, True)
    ]
    assert sides[1]
    assert not sides[0] & sides[1]


def test_any_beginning_is_a_fair_sample(manifests: list[Path]) -> None:
    windows = plan_windows(manifests)
    assert windows == plan_windows(manifests)
    half = [w.clips[0].id.split("-")[0] for w in windows[: len(windows) // 2]]
    share = sum(w.clips[0].id.startswith("two") for w in windows) / len(windows)
    assert half.count("two") / len(half) == pytest.approx(share, abs=0.05)


def test_minutes_bound_the_audio(manifests: list[Path]) -> None:
    windows = plan_windows(manifests, minutes=3)
    spoken = windows[:-1] if windows[-1].held_out else windows  # one may come along, see below
    seconds = sum(clip.duration or 0 for window in spoken for clip in window.clips)
    assert 150 <= seconds < 210
    assert spoken == plan_windows(manifests)[: len(spoken)]


def write_wav(path: Path, seconds: float) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\1\0" * int(16_000 * seconds))


def test_lengths_are_read_where_they_are_not_told(tmp_path: Path) -> None:
    for name, seconds in (("a", 20.0), ("b", 15.0)):
        write_wav(tmp_path / f"{name}.wav", seconds)
    path = manifest(tmp_path, "m", [{"audio": f"{n}.wav", "speaker": "x"} for n in "ab"])
    windows = plan_windows([path])
    assert [len(w.clips) for w in windows] == [1, 1]
    assert sorted(len(w.samples()) for w in windows) == [15 * 16_000, 20 * 16_000]


def test_samples_hold_gaps_and_at_most_half_a_minute(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", 1.0)
    row = {"audio": "a.wav", "speaker": "x"}
    short = manifest(tmp_path, "s", [row | {"duration": 1.0}] * 2)
    longer = manifest(tmp_path, "t", [row | {"duration": 29.0}])
    assert len(plan_windows([short, longer])[0].samples()) == int(16_000 * (2 + GAP_SECONDS))
    write_wav(tmp_path / "a.wav", 40.0)
    long = manifest(tmp_path, "l", [row | {"duration": 29.0}] * 2)  # its manifest is wrong
    assert len(plan_windows([long])[0].samples()) == 30 * 16_000


def test_a_missing_file_is_named_when_it_is_heard(tmp_path: Path) -> None:
    path = manifest(tmp_path, "m", [{"audio": "gone.wav", "duration": 25.0}] * 2)
    window = plan_windows([path])[0]
    with pytest.raises(AudioError, match=r"gone\.wav"):
        window.samples()


def test_nothing_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        plan_windows([manifest(tmp_path, "m", [])])
    with pytest.raises(OptionError, match="no audio"):
        plan_windows([])


def test_a_little_audio_still_holds_some_out(manifests: list[Path], tmp_path: Path) -> None:
    for minutes in (0.5, 1, 2, 5):
        windows = plan_windows(manifests, minutes=minutes)
        assert sum(window.held_out for window in windows) >= 1
        assert sum(not window.held_out for window in windows) >= 1
    one_voice = [{"audio": f"{i}.wav", "speaker": "one-s1", "duration": 20.0} for i in range(4)]
    windows = plan_windows([manifest(tmp_path, "voice", one_voice)])
    assert [window.held_out for window in windows] == [False, False, False, True]


def short(name: str, count: int, speakers: int = 60) -> list[dict]:
    """Clips so short that a full window holds many."""
    return [
        {"audio": f"{name}-{i}.wav", "speaker": f"{name}-s{i % speakers}", "duration": 2.0}
        for i in range(count)
    ]


def test_some_windows_hold_a_single_clip(tmp_path: Path) -> None:
    windows = plan_windows([manifest(tmp_path, "m", short("short", 4_000))])
    sizes = [len(window.clips) for window in windows]
    assert sizes.count(1) / len(sizes) == pytest.approx(ALONE, abs=0.06)
    others = [size for size in sizes if size > 1]
    assert sorted(others)[2:] == [13] * (len(others) - 2)  # 13 · 2.0 + 12 · 0.3 s; two are the last


def test_some_windows_are_labelled_with_timestamps(tmp_path: Path) -> None:
    windows = plan_windows([manifest(tmp_path, "m", short("timed", 4_000))])
    for of in (
        windows,
        [w for w in windows if len(w.clips) == 1],
        [w for w in windows if w.disturbance is not None],
    ):
        share = sum(window.timed for window in of) / len(of)
        assert share == pytest.approx(TIMED, abs=0.08)  # whatever else is done to them


def test_windows_are_disturbed_in_their_shares_but_never_held_out_ones(tmp_path: Path) -> None:
    noise = manifest(tmp_path, "noise", [{"audio": f"noise-{i}.wav"} for i in range(5)])
    clips = manifest(tmp_path, "m", short("noisy", 6_000))
    windows = plan_windows([clips], noise=noise)
    assert windows == plan_windows([clips], noise=noise)
    held_out = [window for window in windows if window.held_out]
    assert held_out
    assert all(window.disturbance is None for window in held_out)
    made = [window.disturbance for window in windows if not window.held_out]
    share = sum(d is not None for d in made) / len(made)
    assert share == pytest.approx(SPEED + NOISE + TELEPHONE, abs=0.06)
    laid_under = [d.noise for d in made if d is not None and d.noise is not None]
    assert len(laid_under) / len(made) == pytest.approx(NOISE, abs=0.05)
    assert {clip.audio for clip in laid_under} == {tmp_path / f"noise-{i}.wav" for i in range(5)}
    quiet = plan_windows([clips])
    assert not any(w.disturbance is not None and w.disturbance.noise is not None for w in quiet)
    assert [w.clips for w in quiet] == [w.clips for w in windows]


def test_a_window_held_out_for_want_of_others_is_not_disturbed(tmp_path: Path) -> None:
    """One known voice is all there is: its last window is kept for early stopping."""
    for number in range(24):
        rows = [
            {"audio": f"{number}-{i}.wav", "speaker": "one-s1", "duration": 29.0} for i in range(3)
        ]
        windows = plan_windows([manifest(tmp_path, f"voice-{number}", rows)])
        assert [window.held_out for window in windows] == [False, False, True]
        assert windows[-1].disturbance is None


def test_a_disturbed_window_sounds_otherwise(tmp_path: Path) -> None:
    time = np.arange(16_000 * 20) / 16_000
    speech = (8_000 * np.sin(2 * np.pi * 440 * time)).astype("<i2")
    with wave.open(str(tmp_path / "speech.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(speech.tobytes())
    window = plan_windows(
        [manifest(tmp_path, "m", [{"audio": "speech.wav", "speaker": "x", "duration": 20.0}] * 2)]
    )[0]
    plain = replace(window, disturbance=None).samples()
    assert len(plain) == 20 * 16_000
    slow = replace(window, disturbance=Disturbance(speed=0.9)).samples()
    assert abs(len(slow) - len(plain) / 0.9) <= 2
    long = replace(window, clips=window.clips * 2, disturbance=Disturbance(speed=0.9)).samples()
    assert len(long) == 30 * 16_000
