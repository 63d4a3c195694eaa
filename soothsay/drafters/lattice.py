"""The lattice drafter: what the encoder's states say comes next, as a tree.

Once a segment the head reads the encoder's states; vocabulary logits are computed only at frames
where its gate hears a token. From then on a step costs some NumPy products a node: CTC prefix
scores (speculate/prefix.py) give the chance of every continuation of whatever was committed, and
the tree grows best-first under the price. Homophones and variants become siblings, because the
posterior is split between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soothsay.drafters.grow import Option, grow
from soothsay.drafters.head import LatticeHead, LatticeSettings
from soothsay.speculate.prefix import Lattice, Prefix
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

# Chances of timestamp tokens: rough guesses, since heads are trained without timestamps so far.
OPENS_AT_ZERO = 0.8  # the first timestamp is 0.00
REOPENS = 0.85  # a segment opens where the last one closed
CLOSES = 0.7  # a segment closes behind the end of a sentence
CLOSES_THERE = 0.25  # ... exactly where the next token is heard


@dataclass(frozen=True, slots=True)
class Signs:
    """Token ids that mean more than text. timestamps run upwards from `first_timestamp`;
    translate: the prompt's task sign; stops: tokens that end a sentence."""

    end: int
    first_timestamp: int
    no_timestamps: int
    translate: int
    stops: frozenset[int] = frozenset()


