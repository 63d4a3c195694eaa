"""Turns, report and processes of peers, with a toy of ours and peers that hear nothing."""

from __future__ import annotations

import wave
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fixtures.model_directory import write_toy_model
from fixtures.peers import Dying, Measuring, not_installed

from soothsay.bench import peers as module
from soothsay.bench.errors import ErrorRates
from soothsay.bench.peer_engines import Heard, PeerKind, Samples, Split
from soothsay.bench.peers import Tally, Turn, bench_peers, compare_decoding, take_turns
from soothsay.bench.workload import Clip
from soothsay.targets.load import resolve
from soothsay.transcribe import Options, Recogniser
from soothsay.types import OptionError, SoothsayError


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Recogniser:
    folder = write_toy_model(tmp_path_factory.mktemp("toy"))
    return Recogniser(resolve(folder), dtype="float32", drafter="random")


@pytest.fixture
def recogniser(toy: Recogniser, monkeypatch: pytest.MonkeyPatch) -> Recogniser:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    return toy


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Clip]:
    """One second, two seconds, and 31 s, of which a window holds 30."""
    made = []
    for seconds in (1, 2, 31):
        path = tmp_path_factory.mktemp("clips") / "clip.wav"
        noise = np.random.default_rng(seconds).normal(0, 2000, 16_000 * seconds)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(noise.astype("<i2").tobytes())
        made.append(Clip(str(seconds), path, None, "en", float(seconds)))
    return made


class Fake:
    """Writes the same text for every clip, in made-up seconds: 1, 2, 3… a turn."""

    def __init__(self, name: str, heard: Heard, events: list[str]) -> None:
        self.name, self.heard, self.events, self.turns = name, heard, events, 0
        self.lengths: list[int] = []

    def hear(self, samples: Samples, language: str) -> Turn:
        assert language == "en"
        self.turns += 1
        self.lengths.append(len(samples))
        self.events.append(self.name)
        return Turn(self.heard, float(self.turns))


def test_everyone_takes_turns_clip_by_clip(
    recogniser: Recogniser, clips: list[Clip], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    run = recogniser.run

    def recorded(requests: Any) -> Any:
        events.append("ours" if requests[0].speculate else "plain")
        return run(requests)

    monkeypatch.setattr(recogniser, "run", recorded)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: events.append("settle"))
    peers = {name: Fake(name, Heard(""), events) for name in ("a", "b")}
    take_turns(recogniser, peers, clips, Options(), ErrorRates(), lambda: events.append("done"))
    warm_up = ["plain", "ours", "a", "b"]
    turn = ["settle", "plain", "ours", "settle", "a", "settle", "b", "done"]
    assert events == warm_up + 3 * turn
    assert peers["a"].lengths == [16_000, 16_000, 32_000, 480_000]


def test_figures_leave_the_warm_up_out(recogniser: Recogniser, clips: list[Clip]) -> None:
    """Turns of 1, 2, 3 and 4 made-up seconds, the first of them warm-up: 9 s for 33 s of audio."""
    texts = ["red sky", "red sea", None]
    told = [replace(clip, text=text) for clip, text in zip(clips, texts, strict=True)]
    peers = {"whole": Fake("whole", Heard(" Red sky."), [])}
    report = take_turns(recogniser, peers, told, Options(), ErrorRates())
    ours = report["speculative"]
    assert report["clips"] == 3
    assert report["audio_seconds"] == 33.0
    assert report["peers"]["whole"] == {
        "wall_seconds": 9.0,
        "rtfx": pytest.approx(33 / 9),
        "word_error_rate": pytest.approx(1 / 4),
        "character_error_rate": None,
        "end_to_end_ratio": pytest.approx(9 / ours["wall_seconds"]),
    }
    for side in (report["plain"], ours):
        assert side["rtfx"] == pytest.approx(33 / side["wall_seconds"])
        assert side["wall_seconds"] > side["decode_seconds"] + side["encode_seconds"]
        assert side["word_error_rate"] > 0  # a toy writes no English


