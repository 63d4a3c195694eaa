"""Decoding: every container people have, and every kind of broken file."""

from __future__ import annotations

import io
import os
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from soothsay.audio.decode import Waveform, decode, decode_blocks
from soothsay.types import AudioError

SECONDS = 2.0


def tone(rate: int, seconds: float = SECONDS) -> np.ndarray:
    """440 Hz at half scale."""
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)).astype(
        np.float32
    )


def encoded(
    format: str, codec: str, rate: int = 16_000, layout: str = "mono", seconds: float = SECONDS
) -> bytes:
    channels = {"mono": 1, "stereo": 2, "5.1": 6}[layout]
    out = io.BytesIO()
    with av.open(out, "w", format=format) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        packed = (tone(rate, seconds) * 32767).astype(np.int16).repeat(channels)[None]
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
        frame.rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return out.getvalue()


CONTAINERS = {
    "wav 16 kHz": ("wav", "pcm_s16le", 16_000, "mono"),
    "wav stereo 44.1 kHz": ("wav", "pcm_s16le", 44_100, "stereo"),
    "wav telephone 8 kHz": ("wav", "pcm_mulaw", 8_000, "mono"),
    "wav six channels 48 kHz": ("wav", "pcm_s16le", 48_000, "5.1"),
    "flac 22 kHz": ("flac", "flac", 22_050, "mono"),
    "mp3": ("mp3", "libmp3lame", 44_100, "stereo"),
    "m4a": ("ipod", "aac", 48_000, "stereo"),
    "ogg opus": ("ogg", "libopus", 48_000, "mono"),
    "webm opus": ("webm", "libopus", 48_000, "stereo"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_gives_the_same_tone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "clip"  # no extension to guess by
    path.write_bytes(encoded(*CONTAINERS[name]))
    found = decode(path)
    assert found.warnings == ()
    assert found.samples.dtype == np.float32
    assert len(found.samples) / 16_000 == pytest.approx(SECONDS, abs=0.1)
    middle = found.samples[8_000:24_000]
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)
    spectrum = np.abs(np.fft.rfft(middle))
    assert abs(int(spectrum.argmax()) - 440) <= 1  # one bin a hertz


def test_path_bytes_and_file_agree(tmp_path: Path) -> None:
    data = encoded("flac", "flac")
    path = tmp_path / "a.flac"
    path.write_bytes(data)
    from_path = decode(path).samples
    for source in (str(path), data, io.BytesIO(data)):
        assert np.array_equal(decode(source).samples, from_path)


def test_16_khz_mono_is_left_alone() -> None:
    exact = np.round(tone(16_000) * 32767) / 32768
    found = decode(encoded("wav", "pcm_s16le")).samples
    assert np.abs(found - exact).max() < 1e-4


def test_blocks_join_to_the_whole() -> None:
    data = encoded("wav", "pcm_s16le", 44_100, seconds=5)
    blocks = list(decode_blocks(data, []))
    assert len(blocks) > 3
    assert np.array_equal(np.concatenate(blocks), decode(data).samples)


def test_half_a_file_gives_half_the_audio_and_a_warning() -> None:
    data = encoded("flac", "flac", seconds=8)
    found = decode(data[: len(data) // 2])
    assert 2 < len(found.samples) / 16_000 < 6
    assert len(found.warnings) == 1


def test_damage_in_the_middle_is_skipped() -> None:
    data = bytearray(encoded("mp3", "libmp3lame", 44_100, seconds=6))
    data[len(data) // 2 : len(data) // 2 + 400] = os.urandom(400)
    assert len(decode(bytes(data)).samples) / 16_000 == pytest.approx(6, abs=0.5)


def test_not_a_number_becomes_silence() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="wav") as container:
        stream = container.add_stream("pcm_f32le", rate=16_000, layout="mono")
        samples = np.full((1, 1600), np.nan, np.float32)
        samples[0, :3] = [np.inf, -np.inf, 0.25]
        frame = av.AudioFrame.from_ndarray(samples, format="flt", layout="mono")
        frame.rate = 16_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    found = decode(out.getvalue()).samples
    assert found[:4].tolist() == [1.0, -1.0, 0.25, 0.0]


def silent_video() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return out.getvalue()


def header_only() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
    return out.getvalue()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Path("nowhere.wav"), "cannot be read: No such file"),
        (Path(), "directory"),
        (b"", "empty"),
        (b"no audio here, just text\n" * 40, "not audio"),
        (silent_video(), "no audio stream"),
        (header_only(), "no audio"),
    ],
)
def test_what_is_no_audio_is_said_in_one_line(source: Path | bytes, message: str) -> None:
    with pytest.raises(AudioError, match=message) as caught:
        decode(source)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.wav"
    path.write_bytes(encoded("wav", "pcm_s16le"))
    path.chmod(0)
    with pytest.raises(AudioError, match="denied"):
        decode(path)


def test_a_limit_stops_endless_audio() -> None:
    with pytest.raises(AudioError, match="longer than the limit of 1 s"):
        decode(encoded("flac", "flac", seconds=3), max_seconds=1.0)


def test_a_waveform_says_its_rate() -> None:
    assert Waveform(np.zeros(1, np.float32)).sample_rate == 16_000
