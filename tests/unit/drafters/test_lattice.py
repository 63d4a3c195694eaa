"""Trees of the lattice drafter against every path through small lattices, and by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fixtures.lattices import EXACT, Frame, SpelledHead, spelled, toy_head
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from soothsay.drafters.head import LatticeSettings
from soothsay.drafters.lattice import (
    CLOSES,
    CLOSES_THERE,
    OPENS_AT_ZERO,
    REOPENS,
    LatticeDrafter,
    LatticeState,
    Signs,
)
from soothsay.speculate.tree import DraftTree
from soothsay.targets.target import Encoded
from soothsay.types import Price

# Text tokens 1..9, of which 5 ends a sentence; then signs; then timestamps.
VOCAB, END, STOP, START, TRANSLATE, PLAIN, FIRST = 80, 10, 5, 11, 12, 13, 20
SIGNS = Signs(END, FIRST, PLAIN, TRANSLATE, frozenset({STOP}))
TEXT = torch.arange(1, 10)
UNTIMED, TIMED = (START, PLAIN), (START,)
MANY = Price(nodes=1000)

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def drafter(chosen: LatticeSettings = EXACT, stride: int = 1, **options) -> LatticeDrafter:
    head = SpelledHead(VOCAB, stride, options.get("table"))
    return LatticeDrafter(head, TEXT, torch.eye(VOCAB), SIGNS, chosen)


def opened(
    ours: LatticeDrafter, frames: Sequence[Frame], prompt: Sequence[int] = UNTIMED, stride: int = 1
) -> LatticeState:
    hidden = spelled(frames, VOCAB, stride)
    return ours.open(Encoded(hidden, (hidden.shape[1],)), prompt, None)


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Every node's path and its acceptance; the tree itself is checked on the way."""
    tree.validate(VOCAB)
    assert tree.merged() is tree
    found = {}
    for node in range(1, len(tree.tokens)):
        assert tree.acceptance[node] <= tree.acceptance[tree.parents[node]]
        found[tuple(tree.tokens[i] for i in tree.path(node))] = tree.acceptance[node]
    return found


def drafted(
    ours: LatticeDrafter,
    frames: Sequence[Frame],
    committed: Sequence[int] = (),
    price: Price = MANY,
    prompt: Sequence[int] = UNTIMED,
) -> dict[tuple[int, ...], float]:
    state = opened(ours, frames, prompt)
    ours.advance(state, committed)
    return paths(ours.propose(state, price))


# -- the oracle: every path through the lattice ---------------------------------------------------


def texts(frames: Sequence[Frame]) -> dict[tuple[int, ...], float]:
    """The probability of every text, end included: repeats merged, blanks removed."""
    found: dict[tuple[int, ...], float] = {}
    for choice in itertools.product(*[[None, *shares] for _, shares in frames]):
        probability, text, before = 1.0, [], None
        for (heard, shares), token in zip(frames, choice, strict=True):
            probability *= 1 - heard if token is None else heard * shares[token]
            if token not in (None, before):
                text.append(token)
            before = token
        key = (*text, END)
        found[key] = found.get(key, 0.0) + probability
    return found


def expected(
    frames: Sequence[Frame],
    committed: tuple[int, ...],
    price: Price,
    chosen: LatticeSettings,
) -> list[tuple[float, tuple[int, ...]]]:
    """All nodes that may be drafted, likeliest first; the tree is the first of them."""
    known = texts(frames)

    def mass(text: tuple[int, ...]) -> float:
        return sum(p for t, p in known.items() if t[: len(text)] == text)

    found: list[tuple[float, tuple[int, ...]]] = []
    waiting: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    while waiting:
        worth, path = waiting.pop()
        here = committed + path
        options = sorted(((mass((*here, t)), t) for t in (*TEXT.tolist(), END)), reverse=True)
        if len(options) > chosen.siblings:
            assume(options[chosen.siblings - 1][0] - options[chosen.siblings][0] > 1e-5)
        for share, token in options[: chosen.siblings]:
            chance = share / mass(here)
            value = worth * chance**chosen.trust
            assume(abs(chance - chosen.least) > 1e-4)
            assume(abs(value - price.threshold) > 1e-4 or price.threshold == 0)
            if chance > chosen.least and value > price.threshold:
                found.append((value, (*path, token)))
                if token != END:
                    waiting.append(found[-1])
    return sorted(found, reverse=True)


