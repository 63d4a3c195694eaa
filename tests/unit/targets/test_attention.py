import math

import pytest
import torch

from soothsay.targets.attention import attend, attend_reference, tree_bias


@pytest.mark.parametrize("nodes", [1, 3, 8, 17])
@pytest.mark.parametrize("committed", [0, 1, 40])
def test_fast_path_equals_reference(nodes: int, committed: int) -> None:
    generator = torch.Generator().manual_seed(nodes * 100 + committed)
    heads, width, rows = 3, 8, committed + nodes
    q = torch.randn(heads, nodes, width, generator=generator)
    k = torch.randn(heads, rows, width, generator=generator)
    v = torch.randn(heads, rows, width, generator=generator)
    mask = torch.rand(nodes, nodes, generator=generator) < 0.5
    mask |= torch.eye(nodes, dtype=torch.bool)
    for bias in (None, tree_bias(mask, committed, torch.float32)):
        fast = attend(q, k.transpose(1, 2), v, bias, width**-0.5)
        torch.testing.assert_close(fast, attend_reference(q, k, v, bias, width**-0.5))


def test_reference_equals_nested_loops() -> None:
    generator = torch.Generator().manual_seed(5)
    heads, nodes, committed, width = 2, 3, 2, 4
    q = torch.randn(heads, nodes, width, generator=generator, dtype=torch.float64)
    k = torch.randn(heads, committed + nodes, width, generator=generator, dtype=torch.float64)
    v = torch.randn(heads, committed + nodes, width, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    out = attend_reference(q, k, v, tree_bias(mask, committed, torch.float64), 0.5)
    for h in range(heads):
        for i in range(nodes):
            seen = [*range(committed), *(committed + j for j in range(nodes) if mask[i, j])]
            weights = [math.exp(0.5 * float(q[h, i] @ k[h, s])) for s in seen]
            for d in range(width):
                expected = sum(w * float(v[h, s, d]) for w, s in zip(weights, seen, strict=True))
                assert out[h, i, d] == pytest.approx(expected / sum(weights), abs=1e-12)
