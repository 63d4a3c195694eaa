"""Adaptation: what is adopted, what is refused, and that nothing half done is left behind."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.drafters.choose import choose_drafter, shipped_head
from soothsay.drafters.files import save
from soothsay.targets.load import resolve
from soothsay.text.tokens import WhisperTokens
from soothsay.train import adapt as adaptation
from soothsay.train.adapt import Adaptation, _digest, _put_in_place, adapt, better
from soothsay.train.loop import TrainSettings
from soothsay.train.windows import plan_recent
from soothsay.transcribe import signs_of
from soothsay.types import OptionError, SoothsayError, WeightsError


@contextmanager
def no_bar(label: str, total: int, unit: str) -> Iterator[Callable[[float], None]]:
    yield lambda done: None


def wanted(folder: Path, **changes: object) -> Adaptation:
    facts: dict = {
        "model": "base",
        "recent": CLIPS,
        "guard": CLIPS,
        "work": folder / "work",
        "out": folder / "out",
        "settings": TrainSettings(steps=2, windows=2, evaluate_every=1),
    }
    return Adaptation(**facts | changes)


@pytest.mark.parametrize(
    ("recent", "guard", "adopted"),
    [(2.1, 3.0, True), (2.1, 2.95, True), (2.1, 2.9, False), (2.0, 3.1, False)],
)
def test_better_is_more_on_recent_audio_and_hardly_less_on_the_guard(
    recent: float, guard: float, adopted: bool
) -> None:
    assert better({"recent": 2.0, "guard": 3.0}, {"recent": recent, "guard": guard}) == adopted


def test_recent_audio_is_heard_clip_by_clip_and_a_fifth_is_held_out() -> None:
    windows = plan_recent(CLIPS)
    assert sorted(w.clips[0].id for w in windows) == sorted(c.id for c in read_manifest(CLIPS))
    assert all(len(w.clips) == 1 and w.disturbance is None for w in windows)
    assert sum(w.held_out for w in windows) == 2  # of eight
    assert windows == plan_recent(CLIPS)


def test_one_clip_cannot_be_parted(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"audio": "one.wav"}\n')
    with pytest.raises(OptionError, match="too little audio"):
        plan_recent(path)


def test_a_clip_of_unknown_language_is_left_to_the_target(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text('{"audio": "one.wav"}\n{"audio": "two.wav", "lang": null}\n')
    assert [w.language for w in plan_recent(path)] == [None, None]


def test_part_of_the_way_lies_between(tmp_path: Path) -> None:
    start, new = tmp_path / "start", tmp_path / "new"
    vocabulary = torch.tensor([1, 2], dtype=torch.int32)
    for folder, weight, known in ((start, 1.0, vocabulary[:1]), (new, 3.0, vocabulary)):
        save(
            folder,
            "lattice",
            {"provenance": {}},
            {"w": torch.full((2, 2), weight), "vocabulary": known},
        )
    mixed = adaptation._part_of_the_way(start, new, 0.5, "lattice")
    tensors = load_file(mixed / "model.safetensors")
    assert tensors["w"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert tensors["vocabulary"].tolist() == [1, 2]
    facts = json.loads((mixed / "config.json").read_text())
    assert facts == {"kind": "lattice", "provenance": {"share_of_new_weights": 0.5}}


def test_labels_of_other_audio_have_another_name(tmp_path: Path) -> None:
    windows = plan_recent(CLIPS)
    assert _digest(windows) == _digest(plan_recent(CLIPS))
    assert _digest(windows) != _digest(windows[1:])


def test_drafters_are_put_in_place_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "config.json").write_text("{}")
    _put_in_place(scratch, tmp_path / "new" / "out")
    assert [p.name for p in (tmp_path / "new" / "out").iterdir()] == ["config.json"]

    def full(source: Path, beside: Path) -> None:
        beside.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adaptation.shutil, "copytree", full)
    with pytest.raises(SoothsayError, match="No space left"):
        _put_in_place(scratch, tmp_path / "new" / "other")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]


@pytest.mark.slow
def test_what_cannot_be_adapted_is_refused_before_any_audio_is_heard(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OptionError, match="exists"):
        adapt(wanted(tmp_path), no_bar)
    with pytest.raises(WeightsError, match="cannot be read"):
        adapt(wanted(tmp_path, out=tmp_path / "new", start=tmp_path / "none"), no_bar)
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lattice", "lookahead"])
def test_adapted_drafters_are_written_only_if_they_are_better(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(adaptation, "label", label_here)
    figures = adapt(wanted(tmp_path, kind=kind), no_bar)
    assert figures["windows"] == {"recent": 2, "guard": 8, "learned": 6}
    passed = [row["share"] for row in figures["tried"] if better(figures["before"], row)]
    assert figures["share"] == (passed[0] if passed else None)
    assert figures["adopted"] == bool(passed)
    assert (tmp_path / "out").exists() == figures["adopted"]
    monkeypatch.setattr(adaptation, "better", lambda before, after: True)
    figures = adapt(wanted(tmp_path, kind=kind), no_bar)  # goes on from its labels and checkpoint
    files = resolve("base")
    signs = signs_of(WhisperTokens.from_file(files.tokenizer_json))
    drafter = choose_drafter(f"auto:{figures['out']}", files, signs)
    start = shipped_head(files)
    assert drafter is not None
    assert start is not None
    part = "lookahead/config.json" if kind == "lookahead" else "config.json"
    before, after = (
        json.loads((folder / part).read_text()) for folder in (start, tmp_path / "out")
    )
    assert after["weights_sha256"] == before["weights_sha256"]
    assert after["provenance"]["went_on_from"] == before["provenance"]
    assert not caplog.records


def label_here(model, windows, folder, workers, update) -> None:  # type: ignore[no-untyped-def]
    """As distil.label, without processes of its own."""
    from soothsay.train import distil

    folder.mkdir(parents=True, exist_ok=True)
    path = distil.shard_path(folder, 0)
    if not path.exists():
        labeller = distil.Labeller(model)
        distil.write_shard(path, labeller.label(windows), labeller.weights_sha256)
