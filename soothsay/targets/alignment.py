"""When each token was said: dynamic time warping over the target's cross-attention.

As openai/whisper does it: softmax over the positions that hold audio, normalised over tokens,
smoothed by a median filter, averaged over the heads known to follow the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soothsay.cache.arena import Arena
from soothsay.targets.target import Encoded, TreeBatch, TreeSpan
from soothsay.targets.whisper import WhisperTarget

MEDIAN_WIDTH = 7  # encoder positions


@dataclass(frozen=True, slots=True)
class Alignment:
    """starts: (n + 1,) int64 encoder positions: token i is heard in [starts[i], starts[i + 1]).
    hidden: (n, width), the target's final hidden states that predict the n tokens."""

    starts: NDArray[np.int64]
    hidden: Tensor


class Aligner:
    """Aligns segments one at a time, on caches of its own."""

    def __init__(self, target: WhisperTarget, heads: Sequence[tuple[int, int]]) -> None:
        """heads: the (layer, head) pairs to read; without any, all heads of the upper half."""
        layers = len(target.decoder)
        self._heads = list(heads) or [
            (layer, head) for layer in range(layers // 2, layers) for head in range(target.heads)
        ]
        self._target = target
        self._arena = Arena(target.arena_shape(slots=target.spec.max_length, streams=1))

    @torch.inference_mode()
    def align(
        self, encoded: Encoded, prompt: Sequence[int], tokens: Sequence[int], positions: int
    ) -> Alignment:
        """encoded: one segment, of which the first `positions` hold audio; tokens: the n that
        followed `prompt`, end-of-text included if it was written."""
        chain = [*prompt, *tokens[:-1]]  # the last token predicts nothing that was written
        first = len(prompt) - 1
        queries: dict[int, Tensor] = {}
        self._target.write_cross(encoded, self._arena, [0])
        batch = TreeBatch(
            tokens=torch.tensor(chain),
            positions=torch.arange(len(chain)),
            spans=(
                TreeSpan(0, len(chain), 0, 0, 0, torch.ones(len(chain), len(chain)).tril_().bool()),
            ),
        )
        hidden = self._target.forward_tree(batch, self._arena, queries.__setitem__)
        scores = torch.stack(
            [
                queries[layer][head, first:].float()
                @ self._arena.cross_k[layer, 0, head, :, :positions].float()
                for layer, head in self._heads
            ]
        )
        weights = torch.softmax(scores * self._target.head_width**-0.5, -1)
        deviation, mean = torch.std_mean(weights, -2, keepdim=True, unbiased=False)
        weights = (weights - mean) / deviation.clamp_min(1e-6)
        smooth = _median_filter(weights).mean(0)
        starts = monotone_starts(-smooth.numpy().astype(np.float64))
        return Alignment(np.append(starts, positions), hidden[first:])


def _median_filter(weights: Tensor) -> Tensor:
    """(..., T) → the same shape: the median of MEDIAN_WIDTH neighbours, edges reflected."""
    half = MEDIAN_WIDTH // 2
    if weights.shape[-1] <= half:
        return weights
    padded = torch.nn.functional.pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, MEDIAN_WIDTH, 1).median(-1).values


def monotone_starts(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """Dynamic time warping: cost (n, T) → (n,) column at which each row's stretch begins.

    The cheapest path from the first cell to the last by steps right, down, or diagonal. A run to
    the right along row i from column s costs a difference of prefix sums, so each row is one
    running minimum instead of a loop over its cells.
    """
    rows, columns = cost.shape
    places = np.arange(columns)
    entered = np.zeros((rows, columns), np.int64)  # column where the best path enters the row
    diagonal = np.zeros((rows, columns), bool)  # whether it entered from the column before
    total = np.cumsum(cost[0])
    for row in range(1, rows):
        sums = np.cumsum(cost[row])
        before = np.append(np.inf, total[:-1])
        diagonal[row] = before <= total
        gain = np.minimum(before, total) - (sums - cost[row])  # entering here, sums counted from 0
        best = np.minimum.accumulate(gain)
        entered[row] = np.maximum.accumulate(np.where(gain == best, places, 0))
        total = best + sums
    starts = np.zeros(rows, np.int64)
    column = columns - 1
    for row in range(rows - 1, 0, -1):
        starts[row] = entered[row, column]
        column = starts[row] - int(diagonal[row, starts[row]])
    return starts
