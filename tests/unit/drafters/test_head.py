"""The head's weights: formulas by loops, sizes by arithmetic, and files of every kind of damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.damage import cut, edited, reweighted
from fixtures.lattices import toy_head
from safetensors.torch import load_file

from soothsay.drafters.head import (
    HeadConfig,
    HeadSizes,
    LatticeHead,
    LatticeSettings,
    load_head,
    save_head,
    sizes_for,
)
from soothsay.speculate.prefix import Search
from soothsay.types import OptionError, WeightsError

BASE_PARAMETERS = 72_593_920
VOCABULARY = torch.tensor([3, 1, 4, 15])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def config_of(head: LatticeHead, sha256: str = "abc") -> HeadConfig:
    return HeadConfig(
        target="toy",
        weights_sha256=sha256,
        sizes=head.sizes,
        settings=LatticeSettings(gate=0.2, trust=1.3, search=Search(window=9, hold=0.25)),
        provenance={"steps": 5, "data": ["mañana"]},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    head = toy_head(1)
    save_head(tmp_path / "deep" / "head", head, config_of(head), VOCABULARY)
    return tmp_path / "deep" / "head"


@pytest.mark.parametrize("positions", [2, 3, 4, 7, 50, 101])
def test_a_frame_covers_stride_positions(positions: int) -> None:
    gate, features = toy_head(0)(random(3, positions, 16))
    assert gate.shape == (3, positions // 2)
    assert features.shape == (3, positions // 2, 8)


def test_segments_of_a_batch_know_nothing_of_each_other() -> None:
    head, hidden = toy_head(0), random(3, 20, 16)
    gate, features = head(hidden)
    for row in range(3):
        alone = head(hidden[row : row + 1])
        torch.testing.assert_close(gate[row], alone[0][0])
        torch.testing.assert_close(features[row], alone[1][0])


def test_a_frame_begins_as_the_mean_of_what_it_covers() -> None:
    hidden = random(1, 8, 16)
    gathered = toy_head(0).gather(hidden.transpose(1, 2)).transpose(1, 2)
    for frame in range(1, 3):  # those at the ends cover silence too
        wanted = sum(hidden[0, position] for position in range(2 * frame - 1, 2 * frame + 3)) / 4
        torch.testing.assert_close(gathered[0, frame], wanted)


def test_the_classifier_folds_bottleneck_and_embedding() -> None:
    head, features, embedding = toy_head(2), random(5, 8), random(6, 16)
    folded = features @ head.classifier(embedding).T
    for frame in range(5):
        widened = head.classify(features[frame])
        for token in range(6):
            wanted = sum(float(a * b) for a, b in zip(widened, embedding[token], strict=True))
            assert float(folded[frame, token]) == pytest.approx(wanted, abs=1e-5)


def test_the_bigram_follows_its_formula() -> None:
    head, before, after = toy_head(2), random(3, 16), random(5, 16) + 1
    logits = head.bigram(before, after)
    assert logits.shape == (3, 5)
    for row in range(3):
        mapped = head.after(head.before(before[row]))
        for column in range(5):
            wanted = sum(float(a * b) for a, b in zip(mapped, after[column], strict=True))
            assert float(logits[row, column]) == pytest.approx(wanted, abs=1e-5)


def counted(s: HeadSizes) -> int:
    """Weights and biases of every layer, added up by hand."""
    width, wide = s.width, s.expansion
    block = width * s.kernel + width + 2 * width + width * wide + wide + wide * width + width
    return (
        s.encoder_width * 2 * s.stride
        + (s.encoder_width + 1) * width
        + s.blocks * block
        + 2 * width
        + (width + 1)
        + (width + 1) * s.bottleneck
        + (s.encoder_width + 1) * s.bottleneck
        + s.bottleneck * s.embedding_width
        + 2 * s.embedding_width * s.bigram
    )


def test_the_head_of_whisper_base_fits_in_its_share() -> None:
    sizes = sizes_for(512, 512, BASE_PARAMETERS)
    count = LatticeHead(sizes).parameter_count
    assert count == counted(sizes)
    assert 0.012 * BASE_PARAMETERS < count <= 0.015 * BASE_PARAMETERS


@pytest.mark.parametrize(("width", "parameters"), [(384, 37_184_640), (512, 30_000_000)])
def test_smaller_targets_get_the_widest_head_that_fits(width: int, parameters: int) -> None:
    sizes = sizes_for(width, width, parameters)
    wider = replace(
        sizes,
        width=sizes.width + 16,
        expansion=7 * (sizes.width + 16) // 4,
        bottleneck=sizes.width // 2 + 8,
        bigram=sizes.width // 8 + 2,
    )
    assert counted(sizes) <= 0.015 * parameters < counted(wider)


def test_no_head_fits_a_toy() -> None:
    with pytest.raises(OptionError, match="too small for a head"):
        sizes_for(16, 16, 10_000)


def test_what_was_saved_is_loaded_in_half_precision(folder: Path) -> None:
    head = toy_head(1)
    loaded, config, vocabulary = load_head(folder, "abc")
    assert config == config_of(head)
    assert vocabulary.dtype == torch.int64
    assert vocabulary.tolist() == VOCABULARY.tolist()
    kept, tensors = head.state_dict(), loaded.state_dict()
    assert kept.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, kept[name].half().float())
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    stored = load_file(folder / "model.safetensors")
    assert {t.dtype for name, t in stored.items() if name != "vocabulary"} == {torch.float16}
    hidden = random(1, 12, 16)
    for one, other in zip(loaded(hidden), head(hidden), strict=True):
        torch.testing.assert_close(one, other, atol=0.01, rtol=0.01)


def test_saving_again_replaces(folder: Path) -> None:
    head = toy_head(2)
    save_head(folder, head, config_of(head, "xyz"), torch.tensor([9]))
    _, config, vocabulary = load_head(folder, "xyz")
    assert (config.weights_sha256, vocabulary.tolist()) == ("xyz", [9])


def test_a_head_of_another_target_is_refused(folder: Path) -> None:
    with pytest.raises(WeightsError, match="made for another target") as caught:
        load_head(folder, "abd")
    assert "\n" not in str(caught.value)
    assert "soothsay train-head" in str(caught.value)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half a config": cut("config.json"),
    "half the weights": cut("model.safetensors"),
    "a list": lambda folder: (folder / "config.json").write_text("[]"),
    "a word": lambda folder: (folder / "config.json").write_text('"lattice"'),
    "no text": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"),
    "another kind": edited(lambda facts: facts.update(kind="lookahead")),
    "no kind": edited(lambda facts: facts.pop("kind")),
    "no settings": edited(lambda facts: facts.pop("settings")),
    "an unknown key": edited(lambda facts: facts.update(colour="red")),
    "an unknown setting": edited(lambda facts: facts["settings"].update(colour="red")),
    "an unknown search": edited(lambda facts: facts["settings"]["search"].update(colour="red")),
    "an unknown size": edited(lambda facts: facts["sizes"].update(colour="red")),
    "a missing size": edited(lambda facts: facts["sizes"].pop("encoder_width")),
    "another size": edited(lambda facts: facts["sizes"].update(width=24)),
    "no vocabulary": reweighted(lambda tensors: tensors.pop("vocabulary")),
    "a missing tensor": reweighted(lambda tensors: tensors.pop("gate.bias")),
    "one tensor more": reweighted(lambda tensors: tensors.update(extra=torch.zeros(1))),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_in_one_line(folder: Path, name: str) -> None:
    DAMAGE[name](folder)
    with pytest.raises(WeightsError) as caught:
        load_head(folder, "abc")
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "soothsay train-head" in str(caught.value)
