"""Errors of word times: known edges, and whole windows."""

from __future__ import annotations

import numpy as np
import pytest

from soothsay.bench.times import _errors, _windows, bench_times, edges
from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.targets.load import ModelFiles
from soothsay.transcribe import Options, Recogniser


def test_edges_are_where_the_sound_is() -> None:
    samples = np.zeros(32_000, np.float32)
    samples[8_000:24_000] = np.random.default_rng(0).normal(0, 0.1, 16_000)
    samples += np.random.default_rng(1).normal(0, 1e-4, 32_000).astype(np.float32)
    assert edges(samples) == (pytest.approx(0.5, abs=0.011), pytest.approx(1.5, abs=0.011))


def test_windows_hold_all_in_order() -> None:
    utterances = [np.full(16_000 * n, n, np.float32) for n in (10, 10, 10, 14, 14, 1)]
    found = list(_windows(utterances))
    assert [len(window) for window in found] == [2, 2, 2]
    assert [u[0] for window in found for u in window] == [10, 10, 10, 14, 14, 1]


def test_errors() -> None:
    found = _errors([-50.0, 10.0, 300.0])
    assert (found["median_ms"], found["bias_ms"]) == (50.0, 10.0)
    assert found["within_100_ms"] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_the_shipped_clips(base_files: ModelFiles) -> None:
    report = bench_times(Recogniser(base_files), read_manifest(CLIPS, 4), Options())
    assert report["with_words"] == report["utterances"] == 4
    assert report["start"]["median_ms"] < 100
