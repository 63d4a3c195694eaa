"""Masks in the runner: where they stand in the flattened batch, and which of them are handed over.

The target here is scripted: a row's final state names the row, and its logits are looked up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fixtures.masks import mask_sizes
from fixtures.toy_whisper import toy_features, toy_files
from torch import Tensor

from soothsay.cache.slots import Region
from soothsay.drafters.masks import LookaheadMasks
from soothsay.engine.request import Request
from soothsay.engine.runner import Runner, Verdict, flatten
from soothsay.engine.scheduler import SequenceState
from soothsay.speculate.tree import DraftTree
from soothsay.speculate.verify import greedy_walk
from soothsay.targets.adapters import Adapters
from soothsay.targets.target import TreeBatch

CPU = torch.device("cpu")
VOCAB, END, K = 24, 0, 3


def adapters(masks: int = K) -> Adapters:
    made = LookaheadMasks(mask_sizes(toy_files(0), masks))
    return made.laid_out(torch.float32, CPU)


def state(number: int, pending: list[int], committed: int) -> SequenceState:
    return SequenceState(
        number=number,
        request=Request(toy_features(number), (1,), END),
        prompt=(1,),
        region=Region(100 * number, 100),
        stream=Region(number, 1),
        committed=committed,
        pending=pending,
    )


def tree(tokens: list[int], parents: list[int], masks: tuple[int, ...] = ()) -> DraftTree:
    n = len(tokens)
    acceptance = tuple(1.0 / (node + 1) for node in range(n))
    return DraftTree(tuple(tokens), tuple(parents), (0.0,) * n, acceptance, masks=masks)


#          4
#        /   \
#       5     6
#       |
#       7
BRANCHED = tree([4, 5, 6, 7], [-1, 0, 0, 1], masks=(0, 3))


def test_masks_behind_a_tree_by_hand() -> None:
    batch, roots = flatten([state(0, [4], 10)], [BRANCHED], CPU, adapters(2))
    assert roots == [0]
    assert batch.tokens[:4].tolist() == [4, 5, 6, 7]
    # The nodes, two masks behind the root, two behind node 3.
    assert batch.positions.tolist() == [10, 11, 11, 12, 11, 12, 13, 14]
    (span,) = batch.spans
    assert (span.start, span.stop, span.slot, span.committed, span.stream) == (0, 8, 0, 10, 0)
    assert span.mask is not None
    assert span.mask.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 1, 0, 0, 0],
        [1, 0, 0, 0, 1, 1, 0, 0],
        [1, 1, 0, 1, 0, 0, 1, 0],
        [1, 1, 0, 1, 0, 0, 1, 1],
    ]
    assert batch.masks is not None
    assert batch.masks.rows == slice(4, 8)
    assert batch.masks.numbers.tolist() == [0, 1, 0, 1]


def mask_rows(batch: TreeBatch) -> list[int]:
    assert batch.masks is not None
    rows = batch.masks.rows
    return list(range(len(batch.tokens))[rows]) if isinstance(rows, slice) else rows.tolist()


def test_a_pending_chain_stands_before_the_tree() -> None:
    """At prefill: the prompt without its last token is seen by all, masks included."""
    batch, roots = flatten([state(2, [8, 9, 4], 0)], [BRANCHED], CPU, adapters(1))
    assert roots == [2]
    assert batch.tokens[:6].tolist() == [8, 9, 4, 5, 6, 7]
    assert batch.positions.tolist() == [0, 1, 2, 3, 3, 4, 3, 5]
    assert mask_rows(batch) == [6, 7]
    (span,) = batch.spans
    assert (span.slot, span.stream) == (200, 2)
    assert span.mask is not None
    assert span.mask[0].tolist() == [True] + [False] * 7
    assert span.mask[1:, 0].all()
    assert span.mask[2:, :2].all()
    assert span.mask[6].nonzero().flatten().tolist() == [0, 1, 2, 6]
    assert span.mask[7].nonzero().flatten().tolist() == [0, 1, 2, 3, 5, 7]


def test_two_sequences_have_their_own() -> None:
    states = [state(0, [4], 10), state(1, [2, 9], 3), state(2, [3], 7)]
    trees = [BRANCHED, tree([9, 8], [-1, 0], masks=(1,)), tree([3], [-1])]
    batch, roots = flatten(states, trees, CPU, adapters())
    assert roots == [0, 11, 16]
    assert [(span.start, span.stop) for span in batch.spans] == [(0, 10), (10, 16), (16, 17)]
    assert mask_rows(batch) == [*range(4, 10), *range(13, 16)]
    assert batch.masks is not None
    assert batch.masks.numbers.tolist() == [0, 1, 2] * 3
    assert batch.positions.tolist()[10:] == [3, 4, 5, 6, 7, 8, 7]
    assert batch.spans[2].mask is None
    for span, alone, own in zip(batch.spans, states, trees, strict=True):
        one, _ = flatten([alone], [own], CPU, adapters())
        assert torch.equal(batch.tokens[span.start : span.stop], one.tokens)
        assert torch.equal(batch.positions[span.start : span.stop], one.positions)
        assert (span.mask is None) == (one.spans[0].mask is None)
        assert span.mask is None or torch.equal(span.mask, one.spans[0].mask)


def test_masks_side_by_side_are_a_slice() -> None:
    """One sequence's are, and those of a batch where only one has some."""
    states, bare = [state(0, [3], 7), state(1, [4], 10)], tree([3], [-1])
    batch, _ = flatten(states, [bare, BRANCHED], CPU, adapters())
    assert batch.masks is not None
    assert batch.masks.rows == slice(5, 11)
    batch, _ = flatten(states, [bare, bare], CPU, adapters())
    assert batch.masks is None


