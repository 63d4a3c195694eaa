"""`soothsay train-head`: label, train and evaluate, each stage resumable on its own."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from soothsay.console import clear_errors, errors, print_report, progress
from soothsay.drafters.head import HeadConfig, LatticeHead, load_head, save_head, sizes_for
from soothsay.drafters.lattice import LatticeDrafter
from soothsay.targets.load import ModelFiles, resolve
from soothsay.text.tokens import WhisperTokens
from soothsay.train.calibrate import calibrate
from soothsay.train.distil import label
from soothsay.train.lens import begin_with_lens
from soothsay.train.loop import STEPS, Trainer, TrainSettings, choose_vocabulary
from soothsay.train.report import plot, report, write
from soothsay.train.shards import Example, read_all
from soothsay.train.windows import plan_windows
from soothsay.transcribe import signs_of
from soothsay.types import OptionError


class Stage(StrEnum):
    """What to do; `all` is the three in turn."""

    ALL = "all"
    LABEL = "label"
    TRAIN = "train"
    EVALUATE = "evaluate"


def train_head(
    work: Annotated[Path, typer.Option(help="Shards, checkpoints and curves go there.")],
    out: Annotated[Path, typer.Option(help="The finished head's directory.")],
    manifest: Annotated[
        list[Path] | None, typer.Option(help="Audio to learn from; repeat it for several sets.")
    ] = None,
    model: Annotated[str, typer.Option(help="A model's name, or its directory.")] = "base",
    stage: Annotated[Stage, typer.Option(help="One stage alone.")] = Stage.ALL,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Use that much audio.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = STEPS,
    seed: Annotated[int, typer.Option(min=0, help="Of order, masks and weights.")] = 0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Labelling processes.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON on stdout.")] = False,
) -> None:
    """Train a lattice head for a target on audio alone: the target's own text is the teacher."""
    logging.getLogger("soothsay.train").setLevel(logging.INFO)
    if threads:
        torch.set_num_threads(threads)
    with clear_errors():
        files = resolve(model)
        if stage in (Stage.ALL, Stage.LABEL):
            if not manifest:
                raise OptionError("labelling needs audio: give --manifest, once a set")
            windows = plan_windows(manifest, minutes)
            with progress("label", len(windows), "windows") as update:
                label(model, windows, work / "shards", workers, update)
        figures: dict[str, Any] = {"stage": str(stage)}
        if stage is not Stage.LABEL:
            examples = list(read_all(work / "shards", files.sha256))
            if stage in (Stage.ALL, Stage.TRAIN):
                settings = TrainSettings(steps=steps, seed=seed)
                _train(files, examples, settings, work, out, manifest or [])
            figures |= _evaluate(files, examples, work, out)
    print_report(figures, as_json)


def _train(
    files: ModelFiles,
    examples: list[Example],
    settings: TrainSettings,
    work: Path,
    out: Path,
    manifests: list[Path],
) -> None:
    signs = signs_of(WhisperTokens.from_file(files.tokenizer_json))
    embedding = files.tensors["model.decoder.embed_tokens.weight"]
    torch.manual_seed(settings.seed)
    width = files.config.width
    head = LatticeHead(sizes_for(width, width, _parameters(files)), settings.dropout)
    begin_with_lens(head, files.tensors, [e for e in examples if not e.held_out])
    trainer = Trainer(
        head,
        embedding,
        choose_vocabulary([e for e in examples if not e.held_out], signs.end),
        signs,
        examples,
        settings,
        work / "lattice",
    )
    with progress("train", settings.steps, "steps") as update:
        trainer.run(update)
    errors.print("choosing drafting settings", highlight=False)
    chosen = calibrate(trainer.drafter(trainer.best), trainer.judged)
    config = HeadConfig(
        target=files.config.name,
        weights_sha256=files.sha256,
        sizes=head.sizes,
        settings=chosen,
        provenance={
            "manifests": [f"{path.parent.name}/{path.name}" for path in manifests],
            "windows": len(trainer.training),
            "held_out_windows": len(examples) - len(trainer.training),
            "tokens": sum(len(e.tokens) for e in trainer.training),
            "parameters": head.parameter_count,
            "parameter_share": head.parameter_count / _parameters(files),
            "training": asdict(settings),
            "stopped_at_step": trainer.step,
        },
    )
    save_head(out, head, config, trainer.vocabulary)


def _evaluate(files: ModelFiles, examples: list[Example], work: Path, out: Path) -> dict[str, Any]:
    """Figures of the finished head, as it is loaded, on every held-out window."""
    head, config, vocabulary = load_head(out, files.sha256)
    drafter = LatticeDrafter(
        head,
        vocabulary,
        files.tensors["model.decoder.embed_tokens.weight"],
        signs_of(WhisperTokens.from_file(files.tokenizer_json)),
        config.settings,
    )
    figures = report(drafter, [e for e in examples if e.held_out])
    config.provenance["held_out"] = {
        key: figures[key] for key in ("tokens_per_forward", "chain_tokens_per_forward")
    }
    save_head(out, head, config, vocabulary)
    write(figures, work / "evaluation.json")
    history = work / "lattice" / "history.json"
    if history.is_file():
        rows = json.loads(history.read_text(encoding="utf-8"))["history"]
        plot(figures, rows, work / "evaluation.svg")
    return figures


def _parameters(files: ModelFiles) -> int:
    return sum(tensor.numel() for tensor in files.tensors.values())
