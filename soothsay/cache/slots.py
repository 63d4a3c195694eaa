"""Who holds which cache rows: contiguous regions of slots, handed out and taken back.

Regions are half-open: Region(start, length) holds slots [start, start + length).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Slots [start, stop)."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length


class SlotPool:
    """First fit over a sorted free list whose neighbours are always joined."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one slot, not {size}")
        self.size = size
        self._free = [Region(0, size)]
        self._held: set[Region] = set()

    @property
    def free(self) -> int:
        """Free slots in all; one region of that length need not exist."""
        return sum(region.length for region in self._free)

    @property
    def held(self) -> int:
        return sum(region.length for region in self._held)

    def allocate(self, length: int) -> Region | None:
        """The lowest free region of that length, or None where none is long enough."""
        if length < 1:
            raise ValueError(f"a region holds at least one slot, not {length}")
        for index, gap in enumerate(self._free):
            if gap.length >= length:
                region = Region(gap.start, length)
                rest = Region(region.stop, gap.length - length)
                self._free[index : index + 1] = [rest] if rest.length else []
                self._held.add(region)
                return region
        return None

    def release(self, region: Region) -> None:
        """Take a region back. ValueError if it is not held (released twice, or never given)."""
        if region not in self._held:
            raise ValueError(f"{region} is not held")
        self._held.remove(region)
        insort(self._free, region)
        joined: list[Region] = []
        for gap in self._free:
            if joined and joined[-1].stop == gap.start:
                joined[-1] = Region(joined[-1].start, joined[-1].length + gap.length)
            else:
                joined.append(gap)
        self._free = joined

    def check_integrity(self) -> None:
        """AssertionError unless every slot is free or held exactly once, and gaps are joined."""
        free = {slot for gap in self._free for slot in range(gap.start, gap.stop)}
        held = {slot for region in self._held for slot in range(region.start, region.stop)}
        counted = self.free + self.held
        if counted != self.size or free & held or free | held != set(range(self.size)):
            raise AssertionError(f"slots lost or doubled: free {self._free}, held {self._held}")
        if any(a.stop == b.start for a, b in zip(self._free, self._free[1:], strict=False)):
            raise AssertionError(f"neighbouring gaps were not joined: {self._free}")
