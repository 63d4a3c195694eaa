"""A recording as it is read: the stretch of it that is still needed, and where there is speech."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from soothsay.audio.decode import Samples
from soothsay.audio.features import SAMPLE_RATE
from soothsay.audio.vad import FRAME, Region, RegionFinder, SpeechDetector, SpeechRule

_CHUNK = 64 * FRAME  # samples to take in at once: two seconds


class Recording:
    """Reads blocks of 16 kHz mono samples, no further than asked, and holds what is not forgotten.

    Positions are samples from the beginning. `rule` None detects nothing.
    """

    def __init__(self, blocks: Iterable[Samples], rule: SpeechRule | None) -> None:
        self._chunks = _chunks(blocks)
        self._held = np.zeros(0, np.float32)
        self._begin = 0  # position of the first sample held
        self._detector = SpeechDetector() if rule else None
        self.finder = RegionFinder(rule or SpeechRule())
        self.padding = rule.speech_pad_ms * SAMPLE_RATE // 1000 if rule else 0
        self._probabilities: deque[float] = deque()
        self._first_frame = 0  # of those probabilities
        self._unseen: deque[float] = deque()
        self.frame = 0  # frames handed out by `next_frame`
        self.read = 0  # samples read so far
        self.ended = False

    def read_more(self) -> bool:
        """Take in the next chunk; False at the end of the recording."""
        if self.ended:
            return False
        chunk = next(self._chunks, None)
        if chunk is None:
            self.ended = True
            if self._detector:
                self._hear(self._detector.flush())
            return False
        self._held = np.concatenate([self._held, chunk])
        self.read += len(chunk)
        if self._detector:
            self._hear(self._detector.push(chunk))
        return True

    def read_to(self, position: int) -> None:
        """Read until `position`, or the end of the recording."""
        while self.read < position and self.read_more():
            pass

    def next_frame(self) -> tuple[bool, Region | None]:
        """Let the finder hear the next frame → whether there was one, and the region it ended."""
        while not self._unseen and self.read_more():
            pass
        if not self._unseen:
            return False, self.finder.flush()
        self.frame += 1
        return True, self.finder.push(self._unseen.popleft())

    def quietest(self, first: int, last: int) -> int:
        """The frame of the lowest speech probability among first..last - 1, the latest on ties."""
        heard = [self._probabilities[frame - self._first_frame] for frame in range(first, last)]
        return max(range(first, last), key=lambda frame: (-heard[frame - first], frame))

    def samples(self, start: int, end: int) -> Samples:
        """A copy of that stretch, as far as there is any."""
        return self._held[start - self._begin : end - self._begin].copy()

    def forget(self, position: int) -> None:
        """What lies before `position` is not needed any more."""
        if position - self._begin < _CHUNK:
            return  # in large steps: each moves all that is held
        self._held = self._held[position - self._begin :].copy()
        self._begin = position
        while self._first_frame < position // FRAME and self._probabilities:
            self._probabilities.popleft()
            self._first_frame += 1

    def _hear(self, probabilities: Samples) -> None:
        self._probabilities.extend(probabilities.tolist())
        self._unseen.extend(probabilities.tolist())


def _chunks(blocks: Iterable[Samples]) -> Iterator[Samples]:
    """The same samples, in chunks of one size but for the last."""
    waiting: list[Samples] = []
    count = 0
    # In pieces, because a block may be a whole recording, and need not be there twice.
    pieces = (b[at : at + _CHUNK] for b in blocks for at in range(0, len(b), _CHUNK))
    for piece in pieces:
        waiting.append(piece)
        count += len(piece)
        if count >= _CHUNK:
            joined = np.concatenate(waiting)
            yield joined[:_CHUNK]
            waiting, count = [joined[_CHUNK:]], count - _CHUNK
    if count:
        yield np.concatenate(waiting)
