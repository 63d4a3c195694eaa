"""Warping, choosing and the edges of the logit rules. The rules themselves are held against
Transformers' processors in tests/property/test_filters.py."""

from __future__ import annotations

import math

import pytest
import torch

from soothsay.speculate.filters import (
    NoRepeatNgram,
    OnlyTokens,
    RngChooser,
    SuppressAtBegin,
    SuppressTokens,
    TimestampRules,
    greedy_choice,
    warp,
)
from soothsay.types import OptionError, Sampling, SoothsayError

INF = math.inf


def logits_of(*probs: float) -> torch.Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


def test_suppress_tokens_in_every_row() -> None:
    logits = torch.arange(8.0).view(2, 4)
    SuppressTokens([3, 1]).apply(logits, [[], [2]])
    assert logits.tolist() == [[0.0, -INF, 2.0, -INF], [4.0, -INF, 6.0, -INF]]


def test_suppress_at_begin_where_nothing_is_written() -> None:
    logits = torch.zeros(3, 3)
    SuppressAtBegin([0, 2]).apply(logits, [[], [1], []])
    assert logits.tolist() == [[-INF, 0.0, -INF], [0.0, 0.0, 0.0], [-INF, 0.0, -INF]]


def test_only_tokens() -> None:
    logits = torch.arange(8.0).view(2, 4)
    OnlyTokens([2, 0]).apply(logits, [[], []])
    assert logits.tolist() == [[0.0, -INF, 2.0, -INF], [4.0, -INF, 6.0, -INF]]


@pytest.mark.parametrize("rule", [SuppressTokens([]), SuppressAtBegin([])])
def test_no_tokens_no_change(rule: SuppressTokens | SuppressAtBegin) -> None:
    logits = torch.ones(1, 3)
    rule.apply(logits, [[]])
    assert logits.tolist() == [[1.0, 1.0, 1.0]]


def test_each_row_is_filtered_on_its_own_history() -> None:
    logits = torch.zeros(3, 4)
    NoRepeatNgram(2).apply(logits, [[1, 2, 1], [1, 2, 2], [1]])
    assert logits.tolist() == [[0.0, 0.0, -INF, 0.0], [0.0, 0.0, -INF, 0.0], [0.0] * 4]


def test_ngrams_need_a_length() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        NoRepeatNgram(0)


def test_timestamps_win_together() -> None:
    """No single timestamp is the likeliest token, all of them together are."""
    rules = TimestampRules(first=4, no_timestamps=3, end_token=2)
    logits = torch.tensor([[0.0, 1.0, 0.0, 9.0, 0.5, 0.5, 0.5, 0.5]])
    rules.apply(logits, [[4, 0]])
    assert greedy_choice(logits) == [5]  # 4 itself may not be repeated
    assert logits[0, :4].tolist() == [-INF] * 4


def test_words_win_over_few_timestamps() -> None:
    rules = TimestampRules(first=4, no_timestamps=3, end_token=2)
    logits = torch.tensor([[0.0, 3.0, 0.0, 9.0, 0.5, 0.5, 0.5, 0.5]])
    rules.apply(logits, [[4, 0]])
    assert greedy_choice(logits) == [1]


def test_first_index_wins_ties() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0], [-INF, -1.0, -1.0]])
    assert greedy_choice(logits) == [1, 0, 1]


@pytest.mark.parametrize("row", [[-INF, -INF], [math.nan, 0.0], [INF, 0.0]])
def test_nothing_to_choose_is_an_error(row: list[float]) -> None:
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(SoothsayError, match="no token can be chosen"):
        greedy_choice(logits)
    with pytest.raises(SoothsayError, match="no token can be drawn"):
        warp(logits, Sampling(temperature=1.0))


def test_greedy_is_not_warped() -> None:
    with pytest.raises(ValueError, match="argmax"):
        warp(torch.zeros(1, 3), Sampling())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_warp_keeps_the_dtype(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]], dtype=dtype)
    assert warp(logits, Sampling(temperature=0.7, top_k=2, top_p=0.9)).dtype == dtype


