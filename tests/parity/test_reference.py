"""The slow reference and the target against Transformers, on a toy Whisper in float64."""

from __future__ import annotations

import pytest
import torch
from fixtures.huggingface import in_transformers
from fixtures.toy_whisper import SIZES, toy_features, toy_files

from soothsay.cache.arena import Arena
from soothsay.reference import Reference
from soothsay.targets.load import ModelFiles
from soothsay.targets.target import TreeBatch, TreeSpan
from soothsay.targets.whisper import WhisperTarget


@pytest.fixture(scope="module", params=[0, 1])
def files(request: pytest.FixtureRequest) -> ModelFiles:
    return toy_files(request.param)


@torch.no_grad()
def test_reference_equals_transformers(files: ModelFiles) -> None:
    model, reference = in_transformers(files, torch.float64), Reference(files)
    features = toy_features(3)
    tokens = [1, 5, 2, 20, 7, 7]
    expected = model(features[None].double(), decoder_input_ids=torch.tensor([tokens]))
    hidden = reference.encode(features)
    torch.testing.assert_close(hidden, expected.encoder_last_hidden_state[0])
    torch.testing.assert_close(reference.logits(hidden, tokens), expected.logits[0])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_target_equals_reference_on_ragged_trees(files: ModelFiles, dtype: torch.dtype) -> None:
    """Three sequences in one call, each with committed rows and a tree; every node is compared
    with the reference run over that node's own path alone."""
    target, reference = WhisperTarget(files, dtype), Reference(files)
    arena = Arena(target.arena_shape(slots=200, streams=4))
    generator = torch.Generator().manual_seed(7)

    def random_tokens(n: int) -> list[int]:
        return torch.randint(0, SIZES.vocab_size, (n,), generator=generator).tolist()

    trees = [[-1, 0, 0, 1, 1, 2], [-1], [-1, 0, 1, 2]]
    committed = [[1, *random_tokens(4)], [1], [1, *random_tokens(17)]]
    slots, streams = [120, 3, 60], [2, 0, 3]
    features = [toy_features(seed) for seed in range(3)]
    target.write_cross(target.encode(torch.stack(features)), arena, streams)

    def run(parts: list[list[int]], parents: list[list[int]], bases: list[int]) -> torch.Tensor:
        tokens, positions, spans = [], [], []
        for i, part in enumerate(parts):
            depths = []
            for parent in parents[i]:
                depths.append(0 if parent < 0 else depths[parent] + 1)
            mask = torch.zeros(len(part), len(part), dtype=torch.bool)
            for node in range(len(part)):
                at = node
                while at >= 0:
                    mask[node, at] = True
                    at = parents[i][at]
            start = len(tokens)
            tokens += part
            positions += [bases[i] + depth for depth in depths]
            spans.append(TreeSpan(start, len(tokens), slots[i], bases[i], streams[i], mask))
        batch = TreeBatch(torch.tensor(tokens), torch.tensor(positions), tuple(spans))
        return target.logits(target.forward_tree(batch, arena))

    run(committed, [list(range(-1, len(c) - 1)) for c in committed], [0, 0, 0])
    drafted = [random_tokens(len(tree)) for tree in trees]
    logits = run(drafted, trees, [len(c) for c in committed])
    row = 0
    for i, tree in enumerate(trees):
        hidden = reference.encode(features[i])
        for node in range(len(tree)):
            path, at = [], node
            while at >= 0:
                path.insert(0, drafted[i][at])
                at = tree[at]
            expected = reference.logits(hidden, committed[i] + path)[-1]
            tolerance = 1e-10 if dtype == torch.float64 else 1e-4
            torch.testing.assert_close(
                logits[row].double(), expected, atol=max(tolerance, 1e-5), rtol=1e-5
            )
            row += 1
