"""Temperature fallback: which texts are decoded again, with what, and which one is taken."""

from __future__ import annotations

import pytest

from soothsay.engine.request import Attempt
from soothsay.fallback import Fallback, FallbackRule, avg_logprob
from soothsay.text.timestamps import compression_ratio
from soothsay.types import FinishReason, OptionError, Sampling

TEXTS = {1: "The birch canoe slid on the smooth planks.", 2: "you you you " * 30, 3: ""}


def rule(fallback: Fallback = Fallback(), **facts) -> FallbackRule:  # noqa: B008
    sampling = facts.pop("sampling", Sampling())
    return FallbackRule(fallback, lambda tokens: TEXTS[tokens[0]], sampling, facts.pop("seed", 7))


def attempt(text: int, log_prob: float, temperature: float = 0.0, silence: float = 0.0) -> Attempt:
    return Attempt((text,), (log_prob,) * 3, FinishReason.STOP, Sampling(temperature), silence)


@pytest.mark.parametrize(
    ("tried", "again"),
    [
        (attempt(1, -0.3), False),
        (attempt(1, -1.2), True),  # hardly believed
        (attempt(2, -0.1), True),  # repeats itself
        (attempt(1, -1.2, silence=0.9), False),  # nobody speaks
        (attempt(1, -0.3, silence=0.9), False),
        (attempt(2, -0.3, silence=0.9), True),  # sure of it: somebody speaks
    ],
)
def test_poor_texts_are_decoded_again(tried: Attempt, again: bool) -> None:
    assert (rule().again([tried]) is not None) == again


def test_temperatures_rise_from_where_the_first_stood() -> None:
    tried = [attempt(2, -0.1, 0.3)]
    found = []
    wanted = rule(sampling=Sampling(0.3, top_k=5, top_p=0.9, seed=4))
    while sampling := wanted.again(tried):
        found.append(sampling)
        tried.append(attempt(2, -0.1, sampling.temperature))
    assert [s.temperature for s in found] == [0.4, 0.6, 0.8, 1.0]
    assert [s.seed for s in found] == [8, 9, 10, 11]
    assert {(s.top_k, s.top_p) for s in found} == {(5, 0.9)}


def test_the_last_is_taken_if_it_is_good() -> None:
    tried = [attempt(1, -1.1), attempt(1, -0.9, 0.2)]
    assert rule().best(tried) is tried[1]


def test_of_poor_texts_the_likeliest_that_does_not_repeat_itself() -> None:
    tried = [attempt(2, -0.1), attempt(1, -1.5, 0.2), attempt(1, -1.2, 0.4), attempt(1, -2.0, 1.0)]
    assert rule().best(tried) is tried[2]
    repeated = [attempt(2, -0.4), attempt(2, -0.2, 0.2)]
    assert rule().best(repeated) is repeated[1]


def test_thresholds_that_are_off_are_not_looked_at() -> None:
    off = Fallback(compression_ratio_threshold=None, logprob_threshold=None)
    assert rule(off).again([attempt(2, -9.0)]) is None
    assert not Fallback(no_speech_threshold=None).silent(-5.0, 1.0)
    assert not Fallback().silent(-5.0, None)
    assert Fallback().silent(-5.0, 0.7)


def test_figures() -> None:
    assert avg_logprob((-1.0, -2.0)) == -1.5
    assert (avg_logprob(()), compression_ratio("")) == (0.0, 0.0)
    assert compression_ratio(TEXTS[1]) < 1.1 < 2.4 < compression_ratio(TEXTS[2])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"temperatures": (0.0,)}, "fallback temperature"),
        ({"no_speech_threshold": 1.5}, "no_speech_threshold"),
    ],
)
def test_thresholds_are_checked(facts: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Fallback(**facts)
