"""Prefix scores against the definition itself: every path through a small lattice, collapsed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from soothsay.speculate.prefix import Lattice, Prefix, Search

TOKENS = np.array([7, 20, 31])  # what the columns are called
BLANK = len(TOKENS)
LETTER = Search(window=12)  # CTC to the letter


def lattice_of(posteriors: NDArray[np.float64], search: Search = LETTER) -> Lattice:
    """posteriors: (F, tokens + 1), blank last."""
    return Lattice(
        TOKENS,
        posteriors[:, :BLANK].copy(),
        posteriors[:, BLANK].copy(),
        np.ones(len(posteriors), bool),
        search,
    )


def texts(posteriors: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """The probability of every text: all paths, repeats merged, blanks removed."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(BLANK + 1), repeat=len(posteriors)):
        probability = 1.0
        text: list[int] = []
        previous = BLANK
        for frame, column in enumerate(path):
            probability *= posteriors[frame, column]
            if column not in (BLANK, previous):
                text.append(int(TOKENS[column]))
            previous = column
        found[tuple(text)] = found.get(tuple(text), 0.0) + probability
    return found


def after(lattice: Lattice, text: tuple[int, ...]) -> Prefix:
    prefix = lattice.empty()
    for token in text:
        prefix = prefix.extended(token)
    return prefix


def random_posteriors(seed: int, frames: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.full(BLANK + 1, 0.7), frames)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_chances_are_those_of_all_paths(seed: int, frames: int) -> None:
    posteriors = random_posteriors(seed, frames)
    lattice, known = lattice_of(posteriors), texts(posteriors)
    for length in range(frames + 1):
        for text in itertools.product(TOKENS.tolist(), repeat=length):
            mass = sum(p for t, p in known.items() if t[:length] == text)
            if mass < 1e-9:
                continue
            chances, end, others = after(lattice, text).scores()
            wanted = [
                sum(p for t, p in known.items() if t[: length + 1] == (*text, token)) / mass
                for token in TOKENS.tolist()
            ]
            assert chances == pytest.approx(wanted, abs=1e-9)
            assert end == pytest.approx(known.get(text, 0.0) / mass, abs=1e-9)
            assert others == pytest.approx(0.0, abs=1e-9)


def test_tokens_without_a_column_are_counted_together() -> None:
    posteriors = random_posteriors(3, 4)
    whole = lattice_of(posteriors)
    part = Lattice(
        TOKENS[:2], posteriors[:, :2].copy(), posteriors[:, BLANK].copy(), np.ones(4, bool)
    )
    chances, end, others = part.empty().scores()
    wanted, wanted_end, _ = whole.empty().scores()
    assert chances == pytest.approx(wanted[:2])
    assert end == pytest.approx(wanted_end)
    assert others == pytest.approx(wanted[2])


def test_a_window_sees_what_matters() -> None:
    """A long lattice of clear tokens: a short window changes nothing to speak of."""
    generator = np.random.default_rng(0)
    spoken = generator.integers(0, BLANK, 60)
    posteriors = np.full((180, BLANK + 1), 0.01)
    posteriors[1::3, :] += 0.96 * np.eye(BLANK + 1)[spoken]
    posteriors[0::3, BLANK] = posteriors[2::3, BLANK] = 0.97
    wide = lattice_of(posteriors, Search(window=181))
    narrow = lattice_of(posteriors, Search(window=12, cut=1e-3))
    text: list[int] = []
    for column in spoken:
        far, near = after(wide, tuple(text)), after(narrow, tuple(text))
        assert near.scores()[0] == pytest.approx(far.scores()[0], abs=0.01)
        assert len(near.r_n) <= 12
        text.append(int(TOKENS[column]))
    assert after(narrow, tuple(text)).scores()[1] > 0.5


def three_words() -> NDArray[np.float64]:
    """Clearly 7, 20, 31, blanks between."""
    posteriors = np.full((7, BLANK + 1), 0.01)
    posteriors[[0, 2, 4, 6], BLANK] = 0.97
    for frame, column in ((1, 0), (3, 1), (5, 2)):
        posteriors[frame, column] = 0.97
    return posteriors / posteriors.sum(1, keepdims=True)


FLOORS = Search(window=20, cut=1e-3, emit=1e-2, blank=0.02, hold=0.3, absent=1e-3)


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ((7,), 20),
        ((99,), 20),  # a substitution
        ((7, 99), 31),  # another one, of the second word
        ((7, 31), None),  # the second word is left out: the end comes next
        ((7, 20, 99, 31), None),  # one word too many, never heard
        ((99, 20), 31),
    ],
)
def test_a_correction_is_absorbed(text: tuple[int, ...], following: int | None) -> None:
    lattice = lattice_of(three_words(), FLOORS)
    chances, end, _ = after(lattice, text).scores()
    best = int(lattice.tokens[chances.argmax()])
    if following is None:
        assert end > chances.max()
    else:
        assert best == following
        assert chances.max() > 0.5


def test_scores_stay_finite_whatever_is_committed() -> None:
    lattice = lattice_of(three_words(), FLOORS)
    prefix = lattice.empty()
    for token in [99, 99, 7, 7, 7, 31, 20, 1, 2, 3] * 3:
        prefix = prefix.extended(token)
        chances, end, others = prefix.scores()
        assert np.isfinite(chances).all()
        assert (chances >= 0).all()
        assert chances.sum() + end + others == pytest.approx(1.0, abs=1e-6)


def test_a_lattice_without_frames_ends() -> None:
    lattice = Lattice(TOKENS[:0], np.zeros((0, 0)), np.zeros(0), np.ones(0, bool), FLOORS)
    chances, end, _ = lattice.empty().scores()
    assert len(chances) == 0
    assert end == pytest.approx(1.0)
    assert lattice.empty().next_heard() is None
    assert lattice.empty().extended(7).scores()[1] == pytest.approx(1.0)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=20)
def test_silence_may_be_left_out(seed: int) -> None:
    """Frames of certain blank, dropped and marked as gaps, change nothing."""
    posteriors = random_posteriors(seed, 6)
    posteriors[[1, 4]] = np.eye(BLANK + 1)[BLANK]
    kept = [0, 2, 3, 5]
    joined = np.array([True, False, True, False])
    short = Lattice(TOKENS, posteriors[kept, :BLANK], posteriors[kept, BLANK], joined, LETTER)
    whole = lattice_of(posteriors)
    for length in range(4):
        for text in itertools.product(TOKENS.tolist(), repeat=length):
            chances, end, _ = after(short, text).scores()
            wanted, wanted_end, _ = after(whole, text).scores()
            assert chances == pytest.approx(wanted, abs=1e-6)
            assert end == pytest.approx(wanted_end, abs=1e-6)


def test_children_are_kept() -> None:
    prefix = lattice_of(three_words()).empty()
    assert prefix.extended(7) is prefix.extended(7)


def test_the_next_token_is_heard_at_its_frame() -> None:
    lattice = lattice_of(three_words(), FLOORS)
    assert lattice.empty().next_heard() == 1
    assert after(lattice, (7,)).next_heard() == 3
    assert after(lattice, (7, 20)).next_heard() == 5
