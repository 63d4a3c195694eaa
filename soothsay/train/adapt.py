"""Adaptation: trained drafters go on learning from a service's own audio, and must prove better.

No transcripts are needed: the target's own text is the teacher. Output never depends on the
drafter, so a poor adaptation could cost speed alone; it is refused all the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from soothsay.bench.acceptance import measure
from soothsay.bench.foretelling import Foretelling
from soothsay.drafters.choose import MASKS_FOLDER, choose_drafter, shipped_head
from soothsay.drafters.drafter import masks_of
from soothsay.drafters.files import CONFIG, WEIGHTS, save
from soothsay.drafters.frozen import FrozenDecoder
from soothsay.targets.load import ModelFiles, resolve
from soothsay.text.tokens import WhisperTokens
from soothsay.train import lattice_stages, lookahead_stages
from soothsay.train.distil import label
from soothsay.train.job import Job
from soothsay.train.loop import JUDGED_NODES, TrainSettings
from soothsay.train.shards import Example, read_all
from soothsay.train.windows import TrainingWindow, plan_recent, plan_windows
from soothsay.transcribe import signs_of
from soothsay.types import OptionError, SoothsayError

GUARD_LEAST = 0.98  # of the tokens per forward that the guard audio had before
REHEARSED = 2  # windows of other audio for each recent one
# How far to go from the old weights to the new ones: half the way keeps most of the gain and loses
# little elsewhere (Wortsman et al., 2022, Robust fine-tuning of zero-shot models).
SHARES = (1.0, 0.75, 0.5, 0.25)
STAGES = {"lattice": lattice_stages, "lookahead": lookahead_stages}

logger = logging.getLogger(__name__)

Bar = Callable[[str, int, str], AbstractContextManager[Callable[[float], None]]]


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What to learn from, where to go on from, and what must not be lost.

    recent: the service's audio; a fifth of its clips is held out, to choose the best weights and
    to judge them. rehearse: manifests of other audio, mixed in two to one so that it is not
    forgotten. guard: audio that must not be drafted worse; never learned from. out: must not exist
    yet. work: labels and checkpoints; a run that was cut off goes on there.
    """

    model: str
    recent: Path
    guard: Path
    work: Path
    out: Path
    settings: TrainSettings
    kind: str = "lattice"
    start: Path | None = None  # default: the drafters that ship
    rehearse: Sequence[Path] = ()
    workers: int = 1


def adapt(wanted: Adaptation, bar: Bar) -> dict[str, Any]:
    """Label, train, compare; `out` is written only where the new drafters draft the held-out
    recent audio better and lose at most 2 % on the guard → figures, with `adopted`.

    Of the weights between the old and the new, the furthest that pass are taken: `share`."""
    files = resolve(wanted.model)
    start = wanted.start or shipped_head(files)
    if start is None:
        raise OptionError(f"no head ships for {files.config.name}: name one with --start")
    if wanted.out.exists():
        raise OptionError(f"{wanted.out} exists: adaptation writes a new directory")
    choose_drafter(f"auto:{start}", files, _signs(files))  # damaged, or another target's: at once
    recent = plan_recent(wanted.recent)
    rehearsed = plan_windows(wanted.rehearse)[: REHEARSED * len(recent)] if wanted.rehearse else []
    guard = plan_recent(wanted.guard)

    def examples(name: str, windows: Sequence[TrainingWindow]) -> list[Example]:
        folder = wanted.work / f"{name}-{_digest(windows)}"
        with bar(f"label {name}", len(windows), "windows") as update:
            label(wanted.model, windows, folder, wanted.workers, update)
        return list(read_all(folder, files.sha256))

    heard = examples("recent", recent)
    kept = [example for example in heard if example.held_out]
    guarded = examples("guard", guard)
    others = examples("rehearsal", rehearsed) if rehearsed else []
    scratch = wanted.work / "candidate"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(start, scratch)
    except OSError as error:
        raise SoothsayError(f"cannot write to {wanted.work}: {error}") from error
    manifests = [wanted.recent, *wanted.rehearse]
    job = Job(files, heard + others, wanted.settings, wanted.work, scratch, start, manifests)
    with bar("train", wanted.settings.steps, "steps") as update:
        STAGES[wanted.kind].train(job, update)
    if wanted.kind == "lattice" and (scratch / MASKS_FOLDER).is_dir():
        lookahead_stages.weigh(job)  # beside the new lattice
    masks = wanted.kind == "lookahead"
    sets = {"recent": kept, "guard": guarded}

    def reached(folder: Path) -> dict[str, float]:
        return {name: _reached(folder, files, rows, masks) for name, rows in sets.items()}

    before = reached(start)
    tried = []
    adopted = False
    for share in SHARES:
        folder = _part_of_the_way(start, scratch, share, wanted.kind)
        after = reached(folder)
        tried.append({"share": share, **after})
        if adopted := better(before, after):
            _put_in_place(folder, wanted.out)
            break
    return {
        "adopted": adopted,
        "share": share if adopted else None,
        "before": before,
        "tried": tried,
        "recent_ratio": after["recent"] / before["recent"],
        "guard_ratio": after["guard"] / before["guard"],
        "windows": {name: len(rows) for name, rows in sets.items()} | {"learned": len(job.learned)},
        "out": str(wanted.out) if adopted else None,
    }


