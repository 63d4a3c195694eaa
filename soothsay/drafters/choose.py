"""Drafters by name, as the command line writes them."""

from __future__ import annotations

from soothsay.drafters.drafter import Drafter
from soothsay.drafters.history import HistoryDrafter
from soothsay.drafters.probe import AdversarialDrafter, OracleDrafter, RandomDrafter
from soothsay.types import OptionError

NAMES = "auto, off, history, random, oracle:ACCURACY, adversarial:KIND"


def choose_drafter(name: str, vocab_size: int, end_token: int, seed: int = 0) -> Drafter | None:
    """`auto`, `off`, `history`; for tests and measurements also `random`, `oracle:0.85` (needs the
    text to come as the request's hint) and `adversarial:wrong`. None means plain decoding."""
    kind, _, detail = name.partition(":")
    if kind == "off" and not detail:
        return None
    if kind in ("auto", "history") and not detail:
        return HistoryDrafter()
    if kind == "random" and not detail:
        return RandomDrafter(vocab_size, end_token, seed)
    if kind == "oracle":
        try:
            accuracy = float(detail)
        except ValueError:
            accuracy = -1.0
        if not 0.0 <= accuracy <= 1.0:
            raise OptionError(f"oracle needs an accuracy in 0..1, as in oracle:0.85, not {name!r}")
        return OracleDrafter(accuracy, vocab_size, end_token, seed)
    if kind == "adversarial":
        return AdversarialDrafter(detail, vocab_size, end_token)
    raise OptionError(f"unknown drafter {name!r}: choose {NAMES}")
