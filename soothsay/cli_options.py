"""Options that several commands share, and the recogniser they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from soothsay.console import errors
from soothsay.targets.load import resolve
from soothsay.transcribe import Recogniser

Model = Annotated[str, typer.Option(help="A model's name, or a directory with its weights.")]
Dtype = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or int8; int8 may change a word now and then.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="CPU threads (default: PyTorch's own).")
]
Groups = Annotated[
    int, typer.Option(min=0, max=16, help="Tree nodes with look-ahead masks behind them.")
]
Masks = Annotated[int, typer.Option(min=0, max=16, help="Look-ahead masks behind each of these.")]
Nodes = Annotated[
    int, typer.Option(min=1, max=64, help="Tree nodes a sequence, the root included.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first clips of the manifest.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout and nothing else.")]
Language = Annotated[str | None, typer.Option(help="A code such as en; omitted, it is detected.")]
Prompt = Annotated[
    str | None, typer.Option(help="Text that might have come before: its style and names guide.")
]
Manifest = Annotated[Path, typer.Option(help="JSON lines: audio, text, lang, speaker, duration.")]


def make_recogniser(model: str, threads: int | None, **options: Any) -> Recogniser:
    """A recogniser of a model by name; what its user should know goes to stderr."""
    if threads:
        torch.set_num_threads(threads)
    recogniser = Recogniser(resolve(model), **options)
    for notice in recogniser.notices:
        errors.print(f"soothsay: {notice}", markup=False, soft_wrap=True)
    return recogniser
