"""Verification: which drafted path the target keeps, and the one token it adds itself. Pure.

Every rule is a *walk*: a generator that yields the nodes whose target rows it needs next, is sent
those rows, and returns an Acceptance. The caller computes only what is asked for (the output
projection is half of a small decoder's arithmetic) and drives the walks of all sequences in step.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from soothsay.speculate.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Acceptance:
    """path: accepted nodes below the root, top down. token: the target's own next token.

    `token` is None only where the last accepted node is end-of-text: nothing may follow it.
    """

    path: tuple[int, ...]
    token: int | None


GreedyWalk: TypeAlias = Generator[tuple[int, ...], Mapping[int, int], Acceptance]
SampledWalk: TypeAlias = Generator[tuple[int, ...], Mapping[int, Tensor], Acceptance]


class Chooser(Protocol):
    """Where randomness enters: an RNG in the engine, an enumerator of all outcomes in proofs."""

    def draw(self, probs: Tensor) -> int:
        """A token drawn from (V,) probabilities."""
        ...

    def accept(self, probability: float) -> bool:
        """True with that probability."""
        ...


def greedy_walk(tree: DraftTree, end_token: int) -> GreedyWalk:
    """Descend while a child equals the target's choice. Sent rows: node → argmax token."""
    children = _children_by_token(tree)
    node = 0
    path: list[int] = []
    while True:
        choice = (yield (node,))[node]
        child = children[node].get(choice)
        if child is None:
            return Acceptance(tuple(path), choice)
        path.append(child)
        if choice == end_token:
            return Acceptance(tuple(path), None)
        node = child


def draw_walk(tree: DraftTree, end_token: int, chooser: Chooser) -> SampledWalk:
    """Deterministic trees: draw y from the warped target row, descend if y is a child.

    Exact for any tree, however its children were chosen, since every token written is a draw from
    the target. Sent rows: node → (V,) probabilities.
    """
    children = _children_by_token(tree)
    node = 0
    path: list[int] = []
    while True:
        token = chooser.draw((yield (node,))[node])
        child = children[node].get(token)
        if child is None:
            return Acceptance(tuple(path), token)
        path.append(child)
        if token == end_token:
            return Acceptance(tuple(path), None)
        node = child


def rejection_walk(tree: DraftTree, end_token: int, chooser: Chooser) -> SampledWalk:
    """Sampled trees, root to leaf: accept child x with min(1, p(x)/q(x)), in the order drawn.

    On rejection p ← norm[(p − q)₊] and q ← norm(q · 1[≠x]), the distribution the next sibling was
    drawn from; when all are rejected the last residual is drawn from. (Leviathan et al. 2023 for
    one child; Jeon et al. 2024, recursive rejection without replacement, for several.) Exact if
    the tree was drawn as DraftTree.draft_probs says, whatever its shape.
    """
    children = tree.children()
    node = 0
    path: list[int] = []
    while True:
        p = (yield (node,))[node]
        if not children[node]:
            return Acceptance(tuple(path), chooser.draw(p))
        q = _drawn_from(tree, node)
        accepted = None
        for child in children[node]:
            token = tree.tokens[child]
            if chooser.accept(_ratio(p[token], q[token])):
                accepted = child
                break
            p, _ = _residual(p, q, 1.0)
            q = _without(q, token)
        if accepted is None:
            return Acceptance(tuple(path), chooser.draw(p))
        path.append(accepted)
        if tree.tokens[accepted] == end_token:
            return Acceptance(tuple(path), None)
        node = accepted


def traversal_walk(tree: DraftTree, end_token: int, chooser: Chooser) -> SampledWalk:
    """Sampled trees, leaf to root: a whole path is accepted at once, so it is kept longer.

    A node's weight is the chance to accept the path that ends in it,
    w(x) = min(1, w(parent) · p(x)/q(x)); the first leaf is accepted with its weight. On rejection
    it is deleted, and at its parent p ← norm[(w·p − q)₊], q ← norm(q · 1[≠x]),
    w ← S / (S + 1 − w), S being the mass of that residual. (Weng et al. 2025, Traversal
    Verification; on a chain it is Sun et al. 2024, Block Verification.) Exact under the same
    condition as rejection_walk: a node's subtree accepts with the node's weight whatever was
    drawn inside it, so its shape may depend on all that was drawn before.
    """
    children = tree.children()
    for node, token in enumerate(tree.tokens):
        if node and token == end_token:
            children[node] = []  # nothing can follow the end
    p: dict[int, Tensor] = {}  # residual rows of the nodes walked through, and their q
    q: dict[int, Tensor] = {}
    weight = {0: 1.0}
    while True:
        path = _first_path(children)
        above = (0, *path[:-1])  # the parents of the path's nodes
        if path and (needed := tuple(node for node in above if node not in p)):
            p.update((yield needed))
            q.update((node, _drawn_from(tree, node)) for node in needed)
        for parent, node in zip(above, path, strict=False):
            if node not in weight:
                token = tree.tokens[node]
                weight[node] = _ratio(weight[parent] * p[parent][token], q[parent][token])
        leaf = path[-1] if path else 0
        if leaf == 0 or chooser.accept(weight[leaf]):
            break
        parent, token = tree.parents[leaf], tree.tokens[leaf]
        children[parent].pop(0)
        p[parent], mass = _residual(p[parent], q[parent], weight[parent])
        q[parent] = _without(q[parent], token)
        if parent:
            weight[parent] = mass / (mass + 1.0 - weight[parent]) if mass > 0.0 else 0.0
    if leaf and tree.tokens[leaf] == end_token:
        return Acceptance(tuple(path), None)
    if leaf not in p:
        p.update((yield (leaf,)))
    return Acceptance(tuple(path), chooser.draw(p[leaf]))


def _children_by_token(tree: DraftTree) -> list[dict[int, int]]:
    children: list[dict[int, int]] = [{} for _ in tree.tokens]
    for node in range(1, len(tree.tokens)):
        children[tree.parents[node]][tree.tokens[node]] = node
    return children


def _first_path(children: list[list[int]]) -> list[int]:
    """From below the root down first children to a leaf; empty if the root has none left."""
    path: list[int] = []
    node = 0
    while children[node]:
        node = children[node][0]
        path.append(node)
    return path


def _drawn_from(tree: DraftTree, node: int) -> Tensor:
    if tree.draft_probs is None:
        raise ValueError("a deterministic tree has no q: verify it by draw_walk")
    return tree.draft_probs[node]


def _ratio(p: Tensor | float, q: Tensor) -> float:
    """min(1, p/q). A child with q = 0 was never drawn from q; taking it would be free of charge."""
    return min(1.0, float(p / q)) if float(q) > 0.0 else 0.0


def _residual(p: Tensor, q: Tensor, weight: float) -> tuple[Tensor, float]:
    """norm[(w·p − q)₊] and its mass. Where rounding leaves no mass, w·p = q up to it: keep p."""
    rest = (weight * p - q).clamp_(min=0.0)
    mass = float(rest.sum())
    return (rest / mass, mass) if mass > 0.0 else (p, 0.0)


def _without(q: Tensor, token: int) -> Tensor:
    """norm(q · 1[≠token]); all zero once nothing is left to draw."""
    rest = q.clone()
    rest[token] = 0.0
    mass = float(rest.sum())
    return rest / mass if mass > 0.0 else rest
