"""Whisper's vocabulary: special tokens, prompts, and text from tokens, whole or as they come."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from soothsay.text.languages import ALIASES, LANGUAGES
from soothsay.types import OptionError, WeightsError

TIMESTAMP_SECONDS = 0.02  # one timestamp token to the next
MAX_PREVIOUS = 223  # tokens of earlier text in a prompt: half of Whisper's 448 positions, less one

_SIGNS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
_LONG_SIGNS = (
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_MUSIC = "♩♪♫♬♭♮♯"  # three bytes each, the first two in common: their first token is enough


class WhisperTokens:
    """The tokenizer of one Whisper. All ids are read from it; none is assumed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # text that spells a special token stays text
        self.end_of_text = self._id("<|endoftext|>")
        self.start = self._id("<|startoftranscript|>")
        self.transcribe = self._id("<|transcribe|>")
        self.translate = self._id("<|translate|>")
        self.no_timestamps = self._id("<|notimestamps|>")
        self.no_speech = self._id("<|nospeech|>", "<|nocaptions|>")
        self.start_of_previous = self._id("<|startofprev|>")
        self.start_of_lm = self._id("<|startoflm|>")
        self.first_timestamp = self.no_timestamps + 1
        # English-only vocabularies have one text token fewer, and their language tokens are idle.
        self.multilingual = self.end_of_text == 50257
        found = {code: tokenizer.token_to_id(f"<|{code}|>") for code in LANGUAGES}
        self.languages = {code: token for code, token in found.items() if token is not None}

    @classmethod
    def from_file(cls, path: Path) -> WhisperTokens:
        """Read a tokenizer.json. WeightsError names the file where it is not Whisper's."""
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for any damage
            raise WeightsError(f"{path} is not a tokenizer: {error}") from error
        try:
            return cls(tokenizer)
        except WeightsError as error:
            raise WeightsError(f"{path} is not Whisper's: {error}") from error

    def language_token(self, language: str) -> int:
        """A code (`en`) or a name (`English`) → its token. OptionError for any other."""
        wanted = language.strip().lower()
        names = {name: code for code, name in LANGUAGES.items()} | ALIASES
        code = names.get(wanted, wanted)
        if code not in self.languages:  # a regional code, such as sv-SE
            code = code.replace("_", "-").partition("-")[0]
        if code not in self.languages:
            raise OptionError(f"unknown language {language!r}: give a code such as en, zh or de")
        if not self.multilingual and code != "en":
            raise OptionError(
                f"this model writes English only: language {language!r} needs another"
            )
        return self.languages[code]

    def prompt_end(self, task: str, timestamps: bool) -> tuple[int, ...]:
        """The prompt's tokens behind the language."""
        if task == "translate" and not self.multilingual:
            raise OptionError("this model writes English only and cannot translate")
        tasks = {"transcribe": self.transcribe, "translate": self.translate}
        if task not in tasks:
            raise OptionError(f"unknown task {task!r}: choose {' or '.join(tasks)}")
        spoken = (tasks[task],) if self.multilingual else ()
        return spoken if timestamps else (*spoken, self.no_timestamps)

    def prompt(
        self, language: str, task: str, timestamps: bool, previous: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The whole prompt for a known language; `previous` is earlier text, its end if long."""
        token = self.language_token(language)
        spoken = (token,) if self.multilingual else ()
        return (*self.previous(previous), self.start, *spoken, *self.prompt_end(task, timestamps))

    def previous(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """A prompt's beginning: earlier text, its end if long; nothing where there is none."""
        return (self.start_of_previous, *tokens[-MAX_PREVIOUS:]) if tokens else ()

    def encode(self, text: str) -> list[int]:
        """Text → tokens, no special ones or timestamps among them, whatever the text spells."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [token for token in ids if token < self.end_of_text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens → text. Special tokens and timestamps are left out; bad UTF-8 becomes U+FFFD."""
        detokenizer = Detokenizer(self)
        return detokenizer.push(tokens) + detokenizer.flush()

    def seconds(self, token: int) -> float | None:
        """A timestamp token → seconds into the window; None for any other token."""
        steps = token - self.first_timestamp
        return steps * TIMESTAMP_SECONDS if steps >= 0 else None

    @cached_property
    def default_suppressed(self) -> tuple[int, ...]:
        """Tokens never written where a model's configuration names none, ascending.

        Signs that annotate rather than speak, and the special tokens of prompts: openai/whisper,
        `non_speech_tokens` in tokenizer.py and `_get_suppress_tokens` in decoding.py.
        """
        found = {
            self.start,
            self.translate,
            self.transcribe,
            self.start_of_lm,
            self.start_of_previous,
            self.no_speech,
            # Hyphens and quotes may stand between words, not before one.
            *self.encode(" -")[:1],
            *self.encode(" '")[:1],
        }
        for symbol in (*_SIGNS, *_LONG_SIGNS, *_MUSIC):
            for tokens in (self.encode(symbol), self.encode(" " + symbol)):
                if len(tokens) == 1 or symbol in _MUSIC:
                    found.update(tokens[:1])
        return tuple(sorted(found))

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of every text token (ids below end-of-text), by GPT-2's byte alphabet."""
        alphabet = _byte_alphabet()
        return [
            bytes(alphabet[char] for char in self._tokenizer.id_to_token(token) or "")
            for token in range(self.end_of_text)
        ]

    def _id(self, *names: str) -> int:
        for name in names:
            if (token := self._tokenizer.token_to_id(name)) is not None:
                return int(token)
        raise WeightsError(f"the token {names[0]} is missing")


class Detokenizer:
    """Text from tokens as they come, never half a character: `push` holds back an open one."""

    def __init__(self, tokens: WhisperTokens) -> None:
        self._bytes = tokens.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; special tokens and timestamps add none."""
        known = self._bytes
        return self._decoder.decode(b"".join(known[t] for t in tokens if t < len(known)))

    def flush(self) -> str:
        """What an open character at the end of the text becomes."""
        return self._decoder.decode(b"", final=True)


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of GPT-2's byte-level BPE: printable bytes stand for themselves, the
    others for characters from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted
