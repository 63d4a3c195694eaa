"""The demonstration: shipped clips, transcribed plainly and speculatively, side by side."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from soothsay.bench.workload import CLIPS, Clip, hint_for, read_manifest
from soothsay.engine.request import Result
from soothsay.targets.load import ModelFiles
from soothsay.transcribe import Options, Recogniser

# The last one is no real drafter: it knows the text and is right 85 % of the time, and shows what
# the engine makes of drafts that good.
DRAFTERS = ("auto", "oracle:0.85")


@dataclass(frozen=True, slots=True)
class Row:
    """One clip, one drafter. Seconds of decoding: the encoder is the same for both and left out."""

    clip: str
    drafter: str
    text: str
    identical: bool
    tokens: int
    tokens_per_forward: float
    plain_seconds: float
    speculative_seconds: float


def run_demo(files: ModelFiles, dtype: str, console: Console | None) -> dict[str, Any]:
    """Decode every shipped clip both ways with each drafter → figures; tables on `console`."""
    clips = read_manifest(CLIPS)
    rows = []
    for name in DRAFTERS:
        recogniser = Recogniser(files, dtype=dtype, drafter=name)
        rows += [_compare(recogniser, clip, name) for clip in clips]
    report = {
        "identical": all(row.identical for row in rows),
        "totals": [_total(name, [row for row in rows if row.drafter == name]) for name in DRAFTERS],
        "clips": [asdict(row) for row in rows],
    }
    if console:
        _show(console, clips, rows, report)
    return report


def _compare(recogniser: Recogniser, clip: Clip, drafter: str) -> Row:
    request = recogniser.request(clip.samples(), Options(language=clip.language))
    plain, plain_seconds = _timed(recogniser, replace(request, speculate=False))
    ours, seconds = _timed(recogniser, replace(request, hint=hint_for(recogniser, plain)))
    return Row(
        clip=clip.id,
        drafter=drafter,
        text=recogniser.tokens.decode(ours.tokens).strip(),
        identical=ours.tokens == plain.tokens,
        tokens=ours.stats.tokens,
        tokens_per_forward=ours.stats.tokens_per_forward,
        plain_seconds=plain_seconds,
        speculative_seconds=seconds,
    )


def _timed(recogniser: Recogniser, request: Any) -> tuple[Result, float]:
    started = time.perf_counter()
    (result,) = recogniser.run([request])
    return result, time.perf_counter() - started - result.stats.encode_seconds


def _total(drafter: str, rows: list[Row]) -> dict[str, Any]:
    plain = sum(row.plain_seconds for row in rows)
    ours = sum(row.speculative_seconds for row in rows)
    tokens = sum(row.tokens for row in rows)
    return {
        "drafter": drafter,
        "tokens_per_forward": tokens / sum(row.tokens / row.tokens_per_forward for row in rows),
        "plain_ms_per_token": 1e3 * plain / tokens,
        "speculative_ms_per_token": 1e3 * ours / tokens,
        "decode_ratio": plain / ours,
    }


def _show(console: Console, clips: list[Clip], rows: list[Row], report: dict[str, Any]) -> None:
    table = Table("clip", "said", "written", "identical", title="Plain and speculative output")
    by_clip = {row.clip: row for row in rows}
    for clip in clips:
        row = by_clip[clip.id]
        same = all(r.identical for r in rows if r.clip == clip.id)
        table.add_row(clip.id, clip.text, row.text, "yes" if same else "NO")
    console.print(table)
    figures = Table(
        "drafter", "tokens per forward", "plain ms/token", "speculative ms/token", "decode ratio"
    )
    for total in report["totals"]:
        figures.add_row(
            total["drafter"],
            f"{total['tokens_per_forward']:.2f}",
            f"{total['plain_ms_per_token']:.2f}",
            f"{total['speculative_ms_per_token']:.2f}",
            f"{total['decode_ratio']:.2f}",
        )
    console.print(figures)
    console.print(
        "auto: the drafter used by default. oracle:0.85: a yardstick that knows the text."
    )
