"""What the lattice head is taught: when a token is heard, which, and the text as a whole.

Frame labels come from the target's own cross-attention (targets/alignment.py): they teach fast.
CTC (Graves et al., 2006) then lets the head choose its own times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from soothsay.drafters.head import LatticeHead
from soothsay.train.shards import Example

SPREAD_POSITIONS = 16  # encoder positions: the longest stretch that a token is thought to fill
OPEN = -3.0  # log-probability of the gate above which a frame's tokens are computed
SILENT = -12.0  # log-probability of a token where none can be heard


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows side by side, padded. F frames, N tokens of the longest.

    hidden: (B, P, width) float32; frames: (B,) how many are no padding; tokens: (B, N) columns of
    the vocabulary, -1 where padding; at: (B, N) the frame each is heard at; before: (B, N) ids of
    the token before; soft: (B, N, SOFT) columns, -1 where outside; soft_probs: the same shape.
    """

    hidden: Tensor
    frames: Tensor
    tokens: Tensor
    at: Tensor
    before: Tensor
    soft: Tensor
    soft_probs: Tensor


def frames_of(example: Example, stride: int) -> Tensor:
    """(n - 1,) the frame at which each text token is heard: inside its stretch, not in the pause
    that may follow, nor in the silence that may go before the first."""
    starts = example.starts[:-2].clone()
    stops = example.starts[1:-1]
    if len(starts):
        starts[0] = torch.maximum(starts[0], stops[0] - SPREAD_POSITIONS)
    length = (stops - starts).clamp(max=SPREAD_POSITIONS)
    return (starts + length // 2) // stride


def frame_loss(
    head: LatticeHead,
    gate: Tensor,
    features: Tensor,
    classifier: Tensor,
    embedding: Tensor,
    kept: Tensor,
    batch: Batch,
    soften: float,
) -> Tensor:
    """Gate: a token at its labelled frame, none elsewhere. Which: at or
    beside the labelled frame, drawn anew each time, towards the target's own distribution by
    `soften`. The
    bigram learns what the lattice leaves open, so that it counts nothing twice.

    embedding: (V, width) of all tokens; kept: (C, width) float32 of the vocabulary.
    """
    rows, columns = torch.nonzero(batch.tokens >= 0, as_tuple=True)
    at = batch.at[rows, columns]
    limit = batch.frames[rows] - 1
    wanted = torch.zeros_like(gate)
    weight = (torch.arange(gate.shape[1]) < batch.frames[:, None]).float()
    wanted[rows, at] = 1.0
    heard = F.binary_cross_entropy_with_logits(gate, wanted, weight, reduction="sum") / weight.sum()
    label = batch.tokens[rows, columns]
    soft, probs = batch.soft[rows, columns], batch.soft_probs[rows, columns]
    probs = torch.where(soft >= 0, probs, 0.0)
    probs = soften * probs / probs.sum(-1, keepdim=True).clamp_min(1e-6)

    def entropy(log_probs: Tensor) -> Tensor:
        hard = log_probs.gather(1, label[:, None]).squeeze(1)
        softly = (log_probs.gather(1, soft.clamp(min=0)) * probs).sum(-1)
        return -((1 - soften) * hard + softly).mean()

    # Over the steps each token is taught at its frame and at both neighbours.
    shift = torch.multinomial(torch.tensor([0.25, 0.5, 0.25]), len(at), replacement=True) - 1
    places = (at + shift).clamp(min=0).minimum(limit)
    logits = features[rows, places] @ classifier.T
    bigram = head.bigram(embedding[batch.before[rows, columns]].float(), kept)
    which = entropy(torch.log_softmax(logits, -1))
    return 10.0 * heard + which + entropy(torch.log_softmax(logits.detach() + bigram, -1))


def ctc_loss(gate: Tensor, features: Tensor, classifier: Tensor, batch: Batch) -> Tensor:
    """CTC over y_t(c) = σ(gate) · softmax(c), blank 1 - σ(gate); nats a token.

    Only the tokens of the window itself need columns, and the softmax is computed where the gate
    hears anything.
    """
    losses = []
    for row in range(len(gate)):
        frames = int(batch.frames[row])
        tokens = batch.tokens[row][batch.tokens[row] >= 0]
        if not len(tokens):
            continue
        kinds, labels = torch.unique(tokens, return_inverse=True)
        opened = F.logsigmoid(gate[row, :frames])
        places = torch.nonzero(opened.detach() > OPEN).flatten()
        logits = features[row, places] @ classifier.T
        which = logits[:, kinds] - torch.logsumexp(logits, -1, keepdim=True)
        spoken = which.new_full((frames, len(kinds)), SILENT).index_copy(0, places, which)
        log_probs = torch.cat(
            [F.logsigmoid(-gate[row, :frames])[:, None], spoken + opened[:, None]], -1
        )
        losses.append(
            F.ctc_loss(
                log_probs[:, None],
                labels[None] + 1,
                torch.tensor([frames]),
                torch.tensor([len(labels)]),
                reduction="sum",
                zero_infinity=True,
            )
            / len(labels)
        )
    return torch.stack(losses).mean() if losses else gate.sum() * 0.0
