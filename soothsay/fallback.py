"""Temperature fallback: Whisper's own rule for texts that went wrong.

Radford et al., 2022, section 4.5, and openai/whisper's `decode_with_fallback`: text that repeats
itself (it compresses too well) or that the target hardly believes is decoded again at a higher
temperature, unless nobody seems to speak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from soothsay.engine.request import Attempt
from soothsay.text.timestamps import compression_ratio
from soothsay.types import OptionError, Sampling


@dataclass(frozen=True, slots=True)
class Fallback:
    """When to decode again, and how. A threshold of None is not looked at.

    temperatures: of the attempts after the first, ascending.
    compression_ratio_threshold: text that compresses better than that repeats itself.
    logprob_threshold: least mean log-probability of a token.
    no_speech_threshold: where the no-speech token is likelier than that and the text is below
    logprob_threshold, nobody speaks: no further attempt, and no text.
    """

    temperatures: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6

    def __post_init__(self) -> None:
        for temperature in self.temperatures:
            if not 0.0 < temperature <= 10.0:
                raise OptionError(f"a fallback temperature must lie in (0, 10], not {temperature}")
        threshold = self.no_speech_threshold
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise OptionError(f"no_speech_threshold must lie in 0..1, not {threshold}")

    def silent(self, avg_logprob: float, no_speech_prob: float | None) -> bool:
        """Whether a window holds no speech, by what the target itself says of it."""
        return (
            self.no_speech_threshold is not None
            and no_speech_prob is not None
            and no_speech_prob > self.no_speech_threshold
            and (self.logprob_threshold is None or avg_logprob < self.logprob_threshold)
        )

    def poor(self, attempt: Attempt, text: str) -> bool:
        """Whether an attempt is worth another."""
        mean = avg_logprob(attempt.log_probs)
        if self.silent(mean, attempt.probe_probability):
            return False
        repeats = self.compression_ratio_threshold is not None and (
            compression_ratio(text) > self.compression_ratio_threshold
        )
        return repeats or (self.logprob_threshold is not None and mean < self.logprob_threshold)


@dataclass(frozen=True, slots=True)
class FallbackRule:
    """A Fallback for one request (engine.request.RetryRule). seed: draws of further attempts come
    from it, so that the same audio gives the same text; text_of: of tokens."""

    fallback: Fallback
    text_of: Callable[[Sequence[int]], str]
    sampling: Sampling
    seed: int

    def again(self, attempts: Sequence[Attempt]) -> Sampling | None:
        """The next higher temperature, while the last attempt is poor."""
        last = attempts[-1]
        higher = [
            t
            for t in self.fallback.temperatures
            if t > max(a.sampling.temperature for a in attempts)
        ]
        if not higher or not self.fallback.poor(last, self.text_of(last.tokens)):
            return None
        seed = (self.seed + len(attempts)) % (1 << 63)
        return Sampling(higher[0], self.sampling.top_k, self.sampling.top_p, seed)

    def best(self, attempts: Sequence[Attempt]) -> Attempt:
        """The last, if it is good; of poor ones the likeliest, first of those that do not repeat
        themselves (as faster-whisper has it)."""
        last = attempts[-1]
        if not self.fallback.poor(last, self.text_of(last.tokens)):
            return last
        limit = self.fallback.compression_ratio_threshold
        calm = [
            a
            for a in attempts
            if limit is None or compression_ratio(self.text_of(a.tokens)) <= limit
        ]
        return max(calm or attempts, key=lambda attempt: avg_logprob(attempt.log_probs))


def avg_logprob(log_probs: Sequence[float]) -> float:
    """Their mean; 0 where there are none."""
    return fmean(log_probs) if log_probs else 0.0
