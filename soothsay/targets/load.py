"""Where weights come from: a directory, an installed distribution, or the Hugging Face hub.

Whatever the source, the result is the same: sizes, logit facts, and tensors under Transformers'
names, complete and nothing besides. Nothing is downloaded unless the caller says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from soothsay.targets import convert_cache
from soothsay.targets.ct2 import read_container, whisper_tensors
from soothsay.targets.distributions import DISTRIBUTIONS, Distribution
from soothsay.targets.identity import weights_digest
from soothsay.targets.names import WhisperSizes, check_complete, sizes_of_config, sizes_of_tensors
from soothsay.types import WeightsError

HUB_REPOSITORIES = {
    name: f"openai/whisper-{name}"
    for name in (
        *(f"{size}{kind}" for size in ("tiny", "base", "small", "medium") for kind in ("", ".en")),
        *("large-v2", "large-v3", "large-v3-turbo"),
    )
}
_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",  # shards; some repositories keep float32 copies under other names
)


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """What the model's own generation configuration says: token ids, and (layer, head) pairs."""

    suppress: tuple[int, ...]
    begin_suppress: tuple[int, ...]
    alignment_heads: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A resolved model. `sha256` identifies the weights, whatever file they come in (identity.py);
    `container` holds the paths of a CTranslate2 container's parts, where that is the source."""

    config: WhisperSizes
    generation: GenerationFacts
    tensors: dict[str, Tensor]
    tokenizer_json: Path
    sha256: str
    source: str
    container: tuple[Path, ...] = ()

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A row of `soothsay models`."""

    name: str
    source: str
    installed: bool
    licence: str
    install: str
    size_bytes: int


def available() -> list[KnownModel]:
    """The models known by name that come as Python packages."""
    return [
        KnownModel(d.model, " + ".join(d.packages), d.installed, d.licence, d.install, d.size_bytes)
        for d in DISTRIBUTIONS
    ]


def resolve(model: str | Path, download: bool = False) -> ModelFiles:
    """Find and read a model: a directory (Transformers' or CTranslate2's format), a known name
    among the installed distributions, or a hub repository in the local cache.

    download: fetch from the hub what is not in its cache. WeightsError in one line otherwise.
    """
    # os.path, because unlike pathlib it takes any string: too long, of unknown users, with nulls.
    folder = os.path.expanduser(model)
    name = str(model).removeprefix("openai/").removeprefix("whisper-")
    # A folder that merely happens to be called "base" does not hide the model of that name.
    holds_model = os.path.isfile(os.path.join(folder, "config.json"))
    if holds_model or (os.path.isdir(folder) and name not in HUB_REPOSITORIES):
        path = Path(folder)
        return _from_directory(path, path.resolve().name)
    installed = [d for d in DISTRIBUTIONS if d.model == name and d.installed]
    if installed:
        return _from_distribution(installed[0])
    return _from_hub(HUB_REPOSITORIES.get(name, str(model)), name, download)


def _from_hub(repository: str, name: str, download: bool) -> ModelFiles:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        snapshot = snapshot_download(
            repository, allow_patterns=list(_HUB_FILES), local_files_only=not download
        )
    except Exception as error:  # the hub's client also lets the errors of its HTTP library through
        ways = [d.install for d in DISTRIBUTIONS if d.model == name][:1]
        ways.append("name a directory that holds its weights")
        if not download and "/" in repository and not isinstance(error, HFValidationError):
            ways.append(f"soothsay models --download {repository}")
        known = ", ".join(dict.fromkeys(d.model for d in DISTRIBUTIONS))
        fault = f"cannot be fetched ({_first_line(error)})" if download else "is not here"
        raise WeightsError(
            f"the model {name!r} {fault}; ways out: {'; '.join(ways)} (packages exist of: {known})"
        ) from error
    return _from_directory(Path(snapshot), repository.rpartition("/")[2])


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def _from_distribution(distribution: Distribution) -> ModelFiles:
    if kept := convert_cache.load(distribution.sha256):
        distribution.check()
        tensors, facts = kept
    else:
        tensors, *found = whisper_tensors(read_container(distribution.read()))
        facts = dict(zip(("encoder_heads", "decoder_heads"), map(str, found), strict=True))
        convert_cache.save(distribution.sha256, tensors, facts)
    sizes = sizes_of_tensors(
        f"whisper-{distribution.model}",
        tensors,
        int(facts["encoder_heads"]),
        int(facts["decoder_heads"]),
    )
    try:
        return _assemble(
            sizes,
            tensors,
            distribution.directory(),
            source=" + ".join(distribution.packages),
            container=tuple(distribution.part_paths()),
        )
    except WeightsError as error:
        raise WeightsError(f"{error}; mend it with: {distribution.reinstall}") from error


def _from_directory(directory: Path, name: str) -> ModelFiles:
    safetensors = [*directory.glob("model.safetensors*"), *directory.glob("model-*.safetensors")]
    if (directory / "model.bin").is_file() and not safetensors:
        return _from_container(directory, name)
    config_path = directory / "config.json"
    config = _read_json(config_path)
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(directory):
        try:
            loaded = load_file(file)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file} cannot be read: {error}; copy it again") from error
        if twice := sorted(loaded.keys() & tensors):
            raise WeightsError(f"{file} holds {twice[0]}, which another file holds too")
        tensors |= loaded
    output = tensors.pop("proj_out.weight", None)
    embedding = tensors.get("model.decoder.embed_tokens.weight")
    if output is not None and embedding is not None and not output.equal(embedding):
        raise WeightsError(f"{directory}: proj_out is not tied to the input embedding")
    try:
        sizes = sizes_of_config(name, config)
    except WeightsError as error:
        raise WeightsError(f"{config_path}: {error}") from error
    return _assemble(sizes, tensors, directory, source=str(directory))


def _from_container(directory: Path, name: str) -> ModelFiles:
    file = directory / "model.bin"
    try:
        buffer = bytearray(file.read_bytes())
        tensors, encoder_heads, decoder_heads = whisper_tensors(read_container(buffer))
        sizes = sizes_of_tensors(name, tensors, encoder_heads, decoder_heads)
    except (OSError, WeightsError) as error:
        raise WeightsError(f"{file} cannot be read: {error}; copy it again") from error
    return _assemble(
        sizes,
        tensors,
        directory,
        source=str(directory),
        container=(file,),
    )


def _assemble(
    sizes: WhisperSizes,
    tensors: dict[str, Tensor],
    directory: Path,
    source: str,
    container: tuple[Path, ...] = (),
) -> ModelFiles:
    try:
        check_complete(tensors, sizes)
    except WeightsError as error:
        raise WeightsError(f"{source}: {error}") from error
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise WeightsError(f"{tokenizer} is missing: copy it beside the weights")
    return ModelFiles(
        config=sizes,
        generation=_generation(directory, sizes),
        tensors=tensors,
        tokenizer_json=tokenizer,
        sha256=weights_digest(tensors),
        source=source,
        container=container,
    )


def _generation(directory: Path, sizes: WhisperSizes) -> GenerationFacts:
    """From Transformers' generation_config.json, or config.json, where CTranslate2 has them."""
    path = directory / "generation_config.json"
    path = path if path.is_file() else directory / "config.json"
    facts = _read_json(path)

    def ids(*keys: str) -> tuple[int, ...]:
        found: Any = next((facts[key] for key in keys if facts.get(key)), [])
        if not isinstance(found, list) or not all(
            isinstance(i, int) and 0 <= i < sizes.vocab_size for i in found
        ):
            raise WeightsError(f"{path}: {keys[0]} must list tokens below {sizes.vocab_size}")
        return tuple(found)

    try:
        heads = tuple((int(layer), int(head)) for layer, head in facts.get("alignment_heads") or [])
    except (TypeError, ValueError, OverflowError) as error:
        raise WeightsError(f"{path}: alignment_heads must list (layer, head) pairs") from error
    return GenerationFacts(
        suppress=ids("suppress_tokens", "suppress_ids"),
        begin_suppress=ids("begin_suppress_tokens", "suppress_ids_begin"),
        alignment_heads=heads,
    )


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    names: Collection[Any] = ["model.safetensors"]
    if index.is_file() and not (directory / "model.safetensors").is_file():
        shards = _read_json(index).get("weight_map")
        names = set(shards.values()) if isinstance(shards, dict) else []
        if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
            raise WeightsError(f"{index}: weight_map must name files of its own folder")
    files = [directory / name for name in sorted(names)]
    for file in files:
        if not file.is_file():
            raise WeightsError(
                f"{file} is missing: soothsay reads safetensors (pickled .bin files are refused)"
            )
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} does not hold a JSON object")
    return content


def ctranslate2_directory(files: ModelFiles, folder: Path) -> Path:
    """Lay the same weights out as CTranslate2 reads them, in `folder` → `folder`."""
    if not files.container:
        raise WeightsError(f"{files.source} holds no CTranslate2 container to lay out")
    with (folder / "model.bin").open("wb") as joined:
        for part in files.container:
            joined.write(part.read_bytes())
    for name in ("config.json", "tokenizer.json", "vocabulary.txt", "vocabulary.json"):
        if (source := files.tokenizer_json.parent / name).is_file():
            (folder / name).write_bytes(source.read_bytes())
    return folder
