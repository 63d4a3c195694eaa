"""What a measurement runs on: clips of a manifest, and the facts that make a figure repeatable."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from soothsay.audio.decode import decode
from soothsay.drafters.probe import OracleDrafter
from soothsay.engine.request import Result
from soothsay.transcribe import Recogniser, Samples
from soothsay.types import AudioError, OptionError

# The clips that ship with the package.
CLIPS = Path(__file__).parent.parent / "data" / "clips" / "clips.jsonl"


@dataclass(frozen=True, slots=True)
class Clip:
    """One line of a manifest. `text` is the reference, if there is one; `duration` in seconds."""

    id: str
    audio: Path
    text: str | None
    language: str | None
    duration: float | None
    speaker: str | None = None

    def samples(self) -> Samples:
        """16 kHz mono. AudioError names the file."""
        try:
            return decode(self.audio).samples
        except AudioError as error:
            raise AudioError(f"{self.audio}: {error}") from error


def read_manifest(path: Path, limit: int | None = None) -> list[Clip]:
    """The first `limit` clips of a JSON-lines manifest; OptionError names the line at fault."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the manifest {path}: {error}") from error
    clips = list(_clips(path, lines))[:limit]
    if not clips:
        raise OptionError(f"the manifest {path} holds no clips")
    return clips


def _clips(path: Path, lines: list[str]) -> Iterator[Clip]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            audio = row["audio"]
            if not isinstance(row.get("lang"), str | None) or not isinstance(audio, str):
                raise TypeError("audio and lang must be text")
            clip = Clip(
                id=audio,
                audio=path.parent / audio,
                text=row.get("text"),
                language=row.get("lang"),
                duration=row.get("duration"),
                speaker=row.get("speaker"),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OptionError(f"{path}, line {number}: not a clip ({error!r})") from error
        yield clip


def hint_for(recogniser: Recogniser, expected: Result) -> tuple[int, ...] | None:
    """The plain output, for the oracle alone: any other drafter would be flattered by it."""
    return expected.tokens if isinstance(recogniser.engine.drafter, OracleDrafter) else None


def provenance(recogniser: Recogniser, **facts: Any) -> dict[str, Any]:
    """Where and with what a figure was taken."""
    target, engine = recogniser.target, recogniser.engine
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "soothsay": metadata.version("soothsay"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "model": target.spec.name,
        "weights_sha256": target.spec.weights_sha256,
        "dtype": str(target.dtype).removeprefix("torch."),
        "encoder_dtype": str(target.encoder_dtype).removeprefix("torch."),
        "drafter": engine.drafter.name if engine.drafter else "off",
        "nodes": engine.budget.max_nodes,
        "groups": engine.budget.max_groups,
        "masks": engine.budget.max_masks,
        **facts,
    }


def _commit() -> str | None:
    """The checkout's commit, if this is a checkout; figures from an installed wheel have none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def _cpu_name() -> str:
    return str(torch.cpu.get_capabilities().get("cpu_name", platform.processor()))
