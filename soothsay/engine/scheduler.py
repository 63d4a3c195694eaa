"""The scheduler: owner of sequences, and of which arena slots and streams belong to whom.

Life of a sequence: waiting → (admitted: region and stream reserved) running → (judged: once more,
from its prompt on) → finished, and its slots are free again. Sequences join and leave between steps
only.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from soothsay.cache.slots import Region, SlotPool
from soothsay.engine.request import Attempt, Request, Result
from soothsay.speculate.filters import LogitFilter, OnlyTokens, RngChooser
from soothsay.targets.target import Encoded, TargetSpec
from soothsay.types import FinishReason, OptionError, Sampling, SequenceStats


@dataclass(slots=True, eq=False)
class SequenceState:
    """All that is known of one running sequence. Positions and cache lengths live here alone."""

    number: int
    request: Request
    prompt: tuple[int, ...]
    region: Region
    stream: Region
    committed: int = 0  # cache rows that are final
    pending: list[int] = field(default_factory=list)  # tokens to run next; the last is the root
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    choice_probability: float | None = None
    choosing: bool = False  # the prompt is not complete yet
    probe_probability: float | None = None
    drawn: Sampling = Sampling()  # of this attempt
    attempts: list[Attempt] = field(default_factory=list)  # finished ones, where a rule judges them
    chosen: Attempt | None = None  # of these
    encoded: Encoded | None = None  # kept only where it is needed again
    installed: Any = None  # what it was opened with (engine/drafting.py)
    drafting: bool = False
    draft_state: Any = None  # the drafter's own
    chooser: RngChooser = field(default_factory=RngChooser)
    stats: SequenceStats = field(default_factory=SequenceStats)
    finish: FinishReason | None = None
    error: str | None = None

    @property
    def sampling(self) -> Sampling:
        return Sampling() if self.choosing else self.drawn

    @property
    def filters(self) -> tuple[LogitFilter, ...]:
        """The rules for the next token: while the prompt is being chosen, only its alternatives."""
        if self.choosing:
            assert self.request.choice is not None
            return (OnlyTokens(self.request.choice.among),)
        return self.request.filters

    def complete_prompt(self, token: int, log_prob: float) -> None:
        """The target has chosen the open token of its prompt."""
        assert self.request.choice is not None
        self.choice_probability = math.exp(log_prob)
        self.pending = [token, *self.request.choice.then]
        self.prompt = (*self.prompt, *self.pending)
        self.choosing = False

    def judge(self) -> bool:
        """The text has ended: start over if the request's rule wants that → whether it does.

        The cached prompt stays, and what the encoder heard; draws begin anew.
        """
        rule = self.request.retry
        if rule is None or self.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return False
        self.attempts.append(self._attempt())
        sampling = rule.again(self.attempts)
        if sampling is None:
            self.chosen = rule.best(self.attempts)
            return False
        self.drawn, self.chooser = sampling, RngChooser(sampling.seed)
        self.committed, self.pending = len(self.prompt) - 1, [self.prompt[-1]]
        self.tokens, self.log_probs, self.finish = [], [], None
        return True

    def remaining(self, max_length: int) -> int:
        """Output tokens that may still be written."""
        room = max_length - len(self.prompt) - len(self.tokens)
        return min(room, self.request.max_tokens - len(self.tokens))

    def _attempt(self) -> Attempt:
        assert self.finish is not None
        return Attempt(
            tokens=tuple(self.tokens),
            log_probs=tuple(self.log_probs),
            finish=self.finish,
            sampling=self.drawn,
            probe_probability=self.probe_probability,
        )

    def result(self) -> Result:
        assert self.finish is not None
        final = self.chosen or self._attempt()
        return Result(
            tokens=final.tokens,
            prompt=self.prompt,
            finish=final.finish,
            stats=self.stats,
            choice_probability=self.choice_probability,
            log_probs=final.log_probs,
            error=self.error,
            probe_probability=self.probe_probability,
            sampling=final.sampling,
            attempts=max(1, len(self.attempts)),
            encoded=self.encoded if self.request.keep_encoded else None,
        )


class Scheduler:
    """First come, first served; a request waits until a region and a stream are free."""

    def __init__(self, spec: TargetSpec, max_sequences: int, max_nodes: int) -> None:
        self._spec = spec
        # The tree of the last step lies behind the longest possible sequence.
        self._region_rows = spec.max_length + max_nodes
        self.slots = SlotPool(max_sequences * self._region_rows)
        self.streams = SlotPool(max_sequences)
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: dict[int, SequenceState] = {}
        self._next_number = 0

    def submit(self, request: Request) -> int:
        """Queue a request → its sequence number. OptionError if it could never run."""
        frames = 2 * self._spec.encoder_positions
        if tuple(request.features.shape) != (self._spec.mel_bins, frames):
            raise OptionError(
                f"features must be {self._spec.mel_bins} x {frames}, "
                f"not {' x '.join(map(str, request.features.shape))}"
            )
        prompt = [*request.prompt, *(request.choice.then if request.choice else ())]
        among = request.choice.among if request.choice else ()
        if not request.prompt or (request.choice and not among):
            raise OptionError(
                "the prompt is empty: at least one token must stand before the output"
            )
        if not all(0 <= token < self._spec.vocab_size for token in [*prompt, *among]):
            raise OptionError(f"the prompt holds tokens outside 0..{self._spec.vocab_size - 1}")
        if len(prompt) + bool(among) >= self._spec.max_length:
            raise OptionError(
                f"a prompt of {len(prompt)} tokens leaves no room: "
                f"{self._spec.name} takes {self._spec.max_length} in all"
            )
        if request.probe and not (
            0 <= request.probe.position < len(request.prompt)
            and 0 <= request.probe.token < self._spec.vocab_size
        ):
            raise OptionError("the probe lies outside the prompt or the vocabulary")
        if request.max_tokens < 1:
            raise OptionError(f"max_tokens must be positive, not {request.max_tokens}")
        number = self._next_number
        self._next_number += 1
        self._waiting.append((number, request))
        return number

    def admit(self) -> list[SequenceState]:
        """Move waiting requests to running while slots last → the newcomers, not yet encoded."""
        newcomers = []
        while self._waiting and self.streams.free and self.slots.free >= self._region_rows:
            number, request = self._waiting.popleft()
            region = self.slots.allocate(self._region_rows)
            stream = self.streams.allocate(1)
            assert region is not None
            assert stream is not None
            state = SequenceState(
                number=number,
                request=request,
                prompt=request.prompt,
                region=region,
                stream=stream,
                pending=list(request.prompt),
                choosing=request.choice is not None,
                drawn=request.sampling,
                chooser=RngChooser(request.sampling.seed),
            )
            self._running[number] = state
            newcomers.append(state)
        return newcomers

    def running(self) -> list[SequenceState]:
        return list(self._running.values())

    def release(self, state: SequenceState) -> None:
        """The sequence has finished: its slots and stream go back."""
        del self._running[state.number]
        self.slots.release(state.region)
        self.streams.release(state.stream)

    def abort(self, number: int) -> Result | None:
        """Withdraw a sequence. A running one is marked, and ends at the next step; a waiting one
        ends here → its result. Unknown numbers (already finished) are no error."""
        if state := self._running.get(number):
            state.finish = FinishReason.ABORT
            return None
        for entry in self._waiting:
            if entry[0] == number:
                self._waiting.remove(entry)
                return Result(tokens=(), prompt=entry[1].prompt, finish=FinishReason.ABORT)
        return None

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def check_integrity(self) -> None:
        """Every slot and stream is free or held by exactly one running sequence."""
        self.slots.check_integrity()
        self.streams.check_integrity()
        held = len(self._running)
        if self.slots.held != held * self._region_rows or self.streams.held != held:
            raise AssertionError(
                f"{held} sequences run, but {self.slots.held} slots and "
                f"{self.streams.held} streams are held"
            )
