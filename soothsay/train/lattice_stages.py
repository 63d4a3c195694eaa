"""A lattice head from shards to a directory, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from soothsay.drafters.head import HeadConfig, LatticeHead, load_head, save_head, sizes_for
from soothsay.drafters.lattice import LatticeDrafter
from soothsay.targets.load import ModelFiles
from soothsay.text.tokens import WhisperTokens
from soothsay.train.calibrate import calibrate
from soothsay.train.lattice import CTC_FROM, DROPOUT, LatticeStudent, choose_vocabulary
from soothsay.train.lens import begin_with_lens
from soothsay.train.loop import Trainer, TrainSettings
from soothsay.train.report import plot, provenance, report, write
from soothsay.train.shards import Example
from soothsay.transcribe import signs_of

SETTINGS: dict[str, Any] = {"windows": 6, "learning_rate": 2e-3}


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
    """Train, choose the drafting settings, save."""
    signs = signs_of(WhisperTokens.from_file(files.tokenizer_json))
    embedding = files.tensors["model.decoder.embed_tokens.weight"]
    torch.manual_seed(settings.seed)
    learned = [e for e in examples if not e.held_out]
    vocabulary = choose_vocabulary(learned, signs.end)
    origin: dict[str, Any] = {}
    if start is None:
        width = files.config.width
        head = LatticeHead(sizes_for(width, width, files.parameters), DROPOUT)
        begin_with_lens(head, files.tensors, learned)
        ctc_from = CTC_FROM
    else:
        trained, config, known = load_head(start, files.sha256)
        head = LatticeHead(config.sizes, DROPOUT)
        head.load_state_dict(trained.state_dict())
        vocabulary = torch.unique(torch.cat([vocabulary, known]))
        settings = replace(settings, learning_rate=settings.learning_rate / 2)
        ctc_from, origin = 0.0, {"went_on_from": config.provenance}
    student = LatticeStudent(head, embedding, vocabulary, signs, ctc_from)
    trainer = Trainer(student, examples, settings, work / "lattice")
    trainer.run(update)
    chosen = calibrate(student.drafter(trainer.best), trainer.judged)
    config = HeadConfig(
        target=files.config.name,
        weights_sha256=files.sha256,
        sizes=head.sizes,
        settings=chosen,
        provenance=provenance(trainer, files, manifests) | origin,
    )
    save_head(out, head, config, vocabulary)


def evaluate(
    files: ModelFiles, examples: Sequence[Example], work: Path, out: Path
) -> dict[str, Any]:
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
    plot(figures, work / "lattice" / "history.json", work / "evaluation.svg")
    return figures
