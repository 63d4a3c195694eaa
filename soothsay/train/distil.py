"""Encode and label: the target listens, writes as it always does, and says when it heard what.

Labels are the target's own greedy output, so audio without transcripts is enough.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from soothsay.audio.features import SAMPLE_RATE
from soothsay.drafters.probe import ListeningDrafter
from soothsay.engine.request import Request, Result
from soothsay.targets.alignment import Aligner
from soothsay.targets.load import resolve
from soothsay.targets.target import Encoded
from soothsay.train.shards import SOFT, Example, read_shard, shard_path, write_shard
from soothsay.train.windows import TrainingWindow
from soothsay.transcribe import Options, Recogniser, Samples
from soothsay.types import FinishReason, OptionError, SoothsayError

WINDOWS_A_SHARD = 16
BATCH = 8  # windows decoded at once
POSITION_SAMPLES = 320  # of audio to one encoder position
MAX_TOKENS_A_SECOND = 25.0  # more is the target running wild on noise

logger = logging.getLogger(__name__)


class Labeller:
    """One target that labels windows."""

    def __init__(self, model: str) -> None:
        self.recogniser = Recogniser(resolve(model), drafter="off", nodes=1, max_sequences=BATCH)
        self._listener = self.recogniser.engine.drafter = ListeningDrafter()
        heads = self.recogniser.files.generation.alignment_heads
        self._aligner = Aligner(self.recogniser.target, heads)

    @property
    def weights_sha256(self) -> str:
        return self.recogniser.target.spec.weights_sha256

    def label(self, windows: Sequence[TrainingWindow]) -> list[Example]:
        """At most BATCH windows → their examples; what cannot be read or decoded is logged."""
        heard: list[tuple[TrainingWindow, Samples, Request]] = []
        for window in windows:
            try:
                samples = window.samples()
                timestamps = "segment" if window.timed else "none"
                options = Options(language=window.language, timestamps=timestamps)
                request = self.recogniser.request(samples, options, hint=(len(heard),))
            except SoothsayError as error:
                logger.error("skipped: %s", error)
                continue
            heard.append((window, samples, request))
        results = self.recogniser.engine.run([request for *_, request in heard])
        examples = []
        for index, ((window, samples, _), result) in enumerate(zip(heard, results, strict=True)):
            hidden = self._listener.heard.pop(index).hidden
            seconds = len(samples) / SAMPLE_RATE
            if (
                result.finish is not FinishReason.STOP
                or not result.tokens
                or len(result.tokens) > MAX_TOKENS_A_SECOND * seconds
            ):
                logger.warning("%s…: the target wrote no text to learn from", window.clips[0].id)
                continue
            examples.append(self._example(window, samples, hidden, result))
        return examples

    @torch.inference_mode()
    def _example(
        self, window: TrainingWindow, samples: Samples, hidden: Tensor, result: Result
    ) -> Example:
        tokens = [*result.tokens, self.recogniser.tokens.end_of_text]
        total = hidden.shape[1]
        positions = min(total, -(-len(samples) // POSITION_SAMPLES))
        aligned = self._aligner.align(
            Encoded(hidden, (positions,)), result.prompt, tokens, positions
        )
        probs = torch.softmax(self.recogniser.target.logits(aligned.hidden), -1)
        soft = probs.topk(SOFT)
        return Example(
            hidden=hidden[0].half(),
            prompt=result.prompt,
            tokens=torch.tensor(tokens),
            starts=torch.from_numpy(aligned.starts),
            soft_tokens=soft.indices.int(),
            soft_probs=soft.values.half(),
            language=window.language or self.recogniser.language_of(result) or "en",
            held_out=window.held_out,
            audio_positions=positions,
        )


def label(
    model: str,
    windows: Sequence[TrainingWindow],
    folder: Path,
    workers: int = 1,
    progress: Callable[[int], None] = lambda windows: None,
) -> None:
    """Write the shards of `windows` that `folder` does not hold yet.

    workers: processes that share the shards and the CPU threads; `progress` hears windows done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = [windows[i : i + WINDOWS_A_SHARD] for i in range(0, len(windows), WINDOWS_A_SHARD)]
    threads = max(1, torch.get_num_threads() // workers)
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _start_worker, (model, threads)) as pool:
        tasks = ((folder, number, shard) for number, shard in enumerate(shards))
        done = 0
        for count in pool.imap_unordered(_label_shard, tasks):
            done += count
            progress(done)


_labeller: Labeller  # of this worker process


def _start_worker(model: str, threads: int) -> None:
    global _labeller
    torch.set_num_threads(threads)
    _labeller = Labeller(model)


def _label_shard(task: tuple[Path, int, Sequence[TrainingWindow]]) -> int:
    folder, number, windows = task
    path = shard_path(folder, number)
    if path.exists():
        try:
            read_shard(path, _labeller.weights_sha256)
            return len(windows)
        except OptionError:
            raise
        except SoothsayError as error:
            logger.error("%s", error)
    examples: list[Example] = []
    for start in range(0, len(windows), BATCH):
        examples += _labeller.label(windows[start : start + BATCH])
    write_shard(path, examples, _labeller.weights_sha256)
    return len(windows)
