"""Logit rules and warping. Pure: each row is filtered on its own node's own path.

One chain of filters serves plain and speculative decoding alike, so a rule can never apply to the
drafter alone (a published library suppressed end-of-text in its drafter and gained a "Thank you.").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from soothsay.types import OptionError, Sampling, SoothsayError


class LogitFilter(Protocol):
    """A rule over logits, stateless: everything it depends on is in the row's history."""

    def apply(self, logits: Tensor, histories: Sequence[Sequence[int]]) -> None:
        """logits: (R, V) float32, changed in place. histories[r]: the tokens decoded before the
        row's prediction (prompt not included), committed ones and the node's path alike."""
        ...


class SuppressTokens:
    """Some tokens are never written."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = torch.tensor(sorted(tokens), dtype=torch.int64)

    def apply(self, logits: Tensor, histories: Sequence[Sequence[int]]) -> None:
        logits.index_fill_(1, self._tokens.to(logits.device), -math.inf)


class SuppressAtBegin:
    """Some tokens are never written first (Whisper: a blank, and end-of-text)."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = sorted(tokens)

    def apply(self, logits: Tensor, histories: Sequence[Sequence[int]]) -> None:
        for row, history in enumerate(histories):
            if not history:
                logits[row, self._tokens] = -math.inf


class OnlyTokens:
    """Nothing but some tokens may be written."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = torch.tensor(sorted(tokens), dtype=torch.int64)

    def apply(self, logits: Tensor, histories: Sequence[Sequence[int]]) -> None:
        tokens = self._tokens.to(logits.device)
        kept = logits[:, tokens]
        logits.fill_(-math.inf)
        logits[:, tokens] = kept


class NoRepeatNgram:
    """No n-gram of the output is ever written twice, as Transformers' processor has it."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise OptionError(f"no-repeat n-grams need n of at least 1, not {n}")
        self._n = n

    def apply(self, logits: Tensor, histories: Sequence[Sequence[int]]) -> None:
        n = self._n
        for row, history in enumerate(histories):
            tail = tuple(history[len(history) - n + 1 :]) if n > 1 else ()
            if len(tail) < n - 1:
                continue
            banned = [
                history[i + n - 1]
                for i in range(len(history) - n + 1)
                if tuple(history[i : i + n - 1]) == tail
            ]
            if banned:
                logits[row, banned] = -math.inf


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """Whisper's timestamp grammar (openai/whisper, decoding.ApplyTimestampRules).

    Timestamps come in pairs, never run backwards, and one stands first, at most `latest_first`
    steps of 20 ms into the window; where all timestamps together are likelier than every word,
    one is written. `first` is the id of <|0.00|>; all ids from it on are timestamps.
    """

    first: int
    no_timestamps: int
    end_token: int
    latest_first: int | None = 50

    def apply(self, logits: Tensor, histories: Sequence[Sequence[int]]) -> None:
        logits[:, self.no_timestamps] = -math.inf
        for row, history in enumerate(histories):
            self._forbid(logits[row], history)
        # Both sides lack the softmax's denominator, which is the same and costs a pass over V.
        words = logits[:, : self.first]
        likelier = logits[:, self.first :].logsumexp(-1) > words.amax(-1)
        words.masked_fill_(likelier[:, None], -math.inf)

    def _forbid(self, row: Tensor, history: Sequence[int]) -> None:
        first = self.first
        if not history:
            row[:first] = -math.inf
            if self.latest_first is not None:
                row[first + self.latest_first + 1 :] = -math.inf
            return
        last_was = history[-1] >= first
        if last_was:
            if len(history) < 2 or history[-2] >= first:
                row[first:] = -math.inf  # a pair is complete (or opened): words come
            else:
                row[: self.end_token] = -math.inf  # a segment has ended: no word may follow
        written = [token for token in history if token >= first]
        if written:
            # A segment's end may equal nothing before it; its successor's start may equal it.
            alone = last_was and not (len(history) < 2 or history[-2] >= first)
            row[first : written[-1] + (0 if alone else 1)] = -math.inf


def greedy_choice(logits: Tensor) -> list[int]:
    """The likeliest token of each row, the first on ties: (R, V) filtered logits → R tokens.

    SoothsayError where a row holds no finite maximum: a broken model, or rules that forbid all.
    """
    if logits.device.type == "cpu":
        array = logits.numpy()  # several times faster than torch's argmax over a row this wide
        choices = [int(token) for token in array.argmax(1)]
        best = [float(array[row, token]) for row, token in enumerate(choices)]
    else:
        values, indices = logits.max(-1)
        choices, best = indices.tolist(), values.tolist()
    if not all(map(math.isfinite, best)):
        raise SoothsayError("no token can be chosen: logits are not finite, or all are forbidden")
    return choices


def warp(logits: Tensor, sampling: Sampling) -> Tensor:
    """(R, V) filtered logits → (R, V) probabilities after temperature, top-k and top-p.

    top-k keeps the k largest (all that tie with the k-th); top-p the smallest set of likeliest
    tokens whose mass reaches it, lower ids first on ties. The dtype is kept.
    """
    if sampling.greedy:
        raise ValueError("temperature 0 has no distribution to warp: take the argmax")
    # From the maximum down, so that no temperature, however small, overflows.
    scaled = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = scaled.topk(sampling.top_k, -1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < kth, -math.inf)
    probs = torch.softmax(scaled, -1)
    if not bool(torch.isfinite(probs).all()):
        raise SoothsayError("no token can be drawn: logits are not finite, or all are forbidden")
    if sampling.top_p < 1.0:
        probs = torch.stack([_nucleus(row, sampling.top_p) for row in probs])
    return probs


def _nucleus(probs: Tensor, mass: float) -> Tensor:
    """(V,) → the smallest set of likeliest tokens that holds `mass`, normalised."""
    # Tokens below (1 - mass)/V hold less than 1 - mass together, so the set needs none of them:
    # that spares sorting nearly all of the vocabulary.
    likely = (probs >= (1.0 - mass) / len(probs)).nonzero().flatten()
    ordered, order = probs[likely].sort(descending=True, stable=True)
    before = torch.nn.functional.pad(ordered.cumsum(0)[:-1], (1, 0))
    kept = likely[order[before < mass]]
    nucleus = torch.zeros_like(probs)
    nucleus[kept] = probs[kept]
    return nucleus / nucleus.sum()


class RngChooser:
    """Chooses by a random generator of its own; the same seed repeats the same choices."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def draw(self, probs: Tensor) -> int:
        """A token drawn from (V,) probabilities."""
        # One uniform against the sums: torch.multinomial draws V of them, which costs ten times
        # more. The uniform lies in (0, total], so that a token of probability 0 is never met.
        sums = probs.cpu().double().cumsum(0)
        return int(torch.searchsorted(sums, (1.0 - self._uniform()) * sums[-1]))

    def accept(self, probability: float) -> bool:
        """True with that probability."""
        return self._uniform() < probability

    def _uniform(self) -> float:
        """From [0, 1)."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))
