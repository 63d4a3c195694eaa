"""Shards come back as they were, or say what is wrong with them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from fixtures.examples import example

from soothsay.train import shards
from soothsay.train.shards import read_all, read_shard, shard_path, write_shard
from soothsay.types import OptionError, SoothsayError


def test_round_trip(tmp_path: Path) -> None:
    written = [example(seed) for seed in range(3)]
    path = shard_path(tmp_path, 4)
    write_shard(path, written, "abc")
    for before, after in zip(written, read_shard(path, "abc"), strict=True):
        for name in ("hidden", "tokens", "starts", "soft_tokens", "soft_probs"):
            assert torch.equal(getattr(before, name), getattr(after, name))
        assert (after.prompt, after.language) == (before.prompt, before.language)
        assert after.held_out == before.held_out
    assert [p.name for p in tmp_path.iterdir()] == ["shard-00004.safetensors"]


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    write_shard(shard_path(tmp_path, 0), [], "abc")
    assert read_shard(shard_path(tmp_path, 0), "abc") == []


def test_another_targets_shard_is_refused(tmp_path: Path) -> None:
    write_shard(shard_path(tmp_path, 0), [example(0)], "abc")
    with pytest.raises(OptionError, match="another target"):
        list(read_all(tmp_path, "abd"))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_shard_is_reported_and_skipped(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        write_shard(shard_path(tmp_path, number), [example(number)], "abc")
    path = shard_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[-5] ^= 64
    path.write_bytes({"flip": content, "cut": content[:-9], "empty": b""}[damage])
    with pytest.raises(SoothsayError, match="damaged"):
        read_shard(path, "abc")
    with caplog.at_level(logging.ERROR):
        found = list(read_all(tmp_path, "abc"))
    assert len(found) == 2
    assert "shard-00001" in caplog.text


def test_a_folder_without_shards(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="run the label stage first"):
        list(read_all(tmp_path, "abc"))


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.os, "replace", full)
    with pytest.raises(SoothsayError, match=r"cannot write .*No space left"):
        write_shard(shard_path(tmp_path, 0), [example(0)], "abc")
    assert list(tmp_path.iterdir()) == []
