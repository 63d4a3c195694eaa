"""How fast decoding is, plainly and speculatively, on the same audio in turn in one run.

Clip by clip both ways run one after the other, so a machine that slows down slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from soothsay.bench.workload import Clip, hint_for, provenance
from soothsay.engine.request import Request, Result
from soothsay.targets.target import TreeBatch, TreeSpan
from soothsay.transcribe import Options, Recogniser
from soothsay.types import SequenceStats

STEP_NODES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
STEP_CONTEXT = 60  # committed tokens while step costs are taken: a typical middle of a segment
STEP_REPEATS = 15


@dataclass(slots=True)
class Side:
    """One way of decoding, summed over clips; seconds."""

    stats: SequenceStats = field(default_factory=SequenceStats)
    wall_seconds: float = 0.0

    @property
    def decode_seconds(self) -> float:
        """All of it but the encoder."""
        return self.wall_seconds - self.stats.encode_seconds

    def run(self, recogniser: Recogniser, request: Request) -> tuple[Result, float]:
        """Run one request, add it up → its result, and its decode seconds."""
        started = time.perf_counter()
        (result,) = recogniser.run([request])
        wall = time.perf_counter() - started
        self.stats.add(result.stats)
        self.wall_seconds += wall
        return result, wall - result.stats.encode_seconds

    def report(self) -> dict[str, Any]:
        decode, stats = self.decode_seconds, self.stats
        return {
            "tokens": stats.tokens,
            "target_forwards": stats.target_forwards,
            "ms_per_token": 1e3 * decode / stats.tokens,
            "ms_per_step": 1e3 * decode / stats.target_forwards,
            "encode_seconds": stats.encode_seconds,
            "decode_seconds": decode,
            # Everything that is neither the target's forward nor the encoder.
            "outside_forward_share": 1 - stats.verify_seconds / decode,
        }


def bench_decode(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Decode the first window of every clip plainly, then speculatively → the report.

    The plain text is handed over as hint: the oracle drafts from it, no other drafter sees it.
    """
    plain, ours = Side(), Side()
    ratios, identical, audio_seconds, feature_seconds = [], 0, 0.0, 0.0
    for number, clip in enumerate(clips):
        started = time.perf_counter()
        samples = clip.samples()[: 30 * 16_000]
        wanted = replace(options, language=options.language or clip.language)
        request = recogniser.request(samples, wanted)
        feature_seconds += time.perf_counter() - started
        audio_seconds += len(samples) / 16_000
        off = replace(request, speculate=False)
        if number == 0:  # warm-up of both ways, not counted
            warm, _ = Side().run(recogniser, off)
            Side().run(recogniser, replace(request, hint=hint_for(recogniser, warm)))
        expected, plain_seconds = plain.run(recogniser, off)
        result, seconds = ours.run(
            recogniser, replace(request, hint=hint_for(recogniser, expected))
        )
        identical += result.tokens == expected.tokens
        ratios.append(plain_seconds / seconds)
        progress()
    costs = forward_costs(recogniser, request)
    return {
        "clips": len(clips),
        "identical": identical,
        "audio_seconds": audio_seconds,
        "tokens_per_forward": ours.stats.tokens_per_forward,
        "decode_ratio": plain.decode_seconds / ours.decode_seconds,
        "decode_ratio_median": statistics.median(ratios),
        "end_to_end_ratio": (plain.wall_seconds + feature_seconds)
        / (ours.wall_seconds + feature_seconds),
        "draft_share": ours.stats.draft_seconds / ours.decode_seconds,
        "step_ratio": ours.report()["ms_per_step"] / plain.report()["ms_per_step"],
        "acceptance_by_depth": [
            accepted / drafted
            for accepted, drafted in zip(
                ours.stats.accepted_per_depth, ours.stats.drafted_per_depth, strict=True
            )
            if drafted
        ],
        "plain": plain.report(),
        "speculative": ours.report(),
        "forward_ms_by_nodes": costs,
        "forward_ratio_by_nodes": {nodes: cost / costs[1] for nodes, cost in costs.items()},
        "provenance": provenance(recogniser),
    }


@torch.inference_mode()
def forward_costs(recogniser: Recogniser, request: Request) -> dict[int, float]:
    """Median milliseconds of one target forward and one wave of logits over chains of n nodes.

    Sizes take turns, so that a noisy moment does not land on one of them alone.
    """
    target, arena = recogniser.target, recogniser.engine.arena
    target.write_cross(target.encode(request.features[None]), arena, [0])
    context = min(STEP_CONTEXT, target.spec.max_length - max(STEP_NODES))
    seconds: dict[int, list[float]] = {nodes: [] for nodes in STEP_NODES}
    for _ in range(STEP_REPEATS):
        for nodes, taken in seconds.items():
            batch = TreeBatch(
                tokens=torch.zeros(nodes, dtype=torch.int64),
                positions=torch.arange(context, context + nodes),
                spans=(TreeSpan(0, nodes, 0, context, 0, _chain(nodes)),),
            )
            started = time.perf_counter()
            hidden = target.forward_tree(batch, arena)
            target.logits(hidden[: target.logit_rows or nodes])
            taken.append(time.perf_counter() - started)
    return {nodes: 1e3 * statistics.median(taken) for nodes, taken in seconds.items()}


def _chain(nodes: int) -> torch.Tensor | None:
    return torch.ones((nodes, nodes), dtype=torch.bool).tril_() if nodes > 1 else None
