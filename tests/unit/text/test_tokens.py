"""Whisper's vocabulary, on a toy tokenizer with the same special tokens, and on the real one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from soothsay.targets.load import ModelFiles
from soothsay.text.languages import LANGUAGES
from soothsay.text.tokens import Detokenizer, WhisperTokens
from soothsay.types import OptionError, WeightsError


def byte_tokenizer(multilingual: bool) -> Tokenizer:
    """Every byte a token and nothing merged, padded to Whisper's place for end-of-text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: number for number, char in enumerate(alphabet)}
    size = 50257 if multilingual else 50256
    for first, second in itertools.product(alphabet, alphabet):
        if len(vocab) == size:
            break
        vocab.setdefault(first + second, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|startoftranscript|>"]
    special += [f"<|{code}|>" for code in list(LANGUAGES)[:99]]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    special += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens(special)
    return tokenizer


MULTILINGUAL = WhisperTokens(byte_tokenizer(True))
ENGLISH = WhisperTokens(byte_tokenizer(False))


def test_special_tokens_are_where_whisper_has_them() -> None:
    t = MULTILINGUAL
    assert (t.end_of_text, t.start, t.translate, t.transcribe) == (50257, 50258, 50358, 50359)
    assert (t.no_speech, t.no_timestamps, t.first_timestamp) == (50362, 50363, 50364)
    assert t.multilingual
    assert not ENGLISH.multilingual
    assert t.languages["en"] == 50259
    assert len(t.languages) == 99


@pytest.mark.parametrize("name", ["zh", "ZH", "Chinese", " mandarin "])
def test_languages_by_code_name_and_alias(name: str) -> None:
    assert MULTILINGUAL.language_token(name) == MULTILINGUAL.languages["zh"]


def test_prompts() -> None:
    t = MULTILINGUAL
    assert t.prompt("en", "transcribe", False) == (50258, 50259, 50359, 50363)
    assert t.prompt("de", "translate", True) == (50258, 50261, 50358)
    assert ENGLISH.prompt("en", "transcribe", False) == (50257, 50362)
    assert ENGLISH.prompt("english", "transcribe", True) == (50257,)


@pytest.mark.parametrize(
    ("tokens", "language", "task", "message"),
    [
        (MULTILINGUAL, "xx", "transcribe", "unknown language"),
        (MULTILINGUAL, "en", "sing", "unknown task"),
        (ENGLISH, "de", "transcribe", "English only"),
        (ENGLISH, "en", "translate", "English only"),
    ],
)
def test_what_a_model_cannot_do(
    tokens: WhisperTokens, language: str, task: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        tokens.prompt(language, task, False)


def test_a_tokenizer_of_another_model_is_named(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE({"a": 0}, [])).save(str(path))
    with pytest.raises(WeightsError, match=r"tokenizer\.json is not Whisper's"):
        WhisperTokens.from_file(path)
    path.write_text("{")
    with pytest.raises(WeightsError, match=r"tokenizer\.json is not a tokenizer"):
        WhisperTokens.from_file(path)


def in_pieces(tokens: list[int], cuts: list[int]) -> list[str]:
    detokenizer, pieces, start = Detokenizer(MULTILINGUAL), [], 0
    for cut in [*sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]:
        pieces.append(detokenizer.push(tokens[start:cut]))
        start = cut
    return [*pieces, detokenizer.flush()]


@given(st.text(max_size=40), st.lists(st.integers(0, 200), max_size=6))
def test_text_comes_whole_however_it_is_cut(text: str, cuts: list[int]) -> None:
    text = text.encode("utf-8", "ignore").decode()  # no lone surrogates
    tokens = MULTILINGUAL.encode(text)
    assert MULTILINGUAL.decode(tokens) == text
    pieces = in_pieces(tokens, cuts)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 50400), max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_any_tokens_decode_as_the_library_has_it(tokens: list[int], cuts: list[int]) -> None:
    kept = [token for token in tokens if token < MULTILINGUAL.end_of_text]
    expected = byte_tokenizer_decode(kept)
    assert MULTILINGUAL.decode(tokens) == expected
    assert "".join(in_pieces(tokens, cuts)) == expected


def byte_tokenizer_decode(tokens: list[int]) -> str:
    return MULTILINGUAL._tokenizer.decode(tokens, skip_special_tokens=False)


def test_half_a_character_waits() -> None:
    first, second, third = MULTILINGUAL.encode("你")
    detokenizer = Detokenizer(MULTILINGUAL)
    assert [detokenizer.push([token]) for token in (first, second, third)] == ["", "", "你"]
    assert detokenizer.push([first]) + detokenizer.flush() == "\ufffd"


def test_timestamps_in_seconds() -> None:
    assert MULTILINGUAL.seconds(50364) == 0.0
    assert MULTILINGUAL.seconds(50364 + 1500) == pytest.approx(30.0)
    assert MULTILINGUAL.seconds(50363) is None


@pytest.mark.slow
@pytest.mark.parametrize("text", [" Hello, world.", "今天天气很好，我们去公园。", " naïve café 🎉"])
def test_the_real_tokenizer(base_files: ModelFiles, text: str) -> None:
    tokens = WhisperTokens.from_file(base_files.tokenizer_json)
    assert tokens.decode(tokens.encode(text)) == text
    assert (tokens.start, tokens.first_timestamp) == (50258, 50364)
    assert len(tokens.languages) == 99
