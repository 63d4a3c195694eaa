"""CTC prefix scores over a window of a lattice: what comes next, after any prefix at all.

Graves et al. (2006) for the forward variables, Watanabe et al. (2017, "Hybrid CTC/Attention") for
the prefix score; made of NumPy products instead of a loop over frames, because a step may spend
some microseconds on each node.

With h a prefix, and the probability of all ways to have written h by frame t, the last of them a
token (r_n) or blank (r_b):
    φ(t)      = r_b(t), plus r_n(t) unless c repeats the last token of h
    ψ(hc)     = Σ_t φ(t - 1) · y_t(c)                    all ways to go on with c
    r_n(t,hc) = (r_n(t - 1,hc) + φ(t - 1)) · y_t(c)
    r_b(t,hc) = (r_b(t - 1,hc) + r_n(t - 1,hc)) · blank_t
A first-order recurrence is a triangular product: with z the prefix sums of log y_t(c),
r_n(t) = Σ_s≤t exp(z_t - z_s) · y_s(c) · φ(s - 1); so is that of r_b.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]

TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Search:
    """How far a prefix looks, and what keeps one alive that the lattice did not foresee. With
    `cut` and the floors at zero, and a window over all frames, it is CTC to the letter.

    window: frames that a prefix looks at.
    cut:    share of a prefix's mass that may lie before its window.
    emit:   least share of a frame's emission that any token gets: a substitution.
    blank:  least probability of blank: the lattice heard a token that the target did not write.
    hold:   least share of a frame's emission that prolongs the token before: one sound may be
            heard over several frames, as variants of what the target wrote.
    absent: share of a prefix that takes a token without hearing it: the target wrote one more.
    """

    window: int = 24
    cut: float = 0.0
    emit: float = 0.0
    blank: float = 0.0
    hold: float = 0.0
    absent: float = 0.0


@dataclass(slots=True)
class Lattice:
    """Posteriors of one segment at the F frames where a token may be heard.

    tokens: (C,) int64 candidates. emit: (F, C) their probabilities; blank: (F,); what is missing
    to one at a frame belongs to tokens outside of `tokens`. joined: (F,) whether the frame follows
    the one before at once; where it does not, silence was left out between them. Behind the last
    frame stand as many frames of certain silence as a window is long: every window is whole.
    """

    tokens: NDArray[np.int64]
    emit: Array
    blank: Array
    joined: NDArray[np.bool_]
    search: Search = Search()
    frames: int = field(init=False)
    column: dict[int, int] = field(init=False)
    heard: Array = field(init=False)  # (F + window,) probability that some token is heard
    _least: Array = field(init=False)  # (F + window,) floor of a token's first frame
    _held: Array = field(init=False)  # (F + window,) floor of its further frames
    _waits: Array = field(init=False)  # (F + 1, window - 1, window - 1), see waiting

    def __post_init__(self) -> None:
        self.frames = len(self.blank)
        silence = np.zeros((self.search.window, len(self.tokens)))
        self.column = {token: index for index, token in enumerate(self.tokens.tolist())}
        self.emit = np.concatenate([self.emit, silence])
        self.blank = np.append(self.blank, np.ones(self.search.window))
        self.joined = np.append(self.joined, np.ones(self.search.window, bool))
        self.heard = 1.0 - self.blank
        self.blank = np.maximum(self.blank, max(self.search.blank, TINY))
        self._least = np.maximum(self.heard * self.search.emit, TINY)
        self._held = np.maximum(self.heard * self.search.hold, self._least)
        self._held[~self.joined] = TINY
        size = self.search.window - 1
        sums = sliding_window_view(np.cumsum(np.log(self.blank)), size)[: self.frames + 1]
        spans = np.exp(np.minimum(sums[:, :, None] - sums[:, None, :], 0.0))
        self._waits = np.tril(spans, -1)

    def empty(self) -> Prefix:
        """The prefix of no token: only blanks so far."""
        r_b = np.append(1.0, np.cumprod(self.blank[: self.search.window - 1]))
        return Prefix(self, -1, 0, np.zeros(len(r_b)), r_b)

    def heard_as(self, token: int, start: int) -> tuple[Array, Array]:
        """(window - 1,) each: probabilities that the frames from `start` on begin the token, and
        that they prolong it."""
        seen = slice(start, start + self.search.window - 1)
        column = self.column.get(token)
        if column is None:
            return self._least[seen], self._held[seen]
        emit = self.emit[seen, column]
        prolonged = np.maximum(emit * self.joined[seen], self._held[seen])
        return np.maximum(emit, self._least[seen]), prolonged

    def waiting(self, start: int) -> Array:
        """(window - 1, window - 1): [t, s] the probability of blanks from after frame s to frame t,
        counted from `start`; 0 where t ≤ s."""
        waits: Array = self._waits[start]
        return waits


@dataclass(slots=True)
class Prefix:
    """A prefix and its forward variables.

    r_n, r_b: (window,) index i stands for "after i frames from `start` on": frame start + i - 1 was
    the last one read. They are scaled, so that only their proportions count.
    """

    lattice: Lattice
    last: int
    start: int
    r_n: Array
    r_b: Array
    children: dict[int, Prefix] = field(default_factory=dict)

    def scores(self) -> tuple[Array, float, float]:
        """q(c | h) of every candidate (C,), of the end, and of all tokens that are no candidates.

        They add up to one: the floors are not part of them.
        """
        lattice = self.lattice
        seen = slice(self.start, self.start + len(self.r_n))
        phi = self.r_n + self.r_b
        psi = phi @ lattice.emit[seen]
        heard = float(phi @ lattice.heard[seen])
        column = lattice.column.get(self.last)
        if column is not None:
            # A repeated token is merged with its first: that share is not a way to go on.
            merged = float((self.r_n * lattice.joined[seen]) @ lattice.emit[seen, column])
            psi[column] -= merged
            heard -= merged
        ends = self.start + len(self.r_n) > lattice.frames
        end = float(phi[-1]) if ends else 0.0  # nothing changes in the silence behind
        total = max(heard + end, TINY)
        return psi / total, end / total, max(heard - float(psi.sum()), 0.0) / total

    def next_heard(self) -> int | None:
        """The frame where the next token is likeliest heard; None behind the last one."""
        phi = self.r_n + self.r_b
        chances = phi * self.lattice.heard[self.start : self.start + len(phi)]
        frame = self.start + int(chances.argmax())
        ends = self.start + len(phi) > self.lattice.frames and phi[-1] > chances.max()
        return frame if frame < self.lattice.frames and not ends else None

    def extended(self, token: int) -> Prefix:
        """The prefix with `token` behind it, whether or not the lattice foresaw it; kept."""
        child = self.children.get(token)
        if child is None:
            child = self.children[token] = self._extend(token)
        return child

    def _extend(self, token: int) -> Prefix:
        lattice, search = self.lattice, self.lattice.search
        size = search.window
        phi = self.r_n + self.r_b
        if token == self.last:
            phi -= self.r_n * lattice.joined[self.start : self.start + size]
        # The window follows the prefix: nothing is heard before its mass begins.
        mass = phi.cumsum()
        shift = min(int(mass.searchsorted(search.cut * mass[-1])), lattice.frames - self.start)
        start, left = self.start + shift, size - shift
        moved = np.zeros(size)
        moved[:left] = phi[shift:]
        begun, prolonged = lattice.heard_as(token, start)
        sums = np.log(prolonged).cumsum()
        run = np.exp(np.minimum(sums[:, None] - sums, 0.0)) * _lower(size - 1)
        r_n, r_b = np.zeros(size), np.zeros(size)
        r_n[1:] = run @ (moved[:-1] * begun)
        r_b[1:] = lattice.waiting(start) @ r_n[1:]
        if search.absent:
            r_n[:left] += search.absent * self.r_n[shift:]
            r_b[:left] += search.absent * self.r_b[shift:]
        scale = 1.0 / max(float(r_n.sum() + r_b.sum()), TINY)
        return Prefix(lattice, token, start, r_n * scale, r_b * scale)


@cache
def _lower(size: int) -> Array:
    return np.tri(size)
