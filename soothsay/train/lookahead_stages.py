"""Look-ahead masks from shards to a directory, weighed against the lattice, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from soothsay.bench.foretelling import Foretelling
from soothsay.drafters.choose import MASKS_FOLDER as FOLDER
from soothsay.drafters.choose import lattice_of, shipped_head
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
from soothsay.targets.load import ModelFiles
from soothsay.text.tokens import WhisperTokens
from soothsay.train.fit_fuse import fit
from soothsay.train.lookahead import LookaheadStudent, choose_targets
from soothsay.train.loop import Trainer, TrainSettings
from soothsay.train.report import plot, provenance, report, write
from soothsay.train.shards import Example
from soothsay.transcribe import signs_of

SETTINGS: dict[str, Any] = {"windows": 4, "learning_rate": 2e-3}


def train(
    files: ModelFiles,
    examples: list[Example],
    settings: TrainSettings,
    work: Path,
    out: Path,
    start: Path | None,
    manifests: Sequence[Path],
    update: Callable[[int], None],
) -> None:
    """Train, fit the weights beside the lattice, save."""
    torch.manual_seed(settings.seed)
    target = FrozenDecoder(files)
    learned = [e for e in examples if not e.held_out]
    vocabulary = choose_targets(learned)
    origin: dict[str, Any] = {}
    if start is None:
        sizes = mask_sizes_for(files.config.width, target.products, files.parameters)
        masks = LookaheadMasks(sizes)
    else:
        trained, config, known = load_masks(start / FOLDER, files.sha256)
        masks = LookaheadMasks(config.sizes)
        masks.load_state_dict(trained.state_dict())
        vocabulary = torch.unique(torch.cat([vocabulary, known]))
        settings = replace(settings, learning_rate=settings.learning_rate / 2)
        origin = {"went_on_from": config.provenance}
    student = LookaheadStudent(masks, target, vocabulary)
    trainer = Trainer(student, examples, settings, work / FOLDER)
    trainer.run(update)
    config = MasksConfig(
        target=files.config.name,
        weights_sha256=files.sha256,
        sizes=masks.sizes,
        provenance=provenance(trainer, files, manifests) | origin,
    )
    save_masks(out / FOLDER, masks, config, vocabulary)
    judged = [e for e in examples if e.held_out]
    refit(files, judged, out)


def refit(files: ModelFiles, examples: Sequence[Example], out: Path) -> None:
    """Weigh the masks of a directory anew against its lattice head, or the one that ships."""
    masks, config, vocabulary = load_masks(out / FOLDER, files.sha256)
    drafter = _drafter(files, out)
    if isinstance(drafter, FusedDrafter):
        foretelling = Foretelling(drafter.look.masks, FrozenDecoder(files))
        config = MasksConfig(
            config.target,
            config.weights_sha256,
            config.sizes,
            fit(drafter, examples, foretelling),
            config.provenance,
        )
        save_masks(out / FOLDER, masks, config, vocabulary)


def evaluate(
    files: ModelFiles, examples: Sequence[Example], work: Path, out: Path
) -> dict[str, Any]:
    """Figures of the finished masks with the lattice they are weighed against."""
    masks, config, vocabulary = load_masks(out / FOLDER, files.sha256)
    drafter = _drafter(files, out)
    held_out = [e for e in examples if e.held_out]
    figures = report(drafter, held_out, Foretelling(masks, FrozenDecoder(files)))
    config.provenance["held_out"] = {"tokens_per_forward": figures["tokens_per_forward"]}
    save_masks(out / FOLDER, masks, config, vocabulary)
    write(figures, work / "evaluation-lookahead.json")
    plot(figures, work / FOLDER / "history.json", work / "evaluation-lookahead.svg")
    return figures


def _drafter(files: ModelFiles, out: Path) -> FusedDrafter | LookaheadDrafter:
    masks, config, vocabulary = load_masks(out / FOLDER, files.sha256)
    embedding = files.tensors["model.decoder.embed_tokens.weight"]
    signs = signs_of(WhisperTokens.from_file(files.tokenizer_json))
    look = LookaheadDrafter(masks, vocabulary, embedding, signs.end)
    folder = out if (out / "config.json").is_file() else shipped_head(files)
    return (
        look
        if folder is None
        else FusedDrafter(look, lattice_of(folder, files, signs), config.fuse)
    )
