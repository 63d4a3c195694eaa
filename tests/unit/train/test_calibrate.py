"""Settings by trial on held-out windows, and the power that makes chances honest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from fixtures.lattices import EXACT, Frame, SpelledHead, spelled

from soothsay.bench.acceptance import measure
from soothsay.drafters.head import LatticeSettings
from soothsay.drafters.lattice import LatticeDrafter, Signs
from soothsay.train.calibrate import KNOBS, NODES, calibrate, power

VOCAB, END, PLAIN = 16, 10, 12
SIGNS = Signs(END, first_timestamp=13, no_timestamps=PLAIN, translate=11)


@dataclass
class Window:
    hidden: torch.Tensor
    audio_positions: int
    prompt: tuple[int, ...]
    tokens: torch.Tensor


def window(seed: int) -> Window:
    """Thirteen words, each heard as any of nine, the right one likeliest."""
    written = torch.randint(1, 10, (13,), generator=torch.Generator().manual_seed(seed))
    frames: list[Frame] = []
    for token in written.tolist():
        frames += [(0.9, {token: 0.4} | {other: 0.06 for other in range(1, 10) if other != token})]
        frames += [(0.01, {})]
    hidden = spelled(frames, VOCAB)[0]
    return Window(hidden, len(hidden), (PLAIN,), torch.cat([written, torch.tensor([END])]))


def misled(settings: LatticeSettings) -> LatticeDrafter:
    """Its bigram expects the token one below the last: that is no help with random words."""
    table = 3.0 * torch.eye(VOCAB).roll(1, 0)
    return LatticeDrafter(
        SpelledHead(VOCAB, table=table), torch.arange(1, 10), torch.eye(VOCAB), SIGNS, settings
    )


def test_the_best_of_what_is_tried_is_kept() -> None:
    windows = [window(seed) for seed in range(3)]
    start = replace(EXACT, gate=0.1, bigram=1.0)
    drafter = misled(start)
    before = measure(drafter, windows, NODES).tokens_per_forward
    chosen = calibrate(drafter, windows)
    assert drafter.settings is chosen
    after = measure(drafter, windows, NODES).tokens_per_forward
    assert after > before
    assert chosen.bigram == 0.0  # it misleads
    assert chosen.least == start.least
    assert chosen.search.window == start.search.window
    for name, values in KNOBS:
        outer, _, inner = name.partition(".")
        owner, kept = (chosen.search, start.search) if inner else (chosen, start)
        value = getattr(owner, inner or outer)
        assert value in values or value == getattr(kept, inner or outer)


def test_what_nothing_betters_stays() -> None:
    """Nothing is heard and nothing is written but the end: every setting is as good."""
    silent = Window(spelled([(0.0, {})] * 4, VOCAB)[0], 4, (PLAIN,), torch.tensor([END]))
    start = replace(EXACT, gate=0.1)
    chosen = calibrate(misled(start), [silent])
    assert replace(chosen, trust=1.0) == start


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.0, 1.35, 2.0])
def test_a_known_power_is_found(exponent: float) -> None:
    """Of 2,000 nodes foretold at each chance, exactly so many happen as its power says."""
    outcomes = []
    for chance in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95):
        happened = round(2_000 * chance**exponent)
        outcomes += [(chance, True)] * happened + [(chance, False)] * (2_000 - happened)
    assert power(outcomes) == pytest.approx(exponent)


def test_certain_chances_do_not_break_it() -> None:
    assert 0.5 <= power([(1.0, True), (1.0, False), (0.0, False), (0.0, True)]) <= 2.0
