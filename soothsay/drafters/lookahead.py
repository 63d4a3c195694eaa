"""The look-ahead drafter: what the target's own decoder foretells at masks behind a step's end.

The masks run in the forward that verifies a tree (engine/, targets/); what they say is heard once
the step's end is known, and is the evidence for the next tree. Each mask foretells one token
further ahead, whatever the others say; a bigram ties each to the token chosen before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soothsay.drafters.grow import Option, grow
from soothsay.drafters.masks import LookaheadMasks
from soothsay.speculate.tree import DraftTree
from soothsay.targets.linear import Linear
from soothsay.targets.target import Encoded
from soothsay.types import Price

NOWHERE = 1 << 30
COMMON = 1000  # byte pairs are numbered by how common they are
CANDIDATES = 24  # tokens kept of each mask


@dataclass(frozen=True, slots=True)
class Foretold:
    """What one mask says. number: which it is, 0 the nearest; tokens: (M,) likeliest first;
    log_probs: (M,), the bigram not counted; after: (M, rank) the bigram's side of each; other: the
    chance of all tokens besides."""

    number: int
    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    after: NDArray[np.float32]
    other: float


@dataclass(slots=True)
class LookaheadState:
    """root: the last committed token; ahead: what the masks behind the last step's end say, the
    first of them of the token behind the root. columns, output: the part of the vocabulary that is
    looked at in this segment, where `likely` is not None: those tokens and the commonest."""

    root: int
    ahead: list[Foretold]
    likely: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    output: Linear | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A node: depth 0 is the root, NOWHERE is behind the end."""

    depth: int
    token: int


class LookaheadDrafter:
    """See the module. Holds weights, no sequence."""

    name = "lookahead"

    def __init__(
        self, masks: LookaheadMasks, vocabulary: Tensor, embedding: Tensor, end: int | None = None
    ) -> None:
        """vocabulary: (C,) tokens the masks can foretell; embedding: (V, width) of the target;
        end: the token behind which nothing comes."""
        self.masks, self._end = masks, end
        self._vocabulary = vocabulary.numpy()
        self._known = embedding[vocabulary]
        before, after = masks.bigram_sides(self._known.float())
        self._before, self._after = before.numpy(), after.numpy()
        self._column = {token: index for index, token in enumerate(vocabulary.tolist())}

    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> LookaheadState:
        return LookaheadState(prompt[-1], [])

    def advance(self, state: LookaheadState, tokens: Sequence[int]) -> None:
        """Without new masks the old ones still stand, nearer by as many tokens."""
        state.root = tokens[-1] if tokens else state.root
        state.ahead = state.ahead[len(tokens) :]

    def restrict(self, state: LookaheadState, tokens: NDArray[np.int64]) -> None:
        """Look at these tokens and at the commonest alone, in this segment: of 17,500 logits a mask
        some 1,000 are left, and drafts lose a fiftieth of their tokens."""
        state.likely = tokens

    @cached_property
    def _output(self) -> Linear:
        """Of the whole vocabulary; packed when it is first looked at."""
        return Linear(self._known, None, torch.float32)

    def _output_of(self, state: LookaheadState) -> Linear:
        """What a segment looks at, gathered when its masks first speak."""
        if state.likely is None:
            return self._output
        if state.output is None:
            wanted = np.append(state.likely, [] if self._end is None else [self._end])
            likely = np.isin(self._vocabulary, wanted) | (self._vocabulary < COMMON)
            state.columns = np.flatnonzero(likely)
            weight = self._known[torch.from_numpy(state.columns)].float()
            state.output = Linear(weight, None, torch.float32, pack=False)
        return state.output

    def foresee(self, state: LookaheadState, hidden: Tensor, first: int | None = None) -> None:
        """hidden: (J, width), the target's final states at masks behind the token before the root,
        of which the first foretells the token behind the root; first: its number, by default such
        that the last is the last of all."""
        state.ahead = self.read(hidden, state, first)

    @torch.inference_mode()
    def read(
        self, hidden: Tensor, state: LookaheadState | None = None, first: int | None = None
    ) -> list[Foretold]:
        """hidden: (J, width) → what each mask says."""
        if first is None:
            first = self.masks.sizes.masks - len(hidden)
        output = self._output if state is None else self._output_of(state)
        logits = output(hidden.float())
        best, columns = logits.topk(min(CANDIDATES, logits.shape[1]), -1)
        best = best - logits.logsumexp(-1, keepdim=True)
        found = []
        rows = zip(best.numpy(), columns.numpy(), strict=True)
        for number, (row, index) in enumerate(rows, start=first):
            if state is not None and state.columns is not None:
                index = state.columns[index]
            other = max(1.0 - float(np.exp(row).sum()), 0.0)
            found.append(Foretold(number, self._vocabulary[index], row, self._after[index], other))
        return found

    def start(self, state: LookaheadState) -> Place:
        return Place(0, state.root)

    def follow(self, state: LookaheadState, place: Place, token: int) -> Place:
        return Place(NOWHERE if token == self._end else place.depth + 1, token)

    def options(self, state: LookaheadState, place: Place, least: float) -> list[Option]:
        if place.depth >= len(state.ahead):
            return []
        foretold = state.ahead[place.depth]
        chances = np.exp(self.scores(foretold, place.token))
        chances /= chances.sum() + foretold.other
        kept = chances >= least
        return list(zip(foretold.tokens[kept].tolist(), chances[kept].tolist(), strict=True))

    def scores(self, foretold: Foretold, before: int) -> NDArray[np.float32]:
        """(M,) log-probabilities with the bigram, up to a constant."""
        column = self._column.get(before)
        if column is None:
            return foretold.log_probs
        bigram = np.clip(foretold.after @ self._before[column], -8.0, 8.0)
        scores: NDArray[np.float32] = foretold.log_probs + bigram
        return scores

    def propose(self, state: LookaheadState, price: Price) -> DraftTree:
        return grow(self, state, state.root, price)
