import math

import pytest
import torch

from soothsay.targets.attention import (
    attend,
    attend_reference,
    attend_rounded,
    round_keys,
    round_values,
    tree_bias,
)


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


def rounded_case(nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (H, n, D), keys (H, D, S) and values (H, S, D) of Whisper's sizes, channels unlike."""
    generator = torch.Generator().manual_seed(nodes)
    loud = 10.0 ** torch.empty(4, 1, 64).uniform_(-2, 1, generator=generator)
    q = torch.randn(4, nodes, 64, generator=generator)
    k = torch.randn(4, 1500, 64, generator=generator) * loud
    v = torch.randn(4, 1500, 64, generator=generator) * loud
    return q, round_keys(k.mT), round_values(v)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 24])
def test_rounded_rows_are_the_same_bits_in_any_company(nodes: int) -> None:
    q, k_t, v = rounded_case(nodes)
    together = attend_rounded(q, k_t, v, 0.125)
    for node in range(nodes):
        assert torch.equal(
            attend_rounded(q[:, node : node + 1], k_t, v, 0.125)[:, 0], together[:, node]
        )


def test_rounded_sums_have_no_order() -> None:
    """Channels and positions in another order: exact sums stay the same bits, others would not."""
    q, k_t, v = rounded_case(3)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    places = torch.randperm(1500, generator=torch.Generator().manual_seed(1))
    expected = attend_rounded(q, k_t, v, 0.125)
    assert torch.equal(attend_rounded(q[..., order], k_t[:, order], v, 0.125), expected)
    probs = torch.softmax(
        torch.rand(4, 3, 1500, generator=torch.Generator().manual_seed(2)) * 9, -1
    )
    probs = torch.round(probs * 2**15) / 2**15
    assert torch.equal(torch.bmm(probs[..., places], v[:, places]), torch.bmm(probs, v))


def test_rounded_attention_is_near_the_exact_one() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 64, generator=generator) for n in (5, 300, 300))
    exact = attend_reference(q, k, v, None, 0.125)
    found = attend_rounded(q, round_keys(k.mT), round_values(v), 0.125)
    assert not torch.equal(found, exact)
    assert (found - exact).std() < 0.02 * exact.std()


def test_rounding_goes_to_the_nearest_multiple() -> None:
    k_t = torch.tensor([[3.3, 0.0], [-1.01, 0.0]])  # two channels, two positions; 2² is above 3.3
    bits = (24 - 1) // 2
    unit = 4 / 2**bits
    expected = torch.tensor([[round(3.3 / unit) * unit, 0.0], [round(-1.01 / unit) * unit, 0.0]])
    assert torch.equal(round_keys(k_t), expected)
