"""Real speech, real weights: Transformers' own model and `generate` are the oracle.

pytest tests/parity/test_generate.py --clips 40    # more than the few that a run takes by itself
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixtures.huggingface import generation_config, in_transformers

from soothsay.bench.identity import first_difference, top2_margin
from soothsay.bench.workload import Clip, read_manifest
from soothsay.cache.arena import Arena
from soothsay.targets.load import ModelFiles
from soothsay.targets.target import TreeBatch, TreeSpan
from soothsay.transcribe import Options, Recogniser

pytestmark = pytest.mark.slow
NEAR_TIE = 1e-4  # top-2 logit margin below which forwards of other shapes may round otherwise


@pytest.fixture(scope="module")
def clips(speech: Path, request: pytest.FixtureRequest) -> list[Clip]:
    limit = request.config.getoption("--clips")
    return read_manifest(speech / "dev" / "librispeech" / "manifest.jsonl", limit)


@pytest.fixture(scope="module")
def recogniser(base_files: ModelFiles) -> Recogniser:
    return Recogniser(base_files, dtype="float32", drafter="oracle:0.8", nodes=6)


@pytest.fixture(scope="module")
def model(base_files: ModelFiles) -> torch.nn.Module:
    model = in_transformers(base_files, torch.float32)
    model.generation_config = generation_config(base_files)
    return model


@torch.no_grad()
def test_logits_equal_on_real_audio(
    clips: list[Clip], recogniser: Recogniser, base_files: ModelFiles
) -> None:
    """Prefill, then a plain step, then a tree: every row within 1e-4 of Transformers' in float64,
    which adds no rounding of its own to ours."""
    target = recogniser.target
    model = in_transformers(base_files, torch.float64)
    request = recogniser.request(clips[0].samples(), Options(language="en"))
    (result,) = recogniser.run([request])
    text = [*result.prompt, *result.tokens]
    branch = [1000, 2000]  # a second path beside the text's own last tokens
    arena = Arena(target.arena_shape(slots=512, streams=1))
    target.write_cross(target.encode(request.features[None]), arena, [0])

    def run(tokens: list[int], positions: list[int], mask: torch.Tensor | None) -> torch.Tensor:
        base = positions[0]
        span = TreeSpan(0, len(tokens), 0, base, 0, mask)
        batch = TreeBatch(torch.tensor(tokens), torch.tensor(positions), (span,))
        return target.logits(target.forward_tree(batch, arena))

    def oracle(tokens: list[int]) -> torch.Tensor:
        features = request.features[None].double()
        return model(features, decoder_input_ids=torch.tensor([tokens])).logits[0].float()

    start = len(text) - 6
    mask = torch.ones(start, start, dtype=torch.bool).tril()
    rows = run(text[:start], list(range(start)), mask)
    torch.testing.assert_close(rows, oracle(text[:start]), atol=1e-4, rtol=0)
    rows = run(text[start : start + 1], [start], None)
    torch.testing.assert_close(rows[0], oracle(text[: start + 1])[-1], atol=1e-4, rtol=0)
    # The tree: the last committed token, the true path of 5, and a branch of 2 below its third.
    tokens = [*text[start:], *branch]
    positions = [*range(start, start + 6), start + 3, start + 4]
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    mask[6:, 3:6] = False
    rows = run(tokens, positions, mask)
    torch.testing.assert_close(rows[:6], oracle(text)[-6:], atol=1e-4, rtol=0)
    other = oracle([*text[: start + 3], *branch])[-2:]
    torch.testing.assert_close(rows[6:], other, atol=1e-4, rtol=0)


@torch.no_grad()
def test_greedy_text_equals_generate(
    clips: list[Clip],
    recogniser: Recogniser,
    model: torch.nn.Module,
    record_property,
) -> None:
    """Speculation with an 80 % oracle against `generate`; a difference needs a near-tie."""
    identical = 0
    for clip in clips:
        request = recogniser.request(clip.samples(), Options(language="en"))
        generated = model.generate(
            request.features[None], language="en", task="transcribe", return_timestamps=False
        )[0].tolist()
        expected = [token for token in generated if token < recogniser.tokens.end_of_text]
        (result,) = recogniser.run([request])
        ours = list(result.tokens)
        if ours == expected:
            identical += 1
            continue
        at = first_difference(expected, ours)
        margin = top2_margin(
            recogniser, request, [*request.prompt, *ours[:at]], len(request.prompt)
        )
        print(f"{clip.id}: parts at {at}, top-2 margin {margin:.2e}")
        assert margin < NEAR_TIE
    print(f"{identical} of {len(clips)} texts equal to generate's")
    assert identical >= len(clips) * 0.9
