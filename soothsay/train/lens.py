"""A first guess without training: what the target's decoder would read at one frame.

Cross-attention on a single encoder position adds W_o W_v x to the decoder's stream, and the output
embedding reads that stream (the logit lens, nostalgebraist 2020, through one attention). Summed
over the upper half of Whisper base's layers, a sixth of all tokens come out first among 51,865,
in any language. The head starts from this map, cut to its bottleneck by principal components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from soothsay.drafters.head import LatticeHead
from soothsay.train.shards import Example

SAMPLED = 8000  # encoder positions that decide the principal components


def begin_with_lens(
    head: LatticeHead, tensors: Mapping[str, Tensor], examples: Sequence[Example]
) -> None:
    """Set the head's direct path to the lens of a Whisper's own tensors, in place."""
    layers = sorted(
        int(name.split(".")[3]) for name in tensors if name.endswith("encoder_attn.v_proj.weight")
    )
    spoken = torch.cat([e.hidden[e.starts[:-1]] for e in examples])
    states = spoken[:: max(1, len(spoken) // SAMPLED)].float()
    lens = torch.zeros(head.sizes.embedding_width, states.shape[1])
    for layer in layers[len(layers) // 2 :]:
        prefix = f"model.decoder.layers.{layer}.encoder_attn"
        read = tensors[f"{prefix}.v_proj.weight"].float()
        lens += tensors[f"{prefix}.out_proj.weight"].float() @ read
    seen = states @ lens.T
    mean = seen.mean(0)
    _, _, components = torch.linalg.svd(seen - mean, full_matrices=False)
    axes = components[: head.sizes.bottleneck]  # (bottleneck, embedding_width)
    gain = tensors["model.decoder.layer_norm.weight"].float() / (seen - mean).std()
    with torch.no_grad():
        head.direct.weight.copy_(axes @ lens)
        head.direct.bias.copy_(-(axes @ mean))
        head.classify.weight.copy_((axes * gain).T)
        head.narrow.weight.mul_(0.1)
