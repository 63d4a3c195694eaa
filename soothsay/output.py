"""Transcripts as files: which name each gets, in which format, never half written."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from soothsay.text import formats
from soothsay.transcribe import Transcription
from soothsay.types import OptionError, SoothsayError

FORMATS = {
    "text": ".txt",
    "json": ".json",
    "verbose_json": ".json",
    "srt": ".srt",
    "vtt": ".vtt",
    "tsv": ".tsv",
}
TIMED_FORMATS = ("verbose_json", "srt", "vtt", "tsv")


def render(done: Transcription, format: str, audio: Path) -> str:
    """A transcription in one of FORMATS, with a newline at its end.

    `json` here is the command line's: audio, text, language, segments and the figures.
    """
    if format == "json":
        transcript = done.transcript
        body = {
            "audio": shown(audio),
            "text": transcript.text,
            "language": transcript.language,
            "segments": [formats.segment_fields(s) for s in transcript.segments],
            "stats": done.figures(),
        }
        return json.dumps(body, ensure_ascii=False) + "\n"
    return formats.render(done.transcript, format).rstrip("\n") + "\n"


def check_targets(
    files: Sequence[Path], directory: Path | None, format: str, resume: bool
) -> dict[Path, Path]:
    """Input → output path. OptionError for an unknown format, a name wanted twice, or no folder."""
    if format not in FORMATS:
        raise OptionError(f"unknown format {format!r}: choose {', '.join(FORMATS)}")
    if directory is None:
        if resume:
            raise OptionError("--resume needs --output-dir: there is nothing to resume on stdout")
        return {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write to {directory}: {error.strerror}") from error
    targets: dict[Path, Path] = {}
    for file in files:
        target = directory / (file.stem + FORMATS[format])
        if any(_same_file(target, other) for other in files):
            raise OptionError(f"{target} is an input: writing there would destroy it")
        if target in targets.values():
            raise OptionError(f"two inputs would be written to {target}: rename one")
        targets[file] = target
    return targets


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them does not exist
        return False


def write_atomically(path: Path, text: str) -> None:
    """Write beside `path`, then rename: a reader, or a full disk, never leaves half a file."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".soothsay-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())  # as any other new file, not for its maker alone
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise SoothsayError(f"cannot write {path}: {error.strerror}") from error


def write_stdout(text: str) -> None:
    """SoothsayError where stdout cannot take the text; a reader that left is no error of ours."""
    if sys.stdout is None:
        raise SoothsayError("cannot write: standard output is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SoothsayError(f"cannot write to standard output: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise SoothsayError(
            f"standard output takes {error.encoding} only: set PYTHONIOENCODING=utf-8"
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def shown(path: Path) -> str:
    """A path as text that any terminal takes, whatever bytes its name is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


def flat(report: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested figures as (dotted name, value) pairs, in order."""
    for key, value in report.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield name, value
