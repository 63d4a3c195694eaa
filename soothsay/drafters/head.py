"""The lattice head: encoder states → when a token is heard, and which.

Convolution blocks after ConvNeXt (Liu et al., 2022) over every second encoder position; a gate says
where a token is heard; the target's own frozen output embedding is the classifier, reached through
a narrow bottleneck so that both fold into one small matrix when the head is loaded. A direct path
beside the blocks carries what a frame says by itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soothsay.drafters import files
from soothsay.speculate.prefix import Search
from soothsay.types import OptionError


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """encoder_width: of the states read; embedding_width: of the target's output embedding; stride:
    encoder positions a frame; bottleneck: rank of the classifier; bigram: rank of the bigram."""

    encoder_width: int
    embedding_width: int
    width: int = 256
    blocks: int = 3
    kernel: int = 15
    expansion: int = 448
    stride: int = 2
    bottleneck: int = 128
    bigram: int = 32


KIND = "lattice"
PARAMETER_SHARE = 0.015  # of the target's, at most

_SEARCH = Search(window=24, cut=1e-3, emit=1e-2, blank=0.02, hold=0.5, absent=1e-3)


@dataclass(frozen=True, slots=True)
class LatticeSettings:
    """How a head is drafted from, chosen on held-out training windows.

    gate_scale, gate_shift: of the gate's logits: a gate that is surer loses less in pauses.
    sharpen: of the token logits.
    gate:   frames count where a token is heard at least that likely.
    candidate: tokens count that are heard at some frame at least that likely.
    least:  a continuation below that chance is never drafted.
    siblings: most continuations of one node; 1 makes chains.
    bigram: weight of the bigram.
    trust:  power that turns a draft probability into a chance of acceptance.
    """

    gate_scale: float = 1.5
    gate_shift: float = 0.0
    sharpen: float = 1.2
    gate: float = 0.1
    candidate: float = 2e-3
    least: float = 0.01
    siblings: int = 8
    bigram: float = 1.0
    trust: float = 1.0
    search: Search = _SEARCH


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What stands in config.json. Provenance is for people: data, steps, figures."""

    target: str
    weights_sha256: str
    sizes: HeadSizes
    settings: LatticeSettings = field(default_factory=LatticeSettings)
    provenance: dict[str, Any] = field(default_factory=dict)


class Block(nn.Module):
    """Depthwise convolution over time, then a two-layer mix of channels, on a residual path."""

    def __init__(self, sizes: HeadSizes, dropout: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(
            sizes.width, sizes.width, sizes.kernel, padding=sizes.kernel // 2, groups=sizes.width
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.up = nn.Linear(sizes.width, sizes.expansion)
        self.down = nn.Linear(sizes.expansion, sizes.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self._over_time(x)
        mixed = self.down(self.dropout(F.gelu(self.up(self.norm(mixed)))))
        result: Tensor = x + self.dropout(mixed)
        return result

    def _over_time(self, x: Tensor) -> Tensor:
        """The depthwise convolution. Without gradients tap by tap: on a CPU that costs a tenth."""
        mixed: Tensor
        if self.training:
            mixed = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
            return mixed
        taps = self.depthwise.weight[:, 0].T
        padded = F.pad(x, (0, 0, len(taps) // 2, len(taps) // 2))
        mixed = self.depthwise.bias.expand_as(x)  # type: ignore[union-attr]
        for index, tap in enumerate(taps):
            mixed = torch.addcmul(mixed, padded[:, index : index + x.shape[1]], tap)
        return mixed


class LatticeHead(nn.Module):
    """Weights of the head. F frames, stride times fewer than encoder positions.

    The bigram says how much likelier a token is behind the one before it, given that it was heard:
    E_out[c] · B A E_in[before], added to the log-probability of the lattice.
    """

    def __init__(self, sizes: HeadSizes, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes = sizes
        channels, width = sizes.encoder_width, sizes.width
        self.gather = nn.Conv1d(
            channels,
            channels,
            2 * sizes.stride,
            sizes.stride,
            sizes.stride // 2,
            groups=channels,
            bias=False,
        )
        with torch.no_grad():  # begins as the mean of the positions it covers
            self.gather.weight.fill_(0.5 / sizes.stride)
        self.enter = nn.Linear(channels, width)
        self.blocks = nn.ModuleList(Block(sizes, dropout) for _ in range(sizes.blocks))
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 1)
        self.narrow = nn.Linear(width, sizes.bottleneck)
        self.direct = nn.Linear(channels, sizes.bottleneck)
        self.classify = nn.Linear(sizes.bottleneck, sizes.embedding_width, bias=False)
        self.before = nn.Linear(sizes.embedding_width, sizes.bigram, bias=False)
        self.after = nn.Linear(sizes.bigram, sizes.embedding_width, bias=False)

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden: (B, P, encoder_width) → gate logits (B, F), features (B, F, bottleneck)."""
        gathered = self.gather(hidden.transpose(1, 2)).transpose(1, 2)
        x = self.enter(gathered)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.gate(x).squeeze(-1), self.narrow(x) + self.direct(gathered)

    def classifier(self, embedding: Tensor) -> Tensor:
        """embedding: (C, embedding_width) of some tokens → (C, bottleneck)."""
        weight: Tensor = self.classify.weight
        return embedding @ weight

    def bigram_sides(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """embedding: (A, width) of some tokens → what each brings as the token before, and as the
        one behind: (A, bigram) each, whose products are the bigram's logits."""
        before: Tensor = self.before(embedding)
        return before, embedding @ self.after.weight

    def bigram(self, before: Tensor, after: Tensor) -> Tensor:
        """Embeddings of tokens (A, width) and of their followers (C, width) → (A, C) logits."""
        return self.bigram_sides(before)[0] @ self.bigram_sides(after)[1].T


def sizes_for(encoder_width: int, embedding_width: int, target_parameters: int) -> HeadSizes:
    """The widest head that stays within the lattice's half of what drafting may hold."""
    for width in range(256, 16, -16):
        sizes = HeadSizes(
            encoder_width,
            embedding_width,
            width=width,
            expansion=7 * width // 4,
            bottleneck=width // 2,
            bigram=width // 8,
        )
        with torch.device("meta"):
            if LatticeHead(sizes).parameter_count <= PARAMETER_SHARE * target_parameters:
                return sizes
    raise OptionError(f"a target of {target_parameters} parameters is too small for a head")


def save_head(folder: Path, head: LatticeHead, config: HeadConfig, vocabulary: Tensor) -> None:
    """vocabulary: (C,) token ids it can foretell."""
    files.save(folder, KIND, asdict(config), head.state_dict() | {"vocabulary": vocabulary.int()})


def load_head(folder: Path, weights_sha256: str) -> tuple[LatticeHead, HeadConfig, Tensor]:
    """The head, its config and its vocabulary (C,) int64, in float32. WeightsError: see files."""
    return files.load(folder, KIND, weights_sha256, _built)


def _built(
    facts: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[LatticeHead, HeadConfig, Tensor]:
    settings = facts["settings"]
    facts["settings"] = LatticeSettings(**(settings | {"search": Search(**settings["search"])}))
    config = HeadConfig(**(facts | {"sizes": HeadSizes(**facts["sizes"])}))
    vocabulary = tensors.pop("vocabulary").long()
    head = LatticeHead(config.sizes)
    head.load_state_dict(tensors)
    return head.eval().requires_grad_(False), config, vocabulary
