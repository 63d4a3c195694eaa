"""Best-first growth against the sorted list of all nodes there are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soothsay.drafters.grow import Option, Source, grow
from soothsay.speculate.tree import DraftTree
from soothsay.types import Price

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ROOT, DEEPEST = 9, 4


@dataclass
class Tabled:
    """A place is the path so far; each has up to three continuations, drawn from its own seed."""

    seed: int
    asked: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def chances(self, path: tuple[int, ...]) -> list[Option]:
        if len(path) == DEEPEST:
            return []
        number = self.seed
        for token in path:
            number = number * 7 + token + 1
        generator = torch.Generator().manual_seed(number)
        width = int(torch.randint(0, 4, (), generator=generator)) if path else 3
        shares = torch.rand(width, generator=generator, dtype=torch.float64) ** 2
        return list(enumerate((0.97 * shares / (shares.sum() + 1e-9)).tolist()))

    def start(self, state: object) -> tuple[int, ...]:
        return ()

    def follow(self, state: object, place: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*place, token)

    def options(self, state: object, place: tuple[int, ...], least: float) -> list[Option]:
        self.asked.append((place, least))
        return [option for option in self.chances(place) if option[1] >= least]


def everything(source: Tabled) -> dict[tuple[int, ...], float]:
    """Every path there is and its chance, the root left out."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for depth in range(DEEPEST):
        for path in [path for path in found if len(path) == depth]:
            for token, chance in source.chances(path):
                found[(*path, token)] = found[path] * chance
    del found[()]
    return found


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    tree.validate(ROOT + 1)
    assert (tree.tokens[0], tree.log_q[0], tree.acceptance[0]) == (ROOT, 0.0, 1.0)
    found = {}
    for node in range(1, len(tree.tokens)):
        above = tree.parents[node]
        assert tree.acceptance[node] == pytest.approx(
            tree.acceptance[above] * math.exp(tree.log_q[node])
        )
        found[tuple(tree.tokens[i] for i in tree.path(node))] = tree.acceptance[node]
    assert len(found) == len(tree.tokens) - 1
    return found


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]), st.integers(2, 130))
def test_the_tree_is_the_likeliest_nodes_of_all(seed: int, threshold: float, nodes: int) -> None:
    source = Tabled(seed)
    ranked = sorted(everything(source).items(), key=lambda item: -item[1])
    allowed = [item for item in ranked if item[1] >= threshold and item[1] > 0]
    found = paths(grow(source, None, ROOT, Price(threshold, nodes)))
    assert len(found) == min(len(allowed), nodes - 1)
    # By value, so that of equal nodes either may be taken.
    assert list(found.values()) == pytest.approx([worth for _, worth in allowed[: nodes - 1]])
    known = dict(allowed)
    assert all(worth == pytest.approx(known[path]) for path, worth in found.items())


def test_safe_mode_asks_nothing() -> None:
    source = Tabled(1)
    assert isinstance(source, Source)
    for nodes in (0, 1):
        assert grow(source, None, ROOT, Price(0.0, nodes)) == DraftTree.root_only(ROOT)
    assert not source.asked


def test_a_source_is_told_what_counts() -> None:
    """A continuation counts if it brings its node to the price."""
    source = Tabled(5)
    tree = grow(source, None, ROOT, Price(0.02, 1000))
    worth = {(): 1.0} | paths(tree)
    assert len(worth) > 5
    assert {path for path, _ in source.asked} == worth.keys()
    for path, least in source.asked:
        assert least == pytest.approx(0.02 / worth[path])


class Fixed:
    """The same continuations everywhere."""

    def __init__(self, *options: Option) -> None:
        self._options = list(options)

    def start(self, state: object) -> None: ...

    def follow(self, state: object, place: None, token: int) -> None: ...

    def options(self, state: object, place: None, least: float) -> list[Option]:
        return self._options


def test_options_below_the_price_are_not_trusted() -> None:
    tree = grow(Fixed((1, 0.5), (2, 0.1), (3, 0.0)), None, ROOT, Price(0.2, 1000))
    assert paths(tree) == pytest.approx({(1,): 0.5, (1, 1): 0.25})
    assert len(grow(Fixed((3, 0.0)), None, ROOT, Price(0.0, 9)).tokens) == 1


def test_a_chance_above_one_is_one() -> None:
    tree = grow(Fixed((1, 1.5)), None, ROOT, Price(0.0, 4))
    assert tree.acceptance == (1.0,) * 4
    assert tree.log_q == (0.0,) * 4


def test_a_token_named_twice_is_joined_before_verification() -> None:
    tree = grow(Fixed((1, 0.4), (1, 0.3)), None, ROOT, Price(0.25, 1000))
    assert tree.tokens == (ROOT, 1, 1)
    fitted = tree.fitted(ROOT, ROOT + 1, max_nodes=9, max_depth=9)
    assert fitted.tokens == (ROOT, 1)
    assert fitted.acceptance[1] == pytest.approx(0.7)


def test_chances_may_vanish() -> None:
    """Three levels down their product is below the least float."""
    tree = grow(Fixed((1, 1e-150)), None, ROOT, Price(0.0, 9))
    assert 3 <= len(tree.tokens) <= 9
    assert tree.acceptance[2] == pytest.approx(1e-300)
