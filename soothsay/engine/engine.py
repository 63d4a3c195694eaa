"""The engine: plan → draft → verify → commit. (Contract only: under construction.)"""

from __future__ import annotations

from collections.abc import Sequence

from soothsay.drafters.drafter import Drafter
from soothsay.engine.request import Delta, Request, Result
from soothsay.targets.target import Target
from soothsay.types import Price


class Engine:
    """Synchronous engine; whoever calls `step` owns the device.

    drafter None: plain decoding. price: fixed price until control has a budget.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        price: Price = Price(nodes=16),
        max_sequences: int = 8,
    ) -> None: ...

    def submit(self, request: Request) -> int:
        """Queue a request → its sequence number."""
        raise NotImplementedError

    def abort(self, sequence: int) -> None: ...

    def step(self) -> list[Delta]:
        raise NotImplementedError

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Submit all, step until idle, results in order."""
        raise NotImplementedError
