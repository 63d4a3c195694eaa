"""Saving where it cannot be done: one clear error, and never a file that is half written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from soothsay.drafters import files
from soothsay.types import SoothsayError

FACTS = {"target": "toy", "weights_sha256": "abc"}
SMALL, LARGE = {"x": torch.arange(4.0)}, {"x": torch.zeros(20_000)}


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes: writing fails as on a full disk, whatever writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return files.load(folder, "toy", "abc", lambda facts, tensors: (facts, tensors))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_floats_are_kept_in_half_precision_and_whole_numbers_whole(tmp_path: Path) -> None:
    tensors = {"real": torch.tensor([0.1, -3.0]), "whole": torch.tensor([1 << 20], dtype=torch.int)}
    files.save(tmp_path, "toy", FACTS | {"word": "é"}, tensors)
    facts, loaded = read(tmp_path)
    assert facts == FACTS | {"word": "é"}
    assert torch.equal(loaded["real"], tensors["real"].half().float())
    assert torch.equal(loaded["whole"], tensors["whole"])
    assert loaded["whole"].dtype == torch.int


def test_no_room_for_the_weights(tmp_path: Path) -> None:
    files.save(tmp_path, "toy", FACTS, SMALL)
    before = contents(tmp_path)
    with room(8_000), pytest.raises(SoothsayError, match="cannot write to") as caught:
        files.save(tmp_path, "toy", FACTS, LARGE)
    assert str(tmp_path) in str(caught.value)
    assert contents(tmp_path) == before  # what stood there still does, and nothing else
    with room(8_000), pytest.raises(SoothsayError):
        files.save(tmp_path / "new", "toy", FACTS, LARGE)
    assert not any((tmp_path / "new").iterdir())


def test_no_room_for_the_config(tmp_path: Path) -> None:
    files.save(tmp_path, "toy", FACTS, SMALL)
    with room(8_000), pytest.raises(SoothsayError, match="cannot write to"):
        files.save(tmp_path, "toy", FACTS | {"provenance": "long " * 4_000}, SMALL)
    facts, tensors = read(tmp_path)
    assert facts == FACTS
    assert torch.equal(tensors["x"], SMALL["x"])
    assert contents(tmp_path).keys() == {"config.json", "model.safetensors"}


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    """Its name, or that of one above it, is a file's."""
    (tmp_path / "taken").write_text("something else")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(SoothsayError, match="cannot write to") as caught:
            files.save(folder, "toy", FACTS, SMALL)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "taken").read_text() == "something else"
