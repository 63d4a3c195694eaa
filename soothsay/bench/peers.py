"""Our decoding against other engines': same audio, weights and threads, clip by clip in turn.

Beam 1, temperature 0, one 30 s window a clip. Encoding and decoding are timed apart, because only
decoding is what soothsay changes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from soothsay.bench.decode import Side
from soothsay.bench.workload import Clip, hint_for, provenance
from soothsay.engine.request import Request
from soothsay.targets.load import ctranslate2_directory
from soothsay.transcribe import Options, Recogniser
from soothsay.types import OptionError

PEER_TYPES = ("float32", "int8")


class FasterWhisper:
    """CTranslate2's Whisper, the engine under faster-whisper, on one 30 s window at a time."""

    def __init__(self, directory: Path, compute_type: str, threads: int) -> None:
        try:
            import ctranslate2
        except ImportError as error:
            raise OptionError('bench peers needs: pip install "soothsay[bench]"') from error
        self._storage = ctranslate2.StorageView
        self._model = ctranslate2.models.Whisper(
            str(directory),
            device="cpu",
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=threads,
        )
        self.encode_seconds = self.decode_seconds = 0.0
        self.tokens = 0

    def run(self, request: Request) -> tuple[list[int], float]:
        """Decode → tokens without end-of-text, and decode seconds."""
        features = np.ascontiguousarray(request.features[None].numpy())
        started = time.perf_counter()
        encoded = self._model.encode(self._storage.from_array(features))
        middle = time.perf_counter()
        (result,) = self._model.generate(encoded, [list(request.prompt)], beam_size=1)
        seconds = time.perf_counter() - middle
        tokens = list(result.sequences_ids[0])
        self.encode_seconds += middle - started
        self.decode_seconds += seconds
        self.tokens += len(tokens) + 1  # end-of-text is decoded, but not returned
        return tokens, seconds


def bench_peers(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Decode the first window of every clip with everyone in turn → the report."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as scratch:
        directory = ctranslate2_directory(recogniser.files, Path(scratch))
        peers = {kind: FasterWhisper(directory, kind, threads) for kind in PEER_TYPES}
    plain, ours = Side(), Side()
    same_text = dict.fromkeys(PEER_TYPES, 0)
    ratios: dict[str, list[float]] = {kind: [] for kind in PEER_TYPES}
    for number, clip in enumerate(clips):
        wanted = replace(options, language=options.language or clip.language or "en")
        request = recogniser.request(clip.samples()[: 30 * 16_000], wanted)
        off = replace(request, speculate=False)
        if number == 0:  # warm-up of all, not counted
            Side().run(recogniser, off)
            Side().run(recogniser, request)
            for peer in peers.values():
                peer.run(request)
                peer.encode_seconds = peer.decode_seconds = 0.0
                peer.tokens = 0
        expected, seconds = plain.run(recogniser, off)
        ours.run(recogniser, replace(request, hint=hint_for(recogniser, expected)))
        for kind, peer in peers.items():
            tokens, peer_seconds = peer.run(request)
            same_text[kind] += tokens == list(expected.tokens)
            ratios[kind].append(peer_seconds / seconds)
        progress()
    return {
        "clips": len(clips),
        "plain": plain.report(),
        "speculative": ours.report(),
        "peers": {
            f"faster_whisper_{kind}": {
                "tokens": peer.tokens,
                "ms_per_token": 1e3 * peer.decode_seconds / peer.tokens,
                "encode_seconds": peer.encode_seconds,
                "decode_seconds": peer.decode_seconds,
                "same_tokens_as_ours": same_text[kind],
                "plain_decode_ratio": peer.decode_seconds / plain.decode_seconds,
                "plain_decode_ratio_median": statistics.median(ratios[kind]),
                "speculative_decode_ratio": peer.decode_seconds / ours.decode_seconds,
                "end_to_end_ratio": (peer.decode_seconds + peer.encode_seconds) / ours.wall_seconds,
            }
            for kind, peer in peers.items()
        },
        "provenance": provenance(
            model=recogniser.target.spec.name,
            weights_sha256=recogniser.target.spec.weights_sha256,
            dtype=str(recogniser.target.dtype).removeprefix("torch."),
            drafter=recogniser.engine.drafter.name if recogniser.engine.drafter else "off",
            nodes=recogniser.engine.budget.max_nodes,
        ),
    }