def test_a_peer_that_shows_its_decoding_is_compared_by_it(
    recogniser: Recogniser, clips: list[Clip]
) -> None:
    split = Split((1, 2), encode_seconds=0.25, decode_seconds=0.5)
    peers = {"split": Fake("split", Heard("ab", split), [])}
    report = take_turns(recogniser, peers, clips[:2], Options(), ErrorRates())
    peer = report["peers"]["split"]
    assert peer["tokens"] == 6  # end-of-text counts
    assert peer["ms_per_token"] == pytest.approx(1000 / 6)
    assert (peer["encode_seconds"], peer["decode_seconds"]) == (0.5, 1.0)
    assert peer["wall_seconds"] == 5.0
    # Our decoding is all but the encoder, so it lies between the decoding that leaves out the
    # cross-attention cache and the wall time.
    for side in ("plain", "speculative"):
        seconds = 1.0 / peer[f"{side}_decode_ratio"]
        assert report[side]["decode_seconds"] < seconds < report[side]["wall_seconds"]


def test_decoding_is_compared_clip_by_clip() -> None:
    def tally(*turns: tuple[tuple[int, ...], float]) -> Tally:
        made = Tally()
        for tokens, seconds in turns:
            made.add(Turn(Heard("", Split(tokens, 1.0, seconds)), 9.0))
        return made

    their = tally(((1,), 2.0), ((2, 3), 6.0), ((4,), 4.0))
    plain = tally(((1,), 1.0), ((2, 3), 2.0), ((5,), 3.0))
    ours = tally(((1,), 1.0), ((2, 3), 1.0), ((5,), 1.0))
    assert compare_decoding(their, plain, ours) == {
        "tokens": 7,
        "ms_per_token": pytest.approx(12_000 / 7),
        "encode_seconds": 3.0,
        "decode_seconds": 12.0,
        "same_tokens_as_ours": 2,
        "plain_decode_ratio": 2.0,
        "plain_decode_ratio_median": 2.0,  # of 2, 3 and 4/3
        "speculative_decode_ratio": 4.0,
    }


def test_peers_that_cannot_take_part_are_named(
    recogniser: Recogniser, clips: list[Clip], capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = {
        "absent": PeerKind(not_installed, "pip install peer"),
        "here": PeerKind(Measuring, "never shown"),
        "other": PeerKind(Measuring, "never shown", needs_container=True),
    }
    heard: list[str] = []

    class Rates(ErrorRates):
        def of(self, references: Any, texts: Any) -> dict[str, float | None]:
            heard.extend(texts)
            return super().of(references, texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ErrorRates", Rates)
        report = bench_peers(recogniser, clips[:2], Options(), kinds=kinds)
    assert list(report["peers"]) == ["here"]
    assert report["missing"].keys() == {"absent", "other"}
    assert report["missing"]["absent"] == "pip install peer"
    assert "container" in report["missing"]["other"]
    assert report["provenance"]["threads"] == 1
    tensors = len(recogniser.files.tensors)
    assert heard[-2:] == [f"16000 en 1 {tensors}", f"32000 en 1 {tensors}"]
    assert capfd.readouterr().out == ""


def test_no_peer_at_all_is_an_error(recogniser: Recogniser, clips: list[Clip]) -> None:
    kinds = {"other": PeerKind(Measuring, "never shown", needs_container=True)}
    with pytest.raises(OptionError, match="no peer is installed"):
        bench_peers(recogniser, clips, Options(), kinds=kinds)


def test_a_dying_peer_is_named(
    recogniser: Recogniser, clips: list[Clip], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SoothsayError, match="the process of frail ended"):
        bench_peers(recogniser, clips, Options(), kinds={"frail": PeerKind(Dying, "")})
    assert "last words" in capfd.readouterr().err
