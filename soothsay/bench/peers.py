"""Our decoding against other engines': same audio, weights and threads, clip by clip in turn.

Beam 1, temperature 0, one 30 s window a clip. Encoding and decoding are timed apart, because only
decoding is what soothsay changes. The peer computes its cross-attention cache as it decodes, so
here ours counts as decoding too.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from soothsay.bench.decode import Side
from soothsay.bench.workload import Clip, hint_for, provenance
from soothsay.engine.request import Request
from soothsay.targets.load import ctranslate2_directory
from soothsay.transcribe import Options, Recogniser
from soothsay.types import OptionError, SoothsayError

PEER_TYPES = ("float32", "int8")
# An engine's idle threads spin for a while (200 ms in OpenMP's common setting) before they sleep,
# and would take a core from whoever comes next.
SETTLE_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Turn:
    """What a peer made of one window; seconds. tokens without end-of-text."""

    tokens: list[int]
    encode_seconds: float
    decode_seconds: float


class FasterWhisper:
    """CTranslate2's Whisper, the engine under faster-whisper, in a process of its own.

    Engines in one process share its allocator and fight over its threads: each then ran at half
    its speed, ours as well.
    """

    def __init__(self, directory: Path, compute_type: str, threads: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        arguments = (theirs, str(directory), compute_type, threads)
        self._process = spawn.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # else the end of the process would go unheard
        if not self._receive():
            raise OptionError('bench peers needs: pip install "soothsay[bench]"')
        self.encode_seconds = self.decode_seconds = 0.0
        self.tokens = 0

    def run(self, request: Request) -> Turn:
        self._pipe.send((request.features[None].numpy(), list(request.prompt)))
        turn: Turn = self._receive()
        self.encode_seconds += turn.encode_seconds
        self.decode_seconds += turn.decode_seconds
        self.tokens += len(turn.tokens) + 1  # end-of-text is decoded, but not returned
        return turn

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise SoothsayError(
                "faster-whisper's process ended: its own words are above"
            ) from error

    def forget(self) -> None:
        """Leave out what has run so far: it was the warm-up."""
        self.encode_seconds = self.decode_seconds = 0.0
        self.tokens = 0

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, directory: str, compute_type: str, threads: int) -> None:
    """The peer's process: one window at a time, until it is killed."""
    try:
        import ctranslate2
    except ImportError:
        pipe.send(False)
        return
    model = ctranslate2.models.Whisper(
        directory,
        device="cpu",
        compute_type=compute_type,
        inter_threads=1,
        intra_threads=threads,
    )
    pipe.send(True)
    while True:
        features, prompt = pipe.recv()
        started = time.perf_counter()
        encoded = model.encode(ctranslate2.StorageView.from_array(np.ascontiguousarray(features)))
        middle = time.perf_counter()
        (result,) = model.generate(encoded, [prompt], beam_size=1)
        ended = time.perf_counter()
        pipe.send(Turn(list(result.sequences_ids[0]), middle - started, ended - middle))


def bench_peers(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Decode the first window of every clip with everyone in turn → the report."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        directory = ctranslate2_directory(recogniser.files, Path(scratch))
        peers = {
            kind: FasterWhisper(directory, kind, torch.get_num_threads()) for kind in PEER_TYPES
        }
        for peer in peers.values():
            stack.callback(peer.close)
        return _take_turns(recogniser, peers, clips, options, progress)


def _take_turns(
    recogniser: Recogniser,
    peers: dict[str, FasterWhisper],
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None],
) -> dict[str, Any]:
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
                peer.forget()
        time.sleep(SETTLE_SECONDS)
        expected, seconds = plain.run(recogniser, off)
        seconds += expected.stats.cross_seconds
        ours.run(recogniser, replace(request, hint=hint_for(recogniser, expected)))
        for kind, peer in peers.items():
            time.sleep(SETTLE_SECONDS)
            turn = peer.run(request)
            same_text[kind] += turn.tokens == list(expected.tokens)
            ratios[kind].append(turn.decode_seconds / seconds)
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
                "plain_decode_ratio": peer.decode_seconds / _all_decoding(plain),
                "plain_decode_ratio_median": statistics.median(ratios[kind]),
                "speculative_decode_ratio": peer.decode_seconds / _all_decoding(ours),
                "end_to_end_ratio": (peer.decode_seconds + peer.encode_seconds) / ours.wall_seconds,
            }
            for kind, peer in peers.items()
        },
        "provenance": provenance(recogniser),
    }


def _all_decoding(side: Side) -> float:
    """Seconds of decoding as the peer counts them, the cross-attention cache included."""
    return side.decode_seconds + side.stats.cross_seconds
