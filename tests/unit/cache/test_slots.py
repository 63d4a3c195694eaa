"""Examples; random histories against a model are in tests/property/test_slots.py."""

from __future__ import annotations

import pytest

from soothsay.cache.slots import Region, SlotPool


def held(pool: SlotPool, *lengths: int) -> list[Region]:
    regions = [pool.allocate(length) for length in lengths]
    assert None not in regions
    return [region for region in regions if region]


def test_the_first_gap_that_fits_is_taken() -> None:
    pool = SlotPool(10)
    first, second, third = held(pool, 3, 2, 4)
    assert (first, second, third) == (Region(0, 3), Region(3, 2), Region(5, 4))
    pool.release(second)
    assert pool.allocate(3) is None  # three are free, but not side by side
    assert pool.allocate(1) == Region(3, 1)
    pool.release(first)
    assert pool.allocate(2) == Region(0, 2)
    assert (pool.free, pool.held) == (3, 7)
    pool.check_integrity()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_gaps_join_on_both_sides(order: tuple[int, ...]) -> None:
    pool = SlotPool(9)
    regions = held(pool, 3, 3, 3)
    for index in order:
        pool.release(regions[index])
        pool.check_integrity()
    assert pool.allocate(9) == Region(0, 9)


@pytest.mark.parametrize("foreign", [Region(0, 3), Region(1, 3), Region(2, 2), Region(6, 2)])
def test_only_held_regions_are_taken_back(foreign: Region) -> None:
    pool = SlotPool(8)
    held(pool, 4)
    with pytest.raises(ValueError, match="not held"):
        pool.release(foreign)
    assert pool.held == 4
    pool.check_integrity()


def test_regions_of_one_slot_serve_for_streams() -> None:
    pool = SlotPool(3)
    streams = held(pool, 1, 1, 1)
    assert [stream.start for stream in streams] == [0, 1, 2]
    assert pool.allocate(1) is None
    pool.release(streams[1])
    assert pool.allocate(1) == streams[1]
