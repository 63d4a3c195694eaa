"""Drafters by name, as the command line writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from soothsay.drafters.blend import BlendDrafter
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.head import load_head
from soothsay.drafters.history import HistoryDrafter
from soothsay.drafters.lattice import LatticeDrafter, Signs
from soothsay.drafters.probe import AdversarialDrafter, OracleDrafter, RandomDrafter
from soothsay.targets.load import ModelFiles
from soothsay.types import OptionError

NAMES = (
    "auto, auto:DIRECTORY (of a head), off, lattice, lattice:DIRECTORY, history, random, "
    "oracle:ACCURACY, adversarial:KIND"
)
SHIPPED = Path(__file__).parent.parent / "data" / "heads"


def choose_drafter(
    name: str, files: ModelFiles, signs: Signs, seed: int = 0, shipped: Path = SHIPPED
) -> Drafter | None:
    """`off` is None: plain decoding. `auto`: the head that ships for these weights, or that of a
    directory, with history; history alone without one. `lattice`: a head alone. For tests and
    measurements also `random`, `oracle:0.85` (needs the text as the request's hint) and
    `adversarial:wrong`."""
    kind, _, detail = name.partition(":")
    vocab_size, end_token = files.config.vocab_size, signs.end
    if kind == "off" and not detail:
        return None
    if kind == "history" and not detail:
        return HistoryDrafter()
    if kind == "auto":
        folder = Path(detail) if detail else shipped_head(files, shipped)
        sources: list[Drafter] = [] if folder is None else [_lattice(folder, files, signs)]
        return blended([*sources, HistoryDrafter()])
    if kind == "lattice":
        folder = Path(detail) if detail else shipped_head(files, shipped)
        if folder is None:
            raise OptionError(
                f"no head ships for {files.config.name}: train one with soothsay train-head and "
                "name its directory, as in lattice:DIRECTORY"
            )
        return _lattice(folder, files, signs)
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


def _lattice(folder: Path, files: ModelFiles, signs: Signs) -> LatticeDrafter:
    head, config, vocabulary = load_head(folder, files.sha256)
    embedding = files.tensors["model.decoder.embed_tokens.weight"]
    return LatticeDrafter(head, vocabulary, embedding, signs, config.settings)
