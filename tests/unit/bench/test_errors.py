"""Error rates against errors counted by hand."""

from __future__ import annotations

import sys

import pytest

from soothsay.bench.errors import ErrorRates, Reference
from soothsay.types import OptionError


@pytest.fixture(scope="module")
def rates() -> ErrorRates:
    return ErrorRates()


@pytest.mark.parametrize(
    ("reference", "text", "errors", "words"),
    [
        ("THE CAT SAT", " The cat sat.", 0, 3),  # case and signs do not count
        ("mister brown can't come", "Mr. Brown cannot come!", 2, 5),  # "can not" is two words
        ("twenty five cats", "25 cats", 0, 2),
        ("the cat sat", "the hat", 2, 3),  # one substitution, one deletion
        ("the cat", "the black cat sat", 2, 2),  # two insertions
        ("the cat", "", 2, 2),
    ],
)
def test_english_words(
    rates: ErrorRates, reference: str, text: str, errors: int, words: int
) -> None:
    found = rates.of([Reference(reference, "en")], [text])
    assert found["word_error_rate"] == pytest.approx(errors / words)
    assert found["character_error_rate"] is None


def test_words_of_all_clips_weigh_alike(rates: ErrorRates) -> None:
    """One error in one word and none in three: 1 of 4, not the mean of 1 and 0."""
    references = [Reference("yes", "en"), Reference("der Hund schläft", "de")]
    found = rates.of(references, ["no", "Der Hund schläft."])
    assert found["word_error_rate"] == pytest.approx(1 / 4)


@pytest.mark.parametrize("language", ["zh", "ja"])
def test_characters_where_words_are_not_spaced(rates: ErrorRates, language: str) -> None:
    found = rates.of([Reference("我们 明天再见。", language)], ["我们明天在见,"])
    assert found == {"word_error_rate": None, "character_error_rate": pytest.approx(1 / 6)}


def test_languages_are_counted_apart(rates: ErrorRates) -> None:
    references = [Reference("red sky", "en"), Reference("你好", "zh")]
    found = rates.of(references, ["red", "你"])
    assert found == {"word_error_rate": 0.5, "character_error_rate": 0.5}


def test_clips_without_reference_are_left_out(rates: ErrorRates) -> None:
    references = [Reference(None, "en"), Reference("red sky", "en")]
    assert rates.of(references, ["anything at all", "red ski"])["word_error_rate"] == 0.5


def test_words_written_over_silence_are_errors(rates: ErrorRates) -> None:
    references = [Reference("", "en"), Reference("red sky", "en")]
    assert rates.of(references, ["thank you", "red sky"])["word_error_rate"] == 1.0


@pytest.mark.parametrize("text", [None, "", "?!"])
def test_no_reference_words_give_no_rate(rates: ErrorRates, text: str | None) -> None:
    found = rates.of([Reference(text, "en")], ["thank you"])
    assert found == {"word_error_rate": None, "character_error_rate": None}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(OptionError, match=r"pip install .soothsay\[bench\]"):
        ErrorRates()
