"""Drafters by name, as the command line writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from soothsay.drafters.blend import BlendDrafter
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.fuse import FusedDrafter
from soothsay.drafters.head import load_head
from soothsay.drafters.history import HistoryDrafter
from soothsay.drafters.lattice import LatticeDrafter, Signs
from soothsay.drafters.lookahead import LookaheadDrafter
from soothsay.drafters.masks import load_masks
from soothsay.drafters.probe import AdversarialDrafter, OracleDrafter, RandomDrafter
from soothsay.targets.load import ModelFiles
from soothsay.types import OptionError

NAMES = (
    "auto, off, lattice, lookahead, fused, each of these also with :DIRECTORY of trained drafters, "
    "history, random, oracle:ACCURACY, adversarial:KIND"
)
MASKS_FOLDER = "lookahead"  # below the lattice head's
SHIPPED = Path(__file__).parent.parent / "data" / "heads"


def choose_drafter(
    name: str, files: ModelFiles, signs: Signs, seed: int = 0, shipped: Path = SHIPPED
) -> Drafter | None:
    """`off` is None: plain decoding. `auto`: all that ships for these weights, or stands in a
    directory, with history; history alone where there is nothing. `lattice`, `lookahead`, `fused`:
    one of these, or both weighed together. For tests and measurements also `random`, `oracle:0.85`
    (needs the text as the request's hint) and `adversarial:wrong`."""
    kind, _, detail = name.partition(":")
    vocab_size, end_token = files.config.vocab_size, signs.end
    if kind == "off" and not detail:
        return None
    if kind == "history" and not detail:
        return HistoryDrafter()
    if kind in TRAINED:
        folder = Path(detail) if detail else shipped_head(files, shipped)
        if kind == "auto":
            sources = [] if folder is None else [_trained(folder, files, signs)]
            return blended([*sources, HistoryDrafter()])
        if folder is None:
            raise OptionError(
                f"no head ships for {files.config.name}: train one with soothsay train-head and "
                f"name its directory, as in {kind}:DIRECTORY"
            )
        return TRAINED[kind](folder, files, signs)
    if kind == "random" and not detail:
        return RandomDrafter(vocab_size, end_token, seed)
    if kind == "oracle":
        try:
            accuracy = float(detail)
        except ValueError:
            accuracy = -1.0
        if not 0.0 <= accuracy <= 1.0:
            raise OptionError(f"oracle needs an accuracy in 0..1, as in oracle:0.85, not {name!r}")
        return OracleDrafter(accuracy, vocab_size, end_token, seed)
    if kind == "adversarial":
        return AdversarialDrafter(detail, vocab_size, end_token)
    raise OptionError(f"unknown drafter {name!r}: choose {NAMES}")


def blended(drafters: Sequence[Drafter]) -> Drafter:
    """One drafter of several, the most trusted first."""
    return drafters[0] if len(drafters) == 1 else BlendDrafter(drafters)


def shipped_head(files: ModelFiles, folder: Path = SHIPPED) -> Path | None:
    """The directory of the head made for these weights, whatever they are called."""
    for config in sorted(folder.glob("*/config.json")):
        facts = json.loads(config.read_text(encoding="utf-8"))
        if facts.get("weights_sha256") == files.sha256:
            return config.parent
    return None


def lattice_of(folder: Path, files: ModelFiles, signs: Signs) -> LatticeDrafter:
    head, config, vocabulary = load_head(folder, files.sha256)
    return LatticeDrafter(head, vocabulary, _embedding(files), signs, config.settings)


def lookahead_of(folder: Path, files: ModelFiles, signs: Signs) -> LookaheadDrafter:
    masks, _, vocabulary = load_masks(folder / MASKS_FOLDER, files.sha256)
    return LookaheadDrafter(masks, vocabulary, _embedding(files), signs.end)


def fused_of(folder: Path, files: ModelFiles, signs: Signs) -> FusedDrafter:
    masks, config, vocabulary = load_masks(folder / MASKS_FOLDER, files.sha256)
    look = LookaheadDrafter(masks, vocabulary, _embedding(files), signs.end)
    return FusedDrafter(look, lattice_of(folder, files, signs), config.fuse)


def _trained(folder: Path, files: ModelFiles, signs: Signs) -> Drafter:
    """Both, or the one that stands in the folder."""
    if not (folder / MASKS_FOLDER).is_dir():
        return lattice_of(folder, files, signs)
    if not (folder / "config.json").is_file():
        return lookahead_of(folder, files, signs)
    return fused_of(folder, files, signs)


TRAINED: dict[str, Callable[[Path, ModelFiles, Signs], Drafter]] = {
    "auto": _trained,
    "lattice": lattice_of,
    "lookahead": lookahead_of,
    "fused": fused_of,
}


def _embedding(files: ModelFiles) -> Tensor:
    return files.tensors["model.decoder.embed_tokens.weight"]
