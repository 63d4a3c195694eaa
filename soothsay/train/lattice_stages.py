"""A lattice head from shards to a directory, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from soothsay.console import errors
from soothsay.drafters.choose import lattice_of
from soothsay.drafters.head import HeadConfig, LatticeHead, load_head, save_head, sizes_for
from soothsay.train.calibrate import calibrate
from soothsay.train.job import Job
from soothsay.train.lattice import CTC_FROM, DROPOUT, LatticeStudent, choose_vocabulary
from soothsay.train.lens import begin_with_lens
from soothsay.train.loop import Trainer
from soothsay.train.report import plot, report, write

SETTINGS: dict[str, Any] = {"windows": 6, "learning_rate": 2e-3}


def train(job: Job, update: Callable[[int], None]) -> None:
    """Train, choose the drafting settings, save."""
    files, settings, signs = job.files, job.settings, job.signs
    torch.manual_seed(settings.seed)
    vocabulary = choose_vocabulary(job.learned, signs.end)
    went_on_from = None
    ctc_from = CTC_FROM
    if job.start is None:
        width = files.config.width
        head = LatticeHead(sizes_for(width, width, files.parameters), DROPOUT)
        begin_with_lens(head, files.tensors, job.learned)
    else:
        trained, config, known = load_head(job.start, files.sha256)
        head = LatticeHead(config.sizes, DROPOUT)
        head.load_state_dict(trained.state_dict())
        vocabulary = torch.unique(torch.cat([vocabulary, known]))
        settings = replace(settings, learning_rate=settings.learning_rate / 2)
        ctc_from, went_on_from = 0.0, config.provenance
    embedding = files.tensors["model.decoder.embed_tokens.weight"]
    student = LatticeStudent(head, embedding, vocabulary, signs, ctc_from)
    trainer = Trainer(student, job.examples, settings, job.work / "lattice")
    trainer.run(update)
    errors.print("choosing drafting settings", highlight=False)
    chosen = calibrate(student.drafter(trainer.best), trainer.judged)
    config = HeadConfig(
        target=files.config.name,
        weights_sha256=files.sha256,
        sizes=head.sizes,
        settings=chosen,
        provenance=job.provenance(trainer, went_on_from),
    )
    save_head(job.out, head, config, vocabulary)


def evaluate(job: Job) -> dict[str, Any]:
    """Figures of the finished head, as it is loaded, on every held-out window."""
    head, config, vocabulary = load_head(job.out, job.files.sha256)
    figures = report(lattice_of(job.out, job.files, job.signs), job.held_out)
    config.provenance["held_out"] = {
        key: figures[key] for key in ("tokens_per_forward", "chain_tokens_per_forward")
    }
    save_head(job.out, head, config, vocabulary)
    write(figures, job.work / "evaluation.json")
    plot(figures, job.work / "lattice" / "history.json", job.work / "evaluation.svg")
    return figures
