"""Decoding: every container people have, and every kind of broken file."""

from __future__ import annotations

import io
import os
import tracemalloc
import wave
from pathlib import Path

import av
import numpy as np
import pytest
import soxr

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


def test_blocks_are_converted_as_if_they_were_one() -> None:
    rate = 44_100
    exact = np.round(tone(rate, 5) * 32767).astype(np.float32) / 32768
    expected = soxr.resample(exact, rate, 16_000, quality="HQ")
    found = decode(encoded("wav", "pcm_s16le", rate, seconds=5)).samples
    assert abs(len(found) - len(expected)) <= 1
    shared = min(len(found), len(expected))
    assert np.abs(found[:shared] - expected[:shared]).max() < 1e-3


def test_memory_stays_near_that_of_the_result() -> None:
    data = encoded("wav", "pcm_mulaw", 8_000, seconds=120)
    tracemalloc.start()
    try:
        samples = decode(data).samples
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.6 * samples.nbytes


@pytest.mark.parametrize("name", ["wav telephone 8 kHz", "flac 22 kHz", "mp3", "webm opus"])
def test_half_a_file_gives_half_the_audio_and_a_warning(name: str) -> None:
    data = encoded(*CONTAINERS[name], seconds=8)
    found = decode(data[: len(data) // 2])
    assert 2 < len(found.samples) / 16_000 < 6
    assert any("could be read of 8.0 s" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", ["flac 22 kHz", "mp3", "m4a", "ogg opus", "webm opus"])
def test_damage_in_the_middle_is_skipped_and_told(name: str) -> None:
    data = bytearray(encoded(*CONTAINERS[name], seconds=20))
    middle = len(data) // 2
    data[middle : middle + 6_000] = np.random.default_rng(0).bytes(6_000)
    found = decode(bytes(data))
    assert 10 < len(found.samples) / 16_000 < 20.1
    assert any("damaged" in warning for warning in found.warnings)
    tail = found.samples[-8_000:]  # what follows the damage is whole
    assert np.sqrt((tail**2).mean()) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


def test_a_change_of_rate_and_channels_midway() -> None:
    parts = [encoded("mp3", "libmp3lame", 44_100, "stereo"), encoded("mp3", "libmp3lame", 22_050)]
    found = decode(b"".join(parts)).samples
    assert len(found) / 16_000 == pytest.approx(2 * SECONDS, abs=0.2)
    for second in (0.5, SECONDS + 0.5):  # neither part is played at the other's rate
        piece = found[int(second * 16_000) :][:16_000]
        assert abs(int(np.abs(np.fft.rfft(piece)).argmax()) - 440) <= 1


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


def test_a_broken_channel_spoils_no_other() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="wav") as container:
        stream = container.add_stream("pcm_f32le", rate=16_000, layout="stereo")
        packed = np.array([[np.nan, 0.5, 1e38, 0.5, np.inf, -np.inf, 0.5, 0.25]], np.float32)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout="stereo")
        frame.rate = 16_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    assert decode(out.getvalue()).samples.tolist() == [0.25, 0.75, 0.0, 0.375]


def silent_video() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return out.getvalue()


def silence(rate: int, samples: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * samples))
    return out.getvalue()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Path("nowhere.wav"), "cannot be read: No such file"),
        (Path(), "cannot be read: Is a directory"),
        ("a\0b.wav", "cannot be read: embedded null"),
        (b"", "empty"),
        (b"no audio here, just text\n" * 40, "not audio"),
        (silent_video(), "no audio stream"),
        (silence(16_000, 0), "no audio.*length is zero"),
        (silence(1, 10_000), "1 Hz is too low"),
    ],
)
def test_what_is_no_audio_is_said_in_one_line(
    source: Path | str | bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AudioError, match=message) as caught:
        decode(source)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # FFmpeg keeps its remarks to itself


def test_text_by_the_name_of_audio(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_text("Not one sample.\n" * 100)
    with pytest.raises(AudioError, match="not audio"):
        decode(path)


def test_a_playlist_reads_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "private.wav").write_bytes(encoded("wav", "pcm_s16le"))
    playlist = tmp_path / "a.wav"
    playlist.write_text("ffconcat version 1.0\nfile 'private.wav'\n")
    with pytest.raises(AudioError, match="not audio"):
        decode(playlist)


def test_a_name_that_looks_like_a_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("12:30.wav").write_bytes(encoded("wav", "pcm_s16le"))
    assert len(decode("12:30.wav").samples) == 32_000


def test_a_pipe_that_cannot_be_rewound() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as out:
        out.write(encoded("ogg", "libopus", 48_000))  # less than a pipe holds
    with os.fdopen(reading, "rb") as pipe:
        assert len(decode(pipe).samples) / 16_000 == pytest.approx(SECONDS, abs=0.1)
        assert not pipe.closed


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
