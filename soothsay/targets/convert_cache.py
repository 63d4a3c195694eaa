"""Converted weights, kept so that the next start need not convert: one safetensors file a source.

A file is named by the hash of its source and of its own bytes, so it vouches for itself; it is
written beside its final name and renamed, so that two processes, or a full disk, do no harm.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_dir
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

_LAYOUT = "1"  # raise it when the conversion's result changes: older copies are then not found
logger = logging.getLogger(__name__)


def directory() -> Path:
    """Where copies are: in SOOTHSAY_CACHE, or the user's cache directory."""
    root = os.environ.get("SOOTHSAY_CACHE") or user_cache_dir("soothsay")
    return Path(root) / "weights" / _LAYOUT


def load(source_sha256: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """The converted tensors of that source and the facts kept with them; None if there are none,
    or damaged ones."""
    for path in directory().glob(f"{source_sha256}-*.safetensors"):
        try:
            if _sha256(path) == path.stem.rpartition("-")[2]:
                with safe_open(path, framework="pt") as file:
                    facts = json.loads(file.metadata()["facts"])
                return load_file(path), facts
            logger.warning("%s is damaged and will be made anew", path)
            path.unlink()
        except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
            logger.warning("%s cannot be used: %s", path, error)
    return None


def save(source_sha256: str, tensors: Mapping[str, Tensor], facts: dict[str, str]) -> None:
    """Keep converted tensors. A cache that cannot be written is a loss of time, not an error."""
    folder = directory()
    scratch: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(handle)
        scratch = Path(name)
        # One key: the order of several would change the bytes, and the name, from run to run.
        metadata = {"facts": json.dumps(facts)}
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, name, metadata)
        with scratch.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(scratch, folder / f"{source_sha256}-{_sha256(scratch)}.safetensors")
    except (OSError, SafetensorError) as error:
        logger.warning("converted weights are not kept (%s): set SOOTHSAY_CACHE", error)
    finally:
        if scratch is not None:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
