"""Masks in a step: ordinary rows stay what they are, mask rows say what the trained decoder says.

The oracle of mask rows is the decoder of training, which shares no code with the serving one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from fixtures.masks import frozen_in_float32, random_masks
from fixtures.toy_whisper import SIZES, VOCAB, toy_features, toy_files
from torch import Tensor

from soothsay.cache.arena import Arena
from soothsay.config import int8_products
from soothsay.drafters.masks import LookaheadMasks
from soothsay.targets.adapters import Adapters, MaskRows
from soothsay.targets.target import Encoded, TreeBatch, TreeSpan
from soothsay.targets.whisper import WhisperTarget

FILES = toy_files(1)
MASKS = random_masks(FILES, seed=2)
K = MASKS.sizes.masks
REGION = 96
DTYPES = [
    torch.float32,
    torch.bfloat16,
    pytest.param(
        torch.int8,
        marks=pytest.mark.skipif(not int8_products(), reason="this CPU has no FBGEMM int8 kernel"),
    ),
]


@dataclass(frozen=True)
class Drafted:
    """A tree of one sequence; behind: nodes that have masks."""

    tokens: list[int]
    parents: list[int]
    behind: list[int]

    def path(self, node: int) -> list[int]:
        above = self.path(self.parents[node]) if node else []
        return [*above, self.tokens[node]]


CHAIN = Drafted([3, 8, 11, 2, 19], [-1, 0, 1, 2, 3], [0, 2, 4])
TREE = Drafted([6, 8, 1, 2, 19, 23, 7], [-1, 0, 0, 1, 1, 2, 5], [1, 2, 4, 6])
ROOT = Drafted([9], [-1], [0])
BARE = Drafted([4, 5, 12], [-1, 0, 0], [])


def history(length: int, stream: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(30 + stream)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def laid(
    trees: Sequence[Drafted], adapters: Adapters | None, base: int, gathered: bool | None = None
) -> tuple[TreeBatch, list[int], dict[tuple[int, int], list[int]]]:
    """→ the batch, its ordinary rows, and the rows of the masks behind (sequence, node).

    gathered: whether mask rows are an index and not a slice; by default where they must be.
    """
    tokens, positions, spans, numbers = [], [], [], []
    ordinary: list[int] = []
    found: dict[tuple[int, int], list[int]] = {}
    for stream, tree in enumerate(trees):
        start, parents = len(tokens), list(tree.parents)
        ordinary += range(start, start + len(parents))
        for node in tree.behind if adapters else ():
            above = node
            for number in range(K):
                parents.append(above)
                above = len(parents) - 1
                numbers.append(number)
                found.setdefault((stream, node), []).append(start + above)
        n = len(parents)
        mask = torch.zeros(n, n, dtype=torch.bool)
        for row in range(n):
            at, depth = row, -1
            while at >= 0:
                mask[row, at] = True
                at, depth = parents[at], depth + 1
            positions.append(base + depth)
        tokens += [*tree.tokens, *[17] * (n - len(tree.tokens))]  # what stands there cannot count
        spans.append(
            TreeSpan(start, start + n, stream * REGION, base, stream, mask if n > 1 else None)
        )
    masks = None
    if adapters and found:
        rows = [row for group in found.values() for row in group]
        gathered = len(trees) > 1 if gathered is None else gathered
        index = torch.tensor(rows) if gathered else slice(rows[0], rows[-1] + 1)
        masks = MaskRows(index, torch.tensor(numbers), adapters)
    batch = TreeBatch(torch.tensor(tokens), torch.tensor(positions), tuple(spans), masks)
    return batch, ordinary, found


def opened(dtype: torch.dtype, base: int, streams: int = 1) -> tuple[WhisperTarget, Arena, Encoded]:
    """A target whose arena holds each stream's audio and its committed history."""
    target = WhisperTarget(FILES, dtype)
    arena = Arena(target.arena_shape(slots=REGION * streams, streams=streams))
    encoded = target.encode(torch.stack([toy_features(seed) for seed in range(streams)]))
    target.write_cross(encoded, arena, range(streams))
    for stream in range(streams):
        chain = history(base, stream)
        seen = torch.ones(base, base, dtype=torch.bool).tril()
        span = TreeSpan(0, base, stream * REGION, 0, stream, seen)
        target.forward_tree(TreeBatch(torch.tensor(chain), torch.arange(base), (span,)), arena)
    return target, arena, encoded


def adapters_of(masks: LookaheadMasks, dtype: torch.dtype) -> Adapters:
    real = torch.float32 if dtype == torch.int8 else dtype
    return masks.laid_out(real, torch.device("cpu"))


def still(dtype: torch.dtype) -> Adapters:
    """All factors and embeddings zero."""
    masks = random_masks(FILES, seed=0, scale=0.0)
    assert not any(bool(p.any()) for p in masks.parameters())
    return adapters_of(masks, dtype)


