"""The runner: flattens trees into one ragged batch, runs the target once, and judges.

The output projection is a large part of a small decoder's arithmetic, and only the rows on the
accepted path are ever needed. So hidden states come first, for all nodes; logits follow in waves,
for the nodes the walks ask for and the likeliest ones below them, as many as the target computes
for the price of one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from soothsay.cache.arena import Arena
from soothsay.engine.scheduler import SequenceState
from soothsay.speculate.filters import greedy_choice, warp
from soothsay.speculate.tree import DraftTree
from soothsay.speculate.verify import Acceptance, GreedyWalk, SampledWalk
from soothsay.targets.adapters import Adapters, MaskRows
from soothsay.targets.target import Target, TreeBatch, TreeSpan


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided for one sequence.

    log_probs: of the accepted path and the target's own token, where the request wants them.
    ahead: (J, width) final states of the masks behind the step's end; None where none stood;
    passed: how many masks of their row came before them.
    probe: the probability that the request asks for, where this step came by its position.
    """

    acceptance: Acceptance
    log_probs: tuple[float, ...] = ()
    ahead: Tensor | None = None
    passed: int = 0
    probe: float | None = None


@dataclass(slots=True)
class _Trial:
    """One sequence while it is judged."""

    state: SequenceState
    tree: DraftTree
    walk: GreedyWalk | SampledWalk
    first_row: int  # of the root, in the flattened batch
    asked: tuple[int, ...] = ()
    rows: dict[int, Tensor] = field(default_factory=dict)  # node → filtered logits (V,)
    choices: dict[int, int] = field(default_factory=dict)  # node → the target's token, if greedy
    verdict: Verdict | None = None

    def history(self, node: int) -> list[int]:
        """Output tokens before the prediction of `node`: committed ones, then its own path."""
        path = []
        while node > 0:
            path.append(self.tree.tokens[node])
            node = self.tree.parents[node]
        return self.state.tokens + path[::-1]


class Runner:
    """Runs the target on behalf of the engine; holds the arena it was lent, no sequence."""

    def __init__(self, target: Target, arena: Arena) -> None:
        self._target = target
        self._arena = arena
        self.forward_seconds = 0.0  # time inside the target, all calls together

    def verify(
        self,
        states: Sequence[SequenceState],
        trees: Sequence[DraftTree],
        walks: Sequence[GreedyWalk | SampledWalk],
        adapters: Adapters | None = None,
    ) -> list[Verdict]:
        """One target forward over all trees → one verdict a sequence, in order. adapters: of the
        masks that trees may ask for."""
        batch, first_rows = flatten(states, trees, self._target.device, adapters)
        started = time.perf_counter()
        hidden = self._target.forward_tree(batch, self._arena)
        self.forward_seconds += time.perf_counter() - started
        trials = [
            _Trial(state, tree, walk, row)
            for state, tree, walk, row in zip(states, trees, walks, first_rows, strict=True)
        ]
        for trial in trials:
            trial.asked = next(trial.walk)
        while open_trials := [trial for trial in trials if trial.verdict is None]:
            self._wave(open_trials, hidden)
            for trial in open_trials:
                _advance(trial)
        return [
            self._with_probe(trial, _with_masks(trial, hidden, adapters), hidden)
            for trial in trials
        ]

    def _with_probe(self, trial: _Trial, verdict: Verdict, hidden: Tensor) -> Verdict:
        state, probe = trial.state, trial.state.request.probe
        if probe is None or state.probe_probability is not None:
            return verdict
        behind = state.committed + len(state.pending) - 1 - probe.position  # rows before the root
        if not 0 <= behind < len(state.pending):
            return verdict
        row = trial.first_row - behind
        chances = torch.softmax(self._target.logits(hidden[row : row + 1])[0].float(), -1)
        return replace(verdict, probe=float(chances[probe.token]))

    def _wave(self, trials: list[_Trial], hidden: Tensor) -> None:
        """Logits, filtered and (if greedy) decided, for what is asked and what likely will be."""
        chosen = choose_rows(trials, self._target.logit_rows)
        rows = [trial.first_row + node for trial, nodes in chosen for node in nodes]
        index = torch.tensor(rows, device=hidden.device)
        started = time.perf_counter()
        logits = self._target.logits(hidden[index])
        self.forward_seconds += time.perf_counter() - started
        start = 0
        for trial, nodes in chosen:
            part = logits[start : start + len(nodes)]
            start += len(nodes)
            histories = [trial.history(node) for node in nodes]
            for rule in trial.state.filters:
                rule.apply(part, histories)
            trial.rows.update(zip(nodes, part, strict=True))
            if trial.state.sampling.greedy:
                trial.choices.update(zip(nodes, greedy_choice(part), strict=True))


