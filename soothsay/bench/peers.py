"""Ours against other engines: same audio, weights and threads, clip by clip in turn.

Beam 1, temperature 0, no timestamps, one 30 s window a clip. Every engine is timed end to end, from
16 kHz samples to text, with its own features. Where a peer lets encoding and decoding be timed
apart, decoding alone is compared too, because that is what soothsay changes; that peer computes its
cross-attention cache as it decodes, so there ours counts as decoding as well.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from soothsay.audio.features import SAMPLE_RATE, WINDOW_SAMPLES
from soothsay.bench.decode import Side
from soothsay.bench.errors import ErrorRates, Reference
from soothsay.bench.peer_engines import PEERS, Heard, PeerEngine, PeerKind, Samples, Split
from soothsay.bench.peer_weights import PeerWeights, lay_out
from soothsay.bench.workload import Clip, hint_for, provenance
from soothsay.engine.request import Result
from soothsay.text.tokens import WhisperTokens
from soothsay.transcribe import Options, Recogniser
from soothsay.types import OptionError, SoothsayError

# An engine's idle threads spin for a while (200 ms in OpenMP's common setting) before they sleep,
# and would take a core from whoever comes next.
SETTLE_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Turn:
    """What a peer made of one window, and how long it took."""

    heard: Heard
    wall_seconds: float


class Peer(Protocol):
    """Whoever takes turns with us."""

    def hear(self, samples: Samples, language: str) -> Turn:
        """One window of at most 30 s, mono at 16 kHz, in a language given by its code."""
        ...


class PeerProcess:
    """A peer in a process of its own.

    Engines in one process share its allocator and fight over its threads: each then ran at half
    its speed, ours as well.
    """

    def __init__(self, name: str, kind: PeerKind, weights: PeerWeights) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._name = name
        self._pipe, theirs = spawn.Pipe()
        arguments = (theirs, kind.make, weights)
        self._process = spawn.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # else the end of the process would go unheard

    def ready(self) -> bool:
        """Wait until it has loaded → False if it is not installed."""
        return bool(self._receive())

    def hear(self, samples: Samples, language: str) -> Turn:
        try:
            self._pipe.send((samples, language))
        except OSError as error:
            raise self._ended() from error
        turn: Turn = self._receive()
        return turn

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def _ended(self) -> SoothsayError:
        return SoothsayError(f"the process of {self._name} ended: its own words are above")


def _serve(
    pipe: Connection, make: Callable[[PeerWeights], PeerEngine], weights: PeerWeights
) -> None:
    """The peer's process: one window at a time, until it is killed."""
    os.dup2(2, 1)  # standard output belongs to the report
    try:
        engine = make(weights)
    except ImportError:
        pipe.send(False)
        return
    pipe.send(True)
    while True:
        samples, language = pipe.recv()
        started = time.perf_counter()
        heard = engine.hear(samples, language)
        pipe.send(Turn(heard, time.perf_counter() - started))


def bench_peers(
    recogniser: Recogniser,
    clips: Sequence[Clip],
    options: Options,
    progress: Callable[[], None] = lambda: None,
    kinds: Mapping[str, PeerKind] = PEERS,
) -> dict[str, Any]:
    """Transcribe the first window of every clip with everyone in turn → the report.

    Peers that cannot take part stand under `missing`, with what would change that.
    """
    rates = ErrorRates()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        weights = lay_out(recogniser.files, Path(scratch), torch.get_num_threads())
        peers: dict[str, PeerProcess] = {}
        missing: dict[str, str] = {}
        for name, kind in kinds.items():
            if kind.needs_container and not recogniser.files.container:
                missing[name] = "use a model whose package holds a CTranslate2 container: base"
                continue
            peers[name] = PeerProcess(name, kind, weights)
            stack.callback(peers[name].close)
        for name in list(peers):
            if not peers[name].ready():
                del peers[name]
                missing[name] = kinds[name].install
        if not peers:
            raise OptionError('no peer is installed: pip install "soothsay[bench]"')
        report = take_turns(recogniser, peers, clips, options, rates, progress)
    return report | {"missing": missing, "provenance": provenance(recogniser)}


