"""Whisper as a target: a lean encoder and a decoder that runs any number of trees in one call.

Follows "Robust Speech Recognition via Large-Scale Weak Supervision" (Radford et al., 2022) as
Transformers implements it; weights come under Transformers' names. Serves Whisper tiny to
large-v3-turbo, distil-Whisper and fine-tunes: all sizes are read from the model's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from soothsay.cache.arena import Arena, ArenaShape
from soothsay.targets.adapters import MaskRows
from soothsay.targets.attention import (
    attend,
    attend_rounded,
    attend_wide,
    round_keys,
    round_values,
    tree_bias,
)
from soothsay.targets.linear import BlockedLinear, Int8Linear, Linear, lay_out
from soothsay.targets.load import ModelFiles
from soothsay.targets.target import Encoded, TargetSpec, TreeBatch

Product = Linear | BlockedLinear | Int8Linear


@dataclass(frozen=True, slots=True)
class Conv:
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """Self-attention and feed-forward: all of an encoder layer."""

    self_norm: Norm
    self_qkv: Product  # q, k and v in one product
    self_out: Product
    ffn_norm: Norm
    ffn_up: Product
    ffn_down: Product

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.ffn_down(F.gelu(self.ffn_up(self.ffn_norm(x))))


@dataclass(frozen=True, slots=True)
class DecoderLayer(Layer):
    cross_norm: Norm
    cross_q: Product
    cross_kv: Product  # k and v in one product, run once a segment
    cross_out: Product


class WhisperTarget:
    """Weights only; see the Target protocol for what each method promises.

    dtype torch.int8: products in int8, and every node's result the same bits whatever other nodes
    run beside it (docs/adr/0003); norms, softmax, convolutions and caches are float32.
    """

    def __init__(
        self,
        files: ModelFiles,
        dtype: torch.dtype = torch.float32,
        device: torch.device = torch.device("cpu"),
        encoder_dtype: torch.dtype | None = None,
    ) -> None:
        """encoder_dtype: of the encoder's products, where they differ from the decoder's."""
        sizes = files.config
        self.device, self.dtype = device, dtype
        self.encoder_dtype = encoder_dtype or dtype
        self._int8 = dtype == torch.int8
        self._real = torch.float32 if self._int8 else dtype  # of all but the products
        self.heads = sizes.decoder_heads
        self.encoder_heads = sizes.encoder_heads
        self.head_width = sizes.width // sizes.decoder_heads
        self._scale = float(self.head_width**-0.5)
        self.spec = TargetSpec(
            name=sizes.name,
            vocab_size=sizes.vocab_size,
            max_length=sizes.max_target_positions,
            parameters=files.parameters,
            encoder_width=sizes.width,
            encoder_positions=sizes.max_source_positions,
            mel_bins=sizes.mel_bins,
            weights_sha256=files.sha256,
        )
        read = _Reader(files.tensors, self.encoder_dtype, device, many_rows=True)
        self._encoder_real = read.real
        self.conv1 = Conv(*read.tensors("model.encoder.conv1", "weight", "bias"))
        self.conv2 = Conv(*read.tensors("model.encoder.conv2", "weight", "bias"))
        (self.encoder_positions,) = read.tensors("model.encoder.embed_positions", "weight")
        self.encoder_norm = read.norm("model.encoder.layer_norm")
        self.encoder = [
            Layer(**read.layer(f"model.encoder.layers.{i}")) for i in range(sizes.encoder_layers)
        ]
        read = _Reader(files.tensors, dtype, device)
        (self.positions,) = read.tensors("model.decoder.embed_positions", "weight")
        self.norm = read.norm("model.decoder.layer_norm")
        self.decoder = [
            read.decoder_layer(f"model.decoder.layers.{i}") for i in range(sizes.decoder_layers)
        ]
        # Kept as stored: a lookup widens the few rows it reads.
        self.embedding = files.tensors["model.decoder.embed_tokens.weight"].to(device)
        # The last norm amplifies some channels nine times as much as others.
        loudness = self.norm.weight.abs().clamp_min(1e-3)
        self.output = lay_out(self.embedding, None, dtype, loudness)

    @property
    def logit_rows(self) -> int:
        return self.output.cheap_rows

    def arena_shape(self, slots: int, streams: int) -> ArenaShape:
        return ArenaShape(
            layers=len(self.decoder),
            heads=self.heads,
            head_width=self.head_width,
            slots=slots,
            streams=streams,
            encoder_positions=self.spec.encoder_positions,
            dtype=self._real,
            device=self.device,
        )

    def encode(self, features: Tensor) -> Encoded:
        x = features.to(self.device, self._encoder_real)
        x = F.gelu(F.conv1d(x, self.conv1.weight, self.conv1.bias, padding=1))
        x = F.gelu(F.conv1d(x, self.conv2.weight, self.conv2.bias, 2, 1))
        # Rows in memory order from here on, or every norm and sum below would re-order them.
        x = x.transpose(1, 2).contiguous() + self.encoder_positions
        for layer in self.encoder:
            qkv = layer.self_qkv(layer.self_norm(x))
            q, k, v = qkv.view(*qkv.shape[:2], 3, self.encoder_heads, -1).permute(2, 0, 3, 1, 4)
            mixed = attend_wide(q, k, v)
            x = x + layer.self_out(mixed.transpose(1, 2).flatten(2))
            x = x + layer.feed_forward(x)
        return Encoded(self.encoder_norm(x).to(self._real), _audio_positions(features))

    def write_cross(self, encoded: Encoded, arena: Arena, streams: Sequence[int]) -> None:
        for number, layer in enumerate(self.decoder):
            kv = layer.cross_kv(encoded.hidden)
            kv = kv.view(*kv.shape[:2], 2, self.heads, self.head_width)
            for segment, stream in enumerate(streams):
                keys_t = kv[segment, :, 0].permute(1, 2, 0)
                values = kv[segment, :, 1].transpose(0, 1)
                if self._int8:
                    keys_t, values = round_keys(keys_t), round_values(values)
                arena.cross_k[number, stream] = keys_t
                arena.cross_v[number, stream] = values

    def forward_tree(
        self,
        batch: TreeBatch,
        arena: Arena,
        watch: Callable[[int, Tensor], None] = lambda layer, queries: None,
    ) -> Tensor:
        """`watch` hears each layer's cross-attention queries, (H, N, D): see alignment.py."""
        x = self._embed(batch)
        rows = [span.stop - span.start for span in batch.spans]
        views = [
            arena.views(span.slot, span.committed, n, span.stream)
            for span, n in zip(batch.spans, rows, strict=True)
        ]
        # A node's place among the keys differs from plain decoding to a tree, and with it the order
        # of the sums: float64 keeps that from ever reaching the rounding of an int8 product.
        precise = torch.float64 if self._int8 else self._real
        biases = [
            None if span.mask is None else tree_bias(span.mask, span.committed, precise)
            for span in batch.spans
        ]
        masks = batch.masks
        for number, layer in enumerate(self.decoder):
            qkv = self._product(number, "self_qkv", layer.self_norm(x), masks)
            qkv = qkv.view(-1, 3, self.heads, self.head_width)
            mixed = []
            parts = torch.split(qkv.permute(1, 2, 0, 3), rows, 2)
            for (q, k, v), view, bias in zip(parts, views, biases, strict=True):
                view.fresh_k[number].copy_(k)
                view.fresh_v[number].copy_(v)
                past = view.keys_t[number].to(precise), view.values[number].to(precise)
                mixed.append(attend(q.to(precise), *past, bias, self._scale))
            x = x + self._product(number, "self_out", _merge_heads(mixed).to(self._real), masks)
            q = self._product(number, "cross_q", layer.cross_norm(x), masks)
            q = q.view(-1, self.heads, self.head_width)
            q = q.transpose(0, 1)
            watch(number, q)
            mixed = [
                self._attend_cross(part, view.cross_keys_t[number], view.cross_values[number])
                for part, view in zip(torch.split(q, rows, 1), views, strict=True)
            ]
            x = x + self._product(number, "cross_out", _merge_heads(mixed), masks)
            up = self._product(number, "ffn_up", layer.ffn_norm(x), masks)
            x = x + self._product(number, "ffn_down", F.gelu(up), masks)
        return self.norm(x)

    def _embed(self, batch: TreeBatch) -> Tensor:
        tokens = F.embedding(batch.tokens, self.embedding).to(self._real)
        positions = batch.positions
        if masks := batch.masks:
            tokens[masks.rows] = masks.adapters.embedding[masks.numbers]
            positions = positions.clamp(max=len(self.positions) - 1)  # masks may look beyond
        return tokens + F.embedding(positions, self.positions)

    def _product(self, layer: int, name: str, x: Tensor, masks: MaskRows | None) -> Tensor:
        """A layer's product by its name, adapted where masks stand."""
        product: Product = getattr(self.decoder[layer], name)
        y = product(x)
        if masks is not None:
            masks.adapters.add(f"layers.{layer}.{name}", x, y, masks.rows)
        return y

    def _attend_cross(self, q: Tensor, keys_t: Tensor, values: Tensor) -> Tensor:
        if self._int8:
            return attend_rounded(q, keys_t, values, self._scale)
        return attend(q, keys_t, values, None, self._scale)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden).float()


