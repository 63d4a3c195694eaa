"""Whisper in int8: a node's result must be the same bits in any tree, and near float32's."""

from __future__ import annotations

import pytest
import torch
from fixtures.toy_whisper import SIZES, toy_features, toy_files

from soothsay.cache.arena import Arena
from soothsay.config import int8_products
from soothsay.targets.load import ModelFiles
from soothsay.targets.target import TreeBatch, TreeSpan
from soothsay.targets.whisper import WhisperTarget

pytestmark = pytest.mark.skipif(not int8_products(), reason="this CPU has no FBGEMM int8 kernel")

COMMITTED = [1, 5, 2, 20]


def opened(dtype: torch.dtype, streams: int = 1) -> tuple[WhisperTarget, Arena]:
    """A target whose arena holds the audio of each stream and, in its own slots, COMMITTED."""
    target = WhisperTarget(toy_files(1), dtype)
    arena = Arena(target.arena_shape(slots=SIZES.max_target_positions * streams, streams=streams))
    features = torch.stack([toy_features(seed) for seed in range(streams)])
    target.write_cross(target.encode(features), arena, range(streams))
    for stream in range(streams):
        parents = list(range(-1, len(COMMITTED) - 1))
        target.forward_tree(one_tree(COMMITTED, parents, 0, stream), arena)
    return target, arena


def one_tree(tokens: list[int], parents: list[int], base: int, stream: int = 0) -> TreeBatch:
    mask = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    depths = []
    for node, parent in enumerate(parents):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        at = node
        while at >= 0:
            mask[node, at] = True
            at = parents[at]
    slot = stream * SIZES.max_target_positions
    span = TreeSpan(0, len(tokens), slot, base, stream, mask if len(tokens) > 1 else None)
    return TreeBatch(torch.tensor(tokens), torch.tensor([base + d for d in depths]), (span,))


def random_tree(nodes: int, seed: int) -> tuple[list[int], list[int]]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, SIZES.vocab_size, (nodes,), generator=generator).tolist()
    parents = [-1]
    for node in range(1, nodes):
        parents.append(int(torch.randint(0, node, (), generator=generator)))
    return tokens, parents


@torch.inference_mode()
@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 13, 24])
def test_a_node_of_a_tree_equals_plain_decoding_bit_for_bit(nodes: int) -> None:
    target, arena = opened(torch.int8)
    tokens, parents = random_tree(nodes, seed=nodes)
    hidden = target.forward_tree(one_tree(tokens, parents, len(COMMITTED)), arena)
    logits = target.logits(hidden)
    for node in range(nodes):
        path, at = [], node
        while at >= 0:
            path.insert(0, tokens[at])
            at = parents[at]
        for depth, token in enumerate(path):  # one token a forward, as plain decoding goes
            alone = target.forward_tree(one_tree([token], [-1], len(COMMITTED) + depth), arena)
        assert torch.equal(alone[0], hidden[node])
        assert torch.equal(target.logits(alone)[0], logits[node])


@pytest.mark.slow
@torch.inference_mode()
def test_whisper_base_too(base_files: ModelFiles) -> None:
    """At real sizes matrix kernels of one row and of many add in different order."""
    target = WhisperTarget(base_files, torch.int8)
    arena = Arena(target.arena_shape(slots=64, streams=1))
    features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0)) * 0.5
    target.write_cross(target.encode(features), arena, [0])
    chain = [50258, 50259, 50359, 50363, 440, 1002, 307, 733]
    tree = one_tree(chain, list(range(-1, len(chain) - 1)), 0)
    together = target.logits(target.forward_tree(tree, arena))
    for depth, token in enumerate(chain):
        alone = target.logits(target.forward_tree(one_tree([token], [-1], depth), arena))
        assert torch.equal(alone[0], together[depth])


@torch.inference_mode()
def test_other_sequences_in_the_batch_change_nothing() -> None:
    target, arena = opened(torch.int8, streams=3)
    trees = [random_tree(nodes, seed) for seed, nodes in enumerate([6, 1, 3])]
    batches = [one_tree(*tree, len(COMMITTED), stream) for stream, tree in enumerate(trees)]
    start, spans = 0, []
    for batch in batches:
        (span,) = batch.spans
        stop = start + span.stop
        spans.append(TreeSpan(start, stop, span.slot, span.committed, span.stream, span.mask))
        start = stop
    together = TreeBatch(
        torch.cat([batch.tokens for batch in batches]),
        torch.cat([batch.positions for batch in batches]),
        tuple(spans),
    )
    joint = target.forward_tree(together, arena)
    for span, batch in zip(spans, batches, strict=True):
        assert torch.equal(joint[span.start : span.stop], target.forward_tree(batch, arena))


@torch.inference_mode()
def test_is_near_float32() -> None:
    """Rounding moves logits by a few per cent of their spread; a wrong scale would by all of it."""
    tokens, parents = random_tree(12, seed=3)
    rows = []
    for dtype in (torch.int8, torch.float32):
        target, arena = opened(dtype)
        rows.append(
            target.logits(target.forward_tree(one_tree(tokens, parents, len(COMMITTED)), arena))
        )
    assert not torch.equal(*rows)
    assert (rows[0] - rows[1]).std() < 0.1 * rows[1].std()


def test_caches_stay_float32_and_the_dtype_says_int8() -> None:
    target = WhisperTarget(toy_files(0), torch.int8)
    assert target.arena_shape(slots=8, streams=1).dtype == torch.float32
    assert target.dtype == torch.int8
    assert target.logit_rows == 4
