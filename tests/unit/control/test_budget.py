from __future__ import annotations

import pytest

from soothsay.control.budget import FixedBudget
from soothsay.types import Price


def test_the_price_never_changes() -> None:
    budget = FixedBudget(6, threshold=0.1)
    assert budget.max_nodes == 6
    assert {budget.price(sequences) for sequences in (1, 3, 100)} == {Price(0.1, 6)}


def test_one_node_is_safe_mode() -> None:
    assert FixedBudget(1).price(1).safe_mode
    assert not FixedBudget(2).price(1).safe_mode


def test_a_tree_has_a_root() -> None:
    with pytest.raises(ValueError, match="root"):
        FixedBudget(0)
