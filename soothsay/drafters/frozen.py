"""A Whisper's decoder that gradients pass through: frozen, for training what hangs on it.

The serving target writes caches and packs weights; this one keeps plain matrices and works on many
windows at once. Ordinary tokens are run without gradients; masks behind them attend to what those
left behind, as they will in a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from soothsay.config import native_bfloat16
from soothsay.drafters.masks import LookaheadMasks
from soothsay.targets.load import ModelFiles

Planes = list[tuple[Tensor, Tensor]]  # keys and values of each layer, (B, H, S, D)

# The names of a layer's adapted products, and Transformers' names of the weights joined in each.
PRODUCTS = {
    "self_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_out": ("self_attn.out_proj",),
    "cross_q": ("encoder_attn.q_proj",),
    "cross_out": ("encoder_attn.out_proj",),
    "ffn_up": ("fc1",),
    "ffn_down": ("fc2",),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """What masks may attend to. cross: of the audio; own: of the ordinary tokens."""

    cross: Planes
    own: Planes


class FrozenDecoder:
    """See the module. B windows, N ordinary tokens, R roots a window, K masks a root."""

    def __init__(self, files: ModelFiles) -> None:
        """In bfloat16 where that is fast."""
        dtype = torch.bfloat16 if native_bfloat16() else torch.float32
        self.tensors = {
            name.removeprefix("model.decoder."): tensor.to(dtype)
            for name, tensor in files.tensors.items()
            if name.startswith("model.decoder.")
        }
        self.dtype = dtype
        self.layers = files.config.decoder_layers
        self.heads = files.config.decoder_heads
        self.embedding = self.tensors["embed_tokens.weight"]
        for layer in range(self.layers):
            for product, parts in (*PRODUCTS.items(), ("cross_kv", _CROSS_KV)):
                weights = [self.tensors.pop(f"layers.{layer}.{part}.weight") for part in parts]
                biases = [
                    self.tensors.pop(f"layers.{layer}.{part}.bias", torch.zeros_like(w[:, 0]))
                    for part, w in zip(parts, weights, strict=True)
                ]
                self.tensors[f"layers.{layer}.{product}.weight"] = torch.cat(weights)
                self.tensors[f"layers.{layer}.{product}.bias"] = torch.cat(biases)

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """(input, output) widths of the products that masks adapt, by name."""
        return {
            name: (weight.shape[1], weight.shape[0])
            for layer in range(self.layers)
            for product in PRODUCTS
            for name in [f"layers.{layer}.{product}"]
            for weight in [self.tensors[f"{name}.weight"]]
        }

    @torch.no_grad()
    def remember(self, hidden: Tensor, tokens: Tensor) -> Memory:
        """hidden: (B, T, width) of the encoder; tokens: (B, N) ordinary ones from position 0 on."""
        hidden = hidden.to(self.dtype)
        cross = []
        for layer in range(self.layers):
            k, v = self._heads(self._product(f"layers.{layer}.cross_kv", hidden), 2)
            cross.append((k, v))
        own: Planes = []
        x = F.embedding(tokens, self.embedding) + self._positions(torch.arange(tokens.shape[1]))
        for layer in range(self.layers):
            q, k, v = self._heads(
                self._product(f"layers.{layer}.self_qkv", self._norm(layer, x)), 3
            )
            own.append((k, v))
            x = self._rest(
                layer, x, F.scaled_dot_product_attention(q, k, v, is_causal=True), cross, None
            )
        return Memory(cross, own)

    def foretell(self, masks: LookaheadMasks, memory: Memory, roots: Tensor) -> Tensor:
        """roots: (B, R) index of each root among the ordinary tokens → (B, R, K, width), the final
        hidden states of the K masks behind each."""
        windows, count = roots.shape
        size = masks.sizes.masks
        ahead = torch.arange(1, size + 1)
        positions = (roots[..., None] + ahead).flatten(1)
        x = masks.embedding.to(self.dtype).repeat(count, 1) + self._positions(positions)
        bias = self._bias(roots, memory.own[0][0].shape[2], size)
        for layer in range(self.layers):
            name = f"layers.{layer}.self_qkv"
            q, k, v = self._heads(self._product(name, self._norm(layer, x), masks), 3)
            past_k, past_v = memory.own[layer]
            mixed = F.scaled_dot_product_attention(
                q, torch.cat([past_k, k], 2), torch.cat([past_v, v], 2), bias
            )
            x = self._rest(layer, x, mixed, memory.cross, masks)
        x = F.layer_norm(
            x, x.shape[-1:], self.tensors["layer_norm.weight"], self.tensors["layer_norm.bias"]
        )
        return x.view(windows, count, size, -1)

    def _rest(
        self,
        layer: int,
        x: Tensor,
        mixed: Tensor,
        cross: Planes,
        masks: LookaheadMasks | None,
    ) -> Tensor:
        """All of a layer behind its self-attention; mixed: (B, H, S, D)."""
        at = f"layers.{layer}"
        x = x + self._product(f"{at}.self_out", mixed.transpose(1, 2).flatten(2), masks)
        (q,) = self._heads(
            self._product(f"{at}.cross_q", self._norm(layer, x, "encoder_attn_layer_norm"), masks),
            1,
        )
        mixed = _attend_frozen(q, *cross[layer])
        x = x + self._product(f"{at}.cross_out", mixed.transpose(1, 2).flatten(2), masks)
        up = self._product(f"{at}.ffn_up", self._norm(layer, x, "final_layer_norm"), masks)
        return x + self._product(f"{at}.ffn_down", F.gelu(up), masks)

    def _product(self, name: str, x: Tensor, masks: LookaheadMasks | None = None) -> Tensor:
        y = F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])
        if masks is None:
            return y
        adapter = masks.adapter(name)
        return y + F.linear(F.linear(x, adapter.down.to(x.dtype)), adapter.up.to(x.dtype))

    def _norm(self, layer: int, x: Tensor, name: str = "self_attn_layer_norm") -> Tensor:
        weight = self.tensors[f"layers.{layer}.{name}.weight"]
        return F.layer_norm(x, x.shape[-1:], weight, self.tensors[f"layers.{layer}.{name}.bias"])

    def _heads(self, x: Tensor, parts: int) -> Tensor:
        """(B, S, parts * width) → (parts, B, H, S, D)."""
        return x.view(*x.shape[:2], parts, self.heads, -1).permute(2, 0, 3, 1, 4)

    def _positions(self, index: Tensor) -> Tensor:
        table = self.tensors["embed_positions.weight"]
        return F.embedding(index.clamp(max=len(table) - 1), table)

    def _bias(self, roots: Tensor, tokens: int, size: int) -> Tensor:
        """(B, 1, R * K, N + R * K): a mask sees its root and what stands before it, and the earlier
        masks of its own group."""
        windows, count = roots.shape
        rows = count * size
        seen = torch.arange(tokens) <= roots[..., None]  # (B, R, N)
        seen = seen.repeat_interleave(size, 1)
        group, place = torch.arange(rows) // size, torch.arange(rows) % size
        own = (group[:, None] == group) & (place[:, None] >= place)
        both = torch.cat([seen, own.expand(windows, rows, rows)], -1)
        bias = torch.zeros(both.shape, dtype=self.dtype).masked_fill_(~both, float("-inf"))
        return bias[:, None]


def _attend_frozen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose keys and values need no gradients: PyTorch's fused backward pass would
    compute those all the same, at twice the cost of everything else here."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    return torch.softmax(scores, -1) @ v


_CROSS_KV = ("encoder_attn.k_proj", "encoder_attn.v_proj")