def _audio_positions(features: Tensor) -> tuple[int, ...]:
    """Encoder positions, half as many as mel frames, up to the last frame that is not all floor:
    silence and padding behind the audio are the features' least value in every bin."""
    sounding = (features > features.amin((1, 2), keepdim=True)).any(1)
    frames = torch.arange(1, features.shape[-1] + 1, device=features.device)
    last = (sounding * frames).amax(-1)
    return tuple(-(-int(frame) // 2) for frame in last.tolist())


def _merge_heads(mixed: list[Tensor]) -> Tensor:
    """(H, n, D) of each sequence → (N, H * D)."""
    joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed, 1)
    return joined.transpose(0, 1).flatten(1)


class _Reader:
    """Builds layers from tensors by name; a missing name is a KeyError the loader rules out."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
        many_rows: bool = False,
    ) -> None:
        self._tensors, self._dtype, self._device = tensors, dtype, device
        self._many_rows = many_rows
        self.real = torch.float32 if dtype == torch.int8 else dtype

    def tensors(self, prefix: str, *names: str) -> tuple[Tensor, ...]:
        return tuple(self._get(f"{prefix}.{n}").to(self.real) for n in names)

    def norm(self, prefix: str) -> Norm:
        return Norm(*self.tensors(prefix, "weight", "bias"))

    def linear(self, *prefixes: str) -> Product:
        """One layer, or several that read the same input joined into one product."""
        weights = [self._get(f"{p}.weight") for p in prefixes]
        biases = [
            self._get(f"{p}.bias")
            if f"{p}.bias" in self._tensors
            else torch.zeros_like(w[:, 0])  # Whisper's k_proj has no bias
            for p, w in zip(prefixes, weights, strict=True)
        ]
        return lay_out(
            torch.cat(weights), torch.cat(biases), self._dtype, many_rows=self._many_rows
        )

    def layer(self, prefix: str) -> dict[str, Any]:
        own = f"{prefix}.self_attn"
        return {
            "self_norm": self.norm(f"{own}_layer_norm"),
            "self_qkv": self.linear(f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj"),
            "self_out": self.linear(f"{own}.out_proj"),
            "ffn_norm": self.norm(f"{prefix}.final_layer_norm"),
            "ffn_up": self.linear(f"{prefix}.fc1"),
            "ffn_down": self.linear(f"{prefix}.fc2"),
        }

    def decoder_layer(self, prefix: str) -> DecoderLayer:
        cross = f"{prefix}.encoder_attn"
        return DecoderLayer(
            **self.layer(prefix),
            cross_norm=self.norm(f"{cross}_layer_norm"),
            cross_q=self.linear(f"{cross}.q_proj"),
            cross_kv=self.linear(f"{cross}.k_proj", f"{cross}.v_proj"),
            cross_out=self.linear(f"{cross}.out_proj"),
        )

    def _get(self, name: str) -> Tensor:
        return self._tensors[name].to(self._device)