def _with_masks(trial: _Trial, hidden: Tensor, adapters: Adapters | None) -> Verdict:
    """The verdict, and what stands at the masks nearest to the step's end."""
    verdict, tree = trial.verdict, trial.tree
    assert verdict is not None
    if adapters is None or not tree.masks:
        return verdict
    count = adapters.count
    path = (0, *verdict.acceptance.path)
    for passed, node in enumerate(reversed(path)):  # masks of an earlier node see as far
        if node in tree.masks and passed < count:
            first = len(tree.tokens) + tree.masks.index(node) * count
            start = trial.first_row + first
            ahead = hidden[start + passed : start + count]
            return replace(verdict, ahead=ahead, passed=passed)
    return verdict


def flatten(
    states: Sequence[SequenceState],
    trees: Sequence[DraftTree],
    device: torch.device,
    adapters: Adapters | None = None,
) -> tuple[TreeBatch, list[int]]:
    """Trees → one ragged batch, and the batch row of each root.

    A sequence's rows are its pending chain without the root, then its tree, then the masks behind
    nodes of the tree. Positions follow the committed length and the depth, never the row's index.
    """
    tokens: list[int] = []
    positions: list[int] = []
    spans = []
    roots = []
    masks: list[int] = []
    count = adapters.count if adapters else 0
    for state, drafted in zip(states, trees, strict=True):
        start = len(tokens)
        tree = drafted.with_masks(count) if drafted.masks else drafted
        chain = state.pending[:-1]
        base = state.committed + len(chain)
        tokens += chain
        tokens += tree.tokens
        positions += range(state.committed, base)
        positions += [base + depth for depth in tree.depths]
        roots.append(start + len(chain))
        masks += range(roots[-1] + len(drafted.tokens), len(tokens))
        spans.append(
            TreeSpan(
                start=start,
                stop=len(tokens),
                slot=state.region.start,
                committed=state.committed,
                stream=state.stream.start,
                mask=chain_mask(tree, len(chain), device),
            )
        )
    batch = TreeBatch(
        tokens=torch.tensor(tokens, device=device),
        positions=torch.tensor(positions, device=device),
        spans=tuple(spans),
        masks=_mask_rows(masks, adapters, device) if adapters and masks else None,
    )
    return batch, roots


def _mask_rows(rows: list[int], adapters: Adapters, device: torch.device) -> MaskRows:
    numbers = torch.arange(len(rows), device=device) % adapters.count
    if rows[-1] - rows[0] + 1 == len(rows):  # side by side: views instead of gathering
        return MaskRows(slice(rows[0], rows[-1] + 1), numbers, adapters)
    return MaskRows(torch.tensor(rows, device=device), numbers, adapters)


def chain_mask(tree: DraftTree, chain: int, device: torch.device) -> Tensor | None:
    """(rows, rows) bool: `chain` tokens in a row, then the tree below them; None for one row."""
    nodes = len(tree.tokens)
    if chain + nodes == 1:
        return None
    mask = torch.ones((chain + nodes, chain + nodes), dtype=torch.bool).tril_()
    if nodes > 1:
        mask[chain:, chain:] = tree.ancestor_mask()
    return mask.to(device)


def choose_rows(trials: Sequence[_Trial], quantum: int) -> list[tuple[_Trial, list[int]]]:
    """Which nodes' logits to compute now: all that are asked for, then the likeliest others.

    `quantum` rows cost about as much as one, so the wave is filled up to its next multiple;
    0 means that rows are cheap and every node is taken at once.
    """
    chosen = {
        id(trial): [node for node in trial.asked if node not in trial.rows] for trial in trials
    }
    others = sorted(
        (
            (-trial.tree.acceptance[node], order, node)
            for order, trial in enumerate(trials)
            for node in range(len(trial.tree.tokens))
            if node not in trial.rows and node not in trial.asked
        ),
    )
    if quantum:
        asked = sum(map(len, chosen.values()))
        others = others[: -asked % quantum]
    for _, order, node in others:
        chosen[id(trials[order])].append(node)
    return [(trial, chosen[id(trial)]) for trial in trials if chosen[id(trial)]]


def _advance(trial: _Trial) -> None:
    """Send the walk all it asks for that is known, until it asks for more or has decided."""
    sampling = trial.state.sampling
    try:
        while all(node in trial.rows for node in trial.asked):
            rows: Any = {node: trial.choices.get(node) for node in trial.asked}
            if not sampling.greedy:
                probs = warp(torch.stack([trial.rows[node] for node in trial.asked]), sampling)
                rows = dict(zip(trial.asked, probs, strict=True))
            trial.asked = trial.walk.send(rows)
    except StopIteration as stop:
        acceptance: Acceptance = stop.value
        trial.verdict = Verdict(acceptance, _log_probs(trial, acceptance))


def _log_probs(trial: _Trial, acceptance: Acceptance) -> tuple[float, ...]:
    request = trial.state.request
    if not (request.log_probs or request.retry or trial.state.choosing):
        return ()
    parents = (0, *acceptance.path)
    tokens = [trial.tree.tokens[node] for node in acceptance.path]
    if acceptance.token is not None:
        tokens.append(acceptance.token)
    return tuple(
        float(torch.log_softmax(trial.rows[node], -1)[token])
        for node, token in zip(parents, tokens, strict=False)  # no row where end-of-text stands
    )
