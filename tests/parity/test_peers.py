"""Every installed peer writes what we write from the same weights, or its weights are mixed up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from soothsay.bench.errors import ErrorRates, Reference
from soothsay.bench.peer_engines import PEERS
from soothsay.bench.peer_weights import PeerWeights, lay_out
from soothsay.bench.peers import PeerProcess
from soothsay.bench.workload import CLIPS, Clip, read_manifest
from soothsay.targets.load import ModelFiles
from soothsay.text.words import SPACELESS
from soothsay.transcribe import Options, Recogniser

pytestmark = pytest.mark.slow
NEARLY = 0.1  # of words or characters; features and rounding differ among engines


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    """Shipped ones, in English and in Mandarin, clear enough for int8 to hear them right."""
    wanted = ("en-river.ogg", "zh-thanks.ogg")
    return [clip for clip in read_manifest(CLIPS) if clip.id in wanted]


@pytest.fixture(scope="module")
def written(base_files: ModelFiles, clips: list[Clip]) -> list[str]:
    recogniser = Recogniser(base_files, dtype="float32", drafter="off")
    return [
        recogniser.transcribe(clip.samples(), Options(language=clip.language)).transcript.text
        for clip in clips
    ]


@pytest.fixture(scope="module")
def weights(base_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> PeerWeights:
    return lay_out(base_files, tmp_path_factory.mktemp("weights"), threads=1)


@pytest.fixture(params=list(PEERS))
def peer(request: pytest.FixtureRequest, weights: PeerWeights) -> Iterator[PeerProcess]:
    kind = PEERS[request.param]
    process = PeerProcess(request.param, kind, weights)
    try:
        if not process.ready():
            pytest.skip(f"not installed: {kind.install}")
        yield process
    finally:
        process.close()


def test_peers_write_nearly_the_same(
    peer: PeerProcess, clips: list[Clip], written: list[str]
) -> None:
    rates = ErrorRates()
    for clip, ours in zip(clips, written, strict=True):
        assert clip.language is not None
        turn = peer.hear(clip.samples(), clip.language)
        print(turn.heard.text)
        found = rates.of([Reference(ours, clip.language)], [turn.heard.text])
        unit = "character" if clip.language in SPACELESS else "word"
        rate = found[f"{unit}_error_rate"]
        assert rate is not None
        assert rate <= NEARLY
