"""Weights of two sources: the better one is trusted more, and foretold chances come true."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixtures.examples import example
from fixtures.heads import spoken_drafter
from fixtures.masks import saying, spelled_lookahead
from torch import Tensor

from soothsay.drafters.fuse import FusedDrafter
from soothsay.drafters.masks import FuseSettings
from soothsay.train.fit_fuse import fit
from soothsay.train.shards import Example

VOCAB, K = 40, 2
Chances = dict[int, float]


class Scripted:
    """Stands in for a FusedDrafter: at each place of one text, what is heard and what foretold."""

    def __init__(self, text: list[int], heard: list[Chances], foretold: list[Chances]) -> None:
        self.look = SimpleNamespace(masks=SimpleNamespace(sizes=SimpleNamespace(masks=K)))
        self.text, self.heard, self.foretold = text, heard, foretold
        self.asked: list[tuple[int, int]] = []  # tokens done, place

    def open(self, encoded: Any, prompt: Any, hint: None) -> SimpleNamespace:
        return SimpleNamespace(done=0, seen=-1)

    def advance(self, state: SimpleNamespace, tokens: list[int]) -> None:
        assert tokens == self.text[state.done : state.done + len(tokens)]
        state.done += len(tokens)

    def foresee(self, state: SimpleNamespace, hidden: Tensor) -> None:
        state.seen = int(hidden[0, 0])

    def start(self, state: SimpleNamespace) -> int:
        # A step ended before the last token, which the target added: its masks are those seen.
        assert state.seen == state.done - 1
        return int(state.done)

    def follow(self, state: SimpleNamespace, place: int, token: int) -> int:
        assert token == self.text[place]
        return place + 1

    def evidence(self, state: SimpleNamespace, place: int) -> tuple[list, list]:
        self.asked.append((state.done, place))
        return list(self.heard[place].items()), list(self.foretold[place].items())


def source(text: list[int], right: float, seed: int) -> list[Chances]:
    """Three tokens at each place, the first of them the right one in that share of the places."""
    chance = random.Random(seed)
    found = []
    for token in text:
        others = chance.sample([t for t in range(VOCAB) if t != token], 3)
        named = [token, *others[:2]] if chance.random() < right else others
        found.append(dict(zip(named, (0.7, 0.15, 0.1), strict=True)))
    return found


def shown(text: list[int]) -> Example:
    made = example(1, tokens=len(text) - 1)
    made.tokens[:] = torch.tensor(text)
    return made


def states(window: Example) -> Tensor:
    """(n, K, 1): which they are."""
    return torch.arange(len(window.tokens)).view(-1, 1, 1).expand(-1, K, 1).float()


def log_loss(settings: FuseSettings, number: int, drafter: Scripted) -> float:
    """Of the token that came at each place asked of that mask, all others sharing the rest."""
    look, lattice, look_floor, lattice_floor, rest = settings.at(number)
    total = count = 0.0
    for done, place in drafter.asked:
        if place - done != number:
            continue
        foretold, heard = drafter.foretold[place], drafter.heard[place]
        weights = {}
        for token in {*foretold, *heard}:
            p = foretold.get(token, math.exp(look_floor))
            q = heard.get(token, math.exp(lattice_floor))
            weights[token] = p**look * q**lattice
        came = weights.get(drafter.text[place], math.exp(rest))
        total -= math.log(came / (sum(weights.values()) + math.exp(rest)))
        count += 1
    return total / count


@pytest.fixture(scope="module", params=["look-ahead", "lattice"])
def fitted(request: pytest.FixtureRequest) -> tuple[str, Scripted, FuseSettings]:
    """Where that source alone is right, in five places of six."""
    chance = random.Random(3)
    text = [chance.randrange(VOCAB) for _ in range(401)]
    shares = {"look-ahead": 0.0, "lattice": 0.0} | {request.param: 5 / 6}
    heard, foretold = source(text, shares["lattice"], 1), source(text, shares["look-ahead"], 2)
    drafter = Scripted(text, heard, foretold)
    return request.param, drafter, fit(drafter, [shown(text)], states)  # type: ignore[arg-type]


def test_the_source_that_is_right_is_trusted(fitted: tuple[str, Scripted, FuseSettings]) -> None:
    right, _, settings = fitted
    assert len(settings.look) == len(settings.rest) == K
    for look, lattice in zip(settings.look, settings.lattice, strict=True):
        trusted, other = (look, lattice) if right == "look-ahead" else (lattice, look)
        assert trusted > other + 0.3


def test_log_loss_falls_as_far_as_it_can(fitted: tuple[str, Scripted, FuseSettings]) -> None:
    _, drafter, settings = fitted
    for number in range(K):
        reached = log_loss(settings, number, drafter)
        assert reached < log_loss(FuseSettings(), number, drafter) - 0.05
        best = settings.at(number)
        for place in range(5):
            for change in (-0.3, 0.3):
                other = [value + change * (place == at) for at, value in enumerate(best)]
                moved = FuseSettings(*((value,) * K for value in other))
                assert log_loss(moved, number, drafter) > reached - 0.01


def test_chances_come_true(fitted: tuple[str, Scripted, FuseSettings]) -> None:
    """What the right source names first came in five of six places, and is worth about that."""
    right, drafter, settings = fitted
    ours = FusedDrafter(None, None, settings)  # type: ignore[arg-type]
    worth = []
    for _, place in drafter.asked:
        both = drafter.foretold[place], drafter.heard[place]
        first = next(iter(both[0] if right == "look-ahead" else both[1]))
        worth.append(dict(ours.fused(list(both[0].items()), list(both[1].items()), 0))[first])
    assert sum(worth) / len(worth) == pytest.approx(5 / 6, abs=0.06)


def test_every_second_token_is_a_root(fitted: tuple[str, Scripted, FuseSettings]) -> None:
    _, drafter, _ = fitted
    assert set(drafter.asked) == {
        (done, done + number)
        for done in range(2, len(drafter.text), 2)
        for number in range(K)
        if done + number < len(drafter.text)
    }
    assert len(set(drafter.asked)) == len(drafter.asked)


def test_masks_that_saw_nothing_keep_a_guess() -> None:
    """A text of three tokens has one place for the first mask, and none for the second."""
    text = [1, 2, 3]
    drafter = Scripted(text, source(text, 1.0, 1), source(text, 1.0, 2))
    settings = fit(drafter, [shown(text)], states)  # type: ignore[arg-type]
    assert len(settings.look) == K
    assert drafter.asked == [(2, 2)]
    empty = fit(drafter, [], states)  # type: ignore[arg-type]
    assert all(math.isfinite(value) for value in (*settings.at(1), *empty.at(0)))
    assert settings.at(1) == empty.at(0)


@pytest.mark.parametrize("right", ["look-ahead", "lattice"])
def test_real_drafters(right: str) -> None:
    """One source spells the text, the other one another text."""
    text = [1 + 7 * i % 37 for i in range(33)]
    other = [1 + (7 * i + 18) % 37 for i in range(33)]
    heard, foretold = (other, text) if right == "look-ahead" else (text, other)
    frames: list[Chances] = []
    for token in heard:
        frames += [{token: 0.9}, {}]
    drafter = FusedDrafter(spelled_lookahead(VOCAB, K), spoken_drafter(frames, VOCAB))
    rows = [[{foretold[min(i + k + 1, 32)]: 0.9} for k in range(K)] for i in range(33)]
    ahead = torch.stack([saying(VOCAB, *row) for row in rows])
    settings = fit(drafter, [shown(text)], lambda _: ahead)
    for look, lattice in zip(settings.look, settings.lattice, strict=True):
        trusted, doubted = (look, lattice) if right == "look-ahead" else (lattice, look)
        assert trusted > doubted + 0.2
