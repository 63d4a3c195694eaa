"""From audio to words: cuts windows, asks the engine, joins what comes back.

The one place where audio, text and engine meet; the command line and the server stand on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soothsay.audio.features import log_mel
from soothsay.audio.segments import Window, windows
from soothsay.audio.vad import SpeechRule
from soothsay.config import resolve_dtype, resolve_encoder_dtype
from soothsay.control.budget import FixedBudget
from soothsay.drafters.choose import choose_drafter, shipped_head
from soothsay.drafters.lattice import Signs
from soothsay.engine.engine import Engine
from soothsay.engine.request import Probe, PromptChoice, Request, Result
from soothsay.fallback import Fallback, FallbackRule
from soothsay.speculate.filters import (
    LogitFilter,
    NoRepeatNgram,
    SuppressAtBegin,
    SuppressTokens,
    TimestampRules,
)
from soothsay.targets.load import ModelFiles
from soothsay.targets.whisper import WhisperTarget
from soothsay.text.timestamps import Scores, TextSegment, Transcript, segments_of
from soothsay.text.tokens import WhisperTokens
from soothsay.text.words import SENTENCE_ENDS
from soothsay.timing import WordTimer
from soothsay.types import FinishReason, OptionError, Sampling, SequenceStats, SoothsayError

Samples = NDArray[np.float32]  # mono, 16 kHz
SAMPLE_RATE = 16_000

# On a CPU six rows of a tree cost little more than one; beyond, arithmetic sets the price. Each of
# them costs about a tenth of a plain step, so a node that is right less often than that is a loss.
DEFAULT_NODES = 6
NODE_COST = 0.1
# Look-ahead masks cost more rows than they save steps on the CPUs measured so far (LOG.md).
DEFAULT_GROUPS, DEFAULT_MASKS = 0, 4


TASKS = ("transcribe", "translate")
TIMESTAMPS = ("none", "segment", "word")


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asks of a transcription. language None lets the target decide."""

    language: str | None = None
    task: str = "transcribe"
    timestamps: str = "none"
    sampling: Sampling = Sampling()
    speculate: bool = True
    log_probs: bool = False  # whether segments carry the mean log-probability of their window
    vad: bool = True  # whether only speech is decoded, in windows cut at pauses
    prompt: str | None = None  # text that might have come before: its style and names guide
    fallback: Fallback | None = None  # decode poor windows again; None: take the first text
    no_repeat_ngram: int = 0  # never write so many tokens in a row twice in a window; 0: whatever

    def __post_init__(self) -> None:
        for name, value, known in (
            ("task", self.task, TASKS),
            ("timestamps", self.timestamps, TIMESTAMPS),
        ):
            if value not in known:
                raise OptionError(f"unknown {name} {value!r}: choose {' or '.join(known)}")
        if self.no_repeat_ngram < 0:
            raise OptionError(
                f"no_repeat_ngram must be 0 (off) or more, not {self.no_repeat_ngram}"
            )
        if self.language is not None and not self.language.strip():
            raise OptionError("the language is empty: give a code such as en, or leave it out")


@dataclass(frozen=True, slots=True)
class Transcription:
    """A transcript, what it was made from, and what it cost. Times in seconds."""

    transcript: Transcript
    results: tuple[Result, ...]  # one a window; none, where nobody speaks
    stats: SequenceStats
    audio_seconds: float
    wall_seconds: float

    @property
    def rtfx(self) -> float:
        """Audio seconds a wall second."""
        return self.audio_seconds / self.wall_seconds if self.wall_seconds else 0.0

    def figures(self) -> dict[str, Any]:
        """The `stats` object of the command line."""
        return {
            "tokens": self.stats.tokens,
            "target_forwards": self.stats.target_forwards,
            "tokens_per_forward": self.stats.tokens_per_forward,
            "audio_seconds": self.audio_seconds,
            "wall_seconds": self.wall_seconds,
            "rtfx": self.rtfx,
            "encode_seconds": self.stats.encode_seconds,
            "draft_seconds": self.stats.draft_seconds,
            "verify_seconds": self.stats.verify_seconds,
        }


