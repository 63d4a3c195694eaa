"""What goes into the engine and what comes out: one request is one encoded segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from soothsay.speculate.filters import LogitFilter
from soothsay.targets.target import Encoded
from soothsay.types import FinishReason, Sampling, SequenceStats


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """The target completes its own prompt: the likeliest of `among`, then the tokens `then`.

    Whisper's language detection is this: after start-of-transcript, among the language tokens.
    """

    among: tuple[int, ...]
    then: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One decoding of a segment; fields as in Result."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish: FinishReason
    sampling: Sampling
    probe_probability: float | None


class RetryRule(Protocol):
    """Whether a finished text is good enough. The scheduler keeps what was tried."""

    def again(self, attempts: Sequence[Attempt]) -> Sampling | None:
        """How to decode the segment once more, after these attempts; None: it is enough."""
        ...

    def best(self, attempts: Sequence[Attempt]) -> Attempt:
        """Which of them is the result."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """The probability of `token`, whatever the logit rules, after the prompt's `position`."""

    position: int
    token: int


@dataclass(frozen=True, slots=True)
class Request:
    """One segment to decode.

    features:   (M, F) log-mel of one full window.
    prompt:     decoder tokens before the output, at least one.
    choice:     how the target completes the prompt first, if it shall.
    max_tokens: bound on output tokens, end-of-text not counted; the target's length bounds too.
    filters:    logit rules, applied in order to plain and drafted positions alike.
    hint:       an earlier hypothesis of this audio, for drafters that can use one.
    speculate:  False decodes plainly, whatever drafter and budget the engine has.
    log_probs:  whether the result carries the log-probability of each token.
    probe:      a probability to take along the way (Whisper: that nobody speaks).
    keep_encoded: whether the result carries what the encoder heard.
    retry:      decodes again what it finds too poor; tokens then come all at once, at the end.
    """

    features: Tensor
    prompt: tuple[int, ...]
    end_token: int
    choice: PromptChoice | None = None
    sampling: Sampling = Sampling()
    filters: tuple[LogitFilter, ...] = ()
    max_tokens: int = 1 << 30
    hint: Sequence[int] | None = None
    speculate: bool = True
    log_probs: bool = False
    probe: Probe | None = None
    retry: RetryRule | None = None
    keep_encoded: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A finished sequence.

    tokens:    the output without prompt; end-of-text, where written, is not included.
    prompt:    the prompt as it was in the end (a choice completed).
    choice_probability: of the chosen prompt token among its alternatives; None without a choice.
    log_probs: of each token, and of end-of-text where written, under the filtered target.
    encoded:   of this segment, where the request asks for it.
    sampling:  of the attempt that these tokens are from; attempts: how many there were.
    """

    tokens: tuple[int, ...]
    prompt: tuple[int, ...]
    finish: FinishReason
    stats: SequenceStats = field(default_factory=SequenceStats)
    choice_probability: float | None = None
    log_probs: tuple[float, ...] = ()
    error: str | None = None
    probe_probability: float | None = None
    sampling: Sampling = Sampling()
    attempts: int = 1
    encoded: Encoded | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed tokens of one sequence; `result` is set in its last delta."""

    sequence: int
    tokens: tuple[int, ...]
    result: Result | None = None
