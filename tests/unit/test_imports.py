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
TOPS = ENGINE | {
    "engine",
    "audio",
    "text",
    "config",
    "fallback",
    "transcribe",
    "output",
    "bench",
    "demo",
}
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
    "drafters": MODEL | {"targets", "config"},
    "reference": MODEL | {"targets"},
    "engine": ENGINE - {"reference"},
    "fallback": {"types", "engine", "text"},
    "timing": {"types", "targets", "text"},
    "transcribe": ENGINE | {"engine", "audio", "text", "config", "fallback", "timing"},
    "output": {"types", "text", "transcribe"},
    "console": {"types", "output"},
    "bench": TOPS - {"output", "demo"},
    "demo": TOPS - {"output"},
    "doctor": {"config", "targets"},
    "server": ENGINE | {"engine", "audio", "text", "config", "transcribe", "output"},
    "cluster": ENGINE | {"engine", "audio", "text", "config", "transcribe", "output", "server"},
    "train": TOPS - {"output", "demo"} | {"console"},
    "plan": TOPS - {"output", "demo"},
    "cli_options": {"console", "targets", "transcribe"},
    "cli_bench": TOPS - {"output", "demo"} | {"console", "cli_options"},
    "cli": TOPS
    | {"cli_options", "cli_bench"}
    | {"console", "doctor", "server", "cluster", "train", "plan"},
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


def broken_walls(path: Path, part: str) -> list[str]:
    """The imports of a file that `part` may not have; a part unknown here may have none."""
    allowed = ALLOWED.get(part, set()) | {part}
    return sorted(name for name in imports(path) if part_of(name) not in allowed)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert part in ALLOWED, f"{part} is new: say in ALLOWED what it may import"
    assert broken_walls(path, part) == []


@pytest.mark.parametrize(
    ("part", "line", "broken"),
    [
        ("types", "from soothsay.cache.slots import SlotPool", ["soothsay.cache.slots.SlotPool"]),
        ("speculate", "import soothsay.engine.engine", ["soothsay.engine.engine"]),
        ("speculate", "from soothsay import cache", ["soothsay.cache"]),
        ("targets", "def f():\n    from soothsay.engine import engine", ["soothsay.engine.engine"]),
        ("targets", "from soothsay.drafters import history", ["soothsay.drafters.history"]),
        ("audio", "from soothsay.text import tokens", ["soothsay.text.tokens"]),
        ("engine", "from soothsay.server import app", ["soothsay.server.app"]),
        ("server", "from soothsay.cluster import deployment", ["soothsay.cluster.deployment"]),
        ("engine", "from soothsay.cache import arena\nimport torch", []),
    ],
)
def test_the_walls_hold(tmp_path: Path, part: str, line: str, broken: list[str]) -> None:
    path = tmp_path / "part.py"
    path.write_text(line, encoding="utf-8")
    assert broken_walls(path, part) == broken


def test_no_two_parts_may_import_each_other() -> None:
    """Take away parts that lean on nothing left, again and again: a circle would remain."""
    left = {part: lower - {part} for part, lower in ALLOWED.items()}
    while free := [part for part, lower in left.items() if not lower & left.keys()]:
        for part in free:
            del left[part]
    assert not left, f"a circle among {sorted(left)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_holds_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 330, f"{path.name} has {lines} lines: it holds two ideas"
