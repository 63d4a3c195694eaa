"""Whisper's vocabulary, on a toy tokenizer with the same special tokens, and on the real one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from soothsay.targets.load import ModelFiles
from soothsay.text.languages import LANGUAGES
from soothsay.text.tokens import Detokenizer, WhisperTokens
from soothsay.types import OptionError, WeightsError


def byte_tokenizer(multilingual: bool, languages: int = 99) -> Tokenizer:
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
    special += [f"<|{code}|>" for code in list(LANGUAGES)[:languages]]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    special += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])
    return tokenizer


MULTILINGUAL = WhisperTokens(byte_tokenizer(True))
ENGLISH = WhisperTokens(byte_tokenizer(False))


def test_special_tokens_are_where_whisper_has_them() -> None:
    t = MULTILINGUAL
    assert (t.end_of_text, t.start, t.translate, t.transcribe) == (50257, 50258, 50358, 50359)
    assert (t.start_of_lm, t.start_of_previous) == (50360, 50361)
    assert (t.no_speech, t.no_timestamps, t.first_timestamp) == (50362, 50363, 50364)
    assert t.multilingual
    assert not ENGLISH.multilingual
    assert t.languages["en"] == 50259
    assert len(t.languages) == 99


def test_the_newest_vocabulary_has_one_language_more() -> None:
    t = WhisperTokens(byte_tokenizer(True, languages=100))
    assert t.languages["yue"] == t.language_token("Cantonese") == 50358
    assert (t.transcribe, t.no_timestamps, t.first_timestamp) == (50360, 50364, 50365)
    with pytest.raises(OptionError, match="unknown language 'cantonese'"):
        MULTILINGUAL.language_token("cantonese")


@pytest.mark.parametrize("name", ["zh", "ZH", "Chinese", " mandarin "])
def test_languages_by_code_name_and_alias(name: str) -> None:
    assert MULTILINGUAL.language_token(name) == MULTILINGUAL.languages["zh"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("sv-SE", "sv"), ("zh_CN", "zh"), ("EN-us", "en"), ("zh-Hant-TW", "zh"), (" pt-BR ", "pt")],
)
def test_regional_codes_are_their_language(name: str, code: str) -> None:
    assert MULTILINGUAL.language_token(name) == MULTILINGUAL.languages[code]


def test_regional_codes_of_other_languages_are_refused() -> None:
    assert ENGLISH.language_token("en-GB") == ENGLISH.languages["en"]
    with pytest.raises(OptionError, match="English only: language 'sv-SE'"):
        ENGLISH.language_token("sv-SE")
    for name in ("xx-SE", "-SE", "-", "swedish-SE", "s-v"):
        with pytest.raises(OptionError, match=f"unknown language '{name}'"):
            MULTILINGUAL.language_token(name)


def test_prompts() -> None:
    t = MULTILINGUAL
    assert t.prompt("en", "transcribe", False) == (50258, 50259, 50359, 50363)
    assert t.prompt("de", "translate", True) == (50258, 50261, 50358)
    assert ENGLISH.prompt("en", "transcribe", False) == (50257, 50362)
    assert ENGLISH.prompt("english", "transcribe", True) == (50257,)


def test_earlier_text_stands_before_the_prompt_and_loses_its_beginning() -> None:
    t = MULTILINGUAL
    plain = t.prompt("en", "transcribe", False)
    assert t.prompt("en", "transcribe", False, [7, 8]) == (50361, 7, 8, *plain)
    assert t.prompt("en", "transcribe", False, range(1000)) == (50361, *range(777, 1000), *plain)


@pytest.mark.parametrize(
    "text", ["<|endoftext|>", "so <|startoftranscript|><|en|> it", "<|1.00|> on", "<|0.00|>"]
)
def test_text_never_becomes_a_special_token(text: str) -> None:
    assert all(token < 50257 for token in MULTILINGUAL.encode(text))


def test_special_tokens_spelled_in_text_stay_text() -> None:
    text = "say <|endoftext|> now"
    assert MULTILINGUAL.decode(MULTILINGUAL.encode(text)) == text


def test_default_suppression_names_signs_and_the_prompt() -> None:
    t = MULTILINGUAL
    found = t.default_suppressed
    assert list(found) == sorted(set(found))
    for sign in "#<>[]{}~":
        assert t.encode(sign)[0] in found
    assert {t.start, t.transcribe, t.translate, t.no_speech} < set(found)
    assert not {t.end_of_text, t.no_timestamps, t.first_timestamp, *t.encode("a,.?!")} & set(found)


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


@pytest.fixture(scope="module")
def real_tokens(base_files: ModelFiles) -> WhisperTokens:
    return WhisperTokens.from_file(base_files.tokenizer_json)


@pytest.mark.slow
@pytest.mark.parametrize("text", [" Hello, world.", "今天天气很好，我们去公园。", " naïve café 🎉"])
def test_the_real_tokenizer(real_tokens: WhisperTokens, text: str) -> None:
    assert real_tokens.decode(real_tokens.encode(text)) == text
    assert (real_tokens.start, real_tokens.first_timestamp) == (50258, 50364)
    assert len(real_tokens.languages) == 99


@pytest.mark.slow
def test_default_suppression_is_the_published_list(
    base_files: ModelFiles, real_tokens: WhisperTokens
) -> None:
    assert real_tokens.default_suppressed == tuple(sorted(base_files.generation.suppress))


@pytest.mark.slow
def test_real_tokens_decode_as_transformers_has_it(
    base_files: ModelFiles, real_tokens: WhisperTokens
) -> None:
    transformers = pytest.importorskip("transformers")
    oracle = transformers.WhisperTokenizer(
        tokenizer_object=Tokenizer.from_file(str(base_files.tokenizer_json))
    )
    random = np.random.default_rng(0)
    for _ in range(300):
        tokens = random.integers(0, 50364 + 1501, random.integers(1, 40)).tolist()
        assert real_tokens.decode(tokens) == oracle.decode(tokens, skip_special_tokens=True)
