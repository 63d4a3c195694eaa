"""Weights of look-ahead and lattice, fitted by maximum likelihood on held-out windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from soothsay.drafters.fuse import FusedDrafter
from soothsay.drafters.masks import FuseSettings
from soothsay.train.shards import Example

ITERATIONS = 300
TAKEN = 2  # every second position of the text


@dataclass(slots=True)
class _Cases:
    """For one mask: each source's chance of every token that either names (0 where it is silent),
    and which of them came (-1: none)."""

    look: list[list[float]]
    lattice: list[list[float]]
    came: list[int]


def fit(
    drafter: FusedDrafter,
    examples: Sequence[Example],
    foretold: Callable[[Example], Tensor],
) -> FuseSettings:
    """foretold: (n, K, width) states of the masks before each token of an example."""
    cases = [_Cases([], [], []) for _ in range(drafter.look.masks.sizes.masks)]
    for example in examples:
        _collect(drafter, example, foretold(example), cases)
    found = [_fit_one(case) for case in cases]
    return FuseSettings(*(tuple(column) for column in zip(*found, strict=True)))


def _collect(drafter: FusedDrafter, example: Example, ahead: Tensor, cases: list[_Cases]) -> None:
    encoded = example.encoded()
    state = drafter.open(encoded, example.prompt, None)
    text = example.tokens.tolist()
    for done in range(1, len(text)):
        drafter.advance(state, text[done - 1 : done])
        if done % TAKEN:
            continue
        drafter.foresee(state, ahead[done - 1])
        place = drafter.start(state)
        for case, token in zip(cases, text[done:], strict=False):
            heard, foretold = drafter.evidence(state, place)
            _note(case, dict(foretold), dict(heard), token)
            place = drafter.follow(state, place, token)


def _note(case: _Cases, foretold: dict[int, float], heard: dict[int, float], token: int) -> None:
    named = list(foretold | heard)
    if named:
        case.look.append([foretold.get(c, 0.0) for c in named])
        case.lattice.append([heard.get(c, 0.0) for c in named])
        case.came.append(named.index(token) if token in named else -1)


def _fit_one(case: _Cases) -> list[float]:
    """(look, lattice, look floor, lattice floor, rest) of least log loss."""
    parameters = torch.tensor([0.7, 0.5, -7.0, -6.0, -2.0], requires_grad=True)
    if not case.came:
        return parameters.tolist()
    look, lattice = _logs(case.look), _logs(case.lattice)
    inside = torch.nn.utils.rnn.pad_sequence(
        [torch.ones(len(row), dtype=torch.bool) for row in case.look], batch_first=True
    )
    came = torch.tensor(case.came)
    optimizer = torch.optim.Adam([parameters], 0.05)
    for _ in range(ITERATIONS):
        scores = parameters[0] * torch.where(look > -torch.inf, look, parameters[2])
        scores = scores + parameters[1] * torch.where(lattice > -torch.inf, lattice, parameters[3])
        scores = torch.where(inside, scores, -torch.inf)
        scores = torch.cat([scores, parameters[4].expand(len(scores), 1)], 1)
        wanted = torch.where(came < 0, scores.shape[1] - 1, came)
        loss = torch.nn.functional.cross_entropy(scores, wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [round(value, 4) for value in parameters.tolist()]


def _logs(rows: list[list[float]]) -> Tensor:
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return padded.log()
