"""Long audio in windows of at most 30 s: cut at pauses, or every 30 s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from soothsay.audio.decode import Samples
from soothsay.audio.features import SAMPLE_RATE, WINDOW_SAMPLES
from soothsay.audio.recording import Recording
from soothsay.audio.vad import FRAME, Region, SpeechRule
from soothsay.types import AudioError


@dataclass(frozen=True, slots=True)
class Window:
    """At most 30 s of 16 kHz mono audio. start_seconds from the beginning of the recording."""

    start_seconds: float
    samples: Samples

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.seconds


def windows(blocks: Iterable[Samples], rule: SpeechRule | None = None) -> Iterator[Window]:
    """Cut a recording, as it is read, into windows that do not depend on each other.

    With a rule: all speech lies in exactly one window; silence between windows is left out. Regions
    are taken together while they fit; one that is longer is cut where speech is least likely, in
    the window's second half. A recording of at most 30 s with any speech stays whole. Without a
    rule: every 30 s. AudioError where there is no audio; none, where nobody speaks.
    """
    recording = Recording(blocks, rule)
    yield from _at_pauses(recording) if rule else _every_30_s(recording)
    if not recording.read:
        raise AudioError("the audio holds no samples")


def _every_30_s(recording: Recording) -> Iterator[Window]:
    start = 0
    while True:
        recording.read_to(start + WINDOW_SAMPLES)
        if recording.read <= start:
            return
        yield _window(recording, start, start + WINDOW_SAMPLES)
        start += WINDOW_SAMPLES
        recording.forget(start)


def _at_pauses(recording: Recording) -> Iterator[Window]:
    pad, finder = recording.padding, recording.finder
    done = 0  # where the last window ended
    group: Region | None = None  # regions that have ended, to be one window

    def start_of(region: Region) -> int:
        return max(done, region.first * FRAME - pad)

    def cut(region: Region) -> Window:
        nonlocal done
        start = start_of(region)
        done = min(region.last * FRAME + pad, recording.read)
        return _window(recording, start, done)

    recording.read_to(WINDOW_SAMPLES + 1)
    if recording.read <= WINDOW_SAMPLES:
        if _any_speech(recording):
            yield _window(recording, 0, recording.read)
        return
    going = True
    while going:
        going, ended = recording.next_frame()
        ends = ended or finder.open
        now = ends.last if ends else recording.frame
        if group and now * FRAME + pad - start_of(group) > WINDOW_SAMPLES:
            yield cut(group)
            group = None
        region = finder.open
        if region and region.last * FRAME + pad - start_of(region) > WINDOW_SAMPLES:
            start = start_of(region)
            first, last = start + WINDOW_SAMPLES // 2, start + WINDOW_SAMPLES - pad
            frame = recording.quietest(first // FRAME, min(last // FRAME, recording.frame))
            yield _window(recording, start, frame * FRAME)
            done = frame * FRAME
            finder.cut(frame)
        if ended:
            group = Region(group.first if group else ended.first, ended.last)
        needed = group or finder.open or Region(recording.frame, recording.frame)
        recording.forget(min(start_of(needed), recording.read))
    if group:
        yield cut(group)


def _any_speech(recording: Recording) -> bool:
    going = True
    while going:
        going, region = recording.next_frame()
        if region:
            return True
    return False


def _window(recording: Recording, start: int, end: int) -> Window:
    return Window(start / SAMPLE_RATE, recording.samples(start, end))