def test_a_root_alone_may_have_masks() -> None:
    batch, _ = flatten([state(0, [3], 7)], [tree([3], [-1], masks=(0,))], CPU, adapters())
    assert batch.positions.tolist() == [7, 8, 9, 10]
    assert batch.spans[0].mask is not None
    assert torch.equal(batch.spans[0].mask, torch.ones(4, 4, dtype=torch.bool).tril())


class Scripted:
    """Every row's state is (its span, its index in the span); after token t comes t + 1."""

    spec = None
    device, dtype, logit_rows = CPU, torch.float32, 0

    def __init__(self) -> None:
        self.batch: TreeBatch | None = None
        self.asked: list[tuple[int, int]] = []

    def forward_tree(self, batch: TreeBatch, arena: Any) -> Tensor:
        self.batch = batch
        return torch.tensor(
            [
                (number, row)
                for number, span in enumerate(batch.spans)
                for row in range(span.stop - span.start)
            ]
        ).float()

    def logits(self, hidden: Tensor) -> Tensor:
        assert self.batch is not None
        found = torch.zeros(len(hidden), VOCAB)
        for logits, (number, row) in zip(found, hidden.int().tolist(), strict=True):
            self.asked.append((number, row))
            token = int(self.batch.tokens[self.batch.spans[number].start + row])
            logits[(token + 1) % VOCAB] = 1.0
        return found


def verify(
    states: list[SequenceState], trees: list[DraftTree], masks: int | None = K
) -> tuple[list[Verdict], Scripted]:
    target = Scripted()
    made = None if masks is None else adapters(masks)
    runner = Runner(target, None)  # type: ignore[arg-type]
    return runner.verify(states, trees, [greedy_walk(t, END) for t in trees], made), target


# A chain 4, 5, 6 of which all is accepted, and a wrong token below it.
CHAIN = tree([4, 5, 6, 9], [-1, 0, 1, 2])


@pytest.mark.parametrize(
    ("behind", "rows"),
    [
        ((2,), [4, 5, 6]),  # of the last accepted node: all three
        ((1,), [5, 6]),  # one node before: the first mask foretells what is known by now
        ((0,), [6]),
        ((0, 2), [7, 8, 9]),
        ((0, 1), [8, 9]),
        ((1, 2, 3), [7, 8, 9]),  # whichever place they have
        ((2, 3), [4, 5, 6]),
        ((0, 3), [6]),
        ((3,), None),  # off the path
        ((), None),
    ],
)
def test_the_masks_nearest_to_the_end_are_handed_over(
    behind: tuple[int, ...], rows: list[int] | None
) -> None:
    (verdict,), target = verify([state(0, [4], 10)], [replace(CHAIN, masks=behind)])
    assert verdict.acceptance.path == (1, 2)
    assert verdict.acceptance.token == 7
    if rows is None:
        assert verdict.ahead is None
    else:
        assert verdict.ahead is not None
        assert verdict.ahead[:, 1].tolist() == rows
        # The first foretells the token behind the new root: it stands where that root will.
        first = target.batch.positions[rows[0]]  # type: ignore[union-attr]
        assert int(first) == 10 + len(verdict.acceptance.path) + 1
    assert all(row < len(CHAIN.tokens) for _, row in target.asked)  # no logits of masks


def test_masks_too_far_back_have_nothing_more_to_say() -> None:
    """Two masks behind the root, and two tokens accepted: both foretold what is known by now."""
    (verdict,), _ = verify([state(0, [4], 10)], [replace(CHAIN, masks=(0,))], masks=2)
    assert verdict.ahead is None
    (verdict,), _ = verify([state(0, [4], 10)], [replace(CHAIN, masks=(0,))], masks=5)
    assert verdict.ahead is not None
    assert verdict.ahead[:, 1].tolist() == [6, 7, 8]


def test_nothing_accepted_leaves_those_of_the_root() -> None:
    wrong = tree([4, 9, 8], [-1, 0, 1], masks=(0, 1))
    (verdict,), _ = verify([state(0, [4], 10)], [wrong])
    assert verdict.acceptance.path == ()
    assert verdict.ahead is not None
    assert verdict.ahead[:, 1].tolist() == [3, 4, 5]


def test_each_sequence_gets_its_own() -> None:
    """Pending tokens before a tree shift its rows, other sequences do too."""
    states = [state(0, [2, 3, 4], 0), state(1, [7], 5), state(2, [4], 10), state(3, [4], 10)]
    trees = [
        replace(CHAIN, masks=(1, 2)),
        tree([7], [-1], masks=(0,)),
        tree([4, 9], [-1, 0]),
        replace(CHAIN, masks=(1,)),
    ]
    verdicts, _ = verify(states, trees)
    ahead = [None if v.ahead is None else v.ahead.int().tolist() for v in verdicts]
    assert ahead == [
        [[0, 2 + 7], [0, 2 + 8], [0, 2 + 9]],
        [[1, 1], [1, 2], [1, 3]],
        None,
        [[3, 5], [3, 6]],
    ]
    for number, (alone, own) in enumerate(zip(states, trees, strict=True)):
        (verdict,), _ = verify([alone], [own])
        assert verdict.acceptance == verdicts[number].acceptance
        assert (verdict.ahead is None) == (ahead[number] is None)
        if verdict.ahead is not None:
            assert verdict.ahead[:, 1].tolist() == [row for _, row in ahead[number] or ()]


def test_without_masks_nothing_is_handed_over() -> None:
    plain, _ = verify([state(0, [4], 10)], [CHAIN], masks=None)
    masked, _ = verify([state(0, [4], 10)], [replace(CHAIN, masks=(0, 2))])
    assert plain[0].ahead is None
    assert plain[0].acceptance == masked[0].acceptance
