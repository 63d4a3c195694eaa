"""Damaged and foreign directories: one clear line that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.container import write_directory
from fixtures.toy import VOCAB, tiny_whisper_files
from safetensors.torch import load_file, save_file

from soothsay.targets.load import resolve
from soothsay.types import WeightsError


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file({k: t.clone() for k, t in tensors.items() if k != name}, folder / "x")
        (folder / "x").rename(folder / "model.safetensors")

    return damage


def added(name: str, like: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = {k: t.clone() for k, t in load_file(folder / "model.safetensors").items()}
        save_file({**tensors, name: tensors[like] + 1}, folder / "x")
        (folder / "x").rename(folder / "model.safetensors")

    return damage


def last_layer_gone(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    rest = {k: t.clone() for k, t in tensors.items() if ".decoder.layers.1." not in k}
    save_file(rest, folder / "x")
    (folder / "x").rename(folder / "model.safetensors")


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def escaping_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    index = {"weight_map": {"a": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def facts(**changes: object) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "generation_config.json", **changes)


EMBEDDING = "model.decoder.embed_tokens.weight"
NORM = "model.encoder.layers.0.final_layer_norm.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without(NORM), f"missing tensors: {NORM}"),
        (without(EMBEDDING), f"missing tensors: {EMBEDDING}"),
        (added("model.encoder.extra", NORM), "surplus tensors: model.encoder.extra"),
        (added("proj_out.weight", EMBEDDING), "proj_out is not tied"),
        (last_layer_gone, r"missing tensors: model\.decoder\.layers\.1\."),
        (only_pickle, "model.safetensors is missing: .*pickled .bin files are refused"),
        (cut, "model.safetensors cannot be read"),
        (escaping_index, "weight_map must name files of its own folder"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json does not hold"),
        (lambda folder: (folder / "config.json").write_text("{}"), "config.json: .*no Whisper"),
        (
            lambda folder: edit_json(folder / "config.json", d_model=64),
            "misshapen tensors: model",
        ),
        (facts(suppress_tokens=[VOCAB]), "suppress_tokens must list tokens below 96"),
        (facts(suppress_tokens=7), "suppress_tokens must list tokens below 96"),
        (facts(begin_suppress_tokens=["a"]), "begin_suppress_tokens must list"),
        (facts(alignment_heads=[1, 2]), "alignment_heads must list"),
    ],
)
def test_a_damaged_directory_gives_one_clear_line(
    saved: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(saved)
    with pytest.raises(WeightsError, match=message) as caught:
        resolve(saved)
    assert "\n" not in str(caught.value)
    assert str(saved) in str(caught.value)


def test_a_damaged_container_names_its_file(tmp_path: Path) -> None:
    folder = write_directory(tiny_whisper_files(seed=5), tmp_path / "toy")
    file = folder / "model.bin"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(WeightsError, match=f"{file} cannot be read: it ends at byte 1000"):
        resolve(folder)
