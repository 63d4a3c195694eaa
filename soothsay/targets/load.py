"""Where weights come from: a directory, an installed distribution, or the Hugging Face hub.

Whatever the source, the result is the same: sizes, logit facts, and tensors under Transformers'
names, complete and nothing besides. Nothing is downloaded unless the caller says so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from soothsay.targets import convert_cache
from soothsay.targets.ct2 import read_container, whisper_tensors
from soothsay.targets.distributions import DISTRIBUTIONS, Distribution
from soothsay.types import WeightsError

HUB_REPOSITORIES = {
    name: f"openai/whisper-{name}"
    for name in (
        *(f"{size}{kind}" for size in ("tiny", "base", "small", "medium") for kind in ("", ".en")),
        *("large-v2", "large-v3", "large-v3-turbo"),
    )
}
_HUB_FILES = ["*.json", "*.safetensors"]


@dataclass(frozen=True, slots=True)
class WhisperSizes:
    """The sizes of one Whisper."""

    name: str
    vocab_size: int
    width: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    mel_bins: int
    max_source_positions: int
    max_target_positions: int


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """What the model's own generation configuration says: token ids, and (layer, head) pairs."""

    suppress: tuple[int, ...]
    begin_suppress: tuple[int, ...]
    alignment_heads: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A resolved model. `sha256` identifies the weights; `container` holds the paths of a
    CTranslate2 container's parts, where that is the source."""

    config: WhisperSizes
    generation: GenerationFacts
    tensors: dict[str, Tensor]
    tokenizer_json: Path
    sha256: str
    source: str
    container: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A row of `soothsay models`."""

    name: str
    source: str
    installed: bool
    licence: str
    install: str


def available() -> list[KnownModel]:
    """The models known by name that come as Python packages."""
    return [
        KnownModel(d.model, " + ".join(d.packages), d.installed, d.licence, d.install)
        for d in DISTRIBUTIONS
    ]


def resolve(model: str | Path, download: bool = False) -> ModelFiles:
    """Find and read a model: a directory (Transformers' or CTranslate2's format), a known name
    among the installed distributions, or a hub repository in the local cache.

    download: fetch from the hub what is not in its cache. WeightsError in one line otherwise.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_directory(path, path.name)
    name = str(model).removeprefix("openai/").removeprefix("whisper-")
    for distribution in DISTRIBUTIONS:
        if distribution.model == name and distribution.installed:
            return _from_distribution(distribution)
    repository = HUB_REPOSITORIES.get(name, str(model))
    return _from_hub(repository, name, download)


def _from_hub(repository: str, name: str, download: bool) -> ModelFiles:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        snapshot = snapshot_download(
            repository, allow_patterns=_HUB_FILES, local_files_only=not download
        )
    except (OSError, HFValidationError, ValueError) as error:
        ways = [d.install for d in DISTRIBUTIONS if d.model == name][:1]
        ways += ["give a directory with its weights"]
        if name in HUB_REPOSITORIES or "/" in repository:
            ways += [f"soothsay models --download {name}"]
        known = ", ".join(dict.fromkeys(d.model for d in DISTRIBUTIONS))
        raise WeightsError(
            f"no model {name!r} here (known as packages: {known}). Ways out: {'; '.join(ways)}"
        ) from error
    return _from_directory(Path(snapshot), repository.rpartition("/")[2])


def _from_distribution(distribution: Distribution) -> ModelFiles:
    directory = distribution.directory()
    if kept := convert_cache.load(distribution.sha256):
        tensors, facts = kept
    else:
        tensors, *found = whisper_tensors(read_container(distribution.read()))
        facts = dict(zip(("encoder_heads", "decoder_heads"), map(str, found), strict=True))
        convert_cache.save(distribution.sha256, tensors, facts)
    heads = (int(facts["encoder_heads"]), int(facts["decoder_heads"]))
    return _assemble(
        f"whisper-{distribution.model}",
        tensors,
        heads,
        directory,
        distribution.sha256,
        source=" + ".join(distribution.packages),
        container=tuple(distribution.part_paths()),
    )


def _from_directory(directory: Path, name: str) -> ModelFiles:
    if (directory / "model.bin").is_file() and not (directory / "model.safetensors").exists():
        return _from_container(directory, name)
    config = _read_json(directory / "config.json")
    if config.get("model_type") != "whisper":
        raise WeightsError(f"{directory / 'config.json'} describes {config.get('model_type')!r}")
    files = _weight_files(directory)
    tensors: dict[str, Tensor] = {}
    digest = hashlib.sha256()
    for file in files:
        try:
            tensors |= load_file(file)
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file} cannot be read: {error}; copy it again") from error
    heads = (config["encoder_attention_heads"], config["decoder_attention_heads"])
    output = tensors.pop("proj_out.weight", None)
    embedding = tensors.get("model.decoder.embed_tokens.weight")
    if output is not None and embedding is not None and not output.equal(embedding):
        raise WeightsError(f"{directory}: proj_out is not tied to the input embedding")
    return _assemble(name, tensors, heads, directory, digest.hexdigest(), source=str(directory))