@st.composite
def lattices(draw: st.DrawFn) -> list[Frame]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    frames: list[Frame] = []
    for _ in range(draw(st.integers(1, 4))):
        shares = torch.rand(3, generator=generator, dtype=torch.float64) ** 2 + 1e-3
        heard = 0.02 + 0.96 * float(torch.rand((), generator=generator))
        frames.append((heard, dict(zip((2, 4, 7), (shares / shares.sum()).tolist(), strict=True))))
    return frames


@settings(max_examples=60)
@given(
    lattices(),
    st.sampled_from([(), (2,), (4,), (2, 4), (2, 2)]),
    st.sampled_from([Price(0.0, 1000), Price(0.0, 5), Price(0.1, 1000), Price(0.05, 8)]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([0.6, 1.0, 1.7]),
)
def test_the_tree_is_the_likeliest_nodes_of_all(
    frames: list[Frame], committed: tuple[int, ...], price: Price, siblings: int, trust: float
) -> None:
    chosen = replace(EXACT, siblings=siblings, trust=trust)
    assume(sum(p for t, p in texts(frames).items() if t[: len(committed)] == committed) > 1e-3)
    wanted = expected(frames, committed, price, chosen)
    kept = wanted[: price.nodes - 1]
    if len(wanted) > len(kept):
        assume(kept[-1][0] - wanted[len(kept)][0] > 1e-4)
    found = drafted(drafter(chosen), frames, committed, price)
    assert found.keys() == {path for _, path in kept}
    for value, path in kept:
        assert found[path] == pytest.approx(value, abs=1e-4)
    assert list(found.values()) == sorted(found.values(), reverse=True)


# -- by hand --------------------------------------------------------------------------------------


def clearly(*tokens: int) -> list[Frame]:
    """Each token heard, for all but sure, and silence after it."""
    frames: list[Frame] = []
    for token in tokens:
        frames += [(1.0, {token: 1.0}), (0.0, {})]
    return frames


def test_homophones_are_siblings() -> None:
    frames = [(1.0, {1: 0.6, 2: 0.4}), (0.0, {}), (1.0, {3: 1.0})]
    found = drafted(drafter(), frames)
    assert found == pytest.approx(
        {(1,): 0.6, (1, 3): 0.6, (1, 3, END): 0.6, (2,): 0.4, (2, 3): 0.4, (2, 3, END): 0.4},
        abs=1e-3,
    )


def test_one_sibling_makes_a_chain() -> None:
    frames = [(1.0, {1: 0.6, 2: 0.4}), (0.0, {}), (1.0, {3: 0.7, 4: 0.3})]
    found = drafted(drafter(replace(EXACT, siblings=1)), frames)
    assert list(found) == [(1,), (1, 3), (1, 3, END)]


def test_nothing_is_drafted_below_the_end() -> None:
    frames = [(0.5, {1: 1.0})]
    found = drafted(drafter(), frames)
    assert found == pytest.approx({(1,): 0.5, (END,): 0.5, (1, END): 0.5}, abs=1e-3)


def test_safe_mode_is_the_root_alone() -> None:
    ours = drafter()
    state = opened(ours, clearly(1, 2))
    assert ours.propose(state, Price(nodes=1)) == DraftTree.root_only(PLAIN)
    ours.advance(state, [1])
    assert ours.propose(state, Price(nodes=1)) == DraftTree.root_only(1)


def test_the_root_is_the_last_committed_token() -> None:
    ours = drafter()
    state = opened(ours, clearly(1, 2, 3))
    assert ours.propose(state, MANY).tokens == (PLAIN, 1, 2, 3, END)
    ours.advance(state, [1, 2])
    assert ours.propose(state, MANY).tokens == (2, 3, END)


def test_repeats_need_silence_between() -> None:
    assert list(drafted(drafter(), clearly(1, 1, 1)))[-1] == (1, 1, 1, END)
    merged = [(1.0, {1: 1.0}), (1.0, {1: 1.0}), (0.0, {})]
    assert list(drafted(drafter(), merged)) == [(1,), (1, END)]
    gated = drafter(replace(EXACT, gate=0.1))  # frames of silence are not even looked at
    assert list(drafted(gated, clearly(1, 1, 1)))[-1] == (1, 1, 1, END)
    assert list(drafted(gated, clearly(1, 1, 1), (1, 1))) == [(1,), (1, END)]


@pytest.mark.parametrize(
    ("committed", "following"),
    [
        ((9,), (2, 3, END)),  # substitutions
        ((14,), (2, 3, END)),
        ((1, 9), (3, END)),
        ((9, 2), (3, END)),
        ((2,), (3, END)),  # the first was left out
        ((1, 9, 2), (3, END)),  # one more, never heard
    ],
)
def test_a_correction_is_absorbed(committed: tuple[int, ...], following: tuple[int, ...]) -> None:
    ours = drafter(replace(EXACT, gate=0.1, siblings=1, search=LatticeSettings().search))
    frames: list[Frame] = []
    for token in (1, 2, 3):
        frames += [(0.97, {token: 0.97, 8: 0.03}), (0.0, {})]
    found = drafted(ours, frames, committed)
    assert max(found, key=len) == following
    assert found[following[:1]] > 0.5


def test_unlikely_frames_and_candidates_do_not_count() -> None:
    frames = [(0.9, {1: 0.999, 4: 0.001}), (0.05, {2: 1.0}), (0.9, {3: 0.8, 2: 0.2})]
    ours = drafter(replace(EXACT, gate=0.1, candidate=0.01))
    lattice, positions = ours.read(spelled(frames, VOCAB))
    assert positions.tolist() == [0, 2]
    assert lattice.tokens.tolist() == [1, 2, 3]
    assert lattice.emit[:2].round(3).tolist() == [[0.899, 0.0, 0.0], [0.0, 0.18, 0.72]]
    assert lattice.blank[:2].tolist() == pytest.approx([0.1, 0.1], abs=1e-4)


def test_gate_and_token_logits_are_scaled() -> None:
    """A logit of 2 → sigmoid(2 · 0.5 + 1) = 0.8808; shares 0.8 and 0.2, squared: 16 to 1."""
    chosen = replace(EXACT, gate_scale=0.5, gate_shift=1.0, sharpen=2.0)
    frames = [(0.880797, {1: 0.8, 2: 0.2})]
    lattice, _ = drafter(chosen).read(spelled(frames, VOCAB))
    assert lattice.blank[0] == pytest.approx(1 - 0.880797, abs=1e-5)
    emit = dict(zip(lattice.tokens.tolist(), lattice.emit[0], strict=True))
    assert emit[1] == pytest.approx(0.880797 * 16 / 17, abs=1e-4)
    assert emit[2] == pytest.approx(0.880797 / 17, abs=1e-4)


def test_positions_are_those_of_the_encoder() -> None:
    ours = drafter(replace(EXACT, gate=0.1), stride=4)
    frames = [(0.9, {1: 1.0}), (0.0, {}), (0.9, {2: 1.0})]
    _, positions = ours.read(spelled(frames, VOCAB, stride=4))
    assert positions.tolist() == [0, 8]


def test_the_bigram_shifts_chances_and_keeps_their_sum() -> None:
    table = torch.zeros(VOCAB, VOCAB)
    table[1, 2], table[1, 3] = 0.5, -0.25
    frames = [*clearly(1), (0.9, {2: 0.4, 3: 0.6})]
    plain = drafted(drafter(EXACT, table=table), frames, (1,))
    shifted = drafted(drafter(replace(EXACT, bigram=2.0), table=table), frames, (1,))
    two, three = 0.36 * 2.718282, 0.54 * 0.606531  # e to the power of 2 · 0.5 and of 2 · -0.25
    assert plain == pytest.approx(
        {(2,): 0.36, (2, END): 0.36, (3,): 0.54, (3, END): 0.54, (END,): 0.1}, abs=1e-3
    )
    assert shifted[(2,)] == pytest.approx(0.9 * two / (two + three), abs=1e-3)
    assert shifted[(3,)] == pytest.approx(0.9 * three / (two + three), abs=1e-3)
    assert shifted[(END,)] == pytest.approx(0.1, abs=1e-3)


def test_the_first_token_has_no_bigram() -> None:
    frames = [(0.9, {2: 0.4, 3: 0.6})]
    table = torch.ones(VOCAB, VOCAB).cumsum(1)
    chosen = replace(EXACT, bigram=2.0)
    assert drafted(drafter(chosen, table=table), frames) == drafted(drafter(EXACT), frames)


# -- silence, translation, timestamps -------------------------------------------------------------


@pytest.mark.parametrize("chosen", [EXACT, LatticeSettings()])
def test_silence_ends(chosen: LatticeSettings) -> None:
    frames: list[Frame] = [(0.0, {}), (0.0, {})]
    chosen = replace(chosen, gate=0.1)
    assert drafted(drafter(chosen), frames) == pytest.approx({(END,): 1.0}, abs=1e-3)
    assert drafted(drafter(chosen), frames, (1, 2)) == pytest.approx({(END,): 1.0}, abs=1e-3)


@pytest.mark.parametrize("prompt", [UNTIMED, TIMED])
@pytest.mark.parametrize("positions", [0, 1, 2, 3])
def test_audio_shorter_than_a_frame(positions: int, prompt: Sequence[int]) -> None:
    ours = LatticeDrafter(toy_head(3), TEXT, torch.randn(VOCAB, 16), SIGNS)
    state = ours.open(Encoded(torch.randn(1, 30, 16), (positions,)), prompt, None)
    for tokens in ((), (FIRST, 4), (STOP,), (FIRST + 1, FIRST + 1, 3), (END,)):
        ours.advance(state, tokens)
        paths(ours.propose(state, MANY))


def test_padding_is_not_read() -> None:
    ours = drafter()
    hidden = spelled([*clearly(1), *clearly(2)], VOCAB)
    state = ours.open(Encoded(hidden, (2,)), UNTIMED, None)
    assert ours.propose(state, MANY).tokens == (PLAIN, 1, END)


def test_a_translation_is_not_foretold() -> None:
    ours = drafter()
    state = opened(ours, clearly(1, 2), (START, TRANSLATE, PLAIN))
    assert ours.propose(state, MANY) == DraftTree.root_only(PLAIN)
    ours.advance(state, [4, FIRST])
    assert ours.propose(state, MANY) == DraftTree.root_only(FIRST)


def test_timestamps_are_drafted_around_sentences() -> None:
    """Heard at 0, 2 and 6: <open> 1 5 <close><open> 2 <close>, from where 2 is heard on."""
    frames = [*clearly(1, STOP), (0.0, {}), (0.0, {}), *clearly(2)]
    ours = drafter(replace(EXACT, gate=0.1))
    state = opened(ours, frames, TIMED)
    found = paths(ours.propose(state, MANY))
    second = FIRST + 6
    opened_again = (FIRST, 1, STOP, second, second, 2)
    worth = OPENS_AT_ZERO * (CLOSES * CLOSES_THERE) * REOPENS
    assert found[(FIRST,)] == pytest.approx(OPENS_AT_ZERO)
    assert found[opened_again] == pytest.approx(worth, abs=1e-3)
    closed = (*opened_again, FIRST + 6, END)  # nothing is heard any more: at the last frame
    assert found[closed] == pytest.approx(worth * CLOSES_THERE, abs=1e-3)
    ours.advance(state, [FIRST, 1, STOP])
    found = paths(ours.propose(state, MANY))
    assert found[(2,)] == pytest.approx(1 - CLOSES, abs=1e-3)
    assert found[(second,)] == pytest.approx(CLOSES * CLOSES_THERE, abs=1e-3)


def test_a_sentence_that_goes_on_is_not_closed() -> None:
    ours = drafter()
    state = opened(ours, clearly(1, 2, 3), TIMED)
    ours.advance(state, [FIRST, 1])
    found = paths(ours.propose(state, MANY))
    assert found[(2, 3)] == pytest.approx(1.0, abs=1e-3)
    assert not any(path[0] >= FIRST for path in found)


@pytest.mark.parametrize(
    "committed",
    [
        (FIRST, 1, STOP),
        (FIRST + 9, 1, STOP),
        (1, STOP),
        (FIRST, 1, FIRST + 3, FIRST + 4, STOP),
    ],
)
def test_timestamps_are_no_text(committed: tuple[int, ...]) -> None:
    """Wherever the target put timestamps, the text behind them is the same."""
    frames = clearly(1, STOP, 2, 3)
    ours = drafter()
    for prompt in (TIMED, UNTIMED):
        found = drafted(ours, frames, committed, prompt=prompt)
        assert (2, 3) in found


def test_after_a_close_comes_an_opening_or_the_end() -> None:
    ours = drafter()
    close = FIRST + 30
    more = drafted(ours, clearly(1, STOP, 2), (FIRST, 1, STOP, close), prompt=TIMED)
    assert more[(close,)] == pytest.approx(REOPENS, abs=1e-3)
    assert (close, 2) in more
    assert (2,) not in more
    done = drafted(ours, clearly(1, STOP), (FIRST, 1, STOP, close), prompt=TIMED)
    assert done == pytest.approx({(END,): 1.0}, abs=1e-3)


@pytest.mark.parametrize("committed", [(), (FIRST,), (FIRST, 1), (1, STOP), (1, FIRST, FIRST)])
def test_timed_silence(committed: tuple[int, ...]) -> None:
    ours = drafter(replace(LatticeSettings(), gate=0.1))
    drafted(ours, [(0.0, {})] * 4, committed, prompt=TIMED)


# -- anything at all ------------------------------------------------------------------------------

ANYTHING = LatticeDrafter(
    toy_head(4), TEXT, torch.randn(VOCAB, 16, generator=torch.Generator().manual_seed(4)), SIGNS
)


@settings(max_examples=60)
@given(
    st.integers(0, 1 << 30),
    st.integers(0, 50),
    st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=6), max_size=5),
    st.sampled_from([UNTIMED, TIMED, (START, TRANSLATE)]),
    st.integers(1, 20),
    st.floats(0.0, 1.0),
)
def test_whatever_is_committed_trees_are_sound(
    seed: int,
    positions: int,
    steps: list[list[int]],
    prompt: tuple[int, ...],
    nodes: int,
    threshold: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = 3.0 * torch.randn(1, 50, 16, generator=generator)
    state = ANYTHING.open(Encoded(hidden, (positions,)), prompt, None)
    root = prompt[-1]
    for tokens in [[], *steps]:
        ANYTHING.advance(state, tokens)
        root = [root, *tokens][-1]
        tree = ANYTHING.propose(state, Price(threshold, nodes))
        found = paths(tree)
        assert tree.tokens[0] == root
        assert len(tree.tokens) <= nodes
        assert all(worth >= threshold - 1e-12 for worth in found.values())
        for node, below in enumerate(tree.children()):
            assert sum(tree.acceptance[i] for i in below) <= tree.acceptance[node] + 1e-9
            assert not below or tree.tokens[node] != END or node == 0


def test_sequences_of_one_drafter_are_apart() -> None:
    ours = drafter()
    one, other = opened(ours, clearly(1, 2, 3)), opened(ours, clearly(4, 6))
    ours.advance(one, [1])
    assert ours.propose(other, MANY).tokens == (PLAIN, 4, 6, END)
    ours.advance(other, [4])
    assert ours.propose(one, MANY).tokens == (1, 2, 3, END)
