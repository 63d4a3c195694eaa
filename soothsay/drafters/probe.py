"""Drafters that measure and try the engine rather than serve: an oracle, chance, and adversaries.

The output must not change under any of them; the oracle's speed is what the engine makes of a
drafter that good.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import OptionError, Price


@dataclass(slots=True)
class ProbeState:
    """tokens: the prompt's last token and all committed ones; truth: the request's hint, then
    end-of-text; chance: this sequence's own, so that sampled trees are drawn anew for each."""

    tokens: list[int]
    truth: tuple[int, ...]
    chance: random.Random
    foretold: list[tuple[int, int]] = field(default_factory=list)  # the oracle's, see there


class _Probe:
    """What the probes share: they remember the committed text and nothing else."""

    def __init__(self, vocab_size: int, end_token: int, seed: int) -> None:
        self._vocab_size, self._end_token = vocab_size, end_token
        self._chance = random.Random(seed)

    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> ProbeState:
        chance = random.Random(self._chance.getrandbits(60))
        return ProbeState([prompt[-1]], (*(hint or ()), self._end_token), chance)

    def advance(self, state: ProbeState, tokens: Sequence[int]) -> None:
        state.tokens += tokens


class ListeningDrafter:
    """Foretells nothing, but keeps what the encoder made of each segment, under the first token of
    its hint: for those who need what the target heard and wrote."""

    name = "listening"

    def __init__(self) -> None:
        self.heard: dict[int, Encoded] = {}

    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> list[int]:
        if hint:
            self.heard[hint[0]] = replace(encoded, hidden=encoded.hidden.clone())
        return [prompt[-1]]

    def propose(self, state: list[int], price: Price) -> DraftTree:
        return DraftTree.root_only(state[0])

    def advance(self, state: list[int], tokens: Sequence[int]) -> None:
        state[0] = tokens[-1]


