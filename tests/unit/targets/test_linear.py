import pytest
import torch
import torch.nn.functional as F

from soothsay.config import int8_products
from soothsay.targets.linear import BlockedLinear, Int8Linear, Linear, lay_out, packed_rows

needs_packing = pytest.mark.skipif(
    not packed_rows(), reason="this CPU has no FBGEMM float16 kernel"
)

needs_int8 = pytest.mark.skipif(not int8_products(), reason="this CPU has no FBGEMM int8 kernel")


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


@needs_packing
@pytest.mark.parametrize("width", [32, 256, 257, 2048])
@pytest.mark.parametrize("biased", [True, False])
def test_blocks_add_up(width: int, biased: bool) -> None:
    weight, bias = random_weights(24, width)
    layer = lay_out(weight, bias if biased else None, torch.float32, many_rows=True)
    assert isinstance(layer, BlockedLinear)
    x = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(width))
    kept = x.clone()
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    torch.testing.assert_close(layer(x).double(), expected, atol=2e-5, rtol=1e-5)
    assert torch.equal(x, kept)


def test_many_rows_of_another_dtype_need_no_blocks() -> None:
    weight = torch.randn(8, 512, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):  # float16 cannot hold these
        assert isinstance(lay_out(weight, None, dtype, many_rows=True), Linear)


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


def int8_by_hand(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> list[list[float]]:
    """One number at a time, in Python's own integers and floats."""
    rows = []
    for row in x.tolist():
        largest = max(abs(value) for value in row)
        steps = [round(value / largest * 127) for value in row]
        out = []
        for channel, line in enumerate(weight.tolist()):
            unit = max(abs(value) for value in line) / 64
            total = sum(a * round(w / unit) for a, w in zip(steps, line, strict=True))
            shift = 0.0 if bias is None else float(bias[channel])
            out.append(total * unit * largest / 127 + shift)
        rows.append(out)
    return rows


@needs_int8
@pytest.mark.parametrize("biased", [True, False])
def test_int8_equals_integers_by_hand(biased: bool) -> None:
    weight, bias = random_weights(9, 40)
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(4)) * torch.tensor(
        [[1.0], [1e-3], [500.0]]
    )
    given = bias if biased else None
    expected = torch.tensor(int8_by_hand(x, weight.float(), given))
    torch.testing.assert_close(Int8Linear(weight, given)(x), expected, atol=1e-5, rtol=1e-5)


@needs_int8
def test_int8_does_not_saturate() -> None:
    """The worst case of a kernel that adds pairs in 16 bits: every product at its largest."""
    layer = Int8Linear(torch.ones(8, 256), None)
    torch.testing.assert_close(layer(torch.ones(2, 256)), torch.full((2, 8), 256.0))
    torch.testing.assert_close(layer(-torch.ones(2, 256)), torch.full((2, 8), -256.0))


@needs_int8
@pytest.mark.parametrize(("out", "width"), [(96, 32), (33, 17), (1536, 512), (512, 2048)])
def test_an_int8_row_is_the_same_bits_in_any_batch(out: int, width: int) -> None:
    layer = Int8Linear(*random_weights(out, width))
    x = torch.randn(24, width, generator=torch.Generator().manual_seed(5))
    x[7] *= 1e4  # a loud neighbour
    alone = torch.cat([layer(row[None]) for row in x])
    for rows in range(2, 25):
        assert torch.equal(layer(x[:rows]), alone[:rows])
        assert torch.equal(layer(x[-rows:]), alone[-rows:])


@needs_int8
def test_int8_zeros_stay_zeros() -> None:
    weight, bias = random_weights(8, 16)
    assert torch.equal(Int8Linear(weight, bias)(torch.zeros(2, 16)), bias.float().expand(2, 8))
    assert torch.equal(Int8Linear(torch.zeros(8, 16), None)(torch.ones(2, 16)), torch.zeros(2, 8))


@needs_int8
def test_int8_keeps_leading_dimensions_and_pytorchs_engine() -> None:
    engine = torch.backends.quantized.engine
    layer = lay_out(*random_weights(24, 16), torch.int8)
    assert isinstance(layer, Int8Linear)
    assert torch.backends.quantized.engine == engine
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(6))
    assert torch.equal(layer(x)[1], layer(x[1]))


@needs_int8
def test_loud_channels_leave_the_quiet_ones_their_levels() -> None:
    """A hundredfold channel: known as loud it costs less precision; the product is the same."""
    weight, _ = random_weights(64, 128)
    loudness = torch.ones(128)
    loudness[5] = 100.0
    x = torch.randn(10, 128, generator=torch.Generator().manual_seed(8)) * loudness
    exact = x.double() @ weight.double().T
    blind, told = ((Int8Linear(weight, None, known)(x) - exact).std() for known in (None, loudness))
    assert told < 0.5 * blind < 0.1 * exact.std()
