"""The draft tree: a prefix tree of foretold tokens, parents before children. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of n nodes; node 0 is the root, the last committed token.

    tokens:     n token ids.
    parents:    n indices, parents[0] == -1, parents[i] < i.
    log_q:      n draft log-probabilities of the token given its path (0.0 for the root).
    acceptance: n estimated probabilities that the node is committed (1.0 for the root).
    draft_probs: only for sampled trees (children drawn from q without replacement): (n, V), row i
        is the q from which the children of node i were drawn, in the order they appear.
        None means deterministic: children chosen by rank, whatever their log_q.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    log_q: tuple[float, ...]
    acceptance: tuple[float, ...]
    draft_probs: Tensor | None = None
