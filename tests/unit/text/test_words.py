"""Words from tokens: no token lost, punctuation beside its word, whole characters."""

from __future__ import annotations

import pytest
from fixtures.model_directory import write_toy_model
from hypothesis import given, settings
from hypothesis import strategies as st

from soothsay.targets.load import ModelFiles
from soothsay.text.tokens import WhisperTokens
from soothsay.text.words import split_words


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> WhisperTokens:
    return WhisperTokens.from_file(
        write_toy_model(tmp_path_factory.mktemp("toy")) / "tokenizer.json"
    )


def spelt(text: str, vocabulary: WhisperTokens, language: str = "en") -> list[str]:
    return [word.text for word in split_words(vocabulary.encode(text), vocabulary, language)]


@settings(deadline=None)
@given(text=st.text(max_size=40), language=st.sampled_from(["en", "zh"]))
def test_words_hold_all_tokens(text: str, language: str, toy: WhisperTokens) -> None:
    tokens = toy.encode(text)
    words = split_words(tokens, toy, language)
    assert sum(word.count for word in words) == len(tokens)
    assert all(1 <= word.spoken <= word.count for word in words)
    assert "".join(word.text for word in words) == toy.decode(tokens)


def test_words_end_at_spaces_with_their_punctuation(toy: WhisperTokens) -> None:
    assert spelt(" well, she said.", toy) == [" well,", " she", " said."]
    well = split_words(toy.encode(" well,"), toy, "en")[0]
    assert well.count == well.spoken + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        (' He said "no way" (twice).', "en", [" He", " said", ' "no', ' way"', " (twice)."]),
        (" don't pay $365, please", "en", [" don't", " pay", " $365,", " please"]),
        ("我走了。你呢？", "zh", ["我", "走了。", "你", "呢？"]),
        (" ¿Qué? Niño", "es", [" ¿Qué?", " Niño"]),
    ],
)
def test_words_of_the_real_vocabulary(
    base_files: ModelFiles, text: str, language: str, words: list[str]
) -> None:
    tokens = WhisperTokens.from_file(base_files.tokenizer_json)
    assert spelt(text, tokens, language) == words
