"""Any audio PyAV can read → mono float32 at 16 kHz.

Decoding is lenient where users are: a file cut in half gives its first half and a warning, a
broken packet is skipped and counted. What holds no audio at all is an AudioError in one line.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
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
Samples: TypeAlias = NDArray[np.float32]
SAMPLE_RATE = 16_000
MAX_SECONDS = 24 * 3600.0  # a tiny file can decode to days of silence
_MIN_RATE = 1_000  # below, one packet could become hours
_NOTHING = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class Waveform:
    """Mono samples in about -1..1 at `sample_rate` hertz, and what a listener should be told."""

    samples: Samples
    warnings: tuple[str, ...] = ()
    sample_rate: int = SAMPLE_RATE


def decode(source: Source, max_seconds: float = MAX_SECONDS) -> Waveform:
    """Read a whole file, from a path, bytes, or an open binary file.

    Memory stays near that of the result. AudioError where nothing can be read, or where the audio
    is longer than `max_seconds`.
    """
    warnings: list[str] = []
    samples, used = np.zeros(0, np.float32), 0
    for block in decode_blocks(source, warnings, max_seconds):
        if used + len(block) > len(samples):
            # In place: a list of blocks, joined at the end, would hold everything twice.
            samples.resize(used + len(block) + used // 4, refcheck=False)
        samples[used : used + len(block)] = block
        used += len(block)
    samples.resize(used, refcheck=False)
    return Waveform(samples, tuple(warnings))


def decode_blocks(
    source: Source, warnings: list[str], max_seconds: float = MAX_SECONDS
) -> Iterator[Samples]:
    """The same block by block, in memory that does not grow; `warnings` fills as it goes."""
    try:
        with _file(source) as file, _open(file) as container:
            if not container.streams.audio:
                raise AudioError("it holds no audio stream")
            expected = _expected_seconds(container)
            total = 0
            for block in _at_16_khz(_mono(_frames(container, warnings))):
                total += len(block)
                if total > max_seconds * SAMPLE_RATE:
                    raise AudioError(f"it is longer than the limit of {max_seconds:g} s")
                if len(block):
                    yield block
            if not total:
                reason = warnings[0] if warnings else "its length is zero"
                raise AudioError(f"it holds no audio that can be decoded: {reason}")
            seconds = total / SAMPLE_RATE
            # Many formats end without an error wherever they are cut.
            if seconds < 0.99 * expected - 0.25:
                warnings.append(
                    f"it is cut short or damaged: {seconds:.1f} s could be read of {expected:.1f} s"
                )
    except OSError as error:  # a failing disk, a device that is no file
        raise AudioError(f"it cannot be read: {_reason(error)}") from error


def expected_seconds(source: Source) -> float:
    """How long a file says it is, or 0 where it does not; AudioError as for `decode`."""
    with _file(source) as file, _open(file) as container:
        return _expected_seconds(container) if container.streams.audio else 0.0


def _file(source: Source) -> AbstractContextManager[BinaryIO]:
    """A file that is closed afterwards, unless it is the caller's own."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, (str, Path)):
        try:
            return open(source, "rb")
        except (OSError, ValueError) as error:
            raise AudioError(f"it cannot be read: {_reason(error)}") from error
    return nullcontext(source)


def _open(file: BinaryIO) -> av.container.InputContainer:
    if file.seekable():
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if not size:
            raise AudioError("it is empty: 0 bytes")
    try:
        # Files that name other files (playlists) get none of them: no protocol is allowed.
        return av.open(
            file, mode="r", metadata_errors="ignore", options={"protocol_whitelist": "none"}
        )
    except (av.FFmpegError, ValueError) as error:
        raise AudioError(f"it is not audio that can be read ({_reason(error)})") from error


def _expected_seconds(container: av.container.InputContainer) -> float:
    """What the file says of its own length, or 0."""
    stream = container.streams.audio[0]
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    if container.duration and len(container.streams) == 1:
        return container.duration / av.time_base
    return 0.0


def _frames(container: av.container.InputContainer, warnings: list[str]) -> Iterator[AudioFrame]:
    """All frames that decode. Damage becomes a warning, not an end, while something follows."""
    packets = container.demux(container.streams.audio[0])
    broken = 0
    while True:
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
        warnings.append(f"{broken} damaged packet{'s were' if broken > 1 else ' was'} skipped")


def _mono(frames: Iterator[AudioFrame]) -> Iterator[tuple[int, Samples]]:
    """Frames of any format and layout → (sample rate, mono float32, channels averaged)."""

    def kind(frame: AudioFrame) -> tuple[str, str, int]:
        return frame.format.name, frame.layout.name, frame.sample_rate

    # Joined files change format midway; a resampler serves one, and lets others pass unconverted.
    for (_, _, rate), alike in groupby(frames, key=kind):
        if rate < _MIN_RATE:
            raise AudioError(f"its sample rate of {rate} Hz is too low for speech")
        # Interleaved, because reading the planes of eight channels and more crashes PyAV 18.
        converter = AudioResampler(format="flt", rate=rate)
        for frame in alike:
            frame.pts = None  # gaps in time stamps are no reason to stop
            for converted in converter.resample(frame):
                channels = converted.to_ndarray().reshape(-1, converted.layout.nb_channels)
                np.nan_to_num(channels, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
                yield rate, np.clip(channels, -1.0, 1.0).mean(1, dtype=np.float32)


def _at_16_khz(blocks: Iterator[tuple[int, Samples]]) -> Iterator[Samples]:
    """Sample-rate conversion with memory between blocks: as if each rate's audio were one block."""
    for rate, alike in groupby(blocks, key=itemgetter(0)):
        if rate == SAMPLE_RATE:
            yield from (block for _, block in alike)
            continue
        stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        for _, block in alike:
            yield stream.resample_chunk(block)
        yield stream.resample_chunk(_NOTHING, last=True)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
