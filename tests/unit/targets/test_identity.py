"""One identity for one set of values."""

from __future__ import annotations

import torch

from soothsay.targets.identity import weights_digest

HALF = {"a": torch.randn(3, 4).half(), "b": torch.tensor([1.5, -2.0]).half()}
ODD = {"a": torch.tensor([0.1]), "b": torch.tensor([1.0])}  # float16 does not hold 0.1


def test_float32_copies_and_another_order_are_the_same_model() -> None:
    wide = {name: HALF[name].float() for name in ("b", "a")}
    assert weights_digest(wide) == weights_digest(HALF)
    assert weights_digest({"a": HALF["a"].T.contiguous().T, "b": HALF["b"]}) == weights_digest(HALF)


def test_any_other_value_name_or_shape_is_another() -> None:
    changed = HALF["a"].clone()
    changed[2, 3] += 0.01
    others = [
        HALF | {"a": changed},
        {"c": HALF["a"], "b": HALF["b"]},
        HALF | {"a": HALF["a"].reshape(4, 3)},
        ODD,
        ODD | {"a": ODD["a"] + 1e-7},
        ODD | {"a": ODD["a"].half()},
    ]
    digests = [weights_digest(HALF), *map(weights_digest, others)]
    assert len(set(digests)) == len(digests)


def test_bfloat16_has_an_identity_too() -> None:
    exact = {"a": torch.tensor([0.5, 2.0]).bfloat16()}
    assert weights_digest(exact) == weights_digest({"a": torch.tensor([0.5, 2.0])})
    far = {"a": torch.tensor([1e30]).bfloat16()}  # beyond float16
    assert weights_digest(far) != weights_digest({"a": torch.tensor([2e30]).bfloat16()})
