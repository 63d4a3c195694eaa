"""Imports point one way (docs/architecture.md): a module may import from its own level or below."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "soothsay"

# What each part may import from the package, besides itself.
CORE = {"types"}
MODEL = CORE | {"speculate", "cache", "control"}
ENGINE = MODEL | {"targets", "drafters", "reference"}
TOPS = ENGINE | {"engine", "audio", "text", "config", "transcribe", "output", "bench", "demo"}
ALLOWED = {
    "__init__": set(),
    "types": set(),
    "config": CORE,
    "speculate": CORE,
    "cache": CORE,
    "control": CORE,
    "audio": CORE,
    "text": CORE,
    "targets": MODEL,
    "drafters": MODEL | {"targets"},
    "reference": MODEL | {"targets"},
    "engine": ENGINE - {"reference"},
    "transcribe": ENGINE | {"engine", "audio", "text", "config"},
    "output": {"types", "text", "transcribe"},
    "bench": TOPS - {"output", "demo"},
    "demo": TOPS - {"output"},
    "doctor": {"config", "targets"},
    "cli": TOPS | {"doctor"},
}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "soothsay"}


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in imports(path):
        other = part_of(module)
        assert other == part or other in ALLOWED[part], f"{part} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_holds_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 330, f"{path.name} has {lines} lines: it holds two ideas"
