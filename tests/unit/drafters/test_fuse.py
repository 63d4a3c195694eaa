"""Two sources weighed together: the formula by loops, and what outcomes do to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from fixtures import masks
from fixtures.heads import PROMPT, SIGNS, anything, spoken_drafter
from fixtures.masks import spelled_lookahead
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from soothsay.drafters.drafter import LooksAhead, masks_of
from soothsay.drafters.fuse import LEAST, FusedDrafter, FusedState
from soothsay.drafters.lookahead import LookaheadDrafter
from soothsay.drafters.masks import FuseSettings
from soothsay.speculate.tree import DraftTree
from soothsay.types import Price

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

VOCAB, K, END = 48, 3, SIGNS.end
FITTED = FuseSettings((0.9, 0.5), (0.4, 1.1), (-5.0, -6.0), (-4.5, -4.0), (-3.0, -2.5))
SILENCE: dict[int, float] = {}
FRAMES = [{1: 0.6, 2: 0.3}, SILENCE, {3: 0.5, 4: 0.4}, SILENCE, {5: 0.9}, SILENCE]


def look_ahead() -> LookaheadDrafter:
    return spelled_lookahead(VOCAB, K)


def saying(*rows: dict[int, float]) -> Tensor:
    return masks.saying(VOCAB, *rows)


def fused(frames: Sequence[dict[int, float]] = FRAMES) -> FusedDrafter:
    return FusedDrafter(look_ahead(), spoken_drafter(frames), FITTED)


OURS = fused()


def opened(ours: FusedDrafter) -> FusedState:
    return ours.open(anything(), PROMPT, None)


def by_loops(foretold: dict[int, float], heard: dict[int, float], number: int) -> dict[int, float]:
    """What a source does not name has the chance of its floor there."""
    at = min(number, 1)
    weights = {}
    for token in range(VOCAB):
        if token in foretold or token in heard:
            p = foretold.get(token, math.exp(FITTED.look_floor[at]))
            q = heard.get(token, math.exp(FITTED.lattice_floor[at]))
            weights[token] = p ** FITTED.look[at] * q ** FITTED.lattice[at]
    total = math.exp(FITTED.rest[at]) + sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


@st.composite
def chances(draw: st.DrawFn) -> dict[int, float]:
    found: dict[int, float] = {}
    left = 1.0
    for token in draw(st.lists(st.integers(0, VOCAB - 1), unique=True, max_size=5)):
        found[token] = max(left * draw(st.floats(0.05, 1.0)), 0.02)
        left = max(left - found[token], 0.0)
    return found


@given(chances(), chances(), st.sampled_from([0, 1, 2, 7]))
def test_the_formula(foretold: dict[int, float], heard: dict[int, float], number: int) -> None:
    found = OURS.fused(list(foretold.items()), list(heard.items()), number)
    assert len({token for token, _ in found}) == len(found)
    assert dict(found) == pytest.approx(by_loops(foretold, heard, number))
    assert sum(chance for _, chance in found) <= 1.0
    assert all(0.0 < chance < 1.0 for _, chance in found)


def test_agreement_is_surer_than_either_and_doubt_weaker() -> None:
    ours = FusedDrafter(look_ahead(), spoken_drafter(FRAMES))
    both = dict(ours.fused([(1, 0.6), (2, 0.4)], [(1, 0.6), (3, 0.4)], 0))
    assert both[1] > 0.6
    assert both[2] < 0.4
    assert both[3] < 0.4


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    return {
        tuple(tree.tokens[i] for i in tree.path(node)): math.exp(tree.log_q[node])
        for node in range(1, len(tree.tokens))
    }


def test_a_tree_weighs_both_at_every_node() -> None:
    """Each depth has its mask, and the lattice follows the path; behind the masks it is alone."""
    rows = [{1: 0.5, 2: 0.2, 6: 0.2}, {3: 0.7, 4: 0.2}, {5: 0.4, 7: 0.5}]
    ours = fused()
    state = opened(ours)
    ours.foresee(state, saying(*rows))
    found = paths(ours.propose(state, Price(0.01, 40)))
    assert {(1,), (2,), (1, 3), (1, 4), (1, 3, 5)} <= found.keys()
    heard_by, look = spoken_drafter(FRAMES), look_ahead()
    for path, chance in found.items():
        alone = heard_by.open(anything(), PROMPT, None)
        heard_by.advance(alone, path[:-1])
        depth = len(path) - 1
        heard = heard_by.continuations(alone, heard_by.start(alone), LEAST)
        if depth < K:
            foretold = look.open(anything(), PROMPT, None)
            look.foresee(foretold, saying(*rows)[: depth + 1])
            look.advance(foretold, path[:-1])
            said = look.options(foretold, look.start(foretold), LEAST)
            wanted = by_loops(dict(said), dict(heard), depth)[path[-1]]
        else:
            wanted = dict(heard)[path[-1]]
        assert chance == pytest.approx(wanted, rel=1e-4)


def test_masks_of_an_earlier_node_keep_their_distance() -> None:
    ours = fused()
    state = opened(ours)
    ours.foresee(state, saying({1: 0.7}, {3: 0.6}))  # the second and the third mask
    heard = {1: 0.6, 2: 0.3}
    found = dict(ours.options(state, ours.start(state), 0.0))
    assert found[1] == pytest.approx(by_loops({1: 0.7}, heard, 1)[1], rel=0.05)
    assert found[1] != pytest.approx(by_loops({1: 0.7}, heard, 0)[1], rel=0.05)


def test_without_masks_it_is_the_lattice() -> None:
    ours, lattice = fused(), spoken_drafter(FRAMES)
    state, alone = opened(ours), lattice.open(anything(), PROMPT, None)
    for committed in ([], [1], [3, 5]):
        ours.advance(state, committed)
        lattice.advance(alone, committed)
        state.foretold = state.kept = 0.0
        for price in (Price(0.0, 20), Price(0.1, 20), Price(0.0, 1)):
            assert ours.propose(state, price) == lattice.propose(alone, price)
        state.offered = None


def test_nothing_is_drafted_below_the_end() -> None:
    ours = fused([{1: 0.9}, SILENCE])
    state = opened(ours)
    ours.foresee(state, saying({1: 0.6, END: 0.3}, {END: 0.8}, {7: 0.8}))
    tree = ours.propose(state, Price(0.0, 30))
    assert END in tree.tokens
    assert not [node for node in tree.parents[1:] if tree.tokens[node] == END]


def offered(*acceptance: float) -> DraftTree:
    n = len(acceptance)
    return DraftTree(
        (0, *range(1, n + 1)),
        tuple(range(-1, n)),
        (0.0,) * (n + 1),
        (1.0, *acceptance),
    )


def step(ours: FusedDrafter, state: FusedState, tree: DraftTree, committed: list[int]) -> float:
    state.offered = tree
    ours.advance(state, committed)
    return state.power


def test_disappointment_lowers_chances_and_luck_raises_them() -> None:
    ours = fused()
    worse, better, even = opened(ours), opened(ours), opened(ours)
    assert worse.power == 1.0
    before = {"worse": 1.0, "better": 1.0}
    for _ in range(8):
        power = step(ours, worse, offered(0.9, 0.8, 0.7), [30])
        assert power > before["worse"]
        before["worse"] = power
        power = step(ours, better, offered(0.5, 0.2, 0.1), [1, 2, 3, 30])
        assert power < before["better"]
        before["better"] = power
        assert step(ours, even, offered(1.0), [1, 30]) == pytest.approx(1.0)
    ours.foresee(worse, saying({1: 0.5, 2: 0.4}))
    ours.foresee(better, saying({1: 0.5, 2: 0.4}))
    for state in (worse, better):
        plain = ours.fused(*reversed(ours.evidence(state, ours.start(state))), 2)
        found = dict(ours.options(state, ours.start(state), 0.0))
        for token, chance in plain:
            assert found[token] == pytest.approx(chance**state.power)


def test_the_power_is_bounded_and_fades() -> None:
    ours = fused()
    state = opened(ours)
    many = offered(*[0.99] * 20)
    powers = [step(ours, state, many, [30]) for _ in range(200)]
    assert max(powers) == 2.0
    powers = [step(ours, state, offered(*[0.01] * 20), list(range(1, 21))) for _ in range(400)]
    assert min(powers) == 0.5
    powers = [step(ours, state, offered(1.0), [1, 30]) for _ in range(400)]
    assert powers[-1] == pytest.approx(1.0, abs=0.01)


def test_a_step_without_a_tree_teaches_nothing() -> None:
    ours = fused()
    state = opened(ours)
    ours.advance(state, [1])
    assert (state.power, state.foretold, state.kept) == (1.0, 0.0, 0.0)
    ours.propose(state, Price(0.0, 8))
    ours.advance(state, [3])
    seen = (state.foretold, state.kept)
    assert seen[1] == 1
    ours.advance(state, [5])  # the tree was judged already
    assert (state.foretold, state.kept) == seen


@pytest.mark.parametrize("kept", [0.0, 200.0], ids=["disappointed", "lucky"])
@pytest.mark.parametrize("foretold", [True, False], ids=["with masks", "without"])
def test_options_are_all_that_reach_the_least(kept: float, foretold: bool) -> None:
    """The contract of a source: the cut is made on what it says, not on what it thought before."""
    ours = fused([{1: 0.7, 2: 0.2, 3: 0.05, 4: 0.02}, SILENCE])
    state = opened(ours)
    state.foretold, state.kept = 200.0 - kept, kept
    assert state.power == (0.5 if kept else 2.0)
    if foretold:
        ours.foresee(state, saying({1: 0.7, 2: 0.2, 3: 0.05}))
    whole = ours.options(state, ours.start(state), 0.0)
    assert len(whole) >= 4
    assert all(0.0 < chance <= 1.0 for _, chance in whole)
    for least in (0.05, 0.2, 0.5):
        found = dict(ours.options(state, ours.start(state), least))
        assert found == pytest.approx({t: chance for t, chance in whole if chance >= least})


def test_it_looks_ahead_and_advances_both() -> None:
    ours = fused()
    assert isinstance(ours, LooksAhead)
    assert masks_of(ours) is ours.look.masks
    state = opened(ours)
    ours.foresee(state, saying({1: 0.9}, {3: 0.9}, {5: 0.9}))
    ours.advance(state, [1, 3])
    assert (state.look.root, state.lattice.root) == (3, 3)
    assert len(state.look.ahead) == 1
    assert ours.propose(state, Price(0.1, 2)).tokens == (3, 5)
