"""What a head achieves on held-out windows, as JSON and as a picture."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from soothsay.bench.acceptance import NODE_BUDGETS, measure
from soothsay.bench.drafts import SHOWN_NODES, curves
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.history import HistoryDrafter
from soothsay.targets.load import ModelFiles
from soothsay.train.loop import Trainer
from soothsay.train.shards import Example
from soothsay.types import OptionError, SoothsayError


def provenance(trainer: Trainer, files: ModelFiles, manifests: Sequence[Path]) -> dict[str, Any]:
    """What a drafter was made from."""
    count = sum(p.numel() for p in trainer.student.module.parameters())
    return {
        "manifests": [f"{path.parent.name}/{path.name}" for path in manifests],
        "windows": len(trainer.training),
        "tokens": sum(len(e.tokens) for e in trainer.training),
        "parameters": count,
        "parameter_share": count / files.parameters,
        "training": asdict(trainer.settings) | trainer.student.facts,
        "stopped_at_step": trainer.step,
    }


def report(
    drafter: Drafter,
    examples: Sequence[Example],
    foretold: Callable[[Any], Tensor] | None = None,
) -> dict[str, Any]:
    """The curves of bench drafts over held-out windows, history alone, and each language."""
    by_language: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_language[example.language].append(example)

    def reached(judged: Drafter, windows: Sequence[Example]) -> float:
        return measure(judged, windows, SHOWN_NODES, foretold).tokens_per_forward

    return {
        "windows": len(examples),
        "tokens": sum(len(example.tokens) for example in examples),
        **curves(drafter, examples, foretold),
        "history_tokens_per_forward": reached(HistoryDrafter(), examples),
        "by_language": {
            language: reached(drafter, windows) for language, windows in sorted(by_language.items())
        },
    }


def plot(figures: dict[str, Any], history_file: Path, path: Path) -> None:
    """Loss and acceptance over steps, where a history is kept; tokens per forward by nodes. SVG or
    PNG by the name."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError('the plot needs: pip install "soothsay[train]"') from error
    history: list[dict[str, float]] = []
    if history_file.is_file():
        history = json.loads(history_file.read_text(encoding="utf-8"))["history"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in history]
    left.plot(steps, [row["loss"] for row in history], color="tab:gray", label="loss")
    left.set(xlabel="step", ylabel="training loss")
    held_out = left.twinx()
    held_out.plot(steps, [row["tokens_per_forward"] for row in history], color="tab:blue")
    held_out.set_ylabel(f"held-out tokens per forward, {SHOWN_NODES} nodes", color="tab:blue")
    for name, label in (
        ("tokens_per_forward", "tree"),
        ("chain_tokens_per_forward", "chain"),
    ):
        points = {int(nodes): value for nodes, value in figures[name].items()}
        right.plot(list(points), list(points.values()), marker="o", label=label)
    right.axhline(figures["history_tokens_per_forward"], color="tab:gray", ls=":", label="history")
    right.set_xscale("log", base=2)
    right.set_xticks(list(NODE_BUDGETS), [str(n) for n in NODE_BUDGETS])
    right.set(xlabel="drafted nodes a step", ylabel="tokens per forward")
    right.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise SoothsayError(f"cannot write {path}: {error}") from error


def write(figures: dict[str, Any], path: Path) -> None:
    try:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SoothsayError(f"cannot write {path}: {error}") from error
