"""The training loop of every drafter: resumable, stopped by what counts, tokens per forward."""

from __future__ import annotations

import json
import logging
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from soothsay.train.shards import Example
from soothsay.types import SoothsayError

JUDGED_NODES = 8  # drafted nodes at which checkpoints are compared
JUDGED_WINDOWS = 24
STEPS = 4000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """steps of `windows` windows each; every `evaluate_every` steps the held-out acceptance is
    taken, and training ends when it has not risen for `patience` times."""

    steps: int = STEPS
    windows: int = 6
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    average: float = 0.995  # of the weights, over steps
    evaluate_every: int = 250
    patience: int = 6
    seed: int = 0


class Student(Protocol):
    """What is trained: its weights, what it loses on some windows, and how well it drafts."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def facts(self) -> dict[str, Any]:
        """What makes a checkpoint one of this student."""
        ...

    def loss(self, examples: Sequence[Example], share: float, chance: torch.Generator) -> Tensor:
        """share: of the training that is over; chance: of masks and the like."""
        ...

    def judge(self, weights: dict[str, Tensor], examples: Sequence[Example]) -> float:
        """Tokens per forward with these weights, at JUDGED_NODES drafted nodes."""
        ...


class Trainer:
    """One training run in a folder: its checkpoint, its history, its best weights."""

    def __init__(
        self,
        student: Student,
        examples: Sequence[Example],
        settings: TrainSettings,
        folder: Path,
    ) -> None:
        """examples: held out ones included."""
        self.student, self.settings, self.folder = student, settings, folder
        self.training = [e for e in examples if not e.held_out]
        judged = [e for e in examples if e.held_out]
        if not self.training or not judged:
            raise SoothsayError("training needs windows to learn from and held-out ones: add audio")
        self.judged = judged[:: max(1, len(judged) // JUDGED_WINDOWS)]
        self.optimizer = torch.optim.AdamW(
            student.module.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.average = {name: t.clone() for name, t in student.module.state_dict().items()}
        self.best = dict(self.average)
        self.step = 0
        self.history: list[dict[str, float]] = []
        self._running: list[float] = []

    def run(self, progress: Callable[[int], None] = lambda step: None) -> float:
        """Train to the end, or until held-out acceptance has not risen for long → the best τ."""
        self._resume()
        while self.step < self.settings.steps and not self._stuck():
            self._train_step()
            progress(self.step)
            if self.step % self.settings.evaluate_every == 0 or self.step == self.settings.steps:
                self._judge()
        self.student.module.load_state_dict(self.best)
        return max((row["tokens_per_forward"] for row in self.history), default=0.0)

    def _train_step(self) -> None:
        settings = self.settings
        drawn = settings.seed * 1_000_003 + self.step
        torch.manual_seed(drawn)  # of dropout too: an interrupted run goes on as it would have
        share = self.step / settings.steps
        warm = min(1.0, (self.step + 1) / (0.03 * settings.steps + 1))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * share))
        self.student.module.train()
        loss = self.student.loss(
            self._windows_of(self.step), share, torch.Generator().manual_seed(drawn)
        )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.student.module.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self._running.append(float(loss.detach()))
        decay = min(settings.average, self.step / (self.step + 10))
        with torch.no_grad():
            for name, tensor in self.student.module.state_dict().items():
                self.average[name].lerp_(tensor, 1 - decay)

    def _windows_of(self, step: int) -> list[Example]:
        """Every window once an epoch, in an order that follows from the seed and the epoch."""
        size, count = self.settings.windows, len(self.training)
        chosen = []
        for place in range(step * size, (step + 1) * size):
            epoch, index = divmod(place, count)
            chosen.append(self.training[_order(self.settings.seed, epoch, count)[index]])
        return chosen

    def _judge(self) -> None:
        row = {
            "step": self.step,
            "loss": sum(self._running) / max(len(self._running), 1),
            "tokens_per_forward": self.student.judge(self.average, self.judged),
        }
        self._running = []
        if all(row["tokens_per_forward"] > past["tokens_per_forward"] for past in self.history):
            self.best = {name: tensor.clone() for name, tensor in self.average.items()}
        self.history.append(row)
        logger.info("%s", row)
        self._save()

    def _stuck(self) -> bool:
        scores = [row["tokens_per_forward"] for row in self.history]
        return (
            len(scores) - 1 - scores.index(max(scores)) >= self.settings.patience
            if scores
            else False
        )

    # -- checkpoint -----------------------------------------------------------------------------

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / "checkpoint.tmp"
        state: dict[str, Any] = {
            "fingerprint": self._fingerprint(),
            "step": self.step,
            "head": self.student.module.state_dict(),
            "average": self.average,
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
        }
        try:
            torch.save(state, scratch)
            os.replace(scratch, self.folder / "checkpoint.pt")
            text = json.dumps(
                {"settings": asdict(self.settings), "history": self.history}, indent=1
            )
            (self.folder / "history.json").write_text(text + "\n", encoding="utf-8")
        except (OSError, RuntimeError) as error:
            raise SoothsayError(f"cannot write to {self.folder}: {error}") from error

    def _resume(self) -> None:
        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            return
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises what its unpickler happens to
            logger.error("%s cannot be read (%s): training starts anew", path, error)
            return
        if state["fingerprint"] != self._fingerprint():
            raise SoothsayError(
                f"{path} belongs to another run: delete it, or give another --work folder"
            )
        self.step, self.history = state["step"], state["history"]
        self.student.module.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.best = state["average"], state["best"]

    def _fingerprint(self) -> str:
        facts = [asdict(replace(self.settings, patience=0)), self.student.facts]
        return json.dumps([*facts, len(self.training)], sort_keys=True)


def _order(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order
