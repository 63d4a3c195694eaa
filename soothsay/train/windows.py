"""Training audio in windows of up to half a minute, each of one or several clips of one language.

The encoder costs the same for a second of speech as for thirty, so most clips are packed. But a
single utterance is what services hear most: silence to the window's end, and end-of-text soon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from soothsay.audio.features import SAMPLE_RATE, WINDOW_SECONDS
from soothsay.bench.workload import Clip, read_manifest
from soothsay.train.augment import Disturbance, choose_disturbance
from soothsay.transcribe import Samples
from soothsay.types import AudioError, OptionError

GAP_SECONDS = 0.3  # of silence between clips
ALONE = 0.35  # share of the windows that hold a single clip
TIMED = 0.2  # share of the windows that are labelled with timestamps
HELD_OUT = 0.04  # share of the speakers, or of the clips where speakers are unknown
RECENT_HELD_OUT = 0.2  # share of the clips of a service's own audio


@dataclass(frozen=True, slots=True)
class TrainingWindow:
    """Clips that are heard one after another. held_out: for early stopping, never trained on, and
    never disturbed; timed: the target writes timestamps."""

    clips: tuple[Clip, ...]
    held_out: bool
    disturbance: Disturbance | None = None
    timed: bool = False

    @property
    def language(self) -> str | None:
        """None where the manifest leaves it to the target."""
        return self.clips[0].language

    def samples(self) -> Samples:
        """At most 30 s of audio. AudioError names a file that cannot be read."""
        gap = np.zeros(int(GAP_SECONDS * SAMPLE_RATE), np.float32)
        parts = [part for clip in self.clips for part in (clip.samples(), gap)][:-1]
        joined = np.concatenate(parts)
        if self.disturbance is not None:
            joined = self.disturbance.apply(joined)
        return joined[: WINDOW_SECONDS * SAMPLE_RATE]


def plan_windows(
    manifests: Sequence[Path], minutes: float | None = None, noise: Path | None = None
) -> list[TrainingWindow]:
    """All clips of the manifests in windows; sets take turns, so that any beginning of the list
    is a fair sample. `minutes` bounds the audio, not counting the gaps; `noise`: a manifest of
    sounds to lay under some of the windows.

    Deterministic: resuming meets the same windows.
    """
    noises = [] if noise is None else read_manifest(noise)
    sets = []
    for manifest in manifests:
        clips = read_manifest(manifest)
        windows = [
            _window(packed, held_out, noises)
            for held_out in (False, True)
            for packed in _pack([c for c in clips if _is_held_out(c) == held_out])
        ]
        windows.sort(key=lambda window: _fraction(window.clips[0].id))
        sets.append(windows)
    turns = [
        ((i + 0.5) / len(w), n, window) for n, w in enumerate(sets) for i, window in enumerate(w)
    ]
    whole = [window for *_, window in sorted(turns, key=lambda turn: turn[:2])]
    planned = whole if minutes is None else list(_until(whole, 60 * minutes))
    if len(planned) < 2:
        raise OptionError("the manifests hold no audio to train on, or too little")
    if not any(window.held_out for window in planned):
        # Too little to meet a held-out voice by itself: take one along, or else a known voice.
        spare = [window for window in whole if window.held_out][:1]
        planned = (
            [*planned, *spare]
            if spare
            else [*planned[:-1], replace(planned[-1], held_out=True, disturbance=None)]
        )
    return planned


def plan_recent(manifest: Path, held_out: float = RECENT_HELD_OUT) -> list[TrainingWindow]:
    """Every clip as a service hears it: alone, undisturbed. A share of the clips is held out,
    whoever speaks: the same voices will be heard again."""
    clips = sorted(read_manifest(manifest), key=lambda clip: _fraction(clip.id))
    kept = max(1, round(held_out * len(clips)))
    if kept >= len(clips):
        raise OptionError(f"{manifest} holds too little audio: two clips at the least")
    return [TrainingWindow((clip,), place < kept) for place, clip in enumerate(clips)]


def _window(clips: list[Clip], held_out: bool, noises: Sequence[Clip]) -> TrainingWindow:
    chance = _fraction(f"disturbed {clips[0].id}")
    return TrainingWindow(
        tuple(clips),
        held_out,
        None if held_out else choose_disturbance(chance, noises),
        _fraction(f"timed {clips[0].id}") < TIMED,
    )


def _pack(clips: list[Clip]) -> Iterator[list[Clip]]:
    """Clips of one language, speaker by speaker, until a window is full; some stay alone."""
    clips = sorted(clips, key=lambda c: (c.language or "", c.speaker or "", c.id))
    for _, group in groupby(clips, key=lambda c: c.language):
        packed: list[Clip] = []
        seconds = 0.0
        for clip in group:
            length = _seconds(clip)
            alone = bool(packed) and _fraction(f"alone {packed[0].id}") < ALONE
            if packed and (alone or seconds + GAP_SECONDS + length > WINDOW_SECONDS):
                yield packed
                packed, seconds = [], 0.0
            seconds += length + (GAP_SECONDS if packed else 0.0)
            packed.append(clip)
        if packed:
            yield packed


def _seconds(clip: Clip) -> float:
    if clip.duration is not None:
        return clip.duration
    try:
        return len(clip.samples()) / SAMPLE_RATE
    except AudioError:
        return 0.0  # the labeller reports it


def _until(windows: Sequence[TrainingWindow], seconds: float) -> Iterator[TrainingWindow]:
    for window in windows:
        if seconds <= 0:
            return
        seconds -= sum(map(_seconds, window.clips))
        yield window


def _is_held_out(clip: Clip) -> bool:
    """By speaker, so that no voice is on both sides."""
    return _fraction(clip.speaker or clip.id) < HELD_OUT


def _fraction(key: str) -> float:
    """A fixed number in [0, 1) for a name."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2**48
