"""What goes into the engine and what comes out: one request is one encoded segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from soothsay.speculate.filters import LogitFilter
from soothsay.types import FinishReason, Sampling, SequenceStats


@dataclass(frozen=True, slots=True)
class Request:
    """One segment to decode.

    features:   (M, F) log-mel of one full window.
    prompt:     decoder tokens before the output, at least one.
    max_tokens: bound on output tokens, end-of-text not counted; the target's length bounds too.
    filters:    logit rules, applied in order to plain and drafted positions alike.
    hint:       an earlier hypothesis of this audio, for drafters that can use one.
    speculate:  False decodes plainly, whatever drafter and budget the engine has.
    """

    features: Tensor
    prompt: tuple[int, ...]
    end_token: int
    sampling: Sampling = Sampling()
    filters: tuple[LogitFilter, ...] = ()
    max_tokens: int = 1 << 30
    hint: Sequence[int] | None = None
    speculate: bool = True


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed tokens of one sequence; `result` is set in its last delta."""

    sequence: int
    tokens: tuple[int, ...]
    result: Result | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished sequence. `tokens` without prompt; end-of-text, where written, is not included."""

    tokens: tuple[int, ...]
    finish: FinishReason
    stats: SequenceStats = field(default_factory=SequenceStats)
    log_probs: tuple[float, ...] = ()  # of each token (and end-of-text) under the filtered target
    error: str | None = None
