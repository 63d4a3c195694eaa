"""Random histories of a pool and of a scheduler end without a leak."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fixtures.toy_whisper import END, SIZES, toy_features
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from soothsay.cache.slots import Region, SlotPool
from soothsay.engine.request import Request
from soothsay.engine.scheduler import Scheduler
from soothsay.targets.target import TargetSpec
from soothsay.types import FinishReason

SIZE = 30


class PoolMachine(RuleBasedStateMachine):
    """Against the dumbest model there is: a list that says who holds each slot."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(SIZE)
        self.held: list[Region] = []

    def owners(self) -> list[int]:
        owners = [0] * SIZE
        for region in self.held:
            for slot in range(region.start, region.stop):
                owners[slot] += 1
        return owners

    @rule(length=st.integers(1, 12))
    def allocate(self, length: int) -> None:
        free = "".join("x" if owner else "." for owner in self.owners())
        place = free.find("." * length)
        region = self.pool.allocate(length)
        assert region == (None if place < 0 else Region(place, length))
        if region:
            self.held.append(region)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        region = data.draw(st.sampled_from(self.held))
        self.held.remove(region)
        self.pool.release(region)
        with pytest.raises(ValueError, match="not held"):
            self.pool.release(region)

    @invariant()
    def nothing_leaks(self) -> None:
        self.pool.check_integrity()
        assert max(self.owners()) <= 1
        assert self.pool.held == sum(self.owners())
        assert self.pool.free == SIZE - self.pool.held

    def teardown(self) -> None:
        for region in self.held:
            self.pool.release(region)
        assert self.pool.allocate(SIZE) == Region(0, SIZE)


class SchedulerMachine(RuleBasedStateMachine):
    """Submit, admit, commit, finish and abort in any order."""

    def __init__(self) -> None:
        super().__init__()
        spec = TargetSpec(
            name="toy",
            vocab_size=SIZES.vocab_size,
            max_length=SIZES.max_target_positions,
            parameters=0,
            encoder_width=SIZES.width,
            encoder_positions=SIZES.max_source_positions,
            mel_bins=SIZES.mel_bins,
            weights_sha256="",
        )
        self.scheduler = Scheduler(spec, max_sequences=3, max_nodes=4)
        self.known: list[int] = []

    @rule()
    def submit(self) -> None:
        request = Request(features=toy_features(0), prompt=(1,), end_token=END)
        self.known.append(self.scheduler.submit(request))

    @rule()
    def admit(self) -> None:
        self.scheduler.admit()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.scheduler.abort(data.draw(st.sampled_from(self.known)))

    @precondition(lambda self: self.scheduler.running())
    @rule(data=st.data(), rows=st.integers(1, 5))
    def commit(self, data: st.DataObject, rows: int) -> None:
        state = data.draw(st.sampled_from(self.scheduler.running()))
        state.committed += rows

    @precondition(lambda self: self.scheduler.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(self.scheduler.running()))
        state.finish = state.finish or FinishReason.STOP
        self.scheduler.release(state)

    @invariant()
    def nothing_leaks(self) -> None:
        self.scheduler.check_integrity()
        regions = sorted(state.region for state in self.scheduler.running())
        assert all(a.stop <= b.start for a, b in pairwise(regions))
        assert len({state.stream for state in self.scheduler.running()}) == len(regions) <= 3

    def teardown(self) -> None:
        while not self.scheduler.idle:
            self.scheduler.admit()
            for state in self.scheduler.running():
                self.scheduler.release(state)
        self.scheduler.check_integrity()
        assert self.scheduler.slots.held == self.scheduler.streams.held == 0


TestPool = PoolMachine.TestCase
TestScheduler = SchedulerMachine.TestCase
TestPool.settings = TestScheduler.settings = settings(deadline=None, max_examples=60)


def test_integrity_check_can_fail() -> None:
    pool = SlotPool(4)
    pool.allocate(2)
    pool._free = [Region(1, 3)]
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check_integrity()
    pool._free = [Region(2, 1), Region(3, 1)]
    with pytest.raises(AssertionError, match="not joined"):
        pool.check_integrity()


@pytest.mark.parametrize("wrong", [0, -1])
def test_no_empty_regions_or_pools(wrong: int) -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        SlotPool(wrong)
    with pytest.raises(ValueError, match="at least one slot"):
        SlotPool(3).allocate(wrong)