class Recogniser:
    """A target with its tokens, drafter and engine: transcribes waveforms, one after another."""

    def __init__(
        self,
        files: ModelFiles,
        *,
        dtype: str = "auto",
        drafter: str = "auto",
        nodes: int = DEFAULT_NODES,
        groups: int = DEFAULT_GROUPS,
        masks: int = DEFAULT_MASKS,
        max_sequences: int = 8,
    ) -> None:
        """dtype and drafter by name (config.resolve_dtype, drafters.choose); nodes a tree, and
        so many rows of that many masks behind them."""
        self.files = files
        self.target = WhisperTarget(
            files, resolve_dtype(dtype), encoder_dtype=resolve_encoder_dtype(dtype)
        )
        self.tokens = WhisperTokens.from_file(files.tokenizer_json)
        self.notices: tuple[str, ...] = ()  # what its user should be told, once
        if drafter == "auto" and shipped_head(files) is None:
            self.notices = (
                f"no head ships for {files.config.name}: drafting from history alone "
                "(soothsay train-head makes one)",
            )
        self.engine = Engine(
            self.target,
            choose_drafter(drafter, files, signs_of(self.tokens)),
            FixedBudget(nodes, NODE_COST, groups, masks),
            max_sequences,
        )

    @cached_property
    def timer(self) -> WordTimer:
        """Finds the times of words; with a cache of its own, made when first needed."""
        return WordTimer(self.target, self.tokens, self.files.generation.alignment_heads)

    def request(
        self, samples: Samples, options: Options, hint: Sequence[int] | None = None
    ) -> Request:
        """The engine's request for one window of at most 30 s."""
        tokens, timestamps = self.tokens, options.timestamps != "none"
        text = (options.prompt or "").strip()
        previous = tokens.encode(f" {text}") if text else []
        choice = None
        if options.language is None and tokens.multilingual:
            # The target names the language itself: among all, after start-of-transcript.
            among = tuple(tokens.languages.values())
            choice = PromptChoice(among, tokens.prompt_end(options.task, timestamps))
            prompt: tuple[int, ...] = (*tokens.previous(previous), tokens.start)
        else:
            prompt = tokens.prompt(options.language or "en", options.task, timestamps, previous)
        retry = None
        if options.fallback:
            seed = options.sampling.seed or 0
            retry = FallbackRule(options.fallback, tokens.decode, options.sampling, seed)
        probe = Probe(prompt.index(tokens.start), tokens.no_speech)
        return Request(
            features=log_mel(samples, self.target.spec.mel_bins),
            prompt=prompt,
            choice=choice,
            end_token=tokens.end_of_text,
            sampling=options.sampling,
            filters=self.filters(timestamps, options.no_repeat_ngram),
            hint=hint,
            speculate=options.speculate,
            log_probs=options.log_probs,
            probe=probe if options.fallback or options.log_probs else None,
            retry=retry,
            keep_encoded=options.timestamps == "word",
        )

    def check(self, options: Options) -> None:
        """OptionError, before any audio is read, for what this target cannot do."""
        self.tokens.prompt(options.language or "en", options.task, options.timestamps != "none")

    def filters(self, timestamps: bool, no_repeat_ngram: int = 0) -> tuple[LogitFilter, ...]:
        """The model's own logit rules, as its generation configuration gives them, and the guard
        against repetition."""
        facts = self.files.generation
        rules: list[LogitFilter] = [
            SuppressTokens(facts.suppress or self.tokens.default_suppressed),
            SuppressAtBegin(facts.begin_suppress),
        ]
        if timestamps:
            rules.append(
                TimestampRules(
                    first=self.tokens.first_timestamp,
                    no_timestamps=self.tokens.no_timestamps,
                    end_token=self.tokens.end_of_text,
                )
            )
        if no_repeat_ngram:
            rules.append(NoRepeatNgram(no_repeat_ngram))
        return tuple(rules)

    def transcribe(
        self,
        audio: Samples | Iterable[Samples],
        options: Options = Options(),
        progress: Callable[[float], None] = lambda seconds: None,
    ) -> Transcription:
        """Transcribe a waveform of any length; `progress` hears audio seconds done so far.

        Blocks of samples are read no further than needed and not kept, so memory does not grow
        with the audio. The language, where it is open, is decided on the first window and kept.
        """
        started = time.perf_counter()
        read = 0

        def blocks() -> Iterator[Samples]:
            nonlocal read
            for block in [audio] if isinstance(audio, np.ndarray) else audio:
                read += len(block)
                yield block

        cuts = windows(blocks(), SpeechRule() if options.vad else None)
        segments: list[TextSegment] = []
        results: list[Result] = []
        stats = SequenceStats()
        undecided = options.language is None
        while batch := list(islice(cuts, 1 if undecided else self.engine.max_sequences)):
            requests = [
                self.request(cut.samples, _drawing(options, len(results) + number))
                for number, cut in enumerate(batch)
            ]
            done = self.run(requests)
            if undecided:
                options = replace(options, language=self.language_of(done[0]))
                undecided = False
            for cut, request, result in zip(batch, requests, done, strict=True):
                segments += self._segments(cut, request, result, options)
                stats.add(result.stats)
                results.append(replace(result, encoded=None))  # megabytes a window
            progress(batch[-1].end_seconds)
        unknown = "und" if self.tokens.multilingual else "en"
        return Transcription(
            transcript=Transcript(
                task=options.task,
                language=options.language or unknown,
                duration=read / SAMPLE_RATE,
                segments=tuple(segments),
            ),
            results=tuple(results),
            stats=stats,
            audio_seconds=read / SAMPLE_RATE,
            wall_seconds=time.perf_counter() - started,
        )

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Run requests as parallel sequences of one engine; SoothsayError if any of them failed."""
        results = self.engine.run(requests)
        for result in results:
            if result.finish is FinishReason.ERROR:
                raise SoothsayError(f"decoding failed: {result.error}")
        return results

    def language_of(self, result: Result) -> str | None:
        """The language of its prompt; None for a target that knows one alone."""
        codes = {token: code for code, token in self.tokens.languages.items()}
        return next((codes[token] for token in result.prompt if token in codes), None)

    def _segments(
        self, cut: Window, request: Request, result: Result, options: Options
    ) -> list[TextSegment]:
        """A window's text, with all that is wanted of it; none where nobody seems to speak."""
        mean = fmean(result.log_probs) if result.log_probs else None
        silence = result.probe_probability
        if options.fallback and options.fallback.silent(mean or 0.0, silence):
            return []
        scores = Scores(result.sampling.temperature, mean, silence)
        found = segments_of(result.tokens, self.tokens, cut.start_seconds, cut.seconds, scores)
        if result.encoded is None:
            return found
        spoken = self.language_of(result) or "en"
        return self.timer.timed(found, result.encoded, request.features, spoken, options.task)


def signs_of(tokens: WhisperTokens) -> Signs:
    """What a drafter must know of the tokens' meaning."""
    stops = tuple(sign.encode() for sign in SENTENCE_ENDS)
    return Signs(
        end=tokens.end_of_text,
        first_timestamp=tokens.first_timestamp,
        no_timestamps=tokens.no_timestamps,
        translate=tokens.translate,
        stops=frozenset(i for i, text in enumerate(tokens.token_bytes) if text.endswith(stops)),
    )


def _drawing(options: Options, window: int) -> Options:
    """With a seed, each window draws from a stream of its own, or they would be correlated."""
    seed = options.sampling.seed
    if seed is None:
        return options
    return replace(options, sampling=replace(options.sampling, seed=(seed + window) % (1 << 63)))
