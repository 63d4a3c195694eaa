"""Times of words: one more forward of the target over a window's final text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soothsay.targets.alignment import Aligner
from soothsay.targets.target import Encoded
from soothsay.targets.whisper import WhisperTarget
from soothsay.text.timestamps import TextSegment
from soothsay.text.tokens import WhisperTokens
from soothsay.text.words import SENTENCE_ENDS, Spelling, Word, split_words

POSITION_SECONDS = 0.02  # one encoder position
_FRAME = 0.01  # seconds of a log-mel frame
# Below the level of speech, in units of log-mel features (40 dB): words begin loud, and fade out.
_ONSET, _FADING = 0.5, 0.7
# A word that lasts longer has swallowed a pause (openai/whisper, timing.add_word_timestamps).
_TYPICAL, _TIMES_TYPICAL = 0.7, 2.0


class WordTimer:
    """Aligns the text of one window at a time with what its encoder heard."""

    def __init__(
        self, target: WhisperTarget, tokens: WhisperTokens, heads: Sequence[tuple[int, int]]
    ) -> None:
        self._target, self._tokens = target, tokens
        self._aligner = Aligner(target, heads)

    @torch.inference_mode()
    def timed(
        self,
        segments: Sequence[TextSegment],
        encoded: Encoded,
        features: Tensor,
        language: str,
        task: str,
    ) -> list[TextSegment]:
        """A window's segments, and its (M, F) log-mel features → the same with `words`: in order
        over the whole window, inside their segment, never of negative length."""
        text = [token for segment in segments for token in segment.tokens]
        if not text:
            return list(segments)
        prompt = self._tokens.prompt(language, task, timestamps=False)
        chain = [*text, self._tokens.end_of_text]
        aligned = self._aligner.align(encoded, prompt, chain, encoded.audio_positions[0])
        logits = self._target.logits(aligned.hidden[:-1]).float()
        chances = torch.softmax(logits, -1)[torch.arange(len(text)), torch.tensor(text)].tolist()
        times = [POSITION_SECONDS * int(start) for start in aligned.starts]
        begin = segments[0].window_start
        spellings = [split_words(s.tokens, self._tokens, language) for s in segments]
        every: list[Word] = []
        at = 0
        for spelling in (one for some in spellings for one in some):
            every.append(_word(spelling, at, times, chances, begin))
            at += spelling.count
        loud, audible = (loud_frames(features, below) for below in (_ONSET, _FADING))
        every = _as_loud(every, loud, audible, begin)
        found: list[TextSegment] = []
        earliest = 0.0
        for segment, some in zip(segments, spellings, strict=True):
            words, every = every[: len(some)], every[len(some) :]
            words = _inside(_without_pauses(words), max(segment.start, earliest), segment.end)
            earliest = words[-1].end if words else earliest
            found.append(replace(segment, words=tuple(words)))
        return found


def _word(
    spelling: Spelling, at: int, times: Sequence[float], chances: Sequence[float], begin: float
) -> Word:
    stop = at + spelling.count
    probability = statistics.fmean(chances[at:stop])
    return Word(begin + times[at], begin + times[at + spelling.spoken], spelling.text, probability)


def loud_frames(features: Tensor, below: float) -> NDArray[np.bool_]:
    """(M, F) log-mel features → whether each frame of 10 ms is louder than so much below the speech
    there. Where noise is nearly as loud, all are."""
    level = features.mean(0).numpy()
    if level.max() == level.min():
        return np.zeros(len(level), bool)
    loud: NDArray[np.bool_] = level > np.percentile(level[level > level.min()], 95) - below
    return loud


def _as_loud(
    words: Sequence[Word], loud: NDArray[np.bool_], audible: NDArray[np.bool_], begin: float
) -> list[Word]:
    """Attention jumps to a word before it begins, and away before it ends; loudness knows better.
    Starts move on to where it begins, ends to where it stops, neither past the next word."""
    found: list[Word] = []
    starts = [round((word.start - begin) / _FRAME) for word in words] + [len(loud)]
    for number, word in enumerate(words):
        start, after = starts[number], max(starts[number], starts[number + 1])
        stretch = loud[start:after]
        if not stretch.any():
            found.append(word)
            continue
        first = int(stretch.argmax())
        end = max(round((word.end - begin) / _FRAME) - start, first + 1)
        while start + end < after and audible[start + end]:
            end += 1
        while end > first + 1 and not audible[start + end - 1]:
            end -= 1
        times = begin + (start + first) * _FRAME, begin + (start + end) * _FRAME
        found.append(replace(word, start=times[0], end=times[1]))
    return found


def _without_pauses(words: Sequence[Word]) -> list[Word]:
    """Words of a length nobody speaks lose it on the side where a pause stands."""
    lengths = [word.end - word.start for word in words if word.end > word.start]
    longest = _TIMES_TYPICAL * min(_TYPICAL, statistics.median(lengths)) if lengths else 0.0
    found = []
    for number, word in enumerate(words):
        if word.end - word.start > longest:
            if word.text.rstrip().endswith(SENTENCE_ENDS):
                word = replace(word, end=word.start + longest)
            elif number == 0 or words[number - 1].text.rstrip().endswith(SENTENCE_ENDS):
                word = replace(word, start=word.end - longest)
        found.append(word)
    return found


def _inside(words: Sequence[Word], earliest: float, latest: float) -> list[Word]:
    """Every word within those seconds, and none before the one before it has ended."""
    found = []
    for word in words:
        start = min(max(word.start, earliest), max(earliest, latest))
        end = max(start, min(word.end, latest))
        found.append(replace(word, start=start, end=end))
        earliest = end
    return found
