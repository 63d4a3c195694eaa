"""Other engines as their users have them, each made and run in a process of its own.

All get the same weights and threads and decode greedily, without timestamps or retries, from
16 kHz samples of at most 30 s. Their libraries are imported where an engine is made, so that one
that is not installed is an ImportError there and nobody else's concern.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from soothsay.bench.peer_weights import PeerWeights, openai_name, write_ggml
from soothsay.text.tokens import WhisperTokens

Samples = NDArray[np.float32]  # mono, 16 kHz


@dataclass(frozen=True, slots=True)
class Split:
    """Of a turn, encoding and decoding apart; seconds. tokens without end-of-text."""

    tokens: tuple[int, ...]
    encode_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What an engine wrote for one window; `split` where the engine lets itself be timed so."""

    text: str
    split: Split | None = None


class PeerEngine(Protocol):
    """An engine that is ready: its weights are loaded."""

    def hear(self, samples: Samples, language: str) -> Heard:
        """Features, encoder and decoding of one window in a language given by its code."""
        ...


class FasterWhisper:
    """faster-whisper: its features, and CTranslate2, the engine beneath it."""

    def __init__(self, weights: PeerWeights, compute_type: str) -> None:
        import ctranslate2
        from faster_whisper.audio import pad_or_trim
        from faster_whisper.feature_extractor import FeatureExtractor

        self._features = FeatureExtractor(feature_size=weights.files.config.mel_bins)
        self._pad_or_trim, self._view = pad_or_trim, ctranslate2.StorageView.from_array
        self._tokens = WhisperTokens.from_file(weights.files.tokenizer_json)
        self._model = ctranslate2.models.Whisper(
            str(weights.ctranslate2),
            device="cpu",
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=weights.threads,
        )

    def hear(self, samples: Samples, language: str) -> Heard:
        features = self._pad_or_trim(self._features(samples))
        started = time.perf_counter()
        encoded = self._model.encode(self._view(np.ascontiguousarray(features[None])))
        middle = time.perf_counter()
        prompt = list(self._tokens.prompt(language, "transcribe", timestamps=False))
        (result,) = self._model.generate(encoded, [prompt], beam_size=1)
        ended = time.perf_counter()
        tokens = tuple(result.sequences_ids[0])
        split = Split(tokens, middle - started, ended - middle)
        return Heard(self._tokens.decode(tokens), split)


class OpenAIWhisper:
    """openai-whisper in float32, which is what it uses on a CPU."""

    def __init__(self, weights: PeerWeights) -> None:
        import whisper

        torch.set_num_threads(weights.threads)
        sizes = weights.files.config
        dimensions = whisper.model.ModelDimensions(
            n_mels=sizes.mel_bins,
            n_audio_ctx=sizes.max_source_positions,
            n_audio_state=sizes.width,
            n_audio_head=sizes.encoder_heads,
            n_audio_layer=sizes.encoder_layers,
            n_vocab=sizes.vocab_size,
            n_text_ctx=sizes.max_target_positions,
            n_text_state=sizes.width,
            n_text_head=sizes.decoder_heads,
            n_text_layer=sizes.decoder_layers,
        )
        self._whisper, self._mel_bins = whisper, sizes.mel_bins
        self._model = whisper.model.Whisper(dimensions).eval()
        tensors = {openai_name(name): tensor for name, tensor in weights.tensors().items()}
        self._model.load_state_dict(tensors, strict=True)

    def hear(self, samples: Samples, language: str) -> Heard:
        padded = self._whisper.pad_or_trim(samples)
        features = self._whisper.log_mel_spectrogram(padded, self._mel_bins)
        options = self._whisper.DecodingOptions(
            language=language, temperature=0.0, without_timestamps=True, fp16=False
        )
        return Heard(self._whisper.decode(self._model, features, options).text)


