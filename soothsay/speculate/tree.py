"""The draft tree: a prefix tree of foretold tokens, parents before children. Pure data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class InvalidTreeError(ValueError):
    """A tree that breaks the rules below: the drafter is at fault."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of n nodes; node 0 is the root, the last committed token.

    tokens:     n token ids.
    parents:    n indices, parents[0] == -1, parents[i] < i.
    log_q:      n draft log-probabilities of the token given its path (0.0 for the root).
    acceptance: n estimated probabilities that the node is committed (1.0 for the root); a child's
        is never above its parent's.
    draft_probs: only for sampled trees (children drawn from q without replacement): (n, V), row i
        is the q from which the children of node i were drawn, in the order they appear. Whether
        a node exists may depend on nodes before it, never on its own token or on later ones.
        None means deterministic: children chosen by rank, whatever their log_q.
    masks: nodes behind which look-ahead masks stand; no part of what is drafted.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    log_q: tuple[float, ...]
    acceptance: tuple[float, ...]
    draft_probs: Tensor | None = None
    masks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not n or not len(self.parents) == len(self.log_q) == len(self.acceptance) == n:
            raise InvalidTreeError("tokens, parents, log_q and acceptance must be equally long")

    @classmethod
    def root_only(cls, token: int) -> DraftTree:
        """Safe mode: nothing is foretold."""
        return cls((token,), (-1,), (0.0,), (1.0,))

    @classmethod
    def from_paths(
        cls, root: int, paths: Sequence[tuple[Sequence[int], Sequence[float]]]
    ) -> DraftTree:
        """Merge paths below the root, shared prefixes once.

        paths: (tokens, conditional acceptance of each) pairs. Where two paths share a node, the
        higher acceptance stands. Nodes are in order of first appearance.
        """
        tokens, parents, chances = [root], [-1], [1.0]
        index: dict[tuple[int, int], int] = {}
        for path, probabilities in paths:
            node = 0
            for token, probability in zip(path, probabilities, strict=True):
                child = index.setdefault((node, token), len(tokens))
                if child == len(tokens):
                    tokens.append(token)
                    parents.append(node)
                    chances.append(probability)
                else:
                    chances[child] = max(chances[child], probability)
                node = child
        acceptance = list(chances)
        for node in range(1, len(tokens)):
            acceptance[node] *= acceptance[parents[node]]
        return cls(
            tuple(tokens),
            tuple(parents),
            tuple(math.log(c) if c > 0 else -math.inf for c in chances),
            tuple(acceptance),
        )

    @property
    def depths(self) -> list[int]:
        """n depths; the root's is 0."""
        depths = [0] * len(self.parents)
        for node in range(1, len(self.parents)):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    def children(self) -> list[list[int]]:
        """For each node its children, in order."""
        children: list[list[int]] = [[] for _ in self.tokens]
        for node in range(1, len(self.tokens)):
            children[self.parents[node]].append(node)
        return children

    def along(self, text: Sequence[int]) -> list[int]:
        """The nodes of the path that agrees with what follows the root."""
        found: list[int] = []
        at = 0
        children = self.children()
        for token in text:
            following = [child for child in children[at] if self.tokens[child] == token]
            if not following:
                break
            at = following[0]
            found.append(at)
        return found

    def path(self, node: int) -> list[int]:
        """Nodes from below the root down to `node`; empty for the root."""
        path = []
        while node > 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def likely_ends(self, count: int) -> tuple[int, ...]:
        """The `count` nodes likeliest to be the last accepted, ascending: a node is if it is
        accepted and none of its children."""
        ends = list(self.acceptance)
        for node in range(1, len(ends)):
            ends[self.parents[node]] -= self.acceptance[node]
        return tuple(sorted(sorted(range(len(ends)), key=lambda node: -ends[node])[:count]))

    def with_masks(self, count: int) -> DraftTree:
        """This tree and, as further nodes, `count` masks in a row behind each node of `masks`."""
        parents = list(self.parents)
        for node in self.masks:
            above = node
            for _ in range(count):
                parents.append(above)
                above = len(parents) - 1
        extra = len(parents) - len(self.parents)
        return DraftTree(
            self.tokens + (0,) * extra,
            tuple(parents),
            self.log_q + (0.0,) * extra,
            self.acceptance + (0.0,) * extra,
        )

    def ancestor_mask(self) -> Tensor:
        """(n, n) bool: row i is True at i and at its ancestors, what node i may attend to."""
        n = len(self.parents)
        bits = bytearray(n * n)  # a torch operation for every node would cost a hundred times more
        for node, parent in enumerate(self.parents):
            if node:
                bits[node * n : node * n + n] = bits[parent * n : parent * n + n]
            bits[node * n + node] = 1
        return torch.frombuffer(bits, dtype=torch.bool).view(n, n)

    def validate(self, vocab_size: int) -> None:
        """InvalidTreeError unless parents come before children, tokens are in 0..V-1, and every q
        that children were drawn from is a distribution over the vocabulary."""
        if self.parents[0] != -1:
            raise InvalidTreeError("node 0 must be the root, with parent -1")
        if not all(0 <= parent < node for node, parent in enumerate(self.parents) if node):
            raise InvalidTreeError("every node but the root needs a parent that comes before it")
        if not all(0 <= token < vocab_size for token in self.tokens):
            raise InvalidTreeError(f"tokens must lie in 0..{vocab_size - 1}")
        if self.draft_probs is not None:
            if self.draft_probs.shape != (len(self.tokens), vocab_size):
                raise InvalidTreeError("draft_probs needs one row of the vocabulary a node")
            drawn_from = self.draft_probs[sorted(set(self.parents[1:]))]
            # Log-probabilities or scores in q's place would silently change what is written.
            if not bool(((drawn_from.sum(-1) - 1.0).abs() < 1e-3).all()):
                raise InvalidTreeError("draft_probs must sum to 1 at every node that has children")

    def fitted(self, root: int, vocab_size: int, max_nodes: int, max_depth: int) -> DraftTree:
        """This tree made safe to verify: valid, without duplicate children, within the limits.

        Cuts depend on a node's place alone, never on what was drawn, so that sampled trees stay
        unbiased. InvalidTreeError for a tree that no cut can mend.
        """
        self.validate(vocab_size)
        if self.tokens[0] != root:
            raise InvalidTreeError(f"the root is {self.tokens[0]}, not the committed token {root}")
        tree = self.merged()
        depths = tree.depths
        kept = [node for node in range(len(tree.tokens)) if depths[node] <= max(max_depth, 0)]
        return tree if len(kept) == len(depths) <= max_nodes else tree.only(kept[:max_nodes])

    def merged(self) -> DraftTree:
        """Duplicate children of one parent joined: the probabilities of equal paths are added.

        A sampled tree with duplicates is refused: its children were not drawn without replacement.
        """
        index: dict[tuple[int, int], int] = {}
        renamed = [0]
        for node in range(1, len(self.tokens)):
            key = (renamed[self.parents[node]], self.tokens[node])
            renamed.append(index.setdefault(key, len(index) + 1))
        if len(index) + 1 == len(self.tokens):
            return self
        if self.draft_probs is not None:
            raise InvalidTreeError("a sampled tree holds the same child twice")
        tokens, parents, acceptance = [self.tokens[0]], [-1], [self.acceptance[0]]
        path_log_q = [self.log_q[0]]  # of each old node's whole path: those are what may be added
        joined = [self.log_q[0]]
        for node in range(1, len(self.tokens)):
            parent, new = self.parents[node], renamed[node]
            path_log_q.append(path_log_q[parent] + self.log_q[node])
            if new == len(tokens):
                tokens.append(self.tokens[node])
                parents.append(renamed[parent])
                joined.append(path_log_q[node])
                acceptance.append(self.acceptance[node])
            else:
                joined[new] = _log_add(joined[new], path_log_q[node])
                room = acceptance[parents[new]]
                acceptance[new] = min(acceptance[new] + self.acceptance[node], room)
        log_q = joined[:1]
        for node in range(1, len(tokens)):
            above = joined[parents[node]]
            log_q.append(joined[node] - above if above > -math.inf else -math.inf)
        return DraftTree(tuple(tokens), tuple(parents), tuple(log_q), tuple(acceptance))

    def only(self, kept: list[int]) -> DraftTree:
        """The tree of the kept nodes: ascending, the root first, each with its parent."""
        renamed = {node: new for new, node in enumerate(kept)}
        return DraftTree(
            tuple(self.tokens[node] for node in kept),
            (-1, *(renamed[self.parents[node]] for node in kept[1:])),
            tuple(self.log_q[node] for node in kept),
            tuple(self.acceptance[node] for node in kept),
            None if self.draft_probs is None else self.draft_probs[kept],
        )


def _log_add(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