def _from_container(directory: Path, name: str) -> ModelFiles:
    file = directory / "model.bin"
    try:
        buffer = bytearray(file.read_bytes())
        tensors, encoder_heads, decoder_heads = whisper_tensors(read_container(buffer))
    except (OSError, WeightsError) as error:
        raise WeightsError(f"{file} cannot be read: {error}; copy it again") from error
    return _assemble(
        name,
        tensors,
        (encoder_heads, decoder_heads),
        directory,
        hashlib.sha256(buffer).hexdigest(),
        source=str(directory),
        container=(file,),
    )


def _assemble(
    name: str,
    tensors: dict[str, Tensor],
    heads: tuple[int, int],
    directory: Path,
    sha256: str,
    source: str,
    container: tuple[Path, ...] = (),
) -> ModelFiles:
    sizes = _sizes(name, tensors, heads, source)
    _check_complete(tensors, sizes, source)
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise WeightsError(f"{tokenizer} is missing: copy it beside the weights")
    return ModelFiles(
        config=sizes,
        generation=_generation(directory),
        tensors=tensors,
        tokenizer_json=tokenizer,
        sha256=sha256,
        source=source,
        container=container,
    )


def _generation(directory: Path) -> GenerationFacts:
    """From Transformers' generation_config.json, or CTranslate2's config.json."""
    path = directory / "generation_config.json"
    facts = _read_json(path if path.is_file() else directory / "config.json")
    heads = facts.get("alignment_heads") or []
    return GenerationFacts(
        suppress=tuple(facts.get("suppress_tokens") or facts.get("suppress_ids") or ()),
        begin_suppress=tuple(
            facts.get("begin_suppress_tokens") or facts.get("suppress_ids_begin") or ()
        ),
        alignment_heads=tuple((int(layer), int(head)) for layer, head in heads),
    )


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
        files = [directory / name for name in names if "/" not in name]
    else:
        files = [directory / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise WeightsError(
                f"{file} is missing: soothsay reads safetensors (pickled .bin files are refused)"
            )
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} does not hold a JSON object")
    return content


def _sizes(
    name: str, tensors: dict[str, Tensor], heads: tuple[int, int], source: str
) -> WhisperSizes:
    def shape(of: str, rank: int) -> tuple[int, ...]:
        if of not in tensors or tensors[of].dim() != rank:
            raise WeightsError(f"{source}: the tensor {of} is missing or misshapen")
        return tuple(tensors[of].shape)

    def layers(side: str) -> int:
        return sum(f".{side}.layers." in n and n.endswith(".fc1.weight") for n in tensors)

    vocab_size, width = shape("model.decoder.embed_tokens.weight", 2)
    if width % heads[0] or width % heads[1]:
        raise WeightsError(f"{source}: width {width} is no multiple of {heads} heads")
    return WhisperSizes(
        name=name,
        vocab_size=vocab_size,
        width=width,
        encoder_layers=layers("encoder"),
        decoder_layers=layers("decoder"),
        encoder_heads=heads[0],
        decoder_heads=heads[1],
        mel_bins=shape("model.encoder.conv1.weight", 3)[1],
        max_source_positions=shape("model.encoder.embed_positions.weight", 2)[0],
        max_target_positions=shape("model.decoder.embed_positions.weight", 2)[0],
    )


def expected_shapes(sizes: WhisperSizes, ffn: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Whisper of these sizes, under Transformers' names."""
    width = sizes.width
    shapes: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (width, sizes.mel_bins, 3),
        "model.encoder.conv1.bias": (width,),
        "model.encoder.conv2.weight": (width, width, 3),
        "model.encoder.conv2.bias": (width,),
        "model.encoder.embed_positions.weight": (sizes.max_source_positions, width),
        "model.decoder.embed_positions.weight": (sizes.max_target_positions, width),
        "model.decoder.embed_tokens.weight": (sizes.vocab_size, width),
    }

    def linear(name: str, out: int, into: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (out, into)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    for side, count in (("encoder", sizes.encoder_layers), ("decoder", sizes.decoder_layers)):
        norm(f"model.{side}.layer_norm")
        for layer in (f"model.{side}.layers.{i}" for i in range(count)):
            for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                norm(f"{layer}.{attention}_layer_norm")
                for product in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{layer}.{attention}.{product}", width, width, product != "k_proj")
            norm(f"{layer}.final_layer_norm")
            linear(f"{layer}.fc1", ffn, width)
            linear(f"{layer}.fc2", width, ffn)
    return shapes


def _check_complete(tensors: dict[str, Tensor], sizes: WhisperSizes, source: str) -> None:
    first = tensors.get("model.decoder.layers.0.fc1.weight")
    expected = expected_shapes(sizes, ffn=0 if first is None else first.shape[0])
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    missing, surplus = sorted(expected.keys() - found), sorted(found.keys() - expected)
    wrong = sorted(n for n in expected.keys() & found if expected[n] != found[n])
    for what, names in (("missing", missing), ("surplus", surplus), ("misshapen", wrong)):
        if names:
            raise WeightsError(f"{source}: {what} tensors: {', '.join(names[:4])}")


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
