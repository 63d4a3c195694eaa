"""History: drafts from what is known already, an earlier hypothesis and the committed text itself.

No weights. Two sources, merged into one tree:
- the hint, an earlier hypothesis of the same audio (a streaming re-decode, a temperature retry,
  the overlap of two windows), followed from where the committed text stands in it;
- n-gram look-up over the committed text (Saxena 2023, prompt lookup decoding): what followed
  before, when the same tokens were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

MAX_NGRAM = 4
MAX_SIBLINGS = 2  # different continuations of one n-gram that are drafted

# Chances that the next token is right. The hint's are rough: they depend on where it came from.
HINT_CHANCE = 0.9
HINT_CHANCE_UNSURE = 0.5  # the last committed token was not the hint's
# A token that followed an n-gram k times out of m does so again with (k - DISCOUNT) / m: absolute
# discounting (Ney, Essen and Kneser 1994). Counted over transcripts of read, long and telephone
# speech in several languages, in windows of about 30 s: once seen 0.2, twice of two 0.6, three of
# three 0.8, once of two 0.1. How long the n-gram is says little beside that. On other transcripts
# the chances held: where 0.2 was foretold 0.22 were right, of 0.6 0.58, of 0.73 0.72.
DISCOUNT = 0.8
REPEAT_CHANCE = 0.4  # of each further token, the one before it being right

Path = tuple[Sequence[int], Sequence[float]]  # tokens, and the chance of each given those before


@dataclass(slots=True)
class HistoryState:
    """tokens: the prompt's last token and all committed ones. followers: for every n-gram of them,
    each token that followed it, how often, and its index in `tokens` the last time."""

    tokens: list[int]
    hint: tuple[int, ...]
    cursor: int = 0  # the hint's index that should come next
    in_step: bool = True  # the last committed token was the hint's
    followers: dict[tuple[int, ...], dict[int, tuple[int, int]]] = field(default_factory=dict)


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
        paths = self._along_hint(state, price.nodes - 1)
        paths += self._repeats(state, price.nodes - 1, paths)
        return _affordable(state.tokens[-1], paths, price)

    def advance(self, state: HistoryState, tokens: Sequence[int]) -> None:
        for token in tokens:
            here = len(state.tokens)
            for n in range(1, min(MAX_NGRAM, here) + 1):
                followers = state.followers.setdefault(tuple(state.tokens[-n:]), {})
                count, _ = followers.get(token, (0, here))
                followers[token] = count + 1, here
            state.tokens.append(token)
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

    def _along_hint(self, state: HistoryState, depth: int) -> list[Path]:
        path = state.hint[state.cursor : state.cursor + depth]
        if not path:
            return []
        first = HINT_CHANCE if state.in_step else HINT_CHANCE_UNSURE
        return [(path, [first] + [HINT_CHANCE] * (len(path) - 1))]

    def _repeats(self, state: HistoryState, depth: int, hinted: list[Path]) -> list[Path]:
        """What followed the longest tail of the text that was written before, the most frequent
        first, then the newest. Siblings of the hint share the chance that it leaves."""
        left = 1.0 - sum(chances[0] for _, chances in hinted)
        foretold = {tokens[0] for tokens, _ in hinted}  # the hint knows better how those go on
        for n in range(min(MAX_NGRAM, len(state.tokens)), 0, -1):
            followers = state.followers.get(tuple(state.tokens[-n:]))
            if followers:
                total = sum(count for count, _ in followers.values())
                ranked = sorted(followers.items(), key=lambda item: item[1], reverse=True)
                paths: list[Path] = []
                for token, (count, place) in ranked[:MAX_SIBLINGS]:
                    if token not in foretold:
                        path = state.tokens[place : place + depth]
                        chance = left * (count - DISCOUNT) / total
                        paths.append((path, [chance] + [REPEAT_CHANCE] * (len(path) - 1)))
                return paths
        return []


def _affordable(root: int, paths: list[Path], price: Price) -> DraftTree:
    """The likeliest nodes of the merged paths that the price allows: a child is never likelier
    than its parent, so the best nodes form a tree."""
    tree = DraftTree.from_paths(root, paths)
    ranked = sorted(range(1, len(tree.tokens)), key=lambda node: -tree.acceptance[node])
    kept = sorted(
        node for node in ranked[: price.nodes - 1] if tree.acceptance[node] >= price.threshold
    )
    return tree.only([0, *kept])
