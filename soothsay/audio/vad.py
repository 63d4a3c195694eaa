"""Where somebody speaks: Silero's voice activity detector, over audio as it comes.

The network and its weights are those of the distribution silero-vad 6.2 (MIT, its licence lies
beside them), run here over all frames at once but for its recurrent layer (docs/adr/0005).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from soothsay.audio.decode import Samples
from soothsay.audio.features import SAMPLE_RATE
from soothsay.types import OptionError

FRAME = 512  # samples at 16 kHz that share one probability
FRAME_SECONDS = FRAME / SAMPLE_RATE
_CONTEXT = 64  # samples of the frame before, which a frame is heard with
_CUTOFF = 129  # frequencies of the short-time Fourier transform
_STRIDES = (1, 2, 2, 1)


class _Network(nn.Module):
    """(R, 64 + 512) samples of R frames in a row, and the state before them → R probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.stft = nn.Conv1d(1, 2 * _CUTOFF, 256, stride=128, bias=False)
        widths = (_CUTOFF, 128, 64, 64, 128)
        self.encoder = nn.ModuleList(
            nn.Conv1d(widths[i], widths[i + 1], 3, stride=stride, padding=1)
            for i, stride in enumerate(_STRIDES)
        )
        self.lstm = nn.LSTM(128, 128)
        self.output = nn.Conv1d(128, 1, 1)

    def forward(
        self, frames: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        spectrum = self.stft(F.pad(frames[:, None], (0, _CONTEXT), mode="reflect"))
        x = torch.hypot(spectrum[:, :_CUTOFF], spectrum[:, _CUTOFF:])
        for layer in self.encoder:
            x = F.relu(layer(x))
        hidden, state = self.lstm(x[:, :, 0], state)
        assert state is not None
        return torch.sigmoid(self.output(F.relu(hidden).T))[0], state


@cache
def _network() -> _Network:
    network = _Network()
    with as_file(files("soothsay") / "data" / "vad" / "silero_vad_16k.safetensors") as path:
        network.load_state_dict(load_file(path))
    return network.eval().requires_grad_(False)


class SpeechDetector:
    """Hears one recording, block after block, of any lengths."""

    def __init__(self) -> None:
        self._network = _network()
        self._state: tuple[Tensor, Tensor] | None = None
        self._context = np.zeros(_CONTEXT, np.float32)
        self._rest = np.zeros(0, np.float32)  # less than a frame, not heard yet

    def push(self, block: Samples) -> Samples:
        """The next 16 kHz samples → the probability of speech in each frame they complete."""
        samples = np.concatenate([self._rest, block])
        whole = len(samples) // FRAME * FRAME
        self._rest = samples[whole:].copy()
        return self._heard(samples[:whole])

    def flush(self) -> Samples:
        """The end of the recording → the probability of its last frame, if that is not whole."""
        if not len(self._rest):
            return np.zeros(0, np.float32)
        rest, self._rest = self._rest, np.zeros(0, np.float32)
        return self._heard(np.pad(rest, (0, FRAME - len(rest))))

    @torch.inference_mode()
    def _heard(self, samples: Samples) -> Samples:
        if not len(samples):
            return np.zeros(0, np.float32)
        frames = samples.reshape(-1, FRAME)
        before = np.vstack([self._context, frames[:-1, -_CONTEXT:]])
        self._context = frames[-1, -_CONTEXT:].copy()
        heard, self._state = self._network(
            torch.from_numpy(np.hstack([before, frames])), self._state
        )
        found: Samples = heard.numpy()
        return found


@dataclass(frozen=True, slots=True)
class SpeechRule:
    """From probabilities to speech: begins at `threshold`, ends below `neg_threshold` (default:
    0.15 less) once `min_silence_duration_ms` have passed; what is shorter than
    `min_speech_duration_ms` is none; `speech_pad_ms` are kept on both sides. Names as in
    silero-vad and faster-whisper; defaults lose no speech of our test sets (LOG.md)."""

    threshold: float = 0.35
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 100
    min_silence_duration_ms: int = 300
    speech_pad_ms: int = 300

    def __post_init__(self) -> None:
        for name in ("threshold", "neg_threshold"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise OptionError(f"{name} must lie in (0, 1], not {value}")
        for name in ("min_speech_duration_ms", "min_silence_duration_ms", "speech_pad_ms"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, and is {getattr(self, name)}")

    @property
    def end_below(self) -> float:
        if self.neg_threshold is not None:
            return self.neg_threshold
        return max(self.threshold - 0.15, 0.01)


@dataclass(frozen=True, slots=True)
class Region:
    """Frames first..last - 1 hold speech, padding not counted."""

    first: int
    last: int


class RegionFinder:
    """Speech regions from probabilities, frame by frame (silero-vad: get_speech_timestamps)."""

    def __init__(self, rule: SpeechRule) -> None:
        self._rule = rule
        self._silence = rule.min_silence_duration_ms / 1e3 / FRAME_SECONDS
        self._speech = rule.min_speech_duration_ms / 1e3 / FRAME_SECONDS
        self._frame = 0
        self._open_since: int | None = None
        self._quiet_since: int | None = None
        self._continues = False  # the open region goes on from one that was cut

    @property
    def open(self) -> Region | None:
        """The region that has not ended: what is known of it so far."""
        if self._open_since is None:
            return None
        return Region(self._open_since, self._last)

    @property
    def _last(self) -> int:
        return self._frame if self._quiet_since is None else self._quiet_since

    def push(self, probability: float) -> Region | None:
        """The next frame → the region that has ended with it, if one has."""
        frame = self._frame
        self._frame += 1
        if probability >= self._rule.threshold:
            self._quiet_since = None
            if self._open_since is None:
                self._open_since = frame
        elif self._open_since is not None and probability < self._rule.end_below:
            if self._quiet_since is None:
                self._quiet_since = frame
            if frame - self._quiet_since >= self._silence:
                return self._close()
        return None

    def cut(self, frame: int) -> None:
        """Let the open region begin at `frame`; it counts however short it turns out."""
        self._open_since, self._continues = frame, True

    def flush(self) -> Region | None:
        """The end of the recording → the region that was open, if there was one."""
        return None if self._open_since is None else self._close()

    def _close(self) -> Region | None:
        assert self._open_since is not None
        region, continues = Region(self._open_since, self._last), self._continues
        self._open_since = self._quiet_since = None
        self._continues = False
        return region if continues or region.last - region.first > self._speech else None
