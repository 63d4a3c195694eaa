"""Drafters changed while sequences run: none is disturbed, and a worse one is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fixtures.masks import random_masks
from fixtures.toy_whisper import END, VOCAB, toy_features, toy_files

from soothsay.control.budget import FixedBudget
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.lookahead import LookaheadDrafter
from soothsay.drafters.probe import AdversarialDrafter, OracleDrafter, RandomDrafter
from soothsay.engine.engine import Engine
from soothsay.engine.request import Request
from soothsay.engine.rollout import Rollout
from soothsay.engine.service import EngineService
from soothsay.reference import Reference
from soothsay.targets.whisper import WhisperTarget
from soothsay.types import SoothsayError

FILES = toy_files(1)
EXPECTED = {n: Reference(FILES).greedy(toy_features(n), (1, 5), END) for n in range(12)}


def request(number: int) -> Request:
    hint = EXPECTED[number]  # for oracles
    return Request(features=toy_features(number), prompt=(1, 5), end_token=END, hint=hint)


def engine(drafter: Drafter | None, groups: int = 0, sequences: int = 3) -> Engine:
    return Engine(WhisperTarget(FILES), drafter, FixedBudget(4, 0.0, groups, 2), sequences)


def oracle(accuracy: float) -> OracleDrafter:
    return OracleDrafter(accuracy, VOCAB, END, seed=3)


def lookahead(seed: int) -> LookaheadDrafter:
    masks = random_masks(FILES, seed)
    embedding = FILES.tensors["model.decoder.embed_tokens.weight"].float()
    return LookaheadDrafter(masks, torch.arange(VOCAB), embedding, END)


def decode(running: Engine, numbers: Sequence[int]) -> None:
    for number, result in zip(numbers, running.run([request(n) for n in numbers]), strict=True):
        assert list(result.tokens) == EXPECTED[number]


def test_a_better_drafter_stays_and_output_never_changes() -> None:
    running = engine(RandomDrafter(VOCAB, END, seed=2))
    trial = Rollout(running.drafting, oracle(1.0), sequences=4)
    assert trial.watch() is None
    decode(running, range(4))
    assert trial.watch() is None  # installed now
    assert running.drafter is not None
    assert running.drafter.name.startswith("oracle")
    decode(running, range(4, 7))
    assert trial.watch() is None
    decode(running, range(7, 9))
    assert trial.watch() is True
    assert trial.watch() is True


def test_a_worse_drafter_is_taken_back_with_what_was_known_of_the_old_one() -> None:
    running = engine(oracle(1.0))
    old = running.drafting.current
    trial = Rollout(running.drafting, RandomDrafter(VOCAB, END, seed=2), sequences=3)
    decode(running, range(3))
    trial.watch()
    decode(running, range(3, 6))
    assert trial.watch() is False
    assert running.drafting.current is old
    assert old.sequences == 3
    decode(running, range(6, 8))
    assert old.sequences == 5


@pytest.mark.parametrize("kind", ["wrong", "wide", "duplicates", "after-end", "invalid", "crash"])
def test_hostile_drafters_are_taken_back(kind: str) -> None:
    running = engine(oracle(0.9))
    trial = Rollout(running.drafting, AdversarialDrafter(kind, VOCAB, END), sequences=6)
    decode(running, range(6))
    trial.watch()
    decode(running, range(6))
    assert trial.watch() is False
    decode(running, range(6, 9))


def test_a_decision_does_not_undo_what_someone_else_installed() -> None:
    running = engine(oracle(1.0))
    trial = Rollout(running.drafting, RandomDrafter(VOCAB, END, seed=2), sequences=1)
    decode(running, [0])
    trial.watch()
    decode(running, [1])
    third = oracle(0.5)
    running.drafter = third
    assert trial.watch() is False
    assert running.drafter is third


def test_running_sequences_keep_their_drafter() -> None:
    """Half of each text is written before the change; each drafter counts its own sequences."""
    running = engine(lookahead(0), groups=2)
    first = running.drafting.current
    heard: dict[int, list[int]] = {}
    numbers = {running.submit(request(n)): n for n in range(3)}

    def take(deltas: Any) -> None:
        for delta in deltas:
            heard.setdefault(delta.sequence, []).extend(delta.tokens)

    take(running.step())
    take(running.step())
    running.drafter = lookahead(7)
    numbers |= {running.submit(request(n)): n for n in range(3, 6)}
    while not running.scheduler.idle:
        take(running.step())
    assert {numbers[s]: tokens for s, tokens in heard.items()} == {n: EXPECTED[n] for n in range(6)}
    assert (first.sequences, running.drafting.current.sequences) == (3, 3)


def test_no_drafter_at_all_can_be_tried() -> None:
    running = engine(oracle(1.0))
    trial = Rollout(running.drafting, None, sequences=1)
    decode(running, [0])
    trial.watch()
    assert running.drafter is None
    decode(running, [0])
    assert trial.watch() is False
    assert running.drafter is not None


def test_sequences_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Rollout(engine(None).drafting, None, sequences=0)


def test_a_service_tries_a_drafter_between_steps() -> None:
    with EngineService(engine(RandomDrafter(VOCAB, END, seed=2))) as service:
        better = service.try_drafter(oracle(1.0), sequences=2)
        for numbers in (range(2), range(2, 6)):
            for number, stream in {n: service.submit(request(n)) for n in numbers}.items():
                assert list(stream.result().tokens) == EXPECTED[number]
        assert better.kept(timeout=30) is True
        worse = service.try_drafter(RandomDrafter(VOCAB, END, seed=4), sequences=2)
        for numbers in (range(6, 8), range(8, 12)):
            for number, stream in {n: service.submit(request(n)) for n in numbers}.items():
                assert list(stream.result().tokens) == EXPECTED[number]
        assert worse.kept(timeout=30) is False


def test_a_second_trial_ends_the_first_and_shutdown_ends_all() -> None:
    with EngineService(engine(oracle(1.0))) as service:
        first = service.try_drafter(oracle(0.5))
        second = service.try_drafter(oracle(0.6))
        with pytest.raises(SoothsayError, match="another drafter"):
            first.kept(timeout=30)
        refused = service.try_drafter(oracle(0.6), sequences=0)
        with pytest.raises(ValueError, match="at least one"):
            refused.kept(timeout=30)
        with pytest.raises(SoothsayError, match="another drafter"):
            second.kept(timeout=30)
        last = service.try_drafter(oracle(0.6))
    with pytest.raises(SoothsayError, match="shut down"):
        last.kept(timeout=30)
    late = service.try_drafter(oracle(0.6))
    with pytest.raises(SoothsayError, match="not running"):
        late.kept(timeout=30)