@dataclass(slots=True)
class LatticeState:
    """root: the last committed token, previous: the one before. prefix: all committed text, None
    where the lattice has nothing to say. positions: (F,) encoder position of each frame.
    after: (C, rank) the bigram's side of each candidate; followers: its factors (C,) behind a
    token, made when first needed."""

    root: int
    prefix: Prefix | None
    positions: NDArray[np.int64]
    timed: bool
    after: NDArray[np.float32]
    previous: int | None = None
    followers: dict[int, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LatticePlace:
    """A node: its token, the one before it, and all text down to it (timestamps left out)."""

    prefix: Prefix | None
    token: int
    previous: int | None


class LatticeDrafter:
    """See the module. Holds the head's weights and the target's output embedding, no sequence."""

    name = "lattice"

    def __init__(
        self,
        head: LatticeHead,
        vocabulary: Tensor,
        embedding: Tensor,
        signs: Signs,
        settings: LatticeSettings | None = None,
    ) -> None:
        """vocabulary: (C,) tokens the head can foretell; embedding: (V, width) of the target."""
        self._head, self._vocabulary = head, vocabulary
        known = embedding[vocabulary].float()
        self._classifier = head.classifier(known).T.contiguous()
        # The bigram's two sides, of every token: a step then multiplies a few short rows.
        self._before, self._after = (side.numpy() for side in head.bigram_sides(known))
        self._column = {token: index for index, token in enumerate(vocabulary.tolist())}
        self._signs = signs
        self.settings = settings or LatticeSettings()

    @torch.inference_mode()
    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> LatticeState:
        timed = self._signs.no_timestamps not in prompt
        if self._signs.translate in prompt:  # the lattice knows what was said, not what it means
            return LatticeState(prompt[-1], None, np.zeros(0, np.int64), timed, self._after[:0])
        lattice, positions = self.read(encoded.hidden[:, : encoded.audio_positions[0]])
        after = self._after[[self._column[token] for token in lattice.column]]
        return LatticeState(prompt[-1], lattice.empty(), positions, timed, after)

    def read(self, hidden: Tensor) -> tuple[Lattice, NDArray[np.int64]]:
        """hidden: (1, P, encoder_width) → the segment's lattice, and its frames' positions."""
        settings, stride = self.settings, self._head.sizes.stride
        if hidden.shape[1] < stride:
            hidden = torch.nn.functional.pad(hidden, (0, 0, 0, stride - hidden.shape[1]))
        gate, features = self._head(hidden.float())
        heard = torch.sigmoid(gate[0] * settings.gate_scale + settings.gate_shift)
        frames = torch.nonzero(heard > settings.gate).flatten()
        # In place, because these are millions of numbers.
        chances = (features[0, frames] * settings.sharpen) @ self._classifier
        if len(frames):
            chances.sub_(chances.amax(-1, keepdim=True)).exp_()
            chances.mul_(heard[frames, None] / chances.sum(-1, keepdim=True))
            candidates = torch.nonzero(chances.amax(0) > settings.candidate).flatten()
        else:
            candidates = frames
        lattice = Lattice(
            self._vocabulary[candidates].numpy(),
            chances[:, candidates].double().numpy(),
            1.0 - heard[frames].double().numpy(),
            np.diff(frames.numpy(), prepend=-1) == 1,
            settings.search,
        )
        return lattice, frames.numpy() * stride

    def propose(self, state: LatticeState, price: Price) -> DraftTree:
        return grow(self, state, state.root, price)

    def advance(self, state: LatticeState, tokens: Sequence[int]) -> None:
        for token in tokens:
            state.previous, state.root = state.root, token
            if state.prefix is not None and not self._is_stamp(token):
                state.prefix = state.prefix.extended(token)

    def start(self, state: LatticeState) -> LatticePlace:
        return LatticePlace(state.prefix, state.root, state.previous)

    def follow(self, state: LatticeState, place: LatticePlace, token: int) -> LatticePlace:
        prefix = place.prefix
        if token == self._signs.end:
            prefix = None
        elif prefix is not None and not self._is_stamp(token):
            prefix = prefix.extended(token)
        return LatticePlace(prefix, token, place.token)

    def options(self, state: LatticeState, place: LatticePlace, least: float) -> list[Option]:
        trust = self.settings.trust
        least = max(self.settings.least, least ** (1.0 / trust))
        return [(token, q**trust) for token, q in self.continuations(state, place, least)]

    def continuations(self, state: LatticeState, place: LatticePlace, least: float) -> list[Option]:
        """Tokens and their q, as the lattice has it: trust is not part of it."""
        if place.prefix is None:
            return []
        if state.timed:
            found = self._timed_options(state, place.prefix, place.token, place.previous, least)
        else:
            found, end = self._text_options(state, place.prefix, least)
            found.append((self._signs.end, end))
        if len(found) > self.settings.siblings:
            found = heapq.nlargest(self.settings.siblings, found, key=lambda option: option[1])
        return [(token, min(q, 1.0)) for token, q in found if q >= least]

    def _is_stamp(self, token: int) -> bool:
        return token >= self._signs.first_timestamp

    def _text_options(
        self, state: LatticeState, prefix: Prefix, least: float
    ) -> tuple[list[Option], float]:
        """(token, chance) of the text tokens above `least`, and the chance of the end."""
        chances, end, _ = prefix.scores()
        factors = self._followers(state, prefix)
        if factors is not None:
            weighted = chances * factors
            chances = weighted * (chances.sum() / max(weighted.sum(), 1e-30))
        found = np.flatnonzero(chances >= least)
        return [(int(prefix.lattice.tokens[i]), float(chances[i])) for i in found.tolist()], end

    def _timed_options(
        self,
        state: LatticeState,
        prefix: Prefix,
        token: int,
        previous: int | None,
        least: float,
    ) -> list[Option]:
        """The same with timestamps around segments: <open> text <close><open> text <close>."""
        signs = self._signs
        if previous is None:
            return [(signs.first_timestamp, OPENS_AT_ZERO)]
        text, end = self._text_options(state, prefix, least)
        if not self._is_stamp(token):
            closing = max(end, CLOSES if token in signs.stops else 0.0)
            frame = prefix.next_heard()
            heard = state.positions[-1:] if frame is None else state.positions[frame : frame + 1]
            stamp = signs.first_timestamp + int(heard.sum())  # of nothing, in silence: 0
            return [
                *((c, chance * (1.0 - closing)) for c, chance in text),
                (stamp, closing * CLOSES_THERE),
            ]
        if self._is_stamp(previous) or prefix.last < 0:
            return text
        return [(token, (1.0 - end) * REOPENS), (signs.end, end)]

    def _followers(self, state: LatticeState, prefix: Prefix) -> NDArray[np.float64] | None:
        """How much likelier each candidate is behind the prefix's last token; None if unknown."""
        factors = state.followers.get(prefix.last)
        if factors is None:
            column = self._column.get(prefix.last)
            if column is None:
                return None
            logits = state.after @ self._before[column]
            factors = np.exp(np.clip(logits * self.settings.bigram, -8.0, 8.0))
            state.followers[prefix.last] = factors
        return factors
