"""Drafters by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.heads import SIGNS, toy_head, toy_sizes
from fixtures.toy import tiny_whisper_files

from soothsay.drafters.choose import SHIPPED, choose_drafter, shipped_head
from soothsay.drafters.head import HeadConfig, save_head
from soothsay.types import OptionError, WeightsError

FILES = tiny_whisper_files(0)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    import torch

    for name, sha256 in (("other", "toy-1"), ("mine", FILES.sha256)):
        config = HeadConfig(name, sha256, toy_sizes(32))
        save_head(tmp_path / "heads" / name, toy_head(32), config, torch.arange(5))
    return tmp_path / "heads"


def test_drafters_by_name(shipped: Path) -> None:
    names = {
        "history": "history",
        "random": "random",
        "oracle:0.85": "oracle:0.85",
        "adversarial:deep": "adversarial:deep",
        "auto": "lattice+history",
        "lattice": "lattice",
        f"lattice:{shipped / 'mine'}": "lattice",
        f"auto:{shipped / 'mine'}": "lattice+history",
    }
    for name, wanted in names.items():
        drafter = choose_drafter(name, FILES, SIGNS, shipped=shipped)
        assert drafter is not None
        assert drafter.name == wanted
    assert choose_drafter("off", FILES, SIGNS) is None


def test_a_head_is_found_by_its_weights_and_not_by_its_name(shipped: Path) -> None:
    assert shipped_head(FILES, shipped) == shipped / "mine"
    assert shipped_head(tiny_whisper_files(2), shipped) is None


def test_without_a_head(shipped: Path) -> None:
    stranger = tiny_whisper_files(2)
    drafter = choose_drafter("auto", stranger, SIGNS, shipped=shipped)
    assert drafter is not None
    assert drafter.name == "history"
    with pytest.raises(OptionError, match=r"no head ships for toy: train one with soothsay"):
        choose_drafter("lattice", stranger, SIGNS, shipped=shipped)
    with pytest.raises(WeightsError, match="another target"):
        choose_drafter(f"lattice:{shipped / 'mine'}", stranger, SIGNS, shipped=shipped)


@pytest.mark.parametrize(
    "name", ["", "magic", "oracle", "oracle:2", "oracle:x", "adversarial:kind", "off:1", "random:1"]
)
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(OptionError):
        choose_drafter(name, FILES, SIGNS)


def test_every_shipped_head_is_readable() -> None:
    import json

    for config in SHIPPED.glob("*/config.json"):
        facts = json.loads(config.read_text(encoding="utf-8"))
        assert facts["provenance"]["parameter_share"] <= 0.015
