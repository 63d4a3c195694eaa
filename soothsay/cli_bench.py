"""`soothsay verify` and `soothsay bench`: is it exact, and what does it gain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from soothsay.bench.decode import bench_decode
from soothsay.bench.drafts import bench_drafts
from soothsay.bench.identity import check_identity
from soothsay.bench.peers import bench_peers
from soothsay.bench.times import bench_times
from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.cli_options import (
    Dtype,
    Groups,
    Json,
    Language,
    Limit,
    Manifest,
    Masks,
    Model,
    Nodes,
    Prompt,
    Threads,
    make_recogniser,
)
from soothsay.console import clear_errors, counter, print_json, print_report, tables
from soothsay.drafters.choose import NAMES
from soothsay.fallback import Fallback
from soothsay.transcribe import DEFAULT_GROUPS, DEFAULT_MASKS, DEFAULT_NODES, Options
from soothsay.types import Sampling

bench_app = typer.Typer(help="Measure. Everything compared runs in turn in one run.")


def verify(
    manifest: Manifest,
    model: Model = "base",
    drafter: Annotated[str, typer.Option(help=NAMES)] = "auto",
    limit: Limit = None,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Sequences drafted at once.")] = 1,
    dtype: Dtype = "float32",
    temperature: Annotated[float, typer.Option(help="Only 0 has an identity to check.")] = 0.0,
    language: Language = None,
    timestamps: Annotated[str, typer.Option(help="none or segment.")] = "none",
    prompt: Prompt = None,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="With retries at higher temperatures, seeded.")
    ] = False,
    nodes: Nodes = DEFAULT_NODES,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Compare speculative with plain output, token for token. In float32 any difference exits 1."""
    with clear_errors():
        options = Options(
            language=language,
            timestamps=timestamps,
            sampling=Sampling(temperature=temperature),
            prompt=prompt,
            fallback=Fallback() if fallback else None,
        )
        clips = read_manifest(manifest, limit)
        recogniser = make_recogniser(
            model, threads, drafter=drafter, dtype=dtype, nodes=nodes, max_sequences=batch
        )
        recogniser.check(options)
        with counter("verify", len(clips)) as advance:
            report = check_identity(recogniser, clips, options, batch, advance)
    if as_json:
        print_json(report)
    else:
        tables.print(f"{report['identical']} of {report['total']} clips identical")
        for divergence in report["divergences"]:
            tables.print(
                f"  {divergence['id']}: position {divergence['position']}, "
                f"top-2 margin {divergence['margin']:.2e}"
            )
    if recogniser.target.dtype == torch.float32 and report["identical"] != report["total"]:
        raise typer.Exit(1)


def _add_bench(name: str, measure: Callable[..., dict[str, Any]], help: str) -> None:
    """`bench NAME`: all measurements are asked for alike."""

    @bench_app.command(name, help=help)
    def _(
        manifest: Annotated[Path | None, typer.Option(help="Default: the clips that ship.")] = None,
        model: Model = "base",
        drafter: Annotated[str, typer.Option(help=NAMES)] = "auto",
        limit: Limit = None,
        dtype: Dtype = "auto",
        nodes: Nodes = DEFAULT_NODES,
        groups: Groups = DEFAULT_GROUPS,
        masks: Masks = DEFAULT_MASKS,
        threads: Threads = None,
        as_json: Json = False,
    ) -> None:
        with clear_errors():
            clips = read_manifest(manifest or CLIPS, limit)
            recogniser = make_recogniser(
                model,
                threads,
                drafter=drafter,
                dtype=dtype,
                nodes=nodes,
                groups=groups,
                masks=masks,
            )
            with counter(f"bench {name}", len(clips)) as advance:
                report = measure(recogniser, clips, Options(), advance)
        print_report(report, as_json)


_add_bench("decode", bench_decode, "Plain against speculative decoding, clip by clip in turn.")
_add_bench("drafts", bench_drafts, "Tokens per forward by node budget, of each drafter alone.")
_add_bench("peers", bench_peers, "Ours against other engines': same audio, weights and threads.")
_add_bench("times", bench_times, "Errors of the times of words, on joined utterances.")
