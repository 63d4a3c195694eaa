"""Tokens per forward without a target: the same as the engine's own count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from fixtures.toy_whisper import END, VOCAB, toy_features, toy_files

from soothsay.bench.acceptance import Acceptance, follow, measure, reliability
from soothsay.control.budget import FixedBudget
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.history import HistoryDrafter
from soothsay.drafters.probe import ListeningDrafter
from soothsay.engine.engine import Engine
from soothsay.engine.request import Request
from soothsay.speculate.tree import DraftTree
from soothsay.targets.whisper import WhisperTarget
from soothsay.train.calibrate import power
from soothsay.types import FinishReason, Price


@dataclass
class Window:
    hidden: torch.Tensor
    audio_positions: int
    prompt: tuple[int, ...]
    tokens: torch.Tensor


class LastTwo(HistoryDrafter):
    """Foretells the last two tokens again, and a neighbour of the last: right now and then."""

    def propose(self, state, price):
        one, other = state.tokens[-1], state.tokens[-2:][0]
        near = (one + 1) % VOCAB
        tree = DraftTree.from_paths(
            one, [([one, other], [0.5, 0.5]), ([other, one], [0.4, 0.4]), ([near], [0.1])]
        )
        return tree.only(list(range(min(price.nodes, len(tree.tokens)))))


@pytest.mark.parametrize("drafter", [HistoryDrafter(), LastTwo()])
@pytest.mark.parametrize("nodes", [3, 6])
def test_counts_are_the_engines(drafter: Drafter, nodes: int) -> None:
    target = WhisperTarget(toy_files(1), torch.float64)
    prompts = [(1,), (1, 5), (1, 5, 9, 2), (1, 2, 3), (1, 7), (4, 4, 4), (1, 3), (2,)]
    asked = [Request(toy_features(n), p, END, hint=(n,)) for n, p in enumerate(prompts)]
    listener = ListeningDrafter()
    endless = Engine(target, listener, FixedBudget(1)).run(asked)
    # The toy goes on for ever: let each text end at a token that it writes.
    asked = [replace(r, end_token=e.tokens[25]) for r, e in zip(asked, endless, strict=True)]
    written = Engine(target, listener, FixedBudget(1)).run(asked)
    assert {result.finish for result in written} == {FinishReason.STOP}
    known = [
        Window(
            listener.heard[n].hidden[0],
            listener.heard[n].audio_positions[0],
            r.prompt,
            torch.tensor([*r.tokens, asked[n].end_token]),
        )
        for n, r in enumerate(written)
    ]
    results = Engine(target, drafter, FixedBudget(nodes)).run(
        [replace(r, hint=None) for r in asked]
    )
    counts = measure(drafter, known, nodes - 1)
    assert counts.tokens == sum(r.stats.tokens for r in results)
    assert counts.forwards == sum(r.stats.target_forwards for r in results)
    assert sum(counts.accepted) == sum(r.stats.accepted for r in results)


def test_depths_and_outcomes_by_hand() -> None:
    class Fixed(HistoryDrafter):
        def propose(self, state, price):
            return DraftTree.from_paths(state.tokens[-1], [([1, 2], [0.8, 0.5]), ([3], [0.1])])

    counts = Acceptance()
    window = Window(torch.zeros(4, 2), 4, (9,), torch.tensor([1, 2, 7, 3, 1, END]))
    follow(Fixed(), window, Price(0.0, 8), counts)
    assert (counts.tokens, counts.forwards) == (6, 3)  # 1 2 7 | 3 1 | end
    assert counts.drafted == [6, 3]
    assert counts.accepted == [2, 1]
    kept = [pytest.approx(value) for value, accepted in counts.outcomes if accepted]
    assert sorted(value for value, accepted in counts.outcomes if accepted) == [0.1, kept[1], 0.8]


def test_reliability_by_hand() -> None:
    counts = Acceptance(outcomes=[(0.05, False), (0.05, True), (0.95, True), (1.0, True)])
    figures = reliability(counts)
    assert [row["nodes"] for row in figures["bins"]] == [2, 2]
    assert figures["bins"][0]["happened"] == 0.5
    assert figures["expected_calibration_error"] == pytest.approx((0.45 * 2 + 0.025 * 2) / 4)


def test_a_power_is_recovered() -> None:
    generator = torch.Generator().manual_seed(0)
    chances = torch.rand(20_000, generator=generator)
    kept = torch.rand(20_000, generator=generator) < chances**1.6
    outcomes = list(zip(chances.tolist(), kept.tolist(), strict=True))
    assert power(outcomes) == pytest.approx(1.6, abs=0.06)
