"""`soothsay train-head`: label, train and evaluate, each stage resumable on its own; and
`soothsay adapt`, which goes on from a trained drafter with a service's own audio."""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from soothsay.console import clear_errors, print_report, progress
from soothsay.targets.load import resolve
from soothsay.train import lattice_stages, lookahead_stages
from soothsay.train.adapt import Adaptation, adapt
from soothsay.train.distil import label
from soothsay.train.job import Job
from soothsay.train.loop import STEPS, TrainSettings
from soothsay.train.shards import read_all
from soothsay.train.windows import plan_windows
from soothsay.types import OptionError


class Kind(StrEnum):
    """Which drafter to train: both read the same shards."""

    LATTICE = "lattice"
    LOOKAHEAD = "lookahead"


class Stage(StrEnum):
    """What to do; `all` is the three in turn."""

    ALL = "all"
    LABEL = "label"
    TRAIN = "train"
    EVALUATE = "evaluate"


def train_head(
    work: Annotated[Path, typer.Option(help="Shards, checkpoints and curves go there.")],
    out: Annotated[
        Path, typer.Option(help="The drafters' directory; look-ahead masks go to out/lookahead.")
    ],
    manifest: Annotated[
        list[Path] | None, typer.Option(help="Audio to learn from; repeat it for several sets.")
    ] = None,
    noise: Annotated[
        Path | None, typer.Option(help="A manifest of sounds to lay under some of the audio.")
    ] = None,
    model: Annotated[str, typer.Option(help="A model's name, or its directory.")] = "base",
    kind: Annotated[Kind, typer.Option(help="Lattice head, or look-ahead masks.")] = Kind.LATTICE,
    start: Annotated[
        Path | None, typer.Option(help="Go on from these drafters instead of from nothing.")
    ] = None,
    stage: Annotated[Stage, typer.Option(help="One stage alone.")] = Stage.ALL,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Use that much audio.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = STEPS,
    seed: Annotated[int, typer.Option(min=0, help="Of order, masks and weights.")] = 0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Labelling processes.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON on stdout.")] = False,
) -> None:
    """Train a drafter for a target on audio alone: the target's own text is the teacher."""
    logging.getLogger("soothsay.train").setLevel(logging.INFO)
    if threads:
        torch.set_num_threads(threads)
    with clear_errors():
        files = resolve(model)
        if stage in (Stage.ALL, Stage.LABEL):
            if not manifest:
                raise OptionError("labelling needs audio: give --manifest, once a set")
            windows = plan_windows(manifest, minutes, noise)
            with progress("label", len(windows), "windows") as update:
                label(model, windows, work / "shards", workers, update)
        figures: dict[str, Any] = {"stage": str(stage), "kind": str(kind)}
        if stage is not Stage.LABEL:
            stages = lattice_stages if kind is Kind.LATTICE else lookahead_stages
            examples = list(read_all(work / "shards", files.sha256))
            settings = TrainSettings(steps=steps, seed=seed, **stages.SETTINGS)
            job = Job(files, examples, settings, work, out, start, manifest or [])
            if stage in (Stage.ALL, Stage.TRAIN):
                with progress("train", steps, "steps") as update:
                    stages.train(job, update)
            figures |= stages.evaluate(job)
    print_report(figures, as_json)


def adapt_drafters(
    manifest: Annotated[Path, typer.Option(help="The service's recent audio; needs no text.")],
    guard: Annotated[Path, typer.Option(help="Audio that must not be drafted worse.")],
    work: Annotated[Path, typer.Option(help="Labels and checkpoints go there.")],
    out: Annotated[Path, typer.Option(help="The adapted drafters' new directory.")],
    rehearse: Annotated[
        list[Path] | None, typer.Option(help="Other audio to mix in, so that it stays known.")
    ] = None,
    model: Annotated[str, typer.Option(help="A model's name, or its directory.")] = "base",
    kind: Annotated[Kind, typer.Option(help="Lattice head, or look-ahead masks.")] = Kind.LATTICE,
    start: Annotated[
        Path | None, typer.Option(help="Drafters to go on from (default: those that ship).")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of order, masks and weights.")] = 0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Labelling processes.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON on stdout.")] = False,
) -> None:
    """Adapt drafters to a service's own audio. Exits 1, and writes nothing, where they draft it no
    better than before or lose more than 2 % on the guard."""
    logging.getLogger("soothsay.train").setLevel(logging.INFO)
    if threads:
        torch.set_num_threads(threads)
    with clear_errors():
        stages = lattice_stages if kind is Kind.LATTICE else lookahead_stages
        settings = TrainSettings(
            steps=steps, seed=seed, evaluate_every=max(1, steps // 6), **stages.SETTINGS
        )
        wanted = Adaptation(
            model=model,
            recent=manifest,
            guard=guard,
            work=work,
            out=out,
            kind=str(kind),
            start=start,
            rehearse=rehearse or [],
            settings=settings,
            workers=workers,
        )
        figures = adapt(wanted, progress)
    print_report(figures, as_json)
    if not figures["adopted"]:
        raise typer.Exit(1)
