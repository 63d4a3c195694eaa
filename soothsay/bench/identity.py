"""Token identity: is what speculation writes, token for token, what plain decoding writes?

Plain decoding runs clip by clip, alone; speculation runs `batch` clips as parallel sequences. So
one comparison covers the trees and the company a sequence keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from soothsay.bench.workload import Clip, hint_for, provenance
from soothsay.engine.request import Request
from soothsay.targets.target import TreeBatch, TreeSpan
from soothsay.transcribe import Options, Recogniser
from soothsay.types import OptionError, SequenceStats


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a clip's outputs part: output position, and the target's top-2 logit margin there.

    The margin is taken after all logit rules; a tiny one marks a near-tie that forwards of
    different width may round either way.
    """

    id: str
    position: int
    margin: float


def check_identity(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    batch: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Decode the first window of every clip both ways at temperature 0 → the report."""
    if not options.sampling.greedy:
        raise OptionError(
            "token identity is defined at temperature 0; above it the distributions are equal, "
            "which the tests prove by enumeration"
        )
    divergences: list[Divergence] = []
    stats = SequenceStats()
    retried = 0
    for start in range(0, len(clips), batch):
        group = clips[start : start + batch]
        requests = [
            recogniser.request(
                clip.samples()[: 30 * 16_000],
                replace(options, language=options.language or clip.language),
            )
            for clip in group
        ]
        plain = [recogniser.run([replace(r, speculate=False)])[0] for r in requests]
        ours = recogniser.run(
            [replace(r, hint=hint_for(recogniser, p)) for r, p in zip(requests, plain, strict=True)]
        )
        for clip, request, expected, result in zip(group, requests, plain, ours, strict=True):
            stats.add(result.stats)
            retried += expected.attempts > 1
            if result.tokens != expected.tokens:
                at = first_difference(expected.tokens, result.tokens)
                prefix = [*expected.prompt, *expected.tokens[:at]]
                margin = top2_margin(recogniser, request, prefix, len(expected.prompt))
                divergences.append(Divergence(clip.id, at, margin))
            progress()
    return {
        "total": len(clips),
        "identical": len(clips) - len(divergences),
        "identity_rate": 1 - len(divergences) / len(clips),
        "divergences": [asdict(d) for d in divergences],
        "retried": retried,
        "tokens": stats.tokens,
        "tokens_per_forward": stats.tokens_per_forward,
        "provenance": provenance(recogniser, batch=batch),
    }


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first index where two unequal sequences part (the shorter one's end counts)."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@torch.inference_mode()
def top2_margin(
    recogniser: Recogniser, request: Request, prefix: Sequence[int], prompt_length: int
) -> float:
    """Difference of the two highest filtered logits after `prefix`, by one forward over it all."""
    target, arena = recogniser.target, recogniser.engine.arena
    target.write_cross(target.encode(request.features[None]), arena, [0])
    rows = len(prefix)
    mask = torch.ones((rows, rows), dtype=torch.bool).tril_() if rows > 1 else None
    batch = TreeBatch(
        tokens=torch.tensor(prefix),
        positions=torch.arange(rows),
        spans=(TreeSpan(0, rows, 0, 0, 0, mask),),
    )
    logits = target.logits(target.forward_tree(batch, arena)[-1:])
    for rule in request.filters:
        rule.apply(logits, [prefix[prompt_length:]])
    best, second = logits[0].topk(2).values.tolist()
    return float(best - second)
