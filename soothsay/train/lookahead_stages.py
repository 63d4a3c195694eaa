"""Look-ahead masks from shards to a directory, weighed against the lattice, and their figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from soothsay.bench.foretelling import Foretelling
from soothsay.console import errors
from soothsay.drafters.choose import MASKS_FOLDER, lattice_of, lookahead_of, shipped_head
from soothsay.drafters.frozen import FrozenDecoder
from soothsay.drafters.fuse import FusedDrafter
from soothsay.drafters.lookahead import LookaheadDrafter
from soothsay.drafters.masks import (
    LookaheadMasks,
    MasksConfig,
    load_masks,
    mask_sizes_for,
    save_masks,
)
from soothsay.train.fit_fuse import fit
from soothsay.train.job import Job
from soothsay.train.lookahead import LookaheadStudent, choose_targets
from soothsay.train.loop import Trainer
from soothsay.train.report import plot, report, write

SETTINGS: dict[str, Any] = {"windows": 4, "learning_rate": 2e-3}


def train(job: Job, update: Callable[[int], None]) -> None:
    """Train, weigh beside the lattice, save."""
    files, settings = job.files, job.settings
    torch.manual_seed(settings.seed)
    target = FrozenDecoder(files)
    vocabulary = choose_targets(job.learned)
    went_on_from = None
    if job.start is None:
        sizes = mask_sizes_for(files.config.width, target.products, files.parameters)
        masks = LookaheadMasks(sizes)
    else:
        trained, config, known = load_masks(job.start / MASKS_FOLDER, files.sha256)
        masks = LookaheadMasks(config.sizes)
        masks.load_state_dict(trained.state_dict())
        vocabulary = torch.unique(torch.cat([vocabulary, known]))
        settings = replace(settings, learning_rate=settings.learning_rate / 2)
        went_on_from = config.provenance
    student = LookaheadStudent(masks, target, vocabulary, job.signs.end)
    trainer = Trainer(student, job.examples, settings, job.work / MASKS_FOLDER)
    trainer.run(update)
    config = MasksConfig(
        target=files.config.name,
        weights_sha256=files.sha256,
        sizes=masks.sizes,
        provenance=job.provenance(trainer, went_on_from),
    )
    save_masks(job.out / MASKS_FOLDER, masks, config, vocabulary)
    weigh(job)


def weigh(job: Job) -> None:
    """Fit the powers of the finished masks and of the lattice beside them on held-out windows."""
    drafter = _drafter(job)
    if isinstance(drafter, FusedDrafter):
        errors.print("weighing against the lattice", highlight=False)
        foretelling = Foretelling(drafter.look.masks, FrozenDecoder(job.files))
        masks, config, vocabulary = load_masks(job.out / MASKS_FOLDER, job.files.sha256)
        config = replace(config, fuse=fit(drafter, job.held_out, foretelling))
        save_masks(job.out / MASKS_FOLDER, masks, config, vocabulary)


def evaluate(job: Job) -> dict[str, Any]:
    """Figures of the finished masks with the lattice they are weighed against: masks behind every
    node, which no step can afford, so the best that the engine may come near."""
    drafter = _drafter(job)
    masks, config, vocabulary = load_masks(job.out / MASKS_FOLDER, job.files.sha256)
    figures = report(drafter, job.held_out, Foretelling(masks, FrozenDecoder(job.files)))
    config.provenance["held_out"] = {"tokens_per_forward": figures["tokens_per_forward"]}
    save_masks(job.out / MASKS_FOLDER, masks, config, vocabulary)
    write(figures, job.work / "evaluation-lookahead.json")
    plot(figures, job.work / MASKS_FOLDER / "history.json", job.work / "evaluation-lookahead.svg")
    return figures


def _drafter(job: Job) -> FusedDrafter | LookaheadDrafter:
    """The masks with the lattice of their folder, or with the one that ships, or alone."""
    look = lookahead_of(job.out, job.files, job.signs)
    folder = job.out if (job.out / "config.json").is_file() else shipped_head(job.files)
    if folder is None:
        return look
    _, config, _ = load_masks(job.out / MASKS_FOLDER, job.files.sha256)
    return FusedDrafter(look, lattice_of(folder, job.files, job.signs), config.fuse)
