"""Words: tokens joined at spaces, or character by character, with the punctuation beside them.

As openai/whisper does it (tokenizer.split_to_word_tokens, timing.merge_punctuations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from soothsay.text.tokens import WhisperTokens

SENTENCE_ENDS = (".", "?", "!", "。", "？", "！", "।", "؟")
SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # written without spaces
_BEFORE = "\"'“¿([{-"  # joins the word behind it, where a space stands before it
_AFTER = "\"'.。,，!！?？:：”)]}、"  # joins the word before it


@dataclass(frozen=True, slots=True)
class Word:
    """start, end: seconds from the beginning of the audio. text: with its leading space, if any.
    probability: mean of its tokens'."""

    start: float
    end: float
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Spelling:
    """A word's text, how many tokens in a row write it, and how many of these come before the
    punctuation at its end, which takes up the pause there."""

    text: str
    count: int
    spoken: int


def split_words(
    tokens: Sequence[int], vocabulary: WhisperTokens, language: str | None
) -> list[Spelling]:
    """Text tokens, special ones not among them → their words in order, no token left out."""
    characters = _whole_characters(tokens, vocabulary)
    if language not in SPACELESS:
        characters = _at_spaces(characters)
    return _with_punctuation(characters)


def _whole_characters(tokens: Sequence[int], vocabulary: WhisperTokens) -> list[Spelling]:
    """The shortest runs of tokens that end with a character's last byte."""
    found: list[Spelling] = []
    raw, count = b"", 0
    for token in tokens:
        raw += vocabulary.token_bytes[token]
        count += 1
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            continue
        found.append(Spelling(text, count, count))
        raw, count = b"", 0
    if count:
        found.append(Spelling(raw.decode(errors="replace"), count, count))
    return found


def _joined(one: Spelling, other: Spelling) -> Spelling:
    count = one.count + other.count
    return Spelling(one.text + other.text, count, count)


def _at_spaces(parts: Sequence[Spelling]) -> list[Spelling]:
    words: list[Spelling] = []
    for part in parts:
        alone = part.text.startswith(" ") or part.text.strip() in _AFTER + _BEFORE
        if words and not alone:
            words[-1] = _joined(words[-1], part)
        else:
            words.append(part)
    return words


def _with_punctuation(words: Sequence[Spelling]) -> list[Spelling]:
    merged: list[Spelling] = []
    for word in words:
        text = word.text
        closes = bool(text) and text in _AFTER and not (merged and merged[-1].text.endswith(" "))
        opens = merged and merged[-1].text.startswith(" ") and merged[-1].text.strip() in _BEFORE
        if merged and closes:
            merged[-1] = replace(_joined(merged[-1], word), spoken=merged[-1].spoken)
        elif opens and merged[-1].text.strip():
            merged[-1] = _joined(merged[-1], word)
        else:
            merged.append(word)
    return merged