def _part_of_the_way(start: Path, scratch: Path, share: float, kind: str) -> Path:
    """Drafters like those of `scratch`, their weights that share of the way from `start`'s → their
    directory, beside scratch."""
    folder = scratch.with_name(f"{scratch.name}-{share:g}")
    inner = Path(MASKS_FOLDER) if kind == "lookahead" else Path()
    try:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(scratch, folder)
    except OSError as error:
        raise SoothsayError(f"cannot write {folder}: {error}") from error
    old, new = (load_file(at / inner / WEIGHTS) for at in (start, scratch))
    mixed = {
        name: torch.lerp(old[name].float(), tensor.float(), share)
        if tensor.is_floating_point()
        else tensor  # the vocabulary, which only grows
        for name, tensor in new.items()
    }
    facts = json.loads((folder / inner / CONFIG).read_text(encoding="utf-8"))
    facts["provenance"]["share_of_new_weights"] = share
    save(folder / inner, facts.pop("kind"), facts, mixed)
    return folder


def better(before: dict[str, float], after: dict[str, float]) -> bool:
    """Whether drafters of these tokens per forward on `recent` and `guard` are worth having."""
    return after["recent"] > before["recent"] and after["guard"] >= GUARD_LEAST * before["guard"]


def _reached(folder: Path, files: ModelFiles, examples: Sequence[Example], masks: bool) -> float:
    """Tokens per forward of all that stands in `folder`; masks: behind one node, else nowhere."""
    drafter = choose_drafter(f"auto:{folder}", files, _signs(files))
    assert drafter is not None
    wanted = masks_of(drafter) if masks else None
    foretold = Foretelling(wanted, FrozenDecoder(files)) if wanted else None
    return measure(drafter, examples, JUDGED_NODES, foretold, groups=1).tokens_per_forward


def _signs(files: ModelFiles) -> Any:
    return signs_of(WhisperTokens.from_file(files.tokenizer_json))


def _digest(windows: Sequence[TrainingWindow]) -> str:
    """Names what is labelled, so that labels of other audio are never taken for it."""
    text = "\n".join(f"{clip.audio.resolve()} {w.held_out}" for w in windows for clip in w.clips)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _put_in_place(scratch: Path, out: Path) -> None:
    """Under its final name a drafter is whole, or not there."""
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(scratch, beside)
        os.rename(beside, out)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise SoothsayError(f"cannot write {out}: {error}") from error
