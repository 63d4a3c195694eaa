from __future__ import annotations

import numpy as np
import pytest

from soothsay.audio.segments import windows
from soothsay.types import AudioError


@pytest.mark.parametrize("length", [1, 479_999, 480_000, 480_001, 1_500_000])
def test_windows_join_to_the_whole(length: int) -> None:
    samples = np.arange(length, dtype=np.float32)
    cuts = windows(samples)
    assert np.array_equal(np.concatenate([cut.samples for cut in cuts]), samples)
    assert all(len(cut.samples) == 480_000 for cut in cuts[:-1])
    assert [cut.start_seconds for cut in cuts] == [30.0 * n for n in range(len(cuts))]
    assert cuts[-1].end_seconds == pytest.approx(length / 16_000)


def test_nothing_has_no_windows() -> None:
    with pytest.raises(AudioError, match="no samples"):
        windows(np.zeros(0, np.float32))