class Transformers:
    """Transformers' `generate` in float32."""

    def __init__(self, weights: PeerWeights) -> None:
        from transformers import (
            GenerationConfig,
            WhisperConfig,
            WhisperFeatureExtractor,
            WhisperForConditionalGeneration,
        )

        torch.set_num_threads(weights.threads)
        files, sizes = weights.files, weights.files.config
        self._tokens = tokens = WhisperTokens.from_file(files.tokenizer_json)
        config = WhisperConfig(
            vocab_size=sizes.vocab_size,
            d_model=sizes.width,
            encoder_layers=sizes.encoder_layers,
            decoder_layers=sizes.decoder_layers,
            encoder_attention_heads=sizes.encoder_heads,
            decoder_attention_heads=sizes.decoder_heads,
            encoder_ffn_dim=sizes.encoder_ffn,
            decoder_ffn_dim=sizes.decoder_ffn,
            num_mel_bins=sizes.mel_bins,
            max_source_positions=sizes.max_source_positions,
            max_target_positions=sizes.max_target_positions,
            pad_token_id=tokens.end_of_text,
            bos_token_id=tokens.end_of_text,
            eos_token_id=tokens.end_of_text,
            decoder_start_token_id=tokens.start,
        )
        model = WhisperForConditionalGeneration(config).eval()
        tensors = weights.tensors()
        tied = {"proj_out.weight": tensors["model.decoder.embed_tokens.weight"]}
        model.load_state_dict(tensors | tied, strict=True)
        model.generation_config = GenerationConfig(
            suppress_tokens=list(files.generation.suppress or tokens.default_suppressed),
            begin_suppress_tokens=list(files.generation.begin_suppress),
            decoder_start_token_id=tokens.start,
            eos_token_id=tokens.end_of_text,
            pad_token_id=tokens.end_of_text,
            bos_token_id=tokens.end_of_text,
            no_timestamps_token_id=tokens.no_timestamps,
            max_length=sizes.max_target_positions,
            is_multilingual=tokens.multilingual,
            lang_to_id={f"<|{code}|>": token for code, token in tokens.languages.items()},
            task_to_id={"transcribe": tokens.transcribe, "translate": tokens.translate},
            num_beams=1,
            do_sample=False,
        )
        self._features = WhisperFeatureExtractor(feature_size=sizes.mel_bins)
        self._generate = model.generate

    def hear(self, samples: Samples, language: str) -> Heard:
        features = self._features(samples, sampling_rate=16_000, return_tensors="pt")
        # An English-only model refuses to be told either.
        spoken = {"language": language, "task": "transcribe"} if self._tokens.multilingual else {}
        (tokens,) = self._generate(features.input_features, return_timestamps=False, **spoken)
        return Heard(self._tokens.decode(tokens.tolist()))


class WhisperCpp:
    """whisper.cpp through pywhispercpp, with float16 weights as its users have them."""

    def __init__(self, weights: PeerWeights) -> None:
        from pywhispercpp.model import Model

        path = weights.folder / "ggml.bin"
        write_ggml(weights, path)
        self._model = Model(
            str(path),
            redirect_whispercpp_logs_to=None,
            print_progress=False,
            n_threads=weights.threads,
            no_timestamps=True,
            single_segment=True,
            temperature=0.0,
            temperature_inc=0.0,  # no retries
            greedy={"best_of": 1},
            suppress_nst=True,  # the signs that the other engines suppress by default
        )

    def hear(self, samples: Samples, language: str) -> Heard:
        return Heard(" ".join(s.text for s in self._model.transcribe(samples, language=language)))


@dataclass(frozen=True, slots=True)
class PeerKind:
    """How to make a peer, and what to tell those who lack it."""

    make: Callable[[PeerWeights], PeerEngine]
    install: str
    needs_container: bool = False  # reads nothing but CTranslate2's own format


_WITH_BENCH = 'pip install "soothsay[bench]"'
PEERS = {
    **{
        f"faster_whisper_{kind}": PeerKind(
            partial(FasterWhisper, compute_type=kind), _WITH_BENCH, needs_container=True
        )
        for kind in ("float32", "int8")
    },
    # Its dependency on triton (250 MB, for GPUs) is of no use here.
    "openai_whisper_float32": PeerKind(
        OpenAIWhisper,
        "pip install more-itertools numba tiktoken && pip install --no-deps openai-whisper",
    ),
    "transformers_float32": PeerKind(Transformers, _WITH_BENCH),
    "whisper_cpp_float16": PeerKind(WhisperCpp, _WITH_BENCH),
}
