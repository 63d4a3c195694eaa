"""Look-ahead and lattice as one source: what was decided and what was heard, weighed together.

The masks know the target's context but not the token before; the lattice knows the audio and the
path, but not what the target makes of it. Their chances are multiplied as experts' (Hinton, 2002),
each to a power that was fitted on held-out audio for each distance from the root, where what a
source does not name has a small chance there. Kept in step with outcomes by a power on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from soothsay.drafters.grow import Option, grow
from soothsay.drafters.lattice import LatticeDrafter, LatticePlace, LatticeState
from soothsay.drafters.lookahead import LookaheadDrafter, LookaheadState, Place
from soothsay.drafters.masks import FuseSettings, LookaheadMasks
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

LEAST = 2e-3  # chance below which a source's word does not count
WINDOW = 24.0  # foretold nodes after which outcomes weigh as much as what was fitted


@dataclass(slots=True)
class FusedState:
    """foretold, kept: nodes that were expected to be accepted and that were, fading; offered: the
    tree of the step under way."""

    look: LookaheadState
    lattice: LatticeState
    foretold: float = 0.0
    kept: float = 0.0
    offered: DraftTree | None = None

    @property
    def power(self) -> float:
        """On every chance: above 1 where fewer nodes are accepted than was foretold."""
        return min(max((WINDOW + self.foretold) / (WINDOW + self.kept), 0.5), 2.0)


@dataclass(frozen=True, slots=True)
class FusedPlace:
    look: Place
    lattice: LatticePlace


@dataclass(slots=True)
class FusedDrafter:
    """See the module. Holds two drafters, no sequence."""

    look: LookaheadDrafter
    lattice: LatticeDrafter
    settings: FuseSettings = field(default_factory=FuseSettings)
    name: str = "lookahead*lattice"

    @property
    def masks(self) -> LookaheadMasks | None:
        return self.look.masks

    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> FusedState:
        lattice = self.lattice.open(encoded, prompt, hint)
        look = self.look.open(encoded, prompt, hint)
        if lattice.prefix is not None and not lattice.timed:  # timestamps are never heard
            self.look.restrict(look, lattice.prefix.lattice.tokens)
        return FusedState(look, lattice)

    def advance(self, state: FusedState, tokens: Sequence[int]) -> None:
        if state.offered is not None:
            tree, fading = state.offered, 0.97
            state.foretold = fading * state.foretold + sum(tree.acceptance[1:])
            state.kept = fading * state.kept + len(tree.along(tokens))
            state.offered = None
        self.look.advance(state.look, tokens)
        self.lattice.advance(state.lattice, tokens)

    def foresee(self, state: FusedState, hidden: Tensor, first: int | None = None) -> None:
        self.look.foresee(state.look, hidden, first)

    def propose(self, state: FusedState, price: Price) -> DraftTree:
        state.offered = grow(self, state, state.look.root, price)
        return state.offered

    def start(self, state: FusedState) -> FusedPlace:
        return FusedPlace(self.look.start(state.look), self.lattice.start(state.lattice))

    def follow(self, state: FusedState, place: FusedPlace, token: int) -> FusedPlace:
        return FusedPlace(
            self.look.follow(state.look, place.look, token),
            self.lattice.follow(state.lattice, place.lattice, token),
        )

    def options(self, state: FusedState, place: FusedPlace, least: float) -> list[Option]:
        power = state.power
        depth, ahead = place.look.depth, state.look.ahead
        if depth < len(ahead):
            heard, foretold = self.evidence(state, place)
            found = self.fused(foretold, heard, ahead[depth].number)
        else:
            found = self.lattice.options(state.lattice, place.lattice, least ** (1.0 / power))
        return [(token, chance**power) for token, chance in found if chance**power >= least]

    def evidence(self, state: FusedState, place: FusedPlace) -> tuple[list[Option], list[Option]]:
        """What was heard and what was foretold of a place."""
        return (
            self.lattice.continuations(state.lattice, place.lattice, LEAST),
            self.look.options(state.look, place.look, LEAST),
        )

    def fused(self, foretold: list[Option], heard: list[Option], number: int) -> list[Option]:
        """Both sources' chances → one for each token that either names. number: of the mask."""
        look, lattice, look_floor, lattice_floor, rest = self.settings.at(number)
        weights = {token: look * math.log(p) + lattice * lattice_floor for token, p in foretold}
        for token, q in heard:
            known = weights.get(token)
            alone = look * look_floor if known is None else known - lattice * lattice_floor
            weights[token] = alone + lattice * math.log(max(q, 1e-9))
        exps = {token: math.exp(weight) for token, weight in weights.items()}
        total = math.exp(rest) + sum(exps.values())
        return [(token, weight / total) for token, weight in exps.items()]
