"""Silero's released network → soothsay/data/vad: its 16 kHz weights under our own names.

Run with silero_vad.jit of the distribution silero-vad 6.2.1 or newer (a path) as argument. The
safetensors file of that distribution holds an older network.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

OUT = Path(__file__).parents[1] / "soothsay" / "data" / "vad" / "silero_vad_16k.safetensors"
NAMES = {
    "stft.forward_basis_buffer": "stft.weight",
    **{f"encoder.{i}.reparam_conv.{kind}": f"encoder.{i}.{kind}"
       for i in range(4) for kind in ("weight", "bias")},
    **{f"decoder.rnn.{kind}": f"lstm.{kind}_l0"
       for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")},
    "decoder.decoder.2.weight": "output.weight",
    "decoder.decoder.2.bias": "output.bias",
}  # fmt: skip

released = torch.jit.load(sys.argv[1], map_location="cpu").state_dict()
save_file({ours: released[f"_model.{theirs}"].clone() for theirs, ours in NAMES.items()}, OUT)