@dataclass(slots=True)
class Tally:
    """One engine's turns, added up."""

    wall_seconds: float = 0.0
    texts: list[str] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)  # one a clip, or none

    @property
    def decode_seconds(self) -> float:
        return sum(split.decode_seconds for split in self.splits)

    def add(self, turn: Turn) -> None:
        self.wall_seconds += turn.wall_seconds
        self.texts.append(turn.heard.text)
        if turn.heard.split is not None:
            self.splits.append(turn.heard.split)


def take_turns(
    recogniser: Recogniser,
    peers: Mapping[str, Peer],
    clips: Sequence[Clip],
    options: Options,
    rates: ErrorRates,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Everyone on one clip after the other; a first round on the first clip is not counted."""
    plain_side, our_side, plain, ours = Side(), Side(), Tally(), Tally()
    theirs = {name: Tally() for name in peers}
    references: list[Reference] = []
    audio_seconds = 0.0
    for number, clip in enumerate(clips):
        samples = clip.samples()[:WINDOW_SAMPLES]
        code = _code(recogniser.tokens, options.language or clip.language or "en")
        wanted = replace(options, language=code)
        off = replace(wanted, speculate=False)
        if number == 0:  # warm-up of all
            for choice in (off, wanted):
                _our_turn(recogniser, Side(), samples, choice)
            for peer in peers.values():
                peer.hear(samples, code)
        time.sleep(SETTLE_SECONDS)
        result, turn = _our_turn(recogniser, plain_side, samples, off)
        plain.add(turn)
        hint = hint_for(recogniser, result)
        ours.add(_our_turn(recogniser, our_side, samples, wanted, hint)[1])
        for name, peer in peers.items():
            time.sleep(SETTLE_SECONDS)
            theirs[name].add(peer.hear(samples, code))
        references.append(Reference(clip.text, code))
        audio_seconds += len(samples) / SAMPLE_RATE
        progress()

    def figures(tally: Tally) -> dict[str, Any]:
        return {
            "wall_seconds": tally.wall_seconds,
            "rtfx": audio_seconds / tally.wall_seconds,
            **rates.of(references, tally.texts),
        }

    return {
        "clips": len(clips),
        "audio_seconds": audio_seconds,
        "plain": plain_side.report() | figures(plain),
        "speculative": our_side.report() | figures(ours),
        "peers": {
            name: {
                **figures(their),
                "end_to_end_ratio": their.wall_seconds / ours.wall_seconds,
                **(compare_decoding(their, plain, ours) if their.splits else {}),
            }
            for name, their in theirs.items()
        },
    }


def _our_turn(
    recogniser: Recogniser,
    side: Side,
    samples: Samples,
    options: Options,
    hint: Sequence[int] | None = None,
) -> tuple[Result, Turn]:
    started = time.perf_counter()
    request = recogniser.request(samples, options, hint)
    result, decode_seconds = side.run(recogniser, request)
    text = recogniser.tokens.decode(result.tokens)
    wall_seconds = time.perf_counter() - started
    cross = result.stats.cross_seconds
    split = Split(result.tokens, result.stats.encode_seconds - cross, decode_seconds + cross)
    return result, Turn(Heard(text, split), wall_seconds)


def compare_decoding(their: Tally, plain: Tally, ours: Tally) -> dict[str, Any]:
    """A peer's decoding alone against ours."""
    tokens = sum(len(split.tokens) + 1 for split in their.splits)  # end-of-text is decoded too
    pairs = list(zip(their.splits, plain.splits, strict=True))
    return {
        "tokens": tokens,
        "ms_per_token": 1e3 * their.decode_seconds / tokens,
        "encode_seconds": sum(split.encode_seconds for split in their.splits),
        "decode_seconds": their.decode_seconds,
        "same_tokens_as_ours": sum(split.tokens == own.tokens for split, own in pairs),
        "plain_decode_ratio": their.decode_seconds / plain.decode_seconds,
        "plain_decode_ratio_median": statistics.median(
            split.decode_seconds / own.decode_seconds for split, own in pairs
        ),
        "speculative_decode_ratio": their.decode_seconds / ours.decode_seconds,
    }


def _code(tokens: WhisperTokens, language: str) -> str:
    """The code of a language given by code or name, as every engine knows it."""
    wanted = tokens.language_token(language)
    return next(code for code, token in tokens.languages.items() if token == wanted)
