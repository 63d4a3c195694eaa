"""The cache of converted weights: exact, self-checking, and never in the way."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from threading import Barrier, Thread

import pytest
import torch

from soothsay.targets import convert_cache

SOURCE = "ab" * 32
TENSORS = {
    "half": torch.arange(12, dtype=torch.float16).reshape(3, 4),
    "view": torch.arange(20, dtype=torch.float32)[5:10],
    "bfloat": torch.ones(3, dtype=torch.bfloat16),
}
FACTS = {"encoder_heads": "2", "decoder_heads": "4"}


def kept() -> list[Path]:
    return [path for path in convert_cache.directory().rglob("*") if path.is_file()]


def assert_loads() -> None:
    loaded = convert_cache.load(SOURCE)
    assert loaded is not None
    tensors, facts = loaded
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert tensor.equal(TENSORS[name])


def test_what_is_saved_is_loaded_and_only_for_its_source() -> None:
    assert convert_cache.load(SOURCE) is None
    convert_cache.save(SOURCE, TENSORS, FACTS)
    assert_loads()
    assert convert_cache.load("cd" * 32) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_copy_is_said_removed_and_made_anew(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    convert_cache.save(SOURCE, TENSORS, FACTS)
    (path,) = kept()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"flip": data, "cut": data[:-1], "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert convert_cache.load(SOURCE) is None
    assert str(path) in caplog.text
    assert "damaged" in caplog.text
    assert kept() == []
    convert_cache.save(SOURCE, TENSORS, FACTS)
    assert_loads()


def test_a_cache_that_cannot_be_made_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SOOTHSAY_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        convert_cache.save(SOURCE, TENSORS, FACTS)
    assert "not kept" in caplog.text
    assert convert_cache.load(SOURCE) is None


def test_a_full_disk_is_only_a_warning_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(tensors: object, name: str, facts: object) -> None:
        Path(name).write_bytes(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert_cache, "save_file", full)
    with caplog.at_level(logging.WARNING):
        convert_cache.save(SOURCE, TENSORS, FACTS)
    assert "No space left" in caplog.text
    assert kept() == []


def test_many_writers_at_once_leave_one_good_copy() -> None:
    barrier = Barrier(6)

    def write() -> None:
        barrier.wait()
        for _ in range(5):
            convert_cache.save(SOURCE, TENSORS, FACTS)

    threads = [Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept()) == 1
    assert_loads()
