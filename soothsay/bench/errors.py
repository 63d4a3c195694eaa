"""How much of the reference text an engine got wrong, with one normaliser for every engine.

English goes through Whisper's own English normaliser, other languages through its basic one
(Radford et al., 2022, appendix C), both as Transformers has them; languages written without spaces
are counted by characters (the same appendix). British and American spellings stay apart: the list
that joins them comes with no package here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from soothsay.text.words import SPACELESS
from soothsay.types import OptionError


@dataclass(frozen=True, slots=True)
class Reference:
    """What was really said in a window, None where nobody knows; language by its code."""

    text: str | None
    language: str


class ErrorRates:
    """The normalisers and the counting. OptionError where what they need is not installed."""

    def __init__(self) -> None:
        try:
            import jiwer
            from transformers.models.whisper.english_normalizer import (
                BasicTextNormalizer,
                EnglishTextNormalizer,
            )
        except ImportError as error:
            raise OptionError('bench peers needs: pip install "soothsay[bench]"') from error
        self._words: Callable[[list[str], list[str]], float] = jiwer.wer
        self._characters: Callable[[list[str], list[str]], float] = jiwer.cer
        self._english: Callable[[str], str] = EnglishTextNormalizer({})
        self._basic: Callable[[str], str] = BasicTextNormalizer()

    def normalise(self, text: str, language: str) -> str:
        """The text as it is compared."""
        if language == "en":
            return self._english(text).strip()
        kept = self._basic(text)
        return "".join(kept.split()) if language in SPACELESS else kept.strip()

    def of(self, references: Sequence[Reference], texts: Sequence[str]) -> dict[str, float | None]:
        """Errors over the units of all references together (substitutions, deletions, insertions).

        `word_error_rate` is over the clips of languages with words, `character_error_rate` over the
        others. Clips without a reference are left out; a rate over no words at all is None.
        """
        pairs: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
        for reference, text in zip(references, texts, strict=True):
            if reference.text is not None:
                language = reference.language
                pair = (self.normalise(reference.text, language), self.normalise(text, language))
                pairs[language in SPACELESS].append(pair)
        return {
            "word_error_rate": _rate(self._words, pairs[False]),
            "character_error_rate": _rate(self._characters, pairs[True]),
        }


def _rate(
    measure: Callable[[list[str], list[str]], float], pairs: list[tuple[str, str]]
) -> float | None:
    references, texts = [r for r, _ in pairs], [t for _, t in pairs]
    return measure(references, texts) if any(references) else None
