"""Hostile audio through the command line: a transcript or one clear line, and the others go on."""

from __future__ import annotations

import json
from pathlib import Path

import jiwer
import numpy as np
import pytest
from fixtures.hostile import NONE, PART, WHOLE
from fixtures.model_directory import write_toy_model
from typer.testing import CliRunner

from soothsay.audio.decode import decode
from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.cli import app

CLIP = read_manifest(CLIPS)[0]


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return decode(CLIP.audio).samples


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_toy_model(tmp_path_factory.mktemp("toy")))


def written(folder: Path, kinds: dict, speech: np.ndarray) -> list[Path]:
    files = []
    for number, (name, make) in enumerate(kinds.values()):
        (folder / str(number)).mkdir(parents=True)
        files.append(folder / str(number) / name)
        files[-1].write_bytes(make(speech))
    return files


def test_every_hostile_file_gives_a_transcript_or_one_line(
    model: str, speech: np.ndarray, tmp_path: Path
) -> None:
    good = written(tmp_path / "good", WHOLE | PART, speech)
    bad = written(tmp_path / "bad", NONE, speech)
    mixed = [*bad[:3], *good, *bad[3:]]
    result = CliRunner().invoke(
        app,
        ["transcribe", "--model", model, "--speculate", "history", "--json", *map(str, mixed)],
    )
    assert result.exit_code == 2, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["audio"] for row in rows] == [str(file) for file in good]
    errors = [line for line in result.stderr.splitlines() if ": warning: " not in line]
    assert len(errors) == len(bad)
    for file, line in zip(bad, errors, strict=True):
        assert line.startswith(f"soothsay: {file}: ")
        assert "Traceback" not in line


@pytest.mark.slow
def test_what_still_holds_the_speech_is_heard(speech: np.ndarray, tmp_path: Path) -> None:
    files = written(tmp_path, WHOLE, speech)
    result = CliRunner().invoke(app, ["transcribe", "--json", "--language", "en", *map(str, files)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    plain = jiwer.Compose([jiwer.ToLowerCase(), jiwer.RemovePunctuation(), jiwer.Strip()])
    wrong = {
        name: row["text"]
        for name, row in zip(WHOLE, rows, strict=True)
        if jiwer.wer(plain(CLIP.text), plain(row["text"])) > 0.1
    }
    assert wrong == {}
