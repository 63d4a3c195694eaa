"""Any audio PyAV can read → mono float32 at 16 kHz.

Decoding is lenient where users are: a file cut in half gives its first half and a warning, a
broken packet is skipped and counted. What holds no audio at all is an AudioError in one line.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import av
import numpy as np
import soxr
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from soothsay.types import AudioError

av.logging.set_level(None)  # FFmpeg's own lines on stderr tell users nothing they can act on

Source: TypeAlias = Path | str | bytes | BinaryIO
SAMPLE_RATE = 16_000
MAX_SECONDS = 24 * 3600.0  # a tiny file can decode to days of silence
_MAX_BROKEN_PACKETS = 1000


@dataclass(frozen=True, slots=True)
class Waveform:
    """Mono samples in -1..1 at `sample_rate` hertz, and what a listener should be told."""

    samples: NDArray[np.float32]
    warnings: tuple[str, ...] = ()
    sample_rate: int = SAMPLE_RATE


def decode(source: Source, max_seconds: float = MAX_SECONDS) -> Waveform:
    """Read a whole file, from a path, bytes, or an open binary file."""
    warnings: list[str] = []
    blocks = list(decode_blocks(source, warnings, max_seconds))
    samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if not len(samples):
        raise AudioError(warnings[0] if warnings else "it holds no audio: its length is zero")
    return Waveform(samples, tuple(warnings))


def decode_blocks(
    source: Source, warnings: list[str], max_seconds: float = MAX_SECONDS
) -> Iterator[NDArray[np.float32]]:
    """The same block by block, in memory that does not grow; `warnings` fills as it goes."""
    with _open(source) as container:
        if not container.streams.audio:
            raise AudioError("it holds no audio stream")
        stream = container.streams.audio[0]
        rate = stream.codec_context.sample_rate
        if not rate:
            raise AudioError("its sample rate is unknown")
        resampler = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        total = 0
        for mono in _mono(_frames(container, warnings), rate):
            block = resampler.resample_chunk(mono) if rate != SAMPLE_RATE else mono
            total += len(block)
            if total > max_seconds * SAMPLE_RATE:
                raise AudioError(f"it is longer than the limit of {max_seconds:g} s")
            if len(block):
                yield block
        if rate != SAMPLE_RATE and len(
            rest := resampler.resample_chunk(np.zeros(0, np.float32), last=True)
        ):
            yield rest


def _open(source: Source) -> av.container.InputContainer:
    if isinstance(source, (str, Path)):
        path = Path(source)
        if path.is_dir():
            raise AudioError("it is a directory, not an audio file")
        try:
            size = path.stat().st_size
        except OSError as error:
            raise AudioError(f"it cannot be read: {error.strerror}") from error
        file: str | BinaryIO = str(path)
    else:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
    if not size:
        raise AudioError("it is empty: 0 bytes")
    try:
        return av.open(file, mode="r", metadata_errors="ignore")
    except PermissionError as error:
        raise AudioError("it cannot be read: permission denied") from error
    except (av.FFmpegError, ValueError) as error:
        raise AudioError(f"it is not audio that can be read ({_reason(error)})") from error


def _frames(container: av.container.InputContainer, warnings: list[str]) -> Iterator[AudioFrame]:
    """All frames that decode. Damage becomes a warning, not an end, while something follows."""
    packets = container.demux(container.streams.audio[0])
    broken = 0
    while broken < _MAX_BROKEN_PACKETS:
        try:
            packet = next(packets)
        except StopIteration:
            break
        except (av.FFmpegError, ValueError) as error:
            warnings.append(
                f"it is cut short or damaged ({_reason(error)}): read as far as it goes"
            )
            return
        try:
            yield from (frame for frame in packet.decode() if isinstance(frame, AudioFrame))
        except (av.FFmpegError, ValueError):
            broken += 1
    if broken:
        warnings.append(f"{broken} damaged packets were skipped")


def _mono(frames: Iterator[AudioFrame], rate: int) -> Iterator[NDArray[np.float32]]:
    """Frames of any format and layout → mono float32 at `rate`, channels averaged."""
    resampler = AudioResampler(format="fltp", rate=rate)
    for frame in frames:
        frame.pts = None  # gaps in time stamps are no reason to stop
        for converted in resampler.resample(frame):
            planes = converted.to_ndarray().astype(np.float32, copy=False)
            yield np.nan_to_num(planes.mean(0), nan=0.0, posinf=1.0, neginf=-1.0)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
