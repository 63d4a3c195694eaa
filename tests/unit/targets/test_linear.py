import pytest
import torch
import torch.nn.functional as F

from soothsay.targets.linear import Linear, packed_rows

needs_packing = pytest.mark.skipif(
    not packed_rows(), reason="this CPU has no FBGEMM float16 kernel"
)


def random_weights(out: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(out * 1000 + width)
    weight = torch.randn(out, width, generator=generator) * 0.05
    return weight.half(), torch.randn(out, generator=generator).half()


@needs_packing
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 64])
@pytest.mark.parametrize(("out", "width"), [(96, 32), (33, 17), (1, 512)])
def test_packed_equals_float64(rows: int, out: int, width: int) -> None:
    weight, bias = random_weights(out, width)
    layer = Linear(weight, bias, torch.float32)
    assert layer.packed is not None
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-5)


@needs_packing
def test_packing_keeps_subnormal_weights_exactly() -> None:
    tiny = torch.tensor([[2.0**-24, 2.0**-23, -(2.0**-20), 0.0]]).half()
    x = torch.eye(4) * 2.0**20
    assert torch.equal(Linear(tiny, None, torch.float32)(x), x @ tiny.float().T)


@needs_packing
def test_keeps_leading_dimensions() -> None:
    weight, bias = random_weights(24, 16)
    layer = Linear(weight, bias, torch.float32)
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    assert layer(x).shape == (2, 3, 24)
    torch.testing.assert_close(layer(x)[1], layer(x[1]))


def test_weights_float16_cannot_hold_stay_float32() -> None:
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    layer = Linear(weight, None, torch.float32)
    assert layer.packed is None
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(layer(x), x @ weight.T)


def test_float32_weights_that_float16_holds_are_packed_too() -> None:
    weight = random_weights(8, 8)[0].float()
    assert (Linear(weight, None, torch.float32).packed is not None) == bool(packed_rows())


def test_bfloat16_rounds_weights_once() -> None:
    weight, bias = random_weights(8, 16)
    layer = Linear(weight, bias, torch.bfloat16)
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(3)).bfloat16()
    assert torch.equal(layer(x), F.linear(x, weight.bfloat16(), bias.bfloat16()))
