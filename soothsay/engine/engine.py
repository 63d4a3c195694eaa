"""The engine: plan → draft → verify → commit, for every running sequence at once.

Whoever calls `step` owns the device; nothing here waits, locks or knows of threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from soothsay.cache.arena import Arena
from soothsay.control.budget import Budget, FixedBudget
from soothsay.drafters.drafter import Drafter
from soothsay.engine.drafting import Drafting
from soothsay.engine.request import Delta, Request, Result
from soothsay.engine.runner import Runner, Verdict
from soothsay.engine.scheduler import Scheduler, SequenceState
from soothsay.speculate.tree import DraftTree
from soothsay.speculate.verify import (
    GreedyWalk,
    SampledWalk,
    draw_walk,
    greedy_walk,
    rejection_walk,
    traversal_walk,
)
from soothsay.targets.target import Target
from soothsay.types import FinishReason, Price, SequenceStats

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """Who takes part in a step, and what a node must be worth in it."""

    states: list[SequenceState]
    price: Price


class Engine:
    """Continuous batching over one target: sequences join and leave between steps.

    drafter None decodes plainly. `sampled_rule` verifies sampled trees (deterministic trees have
    one exact rule): traversal accepts more, rejection needs fewer logits.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        budget: Budget | None = None,
        max_sequences: int = 8,
        sampled_rule: Literal["traversal", "rejection"] = "traversal",
    ) -> None:
        self.target = target
        self.budget = budget or FixedBudget(nodes=1)
        self.max_sequences = max_sequences
        self.stats = SequenceStats()  # of all finished sequences
        self.drafting = Drafting(target, self.budget, drafter)
        rows = self.budget.max_nodes + self.drafting.mask_rows
        self.scheduler = Scheduler(target.spec, max_sequences, rows)
        shape = target.arena_shape(self.scheduler.slots.size, self.scheduler.streams.size)
        self.arena = Arena(shape)
        self.runner = Runner(target, self.arena)
        self._sampled_walk = traversal_walk if sampled_rule == "traversal" else rejection_walk

    @property
    def drafter(self) -> Drafter | None:
        """Of sequences to come; running ones keep theirs."""
        return self.drafting.current.drafter

    @drafter.setter
    def drafter(self, drafter: Drafter | None) -> None:
        self.drafting.install(drafter)

    def submit(self, request: Request) -> int:
        """Queue a request → its sequence number, which every Delta of it carries."""
        return self.scheduler.submit(request)

    def abort(self, sequence: int) -> Result | None:
        """Withdraw a sequence: takes effect between steps (see Scheduler.abort)."""
        return self.scheduler.abort(sequence)

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """Advance every running sequence by at least one token."""
        plan = self._plan()
        trees = self._draft(plan)
        verdicts = self._verify(plan, trees)
        return self._commit(plan, trees, verdicts)

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Submit all, step until idle → results in order. Not while others use the engine."""
        numbers: list[int] = []
        try:
            numbers += map(self.submit, requests)
        except Exception:
            for number in numbers:  # none has started: a refused run leaves nothing behind
                self.abort(number)
            raise
        results: dict[int, Result] = {}
        while not self.scheduler.idle:
            for delta in self.step():
                if delta.result is not None:
                    results[delta.sequence] = delta.result
        return [results[number] for number in numbers]

    # -- plan ---------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        newcomers = self.scheduler.admit()
        if newcomers:
            self._encode(newcomers)
        states = [state for state in self.scheduler.running() if state.finish is None]
        return Plan(states, self.budget.price(len(states)))

    def _encode(self, states: list[SequenceState]) -> None:
        """Run the acoustic encoder once for all newcomers and let the drafter read its output."""
        started = time.perf_counter()
        try:
            encoded = self.target.encode(torch.stack([s.request.features for s in states]))
            middle = time.perf_counter()
            self.target.write_cross(encoded, self.arena, [s.stream.start for s in states])
        except Exception as error:
            self._isolate(states, error, lambda state: self._encode([state]))
            return
        ended = time.perf_counter()
        for index, state in enumerate(states):
            state.stats.encode_seconds += (ended - started) / len(states)
            state.stats.cross_seconds += (ended - middle) / len(states)
            if state.request.retry or state.request.keep_encoded:
                state.encoded = encoded.segment(index)
            self.drafting.open(state, encoded.segment(index))

    # -- draft --------------------------------------------------------------------------------

    def _draft(self, plan: Plan) -> list[DraftTree]:
        return [self.drafting.propose(state, plan.price) for state in plan.states]

    # -- verify -------------------------------------------------------------------------------

    def _verify(self, plan: Plan, trees: list[DraftTree]) -> dict[int, Verdict]:
        """One target forward for all → verdicts by sequence number; who failed has none."""
        return self._verify_some(plan.states, trees) if plan.states else {}

    def _verify_some(
        self, states: list[SequenceState], trees: list[DraftTree]
    ) -> dict[int, Verdict]:
        before = self.runner.forward_seconds
        walks = [self._walk(state, tree) for state, tree in zip(states, trees, strict=True)]
        try:
            verdicts = self.runner.verify(states, trees, walks, self.drafting.current.adapters)
        except Exception as error:
            found: dict[int, Verdict] = {}
            alone = dict(zip([s.number for s in states], trees, strict=True))
            self._isolate(
                states,
                error,
                lambda state: found.update(self._verify_some([state], [alone[state.number]])),
            )
            return found
        seconds = (self.runner.forward_seconds - before) / len(states)
        for state in states:
            state.stats.verify_seconds += seconds
        return {state.number: v for state, v in zip(states, verdicts, strict=True)}

    def _walk(self, state: SequenceState, tree: DraftTree) -> GreedyWalk | SampledWalk:
        end = state.request.end_token
        if state.sampling.greedy:
            return greedy_walk(tree, end)
        if tree.draft_probs is None:
            return draw_walk(tree, end, state.chooser)
        return self._sampled_walk(tree, end, state.chooser)

    @staticmethod
    def _isolate(
        states: list[SequenceState], error: Exception, retry: Callable[[SequenceState], None]
    ) -> None:
        """A batch failed: run each sequence alone, so that only the one at fault ends.

        Nothing was committed, and rows behind the committed ones are free to be written again.
        """
        if len(states) > 1:
            for state in states:
                retry(state)
            return
        logger.warning("sequence %d failed", states[0].number, exc_info=error)
        states[0].finish = FinishReason.ERROR
        states[0].error = f"{type(error).__name__}: {error}"

    # -- commit -------------------------------------------------------------------------------

    def _commit(
        self, plan: Plan, trees: list[DraftTree], verdicts: dict[int, Verdict]
    ) -> list[Delta]:
        written: dict[int, tuple[int, ...]] = {}
        moves: list[tuple[int, int]] = []
        for state, tree in zip(plan.states, trees, strict=True):
            if verdict := verdicts.get(state.number):
                moves += rows_to_move(state, verdict.acceptance.path)
                written[state.number] = self._accept(state, tree, verdict)
        if moves:
            sources, destinations = torch.tensor(moves, device=self.target.device).T
            self.arena.move_rows(sources, destinations)
        deltas = []
        for state in self.scheduler.running():
            tokens = written.get(state.number, ())
            if state.finish is not None:
                self.scheduler.release(state)
                self.stats.add(state.stats)
                self.drafting.finished(state)
                result = state.result()
                if state.request.retry:
                    tokens = result.tokens
                deltas.append(Delta(state.number, tokens, result))
            elif tokens and not state.request.retry:  # might still be taken back
                deltas.append(Delta(state.number, tokens))
        if self.scheduler.idle:
            self.scheduler.check_integrity()
        return deltas

    def _accept(self, state: SequenceState, tree: DraftTree, verdict: Verdict) -> tuple[int, ...]:
        """Commit the accepted path to the sequence's state → the new output tokens."""
        path, own = verdict.acceptance.path, verdict.acceptance.token
        tokens = [tree.tokens[node] for node in path] + ([] if own is None else [own])
        state.committed += len(state.pending) + len(path)
        state.stats.target_forwards += 1
        if verdict.probe is not None:
            state.probe_probability = verdict.probe
        if state.choosing:
            state.complete_prompt(tokens[0], verdict.log_probs[0])
            return ()
        state.stats.count_tree(tree.depths, len(path), len(tokens))
        state.log_probs += verdict.log_probs
        state.pending = tokens[-1:]
        if tokens[-1] == state.request.end_token:
            state.finish = FinishReason.STOP
            del tokens[-1]
        state.tokens += tokens
        if state.finish is None and state.remaining(self.target.spec.max_length) <= 0:
            state.finish = FinishReason.LENGTH
        if state.finish is None:
            self.drafting.advance(state, tokens, verdict)
        else:
            self._judge(state)
        return tuple(tokens)

    def _judge(self, state: SequenceState) -> None:
        """A text has ended: let its request's rule decide whether it is decoded once more."""
        try:
            again = state.judge()
        except Exception as error:  # whatever a caller's rule does, the others go on
            logger.warning("the retry rule of sequence %d failed", state.number, exc_info=error)
            state.finish = FinishReason.ERROR
            state.error = f"{type(error).__name__}: {error}"
            return
        if again:
            assert state.encoded is not None
            self.drafting.open(state, state.encoded, hint=state.attempts[-1].tokens)


def rows_to_move(state: SequenceState, path: Sequence[int]) -> list[tuple[int, int]]:
    """(source, destination) slots that bring the accepted path behind the root, before commit.

    Node i of the tree was written i rows behind the root; a path along the first nodes stays.
    """
    root = state.region.start + state.committed + len(state.pending) - 1
    return [
        (root + node, root + depth) for depth, node in enumerate(path, start=1) if node != depth
    ]
