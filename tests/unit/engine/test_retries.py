"""Decoding once more, as a transition of the scheduler: each attempt is what it would be alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fixtures.toy_whisper import END, VOCAB, toy_features, toy_files

from soothsay.control.budget import FixedBudget
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.history import HistoryDrafter
from soothsay.drafters.probe import AdversarialDrafter, OracleDrafter
from soothsay.engine.engine import Engine
from soothsay.engine.request import Attempt, Probe, PromptChoice, Request, Result
from soothsay.engine.service import EngineService
from soothsay.reference import Reference
from soothsay.targets.whisper import WhisperTarget
from soothsay.types import FinishReason, OptionError, Sampling

FILES = toy_files(1)
PROMPTS = [(1, 5, 9, 2), (1, 2, 3), (1, 7), (4, 4, 4)]
DRAFTERS: dict[str, Drafter | None] = {
    "none": None,
    "history": HistoryDrafter(),
    "oracle": OracleDrafter(0.6, VOCAB, END),
    "adversary": AdversarialDrafter("deep", VOCAB, END),
}
SAMPLINGS = [Sampling(), Sampling(temperature=0.4, seed=1), Sampling(temperature=0.8, seed=2)]


class Tries:
    """So many attempts with SAMPLINGS in turn, of which one is taken."""

    def __init__(self, count: int, taken: int) -> None:
        self.count, self.taken = count, taken
        self.seen: list[Attempt] = []

    def again(self, attempts: Sequence[Attempt]) -> Sampling | None:
        self.seen = list(attempts)
        return SAMPLINGS[len(attempts)] if len(attempts) < self.count else None

    def best(self, attempts: Sequence[Attempt]) -> Attempt:
        return attempts[self.taken]


def engine(drafter: Drafter | None) -> Engine:
    return Engine(WhisperTarget(FILES, torch.float64), drafter, FixedBudget(6), 3)


def request(number: int, **facts) -> Request:
    prompt = PROMPTS[number % len(PROMPTS)]
    return Request(features=toy_features(number), prompt=prompt, end_token=END, **facts)


def alone(number: int, sampling: Sampling) -> Result:
    return engine(None).run([request(number, sampling=sampling, log_probs=True)])[0]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(("count", "taken"), [(1, 0), (2, 0), (3, 1), (3, 2)])
def test_attempts_are_what_they_would_be_alone(name: str, count: int, taken: int) -> None:
    """Beside other sequences, with drafts from earlier attempts, in slots used before."""
    rules = [Tries(count, taken) for _ in range(4)]
    ran = engine(DRAFTERS[name])
    results = ran.run([request(n, retry=rule) for n, rule in enumerate(rules)])
    for number, (result, rule) in enumerate(zip(results, rules, strict=True)):
        wanted = [alone(number, sampling) for sampling in SAMPLINGS[:count]]
        assert [a.tokens for a in rule.seen] == [w.tokens for w in wanted]
        assert [a.finish for a in rule.seen] == [w.finish for w in wanted]
        for attempt, other in zip(rule.seen, wanted, strict=True):
            assert attempt.log_probs == pytest.approx(other.log_probs, abs=1e-9)
        assert result.tokens == wanted[taken].tokens
        assert result.sampling == SAMPLINGS[taken]
        assert result.attempts == count
    ran.scheduler.check_integrity()


def test_a_chosen_prompt_stays_chosen() -> None:
    choice = PromptChoice(among=(5, 7, 11), then=(2, 3))
    asked = Request(toy_features(1), (1,), END, choice=choice)
    rule = Tries(3, 2)
    (result,) = engine(HistoryDrafter()).run([replace(asked, retry=rule)])
    plain = engine(None)
    (first,) = plain.run([asked])
    assert result.prompt == first.prompt
    assert rule.seen[0].tokens == first.tokens
    known = Request(toy_features(1), first.prompt, END, sampling=SAMPLINGS[2])
    assert result.tokens == plain.run([known])[0].tokens


def test_tokens_come_once_it_is_decided() -> None:
    with EngineService(engine(HistoryDrafter())) as service:
        stream = service.submit(request(0, retry=Tries(2, 0)))
        parts = list(stream)
        assert parts == [stream.result().tokens]
        assert stream.result().attempts == 2


def test_a_rule_that_fails_ends_its_own_sequence_alone() -> None:
    class Broken(Tries):
        def again(self, attempts: Sequence[Attempt]) -> Sampling | None:
            raise ValueError("no idea")

    ran = engine(HistoryDrafter())
    broken, other = ran.run([request(0, retry=Broken(1, 0)), request(1)])
    assert (broken.finish, broken.error) == (FinishReason.ERROR, "ValueError: no idea")
    assert other.tokens == alone(1, Sampling()).tokens
    ran.scheduler.check_integrity()


@pytest.mark.parametrize("position", [0, 1, 3])
@pytest.mark.parametrize("name", ["none", "oracle"])
def test_a_probe_is_the_targets_own_probability(name: str, position: int) -> None:
    asked = request(0, probe=Probe(position, 13), hint=alone(0, Sampling()).tokens)
    (result,) = engine(DRAFTERS[name]).run([asked])
    reference = Reference(FILES)
    logits = reference.logits(reference.encode(asked.features), asked.prompt[: position + 1])
    wanted = torch.softmax(logits[-1].double(), -1)[13]
    assert result.probe_probability == pytest.approx(float(wanted), rel=1e-5)
    assert result.tokens == alone(0, Sampling()).tokens


@pytest.mark.parametrize("probe", [Probe(4, 1), Probe(-1, 1), Probe(0, VOCAB)])
def test_a_probe_outside_is_refused(probe: Probe) -> None:
    with pytest.raises(OptionError, match="probe lies outside"):
        engine(None).submit(request(0, probe=probe))
