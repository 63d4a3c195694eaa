"""Token times: dynamic time warping against its plain form, attention against its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixtures.toy_whisper import SIZES, toy_features, toy_files
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from soothsay.cache.arena import Arena
from soothsay.targets.alignment import Aligner, monotone_starts
from soothsay.targets.target import TreeBatch, TreeSpan
from soothsay.targets.whisper import WhisperTarget


def cheapest(cost: NDArray[np.float64]) -> float:
    """The cost of the best path, cell by cell."""
    rows, columns = cost.shape
    total = np.full((rows, columns), np.inf)
    for i in range(rows):
        for j in range(columns):
            before = [0.0] if i == j == 0 else []
            before += [total[i - 1, j]] if i else []
            before += [total[i, j - 1]] if j else []
            before += [total[i - 1, j - 1]] if i and j else []
            total[i, j] = min(before) + cost[i, j]
    return float(total[-1, -1])


def cost_of(cost: NDArray[np.float64], starts: NDArray[np.int64]) -> float:
    """Of the best path whose rows begin there: each row ends at or one before the next's begin."""
    best = np.inf
    choices = [(s, s - 1) if s else (s,) for s in starts[1:]]
    ends = [[end] for end in choices[0]] if choices else [[]]
    for options in choices[1:]:
        ends = [[*row, end] for row in ends for end in options]
    for chosen in ends:
        stops = [*chosen, cost.shape[1] - 1]
        if all(stop >= start for start, stop in zip(starts, stops, strict=True)):
            rows = zip(cost, starts, stops, strict=True)
            best = min(best, sum(float(row[a : b + 1].sum()) for row, a, b in rows))
    return best


@settings(deadline=None)
@given(st.integers(0, 100_000), st.integers(1, 6), st.integers(1, 9))
def test_the_path_is_the_cheapest(seed: int, rows: int, columns: int) -> None:
    cost = np.random.default_rng(seed).normal(size=(rows, columns))
    starts = monotone_starts(cost)
    assert starts[0] == 0
    assert (np.diff(starts) >= 0).all()
    assert cost_of(cost, starts) == pytest.approx(cheapest(cost))


def test_clear_attention_gives_its_own_times() -> None:
    cost = np.zeros((3, 12))
    cost[0, 0:4] = cost[1, 4:5] = cost[2, 5:12] = -1.0
    assert monotone_starts(cost).tolist() == [0, 4, 5]


def test_hidden_states_are_those_of_decoding() -> None:
    target = WhisperTarget(toy_files(1), torch.float64)
    encoded = target.encode(toy_features(3)[None])
    prompt, tokens = [1, 5], [9, 2, 7, 0]
    aligned = Aligner(target, [(1, 2)]).align(encoded, prompt, tokens, positions=8)
    assert aligned.starts.shape == (5,)
    assert aligned.starts[0] == 0
    assert aligned.starts[-1] == 8
    assert (np.diff(aligned.starts) >= 0).all()
    arena = Arena(target.arena_shape(SIZES.max_target_positions, 1))
    target.write_cross(encoded, arena, [0])
    chain = [*prompt, *tokens[:-1]]
    for index, token in enumerate(chain):
        batch = TreeBatch(
            torch.tensor([token]), torch.tensor([index]), (TreeSpan(0, 1, 0, index, 0, None),)
        )
        row = target.forward_tree(batch, arena)[0]
        if index >= len(prompt) - 1:
            assert torch.allclose(aligned.hidden[index - len(prompt) + 1], row)


def test_audio_ends_where_the_features_fall_silent() -> None:
    target = WhisperTarget(toy_files(1), torch.float32)
    features = torch.stack([toy_features(n) for n in range(3)])
    features[1, :, 7:] = features[1].min()
    features[2] = -1.5  # nothing but floor
    encoded = target.encode(features)
    assert encoded.audio_positions == (10, 4, 0)
    assert encoded.segment(1).audio_positions == (4,)
