"""Packing: nothing lost, nothing mixed that must stay apart."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import pytest

from soothsay.train.windows import GAP_SECONDS, plan_windows
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
    assert len(windows) < 290 * 7.5 / 30 * 1.35


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
