"""How trained drafters are kept: config.json and model.safetensors, for one target each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from soothsay.types import SoothsayError, WeightsError

WEIGHTS, CONFIG = "model.safetensors", "config.json"

Loaded = TypeVar("Loaded")


def save(folder: Path, kind: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """facts: must name the target and its weights_sha256. Floats are kept as float16."""
    kept = {
        name: (t.detach().half() if t.is_floating_point() else t).contiguous()
        for name, t in tensors.items()
    }
    text = json.dumps({"kind": kind} | dict(facts), indent=2, ensure_ascii=False)
    scratch = {name: folder / f"{name}.{os.getpid()}.tmp" for name in (WEIGHTS, CONFIG)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(kept, scratch[WEIGHTS])
        scratch[CONFIG].write_text(text + "\n", encoding="utf-8")
        for name, file in scratch.items():  # both are whole before either is put in place
            os.replace(file, folder / name)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            for file in scratch.values():
                file.unlink(missing_ok=True)
        raise SoothsayError(f"cannot write to {folder}: {error}") from error


def load(
    folder: Path,
    kind: str,
    weights_sha256: str,
    build: Callable[[dict[str, Any], dict[str, Tensor]], Loaded],
) -> Loaded:
    """What `build` makes of the facts and of the tensors, floats in float32.

    WeightsError for a damaged drafter, one of another kind, or one made for another target.
    """
    try:
        facts = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        found = facts.pop("kind", None)
        if found != kind:
            raise ValueError(f"it is of the kind {found!r}, not {kind!r}")
        target, sha256 = facts["target"], facts["weights_sha256"]
        tensors = {
            name: tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in load_file(folder / WEIGHTS).items()
        }
        loaded = build(facts, tensors)
    except (
        *(OSError, SafetensorError, AttributeError, LookupError),
        *(TypeError, ValueError, RuntimeError),
    ) as error:
        reason = " ".join(str(error).split())  # torch writes several lines
        raise WeightsError(
            f"the head in {folder} cannot be read ({reason}): train it again with soothsay "
            "train-head"
        ) from error
    if sha256 != weights_sha256:
        raise WeightsError(
            f"the head in {folder} was made for another target ({target}): "
            "train one with soothsay train-head"
        )
    return loaded
