"""Logit rules against Transformers' processors, and warping against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    NoRepeatNGramLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from soothsay.speculate.filters import (
    LogitFilter,
    NoRepeatNgram,
    OnlyTokens,
    SuppressAtBegin,
    SuppressTokens,
    TimestampRules,
    warp,
)
from soothsay.types import Sampling

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A small Whisper: words 0..9, end-of-text 10, other specials, no-timestamps 13, timestamps 14..29.
VOCAB, END, NO_TIMESTAMPS, FIRST = 30, 10, 13, 14
PROMPT = [11, 12]

tokens = st.sets(st.integers(0, VOCAB - 1), max_size=8).map(sorted)
histories = st.lists(
    st.lists(
        st.one_of(st.integers(0, 9), st.integers(FIRST, VOCAB - 1), st.integers(0, VOCAB - 1)),
        max_size=9,
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def logits_for(draw: st.DrawFn, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    scale = draw(st.sampled_from([0.1, 1.0, 5.0]))
    return torch.randn(rows, VOCAB, generator=generator) * scale


def check(
    data: st.DataObject,
    written: list[list[int]],
    rule: LogitFilter,
    oracle: Callable[[Tensor, Tensor], Tensor],
    prompt: list[int],
) -> None:
    """All rows at once by the rule, one by one by the oracle, which sees the prompt as well."""
    logits = data.draw(logits_for(len(written)))
    expected = [
        oracle(torch.tensor([prompt + history], dtype=torch.int64), logits[row : row + 1].clone())
        for row, history in enumerate(written)
    ]
    rule.apply(logits, written)
    assert torch.equal(logits, torch.cat(expected))


@given(st.data(), histories, tokens)
def test_suppress_tokens(data: st.DataObject, written: list[list[int]], ids: list[int]) -> None:
    check(data, written, SuppressTokens(ids), SuppressTokensLogitsProcessor(ids), PROMPT)


@given(st.data(), histories, tokens)
def test_suppress_at_begin(data: st.DataObject, written: list[list[int]], ids: list[int]) -> None:
    oracle = SuppressTokensAtBeginLogitsProcessor(ids, begin_index=len(PROMPT))
    check(data, written, SuppressAtBegin(ids), oracle, PROMPT)


repeating = st.lists(st.lists(st.integers(0, 3), max_size=14), min_size=1, max_size=4)


@given(st.data(), repeating, st.integers(1, 5))
def test_no_repeat_ngram(data: st.DataObject, written: list[list[int]], n: int) -> None:
    check(data, written, NoRepeatNgram(n), NoRepeatNGramLogitsProcessor(n), [])


@given(st.data(), histories, st.sampled_from([None, 0, 3, 50]))
def test_timestamp_rules(
    data: st.DataObject, written: list[list[int]], latest_first: int | None
) -> None:
    config = SimpleNamespace(
        no_timestamps_token_id=NO_TIMESTAMPS,
        eos_token_id=END,
        bos_token_id=END,
        max_initial_timestamp_index=latest_first,
    )
    oracle = WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT))
    rule = TimestampRules(FIRST, NO_TIMESTAMPS, END, latest_first)
    check(data, written, rule, oracle, PROMPT)


@given(st.data(), tokens)
def test_only_tokens(data: st.DataObject, ids: list[int]) -> None:
    logits = data.draw(logits_for(2))
    expected = [
        [value if token in ids else -math.inf for token, value in enumerate(row)]
        for row in logits.tolist()
    ]
    OnlyTokens(ids).apply(logits, [[], []])
    assert logits.tolist() == expected


@given(
    st.data(),
    st.floats(0.05, 10.0),
    st.integers(0, VOCAB + 3),
    st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    st.sets(st.integers(1, VOCAB - 1)),
)
def test_warp_is_the_plain_loops(
    data: st.DataObject, temperature: float, top_k: int, top_p: float, forbidden: set[int]
) -> None:
    logits = data.draw(logits_for(3)).double()
    logits[:, sorted(forbidden)] = -math.inf
    got = warp(logits, Sampling(temperature, top_k, top_p))
    for row, warped in zip(logits.tolist(), got.tolist(), strict=True):
        assert warped == pytest.approx(_plainly(row, temperature, top_k, top_p), abs=1e-12)


def _plainly(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    ranked = ranked[: top_k or None]
    weights = {token: math.exp((logits[token] - max(logits)) / temperature) for token in ranked}
    total = sum(weights.values())
    kept, mass = [], 0.0
    for token in ranked:
        if mass >= top_p:
            break
        kept.append(token)
        mass += weights[token] / total
    final = sum(weights[token] for token in kept)
    return [weights[token] / final if token in kept else 0.0 for token in range(len(logits))]