def run(
    dtype: torch.dtype,
    trees: Sequence[Drafted],
    adapters: Adapters | None,
    base: int = 4,
    gathered: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """→ final states of ordinary rows and of mask rows, and the cache rows of ordinary nodes."""
    target, arena, _ = opened(dtype, base, len(trees))
    batch, ordinary, found = laid(trees, adapters, base, gathered)
    hidden = target.forward_tree(batch, arena)
    assert hidden.dtype == arena.shape.dtype
    slots = [
        stream * REGION + base + node
        for stream, tree in enumerate(trees)
        for node in range(len(tree.tokens))
    ]
    cache = torch.stack([arena.self_k[:, :, slots], arena.self_v[:, :, slots]])
    rows = [row for group in found.values() for row in group]
    return hidden[ordinary], hidden[rows], cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "trees", [[CHAIN], [TREE], [ROOT], [CHAIN, TREE], [TREE, BARE, ROOT]], ids=len
)
@torch.inference_mode()
def test_adapters_leave_ordinary_rows_bit_for_bit(dtype: torch.dtype, trees: list[Drafted]) -> None:
    rows, ahead, cache = run(dtype, trees, adapters_of(MASKS, dtype))
    still_rows, still_ahead, still_cache = run(dtype, trees, still(dtype))
    assert torch.equal(rows, still_rows)
    assert torch.equal(cache, still_cache)
    assert not torch.isnan(ahead).any()
    assert ((ahead - still_ahead).abs().amax(-1) > 0.1).all()  # every mask row was adapted


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_ordinary_rows_are_those_of_a_step_without_masks(dtype: torch.dtype) -> None:
    """In int8 to the bit; kernels of another width may round otherwise in the other dtypes."""
    rows, _, cache = run(dtype, [TREE, CHAIN], adapters_of(MASKS, dtype))
    plain_rows, none, plain_cache = run(dtype, [TREE, CHAIN], None)
    assert not len(none)
    if dtype == torch.int8:
        assert torch.equal(rows, plain_rows)
        assert torch.equal(cache, plain_cache)
    near = 0.1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(rows, plain_rows, atol=near, rtol=near)
    torch.testing.assert_close(cache, plain_cache, atol=near, rtol=near)


@pytest.mark.parametrize("base", [1, 4, 41, 43], ids=lambda base: f"behind {base}")
@pytest.mark.parametrize("trees", [[CHAIN], [TREE], [ROOT], [CHAIN, TREE], [TREE, BARE, ROOT]])
@torch.inference_mode()
def test_masks_say_what_the_trained_decoder_says(
    base: int, trees: list[Drafted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path down to a node as a window of its own. From 41 and 43 on, masks look beyond the
    last position, where the last one stands for all."""
    target, arena, encoded = opened(torch.float32, base, len(trees))
    frozen = frozen_in_float32(FILES, monkeypatch)
    batch, _, found = laid(trees, adapters_of(MASKS, torch.float32), base)
    hidden = target.forward_tree(batch, arena)
    assert found
    for (stream, node), rows in found.items():
        text = history(base, stream) + trees[stream].path(node)
        memory = frozen.remember(encoded.segment(stream).hidden, torch.tensor([text]))
        wanted = frozen.foretell(MASKS, memory, torch.tensor([[len(text) - 1]]))
        torch.testing.assert_close(hidden[rows], wanted[0, 0], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_slice_and_index_are_one() -> None:
    adapters = adapters_of(MASKS, torch.float32)
    viewed = run(torch.float32, [TREE], adapters, gathered=False)
    gathered = run(torch.float32, [TREE], adapters, gathered=True)
    for one, other in zip(viewed, gathered, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_masks_beyond_the_last_position_do_not_fail() -> None:
    """Only where masks stand: a real token there has no place, and would be a mistake."""
    last = SIZES.max_target_positions - 1
    for dtype in (torch.float32, torch.bfloat16):
        rows, ahead, _ = run(dtype, [ROOT], adapters_of(MASKS, dtype), base=last)
        assert torch.isfinite(rows).all()
        assert torch.isfinite(ahead).all()
    target, arena, _ = opened(torch.float32, last)
    with pytest.raises(IndexError):
        target.forward_tree(laid([CHAIN], None, last)[0], arena)


def test_the_product_by_loops() -> None:
    """y + B A x in the chosen rows, whichever way they are told; nothing for unknown names."""
    generator = torch.Generator().manual_seed(0)
    down, up = (torch.randn(shape, generator=generator) for shape in ((2, 4), (3, 2)))
    x, y = (torch.randn(shape, generator=generator) for shape in ((5, 4), (5, 3)))
    adapters = Adapters(torch.zeros(2, 4), {"a": (down, up)}, torch.float32, torch.device("cpu"))
    assert adapters.count == 2
    for rows, chosen in ((slice(1, 4), [1, 2, 3]), (torch.tensor([4, 0]), [0, 4])):
        added = y.clone()
        adapters.add("b", x, added, rows)
        assert torch.equal(added, y)
        adapters.add("a", x, added, rows)
        for row in range(5):
            for column in range(3):
                wanted = float(y[row, column])
                if row in chosen:
                    for inner in range(2):
                        part = sum(float(down[inner, i] * x[row, i]) for i in range(4))
                        wanted += float(up[column, inner]) * part
                assert float(added[row, column]) == pytest.approx(wanted, abs=1e-5)