class OracleDrafter(_Probe):
    """A chain along the truth (the request's hint, then end-of-text), each token right with
    probability `accuracy`, independently; a wrong one is a random token. Without a hint it only
    foretells the end. price.nodes sets its length.

    sibling_accuracy: with it, every token of the chain has a sibling, a leaf, which is right with
    that probability where the chain is wrong; the tree is then half as deep. None is a chain.

    What stands at a position is decided once, when the sequence opens, from the seed and the order
    of opening alone: trees of any size meet the same mistakes and can be compared.
    """

    def __init__(
        self,
        accuracy: float,
        vocab_size: int,
        end_token: int,
        seed: int = 0,
        sibling_accuracy: float | None = None,
    ) -> None:
        super().__init__(vocab_size, end_token, seed)
        self.name = f"oracle:{accuracy:g}"
        self._accuracy, self._sibling_accuracy = accuracy, sibling_accuracy

    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> ProbeState:
        state = super().open(encoded, prompt, hint)
        for token in state.truth:  # (first choice, sibling) for each position
            first = self._guess(token, self._accuracy, state.chance)
            rescue = (self._sibling_accuracy or 0.0) if first != token else 0.0
            state.foretold.append((first, self._guess(token, rescue, state.chance)))
        return state

    def propose(self, state: ProbeState, price: Price) -> DraftTree:
        written, root = len(state.tokens) - 1, state.tokens[-1]
        ahead = state.foretold[written : written + price.nodes - 1]
        chain, chances = [first for first, _ in ahead], [self._accuracy] * len(ahead)
        if self._sibling_accuracy is None:
            return DraftTree.from_paths(root, [(chain, chances)])
        below = (1.0 - self._accuracy) * self._sibling_accuracy
        paths: list[tuple[Sequence[int], Sequence[float]]] = []
        for depth, (_, sibling) in enumerate(ahead[: price.nodes // 2]):
            paths.append((chain[: depth + 1], chances[: depth + 1]))
            if sibling != chain[depth]:
                paths.append(([*chain[:depth], sibling], [*chances[:depth], below]))
        tree = DraftTree.from_paths(root, paths)
        return tree.only(list(range(min(price.nodes, len(tree.tokens)))))

    def _guess(self, token: int, accuracy: float, chance: random.Random) -> int:
        return token if chance.random() < accuracy else chance.randrange(self._vocab_size)


class RandomDrafter(_Probe):
    """Trees of random shape with random tokens. `sampled` draws children from a random q without
    replacement and says so (for small vocabularies: q is a row of V per node)."""

    name = "random"

    def __init__(
        self, vocab_size: int, end_token: int, seed: int = 0, sampled: bool = False
    ) -> None:
        super().__init__(vocab_size, end_token, seed)
        self._sampled = sampled

    def propose(self, state: ProbeState, price: Price) -> DraftTree:
        chance = state.chance
        size = chance.randint(1, price.nodes)
        parents = [-1]
        room = [self._vocab_size]  # children a node may still have, all different
        for node in range(1, size):
            parents.append(chance.choice([above for above in range(node) if room[above]]))
            room[parents[-1]] -= 1
            room.append(self._vocab_size)
        if self._sampled:
            return self._drawn(state.tokens[-1], parents, chance)
        tokens = [state.tokens[-1], *(chance.randrange(self._vocab_size) for _ in parents[1:])]
        return _evenly(tokens, parents)

    def _drawn(self, root: int, parents: list[int], chance: random.Random) -> DraftTree:
        generator = torch.Generator().manual_seed(chance.getrandbits(60))
        q = torch.softmax(3 * torch.randn(len(parents), self._vocab_size, generator=generator), -1)
        tokens = [root] * len(parents)
        for node in range(len(parents)):
            children = [child for child, parent in enumerate(parents) if parent == node]
            if children:
                drawn = torch.multinomial(q[node], len(children), generator=generator)
                for child, token in zip(children, drawn.tolist(), strict=True):
                    tokens[child] = token
        tree = _evenly(tokens, parents)
        return DraftTree(tree.tokens, tree.parents, tree.log_q, tree.acceptance, q)


class AdversarialDrafter(_Probe):
    """Does what a drafter must not do; the engine has to cope.

    wrong:      a chain whose first token is never the hint's
    deep:       one chain of all nodes, the hint and then noise behind its end-of-text
    wide:       all nodes below the root
    duplicates: all nodes below the root, and all of them the same token
    oversize:   a chain four times as long as the price allows
    after-end:  end-of-text first, noise below it
    invalid:    a token outside the vocabulary
    crash:      an exception
    """

    KINDS = ("wrong", "deep", "wide", "duplicates", "oversize", "after-end", "invalid", "crash")

    def __init__(self, kind: str, vocab_size: int, end_token: int, seed: int = 0) -> None:
        super().__init__(vocab_size, end_token, seed)
        if kind not in self.KINDS:
            raise OptionError(f"unknown adversary {kind!r}: choose {', '.join(self.KINDS)}")
        self.name = f"adversarial:{kind}"
        self._kind = kind

    def propose(self, state: ProbeState, price: Price) -> DraftTree:
        root, written, n = state.tokens[-1], len(state.tokens) - 1, price.nodes
        truth = list(state.truth[written:])
        chance = state.chance
        noise = [chance.randrange(self._vocab_size) for _ in range(4 * n)]

        def chain(tokens: Sequence[int]) -> DraftTree:
            return _evenly([root, *tokens], range(-1, len(tokens)))

        match self._kind:
            case "wrong":
                avoid = truth[0] if truth else 0
                return chain([(avoid + 1) % self._vocab_size, *noise[: n - 2]][: n - 1])
            case "deep":
                return chain((truth + noise)[: n - 1])
            case "wide":
                return _evenly([root, *noise[: n - 1]], [-1] + [0] * (n - 1))
            case "duplicates":
                first = (truth or noise)[0]
                return _evenly([root] + [first] * (n - 1), [-1] + [0] * (n - 1))
            case "oversize":
                return chain((truth + noise)[: 4 * n])
            case "after-end":
                return chain([self._end_token, *noise[: n - 2]][: n - 1])
            case "invalid":
                return chain([self._vocab_size + 7])
            case _:
                raise RuntimeError("this drafter crashes on purpose")


def _evenly(tokens: Sequence[int], parents: Sequence[int]) -> DraftTree:
    """A tree whose every child is thought half as likely as its parent."""
    depths = [0] * len(tokens)
    for node in range(1, len(tokens)):
        depths[node] = depths[parents[node]] + 1
    acceptance = tuple(0.5**depth for depth in depths)
    log_q = tuple(math.log(0.5) if depth else 0.0 for depth in depths)
    return DraftTree(tuple(tokens), tuple(parents), log_q, acceptance)
