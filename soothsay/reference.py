"""The slow reference: Whisper without cache, trees, batches or packed weights, one token at a time.

Every step runs the whole text again through plain matrix products. It shares no code with the
target, the engine or verification, and is what they are tested against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from soothsay.speculate.filters import LogitFilter
from soothsay.targets.load import ModelFiles


class Reference:
    """One Whisper, in the given dtype (float64 leaves no near-ties to argue about)."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype = torch.float64) -> None:
        self._tensors = {name: tensor.to(dtype) for name, tensor in files.tensors.items()}
        self._sizes = files.config
        self._dtype = dtype

    def encode(self, features: Tensor) -> Tensor:
        """(M, F) log-mel → (T, width)."""
        x = features.to(self._dtype)[None]
        for conv, stride in (("conv1", 1), ("conv2", 2)):
            name = f"model.encoder.{conv}"
            weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
            x = F.gelu(F.conv1d(x, weight, bias, stride=stride, padding=1))
        x = x[0].T + self._tensors["model.encoder.embed_positions.weight"]
        for layer in range(self._sizes.encoder_layers):
            name = f"model.encoder.layers.{layer}"
            y = self._norm(x, f"{name}.self_attn_layer_norm")
            x = x + self._attention(y, y, f"{name}.self_attn", self._sizes.encoder_heads, False)
            x = x + self._feed_forward(x, name)
        return self._norm(x, "model.encoder.layer_norm")

    def logits(self, hidden: Tensor, tokens: Sequence[int]) -> Tensor:
        """Encoder output (T, width) and S tokens → (S, V): row i predicts the token after i."""
        embedding = self._tensors["model.decoder.embed_tokens.weight"]
        positions = self._tensors["model.decoder.embed_positions.weight"]
        x = embedding[list(tokens)] + positions[: len(tokens)]
        heads = self._sizes.decoder_heads
        for layer in range(self._sizes.decoder_layers):
            name = f"model.decoder.layers.{layer}"
            y = self._norm(x, f"{name}.self_attn_layer_norm")
            x = x + self._attention(y, y, f"{name}.self_attn", heads, True)
            y = self._norm(x, f"{name}.encoder_attn_layer_norm")
            x = x + self._attention(y, hidden, f"{name}.encoder_attn", heads, False)
            x = x + self._feed_forward(x, name)
        return self._norm(x, "model.decoder.layer_norm") @ embedding.T

    def greedy(
        self,
        features: Tensor,
        prompt: Sequence[int],
        end_token: int,
        filters: Sequence[LogitFilter] = (),
        max_tokens: int = 1 << 30,
    ) -> list[int]:
        """Plain greedy decoding → output tokens, end-of-text left out."""
        hidden = self.encode(features)
        output: list[int] = []
        room = min(max_tokens, self._sizes.max_target_positions - len(prompt))
        while len(output) < room:
            row = self.logits(hidden, [*prompt, *output])[-1:]
            for rule in filters:
                rule.apply(row, [output])
            token = int(row[0].argmax())
            if token == end_token:
                break
            output.append(token)
        return output

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        product = x @ self._tensors[f"{name}.weight"].T
        bias = self._tensors.get(f"{name}.bias")
        return product if bias is None else product + bias

    def _feed_forward(self, x: Tensor, name: str) -> Tensor:
        y = F.gelu(self._linear(self._norm(x, f"{name}.final_layer_norm"), f"{name}.fc1"))
        return self._linear(y, f"{name}.fc2")

    def _attention(self, x: Tensor, to: Tensor, name: str, heads: int, causal: bool) -> Tensor:
        q = self._linear(x, f"{name}.q_proj")
        k = self._linear(to, f"{name}.k_proj")
        v = self._linear(to, f"{name}.v_proj")
        width = q.shape[-1] // heads
        mixed = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            scores = q[:, part] @ k[:, part].T / math.sqrt(width)
            if causal:
                future = torch.ones_like(scores, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, -math.inf)
            mixed.append(scores.softmax(-1) @ v[:, part])
        return self._linear(torch.cat(mixed, -1), f"{name}.out_proj")
