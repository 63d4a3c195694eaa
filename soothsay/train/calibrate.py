"""Drafting settings of a trained head, chosen on held-out windows by tokens per forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from soothsay.bench.acceptance import measure
from soothsay.drafters.head import LatticeSettings
from soothsay.drafters.lattice import LatticeDrafter
from soothsay.train.shards import Example

NODES = 8  # drafted nodes at which settings are compared

# What is tried, one knob after another, each kept at its best.
KNOBS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("gate_scale", (1.0, 1.5, 2.0, 2.5)),
    ("gate_shift", (-0.5, 0.5, 1.0)),
    ("gate", (0.05, 0.1, 0.2, 0.3)),
    ("sharpen", (1.0, 1.2, 1.5, 2.0)),
    ("bigram", (0.0, 0.5, 0.75, 1.0, 1.25)),
    ("search.emit", (1e-3, 3e-3, 1e-2, 3e-2)),
    ("search.blank", (0.005, 0.02, 0.05, 0.1)),
    ("search.hold", (0.0, 0.2, 0.5, 0.8)),
    ("search.absent", (1e-4, 1e-3, 4e-3, 1e-2)),
)


def calibrate(drafter: LatticeDrafter, examples: Sequence[Example]) -> LatticeSettings:
    """Leave the drafter with the best settings found → those."""
    best = measure(drafter, examples, NODES).tokens_per_forward
    for knob, values in KNOBS:
        start = drafter.settings
        kept = start
        for value in values:
            drafter.settings = _with(start, knob, value)
            score = measure(drafter, examples, NODES).tokens_per_forward
            if score > best:
                best, kept = score, drafter.settings
        drafter.settings = kept
    outcomes = measure(drafter, examples, NODES).outcomes
    drafter.settings = replace(drafter.settings, trust=drafter.settings.trust * power(outcomes))
    return drafter.settings


def power(outcomes: Sequence[tuple[float, bool]]) -> float:
    """The power of the foretold chances that fits what happened best, by least log loss."""

    def loss(exponent: float) -> float:
        total = 0.0
        for chance, happened in outcomes:
            p = min(max(chance**exponent, 1e-6), 1 - 1e-6)
            total -= math.log(p if happened else 1 - p)
        return total

    return min((0.5 + 0.05 * step for step in range(31)), key=loss)


def _with(settings: LatticeSettings, knob: str, value: float) -> LatticeSettings:
    name, _, inner = knob.partition(".")
    change: dict[str, Any] = {inner or name: value}
    if inner:
        return replace(settings, search=replace(settings.search, **change))
    return replace(settings, **change)
