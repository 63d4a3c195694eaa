"""History: drafts from what is known already, an earlier hypothesis and the committed text itself.

No weights. Two sources, merged into one tree:
- the hint, an earlier hypothesis of the same audio (a streaming re-decode, a temperature retry,
  the overlap of two windows), followed from where the committed text stands in it;
- n-gram look-up over the committed text (Saxena 2023, prompt lookup decoding): what followed the
  last time the same tokens were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

MAX_NGRAM = 4

# Rough chances that the next token is right; the budget corrects them by what it sees.
HINT_CHANCE = 0.9
HINT_CHANCE_UNSURE = 0.5  # the last committed token was not the hint's
NGRAM_CHANCE = {1: 0.05, 2: 0.3, 3: 0.6, 4: 0.75}
_MAX_MATCHES = 2  # different continuations of one n-gram that become siblings


@dataclass(slots=True)
class HistoryState:
    """tokens: the prompt's last token and all committed ones. index: n-gram → where it ended."""

    tokens: list[int]
    hint: tuple[int, ...]
    cursor: int = 0  # the hint's index that should come next
    in_step: bool = True  # the last committed token was the hint's
    index: dict[tuple[int, ...], list[int]] = field(default_factory=dict)


class HistoryDrafter:
    """See the module. Proposes nothing where history says nothing."""

    name = "history"

    def open(
        self, encoded: Encoded, prompt: Sequence[int], hint: Sequence[int] | None
    ) -> HistoryState:
        return HistoryState(tokens=[prompt[-1]], hint=tuple(hint or ()))

    def propose(self, state: HistoryState, price: Price) -> DraftTree:
        if price.safe_mode:
            return DraftTree.root_only(state.tokens[-1])
        depth = price.nodes - 1
        paths: list[tuple[Sequence[int], Sequence[float]]] = []
        if state.cursor < len(state.hint):
            path = state.hint[state.cursor : state.cursor + depth]
            first = HINT_CHANCE if state.in_step else HINT_CHANCE_UNSURE
            paths.append((path, [first] + [HINT_CHANCE] * (len(path) - 1)))
        paths += self._repeats(state, depth)
        return _affordable(state.tokens[-1], paths, price)

    def advance(self, state: HistoryState, tokens: Sequence[int]) -> None:
        for token in tokens:
            state.tokens.append(token)
            end = len(state.tokens)
            for n in range(1, min(MAX_NGRAM, end) + 1):
                state.index.setdefault(tuple(state.tokens[end - n :]), []).append(end)
            self._follow_hint(state, token)

    def _follow_hint(self, state: HistoryState, token: int) -> None:
        """Move the cursor past `token`; after a departure, to the nearest place that fits best."""
        hint, cursor = state.hint, state.cursor
        state.in_step = cursor < len(hint) and hint[cursor] == token
        state.cursor = cursor + 1
        if state.in_step or not hint:
            return
        for n in range(min(MAX_NGRAM, len(state.tokens)), 1, -1):
            tail = tuple(state.tokens[-n:])
            ends = [i + n for i in range(len(hint) - n + 1) if hint[i : i + n] == tail]
            if ends:
                state.cursor = min(ends, key=lambda end: abs(end - state.cursor))
                state.in_step = True
                return

    def _repeats(
        self, state: HistoryState, depth: int
    ) -> list[tuple[Sequence[int], Sequence[float]]]:
        """Continuations of the longest tail of the text that was written before, newest first."""
        tokens = state.tokens
        for n in range(min(MAX_NGRAM, len(tokens)), 0, -1):
            earlier = state.index.get(tuple(tokens[-n:]), [])[:-1]
            if earlier:
                paths = [tokens[end : end + depth] for end in reversed(earlier[-_MAX_MATCHES:])]
                chance = NGRAM_CHANCE[n]
                return [
                    (path, [chance] + [NGRAM_CHANCE[MAX_NGRAM]] * (len(path) - 1)) for path in paths
                ]
        return []


def _affordable(
    root: int, paths: list[tuple[Sequence[int], Sequence[float]]], price: Price
) -> DraftTree:
    """The likeliest nodes of the merged paths that the price allows: a child is never likelier
    than its parent, so the best nodes form a tree."""
    tree = DraftTree.from_paths(root, paths)
    ranked = sorted(range(1, len(tree.tokens)), key=lambda node: -tree.acceptance[node])
    kept = sorted(
        node for node in ranked[: price.nodes - 1] if tree.acceptance[node] >= price.threshold
    )
    return tree.only([0, *kept])
