"""The masks' weights: sizes by arithmetic, and files of every kind of damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.damage import cut, edited, reweighted
from fixtures.lattices import toy_head
from fixtures.masks import frozen_in_float32, mask_sizes, random_masks
from fixtures.toy_whisper import toy_files
from safetensors.torch import load_file

from soothsay.drafters.head import HeadConfig, load_head, save_head
from soothsay.drafters.masks import (
    MASKS_SHARE,
    FuseSettings,
    LookaheadMasks,
    MasksConfig,
    MaskSizes,
    load_masks,
    mask_sizes_for,
    save_masks,
)
from soothsay.types import OptionError, WeightsError

FILES = toy_files(1)
VOCABULARY = torch.tensor([3, 1, 4, 15])
BASE_PARAMETERS = 72_593_920


def config_of(masks: LookaheadMasks, sha256: str = "abc") -> MasksConfig:
    return MasksConfig(
        target="toy",
        weights_sha256=sha256,
        sizes=masks.sizes,
        fuse=FuseSettings((0.9,), (0.3,), (-4.0,), (-5.5,), (-2.0,)),
        provenance={"steps": 5, "data": ["mañana"]},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    masks = random_masks(FILES, seed=1)
    save_masks(tmp_path / "deep" / "lookahead", masks, config_of(masks), VOCABULARY)
    return tmp_path / "deep" / "lookahead"


def test_what_was_saved_is_loaded_in_half_precision(folder: Path) -> None:
    masks = random_masks(FILES, seed=1)
    loaded, config, vocabulary = load_masks(folder, "abc")
    assert config == config_of(masks)
    assert vocabulary.dtype == torch.int64
    assert vocabulary.tolist() == VOCABULARY.tolist()
    kept, tensors = masks.state_dict(), loaded.state_dict()
    assert kept.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, kept[name].half().float())
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    stored = load_file(folder / "model.safetensors")
    assert {t.dtype for name, t in stored.items() if name != "vocabulary"} == {torch.float16}


def test_saving_again_replaces(folder: Path) -> None:
    masks = random_masks(FILES, seed=2, masks=5)
    save_masks(folder, masks, config_of(masks, "xyz"), torch.tensor([9]))
    loaded, config, vocabulary = load_masks(folder, "xyz")
    assert (config.weights_sha256, vocabulary.tolist()) == ("xyz", [9])
    assert len(loaded.embedding) == 5
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_masks_of_another_target_are_refused(folder: Path) -> None:
    with pytest.raises(WeightsError, match="made for another target") as caught:
        load_masks(folder, "abd")
    assert "\n" not in str(caught.value)
    assert "soothsay train-head" in str(caught.value)


def test_a_drafter_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    head = toy_head(1)
    save_head(tmp_path, head, HeadConfig("toy", "abc", head.sizes), VOCABULARY)
    for load, place in ((load_masks, tmp_path), (load_head, folder)):
        with pytest.raises(WeightsError, match="of the kind") as caught:
            load(place, "abc")
        assert "\n" not in str(caught.value)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half a config": cut("config.json"),
    "half the weights": cut("model.safetensors"),
    "a list": lambda folder: (folder / "config.json").write_text("[]"),
    "no text": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"),
    "no sizes": edited(lambda facts: facts.pop("sizes")),
    "no products": edited(lambda facts: facts["sizes"].pop("products")),
    "a product short": edited(lambda facts: facts["sizes"]["products"].popitem()),
    "a product of one width": edited(
        lambda facts: facts["sizes"]["products"].update({"layers.0.ffn_up": [16]})
    ),
    "a product without numbers": edited(
        lambda facts: facts["sizes"]["products"].update({"layers.0.ffn_up": ["a", "b"]})
    ),
    "products as a list": edited(lambda facts: facts["sizes"].update(products=[])),
    "another rank": edited(lambda facts: facts["sizes"].update(rank=3)),
    "fewer masks": edited(lambda facts: facts["sizes"].update(masks=1)),
    "an unknown size": edited(lambda facts: facts["sizes"].update(colour="red")),
    "an unknown key": edited(lambda facts: facts.update(colour="red")),
    "no weights of both": edited(lambda facts: facts.pop("fuse")),
    "an unknown weight": edited(lambda facts: facts["fuse"].update(colour=[1.0])),
    "a weight that is no row": edited(lambda facts: facts["fuse"].update(look=0.5)),
    "no vocabulary": reweighted(lambda tensors: tensors.pop("vocabulary")),
    "a missing tensor": reweighted(lambda tensors: tensors.pop("embedding")),
    "one tensor more": reweighted(lambda tensors: tensors.update(extra=torch.zeros(1))),
}


def refused_in_one_line(folder: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        load_masks(folder, "abc")
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "soothsay train-head" in str(caught.value)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_in_one_line(folder: Path, name: str) -> None:
    DAMAGE[name](folder)
    refused_in_one_line(folder)


@pytest.mark.parametrize("row", [[], [0.5, 0.5], ["a"]], ids=["empty", "too long", "words"])
def test_weights_that_no_step_could_use_are_damage(folder: Path, row: list) -> None:
    """The rows belong together: each must hold a number for every mask that another one has."""
    edited(lambda facts: facts["fuse"].update(look=row))(folder)
    refused_in_one_line(folder)


def counted(sizes: MaskSizes) -> int:
    adapters = sum(sizes.rank * (inputs + outputs) for inputs, outputs in sizes.products.values())
    return sizes.masks * sizes.width + adapters + 2 * sizes.embedding_width * sizes.bigram


def products(width: int, layers: int) -> dict[str, tuple[int, int]]:
    shapes = [(1, 3), (1, 1), (1, 1), (1, 1), (1, 4), (4, 1)]
    return {
        f"layers.{layer}.{number}": (width * inputs, width * outputs)
        for layer in range(layers)
        for number, (inputs, outputs) in enumerate(shapes)
    }


@pytest.mark.parametrize(
    ("width", "layers", "parameters"),
    [(384, 4, 37_184_640), (512, 6, BASE_PARAMETERS), (512, 6, 20_000_000)],
)
def test_the_masks_are_the_largest_in_their_share(width: int, layers: int, parameters: int) -> None:
    sizes = mask_sizes_for(width, products(width, layers), parameters)
    with torch.device("meta"):
        assert LookaheadMasks(sizes).parameter_count == counted(sizes)
    assert counted(sizes) <= MASKS_SHARE * parameters
    if sizes.rank < 16:
        larger = replace(sizes, rank=sizes.rank + 1, bigram=2 * sizes.rank + 2)
        assert counted(larger) > MASKS_SHARE * parameters
    more = mask_sizes_for(width, products(width, layers), parameters, masks=12)
    assert more.masks == 12
    assert counted(more) <= MASKS_SHARE * parameters


def test_no_masks_fit_a_toy() -> None:
    with pytest.raises(OptionError, match="too small for masks") as caught:
        mask_sizes_for(16, products(16, 2), 10_000)
    assert "\n" not in str(caught.value)


def test_products_are_those_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and widths as the target's modules have them."""
    assert frozen_in_float32(FILES, monkeypatch).products == mask_sizes(FILES).products


def test_untrained_masks_add_nothing() -> None:
    torch.manual_seed(0)
    masks = LookaheadMasks(mask_sizes(FILES))
    x = torch.randn(2, 16)
    adapters = masks.laid_out(torch.float32, torch.device("cpu"))
    for name, (inputs, outputs) in masks.sizes.products.items():
        y = torch.randn(2, outputs)
        added = y.clone()
        adapters.add(name, torch.randn(2, inputs), added, slice(0, 2))
        assert torch.equal(added, y)
    before, after = masks.bigram_sides(x)
    assert not (before @ after.T).any()


def test_the_bigram_follows_its_formula() -> None:
    masks = random_masks(FILES, seed=5)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(4, 16, generator=generator)
    before, after = masks.bigram_sides(embedding)
    for one in range(4):
        mapped = masks.after(masks.before(embedding[one]))
        for other in range(4):
            wanted = sum(float(a * b) for a, b in zip(mapped, embedding[other], strict=True))
            assert float(before[one] @ after[other]) == pytest.approx(wanted, abs=1e-4)
