"""Training of the lattice head: resumable, stopped by what counts, tokens per forward."""

from __future__ import annotations

import json
import logging
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from soothsay.bench.acceptance import measure
from soothsay.drafters.head import LatticeHead
from soothsay.drafters.lattice import LatticeDrafter, Signs
from soothsay.train.losses import Batch, ctc_loss, frame_loss, frames_of
from soothsay.train.shards import Example
from soothsay.types import SoothsayError

JUDGED_NODES = 8  # drafted nodes at which checkpoints are compared
JUDGED_WINDOWS = 24
STEPS = 4000
CTC_FROM = 0.55  # share of the training after which CTC joins the frame labels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """steps of `windows` windows each; every `evaluate_every` steps the held-out acceptance is
    taken, and training ends when it has not risen for `patience` times."""

    steps: int = STEPS
    windows: int = 6
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    dropout: float = 0.1
    soften: float = 0.3
    average: float = 0.995  # of the weights, over steps
    evaluate_every: int = 250
    patience: int = 6
    seed: int = 0


def choose_vocabulary(examples: Sequence[Example], end_token: int) -> Tensor:
    """(C,) ascending ids of the tokens that the target wrote, or nearly wrote, in these windows."""
    written: Counter[int] = Counter()
    for example in examples:
        written.update(example.tokens.tolist())
        likely = example.soft_tokens[example.soft_probs > 0.05]
        written.update(likely.tolist())
    return torch.tensor(sorted(token for token in written if token < end_token))


def make_batch(
    examples: Sequence[Example], column_of: Tensor, stride: int, chance: torch.Generator | None
) -> Batch:
    """column_of: (V,) the vocabulary column of every token, -1 outside. With `chance`, hidden
    states are masked in stretches of time and channels (after SpecAugment, Park et al., 2019)."""
    longest = max(len(e.hidden) for e in examples)
    longest += -longest % (2 * stride)
    most = max(len(e.tokens) - 1 for e in examples)
    soft_width = examples[0].soft_tokens.shape[1]
    count = len(examples)
    hidden = torch.zeros(count, longest, examples[0].hidden.shape[1])
    batch = Batch(
        hidden=hidden,
        frames=torch.tensor([len(e.hidden) // stride for e in examples]),
        tokens=torch.full((count, most), -1),
        at=torch.zeros((count, most), dtype=torch.int64),
        before=torch.zeros((count, most), dtype=torch.int64),
        soft=torch.full((count, most, soft_width), -1),
        soft_probs=torch.zeros((count, most, soft_width)),
    )
    for row, example in enumerate(examples):
        n = len(example.tokens) - 1
        states = example.hidden.float()
        hidden[row, : len(states)] = states if chance is None else _masked(states, chance)
        batch.tokens[row, :n] = column_of[example.tokens[:-1]]
        batch.at[row, :n] = frames_of(example, stride).clamp(max=int(batch.frames[row]) - 1)
        batch.before[row, 0] = example.prompt[-1]
        batch.before[row, 1:n] = example.tokens[: n - 1]
        batch.soft[row, :n] = column_of[example.soft_tokens[:-1].long()]
        batch.soft_probs[row, :n] = example.soft_probs[:-1].float()
    return batch


def _masked(states: Tensor, chance: torch.Generator) -> Tensor:
    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=chance))

    states = states.clone()
    for _ in range(len(states) // 150):
        start = draw(len(states))
        states[start : start + draw(16)] = 0.0
    dropped = torch.rand(states.shape[1], generator=chance) < 0.05
    states[:, dropped] = 0.0
    return states * (1.0 + 0.1 * torch.randn((), generator=chance))


class Trainer:
    """One training run in a folder: its checkpoint, its history, its best head."""

    def __init__(
        self,
        head: LatticeHead,
        embedding: Tensor,
        vocabulary: Tensor,
        signs: Signs,
        examples: Sequence[Example],
        settings: TrainSettings,
        folder: Path,
    ) -> None:
        """embedding: (V, width) the target's output embedding; examples: held out ones included."""
        self.head, self.settings, self.folder = head, settings, folder
        self.embedding, self.vocabulary, self.signs = embedding, vocabulary, signs
        self.training = [e for e in examples if not e.held_out]
        judged = [e for e in examples if e.held_out]
        if not self.training or not judged:
            raise SoothsayError("training needs windows to learn from and held-out ones: add audio")
        self.judged = judged[:: max(1, len(judged) // JUDGED_WINDOWS)]
        self._column_of = torch.full((len(embedding),), -1)
        self._column_of[vocabulary] = torch.arange(len(vocabulary))
        self._kept = embedding[vocabulary].float()
        self.optimizer = torch.optim.AdamW(
            head.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.average = {name: t.clone() for name, t in head.state_dict().items()}
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
        self.head.load_state_dict(self.best)
        return max((row["tokens_per_forward"] for row in self.history), default=0.0)

    def _train_step(self) -> None:
        settings = self.settings
        drawn = settings.seed * 1_000_003 + self.step
        torch.manual_seed(drawn)  # of dropout too: an interrupted run goes on as it would have
        batch = make_batch(
            self._windows_of(self.step),
            self._column_of,
            self.head.sizes.stride,
            torch.Generator().manual_seed(drawn),
        )
        share = self.step / settings.steps
        warm = min(1.0, (self.step + 1) / (0.03 * settings.steps + 1))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * share))
        self.head.train()
        gate, features = self.head(batch.hidden)
        classifier = self.head.classifier(self._kept)
        loss = frame_loss(
            self.head,
            gate,
            features,
            classifier,
            self.embedding,
            self._kept,
            batch,
            settings.soften,
        )
        if share >= CTC_FROM:
            loss = 0.5 * loss + ctc_loss(gate, features, classifier, batch)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self._running.append(float(loss.detach()))
        decay = min(settings.average, self.step / (self.step + 10))
        with torch.no_grad():
            for name, tensor in self.head.state_dict().items():
                self.average[name].lerp_(tensor, 1 - decay)

    def _windows_of(self, step: int) -> list[Example]:
        """Every window once an epoch, in an order that follows from the seed and the epoch."""
        size, count = self.settings.windows, len(self.training)
        chosen = []
        for place in range(step * size, (step + 1) * size):
            epoch, index = divmod(place, count)
            chosen.append(self.training[_order(self.settings.seed, epoch, count)[index]])
        return chosen

    def drafter(self, weights: dict[str, Tensor]) -> LatticeDrafter:
        """The head with these weights, as it would draft."""
        head = LatticeHead(self.head.sizes)
        head.load_state_dict(weights)
        head.eval().requires_grad_(False)
        return LatticeDrafter(head, self.vocabulary, self.embedding, self.signs)

    def _judge(self) -> None:
        counts = measure(self.drafter(self.average), self.judged, JUDGED_NODES)
        row = {
            "step": self.step,
            "loss": sum(self._running) / max(len(self._running), 1),
            "tokens_per_forward": counts.tokens_per_forward,
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
            "head": self.head.state_dict(),
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
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.best = state["average"], state["best"]

    def _fingerprint(self) -> str:
        facts = [asdict(replace(self.settings, patience=0)), asdict(self.head.sizes)]
        return json.dumps([*facts, len(self.training), len(self.vocabulary)], sort_keys=True)


def _order(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order
