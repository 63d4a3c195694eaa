"""The look-ahead's weights: mask embeddings, and low-rank adapters that act on mask rows alone.

A mask stands where a token is not yet known and asks the target's own frozen decoder for the one
behind it (PaSS, Monea et al., 2023; parallel prompt decoding, Chen et al., 2024). The adapters
(LoRA, Hu et al., 2021) are added to the target's products by the name of the module, on those rows
only, so that every other row stays what it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from soothsay.drafters import files
from soothsay.targets.adapters import Adapters
from soothsay.types import OptionError

KIND = "lookahead"
MASKS_SHARE = 0.015  # of the target's parameters, at most


@dataclass(frozen=True, slots=True)
class MaskSizes:
    """products: (input, output) widths of every product that is adapted, by its name; masks: how
    many tokens behind the next one are foretold; rank: of the adapters; bigram: of the bigram."""

    width: int
    embedding_width: int
    products: Mapping[str, tuple[int, int]]
    masks: int = 8
    rank: int = 16
    bigram: int = 32


class LowRank(nn.Module):
    """x → B A x, zero before training. Both factors are trained."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))


class LookaheadMasks(nn.Module):
    """K masks and the adapters of their rows.

    The bigram says how much likelier a token is behind the one before it than the masks, which did
    not see that one yet, thought: E_out[c] · B A E_in[before].
    """

    def __init__(self, sizes: MaskSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Parameter(0.02 * torch.randn(sizes.masks, sizes.width))
        self.adapters = nn.ModuleDict(
            {
                _key(name): LowRank(inputs, outputs, sizes.rank)
                for name, (inputs, outputs) in sizes.products.items()
            }
        )
        self.before = nn.Linear(sizes.embedding_width, sizes.bigram, bias=False)
        self.after = nn.Linear(sizes.bigram, sizes.embedding_width, bias=False)
        with torch.no_grad():
            self.after.weight.zero_()

    def adapter(self, name: str) -> LowRank:
        adapter = self.adapters[_key(name)]
        assert isinstance(adapter, LowRank)
        return adapter

    def laid_out(
        self, dtype: torch.dtype, device: torch.device, count: int | None = None
    ) -> Adapters:
        """The first `count`, or all, as a step runs them."""
        factors = {
            name: (adapter.down, adapter.up)
            for name in self.sizes.products
            for adapter in [self.adapter(name)]
        }
        return Adapters(self.embedding[:count], factors, dtype, device)

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def bigram_sides(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """embedding: (A, width) of some tokens → what each brings as the token before, and as the
        one behind: (A, bigram) each, whose products are the bigram's logits."""
        before: Tensor = self.before(embedding)
        return before, embedding @ self.after.weight


def _key(name: str) -> str:
    return name.replace(".", "_")  # a module's name may hold no dot


def mask_sizes_for(
    width: int, products: Mapping[str, tuple[int, int]], target_parameters: int, masks: int = 8
) -> MaskSizes:
    """The highest rank that stays within the look-ahead's half of what drafting may hold."""
    for rank in range(16, 0, -1):
        sizes = MaskSizes(width, width, products, masks, rank, bigram=2 * rank)
        with torch.device("meta"):
            if LookaheadMasks(sizes).parameter_count <= MASKS_SHARE * target_parameters:
                return sizes
    raise OptionError(f"a target of {target_parameters} parameters is too small for masks")


@dataclass(frozen=True, slots=True)
class FuseSettings:
    """How what masks foretell and what the lattice heard are weighed together (see fuse.py): powers
    and floors for each mask, the nearest first; the last stands for all beyond.

    A token's weight is exp(look · log p + lattice · log q); for one that only the other source
    names, look_floor stands for log p and lattice_floor for log q. exp(rest) is the weight of all
    tokens that neither names.
    """

    look: tuple[float, ...] = (0.8, 0.6)
    lattice: tuple[float, ...] = (0.6, 0.9)
    look_floor: tuple[float, ...] = (-5.0, -5.5)
    lattice_floor: tuple[float, ...] = (-4.3, -4.3)
    rest: tuple[float, ...] = (-3.0, -3.3)

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, field)) for field in self.__slots__}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError("the weights of a blend need one number for each mask")

    def at(self, number: int) -> tuple[float, float, float, float, float]:
        index = min(number, len(self.look) - 1)
        return (
            self.look[index],
            self.lattice[index],
            self.look_floor[index],
            self.lattice_floor[index],
            self.rest[index],
        )


@dataclass(frozen=True, slots=True)
class MasksConfig:
    """What stands in config.json. Provenance is for people: data, steps, figures."""

    target: str
    weights_sha256: str
    sizes: MaskSizes
    fuse: FuseSettings = field(default_factory=FuseSettings)
    provenance: dict[str, Any] = field(default_factory=dict)


def save_masks(
    folder: Path, masks: LookaheadMasks, config: MasksConfig, vocabulary: Tensor
) -> None:
    """vocabulary: (C,) token ids they can foretell."""
    files.save(folder, KIND, asdict(config), masks.state_dict() | {"vocabulary": vocabulary.int()})


def load_masks(folder: Path, weights_sha256: str) -> tuple[LookaheadMasks, MasksConfig, Tensor]:
    """The masks, their config and vocabulary (C,) int64, in float32. WeightsError: see files."""
    return files.load(folder, KIND, weights_sha256, _built)


def _built(
    facts: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[LookaheadMasks, MasksConfig, Tensor]:
    sizes = facts["sizes"]
    products = {name: (int(i), int(o)) for name, (i, o) in sizes["products"].items()}
    facts["sizes"] = MaskSizes(**(sizes | {"products": products}))
    fuse = {name: tuple(float(value) for value in row) for name, row in facts["fuse"].items()}
    facts["fuse"] = FuseSettings(**fuse)
    vocabulary = tensors.pop("vocabulary").long()
    masks = LookaheadMasks(facts["sizes"])
    masks.load_state_dict(tensors)
    return masks.eval().requires_grad_(False), MasksConfig(**facts), vocabulary
