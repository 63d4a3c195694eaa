"""One training job: what every drafter's stages are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soothsay.drafters.lattice import Signs
from soothsay.targets.load import ModelFiles
from soothsay.text.tokens import WhisperTokens
from soothsay.train.loop import Trainer, TrainSettings
from soothsay.train.report import provenance
from soothsay.train.shards import Example
from soothsay.transcribe import signs_of


@dataclass(frozen=True, slots=True)
class Job:
    """examples: held out ones included; work: checkpoints and figures; out: the drafters' folder;
    start: another to go on from, at half the learning rate."""

    files: ModelFiles
    examples: Sequence[Example]
    settings: TrainSettings
    work: Path
    out: Path
    start: Path | None = None
    manifests: Sequence[Path] = ()

    @property
    def learned(self) -> list[Example]:
        return [example for example in self.examples if not example.held_out]

    @property
    def held_out(self) -> list[Example]:
        return [example for example in self.examples if example.held_out]

    @property
    def signs(self) -> Signs:
        return signs_of(WhisperTokens.from_file(self.files.tokenizer_json))

    def provenance(self, trainer: Trainer, went_on_from: dict[str, Any] | None) -> dict[str, Any]:
        origin = {} if went_on_from is None else {"went_on_from": went_on_from}
        return provenance(trainer, self.files, self.manifests) | origin
