"""Shards: what a drafter learns from, in safetensors files that vouch for themselves.

One shard holds a few windows: the target's encoder states where there is audio, its own greedy
tokens, when each is heard, and what else it deemed likely there.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from soothsay.targets.target import Encoded
from soothsay.types import OptionError, SoothsayError

FORMAT = 2
SILENT_POSITIONS = 25  # looked at behind the audio, so that a head knows silence
SOFT = 8  # likeliest tokens of the target kept at each position

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled window.

    hidden: (T, encoder width) float16, all of the encoder's positions, padding included, as the
        target's decoder attends to them.
    audio_positions: how many of them hold audio.
    prompt: the decoder tokens before the output.
    tokens: (n,) int64, the target's own, end-of-text last.
    starts: (n + 1,) int64: token i is heard in positions [starts[i], starts[i + 1]).
    soft_tokens, soft_probs: (n, SOFT) the target's likeliest tokens at each position.
    """

    hidden: Tensor
    prompt: tuple[int, ...]
    tokens: Tensor
    starts: Tensor
    soft_tokens: Tensor
    soft_probs: Tensor
    language: str
    held_out: bool
    audio_positions: int

    def encoded(self) -> Encoded:
        """As the target gave it to its drafters."""
        return Encoded(self.hidden[None].float(), (self.audio_positions,))

    @property
    def heard(self) -> Tensor:
        """(P, encoder width): the positions that hold audio and a little silence behind them."""
        return self.hidden[: self.audio_positions + SILENT_POSITIONS]


_TENSORS = ("hidden", "tokens", "starts", "soft_tokens", "soft_probs")


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def write_shard(path: Path, examples: Sequence[Example], weights_sha256: str) -> None:
    """Atomic: a full disk or a killed process leaves no half shard under the final name."""
    tensors = {
        f"{index}.{name}": getattr(example, name).contiguous()
        for index, example in enumerate(examples)
        for name in _TENSORS
    }
    facts = {
        "format": FORMAT,
        "weights_sha256": weights_sha256,
        "checksum": _checksum(tensors),
        "examples": [
            {
                "prompt": e.prompt,
                "language": e.language,
                "held_out": e.held_out,
                "audio_positions": e.audio_positions,
            }
            for e in examples
        ],
    }
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        save_file(tensors, scratch, {"facts": json.dumps(facts)})
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        scratch.unlink(missing_ok=True)
        raise SoothsayError(f"cannot write {path}: {error}") from error


def read_shard(path: Path, weights_sha256: str) -> list[Example]:
    """OptionError for a shard of another target; SoothsayError for a damaged one."""
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found, rows = facts["weights_sha256"], facts["examples"]
        if facts["format"] != FORMAT or facts["checksum"] != _checksum(tensors):
            raise ValueError("its checksum or format is wrong")
        examples = [
            Example(
                **{name: tensors[f"{index}.{name}"] for name in _TENSORS},
                prompt=tuple(row["prompt"]),
                language=row["language"],
                held_out=row["held_out"],
                audio_positions=row["audio_positions"],
            )
            for index, row in enumerate(rows)
        ]
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise SoothsayError(f"{path} is damaged ({error}): delete it and label again") from error
    if found != weights_sha256:
        raise OptionError(f"{path} was labelled by another target: give another --work folder")
    return examples


def read_all(folder: Path, weights_sha256: str) -> Iterator[Example]:
    """Every example of a folder, in order; a damaged shard is reported and skipped."""
    paths = sorted(folder.glob("shard-*.safetensors"))
    if not paths:
        raise OptionError(f"{folder} holds no shards: run the label stage first")
    for path in paths:
        try:
            yield from read_shard(path, weights_sha256)
        except OptionError:
            raise
        except SoothsayError as error:
            logger.error("skipped: %s", error)


def _checksum(tensors: dict[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(tensors[name].contiguous().view(torch.uint8).numpy().data, value)
    return value
