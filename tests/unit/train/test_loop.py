"""Training on windows that spell their tokens: it learns, resumes, and says what is wrong."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.examples import SPOKEN, WIDTH, example
from fixtures.heads import SIGNS, toy_sizes

from soothsay.drafters.head import LatticeHead
from soothsay.train import loop
from soothsay.train.lattice import LatticeStudent, choose_vocabulary
from soothsay.train.loop import Trainer, TrainSettings
from soothsay.types import SoothsayError

EXAMPLES = [example(seed, held_out=seed % 8 == 0) for seed in range(48)]
SHORT = TrainSettings(steps=12, windows=4, evaluate_every=4)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def trainer(
    folder: Path, settings: TrainSettings = SHORT, examples=EXAMPLES, dropout: float = 0.1
) -> Trainer:
    torch.manual_seed(settings.seed)
    sizes = replace(toy_sizes(WIDTH), width=32, bottleneck=16)
    head = LatticeHead(sizes, dropout)
    vocabulary = choose_vocabulary(examples, SIGNS.end)
    return Trainer(LatticeStudent(head, SPOKEN, vocabulary, SIGNS), examples, settings, folder)


def weights(done: Trainer) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in done.student.module.state_dict().values()])


def test_it_learns_to_foretell(tmp_path: Path) -> None:
    settings = TrainSettings(
        steps=300, windows=8, learning_rate=1e-2, average=0.9, evaluate_every=100
    )
    reached = trainer(tmp_path, settings, dropout=0.0).run()
    assert reached > 3.0
    history = json.loads((tmp_path / "history.json").read_text())["history"]
    assert [row["step"] for row in history] == [100, 200, 300]
    assert history[-1]["loss"] < history[0]["loss"]
    assert max(row["tokens_per_forward"] for row in history) == reached


def test_an_interrupted_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole")
    whole.run()
    cut = trainer(tmp_path / "cut")

    def stop(step: int) -> None:
        if step == 9:  # one step after a checkpoint, which is lost
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.run(stop)
    steps: list[int] = []
    resumed = trainer(tmp_path / "cut")
    resumed.run(steps.append)
    assert steps == [9, 10, 11, 12]
    assert torch.allclose(weights(resumed), weights(whole), atol=1e-6)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.run()
    again = trainer(tmp_path)
    again.run(lambda step: pytest.fail("it trained"))
    assert torch.equal(weights(again), weights(first))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).run()
    with pytest.raises(SoothsayError, match="belongs to another run"):
        trainer(tmp_path, replace(SHORT, learning_rate=1e-3)).run()


def test_a_damaged_checkpoint_is_reported_and_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer(tmp_path).run()
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    steps: list[int] = []
    with caplog.at_level(logging.ERROR):
        trainer(tmp_path).run(steps.append)
    assert steps[0] == 1
    assert "starts anew" in caplog.text


def test_it_stops_when_nothing_gets_better_and_keeps_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([1.5, 2.0, 1.9, 2.0, 9.9])

    monkeypatch.setattr(LatticeStudent, "judge", lambda *_: next(scores))
    settings = replace(SHORT, steps=100, evaluate_every=1, patience=2, average=0.0)
    run = trainer(tmp_path, settings)
    kept: dict[int, torch.Tensor] = {}
    reached = run.run(lambda step: kept.__setitem__(step, weights(run).clone()))
    assert reached == 2.0
    assert run.step == 4
    assert torch.equal(weights(run), kept[2])


def test_there_must_be_held_out_windows(tmp_path: Path) -> None:
    for held_out in (True, False):
        with pytest.raises(SoothsayError, match="add audio"):
            trainer(tmp_path, examples=[replace(e, held_out=held_out) for e in EXAMPLES])


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.torch, "save", full)
    with pytest.raises(SoothsayError, match=r"cannot write .*No space left"):
        trainer(tmp_path).run()


def test_the_vocabulary_is_what_was_written_or_nearly() -> None:
    shown = example(1, tokens=3)
    likely = shown.soft_probs.clone()
    likely[0, 5] = 0.2
    changed = replace(shown, soft_probs=likely, soft_tokens=shown.soft_tokens.clone())
    changed.soft_tokens[0, 5] = 45
    found = choose_vocabulary([changed], SIGNS.end).tolist()
    assert found == sorted({*shown.tokens[:-1].tolist(), 45})