def test_warp_leaves_the_logits() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    warp(logits, Sampling(temperature=0.5, top_k=2, top_p=0.5))
    assert logits.tolist() == [[0.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.4, [0.0, 1.0, 0.0, 0.0]),
        (0.5, [0.0, 1.0, 0.0, 0.0]),  # the mass is reached, not passed
        (0.6, [1 / 3, 2 / 3, 0.0, 0.0]),
        (0.75, [1 / 3, 2 / 3, 0.0, 0.0]),
        (0.8, [2 / 7, 4 / 7, 1 / 7, 0.0]),  # of two equal tokens the lower id
        (1.0, [0.25, 0.5, 0.125, 0.125]),
    ],
)
def test_top_p_is_the_smallest_set(top_p: float, kept: list[float]) -> None:
    probs = warp(logits_of(0.25, 0.5, 0.125, 0.125), Sampling(temperature=1.0, top_p=top_p))
    assert probs[0].tolist() == pytest.approx(kept, abs=1e-12)


def test_top_p_counts_mass_after_top_k() -> None:
    sampling = Sampling(temperature=1.0, top_k=3, top_p=0.6)
    probs = warp(logits_of(0.2, 0.3, 0.1, 0.1, 0.3), sampling)  # top-k leaves 2/8, 3/8, 3/8
    assert probs[0].tolist() == pytest.approx([0.0, 0.5, 0.0, 0.0, 0.5], abs=1e-12)


def test_top_k_keeps_what_ties_with_the_last() -> None:
    probs = warp(logits_of(0.4, 0.2, 0.2, 0.2), Sampling(temperature=1.0, top_k=2))
    assert probs[0].tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])


def test_forbidden_tokens_stay_forbidden() -> None:
    logits = torch.tensor([[1.0, -INF, 0.5]])
    probs = warp(logits, Sampling(temperature=10.0, top_k=3, top_p=0.999999))
    assert float(probs[0, 1]) == 0.0


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.tensor([[30.0, 30.5, -INF]])
    assert warp(logits, Sampling(temperature=1e-37)).tolist() == [[0.0, 1.0, 0.0]]


def test_the_same_seed_repeats_the_choices() -> None:
    probs = torch.softmax(torch.arange(9.0), -1)
    one, two = RngChooser(5), RngChooser(5)
    for _ in range(50):
        assert one.draw(probs) == two.draw(probs)
        assert one.accept(0.5) == two.accept(0.5)


def test_draws_have_their_probabilities() -> None:
    chooser, count = RngChooser(1), 20_000
    probs = torch.tensor([0.0, 0.5, 0.3, 0.0, 0.2, 0.0])
    seen = torch.bincount(
        torch.tensor([chooser.draw(probs) for _ in range(count)]), minlength=6
    ).tolist()
    for times, p in zip(seen, probs.tolist(), strict=True):
        assert abs(times - count * p) <= 5 * math.sqrt(count * p * (1 - p))


def test_accepting_has_its_probability() -> None:
    chooser, count = RngChooser(2), 20_000
    assert not any(chooser.accept(0.0) for _ in range(100))
    assert all(chooser.accept(1.0) for _ in range(100))
    accepted = sum(chooser.accept(0.3) for _ in range(count))
    assert abs(accepted - 0.3 * count) < 5 * math.sqrt(count * 0.21)


class _Extreme(RngChooser):
    """Its uniforms are as high, or as low, as they come."""

    def __init__(self, uniform: float) -> None:
        super().__init__(0)
        self._fixed = uniform

    def _uniform(self) -> float:
        return self._fixed


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 3), (1 - 2**-53, 1)])
def test_extreme_uniforms_meet_possible_tokens(uniform: float, token: int) -> None:
    probs = torch.tensor([0.0, 0.1, 0.0, 0.9, 0.0])
    assert _Extreme(uniform).draw(probs) == token
